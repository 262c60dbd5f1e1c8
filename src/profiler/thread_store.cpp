#include "thread_store.hpp"

#include <memory>
#include <new>
#include <utility>

#include "recording.hpp"

namespace ferry::inline v0::detail {
namespace {

// Ends with the thread.
struct owner_of_store {
  std::unique_ptr<thread_store> own = std::make_unique<thread_store>();
  owner_of_store() { profiled_thread_here().store = own.get(); }
  owner_of_store(const owner_of_store&) = delete;
  owner_of_store& operator=(const owner_of_store&) = delete;
  ~owner_of_store() {
    profiled_thread& here = profiled_thread_here();
    here.store = nullptr;  // before it is destroyed: what it has kept may free hooks
    here.has_ended = true;
  }
};

}  // namespace

thread_store* thread_store::make(profiled_thread& here) noexcept {
  try {
    static thread_local owner_of_store instance;
    return here.store;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

thread_store::~thread_store() {
  while (void* block = take_block()) ::operator delete(block);
}

context_values thread_store::make_request(std::uint64_t number, std::int32_t node, const profile_wishes& wishes) {
  ref_ptr<recording> made =
      recording::make({.wishes = wishes, .brief = true, .events_per_thread = most_events_of_request, .node = node});
  made->begin_numbered();
  return context_values().with(current_recording, recording_in_force(std::move(made), number, node));
}

context_values thread_store::begin_request(std::uint64_t number, std::int32_t node, const profile_wishes& wishes) {
  for (const context_values& each : requests_) {
    if (each.empty() || !each.is_sole_owner()) continue;
    const recording_in_force& known = *each.get(current_recording);
    if (!known.to->begin_again(node, wishes)) continue;
    known.use_again(number, node);
    return each;
  }
  if (++oldest_ == requests_.size()) oldest_ = 0;
  return requests_[oldest_] = make_request(number, node, wishes);
}

void* hooks_of_store::operator new(std::size_t bytes) {
  if (bytes > thread_store::bytes_of_block) return ::operator new(bytes);
  thread_store* const store = thread_store::of(profiled_thread_here());
  void* const block = store ? store->take_block() : nullptr;
  return block ? block : ::operator new(thread_store::bytes_of_block);
}

void hooks_of_store::operator delete(void* block, std::size_t bytes) noexcept {
  thread_store* const store = bytes > thread_store::bytes_of_block ? nullptr : profiled_thread_here().store;
  if (!store || !store->keep_block(block)) ::operator delete(block);
}

}  // namespace ferry::inline v0::detail
