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

struct counting_options : ferry::rpc_options {
  std::atomic<int>* started = nullptr;
};
struct counting {};

std::atomic<int> started_by_name{0};

}  // namespace backend_test

// A backend of one's own: the native one, counted.
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
static_assert(ferry::rpc_backend<backend_test::counting>);
static_assert(!ferry::rpc_backend<int>);

using backends = ferry::backend_list<ferry::native, backend_test::counting>;

namespace {
ferry::worker_config lonely(const ferry_test::temporary_directory& directory, const std::string& file) {
  return {.name = "alone", .rank = 0, .world_size = 1, .init_method = "file://" + directory.file(file)};
}
}  // namespace

TEST_CASE("a backend is found by its name; an unknown name lists the known ones") {
  CHECK(backends::find("native").name == "native");
  CHECK(backends::find("counting").name == "counting");
  CHECK(backends::factories().size() == 2);
  expect_error(ferry::errc::unknown_backend, "'nonsense'", [] { (void)backends::find("nonsense"); });
  expect_error(ferry::errc::unknown_backend, "'native', 'counting'", [] { (void)backends::find("nonsense"); });
}

TEST_CASE("a worker starts with the backend picked by name, or with a backend and its own options") {
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
  expect_error(ferry::errc::unknown_backend, "'nonsense'",
               [&] { (void)ferry::init_rpc(backends{}, "nonsense", lonely(directory, "four")); });
}
