#include <ferry/tensor/storage.hpp>

#include <new>
#include <utility>

#include <ferry/device/cpu_pool.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/shared_allocator.hpp>

#include "../device/memory/foreign_memory.hpp"
#include "../device/memory/shared_arena.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Small CPU blocks share one pool block with their storage_body: one allocation instead of two.
constexpr std::size_t head = 64;
constexpr std::size_t largest_joined = 4096;
static_assert(sizeof(detail::storage_body) <= head && head % cpu_alignment == 0);

// Whether memory there is used by streams, so that its last user may be a device.
bool queues_work(ferry::device where) { return !where.is_cpu() && !operations_of(where.kind).immediate; }

constexpr bool joined(ferry::device where, std::size_t bytes) {
  return where.is_cpu() && bytes != 0 && bytes <= largest_joined;
}

constinit thread_local bool shares = false;

// Null: ordinary memory is to be taken.
void* shared_allocate(std::size_t bytes) noexcept {
  if (!shares || bytes < least_shared) return nullptr;
  shared_arena* const arena = shared_arena::of_process();
  void* const memory = arena ? arena->allocate(bytes) : nullptr;
  if (memory) shared_arena::note_tensor();
  return memory;
}

}  // namespace
}  // namespace detail

shared_memory_scope::shared_memory_scope() noexcept : outer_(std::exchange(detail::shares, true)) {}
shared_memory_scope::~shared_memory_scope() { detail::shares = outer_; }
detail::ordinary_memory_scope::ordinary_memory_scope() noexcept : outer_(std::exchange(shares, false)) {}
detail::ordinary_memory_scope::~ordinary_memory_scope() { shares = outer_; }

storage storage::allocate(std::size_t bytes, ferry::device where) {
  check_device(where);
  storage result;
  if (detail::joined(where, bytes)) {
    auto* memory = static_cast<std::byte*>(cpu_allocate(detail::head + bytes));
    result.body_ = new (memory) detail::storage_body;
    result.body_->data = memory + detail::head;
    result.body_->allocated = true;
  } else if (where.is_cpu()) {
    result.body_ = new (cpu_allocate(detail::head)) detail::storage_body;
    result.body_->data = detail::shared_allocate(bytes);
    result.body_->shared = result.body_->data != nullptr;
    if (!result.body_->shared) result.body_->data = cpu_allocate(bytes);
    result.body_->allocated = true;
  } else {
    auto block = std::make_shared<device_memory>(current_stream(where), bytes);
    result.body_ = new (cpu_allocate(detail::head)) detail::storage_body;
    result.body_->data = block->data();
    result.body_->owner = std::move(block);
    result.body_->in_stream_order = true;
  }
  result.body_->where = where;
  result.body_->size = bytes;
  return result;
}

storage storage::foreign(void* data, std::size_t bytes, ferry::device where, std::shared_ptr<const void> owner) {
  storage result;
  result.body_ = new (cpu_allocate(detail::head)) detail::storage_body;
  result.body_->where = where;
  result.body_->data = data;
  result.body_->size = bytes;
  if (owner && detail::queues_work(where)) owner = std::make_shared<detail::foreign_memory>(std::move(owner));
  result.body_->owner = std::move(owner);
  return result;
}

void storage::record_use(const stream& by) const {
  if (body_->in_stream_order) {
    const_cast<device_memory*>(static_cast<const device_memory*>(body_->owner.get()))->record_use(by);
  } else if (body_->owner && detail::queues_work(body_->where)) {
    const_cast<detail::foreign_memory*>(static_cast<const detail::foreign_memory*>(body_->owner.get()))->record_use(by);
  }
}

void storage::destroy(detail::storage_body* body) noexcept {
  const std::size_t bytes = body->size;
  const bool in_head = body->allocated && detail::joined(body->where, bytes);
  if (body->shared) {
    detail::shared_arena::of_process()->deallocate(body->data, bytes);
  } else if (body->allocated && !in_head) {
    cpu_deallocate(body->data, bytes);
  }
  body->~storage_body();
  cpu_deallocate(body, in_head ? detail::head + bytes : detail::head);
}

}  // namespace ferry::inline v0
