// What may happen next in a model world.

#include <algorithm>
#include <utility>

#include "reference_model_turn.hpp"

namespace ferry_test::model {

namespace {

using event = action::kind;

bool flies(const world& now, message::kind what, int from, int to, std::uint64_t number) {
  return std::any_of(now.flying.begin(), now.flying.end(), [&](const message& each) {
    return each.what == what && each.from == from && each.to == to && each.number == number;
  });
}

/// Lists what may happen next.
class lister {
 public:
  lister(const world& now, const rules& with) : now_(now), with_(with) {}

  std::vector<action> all() {
    for (std::size_t i = 0; i < now_.flying.size(); ++i) {
      if (i == 0 || now_.flying[i] != now_.flying[i - 1]) list_message(i);
    }
    for (int who = 0; who < workers; ++who) {
      if (acts(who)) list_worker(who);
    }
    list_application();
    return std::move(all_);
  }

 private:
  [[nodiscard]] const node& at(int who) const { return *now_.nodes[static_cast<std::size_t>(who)]; }
  [[nodiscard]] bool dead(int who) const { return (now_.crashed & bit(who)) != 0; }
  [[nodiscard]] bool acts(int who) const { return !dead(who) || with_.zombies; }
  void may(event what, int who, std::size_t which = 0, std::size_t how = 0) {
    all_.push_back({what, false, who, which, how});
  }
  void must(event what, int who, std::size_t which = 0, std::size_t how = 0) {
    all_.push_back({what, !dead(who), who, which, how});
  }

  void list_message(std::size_t place) {
    const message& each = now_.flying[place];
    all_.push_back({event::deliver, !dead(each.from) && !dead(each.to), 0, place, 0});
    if (now_.losses > 0) may(event::lose, 0, place);
    if (now_.losses > 0 && each.what == message::kind::control) may(event::deliver_unanswered, 0, place);
    if (now_.duplicates > 0) may(event::duplicate, 0, place);
    // Not if a copy of it has arrived.
    const bool first = now_.duplicates == with_.duplicates;
    if (now_.unsent > 0 && each.what == message::kind::call && first && !dead(each.from)) {
      may(event::lose_unsent, 0, place);
    }
  }

  void list_worker(int who) {
    const node& here = at(who);
    std::size_t place = 0;
    for (const auto& control : here.outbox) {
      if (may_resend(who, control)) must(event::resend, who, place);
      ++place;
    }
    for (place = 0; place < here.making.size(); ++place) must(event::end_creation, who, place);
    for (place = 0; place < here.owed.size(); ++place) {
      must(event::reply, who, place);
      for (std::size_t i = 0; i < references(who) && now_.replies > 0; ++i) may(event::reply, who, place, i + 1);
    }
    for (const auto& [number, call] : here.calls) {
      if (dead(call.to)) continue;  // it will hear
      if (!under_way(who, number, call)) {
        must(event::give_up, who, number);
      } else if (now_.stop_level > 0) {
        may(event::lose_patience, who, number);
      }
    }
    place = 0;
    for (const auto& [to, transfer] : here.in_replies) {
      if (dead(to)) {
        // it will hear
      } else if (!under_way(who, to, transfer)) {
        if (with_.by != spoiled::no_query) must(event::query, who, place);
      } else if (now_.stop_level > 0) {
        may(event::query_early, who, place);
      }
      ++place;
    }
    for (int other = 0; other < workers; ++other) {
      if (dead(other) && other != who && !dead(who) && (here.heard & bit(other)) == 0) {
        must(event::hear, who, static_cast<std::size_t>(other));
      }
    }
    place = 0;
    for (const auto& [fork, held] : here.handles) {
      const bool in_use = std::any_of(here.calls.begin(), here.calls.end(),
                                      [&fork = fork](const auto& call) { return call.second.uses == fork; });
      if (!in_use) may(event::drop, who, place);
      ++place;
    }
    for (place = 0; place < here.own_handles.size(); ++place) may(event::drop_own, who, place);
    if (now_.crashes > 0) may(event::crash, who);
  }

  void list_application() {
    for (std::size_t i = 0; i < with_.creates.size(); ++i) {
      const auto [who, to] = with_.creates[i];
      if ((now_.created & bit(static_cast<int>(i))) != 0 || !may_call(who, to)) continue;
      may(event::create, who, i);
      for (std::size_t k = 0; k < references(who) && with_.arguments; ++k) may(event::create, who, i, k + 1);
    }
    for (std::size_t i = 0; i < with_.hands.size(); ++i) {
      const auto [who, to] = with_.hands[i];
      if ((now_.handed & bit(static_cast<int>(i))) != 0 || !may_call(who, to)) continue;
      for (std::size_t k = 0; k < at(who).handles.size(); ++k) may(event::hand, who, i, k);
      for (std::size_t k = 0; k < at(who).own_handles.size(); ++k) may(event::hand_own, who, i, k);
    }
    for (std::size_t i = 0; i < with_.uses.size(); ++i) {
      const int who = with_.uses[i];
      if ((now_.used & bit(static_cast<int>(i))) != 0 || !acts(who)) continue;
      for (std::size_t k = 0; k < at(who).handles.size(); ++k) may(event::use, who, i, k);
    }
  }

  [[nodiscard]] bool may_call(int who, int to) const { return acts(who) && (at(who).heard & bit(to)) == 0; }
  [[nodiscard]] std::size_t references(int who) const { return at(who).handles.size() + at(who).own_handles.size(); }

  [[nodiscard]] bool may_resend(int who, const reference_effects::control& control) const {
    const int to = id_of(control.to);
    if (dead(to) || with_.by == spoiled::never_repeats || (at(to).heard & bit(who)) != 0) return false;
    return std::none_of(now_.flying.begin(), now_.flying.end(), [&](const message& each) {
      return each.control == control.what &&
             ((each.what == message::kind::control && each.from == who && each.to == to) ||
              (each.what == message::kind::answer && each.from == to && each.to == who));
    });
  }
  /// A call, or its reply.
  [[nodiscard]] bool under_way(int who, std::uint64_t number, const open_call& call) const {
    const std::pair<int, std::uint64_t> here{who, number};
    const node& callee = at(call.to);
    return flies(now_, message::kind::call, who, call.to, number) ||
           flies(now_, message::kind::reply, call.to, who, number) || callee.owed.contains(here) ||
           std::any_of(callee.making.begin(), callee.making.end(),
                       [&](const auto& each) { return each.second == here; }) ||
           std::any_of(callee.waiting.begin(), callee.waiting.end(),
                       [&](const auto& each) { return each.second == here; });
  }
  /// A reply with a reference.
  [[nodiscard]] bool under_way(int who, int to, std::uint64_t transfer) const {
    return std::any_of(now_.flying.begin(), now_.flying.end(), [&](const message& each) {
      return each.what == message::kind::reply && each.from == who && each.to == to && each.handed &&
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
