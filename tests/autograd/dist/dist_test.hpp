#pragma once

// What the tests of distributed autograd share.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace dist_test {

namespace dist = ferry::dist_autograd;
using ferry::errc;
using ferry::tensor;
using ferry_test::cluster;
using vec = std::vector<double>;

/// Of f64, on the CPU.
inline tensor leaf(std::initializer_list<double> values) { return ferry::require_grad(ferry::tensor_of(values)); }
inline tensor leaf(const tensor& values) { return ferry::require_grad(values); }
/// The elements of a tensor of f64 on the CPU.
inline vec numbers(const tensor& t) {
  const tensor dense = ferry::detach(t).contiguous();
  const auto* first = dense.data<double>();
  return {first, first + dense.numel()};
}

inline tensor add(const tensor& a, const tensor& b) { return a + b; }
inline tensor mul(const tensor& a, const tensor& b) { return a * b; }
inline tensor twice(const tensor& a) { return a * 2.0; }

/// A figure of the debug information of autograd.
inline std::size_t figure(const ferry::worker& of, const char* name) {
  return std::stoul(of.debug_info(std::string("autograd.") + name));
}
inline std::size_t passes(const ferry::worker& of) { return figure(of, "num_current_backward_passes"); }
inline std::size_t contexts(const ferry::worker& of) { return figure(of, "num_autograd_contexts"); }

/// Waits until that holds; the watchdog of the group bounds it.
template <class Condition>
void await(const Condition& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}
template <class Group>
void await_no_contexts(Group& group, int size) {
  for (int rank = 0; rank < size; ++rank) {
    await([&] { return contexts(group[rank]) == 0 && passes(group[rank]) == 0; });
  }
}
inline void await_no_contexts(cluster& group) { await_no_contexts(group, group.size()); }

}  // namespace dist_test
