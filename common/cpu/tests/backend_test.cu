// SPDX-License-Identifier: MIT
// What the CPU backend must do right. Each check is a function; the program prints how many passed.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/expect.cuh"

namespace {

// ---- Indices and launches -----------------------------------------------------------------------

__global__ void writeIndices(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = block * 1000 + thread;
}

void everyThreadOfEveryBlockRunsOnce() {
  const dim3 grid(3, 5, 2);
  const dim3 block(4, 3, 7);
  Buffer<int> out(30 * 84);
  writeIndices<<<grid, block>>>(out.data());
  EXPECT(cudaGetLastError() == cudaSuccess);
  const std::vector<int> got = out.download();
  int wrong = 0;
  for (int i = 0; i < 30 * 84; ++i) wrong += got[i] != i / 84 * 1000 + i % 84;
  EXPECT(wrong == 0);
}

__global__ void nothing() {}

void badLaunchesAreRefused() {
  EXPECT(cudaGetLastError() == cudaSuccess);
  nothing<<<1, 1025>>>();
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaSuccess);
  nothing<<<0, 32>>>();
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  nothing<<<1, dim3(1, 1, 65)>>>();
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  nothing<<<dim3(1, 65536), 1>>>();
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  nothing<<<1, 32, (48 << 10) + 1>>>();
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  nothing<<<1, dim3(32, 32), 48 << 10, nullptr>>>();
  EXPECT(cudaGetLastError() == cudaSuccess);
}

// ---- Barriers and shared memory -----------------------------------------------------------------

template <class T, int kThreads>
__global__ void reverse(T* values) {
  __shared__ T mirror[kThreads];
  mirror[threadIdx.x] = values[blockIdx.x * kThreads + threadIdx.x];
  __syncthreads();
  values[blockIdx.x * kThreads + threadIdx.x] = mirror[kThreads - 1 - threadIdx.x];
}

template <class T, int kThreads>
void reversesEachBlock() {
  constexpr int kBlocks = 50;
  Buffer<T> buffer(kBlocks * kThreads);
  std::vector<T> values(kBlocks * kThreads);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i % 8191);
  buffer.upload(values);
  reverse<T, kThreads><<<kBlocks, kThreads>>>(buffer.data());
  const std::vector<T> got = buffer.download();
  for (int b = 0; b < kBlocks; ++b) {
    std::reverse(values.begin() + b * kThreads, values.begin() + (b + 1) * kThreads);
  }
  EXPECT(got == values);
}

__global__ void sumBlock(const int* in, int* out) {
  __shared__ int sums[256];
  sums[threadIdx.x] = in[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  for (unsigned step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

void reducesWithManyBarriers() {
  constexpr int kBlocks = 200;
  std::vector<int> values(kBlocks * 256);
  std::vector<int> want(kBlocks);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int>(i * 7919 % 1009);
    want[i / 256] += values[i];
  }
  Buffer<int> in(values.size());
  Buffer<int> out(kBlocks);
  in.upload(values);
  sumBlock<<<kBlocks, 256>>>(in.data(), out.data());
  EXPECT(out.download() == want);
}

__global__ void voteInBlock(int* out) {
  out[threadIdx.x * 3] = __syncthreads_count(threadIdx.x % 3 == 0);
  out[threadIdx.x * 3 + 1] = __syncthreads_and(threadIdx.x < 99);
  out[threadIdx.x * 3 + 2] = __syncthreads_or(threadIdx.x == 41);
}

void blockVotesReachEveryThread() {
  Buffer<int> out(300);
  voteInBlock<<<1, 100>>>(out.data());
  const std::vector<int> got = out.download();
  int wrong = 0;
  for (int i = 0; i < 100; ++i) {
    wrong += got[i * 3] != 34 || got[i * 3 + 1] != 0 || got[i * 3 + 2] != 1;
  }
  EXPECT(wrong == 0);
}

__global__ void readUnwritten(float* out, int* sums) {
  __shared__ float never[64];
  if (sums[0] == 12345) never[threadIdx.x] = 0;  // it never is
  out[blockIdx.x * 64 + threadIdx.x] = never[threadIdx.x];
}

void memoryStartsPoisoned() {
  Buffer<float> out(64 * 20);
  Buffer<int> untouched(1);
  readUnwritten<<<20, 64>>>(out.data(), untouched.data());
  int numbers = 0;
  for (float value : out.download()) numbers += !std::isnan(value);
  EXPECT(numbers == 0);
  EXPECT(untouched.download()[0] == -1);
}

// ---- Warps --------------------------------------------------------------------------------------

__global__ void exchange(int* out) {
  const int lane = threadIdx.x % 32;
  int* mine = out + (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  mine[0] = __shfl_sync(0xffffffffu, lane * 10, 5);
  mine[1] = __shfl_up_sync(0xffffffffu, lane, 3);
  mine[2] = __shfl_down_sync(0xffffffffu, lane, 3, 16);
  mine[3] = __shfl_xor_sync(0xffffffffu, lane, 9);
  mine[4] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 2));
  mine[5] = __any_sync(0xffffffffu, lane == 31) * 2 + __all_sync(0xffffffffu, lane < 31);
  // Two halves that diverge, each with its own mask.
  if (lane < 16) {
    mine[6] = __shfl_xor_sync(0x0000ffffu, lane, 1);
  } else {
    mine[6] = __shfl_xor_sync(0xffff0000u, lane, 2);
  }
  __syncwarp();
  mine[7] = static_cast<int>(__shfl_sync(0xffffffffu, 0.5 * lane, lane + 1, 8) * 2);
}

void warpsExchange() {
  constexpr int kThreads = 96;
  constexpr int kBlocks = 40;
  Buffer<int> out(kBlocks * kThreads * 8);
  exchange<<<kBlocks, kThreads>>>(out.data());
  const std::vector<int> got = out.download();
  int wrong = 0;
  for (int i = 0; i < kBlocks * kThreads; ++i) {
    const int lane = i % 32;
    const int want[8] = {50, lane < 3 ? lane : lane - 3, lane % 16 + 3 > 15 ? lane : lane + 3, lane ^ 9,
        static_cast<int>(0xaaaaaaaau), 2, lane < 16 ? lane ^ 1 : lane ^ 2, lane / 8 * 8 + (lane + 1) % 8};
    wrong += std::memcmp(want, &got[i * 8], sizeof want) != 0;
  }
  EXPECT(wrong == 0);
}

__global__ void shuffleAfterReturn(int* out) {
  if (threadIdx.x >= 20) return;
  out[threadIdx.x] = __shfl_down_sync(0xffffffffu, static_cast<int>(threadIdx.x), 4);
}

void returnedLanesAreNotWaitedForAndGivePoison() {
  Buffer<int> out(20);
  shuffleAfterReturn<<<1, 32>>>(out.data());
  const std::vector<int> got = out.download();
  int wrong = 0;
  for (int i = 0; i < 20; ++i) wrong += got[i] != (i < 16 ? i + 4 : -1);
  EXPECT(wrong == 0);
}

// ---- Order --------------------------------------------------------------------------------------

__global__ void noteOrder(unsigned* counter, unsigned* before, unsigned* after) {
  before[threadIdx.x] = atomicAdd(counter, 1u);
  __syncthreads();
  after[threadIdx.x] = atomicAdd(counter + 1, 1u);
}

void threadsRunShuffled() {
  Buffer<unsigned> counter(2);
  Buffer<unsigned> before(128);
  Buffer<unsigned> after(128);
  counter.upload({0, 0});
  noteOrder<<<1, 128>>>(counter.data(), before.data(), after.data());
  const std::vector<unsigned> first = before.download();
  const std::vector<unsigned> second = after.download();
  EXPECT(!std::is_sorted(first.begin(), first.end()));
  EXPECT(!std::is_sorted(second.begin(), second.end()));
  EXPECT(first != second);
  // One line that test_faults.py compares between seeds.
  std::printf("order");
  for (unsigned position : first) std::printf(" %u", position);
  for (unsigned position : second) std::printf(" %u", position);
  std::printf("\n");
}

// ---- Arithmetic and atomics ---------------------------------------------------------------------

__global__ void addAtomically(int* a, unsigned* b, unsigned long long* c, float* d) {
  atomicAdd(a, -1);
  atomicAdd(b, 2u);
  atomicAdd(c, 1ull << 33);
  atomicAdd(d, 0.5f);
}

__global__ void exchangeAtomically(unsigned* word, unsigned* got) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  got[i] = atomicExch(word, i);
}

void atomicsLoseNothing() {
  Buffer<int> a(1);
  Buffer<unsigned> b(1);
  Buffer<unsigned long long> c(1);
  Buffer<float> d(1);
  a.upload({0});
  b.upload({0});
  c.upload({0});
  d.upload({0});
  addAtomically<<<1000, 128>>>(a.data(), b.data(), c.data(), d.data());
  Buffer<unsigned> word(1);
  Buffer<unsigned> got(12800);
  word.upload({12800});
  exchangeAtomically<<<100, 128>>>(word.data(), got.data());
  std::vector<unsigned> all = got.download();  // each value that was put in comes out once, but the last
  all.push_back(word.download()[0]);
  std::sort(all.begin(), all.end());
  unsigned wrong = 0;
  for (unsigned i = 0; i < all.size(); ++i) wrong += all[i] != i;
  EXPECT(wrong == 0);
  EXPECT(a.download()[0] == -128000);
  EXPECT(b.download()[0] == 256000);
  EXPECT(c.download()[0] == 128000ull << 33);
  EXPECT(d.download()[0] == 64000.0f);
}

__global__ void hints(const float4* in, float4* out, long long* clock) {
  const long long start = clock64();
  float4 value = __ldg(in);
  value.y = __fmaf_rn(1.0f + 0x1p-12f, 1.0f + 0x1p-12f, -1.0f);
  __stcs(out, value);
  clock[0] = clock64() - start;
}

void vectorsHintsAndClock() {
  static_assert(alignof(float4) == 16 && sizeof(float4) == 16, "as the hardware loads it");
  static_assert(alignof(float2) == 8 && alignof(double2) == 16 && sizeof(float3) == 12, "");
  Buffer<float4> in(1);
  Buffer<float4> out(1);
  Buffer<long long> clock(1);
  in.upload({make_float4(1, 2, 3, 4)});
  hints<<<1, 1>>>(in.data(), out.data(), clock.data());
  const float4 got = out.download()[0];
  EXPECT(got.x == 1 && got.z == 3 && got.w == 4);
  EXPECT(got.y == 0x1p-11f + 0x1p-24f);  // 0x1p-11f if the product were rounded
  EXPECT(clock.download()[0] >= 0);
}

// ---- The host's calls ---------------------------------------------------------------------------

void copiesStayInsideTheirAllocations() {
  Buffer<char> a(1000);
  Buffer<char> b(1000);
  char host[2000] = {};
  EXPECT(cudaMemcpy(a.data(), host, 1001, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(a.data() + 1, host, 1000, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(host, a.data() - 1, 10, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(host, a.data(), 10, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(b.data(), a.data(), 1000, cudaMemcpyDeviceToDevice) == cudaSuccess);
  EXPECT(cudaMemcpy(host, a.data() + 990, 10, cudaMemcpyDefault) == cudaSuccess);
  EXPECT(cudaMemset(a.data(), 0, 1001) == cudaErrorInvalidValue);
  EXPECT(cudaMemset(host, 0, 10) == cudaErrorInvalidValue);
  EXPECT(cudaMemset(a.data() + 999, 0, 1) == cudaSuccess);
  EXPECT(cudaFree(a.data() + 1) == cudaErrorInvalidValue);
  EXPECT(cudaFree(nullptr) == cudaSuccess);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
}

void memoryIsCounted() {
  size_t before = 0;
  size_t during = 0;
  size_t after = 0;
  size_t total = 0;
  EXPECT(cudaMemGetInfo(&before, &total) == cudaSuccess);
  {
    Buffer<char> buffer(12345);
    cudaMemGetInfo(&during, &total);
    EXPECT(reinterpret_cast<uintptr_t>(buffer.data()) % 256 == 0);
  }
  cudaMemGetInfo(&after, &total);
  EXPECT(before - during == 12345);
  EXPECT(after == before);
  void* tooMuch = nullptr;
  EXPECT(cudaMalloc(&tooMuch, before + 1) == cudaErrorMemoryAllocation);
  EXPECT(tooMuch == nullptr);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
}

void streamsAndEvents() {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  float milliseconds = -1;
  EXPECT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  EXPECT(cudaEventCreate(&start) == cudaSuccess);
  EXPECT(cudaEventCreate(&stop) == cudaSuccess);
  EXPECT(cudaEventElapsedTime(&milliseconds, start, stop) == cudaErrorInvalidResourceHandle);
  EXPECT(cudaEventRecord(start, stream) == cudaSuccess);
  nothing<<<10, 32, 0, stream>>>();
  EXPECT(cudaEventRecord(stop, stream) == cudaSuccess);
  EXPECT(cudaEventSynchronize(stop) == cudaSuccess);
  EXPECT(cudaEventElapsedTime(&milliseconds, start, stop) == cudaSuccess);
  EXPECT(milliseconds > 0);
  EXPECT(cudaEventDestroy(start) == cudaSuccess);
  EXPECT(cudaEventDestroy(stop) == cudaSuccess);
  EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
  EXPECT(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  EXPECT(cudaEventRecord(stop) == cudaErrorInvalidResourceHandle);
  EXPECT(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

void theDeviceIsAT4() {
  cudaDeviceProp properties;
  int l2 = 0;
  EXPECT(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  EXPECT(std::strcmp(properties.name, "CPU, sized as a T4") == 0);
  EXPECT(properties.multiProcessorCount == 40 && properties.major == 7 && properties.minor == 5);
  EXPECT(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0) == cudaSuccess);
  EXPECT(l2 == 4 << 20 && properties.l2CacheSize == l2);
  EXPECT(cudaSetDevice(1) == cudaErrorInvalidDevice);
  EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);
  cudaFuncAttributes attributes;
  EXPECT(cudaFuncGetAttributes(&attributes, reverse<float, 64>) == cudaSuccess);
  EXPECT(attributes.binaryVersion == 75);
  int blocks = 0;
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 256, 0) == cudaSuccess);
  EXPECT(blocks == 4);
  EXPECT(std::strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue") == 0);
  EXPECT(std::strcmp(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument") == 0);
}

}  // namespace

int main() {
  everyThreadOfEveryBlockRunsOnce();
  badLaunchesAreRefused();
  reversesEachBlock<float, 64>();
  reversesEachBlock<double, 1000>();
  reversesEachBlock<char, 1>();
  reducesWithManyBarriers();
  blockVotesReachEveryThread();
  memoryStartsPoisoned();
  warpsExchange();
  returnedLanesAreNotWaitedForAndGivePoison();
  threadsRunShuffled();
  atomicsLoseNothing();
  vectorsHintsAndClock();
  copiesStayInsideTheirAllocations();
  memoryIsCounted();
  streamsAndEvents();
  theDeviceIsAT4();
  return report();
}
