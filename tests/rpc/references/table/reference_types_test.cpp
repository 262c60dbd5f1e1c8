// Types of referenced objects: types of all kinds, their bases, pointers to them, and unknown types.

#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/ops/ops.hpp>

#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "references.hpp"

namespace reference_types_test {

using ferry::any_rref;
using ferry::errc;
using ferry::rref;
using ferry::scalar;
using ferry::tensor;
using ferry_test::cluster;
using namespace references_test;
using namespace std::chrono_literals;

ferry_test::gate door;
std::string slow_text() {
  door.pass();
  return "text";
}

// Plain bases, at other addresses than the object's.
struct first {
  long number = 1;
  [[nodiscard]] long get_first() const { return number; }
};
struct second {
  std::string text = "second";
  void set_text(const std::string& value) { text = value; }
  [[nodiscard]] std::string get_second() const { return text; }
};
struct both : first, second {
  [[nodiscard]] std::string joined() const { return std::to_string(number) + text; }
};

struct shape {
  shape() = default;
  shape(const shape&) = delete;
  shape& operator=(const shape&) = delete;
  virtual ~shape() = default;
  [[nodiscard]] virtual double area() const = 0;
  [[nodiscard]] int corners() const { return corners_; }

 protected:
  int corners_ = 0;
};
struct square : shape {
  explicit square(double side) : side_(side) { corners_ = 4; }
  [[nodiscard]] double area() const override { return side_ * side_; }
  [[nodiscard]] double side() const { return side_; }

 private:
  double side_;
};
double area_of(const shape& s) { return s.area(); }

struct root {
  int depth = 7;
  [[nodiscard]] int get_depth() const { return depth; }
};
struct left : virtual root {
  int l = 1;
};
struct right : virtual root {
  int r = 2;
  [[nodiscard]] int get_right() const { return r; }
};
struct bottom : left, right {
  explicit bottom(int value) { depth = value; }
};

std::unique_ptr<shape> make_shape(double side) { return std::make_unique<square>(side); }
std::shared_ptr<counter> make_shared_counter(int value) { return std::make_shared<counter>(value); }
std::unique_ptr<shape> make_nothing() { return nullptr; }
void replace(std::unique_ptr<shape>& s, double side) { s = side == 0 ? nullptr : std::make_unique<square>(side); }
struct triangle : square {
  using square::square;
};
std::shared_ptr<triangle> make_triangle(double side) { return std::make_shared<triangle>(side); }

class move_only {
 public:
  explicit move_only(int value) : value_(std::make_unique<int>(value)) {}
  [[nodiscard]] int value() const { return *value_; }

 private:
  std::unique_ptr<int> value_;
};
move_only make_move_only(int value) { return move_only(value); }
// Constructed where it will stay: it could not be moved there.
pinned make_pinned(const std::string& text) { return pinned(text); }

std::atomic<int> runs{0};
void run(int add) { runs += add; }
void break_down() { throw std::domain_error("broken"); }
ferry::future<void> run_later() { return ferry::make_ready_future(); }

template <class T>
T sent_back(const T& value) {
  return value;
}

struct point {
  int x = 0;
  int y = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(x, y);
  }
  [[nodiscard]] int sum() const { return x + y; }
};
int sum_of(const point& p) { return p.x + p.y; }
void shift(point& p, int by) { p.x += by; }

TEST_CASE("[row 113] the type of an object is requested once, and later queries return the same future") {
  cluster group(2);
  const any_rref any = group[0].remote<add>("worker1", 1, 2);
  any.created().get();
  const std::uint64_t before = calls_to(group[0], 1);
  const ferry::future<std::string> type = any.type();
  CHECK(type.get() == ferry::type_name<int>());
  CHECK(calls_to(group[0], 1) == before + 1);
  const any_rref copy = any;
  CHECK(copy.type().get() == ferry::type_name<int>());
  CHECK(any.type().get() == ferry::type_name<int>());
  CHECK(calls_to(group[0], 1) == before + 1);
  const any_rref here = group[0].remote<slow_text>("worker0");
  door.open();
  CHECK(here.type().get() == ferry::type_name<std::string>());
  CHECK(any_rref(group[0].remote<ferry::make<pinned>>("worker1", "x")).type().get() == ferry::type_name<pinned>());
  door.reset();
}

TEST_CASE("a query for the type of an object ends with its own timeout or stop token, and the next one is made anew") {
  cluster group(2);
  {
    const any_rref t(group[0].remote<slow_text>("worker1"));
    door.await_arrivals(1);
    expect_error(errc::rpc_timeout, "type_of_object", [&] { (void)t.type({.timeout = 20ms}).get(); });
    std::stop_source source;
    const auto token = source.get_token();
    const auto asked = t.type({.stop = token});
    source.request_stop();
    expect_error(errc::call_cancelled, "type_of_object", [&] { (void)asked.get(); });
    const auto again = t.type();
    door.open();
    CHECK(again.get() == ferry::type_name<std::string>());
  }
  door.reset();
  await_no_references(group);
}

TEST_CASE("[row 114] the type of an object whose creation failed is the error of the function") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const any_rref broken = group[0].remote<refuse>(where, "no such thing");
    const auto type = broken.type();
    CHECK_THROWS_AS((void)type.get(), std::invalid_argument);
    CHECK_THROWS_AS((void)broken.type().get(), std::invalid_argument);
  }
}

TEST_CASE("[row 116] a query for the type of an object that is still being made waits for it") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    door.reset();
    const any_rref slow = group[0].remote<slow_text>(where);
    const auto type = slow.type();
    door.await_arrivals(1);
    CHECK_FALSE(type.ready());
    CHECK_FALSE(slow.type().ready());
    door.open();
    CHECK(type.get() == ferry::type_name<std::string>());
  }
  door.reset();
}

TEST_CASE("an any_rref can be used as its actual type; use as another type is an error that names both") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto c = group[0].remote<ferry::make<counter>>(where, 3);
    const any_rref any = c;
    CHECK(any.is_owner() == c.is_owner());
    CHECK(any.owner() == c.owner());
    CHECK(any.as<counter>() == c);
    CHECK(any.as<counter>().rpc_sync<&counter::add>(4) == 7);
    const rref<pinned> wrong = any.as<pinned>();
    const auto mismatch = [&](auto&& use) {
      expect_error(errc::reference_mismatch, ferry::type_name<counter>(), use);
      expect_error(errc::reference_mismatch, ferry::type_name<pinned>(), use);
    };
    mismatch([&] { (void)wrong.rpc_sync<&pinned::text>(); });
    mismatch([&] { (void)wrong.rpc_async<&pinned::text>().get(); });
    mismatch([&] { (void)wrong.remote<&pinned::text>().to_here(); });
    if (wrong.is_owner()) mismatch([&] { (void)wrong.local_value(); });
    expect_error(errc::reference_mismatch, ferry::type_name<int>(), [&] { (void)any.as<int>().to_here(); });
    // The reference still works.
    CHECK(c.rpc_sync<&counter::value>() == 7);
  }
}

TEST_CASE("references to bases: plain ones, several, abstract ones, virtual ones") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto two = group[0].remote<ferry::make<both>>(where);
    const rref<first> as_first = two;
    const rref<second> as_second = two;
    as_second.rpc_sync<&second::set_text>("changed");
    CHECK(as_first.rpc_sync<&first::get_first>() == 1);
    CHECK(as_second.rpc_sync<&second::get_second>() == "changed");
    CHECK(two.rpc_sync<&second::get_second>() == "changed");
    CHECK(two.rpc_sync<&both::joined>() == "1changed");

    const auto s = group[0].remote<ferry::make<square>>(where, 3.0);
    const rref<shape> as_shape = s;
    CHECK(as_shape.rpc_sync<&shape::area>() == 9.0);
    CHECK(as_shape.rpc_sync<area_of>() == 9.0);
    CHECK(as_shape.rpc_sync<&shape::corners>() == 4);
    CHECK(s.rpc_sync<&shape::area>() == 9.0);
    CHECK(s.rpc_sync<&square::side>() == 3.0);
    CHECK(as_shape == rref<shape>(s));
    CHECK(any_rref(as_shape).type().get() == ferry::type_name<square>());
    // Back to the actual type.
    CHECK(any_rref(as_shape).as<square>().rpc_sync<&square::side>() == 3.0);

    const auto b = group[0].remote<ferry::make<bottom>>(where, 42);
    const rref<right> as_right = b;
    const rref<root> as_root = as_right;
    CHECK(as_root.rpc_sync<&root::get_depth>() == 42);
    CHECK(as_right.rpc_sync<&right::get_right>() == 2);
    CHECK(as_right.rpc_sync<&root::get_depth>() == 42);
    if (b.is_owner()) CHECK(&as_root.local_value() == &b.local_value());
    expect_error(errc::reference_mismatch, ferry::type_name<bottom>(),
                 [&] { (void)any_rref(as_root).as<square>().rpc_sync<&square::side>(); });
  }
}

tensor make_matrix(int rows, int columns) { return ferry::full({rows, columns}, 2.0); }

TEST_CASE("[row 24] members and operators of tensors are methods like others: shapes, numbers and devices travel") {
  cluster group(2);
  constexpr auto add_number = static_cast<tensor (*)(const tensor&, const scalar&)>(&ferry::add);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto t = group[0].remote<make_matrix>(where, 2, 3);
    CHECK(t.rpc_sync<&tensor::shape>() == ferry::dims{2, 3});
    CHECK(t.rpc_sync<&tensor::view>(ferry::dims{3, 2}).shape() == ferry::dims{3, 2});
    CHECK(t.rpc_sync<&tensor::device>() == ferry::device());
    CHECK(t.rpc_sync<&tensor::dtype>() == ferry::dtype::f32);
    CHECK(ferry::equal(t.rpc_sync<add_number>(1), ferry::full({2, 3}, 3.0)));
    CHECK(ferry::equal(t.remote<add_number>(0.5).to_here(), ferry::full({2, 3}, 2.5)));
  }
}

TEST_CASE("functions of a smart pointer's pointee") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto s = group[0].remote<make_shape>(where, 2.0);
    CHECK(s.rpc_sync<&shape::area>() == 4.0);
    CHECK(s.rpc_sync<area_of>() == 4.0);
    // It may point elsewhere later.
    s.rpc_sync<replace>(3.0);
    CHECK(s.rpc_sync<&shape::area>() == 9.0);
    s.rpc_sync<replace>(0.0);
    expect_error(errc::reference_mismatch, "null", [&] { (void)s.rpc_sync<&shape::area>(); });
    s.rpc_sync<replace>(4.0);
    CHECK(s.rpc_sync<&shape::area>() == 16.0);
    const auto t = group[0].remote<make_triangle>(where, 2.0);
    CHECK(t.rpc_sync<&shape::area>() == 4.0);
    CHECK(t.rpc_sync<&square::side>() == 2.0);
    expect_error(errc::reference_mismatch, ferry::type_name<counter>(),
                 [&] { (void)any_rref(t).as<counter>().rpc_sync<&counter::value>(); });
    const auto c = group[0].remote<make_shared_counter>(where, 5);
    CHECK(c.rpc_sync<&counter::add>(2) == 7);
    CHECK(c.rpc_async<&counter::value>().get() == 7);
  }
}

TEST_CASE("use of a null smart pointer is an error, not a crash") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto nothing = group[0].remote<make_nothing>(where);
    nothing.created().get();
    expect_error(errc::reference_mismatch, "null", [&] { (void)nothing.rpc_sync<&shape::area>(); });
  }
}

TEST_CASE("objects that can only be moved, and those that cannot even be moved") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    CHECK(group[0].remote<make_move_only>(where, 4).rpc_sync<&move_only::value>() == 4);
    CHECK(group[0].remote<ferry::make<move_only>>(where, 5).rpc_sync<&move_only::value>() == 5);
    CHECK(group[0].remote<make_pinned>(where, "stays").rpc_sync<&pinned::text>() == "stays");
  }
  const rref<move_only> own(move_only(6));
  CHECK(own.local_value().value() == 6);
  const rref<pinned> in_place(std::in_place, "in place");
  CHECK(in_place.local_value().text() == "in place");
}

TEST_CASE("rref<void>: completion and error of a function without a result") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    runs = 0;
    const rref<void> done = group[0].remote<run>(where, 5);
    done.to_here();
    CHECK(runs == 5);
    done.to_here_async().get();
    CHECK(any_rref(done).type().get() == "void");
    if (done.is_owner()) done.local_value();
    const rref<void> broken = group[0].remote<break_down>(where);
    CHECK_THROWS_AS(broken.to_here(), std::domain_error);
    CHECK_THROWS_AS(broken.to_here_async().get(), std::domain_error);
    if (broken.is_owner()) CHECK_THROWS_AS(broken.local_value(), std::domain_error);
    group[0].remote<run_later>(where).to_here();
  }
}

TEST_CASE("functions that take the object first, by value and by reference, and member functions") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto p = group[0].remote<ferry::make<point>>(where, 1, 2);
    CHECK(p.rpc_sync<sum_of>() == 3);
    p.rpc_sync<shift>(10);
    CHECK(p.rpc_sync<&point::sum>() == 13);
    const point copy = p.to_here();
    CHECK(copy.x == 11);
    CHECK(group[0].rpc_sync<sum_of>(where, copy) == 13);
    const rref<int> sum = p.remote<&point::sum>();
    CHECK(sum.owner() == p.owner());
    CHECK(sum.to_here() == 13);
  }
}

TEST_CASE("objects are destroyed once, when the last reference has ended and no call on them runs") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    auto t = group[0].remote<ferry::make<tracked>>(where, 1);
    t.created().get();
    CHECK(tracked::alive() == 1);
    auto last = t.rpc_async<&tracked::value>();
    t = {};
    last.wait();
    await_no_references(group);  // the future keeps no object
    CHECK(last.get() == 1);
    while (tracked::alive() != 0) std::this_thread::yield();
  }
  {
    const rref<tracked> own(std::in_place, 3);
    CHECK(tracked::alive() == 1);
  }
  while (tracked::alive() != 0) std::this_thread::yield();
}

}  // namespace reference_types_test
