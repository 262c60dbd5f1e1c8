#pragma once

// The identity of a worker.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>

namespace ferry::inline v0 {

/// A worker's name and id. Value type; may be sent as an argument or result.
class worker_info {
 public:
  static constexpr std::size_t max_name = 127;

  /// An empty one, to be assigned to later.
  worker_info() = default;
  /// Throws errc::invalid_argument unless the name is non-empty, shorter than 128 characters and made of A-Z a-z 0-9 - _ :
  /// and the id is 0..32767.
  worker_info(std::string name, int id);
  worker_info(std::string name, worker_id id) : worker_info(std::move(name), id.value) {}

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] worker_id id() const noexcept { return id_; }

  friend bool operator==(const worker_info&, const worker_info&) = default;

  template <class Archive>
  void save(Archive& archive) const {
    archive(name_, id_.value);
  }
  template <class Archive>
  void load(Archive& archive) {
    std::string name;
    std::int32_t id = 0;
    archive(name, id);
    *this = name.empty() && id == -1 ? worker_info() : worker_info(std::move(name), id);
  }

 private:
  std::string name_;
  worker_id id_;
};

/// "worker_info(id=1, name=worker1)"
std::string to_string(const worker_info& info);

/// Throws errc::invalid_argument, saying what is wrong with the name.
void check_worker_name(std::string_view name);

}  // namespace ferry::inline v0

template <>
struct std::hash<ferry::worker_info> {
  std::size_t operator()(const ferry::worker_info& info) const noexcept {
    return std::hash<ferry::worker_id>()(info.id());
  }
};
