#pragma once

// Parts of the library that every worker has and that calls know nothing of: they attach to calls as the interceptors of
// users do.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ferry/rpc/attached.hpp>
#include <ferry/rpc/detail/call_lifecycle.hpp>
#include <ferry/rpc/interceptor.hpp>

namespace ferry::inline v0::detail {

class worker_core;

struct library_client {
  /// Its place among the library's interceptors: the lower first.
  int rank = 0;
  /// Its state for a worker that is being constructed; null: it has none.
  std::shared_ptr<worker_attachment> (*attach)(worker_core& worker) = nullptr;
  /// Its records, with the attachment made before. Lives as long as that.
  interceptor* (*intercept)(worker_attachment* state) = nullptr;
  /// That also sees requests without records while interceptor_table::arrivals_watched(). At most one client does.
  bool watches_arrivals = false;
  /// Begins to carry the handles of a message to that worker. Null: it carries none. At most one client does.
  std::unique_ptr<carried_handles> (*carry)(worker_attachment& state, const call_target& to) = nullptr;
};

/// During static initialisation. Returns its number, by which workers find the client's attachment.
std::size_t add_library_client(const library_client& client);
const std::vector<library_client>& library_clients() noexcept;

}  // namespace ferry::inline v0::detail
