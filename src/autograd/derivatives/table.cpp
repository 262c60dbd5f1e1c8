#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include <fmt/format.h>

#include <ferry/autograd/derivative.hpp>
#include <ferry/autograd/derivatives/derivatives.hpp>
#include <ferry/base/error.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/ops/sum.hpp>
#include <ferry/tensor/operations.hpp>

namespace ferry::inline v0::detail {
namespace {

using entries = std::unordered_map<std::uint64_t, const derivative_entry*>;

// Those of ferry: never changed.
const entries& own_entries() {
  static const entries& all = *[] {  // workers may outlive static destruction
    auto* const made = new entries;
    entries& result = *made;
    const auto add = [&]<class Op>(std::type_identity<Op>) {
      result.emplace(info_of<Op>.id, &derivative_entry_of<Op>);
    };
    tensor_operations::for_each(add);
    operations::for_each(add);
    return made;
  }();
  return all;
}

struct users_entries {
  std::shared_mutex mutex;
  entries all;
};
users_entries& of_users() {
  static users_entries& table = *new users_entries;
  return table;
}

}  // namespace

void register_derivative(const derivative_entry& entry) {
  users_entries& users = of_users();
  const auto known = own_entries().find(entry.id);
  std::lock_guard lock(users.mutex);
  const derivative_entry* const there =
      known != own_entries().end() ? known->second : users.all.try_emplace(entry.id, &entry).first->second;
  if (there == &entry || there->make == entry.make) return;  // another library's copy of the same
  throw_error(errc::invalid_argument,
              fmt::format("two operations are named {}: the name of an operation is unique in a program", entry.name));
}

const derivative_entry* find_derivative(const operation_info& info) noexcept {
  if (const auto own = own_entries().find(info.id); own != own_entries().end()) return own->second;
  users_entries& users = of_users();
  const std::shared_lock lock(users.mutex);
  const auto found = users.all.find(info.id);
  return found == users.all.end() ? nullptr : found->second;
}

}  // namespace ferry::inline v0::detail
