#include "observer_messages.hpp"

#include <ferry/wire/serialize.hpp>
#include <ferry/wire/standard_types.hpp>

#include "../links/control.hpp"

namespace ferry::inline v0::detail {
namespace {

outgoing_message observer_frame(control_code code, std::uint64_t number) {
  outgoing_message message;
  message.header.kind = frame_kind::control;
  message.header.code = static_cast<std::uint32_t>(code);
  message.header.call_id = number;
  return message;
}

}  // namespace

outgoing_message question_text::encode(std::uint64_t number) const {
  outgoing_message message = observer_frame(control_code::question, number);
  encode_values<std::string, std::string>(message.bytes, message.tensors, what, argument);
  message.finish();
  return message;
}

question_text question_text::decode(const inbound_message& message, const wire_limits& limits) {
  question_text result;
  decode_values(message.payload, message.tensors, limits, result.what, result.argument);
  return result;
}

outgoing_message answer_text::encode(std::uint64_t number) const {
  outgoing_message message = observer_frame(control_code::answer, number);
  encode_values<std::int32_t, std::string>(message.bytes, message.tensors, static_cast<std::int32_t>(code), bytes);
  message.finish();
  return message;
}

answer_text answer_text::decode(const inbound_message& message, const wire_limits& limits) {
  answer_text result;
  std::int32_t code = 0;
  decode_values(message.payload, message.tensors, limits, code, result.bytes);
  result.code = static_cast<errc>(code);
  return result;
}

}  // namespace ferry::inline v0::detail
