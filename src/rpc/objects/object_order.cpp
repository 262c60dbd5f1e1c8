#include "object_order.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <ferry/device/current.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/rpc/context.hpp>

#include "../../base/log_problem.hpp"
#include "../../device/capture.hpp"

namespace ferry::inline v0::detail {
namespace {

bool has_streams(device where) { return !operations_of(where.kind).immediate; }

void make_wait(const object_mark& mark, std::span<const stream> streams) {
  for (const event& each : mark.events) {
    const stream on = stream_among(streams, each.device());
    refuse_capture(on, "wait for earlier work on an object");
    on.wait(each);
  }
  if (mark.reads) mark.reads->let_streams_wait(streams);
}

}  // namespace

// With the mutex held.
void object_order::add_devices(std::span<const stream> streams) {
  for (const stream& each : streams) {
    const device where = each.device();
    if (!has_streams(where) || std::find(devices_.begin(), devices_.end(), where) != devices_.end()) continue;
    devices_.push_back(where);
    in_use_.store(true, std::memory_order_release);
  }
}

std::vector<stream> object_order::streams_for(std::span<const stream> given) const {
  std::vector<stream> result;
  for (const stream& each : given) {
    if (has_streams(each.device())) result.push_back(each);
  }
  const std::lock_guard lock(mutex_);
  for (const device& where : devices_) {
    const bool named = std::any_of(given.begin(), given.end(), [&](const stream& s) { return s.device() == where; });
    if (!named) result.push_back(current_stream(where));
  }
  return result;
}

std::vector<device> object_order::devices() const {
  const std::lock_guard lock(mutex_);
  return devices_;
}

object_order::marks object_order::now() const {
  const std::lock_guard lock(mutex_);
  return marks_;
}

void object_order::begin(std::span<const stream> streams, std::span<const device> devices) {
  std::vector<stream> all(streams.begin(), streams.end());
  for (const device& where : devices) {
    const bool named = std::any_of(all.begin(), all.end(), [&](const stream& s) { return s.device() == where; });
    if (!named && has_streams(where)) all.push_back(current_stream(where));
  }
  leave_mark(all, {});
}

object_order::marks object_order::let_streams_wait(std::span<const stream> streams, bool current_too) const {
  marks all = now();
  for (const auto& each : all) {
    make_wait(*each, streams);
    if (!current_too) continue;
    for (const event& mark : each->events) {
      const stream current = current_stream(mark.device());
      if (current != stream_among(streams, mark.device())) current.wait(mark);
    }
  }
  return all;
}

void object_order::leave_mark(std::span<const stream> streams, const marks& before,
                              std::shared_ptr<const read_marks> reads) {
  if (streams.empty() && idle()) return;
  auto mark = std::make_shared<object_mark>();
  const std::vector<stream> all = streams_for(streams);
  mark->events.reserve(all.size());
  for (const stream& each : all) {
    refuse_capture(each, "mark the work on an object");
    mark->events.push_back(each.record());
  }
  mark->reads = std::move(reads);
  const std::lock_guard lock(mutex_);
  marks_.reserve(marks_.size() + 1);
  add_devices(all);
  std::erase_if(marks_,
                [&](const auto& each) { return std::find(before.begin(), before.end(), each) != before.end(); });
  if (!mark->events.empty() || mark->reads) marks_.push_back(std::move(mark));
}

void object_order::add_users() {
  const std::lock_guard lock(mutex_);
  for (const device& where : devices_) {
    const stream current = current_stream(where);
    if (std::find(users_.begin(), users_.end(), current) == users_.end()) users_.push_back(current);
  }
}

struct object_order::end::streams {
  std::vector<stream> own;
  std::optional<streams_scope> scope;
};

object_order::end::end(object_order& order) noexcept {
  if (order.idle()) return;
  try {
    auto fresh = std::make_unique<streams>();
    marks all;
    std::vector<stream> users;
    {
      const std::lock_guard lock(order.mutex_);
      for (const device& where : order.devices_) fresh->own.push_back(pool_stream(where));
      all = order.marks_;
      users = order.users_;
    }
    for (const auto& each : all) make_wait(*each, fresh->own);
    for (const stream& user : users) stream_among(fresh->own, user.device()).wait(user);
    fresh->scope.emplace(fresh->own);
    streams_ = std::move(fresh);
  } catch (const std::exception& problem) {
    log_problem("an object is destroyed without waiting for the work of its devices", problem);
  }
}

object_order::end::~end() = default;

}  // namespace ferry::inline v0::detail
