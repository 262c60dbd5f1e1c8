#pragma once

// What ddp needs to know of a module, and of the library that computes its gradients.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ferry/autograd/dist/engine.hpp>
#include <ferry/nn/ddp_options.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// A tensor that all members have.
struct ddp_part {
  std::string name;
  tensor value;         ///< over its elements
  held_edge leaf = {};  ///< where its gradient goes; empty if it requires none: the rest are trained
  dims strides = {};    ///< of the gradient of a trained one, in the bucket; without gaps
  bool rows = false;    ///< its gradient travels as rows: of libraries that have rows()
};

class ddp_model {
 public:
  ddp_model() = default;
  virtual ~ddp_model() = default;
  ddp_model(const ddp_model&) = delete;
  ddp_model& operator=(const ddp_model&) = delete;

  /// Parameters, each once, and what else is given to all members; the same ones each time. What was done to them is done before what
  /// follows on ferry's current streams.
  [[nodiscard]] virtual std::vector<ddp_part> parts() const = 0;
  /// Of the trained parts, by their order: calls `hook` in each pass, in a context or not, after that gradient was added; until
  /// this is destroyed.
  virtual void after_accumulation(std::size_t trained, std::function<void()> hook) = 0;
  /// Of the trained parts, too: calls `hook` in the catch block of a pass outside of contexts that leads to that part and fails. A
  /// library that cannot tell does nothing.
  virtual void after_failure(std::size_t /*trained*/, const std::function<void()>& /*hook*/) {}
  /// Whether a pass can follow what the calling thread computes.
  [[nodiscard]] virtual bool records() const = 0;

  // Gradients that are in no context, of trained parts.
  /// Dense ones; undefined if there is none.
  [[nodiscard]] virtual tensor gradient(std::size_t trained) const = 0;
  [[nodiscard]] virtual bool has_sparse_gradient(std::size_t trained) const = 0;
  /// Of a part that says so: undefined if it has none, or a dense one.
  [[nodiscard]] virtual sparse_tensor rows(std::size_t /*trained*/) const { return {}; }
  virtual void set_rows(std::size_t /*trained*/, const sparse_tensor& /*gradient*/) {}
  /// In the place of what there is: the same memory.
  virtual void set_gradient(std::size_t trained, const tensor& gradient) = 0;

  /// What was done to parts and gradients on ferry's current streams is done before what the library does next.
  virtual void written() const {}
};

/// Collective.
std::shared_ptr<ddp_core> start_ddp(std::unique_ptr<ddp_model> model, const process_group& group,
                                    const nn::ddp_options& options);
/// Where the gradients of the outputs of a call go.
void note_call(ddp_core& core, const std::vector<held_edge>& outputs);

}  // namespace ferry::inline v0::detail
