#include "raw_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>

#include <sys/mman.h>
#include <sys/socket.h>

namespace ferry_bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t acknowledgement = 72;  // as large as a small reply of ferry

// The task of the other side, until a message arrives whose first byte is `last`.
enum class job_kind : int { ping_pong, batches, singles, transfer };
struct job {
  job_kind kind;
  waiting wait;
  bulk how;
  std::uint64_t bytes;
  std::uint64_t in_flight;
};
constexpr std::byte more{0};
constexpr std::byte last{1};

bool read_waiting(int from, std::byte* at, std::size_t size, waiting how) {
  if (how == waiting::blocking) return read_all(from, at, size);
  while (size != 0) {
    const ssize_t count = ::recv(from, at, size, MSG_DONTWAIT);
    if (count == 0) return false;
    if (count < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      throw std::system_error(errno, std::generic_category(), "recv");
    }
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

void write_waiting(int to, const std::byte* at, std::size_t size, waiting how) {
  if (how == waiting::blocking) return write_all(to, at, size);
  while (size != 0) {
    const ssize_t count = ::send(to, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      throw std::system_error(errno, std::generic_category(), "send");
    }
    at += count;
    size -= static_cast<std::size_t>(count);
  }
}

bool serve_ping_pong(const job& what, std::vector<std::byte>& buffer) {
  const std::size_t size = what.bytes * (what.kind == job_kind::batches ? what.in_flight : 1);
  buffer.resize(std::max(buffer.size(), size));
  do {
    if (!read_waiting(data_descriptor, buffer.data(), size, what.wait)) return false;
    write_all(data_descriptor, buffer.data(), size);
  } while (buffer[0] != last);
  return true;
}

bool serve_transfer(const job& what, std::vector<std::byte>& buffer) {
  // Warm: every page has been written before the first message.
  if (what.how != bulk::fresh) buffer.resize(std::max<std::size_t>(buffer.size(), what.bytes));
  std::byte first{};
  do {
    std::optional<mapped_memory> fresh;
    if (what.how == bulk::fresh) fresh.emplace(what.bytes);
    std::byte* const at = fresh ? fresh->data() : buffer.data();
    if (!read_waiting(data_descriptor, at, what.bytes, what.wait)) return false;
    first = at[0];
    write_waiting(data_descriptor, at, what.how == bulk::echo ? what.bytes : acknowledgement, what.wait);
  } while (first != last);
  return true;
}

}  // namespace

int serve_raw(const std::vector<std::string>&) {
  std::vector<std::byte> buffer;
  job what{};
  while (read_all(control_descriptor, &what, sizeof what)) {
    const bool served = what.kind == job_kind::transfer ? serve_transfer(what, buffer) : serve_ping_pong(what, buffer);
    if (!served) break;
  }
  return 0;
}

raw_pair::raw_pair(const std::string& kind, pin_mode pin) {
  descriptor_pair sockets = connected_sockets(kind);
  socket_ = std::move(sockets.first);
  child_ = child_process(raw_role, {}, &sockets.second);
  pin_process(0, pin, side::caller);
  pin_process(child_.id(), pin, side::callee);
}

std::vector<double> raw_pair::ping_pong(std::size_t bytes, waiting how, std::chrono::nanoseconds window) {
  const job what{job_kind::ping_pong, how, bulk::warm, bytes, 1};
  write_all(child_.control(), &what, sizeof what);
  std::vector<std::byte> buffer(bytes, more);
  const auto round_trip = [&] {
    write_all(socket_.get(), buffer.data(), bytes);
    read_waiting(socket_.get(), buffer.data(), bytes, how);
  };
  for (int i = 0; i != 20; ++i) round_trip();
  auto result = time_each(window, 20, round_trip);
  buffer[0] = last;
  round_trip();
  return result;
}

double raw_pair::stream_messages(std::size_t bytes, std::size_t in_flight, bool batched,
                                 std::chrono::nanoseconds window) {
  const job what{batched ? job_kind::batches : job_kind::singles, waiting::blocking, bulk::warm, bytes, in_flight};
  write_all(child_.control(), &what, sizeof what);
  std::vector<std::byte> buffer(bytes * in_flight, more);
  std::size_t messages = 0;
  const auto started = clock::now();
  if (batched) {
    const auto batch = [&] {
      write_all(socket_.get(), buffer.data(), buffer.size());
      read_all(socket_.get(), buffer.data(), buffer.size());
      messages += in_flight;
    };
    while (clock::now() - started < window) batch();
    const double seconds = std::chrono::duration<double>(clock::now() - started).count();
    const double rate = static_cast<double>(messages) / seconds;
    buffer[0] = last;
    batch();
    return rate;
  }
  for (std::size_t i = 0; i != in_flight; ++i) write_all(socket_.get(), buffer.data(), bytes);
  while (clock::now() - started < window) {
    read_all(socket_.get(), buffer.data(), bytes);
    write_all(socket_.get(), buffer.data(), bytes);
    ++messages;
  }
  const double seconds = std::chrono::duration<double>(clock::now() - started).count();
  for (std::size_t i = 0; i != in_flight; ++i) read_all(socket_.get(), buffer.data(), bytes);
  buffer[0] = last;
  write_all(socket_.get(), buffer.data(), bytes);
  read_all(socket_.get(), buffer.data(), bytes);
  return static_cast<double>(messages) / seconds;
}

std::vector<double> raw_pair::transfer(std::size_t bytes, bulk how, waiting wait, std::chrono::nanoseconds window,
                                       std::size_t least) {
  const job what{job_kind::transfer, wait, how, bytes, 1};
  write_all(child_.control(), &what, sizeof what);
  // Kept between measurements: warming it up takes longer than using it.
  if (!sent_ || sent_->size() != bytes) {
    sent_.emplace(bytes);
    received_.emplace(bytes);
    std::memset(received_->data(), 0, bytes);
  }
  std::memset(sent_->data(), 0, bytes);
  const auto once = [&] {
    write_waiting(socket_.get(), sent_->data(), bytes, wait);
    read_waiting(socket_.get(), received_->data(), how == bulk::echo ? bytes : acknowledgement, wait);
  };
  if (least > 1) once();
  auto result = time_each(window, least, once);
  sent_->data()[0] = last;
  once();
  return result;
}

mapped_memory::mapped_memory(std::size_t size) : size_(size), mapped_(size + huge_page) {
  void* const memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  mapping_ = static_cast<std::byte*>(memory);
  data_ = mapping_ + (huge_page - reinterpret_cast<std::uintptr_t>(memory) % huge_page) % huge_page;
  if (size >= huge_page) ::madvise(data_, size_, MADV_HUGEPAGE);
}

mapped_memory::~mapped_memory() { ::munmap(mapping_, mapped_); }

}  // namespace ferry_bench
