// The record of gradients in a message of a context of distributed autograd. Input: its content.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "autograd/dist/autograd_record.hpp"
#include "autograd/dist/message_set.hpp"
#include "targets.hpp"

namespace fuzz {
namespace autograd_record_target {
namespace {

using ferry::detail::decode_autograd_record;
using ferry::detail::encode_autograd_record;
using ferry::detail::last_message_number;
using ferry::detail::message_counter_bits;
using ferry::detail::message_set;
using ferry::detail::sender_of;
using record_of_gradients = ferry::detail::autograd_record;

std::uint64_t message_of(std::uint64_t worker, std::uint64_t number) { return worker << message_counter_bits | number; }

// What passes rely on.
void check(const message_set& set) {
  std::uint64_t before = 0;
  bool first = true;
  for (const message_set::interval& each : set.intervals()) {
    require(each.first <= each.last && sender_of(each.first) == sender_of(each.last), "an interval is of one sender");
    require(first || each.first > before, "intervals ascend");
    require(set.contains(each.first) && set.contains(each.last), "a set has the ends of its intervals");
    require(set.has_sender(sender_of(each.first)), "and their senders");
    before = each.last;
    first = false;
  }
  ferry::worker_id last{-1};
  for (const ferry::worker_id each : set.senders()) {
    require(each > last && set.has_sender(each), "senders ascend");
    last = each;
  }
  message_set more;
  more.merge(set);
  more.merge(set);
  require(more == set, "a set and itself are that set");
}

void run(bytes input) {
  accepted([&] {
    const record_of_gradients record = decode_autograd_record(input);
    const ferry::byte_buffer again = encode_autograd_record(record);
    require(same(again.bytes(), input), "a record encodes to what it was decoded from");
    for (std::size_t i = 1; i < record.tensors.size(); ++i)
      require(record.tensors[i - 1].index < record.tensors[i].index, "tensors ascend");
    check(record.upstream);
    const bool known = record.upstream.contains(record.message);
    message_set with = record.upstream;
    with.insert(record.message);
    require(with.contains(record.message) && (with == record.upstream) == known, "a message is in a set once");
    check(with);
  });
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, const record_of_gradients& record) {
    sink(name, encode_autograd_record(record).bytes());
  };
  record_of_gradients record;
  add("nothing", record);
  record.context = message_of(3, 17);
  record.message = message_of(2, 5);
  record.tensors = {{0, {}}, {2, {ferry::device_kind::cuda, 1}}, {7, {}}};
  add("tensors", record);
  record.upstream = message_set({{message_of(1, 4), message_of(1, 9)}, {message_of(2, 1), message_of(2, 4)}});
  add("both", record);
  record.upstream =
      message_set({{message_of(1, 4), message_of(1, last_message_number)}, {message_of(2, 0), message_of(2, 0)}});
  add("neighbours-of-two-workers", record);
  record.tensors.clear();
  add("sets", record);
  record.over = {message_of(3, 11), message_of(3, 16)};
  add("contexts-that-are-over", record);
}

}  // namespace
}  // namespace autograd_record_target

const target autograd_record{"autograd_record", &autograd_record_target::run, &autograd_record_target::seeds};

}  // namespace fuzz
