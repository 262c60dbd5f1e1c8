#include "kind_name.hpp"

namespace ferry::inline v0::detail {

std::string_view kind_name(range_kind kind) noexcept {
  switch (kind) {
    case range_kind::user: return "range";
    case range_kind::operation: return "operation";
    case range_kind::autograd: return "autograd";
    case range_kind::call: return "call";
    case range_kind::handler: return "handler";
    case range_kind::wait: return "wait";
    case range_kind::collective: return "collective";
  }
  return "range";
}

}  // namespace ferry::inline v0::detail
