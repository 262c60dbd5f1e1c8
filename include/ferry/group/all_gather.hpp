#pragma once

// all_gather: every worker of a set contributes a value and receives the values of all.

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/base/type_name.hpp>
#include <ferry/group/gathered.hpp>
#include <ferry/rpc/detail/members.hpp>
#include <ferry/rpc/worker.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0 {

namespace detail {

/// The result of a gather: the sorted members and the contribution of each.
struct gathered_bytes {
  std::vector<std::string> names;
  std::vector<serialized> values;
};

/// One worker's participation in one gather: the type-independent part of all_gather and barrier.
class gathering {
 public:
  /// `limit` starts here. `operation` is its name in error texts: "all_gather". Throws errc::invalid_argument,
  /// unknown_worker, not_initialized.
  gathering(std::shared_ptr<worker_core> worker, const members& among, timeout limit, const char* operation);

  /// Blocks until every member has contributed. All must pass the same `type`.
  gathered_bytes run(std::uint64_t type, serialized value);
  [[nodiscard]] const wire_limits& limits() const noexcept;

 private:
  [[nodiscard]] std::string describe() const;
  [[noreturn]] void throw_timed_out(const std::string& why) const;

  std::shared_ptr<worker_core> worker_;
  std::vector<std::string> names_;  // sorted; the first is the leader
  timeout limit_;
  deadline until_;
  bool in_handler_ = false;  // the limit is the handler's deadline
  const char* operation_;
};

/// The wire type of T: std::string for a literal, std::vector for a span.
template <class T>
using gathered_type = deduced_wire_type<T>;

template <class T>
gathered<gathered_type<T>> all_gather_at(std::shared_ptr<worker_core> worker, const T& value, const members& among,
                                         timeout limit, const char* operation = "all_gather") {
  using wire = gathered_type<T>;
  static_assert(std::is_default_constructible_v<wire>,
                "ferry: a type that is gathered must be default-constructible, as results of calls are");
  gathering gather(std::move(worker), among, limit, operation);
  serialized own;
  byte_buffer bytes;
  encode_values<wire>(bytes, own.tensors, value);
  own.bytes.assign(bytes.data(), bytes.data() + bytes.size());
  gathered_bytes all = gather.run(fingerprint(type_name<wire>()), std::move(own));
  std::vector<std::pair<std::string, wire>> values;
  values.reserve(all.names.size());
  for (std::size_t i = 0; i != all.names.size(); ++i) {
    values.emplace_back(std::move(all.names[i]), deserialize<wire>(all.values[i], gather.limits()));
  }
  return gathered<wire>(std::move(values));
}

}  // namespace detail

/// Contributes `value` and returns the values of all members by name; the result converts to std::map<std::string, T>
/// and similar types. Every member, this worker included, must call it with the same members and the same T; it blocks
/// until all have done so. While a handler waits, the worker runs other handlers. T is any type that can be an argument
/// of a call, including tensors.
///
/// Calls over one set of members, all_gather and barrier alike, are matched in the order in which each member makes
/// them. If several threads of a worker gather over one set concurrently, it is unspecified which of their calls match,
/// so all must gather the same T. Calls over different sets are never matched.
///
/// `limit` bounds the call (unset: the worker's default; no_timeout: no limit). In a handler the handler's deadline
/// also applies, less a tenth of the time left but at most 50 ms, so that the error can still be delivered. As soon as
/// the gather cannot succeed, it fails for every member with the same error: errc::rpc_timeout, naming the missing
/// members, when the limit of the first member expires; errc::peer_lost, naming a member that was lost or cancelled its
/// call while it waited; errc::group_mismatch if the members gather different types, or if the round that this worker
/// was to join has ended without it. The next call joins a new round. The first member by name collects the values. A
/// member that cannot reach it gets errc::connect_failed, peer_lost or rpc_timeout; rpc_timeout may then be late by up
/// to a tenth of `limit` or one second, whichever is longer. Throws errc::invalid_argument if this worker is not a
/// member or a name occurs twice, errc::unknown_worker, and the errors of serialisation. Thread-safe.
template <class T>
auto all_gather(const T& value, const members& among = all_workers, timeout limit = {}) {
  return detail::all_gather_at(detail::current_worker(), value, among, limit);
}

template <class T>
auto worker::all_gather(const T& value, const members& among, timeout limit) const {
  return detail::all_gather_at(core(), value, among, limit);
}

}  // namespace ferry::inline v0
