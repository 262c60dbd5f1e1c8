#pragma once

// The arithmetic of the optimizers, element by element: one function for each algorithm, which the loops of the CPU and the
// kernels of devices call. Numbers are computed in the type of the elements, in the order of PyTorch's reference loops, so that
// trajectories agree to rounding. What an algorithm does not keep is bound to the parameter, and is not touched.
//
// A test of an option inside such a function is the same for all elements: compilers move it out of the loop.

#include <cmath>
#include <cstdint>

#include "../tensor/kernels.hpp"

namespace ferry::inline v0::detail {

/// The larger one, or NaN if one is.
template <class T>
FERRY_KERNEL T larger_of(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
FERRY_KERNEL T decayed(T gradient, T parameter, double weight_decay) {
  // Without decay nothing is added: zero times infinity is NaN.
  return weight_decay == 0 ? gradient : gradient + static_cast<T>(weight_decay) * parameter;
}

struct sgd_update {
  double lr, momentum, kept_gradient, weight_decay;  // kept_gradient: 1 - dampening
  bool nesterov, first;

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& buffer, T&, T&) const {
    gradient = decayed(gradient, parameter, weight_decay);
    if (momentum != 0) {
      const T factor = static_cast<T>(momentum);
      buffer = first ? gradient : buffer * factor + static_cast<T>(kept_gradient) * gradient;
      gradient = nesterov ? gradient + factor * buffer : buffer;
    }
    parameter -= static_cast<T>(lr) * gradient;
  }
};

struct adam_update {
  double beta1, kept1, beta2, kept2;  // kept: 1 - beta
  double step_size;                   // lr / (1 - beta1^steps)
  double correction;                  // sqrt(1 - beta2^steps)
  double eps;
  double weight_decay;  // added to the gradient
  double shrink;        // the parameter is multiplied by it; 1: not
  bool amsgrad;

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& mean, T& square, T& largest) const {
    if (shrink != 1) parameter *= static_cast<T>(shrink);
    gradient = decayed(gradient, parameter, weight_decay);
    mean = mean * static_cast<T>(beta1) + static_cast<T>(kept1) * gradient;
    square = square * static_cast<T>(beta2) + static_cast<T>(kept2) * gradient * gradient;
    T used = square;
    if (amsgrad) used = largest = larger_of(largest, square);
    const T scale = std::sqrt(used) / static_cast<T>(correction) + static_cast<T>(eps);
    parameter -= static_cast<T>(step_size) * mean / scale;
  }
};

struct adagrad_update {
  double rate;  // lr / (1 + (steps - 1) * lr_decay)
  double eps, weight_decay;

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& sum, T&, T&) const {
    gradient = decayed(gradient, parameter, weight_decay);
    sum += gradient * gradient;
    parameter -= static_cast<T>(rate) * gradient / (std::sqrt(sum) + static_cast<T>(eps));
  }
};

struct ftrl_update {
  double lr, beta, l1, l2;

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& sum, T& linear, T&) const {
    const T rate = static_cast<T>(lr);
    const T before = std::sqrt(sum);
    sum += gradient * gradient;
    const T after = std::sqrt(sum);
    linear += gradient - (after - before) / rate * parameter;
    const T bound = static_cast<T>(l1);
    if (std::fabs(linear) <= bound) {
      parameter = 0;
    } else {
      const T beyond = linear > 0 ? linear - bound : linear + bound;
      parameter = -beyond / ((static_cast<T>(beta) + after) / rate + static_cast<T>(l2));
    }
  }
};

struct rmsprop_update {
  double lr, alpha, kept, eps, weight_decay, momentum;  // kept: 1 - alpha
  bool centered;

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& square, T& mean, T& buffer) const {
    gradient = decayed(gradient, parameter, weight_decay);
    square = square * static_cast<T>(alpha) + static_cast<T>(kept) * gradient * gradient;
    T used = square;
    if (centered) {
      mean = mean * static_cast<T>(alpha) + static_cast<T>(kept) * gradient;
      used -= mean * mean;
    }
    T step = gradient / (std::sqrt(used) + static_cast<T>(eps));
    if (momentum > 0) step = buffer = buffer * static_cast<T>(momentum) + step;
    parameter -= static_cast<T>(lr) * step;
  }
};

struct adadelta_update {
  double lr, rho, kept, eps, weight_decay;  // kept: 1 - rho

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& square, T& deltas, T&) const {
    gradient = decayed(gradient, parameter, weight_decay);
    square = square * static_cast<T>(rho) + static_cast<T>(kept) * gradient * gradient;
    const T small = static_cast<T>(eps);
    const T delta = std::sqrt(deltas + small) / std::sqrt(square + small) * gradient;
    deltas = deltas * static_cast<T>(rho) + static_cast<T>(kept) * delta * delta;
    parameter -= static_cast<T>(lr) * delta;
  }
};

struct adamax_update {
  double beta1, kept1, beta2;
  double rate;  // lr / (1 - beta1^steps)
  double eps, weight_decay;

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& mean, T& largest, T&) const {
    gradient = decayed(gradient, parameter, weight_decay);
    mean = mean * static_cast<T>(beta1) + static_cast<T>(kept1) * gradient;
    const T magnitude = std::fabs(gradient) + static_cast<T>(eps);
    largest = larger_of(largest * static_cast<T>(beta2), magnitude);
    parameter -= static_cast<T>(rate) * mean / largest;
  }
};

struct rprop_update {
  double eta_minus, eta_plus, step_min, step_max;

  template <class T>
  FERRY_KERNEL void operator()(T& parameter, T gradient, T& previous, T& step, T&) const {
    const T agreement = gradient * previous;
    if (agreement > 0) step *= static_cast<T>(eta_plus);
    if (agreement < 0) {
      step *= static_cast<T>(eta_minus);
      gradient = 0;
    }
    const T low = static_cast<T>(step_min);
    const T high = static_cast<T>(step_max);
    step = step < low ? low : step > high ? high : step;
    if (gradient > 0) parameter -= step;
    if (gradient < 0) parameter += step;
    previous = gradient;
  }
};

/// Elements above `limit` in magnitude become that. The other operands may be the same memory: they are not read.
struct clip_update {
  double limit;

  template <class T>
  FERRY_KERNEL void operator()(T& value, const T&, T&, T&, T&) const {
    const T high = static_cast<T>(limit);
    if (value > high) value = high;
    if (value < -high) value = -high;
  }
};

/// Elements are multiplied by min(1, most / *norm).
struct rescale_update {
  const double* norm;
  double most;

  template <class T>
  FERRY_KERNEL void operator()(T& value, const T&, T&, T&, T&) const {
    const double factor = most / (*norm + 1e-6);  // as PyTorch: no division by zero
    if (!(factor >= 1)) value *= static_cast<T>(factor);
  }
};

}  // namespace ferry::inline v0::detail
