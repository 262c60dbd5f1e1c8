#pragma once

// Device maps: on which device of another worker the tensors of a message arrive. docs/device_maps.md has the rules.

#include <concepts>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/device/device.hpp>

namespace ferry::inline v0 {

/// A device as users write it: a device, its name ("cpu", "cuda:1"), or the number of a CUDA device. Used as a
/// parameter.
class device_spec {
 public:
  /// Throws errc::bad_device if its index is negative.
  device_spec(device where);  // NOLINT(google-explicit-constructor)
  /// Throws what parse_device throws.
  template <class Text>
    requires std::convertible_to<const Text&, std::string_view>
  device_spec(const Text& name)  // NOLINT(google-explicit-constructor)
      : device_spec(parse_device(name)) {}
  /// The CUDA device of that number. Throws errc::bad_device if it is negative, or more than an int holds.
  template <std::integral Index>
    requires(!std::same_as<Index, bool>)
  device_spec(Index index)  // NOLINT(google-explicit-constructor)
      : where_{device_kind::cuda, static_cast<int>(index)} {
    if (!std::in_range<int>(index) || index < 0) refuse_index(std::to_string(index));
  }

  [[nodiscard]] device where() const noexcept { return where_; }

 private:
  [[noreturn]] static void refuse_index(const std::string& index);

  device where_;
};

/// One entry of a device map: what is on `from` at the sender arrives on `to`.
struct device_pair {
  device_pair(const device_spec& source, const device_spec& target) : from(source.where()), to(target.where()) {}
  device from;
  device to;
  friend bool operator==(const device_pair&, const device_pair&) noexcept = default;
};

/// From devices of one worker to devices of another. Value type, ordered by the source. A source has one target; a
/// target has one source, unless two maps were merged that conflict, which is detected when the group forms.
///
///     device_map{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}          device_map{{0, 1}, {1, 0}}
class device_map {
 public:
  device_map() noexcept = default;
  /// Throws errc::invalid_argument if a source is given two targets, or a target two sources; the same pair may come twice.
  device_map(std::initializer_list<device_pair> entries);
  explicit device_map(const std::vector<device_pair>& entries);
  /// Merges maps of one entry each: throws as merge() does.
  [[nodiscard]] static device_map merged(std::vector<device_pair> entries);

  /// Adds the entries of `more`. Throws errc::invalid_argument if a source has another target already; then nothing
  /// changes. Does not detect two sources of one target.
  void merge(const device_map& more);

  /// The target of `from`; null: none.
  [[nodiscard]] const device* find(device from) const noexcept;
  /// The inverse map. Throws errc::invalid_argument unless the map is one-to-one.
  [[nodiscard]] device_map inverse() const;
  [[nodiscard]] bool is_one_to_one() const;

  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  friend bool operator==(const device_map&, const device_map&) noexcept = default;

 private:
  std::vector<device_pair> entries_;  // by source
};

/// "{cpu: cpu, cuda:0: cuda:1}"
std::string to_string(const device_map& map);

/// By the name of the target worker.
using device_map_table = std::map<std::string, device_map, std::less<>>;

/// How many devices of each kind a process has; the CPU is not counted.
using device_counts = std::map<device_kind, int>;
/// Of this process: CUDA devices, and those of registered kinds. Creates nothing on a device. Thread-safe.
[[nodiscard]] device_counts local_device_counts();

namespace detail {
/// Adds `map` to the one for `worker`. Throws errc::invalid_argument for a name that no worker can have, and what merge throws.
void add_device_map(device_map_table& maps, std::string_view worker, const device_map& map);
/// Throws errc::invalid_argument if the CPU is among them.
std::vector<device> declared_devices(std::initializer_list<device_spec> devices);
/// Throws errc::invalid_argument for what is invalid in every group.
void check_device_options(const device_map_table& maps, const std::vector<device>& devices);
}  // namespace detail

}  // namespace ferry::inline v0
