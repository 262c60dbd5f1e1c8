#pragma once

// One look at a group, by name: what each worker serves, and which collectives wait for whom.

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "observation.hpp"

namespace ferry_top {

/// A collective that has not ended at some of its members, as these and the others tell. Refers to the observation.
struct waiting_collective {
  std::string text;                                      ///< what it is
  const ferry::pending_collective_info* what = nullptr;  ///< as the member has it that waits longest
  const std::vector<std::string>* members = nullptr;     ///< that take part
  std::vector<std::string> waiting;                      ///< the members that have called it, the longest wait first
  std::vector<std::string> missing;                      ///< that have not
  std::vector<std::string> unknown;                      ///< that could not be asked
  std::vector<std::string> without;  ///< that do not have the group any more, and may have called it
};

/// The workers that were asked, by name, and what each has to do with others. The observation must outlive it.
class group_index {
 public:
  explicit group_index(const observation& of);
  group_index(const group_index&) = delete;
  group_index& operator=(const group_index&) = delete;

  [[nodiscard]] const std::map<std::string, const observed*>& workers() const noexcept { return by_name_; }
  /// Null: there is none of that name that was asked.
  [[nodiscard]] const observed* find(const std::string& name) const;
  /// The call as its callee has it, or null.
  [[nodiscard]] const ferry::served_call_info* served(const std::string& caller,
                                                      const ferry::pending_call_info& call) const;
  [[nodiscard]] const std::vector<waiting_collective>& collectives() const noexcept { return collectives_; }
  /// The collective as its members tell, or null.
  [[nodiscard]] const waiting_collective* collective(const ferry::pending_collective_info& of) const;
  /// "all_reduce(sum) of f32 [1000], collective 17 of group 'trainers'"; with the group's id where another one has its name. As
  /// waiting_collective::text, but as this member has it.
  [[nodiscard]] std::string describe(const ferry::pending_collective_info& what) const;
  /// The barrier or gather that the worker waits for in this call, or null.
  [[nodiscard]] const waiting_collective* gather(const std::string& caller, const ferry::pending_call_info& call) const;

 private:
  using served_key = std::tuple<std::string, std::string, std::uint64_t>;         // callee, caller, call
  using collective_key = std::tuple<std::uint64_t, std::int32_t, std::uint64_t>;  // group, channel, number
  void add_collective(const observed& member, const ferry::pending_collective_info& what);
  void find_missing(waiting_collective& of) const;

  std::map<std::string, const observed*> by_name_;
  std::map<served_key, const ferry::served_call_info*> served_;
  std::map<collective_key, std::size_t> places_;
  std::vector<waiting_collective> collectives_;
  std::map<std::string, std::vector<std::size_t>> gathers_;   // by the worker that collects
  std::map<std::string, std::set<std::uint64_t>> group_ids_;  // by name
};

using call_list = std::vector<const ferry::pending_call_info*>;

/// The calls of a worker but for the messages of groups, the oldest first: they are in that order. Those that it has made
/// while it served one of that age, which is of the same moment.
[[nodiscard]] call_list made_within(const observed& worker, std::chrono::nanoseconds age);
[[nodiscard]] call_list all_calls_of(const observed& worker);
/// The oldest collective of a process_group that the worker has begun in that time; null: none.
[[nodiscard]] const ferry::pending_collective_info* begun_within(const observed& worker, std::chrono::nanoseconds age);

/// What the handler of a request waits for, as far as it is known.
enum class reason {
  nothing,  ///< it computes, or waits for something else than ferry: for a lock, perhaps
  nested,   ///< for one of the calls that it has made, or a collective
  turn,     ///< it has not begun: for the handlers that run there, and so perhaps for their calls
};
[[nodiscard]] reason reason_of(const ferry::served_call_info& served);

[[nodiscard]] std::string seconds_text(std::chrono::nanoseconds value);
/// "a, b and 3 more"
[[nodiscard]] std::string names_text(const std::vector<std::string>& names);

}  // namespace ferry_top
