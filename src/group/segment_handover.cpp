#include "segment_handover.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>

#include "../base/net/socket_address.hpp"
#include "../transport/shm/passed_descriptors.hpp"
#include "../transport/sockets/local_socket.hpp"
#include "../transport/sockets/stream_socket.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t token_text = 32;  // hexadecimal digits
constexpr std::size_t most_strangers = 64;

int poll_milliseconds(deadline until) {
  if (until.is_never()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until.remaining()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

// Without a hint in the time that it takes of how much is right.
bool same_token(const std::string& a, const std::string& b) {
  unsigned differs = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i != std::min(a.size(), b.size()); ++i) {
    differs |= static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]));
  }
  return differs == 0;
}

}  // namespace

segment_offer::segment_offer(const segment_layout& layout) {
  std::tie(memory_, descriptor_) = group_segment::create(layout);
  listener_ = listen_under_fresh_name();
  token_ = {incarnation_id::random().value, incarnation_id::random().value};
}

std::string segment_offer::where() const { return socket_address::local_end(listener_.get()).text(); }
std::string segment_offer::token() const { return fmt::format("{:016x}{:016x}", token_[0], token_[1]); }

void segment_offer::hand_over(int members, deadline until) {
  const std::string expected = token();
  std::vector<unique_fd> callers;
  while (members != 0) {
    std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
    for (const unique_fd& each : callers) waiting.push_back({each.get(), POLLIN, 0});
    const int ready = ::poll(waiting.data(), waiting.size(), poll_milliseconds(until));
    if (ready < 0 && errno != EINTR) throw_errno(errc::system_failure, "waiting for members", errno);
    if (until.expired()) {
      throw_error(errc::handshake_failed, fmt::format("{} members have not fetched the shared memory", members));
    }
    if (ready <= 0) continue;
    for (std::size_t i = 1; i != waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      std::string said(token_text, '\0');
      const ssize_t got = ::recv(waiting[i].fd, said.data(), said.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got == static_cast<ssize_t>(token_text) && same_token(said, expected)) {
        const std::byte none{};
        const int descriptor = descriptor_.get();
        send_with_descriptors(waiting[i].fd, {&none, 1}, {&descriptor, 1}, "handing over shared memory");
        --members;
      }
      callers[i - 1].reset();
    }
    std::erase_if(callers, [](const unique_fd& each) { return !each; });
    if (waiting[0].revents != 0) {
      unique_fd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (caller && callers.size() < most_strangers && check_local_user(caller.get()).empty()) {
        callers.push_back(std::move(caller));
      }
    }
  }
  listener_.reset();
  descriptor_.reset();
}

std::shared_ptr<group_segment> fetch_segment(const segment_layout& layout, const std::string& where,
                                             const std::string& token, deadline until) {
  if (where.size() < 2 || where.front() != '@' || where.size() > 100 || token.size() != token_text) {
    throw_error(errc::handshake_failed, "the offer of shared memory cannot be read");
  }
  const socket_address address = socket_address::from_unix(where);
  const unique_fd socket = open_stream_socket(AF_UNIX);
  while (::connect(socket.get(), address.get(), address.size) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN || until.expired()) {
      throw_error(errc::handshake_failed, fmt::format("cannot fetch shared memory: {}", std::strerror(errno)));
    }
    ::poll(nullptr, 0, 1);  // the others have filled the queue of the listener
  }
  if (const std::string why = check_local_user(socket.get()); !why.empty()) throw_error(errc::handshake_failed, why);
  send_with_descriptors(socket.get(), std::as_bytes(std::span(token)), {}, "fetching shared memory");
  pollfd waiting{socket.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, poll_milliseconds(until));
  } while (ready <= 0 && !until.expired());
  if (ready <= 0) throw_error(errc::handshake_failed, "the shared memory has not come");
  std::byte none{};
  std::array<unique_fd, 1> given;
  const auto got = receive_with_descriptors(socket.get(), {&none, 1}, given);
  if (got.bytes != 1 || got.descriptors != 1)
    throw_error(errc::handshake_failed, "the shared memory is not handed over");
  return group_segment::adopt(given[0], layout);
}

}  // namespace ferry::inline v0::detail
