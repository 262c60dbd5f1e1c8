#pragma once

// The names of metrics, as docs/metrics.md lists them.

#include <array>
#include <string>
#include <string_view>

namespace ferry::inline v0::detail {

struct metric_name {
  std::string_view name;
  std::string_view type;
  std::string_view meaning;
};

namespace metric_names {

inline constexpr metric_name client_calls{"ferry_client_calls_total", "counter", "Calls sent that want a reply."};
inline constexpr metric_name client_one_way{"ferry_client_one_way_calls_total", "counter",
                                            "Calls sent that want no reply."};
inline constexpr metric_name client_not_sent{"ferry_client_calls_not_sent_total", "counter",
                                             "Calls that could not be sent."};
inline constexpr metric_name client_late_replies{"ferry_client_late_replies_total", "counter",
                                                 "Replies that came after their call had ended."};
inline constexpr metric_name client_in_flight{"ferry_client_calls_in_flight", "gauge", "Calls that have not ended."};
inline constexpr metric_name client_errors{
    "ferry_client_call_errors_total", "counter",
    "Calls that ended with an error or could not be sent, by the code of the error."};
inline constexpr metric_name client_sent_bytes{"ferry_client_sent_bytes_total", "counter",
                                               "Bytes of calls sent, with their tensors."};
inline constexpr metric_name client_received_bytes{"ferry_client_received_bytes_total", "counter",
                                                   "Bytes of replies received, with their tensors."};
inline constexpr metric_name client_duration{"ferry_client_call_duration_seconds", "histogram",
                                             "From the call until its reply was there, or its error."};
inline constexpr metric_name server_requests{"ferry_server_requests_total", "counter",
                                             "Requests received that want a reply."};
inline constexpr metric_name server_one_way{"ferry_server_one_way_requests_total", "counter",
                                            "Requests received that want no reply."};
inline constexpr metric_name server_in_flight{"ferry_server_requests_in_flight", "gauge",
                                              "Requests that have not ended."};
inline constexpr metric_name server_errors{"ferry_server_request_errors_total", "counter",
                                           "Requests that ended with an error, by the code of the error."};
inline constexpr metric_name server_received_bytes{"ferry_server_received_bytes_total", "counter",
                                                   "Bytes of requests received, with their tensors."};
inline constexpr metric_name server_sent_bytes{"ferry_server_sent_bytes_total", "counter",
                                               "Bytes of replies sent, with their tensors."};
inline constexpr metric_name server_queued{"ferry_server_queue_duration_seconds", "histogram",
                                           "From the arrival of a request until its handler began."};
inline constexpr metric_name server_duration{"ferry_server_handler_duration_seconds", "histogram",
                                             "From the beginning of a handler until its answer was made."};
inline constexpr metric_name connections_opened{"ferry_peer_connections_opened_total", "counter",
                                                "Connections to a peer that were opened, by either end."};
inline constexpr metric_name connections_lost{"ferry_peer_connections_lost_total", "counter",
                                              "Connections to a peer that were closed or broke."};
inline constexpr metric_name reconnects{"ferry_peer_reconnects_total", "counter",
                                        "Connections to a peer that were opened after one was lost."};
inline constexpr metric_name figure{"ferry_worker_figure", "gauge", "Further figures of debug_info(), by name."};
inline constexpr metric_name folded_series{"ferry_metrics_folded_series", "gauge",
                                           "Methods and peers that are summed as other, since there are too many."};
inline constexpr metric_name lost_events{"ferry_metrics_lost_events_total", "counter",
                                         "Events that were not counted, since there was no memory."};

}  // namespace metric_names

/// A figure of worker::debug_info() that has a metric of its own.
struct figure_name {
  std::string_view figure;
  metric_name metric;
};
inline constexpr std::array figure_names{
    figure_name{"agent.blocked_handlers", {"ferry_worker_blocked_handlers", "gauge", "Handlers that wait in ferry."}},
    figure_name{
        "agent.client_active_calls",
        {"ferry_worker_active_calls", "gauge", "Calls made and not ended, of all methods, continuations included."}},
    figure_name{
        "agent.held_handlers",
        {"ferry_worker_held_handlers", "gauge", "Handlers that wait until their caller has read earlier answers."}},
    figure_name{"agent.late_replies",
                {"ferry_worker_late_replies_total", "counter", "Replies that came after their call had ended."}},
    figure_name{"agent.lost_workers",
                {"ferry_worker_lost_workers_total", "counter", "Workers of the group that died."}},
    figure_name{"agent.num_idle_threads", {"ferry_worker_idle_threads", "gauge", "Places for handlers that are free."}},
    figure_name{
        "agent.paused_connections",
        {"ferry_worker_paused_connections", "gauge", "Callers that are not read from until requests are answered."}},
    figure_name{"agent.queued_bytes", {"ferry_worker_queued_bytes", "gauge", "Bytes of calls that wait to be sent."}},
    figure_name{"agent.queued_calls", {"ferry_worker_queued_calls", "gauge", "Calls that wait to be sent."}},
    figure_name{"agent.served_bytes",
                {"ferry_worker_served_bytes", "gauge", "Bytes of requests that are not answered."}},
    figure_name{"agent.server_active_calls",
                {"ferry_worker_active_requests", "gauge", "Requests received and not answered."}},
    figure_name{"agent.thread_pool_size", {"ferry_worker_threads", "gauge", "Places for handlers."}},
    figure_name{"agent.unwritten_bytes",
                {"ferry_worker_unwritten_request_bytes", "gauge", "Bytes of requests that transports hold."}},
    figure_name{"agent.unwritten_replies",
                {"ferry_worker_unwritten_reply_bytes", "gauge", "Bytes of replies that transports hold."}},
    figure_name{"autograd.num_autograd_contexts",
                {"ferry_worker_autograd_contexts", "gauge", "Contexts of distributed passes that exist here."}},
    figure_name{"autograd.num_current_backward_passes",
                {"ferry_worker_backward_passes", "gauge", "Backward passes that run here."}},
    figure_name{"memory.cpu.cached_bytes",
                {"ferry_worker_cpu_pool_cached_bytes", "gauge",
                 "Bytes of the process's pool for tensors of the CPU that are free."}},
    figure_name{"memory.cpu.reserved_bytes",
                {"ferry_worker_cpu_pool_reserved_bytes", "gauge",
                 "Bytes that the process's pool for tensors of the CPU has of the system."}},
    figure_name{"num_owner_rrefs", {"ferry_worker_owned_objects", "gauge", "Objects here that others refer to."}},
    figure_name{"num_forks", {"ferry_worker_forks", "gauge", "References of others to objects here."}},
    figure_name{"num_pending_futures",
                {"ferry_worker_unanswered_reference_messages", "gauge",
                 "Messages about references that were not answered; they are repeated."}},
    figure_name{"num_repeated_reference_messages",
                {"ferry_worker_repeated_reference_messages_total", "counter",
                 "Messages about references that were sent again, since they were not answered."}},
    figure_name{"num_users", {"ferry_worker_references", "gauge", "References here to objects of others."}},
};

/// name="value", with the value escaped.
std::string metric_label(std::string_view name, std::string_view value);

}  // namespace ferry::inline v0::detail
