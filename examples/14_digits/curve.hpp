#pragma once

// A curve as a picture: SVG, for browsers and editors.

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

// The loss after each epoch, as a line over the epochs. Throws std::runtime_error if the file cannot be written.
inline void draw_curve(const std::string& path, const std::vector<double>& losses) {
  constexpr double left = 60, right = 460, top = 20, bottom = 240;
  const double most = *std::max_element(losses.begin(), losses.end());
  // A step of the axis that is 1, 2 or 5 times a power of ten, with at most 5 steps.
  double step = std::pow(10, std::floor(std::log10(std::max(most, 1e-9) / 5)));
  for (const double factor : {2., 2.5, 2.}) {
    if (most / step > 5) step *= factor;
  }
  const double whole = step * std::max(1., std::ceil(most / step));
  const auto x = [&](std::size_t epoch) {
    const double share = losses.size() < 2 ? 0.5 : static_cast<double>(epoch) / static_cast<double>(losses.size() - 1);
    return std::to_string(left + (right - left) * share);
  };
  const auto y = [&](double loss) { return std::to_string(bottom - (bottom - top) * loss / whole); };

  std::string grid, points;
  for (int i = 0; i * step <= whole * 1.001; ++i) {
    char label[32];
    std::snprintf(label, sizeof label, "%g", i * step);
    grid += "<path d='M60 " + y(i * step) + "H460' stroke='#ddd'/><text x='52' y='" + y(i * step) +
            "' dy='4' text-anchor='end'>" + label + "</text>\n";
  }
  const std::size_t every = losses.size() / 10 + 1;
  for (std::size_t epoch = 0; epoch < losses.size(); ++epoch) {
    points += x(epoch) + "," + y(losses[epoch]) + " ";
    if (epoch % every != 0) continue;
    grid += "<text x='" + x(epoch) + "' y='258' text-anchor='middle'>" + std::to_string(epoch + 1) + "</text>\n";
  }

  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  file << "<svg xmlns='http://www.w3.org/2000/svg' width='480' height='290' font-family='sans-serif' font-size='12'>\n"
       << "<rect width='480' height='290' fill='white'/>\n"
       << grid << "<path d='M60 20V240H460' fill='none' stroke='#444'/>\n"
       << "<polyline points='" << points << "' fill='none' stroke='#0b62a4' stroke-width='2'/>\n"
       << "<text x='260' y='280' text-anchor='middle'>epoch</text>\n"
       << "<text x='16' y='130' text-anchor='middle' transform='rotate(-90 16 130)'>loss (cross entropy)</text>\n"
       << "</svg>\n";
  file.close();
  if (!file) throw std::runtime_error("cannot write '" + path + "': " + std::generic_category().message(errno));
}
