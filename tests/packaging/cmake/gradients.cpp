// A program that needs gradients, and nothing of calls.

#include <cstdio>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

int main() {
  const ferry::tensor x = ferry::require_grad(ferry::tensor_of({1.f, 2.f}));
  ferry::backward(ferry::sum(x * x));
  std::printf("%g %g\n", double(ferry::grad(x).at<float>(0)), double(ferry::grad(x).at<float>(1)));
}
