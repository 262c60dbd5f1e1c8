#include "control_thread.hpp"

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include <mutex>
#include <string>
#include <system_error>

#include <pthread.h>

#include "../../base/signal_mask.hpp"

namespace ferry::inline v0::detail {

std::shared_ptr<control_thread> control_thread::shared() {
  // Never destroyed: tensors may be dropped after static objects are.
  static auto& mutex = *new std::mutex;
  static auto& current = *new std::weak_ptr<control_thread>;
  const std::lock_guard lock(mutex);
  auto result = current.lock();
  if (!result) current = result = std::make_shared<control_thread>();
  return result;
}

control_thread::control_thread() : loop_(std::make_shared<loop>()), guard_(loop_->context.get_executor()) {
  try {
    const signals_blocked here;
    thread_ = std::thread([running = loop_] { run_loop(running); });
  } catch (const std::system_error& error) {
    throw_error(errc::system_failure, std::string("cannot start the control thread: ") + error.what());
  }
  ::pthread_setname_np(thread_.native_handle(), "ferry-control");
}

control_thread::~control_thread() {
  loop_->context.stop();
  if (is_current()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void control_thread::run_loop(const std::shared_ptr<loop>& running) noexcept {
  while (!running->context.stopped()) {
    try {
      running->context.run();
    } catch (const std::exception& error) {
      log(log_level::error, std::string("the control thread continues after an unexpected error: ") + error.what());
    } catch (...) {
      log(log_level::error, "the control thread continues after an unexpected error");
    }
  }
}

}  // namespace ferry::inline v0::detail
