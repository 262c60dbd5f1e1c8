#pragma once

// All of the adapter for libtorch. Files that need less include the parts, which cost a compiler less.

#include <ferry/adapters/libtorch/ddp.hpp>
#include <ferry/adapters/libtorch/engine.hpp>
#include <ferry/adapters/libtorch/nn.hpp>
#include <ferry/adapters/libtorch/optim.hpp>
#include <ferry/adapters/libtorch/tensor.hpp>
