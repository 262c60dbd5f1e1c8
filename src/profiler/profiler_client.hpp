#pragma once

// The profiler of one worker: what it records of requests whose callers ask for it, of all requests for server scopes, and
// of everything for recordings of the process.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <ferry/profiler/server_scope.hpp>
#include <ferry/rpc/attached.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "recording.hpp"

namespace ferry::inline v0::detail {

class worker_core;

/// An attachment of every worker, and the reader of its records. Has no state.
class profiler_client final : public worker_attachment, public interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "ferry/profiler"; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override { return {&record_type_, 1}; }
  [[nodiscard]] bool sees_all_requests() const noexcept override { return false; }
  std::unique_ptr<caller_hooks> on_request(outgoing_request& request) override;
  std::unique_ptr<callee_hooks> on_arrival(incoming_request& request) override;

 private:
  const std::uint16_t record_type_ = profile_record_type;
};

/// The server scopes that are entered in this process.
struct entered_scopes {
  std::vector<std::shared_ptr<profiler::server_scope::state>> all;
  profile_wishes wishes;  ///< of any of them
  bool remote = false;    ///< as well
  std::size_t events_per_thread = 0;
};
[[nodiscard]] entered_scopes server_scopes_now();
/// What one request has left.
struct scope_request {
  profiler::profile events;
  std::vector<awaited_time> awaited;
  std::weak_ptr<worker_core> served_by;
};
void add_to_scope(profiler::server_scope::state& scope, const scope_request& request) noexcept;

}  // namespace ferry::inline v0::detail
