#include "bridge.hpp"

#include <memory>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <ferry/adapters/libtorch/engine.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/base/error.hpp>

#include "gradient_exit.hpp"

namespace ferry::inline v0::detail {

void lead_to_torch(const tensor& t, const at::Tensor& torch) {
  if (!torch.requires_grad() || !at::GradMode::is_enabled()) return;
  if (t.dtype() != dtype::f32 && t.dtype() != dtype::f64) {
    if (!dist_autograd::current()) return;
    throw_error(
        errc::bad_dtype,
        fmt::format("a tensor of libtorch of {} requires a gradient; in a context, tensors whose gradients are to come "
                    "back are of f32 or f64: convert it (to()), or detach() it",
                    dtype_name(t.dtype())));
  }
  torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(torch);
  const node_edge to{node_ref::of<libtorch_engine>(*edge.function), edge.input_nr};
  lead_gradient_to(t, {to, std::move(edge.function)});
}

void lead_from_torch(at::Tensor& torch, const tensor& t) {
  if (!t.has_slot() || !t.requires_grad() || !at::GradMode::is_enabled()) return;
  held_edge to = gradient_edge_of(t);
  if (!to) return;
  const std::shared_ptr<torch::autograd::Node> exit(new gradient_exit(std::move(to)), torch::autograd::deleteNode);
  torch::autograd::create_gradient_edge(torch, exit);
}

}  // namespace ferry::inline v0::detail
