#include "socket_transport.hpp"

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/transport/address.hpp>

#include <vector>

#include "../../base/authentication.hpp"
#include "connect_operation.hpp"
#include "descriptor_reserve.hpp"

namespace ferry::inline v0::detail {

socket_transport::socket_transport(reactor& loop, std::string_view name, listener::peer_check check,
                                   carriage carried_by)
    : control_(control_thread::shared()),
      core_(std::make_shared<socket_core>(loop, control_->context(), name, carried_by)),
      check_(check) {}

socket_transport::~socket_transport() {
  control_->run([core = core_] {
    core->closed = true;
    std::vector<std::shared_ptr<control_operation>> live;
    for (const auto& [key, operation] : core->live) live.push_back(operation);
    for (const auto& operation : live) operation->abort();
  });
}

std::shared_ptr<listener> socket_transport::use_listener(const std::string& group, const std::string& target,
                                                         const transport_options& options,
                                                         std::shared_ptr<connection_acceptor> acceptor,
                                                         const std::function<bool(const listener&)>& suits,
                                                         const std::function<unique_fd()>& open) {
  check_secret_usable(options.secret);
  std::unique_lock lock(mutex_);
  // Wait, so that a port about to be released is not reported as in use. The control thread closes it, so that thread
  // cannot wait.
  if (!control_->is_current()) closed_one_.wait(lock, [&] { return closing_ == 0; });
  std::shared_ptr<listener> found;
  for (const auto& [key, used] : uses_) {
    if (suits(*used)) found = used;
  }
  const bool fresh = !found;
  if (fresh) {
    found = std::make_shared<listener>(core_, open(), check_, options);
    descriptor_reserve::of_process().fill();  // before the program takes all of them
  }
  core_->workers.add(group, target, std::move(acceptor), options);
  uses_.emplace(std::pair(group, target), found);
  // After registering: a peer that has the port from before must not get the answer that the worker does not exist.
  if (fresh) asio::post(core_->context, [found] { found->start(); });
  return found;
}

void socket_transport::unlisten(const std::string& group, const std::string& target) noexcept {
  if (!core_->workers.remove(group, target)) return;
  std::unique_lock lock(mutex_);
  const auto entry = uses_.find({group, target});
  if (entry == uses_.end()) return;
  auto released = std::move(entry->second);
  uses_.erase(entry);
  for (const auto& [key, used] : uses_) {
    if (used == released) return;
  }
  ++closing_;
  lock.unlock();
  control_->run([&released] { released->abort(); });
  lock.lock();
  --closing_;
  closed_one_.notify_all();
}

void socket_transport::connect(const std::string& address, const hello& self, const transport_options& options,
                               deadline until, connect_callback callback) {
  check_secret_usable(options.secret);
  const auto operation = std::make_shared<connect_operation>(
      core_, connect_request{address, self, options, until, std::move(callback)}, check_);
  asio::post(core_->context, [operation] { operation->start(); });
}

bool socket_transport::understands(std::string_view address) const noexcept {
  return has_scheme(address, core_->transport_name);
}

}  // namespace ferry::inline v0::detail
