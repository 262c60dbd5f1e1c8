#include "flight_record.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../base/unique_fd.hpp"
#include "../methods/method_table.hpp"
#include "../worker/worker_core.hpp"
#include "json_text.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds pause_between_timeouts{10};  // between two records written because of timeouts
constexpr std::chrono::seconds write_limit{5};              // for records that a worker's shutdown waits for

std::int64_t nanoseconds_of(clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

std::string moment(std::chrono::system_clock::time_point at) {
  const auto in_day = std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count() % 1'000'000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(at)), in_day);
}

std::string json_worker(const worker_info& who) {
  return fmt::format(R"({{"id": {}, "name": {}}})", who.id().value, json_text(who.name()));
}

std::string json_time_left(deadline until) {
  if (until.is_never()) return "null";
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(until.at() - clock::now()).count());
}

std::string json_of(const pending_call_info& call) {
  return fmt::format(
      R"({{"call": "{:x}", "method": {}, "peer": {}, "phase": {}, "age_ns": {}, "time_left_ns": {}, "bytes": {}, "route": {}, "silence_ns": {}}})",
      call.id, json_text(call.method), json_worker(call.peer), json_text(to_string(call.phase)), call.age.count(),
      json_time_left(call.until), call.bytes, json_text(call.route),
      call.silence ? std::to_string(call.silence->count()) : "null");
}

std::string json_of(const served_call_info& call) {
  return fmt::format(
      R"({{"call": "{:x}", "method": {}, "caller": {}, "phase": {}, "age_ns": {}, "time_left_ns": {}, "bytes": {}, "one_way": {}, "unwanted": {}}})",
      call.id, json_text(call.method), json_worker(call.caller), json_text(to_string(call.phase)), call.age.count(),
      json_time_left(call.until), call.bytes, call.one_way, call.unwanted);
}

std::string json_of(const peer_traffic& peer) {
  return fmt::format(
      R"({{"peer": {}, "calls": {}, "errors": {}, "served": {}, "bytes_sent": {}, "bytes_received": {}}})",
      json_worker(peer.peer), peer.calls, peer.errors, peer.served, peer.bytes_sent, peer.bytes_received);
}

template <class Entries>
void append_list(std::string& out, std::string_view name, const Entries& entries) {
  out += fmt::format(R"(, "{}": [)", name);
  std::string_view separator = "\n  ";
  for (const auto& each : entries) {
    out += separator;
    out += json_of(each);
    separator = ",\n  ";
  }
  out += ']';
}

}  // namespace

std::string write_record(const std::string& path, const std::string& name, std::string_view text) {
  static std::atomic<unsigned> count{0};
  struct stat about {};
  const bool directory = ::stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
  const std::string target = directory || path.ends_with('/') ? path + "/" + name : path;
  const std::string draft = fmt::format("{}.{}.{}.tmp", target, ::getpid(), count.fetch_add(1));
  const auto failed = [&](int reason) {
    ::unlink(draft.c_str());
    throw_errno(errc::system_failure, "a flight record cannot be written to " + target, reason);
  };
  unique_fd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));  // minus the umask
  if (!file) throw_errno(errc::system_failure, "a flight record cannot be written to " + target, errno);
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) failed(written < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::close(file.release()) != 0) failed(errno);  // some file systems report a full disk only here
  if (::rename(draft.c_str(), target.c_str()) != 0) failed(errno);
  return target;
}

std::string worker_core::flight_record(std::string_view reason) const {
  const auto steady = clock::now();
  const auto wall = std::chrono::system_clock::now();
  const std::vector<flight_entry> events = recorder_.entries();
  std::string out = fmt::format(
      R"({{"ferry_flight_record": 1, "reason": {}, "worker": {}, "incarnation": "{:016x}", "process": {}, "time": "{}", "steady_ns": {})",
      json_text(reason), json_worker(agent_->self()), agent_->incarnation().value, ::getpid(), moment(wall),
      nanoseconds_of(steady));
  append_list(out, "pending_calls", pending_calls());
  append_list(out, "served_calls", served_calls());
  append_list(out, "traffic", agent_->inspection().traffic());
  out += R"(, "debug_info": {)";
  std::string_view separator = "\n  ";
  for (const auto& [name, value] : debug_info()) {
    out += fmt::format("{}{}: {}", separator, json_text(name), json_text(value));
    separator = ",\n  ";
  }
  out += fmt::format(R"(}}, "events_so_far": {}, "events": [)", recorder_.count());
  std::map<std::uint64_t, std::string> methods;
  separator = "\n  ";
  for (const flight_entry& each : events) {
    out += fmt::format(R"({}{{"n": {}, "steady_ns": {}, "event": "{}", "peer": {})", separator, each.number,
                       each.steady_ns, to_string(each.what), each.peer.value);
    if (each.call != 0) out += fmt::format(R"(, "call": "{:x}")", each.call);
    if (each.method != 0) {
      std::string& name = methods[each.method];
      if (name.empty()) name = json_text(readable_name(each.method));
      out += R"(, "method": )" + name;
    }
    if (each.bytes != 0) out += fmt::format(R"(, "bytes": {})", each.bytes);
    if (each.code != errc{}) out += fmt::format(R"(, "error": "{}")", errc_name(each.code));
    if (!each.text.empty()) out += R"(, "text": )" + json_text(each.text);
    out += '}';
    separator = ",\n  ";
  }
  out += "]}\n";
  return out;
}

// A call must not wait for a disk: another thread writes the file, and the worker's shutdown waits for that thread.
void worker_core::record_timeout() noexcept {
  const std::string& path = agent_->options().record_on_timeout;
  if (path.empty() || !recorder_.on()) return;
  struct writing : work {
    std::shared_ptr<worker_core> worker;
  };
  try {
    auto item = std::make_unique<writing>();
    {
      std::lock_guard lock(records_mutex_);
      if (no_more_records_ || clock::now() < next_record_) return;
      next_record_ = clock::now() + pause_between_timeouts;
      ++records_under_way_;
    }
    item->worker = shared_from_this();
    item->run = [](work* self) noexcept {
      const std::unique_ptr<writing> owned(static_cast<writing*>(self));
      worker_core& core = *owned->worker;
      const worker_info& who = core.agent_->self();
      const auto threads = core.agent_->reactor();
      try {
        threads->begin_blocking();
        const std::string file =
            write_record(core.agent_->options().record_on_timeout,
                         fmt::format("ferry-{}-{}.json", who.name(), ::getpid()), core.flight_record("timeout"));
        log(log_level::info, fmt::format("{}: a call timed out; flight record: {}", to_string(who), file));
      } catch (const std::exception& e) {
        log(log_level::warning, fmt::format("{}: {}", to_string(who), e.what()));
      }
      threads->end_blocking();
      std::lock_guard lock(core.records_mutex_);
      --core.records_under_way_;
      core.records_changed_.notify_all();
    };
    agent_->reactor()->post_elsewhere(item.release());
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{}: no flight record: {}", to_string(agent_->self()), e.what()));
  }
}

void worker_core::await_records() noexcept {
  std::unique_lock lock(records_mutex_);
  no_more_records_ = true;
  if (!records_changed_.wait_for(lock, write_limit, [&] { return records_under_way_ == 0; })) {
    log(log_level::warning, fmt::format("{}: its flight record is still being written", to_string(agent_->self())));
  }
}

std::string records_of_process(std::string_view reason) {
  std::string out = R"({"ferry_flight_records": 1, "workers": [)";
  std::string_view separator;
  for (const auto& each : running_workers()) {
    out += separator;
    out += each->flight_record(reason);
    separator = ",";
  }
  out += "]}\n";
  return out;
}

}  // namespace ferry::inline v0::detail
