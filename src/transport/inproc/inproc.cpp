#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>
#include <ferry/transport/address.hpp>
#include <ferry/transport/transport.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include "../../base/authentication.hpp"
#include "../sockets/acceptor_registry.hpp"
#include "../sockets/socket_transport.hpp"
#include "inproc_connection.hpp"

namespace ferry::inline v0::detail {
namespace {

// All workers of the process that accept in-process connections.
struct inproc_workers {
  acceptor_registry registry;
  const std::string token = fmt::format("{}-{:016x}", ::getpid(), incarnation_id::random().value);

  static std::shared_ptr<inproc_workers> shared() {
    static std::mutex mutex;
    static std::weak_ptr<inproc_workers> current;
    const std::lock_guard lock(mutex);
    auto result = current.lock();
    if (!result) current = result = std::make_shared<inproc_workers>();
    return result;
  }
};

// A connect in progress: the acceptor runs on a reactor thread, as it does for a remote peer.
struct inproc_connect : work {
  reactor* loop = nullptr;
  std::shared_ptr<inproc_workers> workers;
  std::string address;
  hello self;
  std::string secret;
  std::chrono::nanoseconds max_spin{};
  connect_callback callback;

  void shake_hands() {
    connect_result result;
    try {
      result = accept();
    } catch (const error& why) {
      result.gone = why.kind() == errc::unknown_worker;
      result.error = make_error(
          why.kind(), fmt::format("cannot connect to worker '{}' at {}: {}", self.target, address, why.message()));
    } catch (const std::exception& why) {
      result.error = make_error(errc::handshake_failed, fmt::format("cannot connect to worker '{}' at {}: {}",
                                                                    self.target, address, why.what()));
    }
    callback(std::move(result));
  }

  connect_result accept() {
    const auto where = ferry::address::parse(address);
    if (where.scheme != "inproc") throw_error(errc::bad_address, "it is not an address of the transport inproc");
    if (where.host != workers->token) throw_error(errc::connect_failed, "it is another process");
    hello known = self;
    known.features &= ~feature_authenticated;
    if (!secret.empty()) known.features |= feature_authenticated;
    auto admission = workers->registry.admit(known, secret, false);
    if (!secret.empty()) admission.reply.features |= feature_authenticated;
    auto [near_end, far_end] =
        inproc_connection::make_pair(*loop, {fmt::format("inproc {}", self.target), max_spin},
                                     {fmt::format("inproc {}", self.name), admission.options.max_spin});
    if (!workers->registry.deliver(far_end, known, admission.worker)) {
      throw_error(errc::connect_failed, "the worker has just left");
    }
    connect_result result;
    result.opened = std::move(near_end);
    result.peer = std::move(admission.reply);
    return result;
  }
};

class inproc_transport final : public transport {
 public:
  explicit inproc_transport(reactor& loop) : loop_(loop), workers_(inproc_workers::shared()) {}

  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string&,
                                  const transport_options& options,
                                  std::shared_ptr<connection_acceptor> acceptor) override {
    check_secret_usable(options.secret);
    workers_->registry.add(group, target, std::move(acceptor), options);
    return {"inproc:" + workers_->token};
  }

  void unlisten(const std::string& group, const std::string& target) noexcept override {
    workers_->registry.remove(group, target);
  }

  void connect(const std::string& address, const hello& self, const transport_options& options, deadline,
               connect_callback callback) override {
    check_secret_usable(options.secret);
    auto* item = new inproc_connect;
    item->loop = &loop_;
    item->workers = workers_;
    item->address = address;
    item->self = self;
    item->secret = options.secret;
    item->max_spin = options.max_spin;
    item->callback = std::move(callback);
    item->run = [](work* queued) noexcept {
      const std::unique_ptr<inproc_connect> owner(static_cast<inproc_connect*>(queued));
      try {
        owner->shake_hands();
      } catch (const std::exception& failure) {
        log(log_level::error, std::string("the callback of a connect threw: ") + failure.what());
      }
    };
    loop_.post(item);
  }

  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    constexpr std::string_view scheme = "inproc:";
    return address.starts_with(scheme) && address.substr(scheme.size()) == workers_->token;  // of this process
  }

 private:
  reactor& loop_;
  const std::shared_ptr<inproc_workers> workers_;
};

}  // namespace
}  // namespace ferry::inline v0::detail

namespace ferry::inline v0 {

std::string transport_traits<inproc>::unusable() { return {}; }

std::shared_ptr<transport> transport_traits<inproc>::open(reactor& loop) {
  return detail::shared_transport<detail::inproc_transport>(loop);
}

}  // namespace ferry::inline v0
