#include "proxy_connection.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t largest_piece = std::size_t{64} << 10U;
// Above it the proxy does not read, so that a slow receiver slows the sender down as without a proxy.
constexpr std::size_t most_queued = std::size_t{256} << 10U;

std::size_t below(std::mt19937_64& random, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

// Whether the fault happens to this piece: owed, or by chance.
bool happens(link_fault fault, double probability, lane_rules& rules, std::mt19937_64& random) {
  auto& owed = rules.owed[static_cast<std::size_t>(fault)];
  if (owed != 0) {
    --owed;
    return true;
  }
  return probability > 0 && std::bernoulli_distribution(probability)(random);
}

}  // namespace

void reset_socket(int socket) noexcept {
  const linger at_once{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  ::close(socket);
}

proxy_connection::proxy_connection(int client, int target, bool connecting, std::uint64_t seed, std::uint64_t number)
    : sockets_{client, target}, connecting_(connecting) {
  for (std::size_t i = 0; i != lanes_.size(); ++i) {
    std::seed_seq mixed{seed & 0xffffffffU, seed >> 32U, number, std::uint64_t{i}};
    lanes_[i].random.seed(mixed);
  }
  if (target < 0) begin_black_hole(proxy_direction::both);
}

proxy_connection::~proxy_connection() {
  for (const int socket : sockets_) {
    if (socket >= 0) reset_socket(socket);
  }
}

void proxy_connection::begin_stall(proxy_direction direction) noexcept {
  for (std::size_t i = 0; i != lanes_.size(); ++i) {
    if ((static_cast<unsigned>(direction) >> i & 1U) != 0) lanes_[i].stalled = true;
  }
}

void proxy_connection::begin_black_hole(proxy_direction direction) noexcept {
  for (std::size_t i = 0; i != lanes_.size(); ++i) {
    if ((static_cast<unsigned>(direction) >> i & 1U) != 0) lanes_[i].black_hole = true;
  }
}

bool proxy_connection::heal(time_point now) {
  for (lane& one : lanes_) {
    if (impaired_ || one.black_hole) return false;
    one.stalled = false;
    one.free_at = now;
    one.last_due = now;
    for (piece& each : one.pieces) each.due = now;
  }
  return true;
}

bool proxy_connection::wants_input(const lane& one) const noexcept {
  return !connecting_ && !one.input_over && (!one.stalled || one.black_hole) && one.queued < most_queued;
}

std::array<pollfd, 2> proxy_connection::interest() const noexcept {
  std::array<pollfd, 2> result{};
  for (std::size_t end = 0; end != 2; ++end) {
    short events = 0;
    if (wants_input(lanes_[end])) events |= POLLIN;
    if ((connecting_ && end == 1) || lanes_[1 - end].blocked) events |= POLLOUT;
    // Without an interest the socket is left out: poll() would report a hang-up of it again and again.
    result[end] = {events == 0 ? -1 : sockets_[end], events, 0};
  }
  return result;
}

proxy_connection::time_point proxy_connection::next_due() const noexcept {
  auto result = time_point::max();
  for (const lane& one : lanes_) {
    if (connecting_ || one.stalled || one.blocked || one.pieces.empty()) continue;
    result = std::min(result, std::max(one.pieces.front().due, one.free_at));
  }
  return result;
}

bool proxy_connection::advance(const std::array<pollfd, 2>& events, std::array<lane_rules, 2>& rules,
                               proxy_counters& counters, time_point now) {
  if (connecting_) {
    if (events[1].revents == 0) return true;
    if (finish_connecting(counters) == outcome::over) return false;
  }
  for (std::size_t i = 0; i != 2; ++i) {
    if (events[i].revents != 0 && wants_input(lanes_[i]) && read(i, rules[i], counters, now) == outcome::over) {
      return false;
    }
    if ((events[i].revents & POLLOUT) != 0 || (events[i].revents & (POLLERR | POLLHUP)) != 0) {
      lanes_[1 - i].blocked = false;
    }
  }
  for (std::size_t i = 0; i != 2; ++i) {
    if (write(i, rules[i], counters, now) == outcome::over) return false;
  }
  for (const lane& one : lanes_) {
    if (!one.input_over || (!one.output_over && !one.black_hole)) return true;
  }
  if (impaired_) return false;
  // Without a reset, which would overtake what was sent last.
  for (int& socket : sockets_) ::close(std::exchange(socket, -1));
  return false;
}

proxy_connection::outcome proxy_connection::finish_connecting(proxy_counters& counters) {
  int problem = 0;
  socklen_t size = sizeof problem;
  ::getsockopt(sockets_[1], SOL_SOCKET, SO_ERROR, &problem, &size);
  if (problem != 0) {
    ++counters.unreachable;
    return outcome::over;
  }
  ++counters.connections;
  connecting_ = false;
  return outcome::going_on;
}

proxy_connection::outcome proxy_connection::broken(std::size_t end) {
  lane& news = lanes_[end];
  if (sockets_[1] < 0) return outcome::over;
  if (!news.stalled && !news.black_hole) return outcome::over;
  impaired_ = true;
  news.input_over = true;
  // What is still sent to that end gets lost.
  lane& other = lanes_[1 - end];
  other.black_hole = true;
  other.blocked = false;
  other.pieces.clear();
  other.queued = 0;
  other.sent = 0;
  return outcome::going_on;
}

proxy_connection::outcome proxy_connection::read(std::size_t index, lane_rules& rules, proxy_counters& counters,
                                                 time_point now) {
  lane& one = lanes_[index];
  std::size_t most = largest_piece;
  if (!one.black_hole && happens(link_fault::split, rules.faults.split, rules, one.random)) {
    most = 1 + below(one.random, rules.faults.piece);
  }
  std::string bytes(most, '\0');
  const ssize_t count = ::recv(sockets_[index], bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR ? outcome::going_on : broken(index);
  if (count == 0) {
    one.input_over = true;
    return sockets_[1] < 0 ? outcome::over : outcome::going_on;
  }
  if (most != largest_piece) ++counters.split;
  bytes.resize(static_cast<std::size_t>(count));
  return take(index, std::move(bytes), rules, counters, now);
}

proxy_connection::outcome proxy_connection::take(std::size_t index, std::string bytes, lane_rules& rules,
                                                 proxy_counters& counters, time_point now) {
  lane& one = lanes_[index];
  if (one.black_hole || ending_) {
    impaired_ = true;
    counters.lost += bytes.size();
    return outcome::going_on;
  }
  const link_faults& faults = rules.faults;
  if (happens(link_fault::reset, faults.reset, rules, one.random)) {
    ++counters.reset;
    counters.lost += bytes.size();
    return outcome::over;
  }
  if (happens(link_fault::close, faults.close, rules, one.random)) {
    ++counters.closed;
    const std::size_t kept = below(one.random, bytes.size());
    counters.lost += bytes.size() - kept;
    bytes.resize(kept);
    ending_ = true;
    impaired_ = true;
  } else if (happens(link_fault::black_hole, faults.black_hole, rules, one.random)) {
    ++counters.black_holes;
    counters.lost += bytes.size();
    one.black_hole = true;
    impaired_ = true;
    return outcome::going_on;
  } else if (happens(link_fault::stall, faults.stall, rules, one.random)) {
    ++counters.stalled;
    one.stalled = true;
  }
  if (bytes.empty()) return outcome::going_on;
  damage(one, bytes, rules, counters);

  auto late = faults.delay;
  if (faults.jitter.count() > 0) {
    late += std::chrono::nanoseconds(std::uniform_int_distribution<std::int64_t>(0, faults.jitter.count())(one.random));
  }
  if (late.count() > 0) ++counters.delayed;
  one.last_due = std::max(one.last_due, now + std::chrono::duration_cast<time_point::duration>(late));
  one.queued += bytes.size();
  one.pieces.push_back({std::move(bytes), one.last_due});
  ++counters.pieces;
  return outcome::going_on;
}

void proxy_connection::damage(lane& one, std::string& bytes, lane_rules& rules, proxy_counters& counters) {
  const link_faults& faults = rules.faults;
  if (happens(link_fault::flip, faults.flip, rules, one.random)) {
    auto& byte = bytes[below(one.random, bytes.size())];
    unsigned bits = 0;
    for (std::size_t i = 1 + below(one.random, 3); i != 0; --i) bits |= 1U << below(one.random, 8);
    byte = static_cast<char>(static_cast<unsigned char>(byte) ^ bits);
    ++counters.flipped;
    impaired_ = true;
  }
  if (bytes.size() >= 2 && happens(link_fault::reorder, faults.reorder, rules, one.random)) {
    const std::size_t run = 1 + below(one.random, std::min(faults.run, bytes.size() / 2));
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(below(one.random, bytes.size() - 2 * run + 1));
    const auto middle = first + static_cast<std::ptrdiff_t>(run);
    std::swap_ranges(first, middle, middle);
    ++counters.reordered;
    impaired_ = true;
  }
  if (happens(link_fault::duplicate, faults.duplicate, rules, one.random)) {
    const std::size_t run = 1 + below(one.random, std::min(faults.run, bytes.size()));
    const std::size_t start = below(one.random, bytes.size() - run + 1);
    bytes.insert(start + run, bytes.substr(start, run));
    ++counters.duplicated;
    impaired_ = true;
  }
}

proxy_connection::outcome proxy_connection::write(std::size_t index, const lane_rules& rules, proxy_counters& counters,
                                                  time_point now) {
  lane& one = lanes_[index];
  const std::uint64_t rate = rules.faults.bytes_per_second;
  while (!one.stalled && !one.blocked && !one.pieces.empty() && one.pieces.front().due <= now && one.free_at <= now) {
    const std::string& bytes = one.pieces.front().bytes;
    std::size_t size = bytes.size() - one.sent;
    // At most what passes in 10 ms.
    if (rate != 0) size = std::min(size, static_cast<std::size_t>(std::max<std::uint64_t>(rate / 100, 1)));
    const ssize_t count = ::send(sockets_[1 - index], bytes.data() + one.sent, size, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return broken(1 - index);
      one.blocked = true;
      break;
    }
    const auto written = static_cast<std::size_t>(count);
    counters.bytes += written;
    one.queued -= written;
    one.sent += written;
    if (rate != 0) {
      const std::chrono::duration<double> taken(static_cast<double>(written) / static_cast<double>(rate));
      one.free_at = now + std::chrono::duration_cast<time_point::duration>(taken);
    }
    if (one.sent == bytes.size()) {
      one.pieces.pop_front();
      one.sent = 0;
    }
  }
  if ((one.input_over || ending_) && !one.output_over && !one.stalled && !one.black_hole && one.pieces.empty()) {
    one.output_over = true;
    ::shutdown(sockets_[1 - index], SHUT_WR);
  }
  return outcome::going_on;
}

}  // namespace ferry::inline v0::detail
