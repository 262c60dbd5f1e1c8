#include "kept_timer.hpp"

namespace ferry::inline v0::detail {

struct kept_timer::item : work {
  std::shared_ptr<void> owner;
  action act = nullptr;
};

void kept_timer::set_for(reactor& loop, deadline at, std::shared_ptr<void> owner, action act) {
  auto fresh = std::make_unique<item>();
  fresh->owner = std::move(owner);
  fresh->act = act;
  fresh->run = [](work* self) noexcept {
    const std::unique_ptr<item> fired(static_cast<item*>(self));
    fired->act(fired->owner.get(), fired.get());
  };
  const timer_id timer = loop.start_timer(at, fresh.get());
  cancel(loop);
  timer_ = timer;
  item_ = fresh.release();
}

void kept_timer::cancel(reactor& loop) noexcept {
  item* before = std::exchange(item_, nullptr);
  if (before && loop.cancel_timer(timer_)) delete before;
}

bool kept_timer::claim(const work* fired) noexcept {
  if (fired != item_) return false;
  item_ = nullptr;
  return true;
}

}  // namespace ferry::inline v0::detail
