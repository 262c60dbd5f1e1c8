#include "object_visit.hpp"

#include <fmt/format.h>

namespace ferry::inline v0::detail {

std::string object_visit::describe_target() const {
  std::string text = fmt::format("object {}@{}", target_id.number, target_id.creator.id.value);
  if (target->has_value()) text += fmt::format(" ({})", target->value_made().type_name());
  return text;
}

}  // namespace ferry::inline v0::detail
