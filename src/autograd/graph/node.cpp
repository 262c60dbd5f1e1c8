#include <ferry/autograd/node.hpp>

#include <new>

#include <fmt/format.h>

#include <ferry/device/current.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

std::atomic<std::uint64_t> nodes_so_far{0};

stream stream_of_values(const std::vector<value_facts>& values) {
  return values.empty() || values.front().where.is_cpu() ? stream() : current_stream(values.front().where);
}

// Nodes whose last owner is being destroyed on this thread, while it does so.
thread_local constinit std::vector<std::shared_ptr<graph_node>>* dying = nullptr;

}  // namespace
}  // namespace detail

std::string value_facts::describe() const {
  return fmt::format("{} {}{}", dtype_name(type), to_string(shape), where.is_cpu() ? "" : " on " + to_string(where));
}

graph_node::graph_node(std::vector<graph_edge> edges, std::vector<value_facts> values)
    : edges_(std::move(edges)),
      values_(std::move(values)),
      number_(detail::nodes_so_far.fetch_add(1) + 1),
      on_(detail::stream_of_values(values_)) {}

// A node may be the only owner of the next one, and so on: they are destroyed one after the other, not within each other.
graph_node::~graph_node() {
  std::vector<std::shared_ptr<graph_node>> own;
  const bool outermost = detail::dying == nullptr;
  if (outermost) detail::dying = &own;
  try {
    for (graph_edge& each : edges_) {
      if (each.to) detail::dying->push_back(std::move(each.to));
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): what is left goes with edges_, by recursion
  }
  if (!outermost) return;
  while (!own.empty()) {
    const std::shared_ptr<graph_node> last = std::move(own.back());
    own.pop_back();
  }
  detail::dying = nullptr;
}

std::string graph_node::describe() const {
  std::string shapes;
  for (const value_facts& each : values_) shapes += ", " + each.describe();
  return fmt::format("{} (node {}{})", name(), number_, shapes);
}

}  // namespace ferry::inline v0
