// SPDX-License-Identifier: MIT
// The runtime's functions but for streams and graphs: errors, the device, memory, launches.

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "backend.h"
#include "trace.h"

namespace cuda_cpu {

namespace {

constexpr size_t kSharedGranularity = 256;  // in which an SM gives it out

thread_local cudaError_t lastError = cudaSuccess;

// ---- Launches -----------------------------------------------------------------------------------

// What cudaFuncSetAttribute set, of kernels that it was called for.
std::unordered_map<const void*, int>& dynamicLimits() {
  static auto& instance = *new std::unordered_map<const void*, int>;
  return instance;
}

size_t dynamicLimit(const void* kernel) {
  const auto found = dynamicLimits().find(kernel);
  return found != dynamicLimits().end() ? static_cast<size_t>(found->second)
                                        : kSharedPerBlock - staticSharedBytes(kernel);
}

cudaError_t validate(const Kernel& kernel, const LaunchConfig& config) {
  const dim3& grid = config.grid;
  const dim3& block = config.block;
  if (environment().device.kernelImage != cudaSuccess) return environment().device.kernelImage;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0 || grid.x > kMaxGridX ||
      grid.y > kMaxGridYZ || grid.z > kMaxGridYZ || block.z > kMaxBlockZ || block.x > kMaxThreads ||
      block.y > kMaxThreads || uint64_t{block.x} * block.y * block.z > kMaxThreads) {
    return cudaErrorInvalidConfiguration;
  }
  return config.sharedBytes > dynamicLimit(kernel.function) ? cudaErrorInvalidValue : cudaSuccess;
}

bool isSkipped(const char* symbol, const char* name) {
  bool skipped = false;
  const std::string full = withoutBlanks(name);
  for (Skip& skip : environment().skips) {
    if (skip.name != symbol && skip.name != full) continue;
    skip.matched = true;
    skipped = true;
  }
  return skipped;
}

// Logs a launch, or a library's call. Tells whether it is to be skipped.
bool announce(const char* symbol, const char* full, const Text& shape) {
  const bool skipped = isSkipped(symbol, full);
  if (environment().log) say("launch %s %s%s", full, shape.chars, skipped ? " skipped" : "");
  return skipped;
}

Text shapeText(const LaunchConfig& config) {
  const Text shared = textOf(" shared %zu", config.sharedBytes);
  return textOf("grid %s block %s%s", textOf(config.grid).chars, textOf(config.block).chars,
      config.sharedBytes == 0 ? "" : shared.chars);
}

void runLaunch(const Kernel& kernel, const LaunchConfig& config, const ThreadBody& body) {
  static std::mutex& launching = *new std::mutex;  // one kernel at a time
  static uint64_t launches = 0;
  std::lock_guard<std::mutex> lock(launching);
  const uint64_t number = launches++;
  if (announce(kernel.symbol, kernel.full, shapeText(config))) return;
  if (number == 0 && !environment().seedGiven) {
    say("threads run in an order shuffled from a random seed; CUDA_DAYS_CPU_SEED=%llu repeats it",
        static_cast<unsigned long long>(environment().seed));
  }
  runKernel(kernel, config, body, number);
}

// ---- Copies -------------------------------------------------------------------------------------

cudaError_t checkCopy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  const Place target = placeOf(to, bytes);
  const Place source = placeOf(from, bytes);
  const bool toDevice = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool fromDevice = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if (!to || !from || target == Place::kOutside || source == Place::kOutside) {
    return cudaErrorInvalidValue;
  }
  if (kind != cudaMemcpyDefault &&
      ((target == Place::kDevice) != toDevice || (source == Place::kDevice) != fromDevice)) {
    return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t checkFill(const void* to, size_t bytes) {
  return bytes == 0 || placeOf(to, bytes) == Place::kDevice ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) lastError = error;
  return error;
}

cudaError_t check(bool argumentsGood) {
  if (deviceError() != cudaSuccess) return note(deviceError());
  return note(argumentsGood ? cudaSuccess : cudaErrorInvalidValue);
}

// A launch spells `row.kernel<<<...>>>` when the kernel stands in a table: its name is then asked
// of the dynamic linker, so that messages and CUDA_DAYS_CPU_SKIP know it. The names live as long as
// the program.
static Kernel named(const Kernel& spelled) {
  static std::mutex& naming = *new std::mutex;
  static auto& names = *new std::map<const void*, std::pair<std::string, std::string>>;
  std::lock_guard<std::mutex> lock(naming);
  auto [entry, isNew] = names.try_emplace(spelled.function);
  auto& [plain, full] = entry->second;
  Dl_info symbol;
  if (isNew && dladdr(spelled.function, &symbol) != 0 && symbol.dli_saddr == spelled.function) {
    char* demangled = abi::__cxa_demangle(symbol.dli_sname, nullptr, nullptr, nullptr);
    // "void kernel<Tile<1, 2> >(Gemm)" for a template, "kernel(Gemm)" otherwise.
    const std::string signature = demangled != nullptr ? demangled : symbol.dli_sname;
    std::free(demangled);
    const size_t open = signature.find_first_of("<(");
    const size_t begin = signature.find_last_of(" :", open) + 1;  // npos + 1 is 0
    plain = signature.substr(begin, open - begin);
    size_t end = open;  // of the template's arguments, which may have parentheses of their own
    for (int depth = 0; end < signature.size() && (depth > 0 || signature[end] != '('); ++end)
      depth += signature[end] == '<' ? 1 : signature[end] == '>' ? -1 : 0;
    full = signature.substr(begin, end - begin);
  }
  if (plain.empty() || plain == spelled.symbol) return spelled;
  return {plain.c_str(), full.c_str(), spelled.function};
}

static Operation launchOf(const Kernel& kernel, const LaunchConfig& config, ThreadBody body, Rebind rebind) {
  Operation operation{cudaGraphNodeTypeKernel, [=] { return validate(kernel, config); },
      [kernel, config, body = std::move(body)] {
        runLaunch(kernel, config, body);
        return cudaSuccess;
      }};
  operation.kernel.func = const_cast<void*>(kernel.function);
  operation.kernel.gridDim = config.grid;
  operation.kernel.blockDim = config.block;
  operation.kernel.sharedMemBytes = static_cast<unsigned>(config.sharedBytes);
  operation.with = [=](const cudaKernelNodeParams& other) {
    const LaunchConfig changed(other.gridDim, other.blockDim, other.sharedMemBytes, config.stream);
    return launchOf(kernel, changed, rebind(kernel.function, other.kernelParams), rebind);
  };
  return operation;
}

cudaError_t launchKernel(const Kernel& spelled, const LaunchConfig& config, ThreadBody body, Rebind rebind) {
  return note(enqueue(config.stream, launchOf(named(spelled), config, std::move(body), rebind)));
}

cudaError_t enqueueLibraryCall(const char* name, const Text& shape, cudaStream_t stream, std::function<void()> run) {
  return enqueue(stream,
      {cudaGraphNodeTypeKernel, nullptr,
          [name, shape, run = std::move(run)] {
            if (!announce(name, name, shape)) run();
            return cudaSuccess;
          },
          {}});
}

// ---- The end of the program ---------------------------------------------------------------------

void checkAtExit(int status, void*) {
  bool failed = false;
  for (const Skip& skip : environment().skips) {
    if (skip.matched) continue;
    say("CUDA_DAYS_CPU_SKIP names \"%s\", and no kernel of that name was launched", skip.name.c_str());
    failed = true;
  }
  const size_t allocations = memory().live.size() + memory().pinned.size();
  if (allocations != 0) say("%zu allocation(s) never freed", allocations);
  size_t unreleased = 0;
  for (HandleSet* handles : allHandleSets()) {
    unreleased += handles->size();
    if (handles->size() != 0) say("%zu %s never destroyed", handles->size(), handles->kind());
  }
  failed = failed || (environment().leaksFail && allocations + unreleased != 0);
  if (!failed || status != 0) return;
  fflush(nullptr);
  _exit(1);
}

}  // namespace cuda_cpu

// ---- The runtime's functions --------------------------------------------------------------------

using namespace cuda_cpu;

long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

cudaError_t cudaGetLastError() { return std::exchange(lastError, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return lastError; }

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrorTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
        "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion",
        "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
        "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
        "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

// The check of a call that a capture refuses unless it is relaxed.
cudaError_t checkUncaptured(bool argumentsGood) {
  const cudaError_t error = check(argumentsGood);
  return error == cudaSuccess ? note(refuseInCapture(false)) : error;
}

cudaError_t checkKernel(bool argumentsGood, const void* kernel) {
  if (environment().device.kernelImage != cudaSuccess) {
    return note(environment().device.kernelImage);
  }
  if (!kernel) return note(cudaErrorInvalidDeviceFunction);
  return check(argumentsGood);
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  for (const ErrorText& known : kErrorTexts) {
    if (known.error == error) return known.name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  for (const ErrorText& known : kErrorTexts) {
    if (known.error == error) return known.text;
  }
  return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return note(cudaErrorInvalidValue);
  *version = environment().device.driverVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return note(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return note(cudaErrorInvalidValue);
  *count = deviceError() == cudaSuccess ? 1 : 0;
  return note(deviceError());
}

cudaError_t cudaSetDevice(int device) {
  if (deviceError() != cudaSuccess) return note(deviceError());
  return note(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  const cudaError_t error = check(device != nullptr);
  if (error == cudaSuccess) *device = 0;
  return error;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const cudaError_t error = check(properties != nullptr);
  if (error != cudaSuccess) return error;
  if (device != 0) return note(cudaErrorInvalidDevice);
  const Card& pretended = *environment().device.card;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", pretended.name);
  properties->totalGlobalMem = pretended.totalBytes;
  properties->sharedMemPerBlock = kSharedPerBlock;
  properties->sharedMemPerBlockOptin = kSharedPerBlockOptin;
  properties->sharedMemPerMultiprocessor = pretended.sharedPerSm;
  properties->regsPerBlock = 64 << 10;
  properties->regsPerMultiprocessor = 64 << 10;
  properties->warpSize = warpSize;
  properties->maxThreadsPerBlock = kMaxThreads;
  properties->maxThreadsPerMultiProcessor = pretended.threadsPerSm;
  properties->maxBlocksPerMultiProcessor = pretended.blocksPerSm;
  properties->maxThreadsDim[0] = kMaxThreads;
  properties->maxThreadsDim[1] = kMaxThreads;
  properties->maxThreadsDim[2] = kMaxBlockZ;
  properties->maxGridSize[0] = kMaxGridX;
  properties->maxGridSize[1] = kMaxGridYZ;
  properties->maxGridSize[2] = kMaxGridYZ;
  properties->major = pretended.major;
  properties->minor = pretended.minor;
  properties->multiProcessorCount = pretended.sms;
  properties->l2CacheSize = pretended.l2Bytes;
  properties->memoryBusWidth = 256;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error != cudaSuccess) return error;
  if (!value) return note(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = p.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = p.maxThreadsDim[1];
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = p.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = p.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
      *value = p.maxGridSize[1];
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = p.maxGridSize[2];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = p.regsPerBlock;
      break;
    case cudaDevAttrClockRate:
      *value = 1590000;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 5001000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = p.memoryBusWidth;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = p.regsPerMultiprocessor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = p.maxBlocksPerMultiProcessor;
      break;
    default:
      return note(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const cudaError_t error = check(true);
  return error == cudaSuccess ? note(refuseInCapture(true)) : error;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const cudaError_t error = check(free && total);
  if (error != cudaSuccess) return error;
  std::lock_guard<std::mutex> lock(memory().mutex);
  *free = freeBytes();
  *total = environment().device.card->totalBytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const cudaError_t error = checkUncaptured(pointer != nullptr);
  return error == cudaSuccess ? note(allocate(pointer, bytes)) : error;
}

cudaError_t cudaFree(void* pointer) {
  const cudaError_t error = checkUncaptured(true);
  return error == cudaSuccess ? note(release(pointer)) : error;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  const cudaError_t error = checkUncaptured(pointer != nullptr);
  if (error != cudaSuccess) return error;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const size_t aligned = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* allocated = std::aligned_alloc(kAlignment, aligned);
  if (!allocated) return note(cudaErrorMemoryAllocation);
  std::memset(allocated, kPoison, bytes);
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().pinned[allocated] = bytes;
  *pointer = allocated;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t error = checkUncaptured(true);
  if (error != cudaSuccess || !pointer) return error;
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (memory().pinned.erase(pointer) == 0) return note(cudaErrorInvalidValue);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return note(enqueue(stream,
      {cudaGraphNodeTypeMemcpy, [=] { return checkCopy(to, from, bytes, kind); },
          [=] {
            if (bytes != 0) std::memmove(to, from, bytes);
            traceWritten(to, bytes);
            return cudaSuccess;
          },
          {}}));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return note(enqueue(stream,
      {cudaGraphNodeTypeMemset, [=] { return checkFill(to, bytes); },
          [=] {
            if (bytes != 0) std::memset(to, value, bytes);
            traceWritten(to, bytes);
            return cudaSuccess;
          },
          {}}));
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const cudaError_t error = checkKernel(attributes != nullptr, kernel);
  if (error != cudaSuccess) return error;
  const Device& device = environment().device;
  const Card& card = *device.card;
  *attributes = {};
  attributes->sharedSizeBytes = staticSharedBytes(kernel);
  attributes->maxThreadsPerBlock = kMaxThreads;
  attributes->binaryVersion = card.major * 10 + card.minor;
  attributes->ptxVersion = device.ptxVersion != 0 ? device.ptxVersion : attributes->binaryVersion;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamicLimit(kernel));
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const cudaError_t error = checkKernel(true, kernel);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || staticSharedBytes(kernel) + value > kSharedPerBlockOptin) break;
      dynamicLimits()[kernel] = value;
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:  // a percentage; -1 is the default
      if (value < -1 || value > 100) break;
      return cudaSuccess;
  }
  return note(cudaErrorInvalidValue);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, const void* kernel, int blockSize, size_t dynamicSharedBytes) {
  const cudaError_t error = checkKernel(blocks && blockSize > 0, kernel);
  if (error != cudaSuccess) return error;
  const size_t threads = roundUp(static_cast<size_t>(blockSize), 32);
  const size_t shared = roundUp(staticSharedBytes(kernel) + dynamicSharedBytes, kSharedGranularity);
  *blocks = 0;  // what a launch would refuse
  if (threads > kMaxThreads || dynamicSharedBytes > dynamicLimit(kernel)) return cudaSuccess;
  const Card& card = *environment().device.card;
  *blocks = std::min(card.threadsPerSm / static_cast<int>(threads), card.blocksPerSm);
  if (shared != 0) *blocks = std::min(*blocks, static_cast<int>(card.sharedPerSm / shared));
  return cudaSuccess;
}
