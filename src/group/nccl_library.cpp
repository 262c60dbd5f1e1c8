#include "nccl_library.hpp"

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../base/replaceable_table.hpp"

namespace ferry::inline v0::detail {
namespace {

constinit replaceable_table<nccl_functions, &linked_nccl> nccl_table;

struct opened_nccl {
  nccl_functions functions{};
  bool usable = false;
  std::string failure;
};

// Fills the table; else `failure` says why not. The library stays open.
bool open_nccl(const char* name, opened_nccl& result) {
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = ::dlerror();
    result.failure = why ? why : "dlopen gives no reason";
    return false;
  }
  const auto find = [&](const char* symbol, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    if (!function) result.failure = fmt::format("{} has no {}", name, symbol);
    return function != nullptr;
  };
  nccl_functions& all = result.functions;
  int version = 0;
  if (find("ncclGetVersion", all.get_version) && find("ncclGetUniqueId", all.get_unique_id) &&
      find("ncclCommInitRankConfig", all.init_rank) && find("ncclCommGetAsyncError", all.async_error) &&
      find("ncclCommAbort", all.abort) && find("ncclGetErrorString", all.error_text) &&
      find("ncclGetLastError", all.last_error) && find("ncclGroupStart", all.group_start) &&
      find("ncclGroupEnd", all.group_end) && find("ncclAllReduce", all.all_reduce) &&
      find("ncclBroadcast", all.broadcast) && find("ncclReduce", all.reduce) && find("ncclAllGather", all.all_gather) &&
      find("ncclReduceScatter", all.reduce_scatter) && find("ncclSend", all.send) && find("ncclRecv", all.receive)) {
    if (all.get_version(&version) == nccl_success && version >= nccl_config::oldest_version) return true;
    result.failure = fmt::format("{} has version {}, {} is needed", name, version, nccl_config::oldest_version);
  }
  ::dlclose(library);
  return false;
}

opened_nccl choose_nccl() noexcept {
  opened_nccl result;
  try {
    const char* const named = std::getenv("FERRY_NCCL");
    if (named && *named != '\0') {
      if (std::string_view(named) == "none") {
        result.failure = "FERRY_NCCL is 'none'";
        return result;
      }
      result.usable = open_nccl(named, result);
      if (!result.usable) {
        log(log_level::warning,
            fmt::format("FERRY_NCCL='{}' is not used, collectives on devices are staged: {}", named, result.failure));
      }
      return result;
    }
    result.usable = open_nccl("libnccl.so.2", result);
    if (!result.usable) log(log_level::info, "collectives on devices are staged, without NCCL: " + result.failure);
  } catch (const std::exception&) {  // no memory: collectives are staged
    result.usable = false;
  }
  return result;
}

const opened_nccl& the_nccl() noexcept {
  static const opened_nccl opened = choose_nccl();
  return opened;
}

}  // namespace

const nccl_functions* linked_nccl() noexcept { return the_nccl().usable ? &the_nccl().functions : nullptr; }
const char* nccl_refusal() noexcept {
  if (nccl_in_use() == nullptr && linked_nccl() != nullptr) return "it is switched off";
  return the_nccl().failure.c_str();
}
const nccl_functions* nccl_in_use() noexcept { return nccl_table.in_use(); }
void use_nccl(const nccl_functions* functions) noexcept { nccl_table.replace(functions); }

}  // namespace ferry::inline v0::detail
