#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/store/store.hpp>

namespace ferry_test {

/// Passes everything on to another store: for those that do something else with a part of it.
class forwarding_store : public ferry::store {
 public:
  explicit forwarding_store(std::shared_ptr<ferry::store> inner) : inner_(std::move(inner)) {}
  void close() noexcept override { inner_->close(); }
  [[nodiscard]] std::string describe() const override { return inner_->describe(); }

 protected:
  void do_set(std::string_view key, std::string_view value, ferry::deadline until) override {
    inner_->set(key, value, left(until));
  }
  std::vector<std::string> do_get(std::span<const std::string> keys, bool values, ferry::deadline until) override {
    if (values) return inner_->get(keys, left(until));
    inner_->wait(keys, left(until));
    return {};
  }
  std::optional<std::string> do_try_get(std::string_view key, ferry::deadline until) override {
    return inner_->try_get(key, left(until));
  }
  std::int64_t do_add(std::string_view key, std::int64_t delta, ferry::deadline until) override {
    return inner_->add(key, delta, left(until));
  }
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             ferry::deadline until) override {
    return inner_->compare_set(key, expected, desired, left(until));
  }
  bool do_erase(std::string_view key, ferry::deadline until) override { return inner_->erase(key, left(until)); }
  std::vector<ferry::store_entry> do_list(std::string_view prefix, ferry::deadline until) override {
    return inner_->list(prefix, left(until));
  }
  std::size_t do_count(std::string_view prefix, ferry::deadline until) override {
    return inner_->count(prefix, left(until));
  }
  ferry::store_change do_wait_change(std::string_view key, std::uint64_t last, ferry::deadline until) override {
    return inner_->wait_change(key, last, left(until));
  }

 private:
  static ferry::timeout left(ferry::deadline until) {
    if (until.is_never()) return ferry::no_timeout;
    return std::max(until.remaining(), std::chrono::nanoseconds(1));
  }
  const std::shared_ptr<ferry::store> inner_;
};

}  // namespace ferry_test
