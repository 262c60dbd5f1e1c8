#include "peer_memory.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <asio/post.hpp>

#include <ferry/base/error.hpp>

#include "../../device/memory/shared_arena.hpp"
#include "../reactor/control_thread.hpp"
#include "../reactor/io_threads.hpp"
#include "sealed_memory.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t granules_of_word = 64;

// Linux 5.14; headers of older systems do not have it.
constexpr int populate_for_reading = 22;
constexpr int populate_for_use = 23;
constexpr int drop_although_locked = 24;  // Linux 5.18
constexpr int page_is_cold = 20;          // Linux 5.4

std::uintptr_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// What the kernel says of each page of this process (Documentation/admin-guide/mm/pagemap.rst).
constexpr std::uint64_t page_in_memory = std::uint64_t{1} << 63U;
constexpr std::uint64_t page_in_swap = std::uint64_t{1} << 62U;
constexpr std::uint64_t page_of_file = std::uint64_t{1} << 61U;

// Calls `found` for each run of pages of which this process has copies of its own, because it has written to them. False: it is not
// known which these are.
template <class Found>
bool find_private_pages(std::span<std::byte> pages, const Found& found) noexcept {
  static const int pagemap = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return false;
  std::array<std::uint64_t, 512> entries;
  std::size_t begin = 0;  // of the run, in pages
  std::size_t end = 0;
  const std::size_t all = pages.size() / page_bytes();
  const auto give = [&] {
    if (begin != end) found(pages.subspan(begin * page_bytes(), (end - begin) * page_bytes()));
  };
  for (std::size_t done = 0; done != all;) {
    const std::size_t wanted = std::min(entries.size(), all - done);
    const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(pages.data()) / page_bytes() + done;
    const auto expected = static_cast<ssize_t>(wanted * sizeof(std::uint64_t));
    if (::pread(pagemap, entries.data(), static_cast<std::size_t>(expected),
                static_cast<off_t>(page * sizeof(std::uint64_t))) != expected)
      return false;
    for (std::size_t i = 0; i != wanted; ++i) {
      if ((entries[i] & (page_in_memory | page_in_swap)) == 0 || (entries[i] & page_of_file) != 0) continue;
      if (end != done + i) {
        give();
        begin = done + i;
      }
      end = done + i + 1;
    }
    done += wanted;
  }
  give();
  return true;
}

// Of all processes together, in both ways, so that peers cannot take all that this process can address.
constexpr std::size_t most_mapped_bytes = std::size_t{1} << 45U;
constinit std::atomic<std::size_t> mapped_bytes{0};

[[noreturn]] void refuse_memory(std::string_view why) {
  throw_error(errc::handshake_failed, fmt::format("its host memory is refused: {}", why));
}

}  // namespace

peer_memory::peer_memory(const unique_fd& descriptor) {
  if (const std::string_view why = why_not_sealed(descriptor.get()); !why.empty()) refuse_memory(why);
  struct stat file {};
  if (::fstat(descriptor.get(), &file) != 0 || file.st_size <= 0 ||
      static_cast<std::uint64_t>(file.st_size) > most_shared_bytes ||
      static_cast<std::uint64_t>(file.st_size) % shared_granule != 0)
    refuse_memory(fmt::format("{} bytes are no size of it", file.st_size));
  const auto size = static_cast<std::size_t>(file.st_size);
  if (mapped_bytes.fetch_add(2 * size) + 2 * size > most_mapped_bytes) {
    mapped_bytes.fetch_sub(2 * size);
    refuse_memory("this process has mapped too much of others");
  }
  lent_ = map(descriptor.get(), size, given::lent);
  if (lent_.all.empty()) {
    const int failure = errno;
    mapped_bytes.fetch_sub(2 * size);
    throw_errno(errc::system_failure, fmt::format("mapping {} MiB of another process's host memory", size >> 20U),
                failure);
  }
  handed_over_ = map(descriptor.get(), size, given::handed_over);
}

peer_memory::~peer_memory() {
  mapped_bytes.fetch_sub(2 * lent_.all.size());
  lent_.unmap();
  handed_over_.unmap();
}

// Accessible as far as it is used, and never locked: locking private memory that can be written makes copies of all of its pages. Empty
// where that is impossible; errno says why.
peer_memory::mapping peer_memory::map(int descriptor, std::size_t size, given how) noexcept {
  const bool shared = how == given::handed_over;
  if (shared && (::fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDWR) return {};
  const auto mapped = [](std::size_t bytes, int access, int flags, int from) {
    void* const at = ::mmap(nullptr, bytes, access, MAP_NORESERVE | flags, from, 0);
    return std::span(static_cast<std::byte*>(at), at == MAP_FAILED ? 0 : bytes);
  };
  mapping made;
  made.all = mapped(size, PROT_NONE, shared ? MAP_SHARED : MAP_PRIVATE, descriptor);
  const std::size_t words = (size / shared_granule + granules_of_word - 1) / granules_of_word;
  if (!made.all.empty()) {
    const auto bits = mapped(words * sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    made.ready = {reinterpret_cast<std::uint64_t*>(bits.data()), bits.empty() ? 0 : words};
  }
  if (made.ready.empty()) {
    const int failure = errno;
    made.unmap();
    errno = failure;
    return {};
  }
  ::munlock(made.all.data(), size);                 // of mlockall()
  ::madvise(made.all.data(), size, MADV_DONTDUMP);  // else a core file would have all of it, used or not
  return made;
}

void peer_memory::mapping::unmap() const noexcept {
  if (!all.empty()) ::munmap(all.data(), all.size());
  if (!ready.empty()) ::munmap(ready.data(), ready.size_bytes());
}

peer_memory::used_pages peer_memory::range_of(std::uint64_t offset, std::uint64_t bytes, given how) const noexcept {
  const std::uint64_t last = (offset + bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  return {offset / page_bytes() * page_bytes(), std::min<std::uint64_t>(last, lent_.all.size()), how};
}

// With mutex_ held.
peer_memory::used_list::iterator peer_memory::find(std::uint64_t first) {
  return std::find_if(used_.begin(), used_.end(), [&](const used_pages& each) { return each.first == first; });
}

// Calls `visit` for each word that has bits of these pages, with those.
template <class Visit>
void peer_memory::mapping::for_words_of(pages which, const Visit& visit) const noexcept {
  const auto first = static_cast<std::uint64_t>(which.data() - all.data()) / shared_granule;
  const std::uint64_t last =
      (static_cast<std::uint64_t>(which.data() - all.data()) + which.size() - 1) / shared_granule;
  for (std::uint64_t at = first / granules_of_word; at <= last / granules_of_word; ++at) {
    std::uint64_t bits = ~std::uint64_t{0};
    if (at == first / granules_of_word) bits &= ~std::uint64_t{0} << first % granules_of_word;
    if (at == last / granules_of_word) bits &= ~std::uint64_t{0} >> (granules_of_word - 1 - last % granules_of_word);
    visit(std::atomic_ref(ready[at]), bits);
  }
}

bool peer_memory::mapping::are_ready(pages which) const noexcept {
  bool all_are = true;
  for_words_of(which, [&](std::atomic_ref<std::uint64_t> word, std::uint64_t bits) {
    all_are = all_are && (word.load(std::memory_order_acquire) & bits) == bits;
  });
  return all_are;
}

void peer_memory::mapping::note_ready(pages which) const noexcept {
  for_words_of(which, [](std::atomic_ref<std::uint64_t> word, std::uint64_t bits) {
    word.fetch_or(bits, std::memory_order_release);
  });
}

void peer_memory::forget_writes(pages which) noexcept {
  const auto drop = [this](pages each) {
    if (::madvise(each.data(), each.size(), MADV_DONTNEED) != 0 &&
        ::madvise(each.data(), each.size(), drop_although_locked) != 0)
      broken_.store(true, std::memory_order_relaxed);
  };
  if (!find_private_pages(which, drop)) drop(which);
}

// False: the thread cannot be had.
template <class Work>
bool peer_memory::do_later(Work work) noexcept {
  try {
    const auto thread = control_thread::shared();
    auto& context = thread->context();
    asio::post(context, [thread, self = shared_from_this(), work] { work(*self); });
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// False: this process cannot have them.
bool peer_memory::accessible(const used_pages& wanted) noexcept {
  const mapping& where = mapped(wanted.how);
  const pages which = pages_of(wanted);
  const bool lent = wanted.how == given::lent;
  if (!where.are_ready(which)) {
    // Whole granules, which are what is noted; no other block has a part of them.
    const std::uint64_t first = wanted.first / shared_granule * shared_granule;
    const std::uint64_t last = (wanted.last + shared_granule - 1) / shared_granule * shared_granule;
    const pages all = where.all.subspan(first, last - first);
    if (::mprotect(all.data(), all.size(), PROT_READ | PROT_WRITE) != 0) return false;
    where.note_ready(all);
    // Looking up many pages at once is many times as fast as one after the other when they are used. A hint.
    const auto look_up = [all, lent] {
      ::madvise(all.data(), all.size(), lent ? populate_for_reading : populate_for_use);
    };
    const auto look_up_if_used = [look_up, wanted](peer_memory& self) {
      {
        const std::lock_guard lock(self.mutex_);
        const auto used = self.find(wanted.first);
        const bool same = used != self.used_.end() && used->last == wanted.last && used->how == wanted.how;
        if (!same || used->now != stage::in_use) return;  // its owner may have given its pages back
      }
      look_up();
    };
    // Beside the thread that reads: one meets the other.
    if (all.size() <= looked_at_once || !do_later(look_up_if_used)) look_up();
  }
  // Of private memory that can be written, and is locked (mlockall), the kernel makes copies. It refuses this hint for such memory.
  if (lent && ::madvise(which.data(), page_bytes(), page_is_cold) != 0) {
    forget_writes(which);
    return !broken_.load(std::memory_order_relaxed);
  }
  return true;
}

peer_memory::use peer_memory::begin_use(std::uint64_t offset, std::uint64_t bytes, given how) {
  const used_pages wanted = range_of(offset, bytes, how);
  {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto found = std::find_if(used_.begin(), used_.end(), [&](const used_pages& each) {
        return each.first < wanted.last && wanted.first < each.last;
      });
      if (found == used_.end()) break;
      if (found->now == stage::in_use) return {nullptr, refusal::overlaps};
      found->now == stage::being_looked_at ? forgotten_.wait(lock) : forget_writes_to(found, lock);
    }
    if (broken_.load(std::memory_order_relaxed)) return {nullptr, refusal::not_mapped};
    used_.push_back(wanted);
  }
  if (accessible(wanted)) return {mapped(how).all.data() + offset, refusal::none};
  const std::lock_guard lock(mutex_);
  used_.erase(find(wanted.first));
  return {nullptr, refusal::not_mapped};
}

void peer_memory::end_use(std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (is_forked_child()) return;  // its threads, and those that held locks, are the parent's
  const std::uint64_t first = range_of(offset, bytes, given::lent).first;
  {
    std::unique_lock lock(mutex_);
    const auto mine = find(first);
    if (mine->how == given::handed_over) {
      used_.erase(mine);
      return;
    }
    mine->now = stage::ended;
    if (mine->last - mine->first <= looked_at_once) return forget_writes_to(mine, lock);
  }
  (void)do_later([](peer_memory& self) {  // if not, before they are used again
    std::unique_lock lock(self.mutex_);
    const auto next = std::find_if(self.used_.begin(), self.used_.end(),
                                   [](const used_pages& each) { return each.now == stage::ended; });
    if (next != self.used_.end()) self.forget_writes_to(next, lock);
  });
}

void peer_memory::forget_writes_to(used_list::iterator each, std::unique_lock<std::mutex>& lock) noexcept {
  each->now = stage::being_looked_at;
  lock.unlock();
  forget_writes(pages_of(*each));
  lock.lock();
  used_.erase(each);
  forgotten_.notify_all();
}

}  // namespace ferry::inline v0::detail
