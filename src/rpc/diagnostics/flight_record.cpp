#include "flight_record.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../base/signal_mask.hpp"
#include "../../base/unique_fd.hpp"
#include "../methods/method_table.hpp"
#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds pause_between_timeouts{10};  // between two records written because of timeouts
constexpr std::chrono::seconds write_limit{5};              // for records that a worker's shutdown waits for

std::int64_t nanoseconds_of(clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

}  // namespace

std::string write_record(const std::string& path, const std::string& name, std::string_view text) {
  static std::atomic<unsigned> count{0};
  const writes_fail_by_error no_signals;
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

worker_snapshot worker_core::snapshot(std::string reason, bool with_events) const {
  worker_snapshot result;
  result.reason = std::move(reason);
  result.worker = agent_->self();
  result.incarnation = agent_->incarnation();
  static const std::uint64_t mark = incarnation_id::random().value;
  result.process = ::getpid();
  result.process_mark = mark;
  result.time = std::chrono::system_clock::now();
  result.steady_ns = nanoseconds_of(clock::now());
  const auto now = clock::now();
  result.pending_calls = pending_calls(now);
  result.served_calls = served_calls(now);
  collectives_of_worker groups = collectives(now);
  result.pending_collectives = std::move(groups.pending);
  result.groups = std::move(groups.groups);
  result.traffic = agent_->inspection().traffic();
  for (const peer_traffic& each : result.traffic) {
    try {
      route_info route = agent_->inspection().route(each.peer.id());
      result.routes.push_back({each.peer, std::move(route.transport), std::move(route.description)});
    } catch (const error&) {  // NOLINT(bugprone-empty-catch): it has left meanwhile
    }
  }
  result.debug_info = debug_info();
  result.events_so_far = recorder_.count();
  if (!with_events) return result;
  std::map<std::uint64_t, std::string> methods;
  for (flight_entry& each : recorder_.entries()) {
    std::string* name = nullptr;
    if (each.method != 0) {
      name = &methods[each.method];
      if (name->empty()) *name = readable_name(each.method);
    }
    result.events.push_back({.number = each.number,
                             .steady_ns = each.steady_ns,
                             .event = std::string(to_string(each.what)),
                             .peer = each.peer,
                             .call = each.call,
                             .method = name ? *name : std::string(),
                             .bytes = each.bytes,
                             .code = each.code,
                             .text = std::move(each.text)});
  }
  return result;
}

std::string worker_core::flight_record(std::string_view reason) const {
  return to_json(snapshot(std::string(reason), true));
}

bool worker_core::run_record_work(std::function<void()> what) {
  struct record_work : work {
    std::shared_ptr<worker_core> worker;
    std::function<void()> what;
  };
  auto item = std::make_unique<record_work>();
  {
    std::lock_guard lock(records_mutex_);
    if (no_more_records_) return false;
    ++records_under_way_;
  }
  item->worker = shared_from_this();
  item->what = std::move(what);
  item->run = [](work* self) noexcept {
    const std::unique_ptr<record_work> owned(static_cast<record_work*>(self));
    worker_core& core = *owned->worker;
    const auto threads = core.agent_->reactor();
    try {
      threads->begin_blocking();
      owned->what();
    } catch (const std::exception& e) {
      log(log_level::warning, fmt::format("{}: {}", to_string(core.agent_->self()), e.what()));
    }
    threads->end_blocking();
    owned->what = nullptr;
    std::lock_guard lock(core.records_mutex_);
    --core.records_under_way_;
    core.records_changed_.notify_all();
  };
  agent_->reactor()->post_elsewhere(item.release());
  return true;
}

// A call must not wait for a disk: another thread writes the file, and the worker's shutdown waits for that thread.
void worker_core::record_timeout() noexcept {
  if (agent_->options().record_on_timeout.empty() || !recorder_.on()) return;
  try {
    {
      std::lock_guard lock(records_mutex_);
      if (no_more_records_ || clock::now() < next_record_) return;
      next_record_ = clock::now() + pause_between_timeouts;
    }
    (void)run_record_work([this] {
      const worker_info& who = agent_->self();
      const std::string file =
          write_record(agent_->options().record_on_timeout, fmt::format("ferry-{}-{}.json", who.name(), ::getpid()),
                       flight_record("timeout"));
      log(log_level::info, fmt::format("{}: a call timed out; flight record: {}", to_string(who), file));
    });
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{}: no flight record: {}", to_string(agent_->self()), e.what()));
  }
}

void worker_core::await_records() noexcept {
  std::unique_lock lock(records_mutex_);
  no_more_records_ = true;
  if (!records_changed_.wait_for(lock, write_limit, [&] { return records_under_way_ == 0; })) {
    log(log_level::warning, fmt::format("{}: its flight record is still being written, or an observer answered",
                                        to_string(agent_->self())));
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
