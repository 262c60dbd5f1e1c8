// What workers tell each other about references: the records of a message, and the controls of "ferry/references", which are
// carried out as a worker does that knows nothing. Input: the records, or the payload of the request.

#include <algorithm>
#include <vector>

#include <ferry/wire/serialize.hpp>

#include "rpc/pipeline/placement_record.hpp"
#include "rpc/references/protocol/reference_messages.hpp"
#include "rpc/references/protocol/reference_records.hpp"
#include "targets.hpp"

namespace fuzz {
namespace references_target {
namespace {

using namespace ferry::detail;
using kind = reference_control::kind;

constexpr peer_incarnation self{{ferry::worker_id{1}}, {0x11}};
constexpr peer_incarnation sender{{ferry::worker_id{2}}, {0x22}};

ferry::outgoing_message written(const reference_records& records) {
  ferry::outgoing_message message;
  if (records.object || records.creation) {
    add_object_record(message, records.object ? &*records.object : nullptr,
                      records.creation ? &*records.creation : nullptr);
  }
  if (!records.chain.turns.empty()) add_chain_record(message, records.chain, true);
  if (!records.references.empty()) add_references_record(message, records.from, records.references);
  return message;
}
bytes records_of(ferry::outgoing_message& message) {
  return message.bytes.bytes().subspan(ferry::frame_header::encoded_size);
}

void read_them(bytes input) {
  accepted([&] {
    const reference_records records = read_records(input);
    ferry::outgoing_message message = written(records);
    const reference_records again = read_records(records_of(message));
    require(again.object == records.object && again.creation == records.creation, "an object record survives");
    require(again.references == records.references, "references survive");
    require(records.references.empty() || again.from == records.from, "so does whose they are");
    require(again.chain.turns == records.chain.turns, "a call chain survives");
  });
}

void read_placement(bytes input) {
  accepted([&] {
    ferry::extension_record record;
    while (next_extension(input, record)) {
      if (record.type != placement_record_type) continue;
      const ferry::device_map way_back = read_placement_record(record.content);
      ferry::outgoing_message message;
      add_placement_record(message, way_back.inverse());
      const auto again = ferry::extension_records(records_of(message)).find(placement_record_type);
      require(again && read_placement_record(*again) == way_back, "a placement survives");
    }
  });
}

void carry_out(bytes input) {
  reference_batch batch;
  if (!accepted([&] { decode_values(input, {}, limits, batch); })) return;
  ferry::byte_buffer again;
  std::vector<ferry::tensor> tensors;
  encode_values<reference_batch>(again, tensors, batch);
  require(same(again.bytes(), input), "a batch encodes to what it was decoded from");

  reference_protocol worker(self);
  reference_effects effects;
  // An object of its own, in a reply to the sender: what it says must end no more than its own part in that.
  const object_id own = worker.own();
  (void)worker.transfer(own, sender);
  std::vector<reference_answer> first;
  for (const reference_control& each : batch.controls) first.push_back(worker.on_control(sender, each, effects));
  require(worker.look_up(own) == reference_protocol::knowledge::here, "an object with a handle stays");
  const reference_protocol settled = worker;
  const auto asks = [](const reference_control& each) {
    return each.what == kind::child_accept || each.what == kind::user_delete;
  };
  for (std::size_t i = 0; i != batch.controls.size(); ++i) {
    const reference_answer second = worker.on_control(sender, batch.controls[i], effects);
    require(!asks(batch.controls[i]) || second == first[i], "a control that came twice is answered as before");
  }
  // A fork that one control registers may be ended by a later one, but not come back.
  require(worker.figures().forks <= settled.figures().forks, "controls that came twice register nothing more");
  worker.gone(sender, effects);
  require(worker.figures().forks == 0 && worker.figures().pending_children == 0, "of the dead nothing is left");
  worker.drop_locally(own, effects);
  require(worker.figures().owners == 0, "and no references remain");
}

void run(bytes input) {
  read_them(input);
  read_placement(input);
  carry_out(input);
}

void seeds(const seed_sink& sink) {
  const object_id object{self, sender, 1};
  reference_records records;
  records.object = object;
  records.creation = object_id{self, sender, 2};
  records.chain.turns = {{object, ferry::worker_id{-1}, 4, true}, {object, ferry::worker_id{3}, 1, false}};
  ferry::outgoing_message request = written(records);
  add_placement_record(request, {{1, 0}, {"cpu", 1}});
  sink("request", records_of(request));
  records = {};
  records.from = sender.incarnation;
  records.references = {{object, 1}, {{sender, sender, 7}, 2}};
  ferry::outgoing_message reply = written(records);
  sink("references", records_of(reply));

  reference_batch batch{sender.incarnation, self.incarnation, {}};
  const auto add = [&](kind what, fork_key key, std::uint64_t number) {
    batch.controls.push_back({what, object, key, number});
  };
  add(kind::fork_request, {}, 2);
  add(kind::creation_query, {}, 1);
  add(kind::user_delete, {fork_key::numbered_by::holder, 2}, 0);
  add(kind::user_delete, {fork_key::numbered_by::owner, 1}, 0);
  add(kind::child_accept, {}, 1);
  add(kind::transfer_query, {}, 5);
  ferry::byte_buffer payload;
  std::vector<ferry::tensor> tensors;
  encode_values<reference_batch>(payload, tensors, batch);
  sink("controls", payload.bytes());
}

}  // namespace
}  // namespace references_target

const target references{"references", &references_target::run, &references_target::seeds};

}  // namespace fuzz
