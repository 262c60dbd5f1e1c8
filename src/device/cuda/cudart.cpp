// The table of the CUDA runtime, filled from the toolkit's functions: with nvtx.cpp the only source that includes a CUDA header.

#include <ferry/config.hpp>

#if FERRY_WITH_CUDA
  #include <cstdint>
  #include <cstring>

  #include <cuda_runtime_api.h>
#endif

#include "cuda_runtime.hpp"

#if FERRY_WITH_CUDA

namespace ferry::inline v0::detail {
namespace {

static_assert(cuda_error::success == cudaSuccess);
static_assert(cuda_error::invalid_value == cudaErrorInvalidValue);
static_assert(cuda_error::memory_allocation == cudaErrorMemoryAllocation);
static_assert(cuda_error::runtime_unloading == cudaErrorCudartUnloading);
static_assert(cuda_error::no_device == cudaErrorNoDevice);
static_assert(cuda_error::invalid_device == cudaErrorInvalidDevice);
static_assert(cuda_error::invalid_resource_handle == cudaErrorInvalidResourceHandle);
static_assert(cuda_error::not_ready == cudaErrorNotReady);
static_assert(cuda_error::insufficient_driver == cudaErrorInsufficientDriver);
static_assert(cuda_error::ecc_uncorrectable == cudaErrorECCUncorrectable);
static_assert(cuda_error::illegal_address == cudaErrorIllegalAddress);
static_assert(cuda_error::launch_timeout == cudaErrorLaunchTimeout);
static_assert(cuda_error::peer_access_already_enabled == cudaErrorPeerAccessAlreadyEnabled);
static_assert(cuda_error::context_is_destroyed == cudaErrorContextIsDestroyed);
static_assert(cuda_error::device_assert == cudaErrorAssert);
static_assert(cuda_error::hardware_stack_error == cudaErrorHardwareStackError);
static_assert(cuda_error::illegal_instruction == cudaErrorIllegalInstruction);
static_assert(cuda_error::misaligned_address == cudaErrorMisalignedAddress);
static_assert(cuda_error::invalid_address_space == cudaErrorInvalidAddressSpace);
static_assert(cuda_error::invalid_program_counter == cudaErrorInvalidPc);
static_assert(cuda_error::launch_failure == cudaErrorLaunchFailure);
static_assert(cuda_error::not_permitted == cudaErrorNotPermitted);
static_assert(cuda_error::not_supported == cudaErrorNotSupported);
static_assert(cuda_error::capture_unsupported == cudaErrorStreamCaptureUnsupported);
static_assert(cuda_error::capture_invalidated == cudaErrorStreamCaptureInvalidated);
static_assert(cuda_error::capture_unjoined == cudaErrorStreamCaptureUnjoined);
static_assert(cuda_error::capture_isolation == cudaErrorStreamCaptureIsolation);
static_assert(cuda_error::captured_event == cudaErrorCapturedEvent);
static_assert(static_cast<int>(cuda_capture_mode::global) == cudaStreamCaptureModeGlobal);
static_assert(static_cast<int>(cuda_capture_mode::thread_local_) == cudaStreamCaptureModeThreadLocal);
static_assert(static_cast<int>(cuda_capture_mode::relaxed) == cudaStreamCaptureModeRelaxed);
static_assert(static_cast<int>(cuda_memory::unregistered) == cudaMemoryTypeUnregistered);
static_assert(static_cast<int>(cuda_memory::host) == cudaMemoryTypeHost);
static_assert(static_cast<int>(cuda_memory::device) == cudaMemoryTypeDevice);
static_assert(static_cast<int>(cuda_memory::managed) == cudaMemoryTypeManaged);

// A function of the driver, loaded at run time: a machine may have no driver. Null: it does not have the function.
template <class Function>
Function driver_function(const char* name) noexcept {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  #if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 7000, cudaEnableDefault, &found);
  #elif CUDART_VERSION >= 12000
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
  #else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault);
  found = cudaDriverEntryPointSuccess;
  #endif
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  return reinterpret_cast<Function>(function);
}

// The runtime's own queries store "not ready" as the last error of the thread, where the program keeps its own. The driver's
// do not; the numbers of its errors are those of the runtime.
cuda_status stream_query(cudaStream_t stream) {
  static const auto query = driver_function<int (*)(cudaStream_t)>("cuStreamQuery");
  if (query && stream && stream != cudaStreamLegacy) return query(stream);
  const cudaError_t status = cudaStreamQuery(stream);
  if (status == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return status;
}

cuda_status event_query(cudaEvent_t event) {
  static const auto query = driver_function<int (*)(cudaEvent_t)>("cuEventQuery");
  if (query) return query(event);
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return status;
}

cuda_status stream_is_capturing(cudaStream_t stream, bool* capturing) {
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
  const cudaError_t status = cudaStreamIsCapturing(stream, &state);
  // For the legacy stream: a stream that synchronises with it is being captured.
  *capturing = state != cudaStreamCaptureStatusNone || status == cudaErrorStreamCaptureImplicit;
  if (status != cudaErrorStreamCaptureImplicit) return status;
  static_cast<void>(cudaGetLastError());
  return cudaSuccess;
}

cuda_status thread_exchange_stream_capture_mode(cuda_capture_mode* mode) {
  auto exchanged = static_cast<cudaStreamCaptureMode>(*mode);
  const cudaError_t status = cudaThreadExchangeStreamCaptureMode(&exchanged);
  *mode = static_cast<cuda_capture_mode>(exchanged);
  return status;
}

cuda_status get_versions(int* driver, int* runtime) {
  const cudaError_t status = cudaDriverGetVersion(driver);
  return status == cudaSuccess ? cudaRuntimeGetVersion(runtime) : status;
}

cuda_status device_has_context(int* has, int device) {
  static const auto state = driver_function<int (*)(int, unsigned*, int*)>("cuDevicePrimaryCtxGetState");
  if (!state) return cudaErrorNotSupported;
  unsigned flags = 0;
  return state(device, &flags, has);  // driver and runtime number devices the same way
}

cuda_status device_has_exportable_pools(int* has, int device) {
  int types = 0;
  const cudaError_t status = cudaDeviceGetAttribute(&types, cudaDevAttrMemoryPoolSupportedHandleTypes, device);
  *has = (types & cudaMemHandleTypePosixFileDescriptor) != 0 ? 1 : 0;
  return status;
}

cuda_status mem_pool_create(cudaMemPool_t* pool, int device, bool exportable) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = exportable ? cudaMemHandleTypePosixFileDescriptor : cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  return cudaMemPoolCreate(pool, &properties);
}

cuda_status mem_pool_set_opportunistic_reuse(cudaMemPool_t pool, bool allowed) {
  int value = allowed ? 1 : 0;
  return cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &value);
}

cuda_status mem_pool_usage(cudaMemPool_t pool, std::uint64_t* reserved, std::uint64_t* used) {
  const cudaError_t status = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, reserved);
  return status == cudaSuccess ? cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, used) : status;
}

cuda_status mem_pool_set_access(cudaMemPool_t pool, int device) {
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = device;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  return cudaMemPoolSetAccess(pool, &access, 1);
}

cuda_status mem_pool_export(int* descriptor, cudaMemPool_t pool) {
  return cudaMemPoolExportToShareableHandle(descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0);
}

cuda_status mem_pool_import(cudaMemPool_t* pool, int descriptor) {
  return cudaMemPoolImportFromShareableHandle(
      pool, reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor)),  // as CUDA passes descriptors
      cudaMemHandleTypePosixFileDescriptor, 0);
}

static_assert(sizeof(cuda_block_name) == sizeof(cudaMemPoolPtrExportData));

cuda_status mem_pool_export_pointer(cuda_block_name* name, void* block) {
  cudaMemPoolPtrExportData data{};
  const cudaError_t status = cudaMemPoolExportPointer(&data, block);
  std::memcpy(name->data(), &data, name->size());
  return status;
}

cuda_status mem_pool_import_pointer(void** block, cudaMemPool_t pool, const cuda_block_name* name) {
  cudaMemPoolPtrExportData data{};
  std::memcpy(&data, name->data(), name->size());
  return cudaMemPoolImportPointer(block, pool, &data);
}

cuda_status memory_range(void** begin, std::size_t* bytes, const void* address) {
  using device_address = unsigned long long;  // CUdeviceptr
  static const auto range =
      driver_function<int (*)(device_address*, std::size_t*, device_address)>("cuMemGetAddressRange");
  if (!range) return cudaErrorNotSupported;
  device_address start = 0;
  const int status = range(&start, bytes, reinterpret_cast<std::uintptr_t>(address));
  *begin = reinterpret_cast<void*>(static_cast<std::uintptr_t>(start));
  return status;
}

cuda_status device_uuid(cuda_uuid* uuid, int device) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, device);
  static_assert(sizeof properties.uuid == sizeof(cuda_uuid));
  std::memcpy(uuid->data(), &properties.uuid, uuid->size());
  return status;
}

cuda_status pointer_get_attributes(const void* memory, cuda_memory* type, int* device) {
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, memory);
  *type = static_cast<cuda_memory>(attributes.type);
  *device = attributes.device;
  return status;
}

// Wrapped one by one: a cudaError_t is not an int, and function pointers do not convert.
constexpr cuda_runtime linked{
    .get_device_count = [](int* count) -> cuda_status { return cudaGetDeviceCount(count); },
    .get_device = [](int* device) -> cuda_status { return cudaGetDevice(device); },
    .set_device = [](int device) -> cuda_status { return cudaSetDevice(device); },
    .device_has_context = &device_has_context,
    .device_can_access_peer = [](int* can, int device, int peer) -> cuda_status {
      return cudaDeviceCanAccessPeer(can, device, peer);
    },
    .device_enable_peer_access = [](int peer) -> cuda_status { return cudaDeviceEnablePeerAccess(peer, 0); },
    .device_has_memory_pools = [](int* has, int device) -> cuda_status {
      return cudaDeviceGetAttribute(has, cudaDevAttrMemoryPoolsSupported, device);
    },
    .device_has_exportable_pools = &device_has_exportable_pools,
    .get_versions = &get_versions,
    .get_last_error = []() -> cuda_status { return cudaGetLastError(); },
    .get_error_string = [](cuda_status status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); },
    .thread_exchange_stream_capture_mode = &thread_exchange_stream_capture_mode,
    .stream_is_capturing = &stream_is_capturing,
    .stream_create = [](cudaStream_t* stream) -> cuda_status {
      return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    },
    .stream_destroy = [](cudaStream_t stream) -> cuda_status { return cudaStreamDestroy(stream); },
    .stream_query = &stream_query,
    .stream_synchronize = [](cudaStream_t stream) -> cuda_status { return cudaStreamSynchronize(stream); },
    .stream_wait_event = [](cudaStream_t stream, cudaEvent_t event) -> cuda_status {
      return cudaStreamWaitEvent(stream, event, 0);
    },
    .launch_host_func = [](cudaStream_t stream, void (*function)(void*), void* argument) -> cuda_status {
      return cudaLaunchHostFunc(stream, function, argument);
    },
    .event_create = [](cudaEvent_t* event, bool blocking) -> cuda_status {
      return cudaEventCreateWithFlags(event, cudaEventDisableTiming | (blocking ? cudaEventBlockingSync : 0U));
    },
    .event_create_timed = [](cudaEvent_t* event) -> cuda_status { return cudaEventCreate(event); },
    .event_destroy = [](cudaEvent_t event) -> cuda_status { return cudaEventDestroy(event); },
    .event_record = [](cudaEvent_t event, cudaStream_t stream) -> cuda_status {
      return cudaEventRecord(event, stream);
    },
    .event_query = &event_query,
    .event_synchronize = [](cudaEvent_t event) -> cuda_status { return cudaEventSynchronize(event); },
    .event_elapsed_time = [](float* milliseconds, cudaEvent_t from, cudaEvent_t to) -> cuda_status {
      return cudaEventElapsedTime(milliseconds, from, to);
    },
    .mem_pool_create = &mem_pool_create,
    .mem_pool_destroy = [](cudaMemPool_t pool) -> cuda_status { return cudaMemPoolDestroy(pool); },
    .mem_pool_set_release_threshold = [](cudaMemPool_t pool, std::uint64_t bytes) -> cuda_status {
      return cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &bytes);
    },
    .mem_pool_set_opportunistic_reuse = &mem_pool_set_opportunistic_reuse,
    .mem_pool_usage = &mem_pool_usage,
    .mem_pool_trim_to = [](cudaMemPool_t pool, std::size_t bytes) -> cuda_status {
      return cudaMemPoolTrimTo(pool, bytes);
    },
    .mem_pool_set_access = &mem_pool_set_access,
    .mem_pool_export = &mem_pool_export,
    .mem_pool_import = &mem_pool_import,
    .mem_pool_export_pointer = &mem_pool_export_pointer,
    .mem_pool_import_pointer = &mem_pool_import_pointer,
    .memory_range = &memory_range,
    .device_uuid = &device_uuid,
    .malloc_from_pool_async = [](void** memory, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
        -> cuda_status { return cudaMallocFromPoolAsync(memory, bytes, pool, stream); },
    .free_async = [](void* memory, cudaStream_t stream) -> cuda_status { return cudaFreeAsync(memory, stream); },
    .mem_get_info = [](std::size_t* free, std::size_t* total) -> cuda_status { return cudaMemGetInfo(free, total); },
    .host_alloc = [](void** memory, std::size_t bytes) -> cuda_status {
      return cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
    },
    .free_host = [](void* memory) -> cuda_status { return cudaFreeHost(memory); },
    .memcpy_async = [](void* to, const void* from, std::size_t bytes, cudaStream_t stream) -> cuda_status {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    },
    .memcpy_peer_async = [](void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                            cudaStream_t stream) -> cuda_status {
      return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    },
    .memset_async = [](void* memory, int value, std::size_t bytes, cudaStream_t stream) -> cuda_status {
      return cudaMemsetAsync(memory, value, bytes, stream);
    },
    .pointer_get_attributes = &pointer_get_attributes,
    .load_kernel = [](const void* entry) -> cuda_status {
      cudaFuncAttributes attributes{};
      return cudaFuncGetAttributes(&attributes, entry);
    },
};

}  // namespace

const cuda_runtime* linked_cuda_runtime() noexcept { return &linked; }

}  // namespace ferry::inline v0::detail

#else  // a build without the CUDA Toolkit

namespace ferry::inline v0::detail {

const cuda_runtime* linked_cuda_runtime() noexcept { return nullptr; }

}  // namespace ferry::inline v0::detail

#endif
