#pragma once

// Moves the tensors of a message to their destination devices, within a process and in stream order.

#include <vector>

#include <ferry/device/stream.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

/// The operations queued for one message.
struct device_transfer {
  std::vector<tensor> tensors;       ///< uninitialised until the streams reach the copies
  std::vector<stream> streams;       ///< the streams in whose order the device tensors become valid
  std::vector<stream> pending_copy;  ///< CPU tensors are valid only when these have completed
};

/// Queues the copies of all tensors of a finished message. The host never waits: tensors that go from the CPU to a
/// device are first copied to memory owned by the process. Throws errc::out_of_memory, bad_device, device_failure; on
/// failure nothing stays queued.
device_transfer transfer_tensors(const outgoing_message& message);

}  // namespace ferry::inline v0::detail
