#include "listener.hpp"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>

#include "accept_handshake.hpp"
#include "descriptor_reserve.hpp"

namespace ferry::inline v0::detail {
namespace {

// What a handshake gets although other peers wait for its place.
constexpr std::chrono::milliseconds least_silent_time{100};
constexpr std::chrono::milliseconds least_handshake_time{250};

}  // namespace

listener::listener(std::shared_ptr<socket_core> core, unique_fd socket, peer_check check,
                   const transport_options& options)
    : core_(std::move(core)),
      where_(socket_address::local_end(socket.get())),
      check_(check),
      handshake_timeout_(options.handshake_timeout),
      max_handshakes_(options.max_handshakes),
      socket_(core_->context),
      timer_(core_->context) {
  socket_.assign(socket.get());
  (void)socket.release();
}

void listener::start() {
  core_->live.emplace(this, shared_from_this());
  wait_for_peers();
}

void listener::abort() noexcept {
  const auto keep = shared_from_this();
  closed_ = true;
  asio::error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  core_->live.erase(this);
}

void listener::wait_for_peers() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const asio::error_code& error) {
                       if (!error && !self->closed_) self->accept_some();
                     });
}

void listener::accept_some() {
  constexpr int at_once = 16;  // then the handshakes in progress get a turn
  for (int i = 0; i < at_once; ++i) {
    if (handshakes_.size() >= max_handshakes_) {
      over_limit_ = true;
      return make_room();
    }
    int why = 0;
    unique_fd accepted = accept_one(why);
    if (accepted) {
      warned_ = false;
      begin_handshake(std::move(accepted));
      continue;
    }
    if (why == EAGAIN || why == EWOULDBLOCK) break;
    if (!descriptor_reserve::is_shortage(why)) continue;  // that peer has disconnected already
    // The peer stays in the queue, so the socket stays readable: waiting for readability would spin. A handshake that
    // ends gives its descriptor back.
    if (why == EMFILE && !handshakes_.empty()) {
      over_limit_ = true;
      return make_room();
    }
    if (!std::exchange(warned_, true)) {
      core_->warn([&] {
        return fmt::format("{}: cannot accept connections on {} for now: {}", core_->transport_name, where_.text(),
                           descriptor_reserve::advice(why));
      });
    }
    constexpr std::chrono::milliseconds pause{100};
    timer_.expires_after(pause);
    return timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error && !self->closed_) self->accept_some();
    });
  }
  wait_for_peers();
}

// A peer is accepted with a descriptor of the reserve if there is no other: its handshake decides whether it is kept.
unique_fd listener::accept_one(int& system_error) {
  auto& reserve = descriptor_reserve::of_process();
  for (;;) {
    unique_fd accepted(::accept4(socket_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    system_error = accepted ? 0 : errno;
    if (system_error != EMFILE || !reserve.release_one(0)) return accepted;
  }
}

void listener::begin_handshake(unique_fd accepted) {
  try {
    if (auto why = check_ ? check_(accepted.get()) : std::string(); !why.empty()) {
      return core_->warn([&] { return fmt::format("{}: refused a connection: {}", core_->transport_name, why); });
    }
    const auto fresh = std::make_shared<accept_handshake>(core_, shared_from_this(), std::move(accepted));
    handshakes_.push_back(fresh.get());
    try {
      fresh->start();
    } catch (...) {
      handshakes_.remove(fresh.get());
      throw;
    }
  } catch (const std::exception& failure) {
    core_->warn([&] { return fmt::format("{}: dropped a new connection: {}", core_->transport_name, failure.what()); });
  }
}

void listener::handshake_ended(accept_handshake& which) noexcept {
  handshakes_.remove(&which);
  if (!std::exchange(over_limit_, false) || closed_) return;
  timer_.cancel();
  wait_for_peers();
}

// A flood from one address takes the places of that address; a flood from many, those of peers that are no members. A
// peer that says nothing gives way to one that has begun, and this one to one that has said hello.
accept_handshake& listener::least_deserving() const {
  std::unordered_map<std::string_view, std::size_t> of_host;
  for (const accept_handshake* each : handshakes_) ++of_host[each->host()];
  const auto rank = [&](const accept_handshake& each) {
    return std::tuple(each.expected(), handshakes_.size() - of_host[each.host()], each.advance());
  };
  return **std::min_element(handshakes_.begin(), handshakes_.end(),  // of equal ones the first, which is the oldest
                            [&](const auto* a, const auto* b) { return rank(*a) < rank(*b); });
}

void listener::make_room() {
  accept_handshake& least = least_deserving();
  const bool silent = least.advance() == accept_handshake::progress::silent;
  const auto until = least.began() + (silent ? least_silent_time : least_handshake_time);
  if (until <= std::chrono::steady_clock::now())
    return least.give_up("other peers wait for its place in the handshake");
  timer_.expires_at(until);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && !self->closed_ && self->over_limit_) self->make_room();
  });
}

}  // namespace ferry::inline v0::detail
