#include "ddp_agreement.hpp"

#include <cstddef>
#include <string>

#include <fmt/format.h>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../group/group_operations.hpp"

namespace ferry::inline v0::detail {

std::uint64_t agree_on_parts(const process_group& group, const std::vector<ddp_part>& parts,
                             const std::vector<ddp_part>& trained, const nn::ddp_options& options) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3U; };
  for (const ddp_part& each : parts) {
    for (const char c : each.name) add(static_cast<unsigned char>(c));
    for (const std::int64_t size : each.value.shape()) add(static_cast<std::uint64_t>(size));
    add(static_cast<std::uint64_t>(each.value.dtype()));
    add(each.leaf ? 1 : 0);
    if (!each.leaf) continue;
    for (const std::int64_t stride : each.strides) add(static_cast<std::uint64_t>(stride));
    add(each.rows ? 1 : 0);
  }
  for (std::size_t i = 1; i != trained.size(); ++i) {
    add(trained[i].value.device() == trained[i - 1].value.device() ? 1 : 0);  // buckets are of one device each
  }
  add(options.bucket_bytes);
  add(options.first_bucket_bytes);
  std::uint64_t number = 0;
  const tensor hashes = run_for_result(group.core(), {.op = collective::all_gather,
                                                      .subject = tensor_of({static_cast<std::int64_t>(hash)}),
                                                      .limit = options.limit,
                                                      .number = &number})
                            .get();
  for (int rank = 0; rank != group.size(); ++rank) {
    if (hashes.at<std::int64_t>(rank, 0) == static_cast<std::int64_t>(hash)) continue;
    throw_error(
        errc::group_mismatch,
        fmt::format("ddp: the parameters of {} differ from those of {} in name, shape, dtype, strides, whether they "
                    "require a gradient, whether that is rows, or which are on one device, or the sizes of buckets do",
                    group.names()[static_cast<std::size_t>(rank)],
                    group.names()[static_cast<std::size_t>(group.rank())]));
  }
  return number;
}

void give_parts(const process_group& group, const ddp_model& model, int root, timeout limit) {
  const no_grad outside;
  std::vector<future<void>> pending;
  for (const ddp_part& each : model.parts()) {
    pending.push_back(group.broadcast(detach(each.value), root, limit));
  }
  for (const auto& each : pending) each.get();
  model.written();
}

}  // namespace ferry::inline v0::detail
