// All of ferry-libtorch as one file, beside ferry.cpp and ferry_autograd.cpp, with libtorch's include path and libraries:
//
//     c++ -std=c++20 -I ferry/include -I .../include -I .../include/torch/csrc/api/include main.cpp ferry/src/ferry.cpp
//         ferry/src/ferry_autograd.cpp ferry/src/ferry_libtorch.cpp -ltorch -ltorch_cpu -lc10 -pthread
//
// The list below is also Meson's list of sources: a new source is entered here and nowhere else.

#ifndef FMT_HEADER_ONLY
  #define FMT_HEADER_ONLY
#endif

// adapters/libtorch/
#include "adapters/libtorch/bridge.cpp"
#include "adapters/libtorch/ddp.cpp"
#include "adapters/libtorch/elements.cpp"
#include "adapters/libtorch/engine.cpp"
#include "adapters/libtorch/nn.cpp"
#include "adapters/libtorch/optim.cpp"
#include "adapters/libtorch/streams.cpp"
#include "adapters/libtorch/tensor.cpp"
#include "adapters/libtorch/types.cpp"
