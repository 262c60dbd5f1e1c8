#include "profile_batch.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t profile_word = 8;
constexpr std::uint64_t shapes_bit = 1;
constexpr std::uint64_t memory_bit = 2;
constexpr std::uint64_t device_times_bit = 4;
constexpr std::uint64_t brief_bit = 8;
constexpr std::uint64_t failed_bit = 1;
constexpr std::size_t words_of_batch = 5;
constexpr std::size_t words_of_event = 11;  // and three texts
constexpr std::size_t texts_of_event = 3;
// More than a worker can have recorded of a request: the sum of those that many replies tell does not overflow.
constexpr std::uint64_t most_told_lost = std::uint64_t{1} << 40U;
constexpr std::size_t words_of_device_time = 4;
constexpr auto last_kind = static_cast<std::uint64_t>(range_kind::collective);

void put_profile_word(byte_buffer& to, std::uint64_t value) { store_le(to.extend(profile_word), value); }
void put_signed(byte_buffer& to, std::int64_t value) { put_profile_word(to, static_cast<std::uint64_t>(value)); }
void put_text(byte_buffer& to, std::string_view text) {
  put_profile_word(to, text.size());
  to.append(text.data(), text.size());
}

class profile_reader {
 public:
  explicit profile_reader(std::span<const std::byte> content) noexcept : left_(content) {}
  std::uint64_t word() {
    if (left_.size() < profile_word) throw_error(errc::truncated, "a record of a profile ends within a number");
    const auto value = load_le<std::uint64_t>(left_.data());
    left_ = left_.subspan(profile_word);
    return value;
  }
  std::int64_t number() { return static_cast<std::int64_t>(word()); }
  std::int64_t time() {
    const std::int64_t value = number();
    if (value < -longest_profile_time || value > longest_profile_time)
      throw_error(errc::malformed, fmt::format("a record of a profile has time {}", value));
    return value;
  }
  std::int64_t length(std::string_view what) {
    const std::int64_t value = time();
    if (value < 0) throw_error(errc::malformed, fmt::format("an event of a profile has {} of {} ns", what, value));
    return value;
  }
  std::int32_t worker() {
    const std::int64_t value = number();
    if (value < -1 || value > worker_id::max)
      throw_error(errc::malformed, fmt::format("a record of a profile names worker {}", value));
    return static_cast<std::int32_t>(value);
  }
  std::string text() {
    const std::uint64_t length = word();
    if (length > left_.size())
      throw_error(errc::truncated, fmt::format("a record of a profile claims a text of {} bytes", length));
    std::string found(reinterpret_cast<const char*>(left_.data()), static_cast<std::size_t>(length));
    left_ = left_.subspan(static_cast<std::size_t>(length));
    return found;
  }
  [[nodiscard]] std::size_t left() const noexcept { return left_.size(); }

 private:
  std::span<const std::byte> left_;
};

void put_head(byte_buffer& to, std::int32_t node, std::int64_t received_ns, std::int64_t answered_ns,
              std::uint64_t lost, std::uint64_t events) {
  put_signed(to, node);
  put_signed(to, received_ns);
  put_signed(to, answered_ns);
  put_profile_word(to, lost);
  put_profile_word(to, events);
}

std::size_t size_of_event(const profiler::event& event, std::string_view name) noexcept {
  return (words_of_event + texts_of_event) * profile_word + name.size() + event.shapes.size() + event.error.size();
}

void put_event(byte_buffer& to, const profiler::event& event, std::string_view name) {
  put_profile_word(to, static_cast<std::uint64_t>(event.kind) << 1U | (event.failed ? failed_bit : 0));
  put_signed(to, event.node);
  put_profile_word(to, static_cast<std::uint64_t>(event.began_thread) << 32U | event.thread);
  put_profile_word(to, event.number);
  put_profile_word(to, event.parent);
  put_signed(to, event.began_ns);
  put_signed(to, event.ended_ns);
  put_signed(to, event.queued_ns);
  put_signed(to, event.uncertainty_ns);
  put_signed(to, event.bytes);
  put_profile_word(to, event.kind == range_kind::collective ? event.call : 0);
  put_text(to, name);
  put_text(to, event.shapes);
  put_text(to, event.error);
}

profiler::event take_event(profile_reader& from, std::uint64_t events) {
  profiler::event event;
  const std::uint64_t flags = from.word();
  if (flags >> 1U > last_kind)
    throw_error(errc::malformed, fmt::format("an event of a profile has kind {}", flags >> 1U));
  event.kind = static_cast<range_kind>(flags >> 1U);
  event.failed = (flags & failed_bit) != 0;
  event.node = from.worker();
  const std::uint64_t threads = from.word();
  event.thread = static_cast<std::uint32_t>(threads);
  event.began_thread = static_cast<std::uint32_t>(threads >> 32U);
  event.number = from.word();
  event.parent = from.word();
  if (event.number == 0 || event.parent == event.number)
    throw_error(errc::malformed, fmt::format("an event of a profile has number {} and parent {}, of {} events",
                                             event.number, event.parent, events));
  event.began_ns = from.time();
  event.ended_ns = from.time();
  if (event.ended_ns < event.began_ns)
    throw_error(errc::malformed,
                fmt::format("an event of a profile ends {} ns before it begins", event.began_ns - event.ended_ns));
  event.queued_ns = from.length("a time in a queue");
  event.uncertainty_ns = from.length("an uncertainty");
  event.bytes = from.number();
  if (event.bytes < -1)
    throw_error(errc::malformed, fmt::format("an event of a profile has made {} bytes", event.bytes));
  const std::uint64_t call = from.word();
  if (call != 0 && event.kind != range_kind::collective)
    throw_error(errc::malformed, "an event of a profile has the number of a collective and is none");
  event.call = call;
  event.name = from.text();
  event.shapes = from.text();
  event.error = from.text();
  return event;
}

void put_device_time(byte_buffer& to, const told_device_time& each) {
  put_profile_word(to, each.event);
  put_profile_word(to, static_cast<std::uint64_t>(each.on.kind) << 32U | static_cast<std::uint32_t>(each.on.index));
  put_signed(to, each.time_ns);
  put_profile_word(to, each.token);
}

// `least`: the first event that it can be of.
told_device_time take_device_time(profile_reader& from, const std::vector<profiler::event>& events, std::size_t least) {
  constexpr std::uint64_t most_kinds = 256;
  constexpr std::uint64_t most_devices = std::uint64_t{1} << 31U;
  told_device_time found;
  const std::uint64_t event = from.word();
  if (event < least || event >= events.size() || events[event].kind != range_kind::operation)
    throw_error(errc::malformed,
                fmt::format("a time of a device is that of event {} of a profile, which is no operation, "
                            "or not behind the one before",
                            event));
  found.event = event;
  const std::uint64_t place = from.word();
  if (place >> 32U >= most_kinds || (place & 0xffffffffU) >= most_devices)
    throw_error(errc::malformed, fmt::format("an event of a profile has device {:#x}", place));
  found.on = {static_cast<device_kind>(place >> 32U), static_cast<int>(place & 0xffffffffU)};
  found.time_ns = from.number();
  if (found.time_ns < device_time_unknown || found.time_ns > longest_profile_time)
    throw_error(errc::malformed, fmt::format("an event of a profile has run on a device for {} ns", found.time_ns));
  found.token = from.word();
  return found;
}

}  // namespace

std::array<std::byte, bytes_of_wishes> encode_profile_wishes(const profile_wishes& wishes) noexcept {
  static_assert(bytes_of_wishes == profile_word);
  std::array<std::byte, bytes_of_wishes> made{};
  store_le(made.data(), (wishes.shapes ? shapes_bit : 0) | (wishes.memory ? memory_bit : 0) |
                            (wishes.device_times ? device_times_bit : 0) | (wishes.brief ? brief_bit : 0));
  return made;
}

profile_wishes decode_profile_wishes(std::span<const std::byte> content) {
  if (content.size() != profile_word) throw_error(errc::malformed, "a request for a profile is not one number");
  const auto bits = load_le<std::uint64_t>(content.data());
  return {.shapes = (bits & shapes_bit) != 0,
          .memory = (bits & memory_bit) != 0,
          .device_times = (bits & device_times_bit) != 0,
          .brief = (bits & brief_bit) != 0};
}

byte_buffer encode_profile_batch(const profile_batch& batch, std::size_t limit) {
  std::size_t size = words_of_batch * profile_word;
  std::size_t kept = size;
  std::size_t fits = 0;
  std::size_t times = 0;  // of the events that fit
  for (const profiler::event& each : batch.events) {
    size += size_of_event(each, each.name);
    const bool timed = times != batch.device_times.size() && batch.device_times[times].event == fits;
    if (timed) size += (words_of_device_time + (times == 0 ? 1 : 0)) * profile_word;
    if (size > limit) break;
    kept = size;
    ++fits;
    times += timed ? 1 : 0;
  }
  byte_buffer to;
  to.reserve(kept);
  put_head(to, batch.node, batch.received_ns, batch.answered_ns, batch.lost + (batch.events.size() - fits), fits);
  for (std::size_t i = 0; i != fits; ++i) put_event(to, batch.events[i], batch.events[i].name);
  if (times != 0) put_profile_word(to, times);
  for (std::size_t i = 0; i != times; ++i) put_device_time(to, batch.device_times[i]);
  return to;
}

namespace {
// A longer record has more words in its head.
static_assert(bytes_of_brief_answer < words_of_batch * profile_word);
constexpr std::size_t brief_queued_at = 8;
constexpr std::size_t brief_ran_at = 12;
constexpr std::size_t brief_answered_at = 16;
constexpr std::size_t brief_thread_at = 20;
// Sums with three times of four seconds stay within it.
constexpr std::int64_t longest_brief_time = longest_profile_time - (std::int64_t{1} << 34U);
}  // namespace

std::array<std::byte, bytes_of_brief_answer> encode_brief_answer(const brief_answer& answer) noexcept {
  std::array<std::byte, bytes_of_brief_answer> made{};
  store_le(made.data(), static_cast<std::uint64_t>(answer.received_ns));
  store_le(made.data() + brief_queued_at, answer.queued_ns);
  store_le(made.data() + brief_ran_at, answer.ran_ns);
  store_le(made.data() + brief_answered_at, answer.answered_ns);
  store_le(made.data() + brief_thread_at, answer.thread);
  return made;
}

std::optional<brief_answer> decode_brief_answer(std::span<const std::byte> content) noexcept {
  if (content.size() != bytes_of_brief_answer) return std::nullopt;
  const std::byte* at = content.data();
  const brief_answer found{.received_ns = static_cast<std::int64_t>(load_le<std::uint64_t>(at)),
                           .queued_ns = load_le<std::uint32_t>(at + brief_queued_at),
                           .ran_ns = load_le<std::uint32_t>(at + brief_ran_at),
                           .answered_ns = load_le<std::uint32_t>(at + brief_answered_at),
                           .thread = load_le<std::uint32_t>(at + brief_thread_at)};
  if (found.received_ns < -longest_brief_time || found.received_ns > longest_brief_time) return std::nullopt;
  return found;
}

profile_batch batch_of(const brief_answer& answer) {
  profile_batch made;
  made.brief = true;
  made.received_ns = answer.received_ns;
  profiler::event& handler = made.events.emplace_back();
  handler.kind = range_kind::handler;
  handler.thread = answer.thread;
  handler.number = 1;
  handler.began_ns = answer.received_ns + answer.queued_ns;
  handler.ended_ns = handler.began_ns + answer.ran_ns;
  handler.queued_ns = answer.queued_ns;
  made.answered_ns = handler.ended_ns + answer.answered_ns;
  return made;
}

std::uint64_t events_in_batch(std::span<const std::byte> content) noexcept {
  if (content.size() < words_of_batch * profile_word) return content.size() == bytes_of_brief_answer ? 1 : 0;
  const auto lost = load_le<std::uint64_t>(content.data() + 3 * profile_word);
  const auto events = load_le<std::uint64_t>(content.data() + 4 * profile_word);
  const std::uint64_t most = content.size() / ((words_of_event + texts_of_event) * profile_word);
  return std::min(events, most) + std::min(lost, most_told_lost);
}

profile_batch decode_profile_batch(std::span<const std::byte> content) {
  if (content.size() == bytes_of_brief_answer) {
    const auto brief = decode_brief_answer(content);
    if (!brief) throw_error(errc::malformed, "a record of a profile has a time that is out of all bounds");
    return batch_of(*brief);
  }
  profile_reader from(content);
  profile_batch batch;
  batch.node = from.worker();
  batch.received_ns = from.time();
  batch.answered_ns = from.time();
  if (batch.answered_ns < batch.received_ns)
    throw_error(errc::malformed, "a record of a profile tells of a request that was answered before it came");
  batch.lost = std::min(from.word(), most_told_lost);
  const std::uint64_t events = from.word();
  if (events > from.left() / ((words_of_event + texts_of_event) * profile_word))
    throw_error(errc::truncated,
                fmt::format("a record of a profile claims {} events and is too short for them", events));
  batch.events.reserve(static_cast<std::size_t>(events));
  for (std::uint64_t i = 0; i != events; ++i) batch.events.push_back(take_event(from, events));
  if (from.left() == 0) return batch;
  const std::uint64_t times = from.left() < profile_word ? 0 : from.word();
  if (times == 0) throw_error(errc::malformed, "a record of a profile goes on behind its events");
  if (times > from.left() / (words_of_device_time * profile_word))
    throw_error(errc::truncated,
                fmt::format("a record of a profile claims {} times of devices and is too short for them", times));
  batch.device_times.reserve(static_cast<std::size_t>(times));
  for (std::uint64_t i = 0; i != times; ++i) {
    const std::size_t least = batch.device_times.empty() ? 0 : batch.device_times.back().event + 1;
    batch.device_times.push_back(take_device_time(from, batch.events, least));
  }
  if (from.left() != 0) throw_error(errc::malformed, "a record of a profile goes on behind its times of devices");
  return batch;
}

}  // namespace ferry::inline v0::detail
