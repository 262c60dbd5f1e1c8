#include "segment_run.hpp"

#include <algorithm>
#include <cstring>

#include "reduce_elements.hpp"

namespace ferry::inline v0::detail {
namespace {

bool travels_in_shares(collective op) { return op == collective::reduce_scatter || op == collective::all_to_all; }

}  // namespace

segment_run::segment_run(const group_segment& memory, int rank, const segment_job& job, const signature_block& own,
                         std::uint64_t base, std::uint64_t turn)
    : memory_(memory),
      rank_(rank),
      n_(memory.members()),
      job_(job),
      own_(own),
      element_(dtype_size(job.type)),
      two_phases_(takes_two_phases(job.op, static_cast<std::size_t>(job.elements) * dtype_size(job.type), n_)),
      base_(base),
      turn_(turn),
      next_in_(base),
      next_done_(base),
      next_out_(base),
      least_in_(base),
      least_done_(base),
      least_out_(0),
      checked_(static_cast<std::size_t>(n_)) {
  const std::size_t room = memory.layout().slot_bytes;
  spacing_ = travels_in_shares(job.op) ? room / static_cast<std::size_t>(n_) / 16 * 16 : room;
  const auto most = static_cast<std::int64_t>(spacing_ / element_);
  const std::int64_t count = std::max<std::int64_t>(1, (job.elements + most - 1) / most);
  each_ = (job.elements + count - 1) / count;
  end_ = base + static_cast<std::uint64_t>(count);
  memory_.signature(rank_, turn_) = own_;
}

segment_run::range segment_run::piece(std::uint64_t number) const noexcept {
  const std::int64_t first = std::min(static_cast<std::int64_t>(number - base_) * each_, job_.elements);
  return {first, std::min(each_, job_.elements - first)};
}

segment_run::range segment_run::share(const range& of, int member) const noexcept {
  const std::int64_t first = of.count * member / n_;
  return {of.first + first, of.count * (member + 1) / n_ - first};
}

bool segment_run::has_come(int member) const noexcept { return look_again_at(memory_.flags(member).in) > base_; }

bool segment_run::needs(int member) const noexcept {
  member_flags& theirs = memory_.flags(member);
  return observe_number(theirs.in) < end_ || (two_phases_ && observe_number(theirs.done) < end_) ||
         observe_number(theirs.out) + segment_layout::slots < end_ ||
         observe_number(theirs.failed) == own_.words[0] + 1;  // and of the error that it has to tell
}

bool segment_run::check_signature(int member, state& found) {
  const signature_block theirs = memory_.signature(member, turn_);
  if (theirs == own_) {
    checked_[static_cast<std::size_t>(member)] = true;
    return true;
  }
  culprit_ = member;
  auto decoded = theirs.decode();
  found = !decoded ? state::broken : theirs.words[0] != own_.words[0] ? state::apart : state::differs;
  if (found == state::differs) theirs_ = std::move(decoded->second);
  return false;
}

// No member is ahead of this one by more than the slots.
bool segment_run::observe(state& found) {
  std::uint64_t in = next_in_;
  std::uint64_t done = next_done_;
  std::uint64_t out = next_out_;
  for (int each = 0; each != n_; ++each) {
    if (each == rank_) continue;
    member_flags& theirs = memory_.flags(each);
    const std::uint64_t their_out = observe_number(theirs.out);
    const std::uint64_t their_done = observe_number(theirs.done);
    const std::uint64_t their_in = observe_number(theirs.in);
    const std::uint64_t most = next_out_ + segment_layout::slots;
    if (their_in > most || their_done > most || their_out > most) {
      culprit_ = each;
      found = state::broken;
      return false;
    }
    if (their_in > base_ && !checked_[static_cast<std::size_t>(each)]) {
      memory_.note_observed();
      if (!check_signature(each, found)) return false;
    }
    in = std::min(in, their_in);
    done = std::min(done, their_done);
    out = std::min(out, their_out);
  }
  least_in_ = in;
  least_done_ = done;
  least_out_ = out;
  memory_.note_observed();
  return true;
}

bool segment_run::has_failed() const noexcept {
  for (int each = 0; each != n_; ++each) {
    if (each != rank_ && look_again_at(memory_.flags(each).failed) == own_.words[0] + 1) return true;
  }
  return false;
}

bool segment_run::could_advance() const noexcept {
  if (has_failed()) return false;
  std::uint64_t in = next_in_;
  std::uint64_t done = next_done_;
  std::uint64_t out = next_out_;
  for (int each = 0; each != n_; ++each) {
    if (each == rank_) continue;
    member_flags& theirs = memory_.flags(each);
    const std::uint64_t their_in = look_again_at(theirs.in);
    if (their_in > base_ && !checked_[static_cast<std::size_t>(each)]) return true;
    in = std::min(in, their_in);
    done = std::min(done, look_again_at(theirs.done));
    out = std::min(out, look_again_at(theirs.out));
  }
  return next_out_ < (two_phases_ ? done : in) || (two_phases_ && next_done_ < std::min(in, end_)) ||
         (next_in_ != end_ && out + segment_layout::slots > next_in_);
}

void segment_run::publish(std::uint64_t member_flags::*which, std::uint64_t value,
                          const std::function<void(int)>& wake) {
  memory_.note_published();
  publish_number(memory_.flags(rank_).*which, value);
  for (int each = 0; each != n_; ++each) {
    if (each != rank_ && take_sleep(memory_.flags(each))) wake(each);
  }
}

segment_run::state segment_run::advance(const std::function<void(int)>& wake) {
  for (;;) {
    state found = state::blocked;
    if (has_failed()) return state::blocked;
    if (!observe(found)) return found;
    if (next_out_ != end_ && next_out_ < (two_phases_ ? least_done_ : least_in_)) {
      copy_out(next_out_);
      publish(&member_flags::out, ++next_out_, wake);
      if (next_out_ == end_) return state::finished;
    } else if (two_phases_ && next_done_ != end_ && next_done_ < least_in_) {
      reduce_share(next_done_);
      ++next_done_;
      publish(&member_flags::done, next_done_, wake);
    } else if (next_in_ != end_ && next_in_ < least_out_ + segment_layout::slots) {
      copy_in(next_in_);
      publish(&member_flags::in, ++next_in_, wake);
    } else {
      return state::blocked;
    }
  }
}

void segment_run::copy_in(std::uint64_t number) {
  const range all = piece(number);
  std::byte* const slot = memory_.slot(rank_, number);
  const auto copy = [&](std::int64_t first, std::int64_t last) {
    if (first < last) std::memcpy(slot + bytes(first - all.first), job_.from + bytes(first), bytes(last - first));
  };
  switch (job_.op) {
    case collective::broadcast:
      if (rank_ == job_.root) copy(all.first, all.first + all.count);
      break;
    case collective::all_reduce:
      if (two_phases_) {  // what this member reduces it takes from the tensor
        const range own = share(all, rank_);
        copy(all.first, own.first);
        copy(own.first + own.count, all.first + all.count);
      } else {
        copy(all.first, all.first + all.count);
      }
      break;
    case collective::reduce:
    case collective::all_gather: copy(all.first, all.first + all.count); break;
    case collective::reduce_scatter:
    case collective::all_to_all:
      for (int each = 0; each != n_ && all.count != 0; ++each) {
        if (each == rank_) continue;
        std::memcpy(slot + static_cast<std::size_t>(each) * spacing_,
                    job_.from + bytes(each * job_.elements + all.first), bytes(all.count));
      }
      break;
    default: break;
  }
}

template <class Source>
void segment_run::reduce_all(std::byte* into, const Source& of, std::int64_t count) {
  const auto elements = static_cast<std::size_t>(count);
  if (elements == 0) return;
  combine_elements(job_.type, job_.how, into, of(0), of(1), elements);
  for (int each = 2; each != n_; ++each) reduce_elements(job_.type, job_.how, into, of(each), elements);
  if (job_.how == reduce_op::avg) divide_elements(job_.type, into, elements, n_);
}

void segment_run::reduce_share(std::uint64_t number) {
  const range all = piece(number);
  const range own = share(all, rank_);
  std::byte* const result = memory_.result(rank_, number);
  reduce_all(
      result,
      [&](int each) -> const std::byte* {
        return each == rank_ ? job_.from + bytes(own.first) : memory_.slot(each, number) + bytes(own.first - all.first);
      },
      own.count);
  if (own.count != 0) std::memcpy(job_.to + bytes(own.first), result, bytes(own.count));
}

void segment_run::copy_out(std::uint64_t number) {
  const range all = piece(number);
  if (all.count == 0) return;
  std::byte* const to = job_.to + bytes(all.first);
  const auto in_slot = [&](int each) -> const std::byte* { return memory_.slot(each, number); };
  const auto in_share = [&](int each) -> const std::byte* {
    return each == rank_ ? job_.from + bytes(rank_ * job_.elements + all.first)
                         : memory_.slot(each, number) + static_cast<std::size_t>(rank_) * spacing_;
  };
  switch (job_.op) {
    case collective::broadcast:
      if (rank_ != job_.root) std::memcpy(to, memory_.slot(job_.root, number), bytes(all.count));
      break;
    case collective::all_reduce:
      if (!two_phases_) {
        reduce_all(to, in_slot, all.count);
        break;
      }
      for (int each = 0; each != n_; ++each) {
        const range theirs = share(all, each);
        if (each == rank_ || theirs.count == 0) continue;
        std::memcpy(job_.to + bytes(theirs.first), memory_.result(each, number), bytes(theirs.count));
      }
      break;
    case collective::reduce:
      if (rank_ == job_.root) reduce_all(to, in_slot, all.count);
      break;
    case collective::all_gather:
      for (int each = 0; each != n_; ++each) {
        if (each != rank_) {
          std::memcpy(job_.to + bytes(each * job_.elements + all.first), memory_.slot(each, number), bytes(all.count));
        }
      }
      break;
    case collective::reduce_scatter: reduce_all(to, in_share, all.count); break;
    case collective::all_to_all:
      for (int each = 0; each != n_; ++each) {
        std::memcpy(job_.to + bytes(each * job_.elements + all.first), in_share(each), bytes(all.count));
      }
      break;
    default: break;
  }
}

}  // namespace ferry::inline v0::detail
