#include <ferry/group/barrier.hpp>

#include <utility>

#include <ferry/group/all_gather.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::uint64_t empty_contribution = 0;  // the type that a barrier gathers

void barrier_at(std::shared_ptr<detail::worker_core> worker, const members& among, timeout limit) {
  detail::gathering(std::move(worker), among, limit, "barrier").run(empty_contribution, {});
}

}  // namespace
}  // namespace detail

void barrier(const members& among, timeout limit) { detail::barrier_at(detail::current_worker(), among, limit); }
void worker::barrier(const members& among, timeout limit) const { detail::barrier_at(core(), among, limit); }

}  // namespace ferry::inline v0
