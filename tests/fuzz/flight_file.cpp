// What a worker that was killed has left of its events. Input: changes to a file with eight places for events, a text and names:
//   u8 what, u16 at, u8 count, then `count` bytes
//   0  bytes of the header page    1  of the ring    2  of the texts    3  of the names    4  the file ends there
//   5  seven words of an event, with its check word    6  four of a calibration, with its    7  the header's check word stays
// so that events and calibrations with right check words are met, and headers whose checksum is right.

#include <algorithm>
#include <vector>

#include <ferry/rpc/worker_snapshot.hpp>

#include "rpc/diagnostics/flight_file.hpp"
#include "rpc/diagnostics/flight_layout.hpp"
#include "rpc/diagnostics/flight_recorder.hpp"
#include "rpc/diagnostics/snapshot_archive.hpp"
#include "targets.hpp"

namespace fuzz {
namespace flight_file_target {
namespace {

namespace d = ferry::detail;

constexpr std::uint64_t events = 8;
constexpr std::size_t ring_at = d::flight_page;
constexpr std::size_t texts_at = 2 * d::flight_page;
constexpr std::size_t names_at = texts_at + d::kept_texts * sizeof(d::flight_text);
constexpr std::size_t file_bytes = names_at + d::flight_page;
constexpr ferry::wire_limits of_snapshots{};

using file_content = std::vector<std::byte>;

template <class T>
void put_at(file_content& file, std::size_t at, const T& value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}

template <std::size_t Count>
void put_checked(file_content& file, std::size_t at, const std::array<std::uint64_t, Count>& words) {
  put_at(file, at, words);
  put_at(file, at + sizeof words, d::flight_check(words));
}

// As a recorder would have written it: a call that was answered, one that was not, a request.
file_content usual_file() {
  file_content file(file_bytes);
  d::flight_header header;
  std::copy(d::flight_magic.begin(), d::flight_magic.end(), header.magic.begin());
  header.file_bytes = file_bytes;
  header.ring_at = ring_at;
  header.events = events;
  header.texts_at = texts_at;
  header.names_at = names_at;
  header.names_bytes = d::flight_page;
  header.process = 4711;
  header.process_start = 12;
  header.places = 1;
  header.worker = {'w'};
  put_at(file, 0, header);
  put_at(file, d::flight_identity_at, d::flight_identity{0x0123456789abcdef, 3});
  put_checked(file, d::flight_calibrations_at, d::flight_calibration{1, 1000, 500, 1'700'000'000'000'000'000});
  put_checked(file, d::flight_calibrations_at + d::flight_calibration_stride,
              d::flight_calibration{2, 2000, 1000, 1'700'000'000'000'001'000});
  const auto event = [&](std::uint64_t number, d::flight_event what, std::uint64_t call, std::uint64_t text) {
    const d::flight_words words{
        number + 1, (600 + number) * 2 + 1, call, 77, 64, static_cast<std::uint64_t>(what) | std::uint64_t{1} << 32U,
        text};
    put_checked(file, ring_at + number * d::flight_event_bytes, words);
  };
  event(0, d::flight_event::connection_opened, 0, 1);
  event(1, d::flight_event::call_started, 1, 0);
  event(2, d::flight_event::call_replied, 1, 0);
  event(3, d::flight_event::call_started, 2, 0);
  event(4, d::flight_event::request_received, 1, 0);
  d::flight_text text;
  text.number = 1;
  text.length = 4;
  text.text = {'t', 'e', 'x', 't'};
  text.check = d::flight_text_check("text");
  put_at(file, texts_at + sizeof text, text);
  std::size_t at = names_at;
  const auto name = [&](d::flight_name kind, std::uint64_t key, std::string_view content) {
    put_at(file, at,
           d::flight_name_head{static_cast<std::uint32_t>(content.size()), static_cast<std::uint32_t>(kind), key});
    std::memcpy(file.data() + at + sizeof(d::flight_name_head), content.data(), content.size());
    at += d::flight_name_bytes(content.size());
  };
  name(d::flight_name::method, 77, "method");
  name(d::flight_name::peer, 1, "peer");
  return file;
}

file_content make_file(bytes input) {
  file_content file = usual_file();
  std::size_t size = file.size();
  bool checked = true;
  source from(input);
  while (!from.empty()) {
    const auto what = from.number<std::uint8_t>() % 8;
    const std::size_t at = from.number<std::uint16_t>();
    const bytes content = from.take(from.number<std::uint8_t>());
    constexpr std::size_t sections[] = {0, ring_at, texts_at, names_at, file_bytes};
    if (what < 4) {
      const std::size_t begin = sections[what] + at % (sections[what + 1] - sections[what]);
      std::copy_n(content.begin(), std::min(content.size(), file_bytes - begin),
                  file.begin() + static_cast<std::ptrdiff_t>(begin));
    } else if (what == 4) {
      size = std::min(size, at);
    } else if (what == 5) {
      d::flight_words words{};
      std::memcpy(words.data(), content.data(), std::min(content.size(), sizeof words));
      put_checked(file, ring_at + at % events * d::flight_event_bytes, words);
    } else if (what == 6) {
      d::flight_calibration words{};
      std::memcpy(words.data(), content.data(), std::min(content.size(), sizeof words));
      put_checked(file, d::flight_calibrations_at + at % d::flight_calibration_count * d::flight_calibration_stride,
                  words);
    } else {
      checked = false;
    }
  }
  if (checked) {
    const std::string_view header(reinterpret_cast<const char*>(file.data()), offsetof(d::flight_header, check));
    put_at(file, offsetof(d::flight_header, check), ferry::fingerprint(header));
  }
  file.resize(size);
  return file;
}

void run(bytes input) {
  const file_content file = make_file(input);
  accepted([&] {
    const ferry::worker_snapshot read = d::decode_flight_file(file);
    require(read.worker.id().value >= 0 && !read.worker.name().empty(), "a file names its worker");
    require(read.events.size() <= file.size() / d::flight_event_bytes, "events have places in the file");
    require(read.pending_calls.size() + read.served_calls.size() <= read.events.size(), "each call has an event");
    for (const ferry::recorded_event& each : read.events) {
      require(each.number < read.events_so_far && each.steady_ns <= read.steady_ns, "the last event comes last");
    }
    for (const ferry::pending_call_info& each : read.pending_calls) require(each.age.count() >= 0, "calls have an age");
    for (const ferry::served_call_info& each : read.served_calls)
      require(each.age.count() >= 0, "requests have an age");
    const std::string record = to_json(read);
    require(to_json(d::decode_flight_file(file)) == record, "a file says the same each time");
    const ferry::byte_buffer encoded = d::encode_snapshot(read);
    require(to_json(d::decode_snapshot({encoded.data(), encoded.size()}, of_snapshots)) == record,
            "what a file says survives its encoding");
  });
}

void seeds(const seed_sink& sink) {
  const auto change = [](seed& out, std::uint8_t what, std::uint16_t at, bytes content) {
    out.number(what).number(at).number(static_cast<std::uint8_t>(content.size())).add(content);
  };
  sink("usual", seed());
  seed event;
  seed words;
  for (const std::uint64_t each : {std::uint64_t{14}, std::uint64_t{5000}, std::uint64_t{9}, std::uint64_t{77},
                                   std::uint64_t{1}, std::uint64_t{8} | std::uint64_t{2} << 32U, std::uint64_t{1}})
    words.number(each);
  change(event, 5, 5, words);
  sink("event", event);
  seed clock;
  seed calibration;
  for (const std::uint64_t each :
       {std::uint64_t{3}, std::uint64_t{1} << 50U, std::uint64_t{1} << 51U, std::uint64_t{1} << 60U})
    calibration.number(each);
  change(clock, 6, 2, calibration);
  sink("calibration", clock);
  seed text;
  change(text, 2, sizeof(d::flight_text) + 16, bytes_of("toxt"));
  sink("text", text);
  seed name;
  change(name, 3, 0, bytes_of(std::string_view("\xff\x03", 2)));
  sink("name", name);
  seed cut;
  change(cut, 4, 5000, {});
  sink("cut", cut);
  seed other;
  change(other, 0, 8, bytes_of("\x02"));
  sink("version", other);
  seed unchecked;
  change(unchecked, 7, 0, {});
  sink("unchecked", unchecked);
}

}  // namespace
}  // namespace flight_file_target

const target flight_file{"flight_file", &flight_file_target::run, &flight_file_target::seeds};

}  // namespace fuzz
