#pragma once

// The part of a transport that all kinds of stream sockets share.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ferry/transport/transport.hpp>

#include "../reactor/control_thread.hpp"
#include "listener.hpp"
#include "socket_core.hpp"

namespace ferry::inline v0::detail {

class socket_transport : public transport {
 public:
  /// Ends operations in progress: pending connects fail, listeners close. The reactor must outlive this.
  ~socket_transport() override;

  void unlisten(const std::string& group, const std::string& target) noexcept override;
  void connect(const std::string& address, const hello& self, const transport_options& options, deadline until,
               connect_callback callback) override;
  [[nodiscard]] bool understands(std::string_view address) const noexcept override;

 protected:
  /// `name` is a literal.
  socket_transport(reactor& loop, std::string_view name, listener::peer_check check,
                   carriage carried_by = carriage::socket);

  /// Registers the worker and assigns it a listener: an open one that `suits`, else one on a socket that `open`
  /// creates. Throws errc::duplicate_name, and what `open` throws.
  std::shared_ptr<listener> use_listener(const std::string& group, const std::string& target,
                                         const transport_options& options,
                                         std::shared_ptr<connection_acceptor> acceptor,
                                         const std::function<bool(const listener&)>& suits,
                                         const std::function<unique_fd()>& open);

 private:
  const std::shared_ptr<control_thread> control_;
  const std::shared_ptr<socket_core> core_;
  const listener::peer_check check_;

  std::mutex mutex_;
  std::condition_variable closed_one_;
  int closing_ = 0;  // listeners that are being closed; their ports are still in use
  std::map<std::pair<std::string, std::string>, std::shared_ptr<listener>> uses_;  // by (group, worker)
};

/// The process's instance of a transport over `loop`, created on first use and destroyed with its last owner.
template <class Transport>
std::shared_ptr<transport> shared_transport(reactor& loop) {
  static std::mutex mutex;
  static std::map<reactor*, std::weak_ptr<Transport>> instances;
  const std::lock_guard lock(mutex);
  std::erase_if(instances, [](const auto& entry) { return entry.second.expired(); });
  auto& known = instances[&loop];
  auto result = known.lock();
  if (!result) known = result = std::make_shared<Transport>(loop);
  return result;
}

}  // namespace ferry::inline v0::detail
