// Segments of shared memory and how they are handed over: which ones are accepted.

#include "transport/shm/shared_rings.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "expect_error.hpp"
#include "sealed_memfd.hpp"

namespace shared_rings_test {

namespace {

namespace d = ferry::detail;
using ferry::errc;

constexpr std::size_t ring_bytes = 4096;
constexpr std::size_t whole = d::ring_controls_bytes + 2 * ring_bytes;

void is_refused(const d::unique_fd& descriptor, const std::string& why, std::uint64_t claimed = ring_bytes) {
  expect_error(errc::handshake_failed, why, [&] { (void)d::shared_rings::adopt(descriptor, claimed); });
}

struct socket_pair {
  std::array<int, 2> ends{-1, -1};
  socket_pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0); }
  ~socket_pair() {
    for (int end : ends) ::close(end);
  }
  /// Sends bytes together with descriptors.
  void send(const void* bytes, std::size_t count, const std::vector<int>& descriptors) const {
    iovec part{const_cast<void*>(bytes), count};
    alignas(cmsghdr) std::array<std::byte, 256> extra{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!descriptors.empty()) {
      header.msg_control = extra.data();
      header.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
    }
    REQUIRE(::sendmsg(ends[0], &header, MSG_NOSIGNAL) == static_cast<ssize_t>(count));
  }
  void is_refused(const std::string& why) const {
    expect_error(errc::handshake_failed, why, [&] { (void)d::receive_offer(ends[1]); });
  }
};

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int each = 0; each != 1024; ++each) count += ::fcntl(each, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("a segment is memory whose size no end can change") {
  auto [rings, descriptor] = d::shared_rings::create(ring_bytes);
  CHECK(::ftruncate(descriptor.get(), 0) != 0);
  CHECK(errno == EPERM);
  CHECK(::ftruncate(descriptor.get(), static_cast<off_t>(2 * whole)) != 0);
  const auto other = d::shared_rings::adopt(descriptor, ring_bytes);

  std::string text = "over";
  std::string got(text.size(), ' ');
  const iovec from{text.data(), text.size()};
  const iovec into{got.data(), got.size()};
  bool wake = false;
  CHECK(rings->out().write({&from, 1}, wake) == text.size());
  CHECK(rings->in().read({&into, 1}, wake) == 0);
  CHECK(other->in().read({&into, 1}, wake) == text.size());
  CHECK(got == text);
  text = "back";
  CHECK(other->out().write({&from, 1}, wake) == text.size());
  CHECK(rings->in().read({&into, 1}, wake) == text.size());
  CHECK(got == text);
}

TEST_CASE("the size of rings for which none is given is that of a ring") {
  const std::size_t bytes = d::default_ring_bytes();
  CHECK(d::is_ring_size(bytes));
  CHECK(bytes >= std::size_t{128} * 1024);
  CHECK(bytes <= std::size_t{256} * 1024);
  auto [rings, descriptor] = d::shared_rings::create(bytes);
  CHECK(rings->out().capacity() == bytes);
}

TEST_CASE("sizes that no ring can have are refused at once") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{2048}, std::size_t{4097},
                                  std::size_t{3} << 20U, std::size_t{1} << 31U}) {
    CAPTURE(bytes);
    expect_error(errc::invalid_argument, "shm_ring_bytes", [&] { (void)d::shared_rings::create(bytes); });
    is_refused(shm_test::sealed_memfd(whole, F_SEAL_SHRINK | F_SEAL_GROW), "no size of a ring", bytes);
  }
}

TEST_CASE("a peer's segment must be sealed memory of its exact size") {
  constexpr int both = F_SEAL_SHRINK | F_SEAL_GROW;
  CHECK(d::shared_rings::adopt(shm_test::sealed_memfd(whole, both), ring_bytes) != nullptr);
  is_refused(shm_test::sealed_memfd(whole, 0), "not sealed");
  is_refused(shm_test::sealed_memfd(whole, F_SEAL_SHRINK), "not sealed");
  is_refused(shm_test::sealed_memfd(whole, F_SEAL_GROW), "not sealed");
  is_refused(shm_test::sealed_memfd(whole, F_SEAL_SEAL), "not sealed");
  is_refused(shm_test::sealed_memfd(whole - 1, both), "bytes, not");
  is_refused(shm_test::sealed_memfd(0, both), "bytes, not");
  is_refused(shm_test::sealed_memfd(whole + 4096, both), "bytes, not");
  is_refused(shm_test::sealed_memfd(whole, both), "bytes, not", 2 * ring_bytes);
  is_refused(shm_test::sealed_memfd(whole, both | F_SEAL_WRITE), "mapping shared memory");
}

TEST_CASE("descriptors of other things are refused") {
  std::string name = "/tmp/ferry-segment-XXXXXX";
  const d::unique_fd file(::mkstemp(name.data()));
  REQUIRE(file);
  ::unlink(name.c_str());
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(whole)) == 0);
  is_refused(file, "refused");
  std::array<int, 2> ends;
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const d::unique_fd one(ends[0]), two(ends[1]);
  is_refused(one, "not of sealed memory");
  is_refused(d::unique_fd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), "not of sealed memory");
  const d::unique_fd huge(::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge) {  // of no bytes, as the machine may have no huge pages
    REQUIRE(::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    is_refused(huge, "not ordinary memory");
  }
}

TEST_CASE("an offer comes whole, with one descriptor") {
  const auto good = d::rings_offer{ring_bytes}.encode();
  const auto [rings, segment] = d::shared_rings::create(ring_bytes);
  const auto before = open_descriptors();
  {
    const socket_pair link;
    SUBCASE("is accepted") {
      d::send_offer(link.ends[0], {ring_bytes}, segment);
      CHECK(d::receive_offer(link.ends[1]).rings != nullptr);
    }
    SUBCASE("without a descriptor") {
      link.send(good.data(), good.size(), {});
      link.is_refused("comes with 0 descriptors");
    }
    SUBCASE("with two") {
      link.send(good.data(), good.size(), {segment.get(), segment.get()});
      link.is_refused("comes with 2 descriptors");
    }
    SUBCASE("with host memory, which was agreed") {
      d::send_offer(link.ends[0], {ring_bytes}, segment, segment.get());
      const auto got = d::receive_offer(link.ends[1], true);
      CHECK(got.rings != nullptr);
      CHECK(got.host_memory);
    }
    SUBCASE("without host memory, which was agreed") {
      d::send_offer(link.ends[0], {ring_bytes}, segment);
      expect_error(errc::handshake_failed, "comes with 1 descriptors",
                   [&] { (void)d::receive_offer(link.ends[1], true); });
    }
    SUBCASE("with many") {
      link.send(good.data(), good.size(), std::vector<int>(40, segment.get()));
      link.is_refused("descriptors");
    }
    SUBCASE("cut off") {
      link.send(good.data(), good.size() - 1, {segment.get()});
      link.is_refused("cut off");
    }
    SUBCASE("of another kind") {
      auto other = good;
      other[1] = std::byte{'X'};
      link.send(other.data(), other.size(), {segment.get()});
      link.is_refused("not one");
    }
    SUBCASE("of another layout") {
      auto other = good;
      other[8] = std::byte{2};
      link.send(other.data(), other.size(), {segment.get()});
      link.is_refused("layout 2");
    }
    SUBCASE("of another size than its segment") {
      const auto other = d::rings_offer{2 * ring_bytes}.encode();
      link.send(other.data(), other.size(), {segment.get()});
      link.is_refused("bytes, not");
    }
    SUBCASE("from a peer that has gone") {
      ::shutdown(link.ends[0], SHUT_RDWR);
      CHECK(d::receive_offer(link.ends[1]).rings == nullptr);
    }
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a verdict comes with host memory where that was agreed, and only then") {
  const auto [rings, segment] = d::shared_rings::create(ring_bytes);
  const auto before = open_descriptors();
  {
    const socket_pair link;
    const auto yes = d::rings_verdict::encode_acceptance();
    const auto no = d::rings_verdict::encode_refusal(errc::resource_exhausted, "");
    const auto is_refused = [&](const std::string& why) {
      expect_error(errc::handshake_failed, why, [&] { (void)d::receive_verdict(link.ends[1]); });
    };
    SUBCASE("accepted") {
      d::send_acceptance(link.ends[0], segment.get());
      const auto got = d::receive_verdict(link.ends[1]);
      REQUIRE(got.verdict);
      CHECK(got.verdict->accepted());
      CHECK(got.host_memory);
    }
    SUBCASE("refused") {
      link.send(no.data(), no.size(), {});
      const auto got = d::receive_verdict(link.ends[1]);
      REQUIRE(got.verdict);
      CHECK(got.verdict->refused == errc::resource_exhausted);
      CHECK_FALSE(got.host_memory);
    }
    SUBCASE("accepted without memory") {
      link.send(yes.data(), yes.size(), {});
      is_refused("comes with 0 descriptors");
    }
    SUBCASE("accepted with two") {
      link.send(yes.data(), yes.size(), {segment.get(), segment.get()});
      is_refused("comes with 2 descriptors");
    }
    SUBCASE("refused with memory") {
      link.send(no.data(), no.size(), {segment.get()});
      is_refused("comes with 1 descriptors");
    }
    SUBCASE("cut off") {
      link.send(yes.data(), yes.size() - 1, {segment.get()});
      is_refused("cut off");
    }
    SUBCASE("from a peer that has gone") {
      ::shutdown(link.ends[0], SHUT_RDWR);
      CHECK_FALSE(d::receive_verdict(link.ends[1]).verdict);
    }
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a verdict says why, in as many bytes as it promised") {
  const auto read_back = [](const std::string& bytes) {
    return d::rings_verdict::decode(std::as_bytes(std::span(bytes)).first<d::rings_verdict::encoded_size>());
  };
  const auto yes = d::rings_verdict::encode_acceptance();
  CHECK(yes.size() == d::rings_verdict::encoded_size);
  CHECK(read_back(yes).accepted());
  const auto no = d::rings_verdict::encode_refusal(errc::resource_exhausted, "why");
  CHECK_FALSE(read_back(no).accepted());
  CHECK(read_back(no).text_bytes == 3);
  CHECK(no.substr(d::rings_verdict::encoded_size) == "why");
  CHECK(read_back(d::rings_verdict::encode_refusal(errc::handshake_failed, std::string(10'000, 'x'))).text_bytes ==
        d::rings_verdict::longest_text);
  CHECK(read_back(no).refused == errc::resource_exhausted);
  auto of_later = no;
  of_later[1] = 0x70;  // a number that this build does not know
  CHECK(read_back(of_later).refused == errc::handshake_failed);
  auto contradictory = yes;
  contradictory[4] = 1;
  expect_error(errc::handshake_failed, "cannot be read", [&] { (void)read_back(contradictory); });
  auto long_one = no;
  long_one[6] = 1;
  expect_error(errc::handshake_failed, "cannot be read", [&] { (void)read_back(long_one); });
}

}  // namespace shared_rings_test
