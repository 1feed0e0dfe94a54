// SPDX-License-Identifier: MIT
// Stands in for the CUDA Toolkit's header of the same name where there is no GPU: a .cu that
// lower.py has lowered compiles against it as ordinary C++. It holds what the days use; what it
// does not offer does not compile. README.md says how kernels run and what the backend finds.
#pragma once

#if __FINITE_MATH_ONLY__ || defined(__FAST_MATH__)
#error \
    "-ffast-math, -Ofast and -ffinite-math-only let the compiler assume that there are no NaNs, so a day's checks would pass whatever its kernels compute. Build the days for the CPU without these flags (look into CXXFLAGS)."
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define CUDA_DAYS_CPU 1
#define CUDART_VERSION 13000

#ifdef CUDA_DAYS_TRACE
#define __global__ __attribute__((visibility("protected")))  // a mark in the symbol table
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__
#define __forceinline__ __inline__ __attribute__((always_inline))
// __noinline__ is no macro here: standard headers spell an attribute so. lower.py rewrites it.
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// An OS thread runs one block at a time, so its thread-local storage is that block's shared memory.
// The tag marks the symbols by which the backend finds and poisons it (a section of their own would
// do, but GCC ignores one inside templates); "used" stops the compiler from folding an array that
// nobody writes to zeros.
#define __shared__ static thread_local __attribute__((abi_tag("cuda_shared"), used))

// ---- Vector types -------------------------------------------------------------------------------

struct uint3 {
  unsigned x, y, z;
};
struct int2 {
  alignas(8) int x;
  int y;
};
struct int3 {
  int x, y, z;
};
struct int4 {
  alignas(16) int x;
  int y, z, w;
};
struct uint2 {
  alignas(8) unsigned x;
  unsigned y;
};
struct uint4 {
  alignas(16) unsigned x;
  unsigned y, z, w;
};
struct float1 {
  float x;
};
struct float2 {
  alignas(8) float x;
  float y;
};
struct float3 {
  float x, y, z;
};
struct float4 {
  alignas(16) float x;
  float y, z, w;
};
struct double2 {
  alignas(16) double x;
  double y;
};

inline int2 make_int2(int x, int y) { return {x, y}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float1 make_float1(float x) { return {x}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned xs = 1, unsigned ys = 1, unsigned zs = 1) : x(xs), y(ys), z(zs) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

// ---- Host types ---------------------------------------------------------------------------------

// The codes of the toolkit's own enum that the backend can give, or that its callers name.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureImplicit = 906,
  cudaErrorCapturedEvent = 907,
  cudaErrorUnknown = 999
};

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxBlockDimX = 2,
  cudaDevAttrMaxBlockDimY = 3,
  cudaDevAttrMaxBlockDimZ = 4,
  cudaDevAttrMaxGridDimX = 5,
  cudaDevAttrMaxGridDimY = 6,
  cudaDevAttrMaxGridDimZ = 7,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMaxRegistersPerBlock = 12,
  cudaDevAttrClockRate = 13,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMemoryClockRate = 36,
  cudaDevAttrGlobalMemoryBusWidth = 37,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxRegistersPerMultiprocessor = 82,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMaxBlocksPerMultiprocessor = 106
};

struct cudaUUID_t {
  char bytes[16];
};

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  size_t sharedMemPerBlockOptin;
  size_t sharedMemPerMultiprocessor;
  int regsPerBlock;
  int regsPerMultiprocessor;
  int warpSize;
  int maxThreadsPerBlock;
  int maxThreadsPerMultiProcessor;
  int maxBlocksPerMultiProcessor;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int major;
  int minor;
  int multiProcessorCount;
  int l2CacheSize;
  int memoryBusWidth;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
};

struct cudaFuncAttributes {
  size_t sharedSizeBytes;
  size_t constSizeBytes;
  size_t localSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;
  int ptxVersion;
  int binaryVersion;
  int maxDynamicSharedSizeBytes;
  int preferredShmemCarveout;
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

enum cudaStreamCaptureStatus : int {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};

enum cudaStreamCaptureMode : int {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};

enum cudaGraphNodeType { cudaGraphNodeTypeKernel = 0, cudaGraphNodeTypeMemcpy = 1, cudaGraphNodeTypeMemset = 2 };

struct cudaKernelNodeParams {
  void* func;
  dim3 gridDim;
  dim3 blockDim;
  unsigned sharedMemBytes;
  void** kernelParams;  // never told here
  void** extra;
};

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };

union cudaLaunchAttributeValue {
  int programmaticStreamSerializationAllowed;
};

struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;  // they speak of overlap, which there is none of here: taken and not looked at
  unsigned numAttrs;
};

constexpr unsigned cudaStreamDefault = 0;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0;
constexpr unsigned cudaEventBlockingSync = 1;
constexpr unsigned cudaEventDisableTiming = 2;

// ---- What a kernel sees -------------------------------------------------------------------------

// Written by the backend alone. __thread and not thread_local: no kernel pays for a check whether
// they are initialised.
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread uint3 blockDim;
extern __thread uint3 gridDim;
constexpr int warpSize = 32;

namespace cuda_cpu {

struct Site {
  const char* file;
  int line;
};

// clang's -fno-honor-nans has the effect that the #error above is about and shows in no macro: every
// file that includes this tries out, before main, whether its code tells a NaN from a number.
[[noreturn]] void failWithoutNans();
[[maybe_unused]] static const bool kHasNans = [] {
  volatile float source = __builtin_nanf("");
  const float value = source;
  if (value == value) failWithoutNans();
  return true;
}();

enum class BlockVote { kNone, kCount, kAnd, kOr };
int blockBarrier(BlockVote vote, bool predicate, Site site);

enum class WarpOperation { kSync, kShfl, kShflUp, kShflDown, kShflXor, kBallot, kAny, kAll };
// Waits for the lanes of the mask. Shuffles give the value that `source` brought, votes the ballot.
uint64_t warpExchange(WarpOperation operation, unsigned mask, uint64_t value, int source, Site site);
int laneInWarp();

// The primitives of cuda_pipeline.h.
void copyAsync(void* to, const void* from, size_t bytes, size_t zeros, Site site);
void commitCopies();
void waitForCopies(size_t batchesLeft);

// What lower.py makes of `extern __shared__ T name[];`. On the hardware, too, all of them in a
// block are one piece of memory.
void* dynamicSharedMemory(size_t alignment);
template <class T>
T* dynamicShared(size_t alignment = alignof(T)) {
  return static_cast<T*>(dynamicSharedMemory(alignment));
}

template <class T>
T shuffle(WarpOperation operation, unsigned mask, T value, int source, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "shuffles move 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warpExchange(operation, mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_cpu

#define CUDA_CPU_SITE (::cuda_cpu::Site{__FILE__, __LINE__})
#define __syncthreads() \
  (static_cast<void>(::cuda_cpu::blockBarrier(::cuda_cpu::BlockVote::kNone, false, CUDA_CPU_SITE)))
#define __syncthreads_count(predicate) \
  (::cuda_cpu::blockBarrier(::cuda_cpu::BlockVote::kCount, (predicate) != 0, CUDA_CPU_SITE))
#define __syncthreads_and(predicate) \
  (::cuda_cpu::blockBarrier(::cuda_cpu::BlockVote::kAnd, (predicate) != 0, CUDA_CPU_SITE))
#define __syncthreads_or(predicate) \
  (::cuda_cpu::blockBarrier(::cuda_cpu::BlockVote::kOr, (predicate) != 0, CUDA_CPU_SITE))

// The warp's functions take the place of their call as default arguments, because a macro would
// split template arguments at commas.
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::cuda_cpu::warpExchange(::cuda_cpu::WarpOperation::kSync, mask, 0, 0, {file, line});
}

inline unsigned __ballot_sync(
    unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return static_cast<unsigned>(
      ::cuda_cpu::warpExchange(::cuda_cpu::WarpOperation::kBallot, mask, predicate != 0, 0, {file, line}));
}

inline int __any_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return ::cuda_cpu::warpExchange(::cuda_cpu::WarpOperation::kAny, mask, predicate != 0, 0, {file, line}) != 0;
}

inline int __all_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return ::cuda_cpu::warpExchange(::cuda_cpu::WarpOperation::kAll, mask, predicate == 0, 0, {file, line}) == 0;
}

// Lanes are grouped in segments of `width`; a lane whose source lies outside its segment keeps its
// own value (up, down, xor), or wraps around in it (the indexed form).
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, const char* file = __builtin_FILE(),
    int line = __builtin_LINE()) {
  const int first = ::cuda_cpu::laneInWarp() & ~(width - 1);
  return ::cuda_cpu::shuffle(
      ::cuda_cpu::WarpOperation::kShfl, mask, value, first + (source & (width - 1)), {file, line});
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, const char* file = __builtin_FILE(),
    int line = __builtin_LINE()) {
  const int lane = ::cuda_cpu::laneInWarp();
  const int source = lane - static_cast<int>(delta);
  return ::cuda_cpu::shuffle(
      ::cuda_cpu::WarpOperation::kShflUp, mask, value, source < (lane & ~(width - 1)) ? lane : source, {file, line});
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, const char* file = __builtin_FILE(),
    int line = __builtin_LINE()) {
  const int lane = ::cuda_cpu::laneInWarp();
  const int source = lane + static_cast<int>(delta);
  return ::cuda_cpu::shuffle(
      ::cuda_cpu::WarpOperation::kShflDown, mask, value, source > (lane | (width - 1)) ? lane : source, {file, line});
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int laneMask, int width = 32, const char* file = __builtin_FILE(),
    int line = __builtin_LINE()) {
  const int lane = ::cuda_cpu::laneInWarp();
  const int source = lane ^ laneMask;
  return ::cuda_cpu::shuffle(
      ::cuda_cpu::WarpOperation::kShflXor, mask, value, source > (lane | (width - 1)) ? lane : source, {file, line});
}

inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }

// Cache hints change no result.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldca(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}
template <class T>
void __stwt(T* address, T value) {
  *address = value;
}

// Nanoseconds of the host's clock: it goes forward, and no speed is to be read off it.
long long clock64();

// What a thread wrote before it is seen by whoever reads after its own fence. A read-modify-write and no fence of the
// language, because ThreadSanitizer follows the one and not the other.
inline void __threadfence() {
  static unsigned passed = 0;
  __atomic_fetch_add(&passed, 1, __ATOMIC_ACQ_REL);
}

inline int atomicAdd(int* address, int value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline float atomicAdd(float* address, float value) {
  float seen;
  __atomic_load(address, &seen, __ATOMIC_RELAXED);
  float sum = seen + value;
  while (!__atomic_compare_exchange(address, &seen, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    sum = seen + value;
  }
  return seen;
}
inline unsigned atomicExch(unsigned* address, unsigned value) {
  return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}

// ---- What the host calls ------------------------------------------------------------------------

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMemGetInfo(size_t* freeBytes, size_t* totalBytes);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaSuccess) *pointer = static_cast<T*>(memory);
  return error;
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocHost(&memory, bytes);
  if (error == cudaSuccess) *pointer = static_cast<T*>(memory);
  return error;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop);
cudaError_t cudaEventDestroy(cudaEvent_t event);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type);
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* parameters);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
// The node is one of the graph that was instantiated, and its kernel stays the same one.
cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t executable, cudaGraphNode_t node, const cudaKernelNodeParams* parameters);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
// Counts threads, shared memory and resident blocks: registers are not known here.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, const void* kernel, int blockSize, size_t dynamicSharedBytes);

template <class... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(P...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, void (*kernel)(P...), int blockSize, size_t dynamicSharedBytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      blocks, reinterpret_cast<const void*>(kernel), blockSize, dynamicSharedBytes);
}

// ---- Launches -----------------------------------------------------------------------------------

namespace cuda_cpu {

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  size_t sharedBytes;
  cudaStream_t stream;

  LaunchConfig(dim3 gridSize, dim3 blockSize, size_t shared = 0, cudaStream_t onStream = nullptr)
      : grid(gridSize), block(blockSize), sharedBytes(shared), stream(onStream) {}
};

struct Kernel {
  const char* symbol;  // without template arguments
  const char* full;  // as the launch spells it
  const void* function;
};

// Runs one thread of the kernel; the launch may outlive the statement that made it.
using ThreadBody = std::function<void()>;
// Makes such a body from the addresses of other arguments, as the node of a graph may be given.
using Rebind = ThreadBody (*)(const void* kernel, void** arguments);
cudaError_t launchKernel(const Kernel& kernel, const LaunchConfig& config, ThreadBody body, Rebind rebind);

template <class... P, size_t... kIndex>
ThreadBody rebind(void (*kernel)(P...), void** arguments, std::index_sequence<kIndex...>) {
  return [kernel, stored = std::tuple<P...>(*static_cast<std::remove_reference_t<P>*>(arguments[kIndex])...)] {
    std::apply(kernel, stored);
  };
}

// What a lowered launch names; calling it with the kernel's arguments launches. Its parameters are
// the kernel's own, so arguments convert as they do in any call.
template <class... P>
class Launcher {
 public:
  Launcher(const char* symbol, const char* full, void (*kernel)(P...), const LaunchConfig& config)
      : symbol_(symbol), full_(full), kernel_(kernel), config_(config) {}

  void operator()(P... parameters) const { start(std::move(parameters)...); }

  cudaError_t start(P... parameters) const {
    return launchKernel(
        {symbol_, full_, reinterpret_cast<const void*>(kernel_)}, config_,
        [kernel = kernel_, stored = std::tuple<P...>(std::move(parameters)...)] { std::apply(kernel, stored); },
        [](const void* kernel, [[maybe_unused]] void** arguments) {
          const auto typed = reinterpret_cast<void (*)(P...)>(const_cast<void*>(kernel));
          return rebind(typed, arguments, std::index_sequence_for<P...>());
        });
  }

 private:
  const char* symbol_;
  const char* full_;
  void (*kernel_)(P...);
  LaunchConfig config_;
};

template <class... P>
Launcher<P...> launch(const char* symbol, const char* full, void (*kernel)(P...), const LaunchConfig& config) {
  return Launcher<P...>(symbol, full, kernel, config);
}

}  // namespace cuda_cpu

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... arguments) {
  const cuda_cpu::LaunchConfig launched(config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
  return cuda_cpu::launch("kernel", "kernel", kernel, launched).start(std::forward<A>(arguments)...);
}
