#include "targets.hpp"

namespace fuzz {

std::span<const target* const> all_targets() {
  static constexpr const target* all[] = {
      &address,    &archive,      &autograd_record, &checkpoint,     &exceptions,    &extension_records,
      &file_store, &flight_file,  &frame_header,    &frame_reader,   &handshake,     &http_request,
      &links,      &meeting,      &profile_archive, &profile_record, &references,    &rendezvous,
      &shm_ring,   &store_client, &store_server,    &tensor_table,   &worker_record,
  };
  return all;
}

}  // namespace fuzz
