#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "processes.hpp"

// `--role NAME ARGUMENTS...` runs that role instead of the tests (see processes.hpp).
int main(int argc, char** argv) {
  if (argc >= 3 && std::strcmp(argv[1], "--role") == 0) {
    return ferry_test::run_role(argv[2], std::vector<std::string>(argv + 3, argv + argc));
  }
  return doctest::Context(argc, argv).run();
}
