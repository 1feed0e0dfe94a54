// SPDX-License-Identifier: MIT
// Blocks that share words of device memory: test_tsan.py builds this with ThreadSanitizer and knows which of them race.
// Run as: races CASE

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

constexpr int kThreads = 64;

// ---- Races

__global__ void sumOfAll(int* words) {
  if (threadIdx.x == 0) words[0] += 1;
}
__global__ void lastWins(int* words) { words[threadIdx.x] = static_cast<int>(blockIdx.x + blockIdx.y); }
// Each block reads the first word of the next, which may have been written or not.
__global__ void readsNeighbour(int* words) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  __syncthreads();
  const int right = words[(i + 1) % (gridDim.x * kThreads)];
  __syncthreads();
  words[i] = right + 1;
}
__global__ void plainBesideAtomic(int* words) {
  if (threadIdx.x == 0 && blockIdx.x != 1) atomicAdd(words, 1);
  if (threadIdx.x == 0 && blockIdx.x == 1) words[0] = 0;
}

// ---- None

__global__ void sumOfAllAtomic(int* words) { atomicAdd(words, 1); }
__global__ void floatSumAtomic(int* words) { atomicAdd(reinterpret_cast<float*>(words), 1.0f); }
__global__ void eachItsOwn(int* words) {
  __shared__ int tile[kThreads];
  tile[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  words[blockIdx.x * kThreads + threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

struct Case {
  const char* name;
  void (*kernel)(int*);
  dim3 grid;
};
const Case kCases[] = {{"sumOfAll", sumOfAll, 2}, {"lastWins", lastWins, dim3(1, 2)},
    {"readsNeighbour", readsNeighbour, 3}, {"plainBesideAtomic", plainBesideAtomic, 2},
    {"sumOfAllAtomic", sumOfAllAtomic, 1000}, {"floatSumAtomic", floatSumAtomic, 100}, {"eachItsOwn", eachItsOwn, 16}};

int main(int argc, char** argv) {
  for (const Case& one : kCases) {
    if (argc != 2 || std::strcmp(argv[1], one.name) != 0) continue;
    int* words = nullptr;
    if (cudaMalloc(&words, 16 * kThreads * sizeof(int)) != cudaSuccess) return 1;
    cudaMemset(words, 0, 16 * kThreads * sizeof(int));
    one.kernel<<<one.grid, kThreads>>>(words);
    one.kernel<<<one.grid, kThreads>>>(words);  // launches are ordered
    cudaFree(words);
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
  }
  std::fprintf(stderr, "usage: races CASE\n");
  return 2;
}
