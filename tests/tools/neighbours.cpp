// A worker that calls every other one: neighbours [INIT_METHOD RANK WORLD_SIZE]; without arguments plain init_rpc().

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include <ferry/ferry.hpp>

namespace {

// Too large for one packet.
ferry::tensor twice(const ferry::tensor& values) { return values + values; }

int greet(ferry::worker self) {
  const ferry::tensor values = ferry::ones({1000, 100});
  for (const ferry::worker_info& other : self.workers()) {
    if (other.id() == self.id()) continue;
    const ferry::tensor answer = self.rpc_sync<twice>(other.id(), values);
    if (!ferry::equal(answer, values + values)) return 1;
    std::cout << self.name() + " called " + other.name() + "\n";
  }
  self.shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4) return greet(ferry::init_rpc());
    return greet(
        ferry::init_rpc({.rank = std::atoi(argv[2]), .world_size = std::atoi(argv[3]), .init_method = argv[1]}));
  } catch (const std::exception& problem) {
    std::cerr << problem.what() << '\n';
    return 1;
  }
}
