#include "targets.hpp"

namespace fuzz {

std::span<const target* const> all_targets() {
  static constexpr const target* all[] = {
      &address, &archive, &extension_records, &frame_header, &frame_reader, &handshake, &tensor_table,
  };
  return all;
}

}  // namespace fuzz
