#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>

#include <ferry/adapters/libtorch/tensor.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>
#include <ferry/tensor/factories.hpp>

#include "../../base/log_problem.hpp"
#include "streams.hpp"

namespace ferry::inline v0 {
namespace detail {
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
  if (t.layout() != at::kStrided) {
    std::string layout = c10::str(t.layout());
    refuse(layout, "send its indices() and values(), or to_dense()");
  }
  if (!t.has_storage()) refuse("wrapped (batched or functional)", "unwrap it first");
  if (t._is_zerotensor()) refuse("zero", "clone() it first");
}

// Memory of ferry in a storage of libtorch. On a device with streams it is released after the work that libtorch queued on the
// stream that was current when the storage was made: that is the stream that libtorch reuses memory by, unless told otherwise.
class lent_memory {
 public:
  explicit lent_memory(const tensor& t) : memory_(t.storage()) {
    if (t.device().is_cpu()) return;
    torch_ = torch_stream(t.device());
    ferry_ = current_stream(t.device());
    torch_waits_for(ferry_, *torch_);
    memory_.record_use(ferry_);
  }
  lent_memory(const lent_memory&) = delete;
  lent_memory& operator=(const lent_memory&) = delete;
  ~lent_memory() {
    if (!torch_) return;
    try {
      wait_for_torch(ferry_, *torch_);
    } catch (const std::exception& problem) {  // a device that has failed
      log_problem("memory that libtorch has released is not ordered after its work", problem);
    }
  }
  static void release(void* self) { delete static_cast<lent_memory*>(self); }

 private:
  storage memory_;
  stream ferry_;
  std::optional<c10::Stream> torch_;
};

}  // namespace
}  // namespace detail

tensor from_torch(const at::Tensor& t) {
  if (!t.defined()) return {};
  detail::check_torch_layout(t);
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
  // The storage alone: it keeps no graph.
  return from_blob(given.numel() == 0 ? nullptr : given.data_ptr(), shape, strides, type,
                   std::make_shared<const c10::Storage>(given.storage()), where);
}

at::Tensor to_torch(const tensor& t) {
  if (!t.defined()) return {};
  if (t.requires_grad()) {
    throw_error(
        errc::invalid_argument,
        "to_torch: the tensor requires a gradient in ferry's graph, which libtorch does not follow; detach() it, and "
        "give the result requires_grad_()");
  }
  const at::Device where = to_torch(t.device());
  const auto options = at::TensorOptions().dtype(to_torch(t.dtype())).device(where);
  const dims& shape = t.shape();
  const dims& strides = t.strides();
  auto memory = std::make_unique<detail::lent_memory>(t);
  return at::for_blob(t.numel() == 0 ? nullptr : t.data(), at::IntArrayRef(shape.data(), shape.size()))
      .strides(at::IntArrayRef(strides.data(), strides.size()))
      .context(memory.release(), &detail::lent_memory::release)
      .options(options)
      .target_device(where)
      .make_tensor();
}

}  // namespace ferry::inline v0
