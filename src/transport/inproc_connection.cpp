#include "inproc_connection.hpp"

#include <ferry/base/error.hpp>
#include <ferry/tensor/pack.hpp>

#include <cstring>

namespace ferry::inline v0::detail {
namespace {

// The receiver must not see what the sender does to its tensors afterwards, nor the other way round.
tensor copy_of(const tensor& packed) {
  const auto& shape = packed.shape();
  const auto& strides = packed.strides();
  auto result =
      empty_packed(packed.dtype(), {shape.begin(), shape.size()}, {strides.begin(), strides.size()}, packed.device());
  const auto from = packed_bytes(packed);
  const auto to = writable_packed_bytes(result);
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  return result;
}

inbound_message hand_over(outgoing_message&& message) {
  inbound_message result;
  result.header = message.header;
  result.tensors.reserve(message.tensors.size());
  for (const auto& sent : message.tensors) result.tensors.push_back(copy_of(sent));
  result.storage = shared_block::adopt(std::move(message.bytes));
  const std::byte* at = result.storage.data() + frame_header::encoded_size;
  result.extensions = {at, result.header.extension_bytes};
  result.payload = {at + result.header.extension_bytes, result.header.payload_bytes};
  return result;
}

}  // namespace

std::pair<std::shared_ptr<inproc_connection>, std::shared_ptr<inproc_connection>> inproc_connection::make_pair(
    reactor& loop, std::string first_sees, std::string second_sees) {
  const auto threads = static_cast<io_threads&>(loop).shared_from_this();
  auto first = std::make_shared<inproc_connection>(threads, std::move(first_sees));
  auto second = std::make_shared<inproc_connection>(threads, std::move(second_sees));
  first->peer_ = second;
  second->peer_ = first;
  first->sent_ = second->received_;
  second->sent_ = first->received_;
  return {std::move(first), std::move(second)};
}

inproc_connection::inproc_connection(std::shared_ptr<io_threads> loop, std::string description)
    : loop_(std::move(loop)), description_(std::move(description)) {
  work_.end = this;
  work_.run = [](work* item) noexcept {
    inproc_connection& end = *static_cast<delivery*>(item)->end;
    const auto keep = std::move(end.posted_);  // nobody else touches posted_ while the work is queued
    std::unique_lock lock(end.mutex_);
    end.deliver(lock, nullptr);
    end.serving_ = serving::nobody;
  };
}

inproc_connection::~inproc_connection() {
  if (closed_) return;
  if (const auto peer = peer_.lock()) peer->peer_closed();
}

void inproc_connection::start(std::shared_ptr<connection_receiver> receiver) {
  const std::lock_guard lock(mutex_);
  receiver_ = std::move(receiver);
  self_ = shared_from_this();
  wake();
}

void inproc_connection::send(outgoing_message&& message) noexcept {
  const auto peer = peer_.lock();
  if (!peer) return;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
  }
  try {
    peer->receive(hand_over(std::move(message)));
  } catch (...) {  // no memory: what was promised to arrive in order cannot
    close(std::current_exception());
  }
}

void inproc_connection::receive(inbound_message&& message) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  received_->bytes.fetch_add(message.header.message_bytes(), std::memory_order_relaxed);
  inbox_.push_back(std::move(message));
  wake();
}

bool inproc_connection::tell_when_written(std::uint64_t bytes) noexcept {
  sent_->tell_at.store(bytes);
  return !sent_->reached();  // else the other end has seen, or sees, the question
}

void inproc_connection::tell_written() noexcept {
  std::shared_ptr<connection_receiver> receiver;
  {
    const std::lock_guard lock(mutex_);
    receiver = receiver_;
  }
  if (receiver) receiver->on_written(*this);
}

void inproc_connection::pause_reading() noexcept {
  const std::lock_guard lock(mutex_);
  paused_ = true;
}

void inproc_connection::resume_reading() noexcept {
  const std::lock_guard lock(mutex_);
  paused_ = false;
  wake();
}

void inproc_connection::close(std::exception_ptr reason) noexcept {
  std::deque<inbound_message> unwanted;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = std::move(reason);
    unwanted.swap(inbox_);
    received_->bytes.store(0);
    wake();
  }
  if (const auto peer = peer_.lock()) peer->peer_closed();
}

void inproc_connection::peer_closed() noexcept {
  auto reason = make_error(errc::connection_lost, "the connection to " + description_ + " was closed by the peer");
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;  // what is in the inbox was sent before, and is still delivered
  reason_ = std::move(reason);
  wake();
}

void inproc_connection::wake() noexcept {
  if (!receiver_ || nothing_to_do()) return;
  if (serving_ == serving::driver) news_.notify_all();
  if (serving_ != serving::nobody) return;
  serving_ = serving::reactor_thread;
  posted_ = shared_from_this();
  loop_->post(&work_);
}

void inproc_connection::deliver(std::unique_lock<std::mutex>& lock, const drive_condition* stop) noexcept {
  while (!nothing_to_do()) {
    if (stop && stop->done()) return;
    auto receiver = receiver_;
    if (!inbox_.empty()) {
      auto message = std::move(inbox_.front());
      inbox_.pop_front();
      received_->bytes.fetch_sub(message.header.message_bytes());
      lock.unlock();
      if (received_->reached()) {
        if (const auto peer = peer_.lock()) peer->tell_written();
      }
      receiver->on_message(*this, std::move(message));
      receiver.reset();
    } else {
      told_ = true;
      receiver_ = nullptr;
      auto self = std::move(self_);  // the caller keeps this alive
      const auto reason = reason_;
      lock.unlock();
      receiver->on_closed(*this, reason);
      receiver.reset();  // its destructor may do anything, so not under the lock
      self.reset();
    }
    lock.lock();
  }
}

bool inproc_connection::drive(const drive_condition& condition, deadline until) noexcept {
  const auto keep = shared_from_this();
  std::unique_lock lock(mutex_);
  if (serving_ != serving::nobody || !receiver_) return false;
  serving_ = serving::driver;
  while (true) {
    deliver(lock, &condition);
    if (condition.done() || told_) break;
    const auto ready = [this] { return !nothing_to_do() || std::exchange(interrupted_, false); };
    if (until.is_never()) {
      news_.wait(lock, ready);
    } else if (!news_.wait_until(lock, until.at(), ready)) {
      break;
    }
  }
  serving_ = serving::nobody;
  interrupted_ = false;
  wake();
  return true;
}

void inproc_connection::interrupt_drive() noexcept {
  const std::lock_guard lock(mutex_);
  interrupted_ = serving_ == serving::driver;
  news_.notify_all();
}

}  // namespace ferry::inline v0::detail
