#include "flight_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "../../base/unique_fd.hpp"
#include "flight_calls.hpp"
#include "flight_layout.hpp"
#include "flight_recorder.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::uint64_t most_name_bytes = std::uint64_t{1} << 28U;
constexpr std::int64_t latest_wall_ns = std::int64_t{1} << 62U;  // in the year 2116

[[noreturn]] void refuse_flight_file(const std::string& why) { throw_error(errc::malformed, "the flight file " + why); }

template <class T>
T load_at(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <std::size_t Count>
std::array<std::uint64_t, Count> words_at(std::span<const std::byte> bytes, std::size_t at) {
  return load_at<std::array<std::uint64_t, Count>>(bytes, at);
}

// Up to the first zero, which must be there.
template <std::size_t Count>
std::string_view text_of_field(const std::array<char, Count>& field, std::string_view what) {
  const std::string_view all(field.data(), field.size());
  const std::size_t end = all.find('\0');
  if (end == std::string_view::npos) refuse_flight_file(fmt::format("is damaged: {} has no end", what));
  return all.substr(0, end);
}

// `page`: at least what there is of the first page. After that all sections lie inside a file of `size` bytes.
flight_header checked_flight_header(std::span<const std::byte> page, std::uint64_t size) {
  std::array<char, 8> magic{};
  const bool has_magic = page.size() >= magic.size();
  if (has_magic) magic = load_at<std::array<char, 8>>(page, 0);
  if (has_magic && magic != std::array<char, 8>{} && std::string_view(magic.data(), magic.size()) != flight_magic)
    throw_error(errc::malformed, "this is no flight file: it does not begin with 'ferryFLT'");
  if (page.size() < flight_page) refuse_flight_file(fmt::format("is cut short: it has {} bytes", size));
  if (magic == std::array<char, 8>{}) refuse_flight_file("is empty: its process ended while it was being made");
  const auto header = load_at<flight_header>(page, 0);
  if (header.version != flight_version) {
    throw_error(errc::version_mismatch, fmt::format("the flight file has version {} of the format; this program reads "
                                                    "version {}: use the tools of the worker's release",
                                                    header.version, flight_version));
  }
  const std::string_view checked(reinterpret_cast<const char*>(page.data()), offsetof(flight_header, check));
  if (header.check != fingerprint(checked)) refuse_flight_file("is damaged: the checksum of its header is wrong");
  const bool sizes_fit = header.header_bytes == flight_page && std::has_single_bit(header.events) &&
                         header.events <= most_flight_events && header.ring_at == flight_page &&
                         header.texts_at == header.ring_at + flight_pages(header.events * flight_event_bytes) &&
                         header.texts == kept_texts &&
                         header.names_at == header.texts_at + flight_pages(kept_texts * sizeof(flight_text)) &&
                         header.names_bytes % flight_page == 0 && header.names_bytes <= most_name_bytes &&
                         header.file_bytes == header.names_at + header.names_bytes;
  if (!sizes_fit) refuse_flight_file("is damaged: the sizes in its header contradict each other");
  if (size != header.file_bytes) {
    refuse_flight_file(fmt::format("{}: it has {} bytes instead of {}",
                                   size < header.file_bytes ? "is cut short" : "is damaged", size, header.file_bytes));
  }
  return header;
}

// The clocks of the worker.
class flight_clocks {
 public:
  flight_clocks(std::span<const std::byte> bytes, bool same_boot) {
    std::uint64_t newest = 0;
    bool any = false;
    for (std::size_t i = 0; i != flight_calibration_count; ++i) {
      const std::size_t at = flight_calibrations_at + i * flight_calibration_stride;
      const auto words = words_at<std::tuple_size_v<flight_calibration>>(bytes, at);
      if (words[0] == 0 || load_at<std::uint64_t>(bytes, at + sizeof words) != flight_check(words)) continue;
      const flight_reading reading{bounded(words[1]), words[2]};
      if (i == 0) first_ = reading;
      if (words[0] < newest) continue;
      newest = words[0];
      last_ = reading;
      wall_ns_ = bounded(words[3]);
      if (!any && i != 0) first_ = reading;
      any = true;
    }
    if (!any) refuse_flight_file("is damaged: it does not say what time it was");
    at_last_ns_ = last_.steady_ns;
    if (!same_boot) return;
    // The counter has gone on since then: over a longer time its rate is known better, unless one of the two clocks has
    // stood still while the machine was suspended.
    const flight_reading now = read_flight_clocks();
    if (now.ticks <= last_.ticks || last_.ticks == 0 || now.steady_ns <= last_.steady_ns) return;
    const bool known = last_.ticks > first_.ticks && last_.steady_ns - first_.steady_ns >= long_enough_ns;
    if (!known || std::abs(rate_until(now) / rate_until(last_) - 1) < 0.001) last_ = now;
  }

  [[nodiscard]] std::int64_t steady_ns(std::uint64_t raw) const noexcept {
    return steady_ns_of(flight_time::of_raw(raw), first_, last_);
  }
  [[nodiscard]] std::int64_t last_known_ns() const noexcept { return at_last_ns_; }
  [[nodiscard]] std::chrono::system_clock::time_point wall(std::int64_t steady_ns) const noexcept {
    const std::int64_t since = steady_ns - at_last_ns_;  // both are bounded
    const std::int64_t ns = std::clamp<std::int64_t>(wall_ns_ + since, 0, latest_wall_ns);
    return std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::nanoseconds(ns)));
  }

 private:
  static constexpr std::int64_t long_enough_ns = 100'000'000;  // for a rate

  [[nodiscard]] double rate_until(const flight_reading& last) const noexcept {
    return static_cast<double>(last.steady_ns - first_.steady_ns) / static_cast<double>(last.ticks - first_.ticks);
  }
  // Neither sums nor differences of two such leave the range.
  static std::int64_t bounded(std::uint64_t ns) noexcept {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(ns, std::uint64_t{1} << 61U));
  }

  flight_reading first_;
  flight_reading last_;
  std::int64_t at_last_ns_ = 0;  // of the last calibration in the file
  std::int64_t wall_ns_ = 0;     // the same moment
};

struct flight_names {
  std::map<std::uint64_t, std::string> methods;
  std::map<std::uint64_t, std::string> peers;

  explicit flight_names(std::span<const std::byte> section) {
    std::size_t at = 0;
    while (section.size() - at >= sizeof(flight_name_head)) {
      const auto head = load_at<flight_name_head>(section, at);
      if (head.length == 0 || head.length > longest_flight_name || flight_name_bytes(head.length) > section.size() - at)
        return;
      auto* const known = head.kind == static_cast<std::uint32_t>(flight_name::method) ? &methods
                          : head.kind == static_cast<std::uint32_t>(flight_name::peer) ? &peers
                                                                                       : nullptr;
      if (known) {
        (*known)[head.key].assign(reinterpret_cast<const char*>(section.data()) + at + sizeof head, head.length);
      }
      at += flight_name_bytes(head.length);
    }
  }

  [[nodiscard]] std::string method(std::uint64_t id) const {
    const auto found = methods.find(id);
    return found != methods.end() ? found->second : fmt::format("method {:016x}", id);
  }
  [[nodiscard]] worker_info peer(worker_id id) const {
    if (id.value < 0 || id.value > worker_id::max) return {};
    const auto found = peers.find(static_cast<std::uint64_t>(id.value));
    try {
      if (found != peers.end()) return {found->second, id};
    } catch (const error&) {  // NOLINT(bugprone-empty-catch): no worker has such a name
    }
    return {"unknown", id};
  }
};

// In the order of their numbers; those that were overwritten in part, or long ago, are missing.
std::vector<flight_entry> flight_events_in(std::span<const std::byte> bytes, const flight_header& header,
                                           const flight_clocks& clocks) {
  std::vector<flight_entry> result;
  std::uint64_t end = 0;
  for (std::uint64_t place = 0; place != header.events; ++place) {
    const std::size_t at = header.ring_at + place * flight_event_bytes;
    const auto words = words_at<std::tuple_size_v<flight_words>>(bytes, at);
    auto entry = flight_entry_of(words, load_at<std::uint64_t>(bytes, at + sizeof words));
    if (!entry || entry->number % header.events != place) continue;
    entry->steady_ns = clocks.steady_ns(words[1]);
    if (words[6] != 0) {
      const auto text = load_at<flight_text>(bytes, header.texts_at + words[6] % kept_texts * sizeof(flight_text));
      if (text.number == words[6] && text.length <= text.text.size()) {
        const std::string_view content(text.text.data(), text.length);
        if (flight_text_check(content) == text.check) entry->text = content;
      }
    }
    end = std::max(end, entry->number + 1);
    result.push_back(std::move(*entry));
  }
  std::erase_if(result, [&](const flight_entry& each) { return end - each.number > header.events; });
  std::sort(result.begin(), result.end(),
            [](const flight_entry& a, const flight_entry& b) { return a.number < b.number; });
  return result;
}

void read_all(int file, std::span<std::byte> into, std::uint64_t from) {
  while (!into.empty()) {
    const ssize_t got = ::pread(file, into.data(), into.size(), static_cast<off_t>(from));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(errc::system_failure, "it cannot be read", errno);
    if (got == 0) refuse_flight_file("has become shorter while it was read");
    into = into.subspan(static_cast<std::size_t>(got));
    from += static_cast<std::uint64_t>(got);
  }
}

}  // namespace

worker_snapshot decode_flight_file(std::span<const std::byte> bytes) {
  const flight_header header = checked_flight_header(bytes, bytes.size());
  const std::string_view name = text_of_field(header.worker, "the worker's name");
  const std::string_view boot = text_of_field(header.boot, "the boot id");
  const auto identity = load_at<flight_identity>(bytes, flight_identity_at);

  worker_snapshot result;
  result.reason = "post mortem";
  result.incarnation = {identity.incarnation};
  result.process = header.process;
  try {
    // In a dynamic group a worker has no id until it has joined.
    result.worker = worker_info(
        std::string(name),
        identity.id == -1 ? 0 : static_cast<int>(std::clamp<std::int64_t>(identity.id, -1, worker_id::max + 1)));
  } catch (const error& e) {
    refuse_flight_file(fmt::format("is damaged: {}", e.message()));
  }
  const flight_clocks clocks(bytes, !boot.empty() && boot == flight_boot_id());
  const flight_names names(bytes.subspan(header.names_at, header.names_bytes));
  std::vector<flight_entry> events = flight_events_in(bytes, header, clocks);
  const auto latest = std::max_element(events.begin(), events.end(), [](const flight_entry& a, const flight_entry& b) {
    return a.steady_ns < b.steady_ns;
  });
  result.steady_ns = latest != events.end() ? latest->steady_ns : clocks.last_known_ns();
  result.time = clocks.wall(result.steady_ns);
  result.events_so_far = events.empty() ? 0 : events.back().number + 1;

  const flight_setting setting{
      .self = result.worker.id(),
      .complete = result.events_so_far == events.size(),
      .places = header.places,
      .now_ns = result.steady_ns,
      .peer = [&](worker_id id) { return id == result.worker.id() ? result.worker : names.peer(id); },
      .method = [&](std::uint64_t id) { return names.method(id); }};
  result.pending_calls = open_calls_of(events, setting);
  result.served_calls = open_requests_of(events, setting);
  std::stable_sort(events.begin(), events.end(),
                   [](const flight_entry& a, const flight_entry& b) { return a.steady_ns < b.steady_ns; });
  for (flight_entry& each : events) {
    result.events.push_back({.number = each.number,
                             .steady_ns = each.steady_ns,
                             .event = std::string(to_string(each.what)),
                             .peer = each.peer,
                             .call = each.call,
                             .method = each.method != 0 ? names.method(each.method) : std::string(),
                             .bytes = each.bytes,
                             .code = each.code,
                             .text = std::move(each.text)});
  }
  return result;
}

}  // namespace ferry::inline v0::detail

namespace ferry::inline v0 {

worker_snapshot read_flight_file(const std::string& path) {
  const detail::unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe must not block
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0)
    throw_errno(errc::system_failure, "the flight file " + path + " cannot be read", errno);
  if (!S_ISREG(about.st_mode)) throw_error(errc::malformed, path + ": this is no flight file: it is no regular file");
  try {
    const auto size = static_cast<std::uint64_t>(about.st_size);
    std::vector<std::byte> bytes(std::min<std::uint64_t>(size, detail::flight_page));
    detail::read_all(file.get(), bytes, 0);
    (void)detail::checked_flight_header(bytes, size);  // before memory is taken for the rest
    const std::size_t first = bytes.size();
    bytes.resize(size);
    detail::read_all(file.get(), std::span(bytes).subspan(first), first);
    return detail::decode_flight_file(bytes);
  } catch (const error& e) {
    throw_error(e.kind(), fmt::format("{}: {}", path, e.message()));
  }
}

}  // namespace ferry::inline v0
