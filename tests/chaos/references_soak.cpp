// Eight workers that make objects, share references to them in every way, call them and release them, while messages
// are lost, late, duplicated and reordered, and some of the workers are killed. At the end all workers release all
// references: then all figures are zero and no object is alive.
//
// FERRY_SOAK_SECONDS (2) sets the duration of each group, FERRY_SOAK_SEED the sequence of events; the seed of a run is
// printed.

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/test_kit/faulty.hpp>

#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace references_soak {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::rref;
using ferry_test::child_process;

constexpr int workers = 8;
constexpr auto heartbeat = 200ms;
constexpr auto lease = 8s;
constexpr std::size_t most_kept = 64;  // references per worker

std::string name_of(int slot) { return "worker" + std::to_string(slot); }

// ---- the objects

class thing;
using things = std::vector<rref<thing>>;

/// An object refers only to older ones: a cycle of references would keep its objects alive for ever.
class thing {
 public:
  thing(int value, things kids) : value_(value), kids_(std::move(kids)) { ++alive; }
  thing(const thing&) = delete;
  thing& operator=(const thing&) = delete;
  ~thing() {
    --alive;
    mark_ = 0;
  }
  [[nodiscard]] int value() const {
    if (mark_ != intact) std::abort();  // used after destruction
    return value_;
  }
  void touch(int) { (void)value(); }
  [[nodiscard]] things kids() const { return kids_; }
  [[nodiscard]] std::vector<things> family() const { return {kids_, {}, kids_}; }
  /// A new object with this one's kids.
  [[nodiscard]] std::shared_ptr<thing> derive() const { return std::make_shared<thing>(value_ + 1, kids_); }
  /// Calls the others in a chain, each from the previous one.
  [[nodiscard]] int meet(const things& others) const {
    if (others.empty()) return 1;
    return 1 + others.front().rpc_sync<&thing::meet>(things(others.begin() + 1, others.end()));
  }
  ferry::task<int> meet_later(things others) {
    if (others.empty()) co_return 1;
    const things rest(others.begin() + 1, others.end());
    co_return 1 + co_await others.front().rpc_async<&thing::meet_later>(rest);
  }

  static inline std::atomic<int> alive{0};

 private:
  static constexpr std::uint32_t intact = 0x600dbeef;
  const int value_;
  const things kids_;
  volatile std::uint32_t mark_ = intact;
};
class ordered_thing : public thing {
  using thing::thing;
};
class exclusive_thing : public thing {
  using thing::thing;
};
class reentrant_thing : public thing {
  using thing::thing;
};

}  // namespace references_soak

template <>
struct ferry::object_traits<references_soak::ordered_thing> {
  static constexpr auto execution = ferry::execution::ordered;
};
template <>
struct ferry::object_traits<references_soak::exclusive_thing> {
  static constexpr auto execution = ferry::execution::exclusive;
};
template <>
struct ferry::object_traits<references_soak::reentrant_thing> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace references_soak {

// ---- the references that a worker keeps

struct kept {
  rref<thing> ref;
  bool proved = false;  // used after its owner confirmed it: from then on the object must stay alive
};

std::mutex bag_mutex;
std::vector<kept> bag;    // guarded by bag_mutex, like the next one
bool bag_closed = false;  // keep() discards references from now on
std::atomic<long> uses{0};

using dice = std::mt19937;
int below(dice& random, int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); }
dice& thread_dice() {
  thread_local dice random(std::random_device{}());
  return random;
}

void keep(rref<thing> ref, bool proved = false) {
  rref<thing> dropped;  // outside the lock
  const std::lock_guard lock(bag_mutex);
  if (bag_closed) return;
  if (bag.size() < most_kept) {
    bag.push_back({std::move(ref), proved});
  } else {
    kept& place = bag[static_cast<std::size_t>(below(thread_dice(), static_cast<int>(bag.size())))];
    dropped = std::exchange(place, {std::move(ref), proved}).ref;
  }
}
kept any_kept(dice& random) {
  const std::lock_guard lock(bag_mutex);
  return bag.empty() ? kept{} : bag[static_cast<std::size_t>(below(random, static_cast<int>(bag.size())))];
}
void drop_one(dice& random) {
  kept dropped;
  const std::lock_guard lock(bag_mutex);
  if (bag.empty()) return;
  const auto at = bag.begin() + below(random, static_cast<int>(bag.size()));
  dropped = std::move(*at);
  bag.erase(at);
}
void prove(const rref<thing>& ref, bool known) {
  ++uses;
  if (!known) return;  // it is lost if its sender is killed
  const std::lock_guard lock(bag_mutex);
  for (kept& each : bag) {
    if (each.ref.handle().get() == ref.handle().get()) each.proved = true;
  }
}
void close_bag() {
  std::vector<kept> dropped;
  const std::lock_guard lock(bag_mutex);
  bag_closed = true;
  dropped.swap(bag);
}
things some_kept(dice& random, int most) {
  things result;
  for (int i = below(random, most + 1); i != 0; --i) {
    if (auto one = any_kept(random).ref) result.push_back(std::move(one));
  }
  return result;
}

// ---- the functions that they call

int one() { return 1; }
std::unique_ptr<thing> make_on_heap(int value, things kids) { return std::make_unique<thing>(value, std::move(kids)); }
ferry::task<std::unique_ptr<thing>> make_later(int value, things kids, std::string where) {
  const int more = co_await ferry::rpc_async<one>(where);
  co_return std::make_unique<thing>(value + more, std::move(kids));
}
std::unique_ptr<thing> fail_to_make(int value, const things&) {
  throw std::invalid_argument("no thing of value " + std::to_string(value));
}

/// Keeps some references, calls one, sends all on, and returns others.
std::vector<things> share(const std::vector<things>& groups, const std::vector<std::string>& way) {
  dice& random = thread_dice();
  things all;
  for (const things& each : groups) all.insert(all.end(), each.begin(), each.end());
  for (const auto& each : all) {
    if (below(random, 2) == 0) keep(each);
  }
  if (!all.empty() && below(random, 3) == 0) all.front().notify<&thing::touch>(1);
  if (way.empty()) return {all, some_kept(random, 3)};
  const std::vector<std::string> rest(way.begin() + 1, way.end());
  if (below(random, 3) == 0) {
    auto sent = ferry::rpc_async<share>(way.front(), std::vector<things>{all}, rest);
    return {some_kept(random, 2), all};  // the call that it made continues
  }
  return ferry::rpc_sync<share>(way.front(), std::vector<things>{all}, rest);
}
ferry::task<std::vector<things>> share_later(std::vector<things> groups, std::vector<std::string> way) {
  if (way.empty()) co_return groups;
  const std::vector<std::string> rest(way.begin() + 1, way.end());
  auto result = co_await ferry::rpc_async<share_later>(way.front(), groups, rest);
  for (const things& group : result) {
    for (const auto& each : group) keep(each);
  }
  co_return result;
}
void take(const things& all) {
  for (const auto& each : all) keep(each);
}
int fetch_and_add(const things& all) {
  int sum = 0;
  for (const auto& each : all) sum += each.rpc_sync<&thing::value>() == 0 ? 0 : 1;
  return sum;
}

// ---- a worker

/// Errors of calls that are expected where messages are lost and workers die.
bool may_happen(errc kind) {
  switch (kind) {
    case errc::rpc_timeout:
    case errc::call_cancelled:
    case errc::peer_lost:
    case errc::fenced:
    case errc::connect_failed:
    case errc::unknown_worker:
    case errc::resource_exhausted:
    case errc::would_deadlock: return true;
    default: return false;
  }
}
/// Also the errors that are expected if the objects may not exist.
bool may_happen_without_object(errc kind) {
  return may_happen(kind) || kind == errc::reference_deleted || kind == errc::bad_result || kind == errc::bad_arguments;
}

class member {
 public:
  // Arguments: init method, slot, number of workers or 0 for a dynamic group, whether there are faults, seed.
  explicit member(const std::vector<std::string>& arguments)
      : name_(name_of(std::stoi(arguments.at(1)))), seed_(static_cast<unsigned>(std::stoul(arguments.at(4)))) {
    const int size = std::stoi(arguments.at(2));
    ferry::worker_config config{.name = name_,
                                .rank = size == 0 ? ferry::any_rank : std::stoi(arguments.at(1)),
                                .world_size = size == 0 ? ferry::dynamic_world : size,
                                .init_method = arguments.at(0),
                                .num_worker_threads = 4,
                                .heartbeat_interval = heartbeat,
                                .lease = lease,
                                .init_timeout = 60s,
                                .exit_timeout = 60s};
    if (arguments.at(3) == "faulty") {
      using backend = ferry::faulty<ferry::native>;
      add_faults();
      auto options = ferry::construct_rpc_backend_options<backend>();
      options.faults = faults_;
      self_ = ferry::init_rpc<backend>(config, options);
    } else {
      self_ = ferry::init_rpc(config);
    }
  }

  void begin() {
    for (unsigned i = 0; i != 3; ++i) threads_.emplace_back([this, i] { play(seed_ * 10 + i); });
  }
  /// Ends all calls, and releases all references.
  void stop() {
    stop_ = true;
    for (auto& each : threads_) each.join();
    threads_.clear();
    close_bag();
  }
  /// What is left, as text; empty: nothing.
  [[nodiscard]] std::string leftovers() const {
    std::string text;
    for (const auto& [figure, value] : self_.debug_info()) {
      static const std::set<std::string> counted{"num_owner_rrefs",      "num_forks",           "num_pending_users",
                                                 "num_pending_children", "num_pending_futures", "num_users"};
      if (counted.contains(figure) && value != "0") text += " " + figure + "=" + value;
    }
    if (thing::alive != 0) text += " alive=" + std::to_string(thing::alive);
    return text;
  }
  [[nodiscard]] bool fenced() const { return self_.fenced(); }
  void leave() { self_.shutdown(); }
  void end_faults() { faults_.clear(); }
  [[nodiscard]] std::string report() const {
    std::ostringstream text;
    text << "done " << actions_ << ' ' << good_ << ' ' << uses << ' ' << unexpected_;
    return text.str();
  }

 private:
  void add_faults() {
    using ferry::fault_action;
    const auto add = [&](fault_action action, const std::string& method, double probability,
                         ferry::message_kinds kinds) {
      faults_.add({.action = action,
                   .kinds = kinds,
                   .method = method,
                   .direction = ferry::fault_direction::both,
                   .delay = 30ms,
                   .behind = 2,
                   .probability = probability});
    };
    using enum ferry::message_kinds;
    for (const std::string method : {"ferry/references", "*"}) {
      const double often = method == "*" ? 0.01 : 0.05;
      add(fault_action::drop, method, often, any);
      add(fault_action::delay, method, 3 * often, any);
      add(fault_action::reorder, method, 3 * often, any);
      add(fault_action::duplicate, method, 3 * often, request | one_way | reply);
    }
  }

  template <class Act>
  void attempt(const char* what, bool objects_exist, const Act& act) {
    ++actions_;
    const auto begin = ferry::clock::now();
    try {
      act();
      ++good_;
    } catch (const ferry::error& e) {
      if (!(objects_exist ? may_happen(e.kind()) : may_happen_without_object(e.kind()))) unexpected(what, e.what());
    } catch (const std::invalid_argument& e) {  // fail_to_make
      if (objects_exist) unexpected(what, e.what());
    } catch (const std::exception& e) {
      unexpected(what, e.what());
    }
    if (ferry::clock::now() - begin > 60s) unexpected(what, "took more than a minute");
  }
  void unexpected(const char* what, const char* why) {
    ++unexpected_;
    std::fprintf(stderr, "%s: %s: unexpected: %s\n", name_.c_str(), what, why);
  }

  void create(dice& random, const ferry::to& there) {
    const int value = 1 + below(random, 1000);
    things kids;
    if (below(random, 5) == 0) kids = some_kept(random, 2);
    attempt("create", false, [&] {
      switch (below(random, 8)) {
        case 0: return keep(self_.remote<ferry::make<thing>>(there, value, kids));
        case 1: return keep(self_.remote<ferry::make<ordered_thing>>(there, value, kids));
        case 2: return keep(self_.remote<ferry::make<exclusive_thing>>(there, value, kids));
        case 3: return keep(self_.remote<ferry::make<reentrant_thing>>(there, value, kids));
        case 4: return keep(ferry::any_rref(self_.remote<make_on_heap>(there, value, kids)).as<thing>());
        case 5:
          return keep(
              ferry::any_rref(self_.remote<make_later>(there, value, kids, std::string(there.name()))).as<thing>());
        case 6: return keep(ferry::any_rref(self_.remote<fail_to_make>(there, value, kids)).as<thing>());
        default: return keep(rref<thing>(std::in_place, value, kids));
      }
    });
  }
  void pass_on(dice& random, const ferry::to& there, const std::vector<std::string>& way) {
    const std::vector<things> groups{some_kept(random, 2), {}, some_kept(random, 2)};
    attempt("share", false, [&] {
      switch (below(random, 6)) {
        case 0: return self_.notify<take>(there, groups.front());
        case 1: return (void)self_.rpc_async<share>(there, groups, way);
        case 2:
          for (const things& group : self_.rpc_async<share_later>(there, groups, way).get()) take(group);
          return;
        case 3: return (void)self_.rpc_sync<fetch_and_add>(there, groups.back());
        case 4: {
          auto given_up = self_.rpc_async<share>(there, groups, way);
          given_up.cancel();
          return;
        }
        default:
          for (const things& group : self_.rpc_sync<share>(there, groups, way)) take(group);
      }
    });
  }
  void use(dice& random, ferry::timeout limit) {
    const kept one = any_kept(random);
    if (!one.ref) return;
    const ferry::call_options options{.timeout = limit};
    switch (below(random, 8)) {
      case 0:
      case 1:
      case 2:
        return attempt("use", one.proved, [&] {
          const bool known = one.ref.confirmed_by_owner();
          (void)one.ref.rpc_sync<&thing::value>(options);
          prove(one.ref, known);
        });
      case 3: return attempt("notify", one.proved, [&] { one.ref.notify<&thing::touch>(2); });
      case 4:
        return attempt("derive", one.proved,
                       [&] { keep(ferry::any_rref(one.ref.remote<&thing::derive>(options)).as<thing>()); });
      case 5:
        return attempt("family", false, [&] {
          for (const things& group : one.ref.rpc_sync<&thing::family>(options)) take(group);
        });
      case 6:
        return attempt("meet", false, [&] { (void)one.ref.rpc_sync<&thing::meet>(options, some_kept(random, 2)); });
      default:
        return attempt("meet later", false, [&] {
          auto met = one.ref.rpc_async<&thing::meet_later>(options, some_kept(random, 2));
          if (below(random, 2) == 0) (void)met.get();
        });
    }
  }

  void play(unsigned seed) {
    dice random(seed);
    constexpr std::array<std::chrono::milliseconds, 3> limits{20ms, 200ms, 2000ms};
    while (!stop_ && !self_.fenced()) {
      const ferry::timeout limit = limits[static_cast<std::size_t>(below(random, 3))];
      const std::string callee = name_of(below(random, workers));
      const ferry::to there{callee, {.timeout = limit}};
      switch (below(random, 10)) {
        case 0:
        case 1: create(random, there); break;
        case 2:
        case 3: {
          std::vector<std::string> way;
          for (int i = below(random, 3); i != 0; --i) way.push_back(name_of(below(random, workers)));
          pass_on(random, there, way);
          break;
        }
        case 4: drop_one(random); break;
        default: use(random, limit);
      }
    }
  }

  const std::string name_;
  const unsigned seed_;
  ferry::fault_injector faults_{seed_};
  ferry::worker self_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
  std::atomic<long> actions_{0};
  std::atomic<long> good_{0};
  std::atomic<long> unexpected_{0};
};

// Commands: "break"; "calm" ends the faults; "stop" is answered with "stopped" or "fenced", "left" with what is left,
// "leave" with the report.
const ferry_test::role soak_member("soak member", [](const std::vector<std::string>& arguments) {
  ferry::set_log_level(ferry::log_level::off);
  member self(arguments);
  ferry_test::tell_parent("joined");
  self.begin();
  for (;;) {
    const std::string line = ferry_test::ask_parent();
    if (line == "break") ferry_test::break_connections();
    if (line == "calm") self.end_faults();
    if (line == "stop") {
      self.stop();
      ferry_test::tell_parent(self.fenced() ? "fenced" : "stopped");
    }
    if (line == "left") ferry_test::tell_parent("left:" + self.leftovers());
    if (line == "leave") {
      self.end_faults();
      self.leave();
      ferry_test::tell_parent(self.report());
      return 0;
    }
  }
});

long setting(const char* variable, long usual) {
  const char* text = std::getenv(variable);
  return text ? std::stol(text) : usual;
}

struct soak {
  const char* name;
  bool dynamic;
  bool faulty;
};

void run(const soak& how) {
  const auto length = std::chrono::seconds(setting("FERRY_SOAK_SECONDS", 2));
  const auto seed =
      static_cast<unsigned>(setting("FERRY_SOAK_SEED", static_cast<long>(std::random_device()() % 100000)));
  MESSAGE(how.name << ": FERRY_SOAK_SEED=" << seed << " FERRY_SOAK_SECONDS=" << length.count());
  CAPTURE(seed);
  const ferry_test::watchdog dog("references soak", length + 300s);
  const ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  dice random(seed);

  unsigned started = 0;
  const auto start = [&](int slot) {
    return std::make_unique<child_process>(ferry_test::child_options{
        .role = "soak member",
        .arguments = {meeting, std::to_string(slot), std::to_string(how.dynamic ? 0 : workers),
                      how.faulty ? "faulty" : "sound", std::to_string(seed + 100 * ++started)}});
  };
  std::vector<std::unique_ptr<child_process>> group;
  for (int slot = 0; slot != workers; ++slot) group.push_back(start(slot));
  for (const auto& each : group) REQUIRE(each->read_line() == "joined");

  // A few kills, and connections that break all the time.
  const auto begin = ferry::clock::now();
  int killed = 0;
  while (ferry::clock::now() < begin + length) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + below(random, 200)));  // the pace of events
    const int slot = below(random, workers);
    auto& child = group[static_cast<std::size_t>(slot)];
    const bool time_for_a_kill = ferry::clock::now() > begin + (killed + 1) * length / 4;
    if (child && time_for_a_kill && (killed < 3 || how.dynamic)) {
      child->kill(SIGKILL);
      CHECK(child->wait() == 128 + SIGKILL);
      ++killed;
      child = nullptr;
      if (!how.dynamic) continue;
      child = start(slot);
      REQUIRE(child->read_line() == "joined");
    } else if (child && below(random, 4) == 0) {
      child->write_line("break");
    }
  }

  const auto all = [&](const auto& act) {
    for (int slot = 0; slot != workers; ++slot) {
      CAPTURE(slot);
      if (auto& child = group[static_cast<std::size_t>(slot)]) act(slot, *child);
    }
  };
  all([](int, child_process& child) { child.write_line("stop"); });
  all([](int, child_process& child) { CHECK(child.read_line() == "stopped"); });
  const auto stopped = ferry::clock::now();
  std::string left;
  bool calm = false;
  do {
    if (!calm && ferry::clock::now() > stopped + 5s) {  // with faults it may never settle
      calm = true;
      all([](int, child_process& child) { child.write_line("calm"); });
    }
    std::this_thread::sleep_for(50ms);  // the polling interval
    left.clear();
    all([](int, child_process& child) { child.write_line("left"); });
    all([&](int slot, child_process& child) {
      const std::string answer = child.read_line();
      if (answer != "left:") left += name_of(slot) + " " + answer + "\n";
    });
  } while (!left.empty() && ferry::clock::now() < stopped + 60s);
  const auto settled = std::chrono::duration_cast<std::chrono::milliseconds>(ferry::clock::now() - stopped);
  CHECK(left == "");

  all([](int, child_process& child) { child.write_line("leave"); });
  long actions = 0;
  long good = 0;
  long used = 0;
  all([&](int, child_process& child) {
    std::istringstream answer(child.read_line());
    std::string word;
    std::array<long, 4> figures{};
    answer >> word;
    for (long& each : figures) answer >> each;
    CHECK(word == "done");
    CHECK(static_cast<bool>(answer));
    CHECK(figures[3] == 0);  // unexplained errors
    CHECK(child.wait() == 0);
    actions += figures[0];
    good += figures[1];
    used += figures[2];
  });
  MESSAGE(actions << " actions by surviving workers, " << good << " with success, " << used
                  << " uses of objects; killed " << killed << ", nothing was left after " << settled.count() << " ms");
  CHECK(used > 0);
}

TEST_CASE("a soak of references ends with nothing left, while connections break and workers are killed") {
  run({"static", false, false});
}
TEST_CASE("a soak of references ends with nothing left, while messages are lost as well") {
  run({"static, faulty", false, true});
}
TEST_CASE("a soak of references ends with nothing left, while workers are killed and started again") {
  run({"dynamic", true, false});
}
TEST_CASE(
    "a soak of references ends with nothing left, with lost messages and workers that are killed and started again") {
  run({"dynamic, faulty", true, true});
}

}  // namespace references_soak
