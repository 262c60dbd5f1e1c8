// The file of a file store. Input: instructions, each an u8 and an u16 n:
//   0  the header of the file      1  the next n bytes as a record, with its length and checksum      2  n bytes as they are
// so that records with right checksums are met, which no fuzzer guesses.

#include <cstdlib>
#include <string>

#include <unistd.h>

#include "store/codec.hpp"
#include "store/file/file_log.hpp"
#include "targets.hpp"

namespace fuzz {
namespace file_store_target {
namespace {

namespace d = ferry::detail;

constexpr std::size_t longest_value = 65536;

// CRC-32C, bit by bit.
std::uint32_t checksum(std::string_view text, std::uint32_t before = 0) {
  std::uint32_t crc = ~before;
  for (const char each : text) {
    crc ^= static_cast<unsigned char>(each);
    for (int bit = 0; bit != 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

std::string make_file(bytes input) {
  std::string content;
  source from(input);
  while (!from.empty()) {
    const auto what = from.number<std::uint8_t>() % 3;
    const auto count = from.number<std::uint16_t>();
    if (what == 0) {
      content += "ferryKVS";
      d::put(content, d::file_log::version);
      d::put(content, std::uint32_t{0});
      continue;
    }
    const std::string_view part = text_of(from.take(count));
    if (what == 1) {
      std::string length;
      d::put(length, static_cast<std::uint32_t>(part.size()));
      content += length;
      d::put(content, checksum(part, checksum(length)));
    }
    content += part;
  }
  return content;
}

// One file that every run overwrites.
class scratch_file {
 public:
  scratch_file() {
    // In memory where that can be had: a file system on a disk makes this the slowest target by far.
    for (const char* folder : {"/dev/shm", "/tmp"}) {
      path_ = std::string(folder) + "/ferry-fuzz-XXXXXX";
      fd_ = ::mkstemp(path_.data());
      if (fd_ >= 0) break;
    }
    require(fd_ >= 0, "there is a temporary file");
  }
  ~scratch_file() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;

  void write(std::string_view content) const {
    require(::ftruncate(fd_, 0) == 0 &&
                ::pwrite(fd_, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()),
            "the temporary file is written");
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

bool equal(const d::key_table& a, const d::key_table& b) {
  if (a.bytes() != b.bytes() || a.count("") != b.count("")) return false;
  for (auto at = a.first("", ""); at != a.end(); at = a.first("", at->first)) {
    const auto* other = b.find(at->first);
    if (!other || other->value != at->second.value || other->version != at->second.version) return false;
  }
  return true;
}

void run(bytes input) {
  static const scratch_file file;
  file.write(make_file(input));
  d::key_table table;
  accepted([&] {
    d::file_log log(file.path(), longest_value);
    {
      d::key_table looked;
      d::file_log reader(file.path(), longest_value);
      accepted([&] { (void)reader.read_new(looked); });
      require(log.try_lock(), "no other process locks the file");
      log.read_new_and_repair(table);
      require(equal(looked, table), "a reader sees what a writer sees");
    }
    require(log.has_header(), "a repaired file has a header");
    log.set(table, "key", "value");
    log.erase(table, "other");
    d::key_table again;
    d::file_log reader(file.path(), longest_value);
    require(reader.read_new(again), "a repaired file is whole");
    require(equal(again, table), "what was written is read");
    log.unlock();
  });
}

void seeds(const seed_sink& sink) {
  const auto record = [](seed& out, char kind, std::string_view key, std::string_view value) {
    std::string body(1, kind);
    d::put_string(body, key);
    body += value;
    out.number(std::uint8_t{1}).number(static_cast<std::uint16_t>(body.size())).add(body);
  };
  seed whole;
  whole.number(std::uint8_t{0}).number(std::uint16_t{0});
  record(whole, 1, "a", "first");
  record(whole, 1, "b", "");
  record(whole, 2, "a", "");
  sink("whole", whole);
  sink("cut", seed(whole).number(std::uint8_t{2}).number(std::uint16_t{5}).add("\x20\0\0\0\1"));
  sink("empty", seed().number(std::uint8_t{2}).number(std::uint16_t{0}));
  sink("other", seed().number(std::uint8_t{2}).number(std::uint16_t{5}).add("other"));
}

}  // namespace
}  // namespace file_store_target

const target file_store{"file_store", &file_store_target::run, &file_store_target::seeds};

}  // namespace fuzz
