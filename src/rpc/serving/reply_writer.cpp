#include <ferry/rpc/detail/reply_writer.hpp>

#include <memory>
#include <utility>

#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {

reply_writer::reply_writer(incoming_call& call)
    : call_(&call),
      worker_(*call.worker_),
      channel_(*call.channel_),
      to_(call.caller(), call.sender_incarnation()),
      id_(call.request_.header.call_id),
      handles_(worker_, to_) {
  message.header.kind = frame_kind::reply;
  message.handles = &handles_;
}

reply_writer::reply_writer(worker_core& worker, reply_channel& channel, const call_target& caller,
                           std::uint64_t call_id)
    : call_(nullptr), worker_(worker), channel_(channel), to_(caller), id_(call_id), handles_(worker, caller) {
  message.header.kind = frame_kind::reply;
  message.handles = &handles_;
}

void reply_writer::be_exception(const std::exception_ptr& thrown) {
  message.header.kind = frame_kind::exception;
  encode_exception(thrown, message);
}

void reply_writer::be_failure(errc code, const std::string& text) {
  message.header.kind = frame_kind::failure;
  message.header.code = static_cast<std::uint32_t>(code);
  encode_values<std::string>(message.bytes, message.tensors, text);
}

void reply_writer::place() {
  const device_map* placement = call_ ? call_->reply_placement_.get() : nullptr;
  worker_.agent_unchecked().place_response(to_, message, placement);
}

void reply_writer::send() {
  if (!message.tensors.empty()) place();
  handles_.seal(message);
  const std::unique_ptr<carried_handles> carried = handles_.release();
  if (call_) {
    if (call_->has_hooks() && !std::exchange(call_->reply_told_, true)) {
      outgoing_reply view(message);
      if (auto thrown = call_->tell_reply(view)) {
        call_->stage_ = incoming_call::stage::intercepting;
        std::rethrow_exception(thrown);
      }
    }
    call_->report(is_value() ? call_moment::answered : call_moment::error_sent, message.size());
  }
  channel_.reply(id_, std::move(message));
  if (carried) carried->sent();
}

}  // namespace ferry::inline v0::detail
