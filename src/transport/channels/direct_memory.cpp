#include "direct_memory.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/tensor/shared_allocator.hpp>
#include <ferry/transport/channel.hpp>

#include "../../device/memory/shared_arena.hpp"
#include "../reactor/control_thread.hpp"
#include "../reactor/io_threads.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds look_again_after{50};

// So many tensors are handed over before one tries whether the reader keeps pace by now.
constexpr unsigned handed_over_in_a_row = 64;

using shared_word = std::atomic_ref<std::uint32_t>;

}  // namespace

unique_fd process_at(int socket) noexcept {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.pid <= 0) return {};
  unique_fd process(static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)));
  // Else the number may be that of another process by now.
  pollfd end{socket, POLLRDHUP, 0};
  if (::poll(&end, 1, 0) != 0) process.reset();
  return process;
}

// ---------------------------------------------------------------- loan_note

std::array<std::byte, loan_note::encoded_size> loan_note::encode() const noexcept {
  std::array<std::byte, encoded_size> out{};
  store_le(out.data(), pool);
  store_le(out.data() + 4, of.slot);
  store_le(out.data() + 8, of.number);
  store_le(out.data() + 16, offset);
  store_le(out.data() + 24, bytes);
  std::memcpy(out.data() + 32, block.data(), block.size());
  return out;
}

std::optional<loan_note> loan_note::decode(std::span<const std::byte, encoded_size> in) {
  if (std::all_of(in.begin(), in.end(), [](std::byte each) { return each == std::byte{}; })) return std::nullopt;
  loan_note note;
  note.pool = load_le<std::uint32_t>(in.data());
  note.of = {load_le<std::uint32_t>(in.data() + 4), load_le<std::uint32_t>(in.data() + 8)};
  note.offset = load_le<std::uint64_t>(in.data() + 16);
  note.bytes = load_le<std::uint64_t>(in.data() + 24);
  std::memcpy(note.block.data(), in.data() + 32, note.block.size());
  if (note.of.slot >= loan_control::slots || note.of.number == 0)
    throw_error(errc::malformed, "a loan of memory whose number cannot be");
  return note;
}

// ---------------------------------------------------------------- lent_blocks

// What connections that have ended have lent. Looked at on the control thread, as long as there is any.
class lent_blocks_of_ended_connections {
 public:
  // Never destroyed: blocks may be left at the end of the process.
  static lent_blocks_of_ended_connections& of_process() {
    static auto* const all = new lent_blocks_of_ended_connections;
    return *all;
  }

  void add(std::shared_ptr<lent_blocks> blocks) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(blocks));
    if (watching_) return;
    const auto thread = control_thread::shared();
    auto timer = std::make_shared<asio::steady_timer>(thread->context());
    look_later(thread, std::move(timer));
    watching_ = true;
  }

 private:
  // The thread is kept as long as there is something to look at.
  void look_later(std::shared_ptr<control_thread> thread, std::shared_ptr<asio::steady_timer> timer) {
    timer->expires_after(look_again_after);
    auto& waits = *timer;
    waits.async_wait(
        [this, thread = std::move(thread), timer = std::move(timer)](const asio::error_code& error) mutable {
          if (!error && look()) look_later(std::move(thread), std::move(timer));
        });
  }

  // True if something is left. Memory is freed without the lock.
  bool look() {
    std::vector<std::shared_ptr<lent_blocks>> looked_at;
    {
      const std::lock_guard lock(mutex_);
      looked_at.swap(all_);
    }
    for (const auto& each : looked_at) each->collect(true);
    std::erase_if(looked_at, [](const auto& each) { return each->count() == 0; });
    const std::lock_guard lock(mutex_);
    looked_at.swap(all_);
    all_.insert(all_.end(), looked_at.begin(), looked_at.end());  // added meanwhile
    watching_ = !all_.empty();
    return watching_;
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<lent_blocks>> all_;
  bool watching_ = false;
};

void lent_blocks::watch(int socket) noexcept {
  const std::lock_guard lock(mutex_);
  if (watch_.load(std::memory_order_relaxed) != watch_state::not_yet) return;
  reader_ = process_at(socket);
  watch_.store(reader_ ? watch_state::on : watch_state::impossible, std::memory_order_release);
}

bool lent_blocks::reader_has_host() const noexcept {
  return shared_word(said_->reads_host).load(std::memory_order_acquire) != 0;
}

bool lent_blocks::reader_takes_over() const noexcept {
  return shared_word(said_->reads_host).load(std::memory_order_acquire) == loan_control::takes_over;
}

std::optional<loan> lent_blocks::lend(storage block, bool once) {
  collect();
  const std::lock_guard lock(mutex_);
  if (once && count() != 0 &&
      std::any_of(blocks_.begin(), blocks_.end(), [&](const storage& each) { return each.same_as(block); }))
    return std::nullopt;
  for (std::uint32_t slot = 0; slot != blocks_.size(); ++slot) {
    if (blocks_[slot].defined()) continue;
    if (++numbers_[slot] == 0) ++numbers_[slot];
    blocks_[slot] = std::move(block);
    count_.fetch_add(1, std::memory_order_relaxed);
    return loan{slot, numbers_[slot]};
  }
  return std::nullopt;
}

void lent_blocks::take_back(loan which) noexcept {
  storage dropped;  // without the lock
  const std::lock_guard lock(mutex_);
  if (numbers_[which.slot] != which.number || !blocks_[which.slot].defined()) return;
  dropped = std::move(blocks_[which.slot]);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void lent_blocks::collect(bool connection_ended) noexcept {
  if (count_.load() == 0) return;
  std::array<storage, loan_control::slots> dropped;  // without the lock
  const bool all =
      connection_ended && (shared_word(said_->reader_gone).load(std::memory_order_acquire) != 0 || reader_is_dead());
  const std::lock_guard lock(mutex_);
  for (std::size_t slot = 0; slot != blocks_.size(); ++slot) {
    if (!blocks_[slot].defined()) continue;
    if (!all && shared_word(said_->given_back[slot]).load() != numbers_[slot]) continue;
    dropped[slot] = std::move(blocks_[slot]);
    count_.fetch_sub(1, std::memory_order_relaxed);
  }
}

// The kernel has torn down what the process had before it says so.
bool lent_blocks::reader_is_dead() const noexcept {
  pollfd process{reader_.get(), POLLIN, 0};
  return ::poll(&process, 1, 0) == 1 && (process.revents & POLLIN) != 0;
}

void lent_blocks::look_after(std::shared_ptr<lent_blocks> blocks) noexcept {
  blocks->collect(true);
  if (blocks->count() == 0) return;
  try {
    lent_blocks_of_ended_connections::of_process().add(std::move(blocks));
  } catch (const std::exception&) {  // no thread or timer: it is there, and looked at when the next connection ends
  }
}

// ---------------------------------------------------------------- borrowed_blocks

void borrowed_blocks::announce_host(bool takes_over) noexcept {
  shared_word(say_->reads_host).store(takes_over ? loan_control::takes_over : 1, std::memory_order_release);
}
void borrowed_blocks::withdraw_host() noexcept { shared_word(say_->reads_host).store(0, std::memory_order_release); }

borrowed_blocks::~borrowed_blocks() {
  if (!is_forked_child()) shared_word(say_->reader_gone).store(1, std::memory_order_release);
}

void borrowed_blocks::give_back(loan which) noexcept {
  if (is_forked_child()) return;  // it is the parent's
  // Sequentially consistent, as the flag of a reader that sleeps: the lender looks here after it has set that.
  shared_word(say_->given_back[which.slot]).store(which.number);
  std::shared_ptr<const std::function<void()>> news;
  {
    const std::lock_guard lock(mutex_);
    news = news_;
  }
  if (news) (*news)();
}

void borrowed_blocks::set_news(std::function<void()> news) {
  auto made = std::make_shared<const std::function<void()>>(std::move(news));
  const std::lock_guard lock(mutex_);
  news_.swap(made);
}

// ---------------------------------------------------------------- direct_memory

direct_memory::direct_memory(const shared_rings& rings, unique_fd peer_process, std::vector<offered_pool> ours,
                             std::vector<std::shared_ptr<imported_pool>> theirs, std::string_view obstacle,
                             shared_host_memory host)
    : obstacle_(obstacle),
      ours_(std::move(ours)),
      host_offered_(host.offered),
      lent_(std::make_shared<lent_blocks>(rings.memory(), rings.lent(), std::move(peer_process))),
      theirs_(std::move(theirs)),
      host_(std::move(host.theirs)),
      borrowed_(std::make_shared<borrowed_blocks>(rings.memory(), rings.borrowed())) {
  if (host_) borrowed_->announce_host(host_->takes_over());
}

direct_memory::~direct_memory() { close(); }

std::string_view direct_memory::why_not_host() const noexcept {
  if (!host_offered_) {
    const std::string_view here = shared_arena::obstacle();
    return here.empty() ? no_host_memory : here;
  }
  if (!lent_->reader_has_host()) return "the other process cannot map this one's shared memory (its log says why)";
  if (lent_->watched() == lent_blocks::watch_state::impossible)
    return "the peer's process cannot be watched: it is in another namespace of processes, or descriptors are short";
  return {};
}

bool direct_memory::hands_over(const tensor& packed) const noexcept {
  return in_turns_.load(std::memory_order_relaxed) && packed_bytes(packed).size() >= least_handed_over &&
         lent_->reader_takes_over() && why_not_host().empty();
}

std::string_view direct_memory::why_not(device from, device to) const noexcept {
  if (from.is_cpu() && to.is_cpu()) {
    const std::string_view why = why_not_host();
    if (why.empty() && !shared_arena::has_tensors())
      return "no tensor of this process was made by ferry::shared_allocator()";
    return why;
  }
  if (!from.is_cuda() || !to.is_cuda()) return "only GPUs of CUDA read each other's memory";
  if (!obstacle_.empty()) return obstacle_;
  const auto found =
      std::find_if(ours_.begin(), ours_.end(), [&](const offered_pool& each) { return each.where == from; });
  if (found == ours_.end())
    return "the device's memory cannot be shared, or the device was not in use when the connection was made";
  if (to.index >= 64 || (found->readers >> static_cast<unsigned>(to.index) & 1U) == 0)
    return "the peer's device cannot read that memory, or was not in use when the connection was made";
  return {};
}

bool direct_memory::can_lend(const tensor& packed, device to) const noexcept {
  if (packed.device().is_cpu()) {
    if (!to.is_cpu()) return false;
    if (!packed.storage().in_shared_memory()) return hands_over(packed);
    return packed_bytes(packed).size() >= least_shared && why_not_host().empty();
  }
  const bool by_ferry = packed.storage().in_stream_order();  // else its memory is of no pool
  return by_ferry && packed_bytes(packed).size() >= least_direct && why_not(packed.device(), to).empty();
}

std::optional<loan_note> direct_memory::lend(const tensor& packed) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return std::nullopt;
  }
  const storage& block = packed.storage();
  if (packed.device().is_cpu()) {
    const auto bytes = packed_bytes(packed);
    const auto at = block.in_shared_memory() ? shared_arena::offset_of(bytes.data()) : std::nullopt;
    const auto of = at ? lent_->lend(block, true) : std::nullopt;
    if (!of) return hands_over(packed) ? hand_over(bytes) : std::nullopt;
    return loan_note{loan_note::host_pool, *of, *at, bytes.size(), {}};
  }
  const auto name = name_cuda_block(packed.device(), block.data());
  if (!name) return std::nullopt;
  const auto of = lent_->lend(block);
  if (!of) return std::nullopt;
  const auto pool =
      std::find_if(ours_.begin(), ours_.end(), [&](const offered_pool& each) { return each.where == packed.device(); });
  const auto bytes = packed_bytes(packed);
  return loan_note{static_cast<std::uint32_t>(pool - ours_.begin()), *of,
                   static_cast<std::uint64_t>(bytes.data() - block.data()), bytes.size(), *name};
}

std::optional<loan_note> direct_memory::hand_over(std::span<const std::byte> bytes) noexcept {
  // Else a reader that dies would keep it.
  if (lent_->watched() != lent_blocks::watch_state::on) return std::nullopt;
  if (handed_over_.fetch_add(1, std::memory_order_relaxed) % handed_over_in_a_row == handed_over_in_a_row - 1) {
    ask_again_.store(true, std::memory_order_relaxed);
    reader_keeps_pace(true);
  }
  lent_->collect();  // first: the caches have what has been given back last
  // Kept until it is filled: a reader that lies may give it back already.
  std::shared_ptr<const handed_over_block> block;
  std::optional<loan> of;
  try {
    block = handed_over_block::make(bytes.size(), share_);
    if (block) of = lent_->lend(storage::foreign(block->memory(), bytes.size(), {}, block));
  } catch (const std::exception&) {  // no memory: it goes through the rings
  }
  if (!of) return std::nullopt;
  std::memcpy(block->memory(), bytes.data(), bytes.size());
  return loan_note{
      loan_note::handed_over_pool, *of, shared_arena::offset_of(block->memory()).value(), bytes.size(), {}};
}

std::shared_ptr<borrowed_blocks> direct_memory::borrowed() const {
  const std::lock_guard lock(mutex_);
  return borrowed_;
}

std::shared_ptr<peer_memory> direct_memory::host() const {
  const std::lock_guard lock(mutex_);
  return host_;
}

std::shared_ptr<imported_pool> direct_memory::pool(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  return number < theirs_.size() ? theirs_[number] : nullptr;
}

void direct_memory::close() noexcept {
  std::shared_ptr<borrowed_blocks> borrowed;
  std::vector<std::shared_ptr<imported_pool>> pools;
  std::shared_ptr<peer_memory> host;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    borrowed = std::move(borrowed_);
    pools.swap(theirs_);
    host = std::move(host_);
  }
  // Letting go of pools waits for a device, of much memory takes long, and the caller holds locks.
  try {
    const auto thread = control_thread::shared();
    auto& context = thread->context();
    // A copy: what is posted may run, and be over, before post() returns.
    asio::post(context, [thread, lent = lent_, borrowed = std::move(borrowed), pools = std::move(pools),
                         host = std::move(host)]() mutable {
      borrowed.reset();
      pools.clear();
      host.reset();
      lent_blocks::look_after(std::move(lent));
    });
  } catch (const std::exception&) {  // no thread: here, then
    lent_blocks::look_after(lent_);
  }
}

}  // namespace ferry::inline v0::detail
