#pragma once

// The references of one worker: adds to reference_protocol the objects, the handles, the messages, and the calls that
// wait.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/detail/reference_handle.hpp>
#include <ferry/transport/reactor.hpp>

#include "../../objects/turn_waits.hpp"
#include "../protocol/reference_messages.hpp"
#include "../protocol/reference_outbox.hpp"
#include "../protocol/reference_protocol.hpp"
#include "../protocol/reference_records.hpp"
#include "reference_state.hpp"

namespace ferry::inline v0::detail {

class worker_core;
struct request_references;

struct object_hash {
  std::size_t operator()(const object_id& object) const noexcept {
    return static_cast<std::size_t>((object.creator.incarnation.value ^ object.owner.incarnation.value) *
                                        0x9e3779b97f4a7c15U +
                                    object.number * 0xd6e8feb86659fd93U) ^
           static_cast<std::size_t>(object.creator.id.value);
  }
};

/// Thread-safe. Kept alive by handles; after the worker's shutdown they fail with reference_deleted.
class reference_table : public std::enable_shared_from_this<reference_table> {
 public:
  explicit reference_table(worker_core& worker);
  ~reference_table();

  [[nodiscard]] const peer_incarnation& self() const noexcept { return self_; }
  /// That incarnation has ended, and this worker has processed its end.
  [[nodiscard]] bool is_gone(const peer_incarnation& peer) const;
  /// Throws errc::reference_deleted once the worker has been shut down.
  [[nodiscard]] std::shared_ptr<worker_core> worker() const;
  [[nodiscard]] peer_incarnation peer(const call_target& to) const;

  // ---- handles
  reference_handle own(std::unique_ptr<owned_value> value);
  /// A handle of an object that a call is to make at `owner`. Must be followed by one of the four below.
  reference_handle create(const call_target& owner, const worker_info& name);
  void not_created(const reference_handle& made) noexcept;
  void created(const reference_handle& made) noexcept;
  /// The owner has answered that it could not make it.
  void creation_refused(const reference_handle& made, const std::exception_ptr& why) noexcept;
  /// The owner has not answered.
  void creation_lost(const reference_handle& made, const std::exception_ptr& why) noexcept;
  void dropped(reference_state& state) noexcept;

  // ---- references in messages
  handed_reference transfer(const reference_state& state, const peer_incarnation& to);
  void not_sent(const peer_incarnation& to, const std::vector<handed_reference>& references) noexcept;
  void arrived(const peer_incarnation& to, const std::vector<handed_reference>& references) noexcept;
  void query(const peer_incarnation& to, const std::vector<handed_reference>& references) noexcept;
  /// They are in the reply to that call, or (0) in a one-way call: queries the receiver unless they are settled in time.
  void watch(const peer_incarnation& to, const std::vector<handed_reference>& references, std::uint64_t call) noexcept;
  /// The references of a message from `from`, in the incarnation of its connection. Throws errc::malformed.
  std::shared_ptr<const handle_reader> receive(const reference_records& records, const call_target& from,
                                               std::vector<reference_handle>* unconfirmed);

  // ---- calls that are served
  /// A request that has arrived: reads its records, and holds it until everything that it needs is there.
  void admit(request_references& request) noexcept;
  /// It must not wait any more: if it has not begun, it ends with that error, and leaves its place in the turns of its
  /// object. After admit().
  void give_up(request_references& request, const std::exception_ptr& why) noexcept;
  /// The call has been answered.
  void done(request_references& request) noexcept;

  // ---- controls
  reference_answers serve(const call_target& from, const reference_batch& batch);
  void answered(const peer_incarnation& by, const std::vector<reference_control>& controls,
                const reference_answers& answers);
  void unanswered(const peer_incarnation& by) noexcept;
  bool send_fewer(const peer_incarnation& to) noexcept;

  // ---- the group
  void gone(worker_id id, incarnation_id incarnation) noexcept;
  /// The group has declared this worker dead: all its references fail.
  void fence(const std::string& reason) noexcept;
  /// That worker is leaving and takes no more calls: references to its objects fail, including those that arrive from
  /// now on. It may still use the references that it holds, and gets controls until it has terminated.
  void leaving(worker_id id, incarnation_id incarnation) noexcept;
  /// For shutdown, when no worker makes calls any more, or (alone) this worker does not: ends all forks, at the latest
  /// at the deadline.
  void clean_up(deadline until, bool alone);
  /// Interrupts the waits of a clean_up, including a later one: of one that is not alone, or (entirely) of any.
  void stop_clean_up(bool entirely) noexcept;
  /// Ends all references, resumes everything that waits, and stops sending.
  void close() noexcept;
  /// Destroys the objects, `all` of them or those that no handle of this worker keeps. Call it with `all` once no
  /// handler runs any more: an object may keep itself by a reference, alone or in a circle.
  void clear(bool all) noexcept;

  [[nodiscard]] reference_protocol::counts figures() const;
  [[nodiscard]] std::size_t unanswered_controls() const;
  /// How many were sent again, so far.
  [[nodiscard]] std::uint64_t repeated_controls() const;
  /// Amount of work left for clean_up, as a number that is summed over the group; 0: none.
  [[nodiscard]] std::uint64_t loose_ends() const noexcept;
  /// The references that other workers still have, as text.
  [[nodiscard]] std::vector<std::string> leaks() const;

 private:
  /// Until a reference in a reply is queried, again and again while its receiver awaits that reply.
  static constexpr std::chrono::seconds watch_time{2};
  /// By then one in a one-way call, of which its receiver knows nothing, has arrived or been lost.
  static constexpr std::chrono::seconds one_way_watch_time{10};
  /// Up to so many are kept for their memory when nothing waits in them.
  static constexpr std::size_t most_idle_outboxes = 64;

  struct control_call;
  struct end_control_call {
    void operator()(control_call* call) const noexcept;
  };
  using owned_control_call = std::unique_ptr<control_call, end_control_call>;
  struct received_references;
  struct timer_item;
  struct resume_call;
  struct parked_limit;
  struct release_work;
  /// Intrusive list of objects, linked by next_released.
  class object_list {
   public:
    object_list() noexcept = default;
    object_list(object_list&& other) noexcept = default;
    object_list& operator=(object_list&&) = delete;
    ~object_list() {
      while (pop()) {
      }
    }
    [[nodiscard]] bool empty() const noexcept { return !first_; }
    void push(ref_ptr<owned_object> object) noexcept {
      object->next_released = std::move(first_);
      first_ = std::move(object);
    }
    ref_ptr<owned_object> pop() noexcept {
      ref_ptr<owned_object> object = std::move(first_);
      if (object) first_ = std::move(object->next_released);
      return object;
    }

   private:
    ref_ptr<owned_object> first_;
  };
  // Actions that an event has caused, to be carried out without the mutex.
  struct consequences {
    object_list released;
    std::vector<std::pair<ref_ptr<owned_object>, object_id>> never_made;
    std::vector<std::shared_ptr<reference_state>> confirmed;
    std::vector<std::pair<std::shared_ptr<reference_state>, errc>> failed;
  };
  struct watched {
    clock::time_point due;
    peer_incarnation to;
    std::uint64_t transfer = 0;
    std::uint64_t call = 0;  // that of the reply; 0: a one-way call
  };

  [[nodiscard]] std::vector<std::uint64_t> awaited_replies(const peer_incarnation& from,
                                                           const reference_batch& batch) const;

  // With the mutex held.
  bool may_still_come(const peer_incarnation& from, const reference_control& query,
                      const std::vector<std::uint64_t>& awaited);
  void watch_again(const peer_incarnation& to, const reference_control& query);
  /// Returns whether there are controls to be sent at once. If it throws, `effects` keeps what has not been taken.
  bool take(reference_effects& effects, consequences& to_do);
  ref_ptr<owned_object> object_at(const object_id& object);
  ref_ptr<owned_object> expected_object(const object_id& object);
  std::shared_ptr<reference_state> make_state(const object_id& object);
  void arm(clock::time_point at) noexcept;
  void arm_for_all() noexcept;
  void reserve_for_one() noexcept;
  void disarm() noexcept;
  void add_held_forks(std::vector<std::shared_ptr<reference_state>>& to) const;
  // Without it.
  /// Ends the forks that have handles and for which `which` is true. Takes no memory.
  template <class Which, class Reason>
  void end_held_forks(const Which& which, const Reason& reason) noexcept;
  void carry_out(consequences&& to_do) noexcept;
  [[nodiscard]] std::exception_ptr why_never_made(const object_id& id) noexcept;
  /// Processes one event: `change` updates the protocol, then its effects are carried out without the mutex. If
  /// `change` throws, the effects up to that point are still carried out.
  template <class Change>
  void change(Change&& change) {
    consequences to_do;
    bool controls = false;
    std::exception_ptr failure;
    {
      const std::lock_guard lock(mutex_);
      reference_effects& effects = effects_;
      if (unarmed_) arm_for_all();
      try {
        reserve_for_one();
        if (unfinished_) protocol_.end_what_is_free(effects);
        unfinished_ = false;
        change(effects, to_do);
      } catch (...) {
        failure = std::current_exception();
      }
      try {
        controls = take(effects, to_do);
        effects.clear();
      } catch (...) {  // the next event takes the rest
        failure = std::current_exception();
      }
    }
    carry_out(std::move(to_do));
    if (controls) send_controls();
    if (failure) std::rethrow_exception(failure);
  }
  /// The same for an event that may release something. False: there was no memory for that; the next event releases it.
  template <class Change>
  bool end(Change&& ending) noexcept {
    try {
      change(std::forward<Change>(ending));
      return true;
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(mutex_);
      unfinished_ = true;
      return false;
    }
  }
  owned_control_call new_control_call();
  void recycle(owned_control_call call) noexcept;
  void send_controls() noexcept;
  void on_timer(const timer_item* item) noexcept;
  void release_later(object_list&& objects) noexcept;
  void begin(request_references& request, const std::exception_ptr& late, bool by_timer = false) noexcept;
  std::shared_ptr<reference_state> next_hold(std::optional<object_id>& last) noexcept;
  [[nodiscard]] bool is_over(const peer_incarnation& peer, std::uint64_t& question) const noexcept;
  void read_request(request_references& request, std::vector<reference_handle>& unconfirmed);
  void find_target(request_references& request, const object_id& object);
  void begin_creation(request_references& request, const object_id& object);
  std::shared_ptr<reference_state> state_of(const handed_reference& reference,
                                            const reference_protocol::receipt& receipt, consequences& to_do);
  void check_own(const object_id& object) const;
  [[noreturn]] void throw_shut_down() const;
  [[nodiscard]] std::exception_ptr lost(const reference_state& state, errc why) const noexcept;
  [[nodiscard]] peer_incarnation sender_of(const call_target& from, incarnation_id claimed) const;
  [[nodiscard]] std::string name_of(const peer_incarnation& peer) const;

  const std::weak_ptr<worker_core> worker_;
  const std::shared_ptr<reactor> timers_;
  const bool incarnations_known_;
  const peer_incarnation self_;
  turn_waits waits_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool closed_ = false;
  bool flush_controls_ = false;        // controls are not delayed for batching
  bool stopped_unless_alone_ = false;  // stop_clean_up() was called
  bool stopped_always_ = false;        // the same, entirely
  std::vector<std::string> left_;      // leaks() when clean_up gave up
  reference_protocol protocol_;
  std::unordered_map<object_id, ref_ptr<owned_object>, object_hash> objects_;
  reference_effects effects_;  // empty, but for those of events whose processing ran out of memory
  bool unfinished_ = false;    // the protocol could not release something for lack of memory
  bool unarmed_ = false;       // the timer is not set as it should be, for lack of memory
  object_list kept_;           // released, but there was no memory to post their destruction
  std::map<object_id, std::weak_ptr<reference_state>> holds_;  // local handles of own objects
  std::map<held_fork, std::weak_ptr<reference_state>> forks_;
  std::map<peer_incarnation, reference_outbox> outboxes_;
  owned_control_call spare_call_;
  std::uint64_t repeated_controls_ = 0;
  std::set<peer_incarnation> leaving_;                            // and not terminated
  std::deque<watched> watched_;                                   // both in the order of `due`
  std::deque<watched> late_;                                      // one-way calls that are not settled after watch_time
  std::set<std::pair<peer_incarnation, std::uint64_t>> doubted_;  // transfers that were asked for once, and are unknown
  timer_id timer_ = timer_id::none;
  timer_item* timer_work_ = nullptr;
  clock::time_point timer_at_{};
};

}  // namespace ferry::inline v0::detail
