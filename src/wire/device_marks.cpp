#include "device_marks.hpp"

#include <algorithm>

#include <ferry/device/current.hpp>
#include <ferry/device/traits.hpp>

#include "../device/capture.hpp"

namespace ferry::inline v0::detail {

std::shared_ptr<const device_marks> mark_devices(std::span<const tensor> tensors) {
  std::shared_ptr<device_marks> marks;
  for (const tensor& each : tensors) {
    const device where = each.device();
    if (operations_of(where.kind).immediate) continue;
    if (!marks) marks = std::make_shared<device_marks>();
    const bool marked = std::any_of(marks->events.begin(), marks->events.end(),
                                    [&](const event& mark) { return mark.device() == where; });
    if (marked) continue;
    const stream current = current_stream(where);
    refuse_capture(current, "send a tensor");
    marks->events.push_back(current.record());
  }
  return marks;
}

}  // namespace ferry::inline v0::detail
