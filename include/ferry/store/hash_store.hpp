#pragma once

#include <memory>

#include <ferry/store/store.hpp>

namespace ferry::inline v0 {

/// A store within one process, for workers that are threads, and for tests.
class hash_store final : public store {
 public:
  hash_store();
  ~hash_store() override;

  /// Another handle on the same content, with its own close() and default timeout.
  [[nodiscard]] std::shared_ptr<hash_store> share() const;

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
  struct content;
  struct waiter;
  explicit hash_store(std::shared_ptr<content> shared);
  template <class Waiter, class Take>
  bool wait_until(deadline until, Waiter& who, Take take);
  template <class Change>
  auto update(std::string_view key, Change change);

  std::shared_ptr<content> content_;
  bool closed_ = false;  // guarded by the content's mutex
};

}  // namespace ferry::inline v0
