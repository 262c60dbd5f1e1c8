#pragma once

#include <cstddef>
#include <string>

#include <ferry/wire/serialize.hpp>

inline std::string hex(const ferry::serialized& from) {
  std::string text;
  for (std::byte b : from.bytes) {
    text += "0123456789abcdef"[static_cast<unsigned>(b) >> 4U];
    text += "0123456789abcdef"[static_cast<unsigned>(b) & 15U];
  }
  return text;
}
