// The worker that the hostile peer attacks: a dynamic group with bounds that are small enough to be reached in seconds.
// Prints the port of its store, serves until its standard input ends, and leaves. The secret, if any, is in
// FERRY_SECRET.

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <unistd.h>

#include <ferry/ferry.hpp>
#include <ferry/store/tcp_store.hpp>

#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/variant.hpp>
#include <cereal/types/vector.hpp>

using namespace std::chrono_literals;

namespace {

// What decoders are fed with.
struct nothing {};
struct node {
  int value = 0;
  std::unique_ptr<node> next;  // not shared: a peer could send a circle, which nothing frees
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value, next);
  }
};

}  // namespace

// Any numbers may come.
int add(int a, int b) { return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)); }
std::string echo(std::string text) { return text; }
std::size_t shapes(const std::vector<ferry::tensor>& tensors) {
  std::size_t elements = 0;
  for (const ferry::tensor& each : tensors) elements += static_cast<std::size_t>(each.numel());
  return elements;
}
ferry::tensor tensor_back(ferry::tensor t) { return t; }
ferry::tensor zeros(std::int64_t bytes) { return ferry::zeros({bytes}, ferry::dtype::u8); }
using everything = std::variant<std::map<std::string, std::vector<std::optional<double>>>, std::vector<std::string>,
                                std::vector<bool>, std::array<std::pair<int, bool>, 2>, double>;
std::size_t take_everything(const everything& value) { return value.index(); }
std::size_t take_nothings(const std::vector<std::vector<nothing>>& rows) { return rows.size(); }
int take_chain(const std::unique_ptr<node>& first) {
  int length = 0;
  for (const node* at = first.get(); at && length != 1000; at = at->next.get()) ++length;
  return length;
}
std::size_t take_shared(const std::vector<std::shared_ptr<std::string>>& texts) { return texts.size(); }

// Calls that wait until release(), or until their callers give them up.
class gate {
 public:
  ferry::future<int> wait() {
    ferry::promise<int> promise;
    ferry::future<int> result = promise.get_future();
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(promise));
    return result;
  }
  std::size_t open() {
    std::vector<ferry::promise<int>> released;
    {
      const std::lock_guard lock(mutex_);
      released.swap(waiting_);
    }
    for (auto& each : released) each.set_value(1);
    return released.size();
  }

 private:
  std::mutex mutex_;
  std::vector<ferry::promise<int>> waiting_;
};
gate& the_gate() {
  static gate instance;
  return instance;
}
ferry::future<int> hold(std::string) { return the_gate().wait(); }
std::size_t release() { return the_gate().open(); }

class counter {
 public:
  counter() = default;
  explicit counter(int start) : value_(start) {}
  int add(int more) { return value_ = ::add(value_, more); }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value_);
  }

 private:
  int value_ = 0;
};

ferry::rref<counter> lend() { return ferry::remote<ferry::named<"counter", ferry::make<counter, int>>>("victim", 1); }
int use(const ferry::rref<counter>& lent) { return lent.rpc_sync<ferry::named<"counter.add", &counter::add>>({2s}, 1); }

// Has this worker call the hostile one, whose answers are then its attack; the call ends after so many milliseconds at
// the latest. Returns what it ended with.
template <class Call>
std::string outcome(const Call& call) {
  try {
    return call();
  } catch (const ferry::error& e) {
    return std::string(ferry::errc_name(e.kind())) + ": " + e.what();
  } catch (const std::exception& e) {
    return std::string("exception: ") + e.what();
  }
}
template <class Answer>
Answer ask(const std::string& whom, std::int64_t limit) {
  return ferry::rpc_sync<ferry::stub<"answer", Answer(int)>>({whom, {.timeout = std::chrono::milliseconds(limit)}}, 7);
}
std::string ask_number(const std::string& whom, std::int64_t limit) {
  return outcome([&] { return std::to_string(ask<int>(whom, limit)); });
}
std::string ask_text(const std::string& whom, std::int64_t limit) {
  return outcome([&] { return ask<std::string>(whom, limit); });
}
std::string ask_tensor(const std::string& whom, std::int64_t limit) {
  return outcome([&] { return std::to_string(ask<ferry::tensor>(whom, limit).numel()); });
}
std::string ask_reference(const std::string& whom, std::int64_t limit) {
  return outcome([&] { return std::to_string(ask<ferry::rref<counter>>(whom, limit).owner().id().value); });
}
// So many calls with so many bytes each, whose results nothing waits for: until one is refused. Returns how many were
// not, and why the next one was.
std::string ask_often(const std::string& whom, std::int64_t limit, std::uint64_t times, std::uint64_t bytes) {
  const std::string text(bytes, 'x');
  std::uint64_t made = 0;
  const std::string refusal = outcome([&] {
    for (; made != times; ++made) {
      (void)ferry::rpc_async<ferry::stub<"take", int(std::string)>>(
          {whom, {.timeout = std::chrono::milliseconds(limit)}}, text);
    }
    return std::string("none was refused");
  });
  return std::to_string(made) + " calls, then " + refusal;
}

const ferry::worker* this_worker = nullptr;
std::map<std::string, std::string> figures() {
  std::map<std::string, std::string> result;
  for (auto& [name, value] : this_worker->debug_info()) result.emplace(name, value);
  return result;
}

int main() {
  ferry::serve<ferry::named<"add", add>, ferry::named<"echo", echo>, ferry::named<"shapes", shapes>,
               ferry::named<"tensor_back", tensor_back>, ferry::named<"zeros", zeros>,
               ferry::named<"take_everything", take_everything>, ferry::named<"take_nothings", take_nothings>,
               ferry::named<"take_chain", take_chain>, ferry::named<"take_shared", take_shared>,
               ferry::named<"hold", hold>, ferry::named<"release", release>,
               ferry::named<"counter", ferry::make<counter, int>>, ferry::named<"counter.add", &counter::add>,
               ferry::named<"lend", lend>, ferry::named<"use", use>, ferry::named<"ask_number", ask_number>,
               ferry::named<"ask_text", ask_text>, ferry::named<"ask_tensor", ask_tensor>,
               ferry::named<"ask_reference", ask_reference>, ferry::named<"ask_often", ask_often>,
               ferry::named<"figures", figures>>();
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  ferry::worker_config config;
  config.name = "victim";
  config.rank = 0;
  config.world_size = ferry::dynamic_world;
  config.secret = ferry::secret_from_environment();
  config.lease = 600s;  // the hostile members send no heartbeats
  config.num_worker_threads = 4;
  config.max_blocked_handlers = 32;
  config.transports = {"tcp"};
  config.flow.served_calls_per_peer = 64;
  config.flow.served_calls_per_worker = 256;
  config.flow.served_bytes_per_peer = 4 * mib;
  config.flow.served_bytes_per_worker = 16 * mib;
  config.flow.bytes_per_peer = 4 * mib;
  config.flow.bytes_per_worker = 16 * mib;
  config.flow.calls_per_peer = 64;
  config.flow.calls_per_worker = 160;
  config.flow.queued_calls_per_peer = 128;
  config.flow.queued_calls_per_worker = 320;
  config.flow.queued_bytes_per_peer = 2 * mib;
  config.flow.queued_bytes_per_worker = 5 * mib;
  config.transport.limits.max_message_bytes = 8 * mib;
  config.transport.limits.max_decoded_bytes = 64 * mib;
  config.transport.limits.max_depth = 64;
  config.transport.handshake_timeout = 2s;
  config.transport.max_handshakes = 64;
  config.transport.max_connections = 128;

  ferry::tcp_store_limits bounds;
  bounds.max_value_bytes = mib;
  bounds.max_total_bytes = 16 * mib;
  bounds.max_connections = 64;
  bounds.message_timeout = 2s;
  bounds.handshake_timeout = 1s;
  const auto server = ferry::tcp_store_server::listen("127.0.0.1", 0, bounds, {.secret = config.secret});
  config.init_method = "tcp://127.0.0.1:" + std::to_string(server->port());

  ferry::worker self = ferry::init_rpc(config);
  this_worker = &self;
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) > 0;) {
  }
  try {
    self.shutdown(true, 5s);  // hostile members may have left calls and references behind
  } catch (const ferry::error& e) {
    std::fprintf(stderr, "shutdown: %s\n", e.what());
  }
}
