// What the answers of an address show about a worker.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/transport/reactor.hpp>
#include <ferry/transport/transport.hpp>

#include "backend/links/connect_attempt.hpp"
#include "watchdog.hpp"

namespace connect_attempt_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::detail::connect_attempt;
using ferry::detail::connect_outcome;
using ferry::detail::connect_verdict;

namespace {

// Gives one answer after the other; the last one again and again.
class scripted_transport final : public ferry::transport {
 public:
  explicit scripted_transport(std::vector<errc> answers) : answers_(std::move(answers)) {}
  std::vector<std::string> listen(const std::string&, const std::string&, const std::string&,
                                  const ferry::transport_options&,
                                  std::shared_ptr<ferry::connection_acceptor>) override {
    return {};
  }
  void unlisten(const std::string&, const std::string&) noexcept override {}
  void connect(const std::string&, const ferry::hello&, const ferry::transport_options&, ferry::deadline,
               ferry::connect_callback callback) override {
    const errc code = answers_[std::min(asked++, answers_.size() - 1)];
    ferry::connect_result result;
    result.error = ferry::make_error(code, "as the script says");
    result.gone = code == errc::unknown_worker || code == errc::connect_failed;  // a port without a listener
    callback(std::move(result));
  }
  [[nodiscard]] bool understands(std::string_view) const noexcept override { return true; }

  std::size_t asked = 0;

 private:
  const std::vector<errc> answers_;
};

struct ending {
  connect_verdict verdict;
  std::size_t asked;
  friend bool operator==(const ending&, const ending&) = default;
};

ending outcome_of(std::vector<errc> answers) {
  const ferry_test::watchdog dog("connect attempt");
  const auto there = std::make_shared<scripted_transport>(std::move(answers));
  std::promise<connect_verdict> verdict;
  std::make_shared<connect_attempt>(
      std::vector<connect_attempt::route>{{there, "scripted://1"}}, ferry::hello{}, ferry::incarnation_id{7},
      ferry::transport_options{}, 5s, [] { return true; },
      [&](const connect_outcome& outcome) { verdict.set_value(outcome.verdict); })
      ->start(*ferry::shared_reactor());
  const connect_verdict found = verdict.get_future().get();
  return {found, there->asked};
}

}  // namespace

TEST_CASE("one answer, which may have been damaged on its way, ends no worker") {
  for (const errc answer : {errc::unknown_worker, errc::fenced, errc::shutting_down}) {
    CAPTURE(ferry::errc_name(answer));
    CHECK(outcome_of({answer, errc::system_failure}) == ending{connect_verdict::unknown, 2});
    CHECK(outcome_of({answer, errc::handshake_failed}) == ending{connect_verdict::unknown, 2});
  }
}

TEST_CASE("two of the same do") {
  CHECK(outcome_of({errc::unknown_worker}) == ending{connect_verdict::gone, 2});
  CHECK(outcome_of({errc::fenced}) == ending{connect_verdict::fenced, 2});
  CHECK(outcome_of({errc::shutting_down}) == ending{connect_verdict::leaving, 2});
  CHECK(outcome_of({errc::fenced, errc::unknown_worker}) == ending{connect_verdict::gone, 3});
}

TEST_CASE("answers that change for ever are believed in the end") {
  CHECK(outcome_of({errc::fenced, errc::unknown_worker, errc::fenced, errc::unknown_worker, errc::fenced,
                    errc::unknown_worker, errc::fenced}) == ending{connect_verdict::fenced, 5});
}

TEST_CASE("a port without a listener is no answer: it is believed at once") {
  CHECK(outcome_of({errc::connect_failed}) == ending{connect_verdict::gone, 1});
}

}  // namespace connect_attempt_test
