#pragma once

// What this build of ferry contains. The built library and the one-file form (src/ferry.cpp) share these macros. Every public
// header that reaches cereal includes this file before it.
//
// | macro | default | meaning, and what it needs |
// |---|---|---|
// | `FERRY_WITH_AUTHENTICATION` | 0 | shared secrets of workers and stores; libcrypto of OpenSSL 3 |
// | `FERRY_WITH_CUDA` | 0 | CUDA devices; the CUDA Toolkit's headers, and its static runtime to link |
// | `FERRY_WITH_CUDA_KERNELS` | 0 | src/ferry.cu was compiled by nvcc and is linked; needs `FERRY_WITH_CUDA` |
// | `FERRY_WITH_CPU_KERNELS` | 0 | src/ops/cpu/instruction_set_kernels.cpp was compiled for each instruction set and is linked; Eigen |
// | `CEREAL_THREAD_SAFE` | 1 | the same in every file of a program that includes cereal |
//
// The first four matter only to the files that compile ferry itself: Meson sets them from its options, a program in the
// one-file form gives them to the compiler of src/ferry.cpp: `-DFERRY_WITH_AUTHENTICATION=1`, and links with `-lcrypto`.

#ifndef FERRY_WITH_AUTHENTICATION
  #define FERRY_WITH_AUTHENTICATION 0
#endif
#ifndef FERRY_WITH_CUDA
  #define FERRY_WITH_CUDA 0
#endif
#ifndef FERRY_WITH_CUDA_KERNELS
  #define FERRY_WITH_CUDA_KERNELS 0
#endif
#ifndef FERRY_WITH_CPU_KERNELS
  #define FERRY_WITH_CPU_KERNELS 0
#endif
#ifndef CEREAL_THREAD_SAFE
  #define CEREAL_THREAD_SAFE 1
#endif

#if __cplusplus < 202002L
  #error "ferry needs C++20: compile with -std=c++20 or a later standard (g++ 12 or newer, clang 16 or newer)"
#endif
// The sum -1 - MACRO - 1 is also an expression where a macro is defined as nothing; it is -2 for 0 and -3 for 1.
#if (-1 - FERRY_WITH_AUTHENTICATION - 1) != -2 && (-1 - FERRY_WITH_AUTHENTICATION - 1) != -3
  #error "ferry: FERRY_WITH_AUTHENTICATION must be 0 or 1; leave it undefined for 0"
#endif
#if (-1 - FERRY_WITH_CUDA - 1) != -2 && (-1 - FERRY_WITH_CUDA - 1) != -3
  #error "ferry: FERRY_WITH_CUDA must be 0 or 1; leave it undefined for 0"
#endif
#if (-1 - FERRY_WITH_CUDA_KERNELS - 1) != -2 && (-1 - FERRY_WITH_CUDA_KERNELS - 1) != -3
  #error "ferry: FERRY_WITH_CUDA_KERNELS must be 0 or 1; leave it undefined for 0"
#endif
#if (-1 - FERRY_WITH_CPU_KERNELS - 1) != -2 && (-1 - FERRY_WITH_CPU_KERNELS - 1) != -3
  #error "ferry: FERRY_WITH_CPU_KERNELS must be 0 or 1; leave it undefined for 0"
#endif
#if FERRY_WITH_CUDA_KERNELS && !FERRY_WITH_CUDA
  #error "ferry: FERRY_WITH_CUDA_KERNELS=1 needs FERRY_WITH_CUDA=1: the kernels are launched through the CUDA runtime"
#endif
#if (-1 - CEREAL_THREAD_SAFE - 1) != -3
  #error "ferry needs CEREAL_THREAD_SAFE=1: include ferry before cereal, or give -DCEREAL_THREAD_SAFE=1 to every file"
#endif
