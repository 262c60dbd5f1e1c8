#include "shared_memory.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.hpp"

namespace fake_cuda {
namespace {

using ferry::detail::cuda_block_name;

// Behind the memory: for each granule the processes that have mapped a block that begins there.
constexpr std::size_t openers_bytes = arena_size / granule * sizeof(openers);

struct block_name {
  std::uint64_t magic = 0x66616b6563756461;
  std::uint64_t inode = 0;  // of the file
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::uint64_t inode_of(int file) {
  struct stat of {};
  return ::fstat(file, &of) == 0 ? of.st_ino : 0;
}

// As long as the process lives.
openers* map_openers(int file) {
  void* all = ::mmap(nullptr, openers_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file,
                     static_cast<off_t>(arena_size));
  if (all == MAP_FAILED) {
    std::perror("fake_cuda: no addresses for what processes have mapped");
    std::abort();
  }
  return static_cast<openers*>(all);
}

void replace(openers& in, std::uint32_t from, std::uint32_t to) {
  for (std::uint32_t& each : in) {
    std::uint32_t expected = from;
    if (std::atomic_ref(each).compare_exchange_strong(expected, to)) return;
  }
}

// Not of one that has been killed and whose parent has not noticed.
bool runs(std::uint32_t process) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "r");
  if (!file) return false;
  char state = 'X';
  const int read = std::fscanf(file, "%*d (%*[^)]) %c", &state);
  std::fclose(file);
  return read == 1 && state != 'Z' && state != 'X';
}

}  // namespace

openers* device_arenas::openers_of(int file, int device) {
  openers* const all = map_openers(file);
  all[arena_size / granule - 1][0] = static_cast<std::uint32_t>(device);  // no block begins there
  return all;
}

int make_shared_memory() {
  const int file = ::memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(arena_size + openers_bytes)) != 0) {
    std::fputs("fake_cuda: no memory for a device\n", stderr);
    std::abort();
  }
  return file;
}

int device_arenas::export_pool(CUmemPoolHandle_st& pool) {
  const std::lock_guard lock(mutex_);
  if (!pool.exportable || pool.imported) return -1;
  pool.exported = true;
  return ::fcntl(arena_of(pool).file, F_DUPFD_CLOEXEC, 0);
}

std::unique_ptr<CUmemPoolHandle_st> device_arenas::import_pool(int descriptor) {
  struct stat of {};
  if (::fstat(descriptor, &of) != 0 || of.st_size != static_cast<off_t>(arena_size + openers_bytes)) return nullptr;
  void* start = ::mmap(nullptr, arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (start == MAP_FAILED) return nullptr;
  if (key_ >= 0) ::pkey_mprotect(start, arena_size, PROT_READ | PROT_WRITE, key_);
  auto pool = std::make_unique<CUmemPoolHandle_st>();
  pool->imported = std::make_shared<CUmemPoolHandle_st::imported_memory>(
      static_cast<std::byte*>(start), ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0), map_openers(descriptor));
  pool->device = static_cast<int>(pool->imported->opened_by[arena_size / granule - 1][0]);
  return pool;
}

bool device_arenas::name_block(void* block, cuda_block_name& name) {
  const std::lock_guard lock(mutex_);
  for (const arena& each : arenas_) {
    const auto found = each.blocks.find(static_cast<std::byte*>(block));
    if (found == each.blocks.end() || !found->second.in_use || !found->second.pool->exported) continue;
    block_name made;
    made.inode = inode_of(each.file);
    made.offset = static_cast<std::uint64_t>(found->first - (each.start - promised_alignment));
    made.bytes = found->second.bytes;
    static_assert(sizeof made <= sizeof name);
    std::memcpy(name.data(), &made, sizeof made);
    return true;
  }
  return false;
}

void* device_arenas::map_block(const CUmemPoolHandle_st& pool, const cuda_block_name& name) {
  const std::lock_guard lock(mutex_);
  block_name wanted;
  std::memcpy(&wanted, name.data(), sizeof wanted);
  if (!pool.imported || wanted.magic != block_name().magic || wanted.inode != inode_of(pool.imported->file) ||
      wanted.offset >= arena_size || wanted.bytes > arena_size - wanted.offset) {
    return nullptr;
  }
  std::byte* const memory = pool.imported->start + wanted.offset;
  if (mapped_.contains(memory)) return nullptr;
  mapped_[memory] = {pool.imported, pool.device, &pool.reachable_from, static_cast<std::size_t>(wanted.bytes), false};
  replace(pool.imported->opened_by[wanted.offset / granule], 0, static_cast<std::uint32_t>(::getpid()));
  return memory;
}

bool device_arenas::begin_unmapping(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(static_cast<std::byte*>(memory));
  if (found == mapped_.end() || found->second.closing) return false;
  found->second.closing = true;
  return true;
}

void device_arenas::end_unmapping(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(static_cast<std::byte*>(memory));
  const CUmemPoolHandle_st::imported_memory& of = *found->second.of;
  replace(of.opened_by[static_cast<std::size_t>(found->first - of.start) / granule],
          static_cast<std::uint32_t>(::getpid()), 0);
  mapped_.erase(found);
}

bool device_arenas::range_of(const void* address, void*& start, std::size_t& bytes) {
  const std::lock_guard lock(mutex_);
  auto* const at = const_cast<std::byte*>(static_cast<const std::byte*>(address));
  const auto take = [&](std::byte* from, std::size_t size) {
    if (at >= from + size) return false;
    start = from;
    bytes = size;
    return true;
  };
  if (auto found = mapped_.upper_bound(at); found != mapped_.begin()) {
    --found;
    if (take(found->first, found->second.bytes)) return true;
  }
  for (const arena& each : arenas_) {
    auto found = each.blocks.upper_bound(at);
    if (found == each.blocks.begin()) continue;
    --found;
    if (found->second.in_use && take(found->first, found->second.bytes)) return true;
  }
  return false;
}

// CUDA leaves open what happens then, so the double ends the process that frees.
void device_arenas::check_not_open_elsewhere(const arena& of, const std::byte* memory) {
  if (of.file < 0) return;
  for (std::uint32_t& each :
       of.opened_by[static_cast<std::size_t>(memory - (of.start - promised_alignment)) / granule]) {
    const std::uint32_t process = std::atomic_ref(each).load();
    if (process == 0) continue;
    if (runs(process)) {
      std::fprintf(stderr, "fake_cuda: memory is freed that process %u has mapped\n", process);
      std::abort();
    }
    each = 0;
  }
}

}  // namespace fake_cuda

CUmemPoolHandle_st::imported_memory::~imported_memory() {
  ::munmap(start, fake_cuda::arena_size);
  ::munmap(opened_by, fake_cuda::arena_size / fake_cuda::granule * sizeof(fake_cuda::openers));
  ::close(file);
}
