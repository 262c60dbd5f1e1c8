// Products with few rows or a short inner axis. instruction_set_kernels.cpp includes this text into a namespace of its instruction
// set, so it has no include guard and includes nothing. A general product copies its operands into an order of its own first; where
// they are used a few times only, that costs more than it saves, and here they are read where they lie.

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
constexpr int tile_rows = 7;  // with 4 vectors: 28 of 32 registers hold sums
constexpr int tile_vectors = 4;
constexpr int tile_columns = 3;
#elif defined(__AVX__)
constexpr int vector_bytes = 32;
constexpr int tile_rows = 4;  // with 3 vectors: 12 of 16
constexpr int tile_vectors = 3;
constexpr int tile_columns = 2;
#else
constexpr int vector_bytes = 16;
constexpr int tile_rows = 4;
constexpr int tile_vectors = 3;
constexpr int tile_columns = 2;
#endif

template <class T, int Bytes>
struct vector_of {
  typedef T type __attribute__((vector_size(Bytes)));
  static constexpr int size = Bytes / static_cast<int>(sizeof(T));
};

template <class V, class T>
[[gnu::always_inline]] inline void load(V& v, const T* from) {
  __builtin_memcpy(&v, from, sizeof v);
}
template <class V, class T>
[[gnu::always_inline]] inline void store(const V& v, T* to) {
  __builtin_memcpy(to, &v, sizeof v);
}

// The sum of a vector's elements, by halves.
template <class T, int Bytes>
[[gnu::always_inline]] inline T total(const typename vector_of<T, Bytes>::type& v) {
  if constexpr (Bytes == sizeof(T)) {
    return v[0];
  } else {
    typename vector_of<T, Bytes / 2>::type halves[2];
    __builtin_memcpy(&halves, &v, sizeof v);
    const typename vector_of<T, Bytes / 2>::type sum = halves[0] + halves[1];
    return total<T, Bytes / 2>(sum);
  }
}

// An operand that is read element by element, so that it may be transposed.
template <class T>
struct strided {
  const T* first;
  std::int64_t row;
  std::int64_t column;
};

// Rows rows of the result, and Vectors vectors of columns; b is not transposed.
template <class T, int Bytes, int Rows, int Vectors>
[[gnu::noinline]] void columns_tile(const gemm_call<T>& call, const strided<T>& a, std::int64_t row,
                                    std::int64_t column) {
  using V = typename vector_of<T, Bytes>::type;
  constexpr int size = vector_of<T, Bytes>::size;
  V sums[Rows][Vectors];
  T* const out = call.out + row * call.out_leading + column;
#pragma GCC unroll 8
  for (int r = 0; r != Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v != Vectors; ++v) {
      V start{};
      if (call.bias) load(start, call.bias + column + v * size);
      if (call.accumulate) {
        V old;
        load(old, out + r * call.out_leading + v * size);
        start += old;
      }
      sums[r][v] = start;
    }
  }
  const T* factor = a.first + row * a.row;
  const T* other = call.b + column;
  for (std::int64_t k = 0; k != call.inner; ++k) {
    V line[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v != Vectors; ++v) load(line[v], other + v * size);
#pragma GCC unroll 8
    for (int r = 0; r != Rows; ++r) {
      const T x = factor[r * a.row];
#pragma GCC unroll 8
      for (int v = 0; v != Vectors; ++v) sums[r][v] += x * line[v];
    }
    factor += a.column;
    other += call.b_leading;
  }
#pragma GCC unroll 8
  for (int r = 0; r != Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v != Vectors; ++v) store(sums[r][v], out + r * call.out_leading + v * size);
  }
}

template <class T, int Rows>
void columns_rows(const gemm_call<T>& call, const strided<T>& a, std::int64_t row) {
  constexpr int size = vector_of<T, vector_bytes>::size;
  constexpr int part = vector_of<T, 16>::size;
  std::int64_t column = 0;
  for (; column + tile_vectors * size <= call.columns; column += tile_vectors * size)
    columns_tile<T, vector_bytes, Rows, tile_vectors>(call, a, row, column);
  for (; column + size <= call.columns; column += size) columns_tile<T, vector_bytes, Rows, 1>(call, a, row, column);
  if constexpr (size != part) {
    for (; column + part <= call.columns; column += part) columns_tile<T, 16, Rows, 1>(call, a, row, column);
  }
  for (; column != call.columns; ++column) columns_tile<T, sizeof(T), Rows, 1>(call, a, row, column);
}

// Rows rows and Columns columns of the result; rows of a and columns of b lie densely, and are multiplied vector by vector.
template <class T, int Rows, int Columns>
[[gnu::noinline]] void inner_tile(const gemm_call<T>& call, std::int64_t row, std::int64_t column) {
  using V = typename vector_of<T, vector_bytes>::type;
  constexpr int size = vector_of<T, vector_bytes>::size;
  V sums[Rows][Columns] = {};
  const T* a = call.a + row * call.a_leading;
  const T* b = call.b + column * call.b_leading;
  std::int64_t k = 0;
  for (; k + size <= call.inner; k += size) {
    V line[Columns];
#pragma GCC unroll 8
    for (int c = 0; c != Columns; ++c) load(line[c], b + c * call.b_leading + k);
#pragma GCC unroll 8
    for (int r = 0; r != Rows; ++r) {
      V x;
      load(x, a + r * call.a_leading + k);
#pragma GCC unroll 8
      for (int c = 0; c != Columns; ++c) sums[r][c] += x * line[c];
    }
  }
  T* const out = call.out + row * call.out_leading + column;
#pragma GCC unroll 8
  for (int r = 0; r != Rows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c != Columns; ++c) {
      T sum = total<T, vector_bytes>(sums[r][c]);
      for (std::int64_t rest = k; rest != call.inner; ++rest)
        sum += a[r * call.a_leading + rest] * b[c * call.b_leading + rest];
      if (call.bias) sum += call.bias[column + c];
      T& place = out[r * call.out_leading + c];
      place = call.accumulate ? place + sum : sum;
    }
  }
}

template <class T, int Rows>
void inner_rows(const gemm_call<T>& call, const strided<T>&, std::int64_t row) {
  std::int64_t column = 0;
  for (; column + tile_columns <= call.columns; column += tile_columns)
    inner_tile<T, Rows, tile_columns>(call, row, column);
  for (; column != call.columns; ++column) inner_tile<T, Rows, 1>(call, row, column);
}

template <class T, bool Inner, int Rows>
[[gnu::always_inline]] inline void small_rows(const gemm_call<T>& call, const strided<T>& a, std::int64_t row,
                                              std::int64_t rows) {
  if constexpr (Rows != 0) {
    if (rows != Rows) return small_rows<T, Inner, Rows - 1>(call, a, row, rows);
    if constexpr (Inner) {
      inner_rows<T, Rows>(call, a, row);
    } else {
      columns_rows<T, Rows>(call, a, row);
    }
  }
}

template <class T, bool Inner>
void small_product(const gemm_call<T>& call) {
  const strided<T> a{call.a, call.a_transposed ? 1 : call.a_leading, call.a_transposed ? call.a_leading : 1};
  // In blocks that are about as long as each other: one of a single row would read all of b for it.
  std::int64_t blocks = (call.rows + tile_rows - 1) / tile_rows;
  for (std::int64_t row = 0; row != call.rows;) {
    const std::int64_t rows = (call.rows - row + blocks - 1) / blocks;
    small_rows<T, Inner, tile_rows>(call, a, row, rows);
    row += rows;
    --blocks;
  }
}
