#include "group_operations.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/rpc/promise.hpp>
#include <ferry/tensor/factories.hpp>

#include "group_core.hpp"
#include "reduce_elements.hpp"

namespace ferry::inline v0::detail {
namespace {

bool is_reduction(collective op) {
  return op == collective::all_reduce || op == collective::reduce || op == collective::reduce_scatter;
}
bool has_root(collective op) { return op == collective::broadcast || op == collective::reduce; }
bool is_between_two(collective op) { return op == collective::send || op == collective::receive; }

// The elements of a contiguous tensor along one axis, without its slot; keeps the tensor.
tensor flat_handle(const tensor& t) { return from_blob(t.data(), {t.numel()}, t.dtype(), std::make_shared<tensor>(t)); }

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
    if (!t.device().is_cpu()) {
      refuse(errc::bad_device,
             fmt::format("the tensor is on {}; collectives take tensors of the CPU: copy it with to(device())",
                         to_string(t.device())));
    }
    if (is_reduction(what_.op)) check_reduction(t.dtype(), what_.how);
    if (writes() && t.requires_grad()) {
      refuse(errc::invalid_argument,
             "it writes to a tensor that requires a gradient: pass detach(t), or use the functions of "
             "<ferry/autograd/collectives.hpp>, which are differentiable");
    }
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
    start.signature.gradient_of = what_.gradient_of;
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
    start.shared = group_.goes_through_segment(op, bytes);
    if (op != collective::barrier) result = lay_out(start);
    if (bytes == 0 && !is_between_two(op)) {  // nothing travels, but the members meet
      op = collective::barrier;
      buffers = {};
    }
    const algorithm use = op == collective::barrier ? algorithm::dissemination : start.signature.use;
    start.schedule = make_schedule({op, use, group_.rank(), n_, what_.root});
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
    if (t.is_contiguous()) return t;
    tensor copy = t.contiguous();
    ending_ = [t, copy] { t.copy_(copy); };
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
    buffers.parts = buffers.shared ? n_ : static_cast<int>(buffers.whole.size());
    const bool of_shares = what_.op == collective::reduce_scatter || what_.op == collective::all_to_all;
    buffers.cut(of_shares ? share : t.numel());
    if (buffers.piece_count > std::numeric_limits<std::uint32_t>::max()) {
      throw_error(errc::invalid_argument,
                  fmt::format("{} in group '{}': {} pieces are too many; group_options::chunk is too small",
                              to_string(what_.op), group_.facts().options.name, buffers.piece_count));
    }
    return result;
  }
  [[nodiscard]] tensor empty_result() const {
    const tensor& t = what_.subject;
    dims shape = t.shape();
    switch (what_.op) {
      case collective::all_gather: {
        std::vector<std::int64_t> longer{n_};
        longer.insert(longer.end(), shape.begin(), shape.end());
        return empty(dims(longer), t.dtype());
      }
      case collective::reduce_scatter: shape[0] /= n_; return empty(shape, t.dtype());
      case collective::all_to_all: return empty(shape, t.dtype());
      default: return t;
    }
  }

  const group_core& group_;
  const group_operation& what_;
  const int n_;
  std::function<void()> ending_;
};

}  // namespace

tensor begin_operation(const std::shared_ptr<group_core>& group, const group_operation& what,
                       std::function<void(std::exception_ptr)> done) {
  operation_start made(*group, what);
  made.check();
  collective_start start;
  tensor result = made.fill(start);
  group->set_limit(start, what.limit);
  start.finish = [done = std::move(done), ending = made.take_ending()](std::exception_ptr error) {
    if (!error && ending) {
      try {
        ending();
      } catch (...) {
        error = current_error();
      }
    }
    done(std::move(error));
  };
  const std::uint64_t number = group->begin(std::move(start));
  if (what.number) *what.number = number;
  return result;
}

future<void> run_in_place(const std::shared_ptr<group_core>& group, const group_operation& what) {
  const auto promised = std::make_shared<promise<void>>();
  (void)begin_operation(group, what, [promised](std::exception_ptr error) {
    if (error) {
      promised->try_set_exception(std::move(error));
    } else {
      promised->try_set_value();
    }
  });
  return promised->get_future();
}

future<tensor> run_for_result(const std::shared_ptr<group_core>& group, const group_operation& what) {
  // The result may be complete before its handle is known here.
  struct shared_result {
    promise<tensor> promised;
    std::mutex mutex;
    tensor value;
    bool begun = false;
    bool complete = false;
  };
  const auto shared = std::make_shared<shared_result>();
  tensor result = begin_operation(group, what, [shared](std::exception_ptr error) {
    if (error) {
      shared->promised.try_set_exception(std::move(error));
      return;
    }
    {
      const std::lock_guard lock(shared->mutex);
      shared->complete = true;
      if (!shared->begun) return;
    }
    shared->promised.try_set_value(std::move(shared->value));
  });
  future<tensor> pending = shared->promised.get_future();
  bool complete = false;
  {
    const std::lock_guard lock(shared->mutex);
    shared->begun = true;
    shared->value = result;
    complete = shared->complete;
  }
  if (complete) shared->promised.try_set_value(std::move(result));
  return pending;
}

}  // namespace ferry::inline v0::detail
