// SPDX-License-Identifier: MIT
// Counts what the lanes of a kernel ask of memory, in a build made for it (preset cpu-trace); in any other build
// everything here is empty. README.md describes the model. trace.cpp records, traffic.cpp adds up and prints.
#pragma once

#include <unordered_map>

#include "backend.h"

namespace cuda_cpu {

#ifdef CUDA_DAYS_TRACE

constexpr unsigned kSectorBytes = 32;

enum class Access { kLoad, kStore, kAtomic, kAsyncCopy };
enum class Space { kGlobal, kShared };

struct Counts {
  uint64_t requests = 0;  // one instruction of one warp
  uint64_t bytes = 0;  // all lanes together
  uint64_t sectors = 0;  // global: 32-byte sectors, each once per request
  uint64_t wavefronts = 0;  // shared: passes over the banks
  uint64_t ideal = 0;  // shared: passes if no bank had a conflict

  void operator+=(const Counts& other) {
    requests += other.requests;
    bytes += other.bytes;
    sectors += other.sectors;
    wavefronts += other.wavefronts;
    ideal += other.ideal;
  }
};

// An instruction by the address that its call returns to. One that inlining copied counts for each copy.
struct InstructionKey {
  uintptr_t pc;
  Access access;
  Space space;
  bool operator<(const InstructionKey& other) const {
    return std::tie(pc, access, space) < std::tie(other.pc, other.access, other.space);
  }
};
using InstructionCounts = std::map<InstructionKey, Counts>;

// What was touched of a sector, a bit per byte, and how many blocks read it.
struct Touched {
  uint32_t read = 0;
  uint32_t written = 0;
  uint32_t readers = 0;

  void operator+=(const Touched& other) {
    read |= other.read;
    written |= other.written;
    readers += other.readers;
  }
};
using Footprint = std::unordered_map<uintptr_t, Touched>;  // by address / kSectorBytes

// Something wrong in a kernel. Told once for each pair of instructions, with the first threads that did it.
struct Finding {
  std::string text;  // with @1 and @2 where the source lines go
  uintptr_t first;
  uintptr_t second;  // 0: there is one only
};

// What one launch did, as far as it was looked at.
struct Traffic {
  std::string kernel;
  std::string symbol;
  dim3 grid;
  dim3 block;
  size_t sharedBytes = 0;
  uint64_t blocks = 0;
  uint64_t traced = 0;  // blocks that were looked at
  uint64_t accesses = 0;  // of single lanes in them
  InstructionCounts instructions;
  uint64_t l1Misses = 0;  // sectors of loads
  std::map<uint64_t, Footprint> footprints;  // of each run of kNeighbours blocks
  std::vector<Allocation> allocations;
  std::vector<Finding> findings;
};
std::vector<Traffic>& allTraffic();

// The source line that an instruction comes from, "file.cu:12"; empty if it is none of a .cu. traffic.cpp
std::vector<std::string> sourceLines(const std::vector<uintptr_t>& pcs);

// What has been written of device memory; a read of anything else is a finding.
void traceAllocated(const Allocation& allocation);
void traceReleased(const void* start);
void traceWritten(const void* to, size_t bytes);

class Tracer;

// What a worker tells about the blocks that it runs. Where a launch is not traced, nothing is kept.
class Recorder {
 public:
  void beginLaunch(const std::vector<Allocation>& allocations, const std::vector<Extent>& shared);
  void beginBlock(uint64_t number);
  void setThread(unsigned thread);
  void passedWarpOperation();
  void passedBarrier();
  void endBlock();
  void asyncCopy(const void* caller, const char* to, const char* from, size_t bytes, size_t zeros);

 private:
  Tracer* tracer_ = nullptr;
};

bool isTracing();
void startTracing();
// Which blocks of a launch to run next, a multiple of kNeighbours unless the grid ends; empty: enough were run. The
// first ones tell how many there is time for.
constexpr uint64_t kNeighbours = 8;
std::vector<uint64_t> nextToTrace(
    const Kernel& kernel, const LaunchConfig& config, const std::vector<Allocation>& allocations);

#else

inline void traceAllocated(const Allocation&) {}
inline void traceReleased(const void*) {}
inline void traceWritten(const void*, size_t) {}

class Recorder {
 public:
  void beginLaunch(const std::vector<Allocation>&, const std::vector<Extent>&) {}
  void beginBlock(uint64_t) {}
  void setThread(unsigned) {}
  void passedWarpOperation() {}
  void passedBarrier() {}
  void endBlock() {}
  void asyncCopy(const void*, const char*, const char*, size_t, size_t) {}
};

constexpr uint64_t kNeighbours = 1;
constexpr bool isTracing() { return false; }
inline std::vector<uint64_t> nextToTrace(const Kernel&, const LaunchConfig&, const std::vector<Allocation>&) {
  return {};
}

#endif

}  // namespace cuda_cpu
