// What workers write into the store: the record of one, an entry of a dynamic group's log, the list of its members. Input: the
// value of the key.

#include "backend/membership/membership.hpp"
#include "targets.hpp"

namespace fuzz {
namespace worker_record_target {
namespace {

void run(bytes input) {
  accepted([&] {
    const auto record = ferry::detail::worker_record::decode(std::string(text_of(input)), 3);
    require(record.who.id().value == 3 && !record.who.name().empty(), "a record names its worker");
    const std::string again = record.encode();
    const auto twice = ferry::detail::worker_record::decode(again, 3);
    require(twice.who.name() == record.who.name() && twice.incarnation == record.incarnation &&
                twice.addresses == record.addresses,
            "a record survives its encoding");
    require(twice.metadata == record.metadata, "so do metadata");
    require(!record.devices == !twice.devices && (!record.devices || *twice.devices == *record.devices), "and devices");
    require(twice.encode() == again, "a record encodes to what it was decoded from");
  });
  accepted([&] {
    const auto devices = ferry::detail::device_record::decode(text_of(input));
    const std::string again = devices.encode();
    require(ferry::detail::device_record::decode(again) == devices, "a record of devices survives its encoding");
    // Whatever it says can be checked, and a worker that passes has a way back for each of its maps.
    const ferry::detail::worker_devices self{"self", &devices};
    if (!ferry::detail::broken_device_rule(std::span(&self, 1), false).empty()) return;
    for (const auto& [name, map] : devices.maps) {
      const ferry::detail::worker_devices other{name, nullptr};
      const auto maps = ferry::detail::maps_between(other, self);
      require(maps ? maps->responses.inverse() == map : map.empty(), "the way back leads back");
    }
  });
  accepted([&] {
    const auto entry = ferry::detail::member_entry::decode(std::string(text_of(input)));
    const std::string again = entry.encode();
    require(ferry::detail::member_entry::decode(again).encode() == again, "an entry survives its encoding");
    ferry::detail::membership group;
    const auto change = group.apply(1, entry);
    require((change.what == ferry::detail::membership_change::kind::joined) == (group.members().size() == 1),
            "only a joining worker can be in an empty group");
  });
  accepted([&] {
    const auto group = ferry::detail::membership::decode(std::string(text_of(input)));
    const std::string again = group.encode();
    require(ferry::detail::membership::decode(again).encode() == again, "a list of members survives its encoding");
  });
}

void seeds(const seed_sink& sink) {
  using entry = ferry::detail::member_entry;
  const ferry::detail::worker_record record{ferry::worker_info("worker0", 3),
                                            {0x0123456789abcdef},
                                            "boot/1",
                                            {"tcp://10.0.0.2:4711", "unix:@ferry-1"},
                                            "metadata"};
  ferry::detail::worker_record with_devices = record;
  const ferry::detail::device_record devices{
      {{ferry::device_kind::cuda, 2}}, {{ferry::device_kind::cuda, 1}}, {{"worker1", {{"cuda:1", "cpu"}, {"cpu", 0}}}}};
  with_devices.devices = std::make_shared<const ferry::detail::device_record>(devices);
  sink("devices", bytes_of(devices.encode()));
  sink("record_with_devices", bytes_of(with_devices.encode()));
  sink("record", bytes_of(record.encode()));
  sink("join", bytes_of(entry::join(record).encode()));
  sink("leave", bytes_of(entry::leave({7}).encode()));
  sink("lost", bytes_of(entry::lost({7}, {8}, "why").encode()));
  ferry::detail::membership group;
  group.apply(1, entry::join(record));
  sink("members", bytes_of(group.encode()));
}

}  // namespace
}  // namespace worker_record_target

const target worker_record{"worker_record", &worker_record_target::run, &worker_record_target::seeds};

}  // namespace fuzz
