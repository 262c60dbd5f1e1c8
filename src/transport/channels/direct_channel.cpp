// The channel cuda_ipc: the receiver copies from the sender's memory, and only the name of that memory travels.

#include "direct_channel.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/pack.hpp>

#include "../../device/cuda/cuda_scope.hpp"
#include "../reactor/pending_copy.hpp"
#include "staged_channel.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// The tensor is complete: the sender writes a message only when the work before it on the device has been done.
class direct_source final : public tensor_source {
 public:
  direct_source(std::shared_ptr<lent_blocks> lent, const loan_note& note) noexcept
      : lent_(std::move(lent)), of_(note.of), bytes_(note.encode()) {}
  ~direct_source() override {
    if (sent_ == 0) lent_->take_back(of_);
  }
  void fetch(std::size_t) override {}
  [[nodiscard]] std::size_t fetched() const noexcept override { return bytes_.size() - sent_; }
  std::span<const std::byte> ready() override { return std::span<const std::byte>(bytes_).subspan(sent_); }
  void consume(std::size_t bytes) noexcept override { sent_ += bytes; }

 private:
  const std::shared_ptr<lent_blocks> lent_;
  const loan of_;
  const std::array<std::byte, loan_note::encoded_size> bytes_;
  std::size_t sent_ = 0;
};

// A copy from the memory of another process, which goes on when the message has been dropped.
class borrowing_copy final : public std::enable_shared_from_this<borrowing_copy> {
 public:
  borrowing_copy(const loan_note& note, std::shared_ptr<imported_pool> pool, std::shared_ptr<borrowed_blocks> borrowed,
                 const stream& on, std::shared_ptr<reactor> loop)
      : note_(note), pool_(std::move(pool)), borrowed_(std::move(borrowed)), on_(on), loop_(std::move(loop)) {}

  // Queues it. Throws errc::device_failure, errc::malformed; then nothing has been lent any more.
  void begin(const tensor& into, const channel_context& context) {
    try {
      into_ = into.storage();
      const auto target = writable_packed_bytes(into);
      const std::byte* const from = pool_->map(note_.block, note_.offset, note_.bytes);
      mapped_ = true;
      // What is mapped is read as the device's own memory, on whichever GPU it is.
      operations_of(on_.device().kind)
          .copy(into.device(), target.data(), into.device(), from, target.size(), on_.device(), on_.handle());
    } catch (...) {
      end_use();
      throw;
    }
    try {
      read_ = on_.record();
    } catch (...) {
      return ended(std::current_exception(), context.news);
    }
    pending_copy::watch(
        loop_, {on_},
        [self = shared_from_this(), news = context.news](const std::exception_ptr& failure) {
          self->ended(failure, news);
        },
        context.news);
  }
  // Throws errc::device_failure.
  [[nodiscard]] bool arrived() const {
    if (!arrived_.load(std::memory_order_acquire)) return false;
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  void ended(const std::exception_ptr& failure, const std::function<void()>& news) {
    failure_ = failure;
    // Where it is not known whether the copy has ended, the loan ends with the connection.
    if (!failure || device_has_failed(on_.device())) end_use();
    arrived_.store(true, std::memory_order_release);
    news();
  }

  static bool device_has_failed(device where) noexcept { return cuda_fence_of(where) != cuda_error::success; }

  // Nothing reads the block any more: unmaps it, and gives it back once that has been done. A device that has failed reads
  // nothing, and cannot unmap either.
  void end_use() noexcept {
    try {
      const auto unmapping = std::exchange(mapped_, false) ? pool_->unmap(note_.block, read_) : std::nullopt;
      if (unmapping) {
        pending_copy::watch(loop_, {*unmapping},
                            [self = shared_from_this(), on = *unmapping](const std::exception_ptr& failure) {
                              try {
                                if (failure) on.synchronize();  // it waits for the unmapping, and for nothing else
                              } catch (const error&) {
                              }
                              self->borrowed_->give_back(self->note_.of);
                            });
        return;
      }
    } catch (const error&) {
    }
    borrowed_->give_back(note_.of);
  }

  const loan_note note_;
  const std::shared_ptr<imported_pool> pool_;
  const std::shared_ptr<borrowed_blocks> borrowed_;
  const stream on_;
  const std::shared_ptr<reactor> loop_;
  storage into_;
  bool mapped_ = false;
  std::optional<event> read_;   // marks the copy
  std::exception_ptr failure_;  // written before arrived_
  std::atomic<bool> arrived_{false};
};

class copying_sink final : public note_sink {
 public:
  copying_sink(tensor into, const stream& on, channel_context context)
      : note_sink(std::move(context)), into_(std::move(into)), on_(on) {
    into_.storage().record_use(on_);
  }

  bool settled() override {
    if (!copy_ || copy_->arrived()) return true;
    context().ring->check(on_);
    return false;
  }

 private:
  void take(const loan_note& note, const std::shared_ptr<borrowed_blocks>& borrowed) override {
    auto pool = context().direct->pool(note.pool);
    if (!pool || !pool->readable_from(into_.device()) || note.bytes != writable_packed_bytes(into_).size()) {
      borrowed->give_back(note.of);
      throw_error(errc::malformed, fmt::format("{} bytes of pool {} of another process's memory cannot be copied to {}",
                                               note.bytes, note.pool, to_string(into_.device())));
    }
    auto copy = std::make_shared<borrowing_copy>(note, std::move(pool), borrowed, on_, context().loop);
    copy->begin(into_, context());
    copy_ = std::move(copy);
    (void)context().ring->queued(on_, 0);
  }

  tensor into_;
  const stream on_;
  std::shared_ptr<borrowing_copy> copy_;
};

class giving_back_sink final : public note_sink {
 public:
  using note_sink::note_sink;

 private:
  void take(const loan_note& note, const std::shared_ptr<borrowed_blocks>& borrowed) override {
    borrowed->give_back(note.of);
  }
};

}  // namespace

std::unique_ptr<tensor_source> open_lending_source(const tensor& packed, const channel_context& context) {
  const auto note = context.direct ? context.direct->lend(packed) : std::nullopt;
  return note ? std::make_unique<direct_source>(context.direct->lent(), *note) : nullptr;
}

void note_sink::commit(std::size_t bytes) {
  filled_ += bytes;
  if (filled_ != note_.size()) return;
  const auto note = loan_note::decode(note_);
  if (!note) throw_error(errc::malformed, "the name of a tensor's memory is missing");
  const auto borrowed = context_.direct->borrowed();
  if (!borrowed) throw_error(errc::connection_lost, "the connection ended before a tensor had been read");
  take(*note, borrowed);
}

std::unique_ptr<tensor_sink> open_giving_back_sink(const channel_context& context) {
  return std::make_unique<giving_back_sink>(context);
}

}  // namespace detail

std::string channel_traits<cuda_ipc>::unusable(const channel_path& path) {
  if (path.same_process) return "within a process, devices copy";
  if (!path.from.is_cuda() || !path.to.is_cuda()) return "it is for two GPUs of CUDA";
  return std::string(path.device_tensors ? path.not_direct : path.obstacle);
}

std::unique_ptr<tensor_source> channel_traits<cuda_ipc>::open_source(const tensor& packed, const stream&,
                                                                     const channel_context& context) {
  return detail::open_lending_source(packed, context);
}

std::unique_ptr<tensor_sink> channel_traits<cuda_ipc>::open_sink(const tensor& into, const stream& on,
                                                                 const channel_context& context) {
  if (!context.direct) throw_error(errc::malformed, "a tensor comes as memory that this connection does not share");
  return std::make_unique<detail::copying_sink>(into, on, context);
}

}  // namespace ferry::inline v0
