// All kernels of ferry for CUDA devices as one file, the only one that nvcc compiles; see docs/packaging.md. Beside ferry.cpp.

#include "tensor/kernels.cu"

#include "ops/kernels.cu"

#include "optim/kernels.cu"
