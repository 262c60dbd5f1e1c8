// Joins a group of two as worker 0 and calls worker 1's methods, of which it has names and signatures, but no code. Exits
// with 0 if every answer is right.

#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/ferry.hpp>

namespace {

constexpr auto dot = ferry::stub<"dot", double(std::vector<double>, std::vector<double>)>;
constexpr auto letters = ferry::stub<"letters", int(std::string)>;
constexpr auto wrong_letters = ferry::stub<"letters", int(std::vector<int>)>;
constexpr auto absent = ferry::stub<"arithmetic::unlisted", int(int)>;

int mistakes = 0;
void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "client: %s\n", what);
  ++mistakes;
}

template <class Action>
void expect_error(ferry::errc kind, std::initializer_list<std::string_view> parts, Action action) {
  try {
    action();
    expect(false, "nothing was thrown");
  } catch (const ferry::error& e) {
    expect(e.kind() == kind, e.what());
    for (const std::string_view part : parts) {
      expect(std::string_view(e.what()).find(part) != std::string_view::npos, e.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    ferry::set_log_level(ferry::log_level::off);
    // It serves nothing itself.
    ferry::worker self = ferry::init_rpc({.name = "client",
                                          .rank = 0,
                                          .world_size = 2,
                                          .init_method = argv[1],
                                          .rpc_timeout = ferry::no_timeout,
                                          .serve = ferry::serve_list<>});
    const std::vector<double> a{1, 2, 3};
    expect(ferry::rpc_sync<dot>("server", a, std::vector<double>{4, 5, 6}) == 32, "dot by rpc_sync");
    expect(self.rpc_async<dot>("server", std::span(a), a).get() == 14, "dot by rpc_async");
    self.notify<dot>("server", a, a);
    expect(ferry::rpc_sync<letters>("server", "four") == 4, "letters");
    expect_error(ferry::errc::unknown_method, {"'arithmetic::unlisted' i32(i32)", "serves a list"},
                 [&] { (void)ferry::rpc_sync<absent>("server", 1); });
    expect_error(ferry::errc::signature_mismatch, {"'letters'", "i32(vector<i32>)", "i32(string)"},
                 [&] { (void)ferry::rpc_async<wrong_letters>("server", std::vector{1}).get(); });
    expect_error(ferry::errc::unknown_method, {"dot", "serves a list"},
                 [&] { (void)ferry::rpc_sync<dot>("client", a, a); });
    self.shutdown();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "client: %s\n", e.what());
    return 1;
  }
  return mistakes == 0 ? 0 : 1;
}
