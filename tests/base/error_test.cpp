#include <ferry/base/error.hpp>

#include <doctest/doctest.h>

namespace error_test {

TEST_CASE("an error has its kind and its text, and stays a std::system_error") {
  try {
    ferry::throw_error(ferry::errc::rpc_timeout, "call of f to w1");
    FAIL("nothing was thrown");
  } catch (const ferry::rpc_timeout& e) {
    CHECK(std::string(e.what()) == "rpc_timeout: call of f to w1");
    CHECK(e.message() == "call of f to w1");
    CHECK((e.code() == ferry::errc::rpc_timeout));
    CHECK(e.code().value() == 400);
    CHECK(std::string(e.code().category().name()) == "ferry");
  }
}

}  // namespace error_test
