#include "device_transfer.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/transport/channel.hpp>

#include "../../wire/device_marks.hpp"
#include "../../wire/read_marks.hpp"

namespace ferry::inline v0::detail {
namespace {

void add(std::vector<stream>& streams, const stream& one) {
  if (std::find(streams.begin(), streams.end(), one) == streams.end()) streams.push_back(one);
}

// The streams of one message: one for each device that executes copies.
class arrival_streams {
 public:
  explicit arrival_streams(const outgoing_message& message) : marks_(message.marks()) {}

  // A stream of `where` that may read tensors of `source`.
  const stream& on(device where, device source) {
    auto found = std::find_if(streams_.begin(), streams_.end(), [&](const entry& each) { return each.to == where; });
    if (found == streams_.end()) found = streams_.insert(found, {where, pool_stream(where), {}, {}});
    if (std::find(found->ready.begin(), found->ready.end(), source) == found->ready.end()) {
      if (marks_) marks_->wait_for(source, found->queue);
      found->ready.push_back(source);
    }
    return found->queue;
  }

  // Records that a copy of a tensor on `source` has been queued on on(where, source).
  void reads(device where, device source) {
    const auto found =
        std::find_if(streams_.begin(), streams_.end(), [&](const entry& each) { return each.to == where; });
    if (std::find(found->read.begin(), found->read.end(), source) == found->read.end()) found->read.push_back(source);
  }
  // Records the completion of these reads in `marks`.
  void mark_reads(read_marks& marks) const {
    for (const entry& each : streams_) {
      if (!each.read.empty()) marks.add(each.read, each.queue);
    }
  }

 private:
  struct entry {
    device to;
    stream queue;
    std::vector<device> ready;
    std::vector<device> read;
  };
  const device_marks* marks_;
  std::vector<entry> streams_;
};

}  // namespace

device_transfer transfer_tensors(const outgoing_message& message) {
  device_transfer result;
  arrival_streams streams(message);
  result.tensors.reserve(message.tensors.size());
  for (std::size_t i = 0; i != message.tensors.size(); ++i) {
    const tensor& sent = message.tensors[i];
    const device source = sent.device();
    const device target = message.targets.empty() ? device() : message.targets.at(i);
    const std::string reason = channel_traits<inproc_tensors>::unusable({source, target, true, true});
    if (!reason.empty()) {
      throw_error(errc::bad_device, fmt::format("tensor {} of the message is on {} and is to arrive on {}: {}", i,
                                                to_string(source), to_string(target), reason));
    }
    stream on;
    if (const device where = target.is_cpu() ? source : target; !where.is_cpu()) {
      on = streams.on(where, source);
      if (!operations_of(where.kind).immediate) {
        add(target.is_cpu() ? result.pending_copy : result.streams, on);
        if (!source.is_cpu()) streams.reads(where, source);
      }
    }
    result.tensors.push_back(channel_traits<inproc_tensors>::copy(sent, target, on));
  }
  if (message.reads) streams.mark_reads(*message.reads);
  return result;
}

}  // namespace ferry::inline v0::detail
