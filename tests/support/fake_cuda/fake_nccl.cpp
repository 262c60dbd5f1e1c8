#include "fake_nccl.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <ferry/group/plan.hpp>
#include <ferry/tensor/dtype.hpp>

#include "executor.hpp"
#include "group/reduce_elements.hpp"

namespace fake_nccl {
namespace {

using ferry::dtype;
using ferry::reduce_op;
using ferry::detail::nccl_communicator;
using ferry::detail::nccl_config;
using ferry::detail::nccl_in_progress;
using ferry::detail::nccl_reduction;
using ferry::detail::nccl_success;
using ferry::detail::nccl_type;
using ferry::detail::nccl_unique_id;

constexpr int system_error = 2;
constexpr int invalid_argument = 4;
constexpr int invalid_usage = 5;
constexpr int remote_error = 6;

dtype dtype_of(nccl_type type) {
  switch (type) {
    case nccl_type::i8: return dtype::i8;
    case nccl_type::u8: return dtype::u8;
    case nccl_type::i32: return dtype::i32;
    case nccl_type::i64: return dtype::i64;
    case nccl_type::f16: return dtype::f16;
    case nccl_type::f32: return dtype::f32;
    case nccl_type::f64: return dtype::f64;
    case nccl_type::bf16: return dtype::bf16;
  }
  return dtype::u8;
}
reduce_op op_of(nccl_reduction how) {
  switch (how) {
    case nccl_reduction::sum: return reduce_op::sum;
    case nccl_reduction::prod: return reduce_op::prod;
    case nccl_reduction::max: return reduce_op::max;
    case nccl_reduction::min: return reduce_op::min;
    case nccl_reduction::avg: return reduce_op::avg;
  }
  return reduce_op::sum;
}

enum class kind : std::uint8_t { all_reduce, broadcast, reduce, all_gather, reduce_scatter, exchange };

// What one rank has asked for.
struct request {
  kind what = {};
  std::size_t count = 0;  // of one rank's share, where there are shares
  nccl_type type = nccl_type::u8;
  nccl_reduction how = nccl_reduction::sum;
  int root = -1;
  const void* from = nullptr;
  void* to = nullptr;
  std::map<int, std::pair<const void*, std::size_t>> sends = {};  // of an exchange, by peer
  std::map<int, std::pair<void*, std::size_t>> receives = {};

  [[nodiscard]] bool same(const request& other) const {
    return what == other.what && count == other.count && type == other.type && how == other.how && root == other.root;
  }
};

struct collective {
  std::map<int, request> by_rank;
  std::map<int, std::vector<std::byte>> inputs;                // of those that have come to it on their devices
  std::map<std::pair<int, int>, std::vector<std::byte>> sent;  // of an exchange, by sender and receiver
  std::map<int, fake_cuda::marker_ptr> all_here;               // for each rank, which gives up alone
  int done = 0;
};

struct clique {
  int members = 0;
  std::set<int> joined;
  bool failed = false;
  std::map<std::uint64_t, std::shared_ptr<collective>> collectives;
};

struct everything {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<clique>> cliques;
  std::set<nccl_communicator*> communicators;
  std::vector<std::string> complaints;
  std::uint64_t ids = 0;
  std::uint64_t completed = 0;
  std::uint64_t begun = 0;
  std::uint64_t aborted = 0;
  int slowness = 0;
  bool fail_now = false;
  bool fail_later = false;
  bool broken = false;
  std::set<int> refused;
  std::set<int> lost;
};
everything& all() {
  static auto* instance = new everything;
  return *instance;
}

}  // namespace
}  // namespace fake_nccl

namespace ferry::inline v0::detail {
struct nccl_communicator {
  std::shared_ptr<fake_nccl::clique> of;
  int rank = 0;
  std::uint64_t next = 0;
  int questions_left = 0;
  bool failed = false;
  std::vector<fake_cuda::marker_ptr> waits;  // of its streams
};
}  // namespace ferry::inline v0::detail

namespace fake_nccl {
namespace {

std::size_t size_of(nccl_type type) { return ferry::dtype_size(dtype_of(type)); }

void complain(const std::string& what) { all().complaints.push_back(what); }

std::size_t input_bytes(const request& r, int members) {
  const std::size_t bytes = r.count * size_of(r.type);
  return r.what == kind::reduce_scatter ? bytes * static_cast<std::size_t>(members) : bytes;
}

// On the device of one rank: its elements are there.
void arrive(const std::shared_ptr<clique>& of, const std::shared_ptr<collective>& which, int rank) {
  everything& state = all();
  std::vector<fake_cuda::marker_ptr> released;
  {
    const std::lock_guard lock(state.mutex);
    const request& own = which->by_rank.at(rank);
    std::vector<std::byte>& input = which->inputs[rank];
    if (own.what == kind::exchange) {
      for (const auto& [peer, what] : own.sends) {
        std::vector<std::byte>& copy = which->sent[{rank, peer}];
        copy.resize(what.second);
        std::memcpy(copy.data(), what.first, what.second);
      }
    } else if (own.what != kind::broadcast || own.root == rank) {
      input.resize(input_bytes(own, of->members));
      std::memcpy(input.data(), own.from, input.size());
    }
    if (static_cast<int>(which->inputs.size()) == of->members) {
      for (const auto& [each, gate] : which->all_here) released.push_back(gate);
    }
  }
  for (const auto& each : released) fake_cuda::executor::instance().reach(each);
}

// The same, once all have arrived: its results.
void finish(const std::shared_ptr<clique>& of, const std::shared_ptr<collective>& which, int rank) {
  everything& state = all();
  const std::lock_guard lock(state.mutex);
  if (static_cast<int>(which->inputs.size()) != of->members) return;  // aborted
  const request& own = which->by_rank.at(rank);
  const std::size_t bytes = own.count * size_of(own.type);
  const auto reduced = [&](std::size_t offset) {
    std::vector<std::byte> sum(which->inputs.at(0).begin() + static_cast<std::ptrdiff_t>(offset),
                               which->inputs.at(0).begin() + static_cast<std::ptrdiff_t>(offset + bytes));
    for (int each = 1; each != of->members; ++each) {
      ferry::detail::reduce_elements(dtype_of(own.type), op_of(own.how), sum.data(),
                                     which->inputs.at(each).data() + offset, own.count);
    }
    if (own.how == nccl_reduction::avg)
      ferry::detail::divide_elements(dtype_of(own.type), sum.data(), own.count, of->members);
    return sum;
  };
  switch (own.what) {
    case kind::all_reduce: std::memcpy(own.to, reduced(0).data(), bytes); break;
    case kind::reduce:
      if (own.root == rank) std::memcpy(own.to, reduced(0).data(), bytes);
      break;
    case kind::reduce_scatter:
      std::memcpy(own.to, reduced(bytes * static_cast<std::size_t>(rank)).data(), bytes);
      break;
    case kind::broadcast: std::memcpy(own.to, which->inputs.at(own.root).data(), bytes); break;
    case kind::all_gather:
      for (int each = 0; each != of->members; ++each) {
        std::memcpy(static_cast<std::byte*>(own.to) + static_cast<std::size_t>(each) * bytes,
                    which->inputs.at(each).data(), bytes);
      }
      break;
    case kind::exchange:
      for (const auto& [peer, into] : own.receives) {
        const auto found = which->sent.find({peer, rank});
        if (found == which->sent.end() || found->second.size() != into.second) {
          complain(fmt::format("rank {} receives {} bytes that rank {} does not send", rank, into.second, peer));
        } else {
          std::memcpy(into.first, found->second.data(), into.second);
        }
      }
      break;
  }
  if (++which->done == of->members) ++state.completed;
}

int begin(nccl_communicator* among, CUstream_st* stream, request what) {
  everything& state = all();
  std::shared_ptr<collective> which;
  fake_cuda::marker_ptr gate;
  bool loses = false;
  {
    const std::lock_guard lock(state.mutex);
    ++state.begun;
    if (!state.communicators.contains(among)) {
      complain("a collective of a communicator that is not there");
      return invalid_argument;
    }
    if (among->questions_left != 0) complain("a collective is begun while another one is in progress");
    if (state.refused.erase(among->rank) != 0) return system_error;
    among->questions_left = state.slowness;
    loses = state.lost.erase(among->rank) != 0;
    auto& place = among->of->collectives[among->next++];
    if (!place) place = std::make_shared<collective>();
    which = place;
    for (const auto& [rank, other] : which->by_rank) {
      if (!other.same(what)) complain(fmt::format("ranks {} and {} begin different collectives", rank, among->rank));
    }
    which->by_rank.emplace(among->rank, std::move(what));
    gate = which->all_here[among->rank] = std::make_shared<fake_cuda::marker>();
    among->waits.push_back(gate);
  }
  auto& devices = fake_cuda::executor::instance();
  const auto of = among->of;
  const int rank = among->rank;
  if (!loses) devices.enqueue(stream, [of, which, rank] { arrive(of, which, rank); });
  devices.enqueue(stream, [of, which, rank] { finish(of, which, rank); }, {gate});
  return among->questions_left != 0 ? nccl_in_progress : nccl_success;
}

// Between group_start and group_end.
struct grouped {
  int depth = 0;
  nccl_communicator* among = nullptr;
  CUstream_st* stream = nullptr;
  request what;
};
thread_local grouped open_group;

int get_version(int* version) {
  *version = 21500;
  return nccl_success;
}
int get_unique_id(nccl_unique_id* id) {
  everything& state = all();
  const std::lock_guard lock(state.mutex);
  std::memset(id->bytes, 0, sizeof id->bytes);
  const std::string text = fmt::format("clique {}", ++state.ids);
  std::memcpy(id->bytes, text.data(), text.size());
  return nccl_success;
}
int init_rank(nccl_communicator** made, int members, nccl_unique_id id, int rank, nccl_config* config) {
  everything& state = all();
  const std::lock_guard lock(state.mutex);
  if (config->magic != 0xcafebeefU || config->blocking != 0 || config->size != sizeof(nccl_config)) {
    complain("a configuration that is none");
    return invalid_argument;
  }
  const bool fails = std::exchange(state.fail_now, false);
  auto& of = state.cliques[id.bytes];
  if (!of) of = std::make_shared<clique>();
  of->members = members;
  if (!of->joined.insert(rank).second) complain(fmt::format("rank {} joins twice", rank));
  auto fresh = std::make_unique<nccl_communicator>();
  fresh->of = of;
  fresh->rank = rank;
  fresh->questions_left = state.slowness;
  fresh->failed = std::exchange(state.fail_later, false);
  if (fresh->failed) of->failed = true;
  state.communicators.insert(fresh.get());
  *made = fresh.release();
  if (!fails) return nccl_in_progress;
  (*made)->failed = true;  // there it is all the same
  return system_error;
}
int async_error(nccl_communicator* of, int* error) {
  everything& state = all();
  const std::lock_guard lock(state.mutex);
  if (!state.communicators.contains(of)) {
    complain("a question of a communicator that is not there");
    return invalid_argument;
  }
  *error = nccl_success;
  if (of->failed) {
    *error = system_error;
  } else if (of->of->failed || state.broken) {
    *error = remote_error;
  } else if (of->questions_left > 0) {
    --of->questions_left;
    *error = nccl_in_progress;
  } else if (static_cast<int>(of->of->joined.size()) != of->of->members) {
    *error = nccl_in_progress;
  }
  return nccl_success;
}
int abort(nccl_communicator* which) {
  everything& state = all();
  std::vector<fake_cuda::marker_ptr> waits;
  {
    const std::lock_guard lock(state.mutex);
    if (state.communicators.erase(which) == 0) {
      complain("a communicator is aborted that is not there");
      return invalid_argument;
    }
    ++state.aborted;
    waits.swap(which->waits);
  }
  delete which;
  for (const auto& each : waits) fake_cuda::executor::instance().reach(each);
  return nccl_success;
}
const char* error_text(int error) {
  switch (error) {
    case system_error: return "unhandled system error";
    case invalid_argument: return "invalid argument";
    case invalid_usage: return "invalid usage";
    case remote_error: return "remote process exited or there was a network error";
    default: return "unknown result code";
  }
}
const char* last_error(nccl_communicator*) { return "as the double was told"; }
int group_start() {
  ++open_group.depth;
  return nccl_success;
}
int group_end() {
  if (--open_group.depth != 0 || !open_group.among) return nccl_success;
  const grouped made = std::exchange(open_group, {});
  return begin(made.among, made.stream, made.what);
}
grouped& in_group(nccl_communicator* among, CUstream_st* stream) {
  if (open_group.depth == 0) {
    const std::lock_guard lock(all().mutex);
    complain("a send or receive outside of a group");
  }
  open_group.among = among;
  open_group.stream = stream;
  open_group.what.what = kind::exchange;
  return open_group;
}
int send(const void* from, std::size_t count, nccl_type type, int to, nccl_communicator* among, CUstream_st* stream) {
  in_group(among, stream).what.sends[to] = {from, count * size_of(type)};
  return nccl_success;
}
int receive(void* into, std::size_t count, nccl_type type, int from, nccl_communicator* among, CUstream_st* stream) {
  in_group(among, stream).what.receives[from] = {into, count * size_of(type)};
  return nccl_success;
}
int all_reduce(const void* from, void* to, std::size_t count, nccl_type type, nccl_reduction how,
               nccl_communicator* among, CUstream_st* stream) {
  return begin(among, stream,
               {.what = kind::all_reduce, .count = count, .type = type, .how = how, .from = from, .to = to});
}
int broadcast(const void* from, void* to, std::size_t count, nccl_type type, int root, nccl_communicator* among,
              CUstream_st* stream) {
  return begin(among, stream,
               {.what = kind::broadcast, .count = count, .type = type, .root = root, .from = from, .to = to});
}
int reduce(const void* from, void* to, std::size_t count, nccl_type type, nccl_reduction how, int root,
           nccl_communicator* among, CUstream_st* stream) {
  return begin(among, stream,
               {.what = kind::reduce, .count = count, .type = type, .how = how, .root = root, .from = from, .to = to});
}
int all_gather(const void* from, void* to, std::size_t count, nccl_type type, nccl_communicator* among,
               CUstream_st* stream) {
  return begin(among, stream, {.what = kind::all_gather, .count = count, .type = type, .from = from, .to = to});
}
int reduce_scatter(const void* from, void* to, std::size_t count, nccl_type type, nccl_reduction how,
                   nccl_communicator* among, CUstream_st* stream) {
  return begin(among, stream,
               {.what = kind::reduce_scatter, .count = count, .type = type, .how = how, .from = from, .to = to});
}

}  // namespace

const ferry::detail::nccl_functions& functions() {
  static constexpr ferry::detail::nccl_functions table{
      &get_version, &get_unique_id, &init_rank, &async_error, &abort,      &error_text,     &last_error, &group_start,
      &group_end,   &all_reduce,    &broadcast, &reduce,      &all_gather, &reduce_scatter, &send,       &receive};
  return table;
}

void reset() {
  everything& state = all();
  const std::lock_guard lock(state.mutex);
  state.cliques.clear();
  state.complaints.clear();
  state.completed = state.begun = state.aborted = 0;
  state.slowness = 0;
  state.fail_now = state.fail_later = state.broken = false;
  state.refused.clear();
  state.lost.clear();
}
std::uint64_t completed() {
  const std::lock_guard lock(all().mutex);
  return all().completed;
}
std::uint64_t begun() {
  const std::lock_guard lock(all().mutex);
  return all().begun;
}
int communicators() {
  const std::lock_guard lock(all().mutex);
  return static_cast<int>(all().communicators.size());
}
std::uint64_t aborted() {
  const std::lock_guard lock(all().mutex);
  return all().aborted;
}
std::vector<std::string> complaints() {
  const std::lock_guard lock(all().mutex);
  return all().complaints;
}
void set_slowness(int questions) {
  const std::lock_guard lock(all().mutex);
  all().slowness = questions;
}
void fail_next_communicator(bool later) {
  const std::lock_guard lock(all().mutex);
  (later ? all().fail_later : all().fail_now) = true;
}
void fail_next_collective(int rank) {
  const std::lock_guard lock(all().mutex);
  all().refused.insert(rank);
}
void break_network() {
  const std::lock_guard lock(all().mutex);
  all().broken = true;
}
void lose_next_collective(int rank) {
  const std::lock_guard lock(all().mutex);
  all().lost.insert(rank);
}

}  // namespace fake_nccl
