#include "accept_handshake.hpp"

#include <ferry/base/log.hpp>

#include <array>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "../../device/memory/shared_arena.hpp"
#include "../streams/stream_connection.hpp"
#include "descriptor_reserve.hpp"
#include "host_exchange.hpp"

namespace ferry::inline v0::detail {
namespace {

std::string describe(int descriptor) {
  const auto remote = socket_address::remote_end(descriptor);
  if (remote.family() != AF_UNIX) return remote.text();
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return "unknown process";
  return fmt::format("process {}", who.pid);
}

std::string host_of(int descriptor) {
  const auto remote = socket_address::remote_end(descriptor);
  return remote.family() == AF_INET || remote.family() == AF_INET6 ? remote.host() : std::string();
}

}  // namespace

accept_handshake::accept_handshake(std::shared_ptr<socket_core> core, std::shared_ptr<listener> owner,
                                   unique_fd accepted)
    : core_(std::move(core)),
      owner_(std::move(owner)),
      socket_(core_->context),
      timer_(core_->context),
      peer_(describe(accepted.get())),
      host_(host_of(accepted.get())),
      expected_(core_->workers.expects(host_)) {
  const int family = owner_->where().family();
  tune_connection(accepted.get(), family);
  socket_.assign(asio::generic::stream_protocol(family, 0), accepted.get());
  (void)accepted.release();
}

auto accept_handshake::then(void (accept_handshake::*next)()) {
  return [self = shared_from_this(), next](const asio::error_code& error, std::size_t) {
    if (self->done_) return;
    if (error) return self->peer_is_gone(error.message());
    try {
      ((*self).*next)();
    } catch (const std::exception& failure) {
      self->core_->warn(
          [&] { return fmt::format("{}: refused a connection: {}", self->core_->transport_name, failure.what()); });
      self->finish();
    }
  };
}

// Port scans, health checks, and peers that end before they have a connection look like this: nothing to warn about.
void accept_handshake::peer_is_gone(std::string_view why) noexcept {
  log_about("unauthenticated connections", log_level::debug, [&] {
    return fmt::format("{}: the peer at {} disconnected during the handshake: {}", core_->transport_name, peer_, why);
  });
  finish();
}

void accept_handshake::start() {
  core_->live.emplace(this, shared_from_this());
  timer_.expires_after(owner_->handshake_timeout());
  timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && !self->done_) self->give_up("its handshake did not end in time");
  });
  asio::async_read(socket_, asio::buffer(prefix_bytes_), then(&accept_handshake::read_body));
}

void accept_handshake::give_up(std::string_view why) {
  core_->warn([&] { return fmt::format("{}: dropped the peer at {}: {}", core_->transport_name, peer_, why); });
  finish();
}

accept_handshake::progress accept_handshake::advance() const noexcept {
  if (progress_ != progress::silent) return progress_;
  // Bytes may have arrived that this thread has yet to read.
  asio::error_code ignored;
  return socket_.available(ignored) != 0 ? progress::begun : progress::silent;
}

void accept_handshake::read_body() {
  progress_ = progress::begun;
  prefix_ = handshake_prefix::decode(prefix_bytes_.data(), hello_magic, peer_);
  prefix_.check_size(peer_);
  // Read it even if the version will be refused: closing a socket with unread bytes would discard the answer.
  body_.resize(prefix_.body_bytes);
  asio::async_read(socket_, asio::buffer(body_), then(&accept_handshake::take_hello));
}

void accept_handshake::take_hello() {
  progress_ = progress::greeted;
  if (!prefix_.compatible()) return refuse({errc::version_mismatch, prefix_.version_text(peer_)});
  std::optional<nonce> offered;
  try {
    hello_ = decode_hello(body_, &offered);
  } catch (const error& why) {
    return refuse({why.kind(), std::string(why.message())});
  }
  auto demanded = core_->workers.demanded(hello_.group, hello_.target);
  if (offered && !demanded.secrets.empty()) return challenge_peer(std::move(demanded.secrets));
  if (demanded.open && !offered) return admit();
  if (!offered) {
    return refuse(
        {errc::authentication_failed,
         "a secret is required here, and the other end gave none; give all workers the same one "
         "(worker_config::secret, FERRY_SECRET or FERRY_SECRET_FILE), and run the same ferry release on both"});
  }
  hello_.features &= ~feature_authenticated;
  // If the worker needs no secret, its identity needs no protection either.
  if (!demanded.known) return admit();
  refuse({errc::authentication_failed,
          "the other end has a secret, and this worker was started without one; give all workers the same one"});
}

void accept_handshake::challenge_peer(std::vector<std::string> secrets) {
  secrets_ = std::move(secrets);
  hello_.features &= ~feature_authenticated;
  hello_bytes_.assign(prefix_bytes_.begin(), prefix_bytes_.end());
  hello_bytes_.insert(hello_bytes_.end(), body_.begin(), body_.end());
  challenge_ = encode_challenge(fresh_nonce());
  asio::async_write(socket_, asio::buffer(challenge_), then(&accept_handshake::read_proof));
}

void accept_handshake::read_proof() {
  asio::async_read(socket_, asio::buffer(prefix_bytes_), then(&accept_handshake::read_proof_body));
}

void accept_handshake::read_proof_body() {
  prefix_ = handshake_prefix::decode(prefix_bytes_.data(), hello_magic, peer_);
  prefix_.check_size(peer_);
  body_.resize(prefix_.body_bytes);
  asio::async_read(socket_, asio::buffer(body_), then(&accept_handshake::take_proof));
}

void accept_handshake::take_proof() {
  // All are compared, so that the duration does not reveal which one matches.
  for (const std::string& secret : secrets_) {
    if (check_proof(secret, hello_bytes_, challenge_, body_)) secret_ = secret;
  }
  if (secret_.empty()) return refuse({errc::authentication_failed, "the secret of the other end is another one"});
  hello_.features |= feature_authenticated;
  admit();
}

// Throws errc::resource_exhausted where descriptors are so short that the connection must not keep its own.
void accept_handshake::check_descriptors() {
  auto& reserve = descriptor_reserve::of_process();
  if (reserve.fill()) return;
  const bool control = (hello_.features & feature_control) != 0;
  if (control && reserve.holds_more_than(descriptor_reserve::kept_for_handshakes - 1)) return;
  reserve.warn("a connection was refused", EMFILE);
  refused_short_ = true;
  throw_error(errc::resource_exhausted,
              fmt::format("at worker '{}' {}", hello_.target, descriptor_reserve::advice(EMFILE)));
}

void accept_handshake::admit() {
  try {
    // What the two ends share is not the worker's concern.
    const std::uint64_t shared = std::exchange(hello_.features, hello_.features & ~features_of_shm) & features_of_shm;
    admission_ = core_->workers.admit(hello_, secret_);
    check_descriptors();
    if (!secret_.empty()) admission_.reply.features |= feature_authenticated;
    if ((hello_.features & feature_observer) != 0)
      admission_.options.limits.max_message_bytes = longest_observer_message;
    admission_.reply.features &= ~features_of_shm;
    if (core_->carried_by == carriage::shared_memory) {
      exchanges_pools_ = (shared & feature_device_memory) != 0 && pool_exchange::possible(hello_, admission_.options);
      if (exchanges_pools_) admission_.reply.features |= feature_device_memory;
      shares_host_memory_ = (shared & feature_host_memory) != 0 &&
                            can_share_host_memory(hello_.features, admission_.options) &&
                            (admission_.reply.features & feature_device_tensors) != 0;
      if (shares_host_memory_) admission_.reply.features |= feature_host_memory;
    }
    answer_ = encode_answer(admission_.reply);
  } catch (const error& why) {
    admission_ = {};
    return refuse({why.kind(), std::string(why.message())});
  } catch (const std::exception& why) {
    admission_ = {};
    return refuse({errc::handshake_failed, why.what()});
  }
  send_answer(core_->carried_by == carriage::shared_memory ? &accept_handshake::await_rings
                                                           : &accept_handshake::complete_handshake);
}

void accept_handshake::refuse(const refusal& why) {
  const std::string text =
      fmt::format("{}: refused {} at {}: {}: {}", core_->transport_name,
                  why.code == errc::authentication_failed ? "the peer" : "worker '" + hello_.name + "'", peer_,
                  errc_name(why.code), why.text);
  // These occur routinely when workers join and leave, or one warning tells of them all; the connecting peer is told.
  if (refused_short_ || why.code == errc::join_pending || why.code == errc::shutting_down ||
      why.code == errc::unknown_worker) {
    log_about("unauthenticated connections", log_level::info, [&] { return text; });
  } else {
    core_->warn([&] { return text; });
  }
  answer_ = encode_answer(why);
  send_answer(&accept_handshake::finish);
}

// A peer that has proved the secret gets a proof, too, also with a refusal.
void accept_handshake::send_answer(void (accept_handshake::*next)()) {
  if (!secret_.empty()) sign_answer(answer_, secret_, hello_bytes_, challenge_);
  asio::async_write(socket_, asio::buffer(answer_), then(next));
}

void accept_handshake::await_rings() {
  socket_.async_wait(stream_socket::wait_read,
                     [next = then(&accept_handshake::take_rings)](const asio::error_code& error) { next(error, 0); });
}

void accept_handshake::take_rings() {
  std::string verdict = rings_verdict::encode_acceptance();
  try {
    // For the descriptors that come, which are closed again at once: there may be no others.
    const std::array<descriptor_loan, 2> loans;
    received_offer offer = receive_offer(socket_.native_handle(), shares_host_memory_);
    if (!offer.rings) return peer_is_gone("it offered no shared memory");
    rings_ = std::move(offer.rings);
    if (shares_host_memory_) host_memory_ = take_host_memory(offer.host_memory, peer_);
    // Before the peer may send: its first tensor can be lent.
    if (shares_host_memory_ && !exchanges_pools_) direct_ = share_host_memory(*rings_, std::move(host_memory_));
  } catch (const error& refused) {
    verdict = rings_verdict::encode_refusal(refused.kind(), refused.message());
    core_->warn(
        [&] { return fmt::format("{}: refused the peer at {}: {}", core_->transport_name, peer_, refused.message()); });
  }
  if (rings_ && shares_host_memory_) {
    send_acceptance(socket_.native_handle(), shared_arena::of_process()->descriptor());
    return exchanges_pools_ ? await_pools() : complete_handshake();
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(verdict.data());
  answer_.assign(bytes, bytes + verdict.size());
  void (accept_handshake::*next)() = &accept_handshake::finish;
  if (rings_) {
    next = exchanges_pools_ ? &accept_handshake::await_pools : &accept_handshake::complete_handshake;
  }
  asio::async_write(socket_, asio::buffer(answer_), then(next));
}

void accept_handshake::await_pools() {
  socket_.async_wait(stream_socket::wait_read,
                     [next = then(&accept_handshake::take_pools)](const asio::error_code& error) { next(error, 0); });
}

void accept_handshake::take_pools() {
  pools_.take_offer(socket_.native_handle());
  answer_ = pools_.answer();
  if (answer_.empty()) return await_pool_answer();
  asio::async_write(socket_, asio::buffer(answer_), then(&accept_handshake::await_pool_answer));
}

void accept_handshake::await_pool_answer() {
  pools_.offer(socket_.native_handle());
  body_.resize(pools_.answer_bytes());
  if (body_.empty()) return take_pool_answer();
  asio::async_read(socket_, asio::buffer(body_), then(&accept_handshake::take_pool_answer));
}

void accept_handshake::take_pool_answer() {
  pools_.take_answer(body_);
  direct_ = pools_.finish(socket_.native_handle(), *rings_, std::move(host_memory_));
  complete_handshake();
}

void accept_handshake::complete_handshake() {
  std::string description = fmt::format("{} {}", core_->transport_name, peer_);  // may throw: before release()
  auto opened = make_stream_connection(core_->loop, socket_.release(), core_->transport_name, std::move(description),
                                       admission_.options, std::move(admission_.slot), hello_.features,
                                       std::move(rings_), std::move(direct_));
  if (!core_->workers.deliver(opened, hello_, admission_.worker)) {
    opened->close(make_error(errc::shutting_down, fmt::format("the worker '{}' has left", hello_.target)));
  }
  finish();
}

void accept_handshake::finish() noexcept {
  if (std::exchange(done_, true)) return;
  const auto keep = shared_from_this();
  asio::error_code ignored;
  if (socket_.is_open()) descriptor_reserve::of_process().take_back(unique_fd(socket_.release(ignored)));
  timer_.cancel();
  owner_->handshake_ended(*this);
  core_->live.erase(this);
}

}  // namespace ferry::inline v0::detail
