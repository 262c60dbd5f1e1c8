#pragma once

// Shorthand constructors for forks and controls.

#include "reference_protocol.hpp"

namespace ferry::inline v0::detail {

constexpr fork_key by_holder(std::uint64_t claim) { return {fork_key::numbered_by::holder, claim}; }
constexpr fork_key by_owner(std::uint64_t transfer) { return {fork_key::numbered_by::owner, transfer}; }

/// fork_request and creation_query.
inline reference_control about_claim(reference_control::kind what, const object_id& object, std::uint64_t claim) {
  return {what, object, {}, claim};
}
/// child_accept, transfer_query and watermark.
inline reference_control about_transfer(reference_control::kind what, std::uint64_t number) {
  return {what, {}, {}, number};
}
inline reference_control deletion(const object_id& object, const fork_key& key) {
  return {reference_control::kind::user_delete, object, key, 0};
}

}  // namespace ferry::inline v0::detail
