#include <ferry/rpc/detail/object_call.hpp>

#include <atomic>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "../../worker/worker_core.hpp"
#include "../protocol/reference_records.hpp"
#include "reference_client.hpp"
#include "reference_table.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr const char* waits_at_the_owner =
    "; a call on an object may wait there for its turn or for the object to be made (the log of its owner says so)";

located_worker owner_of(const void* state, deadline until) {
  return static_cast<const reference_state*>(state)->owner(until);
}

void check_state(const void* state) { static_cast<const reference_state*>(state)->check(); }

call_place place_of(const reference_handle& object) {
  reference_state& state = object.usable();
  return {&owner_of, &state, state.shared_from_this(), waits_at_the_owner, &check_state};
}

}  // namespace

object_call::object_call(const reference_handle& object, const call_options& options, const method_entry& method,
                         call_mode mode)
    : outgoing_call(object.usable().table->worker(), place_of(object), options, method, mode), object_(object) {}

object_call::object_call(std::shared_ptr<worker_core> worker, const to& destination, const method_entry& method)
    : outgoing_call(std::move(worker), destination, method, call_mode::detached) {}

reference_handle object_call::make_object() {
  made_ = references_of(*worker())->create(target(), peer());
  return made_;
}

void object_call::drop_object(const reference_handle& made) noexcept { made.get()->table->not_created(made); }

void object_call::seal() {
  add_object_record(message, object_ ? &object_.get()->object : nullptr, made_ ? &made_.get()->object : nullptr);
  outgoing_call::seal();
}

// ---------------------------------------------------------------- the outcome of a creation

namespace {

// The reference tracks the object from here on.
class creation_call final : public async_call {
 public:
  creation_call(outgoing_call& call, reference_handle made) noexcept : async_call(call, true), made_(std::move(made)) {}
  void send(outgoing_call& call) { start(call); }
  void drop() noexcept override {
    if (references_count_.fetch_sub(1) == 1) delete this;
  }

 private:
  ~creation_call() = default;
  reference_table& table() noexcept { return *made_.get()->table; }
  void complete(inbound_message& reply) noexcept override {
    auto failure = caught([&] {
      check_reply(facts(), reply);
      table().created(made_);
    });
    if (failure) table().creation_refused(made_, explain(failure));
  }
  void set_error(std::exception_ptr error) noexcept override { table().creation_lost(made_, explain(error)); }
  void set_cancelled(std::exception_ptr error) noexcept override { table().creation_lost(made_, explain(error)); }
  void keep() noexcept override { references_count_.fetch_add(1); }

  // The error of the call, worded for later uses of the reference.
  static std::exception_ptr explain(const std::exception_ptr& why) noexcept {
    try {
      std::rethrow_exception(why);
    } catch (const error& e) {
      return make_error(e.kind(),
                        fmt::format("the creation by remote failed, and the object may not exist: {}", e.message()));
    } catch (...) {
      return why;
    }
  }

  reference_handle made_;
  std::atomic<int> references_count_{1};
};

}  // namespace

void object_call::run_creation(const reference_handle& object) {
  auto* call = new creation_call(*this, object);
  try {
    call->send(*this);
  } catch (...) {
    object.get()->table->not_created(object);
    call->drop();
    throw;
  }
  call->drop();
}

}  // namespace ferry::inline v0::detail
