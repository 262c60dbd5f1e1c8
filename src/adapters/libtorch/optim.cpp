#include <ferry/adapters/libtorch/optim.hpp>

#include <exception>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <ferry/base/error.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

template <class Saved>
std::string saved_by_torch(const Saved& save) {
  torch::serialize::OutputArchive archive;
  save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return std::move(out).str();
}

torch::serialize::InputArchive archive_of(const std::string& text) {
  std::istringstream in(text);
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  return archive;
}

// Makes a gradient that of a parameter for as long as it lives.
class lent_gradient {
 public:
  lent_gradient(at::Tensor parameter, at::Tensor gradient)
      : parameter_(std::move(parameter)), former_(std::exchange(parameter_.mutable_grad(), std::move(gradient))) {}
  lent_gradient(const lent_gradient&) = delete;
  lent_gradient& operator=(const lent_gradient&) = delete;
  ~lent_gradient() { parameter_.mutable_grad() = std::move(former_); }

 private:
  at::Tensor parameter_;
  at::Tensor former_;
};

// Of all updates in this process: grad() of a parameter, by which an optimizer is given the gradient, is the tensor's alone.
std::mutex updates_lock;

}  // namespace

std::string encode_torch_options(const torch::optim::OptimizerOptions& with) {
  return saved_by_torch([&](torch::serialize::OutputArchive& archive) { with.serialize(archive); });
}

void decode_torch_options(const std::string& text, torch::optim::OptimizerOptions& into) {
  torch::serialize::InputArchive archive = archive_of(text);
  into.serialize(archive);
}

struct torch_updates::parts {
  struct parameter {
    at::Tensor leaf;
    torch_optimizer update;
    std::uint64_t group = 0;
  };
  std::vector<parameter> parameters;
  std::unordered_map<const at::TensorImpl*, std::size_t> places;

  void apply(const dist_autograd::leaf_gradient& whole) {
    const auto found = places.find(torch_leaf(whole).unsafeGetTensorImpl());
    if (found == places.end()) return;
    at::Tensor gradient = torch_value(whole);
    if (!gradient.defined()) return;
    parameter& at = parameters[found->second];
    const lent_gradient lent(at.leaf, std::move(gradient));
    at.update->step();
  }
};

torch_updates::torch_updates(maker make, const std::vector<rref<tensor>>& parameters,
                             const std::vector<std::uint64_t>& groups, const std::vector<std::string>& options)
    : parts_(std::make_shared<parts>()) {
  for (std::size_t i = 0; i != parameters.size(); ++i) {
    const at::Tensor leaf = torch_leaf({parameters[i].local_value(), {}, {}});
    if (!leaf.defined()) {
      throw_error(
          errc::invalid_argument,
          fmt::format("distributed_torch_optimizer: parameter {} of this worker is no leaf of libtorch that requires a "
                      "gradient; make references of from_torch(parameter)",
                      i));
    }
    if (!parts_->places.emplace(leaf.unsafeGetTensorImpl(), i).second) {
      throw_error(errc::invalid_argument,
                  fmt::format("distributed_torch_optimizer: parameter {} of this worker is there twice", i));
    }
    parts_->parameters.push_back({leaf, make(leaf, options.at(groups.at(i))), groups[i]});
  }
  registered_ =
      std::make_unique<dist_autograd::registered_update>([own = parts_](const dist_autograd::leaf_gradient& whole) {
        const std::lock_guard lock(updates_lock);
        own->apply(whole);
      });
}

torch_updates::~torch_updates() = default;

std::uint64_t torch_updates::number() const { return registered_->number(); }

bool torch_updates::step(dist_autograd::context_id in) {
  if (!dist_autograd::exists(in)) return false;
  const dist_autograd::gradient_map gradients = dist_autograd::get_gradients(in);
  const std::lock_guard lock(updates_lock);
  for (const dist_autograd::leaf_gradient& each : gradients) parts_->apply(each);
  return true;
}

void torch_updates::set_lr(std::uint64_t group, double lr) {
  const std::lock_guard lock(updates_lock);
  for (parts::parameter& each : parts_->parameters) {
    if (each.group == group) each.update->param_groups().front().options().set_lr(lr);
  }
}

std::vector<std::string> torch_updates::states() const {
  const std::lock_guard lock(updates_lock);
  std::vector<std::string> all;
  for (const parts::parameter& each : parts_->parameters) {
    all.push_back(saved_by_torch([&](torch::serialize::OutputArchive& archive) { each.update->save(archive); }));
  }
  return all;
}

void torch_updates::load(const std::vector<std::string>& states) {
  const std::lock_guard lock(updates_lock);
  for (std::size_t i = 0; i != parts_->parameters.size(); ++i) {
    torch::serialize::InputArchive archive = archive_of(states.at(i));
    parts_->parameters[i].update->load(archive);
  }
}

// ---------------------------------------------------------------- at the caller

std::vector<torch_share> shares_by_owner(const std::vector<std::vector<rref<tensor>>>& groups) {
  std::vector<torch_share> shares;
  std::unordered_map<std::int32_t, std::size_t> places;
  std::size_t position = 0;
  for (std::size_t group = 0; group != groups.size(); ++group) {
    for (const rref<tensor>& each : groups[group]) {
      const worker_info owner = each.owner();
      const auto [at, fresh] = places.emplace(owner.id().value, shares.size());
      if (fresh) shares.push_back({owner, {}, {}, {}});
      torch_share& share = shares[at->second];
      share.parameters.push_back(each);
      share.groups.push_back(group);
      share.positions.push_back(position++);
    }
  }
  if (shares.empty()) throw_error(errc::invalid_argument, "distributed_torch_optimizer: there are no parameters");
  return shares;
}

void at_each_owner(const char* what, const std::vector<torch_share>& shares,
                   const std::function<std::function<void()>(std::size_t)>& action) {
  std::vector<std::function<void()>> waits(shares.size());
  std::string problems;
  errc kind{};
  const auto attempt = [&](std::size_t i, const auto& run) {
    const auto note = [&](errc code, const char* text) {
      if (problems.empty()) kind = code;
      problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", shares[i].owner.name(), text);
    };
    try {
      run();
    } catch (const error& problem) {
      note(problem.kind(), problem.what());
    } catch (const std::exception& problem) {
      note(errc::remote_exception, problem.what());
    }
  };
  for (std::size_t i = 0; i != shares.size(); ++i) attempt(i, [&] { waits[i] = action(i); });
  for (std::size_t i = 0; i != shares.size(); ++i) {
    if (waits[i]) attempt(i, waits[i]);
  }
  if (!problems.empty()) throw_error(kind, fmt::format("distributed_torch_optimizer: {} failed: {}", what, problems));
}

void serve_torch_updates(std::uint64_t make) {
  constexpr auto object_call = method_flavour::object_call;
  add_library_methods({make, usable_method<&torch_updates::step, object_call>().id,
                       usable_method<&torch_updates::set_lr, object_call>().id,
                       usable_method<&torch_updates::states, object_call>().id,
                       usable_method<&torch_updates::load, object_call>().id});
}

void refuse_torch_context(dist_autograd::context_id in) {
  throw_error(
      errc::invalid_argument,
      fmt::format("distributed_torch_optimizer: no worker that owns parameters has the context {}", to_string(in)));
}

void refuse_torch_group(std::size_t group, std::size_t groups) {
  throw_error(errc::invalid_argument,
              fmt::format("distributed_torch_optimizer: there is no group {}; there are {}", group, groups));
}

std::string encode_torch_states(const std::vector<std::string>& states) {
  const serialized written = serialize(std::string("ferry torch optimizer 1"), states);
  return {reinterpret_cast<const char*>(written.bytes.data()), written.bytes.size()};
}

std::vector<std::string> decode_torch_states(const std::string& text, std::size_t count) {
  auto [record, states] = deserialize<std::string, std::vector<std::string>>(
      std::as_bytes(std::span(text.data(), text.size())), std::vector<tensor>{});
  if (record != "ferry torch optimizer 1") {
    throw_error(errc::malformed, "distributed_torch_optimizer: this is no checkpoint of one");
  }
  if (states.size() != count) {
    throw_error(errc::invalid_argument,
                fmt::format("distributed_torch_optimizer: the checkpoint is of {} parameters, and there are {}",
                            states.size(), count));
  }
  return std::move(states);
}

}  // namespace detail
}  // namespace ferry::inline v0
