#include <ferry/nn/ddp_options.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>
#include <ferry/tensor/factories.hpp>

#include "../autograd/dist/dist_context.hpp"
#include "../autograd/dist/dist_pass.hpp"
#include "../autograd/dist/dist_worker.hpp"
#include "../autograd/engine/backward_pass.hpp"
#include "../group/group_core.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "ddp_agreement.hpp"
#include "ddp_averages.hpp"
#include "ddp_buckets.hpp"
#include "ddp_calls.hpp"
#include "ddp_join.hpp"
#include "ddp_model.hpp"

namespace ferry::inline v0::detail {

// Unique in the process.
struct ddp_pass_id {
  bool distributed = false;
  std::uint64_t number = 0;  // 0: unknown
  friend bool operator==(const ddp_pass_id&, const ddp_pass_id&) = default;
};

namespace {

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ferry::error& problem) {
    return std::string(problem.message());
  } catch (...) {
    return describe_exception(error);
  }
}

}  // namespace

// Gradients come on the thread of the pass, and the last one waits for the averages of all. That thread may be one of the worker's,
// and still be there when the pass has failed and its caller goes on: all that a hook uses is guarded by the mutex, and a hook
// of a pass that is over does nothing. A failed pass of which the engines tell is over for the group at once: whatever has the mutex
// sees to that, since the thread that is told must not wait.
class ddp_core : public std::enable_shared_from_this<ddp_core> {
 public:
  ddp_core(std::unique_ptr<ddp_model> model, const process_group& group, const nn::ddp_options& options)
      : group_(group), options_(options), model_(std::move(model)), join_(group, options.limit) {
    if (!options_.transport) options_.transport = nn::average_in_place();
    for (ddp_part& each : model_->parts()) {
      if (!each.leaf) continue;
      const auto leaf = each.leaf.edge.to.engine().leaf(each.leaf.edge.to.node());
      if (!leaf)
        throw_error(errc::invalid_argument, fmt::format("ddp: {} was computed: it is no parameter", each.name));
      leaves_.push_back(*leaf);
      trained_.push_back(std::move(each));
    }
    if (trained_.empty()) throw_error(errc::invalid_argument, "ddp: no parameter of the module requires a gradient");
    std::vector<gradient_size> sizes;
    for (const ddp_part& each : trained_) {
      sizes.push_back({each.value.numel(), each.value.dtype(), each.value.device(), each.rows});
    }
    buckets_ = plan_buckets(sizes, options_.first_bucket_bytes, options_.bucket_bytes);
    readiness_.emplace(buckets_, trained_.size());
    views_.resize(trained_.size());
    rows_.resize(trained_.size());
    bucket_of_.resize(trained_.size());
    memory_.resize(buckets_.size());
    last_on_.resize(buckets_.size());
    for (std::size_t b = 0; b != buckets_.size(); ++b) make_memory(b);
  }
  ~ddp_core() {
    if (averages_ && readiness_->begun()) end_pass({}, "it has let go of the module");
  }
  ddp_core(const ddp_core&) = delete;
  ddp_core& operator=(const ddp_core&) = delete;

  // Collective.
  void start() {
    averages_.emplace(group_, options_.transport, options_.limit,
                      agree_on_parts(group_, model_->parts(), trained_, options_));
    give_parts(group_, *model_, 0, options_.limit);
    const auto watcher = std::make_shared<leaf_watcher>();
    for (const ddp_part& each : trained_) watcher->leaves.push_back(each.leaf.edge.to.node());
    watcher->failed = [weak = weak_from_this()](std::uint64_t pass, const pass_failure& why) {
      const auto self = weak.lock();
      if (self && self->note_failure({true, pass}, why.text)) self->settle();
    };
    watcher_ = watcher;
    dist_worker::of(*group_.core()->worker())->add_watcher(watcher_);
    for (std::size_t i = 0; i != trained_.size(); ++i) {
      model_->after_accumulation(i, [weak = weak_from_this(), i] {
        if (const auto self = weak.lock()) self->on_gradient_of(i);
      });
      model_->after_failure(i, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && self->note_failure({false, backward_pass::running_here()}, reason_of(current_error())))
          self->settle();
      });
    }
  }

  void begin_forward() {
    if (!model_->records()) return;
    refuse_if_incomplete();
    join_.check();
    if (!join_.is_inside()) return;
    end_announced_pass();
    (void)join_.announce(true, sync_, values_of_join());
    const settling_lock lock(*this);
    announced_ = averages_->passes() + 1;
    ++passes_;
  }
  [[nodiscard]] bool finds_unused() const noexcept { return options_.find_unused && sync_ && model_->records(); }
  void note_call(const std::vector<held_edge>& outputs) {
    noted_call call = note_of_call(outputs, trained_, *group_.core()->worker());
    const settling_lock lock(*this);
    calls_.add(std::move(call));
  }
  bool set_sync(bool now) noexcept { return sync_.exchange(now); }

  void begin_join() {
    join_.begin();
    passes_ = 0;
    announced_ = 0;
  }
  // In a catch block.
  void abandon_join() noexcept {
    fail_join(current_error());
    join_.leave();
  }
  void finish_join() {
    auto problem = caught([&] {
      join_.check();
      end_announced_pass();
      while (join_.announce(false, false, values_of_join())) make_pass_of_zeros();
      join_.finish();
    });
    if (problem) fail_join(problem);
    join_.leave();
    if (problem) std::rethrow_exception(problem);
    const tensor last = tensor_of({passes_ * group_.size() + group_.rank()});
    group_.all_reduce(last, reduce_op::max, options_.limit).get();
    give_parts(group_, *model_, static_cast<int>(last.at<std::int64_t>(0) % group_.size()), options_.limit);
  }

 private:
  void make_memory(std::size_t b) {
    const gradient_bucket& bucket = buckets_[b];
    last_on_[b] = current_stream(bucket.where);
    if (bucket.rows) {
      bucket_of_[bucket.members[0]] = b;
      return;
    }
    const tensor memory = zeros({bucket.elements}, bucket.type, bucket.where);
    for (std::size_t i = 0; i != bucket.members.size(); ++i) {
      const ddp_part& parameter = trained_[bucket.members[i]];
      views_[bucket.members[i]] = memory.as_strided(parameter.value.shape(), parameter.strides, bucket.offsets[i]);
      bucket_of_[bucket.members[i]] = b;
    }
    memory_[b] = memory;
  }
  // Gradients come on threads with other current streams: what this one does with a bucket follows what was done before.
  void order(std::size_t b) {
    const device where = buckets_[b].where;
    if (where.is_cpu()) return;
    const stream now = current_stream(where);
    if (now == last_on_[b]) return;
    now.wait(last_on_[b]);
    if (!buckets_[b].rows) {
      memory_[b].storage().record_use(now);
    } else if (const sparse_tensor& rows = rows_[buckets_[b].members[0]]; rows.defined()) {
      rows.indices().storage().record_use(now);
      rows.values().storage().record_use(now);
    }
    last_on_[b] = now;
  }

  // In a join: the last one of this member, whose others may wait for what is missing. It may not have begun, although a call of the
  // module said that it would: the module or the loss has thrown.
  void end_announced_pass() {
    const settling_lock lock(*this);
    if (readiness_->begun()) {
      end_pass(pass_, "parameters got no gradient");
    } else if (averages_->passes() < announced_) {
      end_pass({}, "no pass followed a call of the module");
    }
  }
  [[nodiscard]] context_values values_of_join() {
    const settling_lock lock(*this);
    return averages_->values_of_join();
  }
  // This member leaves the join. The others come to a pass that it has announced, and hear what it says in the place of the next one.
  void fail_join(const std::exception_ptr& error) noexcept {
    if (!join_.end(error)) return;
    auto problem = caught([&] {
      {
        const settling_lock lock(*this);
        if (averages_->passes() < announced_) end_pass({}, reason_of(error));
      }
      join_.say_failed(values_of_join());
    });
    if (problem)
      log(log_level::error, "other members do not hear of the end of a join: " + describe_exception(problem));
  }
  // Its errors are those of members that compute.
  void make_pass_of_zeros() {
    const settling_lock lock(*this);
    const no_grad outside;
    if (averages_->has_any()) reset();
    try {
      for (std::size_t i = 0; i != buckets_.size(); ++i) {
        order(i);
        if (buckets_[i].rows) {
          averages_->send_rows(no_rows(trained_[buckets_[i].members[0]].value));
          continue;
        }
        memory_[i].fill_(0);
        averages_->send(memory_[i]);
      }
    } catch (...) {
      end_pass({}, reason_of(current_error()));
      (void)caught([&] { reset(); });
      throw;
    }
    end_pass({}, {});
    reset();
  }

  // A pass of this module has failed. Returns whether settle() has to follow.
  bool note_failure(const ddp_pass_id& which, std::string why) {
    if (!sync_) return false;
    const std::lock_guard lock(failures_mutex_);
    failures_.push_back({which, std::move(why)});
    return true;
  }
  [[nodiscard]] bool has_failures() const {
    const std::lock_guard lock(failures_mutex_);
    return !failures_.empty();
  }
  // Waits for nothing: what has the mutex looks once more when it lets go of it.
  void settle() noexcept {
    while (has_failures() && holder_.load() != std::this_thread::get_id()) {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock) return;
      holder_.store(std::this_thread::get_id());
      take_failures();
      holder_.store({});
    }
  }
  class settling_lock {
   public:
    explicit settling_lock(ddp_core& of) : of_(of) {
      of_.mutex_.lock();
      of_.holder_.store(std::this_thread::get_id());
      of_.take_failures();
    }
    ~settling_lock() {
      of_.holder_.store({});
      of_.mutex_.unlock();
      of_.settle();
    }
    settling_lock(const settling_lock&) = delete;
    settling_lock& operator=(const settling_lock&) = delete;

   private:
    ddp_core& of_;
  };
  // With the mutex held, as the next one.
  void take_failures() noexcept {
    std::vector<failed_pass> failures;
    {
      const std::lock_guard lock(failures_mutex_);
      failures.swap(failures_);
    }
    for (const failed_pass& each : failures) {
      if (!is_over(each.which)) end_pass(each.which, each.why);
    }
  }
  [[nodiscard]] bool is_over(const ddp_pass_id& which) const noexcept {
    return std::find(over_.begin(), over_.end(), which) != over_.end();
  }
  // The group goes on to the next pass. `why`: of one that has not sent all gradients.
  void end_pass(const ddp_pass_id& which, const std::string& why) noexcept {
    averages_->end_pass(buckets_, why);
    over_[next_over_++ % over_.size()] = which;
    pass_ = {};
    readiness_->reset();
    std::fill(rows_.begin(), rows_.end(), sparse_tensor());
    calls_.clear();
  }

  // A call of the module after a pass that did not give all gradients.
  void refuse_if_incomplete() {
    const settling_lock lock(*this);
    if (!readiness_->begun()) {
      if (averages_->has_any()) reset();
      return;
    }
    const std::string missing = names_of_missing();
    end_pass(pass_, "there is no gradient of " + missing);
    reset();
    throw_error(
        errc::invalid_argument,
        fmt::format(
            "ddp: in the last pass these parameters got no gradient, and nothing was averaged completely: {}. "
            "If it did not fail, {}",
            missing,
            options_.find_unused
                ? "the module returns something that depends on them: let all that it returns take part in one pass, "
                  "or "
                  "return less"
                : "and the outputs do not depend on them, set ddp_options::find_unused, leave them out of the "
                  "module, or switch off their gradient with require_grad(parameter, false) before the ddp is made"));
  }
  [[nodiscard]] std::string names_of_missing() const {
    std::vector<std::string_view> missing;
    for (std::size_t i = 0; i != trained_.size(); ++i) {
      if (!readiness_->has(i)) missing.push_back(trained_[i].name);
    }
    return fmt::format("{}", fmt::join(missing, ", "));
  }
  // Of a pass that has begun, and is not complete, when another one begins. In contexts gradients are apart from buckets, and those of
  // buckets that have not been sent are as they were.
  void leave_begun_pass() {
    const bool spoilt = !pass_.distributed && averages_->sent() != 0;
    const std::string missing = names_of_missing();
    end_pass(pass_, "another one has begun");
    if (!spoilt) return;
    throw_error(
        errc::invalid_argument,
        fmt::format(
            "ddp: a pass has begun, and the one before it, of which averages are under way, got no gradient of {}: "
            "let all outputs of a call take part in one pass",
            missing));
  }

  // With the mutex held, like all that follows. Waits for the averages under way of passes that are over, which read and write the
  // buckets.
  void reset() {
    const std::vector<ddp_averages::under_way> pending = averages_->take_all();
    for (const auto& each : pending) each.wait();
    for (const auto& each : pending) {
      if (each.abandoned) make_memory(*each.bucket);
      if (!each.bucket || each.abandoned || buckets_[*each.bucket].where.is_cpu()) continue;
      if (each.average.failed()) {
        make_memory(*each.bucket);  // a device may still write what it has been given before the error
      } else {
        order(*each.bucket);
        (void)each.average.get();  // what follows on this stream does not meet it
      }
    }
  }
  void send_ready(std::size_t ready) {
    while (averages_->sent() != ready) {
      const std::size_t next = averages_->sent();
      order(next);
      if (buckets_[next].rows) {
        averages_->send_rows(std::exchange(rows_[buckets_[next].members[0]], {}));
      } else {
        averages_->send(memory_[next]);
      }
    }
  }
  // The gradient of a parameter that the pass of this thread keeps.
  [[nodiscard]] tensor kept_gradient(std::size_t i, const dist_context* context) const {
    tensor gradient;
    bool is_sparse = false;
    if (context) {
      const auto kept = context->gradient_of(leaves_[i].identity);
      if (kept) gradient = kept->dense;
      is_sparse = kept && kept->rows.defined();
    } else {
      gradient = model_->gradient(i);
      is_sparse = !gradient.defined() && model_->has_sparse_gradient(i);
    }
    if (is_sparse) {
      throw_error(
          errc::invalid_argument,
          fmt::format(
              "ddp: the gradient of {} is sparse: use dense gradients, or leave it out of the module; a module of "
              "ferry's kind says by a member `bool sparse_gradient` that gradients of its tensors are rows",
              trained_[i].name));
    }
    return gradient;
  }
  // The same as rows.
  [[nodiscard]] sparse_tensor kept_rows(std::size_t i, const dist_context* context) const {
    sparse_tensor rows;
    tensor dense;
    if (context) {
      if (const auto kept = context->gradient_of(leaves_[i].identity)) {
        rows = kept->rows;
        dense = kept->dense;
      }
    } else {
      rows = model_->rows(i);
      if (!rows.defined()) dense = model_->gradient(i);
    }
    if (rows.defined()) return rows;
    return dense.defined() ? sparse_tensor::from_dense(dense, 1) : no_rows(trained_[i].value);
  }
  void take(std::size_t i, const dist_context* context) {
    if (trained_[i].rows) {
      rows_[i] = kept_rows(i, context);
      last_on_[bucket_of_[i]] = current_stream(trained_[i].value.device());
    } else {
      put(i, kept_gradient(i, context));
    }
  }
  void put(std::size_t i, const tensor& gradient) {
    order(bucket_of_[i]);
    const tensor& into = views_[i];
    if (!gradient.defined()) {
      into.fill_(0);
    } else if (gradient.data() != into.data()) {
      into.copy_(gradient);
    }
  }

  void on_gradient_of(std::size_t i) {
    if (!sync_) return;
    const no_grad outside;
    const settling_lock lock(*this);
    const dist_pass* pass = dist_pass::running_here();
    // After this no call of the module comes before the hook has ended: its caller learns of the end of the pass first.
    if (pass && pass->over()) return;
    std::shared_ptr<dist_context> context;
    if (pass) {
      const std::shared_ptr<worker_core>& worker = group_.core()->worker();
      context = dist_worker::of(*worker)->need({pass->context_number()});
      if (pass->updates_at(worker->agent().self().id())) {
        throw_error(errc::invalid_argument,
                    fmt::format("ddp: backward() with `then` updates parameters of {} before their averages are there: "
                                "leave it out, and call step() of the optimizer after the pass",
                                group_.names()[static_cast<std::size_t>(group_.rank())]));
      }
    }
    const ddp_pass_id which{pass != nullptr, pass ? pass->number() : backward_pass::running_here()};
    if (which.number != 0 && is_over(which)) refuse_late(i);
    bool ended = false;
    try {
      if (readiness_->begun() && pass_ != which) leave_begun_pass();
      if (averages_->sent() == 0 && averages_->has_any()) reset();  // of a pass that failed
      pass_ = which;
      for (const std::size_t each : calls_.take_unused()) {
        take(each, context.get());
        (void)readiness_->mark(each);
      }
      if (readiness_->has(i) && bucket_of_[i] < averages_->sent()) refuse_late(i);
      take(i, context.get());
      send_ready(readiness_->mark(i));
      if (!readiness_->complete()) return;
      write_results(context.get());
      ended = true;
      end_pass(which, {});
      reset();
    } catch (...) {
      if (!ended) end_pass(which, reason_of(current_error()));
      // The first error is the one to tell; a device that fails here, too, fails the next pass.
      (void)caught([&] { reset(); });
      throw;
    }
  }

  // Its bucket has begun to travel without what has come now.
  [[noreturn]] void refuse_late(std::size_t i) const {
    throw_error(
        errc::invalid_argument,
        fmt::format("ddp: another gradient of {} came in one pass, after its bucket had been sent: {}",
                    trained_[i].name,
                    options_.find_unused
                        ? "find_unused has found no way from the outputs of the module to it (is there one that "
                          "the module does not return?), or a node of the pass has run a pass of its own"
                        : "a node of the pass has run a pass of its own"));
  }

  template <class F>
  void named(std::size_t i, F&& set) const {
    try {
      set();
    } catch (const error& problem) {  // it was frozen after the forward pass, for example
      throw_error(problem.kind(),
                  fmt::format("ddp: {}: {}; a ddp whose parameters are frozen later has to be made anew",
                              trained_[i].name, problem.message()));
    }
  }

  // What a transport of the user's gives.
  void check_average(const tensor& average, std::size_t b) const {
    const tensor& wanted = memory_[b];
    if (average.defined() && average.dtype() == wanted.dtype() && average.shape() == wanted.shape()) return;
    const auto described = [](const tensor& t) {
      return t.defined() ? fmt::format("{} {}", dtype_name(t.dtype()), to_string(t.shape())) : std::string("undefined");
    };
    throw_error(average.defined() && average.shape() == wanted.shape() ? errc::bad_dtype : errc::bad_shape,
                fmt::format("ddp: the result of ddp_options::transport for bucket {} is {}, and should be {}", b,
                            described(average), described(wanted)));
  }

  void write_results(dist_context* context) {
    std::vector<std::pair<std::size_t, sparse_tensor>> averages_of_rows;
    for (std::size_t b = 0; b != buckets_.size(); ++b) {
      if (buckets_[b].rows) {
        order(b);
        averages_of_rows.emplace_back(buckets_[b].members[0], averages_->wait_for_rows(b));
        continue;
      }
      const tensor average = averages_->wait_for(b);
      check_average(average, b);
      order(b);
      if (average.data() != memory_[b].data()) memory_[b].copy_(average);
    }
    for (const auto& [i, rows] : averages_of_rows) {
      if (context) {
        context->replace(leaves_[i], rows);
      } else {
        named(i, [&, at = i, &average = rows] { model_->set_rows(at, average); });
      }
    }
    for (std::size_t i = 0; i != trained_.size(); ++i) {
      if (trained_[i].rows) continue;
      const tensor now = kept_gradient(i, context);
      if (now.defined() && context) {
        now.copy_(views_[i]);
      } else if (context) {
        (void)context->accumulate(leaves_[i], views_[i].clone(), {});
      } else if (!now.defined() || now.data() != views_[i].data()) {
        named(i, [&] { model_->set_gradient(i, views_[i]); });
      }
    }
    if (context) {  // the pass knows of the streams of its own nodes only
      std::vector<stream> streams;
      for (const stream& each : last_on_) {
        if (!each.device().is_cpu() && std::find(streams.begin(), streams.end(), each) == streams.end())
          streams.push_back(each);
      }
      context->gradients_on(streams);
    }
    model_->written();
  }

  struct failed_pass {
    ddp_pass_id which;
    std::string why;
  };

  const process_group group_;
  nn::ddp_options options_;
  const std::unique_ptr<ddp_model> model_;
  std::vector<ddp_part> trained_;    // those that require a gradient
  std::vector<engine_leaf> leaves_;  // of these, as contexts know them
  std::vector<gradient_bucket> buckets_;
  std::shared_ptr<const leaf_watcher> watcher_;
  mutable std::mutex failures_mutex_;      // guards the next one
  std::vector<failed_pass> failures_;      // that no thread with the mutex has seen
  std::atomic<std::thread::id> holder_{};  // the thread that has the mutex: each looks for itself only
  std::mutex mutex_;                       // guards the next eleven; held while averages are awaited
  std::vector<tensor> memory_;             // by bucket
  std::vector<stream> last_on_;            // the same: the stream on which it was used last
  std::vector<tensor> views_;              // by parameter
  std::vector<sparse_tensor> rows_;        // the same, of those that travel as rows: until they are sent
  std::vector<std::size_t> bucket_of_;
  std::optional<bucket_readiness> readiness_;
  std::optional<ddp_averages> averages_;
  std::array<ddp_pass_id, 16> over_{};  // the last ones that are over
  std::size_t next_over_ = 0;
  ddp_pass_id pass_;   // that of the gradients that are there
  noted_calls calls_;  // with find_unused
  std::atomic<bool> sync_ = true;
  ddp_join join_;
  std::uint64_t announced_ = 0;  // how many passes are over after the one that this member has announced
  std::int64_t passes_ = 0;      // of this member in the join
};

std::shared_ptr<ddp_core> start_ddp(std::unique_ptr<ddp_model> model, const process_group& group,
                                    const nn::ddp_options& options) {
  if (!group.valid()) throw_error(errc::no_state, "ddp: the process_group is an empty handle");
  auto made = std::make_shared<ddp_core>(std::move(model), group, options);
  made->start();
  return made;
}
void begin_forward(ddp_core& core) { core.begin_forward(); }
bool finds_unused(const ddp_core& core) noexcept { return core.finds_unused(); }
void note_call(ddp_core& core, const std::vector<held_edge>& outputs) { core.note_call(outputs); }
bool set_sync(ddp_core& core, bool now) noexcept { return core.set_sync(now); }
void begin_join(ddp_core& core) { core.begin_join(); }
void finish_join(ddp_core& core) { core.finish_join(); }
void abandon_join(ddp_core& core) noexcept { core.abandon_join(); }

}  // namespace ferry::inline v0::detail

namespace ferry::inline v0::nn {

no_sync_scope::no_sync_scope(std::shared_ptr<detail::ddp_core> core)
    : core_(std::move(core)), former_(detail::set_sync(*core_, false)) {}
no_sync_scope::~no_sync_scope() { detail::set_sync(*core_, former_); }

}  // namespace ferry::inline v0::nn
