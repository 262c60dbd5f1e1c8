// The place of calls in the trace of another tracer.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "cluster.hpp"

namespace trace_parent_test {

using ferry::profiler::current_trace_parent;
using ferry::profiler::trace_parent;
using ferry::profiler::trace_parent_scope;

constexpr const char* header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

trace_parent example(std::string_view state = {}) { return *trace_parent::parse(header, state); }
std::string here() {
  const auto span = current_trace_parent();
  return span ? span->header() + (span->state.empty() ? "" : " " + span->state) : "none";
}
// At the next worker, and the one behind it.
std::string nested() { return here() + ", " + ferry::rpc_sync<here>("worker2"); }
// With a span of its own.
std::string own_span() {
  trace_parent own = current_trace_parent().value();
  own.span_id.back() = 0xff;
  const trace_parent_scope within(own);
  return ferry::rpc_sync<here>("worker2");
}
ferry::task<std::string> later() {
  const std::string there = co_await ferry::rpc_async<here>("worker2");
  co_return here() + ", " + there;
}

// Sends whatever the test wants as the record of the span.
class forger final : public ferry::interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "forger"; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    if (content) request.add_record(7, false, std::as_bytes(std::span(*content)));
    return nullptr;
  }
  std::optional<std::string> content;
};

TEST_CASE("headers of W3C Trace Context are read and written") {
  const trace_parent span = example();
  CHECK(span.header() == header);
  CHECK(span.sampled());
  CHECK(span.trace_id.front() == 0x4b);
  CHECK(span.span_id.back() == 0xb7);
  const auto parsed = [](const std::string& text) {
    const auto found = trace_parent::parse(text);
    return found ? found->header() : "none";
  };
  CHECK(parsed("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00") ==
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
  // Flags that this version does not know are not handed on; what later versions append is left out.
  CHECK(parsed("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff") ==
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03");
  CHECK(parsed("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes") == header);
  CHECK(parsed("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") == header);
  for (const std::string none : {
           "",
           "00",
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
           "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902bx-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
       }) {
    CAPTURE(none);
    CHECK(parsed(none) == "none");
  }
  CHECK(example("vendor=a,other=b").state == "vendor=a,other=b");
  CHECK(example(std::string(513, 'a')).state.empty());
  CHECK(example("line\nbreak").state.empty());
}

TEST_CASE("a span goes with calls, nested ones, coroutines and continuations, and nothing goes without one") {
  ferry_test::cluster group(3);
  ferry::worker& self = group[0];
  CHECK(here() == "none");
  CHECK(self.rpc_sync<nested>("worker1") == "none, none");
  ferry::future<std::string> continued;
  {
    const trace_parent_scope within(example("vendor=a"));
    const std::string there = std::string(header) + " vendor=a";
    CHECK(here() == there);
    CHECK(self.rpc_sync<here>(self.id()) == there);
    CHECK(self.rpc_sync<nested>("worker1") == there + ", " + there);
    CHECK(self.rpc_sync<later>("worker1") == there + ", " + there);
    CHECK(self.rpc_sync<own_span>("worker1") == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902ff-01 vendor=a");
    continued =
        self.rpc_async<here>("worker1").then([&](const std::string&) { return self.rpc_sync<here>("worker2"); });
    CHECK(self.remote<here>("worker1").to_here() == there);
  }
  CHECK(continued.get() == std::string(header) + " vendor=a");
  CHECK(self.rpc_sync<nested>("worker1") == "none, none");
}

TEST_CASE("what is no span is ignored, and the call is served") {
  const auto forged = std::make_shared<forger>();
  ferry_test::cluster_options options;
  options.configure = [&](ferry::worker_config& config) {
    if (config.name == "worker0") config.interceptors = {forged};
  };
  ferry_test::cluster group(2, options);
  for (const std::string& content : {std::string(), std::string("nothing"), std::string(60'000, '-'),
                                     std::string(header) + "x", std::string("\n\n"), std::string(55, '\0')}) {
    forged->content = content;
    CHECK(group[0].rpc_sync<here>("worker1") == "none");
  }
  forged->content = std::string(header) + "\n" + std::string(600, 'a');
  CHECK(group[0].rpc_sync<here>("worker1") == header);
  forged->content = header;
  CHECK(group[0].rpc_sync<here>("worker1") == header);
  forged->content.reset();
}

}  // namespace trace_parent_test
