// A pipeline of two stages, each on a GPU of its own.   ferry-run -n 3 ./12_pipeline
//
// worker0 has batches on the CPU; the first stage is on worker1's cuda:0, the second on worker2's cuda:1. While the second works on one
// batch, the first has the next: no thread waits for a device or a batch.

#include <ferry/ferry.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int batches = 16;
constexpr std::int64_t rows = 256, columns = 1024;

// The second stage, on worker2.
ferry::tensor shift(const ferry::tensor& hidden) { return hidden + 3.0; }

// The first stage, on worker1. It hands its result on as soon as the work on it is queued; what comes back goes on to the caller.
// Meanwhile it holds no thread.
ferry::task<ferry::tensor> scale(ferry::tensor batch) {
  const ferry::tensor hidden = batch * 2.0;
  co_return co_await ferry::rpc_async<shift>("worker2", hidden);
}

ferry::tensor batch_number(int n) { return ferry::full({rows, columns}, static_cast<double>(n), ferry::dtype::f32); }

bool feed(ferry::worker& self) {
  std::vector<ferry::future<ferry::tensor>> under_way;
  for (int n = 0; n != batches; ++n) under_way.push_back(self.rpc_async<scale>("worker1", batch_number(n)));
  int right = 0;
  for (int n = 0; n != batches; ++n) {
    const ferry::tensor result = under_way[static_cast<std::size_t>(n)].get();  // on the CPU, by the inverse maps
    if (equal(result, batch_number(2 * n + 3))) ++right;
  }
  std::printf("%d of %d batches went through both stages\n%s\n", right, batches,
              to_string(self.route("worker1")).c_str());
  return right == batches;
}

int main() {
  if (const int gpus = ferry::device_traits<ferry::cuda>::count(); gpus < 2) {
    std::printf("this example needs two CUDA devices, and this process has %d%s\n", gpus,
                gpus == 0 ? ": no GPU, no driver, or a ferry that was built without the CUDA Toolkit" : "");
    return 0;
  }
  ferry::worker_config config;
  const int rank = ferry::this_launch().rank.value_or(0);
  if (rank == 0) config.set_device_map("worker1", {{"cpu", "cuda:0"}});
  if (rank == 1) config.set_device_map("worker2", {{"cuda:0", "cuda:1"}});
  ferry::worker self = ferry::init_rpc(config);
  const bool right = self.id() != 0 || feed(self);
  self.shutdown();
  return right ? 0 : 1;
}
