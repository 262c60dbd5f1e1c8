#include "progress.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace ferry_bench {
namespace {

constexpr int bar_width = 30;
constexpr std::chrono::milliseconds between_bars(100);
constexpr std::chrono::seconds between_lines(10);

}  // namespace

progress::progress(std::string what, int whole)
    : what_(std::move(what)), whole_(std::max(whole, 1)), terminal_(::isatty(STDERR_FILENO) == 1) {}

progress::~progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void progress::at(int done) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < (terminal_ ? between_bars : std::chrono::milliseconds(between_lines))) return;
  last_ = now;
  done = std::clamp(done, 0, whole_);
  const auto seconds = std::chrono::duration<double>(now - begin_).count();
  if (terminal_) {
    const int full = bar_width * done / whole_;
    fmt::print(stderr, "\r{} [{}{}] {}/{}  {:.0f} s\x1b[K", what_, std::string(static_cast<std::size_t>(full), '#'),
               std::string(static_cast<std::size_t>(bar_width - full), '.'), done, whole_, seconds);
    drawn_ = true;
  } else {
    fmt::print(stderr, "{}: {} of {} after {:.0f} s\n", what_, done, whole_, seconds);
  }
  std::fflush(stderr);
}

}  // namespace ferry_bench
