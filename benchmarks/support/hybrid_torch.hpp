#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hybrid.hpp"
#include "peer_program.hpp"

namespace ferry_bench {

/// The same training by torch: peers/torch_ddp_rpc.py, in processes of its own.
class torch_hybrid {
 public:
  torch_hybrid() : script_("torch_ddp_rpc.py", "torch") {}
  [[nodiscard]] bool there() const noexcept { return script_.there(); }
  /// By trainer. `beginning`: the directory of write_beginning(), or empty. `library` becomes what torch says of itself. Throws
  /// std::runtime_error.
  [[nodiscard]] std::vector<trained> train(const hybrid& with, const std::string& beginning,
                                           const std::function<void(int)>& on_epoch, std::string& library) const;

 private:
  python_peer script_;
};

}  // namespace ferry_bench
