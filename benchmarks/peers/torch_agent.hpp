#pragma once

// An RPC agent of PyTorch in C++, and the operators that it calls by name: there is no other kind of method in that form of it.

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

namespace torch_peer {

namespace rpc = torch::distributed::rpc;

/// One of two workers, worker0 and worker1, which meet at a file. Over TCP alone, or over what it chooses: shared memory.
inline std::shared_ptr<rpc::TensorPipeAgent> start(const std::string& file, int rank, bool tcp_alone = false) {
  auto store = c10::make_intrusive<c10d::FileStore>(file, 2);
  c10::optional<std::vector<std::string>> transports;
  c10::optional<std::vector<std::string>> channels;
  if (tcp_alone) {
    transports = {"uv"};
    channels = {"basic"};
  }
  rpc::TensorPipeRpcBackendOptions options(4, transports, channels, 60.0F, "unused");
  auto agent = std::make_shared<rpc::TensorPipeAgent>(
      store, "worker" + std::to_string(rank), static_cast<rpc::worker_id_t>(rank), 2, options,
      std::unordered_map<std::string, rpc::DeviceMap>{}, std::vector<c10::Device>{},
      std::make_unique<rpc::RequestCallbackNoPython>());
  agent->setTypeResolver(std::make_shared<rpc::TypeResolver>([](const c10::QualifiedName& name) {
    return c10::StrongTypePtr(nullptr, torch::jit::ScriptTypeParser().parseType(name.qualifiedName()));
  }));
  rpc::RpcAgent::setCurrentRpcAgent(agent);
  agent->start();
  return agent;
}

inline std::shared_ptr<torch::jit::Operator> find_operator(const char* name, std::string_view overload,
                                                           std::size_t arguments) {
  for (const auto& each : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
    if (each->schema().overload_name() == overload && each->schema().arguments().size() == arguments) return each;
  }
  throw std::runtime_error("there is no " + std::string(name) + "." + std::string(overload));
}

}  // namespace torch_peer
