#include "observer_connection.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../links/connect_attempt.hpp"
#include "../links/control.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds observed_end_limit{1};

}  // namespace

std::shared_ptr<observer_connection> observer_connection::open(reactor& threads, const worker_record& to,
                                                               const std::string& group,
                                                               const transport_options& options, deadline until) {
  std::vector<connect_attempt::route> routes;
  // Of those between processes, shm costs most to open.
  for (const transport_factory& each :
       transport_list<ferry::inproc, ferry::unix_domain, ferry::tcp, ferry::shm>::factories()) {
    if (!each.unusable().empty()) continue;
    const std::shared_ptr<transport> opened = each.open(threads);
    for (const std::string& address : to.addresses) {
      if (opened->understands(address)) routes.emplace_back(opened, address);
    }
  }
  const auto limit_each = until.remaining() / static_cast<std::int64_t>(std::max<std::size_t>(routes.size(), 1));
  hello self{.group = group,
             .name = "observer",
             .id = {},
             .incarnation = incarnation_id::random(),
             .target = to.who.name(),
             .features = feature_observer,
             .joined = 0};
  const auto outcome = std::make_shared<std::promise<connect_outcome>>();
  auto result = outcome->get_future();
  const auto wanted = std::make_shared<std::atomic<bool>>(true);
  const auto attempt = std::make_shared<connect_attempt>(
      std::move(routes), std::move(self), to.incarnation, options, limit_each, [wanted] { return wanted->load(); },
      [outcome, wanted](connect_outcome found) {
        if (!wanted->exchange(false) && found.opened) {
          return found.opened->close(make_error(errc::rpc_timeout, "the observer no longer waits"));
        }
        outcome->set_value(std::move(found));
      });
  attempt->start(threads);
  if (result.wait_until(until.is_never() ? clock::now() + std::chrono::hours(24) : until.at()) ==
          std::future_status::timeout &&
      wanted->exchange(false)) {
    throw_error(errc::connect_failed, fmt::format("{} did not answer in time", to_string(to.who)));
  }
  connect_outcome found = result.get();
  if (!found.opened) {
    const bool over = found.verdict == connect_verdict::gone || found.verdict == connect_verdict::leaving;
    throw_error(over ? errc::peer_lost : found.code,
                fmt::format("{} cannot be observed: {}", to_string(to.who), found.why));
  }
  auto made = std::make_shared<observer_connection>(to_string(to.who), found.opened, options.limits);
  found.opened->start(made);
  return made;
}

void observer_connection::begin_to_close() noexcept {
  connection_->close(make_error(errc::connection_lost, "the observer has closed the connection"));
}

void observer_connection::close() noexcept {
  for (int i = 0; i != 2; ++i) {
    begin_to_close();  // the second time: drops what the worker does not read
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, observed_end_limit, [&] { return end_ != nullptr; })) return;
  }
}

bool observer_connection::ended() noexcept {
  const std::lock_guard lock(mutex_);
  return timed_out_ || end_ != nullptr;
}

std::string observer_connection::ask(std::string_view what, std::string_view argument, deadline until) {
  const auto too_late = [&] {
    return make_error(errc::rpc_timeout,
                      fmt::format("{} did not answer the question '{}' in time: it may be stopped, or "
                                  "its machine overloaded",
                                  worker_, what));
  };
  const auto wait = [&](std::unique_lock<std::mutex>& lock, const auto& condition) {
    if (!until.is_never()) return changed_.wait_until(lock, until.at(), condition);
    changed_.wait(lock, condition);
    return true;
  };
  std::unique_lock lock(mutex_);
  if (!wait(lock, [&] { return !asking_; })) std::rethrow_exception(too_late());  // another thread's question is open
  if (end_) std::rethrow_exception(end_);
  asking_ = true;
  answer_.reset();
  const std::uint64_t number = ++number_;
  lock.unlock();
  std::exception_ptr not_sent;
  try {
    connection_->send(question_text{std::string(what), std::string(argument)}.encode(number));
  } catch (const std::exception&) {
    not_sent = std::current_exception();
  }
  lock.lock();
  const bool in_time = not_sent || wait(lock, [&] { return answer_.has_value() || end_; });
  timed_out_ = timed_out_ || !in_time;
  asking_ = false;
  std::optional<answer_text> found = std::exchange(answer_, std::nullopt);
  const std::exception_ptr end = end_;
  changed_.notify_all();
  lock.unlock();
  if (not_sent) std::rethrow_exception(not_sent);
  if (!in_time) {
    auto why = too_late();
    connection_->close(why);  // it would answer later, in the place of the next one
    std::rethrow_exception(why);
  }
  if (!found) std::rethrow_exception(end);
  if (found->code != errc{}) throw_error(found->code, fmt::format("{}: {}", worker_, found->bytes));
  return std::move(found->bytes);
}

void observer_connection::on_message(connection& from, inbound_message&& message) noexcept {
  if (message.header.kind != frame_kind::control ||
      message.header.code != static_cast<std::uint32_t>(control_code::answer))
    return;  // a goodbye, or of a later version
  try {
    answer_text found = answer_text::decode(message, limits_);
    const std::lock_guard lock(mutex_);
    if (message.header.call_id != number_) return;
    answer_ = std::move(found);
    changed_.notify_all();
  } catch (const std::exception&) {
    from.close(std::current_exception());
  }
}

void observer_connection::on_closed(connection&, std::exception_ptr reason) noexcept {
  std::exception_ptr why = reason;
  try {
    std::rethrow_exception(reason);
  } catch (const error& e) {
    try {
      const bool gone =
          e.kind() == errc::connection_lost || e.kind() == errc::shutting_down || e.kind() == errc::peer_lost;
      why = make_error(gone ? errc::peer_lost : e.kind(),
                       fmt::format("the connection to {} has ended: {}", worker_, e.message()));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory; the reason itself will do
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): reasons are errors of ferry
  }
  const std::lock_guard lock(mutex_);
  end_ = std::move(why);
  changed_.notify_all();
}

}  // namespace ferry::inline v0::detail
