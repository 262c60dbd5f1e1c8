#include <ferry/optim/owner_errors.hpp>

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace ferry::inline v0 {
namespace detail {
namespace {

errc kind_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const error& problem) {
    return problem.kind();
  } catch (...) {
    return errc::remote_exception;
  }
}

std::string text_of_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& problem) {
    return problem.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

// By the ids of the owners: which call ended first is chance.
std::vector<owner_errors::part> in_order(std::vector<owner_errors::part> parts) {
  std::stable_sort(parts.begin(), parts.end(), [](const owner_errors::part& a, const owner_errors::part& b) {
    return a.at.id().value < b.at.id().value;
  });
  return parts;
}

std::string text_of_all(std::string_view what, std::size_t asked, const std::vector<owner_errors::part>& parts) {
  std::string text = fmt::format("{} failed at {} of {} workers", what, parts.size(), asked);
  for (const owner_errors::part& each : parts) {
    text += fmt::format("{}'{}': {}", &each == parts.data() ? ": " : "; ", each.at.name(), text_of_error(each.what));
  }
  return text;
}

}  // namespace
}  // namespace detail

owner_errors::owner_errors(std::string_view what, std::size_t asked, std::vector<part> parts)
    : owner_errors(what, asked, std::make_shared<const std::vector<part>>(detail::in_order(std::move(parts)))) {}

owner_errors::owner_errors(std::string_view what, std::size_t asked, std::shared_ptr<const std::vector<part>> parts)
    : error(detail::kind_of(parts->front().what), detail::text_of_all(what, asked, *parts)), parts_(std::move(parts)) {}

}  // namespace ferry::inline v0
