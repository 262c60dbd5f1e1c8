#pragma once

// What the members of a gather and the one that collects send each other. The collecting worker is the first by name; all
// members call it, itself included, and it answers when the last one has.

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
  std::uint64_t round = 0;           ///< of this set, as this member counts them
  bool counts = false;               ///< the member has been answered before: `round` is to be believed
  std::uint64_t type = 0;
  std::uint64_t limit_us = 0;  ///< the member's limit, for texts; zero: none
  std::uint64_t left_us = 0;   ///< what is left of it; zero: none
  serialized value;

  /// Never sent: what is to happen once the answer to this arrival has been sent, which is when the arrival goes.
  mutable std::shared_ptr<void> answered;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(members, round, counts, type, limit_us, left_us, value);
  }
};

/// The same for all members.
struct gather_result {
  std::uint32_t error = 0;  ///< an errc, or zero
  std::string text;         ///< of the error
  std::uint64_t round = 0;  ///< which one it was
  std::vector<serialized> values;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(error, text, round, values);
  }
};

/// A result that is sent to several without copies of it.
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

/// The method that the collecting worker serves, as "ferry/gather". Throws errc::invalid_argument to a caller that may
/// not gather over this set here.
future<gather_answer> serve_gather(const gather_arrival& arrival);

}  // namespace ferry::inline v0::detail
