// SPDX-License-Identifier: MIT
// What the backend's own files share; no lesson includes it. Each section names the file that
// defines it.
#pragma once

#include "cuda_runtime.h"

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

// GCC says by a macro what clang says by a feature test.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

namespace cuda_cpu {

// ---- Limits -------------------------------------------------------------------------------------

constexpr int kPoison = 0xff;  // as float and double a NaN, as int -1
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxBlockZ = 64;
constexpr unsigned kMaxGridX = 0x7fffffff;
constexpr unsigned kMaxGridYZ = 65535;
constexpr size_t kSharedPerBlock = 48 << 10;
constexpr size_t kSharedPerBlockOptin = 64 << 10;
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;  // what cudaMalloc promises

constexpr size_t roundUp(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// ---- Messages: environment.cpp ------------------------------------------------------------------

struct Text {
  char chars[512];
};
[[gnu::format(printf, 1, 2)]] Text textOf(const char* format, ...);
Text textOf(uint3 at);

// One line on stderr.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);
// The same, and the program exits 1. Several threads may fail at once; the first one speaks.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
// What the program printed so far belongs before a message, unless somebody is printing just now.
void flushOutput();

// ---- The device and the environment: environment.cpp --------------------------------------------

// The sizes of a card.
struct Card {
  const char* key;
  const char* name;
  int sms;
  int major;
  int minor;
  int threadsPerSm;
  int blocksPerSm;
  size_t sharedPerSm;
  size_t l1Bytes;  // of one SM, together with its shared memory
  int l2Bytes;
  double l2Copies;  // of a sector that the L2 holds, on average
  unsigned fetchBytes;  // what a sector missing in the L2 makes it read
  size_t totalBytes;
};

struct Device {
  const char* key;
  const Card* card;
  size_t freeBytes;
  int driverVersion;
  cudaError_t anyCall;  // what every call that needs a device gives
  cudaError_t kernelImage;  // what looking up or launching a kernel gives
  int ptxVersion = 0;  // of the code that the driver translated; 0: the card's own
};

struct Skip {
  std::string name;  // without blanks
  bool matched = false;
};

struct Environment {
  Device device;
  std::vector<Skip> skips;
  uint64_t seed = 0;
  bool seedGiven;
  bool log;
  bool leaksFail;

  Environment();
};
Environment& environment();

// Makes the environment's device the one of this name, or fails; `asked` says who wants it.
void pretend(const char* name, const char* asked);

std::string withoutBlanks(const char* name);
uint64_t mix(uint64_t value);

inline cudaError_t deviceError() { return environment().device.anyCall; }

// ---- Device memory: memory.cpp ------------------------------------------------------------------

struct Allocation {
  char* start;
  size_t bytes;
  char* pages;  // the accessible part: slack, the allocation, slack
  size_t pageBytes;

  char* end() const { return start + bytes; }
  char* pagesEnd() const { return pages + pageBytes; }
  // Tells whether the address lies in it or in the red zones around it.
  bool guards(const char* address) const;
};

struct Memory {
  std::mutex mutex;
  std::vector<Allocation> live;
  std::deque<Allocation> freed;  // kept inaccessible for a while, to catch late uses
  size_t used = 0;
  std::map<void*, size_t> pinned;
};
Memory& memory();

size_t freeBytes();  // with memory().mutex held
cudaError_t allocate(void** pointer, size_t bytes);
cudaError_t release(void* pointer);

enum class Place { kHost, kDevice, kOutside };
// Outside: near a device allocation, live or freed, and not wholly in a live one.
Place placeOf(const void* pointer, size_t bytes);

// Bytes that nobody may write, and what tells that somebody did: the first that changed, or null.
void setCanary(char* from, char* to);
const char* firstDamage(const char* from, const char* to);
// Fails where something was written around an allocation; `after` says who may have done it.
void checkSlack(const char* after);

// ---- Shared memory: shared.cpp ------------------------------------------------------------------

struct SharedArray {
  size_t offset;  // in the program's thread-local storage
  size_t bytes;
};

// What the __shared__ arrays in this kernel's own body take, not those in functions that it calls.
size_t staticSharedBytes(const void* kernel);

struct Extent {
  char* start;
  size_t bytes;
};

// The shared memory of the block that an OS thread runs.
class SharedMemory {
 public:
  void start();  // once, on that OS thread
  void beginLaunch(size_t dynamicBytes);
  void poison();  // before a block
  const char* damage() const;  // after it: where it wrote around the dynamic part, or null
  bool holds(const char* address, size_t bytes);
  void* dynamic(size_t alignment) const;
  // The arrays that a kernel may touch, all but those of other marked kernels, and the dynamic part.
  std::vector<Extent> extentsOf(const void* kernel) const;

  // For the signal handler: whether the address lies in the dynamic part or around it.
  bool guards(const char* address) const;
  [[noreturn]] void failAt(const char* address, const Text& who, const char* access) const;

 private:
  char* dynamicEnd() const { return dynamic_ + dynamicBytes_; }

  std::vector<SharedArray> arrays_;
  size_t lastHeld_ = 0;
  char* threadStorage_ = nullptr;
  char* arena_ = nullptr;  // the largest dynamic part there can be; guards lie around it
  char* accessible_ = nullptr;  // from here to the arena's end
  char* dynamic_ = nullptr;
  size_t dynamicBytes_ = 0;
};

// ---- Running a kernel: threads.cpp --------------------------------------------------------------

// Returns when every block has run. The number of the launch goes into the order of the threads.
void runKernel(const Kernel& kernel, const LaunchConfig& config, const ThreadBody& body, uint64_t number);

// ---- Streams and graphs: streams.cpp ------------------------------------------------------------

// Handles that are out. One that is not among them is refused; what is left at exit is a leak.
class HandleSet {
 public:
  explicit HandleSet(const char* kind);
  void add(const void* handle);
  bool remove(const void* handle);  // tells whether it was there
  bool has(const void* handle);
  size_t size();
  const char* kind() const { return kind_; }

 private:
  const char* kind_;
  std::mutex mutex_;
  std::set<const void*> handles_;
};
const std::vector<HandleSet*>& allHandleSets();

// What a stream is given to do.
struct Operation {
  cudaGraphNodeType type;
  // What the call itself would refuse; may be empty.
  std::function<cudaError_t()> check;
  std::function<cudaError_t()> run;
  cudaKernelNodeParams kernel{};  // no function: a library's
  // The same kernel with another grid, block and arguments; empty for all else.
  std::function<Operation(const cudaKernelNodeParams&)> with{};
};

// Every operation on a stream comes through here. They run at once and in the order of the calls,
// or become nodes of a graph where the stream is being captured.
cudaError_t enqueue(cudaStream_t stream, Operation operation);
// The error of a call that a capture refuses, a relaxed one too or not; it ends that capture.
cudaError_t refuseInCapture(bool evenRelaxed);

// ---- The runtime: cuda_runtime.cpp --------------------------------------------------------------

// Keeps an error for cudaGetLastError.
cudaError_t note(cudaError_t error);
// Most calls need a device first, and a place for their answer.
cudaError_t check(bool argumentsGood);

// What a library does on a stream: logged, skipped and captured as a kernel of this name would be.
cudaError_t enqueueLibraryCall(const char* name, const Text& shape, cudaStream_t stream, std::function<void()> run);

void checkAtExit(int status, void* unused);

}  // namespace cuda_cpu
