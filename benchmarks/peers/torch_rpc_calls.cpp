// Calls of PyTorch's RPC agent in C++: aten::add of two numbers, the smallest call that it has, and aten::numel of a tensor.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../support/statistics.hpp"
#include "calls.hpp"
#include "torch_agent.hpp"

namespace {

namespace rpc = torch_peer::rpc;

void serve(const peer::job& of, const peer::announcement& announce) {
  torch::set_num_threads(1);
  const std::string file = peer::fresh_path();
  announce(file);
  static const auto agent = torch_peer::start(file, 1, of.transport == "tcp");  // serves on
}

std::vector<double> measure(const peer::job& of, const std::string& file) {
  torch::set_num_threads(1);
  const auto agent = torch_peer::start(file, 0, of.transport == "tcp");
  const rpc::WorkerInfo& other = agent->getWorkerInfo("worker1");
  const auto add = torch_peer::find_operator("aten::add", "int", 2);
  const auto numel = torch_peer::find_operator("aten::numel", "", 1);
  const torch::Tensor payload = torch::zeros({static_cast<std::int64_t>(of.bytes / sizeof(float))});
  const auto begin = [&] {
    std::vector<c10::IValue> arguments = of.what == peer::kind::send
                                             ? std::vector<c10::IValue>{payload}
                                             : std::vector<c10::IValue>{std::int64_t{1}, std::int64_t{2}};
    rpc::ScriptCall call(of.what == peer::kind::send ? numel : add, std::move(arguments));
    return agent->send(other, std::move(call).toMessage(), 60.0F, {});
  };
  const auto end = [](const c10::intrusive_ptr<rpc::JitFuture>& answer) {
    answer->waitAndThrow();
    auto type = rpc::MessageType::SCRIPT_RET;
    const auto reply = rpc::deserializeResponse(*answer->value().toCustomClass<rpc::Message>(), type);
    (void)static_cast<rpc::ScriptResp&>(*reply).value().toInt();
  };
  const auto call = [&] { end(begin()); };
  for (int warm = 0; warm != 10; ++warm) call();
  if (of.what != peer::kind::rate) return ferry_bench::time_each(of.window, 3, call);
  std::deque<c10::intrusive_ptr<rpc::JitFuture>> running;
  return {peer::per_second(
      of, [&] { running.push_back(begin()); },
      [&] {
        end(running.front());
        running.pop_front();
      })};
}

}  // namespace

int main(int argc, char** argv) {
  return peer::run(argc, argv,
                   {"PyTorch " TORCH_VERSION
                    " (TensorPipe agent in C++, aten::add of two numbers, aten::numel, one thread for operators)",
                    {"tcp", "shm"},
                    serve,
                    measure});
}
