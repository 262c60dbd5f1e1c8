#pragma once

// all_reduce of Gloo over TCP, for comparison.

#include <cstddef>
#include <memory>
#include <string>

namespace ferry_bench {

class gloo_group {
 public:
  /// All members pass the same empty directory.
  gloo_group(const std::string& directory, int rank, int size);
  ~gloo_group();
  gloo_group(const gloo_group&) = delete;
  gloo_group& operator=(const gloo_group&) = delete;
  void all_reduce(float* elements, std::size_t count);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace ferry_bench
