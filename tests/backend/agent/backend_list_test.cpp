#include <ferry/backend/backend.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace backend_test {

int twice(int value) { return 2 * value; }

struct counting {};
struct counting_options : ferry::rpc_options {
  using backend = counting;
  std::atomic<int>* started = nullptr;
};

std::atomic<int> started_by_name{0};

}  // namespace backend_test

// A custom backend: the native one, with a counter.
template <>
struct ferry::backend_traits<backend_test::counting> {
  static constexpr std::string_view name = "counting";
  using options_type = backend_test::counting_options;
  static options_type construct_options(ferry::rpc_options base) {
    return {std::move(base), &backend_test::started_by_name};
  }
  static std::unique_ptr<ferry::agent> init(std::shared_ptr<ferry::store> group_store,
                                            const ferry::worker_config& config, const options_type& options) {
    ++*options.started;
    const ferry::rpc_options& base = options;
    return ferry::backend_traits<ferry::native>::init(std::move(group_store), config,
                                                      ferry::backend_traits<ferry::native>::construct_options(base));
  }
};

namespace backend_test {
static_assert(ferry::rpc_backend<backend_test::counting>);
static_assert(!ferry::rpc_backend<int>);

using backends = ferry::backend_list<ferry::native, backend_test::counting>;

namespace {
ferry::worker_config lonely(const ferry_test::temporary_directory& directory, const std::string& file) {
  return {.name = "alone", .rank = 0, .world_size = 1, .init_method = "file://" + directory.file(file)};
}
}  // namespace

TEST_CASE("a backend is found by its name; the error for an unknown name lists the known ones") {
  CHECK(backends::find("native").name == "native");
  CHECK(backends::find("counting").name == "counting");
  CHECK(backends::factories().size() == 2);
  expect_error(ferry::errc::unknown_backend, "'nonsense'", [] { (void)backends::find("nonsense"); });
  expect_error(ferry::errc::unknown_backend, "'native', 'counting'", [] { (void)backends::find("nonsense"); });
}

TEST_CASE("a program can ask whether it has a backend") {
  static_assert(ferry::backend_registered(backends(), "counting"));
  CHECK(ferry::backend_registered(backends{}, "native"));
  CHECK_FALSE(ferry::backend_registered(backends{}, "nonsense"));
}

TEST_CASE("[row 13] a worker starts with the backend picked by name, or with a backend and its own options") {
  ferry_test::temporary_directory directory;
  const int before = backend_test::started_by_name;
  {
    ferry::worker self = ferry::init_rpc(backends{}, "counting", lonely(directory, "one"));
    CHECK(backend_test::started_by_name == before + 1);
    CHECK(self.rpc_sync<backend_test::twice>("alone", 21) == 42);
  }
  {
    ferry::worker self = ferry::init_rpc(backends{}, "native", lonely(directory, "two"));
    CHECK(backend_test::started_by_name == before + 1);
    CHECK(self.rpc_sync<backend_test::twice>("alone", 21) == 42);
  }
  std::atomic<int> own{0};
  backend_test::counting_options options;
  options.started = &own;
  {
    ferry::worker self = ferry::init_rpc<backend_test::counting>(lonely(directory, "three"), options);
    CHECK(own == 1);
    CHECK(backend_test::started_by_name == before + 1);
    CHECK(self.rpc_sync<backend_test::twice>("alone", 4) == 8);
  }
  {
    ferry::worker self = ferry::init_rpc<backend_test::counting>(lonely(directory, "four"));
    CHECK(backend_test::started_by_name == before + 2);
    CHECK(self.rpc_sync<backend_test::twice>("alone", 5) == 10);
  }
  expect_error(ferry::errc::unknown_backend, "'nonsense'",
               [&] { (void)ferry::init_rpc(backends{}, "nonsense", lonely(directory, "five")); });
}

TEST_CASE("a backend constructs its options from the common ones") {
  const auto options = ferry::construct_rpc_backend_options<backend_test::counting>({.num_worker_threads = 3});
  CHECK(options.num_worker_threads == 3);
  CHECK(options.rpc_timeout == ferry::rpc_options{}.rpc_timeout);
  CHECK(options.started == &backend_test::started_by_name);
}

TEST_CASE("[row 17] the backend is inferred from the type of its options") {
  ferry_test::temporary_directory directory;
  std::atomic<int> own{0};
  backend_test::counting_options options;
  options.started = &own;
  {
    ferry::worker self = ferry::init_rpc(lonely(directory, "one"), options);
    CHECK(own == 1);
    CHECK(self.rpc_sync<backend_test::twice>("alone", 21) == 42);
  }
  {
    ferry::worker self = ferry::init_rpc(backends{}, lonely(directory, "two"), options);
    CHECK(own == 2);
  }
  {
    ferry::worker self = ferry::init_rpc(lonely(directory, "three"), ferry::native_options{});
    CHECK(own == 2);
  }
  {
    ferry::worker self = ferry::init_rpc(backends{}, lonely(directory, "four"), ferry::native_options{});
    CHECK(own == 2);
  }
}

TEST_CASE("[row 16] options of another backend than the named one are refused") {
  ferry_test::temporary_directory directory;
  std::atomic<int> own{0};
  backend_test::counting_options options;
  options.started = &own;
  { ferry::worker self = ferry::init_rpc(backends{}, "counting", lonely(directory, "one"), options); }
  CHECK(own == 1);
  const auto config = lonely(directory, "two");
  expect_error(ferry::errc::invalid_argument, "native_options, not of type",
               [&] { (void)ferry::init_rpc(backends{}, "native", config, options); });
  expect_error(ferry::errc::invalid_argument, "not of type backend_test::counting_options",
               [&] { (void)ferry::init_rpc(backends{}, "native", config, options); });
  expect_error(ferry::errc::unknown_backend, "'nonsense'",
               [&] { (void)ferry::init_rpc(backends{}, "nonsense", config, options); });
  CHECK(own == 1);
}

TEST_CASE("values that the configuration and the options both set must agree") {
  ferry_test::temporary_directory directory;
  ferry::worker_config config = lonely(directory, "one");
  config.rpc_timeout = std::chrono::seconds(7);
  ferry::native_options options;
  options.num_worker_threads = 5;
  {
    const ferry::worker self = ferry::init_rpc(config, options);
    CHECK(self.rpc_timeout() == ferry::timeout(std::chrono::seconds(7)));
    CHECK(self.debug_info("agent.thread_pool_size") == "5");
  }
  options.rpc_timeout = std::chrono::seconds(8);
  expect_error(ferry::errc::invalid_argument, "rpc_timeout", [&] { (void)ferry::init_rpc(config, options); });
}

}  // namespace backend_test
