#include "cuda_ipc.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/cuda.hpp>

#include "../memory/pinned_memory.hpp"
#include "cuda_memory.hpp"
#include "cuda_scope.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t nonce_bytes = sizeof(pool_description::nonce);

// Never destroyed: memory is exported as long as the process lives.
struct exports {
  std::mutex mutex;
  std::map<int, exported_pool> by_device;
  std::set<int> refused;
};
exports& all_exports() {
  static auto* const all = new exports;
  return *all;
}

// A pool that is being let go of stays here until that has been done: it is not imported again meanwhile.
struct imports {
  std::mutex mutex;
  std::condition_variable gone;
  std::map<std::array<std::byte, nonce_bytes>, std::weak_ptr<imported_pool>> by_nonce;
};
imports& all_imports() {
  static auto* const all = new imports;
  return *all;
}

// For copies of anchors and for unmapping: no work of handlers, which may wait for anything, is ever queued there.
stream own_stream(device where) {
  static auto* const mutex = new std::mutex;
  static auto* const made = new std::map<int, stream>;
  const std::lock_guard lock(*mutex);
  const auto known = made->find(where.index);
  if (known != made->end()) return known->second;
  return made->emplace(where.index, stream::from_native<cuda>(device_traits<cuda>::create_stream(where), where.index))
      .first->second;
}

std::array<std::byte, nonce_bytes> random_nonce() {
  std::array<std::byte, nonce_bytes> nonce;
  const std::uint64_t halves[2]{incarnation_id::random().value, incarnation_id::random().value};
  static_assert(sizeof halves == sizeof nonce);
  std::memcpy(nonce.data(), halves, sizeof halves);
  return nonce;
}

// Makes no context.
cuda_uuid uuid_of(device where) {
  const cuda_runtime& runtime = need_cuda_runtime();
  const relaxed_captures relaxed(&runtime);
  cuda_uuid uuid{};
  check_cuda(runtime.device_uuid(&uuid, where.index), where, "ask for the identity of the GPU");
  return uuid;
}

exported_pool export_pool(device where, CUmemPoolHandle_st* pool) {
  exported_pool made;
  made.description.device = where.index;
  made.description.gpu = uuid_of(where);
  made.description.nonce = random_nonce();
  const stream on = own_stream(where);
  pinned_block staged(where, nonce_bytes);
  std::memcpy(staged.data(), made.description.nonce.data(), nonce_bytes);
  void* const anchor = cuda_allocate(where, least_large_block, on.native<cuda>());  // for good
  staged.begin_use();
  device_traits<cuda>::copy(where, anchor, {}, staged.data(), nonce_bytes, where, on.native<cuda>());
  staged.release_after(on);
  on.synchronize();
  const cuda_scope scope(where);
  int descriptor = -1;
  check_cuda(scope->mem_pool_export(&descriptor, pool), where, "export the memory pool");
  made.descriptor.reset(descriptor);
  check_cuda(scope->mem_pool_export_pointer(&made.description.anchor, anchor), where,
             "name a block of the exported pool");
  return made;
}

// The number that this process has for the GPU; none if it does not see it.
std::optional<device> find_gpu(const cuda_uuid& gpu) {
  for (int index = 0; index != device_traits<cuda>::count(); ++index) {
    const device each{device_kind::cuda, index};
    if (uuid_of(each) == gpu) return each;
  }
  return std::nullopt;
}

}  // namespace

bool has_exportable_cuda_pools() {
  const auto used = cuda_devices_in_use();
  return std::any_of(used.begin(), used.end(), [](device each) { return exportable_cuda_pool(each) != nullptr; });
}

std::vector<const exported_pool*> exported_cuda_pools() {
  exports& all = all_exports();
  const std::lock_guard lock(all.mutex);
  std::vector<const exported_pool*> found;
  for (const device each : cuda_devices_in_use()) {
    CUmemPoolHandle_st* const pool = exportable_cuda_pool(each);
    if (!pool || all.refused.contains(each.index)) continue;
    auto known = all.by_device.find(each.index);
    if (known == all.by_device.end()) {
      try {
        known = all.by_device.emplace(each.index, export_pool(each, pool)).first;
      } catch (const error& why) {
        all.refused.insert(each.index);
        log(log_level::info,
            fmt::format("memory of {} goes to other processes through the host: {}", to_string(each), why.message()));
        continue;
      }
    }
    found.push_back(&known->second);
  }
  return found;
}

std::optional<cuda_block_name> name_cuda_block(device where, void* block) noexcept {
  const cuda_scope scope(where, std::nothrow);
  if (!scope.runtime()) return std::nullopt;
  cuda_block_name name{};
  if (scope->mem_pool_export_pointer(&name, block) == cuda_error::success) return name;
  static_cast<void>(scope->get_last_error());
  return std::nullopt;
}

std::shared_ptr<imported_pool> imported_pool::open(const pool_description& description, const unique_fd& descriptor) {
  {
    exports& own = all_exports();
    const std::lock_guard lock(own.mutex);
    for (const auto& [index, each] : own.by_device) {
      if (each.description.nonce == description.nonce)
        throw_error(errc::bad_device, "the other worker is in the same process");
    }
  }
  imports& all = all_imports();
  std::unique_lock lock(all.mutex);
  std::shared_ptr<imported_pool> pool;
  all.gone.wait(lock, [&] {
    const auto known = all.by_nonce.find(description.nonce);
    return known == all.by_nonce.end() || (pool = known->second.lock());
  });
  if (pool) return pool;
  const auto where = find_gpu(description.gpu);
  if (!where) {
    throw_error(errc::bad_device,
                fmt::format("the peer's cuda:{} is no GPU that this process sees", description.device));
  }
  pool = {new imported_pool(*where, description, descriptor), [nonce = description.nonce](imported_pool* over) {
            delete over;
            imports& known = all_imports();
            const std::lock_guard changing(known.mutex);
            known.by_nonce.erase(nonce);
            known.gone.notify_all();
          }};
  all.by_nonce[description.nonce] = pool;
  return pool;
}

imported_pool::imported_pool(device where, const pool_description& description, const unique_fd& descriptor)
    : where_(where) {
  const auto used = cuda_devices_in_use();
  const auto first = std::find_if(used.begin(), used.end(), [&](device each) {
    return each == where_ || device_traits<cuda>::peer_access(each, where_);
  });
  if (first == used.end()) {
    throw_error(errc::bad_device,
                fmt::format("no device that this process uses reads memory of {}", to_string(where_)));
  }
  reader_ = std::find(used.begin(), used.end(), where_) != used.end() ? where_ : *first;
  const cuda_scope scope(reader_);
  check_cuda(scope->mem_pool_import(&pool_, descriptor.get()), reader_, "import a memory pool of another process");
  try {
    admit_readers();
    prove(description);
  } catch (...) {
    let_go();
    throw;
  }
}

imported_pool::~imported_pool() { let_go(); }

void imported_pool::let_go() noexcept {
  const cuda_scope scope(reader_, std::nothrow);
  if (!scope.runtime()) return;
  try {
    if (anchor_) {
      const stream on = own_stream(reader_);
      device_traits<cuda>::deallocate(reader_, anchor_, 0, on.native<cuda>());
      on.synchronize();
    }
  } catch (const error&) {  // the device has failed, and its memory is gone
  }
  if (const cuda_status status = scope->mem_pool_destroy(pool_); status != cuda_error::success) {
    static_cast<void>(scope->get_last_error());
    note_cuda_failure(status, reader_, "let go of another process's memory pool");
  }
}

void imported_pool::admit_readers() {
  const cuda_scope scope(reader_);
  check_cuda(scope->mem_pool_set_access(pool_, reader_.index), reader_,
             "get access to a memory pool of another process");
  readers_ = bit(reader_);
  for (const device other : cuda_devices_in_use()) {
    if (other == reader_ || (other != where_ && !device_traits<cuda>::peer_access(other, where_))) continue;
    if (scope->mem_pool_set_access(pool_, other.index) == cuda_error::success) {
      readers_ |= bit(other);
    } else {
      static_cast<void>(scope->get_last_error());
    }
  }
}

// Tries all that map() and unmap() do, and keeps the anchor mapped.
void imported_pool::prove(const pool_description& description) {
  read_anchor(description);
  const stream on = own_stream(reader_);
  {
    const cuda_scope scope(reader_);
    void* begin = nullptr;
    std::size_t size = 0;
    check_cuda(scope->memory_range(&begin, &size, anchor_), reader_, "ask for the size of another process's memory");
    check_cuda(scope->free_async(std::exchange(anchor_, nullptr), on.native<cuda>()), reader_,
               "unmap memory of another process");
  }
  on.synchronize();
  read_anchor(description);
}

void imported_pool::read_anchor(const pool_description& description) {
  anchor_ = map_memory(description.anchor);
  const stream on = own_stream(reader_);
  pinned_block found(reader_, nonce_bytes);
  found.begin_use();
  device_traits<cuda>::copy({}, found.data(), reader_, anchor_, nonce_bytes, reader_, on.native<cuda>());
  found.release_after(on);
  on.synchronize();
  if (std::memcmp(found.data(), description.nonce.data(), nonce_bytes) != 0)
    throw_error(errc::device_failure, "a block of another process's memory pool does not contain what it should");
}

std::byte* imported_pool::map_memory(const cuda_block_name& name) {
  const cuda_scope scope(reader_);
  void* memory = nullptr;
  check_cuda(scope->mem_pool_import_pointer(&memory, pool_, &name), reader_, "map memory of another process");
  return static_cast<std::byte*>(memory);
}

const std::byte* imported_pool::map(const cuda_block_name& block, std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto each = mappings_.begin(); each != mappings_.end();) {
    if (!each->closing || (each->name != block && !each->closing->done())) {
      ++each;
      continue;
    }
    // The block is mapped anew only where it has been unmapped, which waits for nothing else.
    if (each->name == block) each->closing->synchronize();
    each = mappings_.erase(each);
  }
  auto found =
      std::find_if(mappings_.begin(), mappings_.end(), [&](const mapping& each) { return each.name == block; });
  if (found == mappings_.end()) found = mappings_.insert(found, {block, map_memory(block), 0, std::nullopt});
  if (found->lost) throw_error(errc::device_failure, "memory of another process could not be unmapped before");
  ++found->users;
  void* begin = nullptr;
  std::size_t size = 0;
  const cuda_scope scope(reader_);
  const cuda_status status = scope->memory_range(&begin, &size, found->memory);
  const std::uint64_t before = static_cast<std::uint64_t>(found->memory - static_cast<std::byte*>(begin));
  if (status == cuda_error::success && before <= size && offset <= size - before && bytes <= size - before - offset)
    return found->memory + offset;
  if (--found->users == 0) close(*found).synchronize();  // the caller gives the block back at once
  check_cuda(status, reader_, "ask for the size of another process's memory");
  throw_error(errc::malformed,
              fmt::format("{} bytes from {} on of another process's memory, which has {}", bytes, offset, size));
}

std::optional<stream> imported_pool::unmap(const cuda_block_name& block, const std::optional<event>& read) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(mappings_.begin(), mappings_.end(),
                                  [&](const mapping& each) { return each.name == block && !each.closing; });
  if (found == mappings_.end()) return std::nullopt;
  --found->users;
  if (read) {
    found->lost = true;
    own_stream(reader_).wait(*read);
    found->lost = false;
  }
  if (found->users != 0) return std::nullopt;
  return close(*found);
}

// With mutex_ held.
stream imported_pool::close(mapping& one) {
  one.lost = true;
  const stream on = own_stream(reader_);
  const cuda_scope scope(reader_);
  check_cuda(scope->free_async(one.memory, on.native<cuda>()), reader_, "unmap memory of another process");
  one.closing = on.record();
  one.lost = false;
  return on;
}

}  // namespace ferry::inline v0::detail
