// An object that stays on another worker, and references to it.   ferry-run -n 2 ./08_references

#include <ferry/ferry.hpp>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

using namespace std::chrono_literals;

// Lives where it is made. Counts its instances, so that we can see it go.
class counter {
 public:
  counter() { ++alive; }  // what to_here() fetches is decoded into such a one
  explicit counter(int start) : value_(start) {
    if (start < 0) throw std::out_of_range("a counter starts at zero or above");
    ++alive;
  }
  counter(const counter& other) : value_(other.value_) { ++alive; }
  counter& operator=(const counter&) = default;
  ~counter() { --alive; }

  int add(int more) { return value_ += more; }
  int value() const { return value_; }

  template <class Archive>
  void serialize(Archive& archive) {  // only to_here() needs it
    archive(value_);
  }
  static inline std::atomic<int> alive = 0;

 private:
  int value_ = 0;
};
// Its calls run one at a time, so that it needs no lock.
template <>
struct ferry::object_traits<counter> {
  static constexpr auto execution = ferry::execution::exclusive;
};

int squared(const counter& c) { return c.value() * c.value(); }
int counters_here() { return counter::alive; }

bool use_counter() {
  // Made in place on worker1. What comes back, at once, is a reference; nothing waits for worker1.
  ferry::rref<counter> there = ferry::remote<ferry::make<counter>>("worker1", 5);
  std::printf("made on %s\n", there.owner_name().c_str());

  // Its functions, and functions that take a counter, run where it is.
  const int sum = there.rpc_sync<&counter::add>(2);
  ferry::future<int> square = there.rpc_async<squared>();
  there.notify<&counter::add>(3);  // without waiting for anything
  std::printf("5 + 2 = %d, squared %d\n", sum, square.get());

  // The result of a call may stay there, too, and be called through before it exists: no round trip in between.
  ferry::rref<int> next = there.remote<&counter::add>(90);
  std::printf("and 3, and 90: %d\n", next.to_here());

  // A copy of the object comes here. Changing it changes nothing there.
  counter copy = there.to_here(5s);
  copy.add(1000);
  const int left = there.rpc_sync<&counter::value>();
  std::printf("the copy %d, the counter %d\n", copy.value(), left);

  // An error while the object is made is reported by the uses of the reference.
  const auto broken = ferry::remote<ferry::make<counter>>("worker1", -1);
  bool told = false;
  try {
    broken.rpc_sync<&counter::value>();
  } catch (const std::out_of_range& e) {
    std::printf("as expected: %s\n", e.what());
    told = true;
  }

  // The last reference goes, and with it the counter.
  const int before = ferry::rpc_sync<counters_here>("worker1");
  there = {};
  while (ferry::rpc_sync<counters_here>("worker1") != 0) std::this_thread::yield();
  std::printf("counters on worker1: %d, then none\n", before);
  return sum == 7 && left == 100 && copy.value() == 1100 && told && before == 1;
}

int main() {
  ferry::worker self = ferry::init_rpc();
  const bool right = self.id().value != 0 || use_counter();
  self.shutdown();
  return right ? 0 : 1;
}
