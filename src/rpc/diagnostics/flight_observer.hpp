#pragma once

#include "../pipeline/call_observers.hpp"

namespace ferry::inline v0::detail {

/// Writes the calls of a worker to its flight recorder, and its flight record when a call has timed out.
class flight_observer final : public call_observer {
 public:
  explicit flight_observer(worker_core& worker) noexcept : worker_(worker) {}
  [[nodiscard]] call_moments moments() const noexcept override;
  void on_call(const worker_core& worker, const call_event& event) noexcept override;

 private:
  worker_core& worker_;
};

}  // namespace ferry::inline v0::detail
