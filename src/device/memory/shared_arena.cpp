#include "shared_arena.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/cpu_pool.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_usual = std::size_t{64} << 30U;
constexpr std::size_t most_mebibytes = most_shared_bytes >> 20U;

// Linux 5.14; headers of older systems do not have it.
constexpr int populate_for_writing = 23;

// As much as the machine has memory, but not so much that many peers of it exceed what a process can address.
std::size_t usual_size() noexcept {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return most_usual;
  return in_granules(std::min(most_usual, static_cast<std::size_t>(pages) * static_cast<std::size_t>(page)));
}

// A file that is to be longer than that would end the process by a signal.
bool file_may_have(std::size_t bytes) noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

// FERRY_SHARED_MEMORY, in MiB.
std::size_t size_of_environment() {
  const char* const text = std::getenv("FERRY_SHARED_MEMORY");
  if (text == nullptr || *text == '\0') return usual_size();
  std::size_t mebibytes = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, problem] = std::from_chars(text, end, mebibytes);
  if (problem == std::errc() && stop == end && mebibytes <= most_mebibytes) return mebibytes << 20U;
  log(log_level::warning,
      fmt::format("FERRY_SHARED_MEMORY is '{}', which is not a number of MiB up to {}; the usual size is taken", text,
                  most_mebibytes));
  return usual_size();
}

// The memory is that of the parent, which goes on using it: a child leaves it alone.
constinit std::atomic<bool> in_forked_child{false};

struct process_arena {
  std::unique_ptr<shared_arena> arena;
  std::string_view obstacle;
  process_arena() noexcept {
    try {
      const std::size_t size = size_of_environment();
      if (size == 0) {
        obstacle = "FERRY_SHARED_MEMORY is 0";
        return;
      }
      if (!file_may_have(size)) {
        obstacle =
            "files of this process may not have as many bytes (ulimit -f); FERRY_SHARED_MEMORY sets how many, in MiB";
        return;
      }
      arena = std::make_unique<shared_arena>(size);
      ::pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true, std::memory_order_relaxed); });
    } catch (const std::exception& problem) {
      obstacle = "this process cannot make memory to share (its log says why)";
      log(log_level::info, fmt::format("host memory is not shared with other processes: {}", problem.what()));
    }
  }
};

const process_arena& arena_of_process() noexcept {
  static const auto* const only = new process_arena;
  return *only;
}

// What offset_of() looks at: set with the first block.
constinit std::atomic<std::byte*> used_arena{nullptr};
constinit std::atomic<std::size_t> used_size{0};
constinit std::atomic<bool> tensors_made{false};

}  // namespace

shared_arena* shared_arena::of_process() noexcept { return arena_of_process().arena.get(); }
std::string_view shared_arena::obstacle() noexcept {
  const process_arena& mine = arena_of_process();
  return in_forked_child.load(std::memory_order_relaxed) ? "this process was forked from one that shares memory"
                                                         : mine.obstacle;
}
bool shared_arena::has_tensors() noexcept { return tensors_made.load(std::memory_order_relaxed); }
void shared_arena::note_tensor() noexcept {
  if (!has_tensors()) tensors_made.store(true, std::memory_order_relaxed);
}
bool shared_arena::in_use() noexcept { return used_arena.load(std::memory_order_acquire) != nullptr; }

std::optional<std::uint64_t> shared_arena::offset_of(const void* at) noexcept {
  const std::byte* const first = used_arena.load(std::memory_order_acquire);
  const auto distance = reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(first);
  if (first == nullptr || distance >= used_size.load(std::memory_order_relaxed)) return std::nullopt;
  return distance;
}

shared_arena::shared_arena(std::size_t bytes)
    : file_(::memfd_create("ferry-tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  const std::size_t size = in_granules(bytes);
  if (!file_) throw_errno(errc::system_failure, "creating shared memory (memfd_create)", errno);
  if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno(errc::system_failure, "setting up shared memory", errno);
  }
  // Accessible as far as there are blocks: mlockall() makes pages of all that is accessible.
  void* const at = ::mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (at == MAP_FAILED)
    throw_errno(errc::system_failure, fmt::format("mapping {} MiB of shared memory", size >> 20U), errno);
  bytes_ = {static_cast<std::byte*>(at), size};
  // Hints: small pages work as well; and a core file would have all of it, used or not.
  ::madvise(at, size, MADV_HUGEPAGE);
  ::madvise(at, size, MADV_DONTDUMP);
  cold_.emplace(0, size);
}

shared_arena::~shared_arena() { ::munmap(bytes_.data(), bytes_.size()); }

// The block that fits best; of several, the one at the lowest address.
std::optional<std::size_t> shared_arena::take(free_blocks& from, std::size_t size) {
  auto best = from.end();
  for (auto each = from.begin(); each != from.end(); ++each) {
    if (each->second < size || (best != from.end() && each->second >= best->second)) continue;
    best = each;
    if (each->second == size) break;
  }
  if (best == from.end()) return std::nullopt;
  const auto [offset, whole] = *best;
  if (whole != size) from.emplace_hint(std::next(best), offset + size, whole - size);  // first: it may throw
  from.erase(best);
  return offset;
}

void shared_arena::put(free_blocks& to, std::size_t offset, std::size_t size) {
  const auto after = to.lower_bound(offset);
  const bool joins_after = after != to.end() && after->first == offset + size;
  if (after != to.begin()) {
    if (const auto before = std::prev(after); before->first + before->second == offset) {
      before->second += size;
      if (joins_after) {
        before->second += after->second;
        to.erase(after);
      }
      return;
    }
  }
  to.emplace_hint(after, offset, joins_after ? size + after->second : size);  // first: it may throw
  if (joins_after) to.erase(after);
}

// Else a write could end this process by a signal, where memory is short; and it is several times as fast as page by page.
bool shared_arena::populate(std::size_t offset, std::size_t size) const noexcept {
  if (::mprotect(bytes_.data() + offset, size, PROT_READ | PROT_WRITE) != 0) return false;
  if (::madvise(bytes_.data() + offset, size, populate_for_writing) == 0) return true;
  if (errno != EINVAL) return false;
  return ::fallocate(file_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(size)) == 0;  // before Linux 5.14
}

void shared_arena::drop_pages(std::size_t offset, std::size_t size) const noexcept {
  ::mprotect(bytes_.data() + offset, size, PROT_NONE);
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(size));
}

void* shared_arena::allocate(std::size_t bytes, room wanted) noexcept {
  if (bytes == 0 || bytes > bytes_.size() || in_forked_child.load(std::memory_order_relaxed)) return nullptr;
  const std::size_t size = in_granules(bytes);
  std::optional<std::size_t> offset;
  bool fresh = false;
  try {
    const std::lock_guard lock(mutex_);
    offset = take(warm_, size);
    fresh = !offset;
    if (!fresh) now_.cached_bytes -= size;
    if (!offset) offset = take(cold_, size);
    if (!offset && wanted == room::made) {  // free blocks of either kind may be neighbours
      trim_locked();
      offset = take(cold_, size);
    }
    if (!offset) return nullptr;
    ++now_.blocks;
    now_.used_bytes += size;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  if (fresh && !populate(*offset, size)) {
    drop_pages(*offset, size);
    forget(*offset, size);
    return nullptr;
  }
  if (!in_use() && this == of_process()) {
    used_size.store(bytes_.size(), std::memory_order_relaxed);
    used_arena.store(bytes_.data(), std::memory_order_release);
  }
  return bytes_.data() + *offset;
}

void shared_arena::deallocate(void* memory, std::size_t bytes) noexcept {
  if (in_forked_child.load(std::memory_order_relaxed)) return;
  const std::size_t size = in_granules(bytes);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(memory) - bytes_.data());
  const std::uint64_t limit = get_cpu_pool_stats().limit_bytes;  // before the lock
  try {
    const std::lock_guard lock(mutex_);
    if (now_.cached_bytes + size <= limit) {
      put(warm_, offset, size);
      now_.cached_bytes += size;
      --now_.blocks;
      now_.used_bytes -= size;
      return;
    }
  } catch (const std::bad_alloc&) {  // its address space is lost, which is plenty; its memory is not
  }
  drop_pages(offset, size);
  forget(offset, size);
}

// A block whose pages the system has again.
void shared_arena::forget(std::size_t offset, std::size_t size) noexcept {
  const std::lock_guard lock(mutex_);
  --now_.blocks;
  now_.used_bytes -= size;
  try {
    put(cold_, offset, size);
  } catch (const std::bad_alloc&) {  // as above
  }
}

void shared_arena::trim() noexcept {
  if (in_forked_child.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  trim_locked();
}

void shared_arena::trim_locked() noexcept {
  while (!warm_.empty()) {
    const auto [offset, size] = *warm_.begin();
    drop_pages(offset, size);
    now_.cached_bytes -= size;
    warm_.erase(warm_.begin());
    try {
      put(cold_, offset, size);
    } catch (const std::bad_alloc&) {  // as above
    }
  }
}

shared_arena::figures shared_arena::now() const noexcept {
  const std::lock_guard lock(mutex_);
  return now_;
}

}  // namespace ferry::inline v0::detail
