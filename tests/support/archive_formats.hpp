#pragma once

// The archives of cereal that tests write to text and read from it. Test programs with JSON take json_code of tests/meson.build.

#include <sstream>
#include <string>

#include <cereal/archives/binary.hpp>
#include <cereal/archives/json.hpp>
#include <cereal/archives/portable_binary.hpp>
#include <cereal/archives/xml.hpp>

namespace ferry_test {

template <class Out, class In>
struct archive_format {
  using output = Out;
  using input = In;

  template <class T>
  static std::string write(const T& value) {
    std::ostringstream file;
    {
      Out archive(file);
      archive(cereal::make_nvp("value", value));
    }
    return file.str();
  }
  template <class T>
  static void read(const std::string& text, T& value) {
    std::istringstream file(text);
    In archive(file);
    archive(cereal::make_nvp("value", value));
  }
  template <class T>
  static T read(const std::string& text) {
    T value;
    read(text, value);
    return value;
  }
};
using binary = archive_format<cereal::BinaryOutputArchive, cereal::BinaryInputArchive>;
using portable = archive_format<cereal::PortableBinaryOutputArchive, cereal::PortableBinaryInputArchive>;
using json = archive_format<cereal::JSONOutputArchive, cereal::JSONInputArchive>;
using xml = archive_format<cereal::XMLOutputArchive, cereal::XMLInputArchive>;

}  // namespace ferry_test
