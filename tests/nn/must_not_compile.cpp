// What is no module is rejected with an explanation. Run by must_not_compile.py.

#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/tensor.hpp>

struct nameless {
  ferry::tensor weight;
};
struct counted {
  ferry::nn::linear layer{1, 1};
  int number = 0;
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("layer", layer);
    visit("number", number);
  }
};
struct changing {
  ferry::tensor operator()(const ferry::tensor& x) { return x; }
};

void use() {
  (void)ferry::nn::parameters(ferry::nn::sequential(ferry::nn::linear(1, 1), ferry::relu));
#if CASE == 1  // expect: ferry: this type is no module: give it a member template <class Visit> void visit_members
  (void)ferry::nn::parameters(nameless());
#endif
#if CASE == 2  // expect: ferry: a member that visit_members() names is neither a tensor nor a module
  (void)ferry::nn::parameters(counted());
#endif
#if CASE == 3  // expect: ferry: a layer of a sequential cannot be called with what the layer before it returns
  const ferry::nn::sequential net(ferry::nn::linear(1, 1), changing());
  (void)net(ferry::tensor());
#endif
#if CASE == 4  // expect: ferry: a sequential needs a layer
  const ferry::nn::sequential<> net;
#endif
// [row 310] what a remote module does not have is refused, and the text says what it has
#if CASE == 5  // expect: ferry: a remote module is at another worker: it has forward(), remote_parameters()
  (void)ferry::nn::parameters(ferry::remote_module<ferry::nn::linear>());
#endif
#if CASE == 6  // expect: ferry: a remote module is at another worker: it has forward(), remote_parameters()
  ferry::remote_module<ferry::nn::linear> far;
  ferry::nn::to(far, ferry::dtype::f64);
#endif
#if CASE == 7  // expect: ferry: a remote_module needs a module: give the type a member template
  const ferry::remote_module<nameless> far_and_nameless;
#endif
#if CASE == 8  // expect: ferry: forward() of a remote module was given arguments with which the module cannot be called
  (void)ferry::remote_module<ferry::nn::linear>().forward(1, 2);
#endif
}
