// The channel between workers of one process.

#include <cstring>
#include <memory>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/transport/channel.hpp>

#include "../../device/memory/pinned_memory.hpp"
#include "../../device/memory/staging.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

using detail::download;
using detail::pinned_block;
using detail::upload;
using detail::wait_for_pinned_memory;

tensor empty_like_packed(const tensor& packed, device where) {
  const auto& shape = packed.shape();
  const auto& strides = packed.strides();
  return empty_packed(packed.dtype(), {shape.begin(), shape.size()}, {strides.begin(), strides.size()}, where);
}

void copy_bytes(device to, void* target, device from, const void* source, std::size_t bytes, const stream& on) {
  operations_of(on.device().kind).copy(to, target, from, source, bytes, on.device(), on.handle());
}

// Copies into host memory that the device writes directly; the tensor owns that memory.
tensor copy_to_cpu(const tensor& from, const stream& on) {
  const auto bytes = packed_bytes(from);
  tensor result = empty_like_packed(from, {});  // of the same shape and strides
  if (bytes.empty()) return result;
  if (!wait_for_pinned_memory(from.device(), bytes.size())) {
    // Tensors of the program hold all that there may be: through pieces, for which this thread waits.
    from.storage().record_use(on);
    download(on, writable_packed_bytes(result).data(), bytes.data(), bytes.size());
    return result;
  }
  auto block = std::make_shared<pinned_block>(from.device(), bytes.size());
  block->begin_use();
  from.storage().record_use(on);
  copy_bytes({}, block->data(), from.device(), bytes.data(), bytes.size(), on);
  block->release_after(on);
  void* const memory = block->data();
  return from_blob(memory, result.shape(), result.strides(), from.dtype(), std::move(block));
}

tensor copy_from_cpu(const tensor& from, device where, const stream& on) {
  const auto bytes = packed_bytes(from);
  const stream_guard guard(on);
  tensor result = empty_like_packed(from, where);
  if (bytes.empty()) return result;
  upload(on, writable_packed_bytes(result).data(), bytes.data(), bytes.size());
  return result;
}

tensor copy_between(const tensor& from, device where, const stream& on) {
  const auto bytes = packed_bytes(from);
  const stream_guard guard(on);
  tensor result = empty_like_packed(from, where);
  from.storage().record_use(on);
  if (!bytes.empty())
    copy_bytes(where, writable_packed_bytes(result).data(), from.device(), bytes.data(), bytes.size(), on);
  return result;
}

// The receiver must not observe later changes by the sender, nor the other way round.
tensor copy_on_cpu(const tensor& packed) {
  tensor result = empty_like_packed(packed, {});
  const auto from = packed_bytes(packed);
  if (!from.empty()) std::memcpy(writable_packed_bytes(result).data(), from.data(), from.size());
  return result;
}

}  // namespace
}  // namespace detail

std::string channel_traits<inproc_tensors>::unusable(const channel_path& path) {
  if (!path.same_process) return "the other worker is in another process, or is reached over a socket";
  if (path.from.kind == path.to.kind || path.from.is_cpu() || path.to.is_cpu()) return {};
  return "tensors cannot move directly between devices of different kinds; map the device to the CPU";
}

tensor channel_traits<inproc_tensors>::copy(const tensor& packed, device to, const stream& on) {
  const device from = packed.device();
  if (from.is_cpu()) return to.is_cpu() ? detail::copy_on_cpu(packed) : detail::copy_from_cpu(packed, to, on);
  return to.is_cpu() ? detail::copy_to_cpu(packed, on) : detail::copy_between(packed, to, on);
}

}  // namespace ferry::inline v0
