#include "reference_state.hpp"

#include <exception>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "../../worker/worker_core.hpp"
#include "reference_table.hpp"

namespace ferry::inline v0::detail {

// Of the object first: when the table lets go of it, it is destroyed on a thread of its owner, with that as the current worker.
reference_state::~reference_state() {
  local_ = {};
  table->dropped(*this);
  if (!known || known->ready()) return;
  // What created() gave out may be waited for, and the table finds this state no more.
  try {
    known->try_set_error(make_error(errc::reference_deleted,
                                    "the last handle was dropped before the owner had registered the reference"));
  } catch (...) {  // no memory for the text
    known->try_set_error(std::current_exception());
  }
}

located_worker reference_state::owner(deadline until) const {
  {
    const std::lock_guard lock(mutex_);
    if (owner_.id().value >= 0) return {owner_, object.owner.incarnation};
  }
  if (table->is_gone(object.owner)) {
    throw_error(errc::peer_lost, fmt::format("the owner of the object, worker {}, is dead or has left the group",
                                             object.owner.id.value));
  }
  const located_worker there =
      table->worker()->agent().members().locate({object.owner.id, object.owner.incarnation}, until);
  const std::lock_guard lock(mutex_);
  owner_ = there.who;
  return there;
}

void reference_state::end(std::exception_ptr why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (end_) return;
    end_ = why;
  }
  ended_.store(true, std::memory_order_release);
  if (known) known->try_set_error(std::move(why));
}

void reference_state::drop_local() noexcept {
  ref_ptr<owned_object> dropped;  // destroyed without the mutex: destructors run user code
  const std::lock_guard lock(mutex_);
  std::swap(dropped, local_);
}

void reference_state::throw_ended() const {
  std::exception_ptr why;
  {
    const std::lock_guard lock(mutex_);
    why = end_;
  }
  std::rethrow_exception(why);
}

}  // namespace ferry::inline v0::detail
