#pragma once

// From an operation on tensors to the start of a collective.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include <ferry/device/stream.hpp>
#include <ferry/group/plan.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/tensor/tensor.hpp>

#include "group_messages.hpp"

namespace ferry::inline v0::detail {

class group_core;
class read_marks;

/// What a device may still do at the end of an operation on a tensor that it has.
struct operation_order {
  std::shared_ptr<read_marks> marks;  ///< of what has been queued; complete at the end; null for tensors of the CPU
  stream results;                     ///< in whose order the result is complete
};

struct group_operation {
  collective op = {};
  tensor subject = {};  ///< undefined for a barrier
  reduce_op how = reduce_op::sum;
  int root = -1;  ///< of send and receive: the other member
  timeout limit = {};
  std::uint64_t purpose = 0;        ///< as in collective_signature; zero: that of the current note
  std::uint64_t* number = nullptr;  ///< receives that of the collective
};

struct begun_operation {
  tensor result;  ///< has its elements at the end: the tensor itself where the operation writes in place
  collective_key key;
};

/// Begins it. Throws, before it takes a number, for what cannot be done.
begun_operation begin_operation(const std::shared_ptr<group_core>& group, const group_operation& what,
                                operation_order& order, std::function<void(std::exception_ptr)> done);
future<void> run_in_place(const std::shared_ptr<group_core>& group, const group_operation& what);
future<tensor> run_for_result(const std::shared_ptr<group_core>& group, const group_operation& what);

}  // namespace ferry::inline v0::detail
