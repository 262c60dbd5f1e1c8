// Tensors of 64 KiB to 256 MiB, against a bare socket that moves as many bytes.
//
//   send   to a method that returns a number; baseline: received into a warm buffer, then a small answer
//   fresh  the same where every received tensor gets new memory from the operating system; baseline: newly mapped
//          memory for every message
//   echo   to a method that returns the tensor; baseline: received into a warm buffer, then all sent back
//   argument, result, back and forth   within the process (inproc): tensors that are handed over; baseline: the same calls with
//          tensors that the caller, or the callee, keeps, which are copied. In microseconds
//   argument, result, read, kept   in place (shm): the same between processes, with tensors of the shared allocator, one for each
//          message; baseline: with ordinary ones. of `read` the callee reads a number of each 64 bytes; of `kept` the callee keeps the last three
//
// Bytes per second; those of an echo count twice. With a processor for each side the baseline is the faster of two:
// both sides blocking in their system calls, or spinning as ferry does by default.

#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/shared_allocator.hpp>

#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/raw_socket.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"
#include "support/worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kibibyte = 1024;
constexpr std::size_t mebibyte = 1024 * kibibyte;

struct size_case {
  const char* name;
  std::size_t bytes;
};
constexpr size_case sizes[] = {{"64KiB", 64 * kibibyte},
                               {"1MiB", mebibyte},
                               {"16MiB", 16 * mebibyte},
                               {"64MiB", 64 * mebibyte},
                               {"256MiB", 256 * mebibyte}};
struct variant {
  const char* name;
  bulk how;
  const char* baseline;
};
constexpr variant variants[] = {{"send", bulk::warm, "raw stream, warm"},
                                {"fresh", bulk::fresh, "raw stream, fresh"},
                                {"echo", bulk::echo, "raw echo, warm"}};

// Smaller blocks come from the heap and are not new memory.
constexpr std::size_t smallest_fresh = 16 * mebibyte;

double gigabytes_per_second(std::vector<double>& microseconds, std::size_t bytes) {
  return static_cast<double>(bytes) / quantile(microseconds, 0.5) / 1000;
}

void call(const ferry::worker& caller, const ferry::tensor& t, bulk how) {
  if (how == bulk::echo) {
    (void)caller.rpc_sync<remote::give_back>(callee, t);
  } else {
    (void)caller.rpc_sync<remote::numel>(callee, t);
  }
}

void measure(report& out, const options& chosen, const std::string& transport, pin_mode pin) {
  const std::string prefix = transport + "/" + std::string(name_of(pin)) + "/";
  std::optional<worker_pair> pair;
  std::optional<raw_pair> raw;
  for (const variant& way : variants) {
    bool header = false;
    for (const size_case& size : sizes) {
      const std::string name = prefix + way.name + "/" + size.name;
      if (!chosen.wants(name) || (way.how == bulk::fresh && size.bytes < smallest_fresh)) continue;
      if (chosen.quick && size.bytes > 64 * mebibyte) continue;
      if (!pair) {
        pair.emplace(pair_options{.transport = transport}, pin);
        raw.emplace(transport == "shm" ? "unix" : transport, pin);
      }
      const auto window = chosen.window_or(60ms);
      const ferry::worker& caller = pair->caller();
      const ferry::tensor payload = ferry::zeros({static_cast<std::int64_t>(size.bytes / sizeof(float))});
      if (way.how == bulk::fresh) caller.rpc_sync<remote::switch_pool>(callee, false);
      for (int i = 0; i != 2; ++i) call(caller, payload, way.how);
      pair->pin();
      repeated value;
      repeated blocking;
      repeated spinning;

      // Large ones take long; neither a warm-up nor the waiting mode affects them.
      const bool large = size.bytes > 16 * mebibyte;
      const std::size_t least = large ? 1 : 2;
      const bool may_spin = !large && pin != pin_mode::same_core && processors().size() > 1;
      std::size_t transfers = 0;
      const std::size_t moved = way.how == bulk::echo ? 2 * size.bytes : size.bytes;
      for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
        const auto measure_raw = [&](waiting wait, repeated& result) {
          auto of_raw = raw->transfer(size.bytes, way.how, wait, window, least);
          result.add(gigabytes_per_second(of_raw, moved));
        };
        if (!chosen.alone) {
          measure_raw(waiting::blocking, blocking);
          if (may_spin) measure_raw(waiting::spinning, spinning);
        }
        if (!large) call(caller, payload, way.how);
        auto samples = time_each(window, least, [&] { call(caller, payload, way.how); });
        transfers += samples.size();
        value.add(gigabytes_per_second(samples, moved));
      }
      if (way.how == bulk::fresh) caller.rpc_sync<remote::switch_pool>(callee, true);
      if (!header) out.section(prefix + way.name + "/");
      header = true;
      const auto bound = way.how == bulk::warm ? std::optional<target>(target{0.9, true, true}) : std::nullopt;
      const bool spun = may_spin && spinning.median() > blocking.median();
      const repeated& baseline = spun ? spinning : blocking;
      out.add(name, value, "GB/s", std::string(way.baseline) + (spun ? ", spinning" : ", blocking"),
              chosen.alone ? nullptr : &baseline, transfers, bound);
    }
  }
}

// One way of calling with a tensor of so many bytes.
struct handover_case {
  const char* name;
  void (*given)(const ferry::worker& caller, std::int64_t elements);
  void (*kept)(const ferry::worker& caller, std::int64_t elements);
};
constexpr handover_case handovers[] = {
    {"argument",
     [](const ferry::worker& caller, std::int64_t elements) {
       (void)caller.rpc_sync<remote::numel>(callee, ferry::empty({elements}));
     },
     [](const ferry::worker& caller, std::int64_t elements) {
       const ferry::tensor t = ferry::empty({elements});
       (void)caller.rpc_sync<remote::numel>(callee, t);
     }},
    {"result",
     [](const ferry::worker& caller, std::int64_t elements) { (void)caller.rpc_sync<remote::made>(callee, elements); },
     [](const ferry::worker& caller, std::int64_t elements) {
       (void)caller.rpc_sync<remote::made_once>(callee, elements);
     }},
    {"back-and-forth",
     [](const ferry::worker& caller, std::int64_t elements) {
       static thread_local ferry::tensor t;
       if (!t.defined() || t.numel() != elements) t = ferry::zeros({elements});
       t = caller.rpc_sync<remote::give_back>(callee, std::move(t));
     },
     [](const ferry::worker& caller, std::int64_t elements) {
       static thread_local ferry::tensor t;
       if (!t.defined() || t.numel() != elements) t = ferry::zeros({elements});
       (void)caller.rpc_sync<remote::give_back>(callee, t);
     }},
};

ferry::tensor written(std::int64_t elements) {
  const ferry::tensor made = ferry::empty({elements});
  made.data<float>()[0] = 1;
  return made;
}

template <auto Method>
constexpr handover_case argument_in_place(const char* name) {
  return {name,
          [](const ferry::worker& caller, std::int64_t elements) {
            const ferry::shared_memory_scope shared;
            (void)caller.rpc_sync<Method>(callee, written(elements));
          },
          [](const ferry::worker& caller, std::int64_t elements) {
            (void)caller.rpc_sync<Method>(callee, written(elements));
          }};
}
constexpr handover_case in_place[] = {
    argument_in_place<remote::numel>("argument"),
    {"result",
     [](const ferry::worker& caller, std::int64_t elements) {
       (void)caller.rpc_sync<remote::made_shared>(callee, elements);
     },
     [](const ferry::worker& caller, std::int64_t elements) { (void)caller.rpc_sync<remote::made>(callee, elements); }},
    argument_in_place<remote::look_through>("read"),
    argument_in_place<remote::keep_three>("kept"),
};

// Tensors that change hands, beside those that are copied.
void measure_handovers(report& out, const options& chosen, std::span<const handover_case> ways,
                       const std::string& transport, pin_mode pin) {
  const std::string prefix = transport + (transport == "shm" ? "-in-place/" : "/") + std::string(name_of(pin)) + "/";
  const std::size_t largest = transport == "shm" && !chosen.quick ? 256 * mebibyte : 16 * mebibyte;
  std::optional<worker_pair> pair;
  for (const handover_case& way : ways) {
    bool header = false;
    for (const size_case& size : sizes) {
      const std::string name = prefix + way.name + "/" + size.name;
      if (!chosen.wants(name) || size.bytes > largest) continue;
      if (!pair) pair.emplace(pair_options{.transport = transport}, pin);
      const ferry::worker& caller = pair->caller();
      const auto elements = static_cast<std::int64_t>(size.bytes / sizeof(float));
      const auto window = chosen.window_or(60ms);
      timing given;
      timing kept;
      for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
        const auto measured = [&](void (*once)(const ferry::worker&, std::int64_t), timing& result) {
          const std::size_t least = size.bytes > 16 * mebibyte ? 5 : 10;
          for (std::size_t warm = 0; warm != least; ++warm) once(caller, elements);
          auto samples = time_each(window, least, [&] { once(caller, elements); });
          result.add(samples);
        };
        if (repeat == 0) pair->pin();
        if (!chosen.alone) measured(way.kept, kept);
        measured(way.given, given);
      }
      if (!header) out.section(prefix + way.name + "/");
      header = true;
      out.add(name, given, "copied", chosen.alone ? nullptr : &kept);
    }
  }
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  auto roles = worker_roles();
  roles.emplace(raw_role, serve_raw);
  run_role(argc, argv, roles);
  const options chosen = read_options(argc, argv, "bulk: tensors against a bare stream");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(300));
  try {
    report out("bulk", chosen);
    for (const std::string transport : {"tcp", "unix", "shm"}) {
      for (const pin_mode pin : chosen.pins_or({pin_mode::two_cores, pin_mode::same_core})) {
        measure(out, chosen, transport, pin);
      }
    }
    for (const pin_mode pin : chosen.pins_or({pin_mode::two_cores, pin_mode::same_core})) {
      measure_handovers(out, chosen, handovers, "inproc", pin);
      measure_handovers(out, chosen, in_place, "shm", pin);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bulk: %s\n", e.what());
    return 1;
  }
}
