#pragma once

// How methods run on objects of the worker, and how their results become objects. Internal.

#include <memory>
#include <type_traits>
#include <utility>

#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/detail/owned_object.hpp>

namespace ferry::inline v0::detail {

/// The object that the request addresses. Throws errc::bad_arguments. Valid while the call exists.
owned_object& served_object(incoming_call& call);
/// The object that the request is to make. Throws errc::bad_arguments.
owned_object& served_creation(incoming_call& call);
/// Stores `made` there, and answers. Throws what incoming_call::answer throws, errc::bad_device, errc::device_failure.
void answer_with_object(incoming_call& call, std::unique_ptr<owned_value> made);

template <class C>
C& served_object_as(incoming_call& call) {
  owned_object& object = served_object(call);
  if constexpr (std::is_same_v<C, owned_object>) {
    (void)object.value_made();
    return object;
  } else {
    return object.template as<C>();
  }
}

template <method_flavour Flavour>
  requires(on_object(Flavour) || creates(Flavour))
struct serving_of<Flavour> {
  template <auto F, class Arguments, std::size_t... I>
  static decltype(auto) invoke(incoming_call& call, [[maybe_unused]] Arguments& arguments,
                               std::index_sequence<I...> indices) {
    if constexpr (!on_object(Flavour)) {
      return serving_of<method_flavour::call>::invoke<F>(call, arguments, indices);
    } else {
      using parameters = typename parts_of<F, Flavour>::parameters;
      auto& object = served_object_as<typename parts_of<F, Flavour>::object>(call);
      if constexpr (std::is_member_function_pointer_v<decltype(F)>) {
        return (object.*F)(pass<std::tuple_element_t<I, parameters>>(std::get<I>(arguments))...);
      } else {
        return F(object, pass<std::tuple_element_t<I, parameters>>(std::get<I>(arguments))...);
      }
    }
  }
  template <class T, class Get>
  static void answer(incoming_call& call, const Get& get) {
    if constexpr (creates(Flavour)) {
      (void)served_creation(call);
      answer_with_object(call, std::make_unique<owned_value_of<wire_type<T>>>(get));
    } else {
      serving_of<method_flavour::call>::answer<T>(call, get);
    }
  }
};

}  // namespace ferry::inline v0::detail
