#pragma once

// The variables by which launchers tell a process its place, for tests that play a launcher.

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace ferry_test {

using variables = std::map<std::string, std::string>;

/// The names of all variables of launchers that are set.
inline std::vector<std::string> launch_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    bool found = name == "NODE_RANK";
    for (const std::string_view start :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_", "TORCHELASTIC_", "OMPI_",
          "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_", "FERRY_SECRET", "FERRY_ALLOW_UNAUTHENTICATED"})
      found = found || name.starts_with(start);
    if (found) names.emplace_back(name);
  }
  return names;
}

/// For child_options: `wanted`, and everything else of launchers removed.
inline variables only(variables wanted) {
  for (const std::string& name : launch_variables()) wanted.emplace(name, "");
  return wanted;
}

/// In this process `wanted` are the only variables of launchers, until the end of the scope.
class launch_environment {
 public:
  explicit launch_environment(const variables& wanted) {
    for (const std::string& name : launch_variables()) {
      before_[name] = std::getenv(name.c_str());
      ::unsetenv(name.c_str());
    }
    for (const auto& [name, value] : wanted) ::setenv(name.c_str(), value.c_str(), 1);
  }
  launch_environment(const launch_environment&) = delete;
  launch_environment& operator=(const launch_environment&) = delete;
  ~launch_environment() {
    for (const std::string& name : launch_variables()) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  variables before_;
};

}  // namespace ferry_test
