#pragma once

// User types that are sent behind pointers.

#include <memory>
#include <utility>

#include <cereal/types/memory.hpp>
#include <cereal/types/polymorphic.hpp>

#include <ferry/wire/serialize.hpp>

namespace sample {

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

}  // namespace sample

CEREAL_REGISTER_TYPE(sample::circle)
CEREAL_REGISTER_TYPE(sample::square)
CEREAL_REGISTER_POLYMORPHIC_RELATION(sample::shape, sample::circle)
CEREAL_REGISTER_POLYMORPHIC_RELATION(sample::shape, sample::square)
