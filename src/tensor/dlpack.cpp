#include <ferry/tensor/dlpack.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>
#include <ferry/tensor/factories.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

// ---------------------------------------------------------------- element types

struct mapped_type {
  dtype type;
  std::uint8_t code;
  std::uint8_t bits;
};

constexpr std::array<mapped_type, 14> mapped_types{{
    {dtype::bool_, 6, 8},
    {dtype::u8, 1, 8},
    {dtype::i8, 0, 8},
    {dtype::i16, 0, 16},
    {dtype::i32, 0, 32},
    {dtype::i64, 0, 64},
    {dtype::f16, 2, 16},
    {dtype::bf16, 4, 16},
    {dtype::f32, 2, 32},
    {dtype::f64, 2, 64},
    {dtype::c64, 5, 64},
    {dtype::c128, 5, 128},
    {dtype::f8_e4m3, 10, 8},  // kDLFloat8_e4m3fn: without infinities
    {dtype::f8_e5m2, 12, 8},
}};

constexpr std::array<std::string_view, 18> type_codes{
    "signed integer", "unsigned integer", "floating point", "opaque handle",      "bfloat",        "complex",
    "bool",           "float8_e3m4",      "float8_e4m3",    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2",    "float8_e5m2fnuz",  "float8_e8m0fnu", "float6_e2m3fn",      "float6_e3m2fn", "float4_e2m1fn"};

dtype import_dtype(dlpack::data_type from) {
  const std::string kind = from.code < type_codes.size() ? std::string(type_codes[from.code])
                                                         : fmt::format("unknown type (code {})", from.code);
  if (from.lanes != 1) {
    throw_error(errc::bad_dtype, fmt::format("from_dlpack: elements are vectors of {} lanes of {}-bit {}; only scalar "
                                             "elements (lanes 1) can be taken",
                                             from.lanes, from.bits, kind));
  }
  for (const mapped_type& each : mapped_types) {
    if (each.code == from.code && each.bits == from.bits) return each.type;
  }
  throw_error(errc::bad_dtype, fmt::format("from_dlpack: ferry has no dtype for elements of {}-bit {}; convert the "
                                           "tensor where it was made",
                                           from.bits, kind));
}

dlpack::data_type export_dtype(dtype type) {
  const auto* at = std::find_if(mapped_types.begin(), mapped_types.end(),
                                [&](const mapped_type& each) { return each.type == type; });
  return {at->code, at->bits, 1};  // every dtype is in the table
}

// ---------------------------------------------------------------- devices

constexpr std::int32_t dl_cpu = 1;
constexpr std::int32_t dl_cuda = 2;
constexpr std::int32_t dl_cuda_host = 3;
constexpr std::int32_t dl_rocm_host = 11;
constexpr std::array<std::string_view, 18> device_kinds{
    "",    "cpu",  "cuda",      "cuda host", "opencl",       "",       "",       "vulkan",  "metal",
    "vpi", "rocm", "rocm host", "ext",       "cuda managed", "oneapi", "webgpu", "hexagon", "maia"};

device import_device(dlpack::device from) {
  if (from.kind == dl_cpu || from.kind == dl_cuda_host || from.kind == dl_rocm_host) return {};
  if (from.kind == dl_cuda) return {device_kind::cuda, from.index};
  const bool known = from.kind > 0 && static_cast<std::size_t>(from.kind) < device_kinds.size() &&
                     !device_kinds[static_cast<std::size_t>(from.kind)].empty();
  throw_error(
      errc::bad_device,
      fmt::format("from_dlpack: the tensor is on device {}:{} of DLPack ({}), which ferry does not support; copy it "
                  "to the CPU or a CUDA device where it was made",
                  from.kind, from.index,
                  known ? device_kinds[static_cast<std::size_t>(from.kind)] : "a kind without a name"));
}

dlpack::device export_device(device from) {
  if (!from.is_cuda() && !from.is_cpu()) {
    throw_error(errc::bad_device,
                fmt::format("to_dlpack: DLPack has no number for devices like {}; copy the tensor to the "
                            "CPU first",
                            to_string(from)));
  }
  return from.is_cuda() ? dlpack::device{dl_cuda, from.index} : dlpack::device{dl_cpu, 0};
}

// ---------------------------------------------------------------- out

// What an export keeps alive; one allocation beside the tensor's handle.
template <class M>
struct exported {
  M managed{};
  tensor source;
  dims shape;
  dims strides;
};

template <class M>
exported<M>* make_export(const tensor& t) {
  if (t.requires_grad()) {
    throw_error(errc::invalid_argument,
                "to_dlpack: the tensor requires gradients, which writes of another library would make wrong; export a "
                "clone() of it");
  }
  auto self = std::make_unique<exported<M>>();
  self->source = t;
  self->shape = t.shape();
  self->strides = t.strides();
  dlpack::tensor_view& view = self->managed.dl_tensor;
  view.data = t.data();
  view.device = export_device(t.device());
  view.ndim = static_cast<std::int32_t>(t.rank());
  view.dtype = export_dtype(t.dtype());
  view.shape = self->shape.data();
  view.strides = self->strides.data();
  self->managed.manager_ctx = self.get();
  self->managed.deleter = [](M* managed) { delete static_cast<exported<M>*>(managed->manager_ctx); };
  return self.release();
}

// ---------------------------------------------------------------- in

// Calls the import's deleter when the last tensor over its memory is destroyed, if ownership was transferred by then.
template <class M>
struct imported {
  imported() = default;
  imported(const imported&) = delete;
  imported& operator=(const imported&) = delete;
  ~imported() {
    if (managed) dlpack::release<M>{}(managed);
  }
  M* managed = nullptr;
};

struct layout {
  dims shape;
  dims strides;
};

layout import_layout(const dlpack::tensor_view& view) {
  if (view.ndim < 0 || static_cast<std::size_t>(view.ndim) > max_rank) {
    throw_error(errc::bad_shape, fmt::format("from_dlpack: {} axes; a tensor has 0 to {}", view.ndim, max_rank));
  }
  const auto rank = static_cast<std::size_t>(view.ndim);
  if (rank != 0 && !view.shape) throw_error(errc::invalid_argument, "from_dlpack: the pointer to the shape is null");
  layout result;
  result.shape = dims(view.shape, rank);
  result.strides = contiguous_strides(result.shape);
  if (!view.strides || element_count(result.shape) == 0) return result;
  for (std::size_t axis = 0; axis != rank; ++axis) {
    // Of an axis with one element any stride may be given.
    if (result.shape[axis] > 1) result.strides[axis] = view.strides[axis];
    if (result.strides[axis] < 0) {
      throw_error(errc::bad_shape,
                  fmt::format("from_dlpack: axis {} runs backwards (stride {}), and ferry's strides are not negative; "
                              "copy the tensor where it was made",
                              axis, view.strides[axis]));
    }
  }
  return result;
}

// A tensor over the memory, owned by `owner`.
tensor import_view(const dlpack::tensor_view& view, std::shared_ptr<const void> owner) {
  const dtype type = import_dtype(view.dtype);
  const device where = import_device(view.device);
  const auto [shape, strides] = import_layout(view);
  const std::int64_t count = element_count(shape);
  if (!view.data && count != 0) {
    throw_error(errc::invalid_argument,
                fmt::format("from_dlpack: the pointer to the data of shape {} is null", to_string(shape)));
  }
  // Without elements the address is meaningless.
  void* data = nullptr;
  if (count != 0) data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(view.data) + view.byte_offset);
  return from_blob(data, shape, strides, type, std::move(owner), where);
}

template <class M>
tensor import_shared(M* managed) {
  const auto owner = std::make_shared<imported<M>>();
  tensor result = import_view(managed->dl_tensor, owner);
  owner->managed = managed;  // from here on nothing throws
  return result;
}

void need_managed(const void* managed) {
  if (!managed) throw_error(errc::invalid_argument, "from_dlpack: a null pointer");
}

}  // namespace

void give_to(const tensor& t, const stream& consumer) {
  if (t.device().is_cpu()) return;
  consumer.wait(current_stream(t.device()));
  t.storage().record_use(consumer);
}

dlpack::managed_tensor* export_unversioned(const tensor& t, dlpack::access allowed) {
  if (allowed == dlpack::access::read_only) {
    throw_error(
        errc::invalid_argument,
        "to_dlpack: DLManagedTensor, the older form, cannot say that a tensor is read-only; export a clone(), or "
        "DLManagedTensorVersioned");
  }
  return &make_export<dlpack::managed_tensor>(t)->managed;
}

dlpack::managed_tensor_versioned* export_versioned(const tensor& t, dlpack::access allowed) {
  dlpack::managed_tensor_versioned& managed = make_export<dlpack::managed_tensor_versioned>(t)->managed;
  managed.version = {1, 1};
  managed.flags = allowed == dlpack::access::read_only ? dlpack::flag_read_only : 0;
  return &managed;
}

tensor import_unversioned(dlpack::managed_tensor* managed) {
  need_managed(managed);
  return import_shared(managed);
}

tensor import_versioned(dlpack::managed_tensor_versioned* managed, dlpack::if_read_only policy) {
  need_managed(managed);
  if (managed->version.major != 1) {
    throw_error(errc::invalid_argument,
                fmt::format("from_dlpack: the tensor follows DLPack {}.{}, and this version of ferry reads 1.x",
                            managed->version.major, managed->version.minor));
  }
  if ((managed->flags & dlpack::flag_read_only) == 0) return import_shared(managed);
  if (policy == dlpack::if_read_only::refuse) {
    throw_error(errc::invalid_argument,
                "from_dlpack: the tensor is read-only, and tensors of ferry can be written; copy it "
                "(dlpack::if_read_only::copy)");
  }
  // The copy is only queued on the current stream: the memory goes back as that of any import does.
  const auto owner = std::make_shared<imported<dlpack::managed_tensor_versioned>>();
  const tensor shared = import_view(managed->dl_tensor, owner);
  tensor copy = shared.clone();
  owner->managed = managed;  // from here on nothing throws
  return copy;
}

}  // namespace detail
}  // namespace ferry::inline v0
