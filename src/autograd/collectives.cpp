#include <ferry/autograd/collectives.hpp>

#include <cstdint>
#include <string_view>

#include <fmt/format.h>
#include <ferry/autograd/function.hpp>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../group/collective_purpose.hpp"
#include "../group/group_operations.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

struct saved_collective {
  process_group group;
  reduce_op how = reduce_op::sum;
  int root = -1;
  timeout limit;
  std::uint64_t number = 0;  // of the collective in its group
};

// In place. Waits.
void run_forward(saved_collective& keep, collective op, const tensor& t) {
  run_in_place(
      keep.group.core(),
      {.op = op, .subject = t, .how = keep.how, .root = keep.root, .limit = keep.limit, .number = &keep.number})
      .get();
}

// The same for a gradient, which stays as it is. Waits.
tensor run_backward(const saved_collective& kept, collective op, reduce_op how, const tensor& gradient) {
  tensor result = gradient.clone();
  run_in_place(kept.group.core(), {.op = op,
                                   .subject = result,
                                   .how = how,
                                   .root = kept.root,
                                   .limit = kept.limit,
                                   .purpose = gradient_purpose(kept.number)})
      .get();
  return result;
}

struct all_reduce_function : function<all_reduce_function> {
  static constexpr std::string_view name = "all_reduce";
  using saved = saved_collective;
  static tensor forward(saved& keep, const tensor& t, const saved_collective& how) {
    keep = how;
    tensor result = t.clone();
    run_forward(keep, collective::all_reduce, result);
    return result;
  }
  static tensor backward(const saved& kept, const tensor& gradient) {
    return run_backward(kept, collective::all_reduce, kept.how, gradient);
  }
};

struct broadcast_function : function<broadcast_function> {
  static constexpr std::string_view name = "broadcast";
  using saved = saved_collective;
  static tensor forward(saved& keep, const tensor& t, const saved_collective& how) {
    keep = how;
    tensor result = t.clone();
    run_forward(keep, collective::broadcast, result);
    return result;
  }
  static tensor backward(const saved& kept, const tensor& gradient) {
    tensor result = run_backward(kept, collective::reduce, reduce_op::sum, gradient);
    if (kept.group.rank() != kept.root) result.fill_(0);
    return result;
  }
};

struct all_gather_function : function<all_gather_function> {
  static constexpr std::string_view name = "all_gather";
  using saved = saved_collective;
  static tensor forward(saved& keep, const tensor& t, const saved_collective& how) {
    keep = how;
    return run_for_result(keep.group.core(),
                          {.op = collective::all_gather, .subject = t, .limit = keep.limit, .number = &keep.number})
        .get();
  }
  static tensor backward(const saved& kept, const tensor& gradient) {
    return run_for_result(kept.group.core(), {.op = collective::reduce_scatter,
                                              .subject = gradient,
                                              .how = reduce_op::sum,
                                              .limit = kept.limit,
                                              .purpose = gradient_purpose(kept.number)})
        .get()
        .select(0, 0);
  }
};

const process_group& needed_group(const process_group& group, std::string_view function) {
  if (!group.valid()) {
    throw_error(errc::no_state, fmt::format("{}: the process_group is an empty handle", function));
  }
  return group;
}

}  // namespace
}  // namespace detail

tensor all_reduce(const process_group& group, const tensor& t, reduce_op op, timeout limit) {
  if (op != reduce_op::sum && op != reduce_op::avg && grad_enabled() && t.requires_grad()) {
    throw_error(errc::invalid_argument,
                fmt::format("all_reduce: {} has no gradient here; pass detach(t), or use sum or avg", to_string(op)));
  }
  return detail::all_reduce_function::apply(
      t, detail::saved_collective{.group = detail::needed_group(group, "all_reduce"), .how = op, .limit = limit});
}
tensor broadcast(const process_group& group, const tensor& t, int root, timeout limit) {
  return detail::broadcast_function::apply(
      t, detail::saved_collective{.group = detail::needed_group(group, "broadcast"), .root = root, .limit = limit});
}
tensor all_gather(const process_group& group, const tensor& t, timeout limit) {
  return detail::all_gather_function::apply(
      t, detail::saved_collective{.group = detail::needed_group(group, "all_gather"), .limit = limit});
}

}  // namespace ferry::inline v0
