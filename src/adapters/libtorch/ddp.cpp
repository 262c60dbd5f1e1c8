#include <ferry/adapters/libtorch/ddp.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <ferry/adapters/libtorch/engine.hpp>

#include "../../nn/ddp_model.hpp"
#include "accumulated_hook.hpp"
#include "elements.hpp"

namespace ferry::inline v0::detail {
namespace {

held_edge torch_edge_of(const at::Tensor& t) {
  if (!t.requires_grad()) return {};
  torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(t);
  const node_edge to{node_ref::of<libtorch_engine>(*edge.function), edge.input_nr};
  return {to, std::move(edge.function)};
}

class torch_ddp_model final : public ddp_model {
 public:
  explicit torch_ddp_model(const torch::nn::Module& module) {
    std::unordered_set<const at::TensorImpl*> met;  // a tensor under several names is one part
    const auto add = [&](const auto& named, bool parameters) {
      for (const auto& each : named) {
        const at::Tensor& value = each.value();
        if (!value.defined() || !met.insert(value.unsafeGetTensorImpl()).second) continue;
        note_device(value);
        held_edge leaf;
        if (parameters && value.is_leaf()) leaf = torch_edge_of(value);
        if (leaf) trained_.push_back(value);
        all_.push_back({each.key(), value, std::move(leaf)});
      }
    };
    add(module.named_parameters(), true);
    add(module.named_buffers(), false);
  }

  [[nodiscard]] std::vector<ddp_part> parts() const override {
    std::vector<ddp_part> parts;
    for (const part& each : all_) {
      tensor value = elements_of(each.value);
      // Libtorch adds fastest where a gradient lies as its parameter does.
      const bool has_gaps = !each.value.is_non_overlapping_and_dense();
      dims strides = has_gaps ? contiguous_strides(value.shape()) : value.strides();
      parts.push_back({each.name, std::move(value), each.leaf, std::move(strides)});
    }
    return parts;
  }
  void after_accumulation(std::size_t trained, std::function<void()> hook) override {
    const std::shared_ptr<torch::autograd::Node> node =
        torch::autograd::impl::gradient_edge(trained_[trained]).function;
    // It stays there as long as the node: this may end while libtorch walks through the hooks.
    node->add_post_hook(std::make_unique<accumulated_hook>(std::move(hook)));
    nodes_.push_back(node);
  }
  [[nodiscard]] bool records() const override { return at::GradMode::is_enabled(); }
  [[nodiscard]] tensor gradient(std::size_t trained) const override {
    const at::Tensor& own = trained_[trained].grad();
    return own.defined() && !own.is_sparse() ? elements_of(own) : tensor();
  }
  [[nodiscard]] bool has_sparse_gradient(std::size_t trained) const override {
    const at::Tensor& own = trained_[trained].grad();
    return own.defined() && own.is_sparse();
  }
  void set_gradient(std::size_t trained, const tensor& gradient) override {
    trained_[trained].mutable_grad() = torch_elements_of(gradient);
  }
  void written() const override {
    for (const device each : devices_) let_torch_wait(each);
  }

 private:
  struct part {
    std::string name;
    at::Tensor value;
    held_edge leaf;  // which a tensor of libtorch does not keep
  };
  void note_device(const at::Tensor& t) {
    const device where = from_torch(t.device());
    if (std::find(devices_.begin(), devices_.end(), where) == devices_.end()) devices_.push_back(where);
  }

  std::vector<part> all_;
  std::vector<at::Tensor> trained_;
  std::vector<device> devices_;
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;  // a parameter does not keep its own
};

}  // namespace

std::shared_ptr<ddp_core> make_torch_ddp(const torch::nn::Module& module, const process_group& group,
                                         const nn::ddp_options& options) {
  return start_ddp(std::make_unique<torch_ddp_model>(module), group, options);
}

void note_torch_outputs(ddp_core& core, const std::vector<at::Tensor>& outputs) {
  std::vector<held_edge> edges;
  for (const at::Tensor& each : outputs) edges.push_back(torch_edge_of(each));
  note_call(core, edges);
}

}  // namespace ferry::inline v0::detail
