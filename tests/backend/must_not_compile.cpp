// Backends that the compiler must refuse, in words. Run by must_not_compile.py.

#include <string_view>

#include <ferry/backend/backend.hpp>

struct twin {};
template <>
struct ferry::backend_traits<twin> : ferry::backend_traits<ferry::native> {};
struct half_done {};
template <>
struct ferry::backend_traits<half_done> {
  static constexpr std::string_view name = "half done";
};

void use() {
  (void)ferry::backend_list<ferry::native>::find("native");
  (void)ferry::backend_list<twin>::find("native");

#if CASE == 1  // expect: two backends of a backend_list have the same name
  (void)ferry::backend_list<ferry::native, twin>::find("native");
#endif
#if CASE == 2  // expect: a backend tag needs a specialisation of ferry::backend_traits with name, options_type
  (void)ferry::backend_list<ferry::native, half_done>::find("native");
#endif
#if CASE == 3  // expect: a backend_list names at least one backend
  (void)ferry::backend_list<>::find("native");
#endif
}
