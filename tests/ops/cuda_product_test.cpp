// Products of matrices on CUDA devices, on the fake CUDA runtime: by ferry's kernel, and by a double of cuBLAS.

#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "launcher.hpp"
#include "ops/cublas.hpp"
#include "varied.hpp"

namespace cuda_product_test {

using ferry::dtype;
using ferry::tensor;
using ferry_test::varied;

namespace {

constexpr ferry::device gpu{ferry::device_kind::cuda, 1};

int handles = 0;
int products = 0;
int refusal = 0;
CUstream_st* current = nullptr;

// Column-major, as the library's.
template <class T>
int column_major(void* handle, int transposed_a, int transposed_b, int rows, int columns, int inner, const T* alpha,
                 const T* a, int a_leading, const T* b, int b_leading, const T* beta, T* out, int out_leading) {
  CHECK(handle == &handles);
  ++products;
  if (refusal != 0) return refusal;
  const T factor = *alpha;
  const T kept = *beta;
  return fake_cuda::start_kernel(current, [=] {
    for (int i = 0; i != rows; ++i) {
      for (int j = 0; j != columns; ++j) {
        T total = 0;
        for (int k = 0; k != inner; ++k) {
          total += (transposed_a != 0 ? a[k + i * a_leading] : a[i + k * a_leading]) *
                   (transposed_b != 0 ? b[j + k * b_leading] : b[k + j * b_leading]);
        }
        T& to = out[i + j * out_leading];
        to = factor * total + (kept == T{0} ? T{0} : kept * to);
      }
    }
  });
}

constexpr ferry::detail::cublas_functions double_of_cublas{
    .create =
        [](void** handle) {
          ++handles;
          *handle = &handles;
          return 0;
        },
    .set_stream =
        [](void*, CUstream_st* stream) {
          current = stream;
          return 0;
        },
    .f32 = &column_major<float>,
    .f64 = &column_major<double>,
};

struct with_cublas {
  with_cublas() { ferry::detail::use_cublas(&double_of_cublas); }
  ~with_cublas() { ferry::detail::use_cublas(nullptr); }
  with_cublas(const with_cublas&) = delete;
  with_cublas& operator=(const with_cublas&) = delete;
};

bool same(const tensor& there, const tensor& here) {
  return there.device() == gpu && ferry::allclose(there.to(ferry::device{}), here, 1e-5, 1e-6);
}

void check_products(dtype type) {
  const auto on_both = [&](const tensor& a, const tensor& b) {
    CHECK(same(ferry::matmul(a.to(gpu), b.to(gpu)), ferry::matmul(a, b)));
  };
  const tensor a = (varied({5, 7}, 1) * 9).to(type);
  const tensor b = (varied({7, 4}, 2) * 9).to(type);
  on_both(a, b);
  CHECK(same(ferry::matmul(b.to(gpu).transpose(0, 1), a.to(gpu).transpose(0, 1)),
             ferry::matmul(b.transpose(0, 1), a.transpose(0, 1))));
  CHECK(same(ferry::matmul(a.to(gpu).slice(1, 0, 7, 2), b.to(gpu).slice(0, 0, 7, 2)),
             ferry::matmul(a.slice(1, 0, 7, 2), b.slice(0, 0, 7, 2))));
  on_both(a.select(0, 0), b);
  on_both(a, b.select(1, 0));
  on_both(a.select(0, 0), b.select(1, 0));
  const tensor batch = (varied({2, 3, 5, 7}, 3) * 9).to(type);
  on_both(batch, b);
  on_both(batch, (varied({3, 7, 2}, 4) * 9).to(type));
  on_both(a, (varied({2, 1, 7, 3}, 5) * 9).to(type));
  on_both(ferry::zeros({0, 7}, type), b);
  on_both(ferry::zeros({5, 0}, type), ferry::zeros({0, 3}, type));
  const tensor weight = (varied({4, 7}, 6) * 9).to(type);
  const tensor bias = (varied({4}, 7) * 9).to(type);
  CHECK(same(ferry::linear(a.to(gpu), weight.to(gpu), bias.to(gpu)), ferry::linear(a, weight, bias)));
  CHECK(same(ferry::linear(batch.to(gpu), weight.to(gpu)), ferry::linear(batch, weight)));
}

}  // namespace

TEST_CASE("products on a device are the CPU's") {
  for (const dtype type : {dtype::i32, dtype::i64, dtype::f32, dtype::f64}) check_products(type);
}

TEST_CASE("products on a device by cuBLAS") {
  const with_cublas library;
  products = 0;
  for (const dtype type : {dtype::f32, dtype::f64}) check_products(type);
  CHECK(products > 20);
  CHECK(handles == 1);
  const int before = products;
  check_products(dtype::i32);  // which it does not have
  CHECK(products == before);
  refusal = 14;
  expect_error(ferry::errc::device_failure, "start a kernel", [] {
    (void)ferry::matmul(ferry::ones({2, 2}, dtype::f32, gpu), ferry::ones({2, 2}, dtype::f32, gpu));
  });
  refusal = 0;
}

}  // namespace cuda_product_test
