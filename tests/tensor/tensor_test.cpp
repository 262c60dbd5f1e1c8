#include <ferry/tensor/tensor.hpp>

#include <complex>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"

namespace tensor_test {

using ferry::dims;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

TEST_CASE("a tensor is a handle with identity") {
  static_assert(sizeof(tensor) == sizeof(void*));
  static_assert(std::is_nothrow_move_constructible_v<tensor> && std::is_nothrow_copy_constructible_v<tensor>);
  const tensor a = ferry::zeros({2, 3});
  const tensor copy = a;
  CHECK(copy.same_as(a));
  copy.at<float>(1, 2) = 5;
  CHECK(a.at<float>(1, 2) == 5);
  CHECK(!a.same_as(a.clone()));
  CHECK(!a.same_as(a.view({2, 3})));
  tensor moved = copy;
  const tensor target = std::move(moved);
  CHECK(target.same_as(a));
  CHECK(!moved.defined());  // NOLINT: the state after a move is documented
}

TEST_CASE("an undefined tensor reports that it is undefined") {
  const tensor t;
  CHECK(!t.defined());
  CHECK(t.same_as(tensor()));
  expect_error(errc::invalid_argument, "the tensor is undefined", [&] { (void)t.shape(); });
  expect_error(errc::invalid_argument, "the tensor is undefined", [&] { (void)t.clone(); });
  expect_error(errc::invalid_argument, "the tensor is undefined", [&] { (void)t.data<float>(); });
}

TEST_CASE("properties of a new tensor") {
  const tensor t = ferry::empty({2, 3, 4}, dtype::i16);
  CHECK(t.dtype() == dtype::i16);
  CHECK(t.device().is_cpu());
  CHECK(t.rank() == 3);
  CHECK(t.shape() == dims{2, 3, 4});
  CHECK(t.strides() == dims{12, 4, 1});
  CHECK(t.size(-1) == 4);
  CHECK(t.stride(0) == 12);
  CHECK(t.numel() == 24);
  CHECK(t.nbytes() == 48);
  CHECK(t.is_contiguous());
  CHECK(t.storage_offset() == 0);
  CHECK(t.storage().size() == 48);
  CHECK(t.storage().owns_memory());
  CHECK(reinterpret_cast<std::uintptr_t>(t.data()) % 64 == 0);
  expect_error(errc::bad_shape, "axis 3 is out of range for shape [2, 3, 4]; valid are -3 to 2",
               [&] { (void)t.size(3); });
}

TEST_CASE("no axes, and no elements") {
  const tensor scalar = ferry::full({}, 2.5);
  CHECK(scalar.rank() == 0);
  CHECK(scalar.numel() == 1);
  CHECK(scalar.item<float>() == 2.5F);
  CHECK(scalar.at<float>() == 2.5F);

  const tensor none = ferry::zeros({3, 0, 2}, dtype::f64);
  CHECK(none.numel() == 0);
  CHECK(none.nbytes() == 0);
  CHECK(none.is_contiguous());
  CHECK(none.select(0, 2).shape() == dims{0, 2});
  CHECK(none.transpose(0, 2).clone().shape() == dims{2, 0, 3});
  CHECK(ferry::equal(none, none.clone()));
  CHECK(none.reshape({0, 7}).shape() == dims{0, 7});
  none.fill_(1);
  expect_error(errc::bad_shape, "item() needs a tensor with one element; shape [3, 0, 2] has 0",
               [&] { (void)none.item<double>(); });
}

TEST_CASE("typed access checks dtype and indices") {
  const tensor t = ferry::arange(6).view({2, 3});
  CHECK(t.at<std::int64_t>(1, 0) == 3);
  CHECK(t.at<std::int64_t>(-1, -1) == 5);
  CHECK(t.at<long long>(0, 1) == 1);
  CHECK(t.data<const std::int64_t>()[4] == 4);
  expect_error(errc::bad_dtype, "elements of f32 were asked for, but the tensor of shape [2, 3] holds i64",
               [&] { (void)t.data<float>(); });
  expect_error(errc::bad_shape, "index 2 is out of range for axis 0 of shape [2, 3]",
               [&] { (void)t.at<std::int64_t>(2, 0); });
  expect_error(errc::bad_shape, "index -4 is out of range for axis 1", [&] { (void)t.at<std::int64_t>(0, -4); });
  expect_error(errc::bad_shape, "1 indices were given for shape [2, 3], which takes 2",
               [&] { (void)t.at<std::int64_t>(1); });
}

TEST_CASE("item converts to the requested type") {
  CHECK(ferry::tensor_of(7).item<double>() == 7.0);
  CHECK(ferry::tensor_of(2.75).item<std::int32_t>() == 2);
  CHECK(ferry::tensor_of({-1.5F}).item<std::complex<double>>() == std::complex<double>(-1.5, 0));
  CHECK(ferry::tensor_of(true).item<float>() == 1.0F);
}

TEST_CASE("factories") {
  CHECK(ferry::equal(ferry::ones({3}, dtype::i32), ferry::tensor_of({1, 1, 1})));
  CHECK(ferry::equal(ferry::full({2, 1}, 9, dtype::u8), ferry::tensor_of<std::uint8_t>({{9}, {9}})));
  CHECK(ferry::equal(ferry::arange(2, 10, 3), ferry::tensor_of<std::int64_t>({2, 5, 8})));
  CHECK(ferry::equal(ferry::arange(2, -3, -2), ferry::tensor_of<std::int64_t>({2, 0, -2})));
  CHECK(ferry::equal(ferry::arange(0, 1, 0.25), ferry::tensor_of({0.F, .25F, .5F, .75F})));
  CHECK(ferry::arange(5, 5).numel() == 0);
  CHECK(ferry::arange(5, 0).numel() == 0);
  const auto low = std::numeric_limits<std::int64_t>::min();
  const auto high = std::numeric_limits<std::int64_t>::max();
  CHECK(ferry::arange(low, high, std::int64_t{1} << 62).numel() == 4);
  CHECK(ferry::arange(low, high, std::int64_t{1} << 62).at<std::int64_t>(3) == std::int64_t{1} << 62);
  CHECK(ferry::equal(ferry::from_vector(std::vector<double>{1, 2, 3, 4}, {2, 2}),
                     ferry::tensor_of({{1., 2.}, {3., 4.}})));
  CHECK(ferry::from_vector(std::vector<float>{}).shape() == dims{0});
  CHECK(ferry::zeros_like(ferry::tensor_of({1, 2})).dtype() == dtype::i32);
  const std::vector<int> sizes{1, 2, 3};
  CHECK(ferry::zeros({sizes.size(), std::size_t{2}}).shape() == dims{3, 2});

  expect_error(errc::bad_shape, "size -1 in shape [2, -1] is negative", [] { (void)ferry::empty({2, -1}); });
  expect_error(errc::bad_shape, "more elements than fit", [] {
    (void)ferry::empty({std::int64_t{1} << 40, std::int64_t{1} << 40});
  });
  expect_error(errc::bad_shape, "more elements than fit", [] {
    (void)ferry::empty({0, std::int64_t{1} << 40, std::int64_t{1} << 40});
  });
  expect_error(errc::bad_shape, "takes more bytes than fit",
               [] { (void)ferry::empty({std::int64_t{1} << 61}, dtype::f64); });
  expect_error(errc::out_of_memory, "cannot allocate", [] { (void)ferry::empty({std::int64_t{1} << 50}); });
  expect_error(errc::bad_shape, "4 elements do not fill the shape [3]", [] {
    (void)ferry::from_vector(std::vector<int>{1, 2, 3, 4}, {3});
  });
  expect_error(errc::bad_shape, "rows of 2 and of 1 elements", [] { (void)ferry::tensor_of({{1, 2}, {3}}); });
  expect_error(errc::bad_device, "there is no device cuda:1000", [] {
    (void)ferry::empty({1}, dtype::f32, {ferry::device_kind::cuda, 1000});
  });
  expect_error(errc::invalid_argument, "step must not be 0", [] { (void)ferry::arange(0, 1, 0); });
  expect_error(errc::invalid_argument, "must be finite", [] { (void)ferry::arange(0, 1. / 0., 1); });
}

TEST_CASE("more dimensions than fit inline") {
  const dims shape(std::size_t{32}, 1);
  const tensor t = ferry::ones(shape);
  CHECK(t.rank() == 32);
  CHECK(t.clone().shape() == shape);
  expect_error(errc::bad_shape, "33 dimensions are more than the 32", [&] { (void)t.unsqueeze(0); });
  dims a(std::size_t{9}, 2);
  dims b = a;
  a[8] = 5;
  CHECK(b[8] == 2);
  b = std::move(a);
  CHECK(b[8] == 5);
  b = dims{1};
  CHECK(b == dims{1});
  a = b;
  CHECK(a.to_vector() == std::vector<std::int64_t>{1});
  CHECK(to_string(dims{4, 5}) == "[4, 5]");
  expect_error(errc::bad_shape, "does not fit into 63 bits", [] { (void)dims{~std::size_t{0}}; });
}

TEST_CASE("foreign memory is used in place and released once") {
  std::vector<float> memory{1, 2, 3, 4, 5, 6};
  int released = 0;
  {
    const tensor t = ferry::from_blob(memory.data(), {2, 3}, dtype::f32, [&](void* p) {
      CHECK(p == memory.data());
      ++released;
    });
    CHECK(t.data() == memory.data());
    CHECK(t.storage().owns_memory());
    const tensor row = t.select(0, 1);
    row.fill_(0);
    CHECK(memory[4] == 0);
    CHECK(released == 0);
  }
  CHECK(released == 1);

  auto owner = std::make_shared<std::vector<double>>(4, 1.0);
  const tensor shared = ferry::from_blob(owner->data(), {4}, dtype::f64, owner);
  CHECK(owner.use_count() == 2);

  const tensor borrowed = ferry::from_blob(memory.data(), {2}, {3}, dtype::f32);
  CHECK(!borrowed.storage().owns_memory());
  CHECK(borrowed.at<float>(1) == memory[3]);
  CHECK(borrowed.clone().storage().owns_memory());

  expect_error(errc::invalid_argument, "not aligned",
               [&] { (void)ferry::from_blob(reinterpret_cast<char*>(memory.data()) + 1, {2}, dtype::f32); });
  expect_error(errc::invalid_argument, "null pointer", [] { (void)ferry::from_blob(nullptr, {2}, dtype::f32); });
  expect_error(errc::bad_shape, "size -2",
               [&] { (void)ferry::from_blob(memory.data(), {-2}, dtype::f32, [&](void*) { ++released; }); });
  CHECK(released == 2);
  CHECK(ferry::from_blob(nullptr, {0, 4}, dtype::f32).numel() == 0);
}

TEST_CASE("clone, contiguous, copy_, fill_") {
  const tensor t = ferry::arange(12).view({3, 4});
  const tensor turned = t.transpose(0, 1);
  CHECK(t.contiguous().same_as(t));
  const tensor dense = turned.contiguous();
  CHECK(dense.is_contiguous());
  CHECK(dense.strides() == dims{3, 1});
  CHECK(ferry::equal(dense, turned));
  for (int i = 0; i != 4; ++i) {
    for (int j = 0; j != 3; ++j) CHECK(dense.at<std::int64_t>(i, j) == t.at<std::int64_t>(j, i));
  }

  const tensor target = ferry::zeros({4, 3}, dtype::f32);
  CHECK(target.copy_(turned).same_as(target));
  CHECK(target.at<float>(3, 2) == 11.F);
  target.copy_(ferry::tensor_of({1.F, 2.F, 3.F}));  // expands
  CHECK(target.at<float>(3, 1) == 2.F);
  target.select(1, 1).fill_(-1);
  CHECK(target.at<float>(2, 1) == -1.F);
  CHECK(target.at<float>(2, 2) == 3.F);
  expect_error(errc::bad_shape, "shape [2] does not expand to [4, 3]", [&] { target.copy_(ferry::zeros({2})); });
  expect_error(errc::bad_shape, "more than once", [] { ferry::zeros({1, 3}).expand({2, 3}).fill_(1); });
  expect_error(errc::bad_shape, "more than once", [] { ferry::zeros({4}).as_strided({3, 2}, {1, 1}, 0).fill_(1); });

  const tensor line = ferry::arange(6);  // overlapping source and target
  line.slice(0, 1).copy_(line.slice(0, 0, 5));
  CHECK(ferry::equal(line, ferry::tensor_of<std::int64_t>({0, 0, 1, 2, 3, 4})));
  const tensor square = ferry::arange(4).view({2, 2});
  square.copy_(square.transpose(0, 1));
  CHECK(ferry::equal(square, ferry::tensor_of<std::int64_t>({{0, 2}, {1, 3}})));
  square.copy_(square);
  CHECK(square.at<std::int64_t>(0, 1) == 2);
}

TEST_CASE("handles are copied and dropped from several threads") {
  int released = 0;
  std::vector<float> memory(1000, 1.0F);
  {
    const tensor t = ferry::from_blob(memory.data(), {1000}, dtype::f32, [&](void*) { ++released; });
    std::vector<std::thread> threads;
    for (int n = 0; n != 4; ++n) {
      threads.emplace_back([t, n] {
        for (int i = 0; i != 2000; ++i) {
          const tensor copy = t;
          const tensor view = copy.slice(0, n * 250, (n + 1) * 250);
          const tensor own = view.clone();
          own.fill_(i);
          view.storage().bump_version();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(t.version() == 8000);
    CHECK(released == 0);
  }
  CHECK(released == 1);
}

TEST_CASE("small tensors come from the thread's cache") {
  const auto work = [] {
    for (int i = 0; i != 100; ++i) {
      const tensor t = ferry::zeros({4, 4});
      (void)t.select(0, 1).clone();
    }
  };
  work();
  const auto before = ferry::get_cpu_pool_stats().system_allocations;
  work();
  CHECK(ferry::get_cpu_pool_stats().system_allocations == before);
}

TEST_CASE("operations on empty shapes whose strides are huge") {
  const tensor t = ferry::empty({0, std::int64_t{1} << 62}, dtype::f64);
  CHECK(ferry::equal(t.clone(), t));
  CHECK(t.transpose(0, 1).to(dtype::f32).numel() == 0);
  t.fill_(1);
  CHECK(t.select(1, -1).numel() == 0);
  CHECK(t.unsqueeze(0).slice(2, 5).flatten(0, 1).numel() == 0);
}

}  // namespace tensor_test
