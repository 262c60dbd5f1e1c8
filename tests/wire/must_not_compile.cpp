// A type that cannot be sent is rejected with an explanation. Run by must_not_compile.py.

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include <ferry/wire/serialize.hpp>

struct plain {
  int value = 0;
};
struct no_default {
  explicit no_default(int) {}
  template <class Archive>
  void serialize(Archive&) {}
};
// A tensor type that can be sent, and not received.
struct half_tensor {
  ferry::tensor elements;
};
template <>
struct ferry::tensor_traits<half_tensor> {
  static ferry::tensor to_tensor(const half_tensor& value) { return value.elements; }
};
struct with_pointer {
  int* pointer = nullptr;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(pointer);
  }
};

void use() {
  (void)ferry::serialize(1, std::string("x"), std::vector<std::string>{});
#if CASE == 1  // expect: ferry: a raw pointer cannot travel
  int number = 0;
  (void)ferry::serialize(&number);
#endif
#if CASE == 2  // expect: ferry: a raw pointer cannot travel
  (void)ferry::serialize(std::vector<int*>{});
#endif
#if CASE == 3  // expect: ferry: this type has no serialiser
  (void)ferry::serialize(plain{});
#endif
#if CASE == 4  // expect: ferry: this type has no serialiser
  (void)ferry::deserialize<std::tuple<int, std::vector<plain>>>({});
#endif
#if CASE == 5  // expect: ferry: for std::map include <cereal/types/map.hpp>
  (void)ferry::serialize(std::map<int, int>{});
#endif
#if CASE == 6  // expect: ferry: for std::unordered_map include <cereal/types/unordered_map.hpp>
  (void)ferry::serialize(std::vector<std::unordered_map<int, int>>{});
#endif
#if CASE == 7  // expect: ferry: for std::set include <cereal/types/set.hpp>
  (void)ferry::serialize(std::set<int>{});
#endif
#if CASE == 8  // expect: ferry: for std::list include <cereal/types/list.hpp>
  (void)ferry::serialize(std::list<int>{});
#endif
#if CASE == 9  // expect: std::weak_ptr include <cereal/types/memory.hpp>
  (void)ferry::serialize(std::unique_ptr<int>{});
#endif
#if CASE == 10  // expect: ferry: for std::variant include <cereal/types/variant.hpp>
  (void)ferry::serialize(std::variant<int, double>{});
#endif
#if CASE == 11  // expect: ferry: for std::chrono types include <cereal/types/chrono.hpp>
  (void)ferry::serialize(std::chrono::seconds{1});
#endif
#if CASE == 12  // expect: ferry: this type has no default constructor
  (void)ferry::serialize(no_default(1));
#endif
#if CASE == 13  // expect: ferry: long double and 128-bit integers differ between machines
  (void)ferry::serialize(1.0L);
#endif
#if CASE == 14  // expect: ferry: a function or std::function cannot travel
  (void)ferry::serialize(std::function<int()>{});
#endif
#if CASE == 15  // expect: ferry: a std::string_view or std::span inside another type cannot travel
  (void)ferry::serialize(std::vector<std::string_view>{});
#endif
#if CASE == 16  // expect: Cereal does not support serializing raw pointers
  (void)ferry::serialize(with_pointer{});
#endif
#if CASE == 17  // expect: ferry: this type has a specialisation of tensor_traits, which is not complete
  (void)ferry::serialize(half_tensor{});
#endif
#if CASE == 18  // expect: ferry: long double and 128-bit integers differ between machines
  __extension__ const __int128 large = 1;
  (void)ferry::serialize(large);
#endif
}
