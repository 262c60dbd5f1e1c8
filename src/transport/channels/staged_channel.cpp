#include "staged_channel.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/transport/channel.hpp>

#include "../reactor/pending_copy.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

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
      if (fetched() + size > ahead) return;
      auto piece = std::make_shared<outgoing_piece>(tensor_, size);
      piece->block.begin_use();
      const device from = tensor_.device();
      operations_of(from.kind).copy({}, piece->block.data(), from, bytes_.data() + queued_, size, on_.device(),
                                    on_.handle());
      piece->block.release_after(on_);
      pieces_.push_back(piece);
      queued_ += size;
      pending_copy::watch(context_.loop, {on_}, [piece, news = context_.news](std::exception_ptr failure) {
        piece->failure = std::move(failure);
        piece->arrived.store(true, std::memory_order_release);
        news();
      });
    }
  }
  [[nodiscard]] std::size_t fetched() const noexcept override { return queued_ - consumed_; }
  std::span<const std::byte> ready() override {
    if (pieces_.empty()) return {};
    const outgoing_piece& first = *pieces_.front();
    if (!first.arrived.load(std::memory_order_acquire)) return {};
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
      block_ = context_.ring->take(on_.device(), size_);
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
    if (context_.ring->give_back(on_, size_)) {
      pending_copy::watch(context_.loop, {on_},
                          [news = context_.news, watch = watch_](const std::exception_ptr& failure) {
                            if (failure) watch->fail(failure);
                            news();
                          });
    }
  }

 private:
  const tensor tensor_;
  const std::span<std::byte> bytes_;
  const stream on_;
  const channel_context context_;
  // A device that cannot be watched never reports completion, so the message fails.
  class watch_result {
   public:
    void fail(const std::exception_ptr& why) noexcept {
      const std::lock_guard lock(mutex_);
      failure_ = why;
    }
    void check() const {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
    }

   private:
    mutable std::mutex mutex_;
    std::exception_ptr failure_;
  };
  const std::shared_ptr<watch_result> watch_ = std::make_shared<watch_result>();
  std::unique_ptr<pinned_block> block_;  // being filled
  std::size_t size_ = 0;                 // of the piece in block_
  std::size_t filled_ = 0;
  std::size_t queued_ = 0;
};

}  // namespace

std::unique_ptr<pinned_block> staging_ring::take(device where, std::size_t bytes) {
  reap();
  if (bytes_ != 0 && bytes_ + std::max(bytes, pinned_block::smallest_size) > staging_window) return nullptr;
  return std::make_unique<pinned_block>(where, bytes);
}

bool staging_ring::give_back(const stream& on, std::size_t bytes) {
  under_way_.push_back({on.record(), std::max(bytes, pinned_block::smallest_size)});
  bytes_ += under_way_.back().bytes;
  // Below half the window, completed blocks are reclaimed when the next one is requested. So when a request is refused,
  // at least one block is being watched.
  return bytes_ > staging_window / 2;
}

void staging_ring::reap() noexcept {
  std::erase_if(under_way_, [&](const entry& each) {
    try {
      if (!each.read.done()) return false;
    } catch (const error&) {  // the device has failed; the message reports that, and this memory has no reader
    }
    bytes_ -= each.bytes;
    return true;
  });
}

}  // namespace detail

channel_context make_channel_context(std::shared_ptr<reactor> loop, std::function<void()> news) {
  return {std::move(loop), std::move(news), std::make_shared<detail::staging_ring>()};
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
