#include <ferry/nn/module.hpp>

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/error.hpp>
#include <ferry/ops/sparse.hpp>

namespace ferry::inline v0::detail {
namespace {

// Calls act(slot) for each tensor where it is met first.
template <class Act>
void for_each_distinct(const module_parts& parts, Act act) {
  std::unordered_set<std::uintptr_t> met;
  for (const parameter_slot& each : parts.parameters) {
    if (met.insert(each.at->id()).second) act(each);
  }
}

// Puts make(t) in the place of each tensor t, wherever it is, once all have been made.
template <class Make>
void replace_parameters(const module_parts& parts, Make make) {
  std::unordered_map<std::uintptr_t, tensor> made;
  for_each_distinct(parts, [&](const parameter_slot& each) { made.emplace(each.at->id(), make(*each.at)); });
  for (const parameter_slot& each : parts.parameters) *each.at = made.at(each.at->id());
}

// A leaf with these values, as `old` is one.
tensor like_leaf(tensor values, const tensor& old) {
  if (old.requires_grad()) require_grad(values);
  return values;
}

// What converts the values converts the gradient.
template <class Convert>
tensor converted(const tensor& old, Convert convert) {
  const no_grad outside;
  const tensor values = convert(old);
  if (values.same_as(old)) return old;
  tensor result = like_leaf(values, old);
  if (!old.requires_grad()) return result;
  if (has_sparse_grad(old)) {
    const sparse_tensor rows = sparse_grad(old);
    set_sparse_grad(result, {rows.indices().to(values.device()), convert(rows.values()), rows.shape()});
  } else if (const tensor gradient = grad(old); gradient.defined()) {
    set_grad(result, convert(gradient));
  }
  return result;
}

bool is_floating(dtype type) {
  return type == dtype::f16 || type == dtype::bf16 || type == dtype::f32 || type == dtype::f64;
}

}  // namespace

void need_parts(const module_parts& parts) {
  std::unordered_set<std::string_view> names;
  for (const parameter_slot& each : parts.parameters) {
    if (!names.insert(each.name).second) {
      throw_error(errc::invalid_argument, fmt::format("two parameters of a module are called '{}'", each.name));
    }
    if (!is_leaf(*each.at)) {
      throw_error(errc::invalid_argument,
                  fmt::format("the parameter '{}' was computed from a tensor that requires a gradient: name the leaves",
                              each.name));
    }
  }
}

std::vector<tensor> list_parameters(const module_parts& parts) {
  std::vector<tensor> all;
  for_each_distinct(parts, [&](const parameter_slot& each) { all.push_back(*each.at); });
  return all;
}

std::vector<nn::named_parameter> list_named_parameters(const module_parts& parts) {
  std::vector<nn::named_parameter> all;
  for_each_distinct(parts, [&](const parameter_slot& each) { all.push_back({each.name, *each.at}); });
  return all;
}

std::int64_t count_elements(const module_parts& parts) {
  std::int64_t count = 0;
  for_each_distinct(parts, [&](const parameter_slot& each) { count += each.at->numel(); });
  return count;
}

void set_training(const module_parts& parts, bool training) noexcept {
  for (bool* each : parts.modes) *each = training;
}

void move_parameters(const module_parts& parts, device where) {
  replace_parameters(parts,
                     [&](const tensor& old) { return converted(old, [&](const tensor& t) { return t.to(where); }); });
}

void convert_parameters(const module_parts& parts, dtype type) {
  if (type != dtype::f32 && type != dtype::f64) {
    throw_error(errc::bad_dtype, fmt::format("parameters are f32 or f64, not {}", dtype_name(type)));
  }
  replace_parameters(parts, [&](const tensor& old) {
    return is_floating(old.dtype()) ? converted(old, [&](const tensor& t) { return t.to(type); }) : old;
  });
}

void clone_parameters(const module_parts& parts, const module_parts& original) {
  std::unordered_set<const tensor*> there;
  for (const parameter_slot& each : original.parameters) there.insert(each.at);
  for (const parameter_slot& each : parts.parameters) {
    if (!there.contains(each.at)) continue;
    throw_error(
        errc::invalid_argument,
        fmt::format("clone: the parameter '{}' is behind a pointer, which a copy of the module shares: give the module "
                    "a copy constructor that copies what it points to",
                    each.name));
  }
  const no_grad outside;
  replace_parameters(parts, [](const tensor& old) { return like_leaf(old.clone(), old); });
}

}  // namespace ferry::inline v0::detail
