// The client of two programs that share no code: it has names and signatures of the server's methods, not the functions.

#include <ferry/ferry.hpp>

#include <iostream>
#include <span>
#include <string>
#include <vector>

// What a server promises fits into a header of its clients. Signatures are compared at the first call.
constexpr auto dot = ferry::stub<"calculator.dot", double(std::vector<double>, std::vector<double>)>;
constexpr auto scale = ferry::stub<"calculator.scale", ferry::tensor(ferry::tensor, float)>;
constexpr auto greet = ferry::stub<"calculator.greet", std::string(std::string)>;

// As if this program had been built against another version of the server.
constexpr auto old_dot = ferry::stub<"calculator.dot", float(std::vector<float>, std::vector<float>)>;

int main() {
  ferry::worker self = ferry::init_rpc({.name = "client", .serve = ferry::serve_list<>});  // serves nothing

  const std::vector<double> a{1, 2, 3};
  const double product = ferry::rpc_sync<dot>("server", a, std::vector<double>{4, 5, 6});
  std::cout << "1*4 + 2*5 + 3*6 = " << product << std::endl;
  bool right = product == 32;

  ferry::future<ferry::tensor> scaled = ferry::rpc_async<scale>("server", ferry::full({2, 2}, 1.5F), 2.0F);
  std::cout << ferry::rpc_sync<greet>("server", "client") << std::endl;
  right = right && scaled.get().data<float>()[3] == 3;

  // Both signatures are told when they differ.
  try {
    ferry::rpc_sync<old_dot>("server", std::vector<float>{1}, std::vector<float>{2});
    right = false;
  } catch (const ferry::error& problem) {
    right = right && problem.kind() == ferry::errc::signature_mismatch;
    std::cout << problem.what() << std::endl;
  }

  self.shutdown();
  return right ? 0 : 1;
}
