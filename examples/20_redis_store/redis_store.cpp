#include "redis_store.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/base/work.hpp>
#include <ferry/store/launch.hpp>

using ferry::deadline;
using ferry::errc;
using ferry::throw_error;

namespace {

// KEYS: the hashes of values and versions, and the last version. ARGV: the key, and more.
constexpr std::string_view set_script = R"(
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], redis.call('INCR', KEYS[3]))
redis.call('PUBLISH', KEYS[1] .. ':' .. ARGV[1], '')
)";
constexpr std::string_view add_script = R"(
local version = redis.call('INCR', KEYS[3])
local sum = redis.pcall('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
if type(sum) == 'table' then return {sum.err} end
redis.call('HSET', KEYS[2], ARGV[1], version)
redis.call('PUBLISH', KEYS[1] .. ':' .. ARGV[1], '')
return redis.call('HGET', KEYS[1], ARGV[1])
)";
constexpr std::string_view compare_set_script = R"(
local held = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if held ~= ARGV[2] then return held end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], redis.call('INCR', KEYS[3]))
redis.call('PUBLISH', KEYS[1] .. ':' .. ARGV[1], '')
return ARGV[3]
)";
constexpr std::string_view erase_script = R"(
local removed = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
if removed == 1 then redis.call('PUBLISH', KEYS[1] .. ':' .. ARGV[1], '') end
return removed
)";
constexpr std::string_view state_script = R"(
return {redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[1])}
)";

std::string text_of(const redisReply& reply) { return {reply.str, reply.len}; }
std::optional<std::string> value_of(const redisReply& reply) {
  if (reply.type == REDIS_REPLY_NIL) return std::nullopt;
  return text_of(reply);
}
std::span<redisReply* const> elements(const redisReply& reply) { return {reply.element, reply.elements}; }

template <class Integer>
Integer number_in(const redisReply& reply) {
  Integer value = 0;
  const auto [end, problem] = std::from_chars(reply.str, reply.str + reply.len, value);
  if (problem != std::errc() || end != reply.str + reply.len)
    throw_error(errc::store_failed, fmt::format("redis says '{}' where a number belongs", text_of(reply)));
  return value;
}

// What matches keys that begin so.
std::string pattern_of(std::string_view prefix) {
  std::string pattern;
  for (const char each : prefix) {
    if (std::strchr("*?[]\\^-", each) && each != '\0') pattern += '\\';
    pattern += each;
  }
  return pattern + '*';
}

// hiredis takes zero for no limit.
timeval time_left(deadline until) {
  constexpr std::chrono::hours longest(24);
  const auto left = std::clamp<std::chrono::nanoseconds>(until.remaining(), std::chrono::milliseconds(1), longest);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  return {.tv_sec = seconds.count(),
          .tv_usec = std::chrono::duration_cast<std::chrono::microseconds>(left - seconds).count()};
}

// As the server's machine would reach this one.
std::string own_address(int descriptor) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &size) != 0) return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* address = nullptr;
  if (own.ss_family == AF_INET) address = &reinterpret_cast<const sockaddr_in&>(own).sin_addr;
  if (own.ss_family == AF_INET6) address = &reinterpret_cast<const sockaddr_in6&>(own).sin6_addr;
  if (!address || !::inet_ntop(own.ss_family, address, text.data(), text.size())) return {};
  return text.data();
}

// hiredis writes to a connection that is lost without asking for no signal.
class no_broken_pipe_signal {
 public:
  no_broken_pipe_signal() noexcept {
    ::sigemptyset(&broken_pipe_);
    ::sigaddset(&broken_pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken_pipe_, &before_);
  }
  ~no_broken_pipe_signal() {
    const timespec now{};
    if (::sigismember(&before_, SIGPIPE) == 0) ::sigtimedwait(&broken_pipe_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  no_broken_pipe_signal(const no_broken_pipe_signal&) = delete;
  no_broken_pipe_signal& operator=(const no_broken_pipe_signal&) = delete;

 private:
  sigset_t broken_pipe_;
  sigset_t before_;
};

int new_event() {
  const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) throw_error(errc::system_failure, fmt::format("eventfd: {}", std::strerror(errno)));
  return event;
}

}  // namespace

void redis_store::free_context::operator()(redisContext* which) const noexcept { ::redisFree(which); }
void redis_store::free_reply::operator()(redisReply* which) const noexcept { ::freeReplyObject(which); }

redis_store::redis_store(redis_options options, deadline until)
    : options_(std::move(options)),
      // In a cluster, what is in braces decides where a key is: these three are together.
      values_(fmt::format("ferry:{{{}}}", options_.group)),
      versions_(values_ + "/versions"),
      revision_(values_ + "/revision"),
      closed_event_(new_event()) {
  try {
    connection_ = connect(until);
    local_address_ = own_address(connection_->fd);
  } catch (...) {
    ::close(closed_event_);
    throw;
  }
}
redis_store::~redis_store() { ::close(closed_event_); }

void redis_store::close() noexcept {
  closed_ = true;
  const std::uint64_t one = 1;
  (void)!::write(closed_event_, &one, sizeof one);  // fails only when it is readable already
}

std::string redis_store::describe() const {
  return "redis " + (options_.socket.empty() ? fmt::format("{}:{}", options_.host, options_.port) : options_.socket);
}

// ---------------------------------------------------------------- requests

redis_store::connection redis_store::connect(deadline until) const {
  const timeval limit = time_left(until);
  connection made(options_.socket.empty() ? ::redisConnectWithTimeout(options_.host.c_str(), options_.port, limit)
                                          : ::redisConnectUnixWithTimeout(options_.socket.c_str(), limit));
  if (!made) throw std::bad_alloc();
  if (made->err != 0) {
    throw_error(errc::store_unreachable,
                fmt::format("cannot reach {}: {}; does a redis-server run there?", describe(), made->errstr));
  }
  // From here on no function of hiredis blocks.
  if (options_.socket.empty()) ::redisEnableKeepAlive(made.get());
  ::fcntl(made->fd, F_SETFD, FD_CLOEXEC);
  ::fcntl(made->fd, F_SETFL, O_NONBLOCK);
  made->flags &= ~REDIS_BLOCK;
  if (options_.password.empty()) return made;
  const reply answer = ask(made, std::array<std::string_view, 2>{"AUTH", options_.password}, until);
  if (answer->type == REDIS_REPLY_ERROR) {
    throw_error(errc::store_unreachable,
                fmt::format("{} refuses the password of REDISCLI_AUTH: {}", describe(), text_of(*answer)));
  }
  return made;
}

void redis_store::throw_lost(const redisContext& over) const {
  throw_error(errc::store_unreachable, fmt::format("the connection to {} is lost: {}", describe(), over.errstr));
}

void redis_store::append(redisContext& to, std::span<const std::string_view> words) const {
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const std::string_view each : words) {
    texts.push_back(each.data());
    sizes.push_back(each.size());
  }
  if (::redisAppendCommandArgv(&to, static_cast<int>(words.size()), texts.data(), sizes.data()) != REDIS_OK)
    throw_lost(to);
}

redis_store::reply redis_store::next_reply(redisContext& from) const {
  void* next = nullptr;
  if (::redisGetReplyFromReader(&from, &next) != REDIS_OK) throw_lost(from);
  return reply(static_cast<redisReply*>(next));
}

// Sends and receives what can be now, or waits until something can; false at the deadline.
bool redis_store::step(redisContext& over, deadline until) const {
  int done = 0;
  {
    const no_broken_pipe_signal quiet;
    if (::redisBufferWrite(&over, &done) != REDIS_OK) throw_lost(over);
  }
  const short wanted = done != 0 ? POLLIN : POLLIN | POLLOUT;
  std::array<pollfd, 2> both{{{over.fd, wanted, 0}, {closed_event_, POLLIN, 0}}};
  constexpr std::chrono::milliseconds longest = std::chrono::hours(1);
  const auto left = std::min(longest, std::chrono::ceil<std::chrono::milliseconds>(
                                          std::min<std::chrono::nanoseconds>(until.remaining(), longest)));
  const int ready = ::poll(both.data(), both.size(), static_cast<int>(left.count()));
  if (closed_) ferry::detail::throw_store_closed(*this);
  if (ready < 0 && errno != EINTR) throw_error(errc::system_failure, fmt::format("poll: {}", std::strerror(errno)));
  if (ready > 0 && (both[0].revents & ~POLLOUT) != 0 && ::redisBufferRead(&over) != REDIS_OK) throw_lost(over);
  return !until.expired();
}

redis_store::reply redis_store::ask(connection& over, std::span<const std::string_view> words, deadline until) const {
  const auto since = ferry::clock::now();
  // If this ends otherwise than by the answer, a late one would be taken for that of another request.
  connection asked = std::move(over);
  append(*asked, words);
  for (bool in_time = true;; in_time = step(*asked, until)) {
    reply answer = next_reply(*asked);
    if (answer) {
      over = std::move(asked);
      return answer;
    }
    if (!in_time) {
      throw_error(errc::store_timeout,
                  fmt::format("waited {} for the answer of {}", ferry::detail::seconds_since(since), describe()));
    }
  }
}

redis_store::reply redis_store::run(std::span<const std::string_view> words, deadline until) {
  const auto since = ferry::clock::now();
  std::unique_lock lock(mutex_);
  const auto is_free = [&] { return !busy_; };
  if (until.is_never()) {
    free_.wait(lock, is_free);
  } else if (!free_.wait_until(lock, until.at(), is_free)) {
    throw_error(errc::store_timeout, fmt::format("waited {} for the answer of {} to another thread",
                                                 ferry::detail::seconds_since(since), describe()));
  }
  busy_ = true;
  lock.unlock();
  struct turn {
    redis_store& of;
    ~turn() {
      {
        const std::lock_guard end(of.mutex_);
        of.busy_ = false;
      }
      of.free_.notify_one();
    }
  };
  const turn own{*this};
  if (closed_) ferry::detail::throw_store_closed(*this);
  // Nothing is asked: what can be read is the end of the connection, of a server that was restarted for example.
  pollfd idle{connection_ ? connection_->fd : -1, POLLIN, 0};
  if (connection_ && ::poll(&idle, 1, 0) != 0) connection_ = nullptr;
  if (!connection_) connection_ = connect(until);
  reply answer = ask(connection_, words, until);
  if (answer->type != REDIS_REPLY_ERROR) return answer;
  throw_error(errc::store_failed, fmt::format("{} refuses {}: {}", describe(), words[0], text_of(*answer)));
}

redis_store::reply redis_store::run_script(std::string_view text, std::vector<std::string_view> arguments,
                                           deadline until) {
  std::vector<std::string_view> words{"EVAL", text, "3", values_, versions_, revision_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run(words, until);
}

void redis_store::do_set(std::string_view key, std::string_view value, deadline until) {
  run_script(set_script, {key, value}, until);
}

std::optional<std::string> redis_store::do_try_get(std::string_view key, deadline until) {
  return value_of(*run(std::array<std::string_view, 3>{"HGET", values_, key}, until));
}

std::int64_t redis_store::do_add(std::string_view key, std::int64_t delta, deadline until) {
  const reply answer = run_script(add_script, {key, std::to_string(delta)}, until);
  if (answer->type != REDIS_REPLY_ARRAY) return number_in<std::int64_t>(*answer);
  throw_error(errc::invalid_argument,
              fmt::format("cannot add {} to key '{}': {}", delta, key, text_of(*answer->element[0])));
}

std::string redis_store::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                        deadline until) {
  return text_of(*run_script(compare_set_script, {key, expected, desired}, until));
}

bool redis_store::do_erase(std::string_view key, deadline until) {
  return run_script(erase_script, {key}, until)->integer == 1;
}

// Calls each(key, value) of the hash, for some keys more than once.
template <class Each>
void redis_store::scan(const std::string& hash, std::string_view prefix, deadline until, Each each) {
  const std::string pattern = pattern_of(prefix);
  std::string cursor = "0";
  do {
    const reply answer =
        run(std::array<std::string_view, 7>{"HSCAN", hash, cursor, "MATCH", pattern, "COUNT", "100"}, until);
    const std::span<redisReply* const> pairs = elements(*answer->element[1]);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) each(text_of(*pairs[i]), *pairs[i + 1]);
    cursor = text_of(*answer->element[0]);
  } while (cursor != "0");
}

std::vector<ferry::store_entry> redis_store::do_list(std::string_view prefix, deadline until) {
  std::map<std::string, std::string> found;
  scan(values_, prefix, until,
       [&](std::string key, const redisReply& value) { found[std::move(key)] = text_of(value); });
  std::vector<ferry::store_entry> result;
  result.reserve(found.size());
  for (auto& [key, value] : found) result.push_back({key, std::move(value)});
  return result;
}

std::size_t redis_store::do_count(std::string_view prefix, deadline until) {
  std::map<std::string, bool> found;
  scan(versions_, prefix, until, [&](std::string key, const redisReply&) { found[std::move(key)] = true; });
  return found.size();
}

// ---------------------------------------------------------------- waiting

// Until look() is true; false if the deadline passed first. It runs again whenever one of the keys was written.
template <class Look>
bool redis_store::wait_until(std::span<const std::string> keys, deadline until, Look look) {
  if (look()) return true;
  if (until.expired()) return false;
  const ferry::blocking_scope blocking;
  connection listener;
  try {
    listener = connect(until);
  } catch (const ferry::error&) {
    if (until.expired()) return false;  // it says so only because no time was left for it
    throw;
  }
  std::vector<std::string> channels;
  for (const std::string& each : keys) channels.push_back(values_ + ":" + each);
  std::vector<std::string_view> words{"SUBSCRIBE"};
  words.insert(words.end(), channels.begin(), channels.end());
  append(*listener, words);
  std::size_t messages = 0;
  for (bool in_time = true; in_time; in_time = step(*listener, until)) {
    bool news = false;
    while (const reply message = next_reply(*listener)) {
      if (message->type == REDIS_REPLY_ERROR)
        throw_error(errc::store_failed, fmt::format("{} refuses SUBSCRIBE: {}", describe(), text_of(*message)));
      ++messages;
      news = true;
    }
    // The first ones confirm the subscriptions. What was written before is seen now, what is written later is told.
    if (news && messages >= channels.size() && look()) return true;
  }
  return false;
}

std::vector<std::string> redis_store::do_get(std::span<const std::string> keys, bool values, deadline until) {
  if (closed_) ferry::detail::throw_store_closed(*this);
  std::vector<std::string> found;
  if (keys.empty()) return found;
  const auto since = ferry::clock::now();
  std::vector<std::string_view> words{"HMGET", values ? values_ : versions_};
  words.insert(words.end(), keys.begin(), keys.end());
  std::vector<std::string> missing;
  const bool there = wait_until(keys, until, [&] {
    const reply answer = run(words, until);
    found.clear();
    missing.clear();
    for (std::size_t i = 0; i != keys.size(); ++i) {
      std::optional<std::string> value = value_of(*answer->element[i]);
      if (!value) missing.push_back(keys[i]);
      if (value && values) found.push_back(std::move(*value));
    }
    return missing.empty();
  });
  if (!there) ferry::detail::throw_keys_missing(*this, missing, missing.size(), since);
  return found;
}

ferry::store_change redis_store::state_of(std::string_view key, deadline until) {
  const reply answer = run_script(state_script, {key}, until);
  std::optional<std::string> value = value_of(*answer->element[0]);
  if (!value) return {};
  return {number_in<std::uint64_t>(*answer->element[1]), std::move(value)};
}

ferry::store_change redis_store::do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) {
  const auto since = ferry::clock::now();
  const std::string name(key);
  ferry::store_change state;
  const bool changed = wait_until(std::span(&name, 1), until, [&] {
    state = state_of(name, until);
    return state.version != last_version;
  });
  if (!changed) ferry::detail::throw_no_change(*this, key, since);
  return state;
}

// ---------------------------------------------------------------- the scheme

void ferry::store_traits<redis_scheme>::resolve(rendezvous_request& request) {
  const launch_info launch = this_launch();
  if (!request.rank && !request.any_rank) request.rank = launch.rank;
  if (!request.world_size && !request.dynamic) request.world_size = launch.world_size;
}

std::shared_ptr<ferry::store> ferry::store_traits<redis_scheme>::open(const rendezvous_request& request) {
  redis_options options;
  const std::string_view location = request.location;
  const auto bad = [&](std::string_view why) {
    throw_error(errc::bad_init_method,
                fmt::format("init method '{}': {}; it is redis://host:port?group=name or redis:///socket?group=name",
                            request.init_method, why));
  };
  for (const auto& [name, value] : request.query) {
    if (name != "group") bad(fmt::format("'{}' is no parameter", name));
    options.group = value;
  }
  if (options.group.empty()) bad("the group has no name");
  if (location.starts_with('/')) {
    options.socket = location;
  } else {
    const std::size_t bracket = location.find(']');
    const std::size_t colon = location.find(':', bracket == std::string_view::npos ? 0 : bracket);
    std::string_view host = location.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (host.empty()) bad("there is no host");
    options.host = host;
    if (colon != std::string_view::npos) {
      const std::string_view port = location.substr(colon + 1);
      const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), options.port);
      if (problem != std::errc() || end != port.data() + port.size() || options.port < 1 || options.port > 65535)
        bad(fmt::format("'{}' is no port", port));
    }
  }
  if (const char* password = std::getenv("REDISCLI_AUTH")) options.password = password;
  return std::make_shared<redis_store>(std::move(options), request.until);
}
