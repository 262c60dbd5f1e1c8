// The record of gradients, sets of messages, and what a worker does with messages that no worker of ferry sends.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/rpc/interceptor.hpp>
#include <ferry/rpc/named.hpp>

#include "autograd/dist/autograd_record.hpp"
#include "autograd/dist/dist_worker.hpp"
#include "autograd/dist/message_set.hpp"
#include "autograd/dist/pass_messages.hpp"
#include "dist_test.hpp"
#include "rpc/worker/worker_core.hpp"

namespace record_test {

using namespace dist_test;
using ferry::detail::autograd_record;
using ferry::detail::decode_autograd_record;
using ferry::detail::encode_autograd_record;
using ferry::detail::failure_message;
using ferry::detail::gradient_message;
using ferry::detail::message_set;
using ferry::detail::pass_failure;
using ferry::detail::pass_header;
using ferry::detail::release_message;

std::uint64_t message_of(std::uint64_t worker, std::uint64_t number) { return worker << 48U | number; }

autograd_record example() {
  autograd_record record;
  record.context = message_of(3, 17);
  record.message = message_of(2, 5);
  record.tensors = {{0, {}}, {2, {ferry::device_kind::cuda, 1}}, {7, {}}};
  record.upstream = message_set({{message_of(1, 4), message_of(1, 9)}, {message_of(2, 1), message_of(2, 1)}});
  record.over = {message_of(3, 11), message_of(3, 16)};
  return record;
}
std::vector<std::byte> bytes_of(const autograd_record& record) {
  const ferry::byte_buffer made = encode_autograd_record(record);
  return {made.data(), made.data() + made.size()};
}
void put_word(std::vector<std::byte>& to, std::size_t word, std::uint64_t value) {
  for (std::size_t i = 0; i != 8; ++i) to.at(8 * word + i) = static_cast<std::byte>(value >> (8 * i));
}
bool same(const autograd_record& a, const autograd_record& b) { return bytes_of(a) == bytes_of(b); }

// Replaces the record of a request by another one.
class forger final : public ferry::interceptor {
 public:
  struct plan {
    std::vector<std::vector<std::byte>> records;
    std::uint16_t type = ferry::detail::autograd_record_type;
  };
  explicit forger(std::shared_ptr<plan> what) : plan_(std::move(what)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "forger"; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    for (const auto& each : plan_->records) request.add_record(plan_->type, true, each);
    return nullptr;
  }

 private:
  const std::shared_ptr<plan> plan_;
};

// Uses one up.
std::uint64_t pass_number_here() {
  return ferry::detail::dist_worker::of(*ferry::detail::current_worker())->next_pass();
}
std::uint64_t current_here() {
  const auto here = dist::current();
  return here ? here->value : 0;
}

TEST_CASE("a record of gradients is what it was") {
  for (const autograd_record& each : {autograd_record(), example()}) {
    const auto bytes = bytes_of(each);
    const autograd_record found = decode_autograd_record(bytes);
    CHECK(same(found, each));
    CHECK(found.context == each.context);
    CHECK(found.message == each.message);
    CHECK(found.tensors.size() == each.tensors.size());
    CHECK(found.upstream == each.upstream);
  }
  const auto found = decode_autograd_record(bytes_of(example()));
  CHECK(found.tensors[1].index == 2);
  CHECK(found.tensors[1].where == ferry::device{ferry::device_kind::cuda, 1});
}

TEST_CASE("damaged records are refused, and no more is allocated than they are long") {
  const auto whole = bytes_of(example());
  for (std::size_t length = 0; length != whole.size(); ++length) {
    CAPTURE(length);
    expect_error(errc::truncated, "a record of gradients",
                 [&] { (void)decode_autograd_record(std::span(whole).first(length)); });
  }
  auto longer = whole;
  longer.push_back({});
  expect_error(errc::malformed, "more bytes", [&] { (void)decode_autograd_record(longer); });
  // Words: context, message, count, (index, device) x 3, count, (first, last) x 2.
  const auto damaged = [&](std::size_t word, std::uint64_t value, errc kind, std::string_view text) {
    CAPTURE(word);
    auto bytes = whole;
    put_word(bytes, word, value);
    expect_error(kind, text, [&] { (void)decode_autograd_record(bytes); });
  };
  for (const std::uint64_t count :
       {std::uint64_t{8}, std::uint64_t{1} << 32U, ~std::uint64_t{0}, std::uint64_t{1} << 60U}) {
    damaged(2, count, errc::truncated, "claims");
    damaged(9, count, errc::truncated, "claims");
  }
  damaged(3, 2, errc::malformed, "not in order");  // twice the same tensor
  damaged(5, 0, errc::malformed, "not in order");
  damaged(7, std::uint64_t{1} << 32U, errc::malformed, "not in order");    // an index of more than 32 bits
  damaged(4, std::uint64_t{256} << 32U, errc::malformed, "names device");  // a kind of more than 8 bits
  damaged(4, 0x8000'0000U, errc::malformed, "names device");               // a negative index
  damaged(10, message_of(1, 10), errc::malformed, "not in order");         // an interval that ends before it begins
  damaged(11, message_of(2, 0), errc::malformed, "not in order");          // of two workers
  damaged(12, message_of(1, 9), errc::malformed, "not in order");          // not after the one before
  // Two intervals that are one: a set has one text.
  autograd_record touching = example();
  touching.upstream = message_set({{message_of(1, 4), message_of(1, 9)}, {message_of(1, 11), message_of(1, 12)}});
  auto bytes_of_touching = bytes_of(touching);
  CHECK(same(decode_autograd_record(bytes_of_touching), touching));
  put_word(bytes_of_touching, 12, message_of(1, 10));
  expect_error(errc::malformed, "not in order", [&] { (void)decode_autograd_record(bytes_of_touching); });
  // Any bits: decoded or refused, nothing else.
  std::mt19937_64 random(5);
  for (int round = 0; round != 20'000; ++round) {
    auto bytes = whole;
    for (auto flips = 1 + random() % 4; flips != 0; --flips)
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
    bytes.resize(random() % (bytes.size() + 1));
    try {
      const autograd_record found = decode_autograd_record(bytes);
      CHECK(bytes_of(found) == bytes);  // one text for each record
    } catch (const ferry::error& e) {
      CHECK((e.kind() == errc::malformed || e.kind() == errc::truncated));
    }
  }
}

TEST_CASE("sets of messages are sets") {
  std::mt19937_64 random(7);
  for (int round = 0; round != 200; ++round) {
    message_set own;
    std::set<std::uint64_t> expected;
    const auto any = [&] {
      const std::uint64_t worker = random() % 3;
      // At both ends of what a worker can send, too: numbers of two workers follow each other there.
      const std::uint64_t number =
          random() % 2 == 0 ? random() % 12 : ferry::detail::last_message_number - random() % 4;
      return message_of(worker, number);
    };
    for (auto steps = random() % 20; steps != 0; --steps) {
      if (random() % 2 == 0) {
        const std::uint64_t one = any();
        own.insert(one);
        expected.insert(one);
        continue;
      }
      message_set more;
      for (auto count = random() % 5; count != 0; --count) {
        const std::uint64_t one = any();
        more.insert(one);
        expected.insert(one);
      }
      own.merge(more);
    }
    std::set<int> senders;
    for (const std::uint64_t each : expected) senders.insert(ferry::detail::sender_of(each).value);
    for (std::uint64_t worker = 0; worker != 4; ++worker) {
      for (std::uint64_t number = 0; number != 14; ++number) {
        for (const std::uint64_t one :
             {message_of(worker, number), message_of(worker, ferry::detail::last_message_number - number)})
          CHECK(own.contains(one) == expected.contains(one));
      }
      const ferry::worker_id who{static_cast<int>(worker)};
      CHECK(own.has_sender(who) == senders.contains(who.value));
    }
    std::vector<int> found;
    for (const auto each : own.senders()) found.push_back(each.value);
    CHECK(found == std::vector<int>(senders.begin(), senders.end()));
    CHECK(own.empty() == expected.empty());
    const auto intervals = own.intervals();
    CHECK(message_set({intervals.begin(), intervals.end()}) == own);  // in order, of one sender each
    for (std::size_t i = 1; i < intervals.size(); ++i) {
      const bool apart =
          intervals[i - 1].last + 1 < intervals[i].first ||
          ferry::detail::sender_of(intervals[i - 1].last) != ferry::detail::sender_of(intervals[i].first);
      CHECK(apart);
    }
  }
}

TEST_CASE("requests with records that no worker sends are refused; those after them are served") {
  const auto plan = std::make_shared<forger::plan>();
  ferry_test::cluster_options options;
  options.configure = [&](ferry::worker_config& config) {
    if (config.name == "worker0") config.interceptors = {std::make_shared<forger>(plan)};
  };
  cluster group(2, options);
  const tensor a = leaf({1, 2});
  const auto call = [&] { return group[0].rpc_sync<twice>("worker1", a); };
  autograd_record good;
  good.context = message_of(0, 12345);
  good.message = message_of(0, 99);
  const auto refused = [&](const std::vector<std::vector<std::byte>>& records, std::string_view text,
                           errc kind = errc::bad_arguments) {
    plan->records = records;
    expect_error(kind, text, [&] { (void)call(); });
    plan->records.clear();
  };
  refused({std::vector<std::byte>(3)}, "truncated: a record of gradients");
  refused({std::vector<std::byte>(1000, std::byte{0xff})}, "truncated: a record of gradients");
  refused({bytes_of(good), bytes_of(good)}, "malformed: a message has two records of gradients");
  autograd_record other = good;
  other.tensors = {{1, {}}};  // the message has one tensor
  refused({bytes_of(other)}, "names tensor 1 of a message with 1");
  other.tensors = {{0, {}}};
  other.message = message_of(1, 99);  // the number of another worker
  refused({bytes_of(other)}, "whose number is of worker 1");
  // Contexts of another maker, or before its first one, or from the one of the message on.
  other = good;
  const std::size_t before = contexts(group[1]);
  for (const ferry::detail::contexts_over& each :
       {ferry::detail::contexts_over{message_of(1, 1), message_of(1, 2)},
        ferry::detail::contexts_over{message_of(0, 1), message_of(1, 2)},
        ferry::detail::contexts_over{message_of(0, 12346), message_of(0, 12347)},
        ferry::detail::contexts_over{message_of(0, 12), message_of(0, 11)},
        ferry::detail::contexts_over{0, message_of(1, 11)}}) {
    other.over = each;
    refused({bytes_of(other)}, "names contexts that its maker cannot have made");
  }
  CHECK(contexts(group[1]) == before);
  // A worker that does not know the record says so: its type stands for one that this worker does not read.
  plan->type = 900;
  refused({bytes_of(good)}, "type 900", errc::unknown_extension);
  plan->type = ferry::detail::autograd_record_type;
  CHECK(numbers(call()) == vec{2, 4});
  // The context of a good one exists there, as long as its maker has it: this maker never had one of that number.
  plan->records = {bytes_of(good)};
  CHECK(group[0].rpc_sync<current_here>("worker1") == good.context);
  plan->records.clear();
  // A real one is not disturbed by it, and ends alone.
  {
    const dist::context context(group[0]);
    context.backward(ferry::sum(call()));
    CHECK(numbers(context.gradients().at(a)) == vec{2, 2});
  }
  await([&] { return contexts(group[1]) == 1; });
  CHECK(dist::exists({good.context}, group[1]));
}

TEST_CASE("[row 289] messages about passes that no worker sends are answered with errors, and change nothing") {
  using ferry::named;
  namespace detail = ferry::detail;
  cluster group(2);
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  const dist::context context(group[0]);
  const tensor c = ferry::sum(group[0].rpc_sync<mul>("worker1", a, b));
  const auto there = dist::inspect(context.id(), group[1]);
  REQUIRE(there.sends.size() == 1);
  const std::uint64_t message = there.sends[0].message;
  const auto header_of = [&](std::uint64_t pass) {
    auto header = std::make_shared<pass_header>();
    header->context = context.id().value;
    header->pass = pass;
    header->reached = message_set({{message, message}});
    return header;
  };
  std::uint64_t pass = message_of(0, 100);
  const auto send = [&](const std::shared_ptr<pass_header>& header, std::uint64_t of, std::vector<tensor> gradients) {
    const ferry::context_values_scope outside{ferry::context_values()};
    const auto answer = group[0].rpc_sync<named<"ferry/autograd/gradients", detail::serve_gradients>>(
        "worker1", gradient_message{header, of, std::move(gradients)});
    CHECK_FALSE(answer.back);
    return answer.how;
  };
  const auto fails = [&](const pass_failure& answer, errc kind, std::string_view text) {
    CAPTURE(answer.text);
    CHECK(answer.code == static_cast<std::uint32_t>(kind));
    CHECK(answer.text.find(text) != std::string::npos);
    await([&] { return passes(group[1]) == 0; });
  };
  // [row 289] too few gradients, too many.
  fails(send(header_of(pass++), message, {}), errc::malformed, "0 gradients came for a message with 1 tensors");
  const tensor one = ferry::tensor_of({1., 1.});
  fails(send(header_of(pass++), message, {one, one}), errc::malformed, "2 gradients came");
  // Of another shape, another type.
  fails(send(header_of(pass++), message, {ferry::tensor_of({1.})}), errc::bad_shape, "the gradient that came");
  fails(send(header_of(pass++), message, {ferry::tensor_of({1.F, 2.F})}), errc::bad_shape, "the gradient that came");
  // For a message that was not sent, or takes no part.
  fails(send(header_of(pass++), message + 1, {one}), errc::invalid_argument, "takes no part in the pass");
  // A pass of which the worker has heard that it has failed.
  const pass_failure why{static_cast<std::uint32_t>(errc::bad_shape), {}, "told"};
  const ferry::context_values_scope outside{ferry::context_values()};
  group[0].rpc_sync<named<"ferry/autograd/failure", detail::serve_failure>>(
      "worker1", failure_message{context.id().value, pass, false, why});
  fails(send(header_of(pass++), message, {one}), errc::bad_shape, "told");
  // Of contexts that are unknown.
  auto unknown = header_of(pass++);
  unknown->context = message_of(0, 777);
  expect_error(errc::invalid_argument, "could not find context", [&] { (void)send(unknown, message, {one}); });
  group[0].rpc_sync<named<"ferry/autograd/failure", detail::serve_failure>>(
      "worker1", failure_message{message_of(0, 777), pass, true, why});
  CHECK_FALSE(dist::exists({message_of(0, 777)}, group[1]));
  for (const release_message& each :
       {release_message{context.id().value, context.id().value, message_of(1, 5)},
        release_message{context.id().value, message_of(1, 5), context.id().value},
        release_message{context.id().value, context.id().value + 1, context.id().value}}) {
    expect_error(errc::malformed, "names contexts that its maker cannot have made",
                 [&] { group[0].rpc_sync<named<"ferry/autograd/release", detail::serve_release>>("worker1", each); });
  }
  CHECK(dist::exists(context, group[1]));
  // A release of the maker's own context is not the business of another worker.
  group[0].rpc_sync<named<"ferry/autograd/release", detail::serve_release>>(
      "worker0", release_message{context.id().value, context.id().value, context.id().value + 1});
  CHECK(dist::exists(context, group[0]));
}

TEST_CASE("what a maker's releases take at another worker is bounded") {
  namespace detail = ferry::detail;
  const auto plan = std::make_shared<forger::plan>();
  ferry_test::cluster_options options;
  options.configure = [&](ferry::worker_config& config) {
    if (config.name == "worker0") config.interceptors = {std::make_shared<forger>(plan)};
  };
  cluster group(2, options);
  const auto release = [&](std::uint64_t number) {
    group[0].rpc_sync<ferry::named<"ferry/autograd/release", detail::serve_release>>(
        "worker1", release_message{message_of(0, number), message_of(0, number), message_of(0, number)});
  };
  const auto is_known = [&](std::uint64_t number) {
    autograd_record header;
    header.context = message_of(0, number);
    header.message = message_of(0, number);
    plan->records = {bytes_of(header)};
    const bool found = group[0].rpc_sync<current_here>("worker1") == message_of(0, number);
    plan->records.clear();
    return found;
  };
  release(1'000);
  CHECK_FALSE(is_known(1'000));  // it is over
  for (std::uint64_t start = 1; start != 8; ++start) release(1'000 + 1'000 * start);
  CHECK_FALSE(is_known(1'000));
  // A ninth start, which no worker can have had: the one that was not heard of for longest is forgotten.
  release(9'000);
  CHECK(is_known(1'000));
  CHECK_FALSE(is_known(9'000));
}

TEST_CASE("gradients that come once more when the pass is over do not begin it again") {
  using ferry::named;
  namespace detail = ferry::detail;
  cluster group(2);
  const tensor a = leaf({1, 2});
  const dist::context context(group[0]);
  const tensor c = ferry::sum(group[0].rpc_sync<twice>("worker1", a));
  const std::uint64_t own_pass = group[0].rpc_sync<pass_number_here>("worker0") + 1;
  context.backward(c, {.retain_graph = true});
  const std::uint64_t message = dist::inspect(context.id(), group[1]).sends.at(0).message;
  auto header = std::make_shared<pass_header>();
  header->context = context.id().value;
  header->pass = own_pass;
  header->reached = message_set({{message, message}});
  header->keeps_graph = true;
  pass_failure answer;
  {
    const ferry::context_values_scope outside{ferry::context_values()};
    answer = group[0]
                 .rpc_sync<named<"ferry/autograd/gradients", detail::serve_gradients>>(
                     "worker1", gradient_message{header, message, {ferry::tensor_of({1., 1.})}})
                 .how;
  }
  CHECK(answer.code == static_cast<std::uint32_t>(errc::invalid_argument));
  CHECK(answer.text.find("that is over") != std::string::npos);
  CHECK(passes(group[1]) == 0);
  context.backward(c);
  CHECK(numbers(context.gradients().at(a)) == vec{4, 4});
}

}  // namespace record_test
