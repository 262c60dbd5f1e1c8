#include <ferry/rpc/detail/owned_object.hpp>

#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "object_order.hpp"
#include "object_turns.hpp"
#include "object_uses.hpp"

namespace ferry::inline v0::detail {

// With what it needs for its calls, in one allocation.
struct owned_object::whole final : owned_object {
  whole() noexcept : owned_object(own_turns, own_order) {}
  ~whole() override {
    const object_order::end end(own_order);
    drop_value();
  }

  object_turns own_turns;
  object_order own_order;
};

ref_ptr<owned_object> owned_object::make() { return ref_ptr<owned_object>::adopt(new whole); }

void owned_object::finish(std::unique_ptr<owned_value> value, std::span<const device> devices) {
  if (streams_in_use.load(std::memory_order_relaxed) && value->may_use_devices()) {
    const call_context* context = thread_context();
    std::vector<device> all(devices.begin(), devices.end());
    all.push_back(value->where());
    order_.begin(context ? context->streams() : std::vector<stream>(), all);
  }
  if (!claim()) return;  // it had failed before: discard the late value
  value_ = std::move(value);
  const execution_policy policy = value_->policy();
  publish(value_phase);
  turns_.made(policy);
}

void owned_object::fail(std::exception_ptr error) noexcept {
  if (try_set_error(std::move(error))) turns_.made({});
}

void owned_object::use_here() {
  if (!has_value() || !value_->may_use_devices()) return;
  if (incoming_call* call = thread_call(); call && use_object(*call, *this)) return;
  if (order_.idle()) return;
  order_.let_streams_wait({});
  order_.add_users();
}

bool owned_object::on_devices() const noexcept { return !order_.idle(); }

const owned_value& owned_object::value_made() const {
  throw_if_failed();
  return *value_;
}

void* owned_object::as_other(const std::type_info& type, std::string (*name)(),
                             other (*find)(const owned_value& from)) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, address] : others_) {
      if (*known == type) return address;
    }
  }
  const owned_value::pointee pointee = value_->points_to();
  if (pointee.address && *pointee.type == type) return pointee.address;
  const other found = find(*value_);
  if (!found.address) {
    if (pointee.type && !pointee.address) {
      throw_error(errc::reference_mismatch,
                  fmt::format("the object is a null {} and points to no {}", value_->type_name(), name()));
    }
    throw_error(errc::reference_mismatch, fmt::format("the object is a {}, not a {}", value_->type_name(), name()));
  }
  if (!found.stays) return found.address;
  const std::lock_guard lock(mutex_);
  others_.emplace_back(&type, found.address);
  return found.address;
}

}  // namespace ferry::inline v0::detail
