#include <ferry/rpc/detail/value_order.hpp>

#include <algorithm>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>

#include "../../base/log_problem.hpp"
#include "../../device/capture.hpp"
#include "../../wire/read_marks.hpp"

namespace ferry::inline v0::detail {

std::unique_ptr<value_order> value_order::of(std::span<const tensor> tensors) {
  std::unique_ptr<value_order> order;
  for (const tensor& each : tensors) {
    const device where = each.device();
    if (operations_of(where.kind).immediate) continue;
    if (!order) {
      order = std::make_unique<value_order>();
      order->current_ = ferry::current_device(where.kind);
    }
    order->memory_.push_back(each.storage());
    const bool marked = std::any_of(order->events_.begin(), order->events_.end(),
                                    [&](const event& mark) { return mark.device() == where; });
    if (marked) continue;
    const stream current = current_stream(where);
    refuse_capture(current, "pass on a tensor");
    order->events_.push_back(current.record());
  }
  return order;
}

std::unique_ptr<value_order> value_order::behind(std::shared_ptr<const read_marks> reads) {
  auto order = std::make_unique<value_order>();
  order->reads_ = std::move(reads);
  return order;
}

std::vector<device> value_order::devices() const {
  std::vector<device> result = reads_ ? reads_->sources() : std::vector<device>();
  for (const event& each : events_) result.push_back(each.device());
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

void value_order::let_current_streams_wait() const {
  for (const event& each : events_) refuse_capture(current_stream(each.device()), "wait for a tensor");
  if (reads_) reads_->let_streams_wait();
  for (const event& each : events_) current_stream(each.device()).wait(each);
  for (const storage& each : memory_) each.record_use(current_stream(each.device()));
}

void callback_streams::enter(const value_order& order) noexcept {
  try {
    const call_context* context = thread_context();
    std::vector<stream> own;
    for (const device& each : order.devices()) {
      if (!context || !context->has_stream(each)) own.push_back(pool_stream(each));
    }
    streams_.emplace(own);
    if (order.current_device()) device_.emplace(*order.current_device());
    order.let_current_streams_wait();
  } catch (const std::exception& problem) {
    log_problem("a callback of a future runs without streams of its own", problem);
  }
}

}  // namespace ferry::inline v0::detail
