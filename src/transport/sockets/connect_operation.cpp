#include "connect_operation.hpp"

#include <ferry/base/log.hpp>
#include <ferry/transport/address.hpp>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "../../device/memory/shared_arena.hpp"
#include "../streams/stream_connection.hpp"
#include "descriptor_reserve.hpp"
#include "host_exchange.hpp"

namespace ferry::inline v0::detail {
namespace {

std::string reason_of(const asio::error_code& error) {
  if (error == asio::error::eof) return "it closed the connection during the handshake";
  return error.message();
}

bool no_listener(const asio::error_code& error) {
  return error == asio::error::connection_refused ||
         error == asio::error_code(ENOENT, asio::error::get_system_category());
}

// What a connection without calls needs: few bytes, seldom.
constexpr std::size_t control_ring = std::size_t{16} * 1024;

constexpr auto no_step_limit = std::chrono::steady_clock::duration::max();

}  // namespace

connect_operation::connect_operation(std::shared_ptr<socket_core> core, connect_request request,
                                     listener::peer_check check)
    : core_(std::move(core)),
      request_(std::move(request)),
      check_(check),
      socket_(core_->context),
      timer_(core_->context) {}

auto connect_operation::then(void (connect_operation::*next)()) {
  return [self = shared_from_this(), next, attempt = attempt_](const asio::error_code& error, std::size_t = 0) {
    if (self->done_ || attempt != self->attempt_) return;
    try {
      if (error) {
        if (no_listener(error)) ++self->refused_;
        if (error == asio::error::eof || error == asio::error::connection_reset || error == asio::error::broken_pipe) {
          self->hung_up_ = true;
        }
        return self->attempt_failed(errc::connect_failed, reason_of(error));
      }
      ((*self).*next)();
    } catch (const ferry::error& failure) {
      self->attempt_failed(failure.kind(), std::string(failure.message()));
    } catch (const std::exception& failure) {
      self->fail(errc::system_failure, failure.what());
    }
  };
}

void connect_operation::start() {
  try {
    core_->live.emplace(this, shared_from_this());
    if (core_->closed) return fail(errc::connect_failed, "the transport has been shut down");
    (void)encode_hello(request_.self);  // throws if a field cannot be encoded
    const auto where = address::parse(request_.address);
    if (where.scheme != core_->transport_name) {
      return fail(errc::bad_address, fmt::format("it is not an address of the transport {}", core_->transport_name));
    }
    if (where.scheme == "tcp") return resolve(where.host, where.port);
    candidates_.push_back(socket_address::from_unix(where.host));
    try_next();
  } catch (const error& failure) {
    fail(failure.kind(), std::string(failure.message()));
  } catch (const std::exception& failure) {
    fail(errc::system_failure, failure.what());
  }
}

void connect_operation::abort() noexcept { fail(errc::connect_failed, "the transport has been shut down"); }

void connect_operation::resolve(const std::string& host, std::uint16_t port) {
  if (auto literal = socket_address::from_literal(host, port)) {
    candidates_.push_back(*literal);
    return try_next();
  }
  // A link-local address names an interface of the machine that has it.
  candidates_ = link_local_on_each_interface(host, port);
  if (!candidates_.empty()) return try_next();
  resolver_.emplace(core_->context);
  arm_timer(no_step_limit);
  resolver_->async_resolve(
      host, std::to_string(port), asio::ip::tcp::resolver::numeric_service,
      [self = shared_from_this(), host](const asio::error_code& error,
                                        const asio::ip::tcp::resolver::results_type& found) {
        if (self->done_) return;
        if (error) {
          // The resolver needs descriptors, too.
          if (!descriptor_reserve::of_process().fill())
            return self->fail(errc::resource_exhausted, descriptor_reserve::advice(EMFILE));
          return self->fail(errc::bad_address, fmt::format("cannot resolve the host '{}': {}", host, error.message()));
        }
        try {
          for (const auto& entry : found) {
            const auto endpoint = entry.endpoint();
            self->candidates_.push_back(socket_address::copy(endpoint.data(), static_cast<socklen_t>(endpoint.size())));
          }
          self->try_next();
        } catch (const std::exception& failure) {
          self->fail(errc::system_failure, failure.what());
        }
      });
}

unique_fd connect_operation::open_socket(int family) {
  auto& reserve = descriptor_reserve::of_process();
  const bool control = (request_.self.features & feature_control) != 0;
  int failure = EMFILE;
  if (control || reserve.fill()) {
    do {
      if (auto opened = open_stream_socket(family, failure)) return opened;
    } while (failure == EMFILE && control && reserve.release_one(descriptor_reserve::kept_for_handshakes));
  }
  if (!descriptor_reserve::is_shortage(failure)) throw_errno(errc::system_failure, "cannot open a socket", failure);
  reserve.warn("a connection cannot be opened", failure);
  throw_error(errc::resource_exhausted, descriptor_reserve::advice(failure));
}

void connect_operation::try_next() {
  while (next_ < candidates_.size()) {
    ++attempt_;
    asio::error_code ignored;
    socket_.close(ignored);
    rings_.reset();
    host_memory_ = {};
    pools_ = {};
    direct_.reset();
    const auto& where = candidates_[next_++];
    try {
      auto opened = open_socket(where.family());
      tune_connection(opened.get(), where.family());
      const asio::generic::stream_protocol protocol(where.family(), 0);
      socket_.assign(protocol, opened.get());
      (void)opened.release();
      ++tried_;
    } catch (const error& failure) {  // no IPv6 on this machine, no descriptor left
      if (failure.kind() == errc::resource_exhausted) {
        return fail(errc::resource_exhausted, std::string(failure.message()));
      }
      reasons_ += fmt::format("{}{}: {}", reasons_.empty() ? "" : "; ", current_text(), failure.what());
      continue;
    } catch (const std::exception& failure) {
      reasons_ += fmt::format("{}{}: {}", reasons_.empty() ? "" : "; ", current_text(), failure.what());
      continue;
    }
    // An address that drops packets silently must not use up the time of the others.
    auto share = no_step_limit;
    if (const auto others = candidates_.size() - next_; others != 0) {
      share =
          request_.until.is_never() ? request_.options.handshake_timeout : request_.until.remaining() / (others + 1);
    }
    arm_timer(share);
    return socket_.async_connect(asio::generic::stream_protocol::endpoint(where.get(), where.size),
                                 then(&connect_operation::send_hello));
  }
  fail(worst_, reasons_);
}

void connect_operation::send_hello() {
  const auto& where = candidates_[next_ - 1];
  const int socket = socket_.native_handle();
  // A connect to an unused port of the ephemeral range can end up connected to itself.
  if (where.family() != AF_UNIX && socket_address::local_end(socket).same_as(socket_address::remote_end(socket))) {
    ++refused_;
    return attempt_failed(errc::connect_failed, "Connection refused");
  }
  if (auto why = check_ ? check_(socket) : std::string(); !why.empty()) {
    return attempt_failed(errc::handshake_failed, why);
  }
  challenge_.clear();
  const nonce once = wants_proof() ? fresh_nonce() : nonce{};
  if (core_->carried_by == carriage::shared_memory) {
    request_.self.features &= ~feature_device_memory;
    if (pool_exchange::possible(request_.self, request_.options)) request_.self.features |= feature_device_memory;
    request_.self.features &= ~feature_host_memory;
    if (can_share_host_memory(request_.self.features, request_.options)) request_.self.features |= feature_host_memory;
  }
  hello_ = encode_hello(request_.self, wants_proof() ? &once : nullptr);
  arm_timer(request_.options.handshake_timeout);
  asio::async_write(socket_, asio::buffer(hello_), then(&connect_operation::read_prefix));
}

void connect_operation::read_prefix() {
  asio::async_read(socket_, asio::buffer(prefix_bytes_), then(&connect_operation::read_body));
}

void connect_operation::read_body() {
  const auto prefix = handshake_prefix::decode(prefix_bytes_.data(), answer_magic, current_text());
  if (!prefix.compatible()) return attempt_failed(errc::version_mismatch, prefix.version_text(current_text()));
  prefix.check_size(current_text());
  body_.resize(prefix.body_bytes);
  asio::async_read(socket_, asio::buffer(body_), then(&connect_operation::take_answer));
}

void connect_operation::take_answer() {
  auto answer = decode_answer(body_);
  if (wants_proof()) {
    std::vector<std::byte> whole(prefix_bytes_.begin(), prefix_bytes_.end());
    whole.insert(whole.end(), body_.begin(), body_.end());
    if (challenge_.empty() && std::holds_alternative<challenge>(answer)) {
      challenge_ = std::move(whole);
      return prove_secret();
    }
    if (challenge_.empty() || !answer_signed(whole, request_.options.secret, hello_, challenge_)) {
      return take_unproved(answer);
    }
  }
  if (std::holds_alternative<challenge>(answer)) {
    return attempt_failed(errc::handshake_failed, "it asked for a proof that was not offered");
  }
  if (const auto* why = std::get_if<refusal>(&answer)) return fail(why->code, why->text);
  peer_ = std::get<hello_reply>(std::move(answer));
  peer_.features &= ~feature_authenticated;
  if (wants_proof()) peer_.features |= feature_authenticated;
  if (peer_.name != request_.self.target) {
    return attempt_failed(errc::handshake_failed, fmt::format("worker '{}' answered", peer_.name));
  }
  if (core_->carried_by == carriage::shared_memory) return offer_rings();
  open_connection();
}

void connect_operation::offer_rings() {
  const bool control = (request_.self.features & feature_control) != 0;
  const std::size_t given = request_.options.shm_ring_bytes;
  const std::size_t wanted = given != 0 ? given : default_ring_bytes();
  try {
    const descriptor_loan loan;  // for the segment's descriptor, which is closed again at once: there may be no other
    auto [rings, segment] = shared_rings::create(control ? std::min(wanted, control_ring) : wanted);
    send_offer(socket_.native_handle(), {rings->out().capacity()}, segment,
               both_have(feature_host_memory) ? shared_arena::of_process()->descriptor() : -1);
    rings_ = std::move(rings);
  } catch (const error&) {
    if (descriptor_reserve::of_process().fill()) throw;
    throw_error(errc::resource_exhausted, descriptor_reserve::advice(EMFILE));
  }
  if (both_have(feature_host_memory)) {
    return socket_.async_wait(stream_socket::wait_read, [next = then(&connect_operation::read_verdict_with_memory)](
                                                            const asio::error_code& error) { next(error, 0); });
  }
  body_.resize(rings_verdict::encoded_size);
  asio::async_read(socket_, asio::buffer(body_), then(&connect_operation::read_verdict));
}

bool connect_operation::both_have(std::uint64_t feature) const noexcept {
  return (peer_.features & request_.self.features & feature) != 0;
}

void connect_operation::read_verdict() {
  take_verdict(rings_verdict::decode(std::span<const std::byte, rings_verdict::encoded_size>(body_)));
}

void connect_operation::read_verdict_with_memory() {
  const descriptor_loan loan;  // for the descriptor that comes, which is closed again at once
  const received_verdict got = receive_verdict(socket_.native_handle());
  if (!got.verdict) return then(&connect_operation::read_verdict)(asio::error::eof);
  if (got.verdict->accepted()) host_memory_ = take_host_memory(got.host_memory, current_text());
  take_verdict(*got.verdict);
}

void connect_operation::take_verdict(const rings_verdict& verdict) {
  if (verdict.accepted()) return both_have(feature_device_memory) ? exchange_pools() : share_memory();
  refusal_ = verdict.refused;
  body_.resize(verdict.text_bytes);
  asio::async_read(socket_, asio::buffer(body_), then(&connect_operation::take_refusal));
}

void connect_operation::take_refusal() {
  attempt_failed(refusal_, std::string(reinterpret_cast<const char*>(body_.data()), body_.size()));
}

void connect_operation::exchange_pools() {
  pools_.offer(socket_.native_handle());
  body_.resize(pools_.answer_bytes());
  if (body_.empty()) return await_pools();
  asio::async_read(socket_, asio::buffer(body_), then(&connect_operation::await_pools));
}

void connect_operation::await_pools() {
  pools_.take_answer(body_);
  socket_.async_wait(stream_socket::wait_read,
                     [next = then(&connect_operation::take_pools)](const asio::error_code& error) { next(error, 0); });
}

void connect_operation::take_pools() {
  pools_.take_offer(socket_.native_handle());
  body_ = pools_.answer();
  if (body_.empty()) return end_pools();
  asio::async_write(socket_, asio::buffer(body_), then(&connect_operation::end_pools));
}

void connect_operation::end_pools() {
  direct_ = pools_.finish(socket_.native_handle(), *rings_, std::move(host_memory_));
  open_connection();
}

void connect_operation::share_memory() {
  if (both_have(feature_host_memory)) direct_ = share_host_memory(*rings_, std::move(host_memory_));
  open_connection();
}

void connect_operation::open_connection() {
  connect_result result;
  result.peer = std::move(peer_);
  result.peer.features &= ~features_of_shm;
  try {
    std::string description =
        fmt::format("{} {}", core_->transport_name, current_text());  // may throw: before release()
    const std::uint64_t features = (result.peer.features & feature_device_tensors) |
                                   (request_.self.features & (feature_control | feature_observer));
    result.opened =
        make_stream_connection(core_->loop, socket_.release(), core_->transport_name, std::move(description),
                               request_.options, {}, features, std::move(rings_), std::move(direct_));
  } catch (const error& failure) {
    return fail(failure.kind(), std::string(failure.message()));
  }
  finish(std::move(result));
}

void connect_operation::prove_secret() {
  proof_ = encode_proof(request_.options.secret, hello_, challenge_);
  asio::async_write(socket_, asio::buffer(proof_), then(&connect_operation::read_prefix));
}

void connect_operation::take_unproved(const std::variant<hello_reply, refusal, challenge>& answer) {
  // A refusal may come before any proof, or be the answer to a wrong one; it could be forged.
  if (const auto* why = std::get_if<refusal>(&answer)) {
    const bool told = why->code == errc::authentication_failed || why->code == errc::version_mismatch;
    return attempt_failed(
        told ? why->code : errc::authentication_failed,
        told ? why->text
             : fmt::format("it refused without a proof of the secret: {}: {}", errc_name(why->code), why->text));
  }
  attempt_failed(
      errc::authentication_failed,
      challenge_.empty()
          ? "it asked for no proof of the secret: it was started without one, is of an older ferry release, or "
            "is not the expected worker; give all workers the same secret"
          : "it gave no proof of the secret");
}

void connect_operation::attempt_failed(errc code, const std::string& reason) noexcept {
  // The answer of a ferry peer is more informative than an address that did not answer.
  if (code != errc::connect_failed) worst_ = code;
  try {
    const bool several = candidates_.size() > 1;
    reasons_ += (reasons_.empty() ? "" : "; ") + (several ? current_text() + ": " : std::string()) + reason;
    try_next();
  } catch (const std::bad_alloc&) {
    fail(errc::system_failure, "no memory");
  } catch (const std::exception& failure) {
    fail(errc::system_failure, failure.what());
  }
}

void connect_operation::fail(errc code, const std::string& reason) noexcept {
  if (done_) return;
  connect_result result;
  result.hung_up = hung_up_;
  // A shortage leaves addresses untried.
  result.gone =
      code == errc::unknown_worker || (code != errc::resource_exhausted && refused_ != 0 && refused_ == tried_);
  try {
    result.error = make_error(
        code, fmt::format("cannot connect to worker '{}' at {}: {}", request_.self.target, request_.address, reason));
  } catch (...) {
    result.error = std::current_exception();
  }
  finish(std::move(result));
}

void connect_operation::finish(connect_result result) noexcept {
  if (std::exchange(done_, true)) return;
  const auto keep = shared_from_this();
  asio::error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  if (resolver_) resolver_->cancel();
  core_->live.erase(this);
  const auto callback = std::move(request_.callback);
  try {
    callback(std::move(result));
  } catch (const std::exception& failure) {
    log(log_level::error, std::string("the callback of a connect threw: ") + failure.what());
  } catch (...) {
    log(log_level::error, "the callback of a connect threw");
  }
}

void connect_operation::arm_timer(std::chrono::steady_clock::duration step_limit) {
  timer_.cancel();
  const auto now = std::chrono::steady_clock::now();
  auto at = request_.until.at();
  if (step_limit != no_step_limit) at = std::min(at, now + step_limit);
  if (at == std::chrono::steady_clock::time_point::max()) return;
  timer_.expires_at(at);
  timer_.async_wait([self = shared_from_this(), attempt = attempt_, at](const asio::error_code& error) {
    // A re-armed timer may still have its old handler queued: compare `at`.
    if (error || self->done_ || attempt != self->attempt_ || at != self->timer_.expiry()) return;
    try {
      const auto reason =
          fmt::format("no answer within {:.1f} s", in_seconds(std::chrono::steady_clock::now() - self->began_));
      if (self->request_.until.expired()) return self->fail(errc::connect_failed, reason);
      self->attempt_failed(errc::connect_failed, reason);
    } catch (const std::bad_alloc&) {
      self->fail(errc::connect_failed, "no answer");
    }
  });
}

std::string connect_operation::current_text() const { return next_ == 0 ? "" : candidates_[next_ - 1].text(); }

}  // namespace ferry::inline v0::detail
