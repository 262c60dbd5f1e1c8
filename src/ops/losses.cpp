#include <ferry/ops/losses.hpp>

#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/comparison.hpp>
#include <ferry/ops/elementwise.hpp>
#include <ferry/ops/indexing.hpp>
#include <ferry/ops/softmax.hpp>
#include <ferry/ops/sum.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

tensor reduced(const tensor& losses, reduction how) {
  switch (how) {
    case reduction::mean: return mean(losses);
    case reduction::sum: return sum(losses);
    case reduction::none: break;
  }
  return losses;
}

// A loss does not broadcast: a prediction [n, 1] and a target [n] would become [n, n].
void need_same_shape(const tensor& prediction, const tensor& target, std::string_view loss) {
  if (prediction.shape() == target.shape()) return;
  throw_error(errc::bad_shape,
              fmt::format("{} of a prediction of shape {} and a target of shape {}: they have to be the same", loss,
                          to_string(prediction.shape()), to_string(target.shape())));
}

// Those on devices are looked at by the kernel that reads them.
void need_classes(const tensor& target, std::int64_t classes) {
  if (!target.device().is_cpu()) return;
  const tensor all = target.contiguous();
  const auto* const first = all.data<std::int64_t>();
  for (std::int64_t i = 0; i != all.numel(); ++i) {
    if (first[i] >= 0 && first[i] < classes) continue;
    throw_error(
        errc::invalid_argument,
        fmt::format(
            "nll_loss: the target {} of row {} is no class: there are {}, from 0. Targets that do not count are left "
            "out with `ignored`",
            first[i], i, classes));
  }
}

}  // namespace
}  // namespace detail

tensor mse_loss(const tensor& prediction, const tensor& target, reduction how) {
  detail::need_same_shape(prediction, target, "mse_loss");
  const tensor difference = sub(prediction, target);
  return detail::reduced(mul(difference, difference), how);
}

tensor huber_loss(const tensor& prediction, const tensor& target, double delta, reduction how) {
  detail::need_same_shape(prediction, target, "huber_loss");
  if (!(delta > 0) || delta == std::numeric_limits<double>::infinity())
    throw_error(errc::invalid_argument,
                fmt::format("huber_loss: delta is {}; it has to be positive and finite", delta));
  const tensor distance = abs(sub(prediction, target));
  // Both branches in one: a gradient of an infinite distance is delta.
  const tensor near = clamp(distance, 0, delta);
  return detail::reduced(add(mul(mul(near, near), 0.5), mul(sub(distance, near), delta)), how);
}

tensor bce_with_logits(const tensor& logits, const tensor& target, reduction how) {
  detail::need_same_shape(logits, target, "bce_with_logits");
  return detail::reduced(run_operation<op::bce_with_logits>({}, logits, target), how);
}

tensor nll_loss(const tensor& log_probabilities, const tensor& target, reduction how,
                std::optional<std::int64_t> ignored) {
  const bool one = log_probabilities.rank() == 1 && target.rank() == 0;
  const bool many = log_probabilities.rank() == 2 && target.rank() == 1 && log_probabilities.size(0) == target.size(0);
  if (!one && !many) {
    throw_error(
        errc::bad_shape,
        fmt::format("nll_loss needs [count, classes] and targets [count], or [classes] and a target []; the shapes are "
                    "{} and {}",
                    to_string(log_probabilities.shape()), to_string(target.shape())));
  }
  if (target.dtype() != dtype::i64) {
    throw_error(errc::bad_dtype,
                fmt::format("nll_loss: the targets are of {}; they have to be of i64", dtype_name(target.dtype())));
  }
  if (!ignored) {
    detail::need_classes(target, log_probabilities.size(-1));
    return detail::reduced(neg(gather(log_probabilities, -1, target.unsqueeze(-1)).squeeze(-1)), how);
  }
  const tensor left_out = eq(target, *ignored);
  const tensor places = masked_fill(target, left_out, 0);
  detail::need_classes(places, log_probabilities.size(-1));
  const tensor losses = masked_fill(neg(gather(log_probabilities, -1, places.unsqueeze(-1)).squeeze(-1)), left_out, 0);
  if (how != reduction::mean) return detail::reduced(losses, how);
  return div(sum(losses), sum(ne(target, *ignored).to(losses.dtype())));
}

tensor cross_entropy(const tensor& logits, const tensor& target, reduction how, std::optional<std::int64_t> ignored) {
  return nll_loss(log_softmax(logits, -1), target, how, ignored);
}

}  // namespace ferry::inline v0
