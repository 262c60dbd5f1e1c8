// References that are passed from worker to worker.   ferry-run -n 3 ./09_three_workers

#include <ferry/ferry.hpp>

#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// A journal that all write into. It cannot be copied, moved or sent; references to it can.
class journal {
 public:
  void write(const std::string& line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

// A reference is an argument like any other. The handler begins once the owner knows that this worker has it, too.
void sign(const ferry::rref<journal>& page) {
  page.rpc_sync<&journal::write>(ferry::get_worker_info().name() + (page.is_owner() ? ", who has it" : ""));
}

// Signs, and hands the reference on along the route, which may lead through its owner.
void pass_on(const ferry::rref<journal>& page, std::vector<std::string> route) {
  sign(page);
  if (route.empty()) return;
  const std::string next = route.front();
  route.erase(route.begin());
  ferry::rpc_sync<pass_on>(next, page, route);
}

// And a result like any other: here inside of a struct. What is kept keeps the object.
struct shelf {
  std::string name;
  std::vector<ferry::rref<journal>> pages;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, pages);
  }
};
std::optional<shelf> kept;
void keep(const shelf& given) { kept = given; }
std::optional<shelf> give_back() { return std::exchange(kept, std::nullopt); }

bool share() {
  // Made on worker1, by worker0.
  auto page = ferry::remote<ferry::make<journal>>("worker1");
  ferry::rpc_sync<pass_on>("worker2", page, std::vector<std::string>{"worker1", "worker2", "worker0"});

  // worker2 keeps it, and then no other worker has it. The object lives all the time: a reference ends only when those
  // that were made of it are known to its owner.
  ferry::rpc_sync<keep>("worker2", shelf{"journals", {page}});
  page = {};

  const shelf back = ferry::rpc_sync<give_back>("worker2").value();
  page = back.pages.at(0);
  page.rpc_sync<&journal::write>("back from the shelf");

  // Where the type does not matter, or is not known:
  const ferry::any_rref some = page;
  std::printf("a %s of %s:\n", some.type().get().c_str(), page.owner_name().c_str());
  const std::vector<std::string> lines = page.rpc_sync<&journal::lines>();
  for (const std::string& line : lines) std::printf("  %s\n", line.c_str());
  return lines ==
         std::vector<std::string>{"worker2", "worker1, who has it", "worker2", "worker0", "back from the shelf"};
}

int main() {
  ferry::worker self = ferry::init_rpc();
  const bool right = self.id().value != 0 || share();
  self.shutdown();
  return right ? 0 : 1;
}
