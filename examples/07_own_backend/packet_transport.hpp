#pragma once

// A transport that is no part of ferry: packets over Unix domain sockets (SOCK_SEQPACKET), between processes of one user
// on one machine.

#include <memory>
#include <string>
#include <string_view>

#include <ferry/transport/transport.hpp>

struct packet {};

template <>
struct ferry::transport_traits<packet> {
  static constexpr std::string_view name = "packet";
  static constexpr int priority = 50;  // higher is tried first: tcp has 0, unix 100, shm 150, inproc 200
  static std::string unusable();
  static std::shared_ptr<ferry::transport> open(ferry::reactor& loop);
};
static_assert(ferry::rpc_transport<packet>);
