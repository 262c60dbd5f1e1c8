// Calls that the compiler must refuse, in words. Run by must_not_compile.py.

#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <cereal/archives/binary.hpp>
#include <cereal/types/memory.hpp>
#include <ferry/ferry.hpp>

struct serialisable {
  int value = 0;
  [[nodiscard]] int get() const { return value; }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};
struct plain {
  int value = 0;
  std::string* text = nullptr;
};
struct sealed {
  explicit sealed(int start) : value(start) {}
  int value;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};
struct frozen {
  int value = 0;
  template <class Archive>
  void serialize(Archive& archive) const {
    archive(value);
  }
};
constexpr auto converted = +[](int number) { return number; };
struct own_error {};
struct narrow {
  narrow() = default;
  explicit narrow(int start) : value(start) {}
  int value = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};

struct shape {
  [[nodiscard]] virtual double area() const = 0;
  virtual ~shape() = default;
};
class closed {
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value_);
  }
  int value_ = 0;
};
int open_up(closed value);
double mix(int a, const std::string& b, double c);

struct parent {
  [[nodiscard]] int of_parent() const;
};
struct child : parent {
  [[nodiscard]] int of_child() const;
  int used_up() &&;
  int fill(std::vector<int>& values);
};
int look_at(const child& object, int value);
int look_with(const child& object, const plain& value);
int no_object();

int add(int a, int b);
std::size_t numbers(std::vector<int> values);
int take_over(std::unique_ptr<int> value);
double third(std::span<const double, 3> values);
int quick(int value);
struct misspelt {};
int open_seal(sealed closed);
int take_frozen(frozen value);
int sum(const std::vector<int>& values);
int length(std::string_view text);
int unwrap(std::unique_ptr<int> value);
serialisable echo(const serialisable& value);
ferry::future<int> later(int value);

void fill(std::vector<int>& values);
int first(const int* values);
void scale_all(std::span<double> values);
int count_true(std::span<const bool> values);
int text_length(const char* text);
const char* name();
int wait_for(ferry::future<int> value);
ferry::future<ferry::future<int>> too_late();
std::vector<ferry::future<int>> several();
int look(const plain& value);
// Not what an object could be: these come second.
int look_from(int where, const plain& value);
void fill_from(int where, std::vector<int>& values);
plain give_plain();
sealed give_sealed();

template <>
struct ferry::method_traits<&quick> {
  static constexpr bool inline_handle = true;
};
template <>
struct ferry::object_traits<misspelt> {
  static constexpr auto excution = ferry::execution::exclusive;
};

void use(const ferry::worker& self) {
  // What the cases get wrong, right.
  self.rpc_sync<add>("worker1", 1, 2);
  self.rpc_sync<sum>("worker1", std::vector{1, 2});
  self.rpc_sync<length>("worker1", "text");
  self.rpc_sync<unwrap>("worker1", std::make_unique<int>(1));
  (void)self.rpc_async<echo>("worker1", serialisable{});
  self.rpc_sync<later>("worker1", 1);
  self.rpc_sync<&serialisable::get>("worker1", serialisable{});
  self.rpc_sync<ferry::make<serialisable>>("worker1");
  self.notify<add>("worker1", 1, 2);
  self.rpc_sync<ferry::make<narrow>>("worker1", 1);
  self.rpc_sync<ferry::named<"add", add>>("worker1", 1, 2);
  self.rpc_sync<ferry::stub<"add", int(int, int)>>("worker1", 1, 2);
  ferry::serve<add, ferry::named<"add", add>, ferry::make<narrow, int>>();
  const ferry::rref<child> object = self.remote<ferry::make<child>>("worker1");
  const ferry::rref<parent> as_parent = object;
  object.rpc_sync<&child::of_child>();
  object.rpc_sync<&parent::of_parent>();
  (void)object.rpc_async<look_at>(1);
  (void)self.remote<add>("worker1", 1, 2).to_here();

#if CASE == 1  // expect: a method's parameter is a non-const reference
  std::vector<int> values;
  self.rpc_sync<fill>("worker1", values);
#endif
#if CASE == 2  // expect: a method's parameter is a pointer, which means nothing in another process
  const int value = 1;
  self.rpc_sync<first>("worker1", &value);
#endif
#if CASE == 3  // expect: a method's parameter is a pointer, which means nothing in another process
  self.rpc_sync<text_length>("worker1", "text");
#endif
#if CASE == 4  // expect: a method returns a pointer, which means nothing in another process
  self.rpc_sync<name>("worker1");
#endif
#if CASE == 5  // expect: a method's parameter is a future or task, which cannot travel
  self.rpc_sync<wait_for>("worker1", ferry::make_ready_future(1));
#endif
#if CASE == 6  // expect: an argument of the call cannot be converted to the method's parameter
  self.rpc_sync<add>("worker1", self.rpc_async<add>("worker1", 1, 2), 3);
#endif
// [row 64] futures are refused as arguments, as what a future holds and inside containers
#if CASE == 7  // expect: a method returns a future of a future, which cannot travel
  self.rpc_sync<too_late>("worker1");
#endif
#if CASE == 8  // expect: no serialiser
  self.rpc_sync<several>("worker1");
#endif
#if CASE == 9  // expect: the call passes a number of arguments that differs from the method's number of parameters
  self.rpc_sync<add>("worker1", 1);
#endif
#if CASE == 10  // expect: the call passes a number of arguments that differs from the method's number of parameters
  (void)self.rpc_async<add>("worker1", 1, 2, 3);
#endif
#if CASE == 11  // expect: (a member function takes its object first)
  self.rpc_sync<&serialisable::get>("worker1");
#endif
#if CASE == 12  // expect: an argument of the call cannot be converted to the method's parameter
  self.notify<add>("worker1", 1, "two");
#endif
#if CASE == 13  // expect: no serialiser
  self.rpc_sync<look>("worker1", plain{});
#endif
#if CASE == 14  // expect: no serialiser
  self.rpc_sync<give_plain>("worker1");
#endif
#if CASE == 15  // expect: default-constructible
  self.rpc_sync<give_sealed>("worker1");
#endif
#if CASE == 16  // expect: Lambdas have no name that another program could know: write a function
  self.rpc_sync<[](int number) { return number; }>("worker1", 1);
#endif
#if CASE == 17  // expect: deleted
  self.rpc_sync<add>(1.5, 1, 2);
#endif
#if CASE == 18  // expect: an exception type needs a specialisation of ferry::exception_traits
  ferry::register_exceptions<own_error>();
#endif
#if CASE == 19  // expect: nodiscard
  #pragma GCC diagnostic error "-Wunused-result"
  self.rpc_async<add>("worker1", 1, 2);
#endif
#if CASE == 20  // expect: a method's public name is empty
  self.rpc_sync<ferry::named<"", add>>("worker1", 1, 2);
#endif
#if CASE == 21  // expect: a method's public name has a blank
  self.rpc_sync<ferry::stub<"add two", int(int, int)>>("worker1", 1, 2);
#endif
#if CASE == 22  // expect: needs a function, a member function or make<T, Args...>, not another named<> or stub<>
  self.rpc_sync<ferry::named<"plus", ferry::named<"add", add>>>("worker1", 1, 2);
#endif
#if CASE == 23  // expect: needs a function, a member function or make<T, Args...>, not another named<> or stub<>
  ferry::serve<ferry::named<"plus", ferry::stub<"add", int(int, int)>>>();
#endif
#if CASE == 24  // expect: Lambdas have no name that another program could know
  self.rpc_sync<ferry::named<"lambda", [](int number) { return number; }>>("worker1", 1);
#endif
#if CASE == 25  // expect: Signature> needs a function type
  self.rpc_sync<ferry::stub<"add", int>>("worker1", 1, 2);
#endif
#if CASE == 26  // expect: a stub's result is a reference, which means nothing in another process
  self.rpc_sync<ferry::stub<"text", const std::string&()>>("worker1");
#endif
#if CASE == 27  // expect: a method's parameter is a non-const reference
  self.rpc_sync<ferry::stub<"fill", void(std::vector<int>&)>>("worker1", std::vector<int>());
#endif
#if CASE == 28  // expect: a method's parameter is a pointer, which means nothing in another process
  self.rpc_sync<ferry::stub<"first", int(const int*)>>("worker1", nullptr);
#endif
#if CASE == 29  // expect: a method's parameter is a future or task, which cannot travel
  self.rpc_sync<ferry::stub<"wait", int(ferry::future<int>)>>("worker1", ferry::make_ready_future(1));
#endif
#if CASE == 30  // expect: the call passes a number of arguments that differs from the method's number of parameters
  (void)self.rpc_async<ferry::stub<"add", int(int, int)>>("worker1", 1);
#endif
#if CASE == 31  // expect: an argument of the call cannot be converted to the method's parameter
  self.notify<ferry::named<"add", add>>("worker1", 1, "two");
#endif
#if CASE == 32  // expect: no serialiser
  self.rpc_sync<ferry::stub<"look", int(plain)>>("worker1", plain{});
#endif
#if CASE == 33  // expect: no serialiser
  ferry::serve<look_from>();
#endif
#if CASE == 34  // expect: a method's parameter is a non-const reference
  ferry::serve<fill_from>();
#endif
#if CASE == 35  // expect: make<T> was given arguments from which a T cannot be constructed
  self.rpc_sync<ferry::make<narrow>>("worker1", "text");
#endif
#if CASE == 36  // expect: Lambdas have no name that another program could know
  const ferry::served_methods list = ferry::serve_list<[] {}>;
#endif
#if CASE == 37  // expect: Lambdas have no name that another program could know: write a function
  self.rpc_sync<converted>("worker1", 1);
#endif
#if CASE == 38  // expect: Lambdas have no name that another program could know: write a function
  #ifdef __clang__
  self.rpc_sync<+[](int number) { return number; }>("worker1", 1);
  #else  // g++ itself refuses a lambda inside a function: it has no linkage
  self.rpc_sync<ferry::named<"converted", converted>>("worker1", 1);
  #endif
#endif
#if CASE == 39  // expect: has no default constructor, which the receiver needs to decode into
  self.rpc_sync<open_seal>("worker1", sealed(1));
#endif
#if CASE == 40  // expect: a const object cannot be decoded into
  self.rpc_sync<take_frozen>("worker1", frozen{});
#endif
// [row 94] a function that the object's class does not have is refused in words, in all forms of calls on references
#if CASE == 41  // expect: this function works on objects of another type, which is not a base
  object.rpc_sync<&serialisable::get>();
#endif
#if CASE == 42  // expect: this function works on objects of another type, which is not a base
  (void)object.rpc_async<&serialisable::get>();
#endif
#if CASE == 43  // expect: this function works on objects of another type, which is not a base
  (void)object.remote<&serialisable::get>();
#endif
#if CASE == 44  // expect: this function works on objects of another type, which is not a base
  object.notify<&serialisable::get>();
#endif
#if CASE == 45  // expect: this function works on objects of another type, which is not a base
  as_parent.rpc_sync<&child::of_child>();
#endif
#if CASE == 46  // expect: this function works on objects of another type, which is not a base
  as_parent.rpc_sync<look_at>(1);
#endif
#if CASE == 47  // expect: this function works on objects of another type, which is not a base
  object.rpc_sync<add>(1);
#endif
#if CASE == \
    48  // expect: a call on a reference needs a member function, or a function whose first parameter is the object
  object.rpc_sync<no_object>();
#endif
#if CASE == \
    49  // expect: a call on a reference needs a member function, or a function whose first parameter is the object
  object.rpc_sync<[](const child&) {}>();
#endif
#if CASE == 50  // expect: an rvalue-qualified member function would consume the object that the reference refers to
  object.rpc_sync<&child::used_up>();
#endif
#if CASE == 51  // expect: a method's parameter is a non-const reference
  std::vector<int> values;
  object.rpc_sync<&child::fill>(values);
#endif
#if CASE == 52  // expect: the call passes a number of arguments that differs from the method's number of parameters
  object.rpc_sync<look_at>();
#endif
#if CASE == 53  // expect: no serialiser
  (void)ferry::rref<plain>().to_here();
#endif
#if CASE == 54  // expect: no serialiser
  (void)ferry::rref<plain>().to_here_async();
#endif
#if CASE == 55  // expect: no serialiser
  object.rpc_sync<look_with>(plain{});
#endif
#if CASE == 56  // expect: conversion
  const ferry::rref<child> as_child = as_parent;
#endif
#if CASE == 57  // expect: nodiscard
  #pragma GCC diagnostic error "-Wunused-result"
  self.remote<add>("worker1", 1, 2);
#endif
// [row 128] a reference cannot be saved in an archive, nor loaded from one
#if CASE == 58  // expect: ferry: an rref cannot be saved
  std::ostringstream out;
  cereal::BinaryOutputArchive{out}(object);
#endif
#if CASE == 59  // expect: ferry: an rref cannot be loaded from an archive
  std::istringstream in;
  ferry::rref<child> loaded;
  cereal::BinaryInputArchive{in}(loaded);
#endif
#if CASE == 60  // expect: ferry: an any_rref cannot be saved
  std::ostringstream out;
  cereal::BinaryOutputArchive{out}(ferry::any_rref(object));
#endif
#if CASE == 61  // expect: ferry: an any_rref cannot be loaded from an archive
  std::istringstream in;
  ferry::any_rref loaded;
  cereal::BinaryInputArchive{in}(loaded);
#endif
#if CASE == 62  // expect: a method's parameter is a std::span of elements that are not const
  std::vector<double> numbers;
  self.rpc_sync<scale_all>("worker1", numbers);
#endif
#if CASE == 63  // expect: a method's parameter is a std::span<const bool>
  self.rpc_sync<count_true>("worker1", std::vector<bool>{true});
#endif
#if CASE == 64  // expect: ferry: this specialisation of method_traits has no 'inline_handler'
  self.rpc_sync<quick>("worker1", 1);
#endif
#if CASE == 65  // expect: ferry: this specialisation of object_traits has neither 'execution' nor 'reentrant'
  (void)self.remote<ferry::make<misspelt>>("worker1");
#endif
#if CASE == 66  // expect: ferry: a reference to a const object protects nothing
  (void)ferry::rref<const child>();
#endif
#if CASE == 67  // expect: deleted
  (void)self.wait_for_worker(0);
#endif
#if CASE == 68  // expect: deleted
  self.barrier({0, 1});
#endif
#if CASE == 69  // expect: ferry: make<T> makes objects, and T is abstract
  (void)self.remote<ferry::make<shape>>("worker1");
#endif
#if CASE == 70  // expect: and public (or the class has: friend class cereal::access)
  self.rpc_sync<open_up>("worker1", closed());
#endif
#if CASE == 71  // expect: argument<3, double, char
  self.rpc_sync<mix>("worker1", 1, "text", "text");
#endif
#if CASE == 72  // expect: ferry: what this co_await is given is no awaitable
  const auto await_a_value = [](const ferry::worker& here) -> ferry::task<int> {
    co_return co_await here.rpc_sync<add>("worker1", 1, 2);
  };
  (void)await_a_value(self);
#endif
#if CASE == 73  // expect: ferry: this type is no backend: specialise ferry::backend_traits for it
  (void)ferry::init_rpc<shape>({.name = "worker0"});
#endif
#if CASE == 74  // expect: an argument of the call cannot be converted to the method's parameter
  self.rpc_sync<numbers>("worker1", 5);
#endif
#if CASE == 75  // expect: an argument of the call cannot be converted to the method's parameter
  self.rpc_sync<take_over>("worker1", new int(1));
#endif
#if CASE == 76  // expect: an argument of the call cannot be converted to the method's parameter
  self.rpc_sync<third>("worker1", std::vector<double>(3));
#endif
}
