// Requests that arrive when memory is exhausted: each allocation in turn fails while a request is admitted.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "allocation_count.hpp"
#include "captured_log.hpp"
#include "cluster.hpp"
#include "gate.hpp"
#include "references.hpp"
#include "rpc/references/protocol/reference_names.hpp"
#include "rpc/references/table/reference_client.hpp"
#include "rpc/references/table/reference_table.hpp"
#include "rpc/worker/worker_core.hpp"

namespace reference_memory_test {

using ferry::call_target;
using ferry::errc;
using ferry::rref;
using ferry::detail::handed_reference;
using ferry::detail::held_turn;
using ferry::detail::method_entry;
using ferry::detail::method_flavour;
using ferry::detail::object_id;
using ferry::detail::peer_incarnation;
using ferry::detail::reference_handle;
using ferry::detail::reference_table;
using ferry::detail::references_of;
using ferry_test::cluster;
using namespace references_test;

ferry_test::gate door;

class shelf {
 public:
  int put(const rref<tracked>& what) { return count_ += what ? 1 : 0; }
  rref<int> put_and_leave(const rref<tracked>&) { return {}; }
  [[nodiscard]] int count() const { return count_; }

 private:
  int count_ = 0;
};
class line : public shelf {};
class late_shelf : public shelf {
 public:
  late_shelf() { door.pass(); }
};
int number(int value) { return value; }
int make_of(const rref<tracked>& what) { return what ? 1 : 0; }

}  // namespace reference_memory_test

template <>
struct ferry::object_traits<reference_memory_test::shelf> {
  static constexpr auto execution = ferry::execution::exclusive;
};
template <>
struct ferry::object_traits<reference_memory_test::late_shelf> {
  static constexpr auto execution = ferry::execution::ordered;
};
template <>
struct ferry::object_traits<reference_memory_test::line> {
  static constexpr auto execution = ferry::execution::ordered;
};

namespace reference_memory_test {

namespace {

// The reply channel of one request that a test delivers directly to a worker.
class lone_channel final : public ferry::reply_channel {
 public:
  void reply(std::uint64_t, ferry::outgoing_message&& answer) override {
    const std::lock_guard lock(mutex_);
    ++answers_;
    kind_ = answer.header.kind;
    code_ = static_cast<errc>(answer.header.code);
    changed_.notify_all();
  }
  void begin_call(std::uint64_t, ferry::stoppable&) override {}
  void end_call(std::uint64_t, const ferry::stoppable&) noexcept override {}
  void handled(std::uint64_t) noexcept override {
    const std::lock_guard lock(mutex_);
    ++handled_;
    changed_.notify_all();
  }
  // No error code: the answer was a value.
  std::optional<errc> await_answer() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return answers_ != 0 && handled_ != 0; }));
    CHECK(answers_ == 1);
    CHECK(handled_ == 1);
    if (kind_ == ferry::frame_kind::reply) return std::nullopt;
    CHECK(kind_ == ferry::frame_kind::failure);
    return code_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int answers_ = 0;
  int handled_ = 0;
  ferry::frame_kind kind_{};
  errc code_{};
};

// A request of worker0 to worker1 with a reference as its argument.
class lone_request {
 public:
  lone_request(ferry::worker& caller, ferry::worker& callee, const method_entry& method, const reference_handle* object,
               bool makes, const rref<tracked>& argument)
      : callee_(callee.core()), from_(caller.info()), table_(references_of(*caller.core())) {
    ferry::frame_header& header = message_.header;
    header.kind = ferry::frame_kind::request;
    header.method = method.id;
    header.signature = method.signature;
    header.timeout_us = 60'000'000;
    header.call_id = 1;
    if (makes) made_ = table_->create(call_target(callee.id()), callee.info());
    to_ = table_->peer(call_target(callee.id()));
    handed_ = table_->transfer(*argument.handle().get(), to_);
    ferry::encode_values<std::uint32_t>(message_.bytes, message_.tensors, 0);  // the first reference of the list
    if (object || makes) {
      ferry::detail::add_object_record(message_, object ? &object->get()->object : nullptr,
                                       makes ? &made_.get()->object : nullptr);
    }
    // The turn of a call that is blocked elsewhere.
    ferry::detail::add_chain_record(message_, {{held_turn{{table_->self(), table_->self(), 9999}, {-1}, 1, true}}, {}},
                                    true);
    ferry::detail::add_references_record(message_, table_->self().incarnation, std::span(&handed_, 1));
    message_.finish();
  }

  // Whether the allocation failed.
  bool arrive(std::size_t failing) {
    ferry::inbound_message request;
    request.header = message_.header;
    request.payload = message_.payload();
    request.extensions = {request.payload.data() + request.payload.size(), message_.header.extension_bytes};
    ferry_test::fail_allocation(failing);
    callee_->on_request(channel_, from_, std::move(request));
    return ferry_test::allocation_failed();
  }
  // The caller's timeout has expired.
  void give_up() {
    table_->query(to_, {handed_});
    table_->creation_lost(made_, ferry::make_error(errc::rpc_timeout, "it took too long"));
  }
  // The caller's actions on the answer.
  std::optional<errc> settle() {
    const std::optional<errc> failure = channel_->await_answer();
    if (failure) {
      table_->query(to_, {handed_});
      if (made_) table_->creation_lost(made_, ferry::make_error(*failure, "refused"));
    } else {
      table_->arrived(to_, {handed_});
      if (made_) table_->created(made_);
    }
    return failure;
  }

 private:
  std::shared_ptr<ferry::detail::worker_core> callee_;
  ferry::worker_info from_;
  std::shared_ptr<reference_table> table_;
  std::shared_ptr<lone_channel> channel_ = std::make_shared<lone_channel>();
  ferry::outgoing_message message_;
  peer_incarnation to_;
  handed_reference handed_;
  reference_handle made_;
};

template <auto F, method_flavour Flavour>
void fail_each(cluster& group, const reference_handle* object, bool makes, const std::function<void()>& between) {
  int refused = 0;
  for (std::size_t failing = 1;; ++failing) {
    CAPTURE(failing);
    REQUIRE(failing < 1000);
    // The caller owns it, so its owner need not be queried: allocations for connecting and sending are not tested here.
    const auto argument = group[0].make_rref<tracked>(std::in_place, 1);
    lone_request request(group[0], group[1], ferry::detail::usable_method<F, Flavour>(), object, makes, argument);
    const bool failed = request.arrive(failing);
    between();
    const std::optional<errc> end = request.settle();
    if (!failed) {
      CHECK_FALSE(end.has_value());
      break;
    }
    // A failed allocation that was not essential is not an error.
    if (end) {
      CHECK(*end == errc::out_of_memory);
      ++refused;
    }
  }
  CHECK(refused > 5);
}

}  // namespace

TEST_CASE("a request that arrives when memory is exhausted is answered with an error and leaks nothing" *
          doctest::skip(!ferry_test::counts_allocations)) {
  cluster group(3);
  constexpr auto call = method_flavour::object_call;
  constexpr auto creation = method_flavour::object_creation;
  const auto nothing = [] {};
  {
    SUBCASE("of an exclusive object") {
      const auto s = group[0].remote<ferry::make<shelf>>("worker1");
      s.created().get();
      fail_each<&shelf::put, call>(group, &s.handle(), false, nothing);
      CHECK(s.rpc_sync<&shelf::count>() >= 1);
    }
    SUBCASE("of an object whose calls are ordered") {
      const auto s = group[0].remote<ferry::make<line>>("worker1");
      s.created().get();
      fail_each<&shelf::put, call>(group, &s.handle(), false, nothing);
      CHECK(s.rpc_sync<&shelf::count>() >= 1);
    }
    SUBCASE("of an object that has yet to be made") {
      // Each request finds an object whose creating call is blocked.
      int refused = 0;
      for (std::size_t failing = 1;; ++failing) {
        REQUIRE(failing < 1000);
        door.reset();
        const auto s = group[0].remote<ferry::make<late_shelf>>("worker1");
        door.await_arrivals(1);
        const auto argument = group[0].make_rref<tracked>(std::in_place, 1);
        lone_request request(group[0], group[1], ferry::detail::usable_method<&shelf::put, call>(), &s.handle(), false,
                             argument);
        const bool failed = request.arrive(failing);
        door.open();
        const std::optional<errc> end = request.settle();
        CHECK(s.rpc_sync<&shelf::count>() == (end ? 0 : 1));
        if (!failed) break;
        if (end) ++refused;
      }
      CHECK(refused > 5);
    }
    SUBCASE("that makes an object") { fail_each<make_of, method_flavour::creation>(group, nullptr, true, nothing); }
    SUBCASE("of an object, whose result stays as another one") {
      const auto s = group[0].remote<ferry::make<shelf>>("worker1");
      s.created().get();
      fail_each<&shelf::put_and_leave, creation>(group, &s.handle(), true, nothing);
    }
  }
  await_no_references(group);
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("a creating call that arrives after its caller gave it up is refused, and logged as information only") {
  const ferry_test::captured_log logged(ferry::log_level::info);
  cluster group(3);
  {
    const rref<tracked> argument = group[0].remote<ferry::make<tracked>>("worker2", 1);
    argument.created().get();
    lone_request request(group[0], group[1], ferry::detail::usable_method<make_of, method_flavour::creation>(), nullptr,
                         true, argument);
    request.give_up();
    await_figure(group[0], "num_pending_futures", "0");  // the owner has been queried and will refuse it
    (void)request.arrive(0);                             // no allocation fails
    CHECK(request.settle() == errc::reference_deleted);
    await([&] { return logged.has("make_of", "was not run", "given up"); });
    CHECK(logged.level_of("make_of", "was not run", "given up") == ferry::log_level::info);
  }
  await_no_references(group);
}

TEST_CASE("objects that are released when memory is exhausted are destroyed later" *
          doctest::skip(!ferry_test::counts_allocations)) {
  cluster group(1);
  for (const std::size_t failing : {1, 2}) {
    {
      rref<tracked> own = group[0].make_rref<tracked>(std::in_place, 1);
      // These post the destruction of the object.
      ferry_test::fail_allocation(failing);
      own = {};
      (void)ferry_test::allocation_failed();
    }
    const rref<tracked> next = group[0].make_rref<tracked>(std::in_place, 2);
    CHECK(tracked::alive() >= 1);
  }
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("controls that arrive when memory is exhausted take effect when they are sent again" *
          doctest::skip(!ferry_test::counts_allocations)) {
  cluster group(2);
  reference_table& owner = *references_of(*group[1].core());
  const auto object = group[0].remote<ferry::make<tracked>>("worker1", 1);
  object.created().get();
  const object_id id = object.handle().get()->object;
  const call_target from(group[0].id());
  const reference_table& there = *references_of(*group[0].core());
  int refused = 0;
  std::uint64_t claim = 1'000'000;
  for (std::size_t failing = 1;; ++failing, ++claim) {
    CAPTURE(failing);
    REQUIRE(failing < 1000);
    // A fork of that object, and one of an object whose call has yet to come.
    const object_id later{id.owner, id.creator, claim + 1'000'000};
    using ferry::detail::by_holder;
    const ferry::detail::reference_batch begins{
        there.self().incarnation,
        owner.self().incarnation,
        {ferry::detail::about_claim(ferry::detail::reference_control::kind::fork_request, id, claim),
         ferry::detail::about_claim(ferry::detail::reference_control::kind::fork_request, later, claim + 500'000)}};
    const ferry::detail::reference_batch ends{
        there.self().incarnation,
        owner.self().incarnation,
        {ferry::detail::deletion(id, by_holder(claim)), ferry::detail::deletion(later, by_holder(claim + 500'000))}};
    bool failed = false;
    for (const auto* batch : {&begins, &ends}) {
      ferry_test::fail_allocation(failing);
      try {
        (void)owner.serve(from, *batch);
      } catch (const std::bad_alloc&) {
        ++refused;
      }
      failed = ferry_test::allocation_failed() || failed;
      for (const auto answer : owner.serve(from, *batch).answers)
        CHECK(answer == ferry::detail::reference_answer::done);
    }
    CHECK(owner.figures().forks == 1);
    CHECK(owner.figures().owners == 1);
    if (!failed) break;
  }
  CHECK(refused > 3);
}

TEST_CASE("an answer about a fork that arrives when memory is exhausted confirms it when it is sent again" *
          doctest::skip(!ferry_test::counts_allocations)) {
  cluster group(3);
  const auto table = references_of(*group[0].core());
  for (std::size_t failing = 1;; ++failing) {
    CAPTURE(failing);
    REQUIRE(failing < 1000);
    // The owner does not exist, so the only answers are those of this test.
    const peer_incarnation owner{ferry::worker_id{1}, ferry::incarnation_id{failing}};
    const call_target sender(group[2].id());
    const object_id object{owner, owner, 1};
    ferry::detail::reference_records records;
    records.from = references_of(*group[2].core())->self().incarnation;
    records.references.push_back({object, 1'000'000 + failing});
    std::vector<reference_handle> unconfirmed;
    const auto received = table->receive(records, sender, &unconfirmed);
    REQUIRE(unconfirmed.size() == 1);
    const auto fork = unconfirmed.front().get()->fork;
    REQUIRE(fork.has_value());
    const std::vector<ferry::detail::reference_control> controls{
        ferry::detail::about_claim(ferry::detail::reference_control::kind::fork_request, object, fork->key.number)};
    const ferry::detail::reference_answers answers{{ferry::detail::reference_answer::done}};
    ferry_test::fail_allocation(failing);
    try {
      table->answered(owner, controls, answers);
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is sent again below
    }
    const bool failed = ferry_test::allocation_failed();
    if (!unconfirmed.front().get()->known->ready()) table->answered(owner, controls, answers);
    CHECK(unconfirmed.front().get()->known->ready());
    unconfirmed.clear();
    table->gone(owner.id, owner.incarnation);
    if (!failed) break;
  }
  table->gone(group[2].id(), references_of(*group[2].core())->self().incarnation);
}

TEST_CASE("references end with their owner, their worker or the fence although memory is exhausted" *
          doctest::skip(!ferry_test::counts_allocations)) {
  using ending = void (*)(cluster& group, reference_table& table);
  const std::pair<const char*, ending> endings[]{
      {"leaving",
       [](cluster& group, reference_table& table) {
         table.leaving(group[1].id(), references_of(*group[1].core())->self().incarnation);
       }},
      {"gone",
       [](cluster& group, reference_table& table) {
         table.gone(group[1].id(), references_of(*group[1].core())->self().incarnation);
       }},
      {"fence", [](cluster&, reference_table& table) { table.fence("a test"); }},
      {"close", [](cluster&, reference_table& table) { table.close(); }}};
  for (const auto& [name, end] : endings) {
    CAPTURE(std::string(name));
    for (std::size_t failing = 1;; ++failing) {
      CAPTURE(failing);
      REQUIRE(failing < 1000);
      cluster group(2, {.graceful = false});
      const auto there = group[0].remote<number>("worker1", 1);
      const auto also_there = group[0].remote<number>("worker1", 2);
      const auto here = group[0].make_rref(3);
      there.created().get();
      also_there.created().get();
      reference_table& table = *references_of(*group[0].core());
      (void)*references_of(*group[1].core());
      ferry_test::fail_allocation(failing);
      end(group, table);
      const bool failed = ferry_test::allocation_failed();
      for (const auto* each : {&there, &also_there}) CHECK_THROWS_AS((void)each->to_here(), std::exception);
      if (name == std::string_view("close")) CHECK_THROWS_AS((void)here.to_here(), std::exception);
      if (!failed) break;
    }
  }
}

}  // namespace reference_memory_test
