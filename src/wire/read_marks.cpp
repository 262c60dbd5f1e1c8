#include "read_marks.hpp"

#include <algorithm>
#include <utility>

#include <ferry/device/current.hpp>

#include "../device/capture.hpp"

namespace ferry::inline v0::detail {

void read_marks::add(std::vector<device> sources, const stream& on) {
  event mark = on.record();
  const std::lock_guard lock(mutex_);
  entries_.push_back({std::move(sources), std::move(mark)});
}

void read_marks::let_streams_wait(std::span<const stream> streams) const {
  const std::lock_guard lock(mutex_);
  for (const entry& each : entries_) {
    for (const device& source : each.sources) {
      const stream on = stream_among(streams, source);
      refuse_capture(on, "wait until the arguments of a call have been read");
      on.wait(each.mark);
    }
  }
}

std::vector<device> read_marks::sources() const {
  std::vector<device> result;
  const std::lock_guard lock(mutex_);
  for (const entry& each : entries_) result.insert(result.end(), each.sources.begin(), each.sources.end());
  return result;
}

stream stream_among(std::span<const stream> streams, device where) {
  const auto found = std::find_if(streams.begin(), streams.end(), [&](const stream& s) { return s.device() == where; });
  return found == streams.end() ? current_stream(where) : *found;
}

}  // namespace ferry::inline v0::detail
