#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/method.hpp>

namespace ferry::inline v0::detail {
namespace {

struct method_table {
  std::shared_mutex mutex;
  std::unordered_map<std::uint64_t, std::vector<const method_entry*>> methods;  // more than one is a conflict
};
method_table& table() {
  static auto* instance = new method_table;  // entries unregister during static destruction
  return *instance;
}

}  // namespace

method_entry::method_entry(std::string mangled, std::string readable, std::string signature_name,
                           void (*server)(served_call&), bool runs_inline)
    : id(fingerprint(mangled)),
      signature(fingerprint(signature_name)),
      mangled_name(std::move(mangled)),
      name(std::move(readable)),
      signature_text(std::move(signature_name)),
      serve(server),
      inline_handler(runs_inline) {
  std::unique_lock lock(table().mutex);
  table().methods[id].push_back(this);
}

method_entry::~method_entry() {
  std::unique_lock lock(table().mutex);
  const auto found = table().methods.find(id);
  if (found == table().methods.end()) return;
  std::erase(found->second, this);
  if (found->second.empty()) table().methods.erase(found);
}

const method_entry* find_method(std::uint64_t id) noexcept {
  std::shared_lock lock(table().mutex);
  const auto found = table().methods.find(id);
  return found == table().methods.end() ? nullptr : found->second.front();
}

void check_methods() {
  std::shared_lock lock(table().mutex);
  for (const auto& [id, entries] : table().methods) {
    for (const method_entry* other : entries) {
      const method_entry* first = entries.front();
      // The same function may be registered by several shared objects; its code is then the same, its address is not.
      if (other->mangled_name == first->mangled_name && other->signature == first->signature &&
          first->mangled_name.find("_GLOBAL__N_") == std::string::npos && first->mangled_name.find("_ZL") != 0) {
        continue;
      }
      if (other == first) continue;
      throw_error(
          errc::duplicate_method,
          fmt::format("two functions of this program have one method id: '{}' {} and '{}' {}. Functions that are "
                      "static or in an unnamed namespace need different names to be called remotely",
                      first->name, first->signature_text, other->name, other->signature_text));
    }
  }
}

}  // namespace ferry::inline v0::detail
