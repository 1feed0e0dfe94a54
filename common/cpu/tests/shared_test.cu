// SPDX-License-Identifier: MIT
// Dynamic shared memory and asynchronous copies to shared memory: what must work.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/expect.cuh"

namespace {

// ---- Dynamic shared memory ----------------------------------------------------------------------

template <class T>
__global__ void reverseDynamic(T* values) {
  extern __shared__ T mirror[];
  T* mine = values + blockIdx.x * blockDim.x;
  mirror[threadIdx.x] = mine[threadIdx.x];
  __syncthreads();
  mine[threadIdx.x] = mirror[blockDim.x - 1 - threadIdx.x];
}

template <class T>
void reversesEachBlock(int threads) {
  constexpr int kBlocks = 40;
  std::vector<T> values(kBlocks * threads);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i % 101);
  Buffer<T> buffer(values.size());
  buffer.upload(values);
  reverseDynamic<T><<<kBlocks, threads, threads * sizeof(T)>>>(buffer.data());
  EXPECT(cudaGetLastError() == cudaSuccess);
  for (int b = 0; b < kBlocks; ++b) {
    std::reverse(values.begin() + b * threads, values.begin() + (b + 1) * threads);
  }
  EXPECT(buffer.download() == values);
}

// Two names, one memory; and what a block leaves behind, the next does not find.
__global__ void seeDynamic(float* out) {
  extern __shared__ __align__(16) float4 vectors[];
  extern __shared__ float words[];
  out[2 * blockIdx.x] = words[5];
  vectors[1] = make_float4(1.0f, 2.0f, 3.0f, 4.0f);
  out[2 * blockIdx.x + 1] = words[5];
}

void dynamicMemoryIsOnePieceAndPoisoned() {
  constexpr int kBlocks = 50;
  Buffer<float> out(2 * kBlocks);
  seeDynamic<<<kBlocks, 1, 32>>>(out.data());
  const std::vector<float> got = out.download();
  int wrong = 0;
  for (int b = 0; b < kBlocks; ++b) {
    wrong += !std::isnan(got[2 * b]) || got[2 * b + 1] != 2.0f;
  }
  EXPECT(wrong == 0);
}

__global__ void fillDynamic(int bytes, int* out) {
  __shared__ int fixed[256];
  extern __shared__ char all[];
  fixed[threadIdx.x] = 1;
  for (int i = threadIdx.x; i < bytes; i += 256) all[i] = 1;
  __syncthreads();
  if (threadIdx.x == 0) *out = fixed[255] + all[bytes - 1];
}

void sizesHaveTheLimitsOfAT4() {
  constexpr int kFixed = 1024;  // what fillDynamic declares
  const auto launch = [](int bytes) {
    Buffer<int> out(1);
    fillDynamic<<<1, 256, bytes>>>(bytes, out.data());
    const cudaError_t error = cudaGetLastError();
    EXPECT(error != cudaSuccess || out.download()[0] == 2);
    return error;
  };
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(fillDynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  cudaFuncAttributes attributes;
  EXPECT(cudaFuncGetAttributes(&attributes, fillDynamic) == cudaSuccess);
  EXPECT(attributes.sharedSizeBytes == kFixed);
  EXPECT(attributes.maxDynamicSharedSizeBytes == (48 << 10) - kFixed);
  EXPECT(launch((48 << 10) - kFixed) == cudaSuccess);
  EXPECT(launch((48 << 10) - kFixed + 1) == cudaErrorInvalidValue);
  EXPECT(allow((64 << 10) - kFixed + 1) == cudaErrorInvalidValue);
  EXPECT(allow(-1) == cudaErrorInvalidValue);
  EXPECT(launch((48 << 10) - kFixed + 1) == cudaErrorInvalidValue);  // nothing changed
  EXPECT(allow((64 << 10) - kFixed) == cudaSuccess);
  EXPECT(launch((64 << 10) - kFixed) == cudaSuccess);
  EXPECT(launch((64 << 10) - kFixed + 1) == cudaErrorInvalidValue);
  EXPECT(allow(100) == cudaSuccess);  // also downwards
  EXPECT(launch(101) == cudaErrorInvalidValue);
  EXPECT(cudaFuncGetAttributes(&attributes, fillDynamic) == cudaSuccess);
  EXPECT(attributes.maxDynamicSharedSizeBytes == 100);
  EXPECT(
      cudaFuncSetAttribute(fillDynamic, cudaFuncAttributePreferredSharedMemoryCarveout, 101) == cudaErrorInvalidValue);
  EXPECT(cudaFuncSetAttribute(fillDynamic, cudaFuncAttributePreferredSharedMemoryCarveout, 100) == cudaSuccess);
  cudaGetLastError();
}

void occupancyCountsSharedMemory() {
  const auto blocks = [](int threads, size_t dynamicBytes) {
    int count = -1;
    EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, reverseDynamic<int>, threads, dynamicBytes) ==
        cudaSuccess);
    return count;
  };
  EXPECT(blocks(256, 0) == 4);
  EXPECT(blocks(33, 0) == 16);
  EXPECT(blocks(128, 16 << 10) == 4);
  EXPECT(blocks(128, (16 << 10) + 1) == 3);
  EXPECT(blocks(128, 48 << 10) == 1);
  EXPECT(blocks(128, (48 << 10) + 1) == 0);  // a launch would be refused
  EXPECT(blocks(1025, 0) == 0);
  int count = -1;
  // The 1024 bytes that it declares count too.
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, fillDynamic, 32, 31 << 10) == cudaSuccess);
  EXPECT(count == 0);  // its limit is 100 bytes by now
  EXPECT(cudaFuncSetAttribute(fillDynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 << 10) == cudaSuccess);
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, fillDynamic, 32, 31 << 10) == cudaSuccess);
  EXPECT(count == 2);
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, fillDynamic, 32, (31 << 10) + 1) == cudaSuccess);
  EXPECT(count == 1);
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, fillDynamic, 0, 0) == cudaErrorInvalidValue);
  cudaGetLastError();
}

// ---- Asynchronous copies ------------------------------------------------------------------------

// Sums columns of a matrix with kDepth rows in flight.
template <int kDepth>
__global__ void sumPipelined(const float4* in, float4* out, int rows) {
  __shared__ float4 stages[kDepth][64];
  const int mine = threadIdx.x;
  const int column = blockIdx.x * 64 + mine;
  const int pitch = gridDim.x * 64;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int row = 0; row < kDepth - 1; ++row) {
    if (row < rows) __pipeline_memcpy_async(&stages[row][mine], &in[row * pitch + column], 16);
    __pipeline_commit();
  }
  for (int row = 0; row < rows; ++row) {
    const int next = row + kDepth - 1;
    if (next < rows) {
      __pipeline_memcpy_async(&stages[next % kDepth][mine], &in[next * pitch + column], 16);
    }
    __pipeline_commit();
    __pipeline_wait_prior(kDepth - 1);
    const float4 value = stages[row % kDepth][mine];
    sum = make_float4(sum.x + value.x, sum.y + value.y, sum.z + value.z, sum.w + value.w);
  }
  out[column] = sum;
}

template <int kDepth>
void pipelinesOfAnyDepthSum() {
  constexpr int kRows = 11;
  constexpr int kColumns = 5 * 64;
  std::vector<float4> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = static_cast<float>(i % 1009);
    values[i] = make_float4(x, x + 1, x + 2, x + 3);
  }
  Buffer<float4> in(values.size());
  Buffer<float4> out(kColumns);
  in.upload(values);
  sumPipelined<kDepth><<<5, 64>>>(in.data(), out.data(), kRows);
  const std::vector<float4> got = out.download();
  int wrong = 0;
  for (int c = 0; c < kColumns; ++c) {
    float want = 0;
    for (int r = 0; r < kRows; ++r) want += values[r * kColumns + c].x;
    wrong += got[c].x != want || got[c].w != want + 3 * kRows;
  }
  EXPECT(wrong == 0);
}

// What a destination holds before the wait, after a wait that leaves the batch pending, after one
// that does not, and where nothing was committed.
__global__ void watchCopies(const unsigned* in, unsigned* out) {
  __shared__ unsigned words[4];
  words[0] = words[1] = 7;
  __pipeline_memcpy_async(&words[0], &in[0], 4);
  out[0] = words[0];
  __pipeline_commit();
  __pipeline_memcpy_async(&words[1], &in[1], 4);
  __pipeline_commit();
  __pipeline_wait_prior(2);
  out[1] = words[0];
  __pipeline_wait_prior(1);
  out[2] = words[0];
  out[3] = words[1];
  __pipeline_memcpy_async(&words[2], &in[2], 4);
  __pipeline_wait_prior(0);
  out[4] = words[1];
  out[5] = words[2];
  __pipeline_commit();
  for (int i = 0; i < 8; ++i) __pipeline_commit();  // batches of nothing
  __pipeline_wait_prior(9);  // the hardware leaves at most 8
  out[6] = words[2];
}

void copiesArriveWhenTheyAreWaitedFor() {
  Buffer<unsigned> in(3);
  Buffer<unsigned> out(7);
  in.upload({11, 12, 13});
  watchCopies<<<1, 1>>>(in.data(), out.data());
  const unsigned unknown = 0xffffffffu;
  EXPECT(out.download() == (std::vector<unsigned>{unknown, unknown, 11, unknown, 12, unknown, 13}));
}

__global__ void fillWithZeros(const unsigned char* in, unsigned char* out) {
  extern __shared__ __align__(16) unsigned char bytes[];
  __pipeline_memcpy_async(bytes, in, 16, 5);
  __pipeline_memcpy_async(bytes + 16, in + (1 << 20), 8, 8);  // outside: nothing is read
  __pipeline_memcpy_async(bytes + 24, in + 4, 4, 0);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  for (int i = 0; i < 28; ++i) out[i] = bytes[i];
}

void zerosFillTheEnd() {
  Buffer<unsigned char> in(16);
  Buffer<unsigned char> out(28);
  std::vector<unsigned char> values(16);
  for (int i = 0; i < 16; ++i) values[i] = static_cast<unsigned char>(100 + i);
  in.upload(values);
  fillWithZeros<<<1, 1, 28>>>(in.data(), out.data());
  std::vector<unsigned char> want(28);
  std::copy(values.begin(), values.begin() + 11, want.begin());
  std::copy(values.begin() + 4, values.begin() + 8, want.begin() + 24);
  EXPECT(out.download() == want);
}

}  // namespace

int main() {
  reversesEachBlock<float>(96);
  reversesEachBlock<double>(1000);
  reversesEachBlock<char>(7);
  dynamicMemoryIsOnePieceAndPoisoned();
  sizesHaveTheLimitsOfAT4();
  occupancyCountsSharedMemory();
  pipelinesOfAnyDepthSum<1>();
  pipelinesOfAnyDepthSum<2>();
  pipelinesOfAnyDepthSum<5>();
  copiesArriveWhenTheyAreWaitedFor();
  zerosFillTheEnd();
  return report();
}
