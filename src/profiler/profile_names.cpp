#include "profile_names.hpp"

#include <array>
#include <atomic>
#include <cstddef>

#include <fmt/format.h>
#include <ferry/base/ids.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_profile_names = std::size_t{1} << 16U;
constexpr range_description another_call{"(another call: there are too many names)", range_kind::call};
constexpr range_description another_range{"(another range: there are too many names)", range_kind::user};
constexpr range_description another_handler{"(another method: there are too many names)", range_kind::handler};

std::atomic<std::uint64_t> next_names{1};

// The name that name_call() has given this thread last: most calls are like the one before. One each for a few recordings.
struct named_call {
  std::uint64_t serial;  // of the names that have it
  std::string_view method;
  profiled_mode mode;
  std::int32_t caller;
  std::int32_t peer;
  const range_description* what;
};
constexpr std::size_t named_calls = 4;
constinit thread_local std::array<named_call, named_calls> last_named_calls{};

std::string text_of_call(std::string_view method, profiled_mode mode, std::string_view caller, std::string_view peer) {
  switch (mode) {
    case profiled_mode::sync: return fmt::format("rpc_sync#{}({} -> {})", method, caller, peer);
    case profiled_mode::async: return fmt::format("rpc_async#{}({} -> {})", method, caller, peer);
    case profiled_mode::remote: return fmt::format("rpc_remote#{}({} -> {})", method, caller, peer);
    case profiled_mode::notify: return fmt::format("rpc_notify#{}({} -> {})", method, caller, peer);
    case profiled_mode::to_here: break;
  }
  return fmt::format("to_here#({})->({})", caller, peer);
}

}  // namespace

profile_names::profile_names() noexcept : serial_(next_names.fetch_add(1, std::memory_order_relaxed)) {}

void profile_names::note_worker(std::int32_t id, std::string_view name) {
  const std::lock_guard lock(mutex_);
  add_worker(id, name);
}

void profile_names::add_worker(std::int32_t id, std::string_view name) {
  if (id < 0 || id > worker_id::max) return;
  const auto place = static_cast<std::size_t>(id);
  if (workers_.size() <= place) workers_.resize(place + 1);
  if (workers_[place].empty()) workers_[place] = name;
}

std::unordered_map<const range_description*, std::string_view> profile_names::methods() const {
  const std::lock_guard lock(mutex_);
  std::unordered_map<const range_description*, std::string_view> found;
  for (const auto& each : names_) {
    if (each->what.kind == range_kind::call) found.emplace(&each->what, each->method);
  }
  return found;
}

std::vector<std::string> profile_names::workers() const {
  const std::lock_guard lock(mutex_);
  return workers_;
}

const range_description& profile_names::name_range(std::string_view name, range_kind kind) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(range_key(name, kind));
  if (found != ranges_.end()) return *found->second;
  if (names_.size() >= most_profile_names) return kind == range_kind::handler ? another_handler : another_range;
  kept_name& made = *names_.emplace_back(std::make_unique<kept_name>());
  made.text = name;
  made.what = {made.text, kind};
  ranges_[{made.text, kind}] = &made.what;
  return made.what;
}

const range_description& profile_names::name_call(std::string_view method, profiled_mode mode, std::int32_t caller,
                                                  std::string_view caller_name, std::int32_t peer,
                                                  std::string_view peer_name) {
  named_call& last = last_named_calls[serial_ % named_calls];
  if (last.serial == serial_ && last.mode == mode && last.caller == caller && last.peer == peer &&
      last.method == method)
    return *last.what;
  const std::lock_guard lock(mutex_);
  if (names_.size() >= most_profile_names && !calls_.contains({method.data(), mode, caller, peer})) return another_call;
  const kept_name*& known = calls_[{method.data(), mode, caller, peer}];
  // The text of a method whose library was unloaded may have left its address to another.
  if (known && known->method == method) {
    last = {serial_, known->method, mode, caller, peer, &known->what};
    return known->what;
  }
  add_worker(caller, caller_name);
  add_worker(peer, peer_name);
  kept_name& made = *names_.emplace_back(std::make_unique<kept_name>());
  made.method = method;
  made.text = text_of_call(method, mode, caller_name, peer_name);
  made.what = {made.text, range_kind::call};
  known = &made;
  last = {serial_, made.method, mode, caller, peer, &made.what};
  return made.what;
}

}  // namespace ferry::inline v0::detail
