#pragma once

// Moves the tensors of a message to the devices they arrive on, within a process and in the order of streams.

#include <memory>
#include <vector>

#include <ferry/device/stream.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/transport/reactor.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

/// What has been queued for one message.
struct device_transfer {
  std::vector<tensor> tensors;       ///< uninitialised until the streams get there
  std::vector<stream> streams;       ///< in whose order those on devices are there
  std::vector<stream> pending_copy;  ///< when these are done, those on the CPU are there, and not before
};

/// Queues the copies of all tensors of a finished message. The host waits for nothing: tensors that go from the CPU to a device
/// are copied to memory of the process's own first, and foreign memory of a device is kept until it has been read, which
/// threads of `loop` hear of. Throws errc::out_of_memory, bad_device, device_failure; then nothing is left behind.
device_transfer transfer_tensors(const outgoing_message& message, const std::shared_ptr<reactor>& loop);

}  // namespace ferry::inline v0::detail
