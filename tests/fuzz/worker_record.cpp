// What a worker of a static group publishes in the store. Input: the value of its key.

#include "../../src/backend/native_agent.hpp"
#include "targets.hpp"

namespace fuzz {
namespace {

void run(bytes input) {
  accepted([&] {
    const auto record = ferry::detail::worker_record::decode(std::string(text_of(input)), 3);
    require(record.who.id().value == 3 && !record.who.name().empty(), "a record names its worker");
    const std::string again = record.encode();
    const auto twice = ferry::detail::worker_record::decode(again, 3);
    require(twice.who.name() == record.who.name() && twice.life == record.life && twice.addresses == record.addresses,
            "a record survives its encoding");
    require(twice.encode() == again, "a record encodes to what it was decoded from");
  });
}

void seeds(const seed_sink& sink) {
  const ferry::detail::worker_record record{
      ferry::worker_info("worker0", 3), {0x0123456789abcdef}, {"tcp://10.0.0.2:4711", "unix:@ferry-1"}};
  sink("record", bytes_of(record.encode()));
}

}  // namespace

const target worker_record{"worker_record", &run, &seeds};

}  // namespace fuzz
