#pragma once

// Reading the digits: a line each of 64 numbers from 0 to 16, how dark the 8 x 8 points are, and the digit.

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/tensor.hpp>

struct digit_set {
  ferry::tensor points;  // [count, 64], f32 from 0 to 1
  ferry::tensor digits;  // [count], i64
};

// Adds the 65 numbers of a line. Returns false for a line that is not made so.
inline bool take_line(const std::string& line, std::vector<float>& points, std::vector<std::int64_t>& digits) {
  const char* at = line.data();
  const char* const end = at + line.size() - (line.ends_with('\r') ? 1 : 0);
  for (int column = 0; column != 65; ++column) {
    int number = 0;
    const auto [after, problem] = std::from_chars(at, end, number);
    const bool last = column == 64;
    if (problem != std::errc() || number < 0 || number > (last ? 9 : 16)) return false;
    if (last ? after != end : after == end || *after != ',') return false;
    if (last) digits.push_back(number);
    if (!last) points.push_back(static_cast<float>(number) / 16);
    at = last ? after : after + 1;
  }
  return true;
}

// Every fifth digit is held out: nothing learns from it. Throws std::runtime_error.
struct digits_file {
  digit_set training;
  digit_set held_out;

  explicit digits_file(const std::string& path) {
    errno = 0;
    std::ifstream file(path);
    const auto fail = [&](const std::string& why) { throw std::runtime_error("'" + path + "': " + why); };
    if (!file) fail("cannot open it: " + std::generic_category().message(errno));
    std::vector<float> points[2];
    std::vector<std::int64_t> digits[2];
    std::size_t number = 0;
    for (std::string line; std::getline(file, line); ++number) {
      const int set = number % 5 == 4 ? 1 : 0;
      if (take_line(line, points[set], digits[set])) continue;
      fail("line " + std::to_string(number + 1) +
           " is not 64 numbers from 0 to 16 and a digit, with commas between them");
    }
    if (file.bad() || number < 5) fail(file.bad() ? "cannot read it" : "it has less than 5 digits");
    training = as_tensors(points[0], digits[0]);
    held_out = as_tensors(points[1], digits[1]);
  }

 private:
  static digit_set as_tensors(const std::vector<float>& points, const std::vector<std::int64_t>& digits) {
    const auto count = static_cast<std::int64_t>(digits.size());
    return {ferry::from_vector(points, {count, 64}), ferry::from_vector(digits)};
  }
};
