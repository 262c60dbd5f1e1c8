#include "profile_names.hpp"

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

const range_description& profile_names::find_or_name_call(profiled_thread& here, const called_method& call,
                                                          const call_texts& texts) {
  const std::lock_guard lock(mutex_);
  if (names_.size() >= most_profile_names && !calls_.contains(call)) return another_call;
  const kept_name*& known = calls_[call];
  if (!known) {
    add_worker(call.caller, texts.caller);
    add_worker(call.peer, texts.peer);
    kept_name& made = *names_.emplace_back(std::make_unique<kept_name>());
    made.method = texts.method;
    made.text = text_of_call(texts.method, call.mode, texts.caller, texts.peer);
    made.what = {made.text, range_kind::call};
    known = &made;
  }
  here.calls[serial_ % here.calls.size()] = {serial_, call, &known->what};
  return known->what;
}

}  // namespace ferry::inline v0::detail
