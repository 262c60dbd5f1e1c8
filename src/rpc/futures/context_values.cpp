#include <ferry/rpc/context_values.hpp>

#include <algorithm>
#include <new>

#include "thread_values.hpp"

namespace ferry::inline v0 {
namespace detail {

constinit std::atomic<bool> values_in_use{false};
thread_local constinit thread_state current_thread{};
thread_state& find_current_thread() noexcept { return current_thread; }

const value_map* thread_value_map() noexcept { return current_thread.values; }

value_map* value_map::allocate(std::size_t entries) {
  if (!values_in_use.load(std::memory_order_relaxed)) values_in_use.store(true, std::memory_order_relaxed);
  return new (::operator new(sizeof(value_map) + entries * sizeof(value_entry))) value_map;
}

void value_map::append(const value_entry& entry) noexcept {
  entry.value->add_ref();
  new (const_cast<value_entry*>(end())) value_entry(entry);
  ++count_;
  if (entry.value->travels()) ++travelling_;
}

bool value_map::is_sole_owner() const noexcept {
  if (references_.load(std::memory_order_acquire) != 1) return false;
  return std::all_of(begin(), end(), [](const value_entry& each) { return each.value->is_last_reference(); });
}

void value_map::destroy() const noexcept {
  for (const value_entry& each : *this) each.value->release();
  auto* self = const_cast<value_map*>(this);
  self->~value_map();
  ::operator delete(self);
}

ref_ptr<const value_map> value_map::with(const value_map* from, const context_key_base& key,
                                         ref_ptr<const held_value> value) {
  const std::size_t before = from ? from->count() : 0;
  const bool replaces = from && from->find(key);
  value_map* made = allocate(replaces ? before : before + 1);
  const value_entry own{&key, value.get()};
  // All values of a key are of one type, so that they travel all or not at all, and the order is kept.
  if (replaces) {
    for (const value_entry& each : *from) made->append(each.key == &key ? own : each);
  } else {
    const value_entry* each = from ? from->begin() : nullptr;
    const value_entry* const others = from ? from->end_of_travelling() : nullptr;
    const value_entry* const last = from ? from->end() : nullptr;
    while (each != others) made->append(*each++);
    if (value->travels()) made->append(own);
    while (each != last) made->append(*each++);
    if (!value->travels()) made->append(own);
  }
  return ref_ptr<const value_map>::adopt(made);
}

ref_ptr<const value_map> value_map::without(const value_map* from, const context_key_base& key) {
  if (!from || !from->find(key)) return ref_ptr<const value_map>::share(from);
  if (from->count() == 1) return {};
  value_map* made = allocate(from->count() - 1);
  for (const value_entry& each : *from) {
    if (each.key != &key) made->append(each);
  }
  return ref_ptr<const value_map>::adopt(made);
}

}  // namespace detail

std::string context_values::describe() const {
  std::string text;
  if (!map_) return text;
  for (const detail::value_entry& each : *map_) {
    if (!text.empty()) text += ", ";
    text += each.key->name;
  }
  return text;
}

context_values current_values() noexcept { return detail::thread_values::get(detail::current_thread); }

context_values_scope::context_values_scope(context_values values) noexcept
    : own_(std::move(values)), former_(detail::thread_values::exchange(detail::current_thread, own_)) {}

context_values_scope::~context_values_scope() {
  // Otherwise the scope was held where it must not be: across the suspension of a coroutine of another library.
  detail::thread_state& thread = detail::current_thread;
  if (detail::thread_values::in_force(thread, own_)) detail::thread_values::exchange(thread, std::move(former_));
}

}  // namespace ferry::inline v0
