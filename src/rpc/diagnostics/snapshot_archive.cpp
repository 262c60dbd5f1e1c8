#include "snapshot_archive.hpp"

#include <chrono>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <cereal/types/chrono.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/vector.hpp>

#include <ferry/base/error.hpp>
#include <ferry/wire/serialize.hpp>

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
  archive(all.reason, all.worker, all.incarnation.value, all.process, all.time, all.steady_ns, all.pending_calls,
          all.served_calls, all.traffic, all.routes, all.debug_info, all.events_so_far, all.events);
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

constexpr std::uint32_t snapshot_format = 1;

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
  return result;
}

}  // namespace detail
}  // namespace ferry::inline v0
