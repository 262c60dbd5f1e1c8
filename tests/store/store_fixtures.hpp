#pragma once

// The stores under test. A fixture is one store; open() returns a handle on it, as another worker would have.

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/store/file_store.hpp>
#include <ferry/store/hash_store.hpp>
#include <ferry/store/prefix_store.hpp>
#include <ferry/store/tcp_store.hpp>

#include <ferry/test_kit/store_conformance.hpp>

#include "temporary_directory.hpp"

namespace store_test {

using namespace ferry::test_kit;

using ferry_test::temporary_directory;

/// Opens the store that another process named by its fixture's location().
inline std::shared_ptr<ferry::store> open_any_location(const std::string& location);

/// A store that other processes can open.
struct shared_fixture : store_fixture {
  static std::shared_ptr<ferry::store> open_location(const std::string& location) {
    return open_any_location(location);
  }
  std::shared_ptr<ferry::store> open() override { return open_location(location()); }
};

/// Runs the (skipped) test case `role` of this binary in another process, on the store of `fixture`.
inline child_process start_role(store_fixture& fixture, const std::string& role) {
  return {role, {{"FERRY_TEST_STORE", fixture.location()}}};
}

struct hash_fixture final : store_fixture {
  std::shared_ptr<ferry::hash_store> first = std::make_shared<ferry::hash_store>();
  std::shared_ptr<ferry::store> open() override { return first->share(); }
  std::string location() override { return {}; }
};

struct file_fixture final : shared_fixture {
  temporary_directory directory;
  std::string location() override { return "file:" + directory.file("store"); }
};

struct tcp_fixture final : shared_fixture {
  std::shared_ptr<ferry::tcp_store_server> server = ferry::tcp_store_server::listen("127.0.0.1", 0);
  std::string location() override { return "tcp:" + std::to_string(server->port()); }
};

template <class Fixture>
struct prefix_fixture final : shared_fixture {
  Fixture wrapped;
  std::shared_ptr<ferry::store> open() override {
    return std::make_shared<ferry::prefix_store>("group_7", wrapped.open());
  }
  std::string location() override { return "prefix:" + wrapped.location(); }
};

inline std::shared_ptr<ferry::store> open_any_location(const std::string& location) {
  const auto colon = location.find(':');
  const std::string kind = location.substr(0, colon);
  const std::string rest = location.substr(colon + 1);
  if (kind == "prefix") return std::make_shared<ferry::prefix_store>("group_7", open_any_location(rest));
  if (kind == "file") return std::make_shared<ferry::file_store>(rest);
  if (kind == "tcp") {
    return std::make_shared<ferry::tcp_store>(
        ferry::tcp_store_options{.host = "127.0.0.1", .port = static_cast<std::uint16_t>(std::stoi(rest))});
  }
  throw std::runtime_error("unknown store location " + location);
}

}  // namespace store_test
