#include <ferry/tensor/shared_allocator.hpp>

#include <ferry/device/device.hpp>
#include <ferry/tensor/factories.hpp>

#include "../device/memory/handed_over_block.hpp"
#include "../device/memory/shared_arena.hpp"

namespace ferry::inline v0 {

storage shared_memory_allocator::allocate(std::size_t bytes) const {
  const shared_memory_scope here;
  return storage::allocate(bytes);
}

tensor shared_memory_allocator::empty(const dims& shape, dtype type) const {
  const shared_memory_scope here;
  return ferry::empty(shape, type);
}

tensor shared_memory_allocator::zeros(const dims& shape, dtype type) const {
  const shared_memory_scope here;
  return ferry::zeros(shape, type);
}

tensor shared_memory_allocator::copy(const tensor& from) const {
  const shared_memory_scope here;
  return from.device().is_cpu() ? from.clone() : from.to(device());
}

bool shared_memory_allocator::owns(const tensor& t) const noexcept {
  return t.defined() && t.storage().defined() && t.storage().in_shared_memory();
}

void shared_memory_allocator::trim() const noexcept {
  if (detail::shared_arena::in_use()) detail::shared_arena::of_process()->trim();
}

shared_memory_stats shared_memory_allocator::stats() const noexcept {
  const detail::shared_arena* const arena = detail::shared_arena::of_process();
  if (arena == nullptr) return {};
  const auto now = arena->now();
  return {now.blocks, now.used_bytes, now.cached_bytes, arena->bytes().size(),
          detail::handed_over_block::bytes_of_process()};
}

std::string_view shared_memory_allocator::obstacle() const noexcept { return detail::shared_arena::obstacle(); }

}  // namespace ferry::inline v0
