#include <ferry/backend/backend.hpp>

#include <string>

#include <ferry/backend/agent.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/type_name.hpp>

namespace ferry::inline v0::detail {

void throw_unknown_backend(std::string_view wanted, const backend_factory* known, std::size_t count) {
  std::string text = "no backend is called '" + std::string(wanted) + "'; this program has ";
  for (std::size_t i = 0; i != count; ++i) text += (i == 0 ? "'" : ", '") + std::string(known[i].name) + "'";
  throw_error(errc::unknown_backend, text);
}

void throw_foreign_options(std::string_view backend, std::string_view wanted, std::string_view given) {
  throw_error(errc::invalid_argument, "the backend '" + std::string(backend) + "' takes options of type " +
                                          readable_names(wanted) + ", not of type " + readable_names(given));
}

}  // namespace ferry::inline v0::detail

namespace ferry::inline v0 {

located_worker agent::locate(const call_target& whom, deadline until) const {
  located_worker there = locate(whom.id, until);
  if (whom.incarnation != incarnation_id{} && there.incarnation != whom.incarnation) {
    throw_error(errc::peer_lost, "worker " + std::to_string(whom.id.value) +
                                     " is no longer a member of the group; its id was reassigned to " +
                                     to_string(there.who));
  }
  return there;
}

bool agent::is_over(const call_target& whom, std::uint64_t& /*question*/) const {
  try {
    return locate(whom.id, deadline(clock::now())).incarnation != whom.incarnation;
  } catch (const error& e) {
    return e.kind() == errc::unknown_worker;
  }
}

}  // namespace ferry::inline v0
