#pragma once

// Modules: a part of the library ferry-autograd (CMake: ferry::autograd). In archives they are saved with <ferry/nn/archive.hpp>.

#include <ferry/nn/checkpoint.hpp>
#include <ferry/nn/ddp.hpp>
#include <ferry/nn/dropout.hpp>
#include <ferry/nn/embedding.hpp>
#include <ferry/nn/gru.hpp>
#include <ferry/nn/init.hpp>
#include <ferry/nn/layer_norm.hpp>
#include <ferry/nn/linear.hpp>
#include <ferry/nn/module.hpp>
#include <ferry/nn/remote_module.hpp>
#include <ferry/nn/sequential.hpp>
#include <ferry/nn/serve_module.hpp>
