// How calls fail: what the method throws, and what keeps it from being run or its result from being sent. Each is an
// error of its own at the caller, and the callee goes on.

#include <any>
#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <ios>
#include <new>
#include <regex>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <pthread.h>
#include <unwind.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "noise.hpp"
#include "rpc/worker/worker_core.hpp"

namespace exceptions_test {

using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;

int plus_one(int value) { return value + 1; }
int fail_with_value_error(const std::string& text) { throw std::invalid_argument(text); }

struct registered_error : std::runtime_error {
  registered_error(const std::string& text, int number) : std::runtime_error(text), code(number) {}
  int code;
};
struct derived_error : registered_error {
  using registered_error::registered_error;
};
struct undecodable_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct late_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct unregistered_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct unencodable_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct without_text : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return nullptr; }
};
struct peculiar {};
// What another language throws through C++ frames.
int throw_foreign() {
  auto* thrown = new _Unwind_Exception{};
  std::memcpy(&thrown->exception_class, "OTHERLNG", sizeof thrown->exception_class);
  thrown->exception_cleanup = [](_Unwind_Reason_Code, _Unwind_Exception* done) { delete done; };
  _Unwind_RaiseException(thrown);
  return 0;  // no frame catches it
}
ferry::task<int> throw_foreign_later() { co_return throw_foreign(); }
int cancel_own_thread() {
  ::pthread_cancel(::pthread_self());
  ::pthread_testcancel();
  return 7;
}
std::atomic<int> threads_ended{0};
struct thread_watch {
  int uses = 0;
  ~thread_watch() { ++threads_ended; }
};
thread_local thread_watch watch;
// Inlined nowhere: the compiler must not see that no caller gets a result.
[[gnu::noinline]] int end_thread(bool in_a_catch_block) {
  ++watch.uses;
  if (!in_a_catch_block) ::pthread_exit(nullptr);
  try {
    throw std::runtime_error("first");
  } catch (const std::runtime_error&) {
    ::pthread_exit(nullptr);
  }
}
ferry::task<int> end_thread_later(bool in_a_catch_block) {
  co_await ferry::rpc_async<plus_one>(ferry::this_call().caller(), 1);
  co_return end_thread(in_a_catch_block);
}
ferry::future<int> end_thread_in_continuation() {
  return ferry::rpc_async<plus_one>(ferry::this_call().caller(), 1).then([](int) { return end_thread(false); });
}
int allow_cancellation() {
  ++watch.uses;
  ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  return cancel_own_thread();
}
struct ends_thread_on_save {
  template <class Archive>
  void save(Archive&) const {
    end_thread(false);
  }
  template <class Archive>
  void load(Archive&) {}
};
ends_thread_on_save give_thread_end() { return {}; }
struct ends_thread_made {
  ends_thread_made() { end_thread(false); }
};
void log_thread_end() { end_thread(false); }
// Returns once `count` handlers run at the same time.
void meet(int count) {
  static std::barrier meeting(count);
  meeting.arrive_and_wait();
}
struct other_registered : std::logic_error {
  using std::logic_error::logic_error;
};

// Of an application: a receiver finds it by no name.
const std::error_category& http_category() {
  static const struct final_category final : std::error_category {
    [[nodiscard]] const char* name() const noexcept override { return "http status"; }
    [[nodiscard]] std::string message(int value) const override { return "status " + std::to_string(value); }
  } category;
  return category;
}

int fail(int which) {
  switch (which) {
    case 0: throw std::domain_error("domain");
    case 1: throw std::length_error("length");
    case 2: throw std::out_of_range("range");
    case 3: throw std::logic_error("logic");
    case 4: throw std::range_error("range");
    case 5: throw std::overflow_error("overflow");
    case 6: throw std::underflow_error("underflow");
    case 7: throw std::runtime_error("runtime");
    case 8: throw std::system_error(std::make_error_code(std::errc::no_space_on_device), "writing");
    case 9: throw std::bad_alloc();
    case 10: throw std::bad_optional_access();
    case 11: throw std::bad_variant_access();
    case 41: return std::get<0>(std::variant<int, char>('a'));
    case 12: throw std::bad_function_call();
    case 13: throw std::future_error(std::future_errc::broken_promise);
    case 14: throw std::bad_any_cast();
    case 15: throw std::exception();
    case 16: throw std::ios_base::failure("reading", std::make_error_code(std::errc::io_error));
    case 17: throw std::ios_base::failure("reading");
    case 18:
      throw std::filesystem::filesystem_error("cannot open", "a file", "b",
                                              std::make_error_code(std::errc::no_space_on_device));
    case 24:
      throw std::filesystem::filesystem_error("cannot open", "a file", std::make_error_code(std::errc::io_error));
    case 25: throw std::filesystem::filesystem_error("cannot open", std::make_error_code(std::errc::io_error));
    case 26: throw std::filesystem::filesystem_error("a", "", "b [c]", std::make_error_code(std::errc::io_error));
    case 27: return static_cast<int>(std::filesystem::file_size("/there is/no such file"));
    case 28: {
      std::ifstream file;
      file.exceptions(std::ios::failbit);
      file.open("/there is/no such file");
      return 0;
    }
    case 29: throw std::system_error(std::make_error_code(std::errc::io_error));
    case 19: throw std::system_error(ferry::make_error_code(errc::bad_shape), "of ferry");
    case 23: throw std::system_error(2, http_category(), "GET /");
    case 20: ferry::throw_error(errc::bad_shape, "a shape");
    case 21: throw ferry::rpc_timeout("the method's own");
    case 22: throw ferry::remote_error("far::away", "passed on");
    case 30: throw registered_error("registered", 17);
    case 31: throw derived_error("derived", 18);
    case 32: throw unregistered_error("unregistered");
    case 33: throw peculiar();
    case 34: throw 42;
    case 35: throw std::string("only text");
    case 37: throw undecodable_error("undecodable");
    case 38: throw unencodable_error("the first");
    case 39: throw without_text();
    case 40: throw static_cast<const char*>(nullptr);
    case 36: throw std::regex_error(std::regex_constants::error_brack);
    default: return which;
  }
}

ferry::tensor add(const ferry::tensor& a, const ferry::tensor& b) {
  if (a.shape() != b.shape()) ferry::throw_error(errc::bad_shape, "the shapes differ");
  return a;
}

int fail_with_causes(int which) {
  try {
    try {
      throw std::out_of_range("no such row");
    } catch (...) {
      std::throw_with_nested(unregistered_error("no such table"));
    }
  } catch (...) {
    switch (which) {
      case 0: std::throw_with_nested(std::runtime_error("cannot read"));
      case 1: std::throw_with_nested(registered_error("cannot read", 19));
      case 2: std::throw_with_nested(ferry::error(errc::bad_shape, "cannot read"));
      case 3: std::throw_with_nested(unregistered_error("cannot read"));
      case 4: std::throw_with_nested(std::system_error(std::make_error_code(std::errc::io_error), "reading"));
      case 5:
        std::throw_with_nested(
            std::filesystem::filesystem_error("reading", "a file", std::make_error_code(std::errc::io_error)));
      default: return which;
    }
  }
  return which;
}
int fail_without_cause() { std::throw_with_nested(std::runtime_error("first of all")); }
int fail_with_many_causes() {
  const std::function<void(int)> fail_at = [&](int depth) {
    try {
      if (depth != 0) fail_at(depth - 1);
    } catch (...) {
      std::throw_with_nested(std::runtime_error(std::to_string(depth)));
    }
    throw std::runtime_error("0");
  };
  fail_at(100);
  return 0;
}

// Nested: the exception of a callee's callee.
int fail_beyond(int which) { return ferry::rpc_sync<fail>(ferry::this_call().caller(), which); }

// Types that do not survive the trip.
struct sends_too_little {
  template <class Archive>
  void save(Archive& archive) const {
    archive(1);
  }
  template <class Archive>
  void load(Archive& archive) {
    int a = 0;
    std::string b;
    archive(a, b);
  }
};
struct sends_too_much {
  template <class Archive>
  void save(Archive& archive) const {
    archive(1, 2, 3);
  }
  template <class Archive>
  void load(Archive& archive) {
    int a = 0;
    archive(a);
  }
};
struct throws_on_save {
  bool really = true;
  template <class Archive>
  void save(Archive& archive) const {
    archive(std::string(1000, 'x'));
    if (really) throw std::domain_error("cannot be saved");
  }
  template <class Archive>
  void load(Archive& archive) {
    std::string text;
    archive(text);
  }
};
struct throws_on_load {
  bool really = true;
  template <class Archive>
  void save(Archive& archive) const {
    archive(really);
  }
  template <class Archive>
  void load(Archive& archive) {
    archive(really);
    if (really) throw std::domain_error("cannot be loaded");
  }
};
struct throws_errors_of_ferry_on_save {
  template <class Archive>
  void save(Archive&) const {
    ferry::throw_error(errc::bad_shape, "not square");
  }
  template <class Archive>
  void load(Archive&) {}
};
struct error_of_application : ferry::error {
  error_of_application() : ferry::error(errc::bad_shape, "not round") {}
};
struct throws_derived_on_save {
  template <class Archive>
  void save(Archive&) const {
    throw error_of_application();
  }
  template <class Archive>
  void load(Archive&) {}
};
struct throws_when_made {
  static inline std::atomic<bool> now{false};
  throws_when_made() {
    if (now) throw std::domain_error("cannot be made");
  }
  explicit throws_when_made(int given) : value(given) {}
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
  int value = 0;
};
struct throws_an_int_on_load {
  template <class Archive>
  void save(Archive& archive) const {
    archive(1);
  }
  template <class Archive>
  void load(Archive& archive) {
    int value = 0;
    archive(value);
    throw value;
  }
};

struct throws_without_text {
  template <class Archive>
  void save(Archive&) const {
    throw without_text();
  }
  template <class Archive>
  void load(Archive&) {}
};

throws_without_text give_textless() { return {}; }
int take_textless(const throws_without_text&) { return 1; }
int take_little(const sends_too_little&) { return 1; }
int take_much(const sends_too_much&) { return 1; }
int take_unsaveable(const throws_on_save&) { return 1; }
int take_unloadable(const throws_on_load&) { return 1; }
int take_int_thrower(const throws_an_int_on_load&) { return 1; }
throws_on_save give_unsaveable(bool really) { return {really}; }
throws_on_load give_unloadable(bool really) { return {really}; }
throws_when_made give_unmakeable() { return throws_when_made(7); }
int take_derived(throws_derived_on_save) { return 1; }
int take_unnameable(throws_errors_of_ferry_on_save) { return 1; }
sends_too_little give_little() { return {}; }
ferry::future<throws_on_save> give_unsaveable_later() { return ferry::make_ready_future(throws_on_save{}); }

}  // namespace exceptions_test

template <>
struct ferry::exception_traits<exceptions_test::registered_error> {
  static constexpr std::string_view name = "exceptions_test.registered";
  static std::string encode(const exceptions_test::registered_error& thrown) { return std::to_string(thrown.code); }
  static exceptions_test::registered_error decode(std::string_view what, std::string_view bytes) {
    return {std::string(what), std::stoi(std::string(bytes))};
  }
};
template <>
struct ferry::exception_traits<exceptions_test::late_error> {
  static constexpr std::string_view name = "exceptions_test::late_error";  // as a program would call it by itself
  static std::string encode(const exceptions_test::late_error&) { return "bytes"; }
  static exceptions_test::late_error decode(std::string_view what, std::string_view bytes) {
    return exceptions_test::late_error(std::string(what) + (bytes == "bytes" ? "" : " from nothing"));
  }
};
template <>
struct ferry::exception_traits<exceptions_test::undecodable_error> {
  static constexpr std::string_view name = "exceptions_test.undecodable";
  static std::string encode(const exceptions_test::undecodable_error&) { return {}; }
  static exceptions_test::undecodable_error decode(std::string_view, std::string_view) {
    throw std::out_of_range("no such number");
  }
};
template <>
struct ferry::exception_traits<exceptions_test::unencodable_error> {
  static constexpr std::string_view name = "exceptions_test.unencodable";
  static std::string encode(const exceptions_test::unencodable_error&) { throw std::logic_error("the second"); }
  static exceptions_test::unencodable_error decode(std::string_view what, std::string_view) {
    return exceptions_test::unencodable_error(std::string(what));
  }
};
template <>
struct ferry::exception_traits<exceptions_test::other_registered> {
  static constexpr std::string_view name = "exceptions_test.registered";
  static std::string encode(const exceptions_test::other_registered&) { return {}; }
  static exceptions_test::other_registered decode(std::string_view what, std::string_view) {
    return exceptions_test::other_registered(std::string(what));
  }
};

namespace exceptions_test {

namespace {

// Both call forms fail with an exception of type E; returns its text.
template <class E, auto F, class... A>
std::string text_of_failure(ferry::worker& self, const ferry::to& destination, const A&... arguments) {
  std::string sync_text;
  std::string async_text;
  try {
    (void)self.rpc_sync<F>(destination, arguments...);
    FAIL_CHECK("nothing was thrown");
  } catch (const E& e) {
    CHECK(typeid(e) == typeid(E));
    sync_text = e.what();
  }
  auto pending = self.rpc_async<F>(destination, arguments...);
  try {
    (void)pending.get();
    FAIL_CHECK("nothing was thrown");
  } catch (const E& e) {
    CHECK(typeid(e) == typeid(E));
    async_text = e.what();
  }
  CHECK(pending.failed());
  CHECK(sync_text == async_text);
  return sync_text;
}

void expect_alive(cluster& group) {
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
  CHECK(group[1].rpc_sync<plus_one>("worker0", 1) == 2);
}

void check_contains(const std::string& text, std::string_view part) {
  CHECK_MESSAGE(text.find(part) != std::string::npos, "'", std::string(part), "' is not in '", text, "'");
}

}  // namespace

TEST_CASE("[row 48] a standard exception keeps its type, and the callee logs it") {
  captured_log log;
  cluster group(2);
  CHECK(text_of_failure<std::invalid_argument, fail_with_value_error>(group[0], "worker1", "expected error") ==
        "expected error");
  CHECK(log.has("worker1", "fail_with_value_error", "std::invalid_argument", "expected error"));
  expect_alive(group);
}

TEST_CASE("an exception with nested ones keeps its type, and its text names its causes") {
  ferry::register_exceptions<registered_error>();
  captured_log log;
  cluster group(2);
  const std::string causes =
      "; caused by exceptions_test::unregistered_error: no such table; caused by std::out_of_range: no such row";
  CHECK(text_of_failure<std::runtime_error, fail_with_causes>(group[0], "worker1", 0) == "cannot read" + causes);
  CHECK(text_of_failure<registered_error, fail_with_causes>(group[0], "worker1", 1) == "cannot read" + causes);
  expect_error(errc::bad_shape, "cannot read" + causes, [&] { group[0].rpc_sync<fail_with_causes>("worker1", 2); });
  CHECK(text_of_failure<ferry::remote_error, fail_with_causes>(group[0], "worker1", 3) ==
        "remote_exception: exceptions_test::unregistered_error: cannot read" + causes);
  try {
    group[0].rpc_sync<fail_with_causes>("worker1", 4);
    FAIL_CHECK("nothing was thrown");
  } catch (const std::system_error& problem) {
    CHECK(problem.code() == std::errc::io_error);
    const std::string text = problem.what();
    check_contains(text, "reading" + causes);
    CHECK(text.find("error", text.rfind(": ")) != std::string::npos);
  }
  check_contains(text_of_failure<std::filesystem::filesystem_error, fail_with_causes>(group[0], "worker1", 5),
                 "reading" + causes);
  CHECK(text_of_failure<std::runtime_error, fail_without_cause>(group[0], "worker1") == "first of all");
  const std::string many = text_of_failure<std::runtime_error, fail_with_many_causes>(group[0], "worker1");
  CHECK(many.starts_with("100; caused by std::runtime_error: 99; "));
  CHECK(many.ends_with("; and further causes"));
  CHECK(log.has("worker1", "fail_with_causes", "std::runtime_error: cannot read" + causes));
}

TEST_CASE("an exception that only the caller has registered is a remote_error: no codec has made bytes of it") {
  ferry::outgoing_message message;
  ferry::detail::encode_exception(std::make_exception_ptr(late_error("as thrown")), message);
  ferry::register_exceptions<late_error>();
  cluster group(2);
  ferry::inbound_message reply;
  reply.payload = message.payload();
  try {
    std::rethrow_exception(ferry::detail::decode_exception(reply, {}));
  } catch (const ferry::remote_error& e) {
    CHECK(e.type_name() == "exceptions_test::late_error");
    check_contains(e.what(), "exceptions_test::late_error: as thrown");
  }
}

TEST_CASE("[row 49] line breaks and other bytes in the text of an exception arrive as they are") {
  captured_log log;
  cluster group(2);
  const std::string text = "first\nsecond\n\t\"quoted\" \\n \xe2\x82\xac";
  CHECK(text_of_failure<std::invalid_argument, fail_with_value_error>(group[0], "worker1", text) == text);
}

TEST_CASE("every standard exception keeps its type") {
  captured_log log;
  cluster group(2);
  ferry::worker& self = group[0];
  CHECK(text_of_failure<std::domain_error, fail>(self, 1, 0) == "domain");
  CHECK(text_of_failure<std::length_error, fail>(self, 1, 1) == "length");
  CHECK(text_of_failure<std::out_of_range, fail>(self, 1, 2) == "range");
  CHECK(text_of_failure<std::logic_error, fail>(self, 1, 3) == "logic");
  CHECK(text_of_failure<std::range_error, fail>(self, 1, 4) == "range");
  CHECK(text_of_failure<std::overflow_error, fail>(self, 1, 5) == "overflow");
  CHECK(text_of_failure<std::underflow_error, fail>(self, 1, 6) == "underflow");
  CHECK(text_of_failure<std::runtime_error, fail>(self, 1, 7) == "runtime");
  check_contains(text_of_failure<std::system_error, fail>(self, 1, 8), "writing");
  try {
    (void)self.rpc_sync<fail>(1, 8);
  } catch (const std::system_error& e) {
    CHECK(e.code() == std::errc::no_space_on_device);
    CHECK(std::string(e.what()) ==
          std::system_error(std::make_error_code(std::errc::no_space_on_device), "writing").what());
  }
  CHECK(text_of_failure<std::future_error, fail>(self, 1, 13) ==
        std::future_error(std::future_errc::broken_promise).what());
  text_of_failure<std::bad_any_cast, fail>(self, 1, 14);
  CHECK(text_of_failure<std::exception, fail>(self, 1, 15) == std::exception().what());
  CHECK(text_of_failure<std::ios_base::failure, fail>(self, 1, 16) ==
        std::ios_base::failure("reading", std::make_error_code(std::errc::io_error)).what());
  CHECK(text_of_failure<std::ios_base::failure, fail>(self, 1, 17) == std::ios_base::failure("reading").what());
  for (const int which : {16, 17, 18, 19, 24, 25, 26, 27, 28, 29}) {
    CAPTURE(which);
    std::string here;
    try {
      (void)fail(which);
    } catch (const std::exception& e) {
      here = e.what();
    }
    REQUIRE_FALSE(here.empty());
    std::string there;
    try {
      (void)self.rpc_sync<fail>(1, which);
    } catch (const std::system_error& e) {
      there = e.what();
    }
    CHECK(there == here);
  }
  CHECK_THROWS_AS(self.rpc_sync<fail>(1, 27), std::filesystem::filesystem_error);
  CHECK_THROWS_AS(self.rpc_sync<fail>(1, 28), std::ios_base::failure);
  try {
    (void)self.rpc_sync<fail>(1, 18);
    FAIL_CHECK("nothing was thrown");
  } catch (const std::filesystem::filesystem_error& e) {
    CHECK(e.code() == std::errc::no_space_on_device);
    CHECK(e.path1() == "a file");
    CHECK(e.path2() == "b");
    CHECK(std::string(e.what()) ==
          std::filesystem::filesystem_error("cannot open", "a file", "b",
                                            std::make_error_code(std::errc::no_space_on_device))
              .what());
  }
  try {
    (void)self.rpc_sync<fail>(1, 19);
    FAIL_CHECK("nothing was thrown");
  } catch (const std::system_error& e) {
    CHECK(e.code() == errc::bad_shape);
  }
  for (int again = 0; again != 2; ++again) {
    try {
      // The second time through another worker.
      if (again == 0) {
        (void)self.rpc_sync<fail>(1, 23);
      } else {
        (void)self.rpc_sync<fail_beyond>(1, 23);
      }
      FAIL_CHECK("nothing was thrown");
    } catch (const std::system_error& e) {
      CHECK(std::string(e.what()) == "GET /: status 2");
      CHECK(e.code().category().name() == std::string("http status"));
      CHECK(e.code().value() == 2);
      CHECK(e.code() != std::errc::no_such_file_or_directory);
    }
  }
  text_of_failure<std::bad_alloc, fail>(self, 1, 9);
  text_of_failure<std::bad_optional_access, fail>(self, 1, 10);
  text_of_failure<std::bad_variant_access, fail>(self, 1, 11);
  try {
    fail(41);
  } catch (const std::bad_variant_access& e) {
    CHECK(text_of_failure<std::bad_variant_access, fail>(self, 1, 41) == e.what());
  }
  text_of_failure<std::bad_function_call, fail>(self, 1, 12);
  expect_alive(group);
}

TEST_CASE("the library's own exceptions keep their kind, and the caller's part is not mistaken for the method's") {
  captured_log log;
  cluster group(2);
  expect_error(errc::bad_shape, "a shape", [&] { (void)group[0].rpc_sync<fail>("worker1", 20); });
  CHECK(text_of_failure<ferry::rpc_timeout, fail>(group[0], "worker1", 21).find("the method's own") !=
        std::string::npos);
  try {
    (void)group[0].rpc_sync<fail>("worker1", 22);
    FAIL_CHECK("nothing was thrown");
  } catch (const ferry::remote_error& e) {
    CHECK(e.type_name() == "far::away");
    CHECK(e.message() == "passed on");
  }
}

TEST_CASE("registered exceptions keep type and content; others arrive as remote_error with the name of their type") {
  captured_log log;
  ferry::register_exceptions<registered_error>();
  ferry::register_exceptions<registered_error>();
  expect_error(errc::invalid_argument, "exceptions_test.registered",
               [] { ferry::register_exceptions<other_registered>(); });

  cluster group(2);
  try {
    (void)group[0].rpc_sync<fail>("worker1", 30);
    FAIL_CHECK("nothing was thrown");
  } catch (const registered_error& e) {
    CHECK(e.code == 17);
    CHECK(std::string(e.what()) == "registered");
  }
  const auto remote = [&](int which, std::string_view type, std::string_view text) {
    CAPTURE(which);
    try {
      (void)group[0].rpc_async<fail>("worker1", which).get();
      FAIL_CHECK("nothing was thrown");
    } catch (const ferry::remote_error& e) {
      CHECK(e.kind() == errc::remote_exception);
      CHECK(e.type_name() == type);
      check_contains(e.what(), text);
    }
  };
  remote(31, "exceptions_test::derived_error", "derived");
  remote(32, "exceptions_test::unregistered_error", "unregistered");
  remote(33, "exceptions_test::peculiar", "");
  remote(34, "int", "");
  check_contains(
      [&] {
        try {
          (void)group[0].rpc_sync<fail>("worker1", 35);
        } catch (const ferry::remote_error& e) {
          return std::string(e.what());
        }
        return std::string();
      }(),
      "only text");
  CHECK_THROWS_AS((void)group[0].rpc_sync<fail>("worker1", 36), ferry::remote_error);
  expect_alive(group);
}

TEST_CASE("an exception keeps its type through several workers") {
  captured_log log;
  cluster group(2);
  CHECK(text_of_failure<std::domain_error, fail_beyond>(group[0], "worker1", 0) == "domain");
  try {
    (void)group[0].rpc_sync<fail_beyond>("worker1", 32);
    FAIL_CHECK("nothing was thrown");
  } catch (const ferry::remote_error& e) {
    CHECK(e.type_name() == "exceptions_test::unregistered_error");
  }
}

TEST_CASE("errors that are more than there are threads leave the callee usable") {
  captured_log log;
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 2; }});
  std::vector<ferry::future<int>> failing;
  for (int i = 0; i != 64; ++i) failing.push_back(group[0].rpc_async<fail>("worker1", i % 8));
  for (auto& each : failing) CHECK_THROWS(each.get());
  for (int i = 0; i != 20; ++i) CHECK_THROWS_AS((void)group[0].rpc_sync<fail>("worker1", 7), std::runtime_error);
  expect_alive(group);
}

TEST_CASE("arguments that the callee cannot decode are an error that names method and worker, not a timeout") {
  captured_log log;
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.rpc_timeout = ferry::no_timeout; }});
  ferry::worker& self = group[0];
  const auto expect_bad = [&]<auto F>(const auto& argument, std::string_view method, std::string_view reason) {
    for (const std::string_view part : {method, reason, std::string_view("worker1")}) {
      expect_error(errc::bad_arguments, part, [&] { (void)self.rpc_sync<F>("worker1", argument); });
      expect_error(errc::bad_arguments, part, [&] { (void)self.rpc_async<F>("worker1", argument).get(); });
    }
  };
  expect_bad.operator()<take_little>(sends_too_little{}, "take_little", "");
  expect_bad.operator()<take_much>(sends_too_much{}, "take_much", "");
  expect_bad.operator()<take_unloadable>(throws_on_load{}, "take_unloadable", "cannot be loaded");
  expect_bad.operator()<take_int_thrower>(throws_an_int_on_load{}, "take_int_thrower", "");
  CHECK(self.rpc_sync<take_unloadable>("worker1", throws_on_load{false}) == 1);
  expect_alive(group);
}

TEST_CASE("arguments that cannot be encoded are the caller's own error, and nothing is sent") {
  captured_log log;
  cluster group(2);
  for (int i = 0; i != 3; ++i) {
    CHECK_THROWS_WITH_AS((void)group[0].rpc_sync<take_unsaveable>("worker1", throws_on_save{}), "cannot be saved",
                         std::domain_error);
    CHECK_THROWS_WITH_AS((void)group[0].rpc_async<take_unsaveable>("worker1", throws_on_save{}), "cannot be saved",
                         std::domain_error);
    CHECK_THROWS_WITH_AS(group[0].notify<take_unsaveable>("worker1", throws_on_save{}), "cannot be saved",
                         std::domain_error);
  }
  CHECK_THROWS_AS((void)group[0].rpc_sync<take_derived>("worker1", throws_derived_on_save{}), error_of_application);
  for (const std::string_view part : {"take_unnameable", "worker1", "in its arguments", "not square"}) {
    const throws_errors_of_ferry_on_save argument;
    expect_error(errc::bad_shape, part, [&] { (void)group[0].rpc_sync<take_unnameable>("worker1", argument); });
    expect_error(errc::bad_shape, part, [&] { (void)group[0].rpc_async<take_unnameable>("worker1", argument); });
    expect_error(errc::bad_shape, part, [&] { group[0].notify<take_unnameable>("worker1", argument); });
  }
  CHECK(group[0].rpc_sync<take_unsaveable>("worker1", throws_on_save{false}) == 1);
  expect_alive(group);
}

TEST_CASE("a result that cannot be encoded or decoded is an error that names method and worker, not a timeout") {
  captured_log log;
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.rpc_timeout = ferry::no_timeout; }});
  ferry::worker& self = group[0];
  const auto expect_bad = [&]<auto F>(std::string_view method, std::string_view reason, const auto&... arguments) {
    for (const std::string_view part : {method, reason, std::string_view("worker1")}) {
      expect_error(errc::bad_result, part, [&] { (void)self.rpc_sync<F>("worker1", arguments...); });
      expect_error(errc::bad_result, part, [&] { (void)self.rpc_async<F>("worker1", arguments...).get(); });
    }
  };
  expect_bad.operator()<give_unsaveable>("give_unsaveable", "cannot be saved", true);
  expect_bad.operator()<give_unsaveable_later>("give_unsaveable_later", "cannot be saved");
  expect_bad.operator()<give_unloadable>("give_unloadable", "cannot be loaded", true);
  expect_bad.operator()<give_little>("give_little", "");
  throws_when_made::now = true;
  expect_bad.operator()<give_unmakeable>("give_unmakeable", "cannot be made");
  throws_when_made::now = false;
  CHECK(self.rpc_sync<give_unmakeable>("worker1").value == 7);
  CHECK_NOTHROW((void)self.rpc_sync<give_unsaveable>("worker1", false));
  CHECK_FALSE(self.rpc_sync<give_unloadable>("worker1", false).really);
  expect_alive(group);
}

TEST_CASE("an exception of another language is an error of the call, and the worker goes on") {
  const captured_log quiet;
  cluster group(2);
  expect_error(errc::remote_exception, "no C++ exception", [&] { group[0].rpc_sync<throw_foreign>("worker1"); });
  expect_error(errc::remote_exception, "no C++ exception", [&] { group[0].rpc_sync<throw_foreign_later>("worker1"); });
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
}

TEST_CASE("a handler that cancels its thread does not end it") {
  cluster group(2);
  CHECK(group[0].rpc_sync<cancel_own_thread>("worker1") == 7);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
}

TEST_CASE("a handler that ends its thread fails its call, and another thread takes the place") {
  const captured_log quiet;
  constexpr int places = 3;
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = places; }});
  ferry::worker& self = group[0];
  threads_ended = 0;
  int ended = 0;
  const auto expect_end = [&](std::string_view method, const auto& call) {
    for (const std::string_view part : {method, std::string_view("worker1"), std::string_view("ended its thread")})
      expect_error(errc::remote_exception, part, call);
    ended += 3;
  };
  expect_end("end_thread", [&] { self.rpc_sync<end_thread>("worker1", false); });
  expect_end("end_thread", [&] { self.rpc_sync<end_thread>("worker1", true); });
  expect_end("end_thread_later", [&] { self.rpc_sync<end_thread_later>("worker1", false); });
  expect_end("end_thread_later", [&] { self.rpc_sync<end_thread_later>("worker1", true); });
  expect_end("end_thread_in_continuation", [&] { self.rpc_sync<end_thread_in_continuation>("worker1"); });
  expect_end("allow_cancellation", [&] { self.rpc_sync<allow_cancellation>("worker1"); });
  expect_end("ends_thread_made", [&] { self.remote<ferry::make<ends_thread_made>>("worker1").to_here(); });
  expect_error(errc::bad_result, "give_thread_end", [&] { self.rpc_sync<give_thread_end>("worker1"); });
  self.notify<log_thread_end>("worker1");
  ended += 2;

  // More than there are places, some of them in line behind others.
  std::vector<ferry::future<int>> many;
  for (int i = 0; i < 4 * places; ++i) {
    many.push_back(self.rpc_async<end_thread>("worker1", i % 2 == 0));
    many.push_back(self.rpc_async<plus_one>("worker1", i));
  }
  for (int i = 0; i < 4 * places; ++i) {
    expect_error(errc::remote_exception, "end_thread", [&] { many[2 * i].get(); });
    CHECK(many[2 * i + 1].get() == i + 1);
  }
  std::vector<ferry::future<void>> together;
  for (int i = 0; i < places; ++i) together.push_back(self.rpc_async<meet>("worker1", places));
  for (const auto& each : together) each.get();
  while (threads_ended != ended + 4 * places) std::this_thread::yield();  // the watchdog bounds it
}

TEST_CASE("an exception or failure that cannot be decoded is an error that names the call and the peer") {
  const captured_log quiet;
  ferry::register_exceptions<undecodable_error>();
  cluster group(2);
  for (const std::string_view part :
       {"call of", "fail", "worker1", "the exception that the method threw", "no such number",
        "exceptions_test.undecodable: undecodable; its decoder threw std::out_of_range"}) {
    expect_error(errc::bad_result, part, [&] { group[0].rpc_sync<fail>("worker1", 37); });
    expect_error(errc::bad_result, part, [&] { group[0].rpc_async<fail>("worker1", 37).get(); });
  }

  const ferry::detail::call_facts facts{group[0].core(),
                                        &ferry::detail::usable_method<plus_one, ferry::detail::method_flavour::call>(),
                                        group[0].get_worker_info("worker1"),
                                        {}};
  const auto expect_bad = [&](ferry::frame_kind kind, errc code, std::string_view what, std::string_view bytes) {
    for (const std::string_view part :
         {std::string_view("call of"), std::string_view("plus_one"), std::string_view("worker1"), what}) {
      ferry::inbound_message reply;
      reply.header.kind = kind;
      reply.header.code = static_cast<std::uint32_t>(code);
      reply.payload = std::as_bytes(std::span(bytes));
      expect_error(errc::bad_result, part, [&] { ferry::detail::check_reply(facts, reply); });
    }
  };
  for (const std::string_view garbage :
       {std::string_view(), std::string_view("\x01"), std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        std::string_view("garbage, and more than is read as a length")}) {
    expect_bad(ferry::frame_kind::exception, errc{}, "the exception that the method threw could not be decoded",
               garbage);
    expect_bad(ferry::frame_kind::failure, errc::bad_arguments, "why it failed (bad_arguments) could not be decoded",
               garbage);
  }
}

TEST_CASE("an exception that cannot be encoded is an error that names it and why") {
  captured_log log;
  ferry::register_exceptions<unencodable_error>();
  cluster group(2);
  for (const std::string_view part : {"call of", "fail", "worker1", "exceptions_test::unencodable_error: the first",
                                      "std::logic_error: the second"}) {
    expect_error(errc::bad_result, part, [&] { group[0].rpc_sync<fail>("worker1", 38); });
    expect_error(errc::bad_result, part, [&] { group[0].rpc_async<fail>("worker1", 38).get(); });
  }
  CHECK(log.has("worker1", "fail", "exceptions_test::unencodable_error", "the first"));
  expect_alive(group);
}

TEST_CASE("an exception without a text arrives with its type") {
  const captured_log quiet;
  cluster group(2);
  for (const auto& [which, type] : {std::pair(39, "exceptions_test::without_text"), std::pair(40, "char const*")}) {
    try {
      (void)group[0].rpc_sync<fail>("worker1", which);
      FAIL_CHECK("nothing was thrown");
    } catch (const ferry::remote_error& e) {
      CHECK(e.type_name() == type);
      CHECK(e.message() == std::string(type) + ": ");
    }
  }
  // Thrown by an encoder, here and there.
  expect_error(errc::bad_result, "exceptions_test::without_text",
               [&] { (void)group[0].rpc_sync<give_textless>("worker1"); });
  int thrown = 0;  // doctest prints the text of what it expects to be thrown
  try {
    (void)group[0].rpc_sync<take_textless>("worker1", throws_without_text{});
  } catch (const without_text&) {
    ++thrown;
  }
  try {
    (void)group[0].rpc_async<take_textless>("worker1", throws_without_text{});
  } catch (const without_text&) {
    ++thrown;
  }
  CHECK(thrown == 2);
  ferry::make_ready_future(1).add_done_callback([](const ferry::future<int>&) { throw without_text(); });
  expect_alive(group);
}

TEST_CASE("an error of a tensor function arrives as it was thrown") {
  captured_log log;
  cluster group(2);
  expect_error(errc::bad_shape, "the shapes differ",
               [&] { (void)group[0].rpc_sync<add>("worker1", ferry::ones({2}), ferry::ones({3})); });
  CHECK(equal(group[0].rpc_sync<add>("worker1", ferry::ones({2}), ferry::ones({2})), ferry::ones({2})));
}

}  // namespace exceptions_test
