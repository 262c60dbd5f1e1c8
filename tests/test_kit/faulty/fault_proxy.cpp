#include <ferry/test_kit/fault_proxy.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ferry/base/error.hpp>

#include "proxy_connection.hpp"

namespace ferry::inline v0 {
namespace detail {

struct proxy_target {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

namespace {

constexpr proxy_direction each_direction[] = {proxy_direction::to_target, proxy_direction::to_client};

bool includes(proxy_direction set, std::size_t index) { return (static_cast<unsigned>(set) >> index & 1U) != 0; }

proxy_target parse_target(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::string host(text.substr(0, colon));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (colon == std::string_view::npos || colon + 1 == text.size() || host.empty() ||
      ::getaddrinfo(host.c_str(), std::string(text.substr(colon + 1)).c_str(), &hints, &found) != 0) {
    throw error(errc::invalid_argument, "the target of a fault_proxy must be \"host:port\" with an IP literal, not \"" +
                                            std::string(text) + "\"");
  }
  proxy_target result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return result;
}

void check_probability(double value, const char* name) {
  if (!(value >= 0 && value <= 1)) {
    throw error(errc::invalid_argument,
                std::string("fault_proxy: ") + name + " must be between 0 and 1, not " + std::to_string(value));
  }
}

void check(const link_faults& faults) {
  check_probability(faults.split, "split");
  check_probability(faults.close, "close");
  check_probability(faults.reset, "reset");
  check_probability(faults.stall, "stall");
  check_probability(faults.black_hole, "black_hole");
  check_probability(faults.duplicate, "duplicate");
  check_probability(faults.reorder, "reorder");
  check_probability(faults.flip, "flip");
  if (faults.delay.count() < 0 || faults.jitter.count() < 0) {
    throw error(errc::invalid_argument, "fault_proxy: delay and jitter must not be negative");
  }
  if (faults.piece == 0 || faults.run == 0) {
    throw error(errc::invalid_argument, "fault_proxy: piece and run must be at least 1");
  }
}

// A listening socket at 127.0.0.1.
int listen_at(std::uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) throw_errno(errc::system_failure, "fault_proxy: socket", errno);
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(port);
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0 || ::listen(socket, 128) != 0) {
    const int problem = errno;
    ::close(socket);
    throw_errno(problem == EADDRINUSE ? errc::address_in_use : errc::system_failure,
                "fault_proxy: cannot listen at 127.0.0.1:" + std::to_string(port), problem);
  }
  return socket;
}

std::uint16_t port_of(int socket) {
  sockaddr_in where{};
  socklen_t size = sizeof where;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&where), &size);
  return ntohs(where.sin_port);
}

}  // namespace

// Everything but the waiting happens under one lock.
class proxy_loop {
 public:
  proxy_loop(std::string_view target, std::uint16_t port, std::uint64_t seed)
      : seed(seed), target_(parse_target(target)), random_(seed) {
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) throw_errno(errc::system_failure, "fault_proxy: eventfd", errno);
    try {
      listener_ = listen_at(port);
      this->port = port_of(listener_);
      thread_ = std::thread([this] { run(); });
    } catch (...) {
      close_all();
      throw;
    }
  }
  ~proxy_loop() {
    change([&] { done_ = true; });
    thread_.join();
    close_all();
  }
  proxy_loop(const proxy_loop&) = delete;
  proxy_loop& operator=(const proxy_loop&) = delete;

  template <class Change>
  void change(const Change& apply) {
    const std::lock_guard lock(mutex_);
    apply();
    // Only an overflow of the counter could fail, and then the thread wakes up anyway.
    const std::uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof one);
  }
  template <class Look>
  auto look(const Look& at) const {
    const std::lock_guard lock(mutex_);
    return at();
  }

  // The following are called under the lock.

  void set_target(const proxy_target& target) { target_ = target; }
  void admit(proxy_admission admission, double probability) {
    if (admission == proxy_admission::refuse) {
      // A socket that the thread waits for outlives its descriptor, and would still accept.
      if (listener_ >= 0) {
        ::shutdown(listener_, SHUT_RDWR);
        ::close(std::exchange(listener_, -1));
        ++removals_;
      }
    } else if (listener_ < 0) {
      listener_ = listen_at(port);
    }
    admission_ = admission;
    admission_probability_ = probability;
  }
  void cut(link_fault fault, proxy_direction direction) {
    for (std::size_t i = 0; i != 2; ++i) {
      if (!includes(direction, i)) continue;
      (fault == link_fault::stall ? rules[i].stalled : rules[i].black_hole) = true;
    }
    for (auto& each : connections_) apply_cut(*each);
  }
  void reset_all() {
    ++removals_;
    counters.reset += connections_.size();
    connections_.clear();
  }
  void heal() {
    admit(proxy_admission::forward, 1);
    rules = {};
    ++removals_;
    const auto now = std::chrono::steady_clock::now();
    counters.reset += std::erase_if(connections_, [&](const auto& each) { return !each->heal(now); });
  }
  [[nodiscard]] std::size_t open_connections() const { return connections_.size(); }

  const std::uint64_t seed;
  std::uint16_t port = 0;
  std::array<lane_rules, 2> rules;  // to the target, to the client
  proxy_counters counters;

 private:
  void close_all() noexcept {
    connections_.clear();
    if (listener_ >= 0) ::close(listener_);
    ::close(wake_);
  }

  void apply_cut(proxy_connection& one) {
    for (std::size_t i = 0; i != 2; ++i) {
      if (rules[i].stalled) {
        ++counters.stalled;
        one.begin_stall(each_direction[i]);
      }
      if (rules[i].black_hole) {
        ++counters.black_holes;
        one.begin_black_hole(each_direction[i]);
      }
    }
  }

  void run() {
    std::vector<pollfd> waiting;
    std::vector<proxy_connection*> who;
    std::unique_lock lock(mutex_);
    while (!done_) {
      const auto now = std::chrono::steady_clock::now();
      auto due = std::chrono::steady_clock::time_point::max();
      waiting.clear();
      waiting.push_back({wake_, POLLIN, 0});
      // Without descriptors it tries again a little later.
      waiting.push_back({now < accepts_at_ ? -1 : listener_, POLLIN, 0});
      if (now < accepts_at_) due = accepts_at_;
      who.clear();
      for (const auto& each : connections_) {
        who.push_back(each.get());
        for (const pollfd& end : each->interest()) waiting.push_back(end);
        due = std::min(due, each->next_due());
      }
      const std::uint64_t removals = removals_;
      lock.unlock();
      wait(waiting, due);
      lock.lock();
      if ((waiting[0].revents & POLLIN) != 0) {
        std::uint64_t count = 0;
        (void)!::read(wake_, &count, sizeof count);
      }
      // Connections are gone, and their descriptors may be those of others.
      if (removals != removals_) continue;
      advance(waiting, who);
      if ((waiting[1].revents & POLLIN) != 0) accept_all();
    }
  }

  static void wait(std::vector<pollfd>& waiting, std::chrono::steady_clock::time_point due) {
    timespec limit{};
    const bool bounded = due != std::chrono::steady_clock::time_point::max();
    if (bounded) {
      const auto rest =
          std::max(std::chrono::nanoseconds(0),
                   std::chrono::duration_cast<std::chrono::nanoseconds>(due - std::chrono::steady_clock::now()));
      limit.tv_sec = static_cast<std::time_t>(rest.count() / 1'000'000'000);
      limit.tv_nsec = static_cast<long>(rest.count() % 1'000'000'000);
    }
    // Interrupted, it reports nothing, and the caller waits again.
    if (::ppoll(waiting.data(), waiting.size(), bounded ? &limit : nullptr, nullptr) < 0) {
      for (pollfd& each : waiting) each.revents = 0;
    }
  }

  void advance(const std::vector<pollfd>& waiting, const std::vector<proxy_connection*>& who) {
    const auto now = std::chrono::steady_clock::now();
    std::size_t position = 0;
    std::erase_if(connections_, [&](const auto& each) {
      // Those that were accepted since are behind the others.
      const bool known = position < who.size() && who[position] == each.get();
      std::array<pollfd, 2> events{};
      if (known) events = {waiting[2 + 2 * position], waiting[3 + 2 * position]};
      ++position;
      return !each->advance(events, rules, counters, now);
    });
  }

  void accept_all() {
    while (listener_ >= 0) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (client < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          accepts_at_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
        }
        return;
      }
      forward(client);
    }
  }

  void forward(int client) {
    const bool admitted = admission_ == proxy_admission::forward ||
                          (admission_probability_ < 1 && !std::bernoulli_distribution(admission_probability_)(random_));
    if (!admitted) {
      ++counters.dropped;
      if (admission_ == proxy_admission::drop) return reset_socket(client);
    }
    int target = -1;
    bool connecting = false;
    if (admitted) {
      target = ::socket(target_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const auto* where = reinterpret_cast<const sockaddr*>(&target_.storage);
      if (target < 0 || (::connect(target, where, target_.size) != 0 && errno != EINPROGRESS)) {
        if (target >= 0) ::close(target);
        ++counters.unreachable;
        return reset_socket(client);
      }
      connecting = true;
    }
    const int on = 1;
    for (const int socket : {client, target}) {
      if (socket >= 0) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    connections_.push_back(std::make_unique<proxy_connection>(client, target, connecting, seed, ++number_));
    apply_cut(*connections_.back());
  }

  proxy_target target_;
  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  int wake_ = -1;
  int listener_ = -1;
  std::chrono::steady_clock::time_point accepts_at_{};
  proxy_admission admission_ = proxy_admission::forward;
  double admission_probability_ = 1;
  std::vector<std::unique_ptr<proxy_connection>> connections_;
  std::uint64_t number_ = 0;
  std::uint64_t removals_ = 0;  // how often connections were removed by another thread
  bool done_ = false;
  std::thread thread_;
};

}  // namespace detail

fault_proxy::fault_proxy(std::string_view target, std::uint16_t port)
    : fault_proxy(target, port, std::uint64_t{std::random_device()()} << 32U | std::random_device()()) {}
fault_proxy::fault_proxy(std::string_view target, std::uint16_t port, std::uint64_t seed)
    : loop_(std::make_unique<detail::proxy_loop>(target, port, seed)) {}
fault_proxy::~fault_proxy() = default;

std::string fault_proxy::address() const { return "127.0.0.1:" + std::to_string(loop_->port); }
std::uint16_t fault_proxy::port() const noexcept { return loop_->port; }
std::uint64_t fault_proxy::seed() const noexcept { return loop_->seed; }

void fault_proxy::set_target(std::string_view target) {
  const auto parsed = detail::parse_target(target);
  loop_->change([&] { loop_->set_target(parsed); });
}

void fault_proxy::set_faults(const link_faults& faults, proxy_direction direction) {
  detail::check(faults);
  loop_->change([&] {
    for (std::size_t i = 0; i != 2; ++i) {
      if (detail::includes(direction, i)) loop_->rules[i].faults = faults;
    }
  });
}

link_faults fault_proxy::faults(proxy_direction direction) const {
  return loop_->look([&] { return loop_->rules[direction == proxy_direction::to_client ? 1 : 0].faults; });
}

void fault_proxy::set_admission(proxy_admission admission, double probability) {
  detail::check_probability(probability, "the probability of an admission");
  loop_->change([&] { loop_->admit(admission, probability); });
}

void fault_proxy::inject(link_fault fault, proxy_direction direction, std::uint64_t times) {
  loop_->change([&] {
    for (std::size_t i = 0; i != 2; ++i) {
      if (detail::includes(direction, i)) loop_->rules[i].owed[static_cast<std::size_t>(fault)] += times;
    }
  });
}

void fault_proxy::cut(link_fault fault, proxy_direction direction) {
  if (fault != link_fault::stall && fault != link_fault::black_hole) {
    throw error(errc::invalid_argument, "fault_proxy::cut takes a stall or a black hole; inject() does the others");
  }
  loop_->change([&] { loop_->cut(fault, direction); });
}

void fault_proxy::reset_all() {
  loop_->change([&] { loop_->reset_all(); });
}

void fault_proxy::heal() {
  loop_->change([&] { loop_->heal(); });
}

std::size_t fault_proxy::open_connections() const {
  return loop_->look([&] { return loop_->open_connections(); });
}

proxy_counters fault_proxy::counters() const {
  return loop_->look([&] { return loop_->counters; });
}

}  // namespace ferry::inline v0
