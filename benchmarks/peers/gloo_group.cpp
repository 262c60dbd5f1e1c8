#include "gloo_group.hpp"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace ferry_bench {

struct gloo_group::state {
  std::shared_ptr<gloo::rendezvous::Context> context;
};

gloo_group::gloo_group(const std::string& directory, int rank, int size) : state_(std::make_unique<state>()) {
  gloo::transport::tcp::attr where;
  where.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(where);
  gloo::rendezvous::FileStore store(directory);
  state_->context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  state_->context->connectFullMesh(store, device);
}

gloo_group::~gloo_group() = default;

void gloo_group::all_reduce(float* elements, std::size_t count) {
  gloo::AllreduceOptions options(state_->context);
  options.setOutput(elements, count);
  void (*sum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
  options.setReduceFunction(sum);
  gloo::allreduce(options);
}

}  // namespace ferry_bench
