#pragma once

// Errors of ferry: one hierarchy under ferry::error, a std::system_error whose code is a ferry::errc.
// The numbers are stable: they are sent on the wire and are documented in docs/errors.md.

#if __cplusplus < 202002L
  #error "ferry needs C++20 or newer: compile with -std=c++20"
#endif

#include <ferry/config.hpp>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace ferry::inline v0 {

/// What went wrong. The numbers never change; new ones are only added.
enum class errc : int {
  // 1xx: misuse that the caller can correct
  invalid_argument = 100,     ///< a value outside its documented range
  not_initialized = 101,      ///< no worker in this process, or it has been shut down
  already_initialized = 102,  ///< a worker of that name already runs in this process
  unknown_worker = 103,       ///< the group has no worker of that name or id
  unknown_backend = 104,      ///< no backend of that name in the backend_list
  forked_process = 105,       ///< used in a child forked from a process that had initialised ferry
  promise_broken = 106,       ///< the promise was destroyed without a value
  promise_satisfied = 107,    ///< a promise can only be completed once
  no_state = 108,             ///< an empty future, promise or task was used
  // 2xx: rendezvous and groups
  bad_init_method = 200,      ///< init_method is malformed, or its scheme is unknown
  missing_environment = 201,  ///< an environment variable that is needed is not set or not usable
  store_unreachable = 202,    ///< the key-value store cannot be reached
  store_timeout = 203,        ///< a key did not appear in time
  store_failed = 204,         ///< the store refused or failed the operation
  duplicate_name = 205,       ///< two workers of the group have one name
  duplicate_id = 206,         ///< two workers of the group have one id
  group_mismatch = 207,       ///< members disagree about the group (size, kind, backend)
  init_failed = 208,          ///< another worker of the group failed to start
  shutdown_timeout = 209,     ///< not every worker reached the shutdown in time
  join_pending = 210,         ///< the peer does not know yet that this worker has joined; ferry itself retries
  // 3xx: transport
  address_in_use = 300,           ///< the port to listen on is in use
  bad_address = 301,              ///< an address that cannot be parsed or resolved
  connect_failed = 302,           ///< the peer refused, reset or did not answer the connection
  handshake_failed = 303,         ///< the peer is not ferry, or not the expected worker
  version_mismatch = 304,         ///< the peer speaks another protocol version
  connection_lost = 305,          ///< the connection broke while the call was pending
  protocol_error = 306,           ///< the peer sent bytes that the protocol forbids
  no_route = 307,                 ///< no transport reaches the peer
  system_failure = 308,           ///< an operating system call failed
  authentication_failed = 309,    ///< the two ends do not share one secret
  authentication_required = 310,  ///< the worker would be open to the network, with neither secret nor permission
  // 4xx: calls
  rpc_timeout = 400,         ///< the deadline passed
  call_cancelled = 401,      ///< cancelled by the caller
  peer_lost = 402,           ///< the peer, or the connection to it, was lost
  fenced = 403,              ///< the group has declared this incarnation dead
  unknown_method = 404,      ///< the callee has no such method
  signature_mismatch = 405,  ///< the callee has the method with another signature
  bad_arguments = 406,       ///< the callee could not decode the arguments
  bad_result = 407,          ///< the result could not be encoded or decoded
  remote_exception = 408,    ///< the method threw an exception of a type unknown here
  resource_exhausted = 409,  ///< a stated bound (threads, bytes, calls) is reached
  duplicate_method = 410,    ///< two different functions under one method id
  shutting_down = 411,       ///< the worker is shutting down
  method_busy = 412,         ///< a plug-in cannot be unloaded while its methods run
  reference_deleted = 413,   ///< the object has been deleted, or the worker that held the reference has been shut down
  not_owner = 414,           ///< only the owner of an object can access it directly
  reference_mismatch = 415,  ///< the object is of another type than the reference
  would_deadlock = 416,      ///< the call would wait for its own caller
  reference_leaked = 417,    ///< references to objects of this worker remained when it shut down
  injected_failure = 490,    ///< a fault injector made the sending fail
  // 5xx: wire
  truncated = 500,          ///< the bytes end before the value does
  limit_exceeded = 501,     ///< a size, count or nesting depth is above its budget
  malformed = 502,          ///< bytes that no encoder writes
  unknown_extension = 503,  ///< a critical extension record that is not understood
  not_serialisable = 504,   ///< the value cannot be encoded
  // 6xx: tensors and devices
  bad_shape = 600,       ///< shapes, strides or indices that do not fit
  bad_dtype = 601,       ///< the element type does not fit the operation
  bad_device = 602,      ///< no such device, or tensors on different devices
  out_of_memory = 603,   ///< the allocation failed
  device_failure = 604,  ///< the runtime of a device reported an error
  device_timeout = 605,  ///< copies to or from a device made no progress for transport_options::device_timeout
};

/// The category of ferry::errc; name() is "ferry".
const std::error_category& error_category() noexcept;

std::error_code make_error_code(errc code) noexcept;

/// The enumerator's name, "rpc_timeout"; "unknown" for a number that is none.
std::string_view errc_name(errc code) noexcept;

/// Base of every exception that ferry throws. what() is the whole text, starting with the enumerator's name.
class error : public std::system_error {
 public:
  error(errc code, const std::string& text);

  [[nodiscard]] errc kind() const noexcept { return static_cast<errc>(code().value()); }
  [[nodiscard]] const char* what() const noexcept override { return text_.what(); }
  /// The text without the leading enumerator name.
  [[nodiscard]] std::string_view message() const noexcept;

 private:
  std::runtime_error text_;  // shares its text between copies, so that copying never throws
};

/// The deadline of a call passed.
struct rpc_timeout : error {
  explicit rpc_timeout(const std::string& text) : error(errc::rpc_timeout, text) {}
};
/// The caller cancelled the call.
struct call_cancelled : error {
  explicit call_cancelled(const std::string& text) : error(errc::call_cancelled, text) {}
};
/// The peer died, or the connection to it broke while the call was pending.
struct peer_lost : error {
  explicit peer_lost(const std::string& text) : error(errc::peer_lost, text) {}
};
/// A stated bound was reached.
struct resource_exhausted : error {
  explicit resource_exhausted(const std::string& text) : error(errc::resource_exhausted, text) {}
};
/// The method threw an exception whose type is not known here; type_name() is its name at the callee.
class remote_error : public error {
 public:
  remote_error(std::string type_name, const std::string& text);
  [[nodiscard]] const std::string& type_name() const noexcept { return type_name_; }

 private:
  std::string type_name_;
};

/// Throws the most derived class of the hierarchy that belongs to `code`.
[[noreturn]] void throw_error(errc code, const std::string& text);
/// The same as an exception_ptr.
std::exception_ptr make_error(errc code, const std::string& text) noexcept;
namespace detail {
std::exception_ptr error_of_no_exception() noexcept;
/// The exception that is being handled; of an exception of another language, which has no std::exception_ptr, and of
/// the end of the thread by pthread_exit, an errc::remote_exception that says so. For catch blocks: the result is never
/// null there. A block that may catch the end of the thread must call this, or the C library ends the process.
/// Inline: only the copy of the C++ runtime that caught the exception knows it, and a program may have one of its own.
inline std::exception_ptr current_error() noexcept {
  if (auto current = std::current_exception()) return current;
  return error_of_no_exception();
}
}  // namespace detail

/// Throws error(code, "<what>: <strerror(errno_value)>").
[[noreturn]] void throw_errno(errc code, std::string_view what, int errno_value);

}  // namespace ferry::inline v0

template <>
struct std::is_error_code_enum<ferry::errc> : std::true_type {};
