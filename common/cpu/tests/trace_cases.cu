// SPDX-License-Identifier: MIT
// Kernels whose traffic can be worked out by hand, and faults that a trace must find: test_trace.py builds this with
// CUDA_DAYS_TRACE and knows the answers. Run as: trace_cases CASE --trace --json

#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>

constexpr int kWords = 4096;

// ---- Global memory, one warp

__global__ void stride0(const float* in, float* out) { out[threadIdx.x] = in[0]; }
__global__ void stride1(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x]; }
__global__ void stride2(const float* in, float* out) { out[threadIdx.x] = in[2 * threadIdx.x]; }
__global__ void stride8(const float* in, float* out) { out[threadIdx.x] = in[8 * threadIdx.x]; }
__global__ void stride32(const float* in, float* out) { out[threadIdx.x] = in[32 * threadIdx.x]; }
__global__ void misaligned(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x + 1]; }
__global__ void halfWarp(const float* in, float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = in[threadIdx.x];
}
__global__ void wholeFloat4(const float* in, float* out) {
  reinterpret_cast<float4*>(out)[threadIdx.x] = reinterpret_cast<const float4*>(in)[threadIdx.x];
}
__global__ void membersOfFloat4(const float* in, float* out) {
  const float4 four = reinterpret_cast<const float4*>(in)[threadIdx.x];
  out[threadIdx.x] = four.x + four.y + four.z + four.w;
}
__global__ void doubles(const float* in, float* out) {
  out[threadIdx.x] = static_cast<float>(reinterpret_cast<const double*>(in)[threadIdx.x]);
}
// Two turns over the same four sectors: L1 answers the second.
__global__ void twice(const float* in, float* out) {
  float sum = 0;
#pragma GCC unroll 1
  for (int turn = 0; turn < 2; ++turn) sum += in[(threadIdx.x + turn) % 32];
  out[threadIdx.x] = sum;
}
__global__ void atomics(const float*, float* out) { atomicAdd(reinterpret_cast<int*>(out), 1); }
__global__ void floatAtomics(const float*, float* out) { atomicAdd(out + threadIdx.x % 16, 1.0f); }
__global__ void asyncCopies(const float* in, float* out) {
  __shared__ float4 tile[32];
  __pipeline_memcpy_async(&tile[threadIdx.x], in + 4 * threadIdx.x, 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  out[threadIdx.x] = tile[threadIdx.x].x;
}

// ---- Shared memory, one warp: each writes a row at a time, and reads as its name says

template <class T, int kPitch, class Index>
__device__ float readShared(const float* in, Index index) {
  __shared__ __align__(16) float tile[32 * 33];
  for (int i = threadIdx.x; i < 32 * 33; i += 32) tile[i] = in[i];
  __syncthreads();
  const T value = reinterpret_cast<const T*>(tile)[index(static_cast<int>(threadIdx.x))];
  float first;
  memcpy(&first, &value, sizeof first);
  return first;
}
#define SHARED(name, T, index)                                            \
  __global__ void name(const float* in, float* out) {                     \
    out[threadIdx.x] = readShared<T, 0>(in, [](int i) { return index; }); \
  }
SHARED(row, float, i)
SHARED(column, float, 32 * i)
SHARED(paddedColumn, float, 33 * i)
SHARED(broadcast, float, 0 * i)
SHARED(sharedStride2, float, 2 * i)
SHARED(sharedStride4, float, 4 * i)
SHARED(rowOfFloat2, float2, i)
SHARED(rowOfFloat4, float4, i)
SHARED(everyOtherFloat4, float4, 2 * i)
SHARED(pairsOfFloat4, float4, i / 2)

// ---- Many blocks

__global__ void copyBlocks(const float* in, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i];
}

// ---- Faults

__global__ void raceBetweenWarps(const float* in, float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[63 - threadIdx.x];  // a barrier is missing
}
__global__ void raceInWarp(const float* in, float* out) {
  __shared__ float tile[32];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[31 - threadIdx.x];  // a __syncwarp() is missing
}
__global__ void orderedInWarp(const float* in, float* out) {
  __shared__ float tile[32];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = tile[31 - threadIdx.x];
}
__global__ void raceOfWrites(const float* in, float* out) { out[threadIdx.x / 2] = in[threadIdx.x]; }
__global__ void pastEnd(const float* in, float* out) { out[threadIdx.x] = in[kWords + threadIdx.x]; }
__global__ void beforeStart(const float* in, float* out) { (out - 8)[threadIdx.x] = in[threadIdx.x]; }
__global__ void pastShared(const float* in, float* out) {
  __shared__ float tile[32];
  float* far = tile;
  far[threadIdx.x + 1] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = far[threadIdx.x];
}
__global__ void unwrittenDevice(const float* in, float* out) { out[threadIdx.x] += in[threadIdx.x]; }
__global__ void unwrittenShared(const float* in, float* out) {
  __shared__ float tile[32];
  if (threadIdx.x != 7) tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

// Taken before main, and so before --trace is read.
float* const early = [] {
  float* words = nullptr;
  return cudaMalloc(&words, kWords * sizeof(float)) == cudaSuccess ? words : nullptr;
}();

using Kernel = void (*)(const float*, float*);
struct Case {
  Kernel kernel;
  int blocks, threads;
};
#define ONE_WARP(name)     \
  {                        \
#name, { name, 1, 32 } \
  }
const std::map<std::string, Case> kCases = {ONE_WARP(stride0), ONE_WARP(stride1), ONE_WARP(stride2), ONE_WARP(stride8),
    ONE_WARP(stride32), ONE_WARP(misaligned), ONE_WARP(halfWarp), ONE_WARP(wholeFloat4), ONE_WARP(membersOfFloat4),
    ONE_WARP(doubles), ONE_WARP(twice), ONE_WARP(atomics), ONE_WARP(floatAtomics), ONE_WARP(asyncCopies), ONE_WARP(row),
    ONE_WARP(column), ONE_WARP(paddedColumn), ONE_WARP(broadcast), ONE_WARP(sharedStride2), ONE_WARP(sharedStride4),
    ONE_WARP(rowOfFloat2), ONE_WARP(rowOfFloat4), ONE_WARP(everyOtherFloat4), ONE_WARP(pairsOfFloat4),
    {"copyBlocks", {copyBlocks, 16, 256}}, {"copyManyBlocks", {copyBlocks, 10000, 256}},
    {"raceBetweenWarps", {raceBetweenWarps, 1, 64}}, ONE_WARP(raceInWarp), ONE_WARP(orderedInWarp),
    ONE_WARP(raceOfWrites), ONE_WARP(pastEnd), ONE_WARP(beforeStart), ONE_WARP(pastShared), ONE_WARP(unwrittenDevice),
    ONE_WARP(unwrittenShared), {"hostPointer", {stride1, 1, 32}}, {"allocatedBefore", {stride1, 1, 32}}};

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const auto found = kCases.find(argv[i]);
    if (found == kCases.end()) continue;
    const auto& [kernel, blocks, threads] = found->second;
    const size_t words = blocks > 16 ? static_cast<size_t>(blocks) * threads : kWords;
    float* in = nullptr;
    float* out = nullptr;
    const std::string host(words * sizeof(float), '\0');
    if (cudaMalloc(&in, words * sizeof(float)) != cudaSuccess) return 1;
    if (cudaMalloc(&out, words * sizeof(float)) != cudaSuccess) return 1;
    cudaMemcpy(in, host.data(), host.size(), cudaMemcpyHostToDevice);
    if (found->first == "atomics" || found->first == "floatAtomics") cudaMemset(out, 0, words * sizeof(float));
    const float* from = found->first == "hostPointer" ? reinterpret_cast<const float*>(host.data())
        : found->first == "allocatedBefore"           ? early
                                                      : in;
    kernel<<<blocks, threads>>>(from, out);
    cudaFree(in);
    cudaFree(out);
  }
  cudaFree(early);
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
