// Random programs on four workers: their gradients are those of the same program on one worker.
//
// A program is data: routines, each of which runs on one worker and calls later ones, on any worker. Its values are tensors of one shape.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cereal/types/vector.hpp>

#include "dist_test.hpp"
#include "faulty_group.hpp"
#include "sanitizers.hpp"
#include "varied.hpp"

namespace random_test {

using namespace dist_test;
using namespace std::chrono_literals;
using ferry_test::varied;

constexpr int workers = 4;
constexpr int leaves_each = 3;

enum class operation : std::uint8_t { leaf, add, mul, tanh, scale, join, detach, write, call, call_later, make_remote };

struct instruction {
  operation what{};
  std::vector<std::uint32_t> inputs;  // values of the routine; of calls: the arguments
  std::uint32_t number = 0;           // of the leaf at the worker, or of the routine that is called

  template <class Archive>
  void serialize(Archive& archive) {
    archive(what, inputs, number);
  }
};

// Its values are the arguments, and what each instruction makes: one, a call as many as the routine has results.
struct routine {
  std::uint32_t worker = 0;
  std::uint32_t arguments = 0;
  std::vector<instruction> body;
  std::vector<std::uint32_t> results;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(worker, arguments, body, results);
  }
};

struct program {
  std::vector<routine> routines;  // the first is run by worker0
  bool everything_is_used = false;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(routines, everything_is_used);
  }
};

// ---------------------------------------------------------------- making one

class maker {
 public:
  maker(std::uint64_t seed, bool everything_is_used) : random_(seed) { made_.everything_is_used = everything_is_used; }

  program make() {
    const std::uint32_t count = 3 + below(5);
    for (std::uint32_t i = 0; i != count; ++i) {
      routine each;
      each.worker = i == 0 ? 0 : below(workers);
      each.arguments = i == 0 ? 0 : below(4);
      made_.routines.push_back(std::move(each));
    }
    // From the last on: how many results a routine has is known when it is called.
    for (std::uint32_t i = count; i-- != 0;) fill(i);
    return std::move(made_);
  }

 private:
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }

  void fill(std::uint32_t which) {
    routine& own = made_.routines[which];
    std::uint32_t values = own.arguments;
    const auto add = [&](instruction one, std::uint32_t results = 1) {
      own.body.push_back(std::move(one));
      values += results;
    };
    const auto any = [&] { return below(values); };
    add({operation::leaf, {}, below(leaves_each)});
    const std::uint32_t length = 3 + below(8);
    for (std::uint32_t i = 0; i != length; ++i) {
      const auto count = static_cast<std::uint32_t>(made_.routines.size());
      // The first routine calls more, so that most programs reach most of their routines.
      const bool calls = which + 1 != count && below(which == 0 ? 2 : 3) == 0;
      if (calls) {
        instruction call{static_cast<operation>(static_cast<unsigned>(operation::call) + below(3)), {}, 0};
        call.number = which + 1 + below(count - which - 1);
        for (std::uint32_t k = 0; k != made_.routines[call.number].arguments; ++k) call.inputs.push_back(any());
        add(call, static_cast<std::uint32_t>(made_.routines[call.number].results.size()));
        continue;
      }
      switch (below(made_.everything_is_used ? 6 : 8)) {
        case 0: add({operation::leaf, {}, below(leaves_each)}); break;
        case 1: add({operation::add, {any(), any()}}); break;
        case 2: add({operation::mul, {any(), any()}}); break;
        case 3: add({operation::tanh, {any()}}); break;
        case 4: add({operation::scale, {any()}}); break;
        case 5: add({operation::join, {any(), any()}}); break;
        case 6: add({operation::detach, {any()}}); break;
        case 7: add({operation::write, {any(), any()}}); break;
        default: break;
      }
    }
    if (made_.everything_is_used) {
      // The sum of all values is the only result.
      std::uint32_t whole = 0;
      for (std::uint32_t i = 1, last = values; i != last; ++i) {
        add({operation::add, {whole, i}});
        whole = values - 1;
      }
      own.results = {whole};
      return;
    }
    const std::uint32_t results = 1 + below(3);
    for (std::uint32_t i = 0; i != results; ++i) own.results.push_back(any());
  }

  std::mt19937_64 random_;
  program made_;
};

// ---------------------------------------------------------------- running it

std::array<std::array<tensor, leaves_each>, workers> leaves;

void make_leaves() {
  for (int worker = 0; worker != workers; ++worker) {
    for (int i = 0; i != leaves_each; ++i) {
      tensor& each = leaves.at(static_cast<std::size_t>(worker)).at(static_cast<std::size_t>(i));
      each = varied({4}, worker * 10 + i);
      if (i != 0) ferry::require_grad(each);  // one of each worker's does not
    }
  }
}

std::vector<tensor> run(const program& all, std::uint32_t which, const std::vector<tensor>& arguments);

// All values of a routine. `remote`: its calls are, and it runs on its worker.
std::vector<tensor> values_of(const program& all, const routine& own, const std::vector<tensor>& arguments, bool remote,
                              const ferry::worker* root = nullptr) {
  std::vector<tensor> values = arguments;
  struct late {
    ferry::future<std::vector<tensor>> results;
    std::size_t first;
  };
  std::vector<late> pending;
  const auto value = [&](std::uint32_t number) -> const tensor& {
    for (late& each : pending) {
      if (!each.results.valid() || number < each.first) continue;
      const std::vector<tensor> results = each.results.get();
      if (number >= each.first + results.size()) continue;
      std::copy(results.begin(), results.end(), values.begin() + static_cast<std::ptrdiff_t>(each.first));
      each.results = {};
    }
    return values.at(number);
  };
  for (const instruction& each : own.body) {
    switch (each.what) {
      case operation::leaf: values.push_back(leaves.at(own.worker).at(each.number)); continue;
      case operation::add: values.push_back((value(each.inputs[0]) + value(each.inputs[1])) * 0.5); continue;
      case operation::mul: values.push_back(value(each.inputs[0]) * value(each.inputs[1])); continue;
      case operation::tanh: values.push_back(ferry::tanh(value(each.inputs[0]))); continue;
      case operation::scale: values.push_back(value(each.inputs[0]) * 0.7); continue;
      case operation::join:
        values.push_back(ferry::cat({value(each.inputs[0]).slice(0, 0, 2), value(each.inputs[1]).slice(0, 2, 4)}));
        continue;
      case operation::detach: values.push_back(ferry::detach(value(each.inputs[0])).clone()); continue;
      case operation::write: {
        const tensor made = value(each.inputs[0]) * 1.5;
        const tensor with = value(each.inputs[1]);
        // A part of what requires no gradient may not get one.
        if (made.requires_grad()) ferry::mul_(made.slice(0, 1, 3), with.slice(0, 0, 2));
        values.push_back(made);
        continue;
      }
      case operation::call:
      case operation::call_later:
      case operation::make_remote: break;
    }
    std::vector<tensor> passed;
    for (const std::uint32_t number : each.inputs) passed.push_back(value(number));
    const routine& called = all.routines.at(each.number);
    if (!remote) {
      const auto results = values_of(all, called, passed, false);
      for (const std::uint32_t result : called.results) values.push_back(results.at(result));
      continue;
    }
    const ferry::to there(static_cast<int>(called.worker), {.timeout = ferry::no_timeout});
    if (each.what == operation::call_later) {
      auto results = root ? root->rpc_async<run>(there, all, each.number, passed)
                          : ferry::rpc_async<run>(there, all, each.number, passed);
      pending.push_back({std::move(results), values.size()});
      values.resize(values.size() + called.results.size());
      continue;
    }
    std::vector<tensor> results;
    if (each.what == operation::make_remote) {
      const auto object = root ? root->remote<run>(there, all, each.number, passed)
                               : ferry::remote<run>(there, all, each.number, passed);
      results = object.to_here({.timeout = ferry::no_timeout});
    } else {
      results = root ? root->rpc_sync<run>(there, all, each.number, passed)
                     : ferry::rpc_sync<run>(there, all, each.number, passed);
    }
    values.insert(values.end(), results.begin(), results.end());
  }
  for (std::uint32_t number = 0; number != values.size(); ++number) (void)value(number);
  return values;
}

std::vector<tensor> run(const program& all, std::uint32_t which, const std::vector<tensor>& arguments) {
  const routine& own = all.routines.at(which);
  const auto values = values_of(all, own, arguments, true);
  std::vector<tensor> results;
  for (const std::uint32_t number : own.results) results.push_back(values.at(number));
  return results;
}

// ---------------------------------------------------------------- checking it

struct pass {
  std::vector<std::uint32_t> roots;  // values of the first routine
  std::vector<tensor> gradients;
};

// Roots among those values that can be.
std::vector<pass> passes_of(std::mt19937_64& random, const program& all, const std::vector<tensor>& values) {
  std::vector<std::uint32_t> possible;
  for (std::uint32_t i = 0; i != values.size(); ++i) {
    if (values[i].requires_grad() && !ferry::is_leaf(values[i])) possible.push_back(i);
  }
  std::vector<pass> result;
  if (possible.empty()) return result;
  const std::size_t count = 1 + random() % 3;
  for (std::size_t i = 0; i != count; ++i) {
    pass one;
    if (all.everything_is_used) {
      one.roots = all.routines.front().results;
    } else {
      for (std::size_t k = 1 + random() % 3; k != 0; --k) one.roots.push_back(possible[random() % possible.size()]);
    }
    for (std::size_t k = 0; k != one.roots.size(); ++k)
      one.gradients.push_back(varied({4}, static_cast<double>(random() % 1000)));
    result.push_back(std::move(one));
  }
  if (all.everything_is_used && !values[all.routines.front().results[0]].requires_grad()) return {};
  return result;
}

std::vector<tensor> of_values(const std::vector<tensor>& values, const std::vector<std::uint32_t>& which) {
  std::vector<tensor> result;
  for (const std::uint32_t number : which) result.push_back(values[number]);
  return result;
}

// The gradients of all leaves, by the same passes on one worker.
void run_locally(const program& all, const std::vector<pass>& passes) {
  const auto values = values_of(all, all.routines.front(), {}, false);
  for (const pass& each : passes) {
    ferry::backward(of_values(values, each.roots), {.gradients = each.gradients, .retain_graph = true});
  }
}

template <class Group>
void compare(Group& group, dist::context_id id) {
  for (int worker = 0; worker != workers; ++worker) {
    const dist::gradient_map found =
        dist::exists(id, group[worker]) ? dist::get_gradients(id, group[worker]) : dist::gradient_map();
    std::size_t expected = 0;
    for (const tensor& leaf : leaves.at(static_cast<std::size_t>(worker))) {
      const tensor own = leaf.requires_grad() ? ferry::grad(leaf) : tensor();
      CAPTURE(worker);
      REQUIRE(found.contains(leaf) == own.defined());
      if (!own.defined()) continue;
      ++expected;
      CHECK(ferry::allclose(found.at(leaf), own, 1e-10, 1e-12));
    }
    CHECK(found.size() == expected);
  }
}

TEST_CASE("random programs on four workers have the gradients of the same programs on one") {
  cluster group(workers);
  constexpr std::uint64_t programs = ferry_test::sanitized ? 30 : 300;
  std::size_t remote_leaves = 0;
  std::size_t ran = 0;
  for (std::uint64_t seed = 1; seed <= programs; ++seed) {
    CAPTURE(seed);
    const bool everything_is_used = seed % 3 == 0;
    const program all = maker(seed, everything_is_used).make();
    make_leaves();
    std::mt19937_64 random(seed);
    const dist::context context(group[0]);
    const auto values = values_of(all, all.routines.front(), {}, true, &group[0]);
    const auto passes = passes_of(random, all, values);
    if (passes.empty()) continue;
    ++ran;
    for (std::size_t i = 0; i != passes.size(); ++i) {
      context.backward(
          of_values(values, passes[i].roots),
          {.gradients = passes[i].gradients,
           .retain_graph = i + 1 != passes.size(),
           .mode = everything_is_used && i % 2 == 0 ? dist::backward_mode::fast : dist::backward_mode::smart});
    }
    run_locally(all, passes);
    compare(group, context);
    for (int worker = 1; worker != workers; ++worker) {
      CHECK(dist_test::passes(group[worker]) == 0);
      if (dist::exists(context, group[worker])) remote_leaves += dist::get_gradients(context, group[worker]).size();
    }
  }
  // It was no test of nothing.
  CHECK(ran > programs / 2);
  CHECK(remote_leaves > programs / 2);
  await_no_contexts(group);
}

TEST_CASE("random programs under faults: the right gradients or an error, in bounded time; the context goes on") {
  constexpr std::uint64_t programs = ferry_test::sanitized ? 6 : 20;
  faulty_group group(workers, 2s);
  std::size_t failed = 0;
  std::size_t passed = 0;
  for (std::uint64_t seed = 1000; seed != 1000 + programs; ++seed) {
    CAPTURE(seed);
    const bool everything_is_used = seed % 3 == 0;
    const program all = maker(seed, everything_is_used).make();
    make_leaves();
    std::mt19937_64 random(seed);
    const dist::context context(group[0]);
    const auto values = values_of(all, all.routines.front(), {}, true, &group[0]);
    const auto passes = passes_of(random, all, values);
    if (passes.empty()) continue;
    const auto mode = everything_is_used && seed % 2 == 0 ? dist::backward_mode::fast : dist::backward_mode::smart;
    const auto go_back = [&](const pass& one) {
      context.backward(of_values(values, one.roots),
                       {.gradients = one.gradients, .retain_graph = true, .mode = mode, .limit = 200ms});
    };
    // Of the passes, their answers, and what is told of failures.
    constexpr std::array actions{ferry::fault_action::drop, ferry::fault_action::fail, ferry::fault_action::duplicate,
                                 ferry::fault_action::delay, ferry::fault_action::reorder};
    const auto action = actions.at(seed % actions.size());
    group.faults.add(
        {.action = action,
         .kinds = action == ferry::fault_action::fail ? ferry::message_kinds::request : ferry::message_kinds::any,
         .method = "ferry/autograd/*",
         .delay = 20ms,
         .probability = 0.3});
    bool whole = true;
    for (const pass& each : passes) {
      const auto begin = std::chrono::steady_clock::now();
      try {
        go_back(each);
        ++passed;
      } catch (const ferry::error&) {
        whole = false;
        ++failed;
      }
      CHECK(std::chrono::steady_clock::now() - begin < 30s);  // without end, if anything
    }
    group.faults.clear();
    if (whole) {
      run_locally(all, passes);
      compare(group, context);
    }
    // Another pass over the same graph: of one that has failed, some leaves may have had their gradients.
    std::array<std::array<tensor, leaves_each>, workers> before;
    for (int worker = 0; worker != workers; ++worker) {
      if (!dist::exists(context, group[worker])) continue;
      const auto found = dist::get_gradients(context, group[worker]);
      for (std::size_t i = 0; i != leaves_each; ++i) {
        const tensor had = found[leaves[static_cast<std::size_t>(worker)][i]];
        if (had.defined()) before[static_cast<std::size_t>(worker)][i] = had.clone();
      }
    }
    context.backward(of_values(values, passes[0].roots),
                     {.gradients = passes[0].gradients, .retain_graph = true, .mode = mode, .limit = 60s});
    for (auto& of_worker : leaves) {
      for (const tensor& each : of_worker) {
        if (each.requires_grad()) ferry::set_grad(each, tensor());
      }
    }
    run_locally(all, {passes[0]});
    for (std::size_t worker = 0; worker != workers; ++worker) {
      if (!dist::exists(context, group[static_cast<int>(worker)])) continue;
      const auto found = dist::get_gradients(context, group[static_cast<int>(worker)]);
      for (std::size_t i = 0; i != leaves_each; ++i) {
        const tensor& leaf = leaves[worker][i];
        const tensor own = leaf.requires_grad() ? ferry::grad(leaf) : tensor();
        if (!own.defined()) continue;
        REQUIRE(found.contains(leaf));
        const tensor expected = before[worker][i].defined() ? before[worker][i] + own : own;
        CHECK(ferry::allclose(found.at(leaf), expected, 1e-10, 1e-12));
      }
    }
    for (int worker = 0; worker != workers; ++worker) {
      await([&] { return dist_test::passes(group[worker]) == 0; });
    }
  }
  CHECK(failed != 0);
  CHECK(passed != 0);
  await_no_contexts(group, workers);
}

TEST_CASE("programs run while calls are lost: what was recorded of these calls does no harm") {
  constexpr std::uint64_t programs = ferry_test::sanitized ? 6 : 20;
  faulty_group group(workers, 2s);
  std::size_t complete = 0;
  for (std::uint64_t seed = 2000; seed != 2000 + programs; ++seed) {
    CAPTURE(seed);
    const program all = maker(seed, false).make();
    make_leaves();
    std::mt19937_64 random(seed);
    const dist::context context(group[0]);
    const auto rule =
        group.faults.add({.action = seed % 2 == 0 ? ferry::fault_action::fail : ferry::fault_action::duplicate,
                          .kinds = ferry::message_kinds::request,
                          .method = "random_test::run",
                          .probability = 0.1});
    std::vector<tensor> values;
    // Until all its calls have succeeded; those of earlier attempts stay in the context.
    for (int attempt = 0; attempt < 200 && values.empty(); ++attempt) {
      try {
        values = values_of(all, all.routines.front(), {}, true, &group[0]);
      } catch (const ferry::error&) {
      }
    }
    group.faults.remove(rule);
    REQUIRE_FALSE(values.empty());
    const auto passes = passes_of(random, all, values);
    for (const pass& each : passes) {
      context.backward(of_values(values, each.roots),
                       {.gradients = each.gradients, .retain_graph = true, .limit = 100s});
    }
    run_locally(all, passes);
    compare(group, context);
    complete += passes.empty() ? 0U : 1U;
  }
  CHECK(complete > programs / 2);
  const auto counters = group.faults.counters();
  CHECK(counters.failed != 0);
  CHECK(counters.duplicated != 0);
  await_no_contexts(group, workers);
}

}  // namespace random_test
