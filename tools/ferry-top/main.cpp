// ferry-top: watches the workers of a running group.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <ferry/profiler.hpp>
#include <ferry/rpc/group_observer.hpp>

#include "base/printable.hpp"
#include "options.hpp"
#include "report.hpp"

namespace {

using namespace ferry_top;
using ferry::detail::printable_lines;

// JSON escapes what is not text itself.
void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::runtime_error(std::string("standard output: ") + std::strerror(errno));
}

std::string secret_of(const options& chosen) {
  if (chosen.secret_file.empty()) return {};  // as the environment says
  std::ifstream in(chosen.secret_file, std::ios::binary);
  std::string secret{std::istreambuf_iterator<char>(in), {}};
  if (secret.ends_with('\n')) secret.pop_back();
  if (secret.empty())
    throw std::runtime_error("the secret file " + chosen.secret_file + " cannot be read, or is empty");
  return secret;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw std::runtime_error(path + " cannot be written: " + std::strerror(errno));
}

// So that a recording is not made in vain: leaves a file that exists as it is.
void check_writable(const std::string& path) {
  const bool existed = ::access(path.c_str(), F_OK) == 0;
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out.close();
  if (!out) throw std::runtime_error(path + " cannot be written: " + std::strerror(errno));
  if (!existed) ::unlink(path.c_str());
}

void watch(ferry::group_observer& group, const options& chosen) {
  observation before = look(group, false);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const auto show = [&](const observation& earlier, const observation& now) {
    return printable_lines(table(earlier, now, diagnose(now, chosen.older_than), chosen.older_than));
  };
  if (!chosen.once) print((terminal ? "\033[H\033[2J" : "") + show({}, before));
  for (;;) {
    std::this_thread::sleep_for(chosen.interval);
    observation now = look(group, false);
    if (chosen.once) {
      return print(chosen.json ? summary_json(before, now, diagnose(now, chosen.older_than)) : show(before, now));
    }
    print((terminal ? "\033[H\033[2J" : "\n") + show(before, now));
    before = std::move(now);
  }
}

void dump(ferry::group_observer& group, const options& chosen) {
  const observation now = look(group, true);
  const diagnosis found = diagnose(now, chosen.older_than);
  const std::string text = dump_json(now, found);
  if (chosen.output.empty()) {
    print(text);
  } else {
    write_file(chosen.output, text);
  }
  std::fputs(printable_lines(findings_text(found, chosen.older_than)).c_str(), stderr);
}

int record(ferry::group_observer& group, const options& chosen) {
  if (!chosen.output.empty()) check_writable(chosen.output);
  const auto found = ferry::profiler::record_group(group, chosen.length);
  for (const auto& [who, why] : found.missing)
    std::fprintf(stderr, "%s",
                 printable_lines("ferry-top: " + to_string(who) + " was not recorded: " + why + '\n').c_str());
  if (found.merged.node < 0) throw std::runtime_error("no worker was recorded");
  print(ferry::profiler::table(found.merged));
  if (!chosen.output.empty()) {
    write_file(chosen.output,
               chosen.output.ends_with(".html")
                   ? ferry::profiler::html_page(found.merged, {.largest_uncertainty = chosen.uncertainty})
                   : ferry::profiler::chrome_trace(found.merged, {.largest_uncertainty = chosen.uncertainty}));
  }
  return found.missing.empty() ? 0 : 1;
}

int post_mortem(const options& chosen) {
  const observation found = read_files(chosen.files);
  const bool json = chosen.json || !chosen.output.empty();
  const std::string text =
      json ? dump_json(found, diagnose(found, chosen.older_than)) : printable_lines(post_mortem_text(found));
  if (chosen.output.empty()) {
    print(text);
  } else {
    write_file(chosen.output, text);
  }
  const bool any =
      std::any_of(found.workers.begin(), found.workers.end(), [](const observed& each) { return each.snapshot; });
  return any ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  try {
    chosen = parse(std::vector<std::string>(argv + 1, argv + argc));
    if (chosen.show_help) return std::fputs(usage_text, stdout) < 0 ? 1 : 0;
    if (chosen.show_version) return std::puts("ferry-top " FERRY_TOP_VERSION) < 0 ? 1 : 0;
    if (chosen.what == options::action::post_mortem) return post_mortem(chosen);
    ferry::group_observer group(
        {.init_method = chosen.group, .secret = secret_of(chosen), .limit = ferry::timeout(chosen.limit)});
    if (chosen.what == options::action::record) return record(group, chosen);
    if (chosen.what == options::action::dump) {
      dump(group, chosen);
    } else {
      watch(group, chosen);
    }
    return 0;
  } catch (const usage_error& e) {
    std::fprintf(stderr, "ferry-top: %s\nsee ferry-top --help\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::string text = std::string("ferry-top: ") + e.what() + '\n';
    const auto* const known = dynamic_cast<const ferry::error*>(&e);
    if (known && known->kind() == ferry::errc::missing_environment && chosen.group == "env://" &&
        !std::getenv("MASTER_ADDR")) {  // NOLINT(concurrency-mt-unsafe): the only thread
      std::fputs(
          "ferry-top: which group? Name where it meets (ferry-top tcp://HOST:PORT), or set MASTER_ADDR and "
          "MASTER_PORT\n"
          "see ferry-top --help\n",
          stderr);
      return 2;
    }
    if (known && known->kind() == ferry::errc::bad_init_method) {
      std::fputs(printable_lines(text + "see ferry-top --help\n").c_str(), stderr);
      return 2;
    }
    if (known && known->kind() == ferry::errc::store_unreachable) {
      text +=
          "The group is found through its store. If the process that served it has ended, the flight files that "
          "workers have\n"
          "left (ferry-run --flight-records DIRECTORY) say what they did last: ferry-top --post-mortem DIRECTORY\n";
    }
    std::fputs(printable_lines(text).c_str(), stderr);
    return 1;
  }
}
