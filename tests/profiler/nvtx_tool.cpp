// Stands for a tool of NVIDIA's: NVTX loads it, and it writes the ranges of the domain "ferry" to the file $FERRY_TEST_NVTX_FILE.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/syscall.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

namespace {

int ferry_domain;  // its address is the handle

void write_line(nvtxDomainHandle_t domain, const char* what, unsigned long long id, const char* name) {
  if (domain != reinterpret_cast<nvtxDomainHandle_t>(&ferry_domain)) return;
  static std::FILE* const file = [] {
    const char* path = std::getenv("FERRY_TEST_NVTX_FILE");
    std::FILE* opened = path ? std::fopen(path, "w") : nullptr;
    if (opened) std::setvbuf(opened, nullptr, _IOLBF, BUFSIZ);
    return opened;
  }();
  if (file) std::fprintf(file, "%s %llu %s\n", what, id, name);
}
unsigned long long thread_id() { return static_cast<unsigned long long>(::syscall(SYS_gettid)); }

nvtxDomainHandle_t create_domain(const char* name) {
  return std::strcmp(name, "ferry") == 0 ? reinterpret_cast<nvtxDomainHandle_t>(&ferry_domain) : nullptr;
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* with) {
  write_line(domain, "push", thread_id(), with->message.ascii);
  return 0;
}
int pop(nvtxDomainHandle_t domain) {
  write_line(domain, "pop", thread_id(), "");
  return 0;
}
nvtxRangeId_t start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* with) {
  static std::atomic<nvtxRangeId_t> next{1};
  const nvtxRangeId_t id = next.fetch_add(1);
  write_line(domain, "start", id, with->message.ascii);
  return id;
}
void end(nvtxDomainHandle_t domain, nvtxRangeId_t id) { write_line(domain, "end", id, ""); }

template <class F>
NvtxFunctionPointer entry(F* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  if (size <= NVTX_CBID_CORE2_DomainCreateA) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = entry(&create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = entry(&push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = entry(&pop);
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = entry(&start);
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = entry(&end);
  return 1;
}
