#pragma once

// Messages between the members of a gather and the collecting worker, which is the first member by name. All members,
// itself included, call it; it answers once the last one has called.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ferry/rpc/future.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0::detail {

/// A member's contribution.
struct gather_arrival {
  std::vector<std::string> members;  ///< sorted
  std::uint64_t round = 0;           ///< number of the round of this set, as this member counts
  bool counts = false;               ///< the member has received an answer before: `round` is valid
  std::uint64_t type = 0;
  std::uint64_t limit_us = 0;  ///< the member's limit, for error texts; zero: none
  std::uint64_t left_us = 0;   ///< the time left of it; zero: no limit
  std::string operation;       ///< what it is for, to be shown: "all_gather"
  serialized value;

  /// Not serialised. Released with the arrival, which is destroyed after its answer has been sent: its destructor is
  /// the notification.
  mutable std::shared_ptr<void> answered;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(members, round, counts, type, limit_us, left_us, operation, value);
  }
};

/// The outcome of a round; every member receives the same.
struct gather_result {
  std::uint32_t error = 0;  ///< an errc, or zero
  std::string text;         ///< of the error
  std::uint64_t round = 0;  ///< number of the round
  std::vector<serialized> values;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(error, text, round, values);
  }
};

/// A result that is sent to several members without copying it.
struct gather_answer {
  std::shared_ptr<const gather_result> result;

  template <class Archive>
  void save(Archive& archive) const {
    archive(*result);
  }
  template <class Archive>
  void load(Archive& archive) {
    auto own = std::make_shared<gather_result>();
    archive(*own);
    result = std::move(own);
  }
};

/// The method "ferry/gather" of the collecting worker. Throws errc::invalid_argument if this worker does not collect
/// for the set, or if the caller is not a member of it.
future<gather_answer> serve_gather(const gather_arrival& arrival);

}  // namespace ferry::inline v0::detail
