#pragma once

// What observers ask a worker, for those that answer.

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/error.hpp>

namespace ferry::inline v0 {

/// What a worker keeps for one observer between its questions, by name. Ends with the observer's connection.
class observer_state {
 public:
  observer_state() = default;
  observer_state(const observer_state&) = delete;
  observer_state& operator=(const observer_state&) = delete;

  /// Keeps `what`, in place of what had that name; null: nothing. After the end it is dropped at once. Thread-safe, as is
  /// the rest.
  void keep(std::string_view name, std::shared_ptr<void> what);
  /// Null: there is none.
  [[nodiscard]] std::shared_ptr<void> take(std::string_view name) noexcept;
  /// Returns what was kept, for the caller to drop.
  [[nodiscard]] std::vector<std::shared_ptr<void>> end() noexcept;

 private:
  std::mutex mutex_;  // guards what follows
  bool ended_ = false;
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<void>> kept_;  // by the place of its name
};

/// A question of an observer: of a tool that watches the group and is no member of it. Answered once, on any thread, by
/// answer() or refuse(); later ones do nothing.
class observer_question {
 public:
  virtual ~observer_question() = default;
  [[nodiscard]] virtual std::string_view what() const noexcept = 0;
  [[nodiscard]] virtual std::string_view argument() const noexcept = 0;
  [[nodiscard]] virtual observer_state& state() noexcept = 0;
  virtual void answer(std::string bytes) noexcept = 0;
  virtual void refuse(errc why, std::string_view text) noexcept = 0;
};

}  // namespace ferry::inline v0
