#pragma once

// all_gather: every worker of a set contributes a value and gets those of all.

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

/// What came of a gather: the members, sorted, and what each contributed.
struct gathered_bytes {
  std::vector<std::string> names;
  std::vector<serialized> values;
};

/// One worker's part in one gather. The part of all_gather and barrier that does not depend on types.
class gathering {
 public:
  /// The time runs from here. `operation` names it in errors: "all_gather". Throws errc::invalid_argument,
  /// unknown_worker, not_initialized.
  gathering(std::shared_ptr<worker_core> worker, const members& among, timeout limit, const char* operation);

  /// Blocks until every member has contributed. All must name the same `type`.
  gathered_bytes run(std::uint64_t type, serialized value);
  [[nodiscard]] const wire_limits& limits() const noexcept;

 private:
  [[nodiscard]] std::string describe() const;
  [[noreturn]] void throw_timed_out(const std::string& why) const;

  std::shared_ptr<worker_core> worker_;
  std::vector<std::string> names_;  // sorted; the first is the leader
  timeout limit_;
  deadline until_;
  bool in_handler_ = false;  // whose deadline it is
  const char* operation_;
};

/// T, or what it travels as: a string for a literal, a vector for a span.
template <class T>
using gathered_type = deduced_wire_type<T>;

template <class T>
gathered<gathered_type<T>> all_gather_at(std::shared_ptr<worker_core> worker, const T& value, const members& among,
                                         timeout limit) {
  using wire = gathered_type<T>;
  static_assert(std::is_default_constructible_v<wire>,
                "ferry: a type that is gathered must be default-constructible, as results of calls are");
  gathering gather(std::move(worker), among, limit, "all_gather");
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

/// Contributes `value` and returns the values of all members, by name: std::map<std::string, T> among others can be made of
/// it. Every member calls it, this worker included, with the same members and the same T, and blocks until all have; inside a
/// handler the worker runs others meanwhile. T is anything that can be an argument of a call, tensors included.
///
/// Calls over one set of members are matched in the order in which each member makes them, whatever their kind: where several
/// threads of a worker gather over one set at once, which of their calls meet is open, and all must gather the same T.
/// Different sets never meet.
///
/// `limit` bounds it (unset: the worker's default; never: no_timeout), and so does the deadline of a handler that calls it,
/// less a tenth of what is left of it or 50 ms, so that its end can be told.
/// It ends for every member, with one error, as soon as it cannot succeed: errc::rpc_timeout naming who was missing when the first
/// member's time was over, errc::peer_lost naming a member that was lost or gave up while it waited, errc::group_mismatch
/// if they gather different types, or if the round that this worker was to join had ended without it. The next call then
/// starts afresh. A member that cannot reach the first one by name, which collects, gets errc::connect_failed, peer_lost or
/// rpc_timeout, the last at most a tenth of `limit`, or a second, late. Throws errc::invalid_argument if this worker is no
/// member or a name comes twice, errc::unknown_worker, and what serialising throws. Thread-safe.
template <class T>
auto all_gather(const T& value, const members& among = all_workers, timeout limit = {}) {
  return detail::all_gather_at(detail::current_worker(), value, among, limit);
}

template <class T>
auto worker::all_gather(const T& value, const members& among, timeout limit) const {
  return detail::all_gather_at(core(), value, among, limit);
}

}  // namespace ferry::inline v0
