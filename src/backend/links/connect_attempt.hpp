#pragma once

// One attempt to reach a worker, over every transport and address that it may be reached by.

#include <functional>
#include <memory>
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
  std::string why;                          ///< for people, unless it was opened
  bool answered = false;                    ///< some process answered, whatever it said, or there is no way to ask
  std::vector<rejected_route> failed = {};  ///< addresses that were tried before, and what came of it
  errc code = errc::connect_failed;  ///< of the calls that waited; authentication_failed where that kept them apart
};

/// Tries one address after the other, best first, until one answers. Keeps itself until it has called `done`, once, on a
/// library thread.
class connect_attempt : public std::enable_shared_from_this<connect_attempt> {
 public:
  using route = std::pair<std::shared_ptr<transport>, std::string>;

  connect_attempt(std::vector<route> routes, hello self, incarnation_id expected, transport_options options,
                  std::chrono::nanoseconds limit_each, std::function<bool()> wanted,
                  std::function<void(connect_outcome)> done);

  /// Not inline: begins on a thread of the reactor.
  void start(reactor& loop);

 private:
  struct step;
  void advance();
  /// Soon, the same address again. False: it has been put off `most` times.
  bool try_later(int most);
  void take(connect_result result);
  void finish(connect_outcome outcome) noexcept;

  const std::vector<route> routes_;
  const hello self_;
  const incarnation_id expected_;
  const transport_options options_;
  const std::chrono::nanoseconds limit_each_;
  const std::function<bool()> wanted_;  // asked before each address
  std::function<void(connect_outcome)> done_;
  std::size_t next_ = 0;
  std::size_t gone_ = 0;
  bool fenced_ = false;
  bool leaving_ = false;
  bool hung_up_ = false;
  bool unproved_ = false;
  bool answered_ = false;
  reactor* loop_ = nullptr;
  int times_put_off_ = 0;
  std::vector<rejected_route> failures_;
};

}  // namespace ferry::inline v0::detail
