#pragma once

// Distributed passes. docs/distributed_autograd.md says how they work.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ferry/autograd/backward.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/base/time.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

template <class T>
class rref;

namespace dist_autograd {

enum class backward_mode : std::uint8_t {
  /// Counts exactly which of the context's messages lead to the roots: results that were not used, several roots, cycles
  /// between workers are all right.
  smart,
  /// Takes it that each message with gradients which the context has sent, on every worker, leads to the roots. One that
  /// does not: the pass waits for its gradient, until the limit.
  fast,
};

class update_after;

/// What updates parameters within a pass, or nothing. Refers to it.
class update_ref {
 public:
  update_ref() noexcept = default;
  update_ref(const update_after& what) noexcept : what_(&what) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const noexcept { return what_ != nullptr; }
  const update_after& operator*() const noexcept { return *what_; }
  const update_after* operator->() const noexcept { return what_; }

 private:
  const update_after* what_ = nullptr;
};

struct backward_options {
  /// Of the roots, one each, of their shapes; undefined ones and missing ones stand for 1, for roots with one element.
  std::vector<tensor> gradients = {};
  /// Another pass over the same graph will follow: what the formulas need is kept, on all workers.
  bool retain_graph = false;
  backward_mode mode = backward_mode::smart;
  /// For the whole pass; unset: none. The default timeout of calls does not bound passes. A formula or hook that runs on the thread in
  /// backward() when it has passed is finished first.
  timeout limit = no_timeout;
  /// A distributed_optimizer, for example: updates each of its parameters as soon as the parameter's gradient is whole, on its worker.
  /// Must live until the pass ends. A pass that fails may have updated some of them.
  update_ref then = {};
};

// Errors of all: errc::invalid_argument for a context that the worker does not have, no roots, roots that require no gradient,
// have several elements and no gradient given, or are leaves, for a pass of the context that runs already, a graph that an
// earlier pass has released; errc::bad_shape, errc::bad_dtype or errc::bad_device for a gradient that does not look like its root. A formula or hook that fails, on
// any worker, ends the pass on all of them, and its text says on which worker and in which node it was: errors of ferry keep their
// kind, others are ferry::remote_error with the name of their type. errc::peer_lost: a worker that takes part was lost.
// errc::rpc_timeout: the limit. After an error the context can be used for another pass; gradients added so far stay, and none
// are added later by workers that were reached within two seconds.

/// Adds the gradients of the sum of the roots, which are tensors of this worker, to those that the context has for leaves, on every
/// worker that took part. On devices in stream order: the caller's current streams wait, the host does not. Blocks until all
/// workers have added theirs; a handler that calls it gives up its place meanwhile.
void backward(context_id in, tensor_span roots, const backward_options& options = {});
void backward(const context& in, tensor_span roots, const backward_options& options = {});
/// In the context in force.
void backward(tensor_span roots, const backward_options& options = {});
/// The same without blocking: nodes of this worker that are ready run on the calling thread, all others elsewhere. Cancelling the
/// future ends the pass as an error does, with errc::call_cancelled.
[[nodiscard]] future<void> backward_async(context_id in, tensor_span roots, const backward_options& options = {});
[[nodiscard]] future<void> backward_async(const context& in, tensor_span roots, const backward_options& options = {});

/// The root is the object of a reference, a tensor of one element; its owner begins the pass. Gradients of the root cannot be given
/// (errc::invalid_argument), not by the owner either. Throws what a call on the reference throws.
void backward(const rref<tensor>& root, context_id in, const backward_options& options = {});
/// At the owner, without a context: ferry::backward() of the value. Throws errc::not_owner elsewhere.
void backward(const rref<tensor>& root, bool retain_graph = false);
/// Other objects do not compile.
template <class T, class... In>
  requires(!std::same_as<T, tensor>)
void backward(const rref<T>&, const In&...) {
  static_assert(std::same_as<T, tensor>,
                "ferry: a pass begins with a tensor, and the object of this reference is none: call a function on it "
                "with remote() "
                "that returns one, and begin with the reference to that");
}
template <class T>
  requires(!std::same_as<T, tensor>)
void backward(const rref<T>& root, context_id, const backward_options&) {
  backward(root);
}

/// The gradients of the sum of the roots for tensors of this worker, leaves or tensors on the way, also through other workers;
/// undefined for one that does not reach a root. Nothing is added to the gradients of leaves, on any worker.
[[nodiscard]] std::vector<tensor> gradients(const context& in, tensor_span roots, tensor_span inputs,
                                            const backward_options& options = {});

/// The context of the pass that runs the calling hook, or function of a node; none outside of distributed passes. No context is in
/// force there: calls that a hook makes are not part of the graph that the pass goes through. get_gradients(*running_pass())
/// has the gradients that this worker has so far.
[[nodiscard]] std::optional<context_id> running_pass() noexcept;

/// A gradient of a leaf in a context.
struct leaf_gradient {
  tensor leaf = {};
  tensor dense = {};        ///< undefined if it is sparse
  sparse_tensor rows = {};  ///< with one sparse axis; undefined if it is dense
};

/// The gradients that a worker has in a context, by the identity of the leaf. A snapshot: later passes that add to the same leaf in place
/// are seen.
class gradient_map {
 public:
  gradient_map() = default;
  /// The gradient of that leaf; undefined if it has none, or a sparse one.
  [[nodiscard]] tensor operator[](const tensor& leaf) const noexcept;
  /// Throws errc::invalid_argument if it has none; a sparse one is made dense.
  [[nodiscard]] tensor at(const tensor& leaf) const;
  [[nodiscard]] const leaf_gradient* find(const tensor& leaf) const noexcept;
  [[nodiscard]] bool contains(const tensor& leaf) const noexcept { return find(leaf) != nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
  [[nodiscard]] auto begin() const noexcept { return all_.begin(); }
  [[nodiscard]] auto end() const noexcept { return all_.end(); }

  // For the library.
  explicit gradient_map(std::vector<leaf_gradient> all) noexcept : all_(std::move(all)) {}

 private:
  std::vector<leaf_gradient> all_;
};

/// Those of the leaves of this worker that passes have reached. The current streams wait for them. Throws errc::invalid_argument for a
/// context that the worker does not have.
[[nodiscard]] gradient_map get_gradients(context_id in);
[[nodiscard]] gradient_map get_gradients(context_id in, const worker& of);

/// Updates parameters within passes, by what their owners have registered; for the authors of optimizers.
class update_after {
 public:
  struct updater {
    worker_id at;
    std::uint64_t number;  ///< as register_update() returned it there
  };
  virtual ~update_after() = default;
  [[nodiscard]] virtual std::vector<updater> updaters() const = 0;
};

/// Registered at a worker until it is destroyed: called by passes that name its number.
class registered_update {
 public:
  /// `apply` is called with each leaf of this worker whose gradient in the pass has been added, on the thread of the pass, with the
  /// context's whole gradient of it; concurrently for different contexts. What it throws ends the pass.
  registered_update(const worker& at, std::function<void(const leaf_gradient& whole)> apply);
  /// At the current worker.
  explicit registered_update(std::function<void(const leaf_gradient& whole)> apply);
  ~registered_update();
  registered_update(const registered_update&) = delete;
  registered_update& operator=(const registered_update&) = delete;
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

 private:
  std::shared_ptr<void> table_;
  std::uint64_t number_ = 0;
};

}  // namespace dist_autograd
}  // namespace ferry::inline v0
