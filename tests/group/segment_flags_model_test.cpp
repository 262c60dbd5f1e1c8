// Every execution of the protocol of segment_flags.hpp that the memory model of C++ allows, for two members and one slot: each load may
// give any write that the thread's view of that word does not exclude. A view is, for each word, the oldest write that may still be
// seen; a release passes the writer's view on with the value, an acquire takes it over. Sequentially consistent accesses
// of one word see each other in the order in which they are made. Weakening an order of the protocol must be found.

#include "group/segment_flags.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace segment_flags_model_test {

using ferry::detail::flag_orders;
using ferry::detail::segment_orders;

// Words: by member, the bytes of its slot, `in`, `out`, `sleeps`.
constexpr int words_of_member = 4;
constexpr int words = 2 * words_of_member;
constexpr int data_word = 0;
constexpr int in_word = 1;
constexpr int out_word = 2;
constexpr int sleeps_word = 3;
constexpr int pieces = 2;
using view = std::array<std::uint8_t, words>;

struct written {
  std::uint8_t value = 0;
  view passes_on{};  // with a release; else nothing
};

// Where a member is in its program; each step is one access.
enum class at : std::uint8_t {
  await_room,
  write_data,
  publish_in,
  look_after_in,
  await_in,
  announce,
  look_again,
  asleep,
  read_data,
  publish_out,
  look_after_out,
  end,
};

struct member {
  at where = at::await_room;
  std::uint8_t piece = 0;
  bool waits_for_room = false;  // asleep
  std::uint8_t wakes = 0;       // that have come
  view sees{};
};

struct state {
  std::array<std::vector<written>, words> history;
  view sequential{};  // the last sequentially consistent write of each word
  std::array<member, 2> members;

  [[nodiscard]] std::string key() const {
    std::string text;
    for (const auto& each : history) {
      for (const written& one : each) {
        text += static_cast<char>(one.value);
        text.append(one.passes_on.begin(), one.passes_on.end());
      }
      text += '\xff';
    }
    text.append(sequential.begin(), sequential.end());
    for (const member& each : members) {
      text += static_cast<char>(each.where);
      text += static_cast<char>(each.piece);
      text += static_cast<char>(each.waits_for_room);
      text += static_cast<char>(each.wakes);
      text.append(each.sees.begin(), each.sees.end());
    }
    return text;
  }
};

bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_seq_cst;
}
bool acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_seq_cst;
}

class explorer {
 public:
  explicit explorer(const flag_orders& orders) : orders_(orders) {}

  /// What went wrong first; empty: nothing does.
  std::string explore() {
    state first;
    for (auto& each : first.history) each.push_back({});
    pending_.push_back(first);
    while (!pending_.empty() && problem_.empty()) {
      const state now = std::move(pending_.back());
      pending_.pop_back();
      if (!seen_.insert(now.key()).second) continue;
      bool moved = false;
      for (int who = 0; who != 2; ++who) moved |= step(now, who);
      const auto ended = [](const member& each) { return each.where == at::end; };
      if (!moved && !std::all_of(now.members.begin(), now.members.end(), ended)) problem_ = "a member sleeps forever";
    }
    return problem_;
  }
  [[nodiscard]] std::size_t states() const { return seen_.size(); }

 private:
  static int word(int who, int which) { return who * words_of_member + which; }

  static void store(state& s, int who, int where, std::uint8_t value, std::memory_order order) {
    const auto slot = static_cast<std::size_t>(where);
    member& self = s.members[static_cast<std::size_t>(who)];
    self.sees[slot] = static_cast<std::uint8_t>(s.history[slot].size());
    s.history[slot].push_back({value, releases(order) ? self.sees : view{}});
    if (order == std::memory_order_seq_cst) s.sequential[slot] = self.sees[slot];
  }
  // Calls `then` with each state that the load may lead to, and the value.
  template <class Then>
  static void load(const state& from, int who, int where, std::memory_order order, Then&& then) {
    const auto slot = static_cast<std::size_t>(where);
    std::uint8_t oldest = from.members[static_cast<std::size_t>(who)].sees[slot];
    if (order == std::memory_order_seq_cst) oldest = std::max(oldest, from.sequential[slot]);
    for (std::size_t i = oldest; i != from.history[slot].size(); ++i) {
      state s = from;
      member& self = s.members[static_cast<std::size_t>(who)];
      self.sees[slot] = std::max(self.sees[slot], static_cast<std::uint8_t>(i));
      if (acquires(order)) {
        for (std::size_t w = 0; w != self.sees.size(); ++w) {
          self.sees[w] = std::max(self.sees[w], s.history[slot][i].passes_on[w]);
        }
      }
      then(std::move(s), self_of(s, who), from.history[slot][i].value);
    }
  }
  static member& self_of(state& s, int who) { return s.members[static_cast<std::size_t>(who)]; }

  void go_on(state s) { pending_.push_back(std::move(s)); }

  // False: it cannot move.
  bool step(const state& now, int who) {
    const int other = 1 - who;
    const member& self = now.members[static_cast<std::size_t>(who)];
    const auto number = static_cast<std::uint8_t>(self.piece + 1);
    const auto to = [&](state s, at where) {
      s.members[static_cast<std::size_t>(who)].where = where;
      go_on(std::move(s));
    };
    // A number of the other one, that must be at least `least`.
    const auto await = [&](int which, std::uint8_t least, std::memory_order order, at there, at else_there) {
      load(now, who, word(other, which), order,
           [&](state s, member&, std::uint8_t value) { to(std::move(s), value >= least ? there : else_there); });
    };
    const auto look_for_sleeper = [&](at next) {
      load(now, who, word(other, sleeps_word), orders_.look_for_sleepers, [&](state s, member&, std::uint8_t value) {
        if (value != 0) {  // the exchange: reads the last write
          const auto slot = static_cast<std::size_t>(word(other, sleeps_word));
          if (s.history[slot].back().value != 0) {
            store(s, who, word(other, sleeps_word), 0, std::memory_order_seq_cst);
            ++s.members[static_cast<std::size_t>(other)].wakes;
          }
        }
        to(std::move(s), next);
      });
    };
    switch (self.where) {
      case at::await_room: {  // one slot: the other one has read the piece before
        state s = now;
        s.members[static_cast<std::size_t>(who)].waits_for_room = true;
        load(s, who, word(other, out_word), orders_.observe, [&](state next, member&, std::uint8_t value) {
          to(std::move(next), value >= self.piece ? at::write_data : at::announce);
        });
        return true;
      }
      case at::write_data: {
        state s = now;
        store(s, who, word(who, data_word), number, std::memory_order_relaxed);
        to(std::move(s), at::publish_in);
        return true;
      }
      case at::publish_in: {
        state s = now;
        store(s, who, word(who, in_word), number, orders_.publish);
        s.members[static_cast<std::size_t>(who)].waits_for_room = false;
        to(std::move(s), at::look_after_in);
        return true;
      }
      case at::look_after_in: look_for_sleeper(at::await_in); return true;
      case at::await_in: await(in_word, number, orders_.observe, at::read_data, at::announce); return true;
      case at::announce: {
        state s = now;
        store(s, who, word(who, sleeps_word), 1, orders_.announce);
        to(std::move(s), at::look_again);
        return true;
      }
      case at::look_again:
        if (self.waits_for_room) {
          await(out_word, self.piece, orders_.look_again, at::await_room, at::asleep);
        } else {
          await(in_word, number, orders_.look_again, at::await_in, at::asleep);
        }
        return true;
      case at::asleep: {
        if (self.wakes == 0) return false;
        state s = now;  // the message of the one that wakes it passes its view on
        member& woken = s.members[static_cast<std::size_t>(who)];
        woken.wakes = 0;
        for (std::size_t w = 0; w != woken.sees.size(); ++w) {
          woken.sees[w] = std::max(woken.sees[w], now.members[static_cast<std::size_t>(other)].sees[w]);
        }
        to(std::move(s), self.waits_for_room ? at::await_room : at::await_in);
        return true;
      }
      case at::read_data:
        load(now, who, word(other, data_word), std::memory_order_relaxed, [&](state s, member&, std::uint8_t value) {
          if (value != number) problem_ = "bytes of another piece are read";
          to(std::move(s), at::publish_out);
        });
        return true;
      case at::publish_out: {
        state s = now;
        store(s, who, word(who, out_word), number, orders_.publish);
        to(std::move(s), at::look_after_out);
        return true;
      }
      case at::look_after_out: {
        state s = now;
        const bool last = number == pieces;
        if (!last) ++s.members[static_cast<std::size_t>(who)].piece;
        load(s, who, word(other, sleeps_word), orders_.look_for_sleepers, [&](state next, member&, std::uint8_t value) {
          const auto slot = static_cast<std::size_t>(word(other, sleeps_word));
          if (value != 0 && next.history[slot].back().value != 0) {
            store(next, who, word(other, sleeps_word), 0, std::memory_order_seq_cst);
            ++next.members[static_cast<std::size_t>(other)].wakes;
          }
          to(std::move(next), last ? at::end : at::await_room);
        });
        return true;
      }
      case at::end: return false;
    }
    return false;
  }

  const flag_orders orders_;
  std::vector<state> pending_;
  std::set<std::string> seen_;
  std::string problem_;
};

TEST_CASE("segment flags: every execution reads the right bytes, and no member sleeps forever") {
  explorer all(segment_orders);
  CHECK(all.explore() == "");
  CHECK(all.states() > 1000);
}

TEST_CASE("segment flags: each order of the protocol is needed") {
  const auto found = [](auto&& weaken) {
    flag_orders orders = segment_orders;
    weaken(orders);
    return explorer(orders).explore();
  };
  constexpr auto relaxed = std::memory_order_relaxed;
  CHECK(found([](flag_orders& o) { o.publish = relaxed; }) != "");
  CHECK(found([](flag_orders& o) { o.observe = relaxed; }) == "bytes of another piece are read");
  CHECK(found([](flag_orders& o) { o.publish = std::memory_order_release; }) == "a member sleeps forever");
  CHECK(found([](flag_orders& o) { o.announce = std::memory_order_release; }) == "a member sleeps forever");
  CHECK(found([](flag_orders& o) { o.look_again = std::memory_order_acquire; }) == "a member sleeps forever");
  CHECK(found([](flag_orders& o) { o.look_for_sleepers = std::memory_order_acquire; }) == "a member sleeps forever");
}

}  // namespace segment_flags_model_test
