#pragma once

// process_group: collectives on tensors over some or all of the workers.
//
//   ferry::process_group trainers({"trainer0", "trainer1", "trainer2"});   // called by each of them
//   trainers.all_reduce(gradient, ferry::reduce_op::avg).get();
//   ferry::tensor all = trainers.all_gather(loss).get();

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/group/plan.hpp>
#include <ferry/rpc/detail/members.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

class worker;

namespace detail {
class group_core;
class worker_core;
}  // namespace detail

struct group_options {
  std::string name = "group";  ///< for error texts
  timeout limit = {};          ///< of each collective, and of the start; unset: the worker's default
  /// The most bytes of one message, at least 1; a message has at least one element. Larger tensors travel in pieces.
  std::size_t chunk = std::size_t{512} << 10U;
  std::size_t window = 4;            ///< pieces of one collective that are under way at once, at least 1
  std::vector<plan_rule> plan = {};  ///< before those of default_plan
  /// Where each two members reach each other by `shm`, they share memory: that many bytes for each. 0: they do not.
  std::size_t shared_bytes = std::size_t{2} << 20U;
  /// Collectives on tensors of CUDA devices are made by NCCL where all members can, and each has a device of its own (docs/groups.md,
  /// With NCCL). Opened when the group is made. Sums are in NCCL's order then.
  bool nccl = false;
};

/// Some workers, in an order that all of them know: ranks. A handle; copies are the same group, which ends at this worker
/// with the last of them.
///
/// Every member makes each collective, in one order, with tensors of one shape and dtype; any number may be under way at
/// once. A call returns at once; the future completes, also when it is cancelled, when this member has its result and no longer
/// reads or writes the tensors, which must not be written before, nor read where they are results. Sums are made in an order that
/// follows from plan() and ranks alone: equal inputs give equal bits on every run, and the same bits on every member.
///
/// Tensors are on the CPU or on devices, which may differ between members. Those of a device travel through page-locked memory of
/// the host, at most `window` pieces of a collective at once, or by NCCL (group_options::nccl); in stream order: they are read and
/// written after the work queued on the caller's current stream, and get() and co_await make the reader's current stream wait for the
/// result; no thread waits for the device. Results are on the device of the tensor. A limit includes the time until the device has
/// reached the collective.
///
/// As soon as a collective cannot succeed it ends for every member that has not completed it, with one error that names a
/// culprit, and so does the call of a member that comes later: errc::rpc_timeout when the first member's limit expires,
/// naming the members that have not called it; errc::group_mismatch where two members differ in operation, reduction,
/// root, shape or dtype, naming both; errc::call_cancelled, naming the member that cancelled its future; errc::peer_lost for a
/// member that has died or left, or a connection that was lost. A member that comes later, to which the others had sent all that
/// it needs, may have the result instead.
/// The tensors of a collective that failed have unspecified elements. After the death of a member every collective fails,
/// until shrink(); after all other errors the group goes on. Calls throw errc::invalid_argument, bad_shape, bad_dtype and
/// device_failure for what they cannot do, and then take no part. Thread-safe; threads that make collectives of one group at once
/// must agree on their order in some other way.
class process_group {
 public:
  /// An empty handle.
  process_group() noexcept = default;
  /// A collective operation itself: every member must call it, with the same members in the same order (ranks; of
  /// all_workers: by id) and options. Blocks until all have, and each has reached each other one. Throws as all_gather()
  /// does (all_gather.hpp).
  explicit process_group(const members& among, const group_options& options = {});
  /// With this worker as member, for processes with several.
  explicit process_group(const worker& self, const members& among = all_workers, const group_options& options = {});

  [[nodiscard]] bool valid() const noexcept { return core_ != nullptr; }
  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// By rank.
  [[nodiscard]] const std::vector<std::string>& names() const;
  /// Throws errc::unknown_worker.
  [[nodiscard]] int rank_of(std::string_view name) const;
  [[nodiscard]] const std::string& name() const;
  /// The names of the members that are known to have died or left.
  [[nodiscard]] std::vector<std::string> lost() const;

  /// What a collective of that many bytes does: of the tensor for broadcast, all_reduce, reduce, send and receive; of all
  /// members' tensors together for all_gather; of one member's whole input for reduce_scatter and all_to_all.
  /// `memory` is where this member's tensor is; the algorithm does not depend on it.
  [[nodiscard]] group_plan plan(collective op, std::size_t bytes, device_kind memory = device_kind::cpu) const;

  // `limit`, for all: unset means that of the group. In a handler, the handler's deadline also applies.

  /// Completes when every member has called it.
  future<void> barrier(timeout limit = {}) const;
  /// Writes the root's elements to the tensor of each member.
  future<void> broadcast(const tensor& t, int root, timeout limit = {}) const;
  /// Combines the tensors of all members, element by element, into each of them.
  future<void> all_reduce(const tensor& t, reduce_op op = reduce_op::sum, timeout limit = {}) const;
  /// The same, into that of the root only.
  future<void> reduce(const tensor& t, int root, reduce_op op = reduce_op::sum, timeout limit = {}) const;
  /// The tensors of all members, by rank, along a new first axis.
  future<tensor> all_gather(const tensor& t, timeout limit = {}) const;
  /// Combines the tensors and gives each member its share of the first axis, whose length must be a multiple of size().
  future<tensor> reduce_scatter(const tensor& t, reduce_op op = reduce_op::sum, timeout limit = {}) const;
  /// Share r of the first axis, whose length must be a multiple of size(), goes to rank r; the result has the shares that
  /// this member was sent, by rank.
  future<tensor> all_to_all(const tensor& t, timeout limit = {}) const;
  /// To one other member, which calls receive() with this rank and a tensor of equal shape and dtype. Matched in order
  /// for each pair of members and direction, apart from collectives.
  future<void> send(const tensor& t, int to, timeout limit = {}) const;
  future<void> receive(const tensor& into, int from, timeout limit = {}) const;

  /// A group of the members that live, in the order of their ranks; every one of them must call it. Blocks as the constructor does.
  [[nodiscard]] process_group shrink(timeout limit = {}) const;

  // For the library.
  explicit process_group(std::shared_ptr<detail::group_core> core) noexcept : core_(std::move(core)) {}
  [[nodiscard]] const std::shared_ptr<detail::group_core>& core() const noexcept { return core_; }

 private:
  [[nodiscard]] detail::group_core& checked() const;

  std::shared_ptr<detail::group_core> core_;
};

}  // namespace ferry::inline v0
