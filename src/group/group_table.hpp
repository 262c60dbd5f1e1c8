#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/rpc/attached.hpp>

#include "group_messages.hpp"

namespace ferry::inline v0::detail {

class group_core;

/// The process_groups that a worker is a member of. Thread-safe.
class group_table final : public worker_attachment {
 public:
  static constexpr const char* none = "this worker does not have the process_group any more";

  static std::shared_ptr<group_table> of(worker_core& worker);

  /// Throws errc::not_initialized once closed.
  void add(const std::shared_ptr<group_core>& group);
  void remove(std::uint64_t id) noexcept;
  /// Null: there is none.
  [[nodiscard]] std::shared_ptr<group_core> find(std::uint64_t id) const noexcept;
  /// A collective that this worker has begun has failed. The first error is the one that counts. To be noted before the caller of
  /// the collective hears of it, and may let go of the group: other members may still send messages of it.
  void note_failed(std::uint64_t group, const collective_key& key, errc error, const std::string& text);
  /// The error of that collective if it is one of the last that have failed; else null.
  [[nodiscard]] std::exception_ptr error_of(std::uint64_t group, const collective_key& key) const;
  void close() noexcept override;
  [[nodiscard]] std::vector<std::shared_ptr<group_core>> all() const;

 private:
  struct failed_collective {
    std::uint64_t group = 0;
    collective_key key;
    errc error = {};
    std::string text;
  };

  void on_gone(const worker_info& who, const std::string& what) noexcept;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<group_core>> groups_;
  std::deque<failed_collective> failed_;  // the last ones, of groups that are gone as well
  bool closed_ = false;
  std::once_flag observes_;
};

}  // namespace ferry::inline v0::detail
