// What cannot be the root of a pass is rejected with an explanation. Run by must_not_compile.py.

#include <vector>

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>

ferry::tensor first_of(const std::vector<ferry::tensor>& all) { return all.front(); }

void use(const ferry::rref<ferry::tensor>& root, const ferry::rref<std::vector<ferry::tensor>>& several,
         const ferry::rref<int>& number, const ferry::dist_autograd::context& in) {
  ferry::dist_autograd::backward(root, in, {.retain_graph = true});
  ferry::dist_autograd::backward(root, in);
  ferry::dist_autograd::backward(root, true);
  ferry::dist_autograd::backward(several.remote<&first_of>(), in.id());
// [row 284] an object that is no tensor cannot be the root of an ordinary pass
#if CASE == 1  // expect: ferry: a pass begins with a tensor, and the object of this reference is none
  ferry::dist_autograd::backward(number);
#endif
#if CASE == 2  // expect: ferry: a pass begins with a tensor, and the object of this reference is none
  ferry::dist_autograd::backward(number, true);
#endif
// [row 284] [row 285] an object that is no tensor cannot be the root of a pass of a context
#if CASE == 3  // expect: ferry: a pass begins with a tensor, and the object of this reference is none
  ferry::dist_autograd::backward(number, in);
#endif
#if CASE == 4  // expect: ferry: a pass begins with a tensor, and the object of this reference is none
  ferry::dist_autograd::backward(number, in.id(), {.retain_graph = true});
#endif
#if CASE == 5  // expect: ferry: a pass begins with a tensor, and the object of this reference is none
  ferry::dist_autograd::backward(several, in);
#endif
}
