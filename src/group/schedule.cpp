#include "schedule.hpp"

#include <algorithm>

namespace ferry::inline v0::detail {
namespace {

using step = group_step;
using what = group_step::what;

class schedule_maker {
 public:
  explicit schedule_maker(const schedule_of& of) : of_(of), n_(of.members), rank_(of.rank) {}

  std::vector<step> make() {
    switch (of_.op) {
      case collective::barrier: dissemination(); break;
      case collective::broadcast: broadcast(); break;
      case collective::all_reduce: of_.use == algorithm::ring ? ring_all_reduce() : exchange_all_reduce(); break;
      case collective::reduce: reduce(); break;
      case collective::all_gather: of_.use == algorithm::ring ? ring_gather(0, 0) : exchange_gather(); break;
      case collective::reduce_scatter: of_.use == algorithm::ring ? ring_scatter() : exchange_scatter(); break;
      case collective::all_to_all: all_to_all(); break;
      case collective::send: add(what::send, of_.root, 0); break;
      case collective::receive: add(what::receive, of_.root, 0); break;
    }
    return std::move(steps_);
  }

 private:
  void add(what kind, int peer, int part, std::uint32_t tag = 0) { steps_.push_back({kind, peer, part, -1, tag}); }
  void add_local(what kind, int part, int other = -1) { steps_.push_back({kind, -1, part, other, 0}); }
  [[nodiscard]] int around(int value) const { return ((value % n_) + n_) % n_; }

  void dissemination() {
    std::uint32_t tag = 0;
    for (int distance = 1; distance < n_; distance *= 2, ++tag) {
      add(what::send, around(rank_ + distance), -1, tag);
      add(what::receive, around(rank_ - distance), -1, tag);
    }
  }

  // The members of a tree whose root is virtual rank 0, or of a chain that begins there.
  struct kin {
    int parent = -1;
    std::vector<int> children;  // the one with the largest tree first
  };
  [[nodiscard]] kin relatives() const {
    kin found;
    const int own = around(rank_ - of_.root);
    const auto real = [&](int v) { return around(v + of_.root); };
    if (of_.use == algorithm::chain) {
      if (own != 0) found.parent = real(own - 1);
      if (own + 1 < n_) found.children.push_back(real(own + 1));
      return found;
    }
    int bit = 1;
    while (bit < n_ && (own & bit) == 0) bit *= 2;
    if (own != 0) found.parent = real(own - bit);
    for (bit /= 2; bit != 0; bit /= 2) {
      if (own + bit < n_) found.children.push_back(real(own + bit));
    }
    return found;
  }
  void broadcast() {
    const kin near = relatives();
    if (near.parent >= 0) add(what::receive, near.parent, 0);
    for (const int child : near.children) add(what::send, child, 0);
  }
  void reduce() {
    kin near = relatives();
    std::reverse(near.children.begin(), near.children.end());
    for (const int child : near.children) add(what::receive_reduce, child, 0);
    if (near.parent >= 0) {
      add(what::send, near.parent, 0);
    } else {
      add_local(what::scale, 0);
    }
  }

  void send_to_others(int part) {
    for (int i = 1; i != n_; ++i) add(what::send, around(rank_ + i), part);
  }
  // By rank, so that every member adds in one order.
  void exchange_all_reduce() {
    add_local(what::copy, 1, 0);
    send_to_others(1);
    for (int from = 0; from != n_; ++from) {
      if (from == rank_) {
        if (from != 0) add_local(what::reduce, 0, 1);
      } else {
        // The first one takes the place of this member's elements, which are in part 1.
        add(from == 0 ? what::receive : what::receive_reduce, from, 0);
      }
    }
    add_local(what::scale, 0);
  }
  void exchange_gather() {
    send_to_others(rank_);
    for (int i = 1; i != n_; ++i) add(what::receive, around(rank_ - i), around(rank_ - i));
  }
  void exchange_scatter() {
    for (int i = 1; i != n_; ++i) add(what::send, around(rank_ + i), around(rank_ + i));
    for (int from = 0; from != n_; ++from) {
      if (from == rank_) {
        add_local(from == 0 ? what::copy : what::reduce, n_, rank_);
      } else {
        add(from == 0 ? what::receive : what::receive_reduce, from, n_);
      }
    }
    add_local(what::scale, n_);
  }
  void all_to_all() {
    add_local(what::copy, n_ + rank_, rank_);
    for (int i = 1; i != n_; ++i) add(what::send, around(rank_ + i), around(rank_ + i));
    for (int i = 1; i != n_; ++i) add(what::receive, around(rank_ - i), n_ + around(rank_ - i));
  }

  // After it this member has the whole of share rank + shift + 1.
  void ring_reduce(int shift) {
    for (int s = 0; s != n_ - 1; ++s) {
      add(what::send, around(rank_ + 1), around(rank_ + shift - s), static_cast<std::uint32_t>(s));
      add(what::receive_reduce, around(rank_ - 1), around(rank_ + shift - s - 1), static_cast<std::uint32_t>(s));
    }
  }
  // Before it this member has the whole of share rank + shift.
  void ring_gather(int shift, std::uint32_t tag) {
    for (int s = 0; s != n_ - 1; ++s) {
      add(what::send, around(rank_ + 1), around(rank_ + shift - s), tag + static_cast<std::uint32_t>(s));
      add(what::receive, around(rank_ - 1), around(rank_ + shift - s - 1), tag + static_cast<std::uint32_t>(s));
    }
  }
  void ring_all_reduce() {
    ring_reduce(0);
    add_local(what::scale, around(rank_ + 1));
    ring_gather(1, static_cast<std::uint32_t>(n_));
  }
  void ring_scatter() {
    ring_reduce(-1);
    add_local(what::copy, n_, rank_);
    add_local(what::scale, n_);
  }

  const schedule_of of_;
  const int n_;
  const int rank_;
  std::vector<step> steps_;
};

}  // namespace

std::vector<group_step> make_schedule(const schedule_of& what) { return schedule_maker(what).make(); }

}  // namespace ferry::inline v0::detail
