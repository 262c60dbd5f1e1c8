#include "group_operations.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/detail/ref_ptr.hpp>
#include <ferry/device/current.hpp>
#include <ferry/rpc/promise.hpp>
#include <ferry/tensor/factories.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "../tensor/layout.hpp"
#include "../wire/read_marks.hpp"
#include "collective_purpose.hpp"
#include "group_core.hpp"
#include "reduce_elements.hpp"
#include "staged_pieces.hpp"

namespace ferry::inline v0::detail {
namespace {

bool is_reduction(collective op) {
  return op == collective::all_reduce || op == collective::reduce || op == collective::reduce_scatter;
}
bool has_root(collective op) { return op == collective::broadcast || op == collective::reduce; }
bool is_between_two(collective op) { return op == collective::send || op == collective::receive; }

// The elements of a contiguous tensor along one axis, without its slot; keeps the tensor.
tensor flat_handle(const tensor& t) { return from_blob(t.data(), {t.numel()}, t.dtype(), std::make_shared<tensor>(t)); }

// With the stream of the results as the current one of their device.
void with_results(const stream& results, const std::function<void()>& action) {
  if (results.device().is_cpu()) return action();
  const device_guard on_device(results.device());
  const stream_guard in_order(results);
  action();
}

class operation_start {
 public:
  operation_start(const group_core& group, const group_operation& what)
      : group_(group), what_(what), n_(group.size()) {}

  void check() const {
    const auto refuse = [&](errc code, const std::string& why) {
      throw_error(code, fmt::format("{} in group '{}': {}", to_string(what_.op), group_.facts().options.name, why));
    };
    if ((has_root(what_.op) || is_between_two(what_.op)) && (what_.root < 0 || what_.root >= n_)) {
      refuse(errc::invalid_argument, fmt::format("there is no rank {} among {}", what_.root, n_));
    }
    if (is_between_two(what_.op) && what_.root == group_.rank()) {
      refuse(errc::invalid_argument, "the other member is this one");
    }
    if (what_.op == collective::barrier) return;
    const tensor& t = what_.subject;
    if (!t.defined()) refuse(errc::invalid_argument, "the tensor is undefined");
    if (is_reduction(what_.op)) check_reduction(t.dtype(), what_.how);
    if (writes() && t.requires_grad()) {
      refuse(errc::invalid_argument,
             "it writes to a tensor that requires a gradient: pass detach(t), or use the functions of "
             "<ferry/autograd/collectives.hpp>, which are differentiable");
    }
    if (writes()) need_distinct(t, fmt::format("{} in group '{}'", to_string(what_.op), group_.facts().options.name));
    if ((what_.op == collective::reduce_scatter || what_.op == collective::all_to_all) &&
        (t.rank() == 0 || t.size(0) % n_ != 0)) {
      refuse(errc::bad_shape,
             fmt::format("the first axis of {} cannot be shared by {} members", to_string(t.shape()), n_));
    }
  }

  // Returns the result.
  tensor fill(collective_start& start) {
    start.signature.op = what_.op == collective::receive ? collective::send : what_.op;
    if (is_between_two(what_.op)) {
      const bool sends = what_.op == collective::send;
      start.channel = sends ? group_.rank() * n_ + what_.root : what_.root * n_ + group_.rank();
    }
    if (has_root(what_.op)) start.signature.root = what_.root;
    start.signature.purpose = what_.purpose;
    collective op = what_.op;
    tensor result = what_.subject;
    group_buffers& buffers = start.buffers;
    std::size_t bytes = 0;
    if (op != collective::barrier) {
      const tensor& t = what_.subject;
      start.signature.type = t.dtype();
      start.signature.shape.assign(t.shape().begin(), t.shape().end());
      if (is_reduction(op)) start.signature.how = what_.how;
      bytes = t.nbytes() * (op == collective::all_gather ? static_cast<std::size_t>(n_) : 1);
    }
    start.signature.use = group_.message_algorithm(op, bytes);
    if (op != collective::barrier) result = lay_out(start);
    start.shared = !start.staging && group_.goes_through_segment(op, bytes);
    start.by_nccl = group_.may_go_by_nccl(op, bytes);
    if (bytes == 0 && !is_between_two(op)) {  // nothing travels, but the members meet
      op = collective::barrier;
      buffers = {};
    }
    const algorithm use = op == collective::barrier ? algorithm::dissemination : start.signature.use;
    start.schedule = make_schedule({op, use, group_.rank(), n_, what_.root});
    if (start.staging) {
      start.schedule.insert(start.schedule.begin(), {.kind = group_step::what::fetch});
      start.schedule.push_back({.kind = group_step::what::store});
    }
    if (bytes == 0 && is_between_two(op)) start.schedule.front().part = -1;
    return result;
  }

  /// What else happens at the end, with success.
  [[nodiscard]] std::function<void()> take_ending() noexcept { return std::move(ending_); }

 private:
  [[nodiscard]] bool writes() const {
    switch (what_.op) {
      case collective::broadcast:
      case collective::all_reduce:
      case collective::receive: return true;
      case collective::reduce: return what_.root == group_.rank();
      default: return false;
    }
  }
  void use(group_buffers& buffers, tensor t, bool scratch) {
    buffers.whole.push_back(std::move(t));
    buffers.scratch.push_back(scratch);
  }
  // The tensor to work in, for one that is written.
  tensor in_place() {
    const tensor& t = what_.subject;
    t.mark_written();
    if (t.is_contiguous() || t.numel() == 0) return t;
    tensor copy = t.contiguous();
    ending_ = [t, copy] {
      if (!t.device().is_cpu()) t.storage().record_use(current_stream(t.device()));
      t.copy_(copy);
    };
    return copy;
  }
  void use_shares(group_buffers& buffers, const tensor& all, bool scratch) {
    const tensor one_axis = flat_handle(all);
    const std::int64_t share = one_axis.numel() / n_;
    for (int i = 0; i != n_; ++i) use(buffers, one_axis.narrow(0, i * share, share), scratch);
  }

  tensor lay_out(collective_start& start) {
    group_buffers& buffers = start.buffers;
    const tensor& t = what_.subject;
    buffers.chunk =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(group_.facts().options.chunk / dtype_size(t.dtype())));
    const std::int64_t share = t.numel() / n_;
    tensor result = t;
    if (t.numel() == 0) return empty_result();
    if (!t.device().is_cpu()) {
      result = lay_out_staged(start);
      count_pieces(buffers, share);
      start.staging->take(std::move(staged_), buffers);
      return result;
    }
    switch (what_.op) {
      case collective::barrier: break;
      case collective::broadcast:
      case collective::receive: use(buffers, flat_handle(in_place()), false); break;
      case collective::send: use(buffers, flat_handle(t.contiguous()), false); break;
      case collective::all_reduce:
        use(buffers, flat_handle(in_place()), false);
        if (start.signature.use == algorithm::ring) {
          buffers.shared = true;
        } else {
          use(buffers, empty({t.numel()}, t.dtype()), true);
        }
        break;
      case collective::reduce: use(buffers, flat_handle(writes() ? in_place() : t.clone()), !writes()); break;
      case collective::all_gather: {
        result = empty_result();
        use_shares(buffers, result, false);
        const tensor own = buffers.whole[static_cast<std::size_t>(group_.rank())];
        std::memcpy(own.data(), t.contiguous().data(), t.nbytes());
        break;
      }
      case collective::reduce_scatter:
        result = empty_result();
        if (start.signature.use == algorithm::ring) {
          use_shares(buffers, t.clone(), true);
        } else {
          use_shares(buffers, t.contiguous(), false);
        }
        use(buffers, flat_handle(result), false);
        break;
      case collective::all_to_all:
        result = empty_result();
        use_shares(buffers, t.contiguous(), false);
        use_shares(buffers, result, false);
        break;
    }
    count_pieces(buffers, share);
    return result;
  }

  // Tensors of a device. The parts are those of the same operation on the CPU.
  tensor lay_out_staged(collective_start& start) {
    group_buffers& buffers = start.buffers;
    const tensor& t = what_.subject;
    const bool in_place_too = writes();
    const tensor work = in_place_too ? in_place() : t.contiguous();  // before what the streams of the copies wait for
    start.staging = std::make_shared<staged_pieces>(t.device(), group_.worker()->agent().reactor());
    const bool ring = start.signature.use == algorithm::ring;
    tensor result = t;
    with_results(start.staging->results(), [&] { result = empty_result(); });
    switch (what_.op) {
      case collective::barrier: break;
      case collective::broadcast: {
        const bool gives = what_.root == group_.rank();
        stage(buffers, gives ? whole_of(work) : nowhere(), gives ? nowhere() : whole_of(work));
        break;
      }
      case collective::send: stage(buffers, whole_of(work), nowhere()); break;
      case collective::receive: stage(buffers, nowhere(), whole_of(work)); break;
      case collective::reduce: stage(buffers, whole_of(work), in_place_too ? whole_of(work) : nowhere()); break;
      case collective::all_reduce:
        stage(buffers, whole_of(work), whole_of(work));
        buffers.shared = ring;
        if (!ring) stage(buffers, nowhere(), nowhere());
        break;
      case collective::all_gather:
        for (int i = 0; i != n_; ++i) {
          stage(buffers, i == group_.rank() ? whole_of(work) : nowhere(), share_of(result, i, t.nbytes()));
        }
        break;
      case collective::reduce_scatter:
        for (int i = 0; i != n_; ++i) stage(buffers, share_of(work, i, result.nbytes()), nowhere());
        stage(buffers, nowhere(), whole_of(result));
        break;
      case collective::all_to_all: {
        const std::size_t share = t.nbytes() / static_cast<std::size_t>(n_);
        for (int i = 0; i != n_; ++i) stage(buffers, share_of(work, i, share), nowhere());
        for (int i = 0; i != n_; ++i) stage(buffers, nowhere(), share_of(result, i, share));
        break;
      }
    }
    return result;
  }
  static staged_part::place nowhere() { return {}; }
  static staged_part::place whole_of(const tensor& t) { return {t, static_cast<std::byte*>(t.data())}; }
  static staged_part::place share_of(const tensor& t, int number, std::size_t bytes) {
    return {t, static_cast<std::byte*>(t.data()) + static_cast<std::size_t>(number) * bytes};
  }
  // Sends of a part of a piece are waited for, as those of the caller's tensor are, so that members keep few pieces.
  void stage(group_buffers& buffers, staged_part::place from, staged_part::place to) {
    const bool scratch = !from.data && !to.data;
    use(buffers, empty({0}, what_.subject.dtype()), scratch);
    staged_.push_back({std::move(from), std::move(to)});
  }

  void count_pieces(group_buffers& buffers, std::int64_t share) const {
    buffers.parts = buffers.shared ? n_ : static_cast<int>(buffers.whole.size());
    const bool of_shares = what_.op == collective::reduce_scatter || what_.op == collective::all_to_all;
    buffers.cut(of_shares ? share : what_.subject.numel());
    if (buffers.piece_count > std::numeric_limits<std::uint32_t>::max()) {
      throw_error(errc::invalid_argument,
                  fmt::format("{} in group '{}': {} pieces are too many; group_options::chunk is too small",
                              to_string(what_.op), group_.facts().options.name, buffers.piece_count));
    }
  }
  [[nodiscard]] tensor empty_result() const {
    const tensor& t = what_.subject;
    dims shape = t.shape();
    switch (what_.op) {
      case collective::all_gather: {
        std::vector<std::int64_t> longer{n_};
        longer.insert(longer.end(), shape.begin(), shape.end());
        return empty(dims(longer), t.dtype(), t.device());
      }
      case collective::reduce_scatter: shape[0] /= n_; return empty(shape, t.dtype(), t.device());
      case collective::all_to_all: return empty(shape, t.dtype(), t.device());
      default: return t;
    }
  }

  const group_core& group_;
  const group_operation& what_;
  const int n_;
  std::function<void()> ending_;
  std::vector<staged_part> staged_;
};

}  // namespace

namespace {

// A future whose readers' streams wait for what devices do. Cancelling it ends the collective, on every member; like every future
// of a collective it completes when the tensors are free.
template <class T>
class operation_state final : public future_state<T> {
 public:
  explicit operation_state(std::shared_ptr<const read_marks> marks) {
    if (marks) this->set_order(value_order::behind(std::move(marks)));
  }
  /// Call before the future has a handle.
  void is_of(const std::shared_ptr<group_core>& group, const collective_key& key) {
    group_ = group;
    key_ = key;
  }

 private:
  void on_cancel() override {
    if (const auto group = group_.lock()) {
      group->fail(key_, errc::call_cancelled, fmt::format("{} has cancelled it", group->name_of(group->rank())));
    }
  }

  std::weak_ptr<group_core> group_;
  collective_key key_;
};
template <class T>
ref_ptr<operation_state<T>> make_operation_state(const group_operation& what, operation_order& order) {
  if (what.subject.defined() && !what.subject.device().is_cpu()) order.marks = std::make_shared<read_marks>();
  return ref_ptr<operation_state<T>>::adopt(new operation_state<T>(order.marks));
}

std::exception_ptr end_staging(const staged_pieces& staging, const operation_order& order,
                               const std::function<void()>& ending, std::exception_ptr error) noexcept {
  try {
    if (!error && ending) with_results(order.results, ending);
    staging.mark(*order.marks);
  } catch (...) {
    if (!error) return current_error();  // the first is the one that counts
  }
  return error;
}

}  // namespace

begun_operation begin_operation(const std::shared_ptr<group_core>& group, const group_operation& what,
                                operation_order& order, std::function<void(std::exception_ptr)> done) {
  operation_start made(*group, what);
  made.check();
  collective_start start;
  tensor result = made.fill(start);
  group->set_limit(start, what.limit);
  if (const collective_note* note = current_note()) {
    if (start.signature.purpose == 0) start.signature.purpose = note->purpose;
    start.refusal = note->refusal;
  }
  if (start.staging) order.results = start.staging->results();
  start.finish = [done = std::move(done), ending = made.take_ending(), staging = start.staging,
                  order](std::exception_ptr error) {
    if (staging) {
      error = end_staging(*staging, order, ending, std::move(error));
    } else if (!error && ending) {
      try {
        ending();
      } catch (...) {
        error = current_error();
      }
    }
    done(std::move(error));
  };
  const std::int32_t channel = start.channel;
  const std::uint64_t number = group->begin(std::move(start));
  if (what.number) *what.number = number;
  return {std::move(result), {channel, number}};
}

future<void> run_in_place(const std::shared_ptr<group_core>& group, const group_operation& what) {
  operation_order order;
  const auto state = make_operation_state<void>(what, order);
  const begun_operation begun = begin_operation(group, what, order, [state](std::exception_ptr error) {
    if (error) {
      (void)state->try_set_error(std::move(error));
    } else {
      (void)state->try_set_value();
    }
  });
  state->is_of(group, begun.key);
  return future<void>(ref_ptr<operation_state<void>>(state));
}

future<tensor> run_for_result(const std::shared_ptr<group_core>& group, const group_operation& what) {
  // The result may be complete before its handle is known here.
  struct shared_result {
    ref_ptr<operation_state<tensor>> state;
    operation_order order;
    std::mutex mutex;
    tensor value;
    bool begun = false;
    bool complete = false;

    void publish() {
      try {
        with_results(order.results, [&] { (void)state->try_set_value(std::move(value)); });
      } catch (...) {  // the device has failed
        (void)state->try_set_error(current_error());
      }
    }
  };
  const auto shared = std::make_shared<shared_result>();
  shared->state = make_operation_state<tensor>(what, shared->order);
  begun_operation begun = begin_operation(group, what, shared->order, [shared](std::exception_ptr error) {
    if (error) {
      (void)shared->state->try_set_error(std::move(error));
      return;
    }
    {
      const std::lock_guard lock(shared->mutex);
      shared->complete = true;
      if (!shared->begun) return;
    }
    shared->publish();
  });
  shared->state->is_of(group, begun.key);
  bool complete = false;
  {
    const std::lock_guard lock(shared->mutex);
    shared->begun = true;
    shared->value = std::move(begun.result);
    complete = shared->complete;
  }
  if (complete) shared->publish();
  return future<tensor>(ref_ptr<operation_state<tensor>>(shared->state));
}

}  // namespace ferry::inline v0::detail
