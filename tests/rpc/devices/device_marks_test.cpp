// Shows that each event of a call must be recorded and waited for: omitting it gives wrong values.

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "device_group.hpp"
#include "left_out.hpp"

namespace device_marks_test {

using namespace device_calls;
using ferry::tensor;

tensor kept_twice(const tensor& t) {
  keep(t);
  return keep(duplicate(t));
}
int keep_copy(const tensor& t) {
  keep(t);
  keep(duplicate(t));
  return 7;
}
int keep_copy_of_second(const tensor&, const tensor& t) { return keep_copy(t); }
int value_on_cpu(const tensor& t) { return value_of(t); }
int value_at_last(const tensor& t) {
  fake_cuda::drain();
  return value_of(t);
}
ferry::task<tensor> in_steps(tensor t) {
  keep(t);
  const tensor first = keep(co_await ferry::rpc_async<kept_twice>("worker0", t));
  co_return keep(duplicate(first));
}

TEST_CASE("no mark of a call can be omitted: arguments and results") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  for (const bool blocking : {true, false}) {
    CAPTURE(blocking);
    check_each_is_needed(
        [&](left_out& one, unsigned char value) {
          const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
          tensor last;
          {
            const fake_cuda::pause nothing_runs;
            const tensor argument = keep(filled(gpu(0), value));
            one.arm();
            const tensor result = keep(call<kept_twice>(group[0], blocking, "worker1", argument));
            one.disarm();
            last = duplicate(result);
          }
          return value_of(last) == value;
        },
        // The result implies that the argument has been read.
        {{records, 4, {2}}, {waits, 4, {blocking ? 4U : 3U}}});
  }
}

TEST_CASE("no mark of a call can be omitted: arguments that are written to afterwards") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  for (const bool blocking : {true, false}) {
    CAPTURE(blocking);
    check_each_is_needed(
        [&](left_out& one, unsigned char value) {
          const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
          {
            const fake_cuda::pause nothing_runs;
            const tensor argument = keep(filled(gpu(0), value));
            one.arm();
            (void)call<keep_copy>(group[0], blocking, "worker1", argument);
            one.disarm();
            overwrite(argument, 99);
          }
          return value_of(kept().at(2)) == value;
        },
        {{records, 2, {}}, {waits, 2, {}}});
  }
}

TEST_CASE("no mark of a call can be omitted: the memory of an argument that is freed") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  const tensor big = filled(gpu(0), 1, 4 << 20);  // which is copied before the argument
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        tensor read;
        {
          const fake_cuda::pause nothing_runs;
          tensor argument = filled(gpu(0), value);
          const auto coming = group[0].rpc_async<keep_copy_of_second>("worker1", big, argument);
          while (!coming.ready()) std::this_thread::yield();  // so that the caller's stream does not wait
          // Each of the two streams that read must be the last one now and then.
          for (int i = 0; i != 20 && value % 2 == 0; ++i)
            ferry::current_stream(gpu(0)).call_on_host([](void*) {}, nullptr);
          one.arm();
          read = duplicate(argument);
          argument = {};
          one.disarm();
        }
        return value_of(read) == value && value_of(kept().back()) == value;
      },
      {{records, 2, {}}, {waits, 0, {}}});
}

TEST_CASE("no mark of a call can be omitted: the memory of a result that is freed") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  for (const bool blocking : {true, false}) {
    check_each_is_needed(
        [&](left_out& one, unsigned char value) {
          const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
          tensor read;
          {
            const fake_cuda::pause nothing_runs;
            const tensor argument = keep(filled(gpu(0), value));
            tensor result = call<kept_twice>(group[0], blocking, "worker1", argument);
            read = duplicate(result);
            one.arm();
            result = {};
            one.disarm();
          }
          return value_of(read) == value;
        },
        // The second is that of the stream that it arrived on, which the caller's stream has waited for.
        {{records, 2, {2}}, {waits, 0, {}}});
  }
}

TEST_CASE("no mark of a call can be omitted: from the CPU to a device") {
  device_group group({map_to("worker1", {{"cpu", "cuda:0"}}), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        ferry::device_memory_trim(gpu(0));  // so that page-locked memory is reused as soon as it seems free
        {
          const fake_cuda::pause nothing_runs;
          one.arm();
          for (int i = 0; i != 2; ++i) {
            (void)group[0].rpc_sync<keep_copy>("worker1", filled(host, static_cast<unsigned char>(value + i)));
          }
          one.disarm();
          (void)group[0].rpc_sync<keep_copy>("worker1", filled(host, 99));
        }
        return value_of(kept().at(1)) == value && value_of(kept().at(3)) == value + 1;
      },
      {{records, 2, {}}, {waits, 0, {}}});
}

TEST_CASE("no mark of a call can be omitted: from a device to the CPU") {
  device_group group({map_to("worker1", {{"cuda:0", "cpu"}}), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        ferry::future<int> coming;
        {
          const fake_cuda::pause nothing_runs;
          const tensor argument = keep(filled(gpu(0), value));
          one.arm();
          coming = group[0].rpc_async<value_on_cpu>("worker1", argument);
          // By now it has been sent.
          (void)group[0].rpc_sync<value_on_cpu>("worker1", filled(host, 1));
        }
        const bool as_expected = coming.get() == value;
        one.disarm();
        return as_expected;
      },
      // The second is for the next test. The third and the last wait are for objects, and for arguments of calls that
      // are given up: here the tensor has been read. The last is polled before the message is delivered.
      {{records, 4, {2, 3}}, {waits, 2, {2}}});
}

TEST_CASE(
    "no mark of a call can be omitted: CPU memory that a device may write to after its message is given "
    "up") {
  device_group group({map_to("worker1", {{"cuda:0", "cpu"}}), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        ferry::future<int> coming;
        const tensor given_up = filled(gpu(0), 99);
        const tensor argument = filled(gpu(0), value);
        fake_cuda::drain();
        {
          const fake_cuda::pause nothing_runs;
          one.arm();
          const auto failing = group[0].rpc_async<value_on_cpu>("worker1", given_up);
          (void)group[0].rpc_sync<value_on_cpu>("worker1", filled(host, 1));
          one.disarm();
          fake_cuda::refuse_calls(0, 700);  // it goes on writing
          CHECK_THROWS_AS(failing.get(), ferry::error);
          fake_cuda::mend();
          coming = group[0].rpc_async<value_at_last>("worker1", argument);
          (void)group[0].rpc_sync<value_on_cpu>("worker1", filled(host, 1));
        }
        return coming.get() == value;
      },
      {{records, 4, {1, 3, 4}}});
}

TEST_CASE("no mark of a call can be omitted: callbacks") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        tensor last;
        {
          const fake_cuda::pause nothing_runs;
          const tensor argument = keep(filled(gpu(0), value));
          one.arm();
          const tensor result = keep(group[0]
                                         .rpc_async<kept_twice>("worker1", argument)
                                         .then([](const ferry::future<tensor>& first) {
                                           return keep(duplicate(keep(first.value())));  // no wait
                                         })
                                         .get());
          one.disarm();
          last = duplicate(result);
        }
        return value_of(last) == value;
      },
      // For the argument, see above.
      {{records, 5, {2}}, {waits, 5, {3}}});
}

TEST_CASE("no mark of a call can be omitted: callbacks that write to its argument") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        const tensor argument = keep(filled(gpu(0), value));
        fake_cuda::drain();
        {
          const fake_cuda::pause nothing_runs;
          one.arm();
          group[0]
              .rpc_async<keep_copy>("worker1", argument)
              .then([&](const ferry::future<int>& done) {
                overwrite(argument, 99);
                return done.value();
              })
              .wait();
          one.disarm();
        }
        return value_of(kept().at(2)) == value;
      },
      // The first is that of the argument, which is ready already.
      {{records, 2, {1}}, {waits, 2, {1}}});
}

TEST_CASE("no mark of a call can be omitted: coroutines") {
  device_group group({map_to("worker1", there_and_back), map_to("worker0", {{"cuda:1", "cuda:0"}})});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        tensor last;
        {
          const fake_cuda::pause nothing_runs;
          const tensor argument = keep(filled(gpu(0), value));
          one.arm();
          const tensor result = keep(group[0].rpc_sync<in_steps>("worker1", argument));
          one.disarm();
          last = duplicate(result);
        }
        return value_of(last) == value;
      },
      // For arguments, see above; the result of a coroutine is sent on the stream that it was made on.
      {{records, 9, {2, 4, 7}}, {waits, 10, {4, 6, 7, 10}}});
}

}  // namespace device_marks_test
