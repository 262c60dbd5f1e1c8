#include <ferry/store/rendezvous.hpp>

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>

#include "../../base/authentication.hpp"
#include "init_method.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr auto default_rendezvous_limit = std::chrono::minutes(5);

// A rank or world size from the options or the query; at most one of them may give it.
std::optional<int> one_of(std::string_view name, std::optional<int> argument, std::map<std::string, std::string>& query,
                          const std::string& init_method) {
  const auto at = query.find(std::string(name));
  if (at == query.end()) return argument;
  if (argument) {
    throw_error(
        errc::invalid_argument,
        fmt::format("{} was given twice: {} as an argument, and {} in the query of init method '{}'; give one of "
                    "them",
                    name, *argument, at->second, init_method));
  }
  const auto value = detail::parse_number(at->second);
  if (!value) {
    throw_error(errc::bad_init_method,
                fmt::format("{} '{}' in init method '{}' is not a whole number", name, at->second, init_method));
  }
  query.erase(at);
  return value;
}

void check_ranges(const rendezvous_request& request) {
  if (request.rank && (*request.rank < 0 || *request.rank > worker_id::max)) {
    throw_error(errc::invalid_argument, fmt::format("rank {} is not in 0..{}", *request.rank, worker_id::max));
  }
  if (request.world_size && (*request.world_size < 1 || *request.world_size > worker_id::max + 1)) {
    throw_error(errc::invalid_argument,
                fmt::format("world size {} is not in 1..{}", *request.world_size, worker_id::max + 1));
  }
  if (request.rank && request.world_size && *request.rank >= *request.world_size) {
    throw_error(errc::invalid_argument, fmt::format("rank {} does not fit a world of size {}: ranks start at 0",
                                                    *request.rank, *request.world_size));
  }
}

}  // namespace

rendezvous_result rendezvous_with(std::span<const store_scheme> schemes, const rendezvous_options& options) {
  const std::string init_method = options.init_method.empty() ? "env://" : options.init_method;
  std::string known;
  for (const store_scheme& each : schemes) known += fmt::format("{}{}://", known.empty() ? "" : ", ", each.name);

  init_method_parts parts = parse_init_method(init_method, known);
  const store_scheme* scheme = nullptr;
  for (const store_scheme& each : schemes) {
    if (each.name == parts.scheme) scheme = &each;
  }
  if (!scheme) {
    throw_error(errc::bad_init_method, fmt::format("init method '{}' has an unknown scheme '{}'; known are {}",
                                                   init_method, parts.scheme, known));
  }

  rendezvous_request request;
  request.init_method = init_method;
  request.location = std::move(parts.location);
  request.query = std::move(parts.query);
  request.dynamic = options.dynamic;
  request.any_rank = options.any_rank;
  request.secret = options.secret.empty() ? secret_from_environment() : options.secret;
  request.allow_unauthenticated = options.allow_unauthenticated || unauthenticated_allowed_by_environment();
  check_secret_usable(request.secret);
  request.until = deadline::after(options.limit.value_or(timeout(default_rendezvous_limit)));
  request.rank = one_of("rank", options.rank, request.query, init_method);
  request.world_size = one_of("world_size", options.world_size, request.query, init_method);
  check_ranges(request);
  if (scheme->resolve) scheme->resolve(request);
  if (!request.rank && !request.any_rank) {
    throw_error(errc::bad_init_method, fmt::format("rank parameter missing: pass a rank, or write '{}{}rank=...'",
                                                   init_method, init_method.find('?') == init_method.npos ? '?' : '&'));
  }
  if (!request.world_size) request.dynamic = request.dynamic || options.any_size;
  if (!request.world_size && !request.dynamic) {
    throw_error(errc::bad_init_method, fmt::format("world size parameter missing: pass a world size, or write "
                                                   "'{}{}world_size=...'",
                                                   init_method, init_method.find('?') == init_method.npos ? '?' : '&'));
  }
  check_ranges(request);
  rendezvous_result result{scheme->open(request), request.rank, request.world_size};
  if (!result.store) {
    throw_error(errc::store_failed,
                fmt::format("the scheme {} opened no store for init method '{}'", scheme->name, init_method));
  }
  return result;
}

}  // namespace detail

std::span<const detail::store_scheme> store_schemes::all() const noexcept {
  if (count_ == 0) return builtin_stores::schemes;
  return {first_, count_};
}

rendezvous_result rendezvous(const rendezvous_options& options) { return rendezvous(store_schemes(), options); }
rendezvous_result rendezvous(const store_schemes& known, const rendezvous_options& options) {
  return detail::rendezvous_with(known.all(), options);
}

}  // namespace ferry::inline v0
