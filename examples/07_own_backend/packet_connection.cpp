#include "packet_connection.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <sys/socket.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/pack.hpp>

// ---- messages and packets

bool message_assembler::add(std::span<const std::byte> packet, ferry::inbound_message& whole) {
  if (!begun_) {
    if (packet.size() < ferry::frame_header::encoded_size) {
      ferry::throw_error(ferry::errc::protocol_error, "a message that is shorter than its header");
    }
    message_.header = ferry::frame_header::decode(packet.data(), limits_);
    packet = packet.subspan(ferry::frame_header::encoded_size);
    begun_ = true;
  }
  if (!body_done_) {
    const auto part = std::min<std::uint64_t>(packet.size(), message_.header.body_bytes() - body_.size());
    body_.insert(body_.end(), packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(part));
    packet = packet.subspan(part);
    if (body_.size() != message_.header.body_bytes()) return false;
    take_body();
  }
  add_to_tensors(packet);
  if (tensor_ != message_.tensors.size()) return false;
  whole = std::exchange(message_, {});
  begun_ = body_done_ = false;
  return true;
}

// Payload, extensions and tensor table are there. The tensors' data goes straight to where it belongs.
void message_assembler::take_body() {
  const ferry::frame_header& header = message_.header;
  message_.storage = ferry::shared_block::allocate(body_.size());
  if (!body_.empty()) std::memcpy(message_.storage.data(), body_.data(), body_.size());
  const std::span<const std::byte> body(message_.storage.data(), body_.size());
  body_ = {};
  message_.payload = body.first(static_cast<std::size_t>(header.payload_bytes));
  message_.extensions = body.subspan(message_.payload.size(), header.extension_bytes);
  message_.tensors = ferry::decode_tensor_table(header, body.last(header.table_bytes), limits_);
  tensor_ = filled_ = 0;
  body_done_ = true;
}

void message_assembler::add_to_tensors(std::span<const std::byte> bytes) {
  while (tensor_ != message_.tensors.size()) {
    const auto place = ferry::writable_packed_bytes(message_.tensors[tensor_]).subspan(filled_);
    const auto part = std::min(place.size(), bytes.size());
    std::copy_n(bytes.begin(), part, place.begin());
    bytes = bytes.subspan(part);
    filled_ += part;
    if (part != place.size()) return;
    ++tensor_;
    filled_ = 0;
  }
  if (!bytes.empty()) ferry::throw_error(ferry::errc::protocol_error, "a packet that goes on after its message");
}

// ---- the connection

packet_connection::packet_connection(ferry::reactor& loop, descriptor socket, std::string description,
                                     const ferry::wire_limits& limits)
    : loop_(loop), description_(std::move(description)), socket_(std::move(socket)), assembler_(limits) {
  turn_.run = [](ferry::work* item) noexcept {
    auto& self = *static_cast<turn*>(item)->of;
    std::shared_ptr<packet_connection> keep;  // outlives the lock
    std::unique_lock lock(self.mutex_);
    keep = std::move(self.turn_.of);
    self.serve(lock);
  };
}

void packet_connection::start(std::shared_ptr<ferry::connection_receiver> receiver) {
  const std::lock_guard lock(mutex_);
  receiver_ = std::move(receiver);
  if (!ended_) watch_ = loop_.watch(socket_.get(), shared_from_this(), true, true);
  ask_for_a_turn();  // what has arrived so far; and the receiver must be told if the connection has ended
}

void packet_connection::send(ferry::outgoing_message&& message) noexcept {
  const std::lock_guard lock(mutex_);
  if (closing_ || ended_) return;
  outbox_.push_back(std::move(message));
  if (outbox_.size() == 1) write();
}

void packet_connection::close(std::exception_ptr reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  if (closing_ || outbox_.empty()) return end(reason_ ? reason_ : std::move(reason));
  closing_ = true;
  reason_ = std::move(reason);
  write();
}

void packet_connection::on_ready(ferry::readiness) noexcept {
  std::unique_lock lock(mutex_);
  serve(lock);
}

// on_message and on_closed are called by the library's threads only.
void packet_connection::ask_for_a_turn() noexcept {
  if (!receiver_ || turn_.of) return;
  turn_.of = shared_from_this();
  loop_.post(&turn_);
}

// As many packets as the socket takes. The rest follows when it is writable again.
void packet_connection::write() noexcept {
  while (!outbox_.empty() && !ended_) {
    const ferry::outgoing_message& message = outbox_.front();
    // Header, payload, extensions and table lie in one piece, each tensor's data in another.
    std::size_t skip = written_;
    std::size_t room = largest_packet;
    std::vector<iovec> parts;
    const auto add = [&](std::span<const std::byte> piece) {
      const std::size_t passed = std::min(skip, piece.size());
      skip -= passed;
      piece = piece.subspan(passed, std::min(room, piece.size() - passed));
      room -= piece.size();
      if (!piece.empty()) parts.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
    };
    add(message.bytes.bytes());
    for (const auto& tensor : message.tensors) {
      if (room == 0 || parts.size() == 256) break;
      add(ferry::packed_bytes(tensor));
    }
    if (!parts.empty()) {
      msghdr packet{};
      packet.msg_iov = parts.data();
      packet.msg_iovlen = parts.size();
      const auto sent = ::sendmsg(socket_.get(), &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (sent < 0) {  // the peer has gone; what it sent before is still to be read, by the thread that reads
        outbox_.clear();
        if (closing_) end(reason_);
        return ask_for_a_turn();
      }
      written_ += static_cast<std::size_t>(sent);
    }
    if (written_ == message.bytes.size() + message.header.tensor_bytes) {
      outbox_.pop_front();
      written_ = 0;
    }
  }
  if (closing_) end(reason_);
}

// What is in the peer's socket by now will still be read there.
void packet_connection::end(std::exception_ptr reason) noexcept {
  if (ended_) return;
  ended_ = true;
  reason_ = std::move(reason);
  outbox_.clear();
  if (watch_ == ferry::watch_id::none) return socket_.close();  // not started
  ::shutdown(socket_.get(), SHUT_RDWR);                         // closed by serve(): another thread may be reading
  ask_for_a_turn();
}

// Reads, writes, and in the end tells the receiver, until there is nothing to do. One thread at a time.
void packet_connection::serve(std::unique_lock<std::mutex>& lock) noexcept {
  again_ = true;
  if (serving_ || !receiver_) return;
  serving_ = true;
  while (std::exchange(again_, false)) {
    write();
    try {
      while (!ended_ && read(lock)) {
      }
    } catch (...) {
      end(std::current_exception());
    }
    if (!ended_) continue;
    const auto receiver = std::exchange(receiver_, nullptr);
    const auto reason = reason_;
    if (watch_ != ferry::watch_id::none) loop_.unwatch(std::exchange(watch_, ferry::watch_id::none));
    socket_.close();
    lock.unlock();
    if (receiver) receiver->on_closed(*this, reason);
    lock.lock();
    break;
  }
  serving_ = false;
}

// One packet; false if there is none.
bool packet_connection::read(std::unique_lock<std::mutex>& lock) {
  const int socket = socket_.get();  // stays open while this thread is serving
  lock.unlock();
  const auto got = ::recv(socket, packet_.data(), packet_.size(), MSG_DONTWAIT);
  const int problem = got < 0 ? errno : 0;
  ferry::inbound_message message;
  const bool whole = got > 0 && assembler_.add({packet_.data(), static_cast<std::size_t>(got)}, message);
  lock.lock();
  if (problem == EAGAIN || problem == EWOULDBLOCK) return false;
  // A peer that closed without having read everything: said once, before what it sent itself can be read.
  if (problem == EINTR || problem == ECONNRESET) return true;
  if (got <= 0) {
    end(closing_ ? reason_
                 : ferry::make_error(ferry::errc::connection_lost,
                                     "the connection to " + description_ +
                                         (problem == 0 ? " was closed by the peer"
                                                       : " broke: " + std::system_category().message(problem))));
    return false;
  }
  if (whole && !closing_ && !ended_) {
    const auto receiver = receiver_;
    lock.unlock();
    receiver->on_message(*this, std::move(message));
    lock.lock();
  }
  return true;
}
