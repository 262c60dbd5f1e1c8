#pragma once

// What workers need of which many run in one process: a store that counts, and a handler that waits for members.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/store/hash_store.hpp>

namespace ferry_bench {

/// What workers ask their store for.
struct store_traffic {
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> bytes_read{0};  // of values
};

// Counts the workers' store operations.
class counting_store final : public ferry::store {
 public:
  counting_store(std::shared_ptr<ferry::hash_store> where, store_traffic& counts)
      : where_(std::move(where)), counts_(counts) {}
  void close() noexcept override { where_->close(); }
  [[nodiscard]] std::string describe() const override { return where_->describe(); }

 protected:
  void do_set(std::string_view key, std::string_view value, ferry::deadline) override {
    ++counts_.requests;
    where_->set(key, value);
  }
  std::vector<std::string> do_get(std::span<const std::string> keys, bool values, ferry::deadline until) override {
    ++counts_.requests;
    if (values) {
      std::vector<std::string> found = where_->get(keys, left(until));
      for (const std::string& each : found) counts_.bytes_read += each.size();
      return found;
    }
    where_->wait(keys, left(until));
    return {};
  }
  std::optional<std::string> do_try_get(std::string_view key, ferry::deadline) override {
    ++counts_.requests;
    std::optional<std::string> found = where_->try_get(key);
    if (found) counts_.bytes_read += found->size();
    return found;
  }
  std::int64_t do_add(std::string_view key, std::int64_t delta, ferry::deadline) override {
    ++counts_.requests;
    return where_->add(key, delta);
  }
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             ferry::deadline) override {
    ++counts_.requests;
    return where_->compare_set(key, expected, desired);
  }
  bool do_erase(std::string_view key, ferry::deadline) override {
    ++counts_.requests;
    return where_->erase(key);
  }
  std::vector<ferry::store_entry> do_list(std::string_view prefix, ferry::deadline) override {
    ++counts_.requests;
    std::vector<ferry::store_entry> found = where_->list(prefix);
    for (const ferry::store_entry& each : found) counts_.bytes_read += each.value.size();
    return found;
  }
  std::size_t do_count(std::string_view prefix, ferry::deadline) override {
    ++counts_.requests;
    return where_->count(prefix);
  }
  ferry::store_change do_wait_change(std::string_view key, std::uint64_t last, ferry::deadline until) override {
    ++counts_.requests;
    return where_->wait_change(key, last, left(until));
  }

 private:
  static ferry::timeout left(ferry::deadline until) {
    if (until.is_never()) return ferry::no_timeout;
    return std::max(until.remaining(), std::chrono::nanoseconds(1));
  }
  const std::shared_ptr<ferry::hash_store> where_;
  store_traffic& counts_;
};

// Serves nothing, and counts the members it is notified of.
class member_listener final : public ferry::request_handler {
 public:
  void on_request(const std::shared_ptr<ferry::reply_channel>& channel, const ferry::worker_info&,
                  ferry::inbound_message&& request) noexcept override {
    channel->handled(request.payload.size());
  }
  void on_member_event(const ferry::member_event& event) noexcept override {
    const std::lock_guard lock(mutex_);
    if (event.what == ferry::member_event::kind::joined) ++joined_;
    if (event.what == ferry::member_event::kind::lost) ++lost_;
    changed_.notify_all();
  }
  [[nodiscard]] bool busy() const noexcept override { return false; }
  void wait_for(int members) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return joined_ >= members; });
  }
  void wait_for_loss() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lost_ != 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int joined_ = 0;
  int lost_ = 0;
};

}  // namespace ferry_bench
