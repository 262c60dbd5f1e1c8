// Lists the events that may happen next in a model world.

#include <algorithm>
#include <utility>

#include "reference_model_turn.hpp"

namespace ferry_test::model {

namespace {

using event = action::kind;

bool is_in_flight(const world& now, message::kind what, int from, int to, std::uint64_t number) {
  return std::any_of(now.in_flight.begin(), now.in_flight.end(), [&](const message& each) {
    return each.what == what && each.from == from && each.to == to && each.number == number;
  });
}

/// Lists the possible events of one world.
class lister {
 public:
  lister(const world& now, const rules& with) : now_(now), with_(with) {}

  std::vector<action> all() {
    for (std::size_t i = 0; i < now_.in_flight.size(); ++i) {
      if (i == 0 || now_.in_flight[i] != now_.in_flight[i - 1]) list_message(i);
    }
    for (int actor = 0; actor < workers; ++actor) {
      if (acts(actor)) list_worker(actor);
    }
    list_application();
    return std::move(all_);
  }

 private:
  [[nodiscard]] const node& at(int actor) const { return *now_.nodes[static_cast<std::size_t>(actor)]; }
  [[nodiscard]] bool dead(int actor) const { return (now_.crashed & bit(actor)) != 0; }
  [[nodiscard]] bool acts(int actor) const { return !dead(actor) || with_.zombies; }
  void may(event what, int actor, std::size_t which = 0, std::size_t how = 0) {
    all_.push_back({what, false, actor, which, how});
  }
  void must(event what, int actor, std::size_t which = 0, std::size_t how = 0) {
    all_.push_back({what, !dead(actor), actor, which, how});
  }

  void list_message(std::size_t place) {
    const message& each = now_.in_flight[place];
    all_.push_back({event::deliver, !dead(each.from) && !dead(each.to), 0, place, 0});
    if (now_.losses > 0) may(event::lose, 0, place);
    if (now_.losses > 0 && each.what == message::kind::control) may(event::deliver_unanswered, 0, place);
    if (now_.duplicates > 0) may(event::duplicate, 0, place);
    // Not if a copy of the message may have arrived.
    const bool first = now_.duplicates == with_.duplicates;
    if (now_.unsent > 0 && each.what == message::kind::call && first && !dead(each.from)) {
      may(event::lose_unsent, 0, place);
    }
  }

  void list_worker(int actor) {
    const node& here = at(actor);
    std::size_t place = 0;
    for (const auto& control : here.outbox) {
      if (may_resend(actor, control)) must(event::resend, actor, place);
      ++place;
    }
    for (place = 0; place < here.making.size(); ++place) must(event::end_creation, actor, place);
    for (place = 0; place < here.owed.size(); ++place) {
      must(event::reply, actor, place);
      for (std::size_t i = 0; i < references(actor) && now_.replies > 0; ++i) may(event::reply, actor, place, i + 1);
    }
    for (place = 0; place < here.waiting.size() && now_.impatience > 0; ++place) may(event::stop_waiting, actor, place);
    for (const auto& [number, call] : here.calls) {
      if (dead(call.to)) continue;  // the death event handles it
      if (!under_way(actor, number, call)) {
        must(event::give_up, actor, number);
      } else if (now_.stop_level > 0) {
        may(event::give_up_early, actor, number);
      }
    }
    place = 0;
    for (const auto& [to, transfer] : here.in_replies) {
      if (dead(to)) {
        // the death event handles it
      } else if (!under_way(actor, to, transfer)) {
        if (with_.by != defect::no_query) must(event::query, actor, place);
      } else if (now_.stop_level > 0) {
        may(event::query_early, actor, place);
      }
      ++place;
    }
    for (int other = 0; other < workers; ++other) {
      if (dead(other) && other != actor && !dead(actor) && (here.deaths_known & bit(other)) == 0) {
        must(event::learn_death, actor, static_cast<std::size_t>(other));
      }
    }
    place = 0;
    for (const auto& [fork, held] : here.handles) {
      const bool in_use = std::any_of(here.calls.begin(), here.calls.end(),
                                      [&fork = fork](const auto& call) { return call.second.uses == fork; });
      if (!in_use) may(event::drop, actor, place);
      ++place;
    }
    for (place = 0; place < here.own_handles.size(); ++place) may(event::drop_own, actor, place);
    if (now_.crashes > 0) may(event::crash, actor);
  }

  void list_application() {
    for (std::size_t i = 0; i < with_.creates.size(); ++i) {
      const auto [actor, to] = with_.creates[i];
      if ((now_.created & bit(static_cast<int>(i))) != 0 || !may_call(actor, to)) continue;
      may(event::create, actor, i);
      for (std::size_t k = 0; k < references(actor) && with_.arguments; ++k) may(event::create, actor, i, k + 1);
    }
    for (std::size_t i = 0; i < with_.hands.size(); ++i) {
      const auto [actor, to] = with_.hands[i];
      if ((now_.handed & bit(static_cast<int>(i))) != 0 || !may_call(actor, to)) continue;
      for (std::size_t k = 0; k < at(actor).handles.size(); ++k) may(event::hand, actor, i, k);
      for (std::size_t k = 0; k < at(actor).own_handles.size(); ++k) may(event::hand_own, actor, i, k);
    }
    for (std::size_t i = 0; i < with_.uses.size(); ++i) {
      const int actor = with_.uses[i];
      if ((now_.used & bit(static_cast<int>(i))) != 0 || !acts(actor)) continue;
      for (std::size_t k = 0; k < at(actor).handles.size(); ++k) may(event::use, actor, i, k);
    }
  }

  [[nodiscard]] bool may_call(int actor, int to) const {
    return acts(actor) && (at(actor).deaths_known & bit(to)) == 0;
  }
  [[nodiscard]] std::size_t references(int actor) const {
    return at(actor).handles.size() + at(actor).own_handles.size();
  }

  [[nodiscard]] bool may_resend(int actor, const reference_effects::control& control) const {
    const int to = id_of(control.to);
    if (dead(to) || with_.by == defect::never_repeats || (at(to).deaths_known & bit(actor)) != 0) return false;
    return std::none_of(now_.in_flight.begin(), now_.in_flight.end(), [&](const message& each) {
      return each.control == control.what &&
             ((each.what == message::kind::control && each.from == actor && each.to == to) ||
              (each.what == message::kind::answer && each.from == to && each.to == actor));
    });
  }
  /// A call, or its reply.
  [[nodiscard]] bool under_way(int actor, std::uint64_t number, const open_call& call) const {
    const std::pair<int, std::uint64_t> here{actor, number};
    const node& callee = at(call.to);
    return is_in_flight(now_, message::kind::call, actor, call.to, number) ||
           is_in_flight(now_, message::kind::reply, call.to, actor, number) || callee.owed.contains(here) ||
           std::any_of(callee.making.begin(), callee.making.end(),
                       [&](const auto& each) { return each.second == here; }) ||
           std::any_of(callee.waiting.begin(), callee.waiting.end(),
                       [&](const auto& each) { return each.second == here; });
  }
  /// A reply with a reference.
  [[nodiscard]] bool under_way(int actor, int to, std::uint64_t transfer) const {
    return std::any_of(now_.in_flight.begin(), now_.in_flight.end(), [&](const message& each) {
      return each.what == message::kind::reply && each.from == actor && each.to == to && each.handed &&
             each.handed->transfer == transfer;
    });
  }

  const world& now_;
  const rules& with_;
  std::vector<action> all_;
};

}  // namespace

std::vector<action> actions(const world& now, const rules& with) { return lister(now, with).all(); }

}  // namespace ferry_test::model
