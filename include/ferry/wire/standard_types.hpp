#pragma once

// cereal's serialisers for the most common standard types, and block copies for sequences of numbers in their format.

#include <ferry/config.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <cereal/types/array.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/tuple.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/vector.hpp>

#include <ferry/wire/archive.hpp>

namespace ferry::inline v0 {
namespace detail {

/// Fills a resizable sequence of numbers. resize() zeroes what memcpy then overwrites: piece by piece, so that the
/// zeroes are still in the cache and main memory is written once.
template <class Container>
inline void load_block(wire_input_archive& archive, Container& out) {
  using T = typename Container::value_type;
  constexpr std::size_t piece = std::size_t{16} * 1024 / sizeof(T);
  const std::size_t count = archive.read_count({sizeof(T), sizeof(T)});
  const std::byte* from = archive.take(count * sizeof(T));
  if (count <= piece) {
    out.resize(count);
    if (count != 0) std::memcpy(out.data(), from, count * sizeof(T));
    return;
  }
  out.clear();
  out.reserve(count);
  for (std::size_t done = 0; done < count;) {
    const std::size_t next = count - done < piece ? count - done : piece;
    out.resize(done + next);
    std::memcpy(out.data() + done, from + done * sizeof(T), next * sizeof(T));
    done += next;
  }
}

}  // namespace detail

// More specialised than cereal's overloads for any archive, and the same bytes.

template <detail::block_copied T, class A>
inline void save(wire_output_archive& archive, const std::vector<T, A>& value) {
  archive.write_counted(value.data(), value.size());
}
template <detail::block_copied T, class A>
inline void load(wire_input_archive& archive, std::vector<T, A>& value) {
  detail::load_block(archive, value);
}
template <detail::block_copied C, class Traits, class A>
inline void save(wire_output_archive& archive, const std::basic_string<C, Traits, A>& value) {
  archive.write_counted(value.data(), value.size());
}
template <detail::block_copied C, class Traits, class A>
inline void load(wire_input_archive& archive, std::basic_string<C, Traits, A>& value) {
  detail::load_block(archive, value);
}

// Views are written as the strings and vectors that the receiver makes of them.

template <class C, class Traits>
inline void save(wire_output_archive& archive, const std::basic_string_view<C, Traits>& value) {
  archive.write_counted(value.data(), value.size());
}
template <class T, std::size_t N>
inline void save(wire_output_archive& archive, const std::span<T, N>& value) {
  if constexpr (detail::block_copied<std::remove_cv_t<T>>) {
    archive.write_counted(value.data(), value.size());
  } else {
    archive.write_number(std::uint64_t{value.size()});
    for (const auto& element : value) archive(element);
  }
}

}  // namespace ferry::inline v0
