#include "peer_program.hpp"

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace ferry_bench {

peer_program::peer_program(const std::string& name) {
  std::error_code none;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto there = self.parent_path() / name;
  if (std::filesystem::exists(there, none)) program_ = there.string();
}

std::string peer_program::ask(const std::string& arguments) const {
  const std::string command = "'" + program_ + "' " + arguments;
  std::FILE* const output = ::popen(command.c_str(), "r");  // NOLINT(cert-env33-c): a program of this build
  if (output == nullptr) throw std::runtime_error("cannot start " + command);
  std::string text;
  for (int c = 0; (c = std::fgetc(output)) != EOF;) text.push_back(static_cast<char>(c));
  if (::pclose(output) != 0) throw std::runtime_error(command + " failed");
  return text;
}

}  // namespace ferry_bench
