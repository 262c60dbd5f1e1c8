#pragma once

// The order in which the rooms of the backend take their mutexes. docs/architecture.md explains it.

#include "../base/ranked_mutex.hpp"

namespace ferry::inline v0::detail {

inline constexpr lock_rank rank_of_events{10, "the listener of events"};
inline constexpr lock_rank rank_of_ring{20, "the watched member"};
inline constexpr lock_rank rank_of_caches{30, "a list made from the members"};
inline constexpr lock_rank rank_of_store_access{40, "the requests to the store"};
inline constexpr lock_rank rank_of_peer{50, "a peer"};
inline constexpr lock_rank rank_of_link_table{60, "the table of links"};
inline constexpr lock_rank rank_of_link{70, "a link"};
inline constexpr lock_rank rank_of_limits{75, "the limits of a peer"};
inline constexpr lock_rank rank_of_unwritten{80, "the sum of unwritten bytes"};
inline constexpr lock_rank rank_of_timers{90, "a timer"};
inline constexpr lock_rank rank_of_quiescence{91, "the wait for quiescence"};
inline constexpr lock_rank rank_of_fence{92, "the fence"};

}  // namespace ferry::inline v0::detail
