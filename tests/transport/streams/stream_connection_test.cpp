#include "transport/streams/stream_connection.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/tensor.hpp>

#include "transport/reactor/io_threads.hpp"

namespace stream_connection_test {

namespace {

using namespace ferry;

outgoing_message text_message(std::uint64_t id, const std::string& text) {
  outgoing_message message;
  message.header.kind = frame_kind::request;
  message.header.flags = frame_no_deadline;
  message.header.call_id = id;
  message.bytes.append(text.data(), text.size());
  message.finish();
  return message;
}

struct collector : connection_receiver {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> texts;
  std::vector<tensor> tensors;
  int closed = 0;
  bool echo = false;
  std::atomic<bool> expecting{true};

  void on_message(connection& from, inbound_message&& message) noexcept override {
    std::string text(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
    if (echo) from.send(text_message(message.header.call_id, text));
    std::lock_guard lock(mutex);
    texts.push_back(std::move(text));
    for (auto& t : message.tensors) tensors.push_back(std::move(t));
    changed.notify_all();
  }
  void on_closed(connection&, std::exception_ptr) noexcept override {
    std::lock_guard lock(mutex);
    ++closed;
    changed.notify_all();
  }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return expecting.load() ? 1 : 0; }

  template <class Condition>
  void wait(Condition condition) {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(60), condition));
  }
};

struct texts_arrived final : drive_condition {
  explicit texts_arrived(collector& where) : at(where) {}
  [[nodiscard]] bool done() const noexcept override {
    std::lock_guard lock(at.mutex);
    return at.texts.size() >= count;
  }
  collector& at;
  std::size_t count = 0;
};

struct pair {
  std::shared_ptr<reactor> loop = ferry::shared_reactor();
  std::shared_ptr<connection> a, b;
  std::shared_ptr<collector> at_a = std::make_shared<collector>(), at_b = std::make_shared<collector>();
  explicit pair(transport_options options = {}) {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    a = detail::make_stream_connection(*loop, fds[0], "test", "test a", options);
    b = detail::make_stream_connection(*loop, fds[1], "test", "test b", options);
    a->start(at_a);
    b->start(at_b);
  }
  ~pair() {
    a->close(make_error(errc::shutting_down, "end"));
    b->close(make_error(errc::shutting_down, "end"));
    at_a->wait([&] { return at_a->closed == 1; });
    at_b->wait([&] { return at_b->closed == 1; });
  }
};

TEST_CASE("messages of many sizes arrive whole and in order") {
  pair ends;
  std::vector<std::string> sent;
  for (std::size_t size : {0, 1, 63, 64, 65, 4096, 65407, 65408, 65471, 65472, 65473, 65536, 65537, 5'000'000, 0, 3}) {
    sent.emplace_back(size, static_cast<char>('a' + sent.size()));
    ends.a->send(text_message(sent.size(), sent.back()));
  }
  ends.at_b->wait([&] { return ends.at_b->texts.size() == sent.size(); });
  CHECK(ends.at_b->texts == sent);
}

TEST_CASE("tensors are received into their own memory") {
  pair ends;
  for (int round = 0; round != 20; ++round) {
    outgoing_message message = text_message(1, "x");
    outgoing_message with;
    with.header.kind = frame_kind::request;
    with.header.flags = frame_no_deadline;
    with.bytes.append("tensors", 7);
    with.tensors.push_back(arange(0, 3000000, 1, dtype::f32));
    with.tensors.push_back(zeros({0}));
    with.tensors.push_back(arange(0, 5, 1, dtype::i64));
    with.finish();
    ends.a->send(std::move(with));
    ends.a->send(std::move(message));
  }
  ends.at_b->wait([&] { return ends.at_b->texts.size() == 40; });
  REQUIRE(ends.at_b->tensors.size() == 60);
  for (int i = 0; i != 60; i += 3) {
    CHECK(ends.at_b->tensors[i].numel() == 3000000);
    CHECK(ends.at_b->tensors[i].at<float>(2999999) == 2999999);
    CHECK(ends.at_b->tensors[i + 2].at<std::int64_t>(4) == 4);
  }
}

TEST_CASE("many tensors of one message each get their own bytes") {
  pair ends;
  for (int round = 0; round != 20; ++round) {
    outgoing_message message;
    message.header.kind = frame_kind::request;
    message.header.flags = frame_no_deadline;
    for (int i = 0; i != 64; ++i) message.tensors.push_back(full({2048}, i, dtype::i32));
    message.finish();
    ends.a->send(std::move(message));
  }
  ends.at_b->wait([&] { return ends.at_b->texts.size() == 20; });
  REQUIRE(ends.at_b->tensors.size() == 20 * 64);
  for (std::size_t i = 0; i != ends.at_b->tensors.size(); ++i) {
    CHECK(equal(ends.at_b->tensors[i], full({2048}, static_cast<int>(i % 64), dtype::i32)));
  }
}

TEST_CASE("large and small tensors and texts alternate in any order") {
  pair ends;
  std::vector<std::string> texts;
  std::size_t tensors = 0;
  for (int round = 0; round != 200; ++round) {
    const int kind = (round * 7 + round / 5) % 5;
    texts.push_back(std::string(static_cast<std::size_t>(kind == 4 ? 70'000 : round), 't'));
    outgoing_message message;
    message.header.kind = frame_kind::request;
    message.header.flags = frame_no_deadline;
    message.bytes.append(texts.back().data(), texts.back().size());
    for (int i = 0; i < kind; ++i, ++tensors) {
      message.tensors.push_back(full({kind == 2 ? 3 : 40'000}, static_cast<int>(tensors), dtype::i32));
    }
    message.finish();
    ends.a->send(std::move(message));
  }
  ends.at_b->wait([&] { return ends.at_b->texts.size() == texts.size(); });
  CHECK(ends.at_b->texts == texts);
  REQUIRE(ends.at_b->tensors.size() == tensors);
  for (std::size_t i = 0; i != tensors; ++i) {
    CHECK(ends.at_b->tensors[i].at<std::int32_t>(0) == static_cast<int>(i));
    CHECK(ends.at_b->tensors[i].at<std::int32_t>(ends.at_b->tensors[i].numel() - 1) == static_cast<int>(i));
  }
}

TEST_CASE("one-way messages that are held back in a burst arrive without anything else being sent") {
  pair ends;
  ends.at_a->expecting = false;
  std::vector<std::string> sent;
  for (int i = 0; i != 1000; ++i) {
    sent.push_back("line " + std::to_string(i));
    outgoing_message message = text_message(static_cast<std::uint64_t>(i), sent.back());
    message.header.flags |= frame_one_way;
    message.finish();
    ends.a->send_soon(std::move(message));
  }
  ends.at_b->wait([&] { return ends.at_b->texts.size() == sent.size(); });
  CHECK(ends.at_b->texts == sent);
}

TEST_CASE("a closed connection and its receiver release each other") {
  std::weak_ptr<connection> left;
  std::weak_ptr<collector> receiver;
  {
    pair ends;
    left = ends.a;
    receiver = ends.at_a;
  }
  while (!left.expired() || !receiver.expired()) std::this_thread::yield();  // a reactor thread may still hold them
}

TEST_CASE("a connection closed before start notifies its receiver once") {
  const auto loop = ferry::shared_reactor();
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const auto closed = detail::make_stream_connection(*loop, ends[0], "test", "test", {});
  closed->close(make_error(errc::shutting_down, "early"));
  char byte = 0;
  CHECK(::read(ends[1], &byte, 1) == 0);
  const auto receiver = std::make_shared<collector>();
  closed->start(receiver);
  receiver->wait([&] { return receiver->closed == 1; });
  closed->close(make_error(errc::shutting_down, "again"));
  CHECK(receiver->closed == 1);
  ::close(ends[1]);
}

TEST_CASE("a driver reads its own replies while others send, and the connection stays watched in between") {
  for (int spin : {0, 50, -1}) {
    transport_options options;
    options.max_spin = std::chrono::microseconds(std::max(spin, 0));
    options.busy_poll = spin < 0 ? 1 : 0;
    pair ends(options);
    ends.at_b->echo = true;
    ends.at_a->expecting = false;
    texts_arrived condition(*ends.at_a);
    for (std::size_t i = 1; i != 3000; ++i) {
      condition.count = i;
      ends.a->send(text_message(i, std::to_string(i)));
      if (i % 7 == 0) {
        ends.a->keep_watched();
        ends.at_a->wait([&] { return ends.at_a->texts.size() == i; });
      } else if (!ends.a->drive(condition, deadline::after(std::chrono::seconds(60)))) {
        ends.at_a->wait([&] { return ends.at_a->texts.size() == i; });
      }
      REQUIRE(condition.done());
    }
  }
}

TEST_CASE("with busy polling a thread stays with the connection that brought a message, until another one needs it") {
  if (std::thread::hardware_concurrency() < 2) return;  // there it is switched off
  transport_options options;
  options.busy_poll = 1;
  pair ends(options);
  pair others(options);
  auto& loop = static_cast<detail::io_threads&>(*ends.loop);
  std::size_t sent = 0;
  const auto until = deadline::after(std::chrono::seconds(60));
  while (loop.busy_waits() == 0) {  // a thread that has other work to do does not stay
    REQUIRE_FALSE(until.expired());
    ends.b->send(text_message(++sent, "a"));
    ends.at_a->wait([&] { return ends.at_a->texts.size() == sent; });
    const auto soon = deadline::after(std::chrono::milliseconds(5));
    while (loop.busy_waits() == 0 && !soon.expired()) std::this_thread::yield();
  }
  CHECK_FALSE(loop.begin_busy_wait(1));
  while (loop.busy_waits() != 0) {  // to have asked for the place in vain was enough
    REQUIRE_FALSE(until.expired());
    std::this_thread::yield();
  }
  for (std::size_t i = 1; i != 200; ++i) {
    ends.b->send(text_message(++sent, "a"));
    others.b->send(text_message(i, "b"));
    ends.at_a->wait([&] { return ends.at_a->texts.size() == sent; });
    others.at_a->wait([&] { return others.at_a->texts.size() == i; });
  }
}

TEST_CASE("a driver that polls gives way to another one that would have to wait for it, and ends at its deadline") {
  transport_options options;
  options.busy_poll = 1;
  pair ends(options);
  ends.at_a->expecting = false;
  struct never final : drive_condition {
    mutable std::atomic<int> asked{0};
    [[nodiscard]] bool done() const noexcept override {
      ++asked;
      return false;
    }
  } first, second;
  CHECK(ends.a->drive(first, deadline::after(std::chrono::milliseconds(5))));
  first.asked = 0;
  std::atomic<bool> over{false};
  std::thread polling([&] {
    CHECK_FALSE(ends.a->drive(first, deadline()));
    over = true;
  });
  while (first.asked.load() < 1) std::this_thread::yield();  // it reads
  while (!over.load()) (void)ends.a->drive(second, deadline::after(std::chrono::milliseconds(1)));
  polling.join();
}

TEST_CASE("messages are read although a thread that has driven again and again does not come back") {
  for (const int busy : {0, 1}) {
    transport_options options;
    options.busy_poll = busy;
    pair ends(options);
    ends.at_b->echo = true;
    texts_arrived condition(*ends.at_a);
    std::size_t sent = 0;
    for (int round = 0; round != 100; ++round) {
      for (int i = 0; i != 30; ++i) {
        ends.a->send(text_message(++sent, "again"));
        ends.a->keep_watched();
        condition.count = sent;
        (void)ends.a->drive(condition, deadline::after(std::chrono::seconds(60)));
      }
      for (int i = 0; i != 3; ++i) {
        ends.a->send(text_message(++sent, "and once more"));
        ends.a->keep_watched();
      }
      ends.at_a->wait([&] { return ends.at_a->texts.size() == sent; });
    }
  }
}

TEST_CASE("messages are read while no thread drives") {
  pair ends;
  ends.at_a->expecting = false;
  struct never final : drive_condition {
    [[nodiscard]] bool done() const noexcept override { return false; }
  } condition;
  CHECK(ends.a->drive(condition, deadline::after(std::chrono::milliseconds(5))));
  ends.b->send(text_message(1, "late"));
  ends.at_a->wait([&] { return ends.at_a->texts.size() == 1; });
}

TEST_CASE("closing one end ends both, once") {
  pair ends;
  ends.a->send(text_message(1, std::string(10'000'000, 'z')));
  ends.a->close(make_error(errc::shutting_down, "bye"));
  ends.at_b->wait([&] { return ends.at_b->closed == 1; });
  CHECK(ends.at_b->texts.size() == 1);
  ends.b->send(text_message(2, "not received"));
}

TEST_CASE("a connection whose reading is paused detects at once that it broke") {
  struct pausing : collector {
    std::atomic<int> ended{0};
    void on_message(connection& from, inbound_message&& message) noexcept override {
      from.pause_reading();
      collector::on_message(from, std::move(message));
    }
    void on_ended_while_paused(connection&) noexcept override { ended.fetch_add(1); }
  };
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const auto loop = ferry::shared_reactor();
  const auto at = std::make_shared<pausing>();
  const auto end = detail::make_stream_connection(*loop, fds[0], "test", "test", {});
  end->start(at);
  const outgoing_message first = text_message(1, "first");
  const auto bytes = first.bytes.bytes();
  REQUIRE(::write(fds[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  std::size_t before = 1;
  SUBCASE("after the pause") {
    at->wait([&] { return at->texts.size() == 1; });
    // More input alone does not end the pause.
    REQUIRE(::write(fds[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ++before;
  }
  SUBCASE("in the middle of a message") {
    at->wait([&] { return at->texts.size() == 1; });
    REQUIRE(::write(fds[1], bytes.data(), 10) == 10);
  }
  SUBCASE("together with what makes it pause") {}
  ::close(fds[1]);
  at->wait([&] { return at->closed == 1; });
  CHECK(at->texts.size() == before);  // what had been sent before still arrives
  CHECK(at->ended.load() <= 1);
  if (before == 2) CHECK(at->ended.load() == 1);
}

TEST_CASE("many threads send without mixing their bytes") {
  pair ends;
  std::vector<std::thread> threads;
  for (int t = 0; t != 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i != 2000; ++i)
        ends.a->send(
            text_message(1, std::string(static_cast<std::size_t>(1 + (i * 37) % 3000), static_cast<char>('a' + t))));
    });
  }
  for (auto& t : threads) t.join();
  ends.at_b->wait([&] { return ends.at_b->texts.size() == 8000; });
  for (const auto& text : ends.at_b->texts) CHECK(text.find_first_not_of(text[0]) == std::string::npos);
}

struct counted_work : work {
  std::atomic<int>* count;
};

TEST_CASE("work queued behind a slow item is taken over") {
  auto loop = ferry::shared_reactor();
  std::atomic<int> count{0};
  struct blocker : work {
    reactor* loop;
    std::atomic<int>* count;
    std::vector<counted_work>* more;
  } first;
  std::vector<counted_work> more(10);
  for (auto& item : more) {
    item.count = &count;
    item.run = [](work* self) noexcept { static_cast<counted_work*>(self)->count->fetch_add(1); };
  }
  std::atomic<bool> done{false};
  static std::atomic<bool>* finished;
  finished = &done;
  first.loop = loop.get();
  first.count = &count;
  first.more = &more;
  first.run = [](work* self) noexcept {
    auto* own = static_cast<blocker*>(self);
    for (auto& item : *own->more) own->loop->post(&item);
    while (own->count->load() != 10) std::this_thread::yield();  // would never end if this thread had to run them
    finished->store(true);
  };
  loop->post(&first);
  while (!done.load()) std::this_thread::yield();
  CHECK(count.load() == 10);
}

TEST_CASE("work posted while the last bytes of a batch are written runs, too") {
  const auto loop = ferry::shared_reactor();
  auto* const threads = dynamic_cast<detail::io_threads*>(loop.get());
  REQUIRE(threads);
  std::atomic<int> count{0};
  struct writer final : deferred_io {
    reactor* loop = nullptr;
    work* last = nullptr;
    void flush() noexcept override {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the monitor has found nothing deferred
      loop->post(last);
    }
    bool resume_watching(bool) noexcept override { return true; }
  };
  struct beginning : work {
    detail::io_threads* threads = nullptr;
    work* next = nullptr;
    std::shared_ptr<writer> writes;
    std::atomic<bool> corked{false};
  } first;
  counted_work next, last;
  for (auto* item : {&next, &last}) {
    item->count = &count;
    item->run = [](work* self) noexcept { static_cast<counted_work*>(self)->count->fetch_add(1); };
  }
  first.threads = threads;
  first.next = &next;
  first.writes = std::make_shared<writer>();
  first.writes->loop = loop.get();
  first.writes->last = &last;
  first.run = [](work* self) noexcept {
    auto* const own = static_cast<beginning*>(self);
    own->threads->post(own->next);
    own->corked.store(own->threads->flush_later(own->writes));
  };
  loop->post(&first);
  while (count.load() != 2) std::this_thread::yield();
  CHECK(first.corked.load());
}

TEST_CASE("timers fire in order and can be cancelled") {
  auto loop = ferry::shared_reactor();
  std::atomic<int> count{0};
  counted_work soon, never;
  for (auto* item : {&soon, &never}) {
    item->count = &count;
    item->run = [](work* self) noexcept { static_cast<counted_work*>(self)->count->fetch_add(1); };
  }
  const auto cancelled = loop->start_timer(deadline::after(std::chrono::seconds(3600)), &never);
  (void)loop->start_timer(deadline::after(std::chrono::milliseconds(2)), &soon);
  while (count.load() == 0) std::this_thread::yield();
  CHECK(loop->cancel_timer(cancelled));
  CHECK_FALSE(loop->cancel_timer(cancelled));
  CHECK(count.load() == 1);
}

}  // namespace

namespace {

TEST_CASE("a thread that waits long for its own reply yields to another") {
  pair ends;
  struct told final : drive_condition {
    std::atomic<bool> end{false};
    [[nodiscard]] bool done() const noexcept override { return end.load(); }
  } slow, fast;
  std::atomic<bool> yielded{false};
  std::thread first([&] { yielded = !ends.a->drive(slow, deadline::after(std::chrono::seconds(60))); });
  // The first drives until it has slept long enough; then the second replaces it.
  bool drove = false;
  std::thread second([&] {
    while (!drove) {
      drove = ends.a->drive(fast, deadline::after(std::chrono::milliseconds(1)));
      if (!yielded.load()) drove = false;  // the first had not begun yet
    }
  });
  first.join();
  second.join();
  CHECK(yielded.load());
  CHECK(drove);
}

TEST_CASE("a lingering thread that has other work to do returns its connection to the epoll") {
  pair ends;
  ends.at_b->echo = true;
  std::atomic<bool> stop{false};
  std::thread other([&] {  // so that every batch may end with work in the queue
    struct nothing : work {
      std::atomic<bool> done{true};
    } item;
    item.run = [](work* self) noexcept { static_cast<nothing*>(self)->done.store(true); };
    while (!stop.load()) {
      if (item.done.exchange(false)) ends.loop->post(&item);
      std::this_thread::yield();
    }
    while (!item.done.load()) std::this_thread::yield();
  });
  for (std::size_t i = 1; i != 5000; ++i) {
    ends.a->send(text_message(i, "x"));
    ends.at_a->wait([&] { return ends.at_a->texts.size() == i; });
  }
  stop.store(true);
  other.join();
}

}  // namespace

}  // namespace stream_connection_test
