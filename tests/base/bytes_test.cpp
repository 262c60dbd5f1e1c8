#include <ferry/base/bytes.hpp>

#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace bytes_test {

using ferry::byte_buffer;
using ferry::shared_block;

namespace {

byte_buffer buffer_of(const std::string& text) {
  byte_buffer result;
  result.append(text.data(), text.size());
  return result;
}

std::string text_of(const shared_block& block, std::size_t size) {
  return {reinterpret_cast<const char*>(block.data()), size};
}

}  // namespace

TEST_CASE("a byte buffer keeps what is appended while it grows") {
  byte_buffer bytes;
  std::string expected;
  for (std::size_t i = 0; i != 5000; ++i) {
    const std::string piece(i % 97, static_cast<char>('a' + i % 26));
    bytes.append(piece.data(), piece.size());
    expected += piece;
  }
  REQUIRE(bytes.size() == expected.size());
  CHECK(std::memcmp(bytes.data(), expected.data(), expected.size()) == 0);
}

TEST_CASE("a shared block of any size holds what was adopted") {
  for (std::size_t size : {0, 1, 72, 959, 960, 961, 1024, 5000, 65535, 65536, 65537, 300000}) {
    CAPTURE(size);
    const std::string text(size, 'x');
    shared_block first = shared_block::adopt(buffer_of(text));
    shared_block second = first;
    CHECK_FALSE(first.unique());
    first.reset();
    CHECK(second.unique());
    CHECK(text_of(second, size) == text);
  }
}

TEST_CASE("a message that waits holds little more memory than its bytes") {
  for (std::size_t size : {0, 1, 100, 900, 2000, 10000, 60000, 100000}) {
    CAPTURE(size);
    CHECK(shared_block::adopt(buffer_of(std::string(size, 'x'))).capacity() <= size + 1024);
    CHECK(shared_block::allocate(size).capacity() <= 2 * size + 1024);
    CHECK(shared_block::allocate(size).capacity() >= size);
  }
}

TEST_CASE("blocks may be freed on other threads than they were allocated on") {
  std::vector<shared_block> blocks;
  for (int i = 0; i != 1000; ++i) {
    blocks.push_back(i % 3 == 0 ? shared_block::allocate(100) : shared_block::adopt(buffer_of(std::to_string(i))));
    if (i % 3 == 0) std::memset(blocks.back().data(), i, blocks.back().capacity());
  }
  for (int i = 0; i != 1000; ++i) {
    if (i % 3 != 0) CHECK(text_of(blocks[i], std::to_string(i).size()) == std::to_string(i));
  }
  std::thread([taken = std::move(blocks)]() mutable { taken.clear(); }).join();
}

}  // namespace bytes_test
