#include "file_log.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../../base/signal_mask.hpp"
#include "../codec.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::string_view magic = "ferryKVS";
constexpr std::size_t header_bytes = 16;  // magic, version, reserved
constexpr std::size_t prelude_bytes = 8;  // length, checksum
constexpr char kind_set = 1;
constexpr char kind_erase = 2;

// CRC-32C (Castagnoli), reflected, table-driven.
constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? 0x82F63B78U : 0U);
    table[i] = value;
  }
  return table;
}();

std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc = 0) {
  crc = ~crc;
  for (const char each : bytes) crc = crc_table[(crc ^ static_cast<unsigned char>(each)) & 0xFFU] ^ (crc >> 8U);
  return ~crc;
}

std::string header() {
  std::string bytes(magic);
  put(bytes, file_log::version);
  put(bytes, std::uint32_t{0});
  return bytes;
}

}  // namespace

file_log::file_log(const std::string& path, std::size_t max_value_bytes)
    : path_(path), max_record_bytes_(1 + 4 + store::max_key_bytes + max_value_bytes) {
  fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd_) throw_errno(errc::store_unreachable, fmt::format("cannot open the store file '{}'", path), errno);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    throw_errno(errc::store_unreachable, fmt::format("cannot examine the store file '{}'", path), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw_error(errc::store_unreachable, fmt::format("'{}' is not a regular file, so it cannot be a file store", path));
  }
}

bool file_log::try_lock() {
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw_errno(errc::store_failed, fmt::format("cannot lock the store file '{}'", path_), errno);
  }
  return true;
}

void file_log::unlock() noexcept { ::flock(fd_.get(), LOCK_UN); }

std::uint64_t file_log::file_bytes() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    throw_errno(errc::store_failed, fmt::format("cannot examine the store file '{}'", path_), errno);
  }
  if (status.st_nlink == 0) {
    throw_error(errc::store_failed,
                fmt::format("the store file '{}' was removed while it was in use; processes that open it now would "
                            "not find this one",
                            path_));
  }
  if (std::cmp_less(status.st_size, offset_)) {
    throw_error(
        errc::store_failed,
        fmt::format(
            "the store file '{}' was truncated by another program to {} bytes while it was in use; {} had been read",
            path_, status.st_size, offset_));
  }
  return static_cast<std::uint64_t>(status.st_size);
}

void file_log::read_at(char* out, std::size_t count, std::uint64_t offset) const {
  while (count != 0) {
    const ssize_t got = ::pread(fd_.get(), out, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(errc::store_failed, fmt::format("cannot read the store file '{}'", path_), errno);
    if (got == 0) {
      // Truncated by a repairing writer after its size was read. The rest is no longer a complete record.
      std::fill_n(out, count, '\0');
      return;
    }
    out += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
}

void file_log::read_header(std::uint64_t size) {
  std::string bytes(std::min<std::uint64_t>(size, header_bytes), '\0');
  read_at(bytes.data(), bytes.size(), 0);
  if (std::string_view(bytes).substr(0, magic.size()) != magic.substr(0, bytes.size())) {
    throw_error(errc::store_failed,
                fmt::format("'{}' is not a ferry store file (it has another header); it was not changed. Choose a path "
                            "that does not exist yet",
                            path_));
  }
  if (size < header_bytes) return;
  field_reader fields(std::string_view(bytes).substr(magic.size()));
  const auto found_version = fields.get<std::uint32_t>();
  if (found_version != version) {
    throw_error(errc::version_mismatch, fmt::format("the store file '{}' has format version {}; this program uses {}",
                                                    path_, found_version, version));
  }
  offset_ = header_bytes;
}

file_log::found file_log::read_record(key_table& table, std::uint64_t size) {
  if (size == offset_) return found::end;
  if (size - offset_ < prelude_bytes) return found::half;
  std::array<char, prelude_bytes> prelude{};
  read_at(prelude.data(), prelude.size(), offset_);
  field_reader fields({prelude.data(), prelude.size()});
  const auto length = fields.get<std::uint32_t>();
  const auto checksum = fields.get<std::uint32_t>();
  if (length < 5 || length > max_record_bytes_) return found::damaged;
  if (size - offset_ - prelude_bytes < length) return found::half;
  buffer_.resize(length);
  read_at(buffer_.data(), length, offset_ + prelude_bytes);
  if (crc32c(buffer_, crc32c({prelude.data(), 4})) != checksum) return found::damaged;

  // The checksum is correct, so a writer of this format made it; the checks below are for one with other limits.
  field_reader body(buffer_);
  const char kind = body.get<char>();
  const auto key_bytes = body.get<std::uint32_t>();
  if (key_bytes == 0 || key_bytes > body.left() || (kind != kind_set && kind != kind_erase)) return found::damaged;
  const std::string_view key = body.take(key_bytes);
  ++records_;
  offset_ += prelude_bytes + length;
  if (kind == kind_set) {
    table.set(key, std::string(body.take(body.left())), records_);
  } else {
    table.erase(key);
  }
  return found::record;
}

bool file_log::read_new(key_table& table) {
  const std::uint64_t size = file_bytes();
  if (offset_ == 0) {
    if (size < header_bytes) return true;
    read_header(size);
  }
  for (;;) {
    switch (read_record(table, size)) {
      case found::record: break;
      case found::end:
      case found::half: return true;
      case found::damaged: return false;
    }
  }
}

void file_log::read_new_and_repair(key_table& table) {
  const std::uint64_t size = file_bytes();
  if (offset_ == 0) {
    read_header(size);
    if (size < header_bytes) {  // empty, or its creator was killed at once
      cut_to(0);
      write_all(header());
      offset_ = header_bytes;
      return;
    }
  }
  for (;;) {
    switch (read_record(table, size)) {
      case found::record: break;
      case found::end: return;
      case found::half: cut_to(offset_); return;
      case found::damaged:
        throw_error(errc::store_failed,
                    fmt::format("the store file '{}' is damaged: the record at byte {} has a wrong length or checksum "
                                "(records above {} bytes are refused)",
                                path_, offset_, max_record_bytes_));
    }
  }
}

void file_log::cut_to(std::uint64_t size) const {
  while (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
    if (errno != EINTR)
      throw_errno(errc::store_failed, fmt::format("cannot truncate the store file '{}'", path_), errno);
  }
}

void file_log::write_all(std::string_view bytes) {
  const writes_fail_by_error no_signals;
  std::size_t written = 0;
  while (written != bytes.size()) {
    const ssize_t put_now =
        ::pwrite(fd_.get(), bytes.data() + written, bytes.size() - written, static_cast<off_t>(offset_ + written));
    if (put_now >= 0) {
      written += static_cast<std::size_t>(put_now);
      continue;
    }
    if (errno == EINTR) continue;
    const int reason = errno;  // the disk is full, or a size limit or quota is reached
    cut_to(offset_);
    throw_errno(errc::store_failed, fmt::format("cannot write {} bytes to the store file '{}'", bytes.size(), path_),
                reason);
  }
}

void file_log::append(char kind, std::string_view key, std::string_view value) {
  std::string body;
  body.reserve(5 + key.size() + value.size());
  body.push_back(kind);
  put_string(body, key);
  body += value;

  std::string record;
  record.reserve(prelude_bytes + body.size());
  put(record, static_cast<std::uint32_t>(body.size()));
  put(record, crc32c(body, crc32c(record)));
  record += body;
  write_all(record);
  offset_ += record.size();
  ++records_;
}

void file_log::set(key_table& table, std::string_view key, std::string_view value) {
  append(kind_set, key, value);
  table.set(key, std::string(value), records_);
}

void file_log::erase(key_table& table, std::string_view key) {
  append(kind_erase, key, {});
  table.erase(key);
}

}  // namespace ferry::inline v0::detail
