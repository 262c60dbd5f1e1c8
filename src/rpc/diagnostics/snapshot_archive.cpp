#include "snapshot_archive.hpp"

#include <ferry/wire/serialize.hpp>

#include <chrono>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <cereal/types/chrono.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/vector.hpp>

#include <ferry/base/error.hpp>

namespace ferry::inline v0 {

namespace detail {
namespace {

template <class Archive>
void archive_members(Archive& archive, pending_call_info& call) {
  archive(call.id, call.method, call.peer, call.phase, call.age, call.until, call.bytes, call.transport, call.route,
          call.silence);
}
template <class Archive>
void archive_members(Archive& archive, served_call_info& call) {
  archive(call.id, call.method, call.caller, call.phase, call.age, call.until, call.bytes, call.one_way, call.unwanted);
}
template <class Archive>
void archive_members(Archive& archive, pending_collective_info& one) {
  archive(one.operation, one.group, one.group_id, one.channel, one.number, one.members, one.age, one.until,
          one.missing);
}
template <class Archive>
void archive_members(Archive& archive, group_progress_info& group) {
  archive(group.id, group.name, group.members, group.begun);
}
template <class Archive>
void archive_members(Archive& archive, peer_traffic& peer) {
  archive(peer.peer, peer.calls, peer.errors, peer.served, peer.bytes_sent, peer.bytes_received);
}
template <class Archive>
void archive_members(Archive& archive, snapshot_route& route) {
  archive(route.peer, route.transport, route.description);
}
template <class Archive>
void archive_members(Archive& archive, recorded_event& event) {
  archive(event.number, event.steady_ns, event.event, event.peer.value, event.call, event.method, event.bytes,
          event.code, event.text);
}
template <class Archive>
void archive_members(Archive& archive, worker_snapshot& all) {
  archive(all.reason, all.worker, all.incarnation.value, all.process, all.process_mark, all.time, all.steady_ns,
          all.pending_calls, all.served_calls, all.pending_collectives, all.groups, all.traffic, all.routes,
          all.debug_info, all.events_so_far, all.events);
}

template <class T>
concept snapshot_part = requires(wire_output_archive& archive, T& value) { archive_members(archive, value); };

}  // namespace
}  // namespace detail

// Found by their arguments' namespace.
template <class Archive, detail::snapshot_part T>
void save(Archive& archive, const T& value) {
  detail::archive_members(archive, const_cast<T&>(value));  // which an output archive does not change
}
template <class Archive, detail::snapshot_part T>
void load(Archive& archive, T& value) {
  detail::archive_members(archive, value);
}
template <class Archive>
void save(Archive& archive, const deadline& until) {
  archive(until.at());
}
template <class Archive>
void load(Archive& archive, deadline& until) {
  clock::time_point at;
  archive(at);
  until = deadline(at);
}

namespace detail {
namespace {

constexpr std::uint32_t snapshot_format = 2;

// Times and durations are within 146 years, so that differences are numbers, too; clocks count from 0.
constexpr std::int64_t most_ns = std::int64_t{1} << 62U;

void check_snapshot(const worker_snapshot& all) {
  const auto check = [](bool good, std::string_view what) {
    if (!good) throw_error(errc::malformed, fmt::format("a snapshot of a worker with {} that cannot be", what));
  };
  const auto is_time = [](std::int64_t ns) { return ns >= 0 && ns <= most_ns; };
  const auto is_deadline = [&](deadline until) {
    return until.is_never() || is_time(std::chrono::nanoseconds(until.at().time_since_epoch()).count());
  };
  check(is_time(std::chrono::nanoseconds(all.time.time_since_epoch()).count()) && is_time(all.steady_ns), "a time");
  for (const pending_call_info& each : all.pending_calls) {
    check(is_time(each.age.count()) && is_deadline(each.until) && is_time(each.silence.value_or(each.age).count()),
          "times of a call");
    check(each.phase <= call_phase::waiting_for_reply, "a phase of a call");
  }
  for (const served_call_info& each : all.served_calls) {
    check(is_time(each.age.count()) && is_deadline(each.until), "times of a request");
    check(each.phase <= served_phase::later, "a phase of a request");
  }
  for (const pending_collective_info& each : all.pending_collectives)
    check(is_time(each.age.count()) && is_deadline(each.until) && each.channel >= -1, "numbers of a collective");
  for (const recorded_event& each : all.events) check(is_time(each.steady_ns), "the time of an event");
}

}  // namespace

byte_buffer encode_snapshot(const worker_snapshot& of) {
  byte_buffer bytes;
  std::vector<tensor> none;
  encode_values<std::uint32_t, worker_snapshot>(bytes, none, snapshot_format, of);
  return bytes;
}

worker_snapshot decode_snapshot(std::span<const std::byte> bytes, const wire_limits& limits) {
  std::uint32_t format = 0;
  if (bytes.size() >= sizeof format) decode_values(bytes.first(sizeof format), {}, limits, format);
  if (format != snapshot_format) {
    throw_error(errc::version_mismatch,
                fmt::format("a worker tells of itself in format {}; this program reads format {}: use the tools of the "
                            "workers' release",
                            format, snapshot_format));
  }
  worker_snapshot result;
  decode_values(bytes.subspan(sizeof format), {}, limits, result);
  check_snapshot(result);
  return result;
}

}  // namespace detail
}  // namespace ferry::inline v0
