#include <ferry/backend/backend.hpp>

#include <string>
#include <utility>

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

worker_info group_view::find(std::string_view name) const {
  for (worker_info& each : workers()) {
    if (each.name() == name) return std::move(each);
  }
  throw_error(errc::unknown_worker,
              "could not find destination '" + std::string(name) + "': no worker of the group has that name");
}

worker_info group_view::find(worker_id id) const {
  for (worker_info& each : workers()) {
    if (each.id() == id) return std::move(each);
  }
  throw_error(errc::unknown_worker,
              "could not find destination " + std::to_string(id.value) + ": no worker of the group has that id");
}

located_worker group_view::locate(std::string_view name, deadline /*until*/) const { return {find(name), {}}; }
located_worker group_view::locate(worker_id id, deadline /*until*/) const { return {find(id), {}}; }

located_worker group_view::locate(const call_target& whom, deadline until) const {
  located_worker there = locate(whom.id, until);
  if (whom.incarnation != incarnation_id{} && there.incarnation != whom.incarnation) {
    throw_error(errc::peer_lost, "worker " + std::to_string(whom.id.value) +
                                     " is no longer a member of the group; its id was reassigned to " +
                                     to_string(there.who));
  }
  return there;
}

bool group_view::is_over(const call_target& whom, std::uint64_t& /*question*/) const {
  try {
    return locate(whom.id, deadline(clock::now())).incarnation != whom.incarnation;
  } catch (const error& e) {
    return e.kind() == errc::unknown_worker;
  }
}

worker_info group_view::wait_for(std::string_view name, deadline /*until*/) const { return find(name); }

std::string group_view::metadata(worker_id id) const {
  (void)find(id);
  return {};
}

device_map group_view::request_map(worker_id to) const {
  (void)find(to);
  return {};
}
device_map group_view::response_map(worker_id to) const { return request_map(to); }

const agent_inspection& agent::inspection() const noexcept {
  static const agent_inspection nothing;
  return nothing;
}

peer_route agent::open(std::string_view name, deadline until) { return {members().locate(name, until)}; }
peer_route agent::open(worker_id id, deadline until) { return {members().locate(id, until)}; }
peer_route agent::open(const call_target& whom, deadline until) { return {members().locate(whom, until)}; }

}  // namespace ferry::inline v0
