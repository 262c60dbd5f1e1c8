#include <ferry/store/file_store.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <ferry/test_kit/child_process.hpp>
#include <ferry/test_kit/store_conformance.hpp>

#include "tests/store/store_fixtures.hpp"

namespace file_store_test {

using namespace store_test;

namespace {

std::string content(const std::string& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}
void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

TEST_CASE("a file that cannot be opened is named with the reason") {
  const temporary_directory directory;
  std::string text;
  CHECK(kind_of([&] { ferry::file_store(directory.file("no/such/store")); }, &text) == ferry::errc::store_unreachable);
  CHECK(contains(text, directory.file("no/such/store")));
  CHECK(contains(text, "No such file or directory"));
  CHECK(kind_of([&] { ferry::file_store(directory.file("")); }) == ferry::errc::store_unreachable);
  REQUIRE(::mkfifo(directory.file("pipe").c_str(), 0600) == 0);
  CHECK(kind_of([&] { ferry::file_store(directory.file("pipe")); }, &text) == ferry::errc::store_unreachable);
  CHECK(contains(text, "regular file"));
  if (::geteuid() != 0) {  // root may write anywhere
    write(directory.file("locked"), "");
    ::chmod(directory.file("locked").c_str(), 0400);
    CHECK(kind_of([&] { ferry::file_store(directory.file("locked")); }) == ferry::errc::store_unreachable);
  }
}

TEST_CASE("a file of another format is refused and not changed") {
  const temporary_directory directory;
  for (const std::string bytes : {"my thesis, third draft, the only copy", "ferry", "x"}) {
    const std::string path = directory.file("thesis");
    write(path, bytes);
    if (bytes == "ferry") {  // the start of a header: its creator was killed while it wrote
      ferry::file_store(path).set("k", "v");
      continue;
    }
    std::string text;
    CHECK(kind_of([&] { ferry::file_store store(path); }, &text) == ferry::errc::store_failed);
    CHECK(contains(text, "not a ferry store file"));
    CHECK(content(path) == bytes);
  }
}

TEST_CASE("an unsupported format version is reported") {
  const temporary_directory directory;
  write(directory.file("store"), std::string("ferryKVS\x02\0\0\0\0\0\0\0", 16));
  std::string text;
  CHECK(kind_of([&] { ferry::file_store(directory.file("store")); }, &text) == ferry::errc::version_mismatch);
  CHECK(contains(text, "version 2"));
  CHECK(contains(text, "uses 1"));
}

TEST_CASE("a record torn at any byte is ignored, and the next writer truncates it") {
  const temporary_directory directory;
  const std::string path = directory.file("store");
  std::string one;
  std::string both;
  {
    ferry::file_store store(path);
    store.set("first", "1");
    one = content(path);
    store.set("second", "2");
    both = content(path);
  }
  for (std::size_t size = one.size(); size < both.size(); ++size) {
    write(path, one);
    ferry::file_store reader(path);
    write(path, both.substr(0, size));  // here a writer is killed
    CHECK(reader.try_get("second") == std::nullopt);
    CHECK(reader.get("first") == "1");
    ferry::file_store writer(path);
    writer.set("third", "3");
    CHECK(reader.get("third") == "3");
    CHECK(reader.list().size() == 2);
  }
}

TEST_CASE("every flipped bit is detected") {
  const temporary_directory directory;
  const std::string path = directory.file("store");
  {
    ferry::file_store store(path);
    store.set("first", "1");
    store.set("second", "2");
  }
  const std::string good = content(path);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    const std::size_t byte = bit / 8;
    if (byte >= 12 && byte < 16) continue;  // reserved
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << (bit % 8)));
    write(path, bad);
    try {
      ferry::file_store store(path);
      // A length that became larger looks like a record torn at the end, which is truncated; nothing false is read.
      for (const auto& [key, value] : store.list())
        CHECK(((key == "first" && value == "1") || (key == "second" && value == "2")));
    } catch (const ferry::error& problem) {
      CHECK((problem.kind() == ferry::errc::store_failed || problem.kind() == ferry::errc::version_mismatch));
      CHECK(contains(problem.what(), path));
    }
  }
}

TEST_CASE("a length is checked before it is used") {
  const temporary_directory directory;
  const std::string path = directory.file("store");
  { const ferry::file_store store(path); }
  const std::string header = content(path);
  write(path, header + std::string("\xff\xff\xff\xff", 4) + std::string(100, 'x'));
  std::string text;
  CHECK(kind_of([&] { ferry::file_store store(path); }, &text) == ferry::errc::store_failed);
  CHECK(contains(text, "damaged"));
}

TEST_CASE("a full disk is an error that leaves the store intact") {
  file_fixture fixture;
  const auto store = fixture.open();
  child_process child = start_role(fixture, "role: write beyond the file size limit");
  CHECK(child.wait() == 0);
  CHECK(store->get("before") == "1");
  CHECK(store->get("after") == "2");
  CHECK(store->try_get("large") == std::nullopt);
}

TEST_CASE("a file that is removed while it is in use is an error, not an endless wait") {
  const temporary_directory directory;
  const std::string path = directory.file("store");
  ferry::file_store store(path);
  counting_observer observer;
  auto waiting = start_blocking(observer, [&] { return kind_of([&] { return store.get("never", plenty); }); });
  std::filesystem::remove(path);
  CHECK(waiting.get() == ferry::errc::store_failed);
  std::string text;
  CHECK(kind_of([&] { store.set("k", "v"); }, &text) == ferry::errc::store_failed);
  CHECK(contains(text, "removed"));
}

TEST_CASE("a lock that is never released ends in a timeout, and close ends the wait for it") {
  const temporary_directory directory;
  const std::string path = directory.file("store");
  ferry::file_store store(path);
  const int holder = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::flock(holder, LOCK_EX) == 0);
  store.set_default_timeout(20ms);
  std::string text;
  CHECK(kind_of([&] { store.set("k", "v"); }, &text) == ferry::errc::store_timeout);
  CHECK(contains(text, "lock"));
  CHECK(ferry::file_store(path, 5ms).try_get("k") == std::nullopt);  // reading needs no lock
  store.set_default_timeout(plenty);
  counting_observer observer;
  auto waiting = start_blocking(observer, [&] { return kind_of([&] { store.set("k", "v"); }); });
  store.close();
  CHECK(waiting.get() == ferry::errc::store_failed);
  ::close(holder);
}

}  // namespace file_store_test
