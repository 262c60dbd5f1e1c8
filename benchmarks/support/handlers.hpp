#pragma once

// The methods that the benchmarks call.

#include <cstdint>
#include <string>

#include <ferry/ferry.hpp>

namespace ferry_bench::remote {

int add(int a, int b);
std::string echo(const std::string& text);
std::int64_t numel(const ferry::tensor& t);
ferry::tensor sum(const ferry::tensor& a, const ferry::tensor& b);  ///< of two tensors with one f32 element
ferry::tensor give_back(ferry::tensor t);
ferry::tensor made(std::int64_t elements);         ///< not initialised
ferry::tensor made_shared(std::int64_t elements);  ///< the same, by the shared allocator
float look_through(const ferry::tensor& t);        ///< reads an f32 of each 64 bytes
void keep_three(const ferry::tensor& t);           ///< keeps the last three that it was given
ferry::tensor made_once(std::int64_t elements);    ///< the same one as the last time, if it has as many elements
void block_for(int milliseconds);
void note(int value);   ///< counts itself
std::uint64_t noted();  ///< how often note() ran in this process

/// An object to refer to.
class counter {
 public:
  counter() = default;
  explicit counter(int value) : value_(value) {}
  int bump(int more) { return value_ += more; }

 private:
  int value_ = 0;
};
int bump(int more);  ///< the same of a counter of the process
int itself(int value);
int look_at(const ferry::rref<counter>& ref);  ///< does not use it
ferry::rref<counter> new_counter(int value);   ///< of this worker

void switch_counting(bool on);  ///< of allocations
std::uint64_t counted_allocations();
void switch_pool(bool on);  ///< off: every large tensor gets new memory from the operating system

}  // namespace ferry_bench::remote
