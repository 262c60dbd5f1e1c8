#include "reference_table.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "../../../transport/reactor/io_threads.hpp"
#include "../../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

peer_incarnation own_incarnation(const agent& agent, bool lives_known) {
  return {agent.self().id(), lives_known ? agent.incarnation() : incarnation_id{}};
}

}  // namespace

reference_table::reference_table(worker_core& worker)
    : worker_(worker.weak_from_this()),
      timers_(worker.agent_unchecked().reactor()),
      incarnations_known_(
          worker.agent_unchecked().members().locate(worker.agent_unchecked().self().id(), {}).incarnation !=
          incarnation_id{}),
      self_(own_incarnation(worker.agent_unchecked(), incarnations_known_)),
      protocol_(self_) {
  effects_.reserve(1);
}

reference_table::~reference_table() = default;

std::shared_ptr<worker_core> reference_table::worker() const {
  auto own = worker_.lock();
  if (!own || own->is_shut_down()) throw_shut_down();
  return own;
}

void reference_table::throw_shut_down() const {
  throw_error(errc::reference_deleted,
              fmt::format("the worker that had this reference (id {}) has been shut down, and its references with it",
                          self_.id.value));
}

peer_incarnation reference_table::peer(const call_target& to) const {
  if (to.id == self_.id) return self_;
  if (!incarnations_known_) return {to.id, {}};
  if (to.incarnation != incarnation_id{}) return {to.id, to.incarnation};
  return {to.id, worker()->agent().members().locate(to.id, {}).incarnation};
}

// The id may belong to another incarnation by now: a message may be late. The incarnation that a message claims is used
// only where the backend does not provide the connection's one.
peer_incarnation reference_table::sender_of(const call_target& from, incarnation_id claimed) const {
  if (from.id == self_.id) return self_;
  if (!incarnations_known_) return {from.id, {}};
  return {from.id, from.incarnation == incarnation_id{} ? claimed : from.incarnation};
}

bool reference_table::is_gone(const peer_incarnation& peer) const {
  const std::lock_guard lock(mutex_);
  return protocol_.is_gone(peer);
}

std::string reference_table::name_of(const peer_incarnation& peer) const {
  try {
    if (const auto own = worker_.lock()) {
      const agent& agent = own->agent_unchecked();
      if (peer == self_) return agent.self().name();
      // Without waiting.
      const located_worker there = agent.members().locate(peer.id, deadline(clock::now()));
      if (there.incarnation == peer.incarnation) return there.who.name();
    }
  } catch (const error&) {  // NOLINT(bugprone-empty-catch): it has left; use its id
  }
  return fmt::format("worker {}", peer.id.value);
}

// ---------------------------------------------------------------- events and what follows from them

// So that an event does not stop halfway for lack of memory. There is room unless earlier effects are still there.
void reference_table::reserve_for_one() noexcept {
  try {
    effects_.reserve(1);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the event may need less
  }
}

bool reference_table::take(reference_effects& effects, consequences& to_do) {
  bool due = false;
  clock::time_point now{};
  // Controls for this worker itself need no message; handling one may append more.
  std::size_t taken = 0;
  try {
    for (; taken != effects.controls.size(); ++taken) {
      const reference_effects::control each = effects.controls[taken];
      if (each.to == self_) {
        const reference_answer answer = protocol_.on_control(self_, each.what, effects);
        protocol_.on_answer(self_, each.what, answer, effects);
      } else if (!closed_) {
        if (now == clock::time_point()) now = clock::now();
        reference_outbox& outbox = outboxes_[each.to];
        outbox.add(each.what, now, flush_controls_);
        if (outbox.due(now)) {
          due = true;
        } else if (outbox.waits()) {
          arm(outbox.due_at());
        }
      }
    }
    to_do.never_made.reserve(to_do.never_made.size() + effects.never_made.size());
    to_do.confirmed.reserve(to_do.confirmed.size() + effects.confirmed.size());
    to_do.failed.reserve(to_do.failed.size() + effects.failed.size());
  } catch (...) {
    effects.controls.erase(effects.controls.begin(), effects.controls.begin() + static_cast<std::ptrdiff_t>(taken));
    throw;
  }
  // From here on nothing is allocated. One that is never made may be released by the same event, but calls wait for it:
  // collect these first.
  for (const object_id& each : effects.never_made) {
    if (const auto found = objects_.find(each); found != objects_.end())
      to_do.never_made.emplace_back(found->second, each);
  }
  for (const object_id& each : effects.released) {
    if (auto found = objects_.extract(each)) to_do.released.push(std::move(found.mapped()));
  }
  for (const held_fork& each : effects.confirmed) {
    if (const auto found = forks_.find(each); found != forks_.end()) {
      if (auto state = found->second.lock()) to_do.confirmed.push_back(std::move(state));
    }
  }
  for (const auto& each : effects.failed) {
    if (const auto found = forks_.find(each.fork); found != forks_.end()) {
      if (auto state = found->second.lock()) to_do.failed.emplace_back(std::move(state), each.why);
    }
  }
  changed_.notify_all();
  return due;
}

void reference_table::carry_out(consequences&& to_do) noexcept {
  for (const auto& state : to_do.confirmed) {
    if (state->known) state->known->try_set_value();
  }
  for (const auto& [state, why] : to_do.failed) state->end(lost(*state, why));
  for (const auto& [object, id] : to_do.never_made) object->fail(why_never_made(id));
  if (!to_do.released.empty()) release_later(std::move(to_do.released));
}

// Where this worker was to make it for itself: why its creation failed.
std::exception_ptr reference_table::why_never_made(const object_id& id) noexcept {
  std::shared_ptr<reference_state> own;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = holds_.find(id); found != holds_.end()) own = found->second.lock();
  }
  try {
    if (own) own->check();
    throw_error(errc::reference_deleted,
                fmt::format("the call of {} that was to make object {}@{} has not arrived at {} and will be refused",
                            name_of(id.creator), id.number, id.creator.id.value, name_of(self_)));
  } catch (...) {
    return current_error();
  }
}

struct reference_table::release_work : work {
  context_ptr context;  // the owner's: destructors may make calls
  object_list objects;
};

// User destructors must not run on a reading thread. If there is no memory to post them to another thread, the objects
// are destroyed with those that are released next, or with the worker.
void reference_table::release_later(object_list&& objects) noexcept {
  const auto own = worker_.lock();
  if (!own) return;
  std::unique_ptr<release_work> item;
  try {
    item = std::make_unique<release_work>();
    item->context = context_ptr(new call_context(own));
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    while (auto each = objects.pop()) kept_.push(std::move(each));
    return;
  }
  while (auto each = objects.pop()) item->objects.push(std::move(each));
  {
    const std::lock_guard lock(mutex_);
    while (auto each = kept_.pop()) item->objects.push(std::move(each));
  }
  item->run = [](work* self) noexcept {
    const std::unique_ptr<release_work> owned(static_cast<release_work*>(self));
    const context_scope scope(owned->context);
    while (owned->objects.pop()) {
    }
  };
  own->post(item.release());
}

std::exception_ptr reference_table::lost(const reference_state& state, errc why) const noexcept {
  try {
    const std::string owner = name_of(state.object.owner);
    return make_error(
        why,
        why == errc::peer_lost
            ? fmt::format("the owner of the object, {}, is dead or has left the group: the "
                          "object is lost{}",
                          owner,
                          state.known && !state.known->ready() ? ", before the owner had confirmed the reference" : "")
            : fmt::format("the object of {} that the reference refers to has been deleted", owner));
  } catch (const std::exception&) {
    return std::current_exception();
  }
}

// ---------------------------------------------------------------- handles

ref_ptr<owned_object> reference_table::object_at(const object_id& object) {
  const auto found = objects_.find(object);
  return found == objects_.end() ? ref_ptr<owned_object>() : found->second;
}

// For an object that is here or may still be created.
ref_ptr<owned_object> reference_table::expected_object(const object_id& object) {
  if (auto known = object_at(object)) return known;
  auto fresh = owned_object::make();
  objects_.emplace(object, fresh);
  return fresh;
}

std::shared_ptr<reference_state> reference_table::make_state(const object_id& object) {
  return std::make_shared<reference_state>(shared_from_this(), object);
}

reference_handle reference_table::own(std::unique_ptr<owned_value> value) {
  const auto refuse = [&] {
    throw_error(errc::not_initialized,
                fmt::format("worker {} has been shut down; call init_rpc again", self_.id.value));
  };
  const auto owner = worker_.lock();
  if (!owner || owner->is_shut_down()) refuse();
  const ferry::agent& agent = owner->agent_unchecked();
  auto made = owned_object::make();
  made->finish(std::move(value), agent.members().uses_devices() ? agent.members().devices() : std::vector<device>());
  const std::lock_guard lock(mutex_);
  if (closed_) refuse();
  const object_id object = protocol_.own();
  auto state = make_state(object);
  state->set_local(made);
  holds_[object] = state;
  objects_.emplace(object, std::move(made));
  return reference_handle(std::move(state));
}

reference_handle reference_table::create(const call_target& owner, const worker_info& name) {
  const peer_incarnation where = peer(owner);
  const std::lock_guard lock(mutex_);
  const object_id object = protocol_.create(where);
  auto state = std::make_shared<reference_state>(shared_from_this(), object, name);
  state->known = ref_ptr<fork_known>::adopt(new fork_known);
  state->known->of = state;
  if (where == self_) {
    state->set_local(expected_object(object));
    holds_[object] = state;
  } else {
    state->fork = protocol_.creating_fork(object);
    forks_[*state->fork] = state;
  }
  return reference_handle(std::move(state));
}

void reference_table::not_created(const reference_handle& made) noexcept {
  end([&](reference_effects& effects, consequences&) { protocol_.not_created(made.get()->object, effects); });
}

void reference_table::created(const reference_handle& made) noexcept {
  end([&](reference_effects& effects, consequences&) { protocol_.confirm_creation(made.get()->object, effects); });
  made.get()->known->try_set_value();  // needed at the owner; for other workers confirm_creation has done it
}

void reference_table::creation_refused(const reference_handle& made, const std::exception_ptr& why) noexcept {
  made.get()->end(why);
  end([&](reference_effects& effects, consequences&) {
    protocol_.confirm_creation(made.get()->object, effects);
    // Release the fork now instead of when the last handle is destroyed.
    if (made.get()->fork) protocol_.drop(*made.get()->fork, effects);
  });
}

void reference_table::creation_lost(const reference_handle& made, const std::exception_ptr& why) noexcept {
  made.get()->end(why);
  end([&](reference_effects& effects, consequences&) { protocol_.query_creation(made.get()->object, effects); });
}

void reference_table::dropped(reference_state& state) noexcept {
  if (is_forked_child()) return;  // it belongs to the parent process, whose threads may have held the mutex
  end([&](reference_effects& effects, consequences&) {
    // Another state may have replaced this one after its last handle was destroyed.
    if (state.fork) {
      const auto found = forks_.find(*state.fork);
      if (found == forks_.end() || !found->second.expired()) return;
      forks_.erase(found);
      protocol_.drop(*state.fork, effects);
    } else {
      const auto found = holds_.find(state.object);
      if (found == holds_.end() || !found->second.expired()) return;
      holds_.erase(found);
      protocol_.drop_locally(state.object, effects);
    }
  });
}

// ---------------------------------------------------------------- references in messages

handed_reference reference_table::transfer(const reference_state& state, const peer_incarnation& to) {
  handed_reference handed;
  errc why{};
  {
    const std::lock_guard lock(mutex_);
    handed = state.fork ? protocol_.transfer(*state.fork, to) : protocol_.transfer(state.object, to);
    why = protocol_.is_gone(state.object.owner) ? errc::peer_lost : errc::reference_deleted;
  }
  if (handed.transfer == 0) std::rethrow_exception(lost(state, why));  // it has just ended
  return handed;
}

void reference_table::not_sent(const peer_incarnation& to, const std::vector<handed_reference>& references) noexcept {
  for (const auto& each : references) {
    end([&](reference_effects& effects, consequences&) { protocol_.not_sent(to, each.transfer, effects); });
  }
}

void reference_table::arrived(const peer_incarnation& to, const std::vector<handed_reference>& references) noexcept {
  for (const auto& each : references) {
    end([&](reference_effects& effects, consequences&) { protocol_.arrived(to, each.transfer, effects); });
  }
}

void reference_table::query(const peer_incarnation& to, const std::vector<handed_reference>& references) noexcept {
  for (const auto& each : references) {
    end([&](reference_effects& effects, consequences&) { protocol_.query(to, each.transfer, effects); });
  }
}

void reference_table::watch(const peer_incarnation& to, const std::vector<handed_reference>& references,
                            std::uint64_t call) noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  const auto due = clock::now() + watch_time;
  for (const auto& each : references) watched_.push_back({due, to, each.transfer, call});
  arm(due);
}

// With the mutex held.
void reference_table::watch_again(const peer_incarnation& to, const reference_control& query) {
  constexpr std::chrono::milliseconds at_shutdown{100};
  const auto due = clock::now() + (flush_controls_ ? at_shutdown : clock::duration(watch_time));
  const auto later =
      std::find_if(watched_.begin(), watched_.end(), [&](const watched& each) { return due < each.due; });
  watched_.insert(later, {due, to, query.number, query.object.number});
  arm(due);
}

// ---------------------------------------------------------------- figures

reference_protocol::counts reference_table::figures() const {
  const std::lock_guard lock(mutex_);
  return protocol_.figures();
}

std::size_t reference_table::unanswered_controls() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [peer, outbox] : outboxes_) sum += outbox.size();
  return sum;
}

std::uint64_t reference_table::repeated_controls() const {
  const std::lock_guard lock(mutex_);
  return repeated_controls_;
}

std::uint64_t reference_table::loose_ends() const noexcept {
  const std::lock_guard lock(mutex_);
  const auto now = protocol_.figures();
  const auto busy =
      std::count_if(outboxes_.begin(), outboxes_.end(), [](const auto& each) { return !each.second.empty(); });
  return now.owners + now.users + now.pending_children + watched_.size() + late_.size() +
         static_cast<std::uint64_t>(busy);
}

std::vector<std::string> reference_table::leaks() const {
  std::vector<reference_protocol::fork_here> forks;
  {
    const std::lock_guard lock(mutex_);
    if (!left_.empty()) return left_;
    forks = protocol_.forks();
  }
  std::vector<std::string> texts;
  for (const auto& each : forks) {
    texts.push_back(fmt::format("object {} made by {}, held by {} as fork {}", each.object.number,
                                name_of(each.object.creator), name_of(each.holder), each.key.number));
  }
  return texts;
}

}  // namespace ferry::inline v0::detail
