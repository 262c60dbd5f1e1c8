#pragma once

// Contexts of distributed autograd: calls made within one record where tensors leave and enter workers, so that a pass can go
// back through them.
//
//   {
//     ferry::dist_autograd::context pass;                            // calls of this thread are recorded from here on
//     ferry::tensor y = ferry::rpc_sync<forward>("worker1", x);
//     pass.backward(loss(y));
//     optimizer.step(pass);
//   }                                                                // every worker forgets it

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ferry/autograd/backward.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/rpc/context_values.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

class worker;
namespace detail {
class dist_context;
}

namespace dist_autograd {

/// The same on all workers: the worker that made the context in the top 16 bits, a counter of that worker below. Can be sent.
struct context_id {
  std::uint64_t value = 0;
  [[nodiscard]] worker_id made_by() const noexcept { return {static_cast<std::int32_t>(value >> 48U)}; }
  friend auto operator<=>(const context_id&, const context_id&) noexcept = default;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};
std::string to_string(context_id id);

struct backward_options;
class gradient_map;

/// A context, in force on the thread that makes it until its end: for the calls that the thread makes, for their handlers and
/// the calls that these make, for continuations and coroutines, everywhere; not for hooks and nodes that a pass runs (running_pass()).
/// Gradients of all passes in a context add up, apart from
/// ferry::grad() and from those of other contexts.
///
/// In a coroutine of ferry::task or ferry::future it may be held across a co_await. Ended on any thread; not thread-safe itself,
/// but its functions may be called from several threads.
class [[nodiscard]] context {
 public:
  /// Of the current worker. Throws errc::invalid_argument if one is in force on the thread, errc::not_initialized.
  context();
  explicit context(const worker& of);
  /// Every worker that took part forgets the context, in the background: graph, gradients, everything. A pass that runs fails.
  ~context();
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  [[nodiscard]] context_id id() const noexcept;
  operator context_id() const noexcept {
    return id();
  }  // NOLINT(google-explicit-constructor): a context stands for its id

  /// dist_autograd::backward(*this, roots, options)
  void backward(tensor_span roots, const backward_options& options) const;
  void backward(tensor_span roots) const;
  /// dist_autograd::get_gradients(*this)
  [[nodiscard]] gradient_map gradients() const;

  // For the library.
  [[nodiscard]] const std::shared_ptr<detail::dist_context>& state() const noexcept { return state_; }

 private:
  explicit context(std::shared_ptr<detail::dist_context> made);
  std::shared_ptr<detail::dist_context> state_;
  context_values_scope scope_;
};

/// Puts a context in force on another thread, for the scope. The context is not ended with it.
class [[nodiscard]] attached_scope {
 public:
  /// Of the current worker. Throws errc::invalid_argument if this worker has no such context, or one is in force on the thread.
  explicit attached_scope(context_id id);
  attached_scope(context_id id, const worker& of);
  /// The same worker's.
  explicit attached_scope(const context& shared);
  attached_scope(const attached_scope&) = delete;
  attached_scope& operator=(const attached_scope&) = delete;

 private:
  explicit attached_scope(const std::shared_ptr<detail::dist_context>& state);
  context_values_scope scope_;
};

/// The context in force on the calling thread.
[[nodiscard]] std::optional<context_id> current() noexcept;
/// Whether the current worker has that context: it made it, or a call of it was here, and it was not ended.
[[nodiscard]] bool exists(context_id id);
[[nodiscard]] bool exists(context_id id, const worker& of);

/// A message of a context whose tensors have gradients, at its sender.
struct context_send {
  std::uint64_t message = 0;
  worker_id to = {};
  std::vector<std::string> edges = {};  ///< the nodes to which its gradients go, in the order of the tensors
};
/// The same at its receiver.
struct context_receive {
  std::uint64_t message = 0;
  worker_id from = {};
  std::size_t tensors = 0;  ///< those with gradients
};
/// What a worker keeps of a context, for diagnosis and tests.
struct context_info {
  std::vector<context_send> sends = {};        ///< by message
  std::vector<context_receive> receives = {};  ///< by message
  std::vector<worker_id> known_workers = {};   ///< ascending: to which it was passed on
  bool pass_runs = false;
};
/// Throws errc::invalid_argument if the current worker has no such context.
[[nodiscard]] context_info inspect(context_id id);
[[nodiscard]] context_info inspect(context_id id, const worker& of);

}  // namespace dist_autograd
}  // namespace ferry::inline v0

template <>
struct std::hash<ferry::dist_autograd::context_id> {
  std::size_t operator()(ferry::dist_autograd::context_id id) const noexcept {
    return static_cast<std::size_t>(id.value);
  }
};
