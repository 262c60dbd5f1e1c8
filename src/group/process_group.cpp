#include <ferry/group/process_group.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <ferry/rpc/worker.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "group_core.hpp"
#include "group_operations.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {
constexpr int most_attempts = 100;  // to find those that live
constexpr std::chrono::milliseconds before_next_attempt{20};
}  // namespace
}  // namespace detail

process_group::process_group(const members& among, const group_options& options)
    : core_(detail::group_core::make(detail::current_worker(), among, options)) {}
process_group::process_group(const worker& self, const members& among, const group_options& options)
    : core_(detail::group_core::make(detail::core_of(self).shared_from_this(), among, options)) {}

detail::group_core& process_group::checked() const {
  if (!core_) throw_error(errc::no_state, "the process_group is an empty handle");
  return *core_;
}

int process_group::rank() const { return checked().rank(); }
int process_group::size() const { return checked().size(); }
const std::vector<std::string>& process_group::names() const { return checked().facts().names; }
const std::string& process_group::name() const { return checked().facts().options.name; }

int process_group::rank_of(std::string_view name) const {
  const auto& all = names();
  const auto found = std::find(all.begin(), all.end(), name);
  if (found == all.end()) {
    throw_error(errc::unknown_worker, fmt::format("'{}' is not a member of group '{}'", name, this->name()));
  }
  return static_cast<int>(found - all.begin());
}

std::vector<std::string> process_group::lost() const {
  std::vector<std::string> names;
  for (const int rank : checked().lost()) names.push_back(core_->name_of(rank));
  return names;
}

group_plan process_group::plan(collective op, std::size_t bytes, device_kind memory) const {
  return checked().plan(op, bytes, memory);
}

future<void> process_group::barrier(timeout limit) const {
  (void)checked();
  return detail::run_in_place(core_, {.op = collective::barrier, .limit = limit});
}
future<void> process_group::broadcast(const tensor& t, int root, timeout limit) const {
  (void)checked();
  return detail::run_in_place(core_, {.op = collective::broadcast, .subject = t, .root = root, .limit = limit});
}
future<void> process_group::all_reduce(const tensor& t, reduce_op op, timeout limit) const {
  (void)checked();
  return detail::run_in_place(core_, {.op = collective::all_reduce, .subject = t, .how = op, .limit = limit});
}
future<void> process_group::reduce(const tensor& t, int root, reduce_op op, timeout limit) const {
  (void)checked();
  return detail::run_in_place(core_, {.op = collective::reduce, .subject = t, .how = op, .root = root, .limit = limit});
}
future<tensor> process_group::all_gather(const tensor& t, timeout limit) const {
  (void)checked();
  return detail::run_for_result(core_, {.op = collective::all_gather, .subject = t, .limit = limit});
}
future<tensor> process_group::reduce_scatter(const tensor& t, reduce_op op, timeout limit) const {
  (void)checked();
  return detail::run_for_result(core_, {.op = collective::reduce_scatter, .subject = t, .how = op, .limit = limit});
}
future<tensor> process_group::all_to_all(const tensor& t, timeout limit) const {
  (void)checked();
  return detail::run_for_result(core_, {.op = collective::all_to_all, .subject = t, .limit = limit});
}
future<void> process_group::send(const tensor& t, int to, timeout limit) const {
  (void)checked();
  return detail::run_in_place(core_, {.op = collective::send, .subject = t, .root = to, .limit = limit});
}
future<void> process_group::receive(const tensor& into, int from, timeout limit) const {
  (void)checked();
  return detail::run_in_place(core_, {.op = collective::receive, .subject = into, .root = from, .limit = limit});
}

// A death that only some members know of yet makes their sets differ, or the first attempt fail: the next one knows more.
process_group process_group::shrink(timeout limit) const {
  const detail::group_core& old = checked();
  group_options options = old.facts().options;
  options.limit = limit.value_or(options.limit);
  const deadline until = deadline::after(options.limit);
  for (int attempt = 1;; ++attempt) {
    std::vector<std::string> alive = names();
    for (const int gone : old.lost()) alive.erase(std::find(alive.begin(), alive.end(), old.name_of(gone)));
    if (!until.is_never()) options.limit = std::max(until.remaining(), std::chrono::nanoseconds(1));
    const std::size_t known = old.lost().size();
    try {
      auto smaller = detail::group_core::make(old.worker(), members(alive), options);
      return process_group(std::move(smaller));
    } catch (const error& problem) {
      // A member that comes to an attempt of the others that has failed without it is told that they differ.
      const errc kind = problem.kind();
      if (kind != errc::peer_lost && kind != errc::connect_failed && kind != errc::group_mismatch) throw;
      if (until.expired() || attempt == detail::most_attempts) throw;
      if (old.lost().size() == known) std::this_thread::sleep_for(detail::before_next_attempt);
    }
  }
}

}  // namespace ferry::inline v0
