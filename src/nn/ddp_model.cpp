// ferry's own modules in ddp.

#include "ddp_model.hpp"

#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/nn/ddp.hpp>

#include "../autograd/graph/gradient_record.hpp"

namespace ferry::inline v0::detail {
namespace {

class graph_model final : public ddp_model {
 public:
  explicit graph_model(const module_parts& module) : all_(list_named_parameters(module)) {
    for (const parameter_slot& each : module.parameters) {
      if (each.sparse && !each.at->shape().empty()) rows_.insert(each.at->id());
    }
    for (const nn::named_parameter& each : all_) {
      if (gradient_edge_of(each.value)) trained_.push_back(each.value);  // as parts() says it
    }
  }
  ~graph_model() override {
    for (gradient_hook& each : hooks_) each.remove();
  }
  graph_model(const graph_model&) = delete;
  graph_model& operator=(const graph_model&) = delete;

  [[nodiscard]] std::vector<ddp_part> parts() const override {
    std::vector<ddp_part> parts;
    for (const auto& [name, value] : all_) {
      parts.push_back(
          {name, value, gradient_edge_of(value), contiguous_strides(value.shape()), rows_.contains(value.id())});
    }
    return parts;
  }
  void after_accumulation(std::size_t trained, std::function<void()> hook) override {
    hooks_.push_back(on_accumulated(trained_[trained], [hook = std::move(hook)](const tensor&) { hook(); }));
  }
  void after_failure(std::size_t trained, const std::function<void()>& hook) override {
    hooks_.push_back(gradient_record::of(trained_[trained])->add_failure_hook(hook));
  }
  [[nodiscard]] bool records() const override { return grad_enabled(); }
  [[nodiscard]] tensor gradient(std::size_t trained) const override { return grad(trained_[trained]); }
  [[nodiscard]] bool has_sparse_gradient(std::size_t trained) const override {
    return has_sparse_grad(trained_[trained]);
  }
  [[nodiscard]] sparse_tensor rows(std::size_t trained) const override { return sparse_grad(trained_[trained]); }
  void set_rows(std::size_t trained, const sparse_tensor& gradient) override {
    set_sparse_grad(trained_[trained], gradient);
  }
  void set_gradient(std::size_t trained, const tensor& gradient) override { set_grad(trained_[trained], gradient); }

 private:
  const std::vector<nn::named_parameter> all_;
  std::unordered_set<std::uintptr_t> rows_;  // the ids of those whose gradients are rows
  std::vector<tensor> trained_;
  std::vector<gradient_hook> hooks_;
};

}  // namespace

std::shared_ptr<ddp_core> make_ddp(const module_parts& module, const process_group& group,
                                   const nn::ddp_options& options) {
  return start_ddp(std::make_unique<graph_model>(module), group, options);
}

std::vector<averaged_parameter> list_averaged(const module_parts& module) {
  std::vector<averaged_parameter> all;
  all.reserve(module.parameters.size());
  for (const parameter_slot& each : module.parameters) all.push_back({each.at->id(), each.at->requires_grad()});
  return all;
}
void need_averaged(const std::vector<averaged_parameter>& averaged, const module_parts& now) {
  if (now.parameters.size() != averaged.size()) {
    throw_error(errc::invalid_argument,
                fmt::format("ddp: the module has {} parameters, and had {} when the ddp was made; make the ddp anew",
                            now.parameters.size(), averaged.size()));
  }
  for (std::size_t i = 0; i != averaged.size(); ++i) {
    const parameter_slot& each = now.parameters[i];
    if (each.at->id() != averaged[i].id) {
      throw_error(errc::invalid_argument,
                  fmt::format("ddp: parameter '{}' is another tensor than when the ddp was made (nn::to(), an "
                              "assignment): its gradient would not be averaged; make the ddp anew",
                              each.name));
    }
    if (each.at->requires_grad() && !averaged[i].trained) {
      throw_error(errc::invalid_argument,
                  fmt::format("ddp: parameter '{}' required no gradient when the ddp was made: its gradient would not "
                              "be averaged; make the ddp anew",
                              each.name));
    }
  }
}

void throw_unseen_tensors(std::string_view type, std::string_view why) {
  throw_error(
      errc::invalid_argument,
      fmt::format(
          "ddp: find_unused cannot look for tensors in {}, which the module returns: {}. Return tensors, or ranges, "
          "tuples, optionals, variants or pointers of them, or give the type a serialiser",
          type, why));
}
void note_outputs(ddp_core& core, const std::vector<tensor>& outputs) {
  std::vector<held_edge> edges;
  for (const tensor& each : outputs) edges.push_back(gradient_edge_of(each));
  note_call(core, edges);
}

}  // namespace ferry::inline v0::detail
