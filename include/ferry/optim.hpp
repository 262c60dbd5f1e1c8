#pragma once

// Optimizers on one worker, and over several: a part of the library ferry-autograd (CMake: ferry::autograd).

#include <ferry/optim/adadelta.hpp>
#include <ferry/optim/adagrad.hpp>
#include <ferry/optim/adam.hpp>
#include <ferry/optim/adamax.hpp>
#include <ferry/optim/algorithm.hpp>
#include <ferry/optim/clip.hpp>
#include <ferry/optim/distributed_clip.hpp>
#include <ferry/optim/distributed_optimizer.hpp>
#include <ferry/optim/ftrl.hpp>
#include <ferry/optim/optimizer.hpp>
#include <ferry/optim/owner_errors.hpp>
#include <ferry/optim/rmsprop.hpp>
#include <ferry/optim/rprop.hpp>
#include <ferry/optim/schedule.hpp>
#include <ferry/optim/serve_optimizers.hpp>
#include <ferry/optim/sgd.hpp>
