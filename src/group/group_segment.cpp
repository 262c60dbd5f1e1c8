#include "group_segment.hpp"

#include <algorithm>
#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/dims.hpp>

#if defined(__SANITIZE_THREAD__)
  #define FERRY_ORDERED_SEGMENTS 1
#elif defined(__has_feature)
  #if __has_feature(thread_sanitizer)
    #define FERRY_ORDERED_SEGMENTS 1
  #endif
#endif
#ifdef FERRY_ORDERED_SEGMENTS
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace ferry::inline v0::detail {
namespace {

constexpr int segment_seals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr std::size_t segment_page = 4096;
constexpr std::size_t segment_line = 128;

constexpr std::size_t segment_round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

[[noreturn]] void refuse_group_segment(std::string_view why) {
  throw_error(errc::handshake_failed, fmt::format("its shared memory is refused: {}", why));
}

#ifdef FERRY_ORDERED_SEGMENTS
std::array<char, 1024> order_of_segments;
#endif

}  // namespace

std::optional<segment_layout> segment_layout::make(int members, std::size_t bytes_per_member) noexcept {
  constexpr std::size_t most = std::size_t{1} << 32U;
  if (members < 2 || members > most_members) return std::nullopt;
  const auto n = static_cast<std::size_t>(members);
  // A slot, and a share of one, for each piece that is under way.
  const std::size_t of_piece = std::min(bytes_per_member, most) / slots;
  const std::size_t slot = of_piece / (n + 1) * n / segment_line * segment_line;
  if (slot < least_slot) return std::nullopt;
  segment_layout made;
  made.members = members;
  made.slot_bytes = slot;
  made.result_bytes = segment_round_up(slot / n + sizeof(std::uint64_t) * 2, segment_line);
  made.region_bytes = segment_round_up(slots * (made.slot_bytes + made.result_bytes), segment_page);
  return made;
}

signature_block signature_block::encode(std::uint64_t sequence, const collective_signature& signature) noexcept {
  signature_block made;
  made.words[0] = sequence;
  made.words[1] = static_cast<std::uint64_t>(signature.op) | static_cast<std::uint64_t>(signature.how) << 8U |
                  static_cast<std::uint64_t>(signature.use) << 16U | static_cast<std::uint64_t>(signature.type) << 24U;
  made.words[2] = static_cast<std::uint64_t>(static_cast<std::int64_t>(signature.root));
  made.words[3] = signature.purpose;
  made.words[4] = signature.shape.size();
  static_assert(5 + max_rank <= std::tuple_size_v<decltype(words)>);
  for (std::size_t i = 0; i != std::min(signature.shape.size(), max_rank); ++i) {
    made.words[5 + i] = static_cast<std::uint64_t>(signature.shape[i]);
  }
  return made;
}

std::optional<std::pair<std::uint64_t, collective_signature>> signature_block::decode() const {
  const auto byte = [&](unsigned at) { return static_cast<std::uint8_t>(words[1] >> (8 * at)); };
  collective_signature made;
  made.op = static_cast<collective>(byte(0));
  made.how = static_cast<reduce_op>(byte(1));
  made.use = static_cast<algorithm>(byte(2));
  made.type = static_cast<dtype>(byte(3));
  made.root = static_cast<std::int32_t>(words[2]);
  made.purpose = words[3];
  if (words[4] > max_rank || to_string(made.op) == "unknown") return std::nullopt;
  for (std::size_t i = 0; i != words[4]; ++i) {
    const auto length = static_cast<std::int64_t>(words[5 + i]);
    if (length < 0) return std::nullopt;
    made.shape.push_back(length);
  }
  return std::pair(words[0], std::move(made));
}

group_segment::group_segment(const segment_layout& layout, std::shared_ptr<shared_segment> memory)
    : layout_(layout), memory_(std::move(memory)), bytes_(memory_->bytes()) {}

std::pair<std::shared_ptr<group_segment>, unique_fd> group_segment::create(const segment_layout& layout) {
  unique_fd descriptor(::memfd_create("ferry-group", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) throw_errno(errc::system_failure, "creating shared memory (memfd_create)", errno);
  if (::ftruncate(descriptor.get(), static_cast<off_t>(layout.total())) != 0 ||
      ::fcntl(descriptor.get(), F_ADD_SEALS, segment_seals | F_SEAL_SEAL) != 0) {
    throw_errno(errc::system_failure, "setting up shared memory", errno);
  }
  auto made =
      std::make_shared<group_segment>(layout, std::make_shared<shared_segment>(descriptor.get(), layout.total()));
  return {std::move(made), std::move(descriptor)};
}

std::shared_ptr<group_segment> group_segment::adopt(const unique_fd& descriptor, const segment_layout& layout) {
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0) refuse_group_segment("the descriptor is not of sealed memory");
  if ((seals & segment_seals) != segment_seals) refuse_group_segment("its size is not sealed");
  if ((seals & F_SEAL_WRITE) != 0) refuse_group_segment("it cannot be written");
  struct statfs system {};
  // Huge pages can be taken away again, and then an access fails.
  if (::fstatfs(descriptor.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    refuse_group_segment("it is not ordinary memory");
  }
  struct stat file {};
  if (::fstat(descriptor.get(), &file) != 0 || file.st_size != static_cast<off_t>(layout.total())) {
    refuse_group_segment(fmt::format("it has {} bytes, not {}", file.st_size, layout.total()));
  }
  return std::make_shared<group_segment>(layout, std::make_shared<shared_segment>(descriptor.get(), layout.total()));
}

#ifdef FERRY_ORDERED_SEGMENTS
void group_segment::note_published() const noexcept {
  if (memory_) __tsan_release(&order_of_segments[memory_->identity() % order_of_segments.size()]);
}
void group_segment::note_observed() const noexcept {
  if (memory_) __tsan_acquire(&order_of_segments[memory_->identity() % order_of_segments.size()]);
}
#else
void group_segment::note_published() const noexcept {}
void group_segment::note_observed() const noexcept {}
#endif

}  // namespace ferry::inline v0::detail
