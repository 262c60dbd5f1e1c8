#include "packet_transport.hpp"

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/transport/address.hpp>
#include <ferry/wire/serialize.hpp>

#include "packet_connection.hpp"

namespace {

using ferry::errc;

// ---- work on the reactor's threads

struct action : ferry::work {
  std::function<void()> call;
};
action* make_action(std::function<void()> call) {
  auto* made = new action;
  made->call = std::move(call);
  made->run = [](ferry::work* item) noexcept {
    const std::unique_ptr<action> self(static_cast<action*>(item));
    self->call();
  };
  return made;
}

// ---- sockets

descriptor packet_socket() {
  descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.get() < 0) ferry::throw_errno(errc::system_failure, "making a packet socket", errno);
  return made;
}

// One packet; empty if there is none yet. Throws if the peer has gone.
std::vector<std::byte> read_packet(int socket) {
  std::vector<std::byte> packet(largest_packet);
  const auto got = ::recv(socket, packet.data(), packet.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  if (got <= 0) ferry::throw_error(errc::connect_failed, "the peer closed the connection during the handshake");
  packet.resize(static_cast<std::size_t>(got));
  return packet;
}

void write_packet(int socket, const ferry::serialized& content) {
  const auto sent = ::send(socket, content.bytes.data(), content.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) ferry::throw_errno(errc::connect_failed, "the handshake", errno);
}

// The kernel reports the user of the other process: a process of this user, which can read a group's secret anyway, needs
// no other proof.
bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// ---- the handshake: a packet each way. The answer is the reply, or an error's number and text.

ferry::serialized encode(const ferry::hello& from) {
  return ferry::serialize(from.group, from.name, from.id.value, from.incarnation.value, from.target, from.features,
                          from.joined);
}
ferry::hello decode_hello(const std::vector<std::byte>& packet) {
  auto [group, name, id, incarnation, target, features, joined] =
      ferry::deserialize<std::string, std::string, std::int32_t, std::uint64_t, std::string, std::uint64_t,
                         std::uint64_t>(packet, {});
  features |= ferry::feature_authenticated;
  return {std::move(group), std::move(name), {id}, {incarnation}, std::move(target), features, joined};
}
ferry::serialized encode(const ferry::hello_reply& reply, int error, const std::string& text) {
  return ferry::serialize(error, text, reply.name, reply.id.value, reply.incarnation.value, reply.features);
}
ferry::hello_reply decode_answer(const std::vector<std::byte>& packet) {
  auto [error, text, name, id, incarnation, features] =
      ferry::deserialize<int, std::string, std::string, std::int32_t, std::uint64_t, std::uint64_t>(packet, {});
  if (error != 0) ferry::throw_error(static_cast<errc>(error), text);
  features |= ferry::feature_authenticated;
  return {std::move(name), {id}, {incarnation}, features};
}

constexpr std::chrono::seconds handshake_limit{10};

// ---- the workers of this process that take connections

class workers_here {
 public:
  void add(const std::string& group, const std::string& name, const ferry::transport_options& options,
           std::shared_ptr<ferry::connection_acceptor> acceptor) {
    const std::lock_guard lock(mutex_);
    if (!workers_.try_emplace({group, name}, std::make_shared<worker>(worker{std::move(acceptor), options})).second) {
      ferry::throw_error(errc::duplicate_name, "a worker '" + name + "' of that group runs in this process");
    }
  }

  void remove(const std::string& group, const std::string& name) noexcept {
    std::unique_lock lock(mutex_);
    const auto found = workers_.find({group, name});
    if (found == workers_.end()) return;
    const auto gone = found->second;
    workers_.erase(found);
    left_.wait(lock, [&] { return gone->calls == 0; });
  }

  /// Calls `use(acceptor, options)` for the worker that is meant; remove() waits for it.
  template <class Use>
  void with(const ferry::hello& from, Use use) {
    std::unique_lock lock(mutex_);
    const auto found = workers_.find({from.group, from.target});
    if (found == workers_.end()) {
      ferry::throw_error(errc::handshake_failed,
                         "there is no worker '" + from.target + "' of the group '" + from.group + "'");
    }
    const auto meant = found->second;
    ++meant->calls;
    lock.unlock();
    std::exception_ptr problem;
    try {
      use(*meant->acceptor, meant->options);
    } catch (...) {
      problem = std::current_exception();
    }
    lock.lock();
    --meant->calls;
    left_.notify_all();
    lock.unlock();
    if (problem) std::rethrow_exception(problem);
  }

 private:
  struct worker {
    std::shared_ptr<ferry::connection_acceptor> acceptor;
    ferry::transport_options options;
    int calls = 0;
  };
  std::mutex mutex_;
  std::condition_variable left_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<worker>> workers_;
};

// ---- one connection that is being made. The first of answer, failure and timeout ends it.

class attempt : public ferry::descriptor_handler, public std::enable_shared_from_this<attempt> {
 public:
  attempt(ferry::reactor& loop, descriptor socket) : loop_(loop), socket_(std::move(socket)) {}

  void on_ready(ferry::readiness) noexcept override {
    std::unique_lock lock(mutex_);
    if (over_) return;
    try {
      const auto packet = read_packet(socket_.get());
      if (packet.empty()) return;
      stop();
      lock.unlock();
      on_packet(packet);
    } catch (...) {
      if (lock.owns_lock()) stop();
      if (lock.owns_lock()) lock.unlock();
      on_failure(std::current_exception());
    }
  }
  void fail(const std::exception_ptr& why) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
      stop();
    }
    on_failure(why);
  }

 protected:
  /// Waits for one packet.
  void wait_for_packet(ferry::deadline until) {
    const std::lock_guard lock(mutex_);
    if (!until.is_never()) {
      timeout_ = make_action([self = shared_from_this()] {
        self->fail(ferry::make_error(errc::connect_failed, "the peer did not answer in time"));
      });
      timer_ = loop_.start_timer(until, timeout_);
    }
    watch_ = loop_.watch(socket_.get(), shared_from_this(), true, false);
  }
  virtual void on_packet(const std::vector<std::byte>& packet) = 0;
  virtual void on_failure(const std::exception_ptr& why) noexcept = 0;

  ferry::reactor& loop_;
  descriptor socket_;

 private:
  void stop() noexcept {
    over_ = true;
    if (watch_ != ferry::watch_id::none) loop_.unwatch(watch_);
    if (timer_ != ferry::timer_id::none && loop_.cancel_timer(timer_)) delete timeout_;
  }
  std::mutex mutex_;
  bool over_ = false;
  ferry::watch_id watch_ = ferry::watch_id::none;
  ferry::timer_id timer_ = ferry::timer_id::none;
  action* timeout_ = nullptr;
};

class accept_attempt final : public attempt {
 public:
  accept_attempt(ferry::reactor& loop, descriptor socket, std::shared_ptr<workers_here> workers)
      : attempt(loop, std::move(socket)), workers_(std::move(workers)) {}
  void begin() { wait_for_packet(ferry::deadline::after(handshake_limit)); }

 private:
  void on_packet(const std::vector<std::byte>& packet) override {
    try {
      const ferry::hello from = decode_hello(packet);
      workers_->with(from, [&](ferry::connection_acceptor& acceptor, const ferry::transport_options& options) {
        write_packet(socket_.get(), encode(acceptor.on_hello(from), 0, {}));
        acceptor.on_accepted(
            std::make_shared<packet_connection>(loop_, std::move(socket_), "packet " + from.name, options.limits),
            from);
      });
    } catch (const ferry::error& why) {
      if (socket_.get() < 0) throw;
      write_packet(socket_.get(), encode({}, why.code().value(), std::string(why.message())));
    }
  }
  void on_failure(const std::exception_ptr&) noexcept override { socket_.close(); }  // the peer sees it

  const std::shared_ptr<workers_here> workers_;
};

class connect_attempt final : public attempt {
 public:
  connect_attempt(ferry::reactor& loop, std::string where, std::string target, const ferry::wire_limits& limits,
                  ferry::connect_callback callback)
      : attempt(loop, packet_socket()),
        where_(std::move(where)),
        target_(std::move(target)),
        limits_(limits),
        callback_(std::move(callback)) {}
  void begin(const ferry::hello& self, ferry::deadline until) {
    const std::string_view name = std::string_view(where_).substr(std::string_view("packet:@").size());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // after the null character that marks it as abstract
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
      ferry::throw_errno(errc::connect_failed, "connecting", errno);
    }
    if (!is_of_this_user(socket_.get()))
      ferry::throw_error(errc::authentication_failed, "another user's process listens there");
    write_packet(socket_.get(), encode(self));
    wait_for_packet(until);
  }

 private:
  void on_packet(const std::vector<std::byte>& packet) override {
    ferry::connect_result result;
    result.peer = decode_answer(packet);
    result.opened = std::make_shared<packet_connection>(loop_, std::move(socket_), "packet " + target_, limits_);
    std::exchange(callback_, nullptr)(std::move(result));
  }
  void on_failure(const std::exception_ptr& why) noexcept override {
    socket_.close();
    if (!callback_) return;
    const std::string front = "cannot connect to worker '" + target_ + "' at " + where_ + ": ";
    ferry::connect_result result;
    try {
      std::rethrow_exception(why);
    } catch (const ferry::error& problem) {
      result.error = ferry::make_error(problem.kind(), front + std::string(problem.message()));
    } catch (const std::exception& problem) {
      result.error = ferry::make_error(errc::connect_failed, front + problem.what());
    }
    std::exchange(callback_, nullptr)(std::move(result));
  }

  const std::string where_;
  const std::string target_;
  const ferry::wire_limits limits_;
  ferry::connect_callback callback_;
};

// ---- listening

class packet_listener final : public ferry::descriptor_handler {
 public:
  packet_listener(ferry::reactor& loop, std::shared_ptr<workers_here> workers)
      : loop_(loop), workers_(std::move(workers)), socket_(packet_socket()) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t size = sizeof(sa_family_t);  // no name: the system finds a free abstract one
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
        ::listen(socket_.get(), SOMAXCONN) != 0) {
      ferry::throw_errno(errc::system_failure, "listening on a packet socket", errno);
    }
    size = sizeof address;
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    const auto name_bytes = size - offsetof(sockaddr_un, sun_path) - 1;
    address_ = "packet:@" + std::string(address.sun_path + 1, name_bytes);
  }
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

  void on_ready(ferry::readiness) noexcept override {
    for (;;) {
      descriptor accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (accepted.get() < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (accepted.get() < 0) return;
      if (!is_of_this_user(accepted.get())) continue;
      const auto handshake = std::make_shared<accept_attempt>(loop_, std::move(accepted), workers_);
      try {
        handshake->begin();
      } catch (const ferry::error&) {
        handshake->fail(std::current_exception());
      }
    }
  }

 private:
  ferry::reactor& loop_;
  const std::shared_ptr<workers_here> workers_;
  const descriptor socket_;
  std::string address_;
};

class packet_transport final : public ferry::transport {
 public:
  explicit packet_transport(ferry::reactor& loop) : loop_(loop) {}
  ~packet_transport() override {
    if (listener_) loop_.unwatch(watch_);
  }

  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string&,
                                  const ferry::transport_options& options,
                                  std::shared_ptr<ferry::connection_acceptor> acceptor) override {
    workers_->add(group, target, options, std::move(acceptor));
    const std::lock_guard lock(mutex_);
    if (!listener_) {
      auto fresh = std::make_shared<packet_listener>(loop_, workers_);
      watch_ = loop_.watch(fresh->socket(), fresh, true, false);
      listener_ = std::move(fresh);
    }
    return {listener_->address()};
  }

  void unlisten(const std::string& group, const std::string& target) noexcept override {
    workers_->remove(group, target);
  }

  void connect(const std::string& address, const ferry::hello& self, const ferry::transport_options& options,
               ferry::deadline until, ferry::connect_callback callback) override {
    const auto handshake =
        std::make_shared<connect_attempt>(loop_, address, self.target, options.limits, std::move(callback));
    try {
      if (!understands(address)) ferry::throw_error(errc::bad_address, "it is not an address of the transport packet");
      handshake->begin(self, until);
    } catch (const ferry::error&) {  // the callback is never called on the caller's stack
      loop_.post(make_action([handshake, why = std::current_exception()] { handshake->fail(why); }));
    }
  }

  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    constexpr std::string_view front = "packet:@";
    return address.starts_with(front) && address.size() - front.size() < sizeof(sockaddr_un::sun_path);
  }

 private:
  ferry::reactor& loop_;
  const std::shared_ptr<workers_here> workers_ = std::make_shared<workers_here>();
  std::mutex mutex_;
  std::shared_ptr<packet_listener> listener_;
  ferry::watch_id watch_ = ferry::watch_id::none;
};

}  // namespace

std::string ferry::transport_traits<packet>::unusable() {
  try {
    packet_socket();
    return {};
  } catch (const ferry::error& why) {
    return why.what();
  }
}

// One for all workers of the process.
std::shared_ptr<ferry::transport> ferry::transport_traits<packet>::open(ferry::reactor& loop) {
  static std::mutex mutex;
  static std::map<ferry::reactor*, std::weak_ptr<packet_transport>> opened;
  const std::lock_guard lock(mutex);
  std::erase_if(opened, [](const auto& entry) { return entry.second.expired(); });
  auto shared = opened[&loop].lock();
  if (!shared) opened[&loop] = shared = std::make_shared<packet_transport>(loop);
  return shared;
}
