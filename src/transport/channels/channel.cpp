#include <ferry/transport/channel.hpp>

#include <algorithm>

#include <ferry/tensor/pack.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

// Bytes in host memory; they are ready at once.
class plain_source final : public tensor_source {
 public:
  explicit plain_source(const tensor& packed) : tensor_(packed), rest_(packed_bytes(packed)) {}
  void fetch(std::size_t) override {}
  [[nodiscard]] std::size_t fetched() const noexcept override { return rest_.size(); }
  std::span<const std::byte> ready() override { return rest_; }
  void consume(std::size_t bytes) noexcept override { rest_ = rest_.subspan(bytes); }

 private:
  const tensor tensor_;
  std::span<const std::byte> rest_;
};

class plain_sink final : public tensor_sink {
 public:
  explicit plain_sink(const tensor& into) : tensor_(into), rest_(writable_packed_bytes(into)) {}
  std::span<std::byte> room() override { return rest_; }
  void commit(std::size_t bytes) override { rest_ = rest_.subspan(bytes); }

 private:
  const tensor tensor_;
  std::span<std::byte> rest_;
};

}  // namespace
}  // namespace detail

std::string channel_traits<inline_tensors>::unusable(const channel_path& path) {
  if (path.same_process) return "within a process, tensors are not written into a byte stream";
  return path.from.is_cpu() && path.to.is_cpu() ? "" : "it moves tensors from CPU to CPU only";
}
std::unique_ptr<tensor_source> channel_traits<inline_tensors>::open_source(const tensor& packed, const stream&,
                                                                           const channel_context&) {
  return std::make_unique<detail::plain_source>(packed);
}
std::unique_ptr<tensor_sink> channel_traits<inline_tensors>::open_sink(const tensor& into, const stream&,
                                                                       const channel_context&) {
  return std::make_unique<detail::plain_sink>(into);
}

std::span<const channel_factory> known_channels() {
  static const auto& all = *[] {  // workers may outlive static destruction
    auto* const made = new std::vector<channel_factory>(default_channels::factories());
    std::stable_sort(made->begin(), made->end(), [](const auto& a, const auto& b) { return a.priority > b.priority; });
    return made;
  }();
  return all;
}

channel_choice choose_channel(std::span<const channel_factory> channels, const channel_path& path) {
  std::vector<const channel_factory*> in_order;
  in_order.reserve(channels.size());
  for (const channel_factory& each : channels) in_order.push_back(&each);
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const auto* a, const auto* b) { return a->priority > b->priority; });
  channel_choice choice;
  for (const channel_factory* each : in_order) {
    std::string reason = each->unusable(path);
    if (reason.empty()) {
      choice.used = each;
      break;
    }
    choice.skipped.push_back({std::string(each->name), std::move(reason)});
  }
  return choice;
}

const channel_factory* find_channel(const channel_path& path) {
  for (const channel_factory& each : known_channels()) {
    if (each.unusable(path).empty()) return &each;
  }
  return nullptr;
}

}  // namespace ferry::inline v0
