#include "core_timer.hpp"

#include <utility>

#include "native_agent.hpp"

namespace ferry::inline v0::detail {

struct core_timer::item : work {
  std::shared_ptr<native_core> core;
  action act = nullptr;
};

void core_timer::set(reactor& loop, deadline at, std::shared_ptr<native_core> core, action act) {
  auto fresh = std::make_unique<item>();
  fresh->core = std::move(core);
  fresh->act = act;
  fresh->run = [](work* self) noexcept {
    const std::unique_ptr<item> fired(static_cast<item*>(self));
    (fired->core.get()->*fired->act)(fired.get());
  };
  const timer_id timer = loop.start_timer(at, fresh.get());
  cancel(loop);
  timer_ = timer;
  item_ = fresh.release();
}

void core_timer::cancel(reactor& loop) noexcept {
  item* before = std::exchange(item_, nullptr);
  if (before && loop.cancel_timer(timer_)) delete before;
}

bool core_timer::claim(const work* fired) noexcept {
  if (fired != item_) return false;
  item_ = nullptr;
  return true;
}

}  // namespace ferry::inline v0::detail
