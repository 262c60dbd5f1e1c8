#include <ferry/backend/worker_info.hpp>

#include <algorithm>

#include <fmt/format.h>

#include "../../base/printable.hpp"

namespace ferry::inline v0 {

void check_worker_name(std::string_view name) {
  if (name.empty()) throw_error(errc::invalid_argument, "a worker's name must be non-empty");
  if (name.size() > worker_info::max_name) {
    throw_error(
        errc::invalid_argument,
        fmt::format("a worker's name must be shorter than 128 characters; '{:.40}...' has {}", name, name.size()));
  }
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == ':';
  };
  if (!std::all_of(name.begin(), name.end(), allowed)) {
    throw_error(errc::invalid_argument,
                fmt::format("a worker's name must match the pattern ^[A-Za-z0-9-_:]*$; '{}' does not",
                            detail::printable(name)));
  }
}

worker_info::worker_info(std::string name, int id) : name_(std::move(name)), id_{id} {
  check_worker_name(name_);
  if (id < 0 || id > worker_id::max) {
    throw_error(errc::invalid_argument,
                fmt::format("the id of worker '{}' must be 0..{}, not {}", name_, worker_id::max, id));
  }
}

std::string to_string(const worker_info& info) {
  return fmt::format("worker_info(id={}, name={})", info.id().value, info.name());
}

}  // namespace ferry::inline v0
