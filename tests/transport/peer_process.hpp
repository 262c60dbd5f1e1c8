#pragma once

// A worker "echo" in a process of its own: this test binary once more, running the test case that is the peer.

#include <string>

#include <sys/types.h>

namespace transport_kit {

class peer_process {
 public:
  /// Starts it and waits until it listens over that transport.
  peer_process(const std::string& transport, const std::string& bind);
  ~peer_process();
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }
  /// SIGKILL.
  void kill();
  /// The exit status, once its first connection has ended and it with it; -1 if a signal ended it.
  int wait_for_exit();

 private:
  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace transport_kit
