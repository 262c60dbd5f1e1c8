#include "tcp_server_session.hpp"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <asio/buffer.hpp>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../base/authentication.hpp"
#include "../../base/unique_fd.hpp"
#include "../../transport/sockets/descriptor_reserve.hpp"
#include "tcp_server_core.hpp"

namespace ferry::inline v0::detail {

namespace wire = store_wire;

namespace {
constexpr std::size_t kept_capacity = 4096;  // of the input of an idle client
// Assigning an empty string keeps the memory.
void free_memory(std::string& text) noexcept { std::string().swap(text); }
constexpr std::size_t first_key = 5;  // in the body of a get, behind the flags and the number of keys

std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
}  // namespace

store_session::store_session(store_server_core& server, asio::ip::tcp::socket socket)
    : server_(server), socket_(std::move(socket)), timer_(server.context()) {}

void store_session::start() {
  limit_time(true);
  want_readable();
}

void store_session::close() {
  if (phase_ == phase::closed) return;
  phase_ = phase::closed;
  const auto self = shared_from_this();  // the server drops its reference
  server_.unpark(*this);
  release_request();
  server_.discharge(std::exchange(in_charged_, 0) + std::exchange(out_charged_, 0));
  free_memory(in_);
  free_memory(out_);
  get_.reset();
  asio::error_code ignored;  // closing: errors do not matter
  if (socket_.is_open()) descriptor_reserve::of_process().take_back(unique_fd(socket_.release(ignored)));
  timer_.cancel();
  server_.closed(*this);
}

// Runs the timer while a message from or to the peer is incomplete. Not restarted while it runs, so a peer cannot
// extend it by sending a byte at a time.
void store_session::limit_time(bool needed) {
  if (needed == timer_runs_) return;
  timer_runs_ = needed;
  if (!needed) {
    timer_.cancel();
    return;
  }
  timer_.expires_after(client_ ? server_.limits().message_timeout : server_.limits().handshake_timeout);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& problem) {
    if (problem || !self->timer_runs_ || self->timer_.expiry() > asio::steady_timer::clock_type::now()) return;
    self->server_.note([] { return "dropped a connection that took too long for a message"; });
    self->close();
  });
}

void store_session::want_readable() {
  if (reading_ || phase_ == phase::closed || phase_ == phase::replying) return;
  reading_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read, [self = shared_from_this()](const asio::error_code& problem) {
    self->reading_ = false;
    self->readable(problem);
  });
}

// An exception ends this connection only, never the server.
template <class Action>
void store_session::guarded(Action action) {
  try {
    action();
  } catch (const std::exception& trouble) {
    server_.warn([&] { return fmt::format("dropped a connection: {}", trouble.what()); });
    close();
  }
}

void store_session::readable(const asio::error_code& problem) {
  if (phase_ == phase::closed) return;
  if (problem) return close();
  if (phase_ == phase::replying) return;  // reading continues when the reply is sent
  guarded([&] {
    asio::error_code failed;
    const std::size_t got = socket_.read_some(asio::buffer(server_.scratch()), failed);
    if (failed == asio::error::would_block || failed == asio::error::try_again) return want_readable();
    if (failed) return close();
    in_.append(server_.scratch().data(), got);
    account_input();
    process();
  });
}

void store_session::process() {
  try {
    while ((phase_ == phase::hello && take_hello()) || (phase_ == phase::proof && take_proof()) ||
           ((phase_ == phase::idle || phase_ == phase::parked) && take_frame())) {
    }
  } catch (const error& problem) {
    if (phase_ == phase::closed) return;
    if (greeting() || phase_ == phase::parked || phase_ == phase::replying) {
      server_.note([&] { return fmt::format("dropped a connection: {}", problem.what()); });
      return close();
    }
    // The stream is out of sync: send the reason, then close.
    close_after_reply_ = true;
    reply_error(errc::protocol_error, problem.message());
  }
  if (phase_ == phase::closed) return;
  in_.erase(0, in_used_);
  in_used_ = 0;
  if (in_.empty() && in_.capacity() > kept_capacity) free_memory(in_);
  account_input();
  limit_time(greeting() || phase_ == phase::replying || !in_.empty());
  want_readable();
}

bool store_session::take_hello() {
  const std::string_view bytes = std::string_view(in_).substr(in_used_);
  const std::size_t first = std::min(bytes.size(), wire::magic.size());
  if (bytes.substr(0, first) != wire::magic.substr(0, first))
    throw_error(errc::malformed, "its hello is not that of a store client");
  // Magic and version come first in every version.
  if (bytes.size() < wire::magic.size() + 2) return false;
  field_reader fields(bytes.substr(wire::magic.size()));
  const bool known = fields.get<std::uint16_t>() == wire::version;
  if (known && bytes.size() < wire::client_hello_bytes) return false;

  if (!known) return answer_hello(wire::hello_status::other_version);
  fields.take(2);  // reserved
  const bool offers = (fields.get<std::uint64_t>() & wire::feature_authentication) != 0;
  const std::size_t size = wire::client_hello_bytes + (offers ? sizeof(nonce) : 0);
  if (bytes.size() < size) return false;
  announced_client_ = fields.get<std::uint64_t>();
  if (offers && server_.secret().empty()) return answer_hello(wire::hello_status::no_secret);
  if (!offers && !server_.secret().empty()) return answer_hello(wire::hello_status::secret_required);
  if (offers) hello_ = bytes.substr(0, size);
  in_used_ += size;
  return answer_hello(offers ? wire::hello_status::challenge : server_.admission());
}

bool store_session::take_proof() {
  const std::string_view bytes = std::string_view(in_).substr(in_used_);
  if (bytes.size() < sizeof(proof)) return false;
  const proof expected = prove(server_.secret(), wire::client_role, {as_bytes(hello_), as_bytes(challenge_)});
  const bool proved = same_proof(expected, as_bytes(bytes.substr(0, sizeof(proof))));
  in_used_ += sizeof(proof);
  if (!proved) {
    server_.warn([] { return "refused a client: it has another secret"; });
    return answer_hello(wire::hello_status::other_secret);
  }
  return answer_hello(server_.admission());
}

bool store_session::answer_hello(wire::hello_status status) {
  // A peer that has not proved a required secret gets no information about the server.
  const bool secured = !server_.secret().empty();
  const bool proved = phase_ == phase::proof && status != wire::hello_status::other_secret;
  const bool reveal = !secured || proved;
  std::string answer(wire::magic);
  put(answer, wire::version);
  put(answer, static_cast<std::uint16_t>(status));
  put(answer, secured ? wire::feature_authentication : std::uint64_t{0});
  put(answer, reveal ? server_.id() : std::uint64_t{0});
  put(answer, static_cast<std::uint32_t>(reveal ? store::max_key_bytes : 0));
  put(answer, static_cast<std::uint32_t>(reveal ? server_.limits().max_value_bytes : 0));
  if (proved) {
    const proof own =
        prove(server_.secret(), wire::server_role, {as_bytes(hello_), as_bytes(challenge_), as_bytes(answer)});
    answer.append(reinterpret_cast<const char*>(own.data()), own.size());
  }
  if (status == wire::hello_status::challenge) {
    const nonce once = fresh_nonce();
    answer.append(reinterpret_cast<const char*>(once.data()), once.size());
    challenge_ = answer;
    after_reply_ = phase::proof;
  } else if (status == wire::hello_status::welcome) {
    client_ = announced_client_;
    hello_ = challenge_ = std::string();
    after_reply_ = phase::idle;
    server_.greeted(*this);
  } else {
    if (status == wire::hello_status::secret_required)
      server_.warn([] { return "refused a client: it gave no secret"; });
    if (status == wire::hello_status::no_secret)
      server_.warn([] { return "refused a client: it has a secret, and the server has none"; });
    in_used_ = in_.size();
    close_after_reply_ = true;
  }
  send(std::move(answer));
  return phase_ == phase::idle || phase_ == phase::proof;
}

bool store_session::take_frame() {
  const std::string_view bytes = std::string_view(in_).substr(in_used_);
  if (bytes.size() < wire::frame_header_bytes) return false;
  const wire::frame_header header = wire::read_header(bytes);
  const auto what = static_cast<wire::operation>(header.kind);
  if (header.kind == 0 || what > wire::operation::cancel) {
    throw_error(errc::malformed, fmt::format("unknown store operation {}", header.kind));
  }
  const std::size_t most = wire::max_body_bytes(server_.limits().max_value_bytes);
  if (header.length > most) {
    throw_error(errc::malformed, fmt::format("a request of {} bytes; at most {} are possible", header.length, most));
  }
  if (what == wire::operation::cancel) {
    if (header.length != 0) throw_error(errc::malformed, "a cancel has no body");
    in_used_ += wire::frame_header_bytes;
    if (phase_ == phase::parked) cancel();
    return true;  // otherwise the reply was sent before the cancel arrived
  }
  if (phase_ == phase::parked) throw_error(errc::malformed, "a request while another one waits");
  if (bytes.size() - wire::frame_header_bytes < header.length) return false;
  std::string body(bytes.substr(wire::frame_header_bytes, header.length));
  in_used_ += wire::frame_header_bytes + header.length;
  execute(what, std::move(body));
  return phase_ == phase::idle || phase_ == phase::parked;
}

namespace {

std::string_view take_key(field_reader& fields) {
  const std::string_view key = fields.get_string();
  if (key.empty() || key.size() > store::max_key_bytes) {
    throw_error(errc::malformed,
                fmt::format("a key of {} bytes; 1 to {} are allowed", key.size(), store::max_key_bytes));
  }
  return key;
}

std::string_view take_prefix(field_reader& fields) {
  const std::string_view prefix = fields.get_string();
  if (prefix.size() > store::max_key_bytes) throw_error(errc::malformed, "a prefix longer than any key");
  return prefix;
}

}  // namespace

// The key at `at`, which then is where the next one begins: after the last one, the first.
std::string_view store_session::pending_get::take(std::size_t& at) const {
  field_reader fields(std::string_view(body).substr(at));
  const std::string_view key = fields.get_string();
  at = body.size() - fields.left();
  if (at == body.size()) at = first_key;
  return key;
}

void store_session::execute(wire::operation what, std::string body) {
  field_reader fields(body);
  const key_table& table = server_.table();
  const auto take_value = [&] {
    const std::string_view value = fields.get_string();
    const std::size_t most = server_.limits().max_value_bytes;
    if (value.size() > most) {
      throw_error(errc::malformed, fmt::format("a value of {} bytes; at most {} are allowed", value.size(), most));
    }
    return value;
  };
  // An error of the operation itself is an answer; bytes that are not a valid request (thrown outside of this) end the
  // connection.
  const auto answer = [&](auto&& operate) {
    std::string frame = wire::begin(wire::status::ok);
    try {
      operate(frame);
    } catch (const error& problem) {
      return reply_error(problem.kind(), problem.message());
    }
    reply(std::move(frame));
  };
  switch (what) {
    case wire::operation::set: {
      const std::string_view key = take_key(fields);
      const std::string_view value = take_value();
      fields.expect_end();
      return answer([&](std::string&) { server_.set(key, std::string(value)); });
    }
    case wire::operation::get: {
      pending_get wanted;
      wanted.flags = fields.get<std::uint8_t>();
      if ((wanted.flags & ~wire::get_known_flags) != 0) throw_error(errc::malformed, "an unknown flag of get");
      const auto count = fields.get<std::uint32_t>();
      if (count > wire::max_keys_per_get || count > fields.left() / 5) {
        throw_error(errc::malformed, fmt::format("a get of {} keys in {} bytes", count, fields.left()));
      }
      for (std::uint32_t i = 0; i < count; ++i) (void)take_key(fields);
      fields.expect_end();
      wanted.count = count;
      wanted.next = first_key;
      wanted.body = std::move(body);
      get_ = std::move(wanted);
      return try_get();
    }
    case wire::operation::add: {
      const std::string_view key = take_key(fields);
      const auto delta = fields.get<std::int64_t>();
      fields.expect_end();
      return answer([&](std::string& frame) {
        const std::int64_t sum = sum_of(table.find(key), key, delta);
        server_.set(key, std::to_string(sum));
        put(frame, sum);
      });
    }
    case wire::operation::compare_set: {
      const std::string_view key = take_key(fields);
      const std::string_view expected = take_value();
      const std::string_view desired = take_value();
      fields.expect_end();
      return answer([&](std::string& frame) {
        const auto* held = table.find(key);
        if (expectation_holds(held, expected)) {
          server_.set(key, std::string(desired));
          frame += desired;
        } else if (held) {
          frame += held->value;
        }
      });
    }
    case wire::operation::erase: {
      const std::string_view key = take_key(fields);
      fields.expect_end();
      return answer([&](std::string& frame) { put(frame, static_cast<std::uint8_t>(server_.erase(key))); });
    }
    case wire::operation::list: {
      const std::string_view prefix = take_prefix(fields);
      const std::string_view after = take_prefix(fields);
      fields.expect_end();
      return answer([&](std::string& frame) {
        auto at = table.first(prefix, after);
        const std::size_t more_at = frame.size();
        put(frame, std::uint8_t{0});
        for (; at != table.end() && at->first.starts_with(prefix); ++at) {
          if (frame.size() >= wire::page_bytes) {
            frame[more_at] = 1;
            break;
          }
          put_string(frame, at->first);
          put_string(frame, at->second.value);
        }
      });
    }
    case wire::operation::count: {
      const std::string_view prefix = take_prefix(fields);
      fields.expect_end();
      return answer([&](std::string& frame) { put(frame, static_cast<std::uint64_t>(table.count(prefix))); });
    }
    case wire::operation::wait_change: {
      const std::string_view key = take_key(fields);
      const auto last_version = fields.get<std::uint64_t>();
      fields.expect_end();
      change_ = pending_change{std::string(key), last_version};
      return try_change();
    }
    case wire::operation::cancel: break;  // handled by take_frame
  }
}

// Answers get_ if all keys exist, else waits for the first missing one.
void store_session::try_get() {
  const key_table& table = server_.table();
  const bool values = (get_->flags & wire::get_values) != 0;
  for (std::uint32_t checked = 0; checked < get_->count; ++checked) {
    std::size_t after = get_->next;
    const std::string_view key = get_->take(after);
    if (table.find(key)) {
      get_->next = after;
      continue;
    }
    if ((get_->flags & wire::get_wait) == 0) {
      get_.reset();
      return reply(wire::begin(wire::status::absent));
    }
    return park(key);
  }
  // As many values as fit; the client requests the others.
  std::string frame = wire::begin(wire::status::ok);
  const std::size_t most = wire::max_body_bytes(server_.limits().max_value_bytes);
  if (values) {
    std::vector<const std::string*> found;
    std::size_t bytes = frame.size();
    std::size_t at = first_key;
    for (std::uint32_t i = 0; i < get_->count; ++i) {
      const std::string& value = table.find(get_->take(at))->value;
      if (bytes + 4 + value.size() > most) break;
      bytes += 4 + value.size();
      found.push_back(&value);
    }
    frame.reserve(bytes);
    for (const std::string* each : found) put_string(frame, *each);
  }
  get_.reset();
  reply(std::move(frame));
}

void store_session::try_change() {
  const auto* held = server_.table().find(change_->key);
  if ((held ? held->version : 0) == change_->last_version) return park(change_->key);
  change_.reset();
  std::string frame = wire::begin(wire::status::ok);
  put(frame, held ? held->version : 0);
  put(frame, static_cast<std::uint8_t>(held ? 1 : 0));
  if (held) frame += held->value;
  reply(std::move(frame));
}

void store_session::park(std::string_view key) {
  if (held_ == 0) {
    const std::size_t bytes = sizeof(store_session) + 2 * key.size() + (get_ ? get_->body.capacity() : 0);
    try {
      server_.hold(bytes);
    } catch (const error& problem) {
      get_.reset();
      change_.reset();
      return reply_error(problem.kind(), problem.message());
    }
    held_ = bytes;
  }
  phase_ = phase::parked;
  server_.park(*this, std::string(key));
}

void store_session::release_request() noexcept { server_.release(std::exchange(held_, 0)); }

void store_session::account_input() {
  const std::size_t now = in_.capacity() > kept_capacity ? in_.capacity() : in_.size();
  const std::size_t before = std::exchange(in_charged_, now);
  if (now < before) return server_.discharge(before - now);
  server_.charge(now - before);
}

void store_session::wake() {
  guarded([&] {
    if (get_) {
      try_get();
    } else {
      try_change();
    }
    process();
  });
}

void store_session::cancel() {
  server_.unpark(*this);
  std::string frame = wire::begin(wire::status::cancelled);
  std::vector<std::string_view> named;
  std::uint32_t missing = 0;
  if (get_) {
    std::size_t at = first_key;
    for (std::uint32_t i = 0; i < get_->count; ++i) {
      const std::string_view key = get_->take(at);
      if (server_.table().find(key)) continue;
      ++missing;
      if (named.size() < wire::max_missing_named) named.push_back(key);
    }
  }
  put(frame, missing);
  put(frame, static_cast<std::uint32_t>(named.size()));
  for (const std::string_view key : named) put_string(frame, key);
  get_.reset();
  change_.reset();
  reply(std::move(frame));
}

void store_session::reply_error(errc code, std::string_view text) {
  std::string frame = wire::begin(wire::status::error);
  put(frame, static_cast<std::uint16_t>(code));
  frame += text;
  reply(std::move(frame));
}

void store_session::reply(std::string frame) {
  wire::end_frame(frame);
  send(std::move(frame));
}

void store_session::send(std::string bytes) {
  release_request();
  out_ = std::move(bytes);
  out_sent_ = 0;
  phase_ = phase::replying;
  flush();
}

// Sends what the socket accepts; the rest when it is writable again.
void store_session::flush() {
  while (out_sent_ != out_.size()) {
    asio::error_code failed;
    out_sent_ += socket_.write_some(asio::buffer(out_.data() + out_sent_, out_.size() - out_sent_), failed);
    if (!failed) continue;
    if (failed != asio::error::would_block && failed != asio::error::try_again) return close();
    limit_time(true);
    if (out_charged_ == 0) {
      out_charged_ = out_.capacity();
      server_.charge(out_charged_);
    }
    socket_.async_wait(asio::ip::tcp::socket::wait_write, [self = shared_from_this()](const asio::error_code& problem) {
      if (self->phase_ == phase::closed) return;
      if (problem) return self->close();
      self->guarded([&] {
        self->flush();
        if (self->phase_ == phase::idle || self->phase_ == phase::proof) self->process();
      });
    });
    return;
  }
  free_memory(out_);
  server_.discharge(std::exchange(out_charged_, 0));
  if (close_after_reply_) return close();
  phase_ = after_reply_;
}

}  // namespace ferry::inline v0::detail
