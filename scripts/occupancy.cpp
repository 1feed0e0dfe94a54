// SPDX-License-Identifier: MIT
//
// How many blocks of a kernel fit on one SM, by the CUDA Toolkit's own occupancy calculator
// (cuda_occupancy.h), which needs neither a GPU nor a driver. scripts/resources.py builds and asks:
//
//   nvcc -std=c++17 -cudart none -o occupancy occupancy.cpp
//   echo "75 256 39 2048 0 1" | ./occupancy
//
// One question a line on stdin, six integers: compute capability (75), threads a block, registers a
// thread, static and dynamic shared memory a block in bytes, barriers. One line of answer each:
// blocks and warps an SM, then the most of warps, registers, bytes of shared memory and blocks that
// an SM holds, then what limits, as the sum of the header's OCC_LIMIT_ bits.
// Exit code: 0, or 1 with the reason on stderr.

#include <cuda_occupancy.h>

#include <cstdio>

namespace {

constexpr size_t kKiB = 1024;

struct Architecture {
  int capability;  // 10 * major + minor
  int threadsPerSm;  // resident at most
  size_t sharedPerSm;  // bytes, at the largest carve-out
  size_t sharedDriver;  // bytes of each block's shared memory that the driver keeps for itself
};

// From the CUDA C++ Programming Guide: the table of technical specifications per compute capability
// and, for the last column, what it says about shared memory from 8.x on. How many blocks an SM
// holds, and how registers and shared memory are rounded up, the header knows.
constexpr Architecture kArchitectures[] = {
    {75, 1024, 64 * kKiB, 0},  // T4
    {80, 2048, 164 * kKiB, kKiB},  // A100
    {86, 1536, 100 * kKiB, kKiB},  // A10, RTX 30
    {89, 1536, 100 * kKiB, kKiB},  // L4, RTX 40
    {90, 2048, 228 * kKiB, kKiB},  // H100, H200
    {100, 2048, 228 * kKiB, kKiB},  // B200
    {120, 1536, 100 * kKiB, kKiB},  // RTX 50
};

cudaOccDeviceProp properties(const Architecture& architecture) {
  cudaOccDeviceProp device;
  device.computeMajor = architecture.capability / 10;
  device.computeMinor = architecture.capability % 10;
  // The same on all of them:
  device.maxThreadsPerBlock = 1024;
  device.regsPerBlock = 65536;
  device.regsPerMultiprocessor = 65536;
  device.warpSize = 32;
  device.sharedMemPerBlock = 48 * kKiB;  // without opting in to more

  device.maxThreadsPerMultiprocessor = architecture.threadsPerSm;
  device.sharedMemPerMultiprocessor = architecture.sharedPerSm;
  device.sharedMemPerBlockOptin = architecture.sharedPerSm - architecture.sharedDriver;
  device.reservedSharedMemPerBlock = architecture.sharedDriver;
  device.numSms = 1;  // sizes grids, and no grid is asked for here
  return device;
}

}  // namespace

int main() {
  int capability, threads, registers, barriers;
  size_t staticShared, dynamicShared;
  int fields;
  while ((fields = std::scanf("%d %d %d %zu %zu %d", &capability, &threads, &registers, &staticShared, &dynamicShared,
              &barriers)) == 6) {
    const Architecture* found = nullptr;
    for (const Architecture& each : kArchitectures)
      if (each.capability == capability) found = &each;
    if (!found) {
      std::fprintf(stderr, "occupancy: no limits known for sm_%d; add it to kArchitectures\n", capability);
      return 1;
    }
    const cudaOccDeviceProp device = properties(*found);
    const cudaOccDeviceState state;  // no preference between shared memory and L1
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = device.maxThreadsPerBlock;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = staticShared;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;  // a launch above 48 KiB has opted in
    kernel.maxDynamicSharedSizeBytes = dynamicShared;
    kernel.numBlockBarriers = barriers;

    cudaOccResult result;
    int maxBlocks = 0;
    cudaOccError error =
        cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, dynamicShared);
    if (error == CUDA_OCC_SUCCESS) error = cudaOccMaxBlocksPerMultiprocessor(&maxBlocks, &device);
    if (error != CUDA_OCC_SUCCESS) {
      std::fprintf(stderr,
          "occupancy: this toolkit's cuda_occupancy.h refuses sm_%d with %d threads, %d "
          "registers, %zu + %zu bytes of shared memory: %s\n",
          capability, threads, registers, staticShared, dynamicShared,
          error == CUDA_OCC_ERROR_UNKNOWN_DEVICE ? "it does not know this architecture (a newer toolkit does)"
                                                 : "invalid input");
      return 1;
    }
    const int warps = (threads + device.warpSize - 1) / device.warpSize;  // a part counts as one
    std::printf("%d %d %d %d %zu %d %u\n", result.activeBlocksPerMultiprocessor,
        result.activeBlocksPerMultiprocessor * warps, device.maxThreadsPerMultiprocessor / device.warpSize,
        device.regsPerMultiprocessor, device.sharedMemPerMultiprocessor, maxBlocks, result.limitingFactors);
  }
  if (fields != EOF) {
    std::fprintf(stderr, "occupancy: a line of stdin is not six integers\n");
    return 1;
  }
  return 0;
}
