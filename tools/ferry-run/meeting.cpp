#include "meeting.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>

#include <unistd.h>

#include "../../src/base/parse_number.hpp"

namespace ferry_run {
namespace {

using clock = meeting::clock;
using namespace std::chrono_literals;

std::chrono::milliseconds left(clock::time_point until) {
  return std::clamp<std::chrono::milliseconds>(std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()), 0ms,
                                               1h);
}

// A connection to the ferry-run of node 0, which may start later.
std::unique_ptr<meeting> join(const options& chosen, clock::time_point until) {
  std::string problem;
  auto pause = 20ms;
  for (;;) {
    const auto addresses = resolve(chosen.meet_at, problem);
    const int connection = connect_to(addresses, std::min(left(until), 3000ms), problem);
    if (connection >= 0) return make_member(chosen, connection);
    if (left(until) == 0ms) break;
    poll(nullptr, 0, static_cast<int>(std::min(left(until), pause).count()));
    pause = std::min(2 * pause, 500ms);
  }
  std::string text = "no ferry-run of node 0 at " + chosen.meet_at.text() + " within " + seconds(chosen.meeting_limit) +
                     ": " + problem;
  if (chosen.node_rank == 0)
    text +=
        "; this one is node 0, but " + chosen.meet_at.host + " is not an address of this machine (" + host_name() + ")";
  if (!chosen.node_rank)
    text += "; the machine with the address " + chosen.meet_at.host + " becomes node 0, and this one (" + host_name() +
            ") has no such address";
  throw meeting_error(125, text);
}

std::unique_ptr<meeting> come(const options& chosen, clock::time_point until) {
  // Only the machine that has the address can serve there. If another process already does, that one decides: it may be
  // the ferry-run of another node on this machine, or a second node 0.
  if (chosen.node_rank.value_or(0) == 0) {
    std::string problem;
    if (is_own(resolve(chosen.meet_at, problem))) {
      const int listener = listen_at(chosen.meet_at);
      if (listener >= 0) return make_coordinator(chosen, listener);
      if (errno != EADDRINUSE) {
        throw meeting_error(
            125, "cannot listen at " + chosen.meet_at.text() + ": " + std::generic_category().message(errno));
      }
    }
  }
  return join(chosen, until);
}

}  // namespace

std::unique_ptr<meeting> meet(const options& chosen) {
  const auto until = clock::now() + chosen.meeting_limit;
  std::unique_ptr<meeting> met = come(chosen, until);
  auto tell_at = clock::now() + 5s;
  std::vector<pollfd> polled;
  for (;;) {
    if (const auto& ended = met->concluded()) throw meeting_error(ended->status, ended->text);
    if (met->placed()) return met;
    if (left(until) == 0ms) throw met->timed_out(seconds(chosen.meeting_limit));
    if (clock::now() >= tell_at) {
      std::fprintf(stderr, "ferry-run: %s\n", met->progress().c_str());
      tell_at = clock::now() + 60s;
    }
    polled.clear();
    met->add_polled(polled);
    const auto wait = std::min({left(until), left(tell_at), std::chrono::milliseconds(1s)});
    if (poll(polled.data(), polled.size(), static_cast<int>(wait.count())) < 0 && errno != EINTR)
      throw std::system_error(errno, std::generic_category(), "poll");
    met->on_polled(polled.data());
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown";
  std::string text = name.data();
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c <= ' ' || c > '~'; }, '?');
  return text;
}

std::string field(const std::string& line, const std::string& name) {
  const auto at = line.find(" " + name + "=");
  if (at == std::string::npos) return {};
  const auto start = at + name.size() + 2;
  return line.substr(start, line.find(' ', start) - start);
}

std::optional<int> number_field(const std::string& line, const std::string& name, int least, int most) {
  const auto value = ferry::detail::parse_number(field(line, name));
  return value && *value >= least && *value <= most ? value : std::nullopt;
}

outcome outcome_of(const std::string& line) {
  int status = 0;
  const auto start = line.find(' ') + 1;
  const auto [end, failure] = std::from_chars(line.data() + start, line.data() + line.size(), status);
  if (start == 0 || failure != std::errc() || status < 0 || status > 255)
    return {125, "unexpected message from another ferry-run: " + line};
  const auto text = static_cast<std::size_t>(end - line.data());
  return {status, text < line.size() ? line.substr(text + 1) : std::string()};
}

std::string seconds(std::chrono::milliseconds duration) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g s", std::chrono::duration<double>(duration).count());
  return text.data();
}

}  // namespace ferry_run
