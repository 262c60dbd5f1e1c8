#include <ferry/tensor/dlpack.hpp>

#include <array>
#include <complex>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/hooks.hpp>
#include <ferry/tensor/visit.hpp>

#include "expect_error.hpp"

// The declarations in a user's dlpack.h: the same structs under other names.
extern "C" {
enum DLDeviceType : int { kDLCPU = 1 };
struct DLDevice {
  DLDeviceType device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
};
struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
}

namespace dlpack_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::from_dlpack;
using ferry::tensor;
using ferry::to_dlpack;

}  // namespace dlpack_test
namespace dlpack = ferry::dlpack;

namespace dlpack_test {

namespace {

static_assert(dlpack::unversioned<DLManagedTensor> && dlpack::unversioned<dlpack::managed_tensor>);
static_assert(dlpack::versioned<DLManagedTensorVersioned> && dlpack::versioned<dlpack::managed_tensor_versioned>);
static_assert(!dlpack::managed<DLTensor> && !dlpack::managed<int>);

// A tensor of another library; counts how often it is returned.
template <class M>
struct maker {
  std::vector<std::int64_t> shape{2, 3};
  std::vector<std::int64_t> strides{3, 1};
  std::array<float, 6> elements{0, 1, 2, 3, 4, 5};
  int given_back = 0;
  M managed{};

  maker() {
    if constexpr (dlpack::versioned<M>) managed.version = {1, 0};
    managed.manager_ctx = this;
    managed.deleter = [](M* self) { ++static_cast<maker*>(self->manager_ctx)->given_back; };
    auto& view = managed.dl_tensor;
    view.data = elements.data();
    view.device = {static_cast<decltype(view.device.device_type)>(1), 0};
    view.ndim = 2;
    view.dtype = {2, 32, 1};
    view.shape = shape.data();
    view.strides = strides.data();
  }
  maker(const maker&) = delete;
  maker& operator=(const maker&) = delete;
};
using old_maker = maker<DLManagedTensor>;
using new_maker = maker<DLManagedTensorVersioned>;

// Ownership was not taken: the producer still has it.
template <class Maker, class Change>
void check_refused(errc kind, std::string_view text, Change&& change) {
  Maker made;
  change(made.managed);
  expect_error(kind, text, [&] { (void)from_dlpack(&made.managed); });
  CHECK(made.given_back == 0);
  expect_error(kind, text,
               [&] { (void)from_dlpack(dlpack::owned<std::remove_cvref_t<decltype(made.managed)>>(&made.managed)); });
  CHECK(made.given_back == 1);
}

// What requires gradients, and hands them on to nothing.
class learning_slot final : public ferry::tensor_hooks {
 public:
  void viewed(const ferry::operation&, const tensor&, tensor&) override {}
  void mutated(const ferry::operation&, const tensor&, std::span<const tensor>) override {}
  void computed(const ferry::operation&, std::span<const tensor>, std::span<tensor>) override {}
  [[nodiscard]] bool requires_grad(const tensor&) const noexcept override { return true; }
};

}  // namespace

TEST_CASE_TEMPLATE("an import shares the memory and is returned once, with the last tensor over it", Maker, old_maker,
                   new_maker) {
  Maker made;
  {
    tensor view;
    {
      const tensor t = from_dlpack(&made.managed);
      CHECK(t.data() == made.elements.data());
      CHECK(t.shape() == dims{2, 3});
      CHECK(t.dtype() == dtype::f32);
      CHECK(t.device() == ferry::device{});
      CHECK(t.storage().owns_memory());
      t.at<float>(1, 2) = 50;
      CHECK(made.elements[5] == 50);
      made.elements[0] = -1;
      CHECK(t.at<float>(0, 0) == -1);
      view = t.select(0, 1);
    }
    CHECK(made.given_back == 0);
    CHECK(view.at<float>(0) == 3);
  }
  CHECK(made.given_back == 1);
  {
    const tensor t = from_dlpack(dlpack::owned<decltype(made.managed)>(&made.managed));
    CHECK(made.given_back == 1);
  }
  CHECK(made.given_back == 2);
}

TEST_CASE_TEMPLATE("layouts of imports: no strides, gaps, offsets, nothing", Maker, old_maker, new_maker) {
  SUBCASE("without strides: row-major") {
    Maker made;
    made.managed.dl_tensor.strides = nullptr;
    CHECK(ferry::equal(from_dlpack(&made.managed), ferry::tensor_of({{0.F, 1.F, 2.F}, {3.F, 4.F, 5.F}})));
  }
  SUBCASE("transposed, from an offset in bytes") {
    Maker made;
    made.shape = {2, 2};
    made.strides = {1, 3};
    made.managed.dl_tensor.byte_offset = sizeof(float);
    CHECK(ferry::equal(from_dlpack(&made.managed), ferry::tensor_of({{1.F, 4.F}, {2.F, 5.F}})));
  }
  SUBCASE("an axis that is sent once") {
    Maker made;
    made.strides = {0, 1};
    CHECK(ferry::equal(from_dlpack(&made.managed), ferry::tensor_of({{0.F, 1.F, 2.F}, {0.F, 1.F, 2.F}})));
  }
  SUBCASE("strides of axes with one element mean nothing") {
    Maker made;
    made.shape = {1, 3};
    made.strides = {-77, 1};
    CHECK(from_dlpack(&made.managed).is_contiguous());
  }
  SUBCASE("no axes") {
    Maker made;
    made.managed.dl_tensor.ndim = 0;
    made.managed.dl_tensor.shape = nullptr;
    made.managed.dl_tensor.strides = nullptr;
    CHECK(from_dlpack(&made.managed).template item<float>() == 0);
  }
  SUBCASE("no elements") {
    Maker made;
    made.shape = {0, 3};
    made.strides = {-5, 7};
    made.managed.dl_tensor.data = nullptr;
    made.managed.dl_tensor.byte_offset = 1;
    const tensor t = from_dlpack(&made.managed);
    CHECK(t.shape() == dims{0, 3});
    CHECK(t.numel() == 0);
  }
  SUBCASE("no deleter") {
    Maker made;
    made.managed.deleter = nullptr;
    CHECK(from_dlpack(&made.managed).numel() == 6);
  }
}

TEST_CASE("unsupported imports are refused with an explanation and stay with their producer") {
  check_refused<old_maker>(errc::bad_dtype, "vectors of 4 lanes", [](auto& m) { m.dl_tensor.dtype.lanes = 4; });
  check_refused<old_maker>(errc::bad_dtype, "32-bit unsigned integer", [](auto& m) { m.dl_tensor.dtype.code = 1; });
  check_refused<old_maker>(errc::bad_dtype, "unknown type (code 200)", [](auto& m) { m.dl_tensor.dtype.code = 200; });
  check_refused<new_maker>(errc::bad_dtype, "float4_e2m1fn", [](auto& m) { m.dl_tensor.dtype = {17, 4, 1}; });
  check_refused<old_maker>(errc::bad_device, "(metal)",
                           [](auto& m) { m.dl_tensor.device.device_type = static_cast<DLDeviceType>(8); });
  check_refused<old_maker>(errc::bad_device, "device 99:0",
                           [](auto& m) { m.dl_tensor.device.device_type = static_cast<DLDeviceType>(99); });
  check_refused<old_maker>(errc::bad_device, "cuda", [](auto& m) {
    m.dl_tensor.device = {static_cast<DLDeviceType>(2), 4711};
  });
  check_refused<old_maker>(errc::bad_shape, "axis 1 runs backwards", [](auto& m) { m.dl_tensor.strides[1] = -1; });
  check_refused<old_maker>(errc::bad_shape, "33 axes", [](auto& m) { m.dl_tensor.ndim = 33; });
  check_refused<old_maker>(errc::bad_shape, "-1 axes", [](auto& m) { m.dl_tensor.ndim = -1; });
  check_refused<old_maker>(errc::bad_shape, "", [](auto& m) { m.dl_tensor.shape[0] = -2; });
  check_refused<old_maker>(errc::bad_shape, "",
                           [](auto& m) { m.dl_tensor.shape[0] = m.dl_tensor.shape[1] = std::int64_t{1} << 40; });
  check_refused<old_maker>(errc::bad_shape, "", [](auto& m) { m.dl_tensor.strides[0] = INT64_MAX; });
  check_refused<old_maker>(errc::invalid_argument, "shape is null", [](auto& m) { m.dl_tensor.shape = nullptr; });
  check_refused<old_maker>(errc::invalid_argument, "is null", [](auto& m) { m.dl_tensor.data = nullptr; });
  check_refused<old_maker>(errc::invalid_argument, "not aligned", [](auto& m) { m.dl_tensor.byte_offset = 2; });
  check_refused<new_maker>(errc::invalid_argument, "DLPack 2.3", [](auto& m) { m.version = {2, 3}; });
  check_refused<new_maker>(errc::invalid_argument, "read-only", [](auto& m) { m.flags = 1; });
  expect_error(errc::invalid_argument, "null pointer",
               [] { (void)from_dlpack(static_cast<DLManagedTensor*>(nullptr)); });
}

TEST_CASE("a read-only import is copied on request, and returned at once") {
  new_maker made;
  made.managed.flags = dlpack::flag_read_only;
  const tensor t = from_dlpack(&made.managed, dlpack::if_read_only::copy);
  CHECK(made.given_back == 1);
  CHECK(t.data() != made.elements.data());
  CHECK(t.at<float>(1, 2) == 5);
  new_maker writable;  // the policy affects read-only tensors only
  CHECK(from_dlpack(&writable.managed, dlpack::if_read_only::copy).data() == writable.elements.data());
}

TEST_CASE_TEMPLATE("an export refers to the tensor's memory and keeps it alive", M, DLManagedTensor,
                   DLManagedTensorVersioned, dlpack::managed_tensor, dlpack::managed_tensor_versioned) {
  tensor whole = ferry::arange(12).view({3, 4});
  tensor t = whole.transpose(0, 1).slice(0, 1);
  M* given = to_dlpack<M>(t).release();
  CHECK(given->dl_tensor.data == t.data());
  CHECK(given->dl_tensor.byte_offset == 0);
  CHECK(given->dl_tensor.ndim == 2);
  CHECK(given->dl_tensor.shape[0] == 3);
  CHECK(given->dl_tensor.strides[0] == 1);
  CHECK(given->dl_tensor.strides[1] == 4);
  CHECK(given->dl_tensor.dtype.code == 0);
  CHECK(given->dl_tensor.dtype.bits == 64);
  CHECK(given->dl_tensor.dtype.lanes == 1);
  if constexpr (dlpack::versioned<M>) {
    CHECK(given->version.major == 1);
    CHECK(given->flags == 0);
  }
  CHECK(whole.storage().use_count() == 2);  // two tensors, one of them shared with the export
  t = tensor();
  static_cast<std::int64_t*>(given->dl_tensor.data)[0] = 100;
  CHECK(whole.at<std::int64_t>(0, 1) == 100);
  {
    const tensor back = from_dlpack(given);
    CHECK(back.data() == whole.data<std::int64_t>() + 1);
    CHECK(back.shape() == dims{3, 3});
    CHECK(back.at<std::int64_t>(1, 2) == 10);
    CHECK(whole.storage().use_count() == 2);
  }
  CHECK(whole.storage().use_count() == 1);
}

TEST_CASE("every dtype is exported and imported") {
  for (int code = 1; code <= 14; ++code) {
    const auto type = static_cast<dtype>(code);
    CAPTURE(ferry::dtype_name(type));
    const tensor t = ferry::zeros({2}, type);
    auto out = to_dlpack(t);
    CHECK(out->dl_tensor.dtype.bits == 8 * ferry::dtype_size(type));
    const tensor back = from_dlpack(std::move(out));
    CHECK(back.dtype() == type);
    CHECK(back.data() == t.data());
  }
  // The codes of DLPack's own header, for those that are not obvious.
  const auto code_of = [](dtype type) { return int{to_dlpack(ferry::zeros({1}, type))->dl_tensor.dtype.code}; };
  CHECK(code_of(dtype::bool_) == 6);
  CHECK(code_of(dtype::bf16) == 4);
  CHECK(code_of(dtype::c64) == 5);
  CHECK(code_of(dtype::f8_e4m3) == 10);
  CHECK(code_of(dtype::f8_e5m2) == 12);
}

TEST_CASE("exports that are refused or restricted") {
  expect_error(errc::invalid_argument, "undefined", [] { (void)to_dlpack(tensor()); });
  expect_error(errc::invalid_argument, "cannot say that a tensor is read-only",
               [] { (void)to_dlpack<DLManagedTensor>(ferry::zeros({1}), dlpack::access::read_only); });
  CHECK(to_dlpack(ferry::zeros({1}), dlpack::access::read_only)->flags == dlpack::flag_read_only);
  const tensor learning = ferry::zeros({1});
  learning.set_slot(std::make_shared<learning_slot>());
  expect_error(errc::invalid_argument, "requires gradients", [&] { (void)to_dlpack(learning); });
  CHECK(to_dlpack(learning.clone())->dl_tensor.ndim == 1);
  const auto scalar = to_dlpack(ferry::tensor_of(3.F));
  CHECK(scalar->dl_tensor.ndim == 0);
  CHECK(*static_cast<float*>(scalar->dl_tensor.data) == 3);
  CHECK(to_dlpack(ferry::zeros({0, 3}))->dl_tensor.shape[1] == 3);
}

}  // namespace dlpack_test
