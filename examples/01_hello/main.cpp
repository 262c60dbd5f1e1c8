// Two workers call each other's functions.   ferry-run -n 2 ./01_hello

#include <ferry/ferry.hpp>

#include <iostream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Any function can be called from another process: there is nothing to declare or register. A std::string_view
// parameter is valid until the function has returned.
std::string greet(std::string_view who) {
  return "hello " + std::string(who) + ", this is " + ferry::get_worker_info().name();
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) throw std::invalid_argument("dot: one vector is longer than the other");
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

int main() {
  // The identity of this worker and the addresses of the others come from the environment, which ferry-run sets. All workers of the
  // group are there when init_rpc returns; they are called worker0, worker1, ...
  ferry::worker self = ferry::init_rpc();

  bool right = true;
  for (const ferry::worker_info& peer : self.workers()) {
    if (peer.id() == self.id()) continue;
    std::cout << ferry::rpc_sync<greet>(peer, self.name()) << std::endl;

    // The destination is a name, an id or a worker_info. Arguments are checked by the compiler.
    const double product = ferry::rpc_sync<dot>(peer.name(), std::vector{1.0, 2.0, 3.0}, std::vector{4.0, 5.0, 6.0});
    std::cout << "1*4 + 2*5 + 3*6 = " << product << ", says " << peer.name() << std::endl;
    right = right && product == 32.0;

    // What the function throws arrives here with its type.
    try {
      ferry::rpc_sync<dot>(peer, std::vector{1.0}, std::vector{1.0, 2.0});
      right = false;
    } catch (const std::invalid_argument& problem) {
      std::cout << peer.name() << " refused: " << problem.what() << std::endl;
    }
  }

  // Leaves together with the others: calls of theirs that are still under way are served first.
  self.shutdown();
  return right ? 0 : 1;
}
