#include "connect_attempt.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {

// How often an address is retried, after 1, 2, 4 ... 64, 64 ms.
constexpr int times_while_pending = 80;  // five seconds in all
constexpr int times_after_hang_up = 7;   // 127 ms
constexpr int times_while_exhausted = 7;
constexpr int most_doubts = 4;

std::pair<errc, std::string> taken_apart(const std::exception_ptr& reason) {
  try {
    std::rethrow_exception(reason);
  } catch (const error& e) {
    return {e.kind(), std::string(e.message())};
  } catch (const std::exception& e) {
    return {errc::connect_failed, e.what()};
  } catch (...) {
    return {errc::connect_failed, "unknown reason"};
  }
}

std::string texts_of(const std::vector<rejected_route>& failures) {
  std::string all;
  for (const auto& [address, reason] : failures)
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", address, reason);
  return all;
}

}  // namespace

connect_attempt::connect_attempt(std::vector<route> routes, hello self, incarnation_id expected,
                                 transport_options options, std::chrono::nanoseconds limit_each,
                                 std::function<bool()> wanted, std::function<void(connect_outcome)> done,
                                 std::string no_route)
    : routes_(std::move(routes)),
      self_(std::move(self)),
      expected_(expected),
      options_(std::move(options)),
      limit_each_(limit_each),
      wanted_(std::move(wanted)),
      done_(std::move(done)),
      no_route_(std::move(no_route)) {}

// Advances the attempt on a thread of the reactor.
struct connect_attempt::step : work {
  explicit step(std::shared_ptr<connect_attempt> which) : attempt(std::move(which)) {
    run = [](work* self) noexcept {
      const std::unique_ptr<step> owned(static_cast<step*>(self));
      try {
        owned->attempt->advance();
      } catch (const std::exception& e) {
        owned->attempt->finish({{}, connect_verdict::unknown, e.what()});
      }
    };
  }
  const std::shared_ptr<connect_attempt> attempt;
};

void connect_attempt::start(reactor& loop) {
  loop_ = &loop;
  loop.post(new step(shared_from_this()));
}

void connect_attempt::advance() {
  if (!wanted_()) {
    connect_outcome outcome{{}, connect_verdict::unknown, "the connection is no longer needed"};
    outcome.failed = std::move(failures_);
    return finish(std::move(outcome));
  }
  if (next_ != routes_.size()) {
    const auto& [transport, address] = routes_[next_];
    return transport->connect(address, self_, options_, deadline::after(limit_each_),
                              [self = shared_from_this()](connect_result result) {
                                try {
                                  self->take(std::move(result));
                                } catch (const std::exception& e) {
                                  self->finish({{}, connect_verdict::unknown, e.what()});
                                }
                              });
  }
  connect_outcome outcome;
  if (fenced_) {
    outcome.verdict = connect_verdict::fenced;
  } else if (leaving_) {
    outcome.verdict = connect_verdict::leaving;
  } else if (gone_ != 0 && gone_ == routes_.size()) {
    outcome.verdict = connect_verdict::gone;
  } else if (short_) {
    outcome.verdict = connect_verdict::exhausted;
    outcome.code = errc::resource_exhausted;
  } else if (hung_up_) {
    outcome.verdict = connect_verdict::hung_up;
  }
  if (unproved_) outcome.code = errc::authentication_failed;
  outcome.answered = answered_ || unproved_ || routes_.empty();
  if (routes_.empty()) {
    outcome.code = errc::no_route;
    outcome.why = no_route_;
  }
  if (!failures_.empty()) outcome.why = texts_of(failures_);
  outcome.failed = std::move(failures_);
  finish(std::move(outcome));
}

bool connect_attempt::try_later(int most) {
  constexpr int longest = 6;
  if (times_put_off_ >= most) return false;
  const auto pause = std::chrono::milliseconds(1 << std::min(times_put_off_++, longest));
  auto item = std::make_unique<step>(shared_from_this());
  loop_->start_timer(deadline(clock::now() + pause), item.get());
  (void)item.release();
  return true;
}

bool connect_attempt::doubts(errc answer) {
  const bool ends_a_worker = answer == errc::unknown_worker || answer == errc::fenced || answer == errc::shutting_down;
  if (!ends_a_worker || std::exchange(first_answer_, answer) == answer || times_doubted_++ == most_doubts) return false;
  loop_->post(new step(shared_from_this()));
  return true;
}

void connect_attempt::take(connect_result result) {
  if (result.opened && !options_.secret.empty() && (result.peer.features & feature_authenticated) == 0) {
    result.opened->close(make_error(errc::authentication_failed, "the peer did not prove the secret"));
    unproved_ = true;
    failures_.push_back({routes_[next_].second, "the transport did not require a proof of the secret from the peer"});
  } else if (result.opened) {
    if (result.peer.incarnation == expected_) {
      connect_outcome outcome{std::move(result.opened), connect_verdict::opened, {}};
      outcome.failed = std::move(failures_);
      return finish(std::move(outcome));
    }
    result.opened->close(make_error(errc::fenced, "another incarnation answered"));
    if (doubts(errc::unknown_worker)) return;
    ++gone_;
    failures_.push_back({routes_[next_].second, "another incarnation of the worker answered; it was restarted"});
  } else {
    auto [code, text] = taken_apart(result.error);
    if (doubts(code)) return;
    // The peer has not read yet that this worker has joined.
    if (code == errc::join_pending && try_later(times_while_pending)) return;
    // A process that is being killed closes its connections before the socket that it listens on, or after it.
    if (result.hung_up && try_later(times_after_hang_up)) return;
    // Others may be closing connections.
    if (code == errc::resource_exhausted && try_later(times_while_exhausted)) return;
    short_ = short_ || code == errc::resource_exhausted;
    if (result.gone) ++gone_;
    answered_ = answered_ || (!result.gone && !result.hung_up && code != errc::connect_failed);
    hung_up_ = hung_up_ || result.hung_up;
    unproved_ = unproved_ || code == errc::authentication_failed;
    if (code == errc::fenced) fenced_ = true;
    if (code == errc::shutting_down) leaving_ = true;
    // The transport's text names peer and address; so does the text of the call that fails.
    const std::string& address = routes_[next_].second;
    const std::string known = fmt::format("' at {}: ", address);
    if (const auto found = text.find(known); found != std::string::npos) text.erase(0, found + known.size());
    failures_.push_back({address, text});
  }
  ++next_;
  first_answer_.reset();
  advance();
}

void connect_attempt::finish(connect_outcome outcome) noexcept {
  auto done = std::move(done_);
  done_ = nullptr;
  if (!done) return;
  try {
    done(std::move(outcome));
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("the result of connecting to '{}' was not handled: {}", self_.target, e.what()));
  }
}

}  // namespace ferry::inline v0::detail
