#include <ferry/backend/backend.hpp>

#include <string>

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
