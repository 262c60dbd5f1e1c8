#include "pool_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../shm/passed_descriptors.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::array<unsigned char, 8> pools_magic{0x89, 'F', 'P', 'O', 'O', 'L', 'S', '\n'};
constexpr std::size_t head_bytes = 16;
constexpr std::size_t pool_bytes = 104;  // of each description

void encode(const pool_description& pool, std::byte* out) noexcept {
  store_le(out, pool.device);
  std::memcpy(out + 8, pool.gpu.data(), pool.gpu.size());
  std::memcpy(out + 24, pool.nonce.data(), pool.nonce.size());
  std::memcpy(out + 40, pool.anchor.data(), pool.anchor.size());
}

pool_description decode(const std::byte* in) noexcept {
  pool_description pool;
  pool.device = load_le<std::int32_t>(in);
  std::memcpy(pool.gpu.data(), in + 8, pool.gpu.size());
  std::memcpy(pool.nonce.data(), in + 24, pool.nonce.size());
  std::memcpy(pool.anchor.data(), in + 40, pool.anchor.size());
  return pool;
}

[[noreturn]] void refuse(std::string_view why) {
  throw_error(errc::handshake_failed, fmt::format("its offer of GPU memory is refused: {}", why));
}

}  // namespace

bool pool_exchange::possible(const hello& self, const transport_options& options) noexcept {
  try {
    return options.share_device_memory && (self.features & feature_control) == 0 && has_exportable_cuda_pools();
  } catch (const std::exception&) {
    return false;
  }
}

void pool_exchange::offer(int socket) {
  auto pools = exported_cuda_pools();
  if (pools.size() > most_pools) pools.resize(most_pools);
  std::vector<std::byte> bytes(head_bytes + pools.size() * pool_bytes);
  std::memcpy(bytes.data(), pools_magic.data(), pools_magic.size());
  store_le(bytes.data() + 8, static_cast<std::uint32_t>(pools.size()));
  std::vector<int> descriptors;
  for (std::size_t i = 0; i != pools.size(); ++i) {
    encode(pools[i]->description, bytes.data() + head_bytes + i * pool_bytes);
    descriptors.push_back(pools[i]->descriptor.get());
    ours_.push_back({device{device_kind::cuda, pools[i]->description.device}, 0});
  }
  send_with_descriptors(socket, bytes, descriptors, "handing over pools of GPU memory");
}

void pool_exchange::take_offer(int socket) {
  std::array<std::byte, head_bytes + most_pools * pool_bytes> bytes{};
  std::array<unique_fd, most_pools> given;
  const received_with_descriptors got = receive_with_descriptors(socket, bytes, given);
  if (got.bytes < head_bytes || std::memcmp(bytes.data(), pools_magic.data(), pools_magic.size()) != 0)
    refuse("it is not one");
  const auto count = load_le<std::uint32_t>(bytes.data() + 8);
  if (count > most_pools || got.bytes != head_bytes + count * pool_bytes)
    refuse(fmt::format("{} bytes for {} pools", got.bytes, count));
  if (got.descriptors != count && !got.short_of_descriptors)
    refuse(fmt::format("{} descriptors for {} pools", got.descriptors, count));
  for (std::uint32_t i = 0; i != count; ++i) {
    theirs_.emplace_back();
    if (i >= got.descriptors) continue;  // this process is short of them
    try {
      theirs_.back() = imported_pool::open(decode(bytes.data() + head_bytes + i * pool_bytes), given[i]);
    } catch (const error& why) {
      log(log_level::info, fmt::format("memory of another process's GPU is not read directly: {}", why.message()));
    }
  }
}

std::vector<std::byte> pool_exchange::answer() const {
  std::vector<std::byte> out(theirs_.size() * sizeof(std::uint64_t));
  for (std::size_t i = 0; i != theirs_.size(); ++i)
    store_le(out.data() + i * sizeof(std::uint64_t), theirs_[i] ? theirs_[i]->readers() : std::uint64_t{0});
  return out;
}

void pool_exchange::take_answer(std::span<const std::byte> answer) {
  for (std::size_t i = 0; i != ours_.size(); ++i)
    ours_[i].readers = load_le<std::uint64_t>(answer.data() + i * sizeof(std::uint64_t));
}

std::shared_ptr<direct_memory> pool_exchange::finish(int socket, const shared_rings& rings, shared_host_memory host) {
  unique_fd process = process_at(socket);
  // Without it, blocks that the peer reads when it dies would never come back.
  const std::string_view obstacle =
      process
          ? std::string_view()
          : "the peer's process cannot be watched: it is in another namespace of processes, or descriptors are short";
  return std::make_shared<direct_memory>(rings, std::move(process), std::move(ours_), std::move(theirs_), obstacle,
                                         std::move(host));
}

}  // namespace ferry::inline v0::detail
