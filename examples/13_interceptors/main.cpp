// What travels with calls: who asks, and whether it may.   ferry-run -n 3 ./13_interceptors
//
// The user for whom a call is made goes with it, and with the calls that its handler makes, without being a parameter of any
// function. worker2 keeps a drawer that only one user may open.

#include <ferry/ferry.hpp>
#include <ferry/rpc/interceptor.hpp>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

constexpr std::uint16_t user_record = ferry::first_private_extension + 1;  // the type of the record on the wire

// The user of the running code. main() sets it for its calls, and the interceptor below for each handler.
constexpr ferry::context_key<std::string> user("user");

std::string who() {
  const std::string* name = ferry::current_value(user);
  return name ? *name : "anonymous";
}

// Refused calls end with this at their caller, like any exception of a method.
struct not_allowed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
template <>
struct ferry::exception_traits<not_allowed> {
  static constexpr std::string_view name = "example::not_allowed";
  static std::string encode(const not_allowed&) { return {}; }
  static not_allowed decode(std::string_view what, std::string_view) { return not_allowed(std::string(what)); }
};

// Kept for one request at the worker that serves it.
class arriving : public ferry::callee_hooks {
 public:
  explicit arriving(std::string name) : name_(std::move(name)) {}
  void before_handler(ferry::handler_start& start) override {
    if (start.method().starts_with("open_drawer") && name_ != "alice")
      throw not_allowed(name_ + " may not open the drawer");
    start.set_value(user, name_);
  }

 private:
  const std::string name_;
};

class users : public ferry::interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "example.users"; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override { return types; }

  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    const std::string name = who();
    request.add_record(user_record, true, std::as_bytes(std::span(name)));
    return nullptr;  // nothing is kept for the call
  }
  std::unique_ptr<ferry::callee_hooks> on_arrival(ferry::incoming_request& request) override {
    const auto name = request.records().find(user_record);
    if (!name) return nullptr;  // a call of the library itself
    return std::make_unique<arriving>(std::string(reinterpret_cast<const char*>(name->data()), name->size()));
  }

 private:
  static constexpr std::array types{user_record};
};

std::string open_drawer() { return "a letter for " + who(); }
std::string ask_for_letter() { return ferry::rpc_sync<open_drawer>("worker2"); }  // the user goes on to worker2

int main() {
  ferry::register_exceptions<not_allowed>();
  ferry::worker self = ferry::init_rpc({.interceptors = {std::make_shared<users>()}});
  if (self.workers().size() < 3) {
    std::fprintf(stderr, "worker0 needs worker1 and worker2: ferry-run -n 3 ./13_interceptors\n");
    return 2;
  }
  bool right = true;
  if (self.id() == 0) {
    for (const char* name : {"alice", "mallory"}) {
      const ferry::context_value_scope scope(user, name);
      try {
        const std::string letter = self.rpc_sync<ask_for_letter>("worker1");
        std::printf("%s gets %s\n", name, letter.c_str());
        right = right && letter == "a letter for alice";
      } catch (const not_allowed& refused) {
        std::printf("refused: %s\n", refused.what());
        right = right && std::string(name) == "mallory";
      }
    }
  }
  self.shutdown();
  return right ? 0 : 1;
}
