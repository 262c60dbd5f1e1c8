// Where the time of a training step goes, on two workers.   ferry-run -n 3 ./19_profile [trace.json [profile.html]]
//
// worker0 trains a layer that worker1 keeps; worker1 asks worker2 for a factor. A session at worker0 records all three.

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

using ferry::tensor;

// On worker2.
double factor() { return 0.5; }

// On worker1.
tensor make_layer() { return ferry::require_grad(ferry::ones({64, 64})); }
tensor forward(const tensor& layer, const tensor& points) {
  const ferry::profiler::range part("layer");
  return ferry::tanh(ferry::matmul(points, layer)) * ferry::rpc_sync<factor>("worker2");
}

// On worker0.
ferry::profiler::profile record_steps(const ferry::worker& self) {
  const ferry::rref<tensor> layer = self.remote<make_layer>("worker1");
  (void)layer.rpc_sync<&forward>(ferry::ones({8, 64}));  // connects
  ferry::profiler::session recorded(self, {.shapes = true});
  for (int step = 0; step != 3; ++step) {
    const ferry::profiler::range part("step");
    const ferry::dist_autograd::context pass(self);
    const tensor loss = ferry::mean(layer.rpc_sync<&forward>(ferry::ones({8, 64})));
    pass.backward(loss);
  }
  return recorded.finish();
}

void check(const ferry::profiler::profile& found) {
  bool three_deep = false;
  for (const ferry::profiler::event& each : found.events) three_deep |= each.node == 2;
  if (!three_deep) throw std::runtime_error("what worker2 did for worker1 is not in the profile");
  if (found.count("step") != 3 || found.count("dist_autograd::backward") != 3)
    throw std::runtime_error("not each step was recorded");
}

int main(int count, char** arguments) {
  try {
    ferry::worker self = ferry::init_rpc();
    if (self.id() == 0) {
      const ferry::profiler::profile found = record_steps(self);
      check(found);
      std::fputs(ferry::profiler::table(found, 12).c_str(), stdout);
      constexpr std::chrono::seconds uncertainty(1);  // of clocks: a busy machine will do
      if (count > 1)
        std::ofstream(arguments[1]) << ferry::profiler::chrome_trace(found, {.largest_uncertainty = uncertainty});
      if (count > 2)
        std::ofstream(arguments[2]) << ferry::profiler::html_page(
            found, {.title = "Three steps of training", .largest_uncertainty = uncertainty});
    }
    self.shutdown();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
