// Distributed autograd of PyTorch's TensorPipe agent, from C++: the round that benchmarks/support/distributed_passes.cpp measures, between two
// processes. `torch_dist_autograd WINDOW_MS` prints the median in microseconds; a child process serves.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "torch_agent.hpp"

// Debian does not install the headers of distributed autograd, whose functions the library exports.
namespace torch::distributed::autograd {
class DistAutogradContext {
 public:
  int64_t contextId() const;
};
class DistAutogradContainer {
 public:
  static DistAutogradContainer& init(int64_t worker_id);
  const std::shared_ptr<DistAutogradContext> newContext();
  void releaseContext(int64_t context_id);
};
class DistEngine {
 public:
  static DistEngine& getInstance();
  void execute(int64_t context_id, const torch::autograd::variable_list& roots, bool retain_graph);
};
c10::intrusive_ptr<c10::ivalue::Future> sendMessageWithAutograd(rpc::RpcAgent& agent, const rpc::WorkerInfo& to,
                                                                c10::intrusive_ptr<rpc::Message> message,
                                                                bool force_gradients, float timeout,
                                                                bool force_no_profile);
}  // namespace torch::distributed::autograd

namespace {

namespace rpc = torch_peer::rpc;
namespace dist = torch::distributed::autograd;
using clock_type = std::chrono::steady_clock;

double median_round(rpc::TensorPipeAgent& agent, dist::DistAutogradContainer& contexts,
                    std::chrono::milliseconds window) {
  const auto add = torch_peer::find_operator("aten::add", "Tensor", 3);
  const torch::Tensor a = torch::ones({3, 3}).requires_grad_();
  const torch::Tensor b = torch::ones({3, 3}).requires_grad_();
  const rpc::WorkerInfo& peer = agent.getWorkerInfo("worker1");
  std::vector<double> samples;
  for (const auto until = clock_type::now() + window; clock_type::now() < until || samples.size() < 50;) {
    const auto began = clock_type::now();
    const int64_t context = contexts.newContext()->contextId();
    rpc::ScriptCall call(add, {a, b, 1});
    const auto answer = dist::sendMessageWithAutograd(agent, peer, std::move(call).toMessage(), false, -1, false);
    answer->waitAndThrow();
    auto type = rpc::MessageType::FORWARD_AUTOGRAD_RESP;
    const auto wrapped = rpc::deserializeResponse(*answer->value().toCustomClass<rpc::Message>(), type);
    const torch::Tensor sum = static_cast<rpc::ScriptResp&>(*wrapped).value().toTensor().sum();
    dist::DistEngine::getInstance().execute(context, {sum}, false);
    contexts.releaseContext(context);
    samples.push_back(std::chrono::duration<double, std::micro>(clock_type::now() - began).count());
  }
  samples.erase(samples.begin(), samples.begin() + 20);
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::chrono::milliseconds window(argc > 1 ? std::atoi(argv[1]) : 1000);
  std::string file = "/tmp/torch_dist_autograd_XXXXXX";
  const int made = ::mkstemp(file.data());
  if (made < 0) {
    std::perror("mkstemp");
    return 1;
  }
  ::close(made);
  std::fflush(stdout);
  const pid_t child = ::fork();  // before any thread of libtorch
  if (child == 0) ::alarm(120);
  try {
    auto& contexts = dist::DistAutogradContainer::init(child == 0 ? 1 : 0);
    const auto agent = torch_peer::start(file, child == 0 ? 1 : 0);
    if (child != 0) std::printf("%.4f\n", median_round(*agent, contexts, window));
    std::fflush(stdout);
    agent->join(true);
    agent->shutdown();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "torch_dist_autograd: %s\n", e.what());
    ::_exit(1);
  }
  if (child == 0) ::_exit(0);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::unlink(file.c_str());
  ::_exit(0);
}
