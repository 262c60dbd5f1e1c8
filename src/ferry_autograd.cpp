// All of ferry-autograd as one file, beside ferry.cpp:
//
//     c++ -std=c++20 -I ferry/include main.cpp ferry/src/ferry.cpp ferry/src/ferry_autograd.cpp -pthread
//
// The list below is also Meson's list of sources: a new source is entered here and nowhere else.

#ifndef FMT_HEADER_ONLY
  #define FMT_HEADER_ONLY
#endif

// autograd/
#include "autograd/collectives.cpp"
#include "autograd/derivatives/derivative.cpp"
#include "autograd/derivatives/table.cpp"
#include "autograd/dist/autograd_record.cpp"
#include "autograd/dist/backward.cpp"
#include "autograd/dist/context.cpp"
#include "autograd/dist/context_releases.cpp"
#include "autograd/dist/dist_context.cpp"
#include "autograd/dist/dist_pass.cpp"
#include "autograd/dist/dist_worker.cpp"
#include "autograd/dist/graph_engine.cpp"
#include "autograd/dist/message_set.cpp"
#include "autograd/dist/pass_failure.cpp"
#include "autograd/dist/update_turn.cpp"
#include "autograd/dist/wire_nodes.cpp"
#include "autograd/engine/backward.cpp"
#include "autograd/engine/backward_pass.cpp"
#include "autograd/engine/roots.cpp"
#include "autograd/graph/accumulator.cpp"
#include "autograd/graph/grad_mode.cpp"
#include "autograd/graph/gradient.cpp"
#include "autograd/graph/gradient_hooks.cpp"
#include "autograd/graph/gradient_record.cpp"
#include "autograd/graph/kept_gradient.cpp"
#include "autograd/graph/node.cpp"
#include "autograd/graph/saved_tensor.cpp"
#include "autograd/graph/view_nodes.cpp"
#include "autograd/memory.cpp"

// nn/
#include "nn/checkpoint.cpp"
#include "nn/ddp.cpp"
#include "nn/ddp_agreement.cpp"
#include "nn/ddp_averages.cpp"
#include "nn/ddp_buckets.cpp"
#include "nn/ddp_calls.cpp"
#include "nn/ddp_join.cpp"
#include "nn/ddp_model.cpp"
#include "nn/ddp_rows.cpp"
#include "nn/ddp_transport.cpp"
#include "nn/dropout.cpp"
#include "nn/embedding.cpp"
#include "nn/gru.cpp"
#include "nn/init.cpp"
#include "nn/layer_norm.cpp"
#include "nn/linear.cpp"
#include "nn/module.cpp"
#include "nn/remote_module.cpp"

// optim/
#include "optim/adadelta.cpp"
#include "optim/adagrad.cpp"
#include "optim/adam.cpp"
#include "optim/adamax.cpp"
#include "optim/apply.cpp"
#include "optim/clip.cpp"
#include "optim/device_updates.cpp"
#include "optim/distributed_clip.cpp"
#include "optim/distributed_optimizer.cpp"
#include "optim/ftrl.cpp"
#include "optim/optimizer.cpp"
#include "optim/owner_errors.cpp"
#include "optim/rmsprop.cpp"
#include "optim/rows.cpp"
#include "optim/rprop.cpp"
#include "optim/schedule.cpp"
#include "optim/sgd.cpp"
