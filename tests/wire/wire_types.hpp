#pragma once

// Types of users, serialised in every way that cereal has.

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cereal/types/memory.hpp>
#include <cereal/types/polymorphic.hpp>

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

struct link {
  std::unique_ptr<link> next;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(next);
  }
};

struct node {  // may form cycles
  int value = 0;
  std::shared_ptr<node> other;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(value, other);
  }
};

struct constructed {
  explicit constructed(int v) : value(v) {}
  int value;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(value);
  }
  template <class Archive>
  static void load_and_construct(Archive& ar, cereal::construct<constructed>& construct) {
    int v = 0;
    ar(v);
    construct(v);
  }
};

struct constructed_from_pointer {
  explicit constructed_from_pointer(std::shared_ptr<constructed_from_pointer> p) : other(std::move(p)) {}
  std::shared_ptr<constructed_from_pointer> other;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(other);
  }
  template <class Archive>
  static void load_and_construct(Archive& ar, cereal::construct<constructed_from_pointer>& construct) {
    std::shared_ptr<constructed_from_pointer> p;
    ar(p);
    construct(std::move(p));
  }
};

struct shape {
  virtual ~shape() = default;
  [[nodiscard]] virtual double area() const = 0;
};
struct circle : shape {
  circle() = default;
  explicit circle(double r) : radius(r) {}
  double radius = 0;
  [[nodiscard]] double area() const override { return 3 * radius * radius; }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(radius);
  }
};
struct square : shape {
  square() = default;
  explicit square(double s) : side(s) {}
  double side = 0;
  [[nodiscard]] double area() const override { return side * side; }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(side);
  }
};
struct unregistered : shape {
  [[nodiscard]] double area() const override { return 0; }
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
CEREAL_REGISTER_TYPE(sample::circle)
CEREAL_REGISTER_TYPE(sample::square)
CEREAL_REGISTER_POLYMORPHIC_RELATION(sample::shape, sample::circle)
CEREAL_REGISTER_POLYMORPHIC_RELATION(sample::shape, sample::square)
