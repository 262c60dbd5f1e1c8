#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/rpc/attached.hpp>

namespace ferry::inline v0::detail {

/// The attachments of one worker. Thread-safe.
class attachments {
 public:
  /// Those of the library, in the order of their clients, before any other; null entries are allowed.
  void add_of_library(std::shared_ptr<worker_attachment> state);
  /// Null: it has none, or came to the process after the worker.
  [[nodiscard]] worker_attachment* of_library(std::size_t client) const noexcept {
    return client < library_.size() ? library_[client].get() : nullptr;
  }

  /// Made on first use. Throws errc::not_initialized once closed.
  std::shared_ptr<worker_attachment> find_or_make(worker_core& worker, const void* key, std::string_view name,
                                                  attachment_maker make);

  /// Null: there is none.
  [[nodiscard]] std::shared_ptr<worker_attachment> find(const void* key) const noexcept;
  template <class T>
  [[nodiscard]] std::shared_ptr<T> find(const attached_key<T>& key) const noexcept {
    return std::static_pointer_cast<T>(find(static_cast<const void*>(&key)));
  }

  void on_member_event(const member_event& event) const noexcept;
  void on_member_end(worker_id id, incarnation_id incarnation) const noexcept;
  void on_group_quiet(deadline until, bool alone) const noexcept;
  [[nodiscard]] std::uint64_t loose_ends() const noexcept;
  void stop_waiting(bool entirely) const noexcept;
  [[nodiscard]] std::vector<std::string> leaks() const;

  /// No attachment is made any more.
  void close() noexcept;
  /// After close(). Those of others than the library are dropped.
  void clear(bool idle) noexcept;

 private:
  struct entry {
    const void* key = nullptr;
    std::string_view name;
    std::shared_ptr<worker_attachment> state;
  };
  [[noreturn]] static void throw_closed(const worker_core& worker, std::string_view name);
  [[nodiscard]] std::shared_ptr<worker_attachment> at(std::size_t index) const noexcept;

  std::vector<std::shared_ptr<worker_attachment>> library_;  // fixed before the worker starts
  std::recursive_mutex making_;                              // held while one is made; guards the next one
  std::vector<const void*> being_made_;
  mutable std::mutex mutex_;  // guards the next two
  std::vector<entry> others_;
  bool closed_ = false;
};

}  // namespace ferry::inline v0::detail
