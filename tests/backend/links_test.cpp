// What a link does while its connection is not open yet.

#include "links.hpp"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/wire/serialize.hpp>

namespace {

using namespace ferry;
using namespace std::chrono_literals;

struct owner final : detail::link_owner {
  std::int64_t sent = 0;
  void on_link_closed(void*) noexcept override {}
  void count_late_reply() noexcept override {}
  [[nodiscard]] bool closing() const noexcept override { return false; }
  void count_sent(std::int64_t change) noexcept override { sent += change; }
  void count_handled(std::int64_t) noexcept override {}
  void run_later(work* item) noexcept override { item->run(item); }
  void check_deadlines_at(deadline) noexcept override {}
};

struct recorder final : connection {
  std::vector<frame_header> frames;
  void start(std::shared_ptr<connection_receiver>) override {}
  void send(outgoing_message&& message) noexcept override {
    frames.push_back(frame_header::decode(message.bytes.data(), {}));
  }
  void close(std::exception_ptr) noexcept override {}
  [[nodiscard]] std::string_view transport_name() const noexcept override { return "recorder"; }
  [[nodiscard]] std::string description() const override { return "recorder"; }
};

struct waiting_call final : pending_call {
  errc failed_with{};
  void on_reply(inbound_message&&) noexcept override {}
  void on_failure(errc code, call_phase, const std::string&) noexcept override { failed_with = code; }
};

outgoing_message request_with(std::chrono::microseconds timeout) {
  outgoing_message request;
  request.header.kind = frame_kind::request;
  request.header.flags = timeout.count() == 0 ? frame_no_deadline : 0;
  request.header.timeout_us = static_cast<std::uint64_t>(timeout.count());
  request.begin_payload();
  return request;
}

struct connecting {
  std::shared_ptr<owner> owns = std::make_shared<owner>();
  std::shared_ptr<detail::outgoing_link> link =
      std::make_shared<detail::outgoing_link>(owns, worker_info("peer", worker_id{1}));
  std::shared_ptr<recorder> wire = std::make_shared<recorder>();

  std::uint64_t call(waiting_call& call, std::chrono::microseconds timeout) {
    auto request = request_with(timeout);
    std::uint64_t id = 0;
    const deadline until = timeout.count() == 0 ? deadline() : deadline(clock::now() + timeout);
    REQUIRE(link->call(request, call, until, false, id));
    return id;
  }
};

}  // namespace

TEST_CASE("what a caller has waited for the connection is taken off the timeout that the callee sees") {
  connecting to;
  waiting_call limited, unlimited;
  to.call(limited, 10s);
  to.call(unlimited, 0s);
  to.link->opened(to.wire);
  REQUIRE(to.wire->frames.size() == 2);
  CHECK(to.wire->frames[0].timeout_us < 10'000'000);
  CHECK(to.wire->frames[0].timeout_us > 0);
  CHECK((to.wire->frames[1].flags & frame_no_deadline) != 0);
  CHECK(to.wire->frames[1].timeout_us == 0);
}

TEST_CASE("a call that is given up before the connection is open is never sent") {
  connecting to;
  waiting_call kept, given_up, expired;
  const auto first = to.call(kept, 60s);
  const auto second = to.call(given_up, 60s);
  to.call(expired, 1us);
  CHECK(to.owns->sent == 3);
  call_phase phase = call_phase::waiting_for_reply;
  CHECK(to.link->abandon(second, phase, true));
  CHECK(phase == call_phase::connecting);
  to.link->expire(clock::now() + 1s);
  CHECK(expired.failed_with == errc::rpc_timeout);
  CHECK(to.owns->sent == 1);
  to.link->opened(to.wire);
  REQUIRE(to.wire->frames.size() == 1);
  CHECK(to.wire->frames[0].call_id == first);
}

TEST_CASE("a one-way message with a tensor that is tried on a second link is still whole") {
  connecting first, second;
  second.link->opened(second.wire);
  auto request = request_with(0us);
  request.header.flags |= frame_one_way;
  encode_values<tensor>(request.bytes, request.tensors, ones({2, 3}));
  const auto payload = request.bytes.size() - frame_header::encoded_size;
  request.finish();  // the first link took it, and was closed meanwhile
  first.link->fail(errc::connect_failed, "lost");
  REQUIRE_FALSE(first.link->notify(request));
  REQUIRE(second.link->notify(request));
  REQUIRE(second.wire->frames.size() == 1);
  CHECK(second.wire->frames[0].payload_bytes == payload);
  CHECK(second.wire->frames[0].tensor_count == 1);
}

TEST_CASE("the deleter of a tensor may use the link when its call is given up while connecting, or the link ends") {
  for (const bool link_ends : {false, true}) {
    connecting to;
    std::atomic<int> deleted{0};
    std::promise<void> ended;
    std::thread user([&] {
      waiting_call call;
      auto request = request_with(0us);
      float data[4] = {};
      {
        const auto t = from_blob(data, {4}, dtype::f32, [&](void*) {
          ++deleted;
          auto other = request_with(0us);
          other.header.flags |= frame_one_way;
          (void)to.link->notify(other);
        });
        encode_values<tensor>(request.bytes, request.tensors, t);
      }
      std::uint64_t id = 0;
      (void)to.link->call(request, call, {}, false, id);
      call_phase phase{};
      if (link_ends) {
        to.link->fail(errc::connect_failed, "nobody is there");
      } else {
        (void)to.link->abandon(id, phase, true);
      }
      ended.set_value();
    });
    const bool in_time = ended.get_future().wait_for(60s) == std::future_status::ready;
    if (!in_time) user.detach();
    REQUIRE(in_time);
    user.join();
    CHECK(deleted == 1);
  }
}
