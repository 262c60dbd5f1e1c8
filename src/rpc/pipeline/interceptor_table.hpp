#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ferry/rpc/interceptor.hpp>

namespace ferry::inline v0::detail {

class incoming_call;

/// The interceptors of one worker, and which of them reads which type of record. Immutable.
class interceptor_table {
 public:
  /// `of_library` come first; they must live as long as the table. Throws errc::invalid_argument, naming the interceptor,
  /// if one of `of_user` is null, has no name or the name of another one, or reads records that are reserved, the
  /// library's, or another one's; and if there are more than 64.
  interceptor_table(std::vector<interceptor*> of_library, std::vector<std::shared_ptr<interceptor>> of_user);

  /// Whether any interceptor sees requests without records.
  [[nodiscard]] bool sees_all_requests() const noexcept { return !seeing_all_.empty(); }
  /// The library's interceptor that sees requests without records, too, while any part of the process watches arrivals, and
  /// the requests that leave while any watches these.
  void set_watcher(const interceptor& which) noexcept;
  /// Whether it does; for all workers of the process.
  [[nodiscard]] static bool arrivals_watched() noexcept { return watches_.load(std::memory_order_relaxed) != 0; }
  /// 1: begins to, -1: ends to.
  static void watch_arrivals(int change) noexcept { watches_.fetch_add(change); }
  /// The same for requests that leave.
  [[nodiscard]] static bool requests_watched() noexcept {
    return watches_of_requests_.load(std::memory_order_relaxed) != 0;
  }
  static void watch_requests(int change) noexcept { watches_of_requests_.fetch_add(change); }
  /// The reader of a type of records; null: there is none.
  [[nodiscard]] interceptor* reader_of(std::uint16_t type) const noexcept;

  /// The request keeps what the interceptors keep of the call. Throws what they throw, with the hooks so far in place.
  void on_request(outgoing_request& request) const;
  /// The same of a request that has arrived. Also throws errc::unknown_extension for a critical record without a reader,
  /// errc::truncated, errc::malformed and errc::limit_exceeded for a damaged block.
  void on_arrival(incoming_call& call) const;
  /// Passes the reply to the readers of its records, if it has any. Throws as on_arrival().
  void on_reply_records(incoming_reply& reply) const {
    if (!reply.message().extensions.empty()) read_reply(reply);
  }

 private:
  using reader_set = std::uint64_t;  // a bit for each interceptor
  void add(interceptor& one, bool of_library);
  [[nodiscard]] reader_set readers_of(std::span<const std::byte> records, const wire_limits& limits) const;
  [[nodiscard]] reader_set readers_of_several(std::span<const std::byte> records, const wire_limits& limits) const;
  [[nodiscard]] reader_set readers_of_type(std::uint16_t type) const noexcept {  // one or none
    return type < low_types ? readers_of_low_types_[type] : readers_of_high_type(type);
  }
  [[nodiscard]] reader_set readers_of_high_type(std::uint16_t type) const noexcept;
  void read_reply(incoming_reply& reply) const;

  const std::vector<std::shared_ptr<interceptor>> owned_;
  std::vector<interceptor*> all_;
  std::vector<interceptor*> seeing_all_;
  static std::atomic<int> watches_;
  static std::atomic<int> watches_of_requests_;
  interceptor* watcher_ = nullptr;  // null: none
  reader_set watcher_set_ = 0;
  reader_set seeing_all_set_ = 0;                               // the same
  std::vector<std::pair<std::uint16_t, std::size_t>> readers_;  // by type, sorted; indices into all_
  // Of the lowest types, which the library's records have: without a search.
  static constexpr std::size_t low_types = 32;
  std::array<reader_set, low_types> readers_of_low_types_{};
};

}  // namespace ferry::inline v0::detail
