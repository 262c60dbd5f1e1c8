#pragma once

// Gradients, on one worker and through remote calls: the library ferry-autograd (CMake: ferry::autograd). Its modules are in
// <ferry/nn.hpp>, its optimizers in <ferry/optim.hpp>.

#include <ferry/autograd/backward.hpp>
#include <ferry/autograd/collectives.hpp>
#include <ferry/autograd/derivative.hpp>
#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/autograd/function.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/autograd/node.hpp>
#include <ferry/autograd/saved_tensor.hpp>
