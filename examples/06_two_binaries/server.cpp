// The server of two programs that share no code.   ferry-run -n 2 ./06_two_binaries

#include <ferry/ferry.hpp>

#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace calculator {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) throw std::invalid_argument("dot: one vector is longer than the other");
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

ferry::tensor scale(const ferry::tensor& values, float factor) {
  ferry::tensor result = values.clone();
  for (std::int64_t i = 0; i < result.numel(); ++i) result.data<float>()[i] *= factor;
  return result;
}

// A coroutine handler is called like any other function.
ferry::task<std::string> greet(std::string_view who) { co_return "hello " + std::string(who); }

}  // namespace calculator

int main() {
  // The public names stay when a function is renamed or moves to another namespace. A worker with a list serves nothing
  // else, whatever else the program contains.
  ferry::serve<ferry::named<"calculator.dot", calculator::dot>, ferry::named<"calculator.scale", calculator::scale>,
               ferry::named<"calculator.greet", calculator::greet>>();
  ferry::worker self = ferry::init_rpc({.name = "server"});
  self.shutdown();  // serves until the client leaves, too
}
