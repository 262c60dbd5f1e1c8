#include "object_uses.hpp"

#include <algorithm>
#include <exception>
#include <string_view>

#include <fmt/format.h>
#include <ferry/base/log.hpp>

#include "../../wire/read_marks.hpp"

namespace ferry::inline v0::detail {
namespace {

// Those of the call, with one for each device on which the object has been used: its marks concern that one.
std::vector<stream> streams_for_object(const incoming_call& call, const owned_object& object) {
  for (const device& where : object.order().devices()) {
    if (call.has_stream(where)) (void)call.take_stream(where);
  }
  return call.streams();
}

}  // namespace

bool object_uses::use(owned_object& object) {
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  auto use = std::find_if(uses_.begin(), uses_.end(), [&](const use_of& each) { return each.object.get() == &object; });
  if (use == uses_.end()) use = uses_.insert(use, {ref_ptr<owned_object>::share(&object), {}});
  use->before = object.order().let_streams_wait(streams_for_object(call_, object), true);
  return true;
}

void object_uses::end(const std::shared_ptr<read_marks>& reads) {
  std::vector<use_of> ended;  // destroyed without the mutex: destructors run user code
  const std::lock_guard lock(mutex_);
  ended.reserve(uses_.size());
  while (!uses_.empty()) {
    owned_object& object = *uses_.back().object;
    object.order().leave_mark(streams_for_object(call_, object), uses_.back().before, reads);
    ended.push_back(std::move(uses_.back()));
    uses_.pop_back();
  }
  ended_ = true;
}

void object_uses::end_quietly() noexcept {
  try {
    end(nullptr);
  } catch (const std::exception& problem) {
    {
      std::vector<use_of> ended;
      const std::lock_guard lock(mutex_);
      ended.swap(uses_);
      ended_ = true;
    }
    complain("calls on its objects do not wait for what devices still do for it", problem);
  }
}

void object_uses::complain(std::string_view what, const std::exception& problem) const noexcept {
  try {
    log(log_level::error, fmt::format("{}: {}: {}", call_.describe(), what, problem.what()));
  } catch (const std::exception&) {  // no memory for more
    log(log_level::error, what);
  }
}

// An answer with a value ends them itself, with the marks of its tensors.
void object_uses::handler_ended(handler_result& result) {
  if (result.error()) end_quietly();
}

void object_uses::on_reply(outgoing_reply& reply) {
  if (!reply.has_value()) return end_quietly();
  outgoing_message& message = reply.message();
  const bool reads = std::any_of(message.tensors.begin(), message.tensors.end(),
                                 [](const tensor& each) { return !operations_of(each.device().kind).immediate; });
  {
    const std::lock_guard lock(mutex_);
    if (reads && !uses_.empty()) message.reads = std::make_shared<read_marks>();
  }
  try {
    end(message.reads);
  } catch (...) {  // the caller gets the error; what can be ordered is
    end_quietly();
    throw;
  }
}

void object_uses::pause(owned_object& object) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    for (use_of& each : uses_) {
      if (each.object.get() != &object) continue;
      each.object->order().leave_mark(streams_for_object(call_, object), each.before);
      each.before.clear();
    }
  } catch (const std::exception& problem) {
    complain("those who have its turn meanwhile do not wait for its devices", problem);
  }
}

void object_uses::resume(owned_object& object) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    for (use_of& each : uses_) {
      if (each.object.get() == &object)
        each.before =
            each.object->order().let_streams_wait(streams_for_object(call_, object), thread_context() == &call_);
    }
  } catch (const std::exception& problem) {
    complain("it does not wait for the devices of those who have had its turn", problem);
  }
}

// ---------------------------------------------------------------- of a call

namespace {

object_uses* uses_of(const incoming_call& call) noexcept {
  return static_cast<object_uses*>(call.find_hooks(&object_uses::key_of));
}

}  // namespace

bool use_object(incoming_call& call, owned_object& object) {
  if (!call.has_streams() && object.order().idle()) return true;
  auto& uses = static_cast<object_uses&>(call.find_or_add_hooks(
      &object_uses::key_of,
      [](incoming_call& of) -> std::unique_ptr<callee_hooks> { return std::make_unique<object_uses>(of); }));
  if (call.is_over()) {  // its hooks may have been told already, and not these
    uses.ended();
    return false;
  }
  return uses.use(object);
}

void pause_use(incoming_call& call, owned_object& object) noexcept {
  if (object_uses* uses = uses_of(call)) uses->pause(object);
}

void resume_use(incoming_call& call, owned_object& object) noexcept {
  if (object_uses* uses = uses_of(call)) uses->resume(object);
}

void end_uses(incoming_call& call) {
  if (object_uses* uses = uses_of(call)) uses->end(nullptr);
}

}  // namespace ferry::inline v0::detail
