#pragma once

// The file of a file_store: its format, and how it is read, appended to and repaired. docs/protocol.md, "File store".

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "../interrupt.hpp"
#include "../memory/key_table.hpp"

namespace ferry::inline v0::detail {

/// An append-only log of set and erase records. Not thread-safe; try_lock()/unlock() serialise processes.
class file_log {
 public:
  static constexpr std::uint32_t version = 1;

  /// Throws errc::store_unreachable.
  file_log(const std::string& path, std::size_t max_value_bytes);

  /// Locks the whole file for this open file description. False if another one holds the lock. Throws
  /// errc::store_failed.
  [[nodiscard]] bool try_lock();
  void unlock() noexcept;

  /// Applies the records that were appended since the last call to `table`. Without the lock: false if there is
  /// something that is not a valid record, which may be one that is being written; ignores an incomplete one at the
  /// end.
  [[nodiscard]] bool read_new(key_table& table);
  /// The same with the lock: there is no writer, so it truncates an incomplete record at the end, and writes the header
  /// if the file is empty. Throws errc::store_failed for a file that is not a store or is damaged,
  /// errc::version_mismatch.
  void read_new_and_repair(key_table& table);

  /// Whether a header has been read or written yet.
  [[nodiscard]] bool has_header() const noexcept { return offset_ != 0; }

  /// Appends a record and applies it. Call with the lock, after read_new_and_repair(). Throws errc::store_failed.
  void set(key_table& table, std::string_view key, std::string_view value);
  void erase(key_table& table, std::string_view key);

 private:
  enum class found { record, end, half, damaged };
  found read_record(key_table& table, std::uint64_t file_bytes);
  [[nodiscard]] std::uint64_t file_bytes() const;
  void read_at(char* out, std::size_t count, std::uint64_t offset) const;
  void append(char kind, std::string_view key, std::string_view value);
  void write_all(std::string_view bytes);
  void cut_to(std::uint64_t size) const;
  void read_header(std::uint64_t size);

  std::string path_;
  std::size_t max_record_bytes_;
  unique_fd fd_;
  std::uint64_t offset_ = 0;   // end of the last record applied; 0: the header has not been read
  std::uint64_t records_ = 0;  // records before offset_: the version of the last write, the same in every process
  std::string buffer_;
};

}  // namespace ferry::inline v0::detail
