#pragma once

// The formulas of all of ferry's operations.

#include <ferry/autograd/derivatives/arithmetic.hpp>
#include <ferry/autograd/derivatives/comparison.hpp>
#include <ferry/autograd/derivatives/copies.hpp>
#include <ferry/autograd/derivatives/elementwise.hpp>
#include <ferry/autograd/derivatives/indexing.hpp>
#include <ferry/autograd/derivatives/matmul.hpp>
#include <ferry/autograd/derivatives/reductions.hpp>
#include <ferry/autograd/derivatives/softmax.hpp>
#include <ferry/autograd/derivatives/views.hpp>
