#include "device_work.hpp"

namespace ferry::inline v0::detail {

constinit std::atomic<device_work_sink> device_work_sink_in_use{nullptr};

}  // namespace ferry::inline v0::detail
