#include "peer_log.hpp"

#include <mutex>
#include <utility>

namespace ferry::inline v0::detail {
namespace {

constexpr std::string_view further_peers = "further peers";

struct guarded_line_limits {
  std::mutex mutex;
  line_limits limits;
};

guarded_line_limits& process_line_limits() {
  static auto* instance = new guarded_line_limits;  // outlives static destruction on purpose
  return *instance;
}

void report(const std::vector<line_limits::count>& counts) {
  for (const auto& [peer, lines] : counts) {
    std::string text = std::to_string(lines);
    text += " more lines about ";
    text += peer;
    text += " were left out";
    log(log_level::warning, text);
  }
}

}  // namespace

std::string shortened(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end != 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;  // within a character of UTF-8
  const std::size_t left_out = text.size() - end;
  text.resize(end);
  text += "... (";
  text += std::to_string(left_out);
  text += " more bytes)";
  return text;
}

// False: the last `most` lines are all less than a period old.
bool line_limits::lines::take_place(time_point now) noexcept {
  if (size == most && now - logged[next] < period) return false;
  logged[next] = now;
  next = (next + 1) % most;
  if (size != most) ++size;
  return true;
}

bool line_limits::lines::is_over(time_point now) const noexcept {
  return left_out == 0 && (size == 0 || now - logged[(next + most - 1) % most] >= period);
}

void line_limits::take_due(table::value_type& which, time_point now, std::vector<count>& due) {
  lines& of = which.second;
  if (of.left_out == 0 || now - of.left_out_since < period) return;
  due.reserve(due.size() + 1);
  std::string peer = which.first;
  if (of.take_place(now)) due.push_back({std::move(peer), std::exchange(of.left_out, 0)});
}

bool line_limits::admit(std::string_view peer, time_point now, std::vector<count>& due) {
  if (now >= next_sweep_) {
    for (auto each = of_peer_.begin(); each != of_peer_.end();) {
      take_due(*each, now, due);
      each = each->second.is_over(now) ? of_peer_.erase(each) : std::next(each);
    }
    next_sweep_ = now + period / 5;
  }
  auto found = of_peer_.find(peer);
  if (found == of_peer_.end()) {
    const std::string_view name = of_peer_.size() < most_peers ? peer : further_peers;
    found = of_peer_.try_emplace(std::string(name)).first;
  }
  take_due(*found, now, due);  // before lines that come all the time leave no place for it
  lines& of = found->second;
  if (of.take_place(now)) return true;
  if (of.left_out++ == 0) of.left_out_since = now;
  return false;
}

std::vector<line_limits::count> line_limits::take_all() {
  std::vector<count> all;
  for (const auto& [peer, of] : of_peer_) {
    if (of.left_out != 0) all.push_back({peer, of.left_out});
  }
  of_peer_.clear();
  return all;
}

bool admit_line_about(std::string_view peer) noexcept {
  try {
    std::vector<line_limits::count> due;
    bool admitted = false;
    {
      auto& all = process_line_limits();
      const std::lock_guard lock(all.mutex);
      admitted = all.limits.admit(peer, std::chrono::steady_clock::now(), due);
    }
    report(due);
    return admitted;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void report_left_out_lines() noexcept {
  try {
    std::vector<line_limits::count> counts;
    {
      auto& all = process_line_limits();
      const std::lock_guard lock(all.mutex);
      counts = all.limits.take_all();
    }
    report(counts);
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: lines about peers were left out");
  }
}

void forget_left_out_lines() noexcept {
  auto& all = process_line_limits();
  const std::lock_guard lock(all.mutex);
  all.limits.forget();
}

}  // namespace ferry::inline v0::detail
