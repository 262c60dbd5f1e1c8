#include <ferry/autograd/dist/update_turn.hpp>

#include <map>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/rpc/attached.hpp>

namespace ferry::inline v0 {
namespace detail {

/// Attached to each worker that has optimizers.
class update_turns final : public worker_attachment {
 public:
  std::mutex turn;

  /// The current stream of the device waits for the updates before.
  void wait_on(device where) {
    const std::lock_guard lock(mutex_);
    if (const auto found = last_.find(where); found != last_.end()) current_stream(where).wait(found->second);
  }
  void wait_on_all() {
    const std::lock_guard lock(mutex_);
    for (const auto& [where, last] : last_) current_stream(where).wait(last);
  }
  /// What the current stream of the device was given is what the next updates wait for: it waited for those before itself.
  void mark(device where) {
    const std::lock_guard lock(mutex_);
    last_[where].record(current_stream(where));
  }

 private:
  std::mutex mutex_;  // guards the next one; taken after `turn`
  std::map<device, event> last_;
};

namespace {

constexpr attached_key<update_turns> updates_key("ferry.dist_autograd.updates");

}  // namespace
}  // namespace detail

namespace dist_autograd {

worker_updates::worker_updates() : turns_(attached(detail::updates_key)) {}
worker_updates::worker_updates(const worker& of) : turns_(attached(detail::updates_key, of)) {}

update_turn::update_turn(const worker_updates& at, std::span<const device> on)
    : at_(at), on_(on), lock_(at.turns().turn) {
  for (const device& each : on_) {
    if (!each.is_cpu()) at_.turns().wait_on(each);
  }
}

update_turn::~update_turn() {
  for (const device& each : on_) {
    if (each.is_cpu()) continue;
    try {
      at_.turns().mark(each);
    } catch (const error& problem) {
      // The next use of the device throws that, too.
      log(log_level::warning, problem.what());
    }
  }
}

void wait_for_updates() { worker_updates().turns().wait_on_all(); }

}  // namespace dist_autograd
}  // namespace ferry::inline v0
