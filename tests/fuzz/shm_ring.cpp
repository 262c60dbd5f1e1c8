// The two ends of a ring in shared memory. Input: steps of one byte and what each needs. As long as both ends are honest,
// the ring is a queue; then either other end writes what it likes, and no byte beyond the ring is touched.

#include "transport/shm/ring.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "targets.hpp"

namespace fuzz {
namespace shm_ring_target {
namespace {

constexpr std::size_t ring_bytes = 64;
constexpr std::size_t guard_bytes = 256;
constexpr std::byte guard{0xa5};
constexpr std::size_t most_at_once = 128;

class ring_pair {
 public:
  void step(source& from) {
    const auto what = from.number<std::uint8_t>() % 8;
    switch (what) {
      case 0:
      case 1: write(from.number<std::uint8_t>() % most_at_once, from.number<std::uint8_t>()); break;
      case 2:
      case 3: read(from.number<std::uint8_t>() % most_at_once, from.number<std::uint8_t>()); break;
      case 4:
        (void)in_.announce_sleep();
        reader_announced_ = true;
        break;
      case 5:
        (void)out_.announce_sleep();
        writer_announced_ = true;
        break;
      case 6:
        honest_ = false;
        control_.written = from.number<std::uint64_t>();
        break;
      default:
        honest_ = false;
        control_.consumed = from.number<std::uint64_t>();
        break;
    }
    const auto whole = [](auto first, auto last) {
      return std::all_of(first, last, [](auto b) { return b == guard; });
    };
    require(whole(memory_.begin(), memory_.begin() + guard_bytes) && whole(memory_.end() - guard_bytes, memory_.end()),
            "nothing is written outside the ring");
    require(!honest_ || (!in_.broken() && !out_.broken()), "honest ends break no ring");
  }

 private:
  // Two vectors, the first of `split` bytes.
  static std::array<iovec, 2> parts(std::vector<std::byte>& all, std::size_t split) {
    split = std::min(split, all.size());
    return {iovec{all.data(), split}, iovec{all.data() + split, all.size() - split}};
  }
  void write(std::size_t count, std::size_t split) {
    std::vector<std::byte> all(count);
    for (std::byte& each : all) each = std::byte{next_++};
    bool wake = false;
    const std::size_t written = out_.write(parts(all, split), wake);
    require(written <= count, "no more is written than there was");
    next_ = static_cast<std::uint8_t>(next_ - (count - written));
    if (!honest_) return;
    require(written == std::min(count, ring_bytes - queue_.size()), "as much is written as there is room for");
    queue_.insert(queue_.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(written));
    require(wake == (reader_announced_ && written != 0), "a reader is woken if it sleeps");
    if (wake) reader_announced_ = false;
  }
  void read(std::size_t count, std::size_t split) {
    std::vector<std::byte> all(count);
    bool wake = false;
    const std::size_t got = in_.read(parts(all, split), wake);
    require(got <= count && got <= ring_bytes, "no more is read than was asked for");
    if (!honest_) return;
    require(got == std::min(count, queue_.size()), "as much is read as there is");
    require(std::equal(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(got), queue_.begin()),
            "bytes arrive in order");
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(got));
    require(wake == (writer_announced_ && got != 0), "a writer is woken if it sleeps");
    if (wake) writer_announced_ = false;
  }

  ferry::detail::ring_control control_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(ring_bytes + 2 * guard_bytes, guard);
  ferry::detail::ring_writer out_{control_, std::span(memory_).subspan(guard_bytes, ring_bytes)};
  ferry::detail::ring_reader in_{control_, std::span(memory_).subspan(guard_bytes, ring_bytes)};
  std::deque<std::byte> queue_;
  std::uint8_t next_ = 0;
  bool honest_ = true;
  bool reader_announced_ = false;
  bool writer_announced_ = false;
};

void run(bytes input) {
  source from(input);
  ring_pair pair;
  while (!from.empty()) pair.step(from);
}

void seeds(const seed_sink& sink) {
  seed honest;
  for (std::uint8_t i = 1; i != 20; ++i) {
    honest.number(std::uint8_t{0}).number(std::uint8_t(i * 6)).number(i);
    honest.number(std::uint8_t{4}).number(std::uint8_t{2}).number(std::uint8_t(i * 5)).number(i);
  }
  sink("honest", honest);
  sink("full",
       seed().number(std::uint8_t{0}).number(std::uint8_t{100}).number(std::uint8_t{7}).number(std::uint8_t{5}));
  sink("written",
       seed().number(std::uint8_t{6}).number(std::uint64_t{65}).number(std::uint8_t{2}).number(std::uint8_t{99}));
  sink("consumed",
       seed().number(std::uint8_t{7}).number(std::uint64_t{1}).number(std::uint8_t{0}).number(std::uint8_t{99}));
}

}  // namespace
}  // namespace shm_ring_target

const target shm_ring{"shm_ring", &shm_ring_target::run, &shm_ring_target::seeds};

}  // namespace fuzz
