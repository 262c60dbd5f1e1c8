#include "group/schedule.hpp"

#include <complex>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/base/error.hpp>

#include "group/reduce_elements.hpp"

namespace schedule_test {

using ferry::algorithm;
using ferry::collective;
using ferry::detail::group_step;
using ferry::detail::make_schedule;
using ferry::detail::schedule_of;

// All members of a group, whose parts are sets of what was added to them: the schedules run until all have ended, in turns of an
// order that `seed` makes.
struct contribution {
  std::multiset<int> of;  // ranks whose elements are in it
  friend bool operator==(const contribution&, const contribution&) = default;
};

class model {
 public:
  model(collective op, algorithm use, int n, int root) : n_(n) {
    for (int rank = 0; rank != n; ++rank) {
      steps_.push_back(make_schedule({op, use, rank, n, root}));
      parts_.emplace_back();
      next_.push_back(0);
    }
  }
  std::map<int, contribution>& parts(int rank) { return parts_[static_cast<std::size_t>(rank)]; }

  void run(unsigned seed) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int i = 0; i != n_; ++i) {
        const int turned = (i + static_cast<int>(seed)) % n_;
        const int rank = seed % 2 == 0 ? turned : n_ - 1 - turned;
        while (advance(rank)) moved = true;
      }
    }
    for (int rank = 0; rank != n_; ++rank) {
      INFO("rank " << rank << " of " << n_);
      CHECK(next_[static_cast<std::size_t>(rank)] == steps_[static_cast<std::size_t>(rank)].size());
    }
    for (const auto& [key, queue] : mail_) CHECK(queue.empty());
  }

 private:
  bool advance(int rank) {
    auto& next = next_[static_cast<std::size_t>(rank)];
    const auto& steps = steps_[static_cast<std::size_t>(rank)];
    if (next == steps.size()) return false;
    const group_step& step = steps[next];
    auto& own = parts(rank);
    switch (step.kind) {
      case group_step::what::send: mail_[{rank, step.peer, step.tag}].push_back(own[step.part]); break;
      case group_step::what::receive:
      case group_step::what::receive_reduce: {
        auto& queue = mail_[{step.peer, rank, step.tag}];
        if (queue.empty()) return false;
        if (step.kind == group_step::what::receive) {
          own[step.part] = queue.front();
        } else {
          own[step.part].of.insert(queue.front().of.begin(), queue.front().of.end());
        }
        queue.pop_front();
        break;
      }
      case group_step::what::copy: own[step.part] = own[step.other]; break;
      case group_step::what::reduce: {
        const contribution other = own[step.other];
        own[step.part].of.insert(other.of.begin(), other.of.end());
        break;
      }
      case group_step::what::scale: break;
      case group_step::what::fetch:
      case group_step::what::store: break;  // of tensors on devices: around a schedule, in none
    }
    ++next;
    return true;
  }

  int n_;
  std::vector<std::vector<group_step>> steps_;
  std::vector<std::map<int, contribution>> parts_;
  std::vector<std::size_t> next_;
  std::map<std::tuple<int, int, std::uint32_t>, std::deque<contribution>> mail_;
};

contribution all_of(int n) {
  contribution made;
  for (int i = 0; i != n; ++i) made.of.insert(i);
  return made;
}

TEST_CASE("schedules: each member ends with what the collective says, every contribution once, whatever the order") {
  for (int n = 1; n != 10; ++n) {
    for (unsigned seed = 0; seed != 3; ++seed) {
      INFO("members: " << n << ", seed " << seed);
      for (const algorithm use : {algorithm::exchange, algorithm::ring}) {
        model sum(collective::all_reduce, use, n, 0);
        const int shares = use == algorithm::ring ? n : 1;
        for (int rank = 0; rank != n; ++rank) {
          for (int part = 0; part != shares; ++part) sum.parts(rank)[part].of = {rank};
        }
        sum.run(seed);
        for (int rank = 0; rank != n; ++rank) {
          for (int part = 0; part != shares; ++part) CHECK(sum.parts(rank)[part] == all_of(n));
        }

        model gather(collective::all_gather, use, n, 0);
        for (int rank = 0; rank != n; ++rank) gather.parts(rank)[rank].of = {rank};
        gather.run(seed);
        for (int rank = 0; rank != n; ++rank) {
          for (int part = 0; part != n; ++part) CHECK(gather.parts(rank)[part].of == std::multiset<int>{part});
        }

        model scatter(collective::reduce_scatter, use, n, 0);
        for (int rank = 0; rank != n; ++rank) {
          for (int part = 0; part != n; ++part) scatter.parts(rank)[part].of = {100 * part + rank};
        }
        scatter.run(seed);
        for (int rank = 0; rank != n; ++rank) {
          std::multiset<int> expected;
          for (int from = 0; from != n; ++from) expected.insert(100 * rank + from);
          CHECK(scatter.parts(rank)[n].of == expected);
        }
      }
      for (const algorithm use : {algorithm::tree, algorithm::chain}) {
        for (int root = 0; root != n; ++root) {
          model cast(collective::broadcast, use, n, root);
          for (int rank = 0; rank != n; ++rank) cast.parts(rank)[0].of = {rank};
          cast.run(seed);
          for (int rank = 0; rank != n; ++rank) CHECK(cast.parts(rank)[0].of == std::multiset<int>{root});

          model down(collective::reduce, use, n, root);
          for (int rank = 0; rank != n; ++rank) down.parts(rank)[0].of = {rank};
          down.run(seed);
          CHECK(down.parts(root)[0] == all_of(n));
        }
      }
      model swap(collective::all_to_all, algorithm::exchange, n, 0);
      for (int rank = 0; rank != n; ++rank) {
        for (int part = 0; part != n; ++part) swap.parts(rank)[part].of = {100 * rank + part};
      }
      swap.run(seed);
      for (int rank = 0; rank != n; ++rank) {
        for (int from = 0; from != n; ++from)
          CHECK(swap.parts(rank)[n + from].of == std::multiset<int>{100 * from + rank});
      }
      model(collective::barrier, algorithm::dissemination, n, 0).run(seed);
    }
  }
}

TEST_CASE("reductions of elements: each operation and type, with what is refused") {
  using ferry::reduce_op;
  const auto reduced = []<class T>(reduce_op op, T received, T own) {
    ferry::detail::check_reduction(ferry::dtype_of<T>, op);
    ferry::detail::reduce_elements(ferry::dtype_of<T>, op, &own, &received, 1);
    return own;
  };
  CHECK(reduced(reduce_op::sum, 2.5, 4.0) == 6.5);
  CHECK(reduced(reduce_op::prod, 2.5F, 4.0F) == 10.0F);
  CHECK(reduced(reduce_op::min, std::int64_t{-3}, std::int64_t{4}) == -3);
  CHECK(reduced(reduce_op::max, std::uint8_t{200}, std::uint8_t{4}) == 200);
  CHECK(reduced(reduce_op::sum, std::int8_t{127}, std::int8_t{1}) == -128);  // wraps around
  CHECK(reduced(reduce_op::prod, std::int16_t{-256}, std::int16_t{256}) == 0);
  CHECK(reduced(reduce_op::sum, true, false));
  CHECK_FALSE(reduced(reduce_op::prod, true, false));
  CHECK(static_cast<float>(reduced(reduce_op::sum, ferry::bfloat16(1.5F), ferry::bfloat16(2.0F))) == 3.5F);
  CHECK(reduced(reduce_op::prod, std::complex<float>(0, 1), std::complex<float>(0, 1)) == std::complex<float>(-1, 0));
  double average = 6;
  ferry::detail::divide_elements(ferry::dtype::f64, &average, 1, 4);
  CHECK(average == 1.5);
  CHECK_THROWS_AS(ferry::detail::check_reduction(ferry::dtype::i32, reduce_op::avg), ferry::error);
  CHECK_THROWS_AS(ferry::detail::check_reduction(ferry::dtype::bool_, reduce_op::avg), ferry::error);
  CHECK_THROWS_AS(ferry::detail::check_reduction(ferry::dtype::c64, reduce_op::max), ferry::error);
}

}  // namespace schedule_test
