#include "elements.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>

#include <ferry/adapters/libtorch/tensor.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>
#include <ferry/tensor/factories.hpp>

#include "../../base/log_problem.hpp"
#include "streams.hpp"

namespace ferry::inline v0::detail {
namespace {

// Whether the elements lie in memory, with strides.
void check_torch_layout(const at::Tensor& t) {
  const auto refuse = [](const std::string& what, const char* remedy) {
    throw_error(errc::invalid_argument,
                fmt::format("a {} tensor of libtorch is not strided elements in memory, which is what ferry sends; {}",
                            what, remedy));
  };
  if (t.is_quantized()) (void)from_torch(t.scalar_type());  // refuses the element type
  if (t.is_nested()) refuse("nested", "send its components (unbind())");
  if (t.layout() != at::kStrided) refuse(c10::str(t.layout()), "send its indices() and values(), or to_dense()");
  if (!t.has_storage()) refuse("wrapped (batched or functional)", "unwrap it first");
  if (t._is_zerotensor()) refuse("zero", "clone() it first");
}

// A tensor of ferry in a storage of libtorch. On a device with streams its memory is released after the work that libtorch
// queued on the stream that was current when the storage was made: that is the stream by which libtorch reuses memory,
// unless told otherwise.
class lent_tensor {
 public:
  explicit lent_tensor(const tensor& t)
      : lent_(t.has_slot() ? detach(t) : t.as_strided(t.shape(), t.strides(), t.storage_offset())) {
    if (t.device().is_cpu()) return;
    torch_ = torch_stream(t.device());
    ferry_ = current_stream(t.device());
    torch_waits_for(ferry_, *torch_);
    lent_.storage().record_use(ferry_);
  }
  lent_tensor(const lent_tensor&) = delete;
  lent_tensor& operator=(const lent_tensor&) = delete;
  ~lent_tensor() {
    if (!torch_) return;
    try {
      wait_for_torch(ferry_, *torch_);
    } catch (const std::exception& problem) {  // a device that has failed
      log_problem("memory that libtorch has released is not ordered after its work", problem);
    }
  }
  [[nodiscard]] const tensor& lent() const noexcept { return lent_; }
  static void release(void* self) { delete static_cast<lent_tensor*>(self); }

 private:
  tensor lent_;  // without a slot, and a tensor of its own: the lender's may be changed
  stream ferry_;
  std::optional<c10::Stream> torch_;
};

// What was lent comes back as a view of it, so that ferry sees what shares its memory. Undefined where it cannot.
tensor returned(const at::Tensor& t, dtype type, const dims& shape, const dims& strides) {
  const tensor from = lent_elements(t);
  if (!from.defined() || from.dtype() != type || t.numel() == 0) return {};
  const auto size = static_cast<std::ptrdiff_t>(dtype_size(type));
  const std::ptrdiff_t bytes = static_cast<const std::byte*>(t.data_ptr()) - from.storage().data();
  return bytes % size == 0 ? from.as_strided(shape, strides, bytes / size) : tensor();
}

}  // namespace

tensor elements_of(const at::Tensor& t) {
  check_torch_layout(t);
  const device where = from_torch(t.device());
  const dtype type = from_torch(t.scalar_type());
  const at::Tensor given = t.is_conj() || t.is_neg() ? t.detach().resolve_conj().resolve_neg() : t;
  const dims shape(given.sizes().data(), given.sizes().size());
  dims strides = contiguous_strides(shape);
  if (given.numel() != 0) {
    // Of an axis with one element libtorch keeps whatever stride it had.
    for (std::size_t axis = 0; axis != shape.size(); ++axis) {
      if (shape[axis] > 1) strides[axis] = given.strides()[axis];
    }
  }
  let_ferry_wait(where);
  if (tensor own = returned(given, type, shape, strides); own.defined()) return own;
  // The storage alone: it keeps no graph.
  return from_blob(given.numel() == 0 ? nullptr : given.data_ptr(), shape, strides, type,
                   std::make_shared<const c10::Storage>(given.storage()), where);
}

tensor lent_elements(const at::Tensor& t) {
  const auto* const from = t.storage().data_ptr().cast_context<lent_tensor>(&lent_tensor::release);
  return from == nullptr ? tensor() : from->lent();
}

at::Tensor torch_elements_of(const tensor& t) {
  const at::Device where = to_torch(t.device());
  const auto options = at::TensorOptions().dtype(to_torch(t.dtype())).device(where);
  const dims& shape = t.shape();
  const dims& strides = t.strides();
  auto memory = std::make_unique<lent_tensor>(t);
  return at::for_blob(t.numel() == 0 ? nullptr : t.data(), at::IntArrayRef(shape.data(), shape.size()))
      .strides(at::IntArrayRef(strides.data(), strides.size()))
      .context(memory.release(), &lent_tensor::release)
      .options(options)
      .target_device(where)
      .make_tensor();
}

sparse_tensor rows_of(const at::Tensor& t) {
  const dims shape(t.sizes().data(), t.sizes().size());
  return {elements_of(t._indices()), elements_of(t._values()), shape};
}

at::Tensor torch_rows_of(const sparse_tensor& t) {
  const at::Tensor values = torch_elements_of(t.values());
  return at::_sparse_coo_tensor_unsafe(torch_elements_of(t.indices()), values,
                                       at::IntArrayRef(t.shape().data(), t.shape().size()),
                                       values.options().layout(at::kSparse));
}

}  // namespace ferry::inline v0::detail
