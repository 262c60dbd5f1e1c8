#include <cstdio>

#include <ferry/ferry.hpp>

int main(int, char** arguments) try {
  ferry::plugin plug_in(arguments[1]);  // before the group starts, so that every worker has it
  ferry::worker self = ferry::init_rpc();
  if (self.id().value == 0) {
    const double half = ferry::rpc_sync<ferry::stub<"plug_in.half", double(double)>>("worker1", 9.0);
    const auto negative =
        ferry::rpc_sync<ferry::stub<"plug_in.negative", ferry::tensor(ferry::tensor)>>("worker1", ferry::ones({3}));
    std::printf("half %g, negative %g\n", half, ferry::sum(negative).item<float>());
  }
  self.shutdown();
} catch (const ferry::error& problem) {
  std::printf("%s\n", problem.what());
  return 3;
}
