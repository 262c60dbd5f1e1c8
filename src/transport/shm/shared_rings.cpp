#include "shared_rings.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>

#include "passed_descriptors.hpp"
#include "sealed_memory.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::array<unsigned char, 8> offer_magic{0x89, 'F', 'R', 'I', 'N', 'G', 'S', '\n'};
constexpr std::uint32_t ring_layout = 1;

constexpr std::size_t segment_bytes(std::size_t ring_bytes) { return ring_controls_bytes + 2 * ring_bytes; }

// Ring 0 is the one that the connecting end writes.
template <class End>
End end_of(const shared_segment& memory, std::size_t ring_bytes, std::size_t index) noexcept {
  const std::span<std::byte> bytes = memory.bytes();
  return End(*reinterpret_cast<ring_control*>(bytes.data() + index * sizeof(ring_control)),
             bytes.subspan(ring_controls_bytes + index * ring_bytes, ring_bytes), 2 * memory.identity() + index);
}

// Or fewer, where this process is short of them.
bool is_number_of_descriptors(const received_with_descriptors& got, std::size_t expected) noexcept {
  return got.descriptors == expected || (got.descriptors < expected && got.short_of_descriptors);
}

[[noreturn]] void refuse_segment(std::string_view why) {
  throw_error(errc::handshake_failed, fmt::format("its shared memory is refused: {}", why));
}

}  // namespace

shared_segment::shared_segment(int descriptor, std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) throw_errno(errc::system_failure, "mapping shared memory", errno);
  bytes_ = {static_cast<std::byte*>(at), bytes};
  struct stat file {};
  if (::fstat(descriptor, &file) == 0) identity_ = file.st_ino;
}

shared_segment::~shared_segment() { ::munmap(bytes_.data(), bytes_.size()); }

shared_rings::shared_rings(int descriptor, std::size_t ring_bytes, side which)
    : memory_(std::make_shared<shared_segment>(descriptor, segment_bytes(ring_bytes))),
      which_(which),
      out_(end_of<ring_writer>(*memory_, ring_bytes, which == side::connecting ? 0 : 1)),
      in_(end_of<ring_reader>(*memory_, ring_bytes, which == side::connecting ? 1 : 0)) {}

// Behind the parts of both rings.
loan_control& shared_rings::loans(std::size_t index) const noexcept {
  static_assert(2 * (sizeof(ring_control) + sizeof(loan_control)) <= ring_controls_bytes);
  return *reinterpret_cast<loan_control*>(memory_->bytes().data() + 2 * sizeof(ring_control) +
                                          index * sizeof(loan_control));
}

std::size_t default_ring_bytes() noexcept {
  constexpr std::size_t small = std::size_t{128} << 10U;
#ifdef _SC_LEVEL2_CACHE_SIZE
  constexpr long large_cache = 1L << 20U;
  static const bool is_large = ::sysconf(_SC_LEVEL2_CACHE_SIZE) >= large_cache;  // 0: unknown
  return is_large ? 2 * small : small;
#else
  return small;
#endif
}

std::pair<std::unique_ptr<shared_rings>, unique_fd> shared_rings::create(std::size_t ring_bytes) {
  if (!is_ring_size(ring_bytes)) {
    throw_error(errc::invalid_argument, fmt::format("shm_ring_bytes must be a power of two from {} to {}, not {}",
                                                    smallest_ring, largest_ring, ring_bytes));
  }
  unique_fd descriptor(::memfd_create("ferry-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) throw_errno(errc::system_failure, "creating shared memory (memfd_create)", errno);
  if (::ftruncate(descriptor.get(), static_cast<off_t>(segment_bytes(ring_bytes))) != 0 ||
      ::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno(errc::system_failure, "setting up shared memory", errno);
  }
  auto rings = std::make_unique<shared_rings>(descriptor.get(), ring_bytes, side::connecting);
  return {std::move(rings), std::move(descriptor)};
}

std::unique_ptr<shared_rings> shared_rings::adopt(const unique_fd& descriptor, std::uint64_t ring_bytes) {
  if (!is_ring_size(ring_bytes)) refuse_segment(fmt::format("{} bytes are no size of a ring", ring_bytes));
  if (const std::string_view why = why_not_sealed(descriptor.get()); !why.empty()) refuse_segment(why);
  struct stat file {};
  const std::size_t expected = segment_bytes(static_cast<std::size_t>(ring_bytes));
  if (::fstat(descriptor.get(), &file) != 0 || file.st_size != static_cast<off_t>(expected)) {
    refuse_segment(fmt::format("it has {} bytes, not {}", file.st_size, expected));
  }
  try {
    return std::make_unique<shared_rings>(descriptor.get(), static_cast<std::size_t>(ring_bytes), side::accepting);
  } catch (const error& why) {
    refuse_segment(why.message());
  }
}

std::array<std::byte, rings_offer::encoded_size> rings_offer::encode() const noexcept {
  std::array<std::byte, encoded_size> out{};
  std::memcpy(out.data(), offer_magic.data(), offer_magic.size());
  store_le(out.data() + 8, ring_layout);
  store_le(out.data() + 16, ring_bytes);
  return out;
}

rings_offer rings_offer::decode(std::span<const std::byte, encoded_size> in) {
  if (std::memcmp(in.data(), offer_magic.data(), offer_magic.size()) != 0) refuse_segment("the offer is not one");
  if (const auto layout = load_le<std::uint32_t>(in.data() + 8); layout != ring_layout) {
    refuse_segment(fmt::format("its layout {} is not known", layout));
  }
  return {load_le<std::uint64_t>(in.data() + 16)};
}

std::string rings_verdict::encode_acceptance() { return std::string(encoded_size, '\0'); }

std::string rings_verdict::encode_refusal(errc code, std::string_view why) {
  const auto text = why.substr(0, longest_text);
  std::string out(encoded_size, '\0');
  auto* const bytes = reinterpret_cast<std::byte*>(out.data());
  store_le(bytes, static_cast<std::uint32_t>(code));
  store_le(bytes + 4, static_cast<std::uint32_t>(text.size()));
  return out.append(text);
}

rings_verdict rings_verdict::decode(std::span<const std::byte, encoded_size> in) {
  rings_verdict result{static_cast<errc>(load_le<std::int32_t>(in.data())), load_le<std::uint32_t>(in.data() + 4)};
  if (result.text_bytes > longest_text || (result.accepted() && result.text_bytes != 0)) {
    throw_error(errc::handshake_failed, "its answer to the offer of shared memory cannot be read");
  }
  if (!result.accepted() && errc_name(result.refused) == "unknown")
    result.refused = errc::handshake_failed;  // of a later release
  return result;
}

void send_offer(int socket, const rings_offer& offer, const unique_fd& segment, int host_memory) {
  const std::array<int, 2> descriptors{segment.get(), host_memory};
  send_with_descriptors(socket, offer.encode(), std::span(descriptors).first(host_memory < 0 ? 1 : 2),
                        "handing over shared memory");
}

received_offer receive_offer(int socket, bool with_host_memory) {
  std::array<std::byte, rings_offer::encoded_size> bytes{};
  std::array<unique_fd, 2> given;
  const std::size_t expected = with_host_memory ? 2 : 1;
  const auto got = receive_with_descriptors(socket, bytes, std::span(given).first(expected));
  if (got.bytes == 0) return {};
  if (got.bytes != bytes.size()) refuse_segment("the offer is cut off");
  if (got.descriptors == 0 && got.short_of_descriptors) {
    throw_error(errc::resource_exhausted, "its shared memory is refused: the process has run out of file descriptors");
  }
  if (!is_number_of_descriptors(got, expected))
    refuse_segment(fmt::format("the offer comes with {} descriptors", got.descriptors));
  return {shared_rings::adopt(given[0], rings_offer::decode(bytes).ring_bytes), std::move(given[1])};
}

void send_acceptance(int socket, int host_memory) {
  const std::string verdict = rings_verdict::encode_acceptance();
  send_with_descriptors(socket, std::as_bytes(std::span(verdict)), {&host_memory, 1}, "handing over host memory");
}

received_verdict receive_verdict(int socket) {
  std::array<std::byte, rings_verdict::encoded_size> bytes{};
  std::array<unique_fd, 1> given;
  const auto got = receive_with_descriptors(socket, bytes, given);
  if (got.bytes == 0) return {};
  if (got.bytes != bytes.size())
    throw_error(errc::handshake_failed, "its answer to the offer of shared memory is cut off");
  const auto verdict = rings_verdict::decode(bytes);
  if (!is_number_of_descriptors(got, verdict.accepted() ? 1 : 0)) {
    throw_error(errc::handshake_failed,
                fmt::format("its answer to the offer of shared memory comes with {} descriptors", got.descriptors));
  }
  return {verdict, std::move(given[0])};
}

}  // namespace ferry::inline v0::detail
