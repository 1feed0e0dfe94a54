// SPDX-License-Identifier: MIT
//
// Day 30: the roofline's lines, measured.
//
// What can this GPU reach, at every level of its memory and in every kind of arithmetic? Kernels that do one thing only
// answer it. Others under those lines show a flaw that day 49 repairs: by the bytes they ask for, some pass the line.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o roofline roofline.cu
//   run:   ./roofline            (--help lists the rest)

// common: includes
// end common: includes

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The blocks between `// common:` markers are the same in every day.

// common: lesson
// end common: lesson

// ---- Sizes and knobs

constexpr Program kProgram = {
    30, "roofline", "Day 30: what this GPU reaches at every level of memory, in every arithmetic."};

constexpr int kWarp = 32;
constexpr int kBlock = 256;
constexpr int kSmBlock = 1024;  // keeps an SM busy alone

// At least four times the L2, so that streams come from DRAM; and four times that, where a launch's ends do not count.
constexpr size_t kStreamBytes = size_t(256) << 20;
constexpr int kStreamOverL2 = 4;
constexpr int kLargeOverStream = 4;

constexpr int kSearchSamples = 5;  // to find the best shape; that one is then measured in full
constexpr int kSweepSizes = 100;  // before those that round to the same go
constexpr double kLevel = 0.9;  // rates this close are one plateau
constexpr int kLength = 128;  // of the loops, for milliseconds

// 8 chains cover an FMA's 4 clocks even with one warp per scheduler; in 1024 FMAs a trip the loop itself has no weight.
constexpr int kChains = 8;
constexpr int kUnroll = 128;
constexpr int kSeeds = 7;  // thread t starts as t % 7: a period that divides no block

// Every chain is x <- x * x + c. With c near -1.7 it neither settles nor grows, keeps all mantissa bits busy, and the
// CPU can follow it bit by bit. Half precision falls into cycles: odd ones with these c, so that half the steps show
// too.
constexpr float kMap = -1.74f;
constexpr unsigned kIntegerA = 1664525;  // integers: x <- x * a + c, of full period
constexpr unsigned kIntegerC = 1013904223;

constexpr int kSharedWords = 4096, kSharedStarts = 2048, kSharedStep = 64, kSharedUnroll = 8, kSharedHop = 128;
static_assert(kSharedStarts - kSharedStep + 31 * kWarp + 7 * kSharedHop + 4 <= kSharedWords, "the farthest read");

constexpr float kTriadScale = 3;
constexpr double kHeat = 0.125;  // exact in binary

// What an SM does per clock (CUDA C++ Programming Guide), to hold the measured against: multiply-adds, bytes of L1 or
// shared memory, dense FP16 tensor FLOP (0: cards differ).
struct PerClock {
  int capability, fp32, fp64, fp16, bf16, int32, bytes, tensor;
};
constexpr PerClock kPerClock[] = {
    {75, 64, 2, 128, 0, 64, 64, 1024},
    {80, 64, 32, 256, 128, 64, 128, 2048},
    {86, 128, 2, 128, 128, 64, 128, 0},
    {90, 128, 64, 256, 256, 64, 128, 4096},
    {100, 128, 64, 256, 256, 64, 128, 0},
    {120, 128, 2, 128, 128, 64, 128, 0},
};

constexpr int ceilDivide(int a, int b) { return (a + b - 1) / b; }

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

// Word i of a stream, a multiple of 2^-15: sums of a few are exact. Neighbours differ, and words 2^16 apart.
__host__ __device__ inline float pattern(unsigned i) { return (int((i ^ (i >> 16)) & 0xFFFF) - 32768) / 32768.0f; }

template <class T>
__global__ void fill(T* out, int n, int shift) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = pattern(i + shift);
}

__host__ __device__ inline unsigned bitsOf(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A checksum as a float that holds it exactly: all 32 bits count.
__host__ __device__ inline float folded(unsigned sum) { return float((sum ^ (sum >> 24)) & 0xFFFFFF); }

__device__ inline unsigned blockSum(unsigned sum) {
  __shared__ unsigned total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % kWarp == 0) atomicAdd(&total, sum);
  __syncthreads();
  return total;
}

// The SM clock while block 0 works.
__device__ inline void startClock(ClockSpan* span) {
  if (blockIdx.x + threadIdx.x == 0) *span = readClock();
}
__device__ inline void stopClock(ClockSpan* span) {
  if (blockIdx.x + threadIdx.x > 0) return;
  const ClockSpan end = readClock();
  *span = {end.cycles - span->cycles, end.nanoseconds - span->nanoseconds};
}

// Runs beside kernels whose blocks come and go.
__global__ void watchClock(ClockSpan* span, long long cycles) {
  startClock(span);
  const long long first = readClock().cycles;
  while (readClock().cycles - first < cycles) continue;
  stopClock(span);
}

// ---- Memory: DRAM, L2, L1, shared

enum class Access { kRead, kWrite, kCopy, kTriad };

// snippet: stream
// The four ways through DRAM, with the knobs that decide how many bytes are in flight: the width of an access (kWords),
// the loads a thread issues before it uses the first (kLoads), and the number of blocks (one a tile, or fewer that walk
// on). A tile is kLoads stretches of blockDim.x vectors, so every access is coalesced.
template <Access kAccess, int kWords, int kLoads>
__global__ void streamDram(
    const Pack<float, kWords>* a, const Pack<float, kWords>* b, Pack<float, kWords>* out, float* sums, int count) {
  const int tile = kLoads * blockDim.x;
  unsigned sum = 0;
  for (int first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
    Pack<float, kWords> held[kLoads] = {};
    Pack<float, kWords> other[kLoads] = {};
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      if (i < count && kAccess != Access::kWrite) held[k] = a[i];
      if (i < count && kAccess == Access::kTriad) other[k] = b[i];
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        float& word = held[k].at[w];
        if (kAccess == Access::kRead && i < count) sum += bitsOf(word);
        if (kAccess == Access::kWrite) word = pattern(i * kWords + w);
        if (kAccess == Access::kTriad) word = fmaf(kTriadScale, other[k].at[w], word);
      }
      if (kAccess != Access::kRead && i < count) out[i] = held[k];
    }
  }
  if (kAccess == Access::kRead) {  // stores must not weigh on it
    sum = blockSum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = folded(sum);
  }
}
// end snippet: stream

// Through L1; past it; and past it with the slices going round among the SMs: what several ask for at about the same
// time is merged on the way, and the rate counts bytes that the L2 never served.
enum class Route { kThroughL1, kPastL1, kRotating };

// Each block, one on an SM, reads its slice over and over, every warp its own part: warps that shared lines would
// follow one another and find them in L1, however large the slice. A step is 32 bytes a thread; kSteps are in flight.
template <Route kRoute, int kSteps>
__global__ void __launch_bounds__(kSmBlock)
    readSlices(const uint4* in, float* sums, ClockSpan* span, int slice, int trips) {
  startClock(span);
  int owner = blockIdx.x;
  const uint4* from = in + size_t(owner) * slice;
  const int step = 2 * blockDim.x;
  int position = threadIdx.x / kWarp * 2 * kWarp + threadIdx.x % kWarp;
  unsigned sum = 0;
  for (int trip = 0; trip < trips; ++trip) {
    uint4 held[2 * kSteps];
#pragma unroll
    for (int k = 0; k < 2 * kSteps; ++k) {
      const uint4* at = from + position + k % 2 * kWarp;
      held[k] = kRoute == Route::kThroughL1 ? *at : __ldcg(at);
      if (k % 2 == 0) continue;
      position += step;
      if (position >= slice) {
        position -= slice;
        if (kRoute == Route::kRotating) {
          owner = owner + 1 == int(gridDim.x) ? 0 : owner + 1;
          from = in + size_t(owner) * slice;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 2 * kSteps; ++k) sum += held[k].x + held[k].y + held[k].z + held[k].w;
  }
  stopClock(span);
  sum = blockSum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = folded(sum);
}

__host__ __device__ inline unsigned sharedWord(unsigned i) { return i * 2654435761u; }

// Lane l reads kWords words at l * stride: with a stride of kWords from all 32 banks, with a larger one that many lanes
// meet in a bank. The start moves, or the compiler would load once.
template <int kWords>
__global__ void readShared(float* out, ClockSpan* span, int stride, int trips) {
  __shared__ __align__(16) unsigned words[kSharedWords];
  for (unsigned i = threadIdx.x; i < kSharedWords; i += blockDim.x) words[i] = sharedWord(i);
  __syncthreads();
  startClock(span);
  unsigned sum = 0;
  int start = 0;
  for (int trip = 0; trip < trips; ++trip) {
    const Pack<unsigned, kWords>* from =
        reinterpret_cast<const Pack<unsigned, kWords>*>(words + start + threadIdx.x % kWarp * stride);
#pragma unroll
    for (int k = 0; k < kSharedUnroll; ++k) {
      const Pack<unsigned, kWords> held = from[k * (kSharedHop / kWords)];
#pragma unroll
      for (int w = 0; w < kWords; ++w) sum += held.at[w];
    }
    start = (start + kSharedStep) % kSharedStarts;
  }
  stopClock(span);
  out[blockIdx.x * blockDim.x + threadIdx.x] = folded(sum);
}

// ---- Arithmetic

__host__ __device__ inline float chainStart(int seed, int chain) {
  return (seed * kChains + chain) * 0.015625f - 0.45f;
}

// Rounds to `bits` significant bits, ties to even, as the hardware does.
double rounded(double value, int bits) {
  if (bits == 53) return value;
  std::uint64_t image;
  std::memcpy(&image, &value, sizeof image);
  const std::uint64_t dropped = (std::uint64_t(1) << (53 - bits)) - 1;
  image = (image + dropped / 2 + (image >> (53 - bits) & 1)) & ~dropped;
  std::memcpy(&value, &image, sizeof image);
  return value;
}

// The chain on the CPU, in a type of `bits` significant bits.
double floatChain(int bits, bool fused, double start, double c, int steps) {
  double x = rounded(start, bits);
  c = rounded(c, bits);
  for (int step = 0; step < steps; ++step) x = rounded(fused ? std::fma(x, x, c) : rounded(x * x, bits) + c, bits);
  return x;
}

// A type of arithmetic: its registers, a step of the chain and what it counts for, their worth, and the chain on the
// CPU. `a` is kIntegerA; the compiler does not know, or it would fold steps.
template <class Float, bool kFused>
struct Scalar {
  using Value = Float;
  static constexpr int kWork = 2, kFlop = 2;
  static __device__ Value start(float x) { return x; }
  static __device__ float step(float x, unsigned) {
    return kFused ? fmaf(x, x, kMap) : __fadd_rn(__fmul_rn(x, x), kMap);
  }
  static __device__ double step(double x, unsigned) {
    return kFused ? fma(x, x, double(kMap)) : __dadd_rn(__dmul_rn(x, x), double(kMap));
  }
  static __device__ double worth(Value x) { return x; }
  static double onCpu(float x, int steps) { return floatChain(sizeof(Float) == 4 ? 24 : 53, kFused, x, kMap, steps); }
};

__device__ inline void pack(float low, float high, __half2* to) { *to = __floats2half2_rn(low, high); }
__device__ inline void pack(float low, float high, __nv_bfloat162* to) { *to = __floats2bfloat162_rn(low, high); }

// Two halves that differ, because an operand with equal halves runs at half rate. What is not fused is an FMA with -0
// and one by 1, made of `a`: Hopper has HMUL2 and HADD2 in one of its two pipes only, FMAs in both.
template <class Pair, int kBits, bool kFused>
struct Packed {
  using Value = Pair;
  static constexpr int kWork = 4, kFlop = 4;
  static constexpr float kLow = kBits == 11 ? -1.74f : -1.70f;
  static constexpr float kHigh = kBits == 11 ? -1.86f : -1.68f;
#ifdef __CUDA_ARCH__
  static constexpr bool kThere = kBits == 11 || __CUDA_ARCH__ >= 800;  // else not launched
#else
  static constexpr bool kThere = true;
#endif
  static __device__ Value both(float low, float high) {
    Value pair;
    pack(low, high, &pair);
    return pair;
  }
  static __device__ Value start(float x) { return both(x, x); }
  static __device__ Value step(Value x, [[maybe_unused]] unsigned a) {
    const Value c = both(kLow, kHigh);
    if constexpr (!kThere) return c;
    if constexpr (kThere && kFused) return __hfma2(x, x, c);
    const Value zero = both(-float(a >> 21), -float((a + 1) >> 21));
    if constexpr (kThere && !kFused) return __hfma2(both(a >> 20, (a + 1) >> 20), c, __hfma2(x, x, zero));
  }
  static __device__ double worth(Value x) { return __low2float(x) + __high2float(x); }
  static double onCpu(float x, int steps) {
    return floatChain(kBits, kFused, x, kLow, steps) + floatChain(kBits, kFused, x, kHigh, steps);
  }
};

struct Int32 {
  using Value = unsigned;
  static constexpr int kWork = 2, kFlop = 0;
  static __device__ Value start(float x) { return bitsOf(x); }
  static __device__ Value step(Value x, unsigned a) { return x * a + kIntegerC; }
  static __device__ double worth(Value x) { return x; }
  static double onCpu(float start, int steps) {
    unsigned x = bitsOf(start);
    for (int step = 0; step < steps; ++step) x = x * kIntegerA + kIntegerC;
    return x;
  }
};

// Warp instructions: FMAs, or half of them integer, because the FP32 lanes of T4 and A100 fill half the issue slots.
struct IssueMix {
  struct Value {
    float f, g;
    unsigned u;
  };
  static constexpr int kWork = 4, kFlop = 4;
  static __device__ Value start(float x) { return {x, -0.5f * x, bitsOf(x)}; }
  static __device__ Value step(Value x, unsigned a) {
    return {fmaf(x.f, x.f, kMap), fmaf(x.g, x.g, kMap), (x.u + a) ^ kIntegerC};
  }
  static __device__ double worth(Value x) { return double(x.f) + x.g + x.u; }
  static double onCpu(float start, int steps) {
    unsigned u = bitsOf(start);
    for (int step = 0; step < steps; ++step) u = (u + kIntegerA) ^ kIntegerC;
    return Scalar<float, true>::onCpu(start, steps) + Scalar<float, true>::onCpu(-0.5f * start, steps) + u;
  }
};

#ifndef CUDA_DAYS_CPU
// Tensor cores: a step is one mma.sync, D += A B. Every element of A is 2 and of B 3, so those of D count the steps.
enum Mma { kFp16Turing, kFp16, kBf16, kTf32, kInt8, kFp64 };
#define MMA(instruction, inputs, type, input)                                      \
  asm("mma.sync.aligned." instruction " {%0,%1,%2,%3}, " inputs ", {%0,%1,%2,%3};" \
      : "+" type(v.d[0]), "+" type(v.d[1]), "+" type(v.d[2]), "+" type(v.d[3])     \
      : input(two), input(three))
template <Mma kMma, class Sum, int kDepth>
struct Tensor {
  struct Value {
    Sum d[4];
  };
  static constexpr int kWork = 2 * 16 * 8 * kDepth / kWarp;
  static constexpr int kFlop = kMma == kInt8 ? 0 : kWork;
  static __device__ Value start(float x) {
    const Sum first = int(64 * x);
    return {{first, first, first, first}};
  }
  static __device__ Value step(Value v, unsigned) {
    [[maybe_unused]] unsigned two = kMma == kInt8 ? 0x02020202 : kMma == kTf32 ? 0x40000000 : 0x40004000;
    [[maybe_unused]] unsigned three = kMma == kInt8 ? 0x03030303
        : kMma == kTf32                             ? 0x40400000
        : kMma == kBf16                             ? 0x40404040
                                                    : 0x42004200;
    if constexpr (kMma == kFp16Turing) MMA("m16n8k8.row.col.f32.f16.f16.f32", "{%4,%4}, {%5}", "f", "r");
#if __CUDA_ARCH__ >= 800
    if constexpr (kMma == kFp16) MMA("m16n8k16.row.col.f32.f16.f16.f32", "{%4,%4,%4,%4}, {%5,%5}", "f", "r");
    if constexpr (kMma == kBf16) MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "{%4,%4,%4,%4}, {%5,%5}", "f", "r");
    if constexpr (kMma == kTf32) MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "{%4,%4,%4,%4}, {%5,%5}", "f", "r");
    if constexpr (kMma == kInt8) MMA("m16n8k32.row.col.s32.s8.s8.s32", "{%4,%4,%4,%4}, {%5,%5}", "r", "r");
#endif
#if __CUDA_ARCH__ >= 900
    if constexpr (kMma == kFp64) {
      const double two = 2, three = 3;
      MMA("m16n8k16.row.col.f64.f64.f64.f64", "{%4,%4,%4,%4,%4,%4,%4,%4}, {%5,%5,%5,%5}", "d", "d");
    }
#endif
    return v;
  }
  static __device__ double worth(const Value& v) { return double(v.d[0]) + v.d[1] + v.d[2] + v.d[3]; }
  static double onCpu(float x, int steps) { return 4 * (int(64 * x) + 6.0 * kDepth * steps); }
};
#endif

// Registers only: kChains independent chains a thread, and their sum at the end so that none is dead.
template <class Type>
__global__ void arithmeticPeak(float* out, ClockSpan* span, unsigned a, int steps) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  typename Type::Value chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) chain[c] = Type::start(chainStart(thread % kSeeds, c));
  startClock(span);
  for (int step = 0; step < steps; step += kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) chain[c] = Type::step(chain[c], a);
    }
  }
  stopClock(span);
  double sum = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += Type::worth(chain[c]);
  out[thread] = float(sum);
}

// ---- The measured curve, and the kernels under the lines

// kFmas FMAs on the four floats of a load, which then go out again: kFmas / 16 FLOP per byte.
template <int kFmas>
__global__ void intensity(const Pack<float, 4>* in, Pack<float, 4>* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Pack<float, 4> x = in[i];
#pragma unroll
  for (int k = 0; k < kFmas; ++k) x.at[k % 4] = fmaf(x.at[k % 4], x.at[k % 4], kMap);
  out[i] = x;
}

__global__ void vectorAdd(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

__global__ void triadFp64(const double* a, const double* b, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = fma(double(kTriadScale), b[i], a[i]);
}

// A heat step in 3D, 5 additions and an FMA a cell. Of its seven reads one is its own: caches may serve the others.
__global__ void stencil7(const double* in, double* out, int g) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y;
  const int z = blockIdx.z;
  if (x >= g) return;
  const int i = (z * g + y) * g + x;
  const bool inside = x > 0 && x < g - 1 && y > 0 && y < g - 1 && z > 0 && z < g - 1;
  out[i] =
      inside ? fma(kHeat, in[i - 1] + in[i + 1] + in[i - g] + in[i + g] + in[i - g * g] + in[i + g * g], in[i]) : in[i];
}

// ---- A problem

struct Sizes {
  int words, large;  // floats of a stream, and of a large one
  int grid;  // of the stencil
  int sms, residentBlocks;  // on one SM
  int l2Bytes;
  int length;  // of the loops: 1 is the shortest
};

// No launch shape divides 100,052: it is a multiple of 4, as float4 needs, and of none of 8, 32 or 256.
constexpr Sizes kRagged = {100052, 100052, 19, 3, 2, 200000, 1};

Sizes timedSizes(const cudaDeviceProp& gpu) {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const size_t least = kStreamOverL2 * gpu.l2CacheSize;
  const size_t bytes = kOnCpu ? least : std::max(kStreamBytes, least);
  const int words = int(bytes / sizeof(float) / kSmBlock * kSmBlock);
  int large = kLargeOverStream;
  while (large > 1 && 3 * large * bytes > free / 2) large /= 2;  // a card with little memory
  const int grid = int(std::cbrt(words / 2)) / kWarp * kWarp;
  return {words, large * words, grid, gpu.multiProcessorCount, gpu.maxThreadsPerMultiProcessor / kBlock,
      gpu.l2CacheSize, kLength};
}

constexpr int kShift = 12345;  // of the second stream

struct Problem {
  Problem(const Sizes& of, cudaStream_t on)
      : sizes(of),
        a(of.large),
        b(of.large),
        out(of.large),
        results(std::max(ceilDivide(of.large, kBlock), 2 * of.sms * kSmBlock)),
        wideA(of.words / 2),
        wideB(of.words / 2),
        wideOut(of.words / 2),
        span(1) {
    const auto filled = [on](const auto& to, auto* data, int shift) {
      using T = std::remove_pointer_t<decltype(data)>;
      const int n = static_cast<int>(to.count());
      fill<T><<<ceilDivide(n, kBlock), kBlock, 0, on>>>(data, n, shift);
      CUDA_CHECK(cudaGetLastError());
    };
    filled(a, &a[0], 0);
    filled(b, &b[0], kShift);
    filled(wideA, &wideA[0], 0);
    filled(wideB, &wideB[0], kShift);
    for (int end = kBlock; end <= of.large; end += kBlock) before_.push_back(before_.back() + sumOf(end - kBlock, end));
  }

  static size_t bytes(const Sizes& of) { return sizeof(float) * (4 * size_t(of.large) + 3 * size_t(of.words)); }
  // The sum of some words of `a`, modulo 2^32.
  unsigned sum(unsigned first, unsigned last) const { return upTo(last) - upTo(first); }

  const Sizes sizes;
  const DeviceBuffer<float> a, b, out;
  const DeviceBuffer<float> results;  // one float a block or a thread
  const DeviceBuffer<double> wideA, wideB, wideOut;
  const DeviceBuffer<ClockSpan> span;

 private:
  unsigned upTo(unsigned end) const { return before_[end / kBlock] + sumOf(end / kBlock * kBlock, end); }
  static unsigned sumOf(unsigned first, unsigned last) {
    unsigned sum = 0;
    for (unsigned i = first; i < last; ++i) sum += bitsOf(pattern(i));
    return sum;
  }

  vector<unsigned> before_ = {0};  // the sum of all words before every kBlock-th
};

// ---- The tables: ceilings with the shapes that compete for them, and what stands under

string text(const char* format, double number) {
  char digits[80];
  std::snprintf(digits, sizeof digits, format, number);
  return digits;
}

struct Row {
  string level;  // of memory, compute, issue, or what stands under
  string kind;
  string shape;
  const char* symbol;  // the kernel's name in the source
  double work;  // of a launch, in what the level counts
  double flop;
  double bytes;  // asked of that level
  double perClock = 0;  // what an SM can do, where that is known
  double leastBytes = 0;
  double fmas = 0;  // of the floating-point instructions
  Launch launch = {};
  void* out = nullptr;
  size_t count = 0, size = 0;  // of the values in `out`
  std::function<void(const void* got, size_t first, size_t count, Verdict&)> judge = {};

  // Every value is exact: a NaN equals nothing.
  template <class T, class Want>
  void writes(const DeviceBuffer<T>& buffer, size_t elements, Want want) {
    out = buffer;
    count = elements;
    size = sizeof(T);
    judge = [want](const void* data, size_t first, size_t some, Verdict& verdict) {
      const T* got = static_cast<const T*>(data);
      const auto right = [&](size_t i) {
        const T expected = want(unsigned(first + i));
        return got[i] == expected && std::fabs(expected) < T(1e30);
      };
      size_t wrong = 0;
      for (size_t i = 0; i < some; ++i) wrong += !right(i);
      if (wrong > 0 && verdict.wrong == 0) {
        size_t i = 0;
        while (right(i)) ++i;
        verdict.message = "first wrong element " + to_string(first + i) + text(": got %.9g", got[i]) +
            text(", want %.9g", want(unsigned(first + i)));
      }
      verdict.wrong += wrong;
    };
  }
  string name() const { return level + "-" + kind; }
};
using Shapes = vector<Row>;

template <int kWords>
Pack<float, kWords>* packs(const DeviceBuffer<float>& buffer) {
  return reinterpret_cast<Pack<float, kWords>*>(&buffer[0]);
}

// With 0 `resident` blocks, one for every tile.
template <Access kAccess, int kWords, int kLoads>
Row streamRow(const Problem& p, int words, int block, int resident) {
  constexpr const char* kNames[] = {"read", "write", "copy", "triad"};
  constexpr int kStreams = kAccess == Access::kTriad ? 3 : kAccess == Access::kCopy ? 2 : 1;
  const int tile = block * kLoads;
  const int count = words / kWords;
  const int blocks = resident == 0 ? ceilDivide(count, tile) : resident;
  const double bytes = 4.0 * kStreams * words;
  Row row = {"dram", kNames[int(kAccess)], "float" + to_string(kWords) + " x " + to_string(kLoads), "streamDram", bytes,
      kAccess == Access::kTriad ? 2.0 * words : 0, bytes};
  if (words > p.sizes.words) row.kind += "-large";
  if (resident > 0) row.shape += ", " + to_string(resident) + " blocks";
  const auto sums = [=, &p](unsigned i) {
    unsigned sum = 0;
    for (unsigned first = i * tile; first < unsigned(count); first += blocks * tile)
      sum += p.sum(first * kWords, std::min<unsigned>(first + tile, count) * kWords);
    return folded(sum);
  };
  const auto values = [](unsigned i) {
    return pattern(i) + (kAccess == Access::kTriad ? kTriadScale * pattern(i + kShift) : 0);
  };
  if (kAccess == Access::kRead)
    row.writes(p.results, blocks, sums);
  else
    row.writes(p.out, words, values);
  row.launch = [=, &p](cudaStream_t on) {
    streamDram<kAccess, kWords, kLoads>
        <<<blocks, block, 0, on>>>(packs<kWords>(p.a), packs<kWords>(p.b), packs<kWords>(p.out), p.results, count);
  };
  return row;
}

template <Access kAccess, int kWords>
void addStreams(Shapes& shapes, const Problem& p, int words, int resident) {
  shapes.push_back(streamRow<kAccess, kWords, 1>(p, words, kBlock, resident));
  shapes.push_back(streamRow<kAccess, kWords, 2>(p, words, kBlock, resident));
  shapes.push_back(streamRow<kAccess, kWords, 4>(p, words, kBlock, resident));
  shapes.push_back(streamRow<kAccess, kWords, 8>(p, words, kBlock, resident));
}

template <Access kAccess>
Shapes streamShapes(const Problem& p, int words) {
  Shapes shapes;
  const int wave = p.sizes.sms * p.sizes.residentBlocks;
  for (const int resident : {0, wave / 2, wave}) {
    if (resident > 0 && words > p.sizes.words) break;  // one pass is best
    addStreams<kAccess, 4>(shapes, p, words, resident);
    addStreams<kAccess, 2>(shapes, p, words, resident);
    addStreams<kAccess, 1>(shapes, p, words, resident);
  }
  if (kAccess == Access::kCopy) {  // the driver's own must not be faster
    Row library = shapes.front();
    library.shape = "cudaMemcpy";
    library.symbol = "cudaMemcpyAsync";
    library.launch = [=, &p](cudaStream_t on) {
      CUDA_CHECK(cudaMemcpyAsync(p.out, p.a, sizeof(float) * words, cudaMemcpyDeviceToDevice, on));
    };
    shapes.push_back(library);
  }
  return shapes;
}

template <Route kRoute, int kSteps>
Row sliceRow(const Problem& p, const char* level, double sliceBytes, int block, double perClock, int shared = 0) {
  const int slice = std::max(1, int(sliceBytes / 32 / block)) * 2 * block;
  const int blocks = p.sizes.sms;
  const int trips = 8 * p.sizes.length * kSmBlock / block;
  const unsigned covered = 2 * kSteps * trips * block;  // vectors of 16 bytes
  const double bytes = 16.0 * covered * blocks;
  Row row = {level, kRoute == Route::kRotating ? "rotating" : "read", to_string(slice / 64) + " KiB per SM",
      "readSlices", bytes, 0, bytes};
  row.perClock = perClock;
  row.writes(p.results, blocks, [=, &p](unsigned block) {
    unsigned sum = 0;
    for (unsigned pass = 0; pass * slice < covered; ++pass) {
      const unsigned owner = kRoute == Route::kRotating ? (block + pass) % blocks : block;
      const unsigned vectors = std::min<unsigned>(slice, covered - pass * slice);
      sum += p.sum(4 * owner * slice, 4 * (owner * slice + vectors));
    }
    return folded(sum);
  });
  row.launch = [=, &p](cudaStream_t on) {
    readSlices<kRoute, kSteps>
        <<<blocks, block, shared, on>>>(reinterpret_cast<uint4*>(&p.a[0]), p.results, p.span, slice, trips);
  };
  return row;
}

template <Route kRoute>
Shapes sliceShapes(const Problem& p, const char* level, double sliceBytes, double perClock) {
  Shapes shapes;
  for (const int block : {256, 512, 1024}) {
    shapes.push_back(sliceRow<kRoute, 2>(p, level, sliceBytes, block, perClock));
    shapes.push_back(sliceRow<kRoute, 4>(p, level, sliceBytes, block, perClock));
    for (size_t i = shapes.size() - 2; i < shapes.size(); ++i)
      shapes[i].shape += ", " + to_string(block) + (i % 2 == 0 ? " threads x 4" : " threads x 8");
  }
  return shapes;
}

template <int kWords>
Row sharedRow(const Problem& p, const string& kind, int stride, double perClock) {
  const int trips = 32 * p.sizes.length;
  const int blocks = p.sizes.sms;
  const double bytes = 4.0 * kWords * kSharedUnroll * trips * blocks * kSmBlock;
  Row row = {"shared", kind, to_string(4 * kWords) + "-byte reads", "readShared", bytes, 0, bytes};
  row.perClock = perClock;
  vector<unsigned> sums(kWarp);
  for (int trip = 0; trip < trips; ++trip)
    for (int i = 0; i < kWarp * kSharedUnroll * kWords; ++i)
      sums[i % kWarp] += sharedWord(trip * kSharedStep % kSharedStarts + i % kWarp * stride +
          i / kWarp / kWords * kSharedHop + i / kWarp % kWords);
  row.writes(p.results, blocks * kSmBlock, [=](unsigned i) { return folded(sums[i % kWarp]); });
  row.launch = [=, &p](cudaStream_t on) {
    readShared<kWords><<<blocks, kSmBlock, 0, on>>>(p.results, p.span, stride, trips);
  };
  return row;
}

template <class Type>
Row arithmeticRow(const Problem& p, const char* kind, const char* shape, double perClock, int blocks, int block) {
  const int steps = 2 * kUnroll * p.sizes.length;
  const double all = double(kChains) * steps * blocks * block;
  Row row = {"compute", kind, shape, "arithmeticPeak", all * Type::kWork, all * Type::kFlop, 0};
  row.perClock = perClock;
  vector<float> seeds;
  for (int seed = 0; seed < kSeeds; ++seed) {
    double whole = 0, half = 0;
    for (int c = 0; c < kChains; ++c) whole += Type::onCpu(chainStart(seed, c), steps);
    for (int c = 0; c < kChains; ++c) half += Type::onCpu(chainStart(seed, c), steps / 2);
    seeds.push_back(float(whole));
    if (float(half) == seeds.back()) throw Stop{kExitFailed, row.name() + ": half the steps give the same value"};
  }
  row.writes(p.results, blocks * block, [seeds](unsigned i) { return seeds[i % kSeeds]; });
  row.launch = [=, &p](cudaStream_t on) {
    arithmeticPeak<Type><<<blocks, block, 0, on>>>(p.results, p.span, kIntegerA, steps);
  };
  return row;
}

template <class Type>
Row issueRow(const Problem& p, const char* shape, int perStep, int blocks) {
  Row row = arithmeticRow<Type>(p, "warp-instructions", shape, 4, blocks, kBlock);
  row.level = "issue";
  row.work *= double(perStep) / Type::kWork / kWarp;
  return row;
}

// --profile launches the first shape of each.
vector<Shapes> makeCeilings(const Problem& p, int capability) {
  PerClock per = kPerClock[0];
  for (const PerClock& row : kPerClock)
    if (row.capability <= capability) per = row;
  vector<Shapes> all;
  for (int words = p.sizes.words;; words = p.sizes.large) {
    all.push_back(streamShapes<Access::kRead>(p, words));
    all.push_back(streamShapes<Access::kWrite>(p, words));
    all.push_back(streamShapes<Access::kCopy>(p, words));
    all.push_back(streamShapes<Access::kTriad>(p, words));
    if (words == p.sizes.large) break;
  }
  const double l2 = double(p.sizes.l2Bytes) / p.sizes.sms;
  all.push_back(sliceShapes<Route::kPastL1>(p, "l2", l2 / 2, 0));
  all.push_back(sliceShapes<Route::kRotating>(p, "l2", l2 / 2, 0));
  all.push_back(sliceShapes<Route::kThroughL1>(p, "l1", 32 << 10, per.bytes));
  all.push_back({sharedRow<4>(p, "read", 4, per.bytes), sharedRow<1>(p, "read", 1, per.bytes)});
  for (int ways = 2; ways <= kWarp; ways *= 2)
    all.push_back({sharedRow<1>(p, to_string(ways) + "-way", ways, double(per.bytes) / ways)});

  const int wave = p.sizes.sms * p.sizes.residentBlocks;
  const auto add = [&](auto type, const char* kind, double perClock, const char* shape = "8 chains") {
    const int blocks = shape[0] == 'm' ? 2 * p.sizes.sms : wave;  // 16 warps are enough for mma.sync
    all.push_back({arithmeticRow<decltype(type)>(p, kind, shape, perClock, blocks, kBlock)});
  };
  add(Scalar<float, true>(), "fp32-fma", 2 * per.fp32);
  add(Scalar<float, false>(), "fp32-muladd", per.fp32);
  add(Scalar<double, true>(), "fp64-fma", 2 * per.fp64);
  add(Scalar<double, false>(), "fp64-muladd", per.fp64);
  add(Packed<__half2, 11, true>(), "fp16x2-fma", 2 * per.fp16);
  add(Packed<__half2, 11, false>(), "fp16x2-muladd", per.fp16);
  if (per.bf16 > 0 || kOnCpu) {
    add(Packed<__nv_bfloat162, 8, true>(), "bf16x2-fma", 2 * per.bf16);
    add(Packed<__nv_bfloat162, 8, false>(), "bf16x2-muladd", per.bf16);
  }
  add(Int32(), "int32-mad", 2 * per.int32);
#ifndef CUDA_DAYS_CPU
  if (capability < 80) add(Tensor<kFp16Turing, float, 8>(), "tensor-fp16", per.tensor, "mma.sync m16n8k8");
  if (capability >= 80) {
    add(Tensor<kFp16, float, 16>(), "tensor-fp16", per.tensor, "mma.sync m16n8k16");
    add(Tensor<kBf16, float, 16>(), "tensor-bf16", per.tensor, "mma.sync m16n8k16");
    add(Tensor<kTf32, float, 8>(), "tensor-tf32", per.tensor / 2, "mma.sync m16n8k8");
    add(Tensor<kInt8, int, 32>(), "tensor-int8", 2 * per.tensor, "mma.sync m16n8k32");
  }
  if (capability >= 90) add(Tensor<kFp64, double, 16>(), "tensor-fp64", per.tensor / 16, "mma.sync m16n8k16");
#endif
  all.push_back({issueRow<IssueMix>(p, "FMA and integer", 4, wave), issueRow<Scalar<float, true>>(p, "FMA", 1, wave)});
  return all;
}

// The copy with more and more FMAs in it.
template <int kFmas>
void addCurve(Shapes& rows, const Problem& p) {
  const int count = p.sizes.words / 4;
  const double flop = 2.0 * kFmas * count;
  Row row = {"curve", text("%g", kFmas / 16.0), "float4 x 1", "intensity", flop, flop, 32.0 * count};
  vector<float> after;  // what the FMAs make of each value of the pattern
  for (unsigned i = 0; i < 1 << 16; ++i)
    after.push_back(floatChain(24, true, pattern(i), kMap, std::max(1, kFmas / 4)));
  row.writes(p.out, 4 * count,
      [after](unsigned i) { return i % 4 < unsigned(kFmas) ? after[(i ^ (i >> 16)) & 0xFFFF] : pattern(i); });
  row.launch = [=, &p](cudaStream_t on) {
    intensity<kFmas><<<ceilDivide(count, kBlock), kBlock, 0, on>>>(packs<4>(p.a), packs<4>(p.out), count);
  };
  rows.push_back(row);
  if constexpr (kFmas < 2048) addCurve<2 * kFmas>(rows, p);
}

// Kernels have two counts of bytes: what the source asks for, and what a perfect cache would leave.
Shapes makeRows(const Problem& p) {
  Shapes rows;
  addCurve<1>(rows, p);
  const int n = p.sizes.words;
  const int half = n / 2;
  const int g = p.sizes.grid;
  const double cells = std::pow(g - 2, 3);
  const auto add = [&](const char* name, const char* symbol, double flop, double asked, double least, double fmas,
                       const Launch& launch) -> Row& {
    rows.push_back({"kernel", name, "plain", symbol, asked, flop, asked, 0, least, fmas, launch});
    return rows.back();
  };
  const auto heated = [g](unsigned i) -> double {
    const int x = i % g, y = i / g % g, z = i / g / g;
    if (std::min({x, y, z}) == 0 || std::max({x, y, z}) == g - 1) return pattern(i);
    const auto pair = [i](int step) { return pattern(i - step) + pattern(i + step); };
    return pattern(i) + kHeat * (pair(1) + pair(g) + pair(g * g));
  };
  add("vector add", "vectorAdd", n, 12.0 * n, 12.0 * n, 0, [=, &p](cudaStream_t on) {
    vectorAdd<<<ceilDivide(n, kBlock), kBlock, 0, on>>>(p.a, p.b, p.out, n);
  }).writes(p.out, n, [](unsigned i) { return pattern(i) + pattern(i + kShift); });
  add("triad FP64", "triadFp64", n, 12.0 * n, 12.0 * n, 1, [=, &p](cudaStream_t on) {
    triadFp64<<<ceilDivide(half, kBlock), kBlock, 0, on>>>(p.wideA, p.wideB, p.wideOut, half);
  }).writes(p.wideOut, half, [](unsigned i) { return pattern(i) + kTriadScale * pattern(i + kShift); });
  add("stencil FP64", "stencil7", 7 * cells, 64 * cells, 16 * cells, 1.0 / 6, [=, &p](cudaStream_t on) {
    stencil7<<<dim3(ceilDivide(g, kBlock), g, g), kBlock, 0, on>>>(p.wideA, p.wideOut, g);
  }).writes(p.wideOut, size_t(g) * g * g, heated);
  return rows;
}

void runRow(const Row& row, cudaStream_t stream) {
  row.launch(stream);
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (status != cudaSuccess)
    throw Stop{kExitFailed,
        string("kernel ") + row.symbol + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status)};
}

// Returns how many rows were wrong.
int check(const Shapes& rows, const char* size, const Options& options, cudaStream_t stream) {
  constexpr size_t kChunk = 1 << 22;
  vector<double> host(kChunk);
  int failed = 0;
  for (const Row& row : rows) {
    poison(row.out, row.count * row.size, stream);
    runRow(row, stream);
    Verdict verdict;
    for (size_t first = 0; first < row.count; first += kChunk) {
      const size_t count = std::min(kChunk, row.count - first);
      CUDA_CHECK(cudaMemcpyAsync(host.data(), static_cast<char*>(row.out) + first * row.size, count * row.size,
          cudaMemcpyDeviceToHost, stream));
      CUDA_CHECK(cudaStreamSynchronize(stream));
      row.judge(host.data(), first, count, verdict);
    }
    const bool ok = verdict.wrong == 0;
    const string name = row.name() + ", " + row.shape;
    failed += !ok;
    if (!ok)
      std::fprintf(stderr, "FAILED %s (%s, %s size): %zu of %zu wrong, %s\n", row.symbol, name.c_str(), size,
          verdict.wrong, row.count, verdict.message.c_str());
    if (options.json) {
      JsonLine line("check");
      line.integer("day", kProgram.day).text("variant", name).text("symbol", row.symbol);
      line.text("size", size).boolean("ok", ok).integer("checked", row.count);
      line.integer("wrong", verdict.wrong).number("worst", 0);
      if (!ok) line.text("message", verdict.message);
      line.print();
    } else if (options.mode == Mode::kCheck) {
      std::printf(
          "%-16s %-44s %-6s %9zu values  %s\n", row.symbol, name.c_str(), size, row.count, ok ? "ok" : "FAILED");
      flushOutput();
    }
  }
  return failed;
}

// ---- Measuring and the report

struct Measured {
  Row row;
  Timing timing;
  double value;  // giga per second
  double clockMhz = 0;
  double theory = 0;  // what this clock allows
};

struct Column {
  const char* key;
  double number;
  string words = "";  // instead
};

struct Report {
  const Problem& p;
  const cudaDeviceProp& gpu;
  const Options& options;
  cudaStream_t stream;
  int failed = 0;
  vector<Measured> ceilings = {};

  void title(const char* words) const {
    if (!options.json) std::printf("\n%s\n", words);
  }

  void print(const char* record, const Measured& m, const vector<Column>& columns) const {
    const Row& row = m.row;
    const bool memory = row.level != "curve" && row.work == row.bytes;
    const int metric = memory ? 0 : row.level == "issue" ? 3 : row.flop == 0 ? 2 : 1;
    constexpr const char* kMetrics[] = {"gbps", "gflops", "gops", "ginst"};
    constexpr const char* kUnits[] = {"GB/s", "GFLOP/s", "GOP/s", "Ginst/s"};
    if (!options.json) {
      std::printf("%-26s %8.4f ms %4.1f %% %10.1f %-8s", row.name().c_str(), m.timing.ms, m.timing.spreadPercent(),
          m.value, kUnits[metric]);
      for (const Column& c : columns)
        std::printf("  %s %s", c.key, c.words.empty() ? text("%-8.6g", c.number).c_str() : c.words.c_str());
      std::printf("\n");
      return flushOutput();
    }
    JsonLine line(record);
    line.integer("day", kProgram.day).text("variant", row.name()).text("symbol", row.symbol);
    line.timing(m.timing)
        .integer("flop", (long long)(row.flop))
        .integer("bytes", (long long)(row.bytes))
        .metric(kMetrics[metric], m.value, kUnits[metric]);
    line.text("level", row.level).text("kind", row.kind);
    for (const Column& c : columns) c.words.empty() ? line.number(c.key, c.number) : line.text(c.key, c.words);
    line.print();
  }

  vector<Measured> measureAll(const Shapes& rows, int samples = kSearchSamples) const {
    vector<Launch> launches;
    for (const Row& row : rows) launches.push_back(row.launch);
    const vector<Timing> timings = measureInTurn(stream, launches, samples);
    vector<Measured> all;
    for (size_t i = 0; i < rows.size(); ++i) all.push_back({rows[i], timings[i], rows[i].work / timings[i].ms * 1e-6});
    return all;
  }

  void readClock(Measured& m) const {
    if (m.row.level == "dram") {
      const Stream beside;
      watchClock<<<1, 1, 0, beside>>>(p.span, 1 << 21);  // about a millisecond
      CUDA_CHECK(cudaGetLastError());
      for (double spent = 0; spent < 2; spent += m.timing.ms) m.row.launch(stream);
      CUDA_CHECK(cudaStreamSynchronize(beside));
    }
    ClockSpan span;
    CUDA_CHECK(cudaMemcpyAsync(&span, p.span, sizeof span, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    m.clockMhz = span.megahertz();
    m.theory = 1e-3 * m.row.perClock * p.sizes.sms * m.clockMhz;
    if (m.theory > 0 && !(m.value <= 1.02 * m.theory))
      throw Stop{kExitFailed,
          m.row.name() + text(" reads %.1f, and the SMs can do ", m.value) + text("%.1f: the time is wrong", m.theory)};
  }

  // The two best shapes, and the library's, are measured in full.
  void ceiling(const Shapes& shapes) {
    const auto faster = [](const Measured& a, const Measured& b) { return a.value > b.value; };
    vector<Measured> found = measureAll(shapes, shapes.size() > 1 ? kSearchSamples : kSamples);
    std::sort(found.begin(), found.end(), faster);
    if (found.size() > 1) {
      Shapes finals;
      for (const Measured& m : found) {
        if (options.json) print("shape", m, {{"shape", 0, m.row.shape}});
        if (finals.size() < 2 || m.row.shape == "cudaMemcpy") finals.push_back(m.row);
      }
      found = measureAll(finals, kSamples);
      std::sort(found.begin(), found.end(), faster);
    }
    Measured& best = found[0];
    failed += check({best.row}, "full", options, stream);
    readClock(best);
    vector<Column> columns = {{"clock_mhz", best.clockMhz}};
    if (best.theory > 0)
      columns.push_back(options.json ? Column{"theory", best.theory} : Column{"%", 100 * best.value / best.theory});
    columns.push_back({"shape", 0, best.row.shape});
    for (size_t i = 1; i < found.size() && !options.json; ++i)
      columns.push_back({"then", 0, found[i].row.shape + text(" %.1f %%", 100 * found[i].value / best.value)});
    // What rotates is no ceiling.
    print(best.row.kind == "rotating" ? "shape" : "ceiling", best, columns);
    ceilings.push_back(best);
  }

  double of(const string& name) const {
    for (const Measured& m : ceilings)
      if (m.row.name() == name) return m.value;
    throw Stop{kExitFailed, "no ceiling " + name};
  }

  void ridges() const {
    title("Ridge points");
    for (const Measured& peak : ceilings) {
      if (peak.row.level != "compute" || peak.row.flop == 0) continue;
      for (const char* memory : {"dram-copy", "l2-read", "l1-read"}) {
        const string name = peak.row.kind + " / " + memory;
        JsonLine line("ridge");
        line.integer("day", kProgram.day).text("variant", name).metric("ridge", peak.value / of(memory), "FLOP/byte");
        options.json ? line.print()
                     : (void)std::printf("%-28s %8.2f FLOP/byte\n", name.c_str(), peak.value / of(memory));
      }
    }
  }

  // A plateau keeps kLevel of its first rate. The first is L1, the last DRAM, the longest between L2.
  void sweep() const {
    title("Working sets: each SM its own, L1 as small as shared memory can make it");
    constexpr double kFirst = 8 << 10;  // the step of a block of 256
    constexpr double kWide = 512 << 10;  // from here on it takes 1024 to keep DRAM busy
    const int shared = int(gpu.sharedMemPerBlockOptin) - 1024;
    CUDA_CHECK(
        cudaFuncSetAttribute(readSlices<Route::kThroughL1, 4>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    vector<Measured> steps;
    const double last = double(kStreamOverL2) * gpu.l2CacheSize / p.sizes.sms;
    for (int i = 0; i < kSweepSizes; ++i) {
      const double bytes = kFirst * std::pow(last / kFirst, i / (kSweepSizes - 1.0));
      Row row = sliceRow<Route::kThroughL1, 4>(p, "sweep", bytes, bytes < kWide ? kBlock : kSmBlock, 128, shared);
      row.kind = row.shape;
      if (!steps.empty() && row.kind == steps.back().row.kind) continue;
      steps.push_back(measureAll({row})[0]);
      readClock(steps.back());
      print("sweep", steps.back(), {{"clock_mhz", steps.back().clockMhz}});
    }
    vector<std::pair<size_t, size_t>> flat;
    for (size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
      while (end < steps.size() && steps[end].value > kLevel * steps[begin].value) ++end;
      if (end - begin >= 2) flat.push_back({begin, end});
    }
    if (flat.size() < 3) throw Stop{kExitFailed, "the sweep shows no three plateaus"};
    const auto shorter = [](const auto& a, const auto& b) { return a.second - a.first < b.second - b.first; };
    flat = {flat.front(), *std::max_element(flat.begin() + 1, flat.end() - 1, shorter), flat.back()};
    title("Plateaus");
    for (int i = 0; i < 3; ++i) {
      Measured m = steps[(flat[i].first + flat[i].second) / 2];
      const double before = i == 0 ? 1e18 : steps[flat[i - 1].first].value;
      m.row.level = "plateau";
      m.row.kind = i == 0 ? "l1" : i == 1 ? "l2" : "dram";
      print(
          "plateau", m, {{"from", 0, steps[flat[i].first].row.shape}, {"to", 0, steps[flat[i].second - 1].row.shape}});
      if (!(m.value < before)) throw Stop{kExitFailed, m.row.kind + " is too fast"};
    }
  }

  void under(const Shapes& rows) const {
    const double fp32 = of("compute-fp32-fma");
    title("The copy with more and more FMAs in it");
    for (const Row& row : rows) {
      if (row.level != "curve") continue;
      const Measured m = measureAll({row})[0];
      const double roof = std::min(fp32, row.flop / row.bytes * of("dram-copy"));
      print("curve", m, {{"intensity", row.flop / row.bytes}, {"roof", roof}, {"percent", 100 * m.value / roof}});
    }
    title("How many SMs it takes");
    const int all = p.sizes.sms;
    for (int sms = 1; sms <= all; sms = sms < all ? std::min(2 * sms, all) : all + 1) {
      for (Row row : {streamRow<Access::kCopy, 4, 4>(p, p.sizes.words, kSmBlock, sms),
               arithmeticRow<Scalar<float, true>>(p, "fp32-fma", "", 0, sms, kSmBlock)}) {
        row.level = "scaling";
        print("scaling", measureAll({row})[0], {{"sms", double(sms)}});
      }
    }
    title("Kernels: FLOP per byte as asked and at least");
    for (const Row& row : rows) {
      if (row.level != "kernel") continue;
      const Measured m = measureAll({row}, kSamples)[0];
      const double dram = std::max(of("dram-copy"), of("dram-triad"));
      const double line = (row.size == 8 ? of("compute-fp64-fma") : fp32) * (1 + row.fmas) / 2;
      const double asked = row.flop / row.bytes;
      const bool memory = asked * dram < line;
      const double percent = 100 * (memory ? m.value / dram : asked * m.value / line);
      print("row", m,
          {{"intensity", asked}, {"least", row.flop / row.leastBytes}, {"line", line}, {"percent", percent},
              {"ceiling", 0, memory ? "copy" : "fma"}});
    }
  }
};

int runDay(const Options& options) {
  const Device device = openDevice(options.device, vectorAdd);
  const cudaDeviceProp& gpu = device.properties;
  const int capability = 10 * gpu.major + gpu.minor;
  Sizes sizes = timedSizes(gpu);
  if (options.mode == Mode::kCheck) sizes.length /= 16;
  requireDeviceMemory(Problem::bytes(sizes));
  if (options.json) {
    printRunRecord(kProgram, device);
  } else {
    printBanner(device);
    std::printf("Streams of %d MiB, large ones of %d MiB.%s\n", sizes.words >> 18, sizes.large >> 18,
        kOnCpu ? " Skipped: the tensor-* rows, for a GPU." : "");
  }
  const Stream stream;
  int failed = 0;
  if (options.mode != Mode::kProfile) {
    const Problem ragged(kRagged, stream);
    for (const Shapes& shapes : makeCeilings(ragged, capability)) failed += check(shapes, "ragged", options, stream);
    failed += check(makeRows(ragged), "ragged", options, stream);
  }
  // On the CPU the full size would run the same code again.
  if (failed == 0 && (!kOnCpu || options.mode == Mode::kProfile)) {
    const Problem problem(sizes, stream);
    const vector<Shapes> ceilings = makeCeilings(problem, capability);
    const Shapes rows = makeRows(problem);
    Shapes first;
    for (const Shapes& shapes : ceilings) first.push_back(shapes.front());
    first.insert(first.end(), rows.begin(), rows.end());
    if (options.mode == Mode::kProfile) {
      for (const Row& row : first) runRow(row, stream);
      return kExitOk;
    }
    failed += check(options.mode == Mode::kCheck ? first : rows, "full", options, stream);
    if (failed == 0 && options.mode == Mode::kTable) {
      Report report = {problem, gpu, options, stream};
      report.title("Ceilings");
      for (const Shapes& shapes : ceilings) report.ceiling(shapes);
      report.ridges();
      report.sweep();
      report.under(rows);
      failed = report.failed;
    }
  }
  if (failed == 0) return kExitOk;
  std::fprintf(stderr, "%d checks FAILED\n", failed);
  return kExitFailed;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
