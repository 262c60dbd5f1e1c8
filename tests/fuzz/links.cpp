// What a peer makes of the calls on a connection: messages of any kind that answer, cancel and repeat call ids as they like.
// Input: instructions, an u8 each with what it needs behind it:
//   0  this worker calls                        4  a request arrives: u8 its id
//   1  a message of kind u8 arrives for call u8  5  the handler of request u8 ends
//   2  this worker gives up call u8             6  a cancellation of request u8 arrives
//   3  the same as 1 with any u64 as call id    7  the connection of u8 (odd: that of requests) is lost

#include <array>
#include <deque>
#include <memory>

#include "backend/links/links.hpp"
#include "targets.hpp"

namespace fuzz {
namespace links_target {
namespace {

using namespace ferry;

struct owner final : detail::link_owner {
  detail::worker_flow bounds;
  std::int64_t sent = 0;
  std::int64_t handled = 0;
  int links_closed = 0;
  void on_link_closed(void*) noexcept override { ++links_closed; }
  void count_late_reply() noexcept override {}
  [[nodiscard]] bool closing() const noexcept override { return false; }
  [[nodiscard]] detail::worker_flow& flow() noexcept override { return bounds; }
  void count_sent(std::int64_t change) noexcept override { sent += change; }
  void count_handled(std::int64_t change) noexcept override { handled += change; }
  void run_later(work* item) noexcept override { item->run(item); }
  void look_again_soon() noexcept override {}
  void check_deadlines_at(deadline) noexcept override {}
};

struct wire final : connection {
  bool closed = false;
  void start(std::shared_ptr<connection_receiver>) override {}
  void send(outgoing_message&& message) noexcept override {
    accepted([&] { (void)frame_header::decode(message.bytes.data(), limits); });
  }
  void close(std::exception_ptr reason) noexcept override {
    require(reason != nullptr, "a connection is closed for a reason");
    closed = true;
  }
  [[nodiscard]] std::string_view transport_name() const noexcept override { return "wire"; }
  [[nodiscard]] std::string description() const override { return "wire"; }
};

struct own_call final : pending_call {
  int ended = 0;
  bool given_up = false;
  void on_reply(inbound_message&& reply) noexcept override {
    require(reply.header.call_id == call_id, "a reply reaches the call that it is for");
    ++ended;
  }
  void on_failure(errc, call_phase, const std::string&) noexcept override { ++ended; }
};

struct handler_run final : stoppable {
  explicit handler_run(std::uint64_t number) : id(number) {}
  std::uint64_t id;
  int references = 1;
  int stops = 0;
  bool running = true;
  void add_reference() noexcept override { ++references; }
  void drop_reference() noexcept override { --references; }
  void mark_stopped() noexcept override {}
  void request_stop() noexcept override { ++stops; }
};

struct handler final : request_handler {
  std::deque<handler_run> runs;
  std::shared_ptr<reply_channel> channel;
  void on_request(const std::shared_ptr<reply_channel>& from, const worker_info&,
                  inbound_message&& request) noexcept override {
    channel = from;
    from->begin_call(request.header.call_id, runs.emplace_back(request.header.call_id));
  }
  [[nodiscard]] bool busy() const noexcept override { return false; }
  void end(handler_run& run) {
    run.running = false;
    outgoing_message answer;
    answer.header.kind = frame_kind::reply;
    channel->reply(run.id, std::move(answer));
    channel->end_call(run.id, run);
    channel->handled(frame_header::encoded_size);
  }
};

// Small numbers, and some far away in each half, so that ids collide.
std::uint64_t request_id(std::uint8_t choice) {
  return (choice & 7U) | std::uint64_t{(choice >> 3U) & 3U} << 32U | std::uint64_t{(choice >> 5U) & 3U} << 12U;
}

struct session {
  std::shared_ptr<owner> owns = std::make_shared<owner>();
  handler handles;
  std::shared_ptr<wire> out_wire = std::make_shared<wire>();
  std::shared_ptr<wire> in_wire = std::make_shared<wire>();
  std::shared_ptr<detail::outgoing_link> out =
      std::make_shared<detail::outgoing_link>(owns, worker_info("peer", worker_id{1}));
  std::shared_ptr<detail::incoming_link> in =
      std::make_shared<detail::incoming_link>(owns, worker_info("peer", worker_id{1}), handles, in_wire);
  std::deque<own_call> calls;
  bool out_lost = false;
  bool in_lost = false;

  void call() {
    outgoing_message request;
    request.header.flags = frame_no_deadline;
    own_call& made = calls.emplace_back();
    std::uint64_t id = 0;
    if (!out->call(request, made, deadline(), ferry::reply_wait::none, id)) {
      require(out_lost, "calls are refused only when the connection is lost");
      calls.pop_back();
    }
  }
  void receive_answer(std::uint8_t kind, std::uint64_t id) {
    if (out_lost) return;
    inbound_message message;
    message.header.kind = static_cast<frame_kind>(1 + kind % 6);
    message.header.call_id = id;
    out->on_message(*out_wire, std::move(message));
    if (out_wire->closed) lose_out();
  }
  void receive_request(frame_kind kind, std::uint64_t id) {
    if (in_lost) return;
    inbound_message message;
    message.header.kind = kind;
    message.header.call_id = id;
    in->on_message(*in_wire, std::move(message));
    if (in_wire->closed) lose_in();
  }
  void lose_out() {
    if (std::exchange(out_lost, true)) return;
    out->on_closed(*out_wire, make_error(errc::connection_lost, "lost"));
  }
  void lose_in() {
    if (std::exchange(in_lost, true)) return;
    in->on_closed(*in_wire, make_error(errc::connection_lost, "lost"));
  }
};

void run(bytes input) {
  source from(input);
  session s;
  s.out->opened(s.out_wire);
  while (!from.empty()) {
    const auto what = from.number<std::uint8_t>() % 8;
    switch (what) {
      case 0: s.call(); break;
      case 1: {
        const auto kind = from.number<std::uint8_t>();
        const auto which = from.number<std::uint8_t>();
        if (!s.calls.empty()) s.receive_answer(kind, s.calls[which % s.calls.size()].call_id);
        break;
      }
      case 2: {
        const auto which = from.number<std::uint8_t>();
        if (s.calls.empty()) break;
        own_call& given_up = s.calls[which % s.calls.size()];
        call_phase phase{};
        const bool was_pending = given_up.ended == 0 && !given_up.given_up;
        const bool done = s.out->abandon(given_up.call_id, phase, true);
        require(done == was_pending, "only a call that is pending can be given up");
        given_up.given_up = given_up.given_up || done;
        break;
      }
      case 3: {
        const auto kind = from.number<std::uint8_t>();
        s.receive_answer(kind, from.number<std::uint64_t>());
        break;
      }
      case 4: s.receive_request(frame_kind::request, request_id(from.number<std::uint8_t>())); break;
      case 5: {
        const auto which = from.number<std::uint8_t>();
        if (s.handles.runs.empty()) break;
        handler_run& ended = s.handles.runs[which % s.handles.runs.size()];
        if (ended.running) s.handles.end(ended);
        break;
      }
      case 6: {
        const std::uint64_t id = request_id(from.number<std::uint8_t>());
        s.receive_request(frame_kind::cancel, id);
        break;
      }
      default:
        if ((from.number<std::uint8_t>() & 1U) != 0) {
          s.lose_in();
        } else {
          s.lose_out();
        }
    }
    for (const own_call& each : s.calls) {
      require(each.ended + (each.given_up ? 1 : 0) <= 1, "a call ends once");
      if (s.out_lost) require(each.ended == 1 || each.given_up, "a lost connection ends its calls");
    }
  }
  s.lose_out();
  for (const own_call& each : s.calls) require(each.ended == 1 || each.given_up, "every call ends");
  for (handler_run& each : s.handles.runs) {
    if (each.running) s.handles.end(each);
  }
  s.lose_in();
  for (const handler_run& each : s.handles.runs) require(each.references == 1, "references are given back");
  require(s.owns->sent == 0 && s.owns->handled == 0, "a closed link takes its counts back");
  require(s.owns->links_closed == 2, "each link says once that it is closed");
}

void seeds(const seed_sink& sink) {
  sink("calls", seed().add(std::string_view("\0\0\1\1\0\2\1\0\1\1\1", 11)));
  sink("lost", seed().add(std::string_view("\0\0\4\1\4\2\7\0\7\1", 10)));
  sink("requests", seed().add(std::string_view("\4\1\4\1\6\1\5\0\6\1\5\1\4\11", 14)));
  sink("any-id",
       seed().number(std::uint8_t{0}).number(std::uint8_t{3}).number(std::uint8_t{2}).number(~std::uint64_t{0}));
}

}  // namespace
}  // namespace links_target

const target links{"links", &links_target::run, &links_target::seeds};

}  // namespace fuzz
