#pragma once

// A client of the call pipeline as another library would write it, with public headers alone: it follows the tensors of
// a lineage (a number) from worker to worker, as distributed autograd does with its contexts.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/rpc/interceptor.hpp>

namespace lineage {

inline constexpr std::uint16_t record_type = ferry::first_private_extension + 7;

/// The lineage that the running code belongs to.
inline constexpr ferry::context_key<std::uint64_t> current("lineage");

/// What the record of a message says.
struct record {
  std::uint64_t id = 0;
  std::vector<std::uint32_t> tracked;  ///< indices of tensors of the message

  [[nodiscard]] std::vector<std::byte> encode() const {
    std::vector<std::byte> bytes(8 + 4 * tracked.size());
    std::memcpy(bytes.data(), &id, 8);
    if (!tracked.empty()) std::memcpy(bytes.data() + 8, tracked.data(), 4 * tracked.size());
    return bytes;
  }
  static record decode(std::span<const std::byte> bytes) {
    if (bytes.size() < 8 || bytes.size() % 4 != 0) ferry::throw_error(ferry::errc::malformed, "a lineage record");
    record result;
    std::memcpy(&result.id, bytes.data(), 8);
    result.tracked.resize((bytes.size() - 8) / 4);
    if (!result.tracked.empty()) std::memcpy(result.tracked.data(), bytes.data() + 8, bytes.size() - 8);
    return result;
  }
  static std::optional<record> of(const ferry::extension_records& records) {
    const auto content = records.find(record_type);
    return content ? std::optional(decode(*content)) : std::nullopt;
  }
};

/// What one worker knows of lineages. Thread-safe.
class state final : public ferry::worker_attachment {
 public:
  explicit state(const ferry::attachment_owner& owner) : name_(owner.info().name()) {}

  std::atomic<int> made{0};  ///< calls that were seen at their caller
  std::atomic<int> sent{0};
  std::atomic<int> not_sent{0};
  std::atomic<int> replied{0};
  std::atomic<int> ended{0};
  std::atomic<int> arrived{0};
  std::atomic<int> handlers{0};
  std::atomic<int> results{0};
  std::atomic<int> errors{0};  ///< of the results
  std::atomic<int> replies{0};
  std::atomic<int> over{0};
  std::atomic<bool> twice{false};  ///< any event came twice, or out of order

  void note(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    seen_.insert(id);
  }
  [[nodiscard]] bool has_seen(std::uint64_t id) const {
    const std::lock_guard lock(mutex_);
    return seen_.contains(id);
  }
  /// How many tensors of messages from or to this worker were tracked.
  std::atomic<int> tracked_out{0};
  std::atomic<int> tracked_in{0};

 private:
  const std::string name_;
  mutable std::mutex mutex_;
  std::set<std::uint64_t> seen_;
};
inline constexpr ferry::attached_key<state> state_key("lineage.state");

/// Double tensors are tracked.
inline std::vector<std::uint32_t> tracked_of(std::span<const ferry::tensor> tensors) {
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i != tensors.size(); ++i) {
    if (tensors[i].dtype() == ferry::dtype::f64) indices.push_back(i);
  }
  return indices;
}

class at_caller final : public ferry::caller_hooks {
 public:
  at_caller(std::shared_ptr<state> all, std::uint64_t id) : all_(std::move(all)), id_(id) { ++all_->made; }
  ~at_caller() override {
    if (phase_ != phase::over) all_->twice = true;
  }
  void sent() noexcept override {
    if (phase_ != phase::begun) all_->twice = true;
    phase_ = phase::sent;
    ++all_->sent;
  }
  void not_sent() noexcept override {
    if (phase_ != phase::begun) all_->twice = true;
    phase_ = phase::sent;
    ++all_->not_sent;
  }
  void replied(ferry::incoming_reply& reply) override {
    if (phase_ != phase::sent) all_->twice = true;
    phase_ = phase::over;
    ++all_->replied;
    // In the context of the call, wherever the thread comes from.
    const std::uint64_t* here = ferry::current_value(current);
    if (!here || *here != id_) all_->twice = true;
    if (const auto found = record::of(reply.records())) {
      if (found->id != id_) all_->twice = true;
      all_->tracked_in += static_cast<int>(found->tracked.size());
    }
  }
  void ended(const ferry::call_end&) noexcept override {
    if (phase_ != phase::sent) all_->twice = true;
    phase_ = phase::over;
    ++all_->ended;
  }

 private:
  enum class phase : std::uint8_t { begun, sent, over };
  const std::shared_ptr<state> all_;
  const std::uint64_t id_;
  std::atomic<phase> phase_{phase::begun};
};

class at_callee final : public ferry::callee_hooks {
 public:
  at_callee(std::shared_ptr<state> all, record what) : all_(std::move(all)), what_(std::move(what)) { ++all_->arrived; }
  ~at_callee() override {
    if (over_ != 1) all_->twice = true;
  }
  void before_handler(ferry::handler_start& start) override {
    ++all_->handlers;
    all_->note(what_.id);
    all_->tracked_in += static_cast<int>(what_.tracked.size());
    for (const std::uint32_t each : what_.tracked) {
      if (start.tensors()[each].dtype() != ferry::dtype::f64) all_->twice = true;
    }
    start.set_value(current, what_.id);
  }
  void handler_ended(ferry::handler_result& result) override {
    if (result_++ != 0) all_->twice = true;
    ++all_->results;
    if (result.error()) ++all_->errors;
  }
  void on_reply(ferry::outgoing_reply& reply) override {
    if (reply_++ != 0 || result_ != 1) all_->twice = true;
    ++all_->replies;
    const record answer{what_.id, tracked_of(reply.tensors())};
    all_->tracked_out += static_cast<int>(answer.tracked.size());
    reply.add_record(record_type, true, answer.encode());
  }
  void ended() noexcept override {
    if (over_++ != 0) all_->twice = true;
    ++all_->over;
  }

 private:
  const std::shared_ptr<state> all_;
  const record what_;
  int result_ = 0;
  int reply_ = 0;
  std::atomic<int> over_{0};
};

class tracker final : public ferry::interceptor {
 public:
  explicit tracker(bool critical = true) : critical_(critical) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "lineage"; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override { return types; }

  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    const std::uint64_t* id = ferry::current_value(current);
    if (!id) return nullptr;
    const auto all = request.attached(state_key);
    all->note(*id);
    const record what{*id, tracked_of(request.tensors())};
    all->tracked_out += static_cast<int>(what.tracked.size());
    request.add_record(record_type, critical_, what.encode());
    return std::make_unique<at_caller>(all, *id);
  }
  std::unique_ptr<ferry::callee_hooks> on_arrival(ferry::incoming_request& request) override {
    const auto what = record::of(request.records());
    if (!what) return nullptr;
    return std::make_unique<at_callee>(request.attached(state_key), *what);
  }

 private:
  static constexpr std::array<std::uint16_t, 1> types{record_type};
  const bool critical_;
};

}  // namespace lineage
