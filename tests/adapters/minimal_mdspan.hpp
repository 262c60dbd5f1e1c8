#pragma once

// The part of the std::mdspan interface that ferry uses: no compiler that runs the tests has the header.

#include <array>
#include <cstddef>
#include <type_traits>

namespace minimal {

inline constexpr std::size_t dynamic = static_cast<std::size_t>(-1);

template <class Index, std::size_t... Sizes>
class extents {
 public:
  using index_type = Index;
  static constexpr std::size_t rank() { return sizeof...(Sizes); }
  static constexpr std::size_t static_extent(std::size_t axis) {
    return std::array<std::size_t, sizeof...(Sizes)>{Sizes...}[axis];
  }
  extents() = default;
  explicit extents(const std::array<Index, sizeof...(Sizes)>& sizes) : sizes_(sizes) {}
  [[nodiscard]] Index extent(std::size_t axis) const { return sizes_[axis]; }

 private:
  std::array<Index, sizeof...(Sizes)> sizes_{};
};

struct layout_right {
  template <class E>
  class mapping {
   public:
    explicit mapping(const E& sizes) : sizes_(sizes) {}
    [[nodiscard]] auto stride(std::size_t axis) const {
      typename E::index_type result = 1;
      for (std::size_t other = axis + 1; other < E::rank(); ++other) result *= sizes_.extent(other);
      return result;
    }
    [[nodiscard]] const E& extents() const { return sizes_; }

   private:
    E sizes_;
  };
};
struct layout_left {
  template <class E>
  class mapping {
   public:
    explicit mapping(const E& sizes) : sizes_(sizes) {}
    [[nodiscard]] auto stride(std::size_t axis) const {
      typename E::index_type result = 1;
      for (std::size_t other = 0; other != axis; ++other) result *= sizes_.extent(other);
      return result;
    }
    [[nodiscard]] const E& extents() const { return sizes_; }

   private:
    E sizes_;
  };
};
struct layout_stride {
  template <class E>
  class mapping {
   public:
    mapping(const E& sizes, const std::array<typename E::index_type, E::rank()>& strides)
        : sizes_(sizes), strides_(strides) {}
    [[nodiscard]] auto stride(std::size_t axis) const { return strides_[axis]; }
    [[nodiscard]] const E& extents() const { return sizes_; }

   private:
    E sizes_;
    std::array<typename E::index_type, E::rank()> strides_;
  };
};

template <class T>
struct plain_accessor {};

template <class T, class Extents, class Layout = layout_right, class Accessor = plain_accessor<T>>
class mdspan {
 public:
  using element_type = T;
  using extents_type = Extents;
  using mapping_type = typename Layout::template mapping<Extents>;
  static constexpr std::size_t rank() { return Extents::rank(); }
  static constexpr std::size_t static_extent(std::size_t axis) { return Extents::static_extent(axis); }

  mdspan(T* data, const mapping_type& mapping) : data_(data), mapping_(mapping) {}
  [[nodiscard]] T* data_handle() const { return data_; }
  [[nodiscard]] auto extent(std::size_t axis) const { return mapping_.extents().extent(axis); }
  [[nodiscard]] auto stride(std::size_t axis) const { return mapping_.stride(axis); }
  [[nodiscard]] static constexpr bool is_strided() { return true; }
  template <class... I>
  T& operator()(I... indices) const {
    std::size_t axis = 0;
    std::ptrdiff_t offset = 0;
    ((offset += static_cast<std::ptrdiff_t>(indices) * static_cast<std::ptrdiff_t>(stride(axis++))), ...);
    return data_[offset];
  }

 private:
  T* data_;
  mapping_type mapping_;
};

template <class T, class Layout = layout_right>
using matrix = mdspan<T, extents<int, dynamic, dynamic>, Layout>;

}  // namespace minimal
