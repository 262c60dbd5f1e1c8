// Byte streams with tensors for devices: what a message reports, and how its failures end.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/test_kit/transport_kit.hpp>

#include "fake_cuda.hpp"
#include "tests/device/queue_device.hpp"
#include "transport/streams/frame_reader.hpp"
#include "transport/streams/stream_connection.hpp"

namespace staged_connection_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;
using test_kit::make_message;
using test_kit::make_tensor;

constexpr device gpu(int index) { return {device_kind::cuda, index}; }

struct picky_recorder : test_kit::recorder {
  std::atomic<int> refused{-1};  // the device that is not accepted
  [[nodiscard]] bool takes_tensors_on(device where) const noexcept override { return where.index != refused.load(); }
};

struct stream_pair {
  std::shared_ptr<reactor> loop = shared_reactor();
  std::shared_ptr<connection> near_end, far_end;
  std::shared_ptr<picky_recorder> near_log = std::make_shared<picky_recorder>();
  std::shared_ptr<picky_recorder> far_log = std::make_shared<picky_recorder>();
  explicit stream_pair(bool device_tensors = true, const transport_options& options = {}) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    const std::uint64_t features = device_tensors ? feature_device_tensors : 0;
    near_end = detail::make_stream_connection(*loop, ends[0], "test", "test near", options, {}, features);
    far_end = detail::make_stream_connection(*loop, ends[1], "test", "test far", options, {}, features);
    near_end->start(near_log);
    far_end->start(far_log);
  }
  ~stream_pair() {
    near_end->close(make_error(errc::shutting_down, "the test is over"));
    near_log->wait_closed();
    far_log->wait_closed();
  }
};

outgoing_message message_for(std::uint64_t id, std::vector<tensor> tensors, std::vector<device> targets) {
  outgoing_message message = make_message(id, 100, std::move(tensors));
  message.targets = std::move(targets);
  message.finish();
  return message;
}

std::pair<errc, std::string> failure_of(const inbound_message& message) {
  try {
    if (message.failure) std::rethrow_exception(message.failure);
  } catch (const error& problem) {
    return {problem.kind(), problem.what()};
  }
  return {errc{}, ""};
}

transport_options with_limit(std::chrono::milliseconds device_timeout) {
  transport_options options;
  options.device_timeout = device_timeout;
  return options;
}

constexpr auto mebibyte = static_cast<std::int64_t>(staging_piece);

// What a hanging device held has come back.
bool staging_comes_back(device_kind kind, std::uint64_t before) {
  for (const auto until = clock::now() + 30s; clock::now() < until; std::this_thread::yield()) {
    const auto now = get_staging_memory_stats(kind);
    if (now.blocks_in_use <= before && now.blocks_awaited == 0) return true;
  }
  return false;
}

constexpr device queue_of(int index) { return {device_traits<queue_device>::kind, index}; }

// The streams that transfers of a device use, the one that the next transfer uses first. A stream that is busy is passed over for
// a while, so that some take several attempts.
std::vector<stream> pool_of(device where) {
  std::vector<stream> all;
  while (all.size() != stream_pool_size()) {
    const stream next = pool_stream(where);
    if (std::find(all.begin(), all.end(), next) == all.end()) all.push_back(next);
  }
  for (const stream& each : all) each.synchronize();
  for (stream& each : all) each = pool_stream(where);
  return all;
}

// Streams that do nothing until the end of this.
class hanging {
 public:
  explicit hanging(const std::vector<stream>& streams) {
    for (const stream& each : streams) {
      each.call_on_host([](void* gate) { static_cast<std::latch*>(gate)->wait(); }, &gate_);
      ends_.push_back(each.record());
    }
  }
  ~hanging() {
    gate_.count_down();
    for (const event& each : ends_) each.synchronize();
  }
  hanging(const hanging&) = delete;
  hanging& operator=(const hanging&) = delete;

 private:
  std::latch gate_{1};
  std::vector<event> ends_;
};

// In the order of the streams on which it arrived.
bool holds(const inbound_message& message, std::uint64_t seed, std::int64_t bytes) {
  if (message.failure || message.tensors.size() != 1) return false;
  for (const stream& each : message.streams) current_stream(each.device()).wait(each);
  return test_kit::is_tensor(message.tensors[0].to(device()), seed, bytes);
}

}  // namespace

TEST_CASE("a tensor for a device that does not exist, or is not accepted, fails its message alone") {
  stream_pair pair;
  pair.far_log->refused = 2;
  const auto blocks = fake_cuda::blocks_in_use(1);
  const tensor cpu = make_tensor(1, 100'000);
  struct {
    device where;
    const char* text;
  } const bad[]{{gpu(8), "cuda:8"},
                {gpu(2), "not among the devices"},
                {{static_cast<device_kind>(77), 0}, "77"},
                {{device_kind::cpu, 3}, "cpu"}};
  std::uint64_t id = 0;
  for (const auto& each : bad) {
    pair.near_end->send(message_for(++id, {cpu, make_tensor(2, 5'000'000)}, {gpu(1), each.where}));
    pair.near_end->send(message_for(++id, {cpu}, {gpu(1)}));
  }
  const auto got = pair.far_log->take(id);
  REQUIRE(got.size() == id);
  for (std::size_t i = 0; i != got.size(); ++i) {
    CHECK(test_kit::is_message(got[i], i + 1, 100));
    if (i % 2 == 0) {
      const auto [kind, text] = failure_of(got[i]);
      CHECK(kind == errc::bad_device);
      CHECK_MESSAGE(text.find(bad[i / 2].text) != text.npos, text);
      CHECK(got[i].tensors.empty());
    } else {
      CHECK(got[i].failure == nullptr);
      REQUIRE(got[i].tensors.size() == 1);
      CHECK(got[i].tensors[0].device() == gpu(1));
      REQUIRE(got[i].streams.size() == 1);
      CHECK(got[i].streams[0].device() == gpu(1));
    }
  }
  fake_cuda::drain();
  CHECK(fake_cuda::blocks_in_use(1) == blocks + 4);  // of the messages still alive
  CHECK(pair.far_log->times_closed() == 0);
}

TEST_CASE("a device that fails while its tensor is being written ends this message, and no other") {
  stream_pair pair;
  const std::int64_t bytes = 12 * static_cast<std::int64_t>(staging_piece);
  const tensor t = make_tensor(3, bytes).to(gpu(3));
  const tensor small = make_tensor(4, 1000).to(gpu(4));
  // No thread reads until the device has failed.
  pair.far_end->pause_reading();
  pair.near_end->send(message_for(1, {t}, {gpu(5)}));
  pair.near_end->send(message_for(2, {small}, {gpu(5)}));
  while (pair.near_end->unwritten_bytes() > static_cast<std::uint64_t>(bytes)) std::this_thread::yield();
  fake_cuda::break_device(3, 719);
  pair.far_end->resume_reading();
  auto got = pair.far_log->take(2);
  fake_cuda::mend();
  REQUIRE(got.size() == 2);
  if (got[0].header.call_id != 1) std::swap(got[0], got[1]);  // the small one may have arrived first
  const auto [kind, text] = failure_of(got[0]);
  CHECK(kind == errc::device_failure);
  CHECK_MESSAGE(text.find("cuda:3") != text.npos, text);
  CHECK(got[0].tensors.empty());
  CHECK(holds(got[1], 4, 1000));
  CHECK(pair.near_end->unwritten_bytes() == 0);
}

TEST_CASE("a device that has failed before its tensors are written: the message arrives without them") {
  stream_pair pair;
  const tensor t = make_tensor(3, 8 * static_cast<std::int64_t>(staging_piece)).to(gpu(6));
  fake_cuda::drain();
  fake_cuda::break_device(6, 719);
  outgoing_message message = make_message(1, 100);
  message.tensors = {t};
  CHECK_THROWS_AS(message.finish(), error);  // it cannot even be marked
  fake_cuda::mend();
  fake_cuda::drain();
  fake_cuda::fail(fake_cuda::call::stream_wait_event, 719);
  pair.near_end->send(message_for(1, {t}, {}));
  fake_cuda::fail_nothing();
  pair.near_end->send(message_for(2, {t}, {}));
  auto got = pair.far_log->take(2);
  REQUIRE(got.size() == 2);
  if (got[0].header.call_id != 1) std::swap(got[0], got[1]);
  CHECK(failure_of(got[0]).first == errc::device_failure);
  CHECK(got[0].header.tensor_bytes == 0);
  CHECK(test_kit::is_message(got[0], 1, 100));
  CHECK(test_kit::is_message(got[1], 2, 100));
  CHECK(holds(got[1], 3, 8 * static_cast<std::int64_t>(staging_piece)));
}

TEST_CASE("extension records that are added once the tensors are known arrive with tensors of devices and a status") {
  stream_pair pair;
  constexpr std::int64_t bytes = 5'000'000;
  const std::string text = "what the tensors are";
  const auto message_with_record = [&](std::uint64_t id, std::size_t payload, const tensor& t) {
    outgoing_message message;
    message.header.kind = frame_kind::request;
    message.header.call_id = id;
    message.header.method = id * 3;
    std::byte* at = message.bytes.extend(payload);
    for (std::size_t i = 0; i != payload; ++i) at[i] = test_kit::pattern(id, i);
    message.tensors = {t};
    message.targets = {gpu(5)};
    message.add_extension(1024, true, std::as_bytes(std::span(text)));
    message.begin_extension(40000, false).append(&id, sizeof id);
    message.end_extension();
    message.finish();
    CHECK(message.on_devices());
    return message;
  };
  const auto has_records = [&](const inbound_message& message) {
    std::span<const std::byte> records = message.extensions;
    extension_record first, second, none;
    return next_extension(records, first) && next_extension(records, second) && !next_extension(records, none) &&
           first.type == 1024 && first.critical && first.content.size() == text.size() &&
           std::memcmp(first.content.data(), text.data(), text.size()) == 0 && second.type == 40000 &&
           second.content.size() == 8 && std::memcmp(second.content.data(), &message.header.call_id, 8) == 0;
  };
  const tensor t = make_tensor(3, bytes).to(gpu(3));
  constexpr std::size_t payloads[]{0, 1, 7, 100'003};  // the last one is too large for the block
  for (std::size_t i = 0; i != std::size(payloads); ++i) pair.near_end->send(message_with_record(i, payloads[i], t));
  for (const inbound_message& each : pair.far_log->take(std::size(payloads))) {
    REQUIRE(each.header.call_id < std::size(payloads));
    CHECK(test_kit::is_message(each, each.header.call_id, payloads[each.header.call_id]));
    CHECK(has_records(each));
    CHECK(holds(each, 3, bytes));
  }

  fake_cuda::drain();
  fake_cuda::fail(fake_cuda::call::stream_wait_event, 719);
  pair.near_end->send(message_with_record(9, 3, t));
  fake_cuda::fail_nothing();
  const auto got = pair.far_log->take(1);
  REQUIRE(got.size() == 1);
  CHECK(failure_of(got[0]).first == errc::device_failure);
  CHECK(test_kit::is_message(got[0], 9, 3));
  CHECK(has_records(got[0]));  // without the tensors, they are what is left
}

TEST_CASE("the sender does not wait for a tensor behind one without elements") {
  stream_pair pair;
  outgoing_message message = message_for(1, {empty({0}, dtype::u8, gpu(5)), make_tensor(1, 3000).to(gpu(5))}, {});
  fake_cuda::drain();  // the tensors are ready; the message begins to be written at once
  {
    const fake_cuda::pause nothing_runs;
    pair.near_end->send(std::move(message));
  }
  const auto got = pair.far_log->take(1);
  REQUIRE(got.size() == 1);
  REQUIRE(got[0].tensors.size() == 2);
  CHECK(got[0].tensors[0].numel() == 0);
  CHECK(test_kit::is_tensor(got[0].tensors[1], 1, 3000));
}

TEST_CASE("closing a connection still writes pending device tensors; closing it twice drops them") {
  for (const bool twice : {false, true}) {
    stream_pair pair;
    const tensor t = make_tensor(7, 100'000).to(gpu(0));
    fake_cuda::drain();
    {
      const fake_cuda::pause nothing_runs;
      const tensor late = t.clone();
      pair.near_end->send(message_for(1, {late}, {}));
      pair.near_end->close(make_error(errc::shutting_down, "enough"));
      if (twice) pair.near_end->close(make_error(errc::shutting_down, "at once"));
      if (!twice) CHECK(pair.near_log->times_closed() == 0);
    }
    CHECK(pair.far_log->wait_closed());
    CHECK(pair.far_log->count() == (twice ? 0 : 1));
  }
}

TEST_CASE("a peer without device tensor support is sent none, and the connection reports why") {
  stream_pair pair(false);
  CHECK_FALSE(pair.near_end->carries_device_tensors());
  CHECK(pair.near_end->why_no_device_tensors() == "the ferry release of the peer moves tensors from CPU to CPU only");
  CHECK(stream_pair().near_end->carries_device_tensors());
}

TEST_CASE("bytes in the block stay before those that are received later, however full the devices are") {
  const channel_context context = make_channel_context(shared_reactor(), [] {});
  struct sink final : detail::message_sink {
    const channel_context* with = nullptr;
    std::vector<inbound_message> got;
    void on_frame(inbound_message&& message) override { got.push_back(std::move(message)); }
    [[nodiscard]] const channel_context* channels() const noexcept override { return with; }
    [[nodiscard]] bool takes_tensors_on(device) const noexcept override { return true; }
  } into;
  into.with = &context;
  const std::int64_t bytes = 6 * static_cast<std::int64_t>(staging_piece);
  const outgoing_message message = message_for(1, {make_tensor(9, bytes)}, {gpu(1)});
  std::vector<std::byte> stream(message.bytes.data(), message.bytes.data() + message.bytes.size());
  const auto data = packed_bytes(message.tensors[0]);
  stream.insert(stream.end(), data.begin(), data.end());
  detail::frame_reader reader({});
  std::size_t done = 0;
  // Steps that leave some room in each block, so that the next bytes are received into the reader's own block.
  const auto feed = [&](bool resume_first = true) {
    std::array<iovec, detail::frame_reader::max_vectors> vectors;
    std::size_t total = 0;
    if (reader.stalled() && resume_first) reader.resume(into);
    if (!into.got.empty() || reader.prepare(vectors, total) == 0) return false;
    const std::size_t part = std::min({vectors[0].iov_len, stream.size() - done, std::size_t{104'000}});
    std::memcpy(vectors[0].iov_base, stream.data() + done, part);
    done += part;
    reader.commit(part, into);
    return true;
  };
  {
    const fake_cuda::pause nothing_runs;
    while (feed()) {
    }
    CHECK(done < stream.size());
    CHECK(done <= staging_window + 200'000);
    CHECK(reader.stalled());
  }
  fake_cuda::drain();
  feed(false);  // between a check and the next bytes the device has made progress
  while (into.got.empty()) {
    if (!feed()) fake_cuda::drain();
  }
  CHECK(holds(into.got[0], 9, bytes));
}

TEST_CASE("page-locked memory is not reused before the device has read it; without its mark it is") {
  for (const bool marked : {true, false}) {
    stream_pair pair;
    pair.near_end->send(message_for(1, {make_tensor(1, 1000)}, {gpu(1)}));
    CHECK(holds(pair.far_log->take(1).at(0), 1, 1000));
    fake_cuda::drain();
    std::vector<inbound_message> got;
    {
      const fake_cuda::pause nothing_runs;
      if (!marked) fake_cuda::skip(fake_cuda::call::event_record, 1);
      for (const std::uint64_t id : {2U, 3U}) {
        pair.near_end->send(message_for(id, {make_tensor(id, 1000)}, {gpu(1)}));
        got.push_back(std::move(pair.far_log->take(1).at(0)));
      }
      fake_cuda::fail_nothing();
    }
    CHECK(holds(got[0], 2, 1000) == marked);
    CHECK(holds(got[1], 3, 1000));
  }
}

TEST_CASE("a device that hangs fails the message that it receives at its limit, and the connection goes on") {
  stream_pair pair(true, with_limit(200ms));
  const auto blocks = fake_cuda::blocks_in_use(1);
  const auto staged = get_staging_memory_stats(device_kind::cuda).blocks_in_use;
  const tensor large = make_tensor(1, 6 * mebibyte);
  const auto waits = fake_cuda::host_synchronizations();
  {
    const fake_cuda::pause nothing_runs;
    for (const std::uint64_t id : {1U, 3U}) {
      pair.near_end->send(message_for(id, {large, make_tensor(2, 5000)}, {gpu(1), gpu(1)}));
      pair.near_end->send(message_for(id + 1, {}, {}));
      const auto got = pair.far_log->take(2);
      REQUIRE(got.size() == 2);
      CHECK(test_kit::is_message(got[0], id, 100));
      const auto [kind, text] = failure_of(got[0]);
      CHECK(kind == errc::device_timeout);
      CHECK_MESSAGE(text.find("copies to cuda:1 made no progress for 0.2 s") != text.npos, text);
      CHECK_MESSAGE(text.find("transport.device_timeout (tensors from test far)") != text.npos, text);
      CHECK(got[0].tensors.empty());
      CHECK(test_kit::is_message(got[1], id + 1, 100));
    }
    CHECK(get_staging_memory_stats(device_kind::cuda).blocks_awaited != 0);  // not reused before the copies end
  }
  CHECK(fake_cuda::host_synchronizations() <= waits + 12);  // page-locked memory that is allocated
  CHECK(staging_comes_back(device_kind::cuda, staged));
  pair.near_end->send(message_for(5, {large}, {gpu(1)}));
  CHECK(holds(pair.far_log->take(1).at(0), 1, 6 * mebibyte));
  fake_cuda::drain();
  CHECK(fake_cuda::blocks_in_use(1) == blocks);
}

TEST_CASE("a device that hangs fails the message that it sends at its limit, and the connection goes on") {
  stream_pair pair(true, with_limit(200ms));
  const auto staged = get_staging_memory_stats(device_kind::cuda).blocks_in_use;
  const tensor large = make_tensor(3, 6 * mebibyte).to(gpu(3));
  std::vector<outgoing_message> messages;
  for (const std::uint64_t id : {1U, 2U}) messages.push_back(message_for(id, {large, make_tensor(2, 5000)}, {}));
  fake_cuda::drain();  // the messages begin to be written at once
  {
    const fake_cuda::pause nothing_runs;
    for (outgoing_message& each : messages) pair.near_end->send(std::move(each));
    pair.near_end->send(message_for(3, {}, {}));
    const auto got = pair.far_log->take(3);
    REQUIRE(got.size() == 3);
    for (const std::uint64_t id : {1U, 2U}) {
      CHECK(test_kit::is_message(got[id - 1], id, 100));
      const auto [kind, text] = failure_of(got[id - 1]);
      CHECK(kind == errc::device_timeout);
      CHECK_MESSAGE(text.find("copies from cuda:3 made no progress for 0.2 s") != text.npos, text);
      CHECK_MESSAGE(text.ends_with("or raise transport.device_timeout"), text);
      CHECK(got[id - 1].tensors.empty());
    }
    CHECK(test_kit::is_message(got[2], 3, 100));
    CHECK(get_staging_memory_stats(device_kind::cuda).blocks_in_use > staged);  // kept by the copies
  }
  CHECK(staging_comes_back(device_kind::cuda, staged));
  pair.near_end->send(message_for(4, {large}, {}));
  CHECK(holds(pair.far_log->take(1).at(0), 3, 6 * mebibyte));
}

TEST_CASE("a device that hangs keeps no other device from memory for transfers") {
  register_devices<queue_device>();
  stream_pair pair(true, with_limit(10min));
  const tensor window = make_tensor(1, 4 * mebibyte);
  inbound_message first;
  {
    const hanging device(pool_of(queue_of(0)));
    pair.near_end->send(message_for(1, {window}, {queue_of(0)}));  // as much as one connection may have under way
    first = std::move(pair.far_log->take(1).at(0));
    pair.near_end->send(message_for(2, {make_tensor(2, 6 * mebibyte)}, {queue_of(1)}));
    CHECK(holds(pair.far_log->take(1).at(0), 2, 6 * mebibyte));
  }
  CHECK(holds(first, 1, 4 * mebibyte));
}

TEST_CASE("a stream that hangs fails one message; others of its device use other streams") {
  register_devices<queue_device>();
  stream_pair pair(true, with_limit(200ms));
  const std::vector<stream> pool = pool_of(queue_of(2));
  // The pool prefers streams that are idle, of the next eight: none of these is.
  const hanging first_eight({pool.begin(), pool.begin() + 8});
  pair.near_end->send(message_for(1, {make_tensor(1, 6 * mebibyte)}, {queue_of(2)}));
  CHECK(failure_of(pair.far_log->take(1).at(0)).first == errc::device_timeout);
  for (std::uint64_t id = 2; id != 2 + pool.size(); ++id) {
    pair.near_end->send(message_for(id, {make_tensor(id, 1000)}, {queue_of(2)}));
    const inbound_message got = std::move(pair.far_log->take(1).at(0));
    REQUIRE(got.streams.size() == 1);
    CHECK_FALSE(got.streams[0] == pool.front());
    CHECK(holds(got, id, 1000));
  }
}

TEST_CASE("the memory that the copies of a hanging device keep is bounded, and comes back") {
  register_devices<queue_device>();
  constexpr device_kind kind = device_traits<queue_device>::kind;
  const std::uint64_t in_use = get_staging_memory_stats(kind).blocks_in_use;
  const tensor on_host = make_tensor(1, 5 * mebibyte);
  const tensor on_device = on_host.to(queue_of(1));
  for (const bool sends : {false, true}) {
    CAPTURE(sends);
    stream_pair pair(true, with_limit(50ms));
    std::vector<outgoing_message> messages;
    for (std::uint64_t id = 1; id != 41; ++id) {
      messages.push_back(sends ? message_for(id, {on_device}, {}) : message_for(id, {on_host}, {queue_of(1)}));
    }
    default_stream(queue_of(1)).synchronize();
    const auto before = get_staging_memory_stats(kind).reserved_bytes;
    {
      const hanging device(pool_of(queue_of(1)));
      for (outgoing_message& each : messages) pair.near_end->send(std::move(each));
      for (const inbound_message& got : pair.far_log->take(40)) CHECK(failure_of(got).first == errc::device_timeout);
    }
    CHECK(get_staging_memory_stats(kind).reserved_bytes - before <= 2 * staging_window + 32 * staging_piece);
    CHECK(staging_comes_back(kind, in_use));
  }
}

}  // namespace staged_connection_test
