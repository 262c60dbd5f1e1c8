#pragma once

#include <exception>
#include <memory>
#include <utility>

#include <ferry/base/log.hpp>
#include <ferry/base/work.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// Runs `action` on a thread that may block. Logs what it throws.
template <class Action>
void run_detached(reactor& loop, Action action) {
  struct item : work {
    explicit item(Action a) : action(std::move(a)) {}
    Action action;
  };
  auto* fresh = new item(std::move(action));
  fresh->run = [](work* self) noexcept {
    const std::unique_ptr<item> owned(static_cast<item*>(self));
    try {
      owned->action();
    } catch (const std::exception& e) {
      log(log_level::warning, e.what());
    }
  };
  loop.post(fresh);
}

}  // namespace ferry::inline v0::detail
