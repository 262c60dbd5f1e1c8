// Each table of kernels that this CPU can run.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "ops/cpu_kernels.hpp"

namespace cpu_kernels_test {

using ferry::detail::array_function;
using ferry::detail::cpu_kernels;
using ferry::detail::find_cpu_kernels;
using ferry::detail::gemm_call;

namespace {

std::vector<const cpu_kernels*> tables() {
  std::vector<const cpu_kernels*> found;
  for (const char* name : {"plain", "baseline", "v3", "v4"}) {
    if (const cpu_kernels* each = find_cpu_kernels(name)) found.push_back(each);
  }
  return found;
}

template <class T>
void run_gemm(const cpu_kernels& kernels, const gemm_call<T>& call) {
  if constexpr (std::is_same_v<T, float>) {
    kernels.gemm_f32(call);
  } else {
    kernels.gemm_f64(call);
  }
}

template <class T>
void run_array(const cpu_kernels& kernels, array_function function, const T* in, T* out, std::int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    kernels.array_f32(function, in, out, count);
  } else {
    kernels.array_f64(function, in, out, count);
  }
}

// Small integers: sums of their products are exact, in whatever order.
template <class T>
T entry(std::int64_t row, std::int64_t column, std::int64_t seed) {
  return static_cast<T>((row * 7 + column * 3 + row * column + seed) % 7 - 3);
}

// A matrix in memory, with `gap` elements between its rows, which no kernel may read or write.
template <class T>
struct stored {
  std::int64_t leading;
  std::vector<T> elements;

  stored(std::int64_t rows, std::int64_t columns, bool transposed, std::int64_t gap, std::int64_t seed)
      : leading((transposed ? rows : columns) + gap),
        elements(static_cast<std::size_t>(leading * (transposed ? columns : rows)), gap_value) {
    if (leading == 0) leading = 1;
    for (std::int64_t i = 0; i != rows; ++i) {
      for (std::int64_t j = 0; j != columns; ++j)
        elements[static_cast<std::size_t>(transposed ? j * leading + i : i * leading + j)] = entry<T>(i, j, seed);
    }
  }
  static constexpr T gap_value = std::numeric_limits<T>::has_infinity ? T(1e30) : T(0);
};

struct sizes {
  std::int64_t rows, inner, columns;
};

// a * b, for `stored` with seeds 1 and 2.
template <class T>
std::vector<T> naive_product(const sizes& n) {
  std::vector<T> out(static_cast<std::size_t>(n.rows * n.columns), T{0});
  std::vector<T> row(static_cast<std::size_t>(n.columns));
  for (std::int64_t k = 0; k != n.inner; ++k) {
    for (std::int64_t j = 0; j != n.columns; ++j) row[static_cast<std::size_t>(j)] = entry<T>(k, j, 2);
    for (std::int64_t i = 0; i != n.rows; ++i) {
      const T x = entry<T>(i, k, 1);
      T* to = out.data() + i * n.columns;
      for (const T y : row) *to++ += x * y;
    }
  }
  return out;
}

template <class T>
std::int64_t differences(const stored<T>& out, const sizes& n, const std::vector<T>& product, bool accumulate,
                         const std::vector<T>& bias) {
  std::int64_t count = 0;
  const std::int64_t width = n.columns;
  for (std::int64_t i = 0; i != n.rows; ++i) {
    for (std::int64_t j = 0; j != out.leading; ++j) {
      T expected = stored<T>::gap_value;
      if (j < width) {
        expected = product[static_cast<std::size_t>(i * width + j)];
        if (accumulate) expected += entry<T>(i, j, 3);
        if (!bias.empty()) expected += bias[static_cast<std::size_t>(j)];
      } else if (width == 0 && out.elements.empty()) {
        continue;
      }
      count += out.elements[static_cast<std::size_t>(i * out.leading + j)] != expected;
    }
  }
  return count;
}

template <class T>
void check_product(const cpu_kernels& kernels, const sizes& n, const std::vector<T>& product, std::int64_t gap) {
  for (const bool a_transposed : {false, true}) {
    const stored<T> a(n.rows, n.inner, a_transposed, gap, 1);
    for (const bool b_transposed : {false, true}) {
      const stored<T> b(n.inner, n.columns, b_transposed, gap, 2);
      for (const bool accumulate : {false, true}) {
        for (const bool biased : {false, true}) {
          std::vector<T> bias;
          for (std::int64_t j = 0; biased && j != n.columns; ++j) bias.push_back(entry<T>(j, 5, 4));
          stored<T> out(n.rows, n.columns, false, gap, 3);
          run_gemm<T>(kernels, {.rows = n.rows,
                                .columns = n.columns,
                                .inner = n.inner,
                                .a = a.elements.data(),
                                .a_leading = a.leading,
                                .a_transposed = a_transposed,
                                .b = b.elements.data(),
                                .b_leading = b.leading,
                                .b_transposed = b_transposed,
                                .out = out.elements.data(),
                                .out_leading = out.leading,
                                .accumulate = accumulate,
                                .bias = biased ? bias.data() : nullptr});
          CAPTURE(a_transposed);
          CAPTURE(b_transposed);
          CAPTURE(accumulate);
          CAPTURE(biased);
          CHECK(differences(out, n, product, accumulate, bias) == 0);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("products of matrices are those of naive loops", T, float, double) {
  const std::vector<std::int64_t> lengths{0, 1, 3, 17, 65, 129};
  for (const std::int64_t rows : lengths) {
    for (const std::int64_t inner : lengths) {
      for (const std::int64_t columns : lengths) {
        const sizes n{rows, inner, columns};
        const std::vector<T> product = naive_product<T>(n);
        CAPTURE(rows);
        CAPTURE(inner);
        CAPTURE(columns);
        for (const cpu_kernels* each : tables()) {
          CAPTURE(std::string(each->name));
          check_product(*each, n, product, rows == 65 || inner == 3 ? 5 : 0);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("products with few rows", T, float, double) {
  // Each number of rows has code of its own.
  for (std::int64_t rows = 1; rows != 20; ++rows) {
    for (const sizes& n : {sizes{rows, 33, 70}, sizes{70, rows, 33}, sizes{rows, 5, 9}}) {
      const std::vector<T> product = naive_product<T>(n);
      CAPTURE(n.rows);
      CAPTURE(n.inner);
      CAPTURE(n.columns);
      for (const cpu_kernels* each : tables()) {
        CAPTURE(std::string(each->name));
        check_product(*each, n, product, rows % 2);
      }
    }
  }
}

TEST_CASE_TEMPLATE("products carry infinities and NaN", T, float, double) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  for (const std::int64_t rows : {1, 7, 40}) {
    for (const cpu_kernels* each : tables()) {
      CAPTURE(std::string(each->name));
      const std::int64_t inner = 20;
      const std::int64_t columns = 18;
      std::vector<T> a(static_cast<std::size_t>(rows * inner), T{1});
      std::vector<T> b(static_cast<std::size_t>(inner * columns), T{0});
      b[3] = infinity;
      b[5] = std::numeric_limits<T>::quiet_NaN();
      a[1] = infinity;  // times 0 in all columns
      std::vector<T> out(static_cast<std::size_t>(rows * columns));
      run_gemm<T>(*each, {.rows = rows,
                          .columns = columns,
                          .inner = inner,
                          .a = a.data(),
                          .a_leading = inner,
                          .b = b.data(),
                          .b_leading = columns,
                          .out = out.data(),
                          .out_leading = columns});
      for (std::size_t j = 0; j != static_cast<std::size_t>(columns); ++j) CHECK(std::isnan(out[j]));
      if (rows == 1) continue;
      const T* second = out.data() + columns;
      CHECK(second[3] == infinity);
      CHECK(std::isnan(second[5]));
      CHECK(second[4] == T{0});
    }
  }
}

namespace {

struct function_case {
  array_function function;
  long double (*exact)(long double);
  double from;
  double to;
};

// `wide`: for double.
std::vector<function_case> function_cases(bool wide) {
  return {
      {array_function::exp, [](long double x) { return std::exp(x); }, wide ? -708.0 : -87.0, wide ? 709.7 : 88.7},
      {array_function::log, [](long double x) { return std::log(x); }, 0.01, 30},
      {array_function::tanh, [](long double x) { return std::tanh(x); }, -12, 12},
      {array_function::sigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); }, wide ? -600.0 : -80.0, 60},
  };
}

template <class T>
double ulps_between(T value, long double exact) {
  const T size = static_cast<T>(std::fabs(exact));
  const long double ulp = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
  return static_cast<double>(std::fabs((static_cast<long double>(value) - exact) / ulp));
}

}  // namespace

TEST_CASE_TEMPLATE("functions of arrays are within a few units in the last place", T, float, double) {
  constexpr std::int64_t count = 10'007;
  std::vector<T> in(count);
  std::vector<T> out(count);
  for (const function_case& each : function_cases(sizeof(T) == 8)) {
    for (std::int64_t i = 0; i != count; ++i)
      in[static_cast<std::size_t>(i)] =
          static_cast<T>(each.from + (each.to - each.from) * static_cast<double>(i) / double{count});
    for (const cpu_kernels* kernels : tables()) {
      CAPTURE(std::string(kernels->name));
      CAPTURE(static_cast<int>(each.function));
      run_array<T>(*kernels, each.function, in.data(), out.data(), count);
      double worst = 0;
      for (std::size_t i = 0; i != in.size(); ++i) {
        const double found = ulps_between<T>(out[i], each.exact(in[i]));
        if (!(found <= worst)) worst = found;
      }
      CHECK(worst < 4);
    }
  }
}

TEST_CASE_TEMPLATE("functions of arrays at the ends of their ranges", T, float, double) {
  using limits = std::numeric_limits<T>;
  const T infinity = limits::infinity();
  const std::vector<T> in{infinity, -infinity, limits::quiet_NaN(), T{0}, -T{0}, T{1000},
                          T{-1000}, T(1e-20),  limits::max()};
  const std::vector<std::vector<T>> expected{
      {infinity, 0, limits::quiet_NaN(), 1, 1, infinity, 0, 1, infinity},
      {infinity, limits::quiet_NaN(), limits::quiet_NaN(), -infinity, -infinity, std::log(T{1000}), limits::quiet_NaN(),
       std::log(T(1e-20)), std::log(limits::max())},
      {1, -1, limits::quiet_NaN(), 0, -T{0}, 1, -1, T(1e-20), 1},
      {1, 0, limits::quiet_NaN(), T(0.5), T(0.5), 1, 0, T(0.5), 1},
  };
  for (const cpu_kernels* kernels : tables()) {
    for (const function_case& each : function_cases(false)) {
      const std::vector<T>& wanted = expected[static_cast<std::size_t>(each.function)];
      std::vector<T> out(in.size());
      run_array<T>(*kernels, each.function, in.data(), out.data(), static_cast<std::int64_t>(in.size()));
      for (std::size_t i = 0; i != in.size(); ++i) {
        CAPTURE(std::string(kernels->name));
        CAPTURE(static_cast<int>(each.function));
        CAPTURE(in[i]);
        if (std::isnan(wanted[i])) {
          CHECK(std::isnan(out[i]));
        } else {
          CHECK((out[i] == wanted[i] || out[i] == doctest::Approx(wanted[i]).epsilon(1e-6)));
          if (wanted[i] == 0) CHECK(std::signbit(out[i]) == std::signbit(wanted[i]));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("the end of an array gets the same values, in place too, and nothing is written behind it", T, float,
                   double) {
  std::vector<T> in(80);
  for (std::size_t i = 0; i != in.size(); ++i) in[i] = T(0.1) + static_cast<T>(i) / T{16};
  for (const cpu_kernels* kernels : tables()) {
    for (const function_case& each : function_cases(false)) {
      CAPTURE(std::string(kernels->name));
      CAPTURE(static_cast<int>(each.function));
      std::vector<T> whole(in.size());
      run_array<T>(*kernels, each.function, in.data(), whole.data(), static_cast<std::int64_t>(in.size()));
      for (std::size_t count = 0; count != 40; ++count) {
        std::vector<T> part(in.begin() + 1, in.begin() + 1 + static_cast<std::ptrdiff_t>(count));
        part.push_back(T{-5});
        run_array<T>(*kernels, each.function, part.data(), part.data(), static_cast<std::int64_t>(count));
        for (std::size_t i = 0; i != count; ++i) CHECK(part[i] == whole[i + 1]);
        CHECK(part[count] == T{-5});
      }
    }
  }
}

TEST_CASE("tables have their names, and others are not known") {
  CHECK(find_cpu_kernels("plain") == &ferry::detail::plain_kernels);
  CHECK(find_cpu_kernels("v2") == nullptr);
  CHECK(find_cpu_kernels("") == nullptr);
  for (const cpu_kernels* each : tables()) CHECK(find_cpu_kernels(each->name) == each);
}

}  // namespace cpu_kernels_test
