// The channel shm: the receiver has a tensor over the sender's memory, or copies from there, and only the place of that memory travels.

#include "shared_channel.hpp"

#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/tensor/pack.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

// Bytes of another process's memory, until nothing uses them any more.
class borrowed_bytes {
 public:
  // Throws errc::malformed; then nothing is borrowed any more.
  borrowed_bytes(const loan_note& note, std::shared_ptr<borrowed_blocks> from, std::shared_ptr<peer_memory> memory,
                 std::uint64_t expected)
      : note_(note), from_(std::move(from)), memory_(std::move(memory)) {
    const bool handed_over = note.pool == loan_note::handed_over_pool;
    const bool good = memory_ && (handed_over ? memory_->takes_over() : note.pool == loan_note::host_pool) &&
                      note.bytes == expected && expected != 0 && memory_->has(note.offset, note.bytes);
    const auto how = handed_over ? peer_memory::given::handed_over : peer_memory::given::lent;
    peer_memory::use begun;
    try {
      if (good) begun = memory_->begin_use(note.offset, note.bytes, how);
    } catch (const std::bad_alloc&) {
      from_->give_back(note.of);
      throw;
    }
    first_ = begun.first;
    if (first_) return;
    from_->give_back(note.of);
    if (begun.why == peer_memory::refusal::not_mapped) {
      from_->withdraw_host();  // further tensors are copied
      throw_error(errc::out_of_memory, "the memory of a tensor of another process cannot be mapped (mlock, ulimit -v)");
    }
    throw_error(
        errc::malformed,
        fmt::format("{} bytes at {} of another process's memory are no tensor of {} bytes, or are another tensor's",
                    note.bytes, note.offset, expected));
  }
  ~borrowed_bytes() {
    memory_->end_use(note_.offset, note_.bytes);
    from_->give_back(note_.of);
  }
  borrowed_bytes(const borrowed_bytes&) = delete;
  borrowed_bytes& operator=(const borrowed_bytes&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {first_, static_cast<std::size_t>(note_.bytes)}; }

 private:
  const loan_note note_;
  const std::shared_ptr<borrowed_blocks> from_;
  const std::shared_ptr<peer_memory> memory_;
  std::byte* first_ = nullptr;
};

// Into memory that there is already.
class filling_sink final : public note_sink {
 public:
  filling_sink(tensor into, channel_context context) : note_sink(std::move(context)), into_(std::move(into)) {}

 private:
  void take(const loan_note& note, const std::shared_ptr<borrowed_blocks>& borrowed) override {
    const auto target = writable_packed_bytes(into_);
    const borrowed_bytes from(note, borrowed, context().direct->host(), target.size());
    std::memcpy(target.data(), from.bytes().data(), target.size());
  }

  const tensor into_;
};

// Elements that are checked before they are used, truth values and indices, must be what they were then, whatever the sender writes.
bool must_not_change(dtype type) noexcept { return type == dtype::bool_ || type == dtype::i64; }

}  // namespace

// Vector instructions may take the alignment of tensors for granted, which a view's elements need not have.
void adopting_sink::take(const loan_note& note, const std::shared_ptr<borrowed_blocks>& borrowed) {
  auto from = std::make_shared<const borrowed_bytes>(note, borrowed, context().direct->host(), what_.bytes);
  const std::span<std::byte> bytes = from->bytes();
  if (note.offset % cpu_alignment == 0 && !must_not_change(what_.dtype)) {
    adopted_ = packed_over(storage::foreign(bytes.data(), bytes.size(), {}, std::move(from)), what_.dtype, what_.shape,
                           what_.strides);
    return;
  }
  adopted_ = empty_packed(what_.dtype, what_.shape, what_.strides);
  std::memcpy(writable_packed_bytes(adopted_).data(), bytes.data(), bytes.size());
}

}  // namespace detail

std::string channel_traits<shm_tensors>::unusable(const channel_path& path) {
  if (path.same_process) return "within a process, tensors are handed over";
  if (!path.from.is_cpu() || !path.to.is_cpu()) return "it is for tensors of the CPU";
  return std::string(path.not_direct);
}

std::unique_ptr<tensor_source> channel_traits<shm_tensors>::open_source(const tensor& packed, const stream&,
                                                                        const channel_context& context) {
  return detail::open_lending_source(packed, context);
}

std::unique_ptr<tensor_sink> channel_traits<shm_tensors>::open_sink(const tensor& into, const stream&,
                                                                    const channel_context& context) {
  if (!context.direct) throw_error(errc::malformed, "a tensor comes as memory that this connection does not share");
  return std::make_unique<detail::filling_sink>(into, context);
}

}  // namespace ferry::inline v0
