// Types and exceptions of one's own as arguments and results.   ferry-run -n 2 ./04_custom_type

#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include <cereal/types/map.hpp>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shop {

enum class size { small, large };

// A type travels when cereal can write and read it, which one serialize() says. Tensors may be anywhere inside; their
// elements are not copied into the message.
struct product {
  std::string name;
  size how_big = size::small;
  double price = 0;
  std::optional<ferry::tensor> picture;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, how_big, price, picture);
  }
};

// One that keeps an invariant writes and reads by itself. Results are made by the default constructor, then loaded.
class basket {
 public:
  basket() = default;
  void put(const std::string& name, int count) { counts_[name] += count; }
  // A member function can be called, too: its object travels as the first argument.
  [[nodiscard]] double total(const std::vector<product>& prices) const {
    double sum = 0;
    for (const product& each : prices) {
      if (const auto found = counts_.find(each.name); found != counts_.end()) sum += found->second * each.price;
    }
    return sum;
  }

  template <class Archive>
  void save(Archive& archive) const {
    archive(counts_);
  }
  template <class Archive>
  void load(Archive& archive) {
    archive(counts_);
    for (const auto& [name, count] : counts_) {
      if (count < 1) throw std::invalid_argument("a basket with " + std::to_string(count) + " of " + name);
    }
  }

 private:
  std::map<std::string, int> counts_;
};

// An exception that keeps its type and its data on the way to the caller.
class sold_out : public std::runtime_error {
 public:
  explicit sold_out(std::string name) : std::runtime_error(name + " is sold out"), name_(std::move(name)) {}
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
};

std::vector<product> catalogue() {
  return {{"kite", size::large, 20, ferry::full({2, 2}, 0.5)}, {"yo-yo", size::small, 4.5, std::nullopt}};
}

product buy(const std::string& name) {
  for (product& each : catalogue()) {
    if (each.name == name) return std::move(each);
  }
  throw sold_out(name);
}

}  // namespace shop

// How sold_out travels: a name that is the same everywhere, and bytes there and back.
template <>
struct ferry::exception_traits<shop::sold_out> {
  static constexpr std::string_view name = "shop.sold_out";
  static std::string encode(const shop::sold_out& thrown) { return thrown.name(); }
  static shop::sold_out decode(std::string_view, std::string_view bytes) { return shop::sold_out(std::string(bytes)); }
};

bool run() {
  const auto products = ferry::rpc_sync<shop::catalogue>("worker1");
  for (const auto& each : products) {
    std::cout << each.name << " costs " << each.price << (each.picture ? ", with a picture" : ", without a picture")
              << std::endl;
  }
  bool right = products.size() == 2 && ferry::equal(products[0].picture.value(), ferry::full({2, 2}, 0.5));

  shop::basket basket;
  basket.put("kite", 1);
  basket.put("yo-yo", 4);
  const double total = ferry::rpc_sync<&shop::basket::total>("worker1", basket, products);
  std::cout << "a kite and four yo-yos: " << total << std::endl;
  right = right && total == 38 && ferry::rpc_sync<shop::buy>("worker1", "kite").how_big == shop::size::large;

  try {
    ferry::rpc_sync<shop::buy>("worker1", "boomerang");
    right = false;
  } catch (const shop::sold_out& problem) {
    std::cout << "caught: " << problem.what() << std::endl;
    right = right && problem.name() == "boomerang";
  }
  return right;
}

int main() {
  ferry::register_exceptions<shop::sold_out>();  // on both ends
  ferry::worker self = ferry::init_rpc();
  const bool right = self.id().value != 0 || run();
  self.shutdown();
  return right ? 0 : 1;
}
