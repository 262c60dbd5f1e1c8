// A library with the two functions of CBLAS that ferry calls: naive, and it counts.

#include <atomic>

namespace {

std::atomic<int> calls{0};

template <class T>
void product(bool a_transposed, bool b_transposed, int rows, int columns, int inner, T alpha, const T* a, int a_leading,
             const T* b, int b_leading, T beta, T* out, int out_leading) {
  ++calls;
  for (int i = 0; i != rows; ++i) {
    for (int j = 0; j != columns; ++j) {
      T sum = 0;
      for (int k = 0; k != inner; ++k)
        sum += (a_transposed ? a[k * a_leading + i] : a[i * a_leading + k]) *
               (b_transposed ? b[j * b_leading + k] : b[k * b_leading + j]);
      T& place = out[i * out_leading + j];
      place = alpha * sum + (beta == 0 ? 0 : beta * place);
    }
  }
}

}  // namespace

extern "C" {

int counting_blas_calls() { return calls; }

void cblas_sgemm(int order, int a_transposed, int b_transposed, int rows, int columns, int inner, float alpha,
                 const float* a, int a_leading, const float* b, int b_leading, float beta, float* out,
                 int out_leading) {
  if (order == 101)
    product(a_transposed == 112, b_transposed == 112, rows, columns, inner, alpha, a, a_leading, b, b_leading, beta,
            out, out_leading);
}

void cblas_dgemm(int order, int a_transposed, int b_transposed, int rows, int columns, int inner, double alpha,
                 const double* a, int a_leading, const double* b, int b_leading, double beta, double* out,
                 int out_leading) {
  if (order == 101)
    product(a_transposed == 112, b_transposed == 112, rows, columns, inner, alpha, a, a_leading, b, b_leading, beta,
            out, out_leading);
}
}
