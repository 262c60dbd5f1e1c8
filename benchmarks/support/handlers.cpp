#include "handlers.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include <ferry/device/cpu_pool.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/shared_allocator.hpp>

#include "allocations.hpp"

namespace ferry_bench::remote {
namespace {
std::atomic<std::uint64_t> notes{0};
}

int add(int a, int b) { return a + b; }
std::string echo(const std::string& text) { return text; }
std::int64_t numel(const ferry::tensor& t) { return t.numel(); }

ferry::tensor sum(const ferry::tensor& a, const ferry::tensor& b) {
  ferry::tensor result = ferry::empty_like(a);
  *result.data<float>() = *a.data<float>() + *b.data<float>();
  return result;
}

ferry::tensor give_back(ferry::tensor t) { return t; }
ferry::tensor made(std::int64_t elements) { return ferry::empty({elements}); }
ferry::tensor made_shared(std::int64_t elements) { return ferry::shared_allocator().empty({elements}); }
float look_through(const ferry::tensor& t) {
  constexpr std::int64_t elements_of_line = 64 / sizeof(float);
  const float* const first = t.data<float>();
  float sum = 0;
  for (std::int64_t i = 0; i < t.numel(); i += elements_of_line) sum += first[i];
  return sum;
}
void keep_three(const ferry::tensor& t) {
  static std::array<ferry::tensor, 3> kept;
  static std::size_t next = 0;
  kept[next++ % kept.size()] = t;
}
ferry::tensor made_once(std::int64_t elements) {
  static ferry::tensor kept;
  if (!kept.defined() || kept.numel() != elements) kept = ferry::zeros({elements});
  return kept;
}

int bump(int more) {
  static counter one;
  return one.bump(more);
}
int itself(int value) { return value; }
int look_at(const ferry::rref<counter>& ref) { return ref ? 1 : 0; }
ferry::rref<counter> new_counter(int value) { return ferry::rref(counter(value)); }

void block_for(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
void note(int value) { notes.fetch_add(value != 0 ? 1 : 0, std::memory_order_relaxed); }
std::uint64_t noted() { return notes.load(std::memory_order_relaxed); }

void switch_counting(bool on) { count_allocations(on); }
std::uint64_t counted_allocations() { return allocations(); }

void switch_pool(bool on) {
  static const std::size_t usual = ferry::get_cpu_pool_stats().limit_bytes;
  ferry::cpu_pool_set_limit(on ? usual : 0);
}

}  // namespace ferry_bench::remote
