// A network learns to read handwritten digits.   ./14_digits digits.csv [loss.svg]

#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/generator.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "curve.hpp"
#include "digits.hpp"

using ferry::tensor;

constexpr int epochs = 20;
constexpr std::int64_t batch = 32;

// A module is a struct that names its members.
struct classifier {
  ferry::nn::linear hidden{64, 128};
  ferry::nn::dropout drop{0.4};
  ferry::nn::linear out{128, 10};

  tensor operator()(const tensor& points) const { return out(drop(ferry::relu(hidden(points)))); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("hidden", hidden);
    visit("drop", drop);
    visit("out", out);
  }
};

// 0 ... count - 1 in another order.
tensor shuffled(std::int64_t count) {
  tensor order = ferry::arange(count);
  auto* const first = order.data<std::int64_t>();
  for (std::int64_t i = count - 1; i > 0; --i) {
    std::swap(first[i], first[ferry::default_generator().next() % static_cast<std::uint64_t>(i + 1)]);
  }
  return order;
}

// The mean loss of the batches of an epoch.
double train(classifier& model, ferry::optimizer<ferry::adam>& optimizer, const digit_set& set) {
  ferry::nn::train(model);
  const tensor order = shuffled(set.digits.numel());
  double loss_sum = 0;
  for (std::int64_t begin = 0; begin < order.numel(); begin += batch) {
    const tensor chosen = order.slice(0, begin, begin + batch);
    optimizer.zero_grad();
    const tensor logits = model(ferry::index_select(set.points, 0, chosen));
    const tensor loss = ferry::cross_entropy(logits, ferry::index_select(set.digits, 0, chosen));
    ferry::backward(loss);
    optimizer.step();
    loss_sum += ferry::detach(loss).item<float>() * static_cast<double>(chosen.numel());
  }
  return loss_sum / static_cast<double>(order.numel());
}

// The share of digits that are recognised.
double accuracy(classifier& model, const digit_set& set) {
  ferry::nn::eval(model);
  const ferry::no_grad outside;
  const tensor right = ferry::eq(ferry::argmax(model(set.points), 1), set.digits);
  return ferry::mean(right.to(ferry::dtype::f64)).item<double>();
}

void run(const char* data, const char* picture) {
  const digits_file file(data);
  ferry::manual_seed(1);  // of everything that is random here
  classifier model;
  ferry::optimizer<ferry::adam> optimizer(ferry::nn::parameters(model));
  std::printf("%lld parameters learn from %lld digits; %lld are held out\n",
              static_cast<long long>(ferry::nn::count_parameters(model)),
              static_cast<long long>(file.training.digits.numel()),
              static_cast<long long>(file.held_out.digits.numel()));

  std::vector<double> losses;
  double reached = 0;
  for (int epoch = 0; epoch != epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer.set_lr(0.01 * ferry::cosine_decay(epoch, epochs));
    losses.push_back(train(model, optimizer, file.training));
    reached = accuracy(model, file.held_out);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::printf("epoch %2d  loss %.4f  accuracy %5.1f %%  %4.0f ms\n", epoch + 1, losses.back(), 100 * reached,
                took.count());
    std::fflush(stdout);
  }
  if (picture != nullptr) {
    draw_curve(picture, losses);
    std::printf("the loss is drawn in %s\n", picture);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw std::runtime_error("cannot write the output");
  if (reached < 0.95) throw std::runtime_error("less than 95 % of the digits that were held out are recognised");
}

int main(int count, char** arguments) {
  if (count != 2 && count != 3) {
    std::fprintf(stderr, "usage: 14_digits DIGITS.csv [LOSS.svg]\n");
    return 2;
  }
  try {
    run(arguments[1], count == 3 ? arguments[2] : nullptr);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "14_digits: %s\n", problem.what());
    return 1;
  }
  return 0;
}
