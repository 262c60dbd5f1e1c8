// All of ferry as one file. A program needs the headers of include/ and this file, and nothing else:
//
//     c++ -std=c++20 -I ferry/include main.cpp ferry/src/ferry.cpp -pthread
//
// Asio, cereal and fmt are found as headers on the include path; fmt is compiled in (FMT_HEADER_ONLY). What needs a library to
// link is off unless its macro asks for it: <ferry/config.hpp> lists the macros. One file per program: two shared objects that
// each contain this file are two ferries that do not see each other's workers. A program that loads plug-ins also needs
// -rdynamic.
//
// The list below is also Meson's list of sources (src/meson.build reads it): a new source is entered here and nowhere else.

#ifndef FMT_HEADER_ONLY
  #define FMT_HEADER_ONLY
#endif
#ifndef ASIO_STANDALONE
  #define ASIO_STANDALONE
#endif
#ifndef ASIO_NO_DEPRECATED
  #define ASIO_NO_DEPRECATED
#endif

#include <ferry/config.hpp>

// base/
#include "base/authentication.cpp"
#include "base/bytes.cpp"
#include "base/error.cpp"
#include "base/futex.cpp"
#include "base/ids.cpp"
#include "base/log.cpp"
#include "base/method_name.cpp"
#include "base/net/socket_address.cpp"
#include "base/net/socket_options.cpp"
#include "base/peer_log.cpp"
#include "base/ranked_mutex.cpp"
#include "base/secret.cpp"
#include "base/standard_error.cpp"
#include "base/thread_exit.cpp"
#include "base/time.cpp"
#include "base/type_name.cpp"
#include "base/work.cpp"

// device/
#include "device/cuda/cuda.cpp"
#include "device/cuda/cuda_memory.cpp"
#include "device/cuda/cuda_runtime.cpp"
#include "device/cuda/cuda_scope.cpp"
#include "device/current.cpp"
#include "device/device.cpp"
#include "device/device_state.cpp"
#include "device/memory/cpu_pool.cpp"
#include "device/memory/foreign_memory.cpp"
#include "device/memory/memory.cpp"
#include "device/memory/pinned_memory.cpp"
#include "device/memory/staging.cpp"
#include "device/stream.cpp"

// tensor/
#include "tensor/compare.cpp"
#include "tensor/copy.cpp"
#include "tensor/device_kernels.cpp"
#include "tensor/dims.cpp"
#include "tensor/dlpack.cpp"
#include "tensor/factories.cpp"
#include "tensor/format.cpp"
#include "tensor/generator.cpp"
#include "tensor/layout.cpp"
#include "tensor/ops.cpp"
#include "tensor/pack.cpp"
#include "tensor/storage.cpp"
#include "tensor/tensor.cpp"
#include "tensor/transfer.cpp"
#include "tensor/views.cpp"

// wire/
#include "wire/archive.cpp"
#include "wire/device_marks.cpp"
#include "wire/frame.cpp"
#include "wire/message.cpp"
#include "wire/read_marks.cpp"
#include "wire/tensor_archive.cpp"

// transport/
#include "transport/channels/channel.cpp"
#include "transport/channels/device_transfer.cpp"
#include "transport/channels/staged_channel.cpp"
#include "transport/channels/staged_receive.cpp"
#include "transport/channels/staged_send.cpp"
#include "transport/inproc/inproc.cpp"
#include "transport/inproc/inproc_channel.cpp"
#include "transport/inproc/inproc_connection.cpp"
#include "transport/reactor/control_thread.cpp"
#include "transport/reactor/io_threads.cpp"
#include "transport/reactor/pending_copy.cpp"
#include "transport/sockets/accept_handshake.cpp"
#include "transport/sockets/acceptor_registry.cpp"
#include "transport/sockets/address.cpp"
#include "transport/sockets/connect_operation.cpp"
#include "transport/sockets/descriptor_reserve.cpp"
#include "transport/sockets/handshake.cpp"
#include "transport/sockets/listener.cpp"
#include "transport/sockets/socket_transport.cpp"
#include "transport/sockets/stream_socket.cpp"
#include "transport/sockets/tcp.cpp"
#include "transport/sockets/unix.cpp"
#include "transport/streams/frame_reader.cpp"
#include "transport/streams/stream_connection.cpp"
#include "transport/streams/stream_reading.cpp"
#include "transport/streams/stream_writing.cpp"

// store/
#include "store/bounded_store.cpp"
#include "store/file/file_log.cpp"
#include "store/file/file_store.cpp"
#include "store/host_lookup.cpp"
#include "store/interrupt.cpp"
#include "store/launch/init_method.cpp"
#include "store/launch/launchers.cpp"
#include "store/launch/rendezvous.cpp"
#include "store/launch/schemes.cpp"
#include "store/launch/slurm_lists.cpp"
#include "store/memory/hash_store.cpp"
#include "store/memory/key_table.cpp"
#include "store/memory/prefix_store.cpp"
#include "store/store.cpp"
#include "store/tcp/tcp_connection.cpp"
#include "store/tcp/tcp_replies.cpp"
#include "store/tcp/tcp_server.cpp"
#include "store/tcp/tcp_server_core.cpp"
#include "store/tcp/tcp_server_session.cpp"
#include "store/tcp/tcp_store.cpp"

// backend/
#include "backend/agent/backend.cpp"
#include "backend/agent/inspection.cpp"
#include "backend/agent/lookup.cpp"
#include "backend/agent/native_agent.cpp"
#include "backend/agent/options.cpp"
#include "backend/agent/quiescence.cpp"
#include "backend/agent/route.cpp"
#include "backend/agent/served_methods.cpp"
#include "backend/agent/worker_info.cpp"
#include "backend/devices/device_checks.cpp"
#include "backend/devices/device_map.cpp"
#include "backend/devices/device_record.cpp"
#include "backend/devices/placement.cpp"
#include "backend/failure/failure.cpp"
#include "backend/failure/fencing.cpp"
#include "backend/failure/heartbeat_clock.cpp"
#include "backend/kept_timer.cpp"
#include "backend/links/connect_attempt.cpp"
#include "backend/links/control.cpp"
#include "backend/links/flow.cpp"
#include "backend/links/incoming_link.cpp"
#include "backend/links/link_checks.cpp"
#include "backend/links/link_table.cpp"
#include "backend/links/links.cpp"
#include "backend/links/liveness.cpp"
#include "backend/links/peers.cpp"
#include "backend/membership/dynamic_group.cpp"
#include "backend/membership/group.cpp"
#include "backend/membership/member_log.cpp"
#include "backend/membership/membership.cpp"
#include "backend/membership/static_group.cpp"
#include "backend/membership/store_access.cpp"

// rpc/
#include "rpc/calls/async_call.cpp"
#include "rpc/calls/call.cpp"
#include "rpc/calls/call_report.cpp"
#include "rpc/diagnostics/flight_record.cpp"
#include "rpc/diagnostics/flight_recorder.cpp"
#include "rpc/diagnostics/inspection.cpp"
#include "rpc/diagnostics/json_text.cpp"
#include "rpc/diagnostics/record_on_signal.cpp"
#include "rpc/futures/combinators.cpp"
#include "rpc/futures/context.cpp"
#include "rpc/futures/future.cpp"
#include "rpc/futures/future_state.cpp"
#include "rpc/futures/promise.cpp"
#include "rpc/futures/task.cpp"
#include "rpc/futures/value_order.cpp"
#include "rpc/futures/wait_all.cpp"
#include "rpc/methods/exceptions.cpp"
#include "rpc/methods/method_table.cpp"
#include "rpc/methods/plugin.cpp"
#include "rpc/objects/object_order.cpp"
#include "rpc/objects/object_turns.cpp"
#include "rpc/objects/owned_object.cpp"
#include "rpc/objects/turn_waits.cpp"
#include "rpc/references/protocol/reference_holder.cpp"
#include "rpc/references/protocol/reference_protocol.cpp"
#include "rpc/references/protocol/reference_records.cpp"
#include "rpc/references/table/reference_arrivals.cpp"
#include "rpc/references/table/reference_controls.cpp"
#include "rpc/references/table/reference_endings.cpp"
#include "rpc/references/table/reference_handle.cpp"
#include "rpc/references/table/reference_state.cpp"
#include "rpc/references/table/reference_table.cpp"
#include "rpc/serving/handler_pool.cpp"
#include "rpc/serving/incoming_call.cpp"
#include "rpc/serving/late_calls.cpp"
#include "rpc/worker/worker.cpp"
#include "rpc/worker/worker_core.cpp"

// group/
#include "group/barrier.cpp"
#include "group/gather_messages.cpp"
#include "group/gather_rounds.cpp"
#include "group/gathering.cpp"

// device/, last: it includes the header of CUDA
#include "device/cuda/cudart.cpp"
