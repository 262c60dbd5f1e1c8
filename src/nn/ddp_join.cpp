#include "ddp_join.hpp"

#include <cstddef>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

namespace ferry::inline v0::detail {
namespace {

// Of all members the maximum: whether one makes a pass, whether it does so in no_sync(), and the number of members less the rank of
// one that has failed.
tensor flags_of(bool makes_pass, bool leaves_sync, int failed) {
  return tensor_of({std::int64_t{makes_pass}, std::int64_t{leaves_sync}, std::int64_t{failed}});
}

}  // namespace

void ddp_join::begin() noexcept {
  if (++depth_ == 1 || state_ != state::over) state_ = state::inside;
}

void ddp_join::leave() noexcept {
  if (--depth_ != 0) return;
  state_ = state::outside;
  error_ = nullptr;
}

void ddp_join::check() const {
  if (state_ == state::over) std::rethrow_exception(error_);
}

future<void> ddp_join::give(const tensor& flags, const context_values& values) const {
  const context_values_scope scope(values);
  return group_.all_reduce(flags, reduce_op::max, limit_);
}

bool ddp_join::announce(bool makes_pass, bool synced, const context_values& values) {
  try {
    const tensor flags = flags_of(makes_pass, makes_pass && !synced, 0);
    give(flags, values).get();
    if (const std::int64_t failed = flags.at<std::int64_t>(2); failed != 0) {
      throw_error(errc::remote_exception,
                  fmt::format("ddp: {} has left join() with an exception",
                              group_.names().at(group_.names().size() - static_cast<std::size_t>(failed))));
    }
    if (flags.at<std::int64_t>(1) != 0) {
      throw_error(errc::invalid_argument,
                  "ddp: a member is in no_sync() within join(): members that have finished cannot know it");
    }
    return flags.at<std::int64_t>(0) != 0;
  } catch (...) {
    (void)end(current_error());
    throw;
  }
}

bool ddp_join::end(const std::exception_ptr& error) noexcept {
  if (state_ == state::over) return false;
  state_ = state::over;
  error_ = error;
  return true;
}

void ddp_join::say_failed(const context_values& values) const {
  (void)give(flags_of(false, false, group_.size() - group_.rank()), values);
}

}  // namespace ferry::inline v0::detail
