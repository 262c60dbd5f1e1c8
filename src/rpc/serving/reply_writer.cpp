#include <ferry/rpc/detail/reply_writer.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "../../base/peer_log.hpp"
#include "../../wire/send_limits.hpp"
#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t longest_excerpt = 1000;  // of an exception that is not sent as itself
constexpr std::size_t text_length_bytes = 8;   // what a text takes besides its characters

// At most so many bytes of the text; no character of UTF-8 is cut.
std::string_view beginning(std::string_view text, std::uint64_t most) {
  if (text.size() <= most) return text;
  auto end = static_cast<std::size_t>(most);
  for (int i = 0; i != 3 && end != 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U; ++i) --end;
  return text.substr(0, end);
}

}  // namespace

reply_writer::reply_writer(incoming_call& call)
    : call_(&call),
      worker_(*call.worker_),
      channel_(*call.channel_),
      to_(call.caller(), call.sender_incarnation()),
      id_(call.request_.header.call_id),
      handles_(worker_, to_) {
  message.header.kind = frame_kind::reply;
  message.header.call_id = id_;  // references in it are known by it
  message.handles = &handles_;
}

reply_writer::reply_writer(worker_core& worker, reply_channel& channel, const call_target& caller,
                           std::uint64_t call_id)
    : call_(nullptr), worker_(worker), channel_(channel), to_(caller), id_(call_id), handles_(worker, caller) {
  message.header.kind = frame_kind::reply;
  message.header.call_id = id_;  // references in it are known by it
  message.handles = &handles_;
}

void reply_writer::be_exception(const std::exception_ptr& thrown) {
  message.header.kind = frame_kind::exception;
  bool encoded = false;
  std::string why;
  try {
    encode_exception(thrown, message);
    encoded = true;
    return check("the exception");
  } catch (const error& e) {
    why = encoded ? e.message() : e.what();
  } catch (...) {
    why = describe_exception(current_error());
  }
  message.discard_payload();
  const std::string text = describe_exception(thrown);
  const std::string_view excerpt = beginning(text, longest_excerpt);
  log_about(to_.id, log_level::error, [&] {
    return fmt::format("{}: the exception {} could not be sent: {}",
                       call_ ? call_->describe() : to_string(worker_.agent_unchecked().self()), excerpt, why);
  });
  if (encoded) return be_failure(errc::limit_exceeded, fmt::format("{}; it begins with {}", why, excerpt));
  be_failure(errc::bad_result, fmt::format("the exception {}, whose encoder threw {}", excerpt, why));
}

// By the limits of both ends.
void reply_writer::check(std::string_view what) const {
  check_to_send(what, message, worker_.limits());
  const auto theirs = channel_.sender_limits();
  if (!theirs) return;
  const worker_info* const caller = channel_.sender();
  check_to_send(what, message, *theirs, caller ? caller->name() : "the caller");
}

void reply_writer::be_failure(errc code, const std::string& text) {
  message.header.kind = frame_kind::failure;
  message.header.code = static_cast<std::uint32_t>(code);
  std::uint64_t most = worker_.limits().max_message_bytes;
  if (const auto theirs = channel_.sender_limits()) most = std::min(most, theirs->max_message_bytes);
  encode_values<std::string>(message.bytes, message.tensors,
                             std::string(beginning(text, most - std::min<std::uint64_t>(most, text_length_bytes))));
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
    check(is_value() ? "the result" : "the answer");
    call_->report(is_value() ? call_moment::answered : call_moment::error_sent, message.size());
  }
  channel_.reply(id_, std::move(message));
  if (carried) carried->sent();
}

}  // namespace ferry::inline v0::detail
