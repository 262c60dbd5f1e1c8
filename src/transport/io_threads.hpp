#pragma once

#include <memory>

#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// The process's reactor and its threads, made on first use and gone with the last owner. Throws errc::system_failure.
std::shared_ptr<reactor> shared_reactor();

}  // namespace ferry::inline v0::detail
