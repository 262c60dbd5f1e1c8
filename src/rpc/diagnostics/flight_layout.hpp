#pragma once

// What the memory of a flight recorder looks like. As a file it is described in docs/protocol.md, "Flight file".

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/base/ids.hpp>
#include <ferry/base/type_name.hpp>

namespace ferry::inline v0::detail {

inline constexpr std::string_view flight_magic = "ferryFLT";
inline constexpr std::uint32_t flight_version = 1;
inline constexpr std::size_t flight_page = 4096;  // sections of a file begin at multiples of it, on every machine

/// XOR over rotated words. All zeroes have the check word 0.
template <std::size_t Count>
std::uint64_t flight_check(const std::array<std::uint64_t, Count>& words) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i != words.size(); ++i) sum ^= std::rotl(words[i], static_cast<int>(9 * i));
  return sum;
}

// ---- events: seven words and their check word

inline constexpr std::size_t words_per_event = 8;
inline constexpr std::size_t flight_event_bytes = words_per_event * sizeof(std::uint64_t);
inline constexpr std::uint64_t most_flight_events = std::uint64_t{1} << 24U;
/// number + 1, time (flight_time::raw), call, method, bytes, what | code << 8 | peer << 32, number of the text or 0
using flight_words = std::array<std::uint64_t, words_per_event - 1>;

// ---- texts: a number of slots, which are used in turn

inline constexpr std::size_t kept_texts = 64;
inline constexpr std::size_t longest_flight_text = 496;
struct flight_text {
  std::uint64_t number = 0;  ///< texts are counted from 1; 0: none, or one that was being written
  std::uint32_t length = 0;
  std::uint32_t check = 0;  ///< lower half of the text's fingerprint
  std::array<char, longest_flight_text> text{};
};
static_assert(sizeof(flight_text) == 512);
inline std::uint32_t flight_text_check(std::string_view text) noexcept {
  return static_cast<std::uint32_t>(fingerprint(text));
}

// ---- names, in a file only: one after the other, up to a head of zeroes

enum class flight_name : std::uint32_t { none = 0, method = 1, peer = 2 };  // none: it is out of date
inline constexpr std::size_t longest_flight_name = 1024;
struct flight_name_head {
  std::uint32_t length = 0;  ///< the name follows, and zeroes up to a multiple of eight
  std::uint32_t kind = 0;
  std::uint64_t key = 0;  ///< the method's fingerprint, or the peer's id
};
static_assert(sizeof(flight_name_head) == 16);
constexpr std::size_t flight_name_bytes(std::size_t length) noexcept {
  return sizeof(flight_name_head) + (length + 7) / 8 * 8;
}

// ---- the header of a file

struct flight_header {
  std::array<char, 8> magic{};  ///< written last
  std::uint32_t version = flight_version;
  std::uint32_t header_bytes = flight_page;
  std::uint64_t file_bytes = 0;
  std::uint64_t ring_at = 0;
  std::uint64_t events = 0;  ///< that fit into the ring: a power of two
  std::uint64_t texts_at = 0;
  std::uint64_t texts = kept_texts;
  std::uint64_t names_at = 0;
  std::uint64_t names_bytes = 0;
  std::int64_t process = 0;
  std::uint64_t process_start = 0;  ///< ticks of the kernel since the boot, as in /proc/<process>/stat; 0: unknown
  std::int64_t places = 0;          ///< num_worker_threads
  std::array<char, 64> boot{};      ///< the boot id of the machine, then zeroes
  std::array<char, 128> worker{};   ///< the worker's name, then zeroes
  std::uint64_t check = 0;          ///< fingerprint of the bytes before it
};
static_assert(sizeof(flight_header) == 296);

/// Where in the header page the fields lie that change.
inline constexpr std::size_t flight_identity_at = 512;
struct flight_identity {
  std::uint64_t incarnation = 0;
  std::int64_t id = -1;
};
/// Three of them: that of the file's creation, and two that later ones take in turn.
inline constexpr std::size_t flight_calibrations_at = 576;
inline constexpr std::size_t flight_calibration_stride = 64;
inline constexpr std::size_t flight_calibration_count = 3;
/// number (from 1), steady_ns, ticks of the processor's counter or 0, nanoseconds since 1970; then their check word
using flight_calibration = std::array<std::uint64_t, 4>;

constexpr std::uint64_t flight_pages(std::uint64_t bytes) noexcept {
  return (bytes + flight_page - 1) / flight_page * flight_page;
}

}  // namespace ferry::inline v0::detail
