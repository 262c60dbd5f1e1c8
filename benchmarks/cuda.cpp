// Calls with tensors on a GPU, beside the runtime's own copies.
//
//   stream     what a call adds to a stream: a chain of calls, each of which waits for nothing but its stream, against as many
//              cudaMemcpyAsync of as many bytes in a chain; per link
//   bandwidth  tensors of 4 KiB to 256 MiB to a method that returns a number, within a process and between two on one GPU,
//              against cudaMemcpyAsync of as many bytes: on the device, or to page-locked memory and back
//   reply      a handler that works on the tensor and returns it: answered in the order of streams, or after the host has
//              waited for the device, as without streams in calls; both end with the caller's stream
//
// Without a GPU it says so and fails.

#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/store/tcp_store.hpp>
#include <ferry/tensor/factories.hpp>

#include "support/options.hpp"
#include "support/process.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"

// Methods: not in an unnamed namespace, since two processes agree on their names.
namespace cuda_bench {

ferry::tensor same(ferry::tensor t) { return t; }
std::int64_t numel(const ferry::tensor& t) { return t.numel(); }

// Some milliseconds of a GPU for a few MiB.
ferry::tensor worked_on(const ferry::tensor& t) {
  ferry::tensor result = t;
  for (int i = 0; i != 10; ++i) result = result * 1.5 + t;
  return result;
}
ferry::tensor worked_on_and_waited_for(const ferry::tensor& t) {
  ferry::tensor result = worked_on(t);
  ferry::current_stream(t.device()).synchronize();
  return result;
}

}  // namespace cuda_bench

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using ferry::device;
using ferry::stream;
using ferry::tensor;

constexpr device gpu{ferry::device_kind::cuda, 0};
constexpr device host;
constexpr std::size_t kibibyte = 1024;
constexpr std::size_t mebibyte = 1024 * kibibyte;

struct size_case {
  const char* name;
  std::size_t bytes;
};
constexpr size_case sizes[] = {{"4KiB", 4 * kibibyte}, {"64KiB", 64 * kibibyte}, {"1MiB", mebibyte},
                               {"2MiB", 2 * mebibyte}, {"16MiB", 16 * mebibyte}, {"256MiB", 256 * mebibyte}};

ferry::worker start(const std::string& init_method, int rank, const std::string& transport) {
  ferry::backend_traits<ferry::native>::options_type options;
  options.transports = {transport};
  options.transport.bind = "127.0.0.1";
  const std::string names[] = {"caller", "callee"};
  options.set_device_map(names[1 - rank], {{"cuda:0", "cuda:0"}});
  return ferry::init_rpc<ferry::native>(
      {.name = names[rank], .rank = rank, .world_size = 2, .init_method = init_method}, options);
}

int serve(const std::vector<std::string>& arguments) {
  ferry::worker self = start(arguments.at(0), 1, arguments.at(1));
  char ignored = 0;
  read_all(control_descriptor, &ignored, 1);
  self.shutdown(true, 20s);
  return 0;
}

// Two workers with tensors on the same GPU; the callee is another process, except of the transport "inproc".
class gpu_pair {
 public:
  explicit gpu_pair(const std::string& transport) {
    const std::string meeting = "tcp://127.0.0.1:" + std::to_string(store_->port());
    std::future<ferry::worker> other;
    if (transport == "inproc") {
      other = std::async(std::launch::async, [&] { return start(meeting, 1, transport); });
    } else {
      process_ = child_process("callee", {meeting, transport});
    }
    caller_ = start(meeting, 0, transport);
    if (other.valid()) callee_ = other.get();
  }
  ~gpu_pair() {
    process_.ask_to_stop();
    auto other = std::async(std::launch::async, [this] { callee_ = {}; });
    caller_ = {};
    other.wait();
  }
  gpu_pair(const gpu_pair&) = delete;
  gpu_pair& operator=(const gpu_pair&) = delete;
  [[nodiscard]] const ferry::worker& caller() const noexcept { return caller_; }

 private:
  const std::shared_ptr<ferry::tcp_store_server> store_ = ferry::tcp_store_server::listen("127.0.0.1", free_port());
  ferry::worker caller_;
  ferry::worker callee_;  // within this process
  child_process process_;
};

tensor on_gpu(std::size_t bytes) {
  return ferry::zeros({static_cast<std::int64_t>(bytes / sizeof(float))}, ferry::dtype::f32, gpu);
}

// The runtime's own copies, on the current stream.
class plain_copies {
 public:
  explicit plain_copies(std::size_t bytes)
      : bytes_(bytes), first_(ferry::current_stream(gpu), bytes), second_(ferry::current_stream(gpu), bytes) {}
  ~plain_copies() {
    if (pinned_) operations().deallocate_staging(gpu, pinned_, bytes_);
  }
  plain_copies(const plain_copies&) = delete;
  plain_copies& operator=(const plain_copies&) = delete;

  void within_device() { copy(gpu, second_.data(), gpu, first_.data()); }
  void through_host() {
    if (!pinned_) pinned_ = operations().allocate_staging(gpu, bytes_);
    copy(host, pinned_, gpu, first_.data());
    copy(gpu, second_.data(), host, pinned_);
  }

 private:
  static const ferry::device_operations& operations() { return ferry::operations_of(gpu.kind); }
  void copy(device to, void* target, device from, const void* source) const {
    operations().copy(to, target, from, source, bytes_, gpu, ferry::current_stream(gpu).handle());
  }
  const std::size_t bytes_;
  ferry::device_memory first_;
  ferry::device_memory second_;
  void* pinned_ = nullptr;
};

// Microseconds of each of `links` of a chain on the current stream, which the host waits for once.
double per_link(int links, const std::function<void()>& link) {
  const stream on = ferry::current_stream(gpu);
  on.synchronize();
  const auto start = clock::now();
  for (int i = 0; i != links; ++i) link();
  on.synchronize();
  return std::chrono::duration<double, std::micro>(clock::now() - start).count() / links;
}

// Value and baseline in turn; both are warm.
void compare(report& out, const options& chosen, const std::string& name, const std::string& unit,
             const std::string& baseline, int samples, const std::function<double()>& value,
             const std::function<double()>& other) {
  repeated of_value;
  repeated of_other;
  (void)value();
  if (!chosen.alone) (void)other();
  for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
    of_value.add(value());
    if (!chosen.alone) of_other.add(other());
  }
  out.add(name, of_value, unit, baseline, chosen.alone ? nullptr : &of_other,
          static_cast<std::size_t>(samples * chosen.repeats));
}

void measure_stream(report& out, const options& chosen) {
  out.section("stream/");
  const gpu_pair pair("inproc");
  const int links = chosen.quick ? 50 : 1000;
  for (const size_case& size : {sizes[0], sizes[1], sizes[2]}) {
    const std::string name = std::string("stream/") + size.name;
    if (!chosen.wants(name) || (chosen.quick && size.bytes > 64 * kibibyte)) continue;
    tensor last = on_gpu(size.bytes);
    plain_copies copies(size.bytes);
    compare(
        out, chosen, name, "us", "cudaMemcpyAsync in a chain", links,
        [&] { return per_link(links, [&] { last = pair.caller().rpc_sync<cuda_bench::same>("callee", last); }); },
        [&] { return per_link(links, [&] { copies.within_device(); }); });
  }
}

void measure_bandwidth(report& out, const options& chosen, const std::string& transport) {
  out.section("bandwidth/" + transport + "/");
  const bool within = transport == "inproc";
  std::optional<gpu_pair> pair;
  for (const size_case& size : sizes) {
    const std::string name = "bandwidth/" + transport + "/" + size.name;
    if (!chosen.wants(name) || (chosen.quick && size.bytes > mebibyte)) continue;
    if (!pair) pair.emplace(transport);
    const int transfers = chosen.quick ? 3 : size.bytes > 16 * mebibyte ? 5 : 50;
    const tensor t = on_gpu(size.bytes);
    plain_copies copies(size.bytes);
    const auto rate = [&](double microseconds) { return static_cast<double>(size.bytes) / microseconds / 1000; };
    compare(
        out, chosen, name, "GB/s", within ? "cudaMemcpyAsync on the device" : "cudaMemcpyAsync to the host and back",
        transfers,
        [&] {
          return rate(per_link(transfers, [&] { (void)pair->caller().rpc_sync<cuda_bench::numel>("callee", t); }));
        },
        [&] {
          return rate(per_link(transfers, [&] {
            if (within) {
              copies.within_device();
            } else {
              copies.through_host();
            }
          }));
        });
  }
  if (pair && !within) out.say(ferry::to_string(pair->caller().route("callee")));
}

void measure_reply(report& out, const options& chosen) {
  out.section("reply/");
  for (const std::string transport : {"inproc", "shm", "unix"}) {
    const std::string name = "reply/" + transport + "/in-order";
    if (!chosen.wants(name)) continue;
    const gpu_pair pair(transport);
    const tensor t = on_gpu(chosen.quick ? 64 * kibibyte : 4 * mebibyte);
    const int calls = chosen.quick ? 3 : 100;
    compare(
        out, chosen, name, "us", "answered after the host has waited", calls,
        [&] { return per_link(calls, [&] { (void)pair.caller().rpc_sync<cuda_bench::worked_on>("callee", t); }); },
        [&] {
          return per_link(calls, [&] {
            (void)pair.caller().rpc_sync<cuda_bench::worked_on_and_waited_for>("callee", t);
            ferry::current_stream(gpu).synchronize();
          });
        });
  }
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, {{"callee", serve}});
  const options chosen = read_options(argc, argv, "cuda: tensors on a GPU, beside the runtime's own copies");
  if (ferry::device_traits<ferry::cuda>::count() == 0) {
    std::fputs("cuda: no GPU, or no driver that this build of ferry can use: there is nothing to measure\n", stderr);
    return 1;
  }
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(300));
  try {
    report out("cuda", chosen);
    const ferry::stream_guard own(ferry::pool_stream(gpu));
    measure_stream(out, chosen);
    for (const std::string transport : {"inproc", "shm", "unix", "tcp"}) measure_bandwidth(out, chosen, transport);
    measure_reply(out, chosen);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cuda: %s\n", e.what());
    return 1;
  }
}
