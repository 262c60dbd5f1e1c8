// What is lent between processes: who keeps it how long, and what a peer that lies gets.

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <device/cuda/cuda_scope.hpp>
#include <device/memory/shared_arena.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/tensor/shared_allocator.hpp>
#include <ferry/transport/channel.hpp>
#include <ferry/transport/reactor.hpp>
#include <transport/channels/direct_channel.hpp>
#include <transport/channels/direct_memory.hpp>
#include <transport/channels/staged_receive.hpp>
#include <transport/channels/staged_send.hpp>
#include <transport/shm/passed_descriptors.hpp>
#include <transport/sockets/pool_exchange.hpp>

#include "captured_log.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "processes.hpp"
#include "watchdog.hpp"

namespace d = ferry::detail;

namespace direct_memory_test {
using ferry::device;
using ferry::errc;

namespace {

constexpr device gpu(int index) { return {ferry::device_kind::cuda, index}; }
constexpr std::size_t ring_bytes = 4096;

ferry::storage block_on(int index) { return ferry::storage::allocate(ferry::least_direct, gpu(index)); }

d::unique_fd watch(pid_t process) { return d::unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))); }

// Both ends of a connection, in this process.
struct both_ends {
  both_ends() {
    auto [made, descriptor] = d::shared_rings::create(ring_bytes);
    lender = std::move(made);
    reader = d::shared_rings::adopt(descriptor, ring_bytes);
  }
  std::unique_ptr<d::shared_rings> lender;
  std::unique_ptr<d::shared_rings> reader;
  [[nodiscard]] std::shared_ptr<d::lent_blocks> lent(pid_t process = ::getpid()) const {
    return std::make_shared<d::lent_blocks>(lender->memory(), lender->lent(), watch(process));
  }
  [[nodiscard]] std::unique_ptr<d::borrowed_blocks> borrowed() const {
    return std::make_unique<d::borrowed_blocks>(reader->memory(), reader->borrowed());
  }
};

const ferry_test::role waiting("waits to be killed", [](const std::vector<std::string>&) {
  ferry_test::tell_parent("ready");
  (void)ferry_test::ask_parent();
  return 0;
});

bool becomes_zero(const d::lent_blocks& lent) {
  const ferry_test::watchdog limit("blocks that are still lent");
  while (lent.count() != 0) std::this_thread::yield();
  return true;
}

}  // namespace

TEST_CASE("the note of a loan says what it said, and one that cannot be is refused") {
  d::loan_note note{3, {127, 9}, 4096, ferry::least_direct, {}};
  note.block.fill(std::byte{0x5a});
  const auto back = d::loan_note::decode(note.encode());
  REQUIRE(back);
  CHECK(back->pool == 3);
  CHECK(back->of.slot == 127);
  CHECK(back->of.number == 9);
  CHECK(back->offset == 4096);
  CHECK(back->bytes == ferry::least_direct);
  CHECK(back->block == note.block);
  CHECK_FALSE(d::loan_note::decode(std::array<std::byte, d::loan_note::encoded_size>{}));
  note.of.slot = 128;
  expect_error(errc::malformed, "loan", [&] { (void)d::loan_note::decode(note.encode()); });
  note.of = {0, 0};
  expect_error(errc::malformed, "loan", [&] { (void)d::loan_note::decode(note.encode()); });
}

TEST_CASE("a block is lent until the reader gives it back, and so many at once") {
  const both_ends ends;
  const auto lent = ends.lent();
  const auto borrowed = ends.borrowed();
  int news = 0;
  borrowed->set_news([&] { ++news; });
  const ferry::storage block = block_on(0);
  std::vector<d::loan> loans;
  for (std::size_t i = 0; i != d::loan_control::slots; ++i) {
    const auto one = lent->lend(block);
    REQUIRE(one);
    loans.push_back(*one);
  }
  CHECK_FALSE(lent->lend(block));
  CHECK(block.use_count() == 1 + loans.size());
  borrowed->give_back(loans[5]);
  lent->take_back(loans[9]);
  CHECK(news == 1);
  lent->collect();
  CHECK(lent->count() == loans.size() - 2);
  CHECK(block.use_count() == 1 + loans.size() - 2);
  const auto again = lent->lend(block);
  REQUIRE(again);
  CHECK(again->slot == loans[5].slot);
  borrowed->give_back(loans[5]);  // a former loan of the slot
  lent->take_back(loans[5]);
  lent->collect();
  CHECK(lent->count() == loans.size() - 1);
  borrowed->give_back(*again);
  lent->collect();
  CHECK(lent->count() == loans.size() - 2);
}

TEST_CASE("what is lent over a connection that has ended is kept until the reader lets go of it, or is dead") {
  for (const std::string end : {"gives back", "has no connection", "dies"}) {
    CAPTURE(end);
    ferry_test::child_process child({.role = "waits to be killed"});
    REQUIRE(child.read_line() == "ready");
    const both_ends ends;
    const auto lent = ends.lent(child.pid());
    auto borrowed = ends.borrowed();
    const ferry::storage block = block_on(0);
    const auto one = lent->lend(block);
    REQUIRE(one);
    d::lent_blocks::look_after(lent);
    CHECK(lent->count() == 1);
    if (end == "gives back") borrowed->give_back(*one);
    if (end == "has no connection") borrowed.reset();
    if (end == "dies") child.kill();
    CHECK(becomes_zero(*lent));
    CHECK(block.use_count() == 1);
    child.kill();
    (void)child.wait();
  }
}

namespace {

// A message with one tensor of 2 MiB on cuda:0, which comes as `way` says.
struct arriving {
  ferry::frame_header header;
  ferry::channel_context context = ferry::make_channel_context(ferry::shared_reactor(), [] {});
  arriving() {
    header.kind = ferry::frame_kind::request;
    header.flags = ferry::frame_outcome | ferry::frame_direct;
    header.tensor_count = 1;
    header.tensor_bytes = ferry::least_direct;
  }
  [[nodiscard]] std::unique_ptr<d::staged_receive> begin(device where = gpu(0)) const {
    std::vector<ferry::tensor_description> tensors(1);
    tensors[0] = {ferry::dtype::u8, where, {static_cast<std::int64_t>(ferry::least_direct)}, {1}, ferry::least_direct};
    return std::make_unique<d::staged_receive>(header, std::move(tensors), context,
                                               [](device to) { return to == gpu(0); });
  }
  static void put(d::staged_receive& into, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto room = into.room();
      REQUIRE_FALSE(room.empty());
      const std::size_t part = std::min(room.size(), bytes.size());
      std::memcpy(room.data(), bytes.data(), part);
      into.commit(part);
      bytes = bytes.subspan(part);
    }
  }
};

errc failure_of(d::staged_receive& received) {
  ferry::inbound_message message;
  received.finish(message);
  if (!message.failure) return errc{};
  try {
    std::rethrow_exception(message.failure);
  } catch (const ferry::error& why) {
    return why.kind();
  }
}

const std::array<std::byte, 1> direct{std::byte{1}};
const std::array<std::byte, ferry::transfer_status::encoded_size> well{};

}  // namespace

TEST_CASE("a way that is not known, or that the connection does not have, ends the connection") {
  arriving message;
  const std::array<std::byte, 1> unknown{std::byte{2}};
  expect_error(errc::malformed, "way", [&] { arriving::put(*message.begin(), unknown); });
  expect_error(errc::malformed, "does not share", [&] { arriving::put(*message.begin(), direct); });
  const both_ends ends;
  message.context.direct =
      std::make_shared<d::direct_memory>(*ends.reader, watch(::getpid()), std::vector<d::offered_pool>{},
                                         std::vector<std::shared_ptr<d::imported_pool>>{});
  expect_error(errc::malformed, "does not share", [&] { arriving::put(*message.begin(device()), direct); });
}

TEST_CASE("a note that leads nowhere fails its message only, and what it lends is given back") {
  const both_ends ends;
  const auto lent = ends.lent();
  arriving message;
  message.context.direct =
      std::make_shared<d::direct_memory>(*ends.reader, watch(::getpid()), std::vector<d::offered_pool>{},
                                         std::vector<std::shared_ptr<d::imported_pool>>{nullptr});
  const ferry::storage block = block_on(0);
  for (const std::uint32_t pool : {0U, 1U, ~0U}) {
    CAPTURE(pool);
    const auto of = lent->lend(block);
    REQUIRE(of);
    const auto received = message.begin();
    arriving::put(*received, direct);
    arriving::put(*received, d::loan_note{pool, *of, 0, ferry::least_direct, {}}.encode());
    arriving::put(*received, well);
    REQUIRE(received->complete());
    CHECK(failure_of(*received) == errc::malformed);
    lent->collect();
    CHECK(lent->count() == 0);
  }
  // A tensor that nothing here takes: the note is not looked at, apart from what it lends.
  const auto of = lent->lend(block);
  REQUIRE(of);
  const auto received = message.begin(gpu(1));
  arriving::put(*received, direct);
  arriving::put(*received, d::loan_note{7, *of, 0, 1, {}}.encode());
  arriving::put(*received, well);
  REQUIRE(received->complete());
  CHECK(failure_of(*received) == errc::bad_device);
  lent->collect();
  CHECK(lent->count() == 0);
}

TEST_CASE("a tensor of host memory is over the sender's, and a note that leads elsewhere fails its message only") {
  const both_ends ends;
  const auto lent = ends.lent();
  constexpr std::size_t whole = 4 * ferry::least_direct;
  d::shared_arena owner(whole);
  auto* const own = static_cast<std::byte*>(owner.allocate(whole));
  REQUIRE(own != nullptr);
  std::memset(own, 7, whole);
  arriving message;
  message.context.direct = std::make_shared<d::direct_memory>(
      *ends.reader, d::unique_fd(), std::vector<d::offered_pool>{}, std::vector<std::shared_ptr<d::imported_pool>>{},
      "", d::shared_host_memory{false, std::make_shared<d::peer_memory>(d::unique_fd(::dup(owner.descriptor())))});
  CHECK(lent->reader_has_host());
  const ferry::storage block = ferry::storage::allocate(1);
  const auto receive = [&](const d::loan_note& note) {
    auto received = message.begin(device());
    arriving::put(*received, direct);
    arriving::put(*received, note.encode());
    arriving::put(*received, well);
    REQUIRE(received->complete());
    return received;
  };
  const auto lend = [&] {
    const auto of = lent->lend(block);
    REQUIRE(of);
    return *of;
  };
  constexpr std::uint32_t host = d::loan_note::host_pool;
  constexpr std::uint32_t handed_over = d::loan_note::handed_over_pool;
  struct wrong_note {
    std::uint32_t pool;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  for (const wrong_note& each : {wrong_note{0, 0, ferry::least_direct},
                                 {host, whole, ferry::least_direct},
                                 {host, whole - ferry::least_direct + 1, ferry::least_direct},
                                 {host, ~std::uint64_t{0}, ferry::least_direct},
                                 {host, 0, ferry::least_direct - 1},
                                 {host, 0, ~std::uint64_t{0}},
                                 {host, 0, 0},
                                 {handed_over - 1, 0, ferry::least_direct},
                                 {handed_over, whole, ferry::least_direct},
                                 {handed_over, 0, ferry::least_direct - 1},
                                 {handed_over, ~std::uint64_t{0}, ferry::least_direct}}) {
    CAPTURE(each.pool);
    CAPTURE(each.offset);
    CAPTURE(each.bytes);
    CHECK(failure_of(*receive({each.pool, lend(), each.offset, each.bytes, {}})) == errc::malformed);
    lent->collect();
    CHECK(lent->count() == 0);
  }
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{4096}, std::uint64_t{64}, std::uint64_t{1}}) {
    CAPTURE(offset);
    const bool in_place = offset % 64 == 0;
    ferry::inbound_message arrived;
    receive({host, lend(), offset, ferry::least_direct, {}})->finish(arrived);
    REQUIRE(arrived.tensors.size() == 1);
    const auto* const elements = arrived.tensors[0].data<unsigned char>();
    CHECK(reinterpret_cast<std::uintptr_t>(elements) % 64 == 0);
    CHECK(elements[ferry::least_direct - 1] == 7);
    own[offset] = std::byte{9};
    CHECK(elements[0] == (in_place ? 9 : 7));
    own[offset] = std::byte{7};
    lent->collect();
    CHECK(lent->count() == (in_place ? 1 : 0));
    arrived = {};
    lent->collect();
    CHECK(lent->count() == 0);
  }
  // A connection that ends takes nothing from a tensor that has arrived.
  ferry::inbound_message arrived;
  receive({host, lend(), 0, ferry::least_direct, {}})->finish(arrived);
  message.context.direct->close();
  d::lent_blocks::look_after(lent);
  REQUIRE(arrived.tensors.size() == 1);
  CHECK(arrived.tensors[0].data<unsigned char>()[77] == 7);
  CHECK(lent->count() == 1);
  arrived = {};
  CHECK(becomes_zero(*lent));
}

TEST_CASE("memory that is handed over is the receiver's, unless it may only read it") {
  const both_ends ends;
  const auto lent = ends.lent();
  d::shared_arena owner(ferry::least_direct);
  auto* const own = static_cast<std::byte*>(owner.allocate(ferry::least_direct));
  REQUIRE(own != nullptr);
  std::memset(own, 7, ferry::least_direct);
  const std::string path = "/proc/self/fd/" + std::to_string(owner.descriptor());
  for (const int access : {O_RDWR, O_RDONLY}) {
    arriving message;
    message.context.direct = std::make_shared<d::direct_memory>(
        *ends.reader, d::unique_fd(), std::vector<d::offered_pool>{}, std::vector<std::shared_ptr<d::imported_pool>>{},
        "",
        d::shared_host_memory{
            false, std::make_shared<d::peer_memory>(d::unique_fd(::open(path.c_str(), access | O_CLOEXEC)))});
    CHECK(lent->reader_has_host());
    CHECK(lent->reader_takes_over() == (access == O_RDWR));
    const auto of = lent->lend(ferry::storage::allocate(1));
    REQUIRE(of);
    const auto received = message.begin(device());
    arriving::put(*received, direct);
    arriving::put(*received, d::loan_note{d::loan_note::handed_over_pool, *of, 0, ferry::least_direct, {}}.encode());
    arriving::put(*received, well);
    REQUIRE(received->complete());
    if (access == O_RDONLY) {
      CHECK(failure_of(*received) == errc::malformed);
    } else {
      ferry::inbound_message arrived;
      received->finish(arrived);
      REQUIRE(arrived.tensors.size() == 1);
      auto* const elements = arrived.tensors[0].data<unsigned char>();
      CHECK(elements[ferry::least_direct - 1] == 7);
      elements[0] = 9;
      CHECK(own[0] == std::byte{9});
      lent->collect();
      CHECK(lent->count() == 1);
    }
    lent->collect();
    CHECK(lent->count() == 0);
  }
}

TEST_CASE("ordinary tensors are handed over while the reader does not keep pace, which is asked again") {
  const both_ends ends;
  d::direct_memory sender(*ends.lender, watch(::getpid()), {}, {}, "", d::shared_host_memory{.offered = true});
  auto borrowed = ends.borrowed();
  const ferry::tensor large = ferry::ones({1 << 18});
  const ferry::tensor small = ferry::ones({1000});
  CHECK_FALSE(sender.can_lend(large, device()));
  sender.reader_keeps_pace(false);
  CHECK_FALSE(sender.can_lend(large, device()));  // the reader has not said that it takes them
  borrowed->announce_host(false);
  CHECK_FALSE(sender.can_lend(large, device()));
  borrowed->announce_host(true);
  CHECK_FALSE(sender.can_lend(small, device()));
  CHECK_FALSE(sender.can_lend(large, gpu(0)));
  int handed_over = 0;
  for (; sender.can_lend(large, device()); ++handed_over) {
    const auto note = sender.lend(large);
    REQUIRE(note);
    CHECK(note->pool == d::loan_note::handed_over_pool);
    CHECK(d::handed_over_block::bytes_of_process() == std::uint64_t{1} << 20U);
    borrowed->give_back(note->of);
  }
  CHECK(handed_over == 64);
  CHECK(sender.asks_for_pace());
  CHECK_FALSE(sender.asks_for_pace());
  sender.reader_keeps_pace(false);
  CHECK(sender.can_lend(large, device()));
  // So many at once, which leaves room for what is lent.
  std::vector<d::loan> kept;
  for (int i = 0; i != 70; ++i) {
    sender.reader_keeps_pace(false);
    if (const auto note = sender.lend(large)) kept.push_back(note->of);
  }
  CHECK(kept.size() == 64);
  for (const d::loan& each : kept) borrowed->give_back(each);
  sender.reader_keeps_pace(false);
  // More than the readers may have: then it is copied through the ring.
  const std::size_t limit = ferry::get_cpu_pool_stats().limit_bytes;
  ferry::cpu_pool_set_limit(1000);
  CHECK_FALSE(sender.lend(large));
  ferry::cpu_pool_set_limit(limit);
  CHECK(d::handed_over_block::bytes_of_process() == 0);
}

TEST_CASE("a reader that gives back what it has not got harms no memory of the sender") {
  const both_ends ends;
  d::direct_memory sender(*ends.lender, watch(::getpid()), {}, {}, "", d::shared_host_memory{.offered = true});
  auto borrowed = ends.borrowed();
  borrowed->announce_host(true);
  sender.reader_keeps_pace(false);
  std::atomic<bool> over{false};
  std::thread collecting([&] {
    while (!over.load()) sender.lent()->collect();
  });
  const ferry::tensor large = ferry::full({1 << 20}, 3, ferry::dtype::f32);
  for (std::uint32_t number = 1; number != 60; ++number) {
    for (std::uint32_t slot = 0; slot != 4; ++slot) borrowed->give_back({slot, number});
    const auto note = sender.lend(large);
    const ferry::tensor other = ferry::shared_allocator().zeros({1 << 20});
    REQUIRE(ferry::shared_allocator().owns(other));
    if (note) CHECK(other.at<float>((1 << 20) - 1) == 0);
    sender.reader_keeps_pace(false);
  }
  over.store(true);
  collecting.join();
  for (std::uint32_t slot = 0; slot != d::loan_control::slots; ++slot) {
    for (std::uint32_t number = 1; number != 64; ++number) {
      borrowed->give_back({slot, number});
      sender.lent()->collect();
    }
  }
  CHECK(d::handed_over_block::bytes_of_process() == 0);
}

TEST_CASE("host memory is copied from where it lies into memory that there is already") {
  const both_ends ends;
  const auto lent = ends.lent();
  d::shared_arena owner(ferry::least_direct);
  auto* const own = static_cast<std::byte*>(owner.allocate(ferry::least_direct));
  REQUIRE(own != nullptr);
  std::memset(own, 5, ferry::least_direct);
  ferry::channel_context context = ferry::make_channel_context(ferry::shared_reactor(), [] {});
  const ferry::tensor into = ferry::zeros({1000}, ferry::dtype::u8);
  using channel = ferry::channel_traits<ferry::shm_tensors>;
  expect_error(errc::malformed, "does not share", [&] { (void)channel::open_sink(into, {}, context); });
  context.direct = std::make_shared<d::direct_memory>(
      *ends.reader, d::unique_fd(), std::vector<d::offered_pool>{}, std::vector<std::shared_ptr<d::imported_pool>>{},
      "", d::shared_host_memory{false, std::make_shared<d::peer_memory>(d::unique_fd(::dup(owner.descriptor())))});
  const auto of = lent->lend(ferry::storage::allocate(1));
  REQUIRE(of);
  const auto sink = channel::open_sink(into, {}, context);
  const auto note = d::loan_note{d::loan_note::host_pool, *of, 10, 1000, {}}.encode();
  REQUIRE(sink->room().size() == note.size());
  std::memcpy(sink->room().data(), note.data(), note.size());
  sink->commit(note.size());
  CHECK(sink->settled());
  CHECK(into.at<unsigned char>(0) == 5);
  CHECK(into.at<unsigned char>(999) == 5);
  lent->collect();
  CHECK(lent->count() == 0);
}

TEST_CASE("a sender whose devices have failed sends zeros for a note, and the reason behind") {
  const both_ends ends;
  arriving message;
  message.context.direct =
      std::make_shared<d::direct_memory>(*ends.reader, watch(::getpid()), std::vector<d::offered_pool>{},
                                         std::vector<std::shared_ptr<d::imported_pool>>{});
  const auto received = message.begin();
  arriving::put(*received, direct);
  arriving::put(*received, std::array<std::byte, d::loan_note::encoded_size>{});
  std::array<std::byte, ferry::transfer_status::encoded_size> status{};
  ferry::transfer_status{errc::device_timeout, "stalled"}.encode(status.data());
  arriving::put(*received, status);
  REQUIRE(received->complete());
  CHECK(failure_of(*received) == errc::device_timeout);
}

TEST_CASE("a note that has been written stays lent although another tensor of its message fails") {
  const ferry_test::captured_log quiet;
  (void)block_on(0);
  REQUIRE_FALSE(d::exported_cuda_pools().empty());
  const both_ends ends;
  std::atomic<int> news{0};
  ferry::channel_context context = ferry::make_channel_context(ferry::shared_reactor(), [&] { ++news; });
  context.direct =
      std::make_shared<d::direct_memory>(*ends.lender, watch(::getpid()), std::vector<d::offered_pool>{{gpu(0), 1}},
                                         std::vector<std::shared_ptr<d::imported_pool>>{});
  const auto packed_on = [](int index, std::int64_t bytes) {
    return ferry::empty_packed(ferry::dtype::u8, std::array{bytes}, std::array{std::int64_t{1}}, gpu(index));
  };
  ferry::outgoing_message message;
  message.tensors = {packed_on(0, static_cast<std::int64_t>(ferry::least_direct)), packed_on(7, 1000)};
  message.targets = {gpu(0), device()};
  std::unique_ptr<d::staged_send> sent;
  constexpr int launch_failure = 719;
  {
    const fake_cuda::pause nothing_runs;
    sent = std::make_unique<d::staged_send>(message, context, std::make_shared<std::atomic<std::size_t>>(0));
    fake_cuda::break_device(7, launch_failure);
  }
  CHECK(context.direct->lent()->count() == 1);
  std::array<iovec, 8> parts{};
  // The two devices end their work in either order. A failure found behind bytes that are valid is sent with the next.
  const auto collect_at_least = [&](std::size_t count) {
    const ferry_test::watchdog limit("the failure of a copy");
    std::size_t collected = 0;
    while ((collected = sent->collect(parts)) < count) std::this_thread::yield();
    return collected;
  };
  REQUIRE(collect_at_least(1) == 1);
  REQUIRE(parts[0].iov_len == d::loan_note::encoded_size);
  sent->consume(parts[0].iov_len / 2);
  REQUIRE(collect_at_least(2) >= 2);  // the rest of the note, and zeros
  CHECK(parts[0].iov_len == d::loan_note::encoded_size / 2);
  sent->consume(parts[0].iov_len);
  sent.reset();
  CHECK(context.direct->lent()->count() == 1);
  CHECK(news.load() >= 1);
  fake_cuda::mend();
  d::lift_cuda_fences();
}

namespace {

struct socket_pair {
  std::array<int, 2> ends{-1, -1};
  socket_pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0); }
  socket_pair(const socket_pair&) = delete;
  socket_pair& operator=(const socket_pair&) = delete;
  ~socket_pair() {
    for (const int each : ends) ::close(each);
  }
};

std::vector<std::byte> offer_of(std::uint32_t count, std::size_t described) {
  constexpr std::array<unsigned char, 8> magic{0x89, 'F', 'P', 'O', 'O', 'L', 'S', '\n'};
  std::vector<std::byte> bytes(16 + 104 * described);
  std::memcpy(bytes.data(), magic.data(), magic.size());
  std::memcpy(bytes.data() + 8, &count, sizeof count);
  return bytes;
}

}  // namespace

TEST_CASE("an offer of pools that is none is refused, and one that cannot be used is answered so") {
  const ferry_test::captured_log quiet;
  (void)block_on(0);
  const std::array<int, 1> one{STDERR_FILENO};
  const auto take = [](const std::vector<std::byte>& bytes, std::span<const int> descriptors) {
    const socket_pair pair;
    d::send_with_descriptors(pair.ends[0], bytes, descriptors, "");
    d::pool_exchange reader;
    reader.take_offer(pair.ends[1]);
    return reader.answer();
  };
  std::vector<std::byte> text(16, std::byte{'x'});
  expect_error(errc::handshake_failed, "not one", [&] { (void)take(text, {}); });
  expect_error(errc::handshake_failed, "for 1 pools", [&] { (void)take(offer_of(1, 0), one); });
  expect_error(errc::handshake_failed, "for 17 pools", [&] { (void)take(offer_of(17, 1), one); });
  expect_error(errc::handshake_failed, "0 descriptors", [&] { (void)take(offer_of(1, 1), {}); });
  expect_error(errc::handshake_failed, "1 descriptors", [&] { (void)take(offer_of(0, 0), one); });
  CHECK(take(offer_of(0, 0), {}).empty());
  // Of a GPU that is not here; and one of a GPU that is, whose descriptor is no pool.
  CHECK(take(offer_of(1, 1), one) == std::vector<std::byte>(8));
  auto here = offer_of(1, 1);
  here[16 + 8] = std::byte{0xfa};
  here[16 + 9] = std::byte{0x5e};
  CHECK(take(here, one) == std::vector<std::byte>(8));
  const socket_pair closed;
  ::shutdown(closed.ends[0], SHUT_RDWR);
  d::pool_exchange reader;
  expect_error(errc::handshake_failed, "not one", [&] { reader.take_offer(closed.ends[1]); });
}

TEST_CASE("a process does not read its own memory as another's") {
  const ferry_test::captured_log quiet;
  (void)block_on(0);
  const socket_pair pair;
  const both_ends ends;
  d::pool_exchange lender;
  d::pool_exchange reader;
  lender.offer(pair.ends[0]);
  reader.take_offer(pair.ends[1]);
  lender.take_answer(reader.answer());
  CHECK_FALSE(lender.finish(pair.ends[0], *ends.lender)->why_not(gpu(0), gpu(0)).empty());
  CHECK(reader.finish(pair.ends[1], *ends.reader)->pool(0) == nullptr);
}

}  // namespace direct_memory_test
