#include <ferry/nn/ddp_options.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/device/current.hpp>
#include <ferry/tensor/factories.hpp>

#include "../autograd/dist/dist_context.hpp"
#include "../autograd/dist/dist_pass.hpp"
#include "../autograd/dist/dist_worker.hpp"
#include "../group/group_core.hpp"
#include "ddp_buckets.hpp"
#include "ddp_model.hpp"

namespace ferry::inline v0::detail {

// Gradients come on the thread of the pass, and the last one waits for the averages of all. That thread may be one of the worker's,
// and still be there when the pass has failed and its caller goes on: all that a hook uses is guarded by the mutex, and a hook
// of a pass that is over does nothing.
class ddp_core : public std::enable_shared_from_this<ddp_core> {
 public:
  ddp_core(std::unique_ptr<ddp_model> model, const process_group& group, const nn::ddp_options& options)
      : group_(group), options_(options), model_(std::move(model)) {
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
      sizes.push_back({each.value.numel(), each.value.dtype(), each.value.device()});
    }
    buckets_ = plan_buckets(sizes, options_.first_bucket_bytes, options_.bucket_bytes);
    readiness_.emplace(buckets_, trained_.size());
    views_.resize(trained_.size());
    bucket_of_.resize(trained_.size());
    memory_.resize(buckets_.size());
    last_on_.resize(buckets_.size());
    for (std::size_t b = 0; b != buckets_.size(); ++b) make_memory(b);
  }
  ~ddp_core() = default;
  ddp_core(const ddp_core&) = delete;
  ddp_core& operator=(const ddp_core&) = delete;

  // Collective.
  void start() {
    check_agreement();
    give_parameters(0);
    for (std::size_t i = 0; i != trained_.size(); ++i) {
      model_->after_accumulation(i, [weak = weak_from_this(), i] {
        if (const auto self = weak.lock()) self->on_gradient_of(i);
      });
    }
  }

  void begin_forward() {
    if (!model_->records()) return;
    refuse_if_incomplete();
    if (joining_) {
      (void)announce(true, sync_);
      ++passes_;
    }
  }
  [[nodiscard]] bool finds_unused() const noexcept { return options_.find_unused && sync_ && model_->records(); }
  // Walks from the outputs to the leaves.
  void note_call(const std::vector<held_edge>& outputs) {
    std::unordered_set<const void*> met;
    std::vector<node_ref> open;
    const auto meet = [&](const node_edge& edge) {
      if (edge && met.insert(edge.to.node()).second) open.push_back(edge.to);
    };
    noted_call call;
    for (const held_edge& each : outputs) {
      meet(each.edge);
      call.outputs.emplace_back(each.keeps);
    }
    std::vector<node_edge> edges;
    while (!open.empty()) {
      const node_ref node = open.back();
      open.pop_back();
      edges.clear();
      node.engine().edges(node.node(), edges);
      for (const node_edge& each : edges) meet(each);
    }
    for (std::size_t i = 0; i != trained_.size(); ++i) {
      if (!met.contains(trained_[i].leaf.edge.to.node())) call.unused.push_back(i);
    }
    const std::lock_guard lock(mutex_);
    // No pass can begin at outputs that are gone.
    std::erase_if(calls_, [](const noted_call& each) {
      return std::all_of(each.outputs.begin(), each.outputs.end(), [](const auto& output) { return output.expired(); });
    });
    calls_.push_back(std::move(call));
  }
  bool set_sync(bool now) noexcept { return sync_.exchange(now); }

  void begin_join() {
    joining_ = true;
    passes_ = 0;
  }
  void abandon_join() noexcept { joining_ = false; }
  void finish_join() {
    joining_ = false;
    while (announce(false, false)) {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i != buckets_.size(); ++i) {
        order(i);
        memory_[i].fill_(0);
        (void)options_.transport(group_, memory_[i], options_.limit).get();
      }
    }
    const tensor last = tensor_of({passes_ * group_.size() + group_.rank()});
    group_.all_reduce(last, reduce_op::max, options_.limit).get();
    give_parameters(static_cast<int>(last.at<std::int64_t>(0) % group_.size()));
  }

 private:
  void make_memory(std::size_t b) {
    const gradient_bucket& bucket = buckets_[b];
    const tensor memory = zeros({bucket.elements}, bucket.type, bucket.where);
    for (std::size_t i = 0; i != bucket.members.size(); ++i) {
      const ddp_part& parameter = trained_[bucket.members[i]];
      views_[bucket.members[i]] = memory.as_strided(parameter.value.shape(), parameter.strides, bucket.offsets[i]);
      bucket_of_[bucket.members[i]] = b;
    }
    memory_[b] = memory;
    last_on_[b] = current_stream(bucket.where);
  }
  // Gradients come on threads with other current streams: what this one does with a bucket follows what was done before.
  void order(std::size_t b) {
    const device where = buckets_[b].where;
    if (where.is_cpu()) return;
    const stream now = current_stream(where);
    if (now == last_on_[b]) return;
    now.wait(last_on_[b]);
    memory_[b].storage().record_use(now);
    last_on_[b] = now;
  }

  void check_agreement() const {
    std::uint64_t hash = 0xcbf29ce484222325U;
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3U; };
    for (const ddp_part& each : model_->parts()) {
      for (const char c : each.name) add(static_cast<unsigned char>(c));
      for (const std::int64_t size : each.value.shape()) add(static_cast<std::uint64_t>(size));
      add(static_cast<std::uint64_t>(each.value.dtype()));
      add(each.leaf ? 1 : 0);
      if (!each.leaf) continue;
      for (const std::int64_t stride : each.strides) add(static_cast<std::uint64_t>(stride));
    }
    for (std::size_t i = 1; i != trained_.size(); ++i) {
      add(trained_[i].value.device() == trained_[i - 1].value.device() ? 1 : 0);  // buckets are of one device each
    }
    add(options_.bucket_bytes);
    add(options_.first_bucket_bytes);
    const tensor hashes = group_.all_gather(tensor_of({static_cast<std::int64_t>(hash)}), options_.limit).get();
    for (int rank = 0; rank != group_.size(); ++rank) {
      if (hashes.at<std::int64_t>(rank, 0) == static_cast<std::int64_t>(hash)) continue;
      throw_error(
          errc::group_mismatch,
          fmt::format("ddp: the parameters of {} differ from those of {} in name, shape, dtype, strides, whether they "
                      "require a gradient or which are on one device, or the sizes of buckets do",
                      group_.names()[static_cast<std::size_t>(rank)],
                      group_.names()[static_cast<std::size_t>(group_.rank())]));
    }
  }
  void give_parameters(int root) const {
    const no_grad outside;
    std::vector<future<void>> pending;
    for (const ddp_part& each : model_->parts()) {
      pending.push_back(group_.broadcast(detach(each.value), root, options_.limit));
    }
    for (const auto& each : pending) each.get();
    model_->written();
  }
  // Tells the others whether this member makes a pass now. Returns whether any does.
  bool announce(bool active, bool synced) const {
    const tensor flags = tensor_of({static_cast<std::int64_t>(active), static_cast<std::int64_t>(active && !synced)});
    group_.all_reduce(flags, reduce_op::sum, options_.limit).get();
    if (flags.at<std::int64_t>(1) != 0) {
      throw_error(errc::invalid_argument,
                  "ddp: a member is in no_sync() within join(): members that have finished cannot know it");
    }
    return flags.at<std::int64_t>(0) != 0;
  }
  // A call of the module after a pass that did not give all gradients.
  void refuse_if_incomplete() {
    const std::lock_guard lock(mutex_);
    if (!readiness_->begun()) return;
    std::vector<std::string_view> missing;
    for (std::size_t i = 0; i != trained_.size(); ++i) {
      if (!readiness_->has(i)) missing.push_back(trained_[i].name);
    }
    reset();
    throw_error(
        errc::invalid_argument,
        fmt::format("ddp: in the last pass these parameters got no gradient, and nothing was averaged completely: {}. "
                    "If it did not fail, and the outputs do not depend on them, set ddp_options::find_unused, leave "
                    "them out of the module, or "
                    "switch off their gradient with require_grad(parameter, false)",
                    fmt::join(missing, ", ")));
  }

  // With the mutex held, like all that follows. Waits for the averages under way, which read and write the buckets.
  void reset() {
    const std::vector<future<tensor>> pending = std::exchange(pending_, {});
    sent_ = 0;
    readiness_->reset();
    calls_.clear();
    pass_ = 0;
    for (const future<tensor>& each : pending) (void)each.wait_for(no_timeout);
    for (std::size_t b = 0; b != pending.size(); ++b) {
      if (buckets_[b].where.is_cpu()) continue;
      if (pending[b].failed()) {
        make_memory(b);  // a device may still write what it has been given before the error
      } else {
        order(b);
        (void)pending[b].get();  // what follows on this stream does not meet it
      }
    }
  }
  void send_ready(std::size_t ready) {
    for (; sent_ != ready; ++sent_) {
      const tensor& bucket = memory_[sent_];
      order(sent_);
      pending_.push_back(options_.transport(group_, bucket, options_.limit));
      pending_.back().add_done_callback([bucket](const future<tensor>&) {});  // which it may use until then
    }
  }
  // The parameters that none of the calls since the last pass depends on.
  [[nodiscard]] std::vector<std::size_t> take_unused() {
    std::vector<noted_call> calls = std::exchange(calls_, {});
    if (calls.empty()) return {};
    std::vector<std::size_t> unused = std::move(calls.back().unused);
    calls.pop_back();
    for (const noted_call& each : calls) {
      std::erase_if(unused,
                    [&](std::size_t i) { return !std::binary_search(each.unused.begin(), each.unused.end(), i); });
    }
    return unused;
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
      throw_error(errc::invalid_argument,
                  fmt::format("ddp: the gradient of {} is sparse; use dense gradients, or leave it out of the "
                              "module",
                              trained_[i].name));
    }
    return gradient;
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
    const std::lock_guard lock(mutex_);
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
    try {
      const std::uint64_t number = pass ? pass->number() : 0;
      if (readiness_->begun() && pass_ != number) reset();  // of a pass that failed
      pass_ = number;
      for (const std::size_t each : take_unused()) {
        put(each, kept_gradient(each, context.get()));
        (void)readiness_->mark(each);
      }
      put(i, kept_gradient(i, context.get()));
      send_ready(readiness_->mark(i));
      if (!readiness_->complete()) return;
      write_results(context.get());
      reset();
    } catch (...) {
      // The first error is the one to tell; a device that fails here, too, fails the next pass.
      (void)caught([&] { reset(); });
      throw;
    }
  }

  void write_results(dist_context* context) {
    for (std::size_t b = 0; b != buckets_.size(); ++b) {
      const tensor average = pending_[b].get();
      order(b);
      if (average.data() != memory_[b].data()) memory_[b].copy_(average);
    }
    for (std::size_t i = 0; i != trained_.size(); ++i) {
      const tensor now = kept_gradient(i, context);
      if (now.defined() && context) {
        now.copy_(views_[i]);
      } else if (context) {
        (void)context->accumulate(leaves_[i], views_[i].clone(), {});
      } else if (!now.defined() || now.data() != views_[i].data()) {
        model_->set_gradient(i, views_[i]);
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

  struct noted_call {
    std::vector<std::weak_ptr<void>> outputs;
    std::vector<std::size_t> unused;  // ascending
  };

  const process_group group_;
  nn::ddp_options options_;
  const std::unique_ptr<ddp_model> model_;
  std::vector<ddp_part> trained_;    // those that require a gradient
  std::vector<engine_leaf> leaves_;  // of these, as contexts know them
  std::vector<gradient_bucket> buckets_;
  std::mutex mutex_;             // guards the next nine; held while averages are awaited
  std::vector<tensor> memory_;   // by bucket
  std::vector<stream> last_on_;  // the same: the stream on which it was used last
  std::vector<tensor> views_;    // by parameter
  std::vector<std::size_t> bucket_of_;
  std::optional<bucket_readiness> readiness_;
  std::vector<future<tensor>> pending_;  // by bucket
  std::size_t sent_ = 0;
  std::uint64_t pass_ = 0;         // of the gradients that are there; 0: one of this process alone
  std::vector<noted_call> calls_;  // with find_unused: since the last pass
  std::atomic<bool> sync_ = true;
  bool joining_ = false;
  std::int64_t passes_ = 0;
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
