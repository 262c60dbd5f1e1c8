#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ferry/rpc/attached.hpp>

namespace ferry::inline v0::detail {

class group_core;

/// The process_groups that a worker is a member of. Thread-safe.
class group_table final : public worker_attachment {
 public:
  static std::shared_ptr<group_table> of(worker_core& worker);

  /// Throws errc::not_initialized once closed.
  void add(const std::shared_ptr<group_core>& group);
  void remove(std::uint64_t id) noexcept;
  /// Throws errc::invalid_argument if there is none.
  [[nodiscard]] std::shared_ptr<group_core> find(std::uint64_t id) const;
  [[nodiscard]] std::shared_ptr<group_core> find_or_null(std::uint64_t id) const noexcept;
  void close() noexcept override;

 private:
  void on_gone(const worker_info& who, const std::string& what) noexcept;
  [[nodiscard]] std::vector<std::shared_ptr<group_core>> all() const;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<group_core>> groups_;
  bool closed_ = false;
  std::once_flag observes_;
};

}  // namespace ferry::inline v0::detail
