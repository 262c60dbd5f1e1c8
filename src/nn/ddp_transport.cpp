#include <ferry/nn/ddp.hpp>

#include <ferry/autograd/grad_mode.hpp>

namespace ferry::inline v0::nn {

bucket_transport average_in_place() {
  return [](const process_group& group, const tensor& bucket, timeout limit) {
    return group.all_reduce(bucket, reduce_op::avg, limit).then([bucket] { return bucket; });
  };
}

bucket_transport average_as_bf16() {
  return [](const process_group& group, const tensor& bucket, timeout limit) {
    const no_grad outside;
    const tensor narrow = bucket.to(dtype::bf16);
    return group.all_reduce(narrow, reduce_op::avg, limit).then([bucket, narrow] {
      const no_grad inside;
      bucket.copy_(narrow);
      return bucket;
    });
  };
}

}  // namespace ferry::inline v0::nn
