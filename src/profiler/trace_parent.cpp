#include <ferry/profiler/trace_parent.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <ferry/rpc/interceptor.hpp>

#include "../rpc/pipeline/library_clients.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::uint16_t trace_parent_record_type = 7;
constexpr std::size_t trace_header_length = 55;
constexpr std::size_t longest_trace_state = 512;

// The value of two digits of a header, which are lower case there; -1: they are none.
int hex_pair(std::string_view text) noexcept {
  int value = 0;
  for (const char c : text.substr(0, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Of all digits; false also if all are zero, which is no id.
template <std::size_t N>
bool read_trace_id(std::string_view text, std::array<std::uint8_t, N>& to) noexcept {
  for (std::size_t i = 0; i != N; ++i) {
    const int value = hex_pair(text.substr(2 * i, 2));
    if (value < 0) return false;
    to[i] = static_cast<std::uint8_t>(value);
  }
  return std::any_of(to.begin(), to.end(), [](std::uint8_t each) { return each != 0; });
}

// As a value that goes along with code.
class trace_parent_in_force final : public travelling_value {
 public:
  explicit trace_parent_in_force(profiler::trace_parent span) noexcept : span_(std::move(span)) {}
  [[nodiscard]] const profiler::trace_parent& span() const noexcept { return span_; }
  void on_request(outgoing_request& request) const override {
    std::string text = span_.header();
    if (!span_.state.empty()) text += '\n' + span_.state;
    request.add_record(trace_parent_record_type, false, std::as_bytes(std::span(text)));
  }

 private:
  profiler::trace_parent span_;
};

constexpr context_key<trace_parent_in_force> trace_parent_key("ferry.profiler.trace_parent");

// The span in which a request was made, at its callee.
class request_in_trace final : public callee_hooks {
 public:
  explicit request_in_trace(profiler::trace_parent span) noexcept : span_(std::move(span)) {}
  void before_handler(handler_start& start) override {
    start.set_value(trace_parent_key, trace_parent_in_force(std::move(span_)));
  }

 private:
  profiler::trace_parent span_;
};

class trace_parent_client final : public worker_attachment, public interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "ferry/trace_parent"; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override { return {&record_type_, 1}; }
  [[nodiscard]] bool sees_all_requests() const noexcept override { return false; }
  // What is no span is ignored, as the standard wants.
  std::unique_ptr<callee_hooks> on_arrival(incoming_request& request) override {
    const auto content = request.records().find(trace_parent_record_type);
    if (!content) return nullptr;
    const std::string_view text(reinterpret_cast<const char*>(content->data()), content->size());
    const std::string_view header = text.substr(0, text.find('\n'));
    const std::string_view state = header.size() == text.size() ? "" : text.substr(header.size() + 1);
    std::optional<profiler::trace_parent> span = profiler::trace_parent::parse(header, state);
    return span ? std::make_unique<request_in_trace>(std::move(*span)) : nullptr;
  }

 private:
  const std::uint16_t record_type_ = trace_parent_record_type;
};

const std::size_t trace_parents_of_workers = add_library_client({
    .attach = [](worker_core&) -> std::shared_ptr<worker_attachment> {
      return std::make_shared<trace_parent_client>();
    },
    .intercept = [](worker_attachment* state) -> interceptor* { return static_cast<trace_parent_client*>(state); },
});

}  // namespace
}  // namespace detail

namespace profiler {

std::string trace_parent::header() const {
  std::string text = "00-";
  for (const std::uint8_t each : trace_id) text += fmt::format("{:02x}", each);
  text += '-';
  for (const std::uint8_t each : span_id) text += fmt::format("{:02x}", each);
  return text + fmt::format("-{:02x}", flags & 3U);
}

std::optional<trace_parent> trace_parent::parse(std::string_view header, std::string_view state) {
  using namespace detail;
  if (header.size() < trace_header_length || header[2] != '-' || header[35] != '-' || header[52] != '-') return {};
  const int version = hex_pair(header);
  if (version < 0 || version == 0xff) return {};
  // Later versions may have more behind what this one has.
  const bool ends = header.size() == trace_header_length;
  if (!ends && (version == 0 || header[trace_header_length] != '-')) return {};
  trace_parent span;
  const int flags = hex_pair(header.substr(53));
  if (!read_trace_id(header.substr(3, 32), span.trace_id) || !read_trace_id(header.substr(36, 16), span.span_id) ||
      flags < 0) {
    return {};
  }
  span.flags = static_cast<std::uint8_t>(flags & 3);
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (state.size() <= longest_trace_state && std::all_of(state.begin(), state.end(), printable)) span.state = state;
  return span;
}

trace_parent_scope::trace_parent_scope(trace_parent span)
    : values_(current_values().with(detail::trace_parent_key, detail::trace_parent_in_force(std::move(span)))) {}

std::optional<trace_parent> current_trace_parent() {
  const detail::trace_parent_in_force* present = current_value(detail::trace_parent_key);
  if (!present) return std::nullopt;
  return present->span();
}

}  // namespace profiler
}  // namespace ferry::inline v0
