#include "inproc_connection.hpp"

#include <ferry/base/error.hpp>

#include <algorithm>

#include <ferry/tensor/shared_allocator.hpp>
#include <ferry/transport/channel.hpp>

#include "../../base/pause_processor.hpp"
#include "../channels/device_transfer.hpp"
#include "../reactor/held_output.hpp"
#include "../reactor/pending_copy.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::microseconds driver_yields_after{200};

inbound_message as_inbound(outgoing_message&& message, std::vector<tensor> tensors) {
  inbound_message result;
  result.header = message.header;
  result.tensors = std::move(tensors);
  result.storage = shared_block::adopt(std::move(message.bytes));
  const std::byte* at = result.storage.data() + frame_header::encoded_size;
  result.payload = {at, result.header.payload_bytes};
  result.extensions = {at + result.header.payload_bytes, result.header.extension_bytes};
  return result;
}

}  // namespace

std::pair<std::shared_ptr<inproc_connection>, std::shared_ptr<inproc_connection>> inproc_connection::make_pair(
    reactor& loop, end_settings first_end, end_settings second_end) {
  const auto threads = loop.shared_from_this();
  auto first = std::make_shared<inproc_connection>(threads, std::move(first_end));
  auto second = std::make_shared<inproc_connection>(threads, std::move(second_end));
  first->peer_ = second;
  second->peer_ = first;
  first->sent_ = second->received_;
  second->sent_ = first->received_;
  return {std::move(first), std::move(second)};
}

inproc_connection::inproc_connection(std::shared_ptr<reactor> loop, end_settings settings)
    : loop_(std::move(loop)),
      threads_(dynamic_cast<io_threads*>(loop_.get())),
      description_(std::move(settings.description)),
      spin_(settings.max_spin) {
  work_.end = this;
  work_.run = [](work* item) noexcept {
    inproc_connection& end = *static_cast<delivery*>(item)->end;
    const auto keep = std::move(end.posted_);  // posted_ is not accessed elsewhere while the work is queued
    std::unique_lock lock(end.mutex_);
    if (end.idle_since_ != clock::time_point()) end.spin_.slept(clock::now() - end.idle_since_);
    end.deliver(lock, nullptr);
    end.stop_serving();
    const bool held = end.serving_ == serving::held;
    lock.unlock();
    if (held) end.tell_monitor();
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
  if (closed_here_.load()) return;
  if (message.header.kind == frame_kind::request) held_output::release();
  try {
    if (message.on_devices()) return send_from_devices(std::move(message), *peer);
    for (tensor& each : message.tensors) {
      if (!become_copy(each)) each = channel_traits<inproc_tensors>::copy(each, {}, {});
    }
    std::vector<tensor> tensors = std::move(message.tensors);
    peer->receive(as_inbound(std::move(message), std::move(tensors)));
  } catch (...) {  // no memory: in-order delivery can no longer be kept
    close(std::current_exception());
  }
}

// A device error ends this call, not the connection.
void inproc_connection::send_from_devices(outgoing_message&& message, inproc_connection& peer) {
  device_transfer transfer;
  std::exception_ptr failure;
  try {
    transfer = transfer_tensors(message);
  } catch (const error&) {
    failure = std::current_exception();
  }
  inbound_message arriving = as_inbound(std::move(message), std::move(transfer.tensors));
  arriving.streams = std::move(transfer.streams);
  arriving.failure = std::move(failure);
  if (transfer.pending_copy.empty()) {
    peer.receive(std::move(arriving));
  } else {
    peer.receive_later(std::move(arriving), transfer.pending_copy);
  }
}

void inproc_connection::receive(inbound_message&& message) {
  auto next = std::make_unique<envelope>(std::move(message));
  const frame_header& header = next->message.header;
  const bool cancels = header.kind == frame_kind::cancel;
  if (!cancels && slot_.offer(next.get())) {
    (void)next.release();
    return;
  }
  std::unique_lock lock(mutex_);
  if (closed_) return;
  received_->bytes.fetch_add(header.message_bytes(), std::memory_order_relaxed);
  if (cancels && !pending_.empty()) {
    const auto given_up = std::find_if(pending_.begin(), pending_.end(), [&](const auto& each) {
      const frame_header& waiting = each->first->message.header;
      return waiting.kind == frame_kind::request && waiting.call_id == header.call_id;
    });
    if (given_up != pending_.end()) return (*given_up)->behind.push(std::move(next));
  }
  enqueue(std::move(next));
  if (serving_ != serving::held && serving_ != serving::driver) return wake();
  // After the mutex has been released: the other thread takes it at once.
  const bool sleeps = serving_ == serving::driver && driver_sleeps_;
  lock.unlock();
  slot_.poke();
  if (sleeps) news_.notify_all();
}

void inproc_connection::enqueue(std::unique_ptr<envelope> message) {
  if (message->message.header.kind == frame_kind::cancel)
    urgent_.push(std::make_unique<envelope>(inbound_message(message->message)));
  inbox_.push(std::move(message));
}

std::unique_ptr<envelope> inproc_connection::take_next() noexcept {
  auto next = (paused_ ? urgent_ : inbox_).pop();
  if (paused_) return next;
  received_->bytes.fetch_sub(next->message.header.message_bytes());
  // Its copy is the first one, unless that was delivered.
  if (!urgent_.empty() && urgent_.front().storage.data() == next->message.storage.data()) urgent_.pop();
  return next;
}

void inproc_connection::receive_later(inbound_message&& message, const std::vector<stream>& streams) {
  auto waiting = std::make_shared<pending_message>();
  waiting->first = std::make_unique<envelope>(std::move(message));
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    pending_.push_back(waiting);
    received_->bytes.fetch_add(waiting->first->message.header.message_bytes(), std::memory_order_relaxed);
  }
  pending_copy::watch(loop_, streams, [self = shared_from_this(), waiting](const std::exception_ptr& failure) {
    self->tensors_ready(waiting, failure);
  });
}

void inproc_connection::tensors_ready(const std::shared_ptr<pending_message>& which,
                                      const std::exception_ptr& failure) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(pending_.begin(), pending_.end(), which);
  if (found == pending_.end()) return;  // closed meanwhile
  pending_.erase(found);
  which->first->message.failure = failure;
  if (failure) which->first->message.tensors.clear();
  enqueue(std::move(which->first));
  while (!which->behind.empty()) enqueue(which->behind.pop());
  wake();
}

bool inproc_connection::tell_when_written(std::uint64_t bytes) noexcept {
  if (closed_here_.load()) return false;
  sent_->notify_at.store(bytes);
  return !sent_->reached();  // else the other end has received, or will receive, the request
}

void inproc_connection::notify_written() noexcept {
  std::shared_ptr<connection_receiver> receiver;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_here_.load()) receiver = receiver_;
  }
  if (receiver) receiver->on_written(*this);
}

void inproc_connection::pause_reading() noexcept {
  const std::lock_guard lock(mutex_);
  paused_ = true;
  slot_.poke();  // the thread that spins shuts the slot: what is sent from then on waits
}

void inproc_connection::resume_reading() noexcept {
  const std::lock_guard lock(mutex_);
  paused_ = false;
  wake();
}

void inproc_connection::close(std::exception_ptr reason) noexcept {
  envelope_queue unwanted, unwanted_copies;
  std::vector<std::shared_ptr<pending_message>> unwanted_too;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = std::move(reason);
    unwanted.swap(inbox_);
    unwanted_copies.swap(urgent_);
    unwanted_too.swap(pending_);
    received_->bytes.store(0);
    closed_here_.store(true);
    wake();
  }
  if (const auto peer = peer_.lock()) peer->peer_closed();
}

void inproc_connection::peer_closed() noexcept {
  auto reason = make_error(errc::connection_lost, "the connection to " + description_ + " was closed by the peer");
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;  // the inbox was sent before the close and is still delivered
  reason_ = std::move(reason);
  wake();
}

void inproc_connection::wake(bool elsewhere) noexcept {
  if (!receiver_ || nothing_to_do()) return;
  slot_.poke();
  if (serving_ == serving::driver) news_.notify_all();
  if (serving_ != serving::idle) return;
  serving_ = serving::reactor_thread;
  posted_ = shared_from_this();
  elsewhere ? loop_->post_elsewhere(&work_) : loop_->post(&work_);
}

void inproc_connection::stop_serving() noexcept {
  serving_ = serving::idle;
  idle_since_ = {};
  // A thread that holds an end would only be in the way of callers that wait for their own replies there.
  if (closed_ || paused_ || driven_ || threads_ == nullptr) return;
  budget_ = spin_.budget();
  if (budget_.count() != 0 && threads_->linger_on(shared_from_this())) {
    serving_ = serving::held;
    holder_ = std::this_thread::get_id();
    touched_.fetch_add(1, std::memory_order_relaxed);
    last_spin_ = clock::now();
  } else {
    idle_since_ = clock::now();
  }
}

void inproc_connection::tell_monitor() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(noted_, true)) return;
  }
  loop_->watch_later(shared_from_this(), io_threads::tick);
}

bool inproc_connection::take_from_holder() noexcept {
  if (delivering_) return false;
  const auto result = slot_.withdraw();
  if (result == handover_slot::withdrawal::withdrawn) spinner_leaves_ = true;
  return result != handover_slot::withdrawal::refused;
}

bool inproc_connection::resume_watching(bool now) noexcept {
  const std::lock_guard lock(mutex_);
  if (serving_ == serving::held) {
    const std::uint32_t touched = touched_.load(std::memory_order_relaxed);
    if (!now && std::exchange(seen_touched_, touched) != touched) return false;
    if (now && !held_here()) return true;  // another thread has it meanwhile
    if (!take_from_holder()) return false;
    serving_ = serving::idle;
    wake(true);
  }
  if (!now) noted_ = false;
  return true;
}

void inproc_connection::rescue() noexcept {
  const std::lock_guard lock(mutex_);
  if (serving_ != serving::held || nothing_to_do() || !take_from_holder()) return;
  serving_ = serving::idle;
  wake(true);
}

std::unique_ptr<envelope> inproc_connection::spin_for_news(std::unique_lock<std::mutex>& lock,
                                                           std::chrono::nanoseconds budget) noexcept {
  constexpr int looks_per_time = 16;
  const auto as = serving_;
  const auto holder = holder_;
  // While reading is paused what comes has to wait in the inbox, behind what waits there.
  const auto waits = [&] { return nothing_to_do() && !paused_ && !interrupted_; };
  if (!waits()) return nullptr;  // nothing was gained by spinning
  const auto started = last_spin_ = clock::now();
  bool expired = false;
  while (spinner_leaves_ && waits() && !expired) {
    lock.unlock();
    pause_processor();
    expired = clock::now() - started > budget;
    lock.lock();
  }
  if (spinner_leaves_ || serving_ != as || holder_ != holder) return nullptr;
  std::unique_ptr<envelope> message;
  while (waits() && !expired) {
    slot_.open();
    lock.unlock();
    while (slot_.is_open() && !expired) {
      for (int i = 0; i != looks_per_time && slot_.is_open(); ++i) pause_processor();
      expired = clock::now() - started > budget;
    }
    message = slot_.take();
    if (message) break;
    lock.lock();
    if (serving_ != as || holder_ != holder) {  // the end was taken from this thread
      spinner_leaves_ = false;
      break;
    }
    message = slot_.leave();
    if (message) {
      lock.unlock();
      break;
    }
  }
  // News that came late were not gained by spinning: the thread had lost its processor, which others need.
  expired ? spin_.failed() : spin_.succeeded();
  return message;
}

bool inproc_connection::linger(io_threads&) noexcept {
  std::unique_lock lock(mutex_);
  if (!held_here()) return false;
  // What came during a long handler could have been served beside it, by threads that are woken while no thread holds the end.
  const bool was_long = !nothing_to_do() && clock::now() - last_spin_ > 2 * budget_;
  if (was_long) {
    spin_.failed();
    serving_ = serving::idle;
    idle_since_ = last_spin_;
    wake();
    return false;
  }
  const bool may_stay = !closed_ && !paused_ && !driven_;  // what came from the slot may have changed that
  if (auto message = may_stay ? spin_for_news(lock, budget_) : nullptr) {
    receiver_->on_message(*this, std::move(message->message));
    message.reset();
    touched_.fetch_add(1, std::memory_order_relaxed);
    const bool stays = (budget_ = spin_.budget()).count() != 0;
    slot_.shut();
    if (stays) return true;
    lock.lock();
  }
  if (!held_here()) return false;
  if (!nothing_to_do()) {
    deliver(lock, nullptr);
    budget_ = closed_ || paused_ || driven_ ? std::chrono::nanoseconds(0) : spin_.budget();
    if (budget_.count() != 0) {
      touched_.fetch_add(1, std::memory_order_relaxed);
      const bool watched = noted_;
      lock.unlock();
      if (!watched) tell_monitor();
      return true;
    }
  }
  serving_ = serving::idle;
  idle_since_ = clock::now();
  wake();
  return false;
}

void inproc_connection::deliver(std::unique_lock<std::mutex>& lock, const drive_condition* stop) noexcept {
  delivering_ = true;
  while (!nothing_to_do()) {
    if (stop && stop->done()) break;
    if (!inbox_.empty()) {
      connection_receiver* const receiver = receiver_.get();  // only this function releases it
      auto message = take_next();
      lock.unlock();
      if (received_->reached()) {
        if (const auto peer = peer_.lock()) peer->notify_written();
      }
      receiver->on_message(*this, std::move(message->message));
      message.reset();
    } else {
      closed_reported_ = true;
      auto receiver = std::move(receiver_);
      auto self = std::move(self_);  // the caller keeps this alive
      const auto reason = reason_;
      lock.unlock();
      receiver->on_closed(*this, reason);
      receiver.reset();  // its destructor may run arbitrary code, so not under the lock
      self.reset();
    }
    lock.lock();
  }
  delivering_ = false;
}

bool inproc_connection::drive(const drive_condition& condition, deadline until) noexcept {
  const ordinary_memory_scope not_of_the_caller;
  std::unique_lock lock(mutex_);
  if (!receiver_) return false;
  driven_ = true;
  if (serving_ == serving::reactor_thread || delivering_) return false;
  if (serving_ == serving::driver) {
    // A thread that waits long for its own reply would cost every short call of others a thread switch: it yields.
    if (!driver_sleeps_ || clock::now() - driver_asleep_since_ < driver_yields_after) return false;
    news_.notify_all();
  }
  if (serving_ == serving::held && !take_from_holder()) return false;
  serving_ = serving::driver;
  driver_sleeps_ = interrupted_ = false;
  const auto own = ++drivers_;
  while (true) {
    deliver(lock, &condition);
    if (condition.done() || closed_reported_) break;
    const auto started = clock::now();
    if (started >= until.at()) break;
    const auto ready = [&] { return !nothing_to_do() || interrupted_ || drivers_ != own; };
    if (const auto budget = spin_.budget(); budget.count() != 0) {
      if (auto message = spin_for_news(lock, std::min<std::chrono::nanoseconds>(budget, until.at() - started))) {
        receiver_->on_message(*this, std::move(message->message));
        message.reset();
        slot_.shut();
        lock.lock();
        continue;
      }
      if (!ready()) {
        lock.unlock();
        if (const auto peer = peer_.lock()) peer->rescue();
        lock.lock();
      }
    }
    if (!ready()) {
      driver_sleeps_ = true;
      driver_asleep_since_ = started;
      if (until.is_never()) {
        news_.wait(lock, ready);
      } else {
        news_.wait_until(lock, until.at(), ready);
      }
      if (drivers_ != own) return condition.done();
      driver_sleeps_ = false;
      if (!nothing_to_do()) spin_.slept(clock::now() - started);
    }
    interrupted_ = false;
  }
  serving_ = serving::idle;
  interrupted_ = false;
  wake();
  return true;
}

void inproc_connection::interrupt_drive() noexcept {
  const std::lock_guard lock(mutex_);
  interrupted_ = serving_ == serving::driver;
  if (interrupted_) slot_.poke();
  news_.notify_all();
}

}  // namespace ferry::inline v0::detail
