#include "passed_descriptors.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

void send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                           std::string_view attempt) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most_passed_descriptors * sizeof(int))> extra{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = extra.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(bytes.size()))
    throw_errno(errc::system_failure, attempt, sent < 0 ? errno : EMSGSIZE);
}

received_with_descriptors receive_with_descriptors(int socket, std::span<std::byte> bytes, std::span<unique_fd> given) {
  iovec part{bytes.data(), bytes.size()};
  // Room for one descriptor too many; the kernel closes those beyond.
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE((most_passed_descriptors + 1) * sizeof(int))> extra{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = extra.data();
  header.msg_controllen = CMSG_SPACE((given.size() + 1) * sizeof(int));
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == ECONNRESET) got = 0;  // it closed the connection before it had read all
  if (got < 0)
    throw_error(errc::handshake_failed, fmt::format("what it hands over could not be read: {}", std::strerror(errno)));
  received_with_descriptors result{static_cast<std::size_t>(got), 0, (header.msg_flags & MSG_CTRUNC) != 0};
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t held = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i != held; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(each) + i * sizeof(int), sizeof descriptor);
      unique_fd owned(descriptor);
      if (result.descriptors < given.size()) given[result.descriptors] = std::move(owned);
      ++result.descriptors;
    }
  }
  return result;
}

}  // namespace ferry::inline v0::detail
