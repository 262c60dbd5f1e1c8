#include "scaling.hpp"

namespace scaling {
namespace {

double triple_here(double value) { return 3 * value; }
const ferry::provide<ferry::named<"scaling.triple", triple_here>> methods;

}  // namespace

double ask_program(const std::string& worker, double value) {
  return ferry::rpc_sync<ferry::stub<"program.add_ten", double(double)>>(worker, value);
}

int call_both(const std::string& worker, int value) { return ferry::rpc_sync<both>(worker, value); }

}  // namespace scaling
