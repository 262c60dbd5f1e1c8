// Elements between devices, and on devices whose memory the host cannot access. Everything is queued on the current
// streams of the devices; the host waits only where it receives elements itself.

#include <algorithm>
#include <utility>

#include <ferry/device/current.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>

#include "../device/capture.hpp"
#include "../device/device_work.hpp"
#include "../device/memory/staging.hpp"
#include "device_kernels.hpp"
#include "layout.hpp"

namespace ferry::inline v0::detail {
namespace {

// Whether the elements of both lie in memory in the same order and without gaps, so that copying the bytes suffices.
bool same_block(const tensor& a, const tensor& b) {
  if (a.dtype() != b.dtype()) return false;
  if (a.is_contiguous() && b.is_contiguous()) return true;
  for (std::size_t axis = 0; axis != a.rank(); ++axis) {
    if (a.shape()[axis] > 1 && a.strides()[axis] != b.strides()[axis]) return false;
  }
  return is_packed(a);
}

// The current stream of a tensor's device, recorded as a user of the tensor, to queue work on it.
stream stream_for(const tensor& t) {
  const stream on = current_stream(t.device());
  t.storage().record_use(on);
  device_work_begins(on);
  return on;
}

// A host copy with the same layout, gaps included: for devices without kernels.
tensor image_of(const tensor& t) {
  tensor image = empty_strided(t.shape(), t.strides(), t.dtype());
  const stream on = stream_for(t);
  download(on, image.storage().data(), t.data(), image.storage().size());
  return image;
}

// On one device.
void move_within(const tensor& from, const tensor& to) {
  const device where = to.device();
  if (same_block(from, to)) {
    const stream on = stream_for(to);
    from.storage().record_use(on);
    operations_of(where.kind).copy(where, to.data(), where, from.data(), packed_bytes(from).size(), where, on.handle());
  } else if (has_kernels(where)) {
    copy_by_kernel(from, to);
  } else {
    refuse_capture(current_stream(where), "copy elements through the host");
    const tensor source = image_of(from);
    const bool whole = is_packed(to);
    const tensor target = whole ? empty_strided(to.shape(), to.strides(), to.dtype()) : image_of(to);
    copy_elements(source, target);
    upload(stream_for(to), to.data(), target.storage().data(), target.storage().size());
  }
}

// From the host. The source has been read when this returns.
void move_in(const tensor& from, const tensor& to) {
  if (same_block(from, to)) {
    upload(stream_for(to), to.data(), from.data(), packed_bytes(from).size());
  } else if (is_packed(to)) {  // the host makes the elements dense
    const tensor ordered = empty_strided(to.shape(), to.strides(), to.dtype());
    copy_elements(from, ordered);
    upload(stream_for(to), to.data(), ordered.data(), packed_bytes(ordered).size());
  } else if (has_kernels(to.device())) {  // the device scatters them
    const tensor dense = from.contiguous();
    const tensor arrived = empty(dense.shape(), dense.dtype(), to.device());
    upload(stream_for(arrived), arrived.data(), dense.data(), dense.nbytes());
    move_within(arrived, to);
  } else {
    const tensor image = image_of(to);
    copy_elements(from, image);
    upload(stream_for(to), to.data(), image.storage().data(), image.storage().size());
  }
}

// To the host. The elements have been written when this returns.
void move_out(const tensor& from, const tensor& to) {
  if (same_block(from, to)) {
    download(stream_for(from), to.data(), from.data(), packed_bytes(from).size());
  } else if (is_packed(from)) {
    const tensor arrived = empty_strided(from.shape(), from.strides(), from.dtype());
    download(stream_for(from), arrived.data(), from.data(), packed_bytes(from).size());
    copy_elements(arrived, to);
  } else if (has_kernels(from.device())) {
    const tensor dense = empty(from.shape(), from.dtype(), from.device());
    move_within(from, dense);
    move_out(dense, to);
  } else {
    copy_elements(image_of(from), to);
  }
}

// Between devices of one kind.
void move_across(const tensor& from, const tensor& to) {
  if (!same_block(from, to)) {
    // The bytes sent are dense and have the target's type: each side converts with its own means.
    if (!from.is_contiguous() || from.dtype() != to.dtype()) {
      const tensor dense = empty(from.shape(), to.dtype(), from.device());
      move_within(from, dense);
      move_across(dense, to);
    } else {
      const tensor arrived = empty(to.shape(), to.dtype(), to.device());
      move_across(from, arrived);
      move_within(arrived, to);
    }
    return;
  }
  // On the source's stream, once the target may be written; the target's stream continues when the bytes have arrived.
  const stream here = stream_for(from);
  const stream there = stream_for(to);
  to.storage().record_use(here);
  here.wait(there);
  operations_of(from.device().kind)
      .copy(to.device(), to.data(), from.device(), from.data(), packed_bytes(from).size(), from.device(),
            here.handle());
  there.wait(here);
}

}  // namespace

void move_elements(const tensor& from, const tensor& to) {
  const device source = from.device();
  const device target = to.device();
  if (from.numel() == 0) return;
  if (on_host(source) && on_host(target)) return copy_elements(from, to);
  if (source == target) return move_within(from, to);
  // Before the streams are recorded as users: a record of a capture that was refused would outlive the stream.
  for (const device where : {source, target}) {
    if (!on_host(where)) refuse_capture(current_stream(where), "copy elements from and to other devices");
  }
  if (on_host(source)) return move_in(from, to);
  if (on_host(target)) return move_out(from, to);
  if (source.kind == target.kind) return move_across(from, to);
  // Two kinds without a common copy operation go through the host.
  const tensor between = empty(from.shape(), from.dtype());
  move_out(from, between);
  move_in(between, to);
}

void fill_anywhere(const tensor& t, const scalar& value) {
  if (on_host(t.device())) return fill_elements(t, value);
  if (t.numel() == 0) return;
  const element_bytes element = element_of(t.dtype(), value);
  const auto* first = element.bytes.data();
  const bool alike =
      std::all_of(first, first + dtype_size(t.dtype()), [&](unsigned char each) { return each == *first; });
  if (alike && is_packed(t)) {
    const stream on = stream_for(t);
    operations_of(t.device().kind).fill(t.device(), t.data(), *first, packed_bytes(t).size(), on.handle());
  } else if (has_kernels(t.device())) {
    fill_by_kernel(t, element);
  } else {
    refuse_capture(current_stream(t.device()), "fill a tensor through the host");
    move_in(full({}, value, t.dtype()).expand(t.shape()), t);
  }
}

}  // namespace ferry::inline v0::detail
