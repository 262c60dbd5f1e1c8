#pragma once

#include <memory>
#include <string>

#include <ferry/store/store.hpp>

namespace ferry::inline v0 {

/// A store in one file, shared by all processes that open it: an append-only log of checksummed records
/// (docs/protocol.md, "File store"). Writers lock it with flock, so the file must be on a local file system or on one
/// that supports flock between hosts (NFS since version 3). A process that is killed while it writes leaves a torn
/// record, which the next writer truncates. The file remains after the stores are destroyed: a group needs a fresh
/// path, else it finds the keys of the previous one.
class file_store final : public store {
 public:
  /// Opens `path`, creating the file if it does not exist. Throws errc::store_unreachable if it cannot be opened (the
  /// text has the path and the reason), errc::store_failed if it is not a store file or is damaged,
  /// errc::version_mismatch, errc::store_timeout if another process keeps it locked for longer than `limit` (unset: the
  /// default timeout).
  explicit file_store(const std::string& path, timeout limit = {},
                      std::size_t max_value_bytes = default_max_value_bytes);
  ~file_store() override;

  void close() noexcept override;
  [[nodiscard]] std::string describe() const override;

 protected:
  void do_set(std::string_view key, std::string_view value, deadline until) override;
  std::vector<std::string> do_get(std::span<const std::string> keys, bool values, deadline until) override;
  std::optional<std::string> do_try_get(std::string_view key, deadline until) override;
  std::int64_t do_add(std::string_view key, std::int64_t delta, deadline until) override;
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             deadline until) override;
  bool do_erase(std::string_view key, deadline until) override;
  std::vector<store_entry> do_list(std::string_view prefix, deadline until) override;
  std::size_t do_count(std::string_view prefix, deadline until) override;
  store_change do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) override;

 private:
  struct state;
  template <class Action>
  auto exclusively(deadline until, Action action);
  template <class Look>
  auto looking(deadline until, Look look);
  template <class Done>
  bool wait_until(deadline until, Done done);

  std::unique_ptr<state> state_;
};

}  // namespace ferry::inline v0
