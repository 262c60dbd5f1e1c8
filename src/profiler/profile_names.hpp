#pragma once

// Descriptions of what a recording sees, made when they are first needed.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/base/traced_range.hpp>

#include "profiled_thread.hpp"

namespace ferry::inline v0::detail {

/// Of one recording, or of several that see the same events. A bounded number, which live as long as this. Thread-safe.
class profile_names {
 public:
  profile_names() noexcept;
  profile_names(const profile_names&) = delete;
  profile_names& operator=(const profile_names&) = delete;

  /// Throws std::bad_alloc.
  const range_description& name_range(std::string_view name, range_kind kind);
  /// Of a call: what its name is made of.
  struct call_texts {
    std::string_view method;
    std::string_view caller;
    std::string_view peer;
  };
  /// The same. `texts` returns call_texts, if they are needed.
  template <class Texts>
  const range_description& name_call(profiled_thread& here, const called_method& call, const Texts& texts) {
    const profiled_thread::named_call& last = here.calls[serial_ % here.calls.size()];
    if (last.serial == serial_ && last.call == call) [[likely]]
      return *last.what;
    return find_or_name_call(here, call, texts());
  }
  /// The same.
  void note_worker(std::int32_t id, std::string_view name);
  /// The names of the methods of calls, as they were called, by the descriptions of these. Live as long as this.
  [[nodiscard]] std::unordered_map<const range_description*, std::string_view> methods() const;
  /// By id.
  [[nodiscard]] std::vector<std::string> workers() const;

 private:
  struct kept_name {
    std::string text;
    std::string method;
    range_description what;
  };
  using range_key = std::pair<std::string_view, range_kind>;
  void add_worker(std::int32_t id, std::string_view name);  // under the mutex
  const range_description& find_or_name_call(profiled_thread& here, const called_method& call, const call_texts& texts);

  const std::uint64_t serial_;
  mutable std::mutex mutex_;  // guards the rest
  std::vector<std::unique_ptr<kept_name>> names_;
  std::map<range_key, const range_description*> ranges_;
  std::map<called_method, const kept_name*> calls_;
  std::vector<std::string> workers_;
};

}  // namespace ferry::inline v0::detail
