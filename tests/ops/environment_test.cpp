// The variables FERRY_CPU_KERNELS and FERRY_BLAS, which are read once: tests/ops/meson.build runs these cases with different values.

#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "captured_log.hpp"
#include "expect_error.hpp"
#include "ops/cpu_kernels.hpp"
#include "ops/gemm.hpp"

namespace environment_test {

using ferry::dtype;
using ferry::tensor;

namespace {

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

tensor counted(const ferry::dims& shape, dtype type) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return ferry::arange(0, count).view(shape).to(type);
}

}  // namespace

TEST_CASE("FERRY_CPU_KERNELS names the table") {
  const std::string wanted = setting("FERRY_CPU_KERNELS");
  const ferry_test::captured_log log;
  const std::string taken = ferry::detail::cpu_kernels_in_use().name;
  CHECK(ferry::detail::find_cpu_kernels(taken.c_str()) != nullptr);
  if (wanted.empty()) {
    CHECK(log.size() == 0);
  } else if (ferry::detail::find_cpu_kernels(wanted.c_str())) {
    CHECK(taken == wanted);
    CHECK(log.size() == 0);
  } else if (wanted == "baseline" || wanted == "v3" || wanted == "v4") {
    CHECK(log.has("FERRY_CPU_KERNELS='" + wanted + "' ", "ferry computes with '" + taken + "'"));
  } else {
    CHECK(log.has("FERRY_CPU_KERNELS='" + wanted + "' is none of baseline, v3, v4, plain"));
  }
  const tensor a = counted({5, 7}, dtype::f32);
  CHECK(equal(ferry::matmul(a, a.transpose(0, 1)).to(dtype::i64),
              ferry::matmul(a.to(dtype::i64), a.to(dtype::i64).transpose(0, 1))));
}

TEST_CASE("FERRY_BLAS computes products") {
  const std::string library = setting("FERRY_BLAS");
  if (library.find("counting") == std::string::npos) return;
  for (const dtype type : {dtype::f32, dtype::f64}) {
    const tensor a = counted({5, 7}, type);
    const tensor b = counted({7, 4}, type);
    const tensor expected = ferry::matmul(a.to(dtype::i64), b.to(dtype::i64));
    CHECK(equal(ferry::matmul(a, b).to(dtype::i64), expected));
    void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(handle != nullptr);
    const auto calls = reinterpret_cast<int (*)()>(::dlsym(handle, "counting_blas_calls"));
    REQUIRE(static_cast<bool>(calls));
    const int before = calls();
    CHECK(before != 0);
    CHECK(equal(ferry::matmul(b.transpose(0, 1), a.transpose(0, 1)).to(dtype::i64), expected.transpose(0, 1)));
    CHECK(calls() == before + 1);
    const tensor bias = counted({4}, type);
    CHECK(equal(ferry::linear(a, b.transpose(0, 1), bias).to(dtype::i64), expected + bias.to(dtype::i64)));
    CHECK(calls() == before + 2);
    CHECK(equal(ferry::matmul(ferry::zeros({2, 0}, type), ferry::zeros({0, 3}, type)),
                ferry::zeros({2, 3}, type)));                                                  // by ferry
    CHECK(equal(ferry::matmul(a.to(dtype::i32), b.to(dtype::i32)).to(dtype::i64), expected));  // integers: by ferry
    CHECK(calls() == before + 2);
    ::dlclose(handle);
  }
}

TEST_CASE("FERRY_BLAS that cannot be used is an error of each product") {
  const std::string library = setting("FERRY_BLAS");
  if (library.empty() || library.find("counting") != std::string::npos) return;
  const char* why = library.find('/') != std::string::npos ? "the library cannot be loaded: "
                                                           : "the library has no function cblas_sgemm";
  const tensor a = counted({2, 2}, dtype::f32);
  for (int i = 0; i != 2; ++i) {
    expect_error(ferry::errc::missing_environment, "FERRY_BLAS='" + library + "': " + why,
                 [&] { (void)ferry::matmul(a, a); });
  }
  CHECK(ferry::matmul(a.to(dtype::i64), a.to(dtype::i64)).numel() == 4);
}

TEST_CASE("FERRY_BLAS gives way to what replaces the products") {
  static int calls = 0;
  static constexpr ferry::detail::gemm_functions functions{
      [](const ferry::detail::gemm_call<float>& call) {
        ++calls;
        ferry::detail::plain_kernels.gemm_f32(call);
      },
      [](const ferry::detail::gemm_call<double>& call) { ferry::detail::plain_kernels.gemm_f64(call); }};
  ferry::detail::use_gemm(&functions);
  const tensor a = counted({2, 2}, dtype::f32);
  CHECK(ferry::matmul(a, a).at<float>(1, 1) == 11);
  CHECK(calls == 1);
  ferry::detail::use_gemm(nullptr);
}

}  // namespace environment_test
