#include "nccl_group.hpp"

#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/work.hpp>
#include <ferry/device/current.hpp>
#include <ferry/rpc/context.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "../transport/reactor/pending_copy.hpp"
#include "group_collective.hpp"
#include "group_core.hpp"
#include "staged_pieces.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::microseconds usual_progress{100};  // of what NCCL has begun; looked at without a pause
constexpr std::chrono::milliseconds before_next_look{1};

struct nccl_elements {
  nccl_type type = {};
  std::size_t size = 1;  // of one of them, in bytes
};

// Elements are copied as bytes, complex ones added as two.
std::optional<nccl_elements> elements_of(const collective_signature& what) noexcept {
  const bool reduces =
      what.op == collective::all_reduce || what.op == collective::reduce || what.op == collective::reduce_scatter;
  if (!reduces) return nccl_elements{nccl_type::u8, 1};
  const bool adds = what.how == reduce_op::sum || what.how == reduce_op::avg;
  // NCCL's minimum and maximum leave NaN out.
  const bool compares = what.how == reduce_op::min || what.how == reduce_op::max;
  switch (what.type) {
    case dtype::u8: return nccl_elements{nccl_type::u8, 1};
    case dtype::i8: return nccl_elements{nccl_type::i8, 1};
    case dtype::i32: return nccl_elements{nccl_type::i32, 4};
    case dtype::i64: return nccl_elements{nccl_type::i64, 8};
    case dtype::f16: return compares ? std::nullopt : std::optional(nccl_elements{nccl_type::f16, 2});
    case dtype::bf16: return compares ? std::nullopt : std::optional(nccl_elements{nccl_type::bf16, 2});
    case dtype::f32: return compares ? std::nullopt : std::optional(nccl_elements{nccl_type::f32, 4});
    case dtype::f64: return compares ? std::nullopt : std::optional(nccl_elements{nccl_type::f64, 8});
    case dtype::c64: return adds ? std::optional(nccl_elements{nccl_type::f32, 4}) : std::nullopt;
    case dtype::c128: return adds ? std::optional(nccl_elements{nccl_type::f64, 8}) : std::nullopt;
    default: return std::nullopt;
  }
}

nccl_reduction reduction_of(reduce_op how) noexcept {
  switch (how) {
    case reduce_op::sum: return nccl_reduction::sum;
    case reduce_op::avg: return nccl_reduction::avg;
    case reduce_op::min: return nccl_reduction::min;
    case reduce_op::max: return nccl_reduction::max;
    case reduce_op::prod: return nccl_reduction::prod;
  }
  return nccl_reduction::sum;
}

}  // namespace

nccl_group::nccl_group(group_core& group, const nccl_functions* library)
    : group_(group), library_(library), reactor_(group.worker()->agent().reactor()) {
  if (library_) {
    communicator_ = std::make_shared<owned_communicator>(*library_);
    return;
  }
  state_ = state::unavailable;
  why_not_ = nccl_refusal();
}

// Perhaps on a thread that has other things to do than to wait for NCCL.
nccl_group::~nccl_group() {
  poll_.close();
  give_back(group_.worker(), std::move(communicator_));
}

std::string nccl_group::why_not() const {
  const std::lock_guard lock(mutex_);
  return why_not_;
}

// ---------------------------------------------------------------- what members say

void nccl_group::prepare() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != state::none || group_.rank() != 0 || own_id_) return;
  }
  nccl_unique_id made{};
  const int result = library_->get_unique_id(&made);
  const std::lock_guard lock(mutex_);
  if (state_ != state::none || own_id_) return;
  if (result == nccl_success) {
    own_id_ = made;
  } else {
    state_ = state::unavailable;
    why_not_ = fmt::format("NCCL makes no id of a communicator: {}", library_->error_text(result));
  }
}

nccl_agreement::word nccl_group::word_for(const collective_signature& what, const staged_pieces* pieces) noexcept {
  const std::lock_guard lock(mutex_);
  if (state_ == state::unavailable || state_ == state::given_up) return {.never = true};
  if (!pieces || pieces->where().kind != device_kind::cuda || !elements_of(what)) return {};
  if (!where_) where_ = pieces->where();
  if (*where_ != pieces->where()) return {};
  if (state_ == state::made || group_.rank() != 0) return {.yes = true};
  return {.yes = own_id_.has_value(), .id = own_id_};
}

void nccl_group::expect(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  queue_.try_emplace(sequence);
}

void nccl_group::agreed(const std::shared_ptr<group_collective>& which,
                        const std::optional<nccl_unique_id>& id) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto at = queue_.find(which->key().sequence);
    if (at == queue_.end()) return;
    at->second.which = which;
    at->second.id = id;
  }
  drive();
}

// A member may have come so far that it says never, while this one has yet to learn why by a collective before.
void nccl_group::refused_for_good(std::uint64_t sequence) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = queue_.find(sequence); at != queue_.end()) at->second.never = true;
  }
  drive();
}

void nccl_group::drop(std::uint64_t sequence) noexcept {
  std::shared_ptr<group_collective> dropped;  // destroyed without the mutex
  {
    const std::lock_guard lock(mutex_);
    const auto at = queue_.find(sequence);
    if (at == queue_.end() || at->second.never || (busy_ && at == queue_.begin())) return;
    dropped = std::move(at->second.which);
    queue_.erase(at);
  }
  drive();
}

// ---------------------------------------------------------------- one after the other

void nccl_group::drive() noexcept {
  const context_scope outside(static_cast<call_context*>(nullptr));  // of whatever call comes by
  place head;
  {
    const std::lock_guard lock(mutex_);
    if (busy_ || queue_.empty() || (!queue_.begin()->second.which && !queue_.begin()->second.never)) return;
    busy_ = true;
    head = queue_.begin()->second;
  }
  if (head.never) {
    give_up(errc::device_failure, "a member does without NCCL, or has given it up");
    return next();
  }
  if (!head.which->enter()) return next();  // it has ended, and gives NCCL up
  run(head);
}

void nccl_group::next() noexcept {
  place over;  // destroyed without the mutex
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(busy_, false) || queue_.empty()) return;
    over = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
  }
  // From the thread of whatever comes, and so no deeper than one call.
  group_.post([group = group_.shared_from_this(), this] { drive(); });
}

// The head has been entered, and is left when NCCL is done with it.
void nccl_group::run(const place& head) noexcept {
  state now = {};
  {
    const std::lock_guard lock(mutex_);
    now = state_;
    if (now == state::none) making_ = head.which;
  }
  switch (now) {
    case state::none: return make(head);
    case state::made: return launch(head.which);
    case state::unavailable: head.which->go_staged(); break;  // so it is at all members, which had agreed on this one
    case state::given_up: fail_given_up(*head.which); break;
  }
  head.which->leave();
  next();
}

void nccl_group::fail(group_collective& which, const std::string& why) noexcept {
  group_.fail(which.key(), errc::device_failure, fmt::format("{}: {}", group_.name_of(group_.rank()), why));
}

bool nccl_group::is_given_up() const noexcept {
  const std::lock_guard lock(mutex_);
  return state_ == state::given_up;
}

// An aborted communicator reports errors, too.
void nccl_group::fail_by_nccl(group_collective& which, const std::string& why) noexcept {
  is_given_up() ? fail_given_up(which) : fail(which, "NCCL: " + why);
}

void nccl_group::fail_given_up(group_collective& which) noexcept {
  std::string why;
  errc code{};
  {
    const std::lock_guard lock(mutex_);
    why = why_not_;
    code = code_;
  }
  group_.fail(which.key(), code, why);
}

// ---------------------------------------------------------------- the communicator

void nccl_group::make(const place& head) noexcept {
  std::string why;
  try {
    if (head.id) {
      const device_guard on_device(head.which->pieces()->where());
      why = communicator_->make(group_.size(), *head.id, group_.rank());
    } else {
      why = "the first member has sent no id";
    }
  } catch (const std::exception& problem) {
    why = problem.what();
  }
  if (why.empty()) return poll_making();
  on_making_ended(why);
}

void nccl_group::poll_making() noexcept {
  std::shared_ptr<group_collective> which;
  {
    const std::lock_guard lock(mutex_);
    which = making_;
  }
  if (!which) return;  // give_up() has seen to the rest
  std::string why;
  if (communicator_->in_progress(why)) {
    if (which->is_refused()) {  // NCCL waits for that member
      why = "another member has none";
    } else {
      try {
        return poll_.start(reactor_, deadline::after(before_next_look), [weak = group_.weak_from_this(), this] {
          if (const auto group = weak.lock()) poll_making();
        });
      } catch (const std::exception& problem) {
        why = problem.what();
      }
    }
  }
  on_making_ended(why);
}

void nccl_group::on_making_ended(const std::string& why) noexcept {
  std::shared_ptr<group_collective> which;
  {
    const std::lock_guard lock(mutex_);
    which = making_;
    if (which && !why.empty()) why_not_ = "NCCL makes no communicator: " + why;
  }
  if (which) which->ask_again(why.empty());
}

void nccl_group::on_made_by_all(bool all) noexcept {
  place head;
  {
    const std::lock_guard lock(mutex_);
    if (!making_) return;  // given up meanwhile
    making_ = nullptr;
    state_ = all ? state::made : state::unavailable;
    if (!all && why_not_.empty()) why_not_ = "another member has no communicator of NCCL's";
    head = queue_.begin()->second;
  }
  if (!all) {
    give_back(group_.worker(), communicator_);
    log(log_level::warning,
        fmt::format("group '{}': collectives on devices are staged: {}", group_.facts().options.name, why_not()));
  }
  run(head);
}

// Aborts it on a thread that may wait.
void nccl_group::give_back(const std::shared_ptr<worker_core>& worker,
                           std::shared_ptr<owned_communicator> which) noexcept {
  struct aborting : work {
    std::shared_ptr<owned_communicator> which;
  };
  if (!which) return;
  try {
    auto item = std::make_unique<aborting>();
    item->which = std::move(which);
    item->run = [](work* self) noexcept {
      const std::unique_ptr<aborting> owned(static_cast<aborting*>(self));
      const blocking_scope waits;  // for NCCL, which gets on with it by itself
      owned->which->abort();
    };
    worker->post(item.release());
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): whatever drops the last reference aborts it
  }
}

void nccl_group::give_up(errc code, const std::string& why) noexcept {
  std::shared_ptr<group_collective> made_for;  // destroyed without the mutex
  {
    const std::lock_guard lock(mutex_);
    if (state_ == state::given_up || state_ == state::unavailable) return;
    state_ = state::given_up;
    why_not_ = why;
    code_ = code;
    made_for = std::move(making_);
  }
  give_back(group_.worker(), communicator_);
  if (!made_for) return;
  fail_given_up(*made_for);
  made_for->leave();
  next();
}

// ---------------------------------------------------------------- a collective

void nccl_group::launch(const std::shared_ptr<group_collective>& which) noexcept {
  std::string why;
  try {
    const staged_pieces& pieces = *which->pieces();
    pieces.read_in_order_of_results();
    const device_guard on_device(pieces.where());
    why = communicator_->begin([&](nccl_communicator* among) { return start(which->signature(), pieces, among); });
  } catch (const std::exception& problem) {
    why = problem.what();
  }
  if (why.empty()) return poll_launch(which);
  fail_by_nccl(*which, why);
  which->leave();
  next();
}

// What follows on the stream is known to follow only once NCCL has queued all of it, which a thread of its own does.
void nccl_group::poll_launch(const std::shared_ptr<group_collective>& which) noexcept {
  std::string why;
  bool in_progress = communicator_->in_progress(why);
  for (const auto until = clock::now() + usual_progress; in_progress && clock::now() < until;) {
    std::this_thread::yield();
    in_progress = communicator_->in_progress(why);
  }
  if (in_progress) {
    try {
      return poll_.start(reactor_, deadline::after(before_next_look), [weak = group_.weak_from_this(), this, which] {
        if (const auto group = weak.lock()) poll_launch(which);
      });
    } catch (const std::exception& problem) {
      why = problem.what();
    }
  }
  if (!why.empty()) fail_by_nccl(*which, why);
  watch(which);  // the device may have begun
  next();
}

void nccl_group::watch(const std::shared_ptr<group_collective>& which) noexcept {
  pending_copy::watch(
      reactor_, {which->pieces()->results()},
      [group = group_.shared_from_this(), this, which](const std::exception_ptr& failure) {
        on_device_done(which, failure);
      },
      [group = group_.weak_from_this(), this, which] {
        const auto present = group.lock();
        if (!present || which->is_over() || is_given_up()) return;
        std::string why;
        (void)communicator_->in_progress(why);
        if (!why.empty()) fail_by_nccl(*which, why);
      });
}

void nccl_group::on_device_done(const std::shared_ptr<group_collective>& which,
                                const std::exception_ptr& failure) noexcept {
  std::string why;
  if (is_given_up()) {
    fail_given_up(*which);
  } else if (failure) {
    fail(*which, describe_exception(failure));
  } else if ((void)communicator_->in_progress(why); !why.empty()) {
    fail_by_nccl(*which, why);
  } else {
    which->succeed();
  }
  which->leave();
}

// With the device current.
int nccl_group::start(const collective_signature& what, const staged_pieces& pieces, nccl_communicator* among) {
  const nccl_elements elements = *elements_of(what);
  const auto& parts = pieces.parts();
  const auto n = static_cast<std::size_t>(group_.size());
  const auto own = static_cast<std::size_t>(group_.rank());
  std::size_t bytes = dtype_size(what.type);
  for (const std::int64_t axis : what.shape) bytes *= static_cast<std::size_t>(axis);
  const std::size_t count = bytes / elements.size;
  const nccl_reduction how = reduction_of(what.how);
  CUstream_st* const stream = static_cast<CUstream_st*>(pieces.results().handle());
  switch (what.op) {
    case collective::all_reduce:
      return library_->all_reduce(parts[0].from.data, parts[0].to.data, count, elements.type, how, among, stream);
    case collective::broadcast: {
      std::byte* const data = parts[0].from.data ? parts[0].from.data : parts[0].to.data;
      return library_->broadcast(data, data, count, elements.type, what.root, among, stream);
    }
    case collective::reduce:
      return library_->reduce(parts[0].from.data, parts[0].to.data, count, elements.type, how, what.root, among,
                              stream);
    case collective::all_gather:
      return library_->all_gather(parts[own].from.data, parts[0].to.data, count, elements.type, among, stream);
    case collective::reduce_scatter:
      return library_->reduce_scatter(parts[0].from.data, parts[n].to.data, count / n, elements.type, how, among,
                                      stream);
    case collective::all_to_all: {
      int result = library_->group_start();
      for (std::size_t each = 0; each != n && owned_communicator::is_begun(result); ++each) {
        const int peer = static_cast<int>(each);
        result = library_->send(parts[each].from.data, count / n, elements.type, peer, among, stream);
        if (!owned_communicator::is_begun(result)) break;
        result = library_->receive(parts[n + each].to.data, count / n, elements.type, peer, among, stream);
      }
      const int ended = library_->group_end();
      return owned_communicator::is_begun(result) ? ended : result;
    }
    default: break;
  }
  throw_error(errc::invalid_argument, fmt::format("NCCL makes no {}", to_string(what.op)));
}

}  // namespace ferry::inline v0::detail
