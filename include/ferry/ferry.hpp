#pragma once

// Everything but autograd, modules, optimizers and the profiler.

#include <ferry/config.hpp>

#include <ferry/backend/backend.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/secret.hpp>
#include <ferry/base/time.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/device.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/group/all_gather.hpp>
#include <ferry/group/barrier.hpp>
#include <ferry/group/process_group.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/combinators.hpp>
#include <ferry/rpc/context_values.hpp>
#include <ferry/rpc/exceptions.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/rpc/plugin.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/rpc/serve.hpp>
#include <ferry/rpc/task.hpp>
#include <ferry/rpc/to.hpp>
#include <ferry/rpc/wait_all.hpp>
#include <ferry/rpc/worker.hpp>
#include <ferry/store/file_store.hpp>
#include <ferry/store/hash_store.hpp>
#include <ferry/store/launch.hpp>
#include <ferry/store/prefix_store.hpp>
#include <ferry/store/store_traits.hpp>
#include <ferry/store/tcp_store.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/shared_allocator.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/tensor/traits.hpp>
#include <ferry/transport/channel.hpp>
#include <ferry/wire/serialize.hpp>
