#include <ferry/base/traced_range.hpp>

#include <exception>

namespace ferry::inline v0::detail {

constinit std::atomic<const range_sink*> range_sink_in_use{nullptr};

std::unique_ptr<recorded_span> begin_span(std::string_view name, range_kind kind, std::int32_t node) noexcept {
  const range_sink* sink = range_sink_in_use.load(std::memory_order_acquire);
  return sink ? sink->begin_span(name, kind, node) : nullptr;
}

void traced_range::begin(const range_description& what) noexcept {
  const range_sink* sink = range_sink_in_use.load(std::memory_order_acquire);
  if (!sink) return;
  open_.what = &what;
  exceptions_ = std::uncaught_exceptions();
  sink->begin(open_);
}

void traced_range::end(const range_details* details, bool failed) noexcept {
  if (!open_.sink) return;
  open_.sink->end(open_, details, failed);
  open_.sink = nullptr;
}

bool traced_range::unwinds() const noexcept { return std::uncaught_exceptions() > exceptions_; }

}  // namespace ferry::inline v0::detail
