#pragma once

#include <ostream>  // for doctest's output of an errc

#include <ferry/base/error.hpp>

/// The kind of the ferry::error that `f` throws; errc{} if it throws none. Other exceptions pass through.
template <class F>
ferry::errc kind_of(F&& f) {
  try {
    f();
  } catch (const ferry::error& e) {
    return e.kind();
  }
  return {};
}
