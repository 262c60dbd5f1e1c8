#include "library_clients.hpp"

namespace ferry::inline v0::detail {
namespace {

std::vector<library_client>& known_clients() {
  static auto* instance = new std::vector<library_client>;  // used by static initialisers, and until the process ends
  return *instance;
}

}  // namespace

std::size_t add_library_client(const library_client& client) {
  known_clients().push_back(client);
  return known_clients().size() - 1;
}

const std::vector<library_client>& library_clients() noexcept { return known_clients(); }

}  // namespace ferry::inline v0::detail
