// What autograd.cpp measures, by libtorch.
//
// usage: torch_training about | forward | backward | step-BATCH  [WINDOW_MS]     prints a median, in microseconds

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace {

using clock_type = std::chrono::steady_clock;

double median_us(std::chrono::milliseconds window, const auto& prepare, const auto& once) {
  std::vector<double> samples;
  const auto until = clock_type::now() + window;
  for (int i = 0; i < 13 || clock_type::now() < until; ++i) {
    const auto input = prepare();
    const auto start = clock_type::now();
    once(input);
    if (i >= 3) samples.push_back(std::chrono::duration<double, std::micro>(clock_type::now() - start).count());
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

torch::Tensor chain(const torch::Tensor& x) {
  torch::Tensor y = x;
  for (int i = 0; i != 1000; ++i) y = y * 1.0001;
  return y;
}

double step(std::int64_t batch, std::chrono::milliseconds window) {
  torch::manual_seed(1);
  const std::vector<std::int64_t> widths{512, 256, 128, 64, 32, 8};
  std::vector<torch::nn::Linear> layers;
  std::vector<torch::Tensor> parameters;
  for (std::size_t i = 0; i + 1 != widths.size(); ++i) {
    layers.emplace_back(widths[i], widths[i + 1]);
    for (const torch::Tensor& each : layers.back()->parameters()) parameters.push_back(each);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.001));
  const torch::Tensor x = torch::randn({batch, widths.front()});
  const torch::Tensor target = torch::arange(batch, torch::kLong).remainder(widths.back());
  return median_us(
      window, [] { return 0; },
      [&](int) {
        optimizer.zero_grad();
        torch::Tensor y = x;
        for (std::size_t i = 0; i != layers.size(); ++i) {
          y = layers[i]->forward(y);
          if (i == 1) y = torch::relu(y);
        }
        torch::nn::functional::cross_entropy(y, target).backward();
        optimizer.step();
      });
}

// The library of linear algebra that this process has loaded.
std::string blas() {
  std::ifstream maps("/proc/self/maps");
  std::string found = "none";
  for (std::string line; std::getline(maps, line);) {
    const auto at = line.find('/');
    if (at != std::string::npos &&
        (line.find("blas", at) != std::string::npos || line.find("mkl", at) != std::string::npos))
      found = line.substr(at);
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string what = argc > 1 ? argv[1] : "about";
  const std::chrono::milliseconds window(argc > 2 ? std::atoi(argv[2]) : 400);
  double value = 0;
  if (what == "about") {
    std::printf("libtorch %s, BLAS %s, %d thread", TORCH_VERSION, blas().c_str(), torch::get_num_threads());
    return 0;
  }
  if (what == "forward") {
    const torch::Tensor x = torch::ones({1}).requires_grad_();
    value = median_us(
        window, [] { return 0; }, [&](int) { (void)chain(x); });
  } else if (what == "backward") {
    const torch::Tensor x = torch::ones({1}).requires_grad_();
    value = median_us(
        window, [&] { return chain(x); }, [](const torch::Tensor& y) { y.backward(); });
  } else if (what.rfind("step-", 0) == 0) {
    value = step(std::atoi(what.c_str() + 5), window);
  } else {
    std::fprintf(stderr, "torch_training: unknown case %s\n", what.c_str());
    return 2;
  }
  std::printf("%.4f\n", value);
  return 0;
}
