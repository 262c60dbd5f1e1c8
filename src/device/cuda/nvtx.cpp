#include "nvtx.hpp"

#include <ferry/config.hpp>

#if FERRY_WITH_CUDA && defined(__has_include)
  #if __has_include(<nvtx3/nvToolsExt.h>)
    #include <algorithm>
    #include <array>
    #include <cstddef>
    #include <cstdlib>

    #include <nvtx3/nvToolsExt.h>
    #define FERRY_HAS_NVTX 1
  #endif
#endif

namespace ferry::inline v0::detail {

#if FERRY_HAS_NVTX

namespace {

constexpr std::size_t longest_shown_name = 255;

nvtxDomainHandle_t shown_domain() noexcept {
  static nvtxDomainHandle_t const instance = nvtxDomainCreateA("ferry");
  return instance;
}

// Calls `use` with the attributes of a range of that name.
template <class Use>
auto with_shown_name(std::string_view name, const Use& use) noexcept {
  std::array<char, longest_shown_name + 1> text{};
  std::copy_n(name.data(), std::min(name.size(), longest_shown_name), text.data());  // an empty name may have no data
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.data();
  return use(attributes);
}

constexpr timeline nvtx_timeline{
    .push =
        [](std::string_view name) noexcept {
          with_shown_name(
              name, [](const nvtxEventAttributes_t& with) { return nvtxDomainRangePushEx(shown_domain(), &with); });
        },
    .pop = []() noexcept { (void)nvtxDomainRangePop(shown_domain()); },
    .start = [](std::string_view name) noexcept -> std::uint64_t {
      return with_shown_name(
          name, [](const nvtxEventAttributes_t& with) { return nvtxDomainRangeStartEx(shown_domain(), &with); });
    },
    .end = [](std::uint64_t which) noexcept { nvtxDomainRangeEnd(shown_domain(), which); },
};

}  // namespace

bool timeline_wanted() noexcept {
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  return path && *path != '\0';
}

const timeline* timeline_of_tool() noexcept {
  // NVTX calls what a tool has put into its table; entries without a tool are null once it is initialised.
  static const bool present = [] {
    nvtxInitialize(nullptr);
    return NVTX_VERSIONED_IDENTIFIER(nvtxGlobals).nvtxDomainRangePushEx_impl_fnptr != nullptr;
  }();
  return present ? &nvtx_timeline : nullptr;
}

#else

bool timeline_wanted() noexcept { return false; }
const timeline* timeline_of_tool() noexcept { return nullptr; }

#endif

}  // namespace ferry::inline v0::detail
