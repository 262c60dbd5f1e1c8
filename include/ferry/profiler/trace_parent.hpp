#pragma once

// The place of a call in the trace of another tracer (OpenTelemetry, for example), as W3C Trace Context names it:
// https://www.w3.org/TR/trace-context/

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <ferry/rpc/context_values.hpp>

namespace ferry::inline v0::profiler {

/// A span of a trace. A value.
struct trace_parent {
  std::array<std::uint8_t, 16> trace_id{};
  std::array<std::uint8_t, 8> span_id{};
  std::uint8_t flags = 0;  ///< bit 0: sampled; bit 1: the trace id is random
  std::string state = {};  ///< the header tracestate: opaque, printable ASCII, at most 512 characters

  [[nodiscard]] bool sampled() const noexcept { return (flags & 1U) != 0; }
  /// As the header traceparent, of version 00: "00-<32 digits>-<16 digits>-<2 digits>".
  [[nodiscard]] std::string header() const;
  /// Of the headers traceparent and tracestate. None if the former is none, of any version, or an id of it is zero. A tracestate that is
  /// too long, or no printable ASCII, is left out.
  [[nodiscard]] static std::optional<trace_parent> parse(std::string_view header, std::string_view state = {});
  friend bool operator==(const trace_parent&, const trace_parent&) = default;
};

/// While it exists, the code of its scope, and what it calls on any worker, runs within that span: coroutines, continuations and
/// handlers, too, whose calls hand it on. Without one, calls carry nothing.
///
///     const ferry::profiler::trace_parent_scope within({trace_id_of(span), span_id_of(span), 1});   // of another tracer
///     self.rpc_sync<step>("worker1");
///
///     void step() {                                                          // on worker1
///       if (const auto parent = ferry::profiler::current_trace_parent()) tracer.start_span("step", parent->header());
///     }
///
/// A handler that starts a span of its own enters a scope for that, so that what it calls becomes part of it.
class trace_parent_scope {
 public:
  explicit trace_parent_scope(trace_parent span);

 private:
  context_values_scope values_;
};

/// The span that the calling code runs in; none if there is no scope around it or its callers.
[[nodiscard]] std::optional<trace_parent> current_trace_parent();

}  // namespace ferry::inline v0::profiler
