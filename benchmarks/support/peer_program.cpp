#include "peer_program.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace ferry_bench {
namespace {

void for_each_line(const std::string& command, const std::function<void(const std::string&)>& on_line) {
  std::FILE* const output = ::popen(command.c_str(), "r");  // NOLINT(cert-env33-c): a program of this build
  if (output == nullptr) throw std::runtime_error("cannot start " + command);
  std::string line;
  for (int c = 0; (c = std::fgetc(output)) != EOF;) {
    line.push_back(static_cast<char>(c));
    if (c != '\n') continue;
    on_line(line);
    line.clear();
  }
  if (!line.empty()) on_line(line);
  if (::pclose(output) != 0) throw std::runtime_error(command + " failed");
}

std::string in_quotes(std::string_view word) { return "'" + std::string(word) + "'"; }

}  // namespace

peer_program::peer_program(const std::string& name) {
  std::error_code none;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto there = self.parent_path() / name;
  if (std::filesystem::exists(there, none)) program_ = there.string();
}

std::string peer_program::ask(const std::string& arguments) const {
  std::string text;
  for_each_line(in_quotes(program_) + " " + arguments, [&](const std::string& line) { text += line; });
  return text;
}

python_peer::python_peer(const std::string& script, const std::string& module)
    : script_(std::string(FERRY_BENCH_PEERS) + "/" + script) {
  const char* const chosen = std::getenv("PYTHON");  // NOLINT(concurrency-mt-unsafe): nothing writes it
  for (const std::string each : {chosen != nullptr ? chosen : "", "python3", "/usr/bin/python3"}) {
    const std::string command = in_quotes(each) + " -c 'import " + module + "' 2>/dev/null";
    if (each.empty() || std::system(command.c_str()) != 0) continue;  // NOLINT(cert-env33-c, concurrency-mt-unsafe)
    interpreter_ = each;
    return;
  }
}

void python_peer::run(const std::string& arguments, const std::function<void(const std::string&)>& on_line) const {
  for_each_line(in_quotes(interpreter_) + " " + in_quotes(script_) + " " + arguments, on_line);
}

}  // namespace ferry_bench
