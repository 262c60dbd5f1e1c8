// A message above a limit of the worker that sends it, or of the one that is to receive it, is an error of its call alone,
// whatever the message is and whichever way it would go.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/rpc/interceptor.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace limits_test {

using ferry::errc;
using ferry::tensor;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::cluster_options;

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 20;
constexpr std::int64_t too_many = 4 << 20;  // bytes

ferry_test::gate door;
int bystander(int value) {
  door.pass();
  return value;
}

std::size_t length(const std::string& text) { return text.size(); }
std::size_t count(const std::vector<tensor>& all) { return all.size(); }
std::string give_text(std::int64_t bytes) { return std::string(static_cast<std::size_t>(bytes), 'r'); }
ferry::future<std::string> give_text_later(std::int64_t bytes) { return ferry::make_ready_future(give_text(bytes)); }
std::vector<tensor> give_tensors(int number, const std::vector<std::int64_t>& shape) {
  std::vector<tensor> result;  // each of its own: one that comes twice is sent once
  for (int i = 0; i != number; ++i) result.push_back(ferry::zeros(shape));
  return result;
}
void fail(std::int64_t bytes) { throw std::domain_error("begins so " + give_text(bytes)); }

struct throws_on_load {
  template <class Archive>
  void save(Archive& archive) const {
    archive(1);
  }
  template <class Archive>
  void load(Archive&) {
    throw std::domain_error("begins so " + give_text(too_many));
  }
};
int take_unloadable(const throws_on_load&) { return 1; }

// As its method: adds records to the request, or to the answer.
struct adds_records final : ferry::interceptor {
  std::size_t to_request = 0;
  std::size_t to_reply = 0;
  [[nodiscard]] std::string_view name() const noexcept override { return "adds records"; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    for (std::size_t i = 0; i != to_request; ++i) request.add_record(0x8000, false, {});
    return nullptr;
  }
  std::unique_ptr<ferry::callee_hooks> on_arrival(ferry::incoming_request&) override {
    if (to_reply == 0) return nullptr;
    struct hooks final : ferry::callee_hooks {
      explicit hooks(std::size_t bytes) : content(bytes) {}
      void on_reply(ferry::outgoing_reply& reply) override { reply.add_record(0x8000, false, content); }
      std::vector<std::byte> content;
    };
    return std::make_unique<hooks>(to_reply);
  }
};

cluster_options limited(const char* transport, const std::shared_ptr<ferry::interceptor>& with = nullptr) {
  return {.configure = [transport, with](ferry::worker_config& config) {
    config.transports = {transport};
    config.rpc_timeout = ferry::no_timeout;
    config.transport.limits = {.max_message_bytes = most_bytes,
                               .max_tensors = 4,
                               .max_rank = 3,
                               .max_extension_bytes = 4096,
                               .max_extensions = 8};
    if (with) config.interceptors = {with};
  }};
}

// The error has all parts, and a call that was under way all the time ends well.
void expect_limit(std::initializer_list<std::string_view> parts, checked_action action,
                  errc kind = errc::limit_exceeded) {
  for (const std::string_view part : parts) expect_error(kind, part, action);
}

struct witness {
  explicit witness(cluster& group) : under_way(group[0].rpc_async<bystander>("worker1", 7)) { door.await_arrivals(1); }
  ~witness() {
    door.open();
    CHECK(under_way.get() == 7);
    door.reset();
  }
  ferry::future<int> under_way;
};

constexpr const char* transports[] = {"inproc", "unix", "tcp", "shm"};

TEST_CASE("a request above a limit of the caller is an error of that call, before anything is sent") {
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, limited(transport));
    ferry::worker& self = group[0];
    {
      const witness other(group);
      const auto large = std::vector{ferry::zeros({too_many / 4})};
      for (const std::string_view part : {"4194304 bytes of tensors", "1048576", "wire_limits::max_message_bytes"}) {
        expect_error(errc::limit_exceeded, part, [&] { (void)self.rpc_sync<count>("worker1", large); });
        expect_error(errc::limit_exceeded, part, [&] { (void)self.rpc_async<count>("worker1", large); });
        expect_error(errc::limit_exceeded, part, [&] { self.notify<count>("worker1", large); });
        expect_error(errc::limit_exceeded, part, [&] { (void)self.remote<count>("worker1", large); });
      }
      expect_limit({"max_message_bytes", "1048576"},
                   [&] { (void)self.rpc_sync<length>("worker1", give_text(most_bytes)); });
      expect_limit({"max_tensors", "5 tensors", "the limit is 4"},
                   [&] { (void)self.rpc_sync<count>("worker1", give_tensors(5, {1})); });
      expect_limit({"max_rank", "4 dimensions", "the limit is 3"}, [&] {
        (void)self.rpc_sync<count>("worker1", give_tensors(2, {1, 1, 1, 1}));
      });
      // Made whole only while it is sent.
      expect_limit({"max_message_bytes"}, [&] {
        (void)self.rpc_sync<count>("worker1", std::vector{ferry::zeros({512, 1024}).transpose(0, 1)});
      });
    }
    CHECK(self.rpc_sync<count>("worker1", give_tensors(4, {1, 1, 1})) == 4);
    CHECK(self.rpc_sync<length>("worker1", give_text(most_bytes - 8)) == most_bytes - 8);
    // One row is sent for all.
    CHECK(self.rpc_sync<count>("worker1", std::vector{ferry::zeros({1, 1024}).expand({4096, 1024})}) == 1);
  }
}

TEST_CASE("an answer above a limit of the callee is an error of that call") {
  const captured_log quiet;
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, limited(transport));
    ferry::worker& self = group[0];
    {
      const witness other(group);
      for (const std::string_view part :
           {"give_text", "result", "1048576", "max_message_bytes", "4194312", "worker1"}) {
        expect_error(errc::limit_exceeded, part, [&] { (void)self.rpc_sync<give_text>("worker1", too_many); });
        expect_error(errc::limit_exceeded, part,
                     [&] { (void)self.rpc_async<give_text_later>("worker1", too_many).get(); });
      }
      expect_limit({"give_tensors", "result", "5 tensors", "max_tensors"},
                   [&] { (void)self.rpc_sync<give_tensors>("worker1", 5, std::vector<std::int64_t>{1}); });
      expect_limit({"give_tensors", "result", "4 dimensions", "max_rank"}, [&] {
        (void)self.rpc_sync<give_tensors>("worker1", 1, std::vector<std::int64_t>{1, 1, 1, 1});
      });
      const auto made = self.remote<give_text>("worker1", too_many);
      expect_limit({"max_message_bytes", "1048576"}, [&] { (void)made.to_here(); });
    }
    CHECK(self.rpc_sync<give_text>("worker1", std::int64_t{most_bytes - 8}).size() == most_bytes - 8);
  }
}

TEST_CASE("an exception whose text is above a limit is an error of that call, with what it begins with") {
  const captured_log quiet;
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, limited(transport));
    ferry::worker& self = group[0];
    const witness other(group);
    for (const std::string_view part :
         {"'limits_test::fail'", "std::domain_error: begins so rrr", "max_message_bytes", "1048576"})
      expect_error(errc::limit_exceeded, part, [&] { self.rpc_sync<fail>("worker1", too_many); });
    for (const std::string_view part : {"take_unloadable", "std::domain_error: begins so rrr"})
      expect_error(errc::bad_arguments, part,
                   [&] { (void)self.rpc_sync<take_unloadable>("worker1", throws_on_load{}); });
    CHECK_THROWS_AS(self.rpc_sync<fail>("worker1", 1000), std::domain_error);
  }
}

TEST_CASE("extension records above a limit are an error of the call") {
  const captured_log quiet;
  for (const char* transport : transports) {
    CAPTURE(transport);
    const auto adds = std::make_shared<adds_records>();
    cluster group(2, limited(transport, adds));
    ferry::worker& self = group[0];
    const witness other(group);
    adds->to_request = 9;
    expect_limit({"8 extension records", "max_extensions"}, [&] { (void)self.rpc_sync<length>("worker1", "a"); });
    adds->to_request = 0;
    adds->to_reply = 5000;
    expect_limit({"bytes of extension records", "4096", "max_extension_bytes"},
                 [&] { (void)self.rpc_sync<length>("worker1", "a"); });
    adds->to_reply = 3000;
    CHECK(self.rpc_sync<length>("worker1", "a") == 1);
  }
}

// worker1 takes less than worker0, in both kinds of groups.
cluster_options unequal(const char* transport, bool dynamic, bool callee_is_limited) {
  return {.configure = [=](ferry::worker_config& config) {
    config.transports = {transport};
    config.rpc_timeout = ferry::no_timeout;
    if (dynamic) config.world_size = ferry::dynamic_world;
    if ((config.name == "worker1") == callee_is_limited) {
      config.transport.limits = {.max_message_bytes = most_bytes, .max_tensors = 4, .max_rank = 3, .max_extensions = 8};
    }
  }};
}

TEST_CASE("a request above a limit of the callee alone is an error of that call") {
  for (const bool dynamic : {false, true}) {
    for (const char* transport : transports) {
      CAPTURE(transport);
      CAPTURE(dynamic);
      const auto adds = std::make_shared<adds_records>();
      cluster_options options = unequal(transport, dynamic, true);
      options.configure = [adds, rest = options.configure](ferry::worker_config& config) {
        rest(config);
        config.interceptors = {adds};
      };
      cluster group(2, options);
      ferry::worker& self = group[0];
      const witness other(group);
      const auto large = std::vector{ferry::zeros({too_many / 4})};
      for (const std::string_view part : {"4194304 bytes of tensors", "the limit of 'worker1' is 1048576",
                                          "wire_limits::max_message_bytes", "call of 'limits_test::count' from"}) {
        expect_error(errc::limit_exceeded, part, [&] { (void)self.rpc_sync<count>("worker1", large); });
        expect_error(errc::limit_exceeded, part, [&] { (void)self.rpc_async<count>("worker1", large).get(); });
        expect_error(errc::limit_exceeded, part, [&] { self.notify<count>("worker1", large); });
        expect_error(errc::limit_exceeded, part, [&] { (void)self.remote<count>("worker1", large).to_here(); });
      }
      expect_limit({"the request has 5 tensors", "'worker1' is 4", "max_tensors"},
                   [&] { (void)self.rpc_sync<count>("worker1", give_tensors(5, {1})); });
      expect_limit({"max_rank", "4 dimensions", "'worker1' is 3"}, [&] {
        (void)self.rpc_sync<count>("worker1", give_tensors(2, {1, 1, 1, 1}));
      });
      adds->to_request = 9;
      expect_limit({"8 extension records", "max_extensions"}, [&] { (void)self.rpc_sync<length>("worker1", "a"); });
      adds->to_request = 0;
      CHECK(self.rpc_sync<length>("worker1", give_text(most_bytes - 8)) == most_bytes - 8);
      // A worker without limits of its own takes more.
      CHECK(self.rpc_sync<length>("worker0", give_text(too_many)) == too_many);
    }
  }
}

TEST_CASE("an answer above a limit of the caller alone is an error of that call") {
  const captured_log quiet;
  for (const bool dynamic : {false, true}) {
    for (const char* transport : transports) {
      CAPTURE(transport);
      CAPTURE(dynamic);
      cluster group(2, unequal(transport, dynamic, false));
      ferry::worker& self = group[0];
      {
        const witness other(group);
        expect_limit({"the result has 4194312 bytes", "the limit of 'worker0' is 1048576", "give_text"},
                     [&] { (void)self.rpc_sync<give_text>("worker1", too_many); });
        expect_limit({"the result has 5 tensors", "max_tensors"},
                     [&] { (void)self.rpc_async<give_tensors>("worker1", 5, std::vector<std::int64_t>{1}).get(); });
        expect_limit({"'limits_test::fail'", "std::domain_error: begins so rrr", "max_message_bytes", "'worker0'"},
                     [&] { self.rpc_sync<fail>("worker1", too_many); });
        const auto made = self.remote<give_text>("worker1", too_many);
        expect_limit({"max_message_bytes", "'worker0' is 1048576"}, [&] { (void)made.to_here(); });
      }
      CHECK(self.rpc_sync<give_text>("worker1", std::int64_t{most_bytes - 8}).size() == most_bytes - 8);
    }
  }
}

TEST_CASE("what cannot be answered to a caller that takes little is told in as much as that caller takes") {
  const captured_log quiet;
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  if (config.name == "worker0") config.transport.limits.max_message_bytes = 1024;
                }});
  for (const std::string_view part :
       {"'limits_test::fail'", "std::domain_error: begins so rrr", "the limit of 'worker0' is 1024"})
    expect_error(errc::limit_exceeded, part, [&] { group[0].rpc_sync<fail>("worker1", 5000); });
  expect_error(errc::limit_exceeded, "give_text", [&] { (void)group[0].rpc_sync<give_text>("worker1", 5000); });
}

}  // namespace limits_test
