#include "observer_links.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ferry/backend/agent.hpp>
#include <ferry/backend/observer_question.hpp>
#include <ferry/base/log.hpp>

#include "../detached.hpp"
#include "../links/control.hpp"
#include "observer_messages.hpp"

namespace ferry::inline v0::detail {
namespace {

// The memory that one observer may take in answers that it does not read. Transports bound its questions; one within the
// process has no need to.
constexpr std::uint64_t most_unread_answers = std::uint64_t{16} << 20;

constexpr std::chrono::milliseconds observers_flush_limit{200};
constexpr std::chrono::milliseconds observers_close_limit{5000};

}  // namespace

/// One observer. It may have one question open at a time.
class observer_link final : public connection_receiver, public std::enable_shared_from_this<observer_link> {
 public:
  observer_link(observer_links& all, std::shared_ptr<connection> opened)
      : kept_(all.own_.keep_alive()), all_(all), connection_(std::move(opened)) {}

  void start() { connection_->start(shared_from_this()); }
  void close(const std::exception_ptr& reason) noexcept { connection_->close(reason); }
  void say(std::uint64_t number, const answer_text& what) noexcept;

  // connection_receiver
  void on_message(connection& from, inbound_message&& message) noexcept override;
  void on_closed(connection& which, std::exception_ptr reason) noexcept override;
  [[nodiscard]] bool takes_tensors_on(device) const noexcept override { return false; }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return 1; }

 private:
  class open_question;

  const std::shared_ptr<void> kept_;
  observer_links& all_;
  const std::shared_ptr<connection> connection_;
  const std::shared_ptr<observer_state> state_ = std::make_shared<observer_state>();
  std::atomic<bool> busy_{false};  // a question is open
};

/// A question that nothing answers is refused when it is dropped.
class observer_link::open_question final : public observer_question {
 public:
  open_question(std::shared_ptr<observer_link> link, std::uint64_t number, question_text text)
      : link_(std::move(link)), number_(number), text_(std::move(text)) {}
  open_question(const open_question&) = delete;
  open_question& operator=(const open_question&) = delete;
  ~open_question() override { refuse(errc::system_failure, "the worker has dropped the question"); }

  [[nodiscard]] std::string_view what() const noexcept override { return text_.what; }
  [[nodiscard]] std::string_view argument() const noexcept override { return text_.argument; }
  [[nodiscard]] observer_state& state() noexcept override { return *link_->state_; }
  void answer(std::string bytes) noexcept override { end({errc{}, std::move(bytes)}); }
  void refuse(errc why, std::string_view text) noexcept override {
    try {
      end({why, std::string(text)});
    } catch (const std::bad_alloc&) {
      end({errc::out_of_memory, {}});
    }
  }

 private:
  void end(const answer_text& with) noexcept {
    if (!std::exchange(ended_, true)) link_->say(number_, with);
  }

  const std::shared_ptr<observer_link> link_;
  const std::uint64_t number_;
  const question_text text_;
  bool ended_ = false;
};

void observer_link::say(std::uint64_t number, const answer_text& what) noexcept {
  busy_.store(false);  // before the observer can ask again
  try {
    connection_->send(what.encode(number));
  } catch (const std::exception& e) {
    connection_->close(make_error(errc::out_of_memory, std::string("an observer gets no answer: ") + e.what()));
  }
}

void observer_link::on_message(connection& from, inbound_message&& message) noexcept {
  const frame_header& header = message.header;
  try {
    if (header.kind != frame_kind::control) {
      return from.close(
          make_error(errc::protocol_error, fmt::format("the observer at {} sent a frame of kind {}: it may only ask",
                                                       from.description(), static_cast<int>(header.kind))));
    }
    if (header.code != static_cast<std::uint32_t>(control_code::question)) return;  // of a later version
    if (header.message_bytes() > longest_observer_message || from.unwritten_bytes() > most_unread_answers) {
      return from.close(make_error(
          errc::limit_exceeded, fmt::format("the observer at {} asks too much, or does not read", from.description())));
    }
    if (busy_.exchange(true)) {
      return from.send(answer_text{errc::resource_exhausted, "an observer asks one question after the other"}.encode(
          header.call_id));
    }
    auto question = std::make_shared<open_question>(shared_from_this(), header.call_id,
                                                    question_text::decode(message, all_.own_.options.transport.limits));
    request_handler* const above = all_.own_.handler.load();
    if (all_.own_.closing.load() || !above) {
      return question->refuse(errc::shutting_down, to_string(all_.own_.self) + " is shutting down");
    }
    above->on_question(std::move(question));
  } catch (const std::exception& e) {
    from.close(make_error(errc::protocol_error,
                          fmt::format("the observer at {} was not understood: {}", from.description(), e.what())));
  }
}

void observer_link::on_closed(connection&, std::exception_ptr) noexcept {
  const auto keep = shared_from_this();
  // What ends with it may take long, as a recording does.
  if (auto dropped = state_->end(); !dropped.empty()) {
    try {
      run_detached(*all_.own_.threads, [kept = kept_, ended = std::move(dropped)]() mutable { ended.clear(); });
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it was dropped here
    }
  }
  all_.remove(*this);
}

// With mutex_ held.
void observer_links::check_room_locked() const {
  const auto most = static_cast<std::size_t>(own_.options.max_observers);
  if (links_.size() < most) return;
  throw_error(errc::resource_exhausted,
              fmt::format("{} has {} observers, and may have no more (max_observers)", to_string(own_.self), most));
}

void observer_links::check_room() const {
  const std::lock_guard lock(mutex_);
  check_room_locked();
}

void observer_links::accept(std::shared_ptr<connection> opened) noexcept {
  try {
    const auto link = std::make_shared<observer_link>(*this, opened);
    {
      const std::lock_guard lock(mutex_);
      if (closed_) throw_error(errc::shutting_down, to_string(own_.self) + " is shutting down");
      check_room_locked();  // again: others may have been accepted since the hello
      links_.push_back(link);
    }
    try {
      link->start();
    } catch (...) {
      remove(*link);
      throw;
    }
    log(log_level::info, fmt::format("{} is observed over {}", to_string(own_.self), opened->description()));
  } catch (const std::exception&) {
    opened->close(std::current_exception());
  }
}

void observer_links::remove(const observer_link& which) noexcept {
  std::shared_ptr<observer_link> removed;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(links_.begin(), links_.end(), [&](const auto& each) { return each.get() == &which; });
  if (found == links_.end()) return;
  removed = std::move(*found);
  links_.erase(found);
  ended_.notify_all();
}

void observer_links::close(const std::exception_ptr& reason) noexcept {
  std::unique_lock lock(mutex_);
  closed_ = true;
  for (const auto limit : {observers_flush_limit, observers_close_limit}) {
    if (links_.empty()) return;
    const auto now = links_;
    lock.unlock();
    for (const auto& each : now) each->close(reason);  // the second time: drops what an observer does not read
    lock.lock();
    if (ended_.wait_for(lock, limit, [&] { return links_.empty(); })) return;
  }
  log(log_level::warning, fmt::format("{}: {} observers did not close in time", own_.self.name(), links_.size()));
}

}  // namespace ferry::inline v0::detail
