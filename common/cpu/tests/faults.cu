// SPDX-License-Identifier: MIT
// Programs with one fault each, picked by name: the backend must find every one. Those that it
// finds through a wrong result print what a day would, and exit 1. test_faults.py drives them.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kThreads = 64;
constexpr int kBlocks = 6;
constexpr int kCount = kThreads * kBlocks;

// Thread 7 of block 2 touches `index`, all others their own element.
__global__ void writeAt(float* data, long index) {
  const long own = blockIdx.x * blockDim.x + threadIdx.x;
  data[blockIdx.x == 2 && threadIdx.x == 7 ? index : own] = 1.0f;
}

__global__ void readAt(const float* data, float* out, long index) {
  const long own = blockIdx.x * blockDim.x + threadIdx.x;
  out[own] = data[blockIdx.x == 2 && threadIdx.x == 7 ? index : own];
}

__global__ void writeNull(float* data) {
  if (threadIdx.x == 3) data[0] = 1.0f;
}

template <bool kBarrier>
__global__ void mirror(float* data) {
  __shared__ float tile[kThreads];
  float* mine = data + blockIdx.x * kThreads;
  tile[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kBarrier) __syncthreads();
  mine[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// Reads one element of the tile that nobody wrote.
__global__ void mirrorShort(float* data) {
  __shared__ float tile[kThreads];
  float* mine = data + blockIdx.x * kThreads;
  if (threadIdx.x > 0) tile[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  mine[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

__global__ void returnBeforeBarrier(float* data) {
  if (blockIdx.x == 1 && threadIdx.x == 5) return;
  __syncthreads();
  data[blockIdx.x * kThreads + threadIdx.x] = 1.0f;
}

__global__ void barrierInBranch(float* data) {
  if (blockIdx.x == 1 && threadIdx.x == 5) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  data[blockIdx.x * kThreads + threadIdx.x] = 1.0f;
}

__global__ void warpAgainstBarrier(float* data) {
  float value = 1.0f;
  if (blockIdx.x != 1 || threadIdx.x != 5) value = __shfl_xor_sync(0xffffffffu, value, 1);
  __syncthreads();
  data[blockIdx.x * kThreads + threadIdx.x] = value;
}

__global__ void differentMasks(float* data) {
  const unsigned mask = blockIdx.x == 1 && threadIdx.x == 5 ? 0x000000ffu : 0xffffffffu;
  data[blockIdx.x * kThreads + threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
}

__global__ void maskWithoutCaller(float* data) {
  const unsigned mask = blockIdx.x == 1 && threadIdx.x == 5 ? ~(1u << 5) : 0xffffffffu;
  data[blockIdx.x * kThreads + threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
}

__global__ void deepStack(float* data, int depth) {
  volatile float hungry[32 << 10];
  for (int i = depth; i < 32 << 10; ++i) hungry[i] = data[0];
  data[threadIdx.x] = hungry[depth];
}

// Thread 7 of block 2 touches byte `offset` of the dynamic shared memory, all others their own.
__global__ void writeDynamicAt(float* data, long offset) {
  extern __shared__ char bytes[];
  float* mine = reinterpret_cast<float*>(bytes) + threadIdx.x;
  if (blockIdx.x == 2 && threadIdx.x == 7) mine = reinterpret_cast<float*>(bytes + offset);
  *mine = 1.0f;
  data[blockIdx.x * kThreads + threadIdx.x] = 1.0f;
}

__global__ void readDynamicAt(float* data, long offset) {
  extern __shared__ char bytes[];
  const bool other = blockIdx.x == 2 && threadIdx.x == 7;
  const long own = threadIdx.x * sizeof(float);
  *reinterpret_cast<float*>(bytes + own) = 1.0f;
  data[blockIdx.x * kThreads + threadIdx.x] = *reinterpret_cast<const float*>(bytes + (other ? offset : own));
}

// Tiles come by asynchronous copies, kStages - 1 ahead; each thread reads what another copied. The
// steps that make it right can be left out one by one.
enum class Without { kNothing, kWait, kBarrierAfterWait, kBarrierBeforeCopy };
template <Without kWithout>
__global__ void sumTiles(const float* tiles, float* sums) {
  constexpr int kStages = 3;
  __shared__ float stages[kStages][kThreads];
  const int thread = threadIdx.x;
  const auto start = [&](int tile) {
    if (tile < kBlocks) {
      __pipeline_memcpy_async(&stages[tile % kStages][thread], &tiles[tile * kThreads + thread], 4);
    }
    __pipeline_commit();
  };
  for (int tile = 0; tile < kStages - 1; ++tile) start(tile);
  float sum = 0;
  for (int tile = 0; tile < kBlocks; ++tile) {
    if (kWithout == Without::kBarrierBeforeCopy) start(tile + kStages - 1);
    if (kWithout != Without::kWait) __pipeline_wait_prior(kStages - 2);
    if (kWithout != Without::kBarrierAfterWait) __syncthreads();
    if (kWithout != Without::kBarrierBeforeCopy) start(tile + kStages - 1);
    sum += stages[tile % kStages][kThreads - 1 - thread];
  }
  __pipeline_wait_prior(0);
  sums[blockIdx.x * kThreads + thread] = sum;
}

enum class BadCopy { kSize, kZeros, kAlignment, kFromShared, kFromPastEnd, kToDevice, kPastShared, kNoWait };
__global__ void copyBadly(BadCopy how, const float* data, float* out) {
  extern __shared__ float tile[];  // 8 of them
  const bool bad = blockIdx.x == 2 && threadIdx.x == 7;
  float* to = tile + threadIdx.x % 8;
  const float* from = data + threadIdx.x;
  size_t bytes = 4;
  size_t zeros = 0;
  if (bad) {
    if (how == BadCopy::kSize) bytes = 12;
    if (how == BadCopy::kZeros) zeros = 5;
    if (how == BadCopy::kAlignment) bytes = 8;
    if (how == BadCopy::kFromShared) from = tile;
    if (how == BadCopy::kFromPastEnd) from = data + kCount - 1;
    if (how == BadCopy::kToDevice) to = out;
    if (how == BadCopy::kPastShared) to = tile + 8;
  }
  __pipeline_memcpy_async(to, from, bytes, zeros);
  __pipeline_commit();
  if (!bad || how != BadCopy::kNoWait) __pipeline_wait_prior(0);
}

// The check of a day: every element as wanted, NaN included.
int compare(const float* device, const std::vector<float>& want, const char* kernel) {
  std::vector<float> got(want.size());
  if (cudaMemcpy(got.data(), device, got.size() * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess) {
    return 3;
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    std::printf("%s: element %zu: got %.9g, want %.9g\n", kernel, i, got[i], want[i]);
    return 1;
  }
  return 0;
}

int run(const std::string& fault) {
  float* data = nullptr;
  float* out = nullptr;
  // 4 bytes short of a multiple of 256, so that slack lies between the end and the guard.
  const long count = kCount - 1;
  if (cudaMalloc(&data, count * sizeof(float)) != cudaSuccess ||
      cudaMalloc(&out, kCount * sizeof(float)) != cudaSuccess) {
    return 3;
  }
  std::vector<float> mirrored(kCount);
  for (int i = 0; i < kCount; ++i) mirrored[i] = static_cast<float>(kThreads - 1 - i % kThreads);
  int result = 0;
  if (fault == "none" || fault == "skip") {
    mirror<true><<<kBlocks, kThreads>>>(out);
    result = compare(out, mirrored, "mirror");
  } else if (fault == "missing-barrier") {
    mirror<false><<<kBlocks, kThreads>>>(out);
    result = compare(out, mirrored, "mirror");
  } else if (fault == "unwritten-shared") {
    mirrorShort<<<kBlocks, kThreads>>>(out);
    result = compare(out, mirrored, "mirrorShort");
  } else if (fault == "unwritten-device") {
    readAt<<<kBlocks - 1, kThreads>>>(data, out, 0);
    result = compare(out, std::vector<float>(kCount, 0.0f), "readAt");
  } else if (fault == "write-past-end") {
    writeAt<<<kBlocks, kThreads>>>(out, kCount + 10);
  } else if (fault == "read-past-end") {
    readAt<<<kBlocks, kThreads>>>(out, out, kCount);
  } else if (fault == "write-before-start") {
    writeAt<<<kBlocks, kThreads>>>(out, -5000);
  } else if (fault == "write-slack-after") {
    writeAt<<<kBlocks - 1, kThreads>>>(data, count);
  } else if (fault == "write-slack-before") {
    writeAt<<<kBlocks, kThreads>>>(out, -2);
  } else if (fault == "use-after-free") {
    float* gone = nullptr;
    if (cudaMalloc(&gone, 4000) != cudaSuccess || cudaFree(gone) != cudaSuccess) return 3;
    readAt<<<kBlocks, kThreads>>>(gone, out, 7);
  } else if (fault == "null") {
    writeNull<<<kBlocks, kThreads>>>(nullptr);
  } else if (fault == "return-before-barrier") {
    returnBeforeBarrier<<<kBlocks, kThreads>>>(out);
  } else if (fault == "barrier-in-branch") {
    barrierInBranch<<<kBlocks, kThreads>>>(out);
  } else if (fault == "warp-against-barrier") {
    warpAgainstBarrier<<<kBlocks, kThreads>>>(out);
  } else if (fault == "different-masks") {
    differentMasks<<<kBlocks, kThreads>>>(out);
  } else if (fault == "mask-without-caller") {
    maskWithoutCaller<<<kBlocks, kThreads>>>(out);
  } else if (fault == "deep-stack") {
    deepStack<<<kBlocks, kThreads>>>(out, kBlocks);
  } else if (fault == "dynamic-past-end") {
    writeDynamicAt<<<kBlocks, kThreads, 256>>>(out, 256);
  } else if (fault == "dynamic-before-start") {
    writeDynamicAt<<<kBlocks, kThreads, 256>>>(out, -5000);
  } else if (fault == "dynamic-none") {
    writeDynamicAt<<<kBlocks, kThreads>>>(out, 0);
  } else if (fault == "dynamic-slack-after") {
    writeDynamicAt<<<kBlocks, kThreads, 260>>>(out, 264);
  } else if (fault == "dynamic-slack-before") {
    writeDynamicAt<<<kBlocks, kThreads, 256>>>(out, -8);
  } else if (fault == "dynamic-slack-read") {
    readDynamicAt<<<kBlocks, kThreads, 260>>>(out, 260);
    result = compare(out, std::vector<float>(kCount, 1.0f), "readDynamicAt");
  } else if (fault.rfind("pipeline-", 0) == 0) {
    std::vector<float> tiles(kCount);
    std::vector<float> want(kCount);
    for (int i = 0; i < kCount; ++i) tiles[i] = static_cast<float>(i);
    for (int i = 0; i < kCount; ++i) {
      for (int tile = 0; tile < kBlocks; ++tile) {
        want[i] += tiles[tile * kThreads + kThreads - 1 - i % kThreads];
      }
    }
    float* in = nullptr;
    if (cudaMalloc(&in, kCount * sizeof(float)) != cudaSuccess ||
        cudaMemcpy(in, tiles.data(), kCount * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess) {
      return 3;
    }
    if (fault == "pipeline-none") {
      sumTiles<Without::kNothing><<<kBlocks, kThreads>>>(in, out);
    } else if (fault == "pipeline-wait") {
      sumTiles<Without::kWait><<<kBlocks, kThreads>>>(in, out);
    } else if (fault == "pipeline-barrier") {
      sumTiles<Without::kBarrierAfterWait><<<kBlocks, kThreads>>>(in, out);
    } else if (fault == "pipeline-early-copy") {
      sumTiles<Without::kBarrierBeforeCopy><<<kBlocks, kThreads>>>(in, out);
    } else {
      return 2;
    }
    result = compare(out, want, "sumTiles");
    if (cudaFree(in) != cudaSuccess) return 3;
  } else if (fault.rfind("copy-", 0) == 0) {
    const char* const names[] = {"copy-size", "copy-zeros", "copy-alignment", "copy-from-shared", "copy-from-past-end",
        "copy-to-device", "copy-past-shared", "copy-no-wait"};
    for (int i = 0; i < 8; ++i) {
      if (fault == names[i]) copyBadly<<<kBlocks, kThreads, 32>>>(static_cast<BadCopy>(i), data, out);
    }
  } else if (fault == "leak-graph") {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    if (cudaStreamCreate(&stream) != cudaSuccess ||
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess ||
        cudaStreamEndCapture(stream, &graph) != cudaSuccess) {
      return 3;
    }
  } else if (fault == "leak") {
    return 0;
  } else {
    return 2;
  }
  if (cudaFree(data) != cudaSuccess || cudaFree(out) != cudaSuccess) return 3;
  return result;
}

// What a program asks before it allocates anything, under the states the device can pretend.
int describe() {
  int driver = -1;
  int count = -1;
  size_t free = 0;
  size_t total = 0;
  cudaFuncAttributes attributes{};
  cudaDriverGetVersion(&driver);
  const cudaError_t counted = cudaGetDeviceCount(&count);
  const cudaError_t found = cudaFuncGetAttributes(&attributes, mirror<true>);
  mirror<true><<<1, kThreads>>>(nullptr);
  const cudaError_t launched = cudaGetLastError();
  cudaMemGetInfo(&free, &total);
  std::printf("driver %d, count %d %s, attributes %s, launch %s, free %zu\n", driver, count, cudaGetErrorName(counted),
      cudaGetErrorName(found), cudaGetErrorName(launched), free);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string fault = argv[1];
  std::printf("running %s\n", argv[1]);
  return fault == "describe" ? describe() : run(fault);
}
