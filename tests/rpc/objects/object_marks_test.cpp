// Shows that each mark of an object on devices, and each wait for one, is needed: omitting it gives wrong values.

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/rpc/devices/device_group.hpp"
#include "tests/rpc/devices/left_out.hpp"
#include "tests/rpc/references/table/references.hpp"

namespace object_marks_test {

using namespace device_calls;
using ferry::rref;
using ferry::stream;
using ferry::tensor;

// Uses kernels of the program, which do not record their stream with the memory.
class cell {
 public:
  cell(int device, unsigned char value) : memory_(filled(gpu(device), value)) {}
  static int alive() { return counted::alive; }
  void set(unsigned char value) { overwrite(memory_, value); }
  void read() const { keep(duplicate(memory_)); }
  tensor memory() const { return memory_; }

 private:
  struct counted {
    counted() { ++alive; }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    ~counted() { --alive; }
    static inline std::atomic<int> alive{0};
  };
  counted counted_;  // destroyed after the memory
  tensor memory_;
};
void set_at(const rref<cell>& there, unsigned char value) { there.local_value().set(value); }
void read_at(const rref<cell>& there) { there.local_value().read(); }
void read_on_own_stream(const rref<cell>& there) {
  const stream of_call = ferry::current_stream(gpu(1));
  const stream own = ferry::pool_stream(gpu(1));
  {
    const ferry::stream_guard guard(own);
    there.local_value().read();
  }
  of_call.wait(own);
}

// Gives its turn to other calls while it waits for them.
class turning_cell : public cell {
 public:
  using cell::cell;
  void set_and_call(unsigned char value, const rref<turning_cell>& self);
  ferry::task<void> set_and_await(unsigned char value, rref<turning_cell> self);
};
void read_and_set(const rref<turning_cell>& there, unsigned char value) {
  there.rpc_sync<&cell::read>();
  there.rpc_sync<&cell::set>(value);
}
void turning_cell::set_and_call(unsigned char value, const rref<turning_cell>& self) {
  set(value);
  ferry::rpc_sync<read_and_set>("worker0", self, static_cast<unsigned char>(value + 1));
  read();
}
ferry::task<void> turning_cell::set_and_await(unsigned char value, rref<turning_cell> self) {
  set(value);
  co_await ferry::rpc_async<read_and_set>("worker0", self, static_cast<unsigned char>(value + 1));
  read();
}

}  // namespace object_marks_test

template <>
struct ferry::object_traits<object_marks_test::turning_cell> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace object_marks_test {

TEST_CASE("no mark of an object can be omitted") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        rref<cell> there;
        {
          const fake_cuda::pause nothing_runs;
          one.arm();
          there = group[0].remote<ferry::make<cell>>("worker1", 1, static_cast<unsigned char>(98));
          there.rpc_sync<&cell::read>();
          there.rpc_sync<&cell::set>(value);
          there.rpc_sync<&cell::read>();
          group[0].rpc_sync<set_at>("worker1", there, static_cast<unsigned char>(value + 100));
          group[0].rpc_sync<read_at>("worker1", there);
          one.disarm();
          there.rpc_sync<&cell::set>(static_cast<unsigned char>(99));
        }
        fake_cuda::drain();
        const int last = value_read(there.rpc_sync<&cell::memory>());
        there = {};
        references_test::await([] { return cell::alive() == 0; });
        return last == 99 && value_of(kept().at(0)) == 98 && value_of(kept().at(1)) == value &&
               value_of(kept().at(2)) == value + 100;
      },
      {{records, 6, {}}, {waits, 5, {}}});
}

TEST_CASE("no mark of an object can be omitted: its own memory as a result") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        auto there = group[0].remote<ferry::make<cell>>("worker1", 1, static_cast<unsigned char>(98));
        there.created().get();
        tensor result;
        {
          const fake_cuda::pause nothing_runs;
          there.rpc_sync<&cell::set>(value);
          one.arm();
          const tensor fetched = keep(there.rpc_sync<&cell::memory>());
          there.rpc_sync<&cell::set>(static_cast<unsigned char>(99));
          one.disarm();
          result = duplicate(fetched);
        }
        there = {};
        references_test::await([] { return cell::alive() == 0; });
        return value_of(result) == value;
      },
      // The first record and the fourth wait are the handler's, whose only work is the answer. The last record is for
      // later calls.
      {{records, 5, {1, 5}}, {waits, 5, {4}}});
}

TEST_CASE("no mark of a reentrant object can be omitted") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  for (const bool blocking : {true, false}) {
    CAPTURE(blocking);
    check_each_is_needed(
        [&](left_out& one, unsigned char value) {
          auto there = group[0].remote<ferry::make<turning_cell>>("worker1", 1, static_cast<unsigned char>(98));
          there.created().get();
          fake_cuda::drain();
          {
            const fake_cuda::pause nothing_runs;
            one.arm();
            if (blocking) {
              there.rpc_sync<&turning_cell::set_and_call>(value, there);
            } else {
              there.rpc_sync<&turning_cell::set_and_await>(value, there);
            }
            one.disarm();
            there.rpc_sync<&cell::set>(static_cast<unsigned char>(99));
          }
          there = {};
          references_test::await([] { return cell::alive() == 0; });
          return value_of(kept().at(0)) == value && value_of(kept().at(1)) == value + 1;
        },
        // The object has been made by then. The coroutine releases its turn once more than needed, before it answers.
        blocking ? std::vector<expected_calls>{{records, 4, {}}, {waits, 4, {1}}}
                 : std::vector<expected_calls>{{records, 5, {4}}, {waits, 5, {1, 5}}});
  }
}

TEST_CASE("no mark can be omitted when an object is destroyed") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        {
          const fake_cuda::pause nothing_runs;
          auto there = group[0].remote<ferry::make<cell>>("worker1", 1, value);
          there.rpc_sync<&cell::read>();
          one.arm();
          there = {};
          references_test::await([] { return cell::alive() == 0; });
          one.disarm();
        }
        return value_of(kept().at(0)) == value;
      },
      // The reader has waited for the stream that the memory was made on.
      {{records, 2, {2}}, {waits, 1, {}}});
}

TEST_CASE("no mark can be omitted where a handler uses the object directly, on a stream of its own") {
  device_group group({map_to("worker1", there_and_back), nullptr});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        auto there = group[0].remote<ferry::make<cell>>("worker1", 1, static_cast<unsigned char>(98));
        {
          const fake_cuda::pause nothing_runs;
          there.rpc_sync<&cell::set>(value);
          one.arm();
          group[0].rpc_sync<read_on_own_stream>("worker1", there);
          one.disarm();
          there.rpc_sync<&cell::set>(static_cast<unsigned char>(99));
        }
        fake_cuda::drain();
        const int last = value_read(there.rpc_sync<&cell::memory>());
        there = {};
        references_test::await([] { return cell::alive() == 0; });
        return value_of(kept().at(0)) == value && last == 99;
      },
      // The stream of the call waits, too, and waits explicitly for the other one.
      {{records, 2, {}}, {waits, 3, {1}}});
}

TEST_CASE("no mark can be omitted where the owner uses the object directly and releases it") {
  device_group group({map_to("worker0", {{0, 0}})});
  check_each_is_needed(
      [&](left_out& one, unsigned char value) {
        {
          const fake_cuda::pause nothing_runs;
          rref<cell> own;
          one.arm();
          {
            const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
            own = group[0].make_rref<cell>(std::in_place, 0, value);
          }
          {
            const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
            own.local_value().read();
          }
          own = {};
          references_test::await([] { return cell::alive() == 0; });
          one.disarm();
        }
        return value_of(kept().at(0)) == value;
      },
      // The reader has waited for the stream that made it, and the memory waits for the reader.
      {{records, 4, {4}}, {waits, 3, {2}}});
}

}  // namespace object_marks_test
