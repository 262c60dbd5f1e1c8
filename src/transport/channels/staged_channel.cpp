#include "staged_channel.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/transport/channel.hpp>

#include "../../device/device_state.hpp"
#include "../reactor/pending_copy.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Where a stream of the device is stalled, others get this part of the limit.
constexpr int suspicious_limit = 10;

// A piece of a tensor on its way to the host. Kept until the device has written it, even if all other users have
// dropped it.
struct outgoing_piece {
  outgoing_piece(const tensor& whole, std::size_t size) : of(whole), block(whole.device(), size), bytes(size) {}

  const tensor of;  // foreign memory is controlled by its owner: it must be kept until it has been read
  pinned_block block;
  const std::size_t bytes;
  std::exception_ptr failure;  // set before `arrived`
  std::atomic<bool> arrived{false};
};

class staged_source final : public tensor_source {
 public:
  staged_source(const tensor& packed, const stream& on, const channel_context& context)
      : tensor_(packed), bytes_(packed_bytes(packed)), on_(on), context_(context) {
    tensor_.storage().record_use(on_);
  }

  void fetch(std::size_t ahead) override {
    while (queued_ != bytes_.size()) {
      const std::size_t size = std::min(staging_piece, bytes_.size() - queued_);
      if (fetched() + size > ahead || !context_.ring->may_queue(on_)) return;
      // The pieces under way bring the news by which this goes on.
      if (!pieces_.empty() && pinned_memory_is_short(on_.device(), size)) return;
      auto piece = std::make_shared<outgoing_piece>(tensor_, size);
      piece->block.begin_use();
      const device from = tensor_.device();
      operations_of(from.kind).copy({}, piece->block.data(), from, bytes_.data() + queued_, size, on_.device(),
                                    on_.handle());
      piece->block.release_after(on_);
      pieces_.push_back(piece);
      queued_ += size;
      pending_copy::watch(
          context_.loop, {on_},
          [piece, news = context_.news](std::exception_ptr failure) {
            piece->failure = std::move(failure);
            piece->arrived.store(true, std::memory_order_release);
            news();
          },
          context_.news);
      (void)context_.ring->queued(on_, size);
    }
  }
  [[nodiscard]] std::size_t fetched() const noexcept override { return queued_ - consumed_; }
  std::span<const std::byte> ready() override {
    if (pieces_.empty() || !pieces_.front()->arrived.load(std::memory_order_acquire)) {
      if (consumed_ != bytes_.size()) context_.ring->check(on_);
      return {};
    }
    const outgoing_piece& first = *pieces_.front();
    if (first.failure) std::rethrow_exception(first.failure);
    return {static_cast<const std::byte*>(first.block.data()) + consumed_of_first_, first.bytes - consumed_of_first_};
  }
  void consume(std::size_t bytes) noexcept override {
    consumed_ += bytes;
    consumed_of_first_ += bytes;
    if (consumed_of_first_ == pieces_.front()->bytes) {
      pieces_.pop_front();
      consumed_of_first_ = 0;
    }
  }

 private:
  const tensor tensor_;
  const std::span<const std::byte> bytes_;
  const stream on_;
  const channel_context context_;
  std::deque<std::shared_ptr<outgoing_piece>> pieces_;
  std::size_t queued_ = 0;
  std::size_t consumed_ = 0;
  std::size_t consumed_of_first_ = 0;
};

class staged_sink final : public tensor_sink {
 public:
  staged_sink(const tensor& into, const stream& on, const channel_context& context)
      : tensor_(into), bytes_(writable_packed_bytes(into)), on_(on), context_(context) {
    tensor_.storage().record_use(on_);
  }

  std::span<std::byte> room() override {
    if (queued_ == bytes_.size()) return {};
    watch_->check();
    if (!block_) {
      size_ = std::min(staging_piece, bytes_.size() - queued_);
      filled_ = 0;
      if (pinned_memory_is_short(on_.device(), size_) && context_.ring->under_way(on_)) {
        if (watch_->begin()) watch_copies();  // else the end of earlier ones is going to be reported
        return {};
      }
      block_ = context_.ring->take(on_, size_);
      if (!block_) return {};
    }
    return {static_cast<std::byte*>(block_->data()) + filled_, size_ - filled_};
  }
  void commit(std::size_t bytes) override {
    filled_ += bytes;
    if (filled_ != size_) return;
    const device to = tensor_.device();
    block_->begin_use();
    operations_of(to.kind).copy(to, bytes_.data() + queued_, {}, block_->data(), size_, on_.device(), on_.handle());
    block_->release_after(on_);
    queued_ += size_;
    block_.reset();
    if (context_.ring->queued(on_, size_)) watch_copies();
  }

 private:
  void watch_copies() {
    pending_copy::watch(
        context_.loop, {on_},
        [news = context_.news, watch = watch_](std::exception_ptr failure) {
          watch->end(std::move(failure));
          news();
        },
        context_.news);
  }

  const tensor tensor_;
  const std::span<std::byte> bytes_;
  const stream on_;
  const channel_context context_;
  // A device that cannot be watched never reports completion, so the message fails.
  class watch_result {
   public:
    // False if a watch has begun and not ended.
    bool begin() noexcept {
      const std::lock_guard lock(mutex_);
      return !std::exchange(watching_, true);
    }
    void end(std::exception_ptr failure) noexcept {
      const std::lock_guard lock(mutex_);
      watching_ = false;
      if (failure) failure_ = std::move(failure);
    }
    void check() const {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
    }

   private:
    mutable std::mutex mutex_;
    bool watching_ = false;
    std::exception_ptr failure_;
  };
  const std::shared_ptr<watch_result> watch_ = std::make_shared<watch_result>();
  std::unique_ptr<pinned_block> block_;  // being filled
  std::size_t size_ = 0;                 // of the piece in block_
  std::size_t filled_ = 0;
  std::size_t queued_ = 0;
};

}  // namespace

staging_ring::lane* staging_ring::find(const stream& on) noexcept {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(), [&](const lane& each) { return each.on == on; });
  return found == lanes_.end() ? nullptr : &*found;
}

void staging_ring::reap(lane& of, clock::time_point now) noexcept {
  while (!of.copies.empty()) {
    try {
      if (!of.copies.front().end.done()) return;
    } catch (const error&) {  // the device has failed; the message reports that, and this memory has no reader
    }
    of.bytes -= of.copies.front().bytes;
    of.copies.pop_front();
    of.since = now;
    for (progress& each : progress_) {
      if (each.where == of.on.device()) each.last = now;
    }
  }
}

void staging_ring::reap(clock::time_point now) noexcept {
  for (lane& each : lanes_) reap(each, now);
  std::erase_if(lanes_, [](const lane& each) { return each.copies.empty(); });
}

// Whether a stream of the device, apart from that of `besides`, is stalled, and nothing shows that others are not.
bool staging_ring::device_stalls(device where, const lane* besides, clock::time_point now) const noexcept {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const lane& each) {
    if (&each == besides || each.on.device() != where || !exceeds(each, limit_, now)) return false;
    const auto known =
        std::find_if(progress_.begin(), progress_.end(), [&](const progress& of) { return of.where == where; });
    return known == progress_.end() || known->last < each.since + limit_;
  });
}

bool staging_ring::stalled(const lane& one, clock::time_point now) const noexcept {
  return exceeds(one, limit_, now) ||
         (exceeds(one, limit_ / suspicious_limit, now) && device_stalls(one.on.device(), &one, now));
}

// With mutex_ held. The process may have slept: the device is asked before a stream counts as stalled.
bool staging_ring::stalled_for_certain(const stream& on) {
  const auto now = clock::now();
  const lane* found = find(on);
  if (!found || !stalled(*found, now)) return false;
  reap(now);
  found = find(on);
  return found && stalled(*found, now);
}

// The text begins with what a transfer status has room for.
void staging_ring::give_up(const stream& on) const {
  const auto text = fmt::format(
      "copies {} {} made no progress for {:g} s: end the work that hangs, or raise transport.device_timeout",
      way_ == direction::to_device ? "to" : "from", to_string(on.device()), in_seconds(limit_));
  throw_error(errc::device_timeout, peer_.empty() ? text : fmt::format("{} ({})", text, peer_));
}

std::unique_ptr<pinned_block> staging_ring::take(const stream& on, std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto now = clock::now();
    reap(now);
    const std::size_t needed = std::max(bytes, pinned_block::smallest_size);
    std::size_t live = 0;
    std::size_t live_here = 0;
    std::size_t here = 0;
    for (const lane& each : lanes_) {
      const bool same = each.on.device() == on.device();
      if (same) here += each.bytes;
      if (stalled(each, now)) continue;
      live += each.bytes;
      if (same) live_here += each.bytes;
    }
    const lane* const own = find(on);
    if (own && stalled(*own, now)) {
      if (own->bytes + needed > staging_window || here + needed > 2 * staging_window) give_up(on);
    } else if (live_here != 0 && (live + needed > staging_window || here + needed > 2 * staging_window)) {
      return nullptr;  // copies of other devices never keep a device from all memory
    }
  }
  return std::make_unique<pinned_block>(on.device(), bytes);
}

bool staging_ring::may_queue(const stream& on) {
  const std::lock_guard lock(mutex_);
  if (stalled_for_certain(on)) give_up(on);
  const auto now = clock::now();
  if (!device_stalls(on.device(), find(on), now)) return true;
  reap(now);
  const lane* const own = find(on);
  return !own || !device_stalls(on.device(), own, now);  // the news of the copies under way on `on` follow
}

bool staging_ring::queued(const stream& on, std::size_t bytes) {
  event end = on.record();
  const std::lock_guard lock(mutex_);
  const auto now = clock::now();
  const auto known =
      std::find_if(progress_.begin(), progress_.end(), [&](const progress& of) { return of.where == on.device(); });
  if (known == progress_.end()) progress_.push_back({on.device(), now});
  lane* own = find(on);
  if (own) reap(*own, now);
  if (!own) own = &lanes_.emplace_back(lane{on});
  if (own->copies.empty()) own->since = now;
  own->copies.push_back({std::move(end), std::max(bytes, pinned_block::smallest_size)});
  own->bytes += own->copies.back().bytes;
  // Below half the window, completed blocks are reclaimed when the next one is requested. So when a request is refused,
  // at least the last one of the copies under way is being watched.
  std::size_t total = 0;
  for (const lane& each : lanes_) total += each.bytes;
  return total > staging_window / 2;
}

bool staging_ring::under_way(const stream& on) {
  const std::lock_guard lock(mutex_);
  lane* const own = find(on);
  if (own) reap(*own, clock::now());
  return own && !own->copies.empty();
}

void staging_ring::check(const stream& on) {
  const std::lock_guard lock(mutex_);
  if (stalled_for_certain(on)) give_up(on);
}

stream staging_ring::pick(device where) {
  stream next = pool_stream(where);
  const std::lock_guard lock(mutex_);
  for (std::size_t tried = 1; tried != stream_pool_size() && stalled_for_certain(next); ++tried)
    next = pool_stream(where);
  return next;
}

}  // namespace detail

channel_context make_channel_context(std::shared_ptr<reactor> loop, std::function<void()> news,
                                     std::chrono::milliseconds device_timeout) {
  return {std::move(loop), std::move(news),
          std::make_shared<detail::staging_ring>(device_timeout, detail::staging_ring::direction::to_device)};
}

std::string channel_traits<cuda_staged>::unusable(const channel_path& path) {
  if (path.same_process) return "within a process, tensors are not written into a byte stream";
  if (path.from.is_cpu() && path.to.is_cpu()) return "neither side is a device";
  return path.device_tensors ? std::string() : std::string(path.obstacle);
}

std::unique_ptr<tensor_source> channel_traits<cuda_staged>::open_source(const tensor& packed, const stream& on,
                                                                        const channel_context& context) {
  if (packed.device().is_cpu()) return channel_traits<inline_tensors>::open_source(packed, on, context);
  return std::make_unique<detail::staged_source>(packed, on, context);
}

std::unique_ptr<tensor_sink> channel_traits<cuda_staged>::open_sink(const tensor& into, const stream& on,
                                                                    const channel_context& context) {
  if (into.device().is_cpu()) return channel_traits<inline_tensors>::open_sink(into, on, context);
  return std::make_unique<detail::staged_sink>(into, on, context);
}

}  // namespace ferry::inline v0
