// Workers that meet at a Redis server.   ferry-run -n 3 ./20_redis_store redis://127.0.0.1:6379?group=hello

#include <ferry/ferry.hpp>
#include <ferry/store/store_traits.hpp>

#include <exception>
#include <iostream>
#include <string>

#include "redis_store.hpp"

std::string greet(const std::string& who) { return "hello " + who + ", this is " + ferry::get_worker_info().name(); }

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: 20_redis_store redis://HOST:PORT?group=NAME\n";
    return 2;
  }
  try {
    ferry::worker self =
        ferry::init_rpc({.init_method = arguments[1], .stores = ferry::store_list<ferry::env_scheme, redis_scheme>{}});
    for (const ferry::worker_info& peer : self.workers()) {
      if (peer.id() != self.id()) std::cout << ferry::rpc_sync<greet>(peer, self.name()) << std::endl;
    }
    self.shutdown();
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << problem.what() << std::endl;
    return 1;
  }
}
