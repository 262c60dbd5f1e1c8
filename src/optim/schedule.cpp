#include <ferry/optim/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

void need_schedule(const char* schedule, std::int64_t step, std::int64_t length, double factor) {
  const auto refuse = [&](const std::string& why) {
    throw_error(errc::invalid_argument, fmt::format("{}: {}", schedule, why));
  };
  if (step < 0) refuse(fmt::format("the step is {}; it must be at least 0", step));
  if (length <= 0) refuse(fmt::format("the number of steps is {}; it must be at least 1", length));
  if (!(factor >= 0) || std::isinf(factor)) refuse(fmt::format("the factor is {}; it must be at least 0", factor));
}

}  // namespace
}  // namespace detail

double linear_warmup(std::int64_t step, std::int64_t steps, double start) {
  detail::need_schedule("linear_warmup", step, steps, start);
  if (step >= steps) return 1;
  return start + (1 - start) * (static_cast<double>(step) / static_cast<double>(steps));
}

double step_decay(std::int64_t step, std::int64_t every, double factor) {
  detail::need_schedule("step_decay", step, every, factor);
  return std::pow(factor, static_cast<double>(step / every));
}

double multi_step_decay(std::int64_t step, std::span<const std::int64_t> milestones, double factor) {
  detail::need_schedule("multi_step_decay", step, 1, factor);
  const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](std::int64_t at) { return at <= step; });
  return std::pow(factor, static_cast<double>(passed));
}

double exponential_decay(std::int64_t step, double factor) {
  detail::need_schedule("exponential_decay", step, 1, factor);
  return std::pow(factor, static_cast<double>(step));
}

double cosine_decay(std::int64_t step, std::int64_t steps, double end) {
  detail::need_schedule("cosine_decay", step, steps, end);
  if (step >= steps) return end;
  const double turned = std::numbers::pi * (static_cast<double>(step) / static_cast<double>(steps));
  return end + (1 - end) * (1 + std::cos(turned)) / 2;
}

}  // namespace ferry::inline v0
