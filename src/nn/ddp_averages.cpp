#include "ddp_averages.hpp"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/future_state.hpp>
#include <ferry/tensor/factories.hpp>

#include "../group/collective_purpose.hpp"
#include "../group/group_core.hpp"
#include "../group/group_operations.hpp"
#include "../rpc/worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {
constexpr std::size_t most_reason = 1000;  // bytes
}

context_values ddp_averages::values_of_next(const std::string& refusal) const {
  return values_with_note({bucket_purpose{module_, passes_, sent_}.number(), refusal});
}
context_values ddp_averages::values_of_refused(std::string_view why) const {
  return values_of_next(fmt::format("ddp: the pass of {} failed: {}",
                                    group_.names()[static_cast<std::size_t>(group_.rank())],
                                    why.substr(0, most_reason)));
}
context_values ddp_averages::values_of_join() const {
  return values_with_note({bucket_purpose{module_, passes_, bucket_purpose::joining}.number(), {}});
}

void ddp_averages::send(const tensor& memory) {
  averages_.reserve(averages_.size() + 1);
  const std::uint64_t before = group_.core()->next_number();
  auto problem = caught([&] {
    const context_values_scope scope(values_of_next({}));
    future<tensor> average = transport_(group_, memory, limit_);
    if (!average.valid()) throw_error(errc::no_state, "ddp: ddp_options::transport returned an empty future");
    averages_.push_back({sent_, std::move(average)});
  });
  if (problem) {
    if (group_.core()->next_number() != before) {  // it has made its collectives
      averages_.push_back({sent_, make_failed_future<tensor>(problem), true});
      ++sent_;
    }
    std::rethrow_exception(problem);
  }
  ++sent_;
  averages_.back().average.add_done_callback([memory](const future<tensor>&) {});  // which it may use until then
}

void ddp_averages::send_rows(const sparse_tensor& own) {
  averages_.reserve(averages_.size() + 1);
  auto problem = caught([&] {
    const context_values_scope scope(values_of_next({}));
    under_way next;
    next.rows = gather_rows(group_, own, limit_, [&](const std::exception_ptr& reason) {
      return values_of_refused(describe_exception(reason));
    });
    averages_.push_back(std::move(next));
  });
  if (problem) averages_.push_back({.bucket = std::nullopt, .average = make_failed_future<tensor>(problem)});
  ++sent_;
  if (problem) std::rethrow_exception(problem);
}

void ddp_averages::under_way::wait() const {
  if (rows) return rows->wait();
  (void)average.wait_for(no_timeout);
}

sparse_tensor ddp_averages::wait_for_rows(std::size_t bucket) const {
  const under_way& sent = averages_[first_of_pass_ + bucket];
  if (!sent.rows) (void)sent.average.get();  // why there are none
  return average_of(*sent.rows);
}

// The transport itself says which collectives there are. It gets other memory: that of the bucket may be in use by a pass before.
void ddp_averages::refuse_next(const gradient_bucket& bucket, const context_values& values) {
  const context_values_scope scope(values);
  if (bucket.rows) return refuse_rows(group_, bucket, limit_);
  const std::uint64_t before = group_.core()->next_number();
  auto problem = caught([&] {
    const tensor memory = zeros({bucket.elements}, bucket.type, bucket.where);
    averages_.push_back({std::nullopt, transport_(group_, memory, limit_)});
  });
  if (!problem || group_.core()->next_number() != before) return;
  (void)run_in_place(group_.core(), {.op = collective::barrier, .limit = limit_});  // one number for it
}

void ddp_averages::end_pass(const std::vector<gradient_bucket>& buckets, const std::string& why) noexcept {
  auto problem = caught([&] {
    if (group_.size() == 1) return;
    const no_grad outside;
    for (; sent_ < buckets.size(); ++sent_) refuse_next(buckets[sent_], values_of_refused(why));
  });
  if (problem)
    log(log_level::error, "other members do not hear that a pass has failed: " + describe_exception(problem));
  ++passes_;
  sent_ = 0;
  first_of_pass_ = averages_.size();
}

std::vector<ddp_averages::under_way> ddp_averages::take_all() noexcept {
  first_of_pass_ = 0;
  return std::exchange(averages_, {});
}

}  // namespace ferry::inline v0::detail
