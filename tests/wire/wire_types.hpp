#pragma once

// User types, serialised in every way that cereal offers. Those behind pointers are in pointer_types.hpp.

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ferry/wire/serialize.hpp>

namespace sample {

enum class colour : std::uint8_t { red, green };

struct by_member {
  int number = 0;
  std::string text;
  std::vector<double> list;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(cereal::make_nvp("number", number), text, list);
  }
  bool operator==(const by_member&) const = default;
};

struct by_free_function {
  int number = 0;
  std::vector<std::string> list;
  bool operator==(const by_free_function&) const = default;
};
template <class Archive>
void serialize(Archive& ar, by_free_function& value) {
  ar(value.number, value.list);
}

struct by_save_and_load {
  int value = 0;
  template <class Archive>
  void save(Archive& ar) const {
    ar(std::to_string(value));
  }
  template <class Archive>
  void load(Archive& ar) {
    std::string text;
    ar(text);
    value = std::stoi(text);
  }
  bool operator==(const by_save_and_load&) const = default;
};

struct minimal {
  std::string value;
  template <class Archive>
  std::string save_minimal(const Archive&) const {
    return value;
  }
  template <class Archive>
  void load_minimal(const Archive&, const std::string& from) {
    value = from;
  }
  bool operator==(const minimal&) const = default;
};

struct versioned {
  int a = 0;
  int b = 0;
  template <class Archive>
  void serialize(Archive& ar, const std::uint32_t version) {
    ar(a);
    if (version >= 2) ar(b);
  }
  bool operator==(const versioned&) const = default;
};

struct nothing {
  bool operator==(const nothing&) const = default;
};

struct mute {  // no serialiser
  int value = 0;
};

struct user_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct throws_on_save {
  template <class Archive>
  void save(Archive&) const {
    throw user_error("save");
  }
  template <class Archive>
  void load(Archive&) {}
};
struct throws_on_load {
  template <class Archive>
  void save(Archive&) const {}
  template <class Archive>
  void load(Archive&) {
    throw user_error("load");
  }
};

struct with_tensors {
  std::string name;
  ferry::tensor weight;
  std::vector<ferry::tensor> more;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, weight, more);
  }
};

/// Serialises itself with the public serialiser: a payload and tensor table inside another.
struct boxed {
  int tag = 0;
  with_tensors inner;
  template <class Archive>
  void save(Archive& ar) const {
    ar(tag, ferry::serialize(inner, tag));
  }
  template <class Archive>
  void load(Archive& ar) {
    ferry::serialized box;
    ar(tag, box);
    int again = 0;
    std::tie(inner, again) = ferry::deserialize<with_tensors, int>(box);
    if (again != tag) throw user_error("tags differ");
  }
};

}  // namespace sample

CEREAL_CLASS_VERSION(sample::versioned, 3)
