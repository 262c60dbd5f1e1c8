#pragma once

// All fuzz targets; docs/fuzzing.md says what each one covers.

#include <span>

#include "target.hpp"

namespace fuzz {

extern const target address;
extern const target archive;
extern const target autograd_record;
extern const target checkpoint;
extern const target exceptions;
extern const target extension_records;
extern const target file_store;
extern const target flight_file;
extern const target frame_header;
extern const target frame_reader;
extern const target handshake;
extern const target http_request;
extern const target links;
extern const target meeting;
extern const target profile_archive;
extern const target profile_record;
extern const target references;
extern const target rendezvous;
extern const target shm_ring;
extern const target store_client;
extern const target store_server;
extern const target tensor_table;
extern const target worker_record;

std::span<const target* const> all_targets();

}  // namespace fuzz
