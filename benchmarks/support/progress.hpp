#pragma once

// How far something long is, on standard error.

#include <chrono>
#include <string>

namespace ferry_bench {

/// A bar that is redrawn where standard error is a terminal; elsewhere a line every ten seconds. The destructor takes the bar away.
class progress {
 public:
  progress(std::string what, int whole);
  ~progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  void at(int done);

 private:
  std::string what_;
  int whole_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = begin_;
};

}  // namespace ferry_bench
