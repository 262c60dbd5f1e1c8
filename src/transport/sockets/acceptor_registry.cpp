#include "acceptor_registry.hpp"

#include <ferry/base/error.hpp>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "../../base/authentication.hpp"

namespace ferry::inline v0::detail {
namespace {
// The entry whose acceptor this thread is calling, so that an acceptor may remove itself.
thread_local const void* entry_called_here = nullptr;
}  // namespace

// Counts one call of an entry's acceptor.
class acceptor_registry::call_scope {
 public:
  call_scope(acceptor_registry& registry, const hello& from) : registry_(registry) {
    const std::lock_guard lock(registry.mutex_);
    const auto found = registry.entries_.find({from.group, from.target});
    if (found != registry.entries_.end()) enter(found->second);
  }
  /// The first entry after `previous`, if there is one; `previous` is its key afterwards.
  call_scope(acceptor_registry& registry, std::optional<std::pair<std::string, std::string>>& previous)
      : registry_(registry) {
    const std::lock_guard lock(registry.mutex_);
    const auto found = previous ? registry.entries_.upper_bound(*previous) : registry.entries_.begin();
    if (found == registry.entries_.end()) return;
    previous = found->first;
    enter(found->second);
  }
  ~call_scope() {
    if (!entry_) return;
    entry_called_here = outer_;
    const std::lock_guard lock(registry_.mutex_);
    --entry_->running;
    registry_.ended_.notify_all();
  }
  call_scope(const call_scope&) = delete;
  call_scope& operator=(const call_scope&) = delete;
  [[nodiscard]] connection_acceptor* acceptor() const noexcept { return entry_ ? entry_->acceptor.get() : nullptr; }
  [[nodiscard]] const acceptor_registry::entry& entry() const noexcept { return *entry_; }

 private:
  acceptor_registry& registry_;
  std::shared_ptr<struct acceptor_registry::entry> entry_;
  const void* outer_ = nullptr;

  void enter(std::shared_ptr<struct acceptor_registry::entry> found) {
    entry_ = std::move(found);
    ++entry_->running;
    outer_ = std::exchange(entry_called_here, entry_.get());
  }
};

void acceptor_registry::add(const std::string& group, const std::string& name,
                            std::shared_ptr<connection_acceptor> acceptor, const transport_options& options) {
  auto fresh = std::make_shared<entry>();
  fresh->acceptor = std::move(acceptor);
  fresh->options = options;
  const std::lock_guard lock(mutex_);
  fresh->serial = ++last_serial_;
  if (!entries_.try_emplace({group, name}, std::move(fresh)).second) {
    throw_error(errc::duplicate_name,
                fmt::format("the name '{}' is not unique: a worker of that name and group runs in this process", name));
  }
}

bool acceptor_registry::remove(const std::string& group, const std::string& name) noexcept {
  std::shared_ptr<entry> gone;  // outlives the lock: the acceptor's destructor may run arbitrary code
  std::unique_lock lock(mutex_);
  const auto found = entries_.find({group, name});
  if (found == entries_.end()) return false;
  gone = found->second;
  entries_.erase(found);
  const int own = entry_called_here == gone.get() ? 1 : 0;
  ended_.wait(lock, [&] { return gone->running == own; });
  return true;
}

bool acceptor_registry::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

acceptor_registry::demands acceptor_registry::demanded(const std::string& group, const std::string& target) const {
  demands result;
  const std::lock_guard lock(mutex_);
  const auto add = [&](const transport_options& options) {
    if (options.secret.empty()) {
      result.open = true;
    } else if (std::find(result.secrets.begin(), result.secrets.end(), options.secret) == result.secrets.end()) {
      result.secrets.push_back(options.secret);
    }
  };
  if (const auto found = entries_.find({group, target}); found != entries_.end()) {
    result.known = true;
    add(found->second->options);
  } else {
    for (const auto& [key, value] : entries_) add(value->options);
    result.open = result.open || entries_.empty();
  }
  return result;
}

bool acceptor_registry::expects(const std::string& host) noexcept {
  try {
    for (std::optional<std::pair<std::string, std::string>> key;;) {
      const call_scope call(*this, key);
      if (!call.acceptor()) return false;
      if (call.acceptor()->expects(host)) return true;
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
}

acceptor_registry::admission acceptor_registry::admit(const hello& from, const std::string& secret, bool needs_slot) {
  const call_scope call(*this, from);
  if (call.acceptor()) {
    const transport_options& options = call.entry().options;
    if (!same_secret(options.secret, secret)) {
      throw_error(errc::authentication_failed, "the two workers do not have the same secret");
    }
    std::shared_ptr<void> slot;
    if (needs_slot) {
      const auto& slots = call.entry().slots;
      const auto taken = slots->fetch_add(1);
      slot = std::shared_ptr<void>(nullptr, [slots](void*) { slots->fetch_sub(1); });
      if (taken >= options.max_connections) {
        throw_error(errc::resource_exhausted,
                    fmt::format("the worker '{}' has {} open connections, which is its max_connections", from.target,
                                options.max_connections));
      }
    }
    return {call.acceptor()->on_hello(from), options, call.entry().serial, std::move(slot)};
  }
  bool name_exists = false;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, value] : entries_) name_exists = name_exists || key.second == from.target;
  }
  throw_error(errc::unknown_worker,
              name_exists ? fmt::format("the worker '{}' there is not of the group '{}'", from.target, from.group)
                          : fmt::format("there is no worker '{}' there", from.target));
}

bool acceptor_registry::deliver(std::shared_ptr<connection> accepted, const hello& from,
                                std::uint64_t worker) noexcept {
  const call_scope call(*this, from);
  if (!call.acceptor() || call.entry().serial != worker) return false;
  call.acceptor()->on_accepted(std::move(accepted), from);
  return true;
}

}  // namespace ferry::inline v0::detail
