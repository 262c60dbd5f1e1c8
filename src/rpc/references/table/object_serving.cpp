#include <ferry/rpc/detail/object_serving.hpp>

#include <memory>
#include <utility>

#include <ferry/base/error.hpp>

#include "../../objects/object_uses.hpp"
#include "request_references.hpp"

namespace ferry::inline v0::detail {

owned_object& served_object(incoming_call& call) {
  request_references* own = references_of_request(&call);
  if (!own || !own->target) {
    throw_error(errc::bad_arguments, "the request names no object for a function of objects");
  }
  return *own->target;
}

owned_object& served_creation(incoming_call& call) {
  request_references* own = references_of_request(&call);
  if (!own || !own->creation) throw_error(errc::bad_arguments, "the request names no object that it is to make");
  return *own->creation;
}

void answer_with_object(incoming_call& call, std::unique_ptr<owned_value> made) {
  call.begin_encoding();
  end_uses(call);
  served_creation(call).finish(std::move(made));
  call.answer();
}

}  // namespace ferry::inline v0::detail
