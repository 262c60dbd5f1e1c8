#pragma once

#include <memory>
#include <string>

#include <ferry/store/store.hpp>

namespace ferry::inline v0 {

/// A view of another store through a key prefix: key "a" is stored in the wrapped store as "<prefix>/a". close(),
/// drain(), admit_no_more() and local_address() are those of the wrapped store; the default timeout is its own.
class prefix_store final : public store {
 public:
  /// errc::invalid_argument if `wrapped` is null or `prefix` empty.
  prefix_store(std::string_view prefix, std::shared_ptr<store> wrapped);

  [[nodiscard]] const std::shared_ptr<store>& wrapped() const noexcept { return wrapped_; }
  /// Including the slash.
  [[nodiscard]] const std::string& prefix() const noexcept { return prefix_; }

  void close() noexcept override;
  bool drain(timeout limit = {}) override;
  void admit_no_more() noexcept override { wrapped_->admit_no_more(); }
  [[nodiscard]] bool serves() const noexcept override { return wrapped_->serves(); }
  [[nodiscard]] std::string local_address() const override;
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
  [[nodiscard]] std::string full(std::string_view key) const;

  std::string prefix_;
  std::shared_ptr<store> wrapped_;
};

}  // namespace ferry::inline v0
