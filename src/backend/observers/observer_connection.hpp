#pragma once

// The connection of an observer to a worker.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>
#include <ferry/transport/transport.hpp>

#include "../links/peers.hpp"
#include "observer_messages.hpp"

namespace ferry::inline v0::detail {

/// Thread-safe; one question at a time is asked.
class observer_connection final : public connection_receiver {
 public:
  /// Over the first address that answers. Throws errc::connect_failed, errc::authentication_failed,
  /// errc::resource_exhausted, with what each address said in the text; errc::peer_lost if that incarnation has ended.
  /// `threads` must outlive the connection's end.
  [[nodiscard]] static std::shared_ptr<observer_connection> open(reactor& threads, const worker_record& to,
                                                                 const std::string& group,
                                                                 const transport_options& options, deadline until);
  observer_connection(std::string worker, std::shared_ptr<connection> opened, const wire_limits& limits)
      : worker_(std::move(worker)), limits_(limits), connection_(std::move(opened)) {}
  void begin_to_close() noexcept;
  /// Ends the connection, and waits for its end.
  void close() noexcept;

  /// Throws what the worker answers, errc::peer_lost when it is gone, errc::rpc_timeout: then the connection is of no
  /// further use.
  [[nodiscard]] std::string ask(std::string_view what, std::string_view argument, deadline until);
  /// It is of no further use.
  [[nodiscard]] bool ended() noexcept;

  // connection_receiver
  void on_message(connection& from, inbound_message&& message) noexcept override;
  void on_closed(connection& which, std::exception_ptr reason) noexcept override;
  [[nodiscard]] bool takes_tensors_on(device) const noexcept override { return false; }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return 1; }

 private:
  const std::string worker_;
  const wire_limits limits_;
  const std::shared_ptr<connection> connection_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool asking_ = false;       // one question at a time
  std::uint64_t number_ = 0;  // of the question
  std::optional<answer_text> answer_;
  bool timed_out_ = false;  // it is being closed
  std::exception_ptr end_;
};

}  // namespace ferry::inline v0::detail
