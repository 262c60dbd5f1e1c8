#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <ferry/transport/reactor.hpp>

#include "../../objects/object_visit.hpp"

namespace ferry::inline v0::detail {

class reference_table;

/// What a request with references keeps while it is served: those among its arguments, the object that it is for, the one
/// that it makes, and what must arrive before its handler may begin.
struct request_references final : object_visit {
  static constexpr char key_of = 0;

  request_references(incoming_call& of, std::shared_ptr<reference_table> references)
      : object_visit(of), table(std::move(references)) {}

  const std::shared_ptr<reference_table> table;
  bool awaits = false;  ///< the table counts it among the calls that wait for the target to be made
  object_id creation_id;
  ref_ptr<owned_object> made_before;  ///< made by an earlier copy of this call: this copy is only answered
  std::exception_ptr late;            ///< why the handler must not run, set at its deadline
  bool given_up = false;              ///< it was to make an object, but its caller gave it up, or it is a duplicate
  std::atomic<bool> answered{false};
  std::atomic<bool> begun{false};  ///< or refused
  timer_id limit = timer_id::none;
  work* at_limit = nullptr;
  std::atomic<int> missing{1};  ///< outstanding confirmations, plus one for admit() itself

  /// The turns that the call and those that wait for it hold. After the answer no caller waits for this call.
  [[nodiscard]] const call_chain* held_turns() const noexcept {
    return answered.load() || chain.empty() ? nullptr : &chain;
  }
  /// The caller's own error cannot say what happens here.
  void log_given_up() const noexcept;

  void before_handler(handler_start& start) override;
  void handler_ended(handler_result& result) override;
  void on_nested_request(outgoing_request& request) override;
  void ended() noexcept override;
  void stopped() noexcept override;
  void refused(const std::exception_ptr& why) noexcept override;
  void waiting(int change) noexcept override;
  void suspended() noexcept override;
  [[nodiscard]] const void* key() const noexcept override { return &key_of; }

 private:
  [[nodiscard]] bool gives_turn_away() const noexcept;
};

/// Of a call; null: it has none.
[[nodiscard]] request_references* references_of_request(const incoming_call* call) noexcept;

}  // namespace ferry::inline v0::detail
