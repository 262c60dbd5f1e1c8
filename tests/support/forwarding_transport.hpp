#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/transport/transport.hpp>

namespace ferry_test {

/// Passes everything on to another transport: for those that do something else with a part of it.
class forwarding_transport : public ferry::transport {
 public:
  explicit forwarding_transport(std::shared_ptr<ferry::transport> below) : below_(std::move(below)) {}
  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string& host,
                                  const ferry::transport_options& options,
                                  std::shared_ptr<ferry::connection_acceptor> acceptor) override {
    return below_->listen(group, target, host, options, std::move(acceptor));
  }
  void unlisten(const std::string& group, const std::string& target) noexcept override {
    below_->unlisten(group, target);
  }
  void connect(const std::string& address, const ferry::hello& self, const ferry::transport_options& options,
               ferry::deadline until, ferry::connect_callback callback) override {
    below_->connect(address, self, options, until, std::move(callback));
  }
  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    return below_->understands(address);
  }

 private:
  const std::shared_ptr<ferry::transport> below_;
};

}  // namespace ferry_test
