// How the collectives of a group end together that cannot succeed.

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/rpc/named.hpp>
#include <ferry/rpc/worker.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "gather_rounds.hpp"
#include "group_core.hpp"
#include "group_table.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds abort_limit{10};   // of the calls that tell others of an error
constexpr std::chrono::seconds inquiry_limit{5};  // of those that ask others why nothing comes
constexpr std::size_t most_outcomes = 4096;       // from one member, of collectives that this one has not begun
constexpr std::size_t most_outcome_text = 4096;   // bytes

}  // namespace

std::string group_core::reason_of(const collective_key& key, int member, std::string_view text) const {
  const std::string of_it = describe(key) + ": ";
  if (const auto at = text.find(of_it); at != std::string_view::npos)
    return std::string(text.substr(at + of_it.size()));
  return fmt::format("{}: {}", name_of(member), text);
}

std::vector<int> group_core::others_in(const collective_key& key) const {
  std::vector<int> others;
  for (int each = 0; each != size(); ++each) {
    const bool in = key.channel == collective_key::all || each == key.channel / size() || each == key.channel % size();
    if (in && each != rank()) others.push_back(each);
  }
  return others;
}

void group_core::abort_others(const group_abort& what) const noexcept {
  const context_scope outside(static_cast<call_context*>(nullptr));
  for (const int each : others_in(what.key)) {
    {
      const std::lock_guard lock(mutex_);
      if (lost_.contains(each)) continue;
    }
    try {
      // What becomes of it does not matter: a member that cannot be told ends by its own limit, or the connection's.
      (void)call_async<named<"ferry/group/abort", serve_group_abort>>(
          worker_, to(name_of(each), {.timeout = timeout(abort_limit)}), what);
    } catch (const std::exception& problem) {
      log(log_level::info, fmt::format("group '{}': {} is not told of an error: {}", facts_.options.name, name_of(each),
                                       problem.what()));
    }
  }
}

void group_core::fail(const collective_key& key, errc error, const std::string& reason, int lost) noexcept {
  const auto open = find(key);
  if (!open) return;
  try {
    group_abort what;
    what.group = facts_.id;
    what.from = rank();
    what.key = key;
    what.error = static_cast<std::uint32_t>(error);
    what.text = fmt::format("{}: {}", describe(key, open->signature()), reason);
    what.lost = lost;
    table_->note_failed(facts_.id, key, error, what.text);
    // The others first: the caller may let go of the group when it hears of the end.
    open->end(make_error(error, what.text), [&] { abort_others(what); });
  } catch (const std::bad_alloc&) {
    open->end(make_error(error, ""));
  }
}

void group_core::on_abort(const group_abort& what) {
  const std::int32_t channel = what.key.channel;
  if (channel != collective_key::all && channel != what.from * size() + rank() &&
      channel != rank() * size() + what.from) {
    throw_error(errc::invalid_argument, fmt::format("{} ends what is not for this member", name_of(what.from)));
  }
  const std::string text = what.text.substr(0, most_outcome_text);
  const auto code = static_cast<errc>(what.error);
  const errc error = errc_name(code) == "unknown" ? errc::remote_exception : code;
  if (what.lost >= 0 && what.lost < size() && what.lost != rank())
    note_lost(what.lost, "is lost to " + name_of(what.from));
  std::deque<early_message> early;
  std::shared_ptr<group_collective> open;
  bool too_many = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(what.key);
    if (found != open_.end()) {
      open = found->second;
    } else if (what.key.sequence >= next_[what.key.channel]) {
      early = take_early(what.key);
      std::size_t& kept = ended_from_[static_cast<std::size_t>(what.from)];
      if (kept < most_outcomes) {
        if (ended_.try_emplace(what.key, outcome{error, text, what.from}).second) ++kept;
      } else {
        too_many = !ended_.contains(what.key);
      }
    }
  }
  const std::exception_ptr problem = make_error(error, text);
  for (early_message& each : early) each.taken.try_set_exception(problem);
  if (too_many) {
    throw_error(errc::limit_exceeded, fmt::format("{} has ended {} collectives that {} has not begun",
                                                  name_of(what.from), most_outcomes, name_of(rank())));
  }
  if (!open) return;
  table_->note_failed(facts_.id, what.key, error, text);
  open->end(problem);
}

// Asks the others, then ends it with the answers.
void group_core::time_out(const collective_key& key, timeout limit) noexcept {
  post([self = shared_from_this(), key, limit] {
    const context_scope outside(static_cast<call_context*>(nullptr));
    struct answers {
      std::mutex mutex;
      std::size_t left = 0;
      std::vector<std::string> missing;
      std::vector<std::string> silent;
      std::string odd;  // a member that calls something else, and what
    };
    std::string own;
    if (const auto open = self->find(key)) own = to_string(open->signature());
    const std::vector<int> others = self->others_in(key);
    const auto all = std::make_shared<answers>();
    all->left = others.size() + 1;
    const auto count = [self, key, limit, own, all](const std::string& name, bool answered, const std::string& begun) {
      {
        const std::lock_guard lock(all->mutex);
        if (!answered) all->silent.push_back(name);
        if (answered && begun.empty()) all->missing.push_back(name);
        if (!begun.empty() && begun != own && begun != "?") all->odd = name + " " + begun;
        if (--all->left != 0) return;
      }
      self->post([self, key, limit, own, all] {
        if (!all->odd.empty()) {
          self->fail(key, errc::group_mismatch,
                     fmt::format("{} calls {}, {}", self->name_of(self->rank()), own, all->odd));
          return;
        }
        std::string reason = fmt::format("timed out after {:.2f} seconds, the limit of {}",
                                         in_seconds(limit.duration()), self->name_of(self->rank()));
        if (!all->missing.empty()) reason += "; not called by " + list_names(all->missing);
        if (!all->silent.empty()) reason += "; no answer from " + list_names(all->silent);
        if (all->missing.empty() && all->silent.empty()) reason += "; every member has called it";
        self->fail(key, errc::rpc_timeout, reason);
      });
    };
    group_inquiry inquiry;
    inquiry.group = self->facts_.id;
    inquiry.from = self->rank();
    inquiry.key = key;
    for (const int each : others) {
      const std::string& name = self->name_of(each);
      try {
        call_async<named<"ferry/group/inquiry", serve_group_inquiry>>(
            self->worker_, to(name, {.timeout = timeout(inquiry_limit)}), inquiry)
            .add_done_callback([count, name](const future<std::string>& answer) {
              count(name, !answer.failed(), answer.failed() ? std::string() : answer.value());
            });
      } catch (const error&) {
        count(name, false, "");
      }
    }
    count("", true, own);
  });
}

std::string group_core::text_of_lost() const {
  std::string text;
  for (const auto& [rank, what] : lost_) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(rank), what);
  return text;
}

std::vector<int> group_core::lost() const {
  std::vector<int> ranks;
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, what] : lost_) ranks.push_back(rank);
  return ranks;
}

// Collectives that can still succeed without the member, which has done its part, go on.
void group_core::note_lost(int rank, const std::string& what) {
  std::vector<std::shared_ptr<group_collective>> open;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.emplace(rank, what).second) return;
    for (const auto& [key, each] : open_) open.push_back(each);
  }
  // It may have taken on to wake this one.
  if (segment()) post([self = shared_from_this()] { self->drive_segment(); });
  for (const auto& each : open) {
    if (!each->needs(rank)) continue;
    const std::string why = fmt::format("{} {}", name_of(rank), what);
    const auto late = [weak = weak_from_this(), key = each->key(), why, rank] {
      const auto self = weak.lock();
      const auto open_still = self ? self->find(key) : nullptr;
      if (open_still && open_still->needs(rank)) self->fail(key, errc::peer_lost, why, rank);
    };
    if (!each->ends_on_device(late)) fail(each->key(), errc::peer_lost, why, rank);
  }
}

void group_core::on_gone(const worker_info& who, const std::string& what) noexcept {
  for (int each = 0; each != size(); ++each) {
    const worker_info& member = facts_.members[static_cast<std::size_t>(each)];
    if (member.name() != who.name() || member.id() != who.id() || each == rank()) continue;
    try {
      note_lost(each, what);
    } catch (const std::bad_alloc&) {
      log(log_level::error, "process_group: no memory to note that a member is lost");
    }
  }
}

void group_core::close() noexcept {
  std::map<collective_key, std::shared_ptr<group_collective>> open;
  std::map<collective_key, std::deque<early_message>> early;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    open = open_;
    early.swap(early_);
    std::fill(early_from_.begin(), early_from_.end(), 0);
  }
  for (auto& [sleeper, again] : wakes_) again.close();  // none is added any more
  const std::exception_ptr error = make_error(errc::not_initialized, "the worker has been shut down");
  for (const auto& [key, each] : open) each->end(error);
  for (auto& [key, messages] : early) {
    for (early_message& each : messages) each.taken.try_set_exception(error);
  }
}

}  // namespace ferry::inline v0::detail
