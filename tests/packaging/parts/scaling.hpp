#pragma once

#include <string>

#include <ferry/ferry.hpp>

namespace scaling {

/// Served wherever this library is; only the library has the function.
constexpr auto triple = ferry::stub<"scaling.triple", double(double)>;

/// Asks a worker for something that only the program serves, as the current worker of the process.
double ask_program(const std::string& worker, double value);

/// In the library and in the program.
inline int both(int value) { return value + 100; }
int call_both(const std::string& worker, int value);

}  // namespace scaling
