#pragma once

// One attempt to reach a worker, over all its transports and addresses.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/transport/channel.hpp>
#include <ferry/transport/transport.hpp>

#include "liveness.hpp"

namespace ferry::inline v0::detail {

struct connect_outcome {
  std::shared_ptr<connection> opened;  ///< null unless the verdict is `opened`
  connect_verdict verdict = connect_verdict::unknown;
  std::string why;                          ///< for messages, unless it was opened
  bool answered = false;                    ///< some process answered, with any reply, or there is no way to ask
  std::vector<rejected_route> failed = {};  ///< addresses that were tried before, and the result of each
  /// For the calls that waited; authentication_failed or resource_exhausted if that was the cause.
  errc code = errc::connect_failed;
};

/// Tries one address after the other, best first, until one answers. Keeps itself alive until it has called `done`,
/// once, on a library thread.
class connect_attempt : public std::enable_shared_from_this<connect_attempt> {
 public:
  using route = std::pair<std::shared_ptr<transport>, std::string>;

  /// `no_route`: why there are no routes, if there are none.
  connect_attempt(std::vector<route> routes, hello self, incarnation_id expected, transport_options options,
                  std::chrono::nanoseconds limit_each, std::function<bool()> wanted,
                  std::function<void(connect_outcome)> done,
                  std::string no_route = "no transport of this program reaches an address of it");

  /// Does not call inline: begins on a thread of the reactor.
  void start(reactor& loop);

 private:
  struct step;
  void advance();
  /// Retries the same address soon. False: it has been retried `most` times.
  bool try_later(int most);
  /// An answer that ends a worker, there or here, is believed when a second one says the same: the bytes of one may have
  /// been damaged on the way. True: the same address is asked again.
  bool doubts(errc answer);
  void take(connect_result result);
  void finish(connect_outcome outcome) noexcept;

  const std::vector<route> routes_;
  const hello self_;
  const incarnation_id expected_;
  const transport_options options_;
  const std::chrono::nanoseconds limit_each_;
  const std::function<bool()> wanted_;  // checked before each address
  std::function<void(connect_outcome)> done_;
  const std::string no_route_;
  std::size_t next_ = 0;
  std::size_t gone_ = 0;
  bool fenced_ = false;
  bool leaving_ = false;
  bool hung_up_ = false;
  bool short_ = false;
  bool unproved_ = false;
  bool answered_ = false;
  reactor* loop_ = nullptr;
  int times_put_off_ = 0;
  int times_doubted_ = 0;
  std::optional<errc> first_answer_;  // of the address, when it was doubted
  std::vector<rejected_route> failures_;
};

}  // namespace ferry::inline v0::detail
