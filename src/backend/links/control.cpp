#include "control.hpp"

#include <new>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/wire/serialize.hpp>
#include <ferry/wire/standard_types.hpp>

#include "links.hpp"

namespace ferry::inline v0::detail {

outgoing_message control_message(control_code code, std::uint64_t call_id) {
  outgoing_message message;
  message.header.kind = frame_kind::control;
  message.header.code = static_cast<std::uint32_t>(code);
  message.header.call_id = call_id;
  message.finish();
  return message;
}

void send_goodbye(connection& to) noexcept {
  try {
    to.send(control_message(control_code::goodbye));
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: a goodbye was not sent; the peer will declare this worker lost");
  }
}

outgoing_message fence_notice::encode() const {
  outgoing_message message;
  message.header.kind = frame_kind::control;
  message.header.code = static_cast<std::uint32_t>(control_code::fence);
  encode_values<worker_info, std::uint64_t, std::string>(message.bytes, message.tensors, who, incarnation.value,
                                                         reason);
  message.finish();
  return message;
}

fence_notice fence_notice::decode(const inbound_message& message, const wire_limits& limits) {
  fence_notice result;
  decode_values(message.payload, message.tensors, limits, result.who, result.incarnation.value, result.reason);
  return result;
}

control_link::control_link(std::shared_ptr<link_owner> owner, remote_worker peer,
                           std::shared_ptr<connection> connection, bool accepted)
    : owner_(std::move(owner)), peer_(std::move(peer)), connection_(std::move(connection)), accepted_(accepted) {}

void control_link::close(const std::exception_ptr& reason, bool graceful) noexcept {
  if (graceful) send_goodbye(*connection_);
  connection_->close(reason);
}

void control_link::on_message(connection& from, inbound_message&& message) noexcept {
  peer_.heard();
  if (message.header.kind == frame_kind::control) return owner_->on_control(peer_, std::move(message));
  from.close(make_error(errc::protocol_error, fmt::format("{} sent a frame of kind {} on a control connection",
                                                          from.description(), static_cast<int>(message.header.kind))));
}

void control_link::on_closed(connection&, std::exception_ptr) noexcept { owner_->on_control_closed(*this); }

}  // namespace ferry::inline v0::detail
