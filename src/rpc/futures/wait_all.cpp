#include <ferry/rpc/wait_all.hpp>

#include <utility>

#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {
thread_local constinit call_record* innermost = nullptr;
}  // namespace

call_record::call_record() noexcept : outer_(std::exchange(innermost, this)) {}

void call_record::stop() noexcept {
  if (std::exchange(recording_, false)) innermost = outer_;
}

void call_record::wait() const {
  for (const auto& call : calls_) (void)call->wait(deadline{});
  for (const auto& call : calls_) call->throw_if_failed();
}

void call_record::wait_quietly() const noexcept {
  try {
    for (const auto& call : calls_) (void)call->wait(deadline{});
  } catch (const error& problem) {  // too many handlers wait already
    log(log_level::warning, std::string("wait_all did not wait for all calls of a body that threw: ") + problem.what());
  }
}

void record_call(future_state_base& call) {
  if (innermost) innermost->calls_.push_back(ref_ptr<future_state_base>::share(&call));
}

}  // namespace ferry::inline v0::detail
