#include <ferry/base/error.hpp>

#include <stdexcept>
#include <utility>

#include "thread_exit.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

class ferry_category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "ferry"; }
  [[nodiscard]] std::string message(int value) const override {
    return std::string(errc_name(static_cast<errc>(value)));
  }
};

}  // namespace
}  // namespace detail

const std::error_category& error_category() noexcept {
  static const detail::ferry_category category;
  return category;
}

std::error_code make_error_code(errc code) noexcept { return {static_cast<int>(code), error_category()}; }

std::string_view errc_name(errc code) noexcept {
  switch (code) {
    case errc::invalid_argument: return "invalid_argument";
    case errc::not_initialized: return "not_initialized";
    case errc::already_initialized: return "already_initialized";
    case errc::unknown_worker: return "unknown_worker";
    case errc::unknown_backend: return "unknown_backend";
    case errc::forked_process: return "forked_process";
    case errc::promise_broken: return "promise_broken";
    case errc::promise_satisfied: return "promise_satisfied";
    case errc::no_state: return "no_state";
    case errc::bad_init_method: return "bad_init_method";
    case errc::missing_environment: return "missing_environment";
    case errc::store_unreachable: return "store_unreachable";
    case errc::store_timeout: return "store_timeout";
    case errc::store_failed: return "store_failed";
    case errc::duplicate_name: return "duplicate_name";
    case errc::duplicate_id: return "duplicate_id";
    case errc::group_mismatch: return "group_mismatch";
    case errc::init_failed: return "init_failed";
    case errc::shutdown_timeout: return "shutdown_timeout";
    case errc::join_pending: return "join_pending";
    case errc::address_in_use: return "address_in_use";
    case errc::bad_address: return "bad_address";
    case errc::connect_failed: return "connect_failed";
    case errc::handshake_failed: return "handshake_failed";
    case errc::version_mismatch: return "version_mismatch";
    case errc::connection_lost: return "connection_lost";
    case errc::protocol_error: return "protocol_error";
    case errc::no_route: return "no_route";
    case errc::system_failure: return "system_failure";
    case errc::authentication_failed: return "authentication_failed";
    case errc::authentication_required: return "authentication_required";
    case errc::rpc_timeout: return "rpc_timeout";
    case errc::call_cancelled: return "call_cancelled";
    case errc::peer_lost: return "peer_lost";
    case errc::fenced: return "fenced";
    case errc::unknown_method: return "unknown_method";
    case errc::signature_mismatch: return "signature_mismatch";
    case errc::bad_arguments: return "bad_arguments";
    case errc::bad_result: return "bad_result";
    case errc::remote_exception: return "remote_exception";
    case errc::resource_exhausted: return "resource_exhausted";
    case errc::duplicate_method: return "duplicate_method";
    case errc::shutting_down: return "shutting_down";
    case errc::method_busy: return "method_busy";
    case errc::reference_deleted: return "reference_deleted";
    case errc::not_owner: return "not_owner";
    case errc::reference_mismatch: return "reference_mismatch";
    case errc::would_deadlock: return "would_deadlock";
    case errc::reference_leaked: return "reference_leaked";
    case errc::injected_failure: return "injected_failure";
    case errc::truncated: return "truncated";
    case errc::limit_exceeded: return "limit_exceeded";
    case errc::malformed: return "malformed";
    case errc::unknown_extension: return "unknown_extension";
    case errc::not_serialisable: return "not_serialisable";
    case errc::bad_shape: return "bad_shape";
    case errc::bad_dtype: return "bad_dtype";
    case errc::bad_device: return "bad_device";
    case errc::out_of_memory: return "out_of_memory";
    case errc::device_failure: return "device_failure";
    case errc::device_timeout: return "device_timeout";
  }
  return "unknown";
}

error::error(errc code, const std::string& text)
    : std::system_error(make_error_code(code)), text_(std::string(errc_name(code)) + ": " + text) {}

std::string_view error::message() const noexcept {
  std::string_view text = text_.what();
  return text.substr(errc_name(kind()).size() + 2);
}

remote_error::remote_error(std::string type_name, const std::string& text)
    : error(errc::remote_exception, text), type_name_(std::move(type_name)) {}

void throw_error(errc code, const std::string& text) {
  switch (code) {
    case errc::rpc_timeout: throw rpc_timeout(text);
    case errc::call_cancelled: throw call_cancelled(text);
    case errc::peer_lost: throw peer_lost(text);
    case errc::resource_exhausted: throw resource_exhausted(text);
    case errc::remote_exception: throw remote_error("unknown", text);
    default: throw error(code, text);
  }
}

namespace detail {
std::exception_ptr error_of_no_exception() noexcept {
  if (hold_thread_exit()) {
    return std::make_exception_ptr(
        thread_exit_error("it ended its thread (pthread_exit, or a cancellation that it had allowed); return instead"));
  }
  return make_error(errc::remote_exception, "an exception that is no C++ exception was thrown");
}
}  // namespace detail

std::exception_ptr make_error(errc code, const std::string& text) noexcept {
  try {
    throw_error(code, text);
  } catch (...) {
    return std::current_exception();
  }
}

void throw_errno(errc code, std::string_view what, int errno_value) {
  throw_error(code, std::string(what) + ": " + std::generic_category().message(errno_value));
}

}  // namespace ferry::inline v0
