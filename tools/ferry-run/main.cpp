// ferry-run: starts several workers of a program, on this machine or on several.

#include <cstdio>
#include <exception>

#include <fcntl.h>
#include <unistd.h>

#include "job.hpp"
#include "options.hpp"

namespace {

// A closed descriptor 0, 1 or 2 would be reused for a pipe of a worker.
void open_standard_descriptors() {
  int opened = 0;
  do {
    opened = open("/dev/null", O_RDWR);
  } while (opened >= 0 && opened <= STDERR_FILENO);
  if (opened >= 0) close(opened);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  try {
    const ferry_run::options chosen = ferry_run::parse(argc, argv);
    if (chosen.show_help) return std::fputs(ferry_run::usage_text, stdout) < 0 ? 125 : 0;
    if (chosen.show_version) return std::puts("ferry-run " FERRY_RUN_VERSION) < 0 ? 125 : 0;
    return ferry_run::job(chosen).run();
  } catch (const ferry_run::usage_error& e) {
    std::fprintf(stderr, "ferry-run: %s\nsee ferry-run --help\n", e.what());
    return 2;
  } catch (const ferry_run::meeting_error& e) {
    std::fprintf(stderr, "ferry-run: %s\n", e.what());
    return e.status;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ferry-run: %s\n", e.what());
    return 125;
  }
}
