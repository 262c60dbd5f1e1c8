// The exception in a reply. Input: the payload of the reply.

#include <new>
#include <stdexcept>
#include <system_error>
#include <typeinfo>
#include <variant>

#include <cxxabi.h>

#include <ferry/rpc/exceptions.hpp>

#include "rpc/worker/worker_core.hpp"
#include "targets.hpp"

namespace fuzz {
namespace exceptions_target {
namespace {

// What the caller of a method gets for a reply with this payload; why it was refused, if it was.
std::exception_ptr decode(bytes payload) {
  ferry::inbound_message reply;
  reply.header.kind = ferry::frame_kind::exception;
  reply.payload = payload;
  try {
    return ferry::detail::decode_exception(reply, limits);
  } catch (...) {
    return std::current_exception();
  }
}

const std::type_info& type_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (...) {
    return *abi::__cxa_current_exception_type();
  }
}

std::vector<std::byte> encode(const std::exception_ptr& thrown) {
  ferry::outgoing_message message;
  ferry::detail::encode_exception(thrown, message);
  const bytes payload = message.bytes.bytes().subspan(ferry::frame_header::encoded_size);
  return {payload.begin(), payload.end()};
}

void run(bytes input) {
  const std::exception_ptr first = decode(input);
  try {
    std::rethrow_exception(first);
  } catch (const ferry::error& thrown) {
    check_error(thrown);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): any other type is as good
  }
  // Whatever a callee made a caller throw, the caller can let through to a caller of its own.
  const std::exception_ptr second = decode(encode(first));
  require(type_of(first) == type_of(second), "an exception keeps its type across a second call");
  // The text of the first may have been cut: what() ends at a null character.
  const auto encoded = encode(second);
  const std::exception_ptr third = decode(encoded);
  require(ferry::detail::describe_exception(second) == ferry::detail::describe_exception(third),
          "an exception keeps its text across a third call");
  require(same(encode(third), encoded), "an exception encodes to what it was decoded from");
}

template <class T>
void add(const seed_sink& sink, std::string_view name, const T& thrown) {
  sink(name, encode(std::make_exception_ptr(thrown)));
}

void seeds(const seed_sink& sink) {
  add(sink, "invalid_argument", std::invalid_argument("text"));
  add(sink, "runtime_error", std::runtime_error("text"));
  add(sink, "system_error", std::system_error(2, std::generic_category(), "open"));
  add(sink, "bad_alloc", std::bad_alloc());
  add(sink, "bad_variant_access", std::bad_variant_access());
  add(sink, "rpc_timeout", ferry::rpc_timeout("text"));
  add(sink, "error", ferry::error(ferry::errc::bad_shape, "text"));
  add(sink, "remote_error", ferry::remote_error("their::type", "text"));
  add(sink, "other", 5);
}

}  // namespace
}  // namespace exceptions_target

const target exceptions{"exceptions", &exceptions_target::run, &exceptions_target::seeds};

}  // namespace fuzz
