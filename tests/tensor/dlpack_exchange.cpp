// The library that dlpack_numpy_test.py calls: exchanges tensors of ferry with Python as DLPack's structs.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include <ferry/tensor/dlpack.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/scalar.hpp>

#define EXCHANGE extern "C" __attribute__((visibility("default")))

namespace {

thread_local std::string problem;

// Errors go to Python as null and a text.
template <class F>
auto told(F&& action) noexcept -> decltype(action()) {
  try {
    problem.clear();
    return action();
  } catch (const std::exception& e) {
    problem = e.what();
    return {};
  }
}

}  // namespace

EXCHANGE const char* exchange_problem() { return problem.c_str(); }

// Tensors, held by Python through their address.
EXCHANGE ferry::tensor* tensor_arange(std::int64_t rows, std::int64_t columns, int type) {
  return told([&] {
    return new ferry::tensor(
        ferry::arange(0, rows * columns, 1, static_cast<ferry::dtype>(type)).view({rows, columns}));
  });
}
EXCHANGE ferry::tensor* tensor_zeros(int type) {
  return told([&] { return new ferry::tensor(ferry::zeros({2}, static_cast<ferry::dtype>(type))); });
}
EXCHANGE ferry::tensor* tensor_transposed(const ferry::tensor* t) {
  return told([&] { return new ferry::tensor(t->transpose(0, 1)); });
}
EXCHANGE void tensor_delete(ferry::tensor* t) { delete t; }
EXCHANGE void* tensor_data(const ferry::tensor* t) { return t->data(); }
EXCHANGE int tensor_dtype(const ferry::tensor* t) { return static_cast<int>(t->dtype()); }
EXCHANGE std::int64_t tensor_rank(const ferry::tensor* t) { return static_cast<std::int64_t>(t->rank()); }
EXCHANGE std::int64_t tensor_size(const ferry::tensor* t, std::int64_t axis) { return t->size(axis); }
EXCHANGE std::int64_t tensor_stride(const ferry::tensor* t, std::int64_t axis) { return t->stride(axis); }
EXCHANGE std::int64_t tensor_uses(const ferry::tensor* t) {
  return static_cast<std::int64_t>(t->storage().use_count());
}
EXCHANGE double tensor_get(const ferry::tensor* t, std::int64_t row, std::int64_t column) {
  return t->select(0, row).select(0, column).item<double>();
}
EXCHANGE void tensor_set(const ferry::tensor* t, std::int64_t row, std::int64_t column, double value) {
  t->select(0, row).select(0, column).fill_(value);
}

// The exchange itself.
EXCHANGE void* export_old(const ferry::tensor* t) {
  return told([&] { return ferry::to_dlpack<ferry::dlpack::managed_tensor>(*t).release(); });
}
EXCHANGE void* export_versioned(const ferry::tensor* t) {
  return told([&] { return ferry::to_dlpack(*t).release(); });
}
EXCHANGE void give_back_old(ferry::dlpack::managed_tensor* managed) { managed->deleter(managed); }
EXCHANGE void give_back_versioned(ferry::dlpack::managed_tensor_versioned* managed) { managed->deleter(managed); }
EXCHANGE ferry::tensor* import_old(ferry::dlpack::managed_tensor* managed) {
  return told([&] { return new ferry::tensor(ferry::from_dlpack(managed)); });
}
EXCHANGE ferry::tensor* import_versioned(ferry::dlpack::managed_tensor_versioned* managed) {
  return told([&] { return new ferry::tensor(ferry::from_dlpack(managed)); });
}
