#pragma once

// Methods that test_rpc and the program test_rpc_stranger know differently.

#include <cstdint>

#include <cereal/cereal.hpp>

namespace stranger {

struct versioned {
  int value = 0;
  template <class Archive>
  void serialize(Archive& archive, std::uint32_t) {
    archive(value);
  }
};

/// In both programs; 2 * value + 1.
inline int shared(int value) { return 2 * value + 1; }

/// In both programs, which have different versions of its parameter.
inline int take(const versioned& argument) { return argument.value; }

#ifndef FERRY_TEST_STRANGER
inline int only_here(int value) { return value; }
inline double of_one_name(double value) { return value; }
#else
inline double of_one_name(int value) { return value; }
inline int of_one_name(double value, int) { return static_cast<int>(value); }
#endif

}  // namespace stranger

#ifdef FERRY_TEST_STRANGER
CEREAL_CLASS_VERSION(stranger::versioned, 2)
#else
CEREAL_CLASS_VERSION(stranger::versioned, 1)
#endif
