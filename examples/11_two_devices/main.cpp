// Tensors on two GPUs, between two workers.   ferry-run -n 2 ./11_two_devices
//
// A device map says where a tensor arrives that is on a device: what worker0 has on cuda:0 arrives on worker1's cuda:1, and the
// other way round. Results take the way back.

#include <ferry/ferry.hpp>

#include <cstdio>
#include <string>
#include <utility>

std::string where(const ferry::tensor& t) { return to_string(t.device()); }

// Runs where its arguments are. No thread waits for a device: its kernels are queued behind the arrival of the arguments.
std::pair<ferry::tensor, ferry::tensor> scaled(const ferry::tensor& a, const ferry::tensor& b) {
  return {a * 2.0, b * 10.0};
}

bool use(ferry::worker& self) {
  const ferry::device first = ferry::parse_device("cuda:0");
  const ferry::device second = ferry::parse_device("cuda:1");
  const ferry::tensor a = ferry::arange(0, 1'000'000, 1, ferry::dtype::f32, first);
  const ferry::tensor b = ferry::ones({3, 4}, ferry::dtype::f32, second);

  std::printf("%s is on %s there\n", where(a).c_str(), self.rpc_sync<where>("worker1", a).c_str());
  std::printf("%s is on %s there\n", where(b).c_str(), self.rpc_sync<where>("worker1", b).c_str());

  auto later = self.rpc_async<scaled>("worker1", a, b);  // both in one message
  const auto [twice, tenfold] = later.get();             // ready in the order of this thread's streams
  std::printf("back on %s and %s\n", where(twice).c_str(), where(tenfold).c_str());

  // What reads the elements on the host waits for the device.
  const bool right = equal(twice.to(ferry::device()), (a * 2.0).to(ferry::device())) &&
                     tenfold.to(ferry::device()).at<float>(2, 3) == 10;
  std::printf("%s\n", to_string(self.route("worker1")).c_str());
  return right && twice.device() == first && tenfold.device() == second;
}

int main() {
  if (const int gpus = ferry::device_traits<ferry::cuda>::count(); gpus < 2) {
    std::printf("this example needs two CUDA devices, and this process has %d%s\n", gpus,
                gpus == 0 ? ": no GPU, no driver, or a ferry that was built without the CUDA Toolkit" : "");
    return 0;
  }
  ferry::worker_config config;  // the rest is in the environment
  config.set_device_map("worker1", {{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}});
  ferry::worker self = ferry::init_rpc(config);
  const bool right = self.id() != 0 || use(self);
  self.shutdown();
  return right ? 0 : 1;
}
