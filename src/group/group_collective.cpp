#include "group_collective.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <ferry/rpc/context.hpp>
#include <ferry/tensor/factories.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "../transport/reactor/time_limit.hpp"
#include "group_core.hpp"
#include "nccl_group.hpp"
#include "reduce_elements.hpp"
#include "staged_pieces.hpp"

namespace ferry::inline v0::detail {
namespace {

using what = group_step::what;

}  // namespace

// Kept by the bytes of a message, wherever they are: goes with the last handle to them.
class group_collective::read_hold {
 public:
  read_hold(std::shared_ptr<group_collective> of, tensor bytes) : of_(std::move(of)), bytes_(std::move(bytes)) {}
  ~read_hold() {
    bytes_ = {};
    of_->on_read();
  }
  read_hold(const read_hold&) = delete;
  read_hold& operator=(const read_hold&) = delete;

 private:
  const std::shared_ptr<group_collective> of_;
  tensor bytes_;
};

group_collective::group_collective(std::shared_ptr<group_core> group, collective_key key, collective_start start)
    : group_(std::move(group)), key_(key), start_(std::move(start)) {
  if (ranges_watched()) [[unlikely]] {
    const bool receives = key.channel != collective_key::all && key.channel % group_->size() == group_->rank();
    recorded_ = begin_span(fmt::format("{}#{}", to_string(receives ? collective::receive : start_.signature.op),
                                       group_->facts().options.name),
                           range_kind::collective, group_->worker()->agent_unchecked().self().id().value);
  }
  if (!start_.by_nccl) return;
  const nccl_agreement::word own = group_->nccl()->word_for(start_.signature, start_.staging.get());
  says_yes_ = own.yes;
  agreement_ = std::make_unique<nccl_agreement>(group_->rank(), group_->size(), own);
}

group_collective::~group_collective() = default;

void group_collective::start(std::deque<early_message> early) {
  const context_scope outside(static_cast<call_context*>(nullptr));  // the calls are not those of the caller's call
  const bool others_use_messages = !early.empty();
  std::string odd;
  try {
    if (!start_.until.is_never()) {
      auto limit = std::make_unique<time_limit>(group_->worker()->agent().reactor(), start_.until,
                                                [group = group_->weak_from_this(), key = key_, limit = start_.limit] {
                                                  if (const auto present = group.lock()) present->time_out(key, limit);
                                                });
      const std::lock_guard lock(mutex_);
      if (!ended_) limit_ = std::move(limit);
    }
    for (early_message& each : early) {
      if (each.what.signature != start_.signature) {
        odd = calls_of_both(each.what.from, each.what.signature);
        break;
      }
    }
    if (!odd.empty()) {
      group_->fail(key_, errc::group_mismatch, odd);
      const std::exception_ptr error =
          make_error(errc::group_mismatch, fmt::format("{}: {}", group_->describe(key_, start_.signature), odd));
      for (early_message& each : early) each.taken.try_set_exception(error);
      return;
    }
    std::exception_ptr over;
    std::vector<promise<void>> words;
    {
      const std::lock_guard lock(mutex_);
      if (ended_) {
        over = error_;
      } else {  // others may have come meanwhile
        for (; !early.empty(); early.pop_front()) {
          early_message& each = early.front();
          odd = why_unexpected(each.what);
          const bool is_word = odd.empty() && each.what.piece == nccl_agreement::piece;
          const auto word = is_word ? nccl_agreement::word::decode(each.bytes) : std::nullopt;
          if (is_word && !word) odd = malformed_word(each.what);
          if (!odd.empty()) break;
          if (is_word) {
            agreement_->take(each.what.tag, *word);
            words.push_back(std::move(each.taken));
            continue;
          }
          early_.emplace(message_key(each.what.piece, each.what.from, each.what.tag), std::move(each));
        }
      }
    }
    for (promise<void>& each : words) each.try_set_value();
    if (!odd.empty()) {
      group_->fail(key_, errc::malformed, odd);
      over = make_error(errc::malformed, odd);
    }
    if (over) {
      for (early_message& each : early) each.taken.try_set_exception(over);
      return;
    }
  } catch (...) {
    fail_here();
  }
  if (in_segment_.load()) {
    if (others_use_messages) group_->segment()->ask_to_leave(key_.sequence);
    if (group_->segment()->begin(key_.sequence)) return;
    in_segment_.store(false);
  }
  begin();
}

void group_collective::begin() {
  if (!start_.by_nccl) return begin_lanes();
  {
    const std::lock_guard lock(mutex_);
    agrees_ = true;
  }
  agree();
}

// ---------------------------------------------------------------- in messages

void group_collective::begin_lanes() {
  if (!enter()) return;
  std::vector<std::shared_ptr<lane>> begun;
  try {
    for (std::size_t i = 0; i != group_->facts().options.window; ++i) {
      auto one = begin_lane();
      if (!one) break;
      begun.push_back(std::move(one));
    }
  } catch (...) {
    fail_here();
  }
  leave();
  for (auto& one : begun) kick(std::move(one));
}

bool group_collective::enter() noexcept {
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  ++running_;
  return true;
}

void group_collective::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (--running_ != 0 || !ended_) return;
  }
  settle();
}

bool group_collective::end(std::exception_ptr error, const std::function<void()>& first) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    ended_ = true;
    over_.store(true);
    error_ = std::move(error);
    ++running_;
  }
  if (first) first();
  if (start_.by_nccl) {
    if (error_ && said_yes_.load()) tell_nccl(error_);
    group_->nccl()->drop(key_.sequence);
  }
  leave();  // the last thread that uses the tensors settles it
  return true;
}

// Called once: no thread enters any more. What it lets go of is destroyed without the mutex, and may belong to a member of this
// process, which then calls on_read().
void group_collective::settle() noexcept {
  const auto self = shared_from_this();
  std::map<message_key, early_message> early;
  std::map<std::uint64_t, future<void>> sends;
  std::vector<std::shared_ptr<lane>> lanes;
  std::unique_ptr<time_limit> limit;
  std::unique_ptr<time_limit> soon;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    early.swap(early_);
    sends.swap(sends_);
    lanes.swap(lanes_);
    limit.swap(limit_);
    soon.swap(soon_);
    error = error_;
  }
  limit.reset();
  soon.reset();
  if (error && in_segment_.load()) group_->segment()->note_failed(key_.sequence);  // the queue lets go of this
  group_->forget(key_);
  for (auto& [key, each] : early) {
    if (error) {
      each.taken.try_set_exception(error);
    } else {
      each.taken.try_set_value();
    }
  }
  early.clear();
  for (const auto& one : lanes) one->mail.clear();
  // What has not been sent is not read any more; what is being sent is, until its last byte is on the way.
  if (error) {
    for (const auto& [number, each] : sends) each.cancel();
  }
  sends.clear();
  {
    const std::lock_guard lock(mutex_);
    settled_ = true;
    if (error && reads_ != 0) return;  // on_read() tells
    told_ = true;
  }
  tell();
}

// On whatever thread drops the last handle, perhaps in the middle of a transport.
void group_collective::on_read() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (--reads_ != 0 || !settled_ || told_) return;
    told_ = true;
  }
  group_->post([self = shared_from_this()] { self->tell(); });
}

void group_collective::end_recorded() noexcept {
  struct details_of_tensor final : range_details {
    explicit details_of_tensor(const collective_signature& signature) : of(signature) {}
    [[nodiscard]] std::string shapes() const override { return "[" + to_string(dims(of.shape)) + "]"; }
    [[nodiscard]] std::int64_t bytes() const noexcept override {
      std::int64_t count = 1;
      for (const std::int64_t each : of.shape) count *= each;
      return count * static_cast<std::int64_t>(dtype_size(of.type));
    }
    const collective_signature& of;
  };
  const details_of_tensor details(start_.signature);
  const bool has_tensor = start_.signature.op != collective::barrier;
  recorded_->end(group_->trace_number(key_), has_tensor ? &details : nullptr, error_ != nullptr);
}

void group_collective::tell() noexcept {
  if (recorded_) [[unlikely]]
    end_recorded();
  start_.buffers = {};
  start_.staging = nullptr;
  start_.finish(error_);
  start_.finish = nullptr;
}

bool group_collective::needs(int rank) const {
  if (in_segment_.load()) return !is_over() && group_->segment()->needs(key_.sequence, rank);
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  if (on_device_.load()) return true;
  if (agreement_ && agreement_->needs(rank)) return true;
  const auto receives = [&](const group_step& step) {
    return (step.kind == what::receive || step.kind == what::receive_reduce) && step.peer == rank;
  };
  if (next_piece_ != start_.buffers.piece_count) {
    for (const group_step& step : start_.schedule) {
      if (step.peer == rank) return true;
    }
  }
  for (const auto& one : lanes_) {
    for (std::size_t i = one->next; i < start_.schedule.size(); ++i) {
      const group_step& step = start_.schedule[i];
      if (step.kind == what::send && step.peer == rank) return true;
      if (!receives(step) || (i == one->next && one->taken)) continue;
      if (std::none_of(one->mail.begin(), one->mail.end(),
                       [&](const arrival& each) { return each.from == rank && each.tag == step.tag; })) {
        return true;
      }
    }
  }
  return false;
}

// Takes what has come for the piece. Null: there are no more.
std::shared_ptr<group_collective::lane> group_collective::begin_lane() {
  std::vector<early_message> taken;
  auto fresh = std::make_shared<lane>();
  fresh->unread.resize(static_cast<std::size_t>(start_.buffers.parts));
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || next_piece_ == start_.buffers.piece_count) return nullptr;
    fresh->piece = next_piece_;
    const auto piece = static_cast<std::uint32_t>(fresh->piece);
    for (auto each = early_.lower_bound({piece, 0, 0}); each != early_.end() && std::get<0>(each->first) == piece;) {
      fresh->mail.push_back({each->second.what.from, each->second.what.tag, each->second.bytes});
      taken.push_back(std::move(each->second));
      each = early_.erase(each);
    }
    lanes_.push_back(fresh);
    ++next_piece_;
  }
  for (early_message& each : taken) each.taken.try_set_value();
  return fresh;
}

std::string group_collective::calls_of_both(int member, const collective_signature& theirs) const {
  const auto called_by = [&](int rank, collective_signature what) {
    // The two ends of a message have one signature.
    if (key_.channel != collective_key::all && key_.channel % group_->size() == rank) what.op = collective::receive;
    return fmt::format("{} {}", rank == group_->rank() ? group_->name_of(rank) + " calls" : group_->name_of(rank),
                       to_string(what));
  };
  return called_by(group_->rank(), start_.signature) + ", " + called_by(member, theirs);
}

std::string group_collective::why_unexpected(const group_message& message) const {
  if (agreement_ && message.piece == nccl_agreement::piece) {
    const std::string_view why = agreement_->why_unexpected(message.from, message.tag);
    if (why.empty()) return "";
    return fmt::format("{} has sent word {} of an agreement on NCCL, {}", group_->name_of(message.from), message.tag,
                       why);
  }
  const auto step = std::find_if(start_.schedule.begin(), start_.schedule.end(), [&](const group_step& each) {
    return (each.kind == what::receive || each.kind == what::receive_reduce) && each.peer == message.from &&
           each.tag == message.tag;
  });
  const auto piece = static_cast<std::int64_t>(message.piece);
  std::string_view why;
  if (step == start_.schedule.end() || piece >= start_.buffers.piece_count) {
    why = "which is not in its part";
  } else if (early_.contains({message.piece, message.from, message.tag})) {
    why = "twice";
  } else if (piece < next_piece_) {
    const auto found = std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& one) { return one->piece == piece; });
    const bool taken =
        found == lanes_.end() || static_cast<std::size_t>(step - start_.schedule.begin()) < (*found)->next ||
        std::any_of((*found)->mail.begin(), (*found)->mail.end(),
                    [&](const arrival& each) { return each.from == message.from && each.tag == message.tag; });
    if (taken) why = "twice";
  }
  if (why.empty()) return "";
  return fmt::format("{} has sent message {} of piece {} of {}, {}", group_->name_of(message.from), message.tag,
                     message.piece, start_.buffers.piece_count, why);
}

// Runs the lane on the thread of the call, and in its context: a send that must wait gives up the handler's place.
future<void> group_collective::deliver(const group_message& message, const tensor& bytes) {
  const auto self = shared_from_this();
  if (message.signature != start_.signature) {
    const std::string odd = calls_of_both(message.from, message.signature);
    group_->fail(key_, errc::group_mismatch, odd);
    return make_failed_future<void>(
        make_error(errc::group_mismatch, fmt::format("{}: {}", group_->describe(key_, start_.signature), odd)));
  }
  if (start_.by_nccl && message.piece == nccl_agreement::piece) return take_word(message, bytes);
  std::shared_ptr<lane> where;
  std::string odd;
  future<void> later;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return error_ ? make_failed_future<void>(error_) : make_ready_future();
    odd = why_unexpected(message);
    if (odd.empty() && static_cast<std::int64_t>(message.piece) >= next_piece_) {
      early_message& kept = early_[{message.piece, message.from, message.tag}];
      kept.what = message;
      kept.bytes = bytes;
      later = kept.taken.get_future();
    }
    if (odd.empty() && !later.valid()) {
      for (const auto& one : lanes_) {
        if (one->piece == static_cast<std::int64_t>(message.piece)) where = one;
      }
      where->mail.push_back({message.from, message.tag, bytes});
    }
  }
  if (!odd.empty()) {
    group_->fail(key_, errc::malformed, odd);
    return make_failed_future<void>(make_error(errc::malformed, odd));
  }
  if (later.valid()) {
    if (in_segment_.load()) group_->segment()->ask_to_leave(key_.sequence);
    return later;
  }
  kick(std::move(where));
  return make_ready_future();
}

// One thread at a time runs a lane; what comes meanwhile makes it look again. A lane that finishes is followed by the next.
void group_collective::kick(std::shared_ptr<lane> which) {
  const auto self = shared_from_this();
  while (which) {
    if (which->kicks.fetch_add(1) != 0) return;
    std::shared_ptr<lane> next;
    std::uint32_t seen = 1;
    std::uint32_t left = 0;
    do {
      if (enter()) {
        try {
          if (advance(which)) next = begin_lane();
        } catch (...) {
          fail_here();
        }
        leave();
      }
      left = which->kicks.fetch_sub(seen) - seen;
      seen = left;
    } while (left != 0);
    which = std::move(next);
  }
}

bool group_collective::advance(const std::shared_ptr<lane>& which) {
  while (which->next != start_.schedule.size()) {
    const group_step& step = start_.schedule[which->next];
    switch (step.kind) {
      case what::send:
        if (!send(which, step)) return false;
        continue;
      case what::receive:
      case what::receive_reduce:
        if (!receive(*which, step)) return false;
        break;
      case what::copy:
      case what::reduce:
      case what::scale:
        if (!may_write(*which, step.part)) return false;
        apply(*which, step);
        break;
      case what::fetch: {
        auto goes_on = [self = shared_from_this(), which] { self->continue_later(which); };
        bool there = false;
        with_own_name([&] { there = start_.staging->fetch(start_.buffers, which->piece, std::move(goes_on)); });
        if (!there) return false;
        break;
      }
      case what::store: with_own_name([&] { start_.staging->store(start_.buffers, which->piece); }); break;
    }
    const std::lock_guard lock(mutex_);
    ++which->next;  // send() has done that
    which->taken = false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (which->finished || ended_) return false;
    for (int part = 0; part != start_.buffers.parts; ++part) {
      if (which->unread[static_cast<std::size_t>(part)] != 0 && !start_.buffers.is_scratch(part)) {
        which->waits_for_reads = true;
        return false;
      }
    }
    which->finished = true;
    lanes_.erase(std::find(lanes_.begin(), lanes_.end(), which));
    if (++finished_pieces_ != start_.buffers.piece_count) return true;
  }
  end(nullptr);
  return false;
}

bool group_collective::send(const std::shared_ptr<lane>& which, const group_step& step) {
  group_buffers::range range;
  if (step.part >= 0) {
    range = start_.buffers.at(which->piece, step.part);
    if (range.count == 0) {
      const std::lock_guard lock(mutex_);
      ++which->next;
      return true;
    }
  }
  group_message message;
  message.group = group_->facts().id;
  message.from = group_->rank();
  message.key = key_;
  message.piece = static_cast<std::uint32_t>(which->piece);
  message.tag = step.tag;
  message.signature = start_.signature;
  std::uint64_t number = 0;
  const bool is_callers = step.part >= 0 && !start_.buffers.is_scratch(step.part);
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    if (step.part >= 0) ++which->unread[static_cast<std::size_t>(step.part)];
    if (is_callers) ++reads_;
    number = next_send_++;
    // Before the message can arrive: its receiver may then be done, and leave, and is not needed any more.
    ++which->next;
  }
  try {
    future<void> pending;
    {
      tensor bytes;
      if (step.part < 0) {
        bytes = empty({0}, dtype::u8);
      } else if (is_callers) {
        std::shared_ptr<read_hold> hold;
        try {
          hold = std::make_shared<read_hold>(shared_from_this(), range.view());
        } catch (...) {
          on_read();
          throw;
        }
        bytes = from_blob(range.data(), {range.count}, range.of->dtype(), std::move(hold));
      } else {
        bytes = range.view();
      }
      pending = group_->send(message, step.peer, bytes);
    }
    track(number, step.peer, which, step.part, pending);
  } catch (const error& problem) {
    group_->fail(key_, problem.kind(), fmt::format("{}: {}", group_->name_of(step.peer), problem.message()));
    return false;
  }
  return true;
}

void group_collective::track(std::uint64_t number, int peer, const std::shared_ptr<lane>& which, int part,
                             const future<void>& pending) {
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    late = ended_ && error_;
    if (!ended_) sends_.emplace(number, pending);
  }
  if (late) pending.cancel();
  const context_scope outside(static_cast<call_context*>(nullptr));  // on the thread that reads the answer
  pending.add_done_callback([self = shared_from_this(), which, number, peer, part](const future<void>& sent) {
    self->on_sent(which, number, peer, part, sent.error());
  });
}

// On a thread that reads: the rest is done elsewhere.
void group_collective::on_sent(const std::shared_ptr<lane>& which, std::uint64_t number, int peer, int part,
                               const std::exception_ptr& error) {
  bool goes_on = false;
  future<void> answered;  // let go of without the mutex
  {
    const std::lock_guard lock(mutex_);
    if (auto found = sends_.extract(number)) answered = std::move(found.mapped());
    if (ended_) return;
    if (!error && part >= 0) {
      --which->unread[static_cast<std::size_t>(part)];
      goes_on = std::exchange(which->waits_for_reads, false);
    }
  }
  if (error) {
    group_->post([self = shared_from_this(), peer, error] {
      group_core& group = *self->group_;
      try {
        std::rethrow_exception(error);
      } catch (const ferry::error& problem) {
        group.fail(self->key_, problem.kind(), group.reason_of(self->key_, peer, problem.message()));
      } catch (const std::exception& problem) {
        group.fail(self->key_, errc::remote_exception, group.reason_of(self->key_, peer, problem.what()));
      }
    });
  } else if (goes_on) {
    continue_later(which);
  }
}

void group_collective::with_own_name(const std::function<void()>& copies) const {
  try {
    copies();
  } catch (const error& problem) {
    throw_error(problem.kind(), fmt::format("{}: {}", group_->name_of(group_->rank()), problem.message()));
  }
}

void group_collective::continue_later(const std::shared_ptr<lane>& which) noexcept {
  group_->post([self = shared_from_this(), which] {
    const context_scope outside(static_cast<call_context*>(nullptr));
    self->kick(which);
  });
}

// Whether no send reads the part any more; else the last of them kicks the lane.
bool group_collective::may_write(lane& which, int part) {
  if (part < 0) return true;
  const std::lock_guard lock(mutex_);
  if (which.unread[static_cast<std::size_t>(part)] == 0) return true;
  which.waits_for_reads = true;
  return false;
}

bool group_collective::receive(lane& which, const group_step& step) {
  group_buffers::range into;
  if (step.part >= 0) {
    into = start_.buffers.at(which.piece, step.part);
    if (into.count == 0) return true;
  }
  if (!may_write(which, step.part)) return false;
  arrival come;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(which.mail.begin(), which.mail.end(), [&](const arrival& each) {
      return each.from == step.peer && each.tag == step.tag;
    });
    if (found == which.mail.end()) return false;
    come = std::move(*found);
    which.mail.erase(found);
    which.taken = true;  // its sender is not needed for this step any more
  }
  if (step.part < 0) return true;
  if (come.bytes.numel() != into.count || come.bytes.dtype() != into.of->dtype() || !come.bytes.device().is_cpu()) {
    throw_error(
        errc::group_mismatch,
        fmt::format("{} has sent {} elements of {}, not {} of {}", group_->name_of(step.peer), come.bytes.numel(),
                    dtype_name(come.bytes.dtype()), into.count, dtype_name(into.of->dtype())));
  }
  if (into.count == 0) return true;
  const tensor source = come.bytes.contiguous();
  if (step.kind == what::receive) {
    std::memcpy(into.data(), source.data(), source.nbytes());
  } else {
    reduce_elements(source.dtype(), start_.signature.how, into.data(), source.data(),
                    static_cast<std::size_t>(into.count));
  }
  return true;
}

void group_collective::apply(const lane& which, const group_step& step) {
  const auto into = start_.buffers.at(which.piece, step.part);
  const auto count = static_cast<std::size_t>(into.count);
  if (count == 0) return;
  const dtype type = into.of->dtype();
  if (step.kind == what::scale) {
    if (start_.signature.how == reduce_op::avg) divide_elements(type, into.data(), count, group_->size());
    return;
  }
  const auto from = start_.buffers.at(which.piece, step.other);
  if (step.kind == what::copy) {
    std::memcpy(into.data(), from.data(), count * dtype_size(type));
  } else {
    reduce_elements(type, start_.signature.how, into.data(), from.data(), count);
  }
}

// ---------------------------------------------------------------- in the shared segment

segment_job group_collective::job() const {
  segment_job made;
  const std::vector<tensor>& whole = start_.buffers.whole;
  if (whole.empty()) return made;  // no elements: the members meet
  made.op = start_.signature.op;
  made.how = start_.signature.how;
  made.type = start_.signature.type;
  made.root = start_.signature.root;
  const auto n = static_cast<std::size_t>(group_->size());
  const auto own = static_cast<std::size_t>(group_->rank());
  const auto at = [&](std::size_t part) { return static_cast<std::byte*>(whole[part].data()); };
  made.elements = whole.front().numel();  // of one part
  made.from = at(0);
  made.to = at(0);
  if (made.op == collective::all_gather) made.from = at(own);
  if (made.op == collective::reduce_scatter || made.op == collective::all_to_all) made.to = at(n);
  return made;
}

void group_collective::fail_by(int member, const collective_signature* theirs) noexcept {
  try {
    if (theirs) {
      group_->fail(key_, errc::group_mismatch, calls_of_both(member, *theirs));
    } else {
      group_->fail(key_, errc::malformed,
                   fmt::format("{} has written to the shared memory what no member writes", group_->name_of(member)));
    }
  } catch (...) {
    fail_here();
  }
}

void group_collective::go_by_messages() noexcept {
  in_segment_.store(false);
  // A member may have been lost while it was not known what it is needed for.
  for (const int gone : group_->lost()) {
    if (needs(gone)) group_->fail(key_, errc::peer_lost, fmt::format("{} is lost", group_->name_of(gone)), gone);
  }
  const context_scope outside(static_cast<call_context*>(nullptr));
  begin();
}

void group_collective::fail_here() noexcept {
  try {
    throw;
  } catch (const error& problem) {
    group_->fail(key_, problem.kind(), std::string(problem.message()));
  } catch (const std::bad_alloc&) {
    group_->fail(key_, errc::out_of_memory, "there is no memory for it");
  } catch (const std::exception& problem) {
    group_->fail(key_, errc::remote_exception, problem.what());
  }
}

}  // namespace ferry::inline v0::detail
