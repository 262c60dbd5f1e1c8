// ddp: a pass or a join that fails at one member ends with that error at all of them, and the next one is right.

#include <ferry/nn/ddp.hpp>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace ddp_failure_test {

namespace nn = ferry::nn;
namespace dist = ferry::dist_autograd;
using namespace std::chrono_literals;
using ferry::dtype;
using ferry::errc;
using ferry::process_group;
using ferry::tensor;
using ferry::nn::ddp;
using ferry_test::run_cluster;

enum class place : std::uint8_t { nowhere, before_all_buckets, between_buckets, after_all_buckets };

tensor fails(const tensor&) { throw std::runtime_error("the hook gave up"); }

// Two parameters of one shape, whose gradients are x and 100 x. That of `b` is there first.
struct pair_model {
  tensor a = ferry::require_grad(ferry::ones({3}, dtype::f64));
  tensor b = ferry::require_grad(ferry::ones({3}, dtype::f64));
  tensor operator()(const tensor& x, place failing = place::nowhere, bool with_b = true) const {
    const tensor half = a * x * 1.0;
    if (failing == place::between_buckets) (void)ferry::on_gradient(half, fails);
    const tensor y = ferry::sum(with_b ? half + b * x * 100.0 : half);
    if (failing == place::before_all_buckets) (void)ferry::on_gradient(y, fails);
    return y;
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("a", a);
    visit("b", b);
  }
};

nn::ddp_options one_each() { return {.bucket_bytes = 1, .first_bucket_bytes = 1}; }
// No test ends by it.
ferry::group_options patient(std::size_t shared_bytes = std::size_t{2} << 20U) {
  return {.limit = 300s, .shared_bytes = shared_bytes};
}
tensor batch_of(int rank) { return ferry::full({3}, rank + 1.0, dtype::f64); }
double mean_of_ranks(int n) { return (n + 1) / 2.0; }

void forget_gradients(const ddp<pair_model>& model) {
  for (const tensor& each : model.parameters()) ferry::set_grad(each, {});
}
void check_gradients(const ddp<pair_model>& model, double of_a, double of_b) {
  CHECK(ferry::grad(model.module().a).at<double>(0) == doctest::Approx(of_a));
  CHECK(ferry::grad(model.module().b).at<double>(0) == doctest::Approx(of_b));
}
void check_pass(ddp<pair_model>& model, const process_group& group) {
  forget_gradients(model);
  ferry::backward(model(batch_of(group.rank())));
  check_gradients(model, mean_of_ranks(group.size()), 100 * mean_of_ranks(group.size()));
}
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
    return "";
  } catch (const std::exception& problem) {
    return problem.what();
  }
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// A pass that `pass` makes with a failure at that place of worker1, which does nothing more until all others know.
template <class Pass>
void check_failed_pass(const process_group& group, std::atomic<int>& heard, const Pass& pass, place failing) {
  const bool own = group.rank() == 1;
  const std::string error = error_of([&] { pass(own ? failing : place::nowhere); });
  if (own) {
    CHECK(has(error, "the hook gave up"));
    while (heard != group.size() - 1) std::this_thread::yield();
    return;
  }
  if (failing == place::after_all_buckets) {
    CHECK(error.empty());
  } else {
    CHECK_MESSAGE(has(error, "worker1"), error);
    CHECK_MESSAGE(has(error, "the hook gave up"), error);
  }
  ++heard;
}

void check_failures(const process_group& group, std::atomic<int>& heard, const nn::ddp_options& options,
                    place failing) {
  ddp<pair_model> model(pair_model(), group, options);
  check_pass(model, group);
  forget_gradients(model);
  check_failed_pass(
      group, heard,
      [&](place where) {
        ferry::gradient_hook last;
        if (where == place::after_all_buckets)
          last = ferry::on_accumulated(model.module().a, [](const tensor& each) { (void)fails(each); });
        const auto problem = error_of([&] { ferry::backward(model(batch_of(group.rank()), where)); });
        last.remove();
        if (!problem.empty()) throw std::runtime_error(problem);
      },
      failing);
  for (int i = 0; i != 3; ++i) check_pass(model, group);
}

constexpr place places[] = {place::before_all_buckets, place::between_buckets, place::after_all_buckets};

TEST_CASE("ddp: a pass that fails at one member fails at all, whenever it does, and the next one is right") {
  for (const place failing : places) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20U}) {
      CAPTURE(static_cast<int>(failing));
      CAPTURE(bytes);
      std::atomic<int> heard = 0;
      run_cluster(3, [&](ferry::worker& self) {
        const process_group group(self, ferry::all_workers, patient());
        check_failures(group, heard, {.bucket_bytes = bytes, .first_bucket_bytes = bytes}, failing);
      });
    }
  }
}

TEST_CASE("ddp: a pass that fails at one member of a group with shared memory") {
  for (const place failing : places) {
    std::atomic<int> heard = 0;
    run_cluster(2,
                [&](ferry::worker& self) {
                  const process_group group(self, ferry::all_workers, patient());
                  CHECK(group.plan(ferry::collective::all_reduce, 24).use == ferry::algorithm::shared);
                  check_failures(group, heard, one_each(), failing);
                },
                {.configure = [](ferry::worker_config& config) { config.transports = {"shm"}; }});
  }
}

TEST_CASE("ddp: passes of one member that fail, with gradients that travel as bf16, or in two steps") {
  const nn::bucket_transport in_two_steps = [](const process_group& group, const tensor& bucket, ferry::timeout limit) {
    return group.all_gather(bucket, limit).then([group, bucket, limit](const tensor& all) {
      const ferry::no_grad inside;
      bucket.copy_(all.select(0, 0) + all.select(0, 1));
      return group.all_reduce(bucket, ferry::reduce_op::avg, limit).then([bucket] {
        const ferry::no_grad also;
        bucket.copy_(bucket * 0.5);
        return bucket;
      });
    });
  };
  const nn::bucket_transport transports[] = {nn::average_as_bf16(), in_two_steps};
  for (const nn::bucket_transport& transport : transports) {
    for (const place failing : places) {
      std::atomic<int> heard = 0;
      run_cluster(2, [&](ferry::worker& self) {
        const process_group group(self, ferry::all_workers, patient());
        // The steps of several buckets would have no order on which members agree.
        nn::ddp_options options = &transport == &transports[0] ? one_each() : nn::ddp_options();
        options.transport = transport;
        check_failures(group, heard, options, failing);
      });
    }
  }
}

TEST_CASE("ddp: a pass in a context that fails at one member fails at all, and the next one is right") {
  for (const place failing : {place::before_all_buckets, place::between_buckets}) {
    std::atomic<int> heard = 0;
    run_cluster(2, [&](ferry::worker& self) {
      const process_group group(self, ferry::all_workers, patient());
      ddp<pair_model> model(pair_model(), group, one_each());
      const auto pass = [&](place where) {
        const dist::context context(self);
        context.backward(model(batch_of(group.rank()), where));
        CHECK(context.gradients().at(model.module().a).at<double>(0) == doctest::Approx(1.5));
        CHECK(context.gradients().at(model.module().b).at<double>(0) == doctest::Approx(150));
      };
      pass(place::nowhere);
      check_failed_pass(group, heard, pass, failing);
      for (int i = 0; i != 3; ++i) pass(place::nowhere);
      self.barrier();
    });
  }
}

TEST_CASE("ddp: every member fails, again and again, at different places") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    ddp<pair_model> model(pair_model(), group, one_each());
    for (int i = 0; i != 20; ++i) {
      const place where = (i + group.rank()) % 3 == 0 ? places[i % 2] : place::nowhere;
      CHECK_FALSE(error_of([&] { ferry::backward(model(batch_of(group.rank()), where)); }).empty());
    }
    check_pass(model, group);
  });
}

TEST_CASE("ddp: failures with several calls before a pass, unused parameters, and passes without averages") {
  std::atomic<int> heard = 0;
  run_cluster(2, [&](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    const bool own = group.rank() == 1;
    nn::ddp_options options = one_each();
    options.find_unused = true;
    ddp<pair_model> model(pair_model(), group, options);
    check_failed_pass(
        group, heard,
        [&](place where) {
          const tensor x = batch_of(group.rank());
          ferry::backward(model(x, where, false) + model(x, place::nowhere, false));
        },
        place::between_buckets);
    forget_gradients(model);
    ferry::backward(model(batch_of(group.rank()), place::nowhere, own));  // one member does not use `b`
    check_gradients(model, 1.5, 100);

    forget_gradients(model);  // of concern to its own member alone
    {
      const auto alone = model.no_sync();
      const std::string error = error_of(
          [&] { ferry::backward(model(batch_of(group.rank()), own ? place::before_all_buckets : place::nowhere)); });
      CHECK(error.empty() != own);
    }
    forget_gradients(model);
    ferry::backward(model(batch_of(group.rank())));
    check_gradients(model, 1.5, 150);
  });
}

TEST_CASE("ddp: a transport that throws at one member fails the pass at all") {
  for (const bool has_begun : {false, true}) {
    std::atomic<int> heard = 0;
    run_cluster(2, [&](ferry::worker& self) {
      const process_group group(self, ferry::all_workers, patient());
      std::atomic<bool> throws = false;
      nn::ddp_options options = one_each();
      options.transport = [&](const process_group& over, const tensor& bucket, ferry::timeout limit) {
        if (!throws.exchange(false)) return nn::average_in_place()(over, bucket, limit);
        if (has_begun) (void)nn::average_in_place()(over, bucket, limit);
        throw std::runtime_error("the hook gave up");
      };
      ddp<pair_model> model(pair_model(), group, options);
      check_pass(model, group);
      throws = group.rank() == 1;
      check_failed_pass(
          group, heard, [&](place) { ferry::backward(model(batch_of(group.rank()))); }, place::between_buckets);
      for (int i = 0; i != 3; ++i) check_pass(model, group);
    });
  }
}

TEST_CASE("ddp: a transport that returns an empty future is named") {
  run_cluster(1, [&](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    nn::ddp_options options = one_each();
    options.transport = [](const process_group&, const tensor&, ferry::timeout) { return ferry::future<tensor>(); };
    ddp<pair_model> model(pair_model(), group, options);
    expect_error(ferry::errc::no_state, "ddp_options::transport returned an empty future",
                 [&] { ferry::backward(model(batch_of(group.rank()))); });
  });
}

TEST_CASE("ddp: members that wait for a gradient that one of them does not have hear of it from its next call") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    ddp<pair_model> model(pair_model(), group, one_each());
    if (group.rank() == 1) {
      ferry::backward(model(batch_of(1), place::nowhere, false));
      expect_error(errc::invalid_argument, "no gradient", [&] { (void)model(batch_of(1)); });
    } else {
      const std::string error = error_of([&] { ferry::backward(model(batch_of(0))); });
      CHECK_MESSAGE(has(error, "worker1"), error);
      CHECK_MESSAGE(has(error, "no gradient"), error);
    }
    check_pass(model, group);
  });
}

TEST_CASE("ddp: members that wait for one that lets go of its module within a pass hear of it") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    {
      ddp<pair_model> model(pair_model(), group, one_each());
      const std::string error =
          error_of([&] { ferry::backward(model(batch_of(group.rank()), place::nowhere, group.rank() == 0)); });
      CHECK(has(error, "worker1") == (group.rank() == 0));
    }
    ddp<pair_model> model(pair_model(), group, one_each());
    check_pass(model, group);
  });
}

// ---------------------------------------------------------------- join

TEST_CASE("ddp: an exception in the body of one member's join ends it at all, and the group goes on") {
  enum class when : std::uint8_t { at_once, after_a_pass, before_its_pass, others_have_finished };
  for (const when point : {when::at_once, when::after_a_pass, when::before_its_pass, when::others_have_finished}) {
    CAPTURE(static_cast<int>(point));
    std::atomic<int> heard = 0;
    run_cluster(3, [&](ferry::worker& self) {
      const process_group group(self, ferry::all_workers, patient());
      ddp<pair_model> model(pair_model(), group, one_each());
      const bool own = group.rank() == 1;
      const std::string error = error_of([&] {
        model.join([&] {
          const int passes = own ? (point == when::at_once ? 0 : 1) : point == when::others_have_finished ? 0 : 3;
          for (int i = 0; i != passes; ++i) ferry::backward(model(batch_of(group.rank())));
          if (own && point == when::before_its_pass) (void)model(batch_of(1));
          if (own) throw std::runtime_error("no more data");
        });
      });
      if (own) {
        CHECK(error == "no more data");
        while (heard != 2) std::this_thread::yield();
      } else {
        CHECK_MESSAGE(has(error, "worker1"), error);
        ++heard;
      }
      for (int i = 0; i != 2; ++i) check_pass(model, group);
      const tensor ones = ferry::ones({2}, dtype::f64);
      group.all_reduce(ones).get();
      CHECK(ones.at<double>(0) == 3);
      int passes = 0;
      model.join([&] {
        for (; passes != group.rank(); ++passes) ferry::backward(model(batch_of(group.rank())));
      });
      CHECK(passes == group.rank());
    });
  }
}

TEST_CASE("ddp: a pass that fails within join() where the body goes on leaves all in step") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    ddp<pair_model> model(pair_model(), group, one_each());
    const int own = group.rank();
    model.join([&] {  // rank 0 has finished when the second pass of rank 1 fails
      for (int i = 0; i != 2 * own; ++i) {
        forget_gradients(model);
        const bool failing = i == 1;
        const std::string error = error_of([&] {
          ferry::backward(model(batch_of(own), failing && own == 1 ? place::between_buckets : place::nowhere));
        });
        CHECK(error.empty() != failing);
        if (own == 2 && i > 1) check_gradients(model, 1, 100);  // 3 of rank 2 alone
      }
    });
    check_pass(model, group);
  });
}

TEST_CASE("ddp: a call of the module within join() that no pass follows fails that pass of the others, and all go on") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    ddp<pair_model> model(pair_model(), group, one_each());
    const bool odd = group.rank() == 1;
    for (const bool is_last : {false, true}) {
      CAPTURE(is_last);
      model.join([&] {
        const std::string error = error_of([&] {
          const tensor y = model(batch_of(group.rank()));
          if (odd) throw std::runtime_error("no loss");
          ferry::backward(y);
        });
        CHECK_MESSAGE(has(error, odd ? "no loss" : "no pass followed a call of the module"), error);
        if (!is_last) check_pass(model, group);
      });
    }
    check_pass(model, group);
  });
}

TEST_CASE("ddp: join() is over for a body that goes on after its end with an error") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, patient());
    ddp<pair_model> model(pair_model(), group, one_each());
    const std::string error = error_of([&] {
      model.join([&] {
        if (group.rank() == 1) throw std::runtime_error("no more data");
        for (int i = 0; i != 2; ++i) {
          CHECK(has(error_of([&] { ferry::backward(model(batch_of(0))); }), "worker1"));
        }
      });
    });
    CHECK(has(error, group.rank() == 1 ? "no more data" : "worker1"));
    check_pass(model, group);
  });
}

}  // namespace ddp_failure_test
