#include "ddp_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../group/group_core.hpp"
#include "../group/group_operations.hpp"

namespace ferry::inline v0::detail {
namespace {

// Within values that let it fail.
void refuse_gathering(const process_group& group, dtype type, device where, timeout limit) {
  const std::uint64_t before = group.core()->next_number();
  (void)caught([&] { (void)group.all_gather(zeros({1}, type, where), limit); });
  if (group.core()->next_number() != before) return;
  (void)run_in_place(group.core(), {.op = collective::barrier, .limit = limit});  // one number for it
}

// `t` with as many rows as that, of which the last ones are zeros.
tensor with_rows(const tensor& t, std::int64_t rows) {
  if (t.size(0) == rows) return t.contiguous();
  dims shape = t.shape();
  shape[0] = rows;
  tensor result = zeros(shape, t.dtype(), t.device());
  if (t.size(0) != 0) result.narrow(0, 0, t.size(0)).copy_(t);
  return result;
}

}  // namespace

void gathered_rows::wait() const {
  (void)indices.wait_for(no_timeout);
  (void)values.wait_for(no_timeout);
}

gathered_rows gather_rows(const process_group& group, const sparse_tensor& own, timeout limit,
                          const std::function<context_values(const std::exception_ptr&)>& refusing) {
  gathered_rows all{.counts = {}, .indices = {}, .values = {}, .shape = own.shape()};
  std::exception_ptr problem;
  // Makes one collective: one that fails, once there is a problem.
  const auto make = [&](dtype type, const device& where, const auto& begin) {
    const std::uint64_t before = group.core()->next_number();
    if (!problem) problem = caught(begin);
    if (group.core()->next_number() != before) return;
    const context_values_scope scope(refusing(problem));
    refuse_gathering(group, type, where, limit);
  };
  sparse_tensor sent;
  future<tensor> counts;
  problem = caught([&] {
    // A row that comes twice is one on the way; on a device that is known only where the host waits for it.
    const bool few = !own.device().is_cpu() && own.nnz() <= own.shape()[0];
    sent = few ? own : own.coalesce();
  });
  make(dtype::i64, {}, [&] { counts = group.all_gather(tensor_of({sent.nnz()}), limit); });
  std::int64_t largest = 0;
  if (!problem) {
    problem = caught([&] {
      const tensor found = counts.get();
      for (int rank = 0; rank != group.size(); ++rank) {
        const auto count = found.at<std::int64_t>(rank, 0);
        if (count < 0 || count > own.shape()[0]) {
          throw_error(errc::malformed,
                      fmt::format("ddp: {} has {} rows of a gradient of {}",
                                  group.names()[static_cast<std::size_t>(rank)], count, own.shape()[0]));
        }
        all.counts.push_back(count);
        largest = std::max(largest, count);
      }
    });
  }
  make(dtype::i64, own.device(),
       [&] { all.indices = group.all_gather(with_rows(sent.indices().select(0, 0), largest), limit); });
  make(own.dtype(), own.device(), [&] { all.values = group.all_gather(with_rows(sent.values(), largest), limit); });
  if (problem) std::rethrow_exception(problem);
  return all;
}

void refuse_rows(const process_group& group, const gradient_bucket& bucket, timeout limit) {
  refuse_gathering(group, dtype::i64, {}, limit);
  refuse_gathering(group, dtype::i64, bucket.where, limit);
  refuse_gathering(group, bucket.type, bucket.where, limit);
}

sparse_tensor average_of(const gathered_rows& all) {
  const tensor indices = all.indices.get();
  const tensor values = all.values.get();
  std::vector<sparse_tensor> parts;
  for (std::size_t rank = 0; rank != all.counts.size(); ++rank) {
    const auto at = static_cast<std::int64_t>(rank);
    parts.emplace_back(indices.narrow(0, at, 1).narrow(1, 0, all.counts[rank]),
                       values.select(0, at).narrow(0, 0, all.counts[rank]), all.shape);
  }
  const sparse_tensor sum = concatenate(parts);
  return mul(sum.device().is_cpu() ? sum.coalesce() : sum, 1.0 / static_cast<double>(parts.size()));
}

sparse_tensor no_rows(const tensor& whole) {
  dims shape = whole.shape();
  shape[0] = 0;
  return {zeros({1, 0}, dtype::i64, whole.device()), zeros(shape, whole.dtype(), whole.device()), whole.shape()};
}

}  // namespace ferry::inline v0::detail
