#include <ferry/rpc/detail/reference_handle.hpp>

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/promise.hpp>
#include <ferry/rpc/rref.hpp>

#include "../../../transport/reactor/held_output.hpp"
#include "../../calls/call_report.hpp"
#include "../../worker/worker_core.hpp"
#include "reference_client.hpp"
#include "reference_table.hpp"
#include "request_references.hpp"

namespace ferry::inline v0::detail {

// ---------------------------------------------------------------- handles

reference_state& reference_handle::state() const {
  if (!state_) throw_error(errc::invalid_argument, "the reference is empty: it was default-constructed or moved from");
  return *state_;
}

reference_state& reference_handle::usable() const {
  state().check();
  return *state_;
}

bool operator==(const reference_handle& a, const reference_handle& b) noexcept {
  return a.state_ == b.state_ || (a.state_ && b.state_ && a.state_->object == b.state_->object);
}

std::size_t reference_handle::hash() const noexcept { return state_ ? object_hash()(state_->object) : 0; }

reference_handle reference_handle::own(std::unique_ptr<owned_value> value) {
  return own(*current_worker(), std::move(value));
}
reference_handle reference_handle::own(worker_core& worker, std::unique_ptr<owned_value> value) {
  return references_of(worker)->own(std::move(value));
}

bool reference_handle::is_owner() const { return !state().fork; }

bool reference_handle::confirmed() const {
  const reference_state& own = state();
  held_output::release();  // this thread may ask until the creation, which it holds back, is confirmed
  return !own.fork || (own.confirmed() && !own.ended());
}

worker_info reference_handle::owner() const {
  const reference_state& own = state();
  (void)own.table->worker();
  return own.owner({}).who;
}

std::string reference_handle::describe(const std::string& type) const {
  if (!state_) return fmt::format("rref<{}>()", type);
  const object_id& object = state_->object;
  std::string text = fmt::format("rref<{}>(owner={}, object={}@{}", type, object.owner.id.value, object.number,
                                 object.creator.id.value);
  if (state_->fork) {
    text += fmt::format(", fork={}{}", state_->fork->key.by == fork_key::numbered_by::owner ? "g" : "",
                        state_->fork->key.number);
  }
  return text + ")";
}

namespace {
// A handler that holds turns is about to wait for an object whose creating call may wait for that handler. A call to
// the object detects the deadlock.
void check_for_deadlock(const reference_handle& object, timeout limit) {
  const request_references* running = references_of_request(thread_call());
  if (!running || !running->held_turns()) return;
  try {
    constexpr auto flavour = method_flavour::object_call;
    object_call call(object, {.timeout = limit}, usable_method<&await_object, flavour>(), call_mode::waiting);
    finish_sync<&await_object, flavour>(call);
  } catch (const error& e) {
    if (e.kind() == errc::would_deadlock) throw;
  } catch (...) {  // NOLINT(bugprone-empty-catch): the wait that follows reports other errors
  }
}

// Waits until the object has been made, or the deadline; in a handler at most until its call's deadline.
void wait_until_made(const reference_handle& object, owned_object& local, timeout limit) {
  const reference_state& own = *object.get();
  if (local.ready()) return;
  const call_context* context = thread_context();
  const deadline until = std::min(deadline::after(limit), context ? context->deadline() : deadline());
  check_for_deadlock(object, limit);
  if (local.wait(until)) return;
  throw_error(errc::rpc_timeout, fmt::format("object {} of {} was not made within {}", own.object.number,
                                             to_string(own.table->worker()->agent().self()), in_milliseconds(limit)));
}

// At the owner.
ref_ptr<owned_object> kept_here(const reference_state& own) {
  ref_ptr<owned_object> object = own.local();
  if (!object) (void)own.table->worker();  // throws: the worker has been shut down
  return object;
}
}  // namespace

bool fork_known::help_wait(deadline until) {
  if (!until.is_never()) return false;  // a wait with a deadline ends by itself
  if (auto state = of.lock()) check_for_deadlock(reference_handle(std::move(state)), no_timeout);
  return ready();
}

owned_object& reference_handle::local() const {
  const reference_state& own = usable();
  if (own.fork) {
    const auto worker = own.table->worker();
    throw_error(
        errc::not_owner,
        fmt::format(
            "local_value of {} was called on {}, which does not own the object: {} does; use to_here(), or call a "
            "function on the reference",
            describe("..."), to_string(worker->agent().self()), to_string(owner())));
  }
  const ref_ptr<owned_object> object = kept_here(own);
  wait_until_made(*this, *object, no_timeout);
  object->use_here();
  return *object;
}

ref_ptr<owned_object> reference_handle::local_unguarded(const call_options& options) const {
  const reference_state& own = usable();
  if (own.fork) return {};
  ref_ptr<owned_object> object = kept_here(own);
  if (options.stop.get() && !object->ready()) return {};  // a call can be stopped
  const auto worker = own.table->worker();
  wait_until_made(*this, *object, options.timeout.value_or(worker->default_timeout()));
  if (object->value_made().policy().how != execution::concurrent) return {};
  object->use_here();
  return object;
}

future<void> reference_handle::created() const {
  const reference_state& own = state();
  held_output::release();
  if (own.known) return future<void>(ref_ptr<future_state<void>>(ref_ptr<fork_known>(own.known)));
  if (own.ended()) {
    try {
      own.check();
    } catch (...) {
      return make_failed_future<void>(std::current_exception());
    }
  }
  return make_ready_future();
}

namespace {
std::string type_of_object(owned_object& object) { return object.value_made().type_name(); }
const method_entry& type_method() {
  return usable_method<named<"ferry/type_of_object", &type_of_object>, method_flavour::object_call>();
}
const method_entry& await_method() { return usable_method<&await_object, method_flavour::object_call>(); }
}  // namespace

bool only_queries_object(std::uint64_t method) noexcept {
  static const std::uint64_t type = type_method().id;
  static const std::uint64_t object = await_method().id;
  return method == type || method == object;
}

future<std::string> reference_handle::type(const call_options& options) const {
  const reference_state& own = usable();
  const ref_ptr<owned_object> local = own.local();
  if (local && local->ready()) {  // at the owner: without a call, which would wait for a handler's place
    std::string name;
    if (auto error = caught([&] { name = local->value_made().type_name(); }))
      return make_failed_future<std::string>(std::move(error));
    return make_ready_future(std::move(name));
  }
  return usable().type([&] {
    object_call call(*this, options, type_method(), call_mode::later);
    return finish_async<named<"ferry/type_of_object", &type_of_object>, method_flavour::object_call>(call);
  });
}

void await_object(owned_object& object) { (void)object.value_made(); }

namespace {
const bool objects_served_by_all = [] {
  add_library_methods({type_method().id, await_method().id});
  return true;
}();
}  // namespace

// ---------------------------------------------------------------- references in payloads

namespace {
constexpr std::uint32_t empty_reference = 0xffffffff;
}

void write_reference(wire_output_archive& archive, const reference_handle& handle) {
  if (!handle) return archive.write_number(empty_reference);
  if (!archive.handles()) {
    throw_error(
        errc::not_serialisable,
        "a reference can be sent only as an argument or result of a call, or inside one: elsewhere it would not keep "
        "the object alive. Serialise what to_here() returns");
  }
  archive.write_number(archive.handles()->put(handle.get()));
}

reference_handle read_reference(wire_input_archive& archive) {
  const auto index = archive.read_number<std::uint32_t>();
  if (index == empty_reference) return {};
  if (!archive.handles()) throw_error(errc::malformed, "a reference outside a message between workers");
  return reference_handle(*static_cast<const std::shared_ptr<reference_state>*>(archive.handles()->get(index)));
}

}  // namespace ferry::inline v0::detail
