#pragma once

// NCCL, opened when a group that asks for it is made: ferry is not linked with it.

#include <cstddef>

struct CUstream_st;

namespace ferry::inline v0::detail {

struct nccl_communicator;  // NCCL's

struct nccl_unique_id {
  char bytes[128];
};

/// Its configuration as of 2.14, which later versions take.
struct nccl_config {
  std::size_t size = sizeof(nccl_config);
  unsigned magic = 0xcafebeef;
  unsigned version = oldest_version;
  int blocking = 0;
  static constexpr int oldest_version = 2'14'00;
};

/// Results of its functions.
inline constexpr int nccl_success = 0;
inline constexpr int nccl_in_progress = 7;

/// Its numbers for types of elements and for reductions.
enum class nccl_type : int { i8 = 0, u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class nccl_reduction : int { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

/// The functions of its interface that ferry calls. Communicators do not block: what a function begins may still be in progress.
struct nccl_functions {
  int (*get_version)(int* version);
  int (*get_unique_id)(nccl_unique_id* id);
  int (*init_rank)(nccl_communicator** made, int members, nccl_unique_id id, int rank, nccl_config* config);
  int (*async_error)(nccl_communicator* of, int* error);
  int (*abort)(nccl_communicator* which);
  const char* (*error_text)(int error);
  const char* (*last_error)(nccl_communicator* of);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* from, void* to, std::size_t count, nccl_type type, nccl_reduction how,
                    nccl_communicator* among, CUstream_st* stream);
  int (*broadcast)(const void* from, void* to, std::size_t count, nccl_type type, int root, nccl_communicator* among,
                   CUstream_st* stream);
  int (*reduce)(const void* from, void* to, std::size_t count, nccl_type type, nccl_reduction how, int root,
                nccl_communicator* among, CUstream_st* stream);
  int (*all_gather)(const void* from, void* to, std::size_t count_of_one, nccl_type type, nccl_communicator* among,
                    CUstream_st* stream);
  int (*reduce_scatter)(const void* from, void* to, std::size_t count_of_one, nccl_type type, nccl_reduction how,
                        nccl_communicator* among, CUstream_st* stream);
  int (*send)(const void* from, std::size_t count, nccl_type type, int to, nccl_communicator* among,
              CUstream_st* stream);
  int (*receive)(void* into, std::size_t count, nccl_type type, int from, nccl_communicator* among,
                 CUstream_st* stream);
};

/// The library that FERRY_NCCL names (a path, or a name that the loader knows), else libnccl.so.2; "none", none installed, or one that is
/// too old: null, with the reason in nccl_refusal(). One that is named and cannot be used is a warning as well.
const nccl_functions* linked_nccl() noexcept;
const char* nccl_refusal() noexcept;
/// That library, or what the tests have put in its place.
const nccl_functions* nccl_in_use() noexcept;
/// Replaces it, for tests: call it before any other use of ferry. Null: there is none.
void use_nccl(const nccl_functions* functions) noexcept;

}  // namespace ferry::inline v0::detail
