// SPDX-License-Identifier: MIT
//
// Day 30: the roofline's lines, measured.
//
// What can this GPU reach, at every level of its memory and in every kind of arithmetic? Kernels that do one thing only
// answer it. Others, written as usual, then stand under those lines, and some pass them by the bytes that they request:
// day 49 repairs that flaw. How a ceiling moves with clock or temperature from day to day is not answered.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o roofline roofline.cu
//   run:   ./roofline            (--help lists the rest)
//
// The kernels in the order of this file, and what each shows:
//   vectorAdd, triadFp64       streams: below DRAM's line, and at it
//   stencil7                   seven reads a cell, of which caches serve six: above DRAM's line
//   matmulNaive, matmulTiled   requests that caches serve, and a sixteenth of them
//   intensity                  a copy with 1 to 2048 FMAs in it: the roofline, drawn by one kernel
//   streamDram, copyInTurn     DRAM's four lines, and how many SMs it takes to fill it
//   readSlices                 L2 and L1, by the size of what an SM reads over and over
//   readShared                 shared memory, with 1 to 32 lanes in one bank
//   arithmeticPeak             every arithmetic: FP32, FP64, FP16, BF16, integers, tensor cores
//   warpgroupPeak              the tensor cores of Hopper, which one warp alone cannot fill
//   watchClock                 the SM clock beside a kernel, without which no share of a peak means anything

// common: device
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using std::string, std::to_string, std::vector;

// The blocks between `// common:` lines are the same in every day: scripts/sync_common.py copies common/lesson.cuh.

// What one SM counted while something ran. Cycles over nanoseconds give its clock, which a card changes with its load
// and its temperature: a share of the arithmetic peak means something only at the clock that was there. The CPU build
// has no such clock, and times nothing.
struct ClockSpan {
  long long cycles, nanoseconds;
  double megahertz() const { return 1e3 * double(cycles) / nanoseconds; }
};

__device__ inline ClockSpan readClock() {
  ClockSpan now = {0, 0};
#ifdef __CUDA_ARCH__
  now.cycles = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now.nanoseconds));
#endif
  return now;
}

// The CPU build (common/cpu) compiles the same files; its header defines CUDA_DAYS_CPU.
#ifdef CUDA_DAYS_CPU
constexpr bool kOnCpu = true;
#else
constexpr bool kOnCpu = false;
#endif

// A build for compute-sanitizer, whose tools slow a kernel down up to a hundred times: --check takes the smallest sizes
// that still reach every barrier and every guard.
#ifdef CUDA_DAYS_SANITIZE
constexpr bool kForSanitizer = true;
#else
constexpr bool kForSanitizer = false;
#endif

// kWidth adjacent values that move as one access: of 4, 8 or 16 bytes, aligned to them.
template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Pack {
  T at[kWidth];
};

// How many blocks of b cover a.
constexpr int ceilDivide(int a, int b) { return (a + b - 1) / b; }
// end common: device

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>

// ---- Kernels under the lines: as one writes them

constexpr int kWarp = 32;
constexpr int kBlock = 256;  // 4 blocks fill an SM of a T4 (1024 threads), 8 one of an H200

// One thread, one element of three streams, each byte once. It should run at DRAM's line. On an H200 it reaches about
// 78 % of it (profile/h200/day30.txt, as all figures below): a thread has 8 bytes in flight, which is too few.
__global__ void vectorAdd(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

constexpr float kScale = 3;  // exact in every type, so that the CPU's result is the GPU's

// The same with doubles and an FMA: twice the bytes in flight a thread, and it is at the line, 99 % of it. FP64's line
// of arithmetic is far above it on this card.
__global__ void triadFp64(const double* a, const double* b, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = fma(double(kScale), b[i], a[i]);
}

constexpr double kNeighbourWeight = 0.125;  // a power of two, as exact as kScale

// A seven-point stencil in 3D, 5 additions and an FMA a cell. Of its seven reads one is its own; caches serve the
// others, so that by requested bytes it reads about 273 % of DRAM's line.
__global__ void stencil7(const double* in, double* out, int g) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y;
  const int z = blockIdx.z;
  if (x >= g) return;
  const int i = (z * g + y) * g + x;
  const bool inside = x > 0 && x < g - 1 && y > 0 && y < g - 1 && z > 0 && z < g - 1;
  out[i] = inside
      ? fma(kNeighbourWeight, in[i - 1] + in[i + 1] + in[i - g] + in[i + g] + in[i - g * g] + in[i + g * g], in[i])
      : in[i];
}

constexpr int kTile = 16;
constexpr int kMatrix = 512;  // 1 MiB each: caches hold them

// C = A B, d x d, a multiple of kTile: one thread, one output. Of its 2 d reads caches serve most, so that by requested
// bytes it reads about 424 % of DRAM's line, though it is slower than the next one.
__global__ void matmulNaive(const float* a, const float* b, float* out, int d) {
  const int x = blockIdx.x * kTile + threadIdx.x;
  const int y = blockIdx.y * kTile + threadIdx.y;
  float sum = 0;
  for (int k = 0; k < d; ++k) sum = fmaf(a[y * d + k], b[k * d + x], sum);
  out[y * d + x] = sum;
}

// The same, with each element brought to shared memory once a tile and read 16 times from there: a sixteenth of the
// requests, 1.5 times as fast, and 41 % of DRAM's line by the bytes that it requests.
__global__ void matmulTiled(const float* a, const float* b, float* out, int d) {
  __shared__ float tileA[kTile][kTile], tileB[kTile][kTile];
  const int x = threadIdx.x, y = threadIdx.y;
  a += (blockIdx.y * kTile + y) * d + x;
  b += y * d + blockIdx.x * kTile + x;
  float sum = 0;
  for (int first = 0; first < d; first += kTile) {
    tileA[y][x] = a[first];
    tileB[y][x] = b[first * d];
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum = fmaf(tileA[y][k], tileB[k][x], sum);
    __syncthreads();
  }
  out[(blockIdx.y * kTile + y) * d + blockIdx.x * kTile + x] = sum;
}

// ---- What the streams hold

// Word i of a stream, a multiple of 2^-15: sums of a few are exact. Neighbours differ, and words 2^16 apart. Each run
// of 2^16 words holds every value once, in an order of its own.
constexpr int kPatternBits = 16;
constexpr int kPatternValues = 1 << kPatternBits;
__host__ __device__ inline unsigned patternIndex(unsigned i) { return (i ^ (i >> kPatternBits)) % kPatternValues; }
__host__ __device__ inline float patternValue(unsigned index) { return (int(index) - 32768) / 32768.0f; }
__host__ __device__ inline float pattern(unsigned i) { return patternValue(patternIndex(i)); }

// Sums of words are taken of their bits: then they are exact, whatever the order.
__host__ __device__ inline unsigned bitsOf(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// ---- What the kernels above and the streams below must give: the references, for the CPU and for the device

constexpr unsigned kShift = 12345;  // word i of the second stream is word i + kShift of the first
constexpr double kAllowed = 1e-4;  // of a product's element: one wrong term is larger

// The first stream and a multiple of the second: 0 a copy, 1 a sum. Exact in float, and so in double.
struct Streamed {
  float scale;
  __host__ __device__ float operator()(size_t i) const {
    return pattern(unsigned(i)) + scale * pattern(unsigned(i) + kShift);
  }
};

struct Stencilled {
  int g;
  __host__ __device__ double operator()(size_t cell) const {
    const int i = int(cell);
    const int x = i % g, y = i / g % g, z = i / g / g;
    if (x == 0 || y == 0 || z == 0 || x == g - 1 || y == g - 1 || z == g - 1) return pattern(i);
    double neighbours = 0;
    for (int step = 1; step <= g * g; step *= g) neighbours += double(pattern(i - step)) + pattern(i + step);
    return pattern(i) + kNeighbourWeight * neighbours;
  }
};

struct Product {
  int d;
  __host__ __device__ double operator()(size_t element) const {
    const unsigned row = unsigned(element) / d, column = unsigned(element) % d;
    double sum = 0;
    for (int k = 0; k < d; ++k) sum += double(pattern(row * d + k)) * pattern(k * d + column + kShift);
    return sum;
  }
};

// The sum of the bits of all words of the pattern before word n, modulo 2^32, without adding them up: an aligned run of
// 2^k words, k up to 16, holds the values of an aligned run of 2^k in ascending order, and n is a sum of such runs.
class SumBefore {
 public:
  SumBefore() : below_(kPatternValues + 1) {
    for (int v = 0; v < kPatternValues; ++v) below_[v + 1] = below_[v] + bitsOf(patternValue(v));
  }

  unsigned operator()(size_t n) const {
    unsigned sum = unsigned(n >> kPatternBits) * below_.back();
    for (int k = kPatternBits - 1; k >= 0; --k) {
      if ((n >> k) % 2 == 0) continue;
      const unsigned first = patternIndex(unsigned(n >> (k + 1) << (k + 1))) >> k << k;
      sum += below_[first + (1u << k)] - below_[first];
    }
    return sum;
  }

 private:
  vector<unsigned> below_;  // for each value, the sum of the bits of all that are smaller
};

// ---- The measured curve

// Every chain is x <- x * x + c. With c near -1.7 it neither settles nor grows, keeps all mantissa bits busy, and the
// CPU can follow it bit by bit. Half precision falls into cycles, odd ones with these c: half the steps show.
constexpr float kMap = -1.74f;
constexpr int kMostFmas = 2048;  // of the measured curve: 128 FLOP per byte

// kFmas FMAs on the four floats of a load, which then go out again: kFmas / 16 FLOP per byte. It should follow the copy
// ceiling up to the ridge point, which is 15.8 FLOP per byte on an H200, and then the FMA ceiling; how closely it does
// is the chart profile/h200/day30-curve.svg.
template <int kFmas>
__global__ void intensity(const Pack<float, 4>* in, Pack<float, 4>* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Pack<float, 4> x = in[i];
#pragma unroll
  for (int k = 0; k < kFmas; ++k) x.at[k % 4] = fmaf(x.at[k % 4], x.at[k % 4], kMap);
  out[i] = x;
}

// Of the four floats of a load every fourth FMA is one's own.
struct Iterated {
  int fmas;
  __host__ __device__ float operator()(size_t i) const {
    float x = pattern(unsigned(i));
    for (int k = int(i % 4); k < fmas; k += 4) x = fmaf(x, x, kMap);
    return x;
  }
};

// ---- Tools of the kernels below: a sum that keeps loads from being deleted, and the SM clock

// The sum over a block, in every thread of it.
__device__ inline unsigned blockSum(unsigned sum) {
  __shared__ unsigned total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % kWarp == 0) atomicAdd(&total, sum);
  __syncthreads();
  return total;
}

// The SM clock while block 0 works, read by one thread: the timer is slow to read.
__device__ inline void startClock(ClockSpan* span) {
  if (blockIdx.x + threadIdx.x == 0) *span = readClock();
}
__device__ inline void stopClock(ClockSpan* span) {
  if (blockIdx.x + threadIdx.x > 0) return;
  const ClockSpan end = readClock();
  *span = {end.cycles - span->cycles, end.nanoseconds - span->nanoseconds};
}

// For kernels whose blocks come and go, in which no block lasts: one thread on a stream of its own, beside them.
__global__ void watchClock(ClockSpan* span, long long cycles) {
  startClock(span);
  const long long first = readClock().cycles;
  while (readClock().cycles - first < cycles) continue;
  stopClock(span);
}

// ---- Memory: DRAM, L2, L1, shared

constexpr int kSmBlock = 1024;  // threads that keep an SM busy, in one block
constexpr int kInFlight = 8;  // loads that a thread issues before it waits for the first

enum Access { kRead, kWrite, kCopy, kTriad };

// snippet: stream
// Four ways through DRAM. What decides the bytes in flight: the width of an access (kWords), the loads a thread issues
// before it uses the first (kLoads), the number of blocks (one a tile, or fewer that walk on). None of them is right on
// every card, so the program tries all: the fastest read about 4,380 GB/s on an H200, write 4,500 and copy 4,180.
template <Access kAccess, int kWords, int kLoads>
__global__ void streamDram(
    const Pack<float, kWords>* a, const Pack<float, kWords>* b, Pack<float, kWords>* out, double* sums, int count) {
  const int tile = kLoads * blockDim.x;
  unsigned sum = 0;
  for (int first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
    Pack<float, kWords> held[kLoads] = {};
    Pack<float, kWords> other[kLoads] = {};
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      if (i < count && kAccess != kWrite) held[k] = a[i];
      if (i < count && kAccess == kTriad) other[k] = b[i];
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      for (int w = 0; w < kWords; ++w) {
        float& word = held[k].at[w];
        if (kAccess == kRead && i < count) sum += bitsOf(word);
        if (kAccess == kWrite) word = pattern(i * kWords + w);
        if (kAccess == kTriad) word = fmaf(kScale, other[k].at[w], word);
      }
      if (kAccess != kRead && i < count) out[i] = held[k];
    }
  }
  if (kAccess == kRead) {  // stores must not weigh on it
    sum = blockSum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
}
// end snippet: stream

// The copy for a few blocks, which stay: each takes the next tile when it is done with one, so that none waits for a
// slower one at the end. tickets[0] counts the tiles taken beyond the first of each block, tickets[1] the blocks that
// are done; the last of them makes both 0 again, for the next launch. The warps of a block meet once a tile, while
// their loads are on the way, and the next tile is taken one tile ahead. With 2 loads a thread a block of 1024 threads
// has 32 KiB in flight, as a full wave of one float4 a thread; all 132 SMs of an H200 then copy at about 97 % of the
// ceiling. With 4 or 8 loads they were slower when that was tried, and far slower with a tile for each warp: those are
// 32 times as many additions to one word.
constexpr int kCopyLoads = 2;
__global__ void __launch_bounds__(kSmBlock)
    copyInTurn(const Pack<float, 4>* in, Pack<float, 4>* out, unsigned* tickets, int count) {
  __shared__ int following[2];
  const int tile = kCopyLoads * blockDim.x;
  unsigned taken = threadIdx.x == 0 ? atomicAdd(&tickets[0], 1u) : 0;
  int slot = 0;  // the other one may still be read
  for (int first = blockIdx.x * tile; first < count; slot = 1 - slot) {
    if (threadIdx.x == 0) {
      following[slot] = (gridDim.x + taken) * tile;
      taken = atomicAdd(&tickets[0], 1u);
    }
    Pack<float, 4> held[kCopyLoads] = {};
#pragma unroll
    for (int k = 0; k < kCopyLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      if (i < count) held[k] = in[i];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kCopyLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      if (i < count) out[i] = held[k];
    }
    first = following[slot];
  }
  if (threadIdx.x == 0 && atomicAdd(&tickets[1], 1u) == gridDim.x - 1) {
    atomicExch(&tickets[0], 0u);
    atomicExch(&tickets[1], 0u);
  }
}

// Through L1; past it; and past it with the slices going round among the SMs: requests of several for the same
// line at about the same time are merged on the way, and the rate counts bytes that the L2 never served.
enum Route { kThroughL1, kPastL1, kRotating };

// Each block, one on an SM, reads its slice over and over, every warp its own part: warps that shared lines would
// follow one another and find them in L1, however large the slice. On an H200 a slice that L1 holds is read at 97 % of
// 128 bytes a clock and SM; past L1 the rate is 28 % of that one, and it is the L2's.
template <Route kRoute>
__global__ void __launch_bounds__(kSmBlock)
    readSlices(const uint4* in, double* sums, ClockSpan* span, int slice, int trips) {
  startClock(span);
  int owner = blockIdx.x;
  const uint4* from = in + size_t(owner) * slice;
  const int step = 2 * blockDim.x;
  int position = threadIdx.x / kWarp * 2 * kWarp + threadIdx.x % kWarp;
  unsigned sum = 0;
  for (int trip = 0; trip < trips; ++trip) {
    uint4 held[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint4* at = from + position + k % 2 * kWarp;
      held[k] = kRoute == kThroughL1 ? *at : __ldcg(at);
      if (k % 2 == 0) continue;
      position += step;
      if (position >= slice) {
        position -= slice;
        if (kRoute == kRotating) {
          owner = owner + 1 == int(gridDim.x) ? 0 : owner + 1;
          from = in + size_t(owner) * slice;
        }
      }
    }
    for (int k = 0; k < kInFlight; ++k) sum += held[k].x + held[k].y + held[k].z + held[k].w;
  }
  stopClock(span);
  sum = blockSum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// A trip starts at one of kStarts places, kStartStep words apart, and reads kReads words, kReadStep apart: different
// ones in each.
constexpr int kSharedWords = 2048, kStarts = 32, kStartStep = 4, kReads = 8, kReadStep = 128;
static_assert((kStarts - 1) * kStartStep + 31 * kWarp + 7 * kReadStep < kSharedWords, "the farthest read");

// Lane l reads word l * stride: with 1 all banks serve a lane each, with 32 one bank serves all lanes one after the
// other. So every doubling should halve the rate; measured, it does, from 99 % of the banks' rate to 1/32 of that. The
// start moves, or the compiler would load once.
__global__ void readShared(double* out, ClockSpan* span, int stride, int trips) {
  __shared__ unsigned words[kSharedWords];
  for (unsigned i = threadIdx.x; i < kSharedWords; i += blockDim.x) words[i] = bitsOf(pattern(i));
  __syncthreads();
  startClock(span);
  unsigned sum = 0;
  for (int trip = 0; trip < trips; ++trip) {
    const int start = threadIdx.x % kWarp * stride + trip % kStarts * kStartStep;
#pragma unroll
    for (int k = 0; k < kReads; ++k) sum += words[start + k * kReadStep];
  }
  stopClock(span);
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// ---- Arithmetic

// 8 chains cover an FMA's 4 clocks with one warp per scheduler. At 64 steps a trip FP16's drift apart and lose rate.
constexpr int kChains = 8;
constexpr int kUnroll = 32;
constexpr int kSeeds = 7;  // thread t starts as t % 7: a period that divides no block

__host__ __device__ inline float chainStart(int seed, int chain) {
  return (seed * kChains + chain) * 0.015625f - 0.45f;
}

// Rounds to `bits` significant bits, ties to even, as the hardware does; no value here is subnormal.
double rounded(double value, int bits) {
  if (bits == 53 || value == 0) return value;
  const int shift = bits - 1 - std::ilogb(value);
  return std::ldexp(std::nearbyint(std::ldexp(value, shift)), -shift);
}

// The chain on the CPU, in a type of `bits` significant bits. What is not fused has a volatile in the middle, or the
// compiler might fuse it. A float's FMA must not be rounded to a double first.
double floatChain(int bits, bool fused, double start, double c, int steps) {
  double x = rounded(start, bits);
  c = rounded(c, bits);
  for (int step = 0; step < steps; ++step) {
    if (fused) {
      x = bits == 24 ? std::fma(float(x), float(x), float(c)) : rounded(std::fma(x, x, c), bits);
    } else {
      const volatile double square = rounded(x * x, bits);
      x = rounded(square + c, bits);
    }
  }
  return x;
}

// Arithmetic: a chain's register, its constants (kernel parameters: the compiler cannot fold them), what a lane makes
// of them before its loop, its start, a step and what that counts for, its worth, and the same on the CPU.
template <class Float, bool kFused>
struct Scalar {
  using Value = Float;
  using Map = Float;
  static constexpr int kWork = 2, kFlop = 2;
  static Map map() { return kMap; }
  static __device__ Map operands(const Map& map, int) { return map; }
  static __device__ Value start(float x) { return x; }
  static __device__ float step(float x, float c) { return kFused ? fmaf(x, x, c) : __fadd_rn(__fmul_rn(x, x), c); }
  static __device__ double step(double x, double c) { return kFused ? fma(x, x, c) : __dadd_rn(__dmul_rn(x, x), c); }
  static __device__ double worth(Value x) { return x; }
  static constexpr int kLanes = 1;  // of a warp that differ
  static double onCpu(float x, int steps, int) {
    return floatChain(sizeof(Float) == 4 ? 24 : 53, kFused, x, kMap, steps);
  }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800  // and not launched
__device__ __nv_bfloat162 __hfma2(__nv_bfloat162, __nv_bfloat162, __nv_bfloat162 c) { return c; }
#endif

// Pairs. What is not fused is an FMA with -0 and one by 1: Hopper has HMUL2 and HADD2 in one of its two half-precision
// pipes only, FMAs in both. An operand that the compiler knows to have equal halves would run at half rate.
template <class Pair, Pair (*kPack)(float, float), int kBits, bool kFused>
struct Packed {
  using Value = Pair;
  struct Map {
    Pair c, one, zero;
  };
  static constexpr int kWork = 4, kFlop = 4;
  static constexpr float kLow = kBits == 11 ? -1.74f : -1.70f;
  static constexpr float kHigh = kBits == 11 ? -1.86f : -1.68f;
  static Map map() { return {kPack(kLow, kHigh), kPack(1, 1), kPack(-0.0f, -0.0f)}; }
  static __device__ Map operands(const Map& map, int) { return map; }
  static __device__ Value start(float x) { return kPack(x, x); }
  static __device__ Value step(Value x, const Map& map) {
    return kFused ? __hfma2(x, x, map.c) : __hfma2(__hfma2(x, x, map.zero), map.one, map.c);
  }
  static __device__ double worth(Value x) { return __low2float(x) + __high2float(x); }
  static constexpr int kLanes = 1;
  static double onCpu(float x, int steps, int) {
    return floatChain(kBits, kFused, x, kLow, steps) + floatChain(kBits, kFused, x, kHigh, steps);
  }
};

template <bool kFused>
using Half = Packed<__half2, __floats2half2_rn, 11, kFused>;
template <bool kFused>
using Brain = Packed<__nv_bfloat162, __floats2bfloat162_rn, 8, kFused>;

// Integers: x <- x * a + c, of full period.
struct Int32 {
  using Value = unsigned;
  struct Map {
    unsigned a, c;
  };
  static constexpr int kWork = 2, kFlop = 0;
  static Map map() { return {1664525, 1013904223}; }
  static __device__ Map operands(const Map& map, int) { return map; }
  static __device__ Value start(float x) { return bitsOf(x); }
  static __device__ Value step(Value x, const Map& map) { return x * map.a + map.c; }
  static __device__ double worth(Value x) { return x; }
  static constexpr int kLanes = 1;
  static double onCpu(float start, int steps, int) {
    unsigned x = bitsOf(start);
    for (int step = 0; step < steps; ++step) x = x * map().a + map().c;
    return x;
  }
};

struct IssueFma : Scalar<float, true> {
  static constexpr int kWork = 1;
};

// Warp instructions: FMAs, or half of them integer, because the FP32 lanes of T4 and A100 fill half the issue slots.
struct IssueMix : Int32 {
  struct Value {
    float f, g;
    unsigned u;
  };
  static constexpr int kWork = 4, kFlop = 4;
  static __device__ Value start(float x) { return {x, -0.5f * x, bitsOf(x)}; }
  static __device__ Value step(Value x, const Map& map) {
    return {fmaf(x.f, x.f, kMap), fmaf(x.g, x.g, kMap), (x.u + map.a) ^ map.c};
  }
  static __device__ double worth(Value x) { return double(x.f) + x.g + x.u; }
  static double onCpu(float start, int steps, int lane) {
    unsigned u = bitsOf(start);
    for (int step = 0; step < steps; ++step) u = (u + map().a) ^ map().c;
    return IssueFma::onCpu(start, steps, lane) + IssueFma::onCpu(-0.5f * start, steps, lane) + u;
  }
};

// Tensor cores: a step is D += A B, with 16 x 8 of D a warp. The operands are small integers, exact in every type, and
// tell places apart: an element of D gains tensorA * tensorB, summed over k, in a step. The four sums of a lane differ,
// none is 0, and an exchange of two registers of A or of B changes what most lanes get. At most 73 a step, they stay
// exact in FP32 over all steps of a launch. scripts/tests/test_day30_program.py holds all that.
__host__ __device__ inline int tensorA(int row, int k) {
  return 1 + row / 8 % 2 + (4 * (row % 8 + row / 16 * 8) + 2 * k) % 5 % 2;
}
__host__ __device__ inline int tensorB(int k, int column) {
  return 1 + (column % 2 == 1 && k % 4 == 0) + (4 * k + 3 * (column / 2)) % 13 % 2;
}
inline int tensorSum(int row, int column, int depth) {
  int sum = 0;
  for (int k = 0; k < depth; ++k) sum += tensorA(row, k) * tensorB(k, column);
  return sum;
}

// Where the elements are (PTX ISA, matrix fragments of mma.m8n8k4 to m16n8k32). With w elements in a register, lane
// 4 g + t has in register r of A the row g + 8 (r % 2), from k = w t + 4 w (r / 2) on; in register r of B the column
// g, from k = w t + 4 w r on; in register i of D the row g + 8 (i / 2) and the column 2 t + i % 2. Instructions of 8
// rows are issued twice, for registers 0 and 1 of A. A failed check shows which lane got what: thread i is lane i % 32.
__host__ __device__ inline int rowOfA(int lane, int r) { return lane / 4 + 8 * (r % 2); }
__host__ __device__ inline int rowOfSum(int lane, int i) { return lane / 4 + 8 * (i % 4 / 2); }
__host__ __device__ inline int columnOfSum(int lane, int i) { return 2 * (lane % 4) + i % 2 + 8 * (i / 4); }

enum Mma { kFp16Turing, kFp16, kBf16, kTf32, kInt8Turing, kInt8, kFp64Ampere, kFp64 };

#define MMA_SUMS(type) "+" type(v.d[0]), "+" type(v.d[1]), "+" type(v.d[2]), "+" type(v.d[3])
#define MMA_2_1(instruction)                                                          \
  asm("mma.sync.aligned." instruction " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
      : MMA_SUMS("f")                                                                 \
      : "r"(x.a[0]), "r"(x.a[1]), "r"(x.b[0]))
#define MMA_4_2(instruction, type)                                                             \
  asm("mma.sync.aligned." instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : MMA_SUMS(type)                                                                         \
      : "r"(x.a[0]), "r"(x.a[1]), "r"(x.a[2]), "r"(x.a[3]), "r"(x.b[0]), "r"(x.b[1]))
#define MMA_8_4(instruction)                                                                                           \
  asm("mma.sync.aligned." instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};" \
      : MMA_SUMS("d")                                                                                                  \
      : "d"(x.a[0]), "d"(x.a[1]), "d"(x.a[2]), "d"(x.a[3]), "d"(x.a[4]), "d"(x.a[5]), "d"(x.a[6]), "d"(x.a[7]),        \
      "d"(x.b[0]), "d"(x.b[1]), "d"(x.b[2]), "d"(x.b[3]))
#define MMA_8_ROWS(instruction, type, input)                           \
  for (int i = 0; i < 4; i += 2)                                       \
  asm("mma.sync.aligned." instruction " {%0,%1}, {%2}, {%3}, {%0,%1};" \
      : "+" type(v.d[i]), "+" type(v.d[i + 1])                         \
      : input(x.a[i / 2]), input(x.b[0]))

template <Mma kMma, class Sum, int kDepth, class Input = unsigned>
struct Tensor {
  struct Value {
    Sum d[4];
  };
  struct Map {};
  static constexpr int kWide = kMma == kInt8 || kMma == kInt8Turing ? 4 : kMma == kTf32 || kMma >= kFp64Ampere ? 1 : 2;
  struct Operands {
    Input a[kDepth / (2 * kWide)], b[kDepth / (4 * kWide)];
  };
  static constexpr int kWork = 2 * 16 * 8 * kDepth / kWarp;
  static constexpr int kFlop = kWide == 4 ? 0 : kWork;
  static Map map() { return {}; }

  // An integer from 1 to 4 as this type's bits.
  static __host__ __device__ unsigned bitsOfElement(int value) {
    if (kWide == 4) return value;
    const unsigned bits = bitsOf(float(value));
    if (kMma == kTf32) return bits;
    return kMma == kBf16 ? bits >> 16 : (bits >> 13) - ((127 - 15) << 10);
  }
  // A register of elements, of which `element(e)` gives the e-th.
  template <class Element>
  static __host__ __device__ Input pack(Element element) {
    if constexpr (kMma >= kFp64Ampere) {
      return element(0);
    } else {
      unsigned word = 0;
      for (int e = 0; e < kWide; ++e) word |= bitsOfElement(element(e)) << (32 / kWide * e);
      return word;
    }
  }
  // What a lane holds of A, from row `first` on, and of B.
  static __host__ __device__ Operands fragments(int lane, int first) {
    Operands x;
    const int k = kWide * (lane % 4);
    for (int r = 0; r < kDepth / (2 * kWide); ++r)
      x.a[r] = pack([&](int e) { return tensorA(first + rowOfA(lane, r), k + 4 * kWide * (r / 2) + e); });
    for (int r = 0; r < kDepth / (4 * kWide); ++r)
      x.b[r] = pack([&](int e) { return tensorB(k + 4 * kWide * r + e, lane / 4); });
    return x;
  }
  static __device__ Operands operands(const Map&, int lane) { return fragments(lane, 0); }
  static __host__ __device__ Value start(float x) {
    const Sum first = int(64 * x);
    return {{first, first, first, first}};
  }
  static __device__ Value step(Value v, [[maybe_unused]] const Operands& x) {
#ifndef CUDA_DAYS_CPU
    if constexpr (kMma == kFp16Turing) MMA_2_1("m16n8k8.row.col.f32.f16.f16.f32");
    if constexpr (kMma == kInt8Turing) MMA_8_ROWS("m8n8k16.row.col.s32.s8.s8.s32", "r", "r");
#if __CUDA_ARCH__ >= 800
    if constexpr (kMma == kFp16) MMA_4_2("m16n8k16.row.col.f32.f16.f16.f32", "f");
    if constexpr (kMma == kBf16) MMA_4_2("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
    if constexpr (kMma == kTf32) MMA_4_2("m16n8k8.row.col.f32.tf32.tf32.f32", "f");
    if constexpr (kMma == kInt8) MMA_4_2("m16n8k32.row.col.s32.s8.s8.s32", "r");
    if constexpr (kMma == kFp64Ampere) MMA_8_ROWS("m8n8k4.row.col.f64.f64.f64.f64", "d", "d");
#endif
#if __CUDA_ARCH__ >= 900
    if constexpr (kMma == kFp64) MMA_8_4("m16n8k16.row.col.f64.f64.f64.f64");
#endif
#endif
    return v;
  }
  // The four sums weigh differently, so that two that changed places would show.
  static __host__ __device__ double worth(const Value& v) {
    return 1.0 * v.d[0] + 2.0 * v.d[1] + 3.0 * v.d[2] + 4.0 * v.d[3];
  }
  static constexpr int kLanes = kWarp;
  static double onCpu(float x, int steps, int lane) {
    double all = 0;
    for (int i = 0; i < 4; ++i)
      all += (i + 1) * (int(64 * x) + double(steps) * tensorSum(rowOfSum(lane, i), columnOfSum(lane, i), kDepth));
    return all;
  }
};

// Hopper reaches its peak with wgmma alone, which an -arch=sm_90a build has: four warps multiply A, in registers, by B,
// in shared memory. A lane holds A as for mma.sync, a warp 16 of 64 rows, and of D 32 sums: 4 for every 8 columns.
constexpr int kGroup = 4 * kWarp;  // threads
constexpr int kGroupColumns = 64, kGroupDepth = 16, kGroupSums = 32;
double groupOnCpu(int steps, int thread) {
  double all = 0;
  for (int i = 0; i < kGroupSums; ++i) {
    const int row = 16 * (thread / kWarp % 4) + rowOfSum(thread % kWarp, i);
    all += (i + 1) * double(steps) * tensorSum(row, columnOfSum(thread % kWarp, i), kGroupDepth);
  }
  return all;
}

// B lies as wgmma wants it without swizzle: pieces of 8 columns and 8 steps of k, 128 bytes that hold one column after
// the other; 8 pieces for all columns, then those of the other half of k. Word i has two steps of k.
__host__ __device__ inline int columnOfWord(int i) { return i / 32 % 8 * 8 + i % 32 / 4; }
__host__ __device__ inline int depthOfWord(int i) { return i / 256 * 8 + i % 4 * 2; }

#ifndef CUDA_DAYS_CPU
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ bool sm90aIsThere = true;
#else
__device__ bool sm90aIsThere = false;
#endif
#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
__global__ void __launch_bounds__(kBlock) warpgroupPeak(double* out, ClockSpan* span, int steps) {
  using Fragments = Tensor<kFp16, float, kGroupDepth>;
  constexpr int kWords = kGroupColumns * kGroupDepth / 2;
  // First NaNs, then the operands, by the last warp alone: without the barrier the others would be early, and a NaN
  // stays in a sum.
  [[maybe_unused]] __shared__ __align__(128) unsigned b[kWords];
  const int lane = threadIdx.x % kWarp;
  for (int i = threadIdx.x; i < kWords; i += blockDim.x) b[i] = 0xFFFFFFFF;
  __syncthreads();
  if (threadIdx.x / kWarp == blockDim.x / kWarp - 1) {
    for (int i = lane; i < kWords; i += kWarp) {
      const unsigned low = Fragments::bitsOfElement(tensorB(depthOfWord(i), columnOfWord(i)));
      b[i] = low | Fragments::bitsOfElement(tensorB(depthOfWord(i) + 1, columnOfWord(i))) << 16;
    }
  }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async;" ::: "memory");  // wgmma reads by another way than these stores took
#endif
  __syncthreads();
  [[maybe_unused]] const Fragments::Operands x = Fragments::fragments(lane, 16 * (threadIdx.x / kWarp % 4));
  float d[kGroupSums] = {};
  startClock(span);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // In units of 16 bytes: the address, the way to the other half of k, the way to the next 8 columns.
  const std::uint64_t descriptor = __cvta_generic_to_shared(b) >> 4 | 64ull << 16 | 8ull << 32;
  for (int step = 0; step < steps; step += kUnroll) {
    asm volatile("fence.proxy.async; wgmma.fence.sync.aligned;");
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
          "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
          : SUMS_16(0), SUMS_16(16)
          : "r"(x.a[0]), "r"(x.a[1]), "r"(x.a[2]), "r"(x.a[3]), "l"(descriptor));
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
#endif
  stopClock(span);
  double sum = 0;
  for (int i = 0; i < kGroupSums; ++i) sum += (i + 1) * double(d[i]);
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
#endif

// Registers only: kChains independent chains a thread, and their sum, so that none is dead. On an H200 every arithmetic
// comes to about 98 % or more of what its lanes can do at the clock that was measured, but for FP16, BF16, TF32 and
// INT8 on tensor cores: there mma.sync reaches about 66 %, and warpgroupPeak 97 %.
template <class Type>
__global__ void arithmeticPeak(double* out, ClockSpan* span, typename Type::Map map, int steps) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  const auto operands = Type::operands(map, threadIdx.x % kWarp);
  typename Type::Value chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = Type::start(chainStart(thread % kSeeds, c));
  startClock(span);
  for (int step = 0; step < steps; step += kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) chain[c] = Type::step(chain[c], operands);
    }
  }
  stopClock(span);
  double sum = 0;
  for (int c = 0; c < kChains; ++c) sum += Type::worth(chain[c]);
  out[thread] = sum;
}

// common: harness
// ---- The harness, the same in every day: skip it

// It ends early, reads arguments, opens the GPU, owns memory, compares, times and prints records. The lesson uses it
// and is not in it; it goes on behind `// end common: harness`.

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

// ---- Ends and errors

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;  // a check, a CUDA call or writing the output failed
constexpr int kExitUsage = 2;  // a bad argument
constexpr int kExitSkipped = 77;  // no usable GPU: a skip for CTest and Automake

// Every early end is a Stop: runLesson prints its message and returns its code, and the destructors on the way out
// release device memory, events and streams.
struct Stop {
  int exitCode;
  string message;
};

// Stops with the place and the call that failed. Every CUDA call goes through it, by the macro below.
inline void checkCuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw Stop{kExitFailed,
      string(file) + ":" + to_string(line) + ": " + call + " failed: " + cudaGetErrorName(status) + ": " +
          cudaGetErrorString(status)};
}
#define CUDA_CHECK(call) checkCuda((call), #call, __FILE__, __LINE__)

// For destructors, which cannot throw. While a Stop is on its way its message is the story; otherwise a failed release
// is reported and makes the exit code of runLesson 1.
inline bool releaseFailed = false;
inline void release(cudaError_t status, const char* call) {
  if (status == cudaSuccess || std::uncaught_exceptions() > 0) return;
  fprintf(stderr, "%s failed: %s: %s\n", call, cudaGetErrorName(status), cudaGetErrorString(status));
  releaseFailed = true;
}

// ---- Arguments

// What a run is for: the table of times (no argument), the checks alone, or one launch per kernel for a profiler.
enum class Mode { kTable, kCheck, kProfile };

// What the arguments say.
struct Options {
  Mode mode = Mode::kTable;
  bool json = false;  // JSON lines to stdout, and no text
  string jsonFile;  // JSON lines to this file, and the text to stdout; empty: none
  int device = 0;
};

// What a day says of itself: its number, the name of its program, and a line for --help.
struct Program {
  int day;
  const char* name;
  const char* summary;
};

// The text of --help, which a bad argument gets too.
inline string usage(const Program& program) {
  return string("usage: ") + program.name +
      " [--check | --profile] [--json | --json-file F] [--device N] [--help]\n\n" + program.summary + R"(

  (no argument)  check every kernel, time it, print the table
  --check        the checks alone: without a GPU, for compute-sanitizer
  --json         the same run as JSON lines, and nothing else on stdout
  --json-file F  the text to stdout, and the JSON lines of this very run to the file F
  --profile      one launch per kernel in table order, no checks, for a profiler
  --device N     which GPU, as the CUDA runtime counts them (default 0)
  --help         this text

exit code: 0 all checks passed, 1 a check or a call failed, 2 bad usage,
           77 skipped: no usable GPU or not enough memory
)";
}

// A full disk or a closed pipe must not end as a success, so stdout is asked after every line that matters.
inline void flushOutput() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw Stop{kExitFailed, string("cannot write to stdout: ") + std::strerror(errno)};
}

// Throws Stop with kExitUsage for anything it does not know, with kExitOk after printing the help, and with
// kExitSkipped where a build for the CPU is asked for times.
inline Options parseArguments(int argc, char** argv, const Program& program) {
  Options options;
  const auto refuse = [&](const string& why) { throw Stop{kExitUsage, why + "\n" + usage(program)}; };
  for (int i = 1; i < argc; ++i) {
    const string argument = argv[i];
    if (argument == "--help") {
      std::fputs(usage(program).c_str(), stdout);
      flushOutput();
      throw Stop{kExitOk, ""};
    } else if (argument == "--check" || argument == "--profile") {
      const Mode mode = argument == "--check" ? Mode::kCheck : Mode::kProfile;
      if (options.mode != Mode::kTable && options.mode != mode)
        refuse(argument + ": --check and --profile exclude each other");
      options.mode = mode;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "--json-file") {
      if (++i == argc || *argv[i] == '\0') refuse("--json-file: the name of a file is missing");
      options.jsonFile = argv[i];
    } else if (argument == "--device") {
      if (++i == argc) refuse("--device: a device number is missing");
      int length = 0;
      if (std::sscanf(argv[i], "%6d%n", &options.device, &length) != 1 || argv[i][length] != '\0' || options.device < 0)
        refuse(string("--device: '") + argv[i] + "' is not a device number (0, 1, ...)");
    } else {
      refuse("unknown argument '" + argument + "'");
    }
  }
  if (options.json && !options.jsonFile.empty()) refuse("--json and --json-file exclude each other");
  if ((options.json || !options.jsonFile.empty()) && options.mode == Mode::kProfile)
    refuse(string(options.json ? "--json" : "--json-file") +
        ": --profile prints no rows, so there is nothing to write as JSON");
  if (kForSanitizer && options.mode != Mode::kCheck)
    throw Stop{
        kExitUsage, string(program.name) + " is built for compute-sanitizer, with small sizes: run it with --check"};
  if (kOnCpu && options.mode == Mode::kTable)
    throw Stop{kExitSkipped,
        string(program.name) + " is built for the CPU, which proves results and never speed: run it with --check"};
  return options;
}

// ---- The device

// What a recorded run was built from; CMake and scripts/evidence.py define them.
#ifndef CUDA_DAYS_REVISION
#define CUDA_DAYS_REVISION "unknown"
#endif
#ifndef CUDA_DAYS_FLAGS
#define CUDA_DAYS_FLAGS "unknown"
#endif

// What runs on a card is decided by the code that was loaded, not by the card: a build for sm_75 also embeds PTX for
// compute_75, which the driver of a newer card translates, and what needs sm_80 or sm_90 was compiled out of it. All
// three are compute capabilities as 10 * major + minor.
struct LoadedCode {
  int card = 0;
  int ptx = 0;  // the virtual architecture that the source was compiled for (cudaFuncAttributes::ptxVersion)
  int binary = 0;  // the machine code that runs (cudaFuncAttributes::binaryVersion)

  bool translated() const { return binary != ptx; }
  // The newest compute capability whose features a kernel of this program may use here.
  int features() const { return std::min({card, ptx, binary}); }
  bool offers(int capability) const { return features() >= capability; }
};

// The name that -arch takes. On Hopper the tensor cores reach their peak with the instructions of sm_90a alone.
inline string archFlag(int capability) { return "sm_" + to_string(capability) + (capability == 90 ? "a" : ""); }

// What a run leaves out because the loaded code lacks it, and the compute capability that its code needs.
struct LeftOut {
  string name;
  int code;
};
constexpr int kSm90a = 91;  // what only sm_90a has, as if it were a compute capability between 9.0 and the next

// Names it and the build that has it, in a sentence; "" where nothing is left out.
inline string leftOutText(const LoadedCode& code, const vector<LeftOut>& all) {
  string names;
  for (size_t i = 0; i < all.size(); ++i) {
    const int need = all[i].code;
    names += (i == 0 ? "" : ", ") + all[i].name;
    if (i + 1 == all.size() || all[i + 1].code != need)
      names += need == kSm90a ? " (needs code for sm_90a)" : " (need code for sm_" + to_string(need) + " or newer)";
  }
  if (names.empty()) return "";
  return "Left out, because the code that runs is of compute_" + to_string(code.ptx) + ": " + names +
      ". Build with -arch=" + archFlag(code.card) + " for them.\n";
}

// The GPU that was opened, and the code that was loaded for it.
struct Device {
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;  // CUDA versions: supported, built with
  double maxClockMhz = 0;  // the highest clock of the SMs, which no measured rate may exceed
  LoadedCode code;
};

constexpr int kOldestCard = 75;  // Turing: the T4, for which the lessons are written

// What an SM does per clock, to hold a measured rate against (CUDA C++ Programming Guide, throughput of native
// arithmetic instructions): multiply-adds of each type, bytes of L1 or shared memory, dense FP16 tensor FLOP (0 where
// cards of the generation differ).
struct PerClock {
  int card;  // the first compute capability that it holds for
  int fp32, fp64, fp16, bf16, int32, bytes, tensor;
};
inline PerClock perClockOf(int capability) {
  constexpr PerClock kGenerations[] = {
      {75, 64, 2, 128, 0, 64, 64, 1024},
      {80, 64, 32, 256, 128, 64, 128, 2048},
      {86, 128, 2, 128, 128, 64, 128, 0},
      {90, 128, 64, 256, 256, 64, 128, 4096},
      {100, 128, 64, 256, 256, 64, 128, 0},
      {120, 128, 2, 128, 128, 64, 128, 0},
  };
  PerClock per = kGenerations[0];
  for (const PerClock& generation : kGenerations)
    if (generation.card <= capability) per = generation;
  return per;
}

// FP32 lanes of an SM, which is FMAs per clock.
inline int fp32LanesPerSm(int capability) { return perClockOf(capability).fp32; }

// CUDA counts 12040 for 12.4.
inline string cudaVersionText(int version) { return to_string(version / 1000) + "." + to_string(version % 1000 / 10); }

// nvcc lists in it what it compiled the file for: 750,900 or the like.
#ifndef __CUDA_ARCH_LIST__
#define __CUDA_ARCH_LIST__ 0
#endif

// Opens GPU `index`, or throws Stop with what is wrong and the way out. `kernel` is any kernel of the program: whether
// the driver finds code for it tells whether the build fits the GPU, and its attributes tell which code was loaded.
template <class Kernel>
Device openDevice(int index, Kernel* kernel) {
  Device device;
  cudaDeviceProp& gpu = device.properties;
  CUDA_CHECK(cudaRuntimeGetVersion(&device.runtime));
  CUDA_CHECK(cudaDriverGetVersion(&device.driver));
  if (device.driver == 0)
    throw Stop{kExitSkipped,
        "no NVIDIA driver is visible (WSL: update the Windows driver; Docker: --gpus all). "
        "Without a GPU the CPU build proves the same kernels: scripts/lessons run"};
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  const string driver = cudaVersionText(device.driver);
  if (found == cudaErrorInsufficientDriver)
    throw Stop{kExitFailed,
        "the driver supports CUDA " + driver + ", this program was built with toolkit " +
            cudaVersionText(device.runtime) + ": update the driver, or build with toolkit " + driver + " or older"};
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0))
    throw Stop{kExitSkipped, "an NVIDIA driver is here but it shows no GPU (is CUDA_VISIBLE_DEVICES set?)"};
  CUDA_CHECK(found);
  if (index >= count)
    throw Stop{kExitUsage,
        "--device " + to_string(index) + " is out of range: valid is " +
            (count == 1 ? "0" : "0 to " + to_string(count - 1))};
  CUDA_CHECK(cudaSetDevice(index));
  CUDA_CHECK(cudaGetDeviceProperties(&gpu, index));
  const int card = 10 * gpu.major + gpu.minor;
  const string here = "GPU " + to_string(index) + " (" + gpu.name + ") is sm_" + to_string(card);
  if (card < kOldestCard)
    throw Stop{kExitSkipped,
        here + ", and the days start at sm_" + to_string(kOldestCard) +
            " (Turing): choose another GPU with --device, or run the checks without one: scripts/lessons run"};

  cudaFuncAttributes attributes;
  const cudaError_t fits = cudaFuncGetAttributes(&attributes, kernel);
  if (fits == cudaErrorNoKernelImageForDevice || fits == cudaErrorInvalidDeviceFunction ||
      fits == cudaErrorUnsupportedPtxVersion) {
    string held;
    for (const int arch : {__CUDA_ARCH_LIST__}) held += (held.empty() ? "sm_" : ", sm_") + to_string(arch / 10);
    const string wanted = archFlag(card);
    throw Stop{kExitFailed,
        here + ", and the program holds " + held + ": build with -arch=" + wanted +
            " (CMake: -DCMAKE_CUDA_ARCHITECTURES=" + wanted.substr(3) + ")"};
  }
  CUDA_CHECK(fits);
  device.code = {card, attributes.ptxVersion, attributes.binaryVersion};
  int kilohertz = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, index));
  device.maxClockMhz = kilohertz * 1e-3;
  return device;
}

// Throws Stop (77) where so many bytes are not free, before anything is allocated.
inline void requireDeviceMemory(size_t bytes) {
  size_t free = 0;
  size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (bytes > free)
    throw Stop{kExitSkipped,
        "not enough device memory: " + to_string(bytes >> 20) + " MiB needed, " + to_string(free >> 20) + " MiB free"};
}

// The UUID as nvidia-smi prints it. Two cards of one host are told apart by it, and by their place on the PCI bus.
inline string uuidText(const cudaDeviceProp& gpu) {
  char uuid[48] = "GPU-";
  for (int i = 0, at = 4; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid[at++] = '-';
    at += snprintf(uuid + at, sizeof uuid - at, "%02x", gpu.uuid.bytes[i] & 0xFF);
  }
  return uuid;
}

// Domain, bus, device and function, as nvidia-smi prints them.
inline string pciText(const cudaDeviceProp& gpu) {
  char pci[24];
  snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
  return pci;
}

// ---- Memory

// Copies between host and device on the stream that runs the kernels, and waits. A plain cudaMemcpy from pageable
// memory may return before the copy has ended, and a non-blocking stream does not wait for it.
inline void copyAndWait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}
inline void upload(void* device, const void* host, size_t bytes, cudaStream_t stream) {
  copyAndWait(device, host, bytes, cudaMemcpyHostToDevice, stream);
}
inline void download(void* host, const void* device, size_t bytes, cudaStream_t stream) {
  copyAndWait(host, device, bytes, cudaMemcpyDeviceToHost, stream);
}

// Red zones: every buffer lies between two stretches of memory that no kernel may write. `Checks::add` compares
// them after each check, so a write past the end fails on a GPU too, where the neighbour's memory would take it
// silently. Every word is a NaN as float and as double, so that what is read there shows in the result; and each
// buffer's words differ, so that a copy which runs too far is seen as well. The CPU build needs none: its backend stops
// at the exact end of an allocation. compute-sanitizer does so too, for reads as well, so a build for it has none
// either.
#ifndef CUDA_DAYS_RED_ZONE
#define CUDA_DAYS_RED_ZONE (kOnCpu || kForSanitizer ? 0 : 4096)
#endif
constexpr size_t kRedZone = CUDA_DAYS_RED_ZONE;  // bytes on each side
static_assert(kRedZone % 256 == 0, "a buffer keeps the alignment of cudaMalloc");

// The buffers that have zones, by their start, and the bytes of each.
inline std::map<char*, size_t> guardedBuffers;

// The words that a zone must hold. They follow from its address.
inline vector<uint32_t> redZoneWords(const char* zone) {
  vector<uint32_t> words(kRedZone / sizeof(uint32_t));
  const uint32_t first = uint32_t(uintptr_t(zone)) * 2654435761u >> 12;
  for (size_t i = 0; i < words.size(); ++i) words[i] = 0xFFF00000u | ((first + uint32_t(i)) & 0xFFFFFu);
  return words;
}

// Device memory between two zones. Throws Stop where there is none.
inline char* allocateGuarded(size_t bytes) {
  char* base = nullptr;
  CUDA_CHECK(cudaMalloc(&base, bytes + 2 * kRedZone));
  char* const start = base + kRedZone;
  try {
    for (char* zone : {base, start + bytes})
      if (kRedZone > 0) upload(zone, redZoneWords(zone).data(), kRedZone, nullptr);
  } catch (...) {
    cudaFree(base);
    throw;
  }
  if (kRedZone > 0) guardedBuffers[start] = bytes;
  return start;
}

// Gives memory of allocateGuarded back.
inline cudaError_t freeGuarded(void* memory) {
  char* const start = static_cast<char*>(memory);
  guardedBuffers.erase(start);
  return cudaFree(start - kRedZone);
}

// Says which buffer was written outside of, and restores its zone; an empty text if none was.
inline string redZoneDamage() {
  string damage;
  for (const auto& [start, bytes] : guardedBuffers) {
    for (char* zone : {start - kRedZone, start + bytes}) {
      const vector<uint32_t> want = redZoneWords(zone);
      vector<uint32_t> got(want.size());
      download(got.data(), zone, kRedZone, nullptr);
      if (got == want) continue;
      upload(zone, want.data(), kRedZone, nullptr);
      const size_t at = sizeof(uint32_t) * (std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
      damage = "wrote " +
          (zone < start ? to_string(kRedZone - at) + " bytes before the start"
                        : to_string(at) + " bytes past the end") +
          " of a buffer of " + to_string(bytes) + " bytes";
    }
  }
  return damage;
}

// Owns one CUDA object (a stream, an event, a graph, memory) and gives it back by `destroy` when it ends. It stands for
// the object in a call, and can be moved, not copied. `call` is the name of `destroy`, for an error.
template <class Object>
class Owned {
 public:
  Owned() = default;
  Owned(Object object, cudaError_t (*destroy)(Object), const char* call)
      : object_(object), destroy_(destroy), call_(call) {}
  Owned(Owned&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), destroy_(other.destroy_), call_(other.call_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(destroy_, other.destroy_);
    std::swap(call_, other.call_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) release(destroy_(object_), call_);
  }
  operator Object() const { return object_; }

 private:
  Object object_ = nullptr;
  cudaError_t (*destroy_)(Object) = nullptr;
  const char* call_ = nullptr;
};

// A stream that does not wait for the default one.
struct Stream : Owned<cudaStream_t> {
  Stream() : Owned(create(), cudaStreamDestroy, "cudaStreamDestroy") {}

 private:
  static cudaStream_t create() {
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
};

// A point in a stream, with its time.
struct Event : Owned<cudaEvent_t> {
  Event() : Owned(create(), cudaEventDestroy, "cudaEventDestroy") {}

 private:
  static cudaEvent_t create() {
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreate(&event));
    return event;
  }
};

// Memory of `count` elements. It stands for its pointer in a launch.
template <class T>
class Buffer {
 public:
  Buffer(Owned<void*> memory, size_t count) : memory_(std::move(memory)), count_(count) {}
  operator T*() const { return static_cast<T*>(static_cast<void*>(memory_)); }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  Owned<void*> memory_;
  size_t count_;
};

// Device memory, between red zones.
template <class T>
struct DeviceBuffer : Buffer<T> {
  explicit DeviceBuffer(size_t count)
      : Buffer<T>({allocateGuarded(count * sizeof(T)), freeGuarded, "cudaFree"}, count) {}
};

// Page-locked host memory: copies to and from the device run at the full speed of the bus.
template <class T>
struct PinnedBuffer : Buffer<T> {
  explicit PinnedBuffer(size_t count) : Buffer<T>({allocate(count * sizeof(T)), cudaFreeHost, "cudaFreeHost"}, count) {}

 private:
  static void* allocate(size_t bytes) {
    void* memory = nullptr;
    CUDA_CHECK(cudaMallocHost(&memory, bytes));
    return memory;
  }
};

// Fills device memory with valueAt(i), through page-locked memory, a part at a time.
template <class T, class ValueAt>
void fillDevice(const DeviceBuffer<T>& buffer, ValueAt valueAt, cudaStream_t stream) {
  const PinnedBuffer<T> staging(std::min(buffer.count(), size_t(1) << 22));
  for (size_t done = 0; done < buffer.count(); done += staging.count()) {
    const size_t part = std::min(staging.count(), buffer.count() - done);
    for (size_t i = 0; i < part; ++i) staging[i] = valueAt(done + i);
    upload(buffer + done, staging, part * sizeof(T), stream);
  }
}

// Fills memory with 0xFF bytes, a NaN in every float: an element that a kernel forgets to write cannot pass for a
// result.
inline void poison(void* data, size_t bytes, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(data, 0xFF, bytes, stream));
}

// ---- Checking

// What a comparison found.
struct Verdict {
  size_t checked = 0, wrong = 0;
  double worst = 0;  // accepted error, as a fraction of what is allowed
  string message;
};

// Compares got[row * columns + column] with want(row, column), a double, for all elements:
// |got - want| <= absolute + relative * |want|. The test is written so that a NaN fails (a difference is never 0 for a
// NaN or an infinity: inf - inf is a NaN), and a reference that is not finite fails too, since it would allow anything.
template <class T, class Want>
Verdict compare(const T* got, size_t rows, size_t columns, double relative, double absolute, Want want) {
  Verdict verdict;
  verdict.checked = rows * columns;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const size_t index = row * columns + column;
      const double expected = want(row, column);
      const double difference = got[index] - expected;
      if (difference == 0) continue;
      const double error = std::fabs(difference);
      const double allowed = absolute + relative * std::fabs(expected);
      if (!(error <= allowed) || !std::isfinite(expected)) {
        if (verdict.wrong++ == 0) {
          char text[200];
          snprintf(text, sizeof text, "first wrong element %zu (row %zu, column %zu): got %.9g, want %.9g", index, row,
              column, double(got[index]), expected);
          verdict.message = text;
        }
      } else {
        verdict.worst = std::max(verdict.worst, error / allowed);
      }
    }
  }
  return verdict;
}

// Waits for what was launched last: an error of the launch, or of the kernel while it runs, names the kernel.
inline void finish(const char* symbol, cudaStream_t stream) {
  const string call = string("kernel ") + symbol;
  checkCuda(cudaGetLastError(), call.c_str(), __FILE__, __LINE__);
  checkCuda(cudaStreamSynchronize(stream), call.c_str(), __FILE__, __LINE__);
}

// A comparison on the device: a gigabyte takes it less than a millisecond, and the CPU seconds. It compares with a
// reference, a function of the element's index that is written once for both sides. At a small size the CPU compares
// the same output with the same reference, which proves that the device's copy says what the CPU's says.
[[maybe_unused]] constexpr int kCompareParts = 1024;  // of an output, each with its count of wrong elements

// Counts the wrong elements of each part, and in counts[kCompareParts] the elements that were looked at. A NaN or an
// infinity is never within what is allowed.
template <class T, class Want>
__global__ void findWrong(const T* got, size_t count, size_t part, Want want, double allowed, unsigned* counts) {
  unsigned seen = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * size_t(blockDim.x)) {
    ++seen;
    const auto difference = got[i] - want(i);
    if (!(fabs(difference) <= allowed)) atomicAdd(&counts[i / part], 1u);
  }
  for (int lane = 16; lane > 0; lane /= 2) seen += __shfl_xor_sync(0xffffffffu, seen, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(&counts[kCompareParts], seen);
}

// The same as a Verdict: the CPU looks for the first wrong element, in the first part that has one.
template <class T, class Want>
Verdict compareOnDevice(const T* got, size_t count, Want want, double allowed, cudaStream_t stream) {
  constexpr size_t kThreads = 256, kBlocks = kOnCpu ? 24 : 1024;
  const DeviceBuffer<unsigned> counted(kCompareParts + 1);
  CUDA_CHECK(cudaMemsetAsync(counted, 0, counted.bytes(), stream));
  const size_t partSize = (count + kCompareParts - 1) / kCompareParts;
  const int blocks = int(std::min((count + kThreads - 1) / kThreads, kBlocks));
  findWrong<T, Want><<<blocks, kThreads, 0, stream>>>(got, count, partSize, want, allowed, counted);
  finish("findWrong", stream);
  vector<unsigned> counts(counted.count());
  download(counts.data(), counted, counted.bytes(), stream);
  Verdict verdict;
  verdict.checked = count;
  size_t first = kCompareParts;
  for (size_t part = kCompareParts; part-- > 0;) {
    verdict.wrong += counts[part];
    if (counts[part] > 0) first = part;
  }
  if (counts[kCompareParts] != count) {
    ++verdict.wrong;
    verdict.message = "the comparison on the device looked at " + to_string(counts[kCompareParts]) + " elements";
  } else if (first < kCompareParts) {
    const size_t begin = first * partSize;
    vector<T> part(std::min(partSize, count - begin));
    download(part.data(), got + begin, part.size() * sizeof(T), stream);
    size_t i = 0;
    while (i < part.size() && std::fabs(part[i] - want(begin + i)) <= allowed) ++i;
    char text[160] = "the device found a difference that the CPU does not see: their references differ";
    if (i < part.size())
      snprintf(text, sizeof text, "first wrong element %zu: got %.9g, want %.9g", begin + i, double(part[i]),
          double(want(begin + i)));
    verdict.message = text;
  }
  return verdict;
}

// Proves that the comparison on the device finds one wrong element wherever it is and whatever it holds, and no other.
// `data` holds what `want` says; `least` is the smallest difference that must be seen.
template <class Want>
Verdict proveComparison(float* data, size_t count, Want want, float least, cudaStream_t stream) {
  Verdict verdict;
  const auto require = [&](bool right, const string& message) {
    ++verdict.checked;
    if (!right && verdict.wrong++ == 0) verdict.message = message;
  };
  for (const size_t at : {size_t(0), count / kCompareParts, count / 2, count - 1}) {
    const float right = want(at);
    for (const float value : {std::nanf(""), INFINITY, -INFINITY, right + least}) {
      upload(data + at, &value, sizeof value, stream);
      const Verdict found = compareOnDevice<float>(data, count, want, 0, stream);
      const string first = "first wrong element " + to_string(at) + ":";
      require(found.wrong == 1 && found.message.find(first) != string::npos,
          "one wrong element, " + to_string(at) + ", holds " + to_string(value) + ": got " + to_string(found.wrong) +
              " wrong, " + found.message);
    }
    upload(data + at, &right, sizeof right, stream);
  }
  const Verdict clean = compareOnDevice<float>(data, count, want, 0, stream);
  require(clean.wrong == 0, "none is wrong: got " + clean.message);
  return verdict;
}

// What a launch writes, and how that is compared.
struct Output {
  void* data = nullptr;
  size_t bytes = 0, bufferBytes = 0;
  std::function<Verdict(const void* got)> onCpu = {};
  std::function<Verdict(cudaStream_t)> onDevice = {};  // empty: the CPU compares at every size
};

// An output of a few megabytes, whose elements are want(i).
template <class T, class Want>
Output smallOutput(const DeviceBuffer<T>& buffer, size_t count, Want want, double allowed = 0) {
  return {buffer, count * sizeof(T), buffer.bytes(), [=](const void* got) {
            const T* const values = static_cast<const T*>(got);
            return compare(values, 1, count, 0, allowed, [&](size_t, size_t i) -> double { return want(i); });
          }};
}

// An output that the device compares alone at a large size.
template <class T, class Want>
Output largeOutput(const DeviceBuffer<T>& buffer, size_t count, Want want, double allowed = 0) {
  Output output = smallOutput(buffer, count, want, allowed);
  const T* const got = buffer;
  output.onDevice = [=](cudaStream_t stream) { return compareOnDevice(got, count, want, allowed, stream); };
  return output;
}

// Launches on poisoned memory and compares every element of the output. Where `ragged`, the CPU compares, and what lies
// past the output in its buffer must stay as it was; then the device compares too.
inline Verdict prove(const Output& output, const std::function<void(cudaStream_t)>& launch, const char* symbol,
    bool ragged, cudaStream_t stream) {
  const size_t bytes = ragged ? output.bufferBytes : output.bytes;
  poison(output.data, bytes, stream);
  launch(stream);
  finish(symbol, stream);
  Verdict verdict;
  if (ragged || !output.onDevice) {
    vector<double> host((bytes + sizeof(double) - 1) / sizeof(double));
    download(host.data(), output.data, bytes, stream);
    verdict = output.onCpu(host.data());
    const auto* const got = reinterpret_cast<const unsigned char*>(host.data());
    const auto* const past =
        std::find_if(got + output.bytes, got + bytes, [](unsigned char byte) { return byte != 0xFF; });
    if (verdict.wrong == 0 && past != got + bytes) {
      verdict.wrong = 1;
      verdict.message = "wrote " + to_string(past - got - output.bytes) + " bytes past the end of its output";
    }
  }
  if (output.onDevice && verdict.wrong == 0) {
    const double worst = verdict.worst;
    verdict = output.onDevice(stream);
    verdict.worst = std::max(verdict.worst, worst);
  }
  return verdict;
}

// ---- Timing

// Puts one launch into a stream. What is checked, timed and profiled is the same function.
using Launch = std::function<void(cudaStream_t)>;

// One launch of a kernel with its grid, its block, its dynamic shared memory in bytes and its arguments, which are
// converted to the kernel's own types here, once.
template <class... Parameters, class... Arguments>
Launch launchShared(
    void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t sharedBytes, const Arguments&... arguments) {
  const std::tuple<Parameters...> values(arguments...);
  return [=](cudaStream_t stream) {
    std::apply([&](const Parameters&... each) { kernel<<<grid, block, sharedBytes, stream>>>(each...); }, values);
  };
}

// The same without dynamic shared memory.
template <class... Parameters, class... Arguments>
Launch launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, const Arguments&... arguments) {
  return launchShared(kernel, grid, block, 0, arguments...);
}

// Times in milliseconds. Events resolve about half a microsecond, so a sample is a batch of launches.
struct Timing {
  double ms = 0, msMin = 0, msMax = 0;  // of one launch; ms is the median
  int samples = 0, batch = 0;  // batch: launches per sample

  double spreadPercent() const { return 100 * (msMax - msMin) / ms; }
};

// A sample takes a millisecond or more. Before the first, launches go on in windows of 5 ms until two of them agree
// within 1 %, or for a second: an idle card takes several to raise its clock. The number of samples is odd, so that the
// median is one of them.
constexpr double kSampleMs = 1, kWarmupWindowMs = 5, kWarmupLimitMs = 1000, kWarmupAgreement = 0.01;
constexpr int kSamples = 21;

// Times `count` launches back to back with events; returns milliseconds for one of them.
inline double timeBatch(cudaStream_t stream, const Event& begin, const Event& end, const Launch& launch, int count) {
  CUDA_CHECK(cudaEventRecord(begin, stream));
  for (int i = 0; i < count; ++i) launch(stream);
  CUDA_CHECK(cudaEventRecord(end, stream));
  CUDA_CHECK(cudaEventSynchronize(end));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  if (!std::isfinite(ms) || !(ms > 0))
    throw Stop{kExitFailed, "timing: " + to_string(count) + " launches took " + to_string(ms) + " ms, which cannot be"};
  return double(ms) / count;
}

// Launches until two successive windows agree; returns the milliseconds of one launch in the last.
inline double warmUp(cudaStream_t stream, const Event& begin, const Event& end, const Launch& launch) {
  double previous = timeBatch(stream, begin, end, launch, 1);
  for (double spent = previous; spent < kWarmupLimitMs;) {
    const int count = std::max(1, int(std::ceil(kWarmupWindowMs / previous)));
    const double now = timeBatch(stream, begin, end, launch, count);
    spent += now * count;
    if (std::fabs(now - previous) <= kWarmupAgreement * previous) return now;
    previous = now;
  }
  return previous;
}

// Times several launches against each other: each is warmed up, then they are sampled in turn (A B C A B C ...), so
// that clock drift meets all of them alike. Returns one Timing each, in order. A launch of a graph may stand for `each`
// launches of what is timed.
inline vector<Timing> measureInTurn(
    cudaStream_t stream, const vector<Launch>& launches, int samples = kSamples, int each = 1) {
  const Event begin;
  const Event end;
  vector<int> batches;
  vector<vector<double>> times(launches.size());
  for (const Launch& launch : launches)
    batches.push_back(std::max(1, int(std::ceil(kSampleMs / warmUp(stream, begin, end, launch)))));
  for (int sample = 0; sample < samples; ++sample)
    for (size_t i = 0; i < launches.size(); ++i)
      times[i].push_back(timeBatch(stream, begin, end, launches[i], batches[i]) / each);
  vector<Timing> timings;
  for (size_t i = 0; i < launches.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    timings.push_back({times[i][samples / 2], times[i].front(), times[i].back(), samples, batches[i] * each});
  }
  return timings;
}

// Times one launch alone.
inline Timing measure(cudaStream_t stream, const Launch& launch) { return measureInTurn(stream, {launch}).front(); }

// The rate of an amount of work in so many milliseconds, in billions a second.
inline double gigaPerSecond(double amount, double ms) { return amount / ms * 1e-6; }

// ---- Records

// Every table is rendered from one pass over its rows, as text, as JSON lines, or as both: its columns are declared
// once.

// What a cell holds: a number, a count, a truth, a text, or nothing, which is blank in the text and absent in the JSON
// line.
struct Value {
  Value() = default;
  Value(const char* text) : held(string(text)) {}
  Value(const string& text) : held(text) {}
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
  Value(Number number) {
    if constexpr (std::is_same_v<Number, bool>) {
      held = number;
    } else if constexpr (std::is_integral_v<Number>) {
      held = static_cast<long long>(number);
    } else {
      held = static_cast<double>(number);
    }
  }

  std::variant<std::monostate, bool, long long, double, string> held;
};

// One JSON object on one line, its keys in the order they are added (scripts/schema/row.schema.json has them all). "%g"
// prints a point whatever the user's locale, since no day calls setlocale.
class JsonLine {
 public:
  explicit JsonLine(const char* record) { add("record", record); }

  JsonLine& add(const char* key, const Value& value) {
    if (const string* text = std::get_if<string>(&value.held)) return raw(key, quoted(*text));
    if (const bool* truth = std::get_if<bool>(&value.held)) return raw(key, *truth ? "true" : "false");
    if (const long long* count = std::get_if<long long>(&value.held)) return raw(key, to_string(*count));
    if (const double* number = std::get_if<double>(&value.held)) {
      if (!std::isfinite(*number)) throw Stop{kExitFailed, string("JSON: '") + key + "' is not a finite number"};
      char digits[32];
      snprintf(digits, sizeof digits, "%.9g", *number);
      return raw(key, digits);
    }
    return *this;
  }

  string str() const { return "{" + body_ + "}"; }

 private:
  static string quoted(const string& text) {
    string result = "\"";
    for (const unsigned char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      char control[8] = {char(c)};
      if (c < 0x20) snprintf(control, sizeof control, "\\u%04x", c);
      result += control;
    }
    return result + "\"";
  }
  JsonLine& raw(const char* key, const string& value) {
    if (!body_.empty()) body_ += ',';
    body_ += string("\"") + key + "\":" + value;
    return *this;
  }

  string body_;
};

// Where a run's output goes: text to stdout, or with --json its JSON lines, and with --json-file these to a file beside
// the text. The file gets its name when all of the run is in it.
class Report {
 public:
  Report(const Program& program, const Options& options) : program_(program), options_(options) {
    if (options.jsonFile.empty()) return;
    errno = 0;
    file_.open(partial());
    requireFile();
  }
  ~Report() {
    if (!file_.is_open()) return;
    file_.close();
    std::remove(partial().c_str());
  }
  Report(const Report&) = delete;

  const Program& program() const { return program_; }
  const Options& options() const { return options_; }

  // Whether stdout gets text.
  bool text() const { return !options_.json; }

  // Prints text, as printf does, where stdout gets text.
#ifdef __GNUC__
  __attribute__((format(printf, 2, 3)))
#endif
  void
  say(const char* format, ...) const {
    if (!text()) return;
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    flushOutput();
  }

  // Writes one JSON line, where they are asked for.
  void line(const JsonLine& line) {
    if (options_.json) {
      printf("%s\n", line.str().c_str());
      flushOutput();
    }
    if (!file_.is_open()) return;
    errno = 0;
    file_ << line.str() << std::endl;
    requireFile();
  }

  // Gives the file of --json-file its name. What was there before is replaced.
  void keep() {
    if (!file_.is_open()) return;
    errno = 0;
    file_.close();
    if (!file_ || std::rename(partial().c_str(), options_.jsonFile.c_str()) != 0) {
      const int reason = errno;
      std::remove(partial().c_str());
      throw Stop{kExitFailed, "cannot write " + options_.jsonFile + ": " + std::strerror(reason)};
    }
  }

 private:
  string partial() const { return options_.jsonFile + ".part"; }
  void requireFile() {
    if (!file_) throw Stop{kExitFailed, "cannot write " + partial() + ": " + std::strerror(errno)};
  }

  const Program program_;
  const Options options_;
  std::ofstream file_;
};

// A column of a table. Its heading is its name and its unit.
template <class Row>
struct Column {
  const char* name;
  const char* unit;  // "" for none
  int width;  // at least so many characters, to the left if negative; 0: not in the text
  int decimals;  // of a number that is no count
  const char* key;  // in the JSON line; "": not in it
  std::function<Value(const Row&)> value;
};

// A table: its heading is printed at once, and each row as it comes.
template <class Row>
class Table {
 public:
  // `record` is what its JSON lines call themselves; "": it has none. `shown`: in the text too.
  Table(Report& report, const char* record, vector<Column<Row>> columns, bool shown = true)
      : report_(report), record_(record), columns_(std::move(columns)), shown_(shown && report.text()) {
    string line;
    for (const Column<Row>& column : columns_)
      if (column.width != 0) append(line, column, heading(column));
    print(line);
  }

  void add(const Row& row) const { add(row, record_); }

  // A row whose JSON line calls itself another record than those of the table.
  void add(const Row& row, const char* record) const {
    string line;
    JsonLine json(record);
    for (const Column<Row>& column : columns_) {
      const Value value = column.value(row);
      if (column.width != 0) append(line, column, shownAs(value, column.decimals));
      if (*column.key != '\0') json.add(column.key, value);
    }
    print(line);
    if (*record != '\0') report_.line(json);
  }

 private:
  static string heading(const Column<Row>& column) {
    return string(column.name) + (*column.unit == '\0' ? "" : " ") + column.unit;
  }
  static string shownAs(const Value& value, int decimals) {
    if (const string* text = std::get_if<string>(&value.held)) return *text;
    if (const bool* truth = std::get_if<bool>(&value.held)) return *truth ? "yes" : "no";
    if (const long long* count = std::get_if<long long>(&value.held)) return to_string(*count);
    char digits[64] = "";
    if (const double* number = std::get_if<double>(&value.held))
      snprintf(digits, sizeof digits, "%.*f", decimals, *number);
    return digits;
  }
  // Puts a cell at the end of a line, as wide as its column.
  static void append(string& line, const Column<Row>& column, const string& cell) {
    const size_t width = std::max<size_t>(std::abs(column.width), heading(column).size());
    const string blanks(width > cell.size() ? width - cell.size() : 0, ' ');
    line += (line.empty() ? "" : "  ") + (column.width < 0 ? cell + blanks : blanks + cell);
  }
  void print(const string& line) const {
    if (shown_) report_.say("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }

  Report& report_;
  const char* record_;
  vector<Column<Row>> columns_;
  bool shown_;
};

// The columns that every timed row has: `timingOf` gives the timing of a row.
template <class Row>
vector<Column<Row>> timingColumns(Timing (*timingOf)(const Row&)) {
  return {
      {"time", "ms", 9, 4, "ms", [=](const Row& row) { return timingOf(row).ms; }},
      {"spread", "%", 8, 1, "", [=](const Row& row) { return timingOf(row).spreadPercent(); }},
      {"", "", 0, 0, "ms_min", [=](const Row& row) { return timingOf(row).msMin; }},
      {"", "", 0, 0, "ms_max", [=](const Row& row) { return timingOf(row).msMax; }},
      {"", "", 0, 0, "samples", [=](const Row& row) { return timingOf(row).samples; }},
      {"", "", 0, 0, "batch", [=](const Row& row) { return timingOf(row).batch; }},
  };
}

// The columns of several lists, in order.
template <class Row>
vector<Column<Row>> join(const vector<vector<Column<Row>>>& lists) {
  vector<Column<Row>> all;
  for (const vector<Column<Row>>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// What was compared, and what came of it.
struct Check {
  int day;  // whose kernel it is
  string variant;
  const char* symbol;
  string size;
  Verdict verdict;

  bool ok() const { return verdict.wrong == 0; }
};

// The checks of a run: a table with --check, JSON lines in every mode that writes them, and what failed on stderr.
class Checks {
 public:
  explicit Checks(Report& report) : table_(report, "check", columns(), report.options().mode == Mode::kCheck) {}

  // Every buffer's red zones are looked at first. Returns how many checks failed, 0 or 1.
  int add(Check check) {
    Verdict& verdict = check.verdict;
    const string damage = redZoneDamage();
    if (!damage.empty()) {
      verdict.message += (verdict.wrong > 0 ? "; " : "") + damage;
      ++verdict.wrong;
    }
    if (!check.ok())
      fprintf(stderr, "FAILED %s (%s, %s): %zu of %zu wrong, %s\n", check.symbol, check.variant.c_str(),
          check.size.c_str(), verdict.wrong, verdict.checked, verdict.message.c_str());
    table_.add(check);
    (check.ok() ? passed_ : failed_) += 1;
    return !check.ok();
  }

  int passed() const { return passed_; }
  int failed() const { return failed_; }

 private:
  static vector<Column<Check>> columns() {
    return {
        {"kernel", "", -26, 0, "symbol", [](const Check& c) { return c.symbol; }},
        {"variant", "", -24, 0, "variant", [](const Check& c) { return c.variant; }},
        {"size", "", -24, 0, "size", [](const Check& c) { return c.size; }},
        {"values", "", 9, 0, "checked", [](const Check& c) { return c.verdict.checked; }},
        {"error", "% of allowed", 8, 1, "", [](const Check& c) { return 100 * c.verdict.worst; }},
        {"result", "", -6, 0, "", [](const Check& c) { return c.ok() ? "ok" : "FAILED"; }},
        {"", "", 0, 0, "day", [](const Check& c) { return c.day; }},
        {"", "", 0, 0, "ok", [](const Check& c) { return c.ok(); }},
        {"", "", 0, 0, "wrong", [](const Check& c) { return c.verdict.wrong; }},
        {"", "", 0, 0, "worst", [](const Check& c) { return c.verdict.worst; }},
        {"", "", 0, 0, "message", [](const Check& c) { return c.ok() ? Value() : c.verdict.message; }},
    };
  }

  Table<Check> table_;
  int passed_ = 0, failed_ = 0;
};

// Starts the report of a run with what ran, on what, built from what: a banner, and the record `run`.
inline void reportRun(Report& report, const Device& device) {
  const cudaDeviceProp& gpu = device.properties;
  const LoadedCode& code = device.code;
  report.say("%s%s (compute capability %d.%d), %d SMs, %.1f MiB L2\n", kOnCpu ? "" : "GPU: ", gpu.name, gpu.major,
      gpu.minor, gpu.multiProcessorCount, gpu.l2CacheSize / 1048576.0);
  if (!kOnCpu) report.say("%s, PCI %s\n", uuidText(gpu).c_str(), pciText(gpu).c_str());
  report.say("CUDA driver %s, runtime %s, code for sm_%d", cudaVersionText(device.driver).c_str(),
      cudaVersionText(device.runtime).c_str(), code.binary);
  if (code.translated())
    report.say(
        ", translated from compute_%d by the driver\nBuilt with -arch=%s, the program has all that this card offers.",
        code.ptx, archFlag(code.card).c_str());
  report.say("\n\n");

  char utc[24] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(utc, sizeof utc, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  JsonLine line("run");
  line.add("schema", 2).add("day", report.program().day).add("program", report.program().name);
  line.add("device", gpu.name).add("cc", to_string(gpu.major) + "." + to_string(gpu.minor));
  line.add("sms", gpu.multiProcessorCount).add("l2_bytes", gpu.l2CacheSize);
  line.add("driver", cudaVersionText(device.driver)).add("runtime", cudaVersionText(device.runtime));
  line.add("arch", "sm_" + to_string(code.binary)).add("ptx", "compute_" + to_string(code.ptx));
  line.add("backend", kOnCpu ? "cpu" : "cuda").add("max_clock_mhz", device.maxClockMhz);
  line.add("uuid", uuidText(gpu)).add("pci", pciText(gpu));
  line.add("revision", CUDA_DAYS_REVISION).add("flags", CUDA_DAYS_FLAGS).add("utc", utc);
  report.line(line);
}

// Stops where a rate is above what the hardware can do at all: then the time is wrong, or the count of work is.
inline void requirePossible(const string& what, double rate, double bound, const char* unit) {
  constexpr double kMargin = 1.02;  // of the clock's reading
  if (rate <= kMargin * bound) return;
  char text[160];
  snprintf(text, sizeof text, " reads %.1f %s, and this card cannot exceed %.1f: the time or the count is wrong", rate,
      unit, bound);
  throw Stop{kExitFailed, what + text};
}

// Runs body(report) and turns what it throws into a message on stderr and the exit code. SIGPIPE is ignored, so that a
// broken pipe is a failed write, and a closed stdout is refused, because the next file that anybody opens (the driver's
// own) would get its number.
template <class Body>
int runLesson(int argc, char** argv, const Program& program, Body body) {
#ifdef SIGPIPE
  std::signal(SIGPIPE, SIG_IGN);
#endif
  int exitCode = kExitFailed;
  string message;
  try {
    errno = 0;
    if (std::ftell(stdout) < 0 && errno == EBADF) throw Stop{kExitFailed, "stdout is closed"};
    const Options options = parseArguments(argc, argv, program);
    Report report(program, options);
    exitCode = body(report);
    report.keep();
    flushOutput();
  } catch (const Stop& stop) {
    exitCode = stop.exitCode;
    message = stop.message;
  } catch (const std::exception& error) {
    exitCode = kExitFailed;
    message = error.what();
  }
  if (std::fflush(stdout) != 0) exitCode = kExitFailed;
  if (!message.empty()) fprintf(stderr, "%s\n", message.c_str());
  return exitCode == kExitOk && releaseFailed ? kExitFailed : exitCode;
}
// end common: harness

constexpr Program kProgram = {
    30, "roofline", "Day 30: what this GPU reaches at every level of memory, in every arithmetic."};

// ---- Sizes and memory

// Four times the L2 or more, so that streams come from DRAM; and four times that, where a launch's ends do not count.
constexpr size_t kStreamBytes = size_t(256) << 20;
constexpr int kTimes = 4;

constexpr int kLength = 128;  // of the loops, for milliseconds
constexpr double kLaunchClocks = 1 << 23;  // where lanes are few the loops are shorter: 4 ms a launch are enough

struct Sizes {
  int words, large;  // floats of a stream, and of a large one
  int grid, matrix;  // of the stencil, the products
  int sms;
  int perSm;  // blocks of kBlock threads on an SM at once; 0: as many as are resident, which the runtime knows
  int l2Bytes;
  int length;  // of the loops: 1 is the shortest
};

// No launch shape divides 100,052: it is a multiple of 4, as float4 needs, and of none of 8, 32 or 256.
constexpr Sizes kRagged = {100052, 100052, 19, 80, 3, 2, 200000, 1};
// For compute-sanitizer: four SMs' worth of blocks reach every barrier and every guard.
constexpr Sizes kSanitizerSizes = {1 << 18, 1 << 18, kWarp, 4 * kTile, 4, 2, 1 << 18, 1};

constexpr size_t kPageBytes = 2 << 20;  // what cudaMalloc hands out at least

struct Problem {
  // The one list of the buffers. What is required before anything is allocated, the size of the large streams and the
  // allocations all follow from it.
  enum Name { kA, kB, kOut, kResults, kWideA, kWideB, kWideOut, kSpan, kTickets, kBuffers };
  static std::array<size_t, kBuffers> bytesOf(const Sizes& of) {
    const size_t large = sizeof(float) * of.large, wide = sizeof(double) * (of.words / 2);
    const size_t results = std::max(ceilDivide(of.large, kBlock), 2 * of.sms * kSmBlock);
    return {large, large, large, sizeof(double) * results, wide, wide, wide, sizeof(ClockSpan), 2 * sizeof(unsigned)};
  }
  static size_t bytes(const Sizes& of) {
    size_t sum = kPageBytes;  // for the counts of the comparison on the device
    for (const size_t buffer : bytesOf(of)) sum += (buffer + 2 * kRedZone + kPageBytes - 1) / kPageBytes * kPageBytes;
    return sum;
  }

  Problem(const Sizes& of, cudaStream_t stream) : sizes(of) {
    const auto first = [](size_t i) { return pattern(unsigned(i)); };
    const auto second = [](size_t i) { return pattern(unsigned(i) + kShift); };
    fillDevice(a, first, stream);
    fillDevice(b, second, stream);
    fillDevice(wideA, first, stream);
    fillDevice(wideB, second, stream);
    CUDA_CHECK(cudaMemsetAsync(tickets, 0, tickets.bytes(), stream));
  }

  template <class T>
  size_t count(Name name) const {
    return bytesOf(sizes)[name] / sizeof(T);
  }

  // Blocks of a kernel that are resident on one SM.
  template <class... P>
  int perSm(void (*kernel)(P...)) const {
    int blocks = sizes.perSm;
    if (blocks == 0) CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kBlock, 0));
    return blocks;
  }

  const Sizes sizes;
  const DeviceBuffer<float> a{count<float>(kA)}, b{count<float>(kB)}, out{count<float>(kOut)};
  const DeviceBuffer<double> results{count<double>(kResults)};
  const DeviceBuffer<double> wideA{count<double>(kWideA)}, wideB{count<double>(kWideB)};
  const DeviceBuffer<double> wideOut{count<double>(kWideOut)};
  const DeviceBuffer<ClockSpan> span{count<ClockSpan>(kSpan)};
  const DeviceBuffer<unsigned> tickets{count<unsigned>(kTickets)};
  const SumBefore sumBefore;
};

Sizes timedSizes(const cudaDeviceProp& gpu, Mode mode) {
  if (kForSanitizer) return kSanitizerSizes;
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const size_t least = kTimes * gpu.l2CacheSize;
  const size_t bytes = kOnCpu ? least : std::max(kStreamBytes, least);
  const int words = int(bytes / sizeof(float) / kSmBlock * kSmBlock);
  const int grid = int(std::cbrt(words / 2)) / kWarp * kWarp;
  const int length = kOnCpu ? 1 : mode == Mode::kCheck ? 8 : kLength;
  Sizes sizes = {words, kTimes * words, grid, kMatrix, gpu.multiProcessorCount, 0, gpu.l2CacheSize, length};
  while (sizes.large > words && Problem::bytes(sizes) > free / 2) sizes.large /= 2;  // a card with little memory
  return sizes;
}

// ---- The table of rows

constexpr int kSweepSizes = 72;  // before those that round to the same are left out

enum class Role {
  kCeiling,  // nothing is faster at its level: the fastest of several shapes
  kLibrary,  // the driver's own copy, which a ceiling should not fall behind by much
  kNoCeiling,  // a shape that another one beats, or one that counts bytes which its level never served
  kSweep,
  kPlateau,
  kCurve,
  kScaling,
  kKernel,
};

// The ceilings that other rows are held against.
enum class Wall { kNone, kCopy, kTriad, kL2, kL1, kFp32, kFp64, kWalls };

// What a row's work is counted in.
struct Unit {
  const char *metric, *perSecond;
};
constexpr Unit kBytes = {"gbps", "GB/s"}, kFlops = {"gflops", "GFLOP/s"}, kOps = {"gops", "GOP/s"},
               kInstructions = {"ginst", "Ginst/s"};

struct Row {
  Role role;
  const char* level;  // of memory, arithmetic or issue; of other rows the table
  string kind, shape;
  const char* symbol;  // the kernel's name in the source
  Unit unit;
  double work;  // of a launch, in that unit
  double flop, requested;  // FLOP of a launch, and bytes that it requests from the level
  double perClock = 0;  // of the work, what an SM can do, if known
  Wall wall = Wall::kNone;  // of a ceiling, the wall that it is; of another row, the one that it is held against
  bool readsClock = true;  // the kernel reads the SM clock itself
  int sms = 0;  // how many have a block, where that is the point
  double compulsory = 0;  // bytes, each once: what a perfect cache of infinite size would still move
  double fmas = 0;  // the share of FMAs in the floating-point instructions
  double flopPerClock = 0;  // what an SM can do, where the work is bytes
  Launch launch = {};
  Output output = {};
  bool proven = false;

  string name() const { return string(level) + "-" + kind; }
  string variant() const { return shape.empty() || shape == kind ? name() : name() + ", " + shape; }
};
using Rows = vector<Row>;

template <int kWords>
Pack<float, kWords>* packs(const DeviceBuffer<float>& buffer) {
  return reinterpret_cast<Pack<float, kWords>*>(&buffer[0]);
}

// One block for every tile, or as many as are resident at once (a full wave), or half of them.
enum class Blocks { kOneATile, kHalfWave, kWave };

template <Access kAccess, int kWords, int kLoads>
Row streamRow(const Problem& p, int words, Blocks number) {
  constexpr const char* kNames[] = {"read", "write", "copy", "triad"};
  constexpr int kStreams = kAccess == kTriad ? 3 : kAccess == kCopy ? 2 : 1;
  const auto kernel = streamDram<kAccess, kWords, kLoads>;
  const size_t tile = kBlock * kLoads;
  const int count = words / kWords;
  const int wave = p.sizes.sms * p.perSm(kernel);
  const int blocks = number == Blocks::kOneATile ? ceilDivide(count, int(tile))
      : number == Blocks::kWave                  ? wave
                                                 : wave / 2;
  const double bytes = 4.0 * kStreams * words;
  Row row = {Role::kCeiling, "dram", kNames[kAccess], "float" + to_string(kWords) + " x " + to_string(kLoads),
      "streamDram", kBytes, bytes, kAccess == kTriad ? 2.0 * words : 0, bytes};
  row.readsClock = false;
  if (number != Blocks::kOneATile) row.shape += ", " + to_string(blocks) + " blocks";
  if (words > p.sizes.words)
    row.kind += "-large";
  else if (kAccess == kCopy || kAccess == kTriad)
    row.wall = kAccess == kCopy ? Wall::kCopy : Wall::kTriad;
  if constexpr (kAccess == kRead) {
    row.output = smallOutput(p.results, blocks, [=, &p](size_t block) {
      unsigned sum = 0;
      for (size_t first = block * tile; first < size_t(count); first += blocks * tile)
        sum += p.sumBefore(std::min<size_t>(first + tile, count) * kWords) - p.sumBefore(first * kWords);
      return sum;
    });
  } else {
    row.output = largeOutput(p.out, words, Streamed{kAccess == kTriad ? kScale : 0});
  }
  row.launch =
      launch(kernel, blocks, kBlock, packs<kWords>(p.a), packs<kWords>(p.b), packs<kWords>(p.out), p.results, count);
  return row;
}

template <Access kAccess, int kWords, int... kLoads>
void addStreams(Rows& shapes, const Problem& p, int words, Blocks blocks) {
  (shapes.push_back(streamRow<kAccess, kWords, kLoads>(p, words, blocks)), ...);
}

template <Access kAccess>
Rows streamShapes(const Problem& p, int words) {
  Rows shapes;
  for (const Blocks blocks : {Blocks::kOneATile, Blocks::kHalfWave, Blocks::kWave}) {
    if (blocks != Blocks::kOneATile && words > p.sizes.words) break;  // one pass is best
    addStreams<kAccess, 4, 1, 2, 4, 8>(shapes, p, words, blocks);
    addStreams<kAccess, 2, 1, 2, 4, 8>(shapes, p, words, blocks);
    addStreams<kAccess, 1, 1, 2, 4, 8>(shapes, p, words, blocks);
  }
  return shapes;
}

Row libraryCopy(const Problem& p, int words) {
  Row row = streamRow<kCopy, 4, 1>(p, words, Blocks::kOneATile);
  row.role = Role::kLibrary;
  row.wall = Wall::kNone;
  row.kind.replace(0, strlen("copy"), "memcpy");
  row.shape = row.symbol = "cudaMemcpyAsync";
  row.launch = [=, &p](cudaStream_t on) {
    CUDA_CHECK(cudaMemcpyAsync(p.out, p.a, sizeof(float) * words, cudaMemcpyDeviceToDevice, on));
  };
  return row;
}

template <Route kRoute>
Row sliceRow(const Problem& p, Role role, const char* level, double sliceBytes, int block, double perClock = 0,
    Wall wall = Wall::kNone, int shared = 0) {
  const int slice = std::max(1, int(sliceBytes / 32 / block)) * 2 * block;
  const int blocks = p.sizes.sms;
  const int trips = 8 * p.sizes.length * kSmBlock / block;
  const size_t covered = size_t(kInFlight) * trips * block;  // vectors of 16 bytes
  const double bytes = 16.0 * covered * blocks;
  Row row = {role, level, kRoute == kRotating ? "rotating" : "read", to_string(slice / 64) + " KiB per SM",
      "readSlices", kBytes, bytes, 0, bytes, perClock, wall};
  row.output = smallOutput(p.results, blocks, [=, &p](size_t block) {
    const auto sumOf = [&](size_t owner, size_t vectors) {
      return p.sumBefore(4 * (owner * slice + vectors)) - p.sumBefore(4 * owner * slice);
    };
    const size_t passes = covered / slice;
    unsigned sum = 0;
    if (kRoute == kRotating)
      for (size_t pass = 0; pass < passes; ++pass) sum += sumOf((block + pass) % blocks, slice);
    else
      sum = unsigned(passes) * sumOf(block, slice);
    return sum + sumOf(kRoute == kRotating ? (block + passes) % blocks : block, covered % slice);
  });
  row.launch = launchShared(
      readSlices<kRoute>, blocks, block, shared, reinterpret_cast<uint4*>(&p.a[0]), p.results, p.span, slice, trips);
  return row;
}

template <Route kRoute>
Rows sliceShapes(const Problem& p, Role role, const char* level, double sliceBytes, double perClock, Wall wall) {
  Rows shapes;
  for (const int block : {256, 512, 1024}) {
    shapes.push_back(sliceRow<kRoute>(p, role, level, sliceBytes, block, perClock, wall));
    shapes.back().shape += ", " + to_string(block) + " threads";
  }
  return shapes;
}

// The shared memory that a block requests to have an SM for itself: the rest is for what the kernel and the driver
// need.
template <class... P>
int wholeSm(void (*kernel)(P...), const cudaDeviceProp& gpu) {
  const int shared = int(gpu.sharedMemPerBlockOptin) - 1024;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  return shared;
}

// Working sets from the step of a block of 256 threads to four times the L2. From kWide on it takes 1024 threads to
// keep DRAM busy, for which the slices must be whole steps of theirs.
Rows sweepRows(const Problem& p, const cudaDeviceProp& gpu) {
  constexpr double kFirst = 8 << 10, kWide = 512 << 10;
  const int shared = wholeSm(readSlices<kThroughL1>, gpu);
  const double last = std::min(double(kTimes) * p.sizes.l2Bytes, sizeof(float) * double(p.sizes.words)) / p.sizes.sms;
  Rows rows;
  for (int i = 0; i < kSweepSizes; ++i) {
    const double bytes = kFirst * std::pow(last / kFirst, i / (kSweepSizes - 1.0));
    const int block = bytes < kWide ? kBlock : kSmBlock;
    Row row = sliceRow<kThroughL1>(p, Role::kSweep, "sweep", bytes, block, 0, Wall::kNone, shared);
    row.kind = row.shape;
    if (rows.empty() || row.kind != rows.back().kind) rows.push_back(row);
  }
  return rows;
}

Row sharedRow(const Problem& p, int ways, double perClock) {
  const int trips = 32 * p.sizes.length;
  const int blocks = p.sizes.sms;
  const double bytes = 4.0 * kReads * trips * blocks * kSmBlock;
  Row row = {Role::kCeiling, "shared", ways == 1 ? "read" : to_string(ways) + "-way", "4-byte reads", "readShared",
      kBytes, bytes, 0, bytes, perClock / ways};
  vector<unsigned> sums(kWarp);
  for (int trip = 0; trip < trips; ++trip)
    for (int lane = 0; lane < kWarp; ++lane)
      for (int k = 0; k < kReads; ++k)
        sums[lane] += bitsOf(pattern(trip % kStarts * kStartStep + lane * ways + k * kReadStep));
  row.output = smallOutput(p.results, size_t(blocks) * kSmBlock, [=](size_t i) { return sums[i % kWarp]; });
  row.launch = launch(readShared, blocks, kSmBlock, p.results, p.span, ways, trips);
  return row;
}

// On `sms` SMs, if not 0, each with one block of kSmBlock threads that takes `shared` bytes. Otherwise a full wave, and
// for mma.sync 16 warps an SM, which are enough.
template <class Type>
Row arithmeticRow(const Problem& p, const char* kind, const char* shape, double perClock, int sms = 0, int shared = 0) {
  const int threads = sms > 0 ? kSmBlock : kBlock;
  const int perSm = sms > 0 ? 1 : Type::kLanes > 1 ? 2 : p.perSm(arithmeticPeak<Type>);
  const int blocks = perSm * (sms > 0 ? sms : p.sizes.sms);
  int steps = 8 * kUnroll * p.sizes.length;
  const double clocksPerStep = perClock > 0 ? double(kChains) * Type::kWork * perSm * threads / perClock : 0;
  while (steps > 8 * kUnroll && steps * clocksPerStep > kLaunchClocks) steps /= 2;
  const double all = double(kChains) * steps * blocks * threads;
  Row row = {Role::kCeiling, "compute", kind, shape, "arithmeticPeak", Type::kFlop > 0 ? kFlops : kOps,
      all * Type::kWork, all * Type::kFlop, 0, perClock};
  vector<double> sums;  // of the seeds, for each lane that differs
  for (int lane = 0; lane < Type::kLanes; ++lane) {
    for (int seed = 0; seed < kSeeds; ++seed) {
      double sum = 0;
      for (int c = 0; c < kChains; ++c) sum += Type::onCpu(chainStart(seed, c), steps, lane);
      sums.push_back(sum);
    }
  }
  row.output = smallOutput(
      p.results, size_t(blocks) * threads, [=](size_t i) { return sums[i % Type::kLanes * kSeeds + i % kSeeds]; });
  row.launch = launchShared(arithmeticPeak<Type>, blocks, threads, shared, p.results, p.span, Type::map(), steps);
  return row;
}

template <class Type>
Row issueRow(const Problem& p, const char* shape) {
  Row row = arithmeticRow<Type>(p, "warp-instructions", shape, 4 * kWarp);
  row.level = "issue";
  row.unit = kInstructions;
  row.work /= kWarp;
  row.perClock /= kWarp;
  return row;
}

// Every kind of arithmetic: the instruction, the code that has it, the cards that have it, and what an SM does of it
// per clock. Of several lines with one kind, the last one counts that the loaded code has. The tensor cores of cards
// from 8.6 on up to Hopper do next to no FP64.
constexpr int kLastCard = 999;
using LanesOf = int PerClock::*;
struct Arithmetic {
  const char* kind;
  const char* shape;
  int code;  // the least compute capability that its instruction is compiled for
  int firstCard, lastCard;
  LanesOf lanes;
  double perLane;
  Row (*row)(const Problem& p, const Arithmetic& of, double perClock);  // nullptr: for a GPU alone, and this is a CPU
  Wall wall = Wall::kNone;
};

template <class Type>
Row rowOf(const Problem& p, const Arithmetic& of, double perClock) {
  return arithmeticRow<Type>(p, of.kind, of.shape, perClock);
}
#ifdef CUDA_DAYS_CPU
template <class Type>
constexpr std::nullptr_t kOnGpu = nullptr;
constexpr std::nullptr_t wgmmaRow = nullptr;
#else
template <class Type>
constexpr auto kOnGpu = rowOf<Type>;
Row wgmmaRow(const Problem& p, const Arithmetic& of, double perClock) {
  const int steps = 4 * kUnroll * p.sizes.length;
  const int blocks = 2 * p.sizes.sms;
  const double flop = 64.0 * kGroupColumns * kGroupDepth * 2 / kGroup * steps * blocks * kBlock;
  Row row = {Role::kCeiling, "compute", of.kind, of.shape, "warpgroupPeak", kFlops, flop, flop, 0, perClock};
  vector<double> sums;
  for (int thread = 0; thread < kGroup; ++thread) sums.push_back(groupOnCpu(steps, thread));
  row.output = smallOutput(p.results, size_t(blocks) * kBlock, [=](size_t i) { return sums[i % kGroup]; });
  row.launch = launch(warpgroupPeak, blocks, kBlock, p.results, p.span, steps);
  return row;
}
#endif

using Fp64OfAmpere = Tensor<kFp64Ampere, double, 4, double>;
const Arithmetic kArithmetic[] = {
    {"fp32-fma", "8 chains", 75, 75, kLastCard, &PerClock::fp32, 2, rowOf<Scalar<float, true>>, Wall::kFp32},
    {"fp32-muladd", "8 chains", 75, 75, kLastCard, &PerClock::fp32, 1, rowOf<Scalar<float, false>>},
    {"fp64-fma", "8 chains", 75, 75, kLastCard, &PerClock::fp64, 2, rowOf<Scalar<double, true>>, Wall::kFp64},
    {"fp64-muladd", "8 chains", 75, 75, kLastCard, &PerClock::fp64, 1, rowOf<Scalar<double, false>>},
    {"fp16x2-fma", "8 chains", 75, 75, kLastCard, &PerClock::fp16, 2, rowOf<Half<true>>},
    {"fp16x2-muladd", "8 chains", 75, 75, kLastCard, &PerClock::fp16, 1, rowOf<Half<false>>},
    {"bf16x2-fma", "8 chains", 80, 80, kLastCard, &PerClock::bf16, 2, rowOf<Brain<true>>},
    {"bf16x2-muladd", "8 chains", 80, 80, kLastCard, &PerClock::bf16, 1, rowOf<Brain<false>>},
    {"int32-mad", "8 chains", 75, 75, kLastCard, &PerClock::int32, 2, rowOf<Int32>},
    {"tensor-fp16", "mma.sync m16n8k8", 75, 75, kLastCard, &PerClock::tensor, 1, kOnGpu<Tensor<kFp16Turing, float, 8>>},
    {"tensor-fp16", "mma.sync m16n8k16", 80, 80, kLastCard, &PerClock::tensor, 1, kOnGpu<Tensor<kFp16, float, 16>>},
    {"tensor-bf16", "mma.sync m16n8k16", 80, 80, kLastCard, &PerClock::tensor, 1, kOnGpu<Tensor<kBf16, float, 16>>},
    {"tensor-tf32", "mma.sync m16n8k8", 80, 80, kLastCard, &PerClock::tensor, 0.5, kOnGpu<Tensor<kTf32, float, 8>>},
    {"tensor-int8", "mma.sync m8n8k16", 75, 75, kLastCard, &PerClock::tensor, 2, kOnGpu<Tensor<kInt8Turing, int, 16>>},
    {"tensor-int8", "mma.sync m16n8k32", 80, 80, kLastCard, &PerClock::tensor, 2, kOnGpu<Tensor<kInt8, int, 32>>},
    {"tensor-fp64", "mma.sync m8n8k4", 80, 80, 80, &PerClock::tensor, 1.0 / 16, kOnGpu<Fp64OfAmpere>},
    {"tensor-fp64", "mma.sync m8n8k4", 80, 90, kLastCard, &PerClock::tensor, 1.0 / 16, kOnGpu<Fp64OfAmpere>},
    {"tensor-fp64", "mma.sync m16n8k16", 90, 90, kLastCard, &PerClock::tensor, 1.0 / 16,
        kOnGpu<Tensor<kFp64, double, 16, double>>},
    {"tensor-fp16-wgmma", "wgmma m64n64k16", kSm90a, 90, 90, &PerClock::tensor, 1, wgmmaRow},
};

// What runs on a card, and what it could run with other code, decided by the card and by the code that was loaded.
struct Choice {
  vector<const Arithmetic*> rows;
  vector<const Arithmetic*> leftOut;  // of several lines with one kind the one that needs least

  Choice(int card, int features) {
    for (const Arithmetic& line : kArithmetic) {
      if (card < line.firstCard || card > line.lastCard) continue;
      const auto is = [&](const Arithmetic* other) { return !strcmp(other->kind, line.kind); };
      const auto there = std::find_if(rows.begin(), rows.end(), is);
      const bool runs = line.code <= features;
      if (there != rows.end() && runs)
        *there = &line;
      else if (there == rows.end() && std::none_of(leftOut.begin(), leftOut.end(), is))
        (runs ? rows : leftOut).push_back(&line);
    }
  }

  string text(const LoadedCode& code) const {
    vector<LeftOut> all;
    for (const Arithmetic* line : leftOut) all.push_back({line->kind, line->code});
    return leftOutText(code, all);
  }
};

Choice choose(const LoadedCode& code, [[maybe_unused]] cudaStream_t stream) {
  if (kOnCpu) return Choice(kLastCard, kLastCard);  // the CPU runs what is not for a GPU alone, whatever it pretends
  bool sm90a = false;
#ifndef CUDA_DAYS_CPU
  CUDA_CHECK(cudaMemcpyFromSymbolAsync(&sm90a, sm90aIsThere, sizeof sm90a, 0, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
#endif
  return Choice(code.card, sm90a ? kSm90a : code.features());
}

// Each with the shapes that compete for it. --profile launches the first shape of each.
vector<Rows> ceilingShapes(const Problem& p, const PerClock& per, const Choice& choice) {
  vector<Rows> all;
  for (int words = p.sizes.words;; words = p.sizes.large) {
    all.insert(all.end(),
        {streamShapes<kRead>(p, words), streamShapes<kWrite>(p, words), streamShapes<kCopy>(p, words),
            streamShapes<kTriad>(p, words), Rows{libraryCopy(p, words)}});
    if (words == p.sizes.large) break;
  }
  const double halfL2 = 0.5 * p.sizes.l2Bytes / p.sizes.sms;
  all.push_back(sliceShapes<kPastL1>(p, Role::kCeiling, "l2", halfL2, 0, Wall::kL2));
  all.push_back(sliceShapes<kRotating>(p, Role::kNoCeiling, "l2", halfL2, 0, Wall::kNone));
  all.push_back(sliceShapes<kThroughL1>(p, Role::kCeiling, "l1", 32 << 10, per.bytes, Wall::kL1));
  for (int ways = 1; ways <= kWarp; ways *= 2) all.push_back({sharedRow(p, ways, per.bytes)});
  for (const Arithmetic* line : choice.rows) {
    if (line->row == nullptr) continue;
    all.push_back({line->row(p, *line, line->perLane * per.*line->lanes)});
    all.back().front().wall = line->wall;
  }
  all.push_back({issueRow<IssueMix>(p, "FMA and integer"), issueRow<IssueFma>(p, "FMA")});
  return all;
}

// The copy with more and more FMAs in it.
template <int kFmas>
void addCurve(Rows& rows, const Problem& p, const PerClock& per) {
  const int count = p.sizes.words / 4;
  const double flop = 2.0 * kFmas * count;
  char flopPerByte[16];
  snprintf(flopPerByte, sizeof flopPerByte, "%g", kFmas / 16.0);
  Row row = {Role::kCurve, "curve", flopPerByte, "float4 x 1", "intensity", kFlops, flop, flop, 32.0 * count,
      2.0 * per.fp32, Wall::kFp32};
  row.output = largeOutput(p.out, size_t(4) * count, Iterated{kFmas});
  row.launch = launch(intensity<kFmas>, ceilDivide(count, kBlock), kBlock, packs<4>(p.a), packs<4>(p.out), count);
  rows.push_back(row);
  if constexpr (kFmas < kMostFmas) addCurve<2 * kFmas>(rows, p, per);
}

// 1, 2, 4, ... all SMs at work, and the others idle. Fewer blocks than SMs would do that for blocks that fill an SM; a
// block of 1024 threads fills half of an H200's. So each takes more than half of an SM's shared memory, which it does
// not use: then no second one fits beside it.
Rows scalingRows(const Problem& p, const cudaDeviceProp& gpu, const PerClock& per) {
  Rows rows;
  const int all = p.sizes.sms, count = p.sizes.words / 4;
  const int copyShared = wholeSm(copyInTurn, gpu);
  const int fmaShared = wholeSm(arithmeticPeak<Scalar<float, true>>, gpu);
  for (int sms = 1; sms <= all; sms = sms < all ? std::min(2 * sms, all) : all + 1) {
    const string shape = to_string(sms) + " SMs";
    Row copy = {
        Role::kScaling, "scaling", "copy", shape, "copyInTurn", kBytes, 32.0 * count, 0, 32.0 * count, 0, Wall::kCopy};
    copy.output = largeOutput(p.out, size_t(4) * count, Streamed{0});
    copy.launch = launchShared(copyInTurn, sms, kSmBlock, copyShared, packs<4>(p.a), packs<4>(p.out), p.tickets, count);
    Row fma = arithmeticRow<Scalar<float, true>>(p, "fp32-fma", shape.c_str(), 2 * per.fp32, sms, fmaShared);
    fma.role = Role::kScaling;
    fma.level = "scaling";
    fma.wall = Wall::kFp32;
    copy.sms = fma.sms = sms;
    rows.insert(rows.end(), {copy, fma});
  }
  return rows;
}

// Kernels have two counts of bytes: what the source requests, and what is compulsory.
Rows kernelRows(const Problem& p, const PerClock& per) {
  Rows rows;
  const auto add = [&](const char* name, const char* symbol, double flop, double requested, double compulsory,
                       double fmas, bool wide, const Launch& launch, const Output& output) {
    rows.push_back({Role::kKernel, "kernel", name, "plain", symbol, kBytes, requested, flop, requested, 0,
        wide ? Wall::kFp64 : Wall::kFp32, false, 0, compulsory, fmas, 2.0 * (wide ? per.fp64 : per.fp32), launch,
        output});
  };
  const int n = p.sizes.words, half = n / 2, g = p.sizes.grid, d = p.sizes.matrix;
  add("vector add", "vectorAdd", n, 12.0 * n, 12.0 * n, 0, false,
      launch(vectorAdd, ceilDivide(n, kBlock), kBlock, p.a, p.b, p.out, n), largeOutput(p.out, n, Streamed{1}));
  add("triad FP64", "triadFp64", n, 12.0 * n, 12.0 * n, 1, true,
      launch(triadFp64, ceilDivide(half, kBlock), kBlock, p.wideA, p.wideB, p.wideOut, half),
      largeOutput(p.wideOut, half, Streamed{kScale}));
  const double cells = std::pow(g - 2, 3);
  add("stencil FP64", "stencil7", 7 * cells, 64 * cells, 16 * cells, 1.0 / 6, true,
      launch(stencil7, dim3(ceilDivide(g, kBlock), g, g), kBlock, p.wideA, p.wideOut, g),
      largeOutput(p.wideOut, size_t(g) * g * g, Stencilled{g}));

  const double reads = 8.0 * d * d * d, matrix = 4.0 * d * d;
  const auto matmul = [&](const char* name, const char* symbol, double requested, auto kernel) {
    add(name, symbol, reads / 4, requested + matrix, 3 * matrix, 1, false,
        launch(kernel, dim3(d / kTile, d / kTile), dim3(kTile, kTile), p.a, p.b, p.out, d),
        largeOutput(p.out, size_t(d) * d, Product{d}, kAllowed));
  };
  matmul("matmul naive", "matmulNaive", reads, matmulNaive);
  matmul("matmul tiled", "matmulTiled", reads / kTile, matmulTiled);
  return rows;
}

// Everything that is checked and timed, in the order of the tables.
struct Plan {
  Plan(const Problem& p, const cudaDeviceProp& gpu, const PerClock& per, const Choice& choice)
      : ceilings(ceilingShapes(p, per, choice)),
        sweep(sweepRows(p, gpu)),
        scaling(scalingRows(p, gpu, per)),
        kernels(kernelRows(p, per)) {
    addCurve<1>(curve, p, per);
  }

  vector<Rows> ceilings;
  Rows sweep, curve, scaling, kernels;
};

// ---- Checking

// At the ragged size the CPU computes every element, and then the device compares the same output. At the timed size
// the device compares alone: nothing is left out. Sums and registers, a few megabytes, the CPU compares at all sizes.
void proveRow(Checks& checks, Row& row, bool ragged, cudaStream_t stream) {
  const Verdict verdict = prove(row.output, row.launch, row.symbol, ragged, stream);
  row.proven = checks.add({kProgram.day, row.variant(), row.symbol, ragged ? "ragged" : "full", verdict}) == 0;
}

// Proves every row; returns whether all checks up to here passed.
bool proveAll(Checks& checks, Plan& plan, bool ragged, cudaStream_t stream) {
  for (Rows& shapes : plan.ceilings)
    for (Row& row : shapes) proveRow(checks, row, ragged, stream);
  for (Rows* rows : {&plan.sweep, &plan.curve, &plan.scaling, &plan.kernels})
    for (Row& row : *rows) proveRow(checks, row, ragged, stream);
  if (checks.failed() > 0) fprintf(stderr, "%d checks FAILED\n", checks.failed());
  return checks.failed() == 0;
}

// The comparison on the device must find what is planted.
void proveTheComparison(Checks& checks, const Problem& p, cudaStream_t stream) {
  constexpr float kLeast = 1.0f / 32768;  // difference between two values
  const int count = p.sizes.words;
  CUDA_CHECK(cudaMemcpyAsync(p.out, p.a, count * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  const Verdict verdict = proveComparison(p.out, count, Streamed{0}, kLeast, stream);
  checks.add({kProgram.day, "planted differences", "findWrong", "ragged", verdict});
}

// ---- Measuring

constexpr int kSearchSamples = 5;  // for rows that are a search or a curve: what counts there is how they compare
constexpr int kClockReadings = 5;
constexpr double kPlateau = 0.9;  // of its first rate, which a plateau keeps

struct Measured {
  Row row;
  Timing timing;
  double clockMhz = 0;  // 0: not read
  double percent = 0;  // of what the SMs can do at this clock, of the roof or of the ceiling; 0: of nothing
  std::array<double, 3> ridges = {};  // FLOP per byte where the row meets DRAM copy, L2 and L1; 0: it has none
  double roof = 0;  // GFLOP/s: the lower of two ceilings, or what a kernel's share of FMAs leaves of one
  string ceiling = "";  // which one a kernel's percentage is of
  string from = "", to = "";  // the first and the last working set of a plateau

  double rate() const { return gigaPerSecond(row.work, timing.ms); }
  double intensity() const { return row.flop / row.requested; }
};

double median(vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

// What a row's JSON line calls itself.
const char* recordOf(Role role) {
  constexpr const char* kNames[] = {"ceiling", "ceiling", "shape", "sweep", "plateau", "curve", "scaling", "row"};
  return kNames[int(role)];
}

// Measures rows, and adds each to its table as it comes.
struct Bench {
  using MeasuredTable = Table<Measured>;
  const Problem& p;
  const PerClock per;
  cudaStream_t stream;
  double fastestMhz;  // the highest clock that was seen: cards may run above the one that they name as their highest
  std::array<double, size_t(Wall::kWalls)> walls = {};

  double& rateOf(Wall wall) { return walls[size_t(wall)]; }

  // No row may read more than the SMs can do at the fastest clock: their FLOP by the lanes, their bytes through L1.
  void requirePossibleAt(double clockMhz, const Row& row, double ms) const {
    const auto require = [&](double amount, double perClock, const char* unit) {
      const double most = perClock * p.sizes.sms * clockMhz * 1e-3;
      if (perClock > 0) requirePossible(row.variant(), gigaPerSecond(amount, ms), most, unit);
    };
    require(row.requested, per.bytes, kBytes.perSecond);
    require(row.flop, row.flopPerClock, kFlops.perSecond);
    require(row.work, row.perClock, row.unit.perSecond);
  }

  void add(const MeasuredTable& table, const Measured& m) const {
    requirePossibleAt(fastestMhz, m.row, m.timing.ms);
    table.add(m, recordOf(m.row.role));
  }

  // Against each other, where there are several.
  vector<Measured> measureAll(const Rows& rows, int samples) const {
    vector<Launch> launches;
    for (const Row& row : rows) {
      if (!row.proven) throw Stop{kExitFailed, row.variant() + " was not proven at this size, so it is not timed"};
      launches.push_back(row.launch);
    }
    const vector<Timing> timings = measureInTurn(stream, launches, samples);
    vector<Measured> all;
    for (size_t i = 0; i < rows.size(); ++i) all.push_back({rows[i], timings[i]});
    return all;
  }

  // The SM clock, by watchClock beside a kernel that does not read it itself. Near the power limit a card changes its
  // clock from one launch to the next, so a share of the lanes takes rate and clock from the same launches.
  void readClockOf(Measured& m) {
    const Event begin, end;
    vector<double> clocks, percents;
    for (int reading = 0; reading < kClockReadings; ++reading) {
      double ms = m.timing.ms;
      if (m.row.readsClock) {
        ms = timeBatch(stream, begin, end, m.row.launch, m.timing.batch);
      } else {
        const Stream beside;
        watchClock<<<1, 1, 0, beside>>>(p.span, 1 << 20);  // about half a millisecond
        for (double spent = 0; spent < 1; spent += ms) m.row.launch(stream);
        finish("watchClock", beside);
      }
      finish(m.row.symbol, stream);
      ClockSpan span;
      download(&span, p.span, sizeof span, stream);
      clocks.push_back(span.megahertz());
      if (m.row.perClock > 0)
        percents.push_back(m.row.work / ms * 0.1 / (m.row.perClock * p.sizes.sms * clocks.back()));
    }
    m.clockMhz = median(clocks);
    fastestMhz = std::max(fastestMhz, *std::max_element(clocks.begin(), clocks.end()));
    if (!percents.empty()) m.percent = median(percents);
  }

  // Of the shapes the best is measured in full. `others` gets the rest.
  void ceilings(const vector<Rows>& all, const MeasuredTable& bests, const MeasuredTable& others) {
    for (const Rows& shapes : all) {
      vector<Measured> found = measureAll(shapes, shapes.size() > 1 ? kSearchSamples : kSamples);
      std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.rate() > b.rate(); });
      Measured best = found.size() > 1 ? measureAll({found[0].row}, kSamples)[0] : found[0];
      readClockOf(best);
      for (size_t i = 1; i < found.size(); ++i) {
        found[i].row.role = Role::kNoCeiling;
        add(others, found[i]);
      }
      if (best.row.unit.metric == kFlops.metric)
        best.ridges = {
            best.rate() / rateOf(Wall::kCopy), best.rate() / rateOf(Wall::kL2), best.rate() / rateOf(Wall::kL1)};
      add(bests, best);
      rateOf(best.row.wall) = best.rate();
    }
  }

  vector<Measured> sweep(const Rows& rows, const MeasuredTable& table) {
    vector<Measured> steps;
    for (const Row& row : rows) {
      steps.push_back(measureAll({row}, kSearchSamples)[0]);
      readClockOf(steps.back());
      add(table, steps.back());
    }
    return steps;
  }

  // The first plateau is L1, the last DRAM, the longest between them L2. Each is told by the row in its middle.
  void plateaus(const vector<Measured>& steps, const MeasuredTable& table) const {
    vector<std::pair<size_t, size_t>> flat;
    for (size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
      while (end < steps.size() && steps[end].rate() > kPlateau * steps[begin].rate()) ++end;
      if (end - begin >= 2) flat.push_back({begin, end});
    }
    if (flat.size() < 3) throw Stop{kExitFailed, "the sweep shows no three plateaus"};
    const auto shorter = [](const auto& a, const auto& b) { return a.second - a.first < b.second - b.first; };
    flat = {flat.front(), *std::max_element(flat.begin() + 1, flat.end() - 1, shorter), flat.back()};
    constexpr const char* kKinds[] = {"l1", "l2", "dram"};
    for (int i = 0; i < 3; ++i) {
      const auto [begin, end] = flat[i];
      Measured m = steps[(begin + end) / 2];
      m.row.role = Role::kPlateau;
      m.row.level = "plateau";
      m.row.kind = kKinds[i];
      m.from = steps[begin].row.kind;
      m.to = steps[end - 1].row.kind;
      add(table, m);
      if (i > 0 && !(m.rate() < steps[flat[i - 1].first].rate())) throw Stop{kExitFailed, m.row.kind + " is too fast"};
    }
  }

  // The rows of the curve lie under two ceilings, those of the scaling under one.
  void curveOrScaling(const Rows& rows, const MeasuredTable& table) {
    for (const Row& row : rows) {
      Measured m = measureAll({row}, kSearchSamples)[0];
      m.roof = rateOf(row.wall);
      if (row.role == Role::kCurve) m.roof = std::min(m.roof, m.intensity() * rateOf(Wall::kCopy));
      m.percent = 100 * m.rate() / m.roof;
      add(table, m);
    }
  }

  // DRAM binds a kernel where it would be reached first by the bytes that the kernel requests.
  void kernels(const Rows& rows, const MeasuredTable& table) {
    const double copy = rateOf(Wall::kCopy), triad = rateOf(Wall::kTriad);
    const double dram = std::max(copy, triad);
    for (const Row& row : rows) {
      Measured m = measureAll({row}, kSamples)[0];
      m.roof = rateOf(row.wall) * (1 + row.fmas) / 2;
      const bool memory = m.intensity() * dram < m.roof;
      m.percent = 100 * (memory ? m.rate() / dram : m.intensity() * m.rate() / m.roof);
      m.ceiling = !memory ? "fma" : copy < triad ? "triad" : "copy";
      add(table, m);
    }
  }
};

// ---- Report

constexpr double kAtWall = 95;  // per cent of its wall from which on a row stands at it: below lies more than noise

using Columns = vector<Column<Measured>>;

// The number, or nothing where there is none.
Value known(double number) { return number > 0 ? Value(number) : Value(); }

// A kernel whose requested bytes are more than DRAM can have moved. By them nobody can say whether it is at its wall.
bool isAboveDram(const Measured& m) { return m.row.role == Role::kKernel && m.percent > 100; }

Value atWall(const Measured& m) { return m.percent > 0 && !isAboveDram(m) ? Value(m.percent >= kAtWall) : Value(); }

// The columns that all tables have, with those of one table: `second` behind the name, and `last`. `unit` is the unit
// of all of its rates, "" where they differ.
Columns columnsOf(const char* unit, const Columns& second, const Columns& last) {
  const Columns names = {
      {"", "", 0, 0, "day", [](auto&) { return kProgram.day; }},
      {"name", "", -25, 0, "variant", [](auto& m) { return m.row.name(); }},
      {"", "", 0, 0, "symbol", [](auto& m) { return m.row.symbol; }},
  };
  const auto isKernel = [](const Measured& m) { return m.row.role == Role::kKernel; };
  const Columns rates = {
      {"", "", 0, 0, "flop", [](auto& m) { return static_cast<long long>(m.row.flop); }},
      {"", "", 0, 0, "requested_bytes", [](auto& m) { return static_cast<long long>(m.row.requested); }},
      {"rate", unit, 10, 1, "", [](auto& m) { return m.rate(); }},
      {"unit", "", *unit == '\0' ? -7 : 0, 0, "", [](auto& m) { return m.row.unit.perSecond; }},
      {"", "", 0, 0, "metric", [=](auto& m) { return isKernel(m) ? "ms" : m.row.unit.metric; }},
      {"", "", 0, 0, "value", [=](auto& m) { return isKernel(m) ? m.timing.ms : m.rate(); }},
      {"", "", 0, 0, "unit", [=](auto& m) { return isKernel(m) ? "ms" : m.row.unit.perSecond; }},
      {"", "", 0, 0, "level", [](auto& m) { return m.row.level; }},
      {"", "", 0, 0, "kind", [](auto& m) { return m.row.kind; }},
  };
  return join<Measured>(
      {names, second, timingColumns<Measured>([](const Measured& m) { return m.timing; }), rates, last});
}

const Column<Measured> kClock = {"SM clock", "MHz", 8, 0, "clock_mhz", [](auto& m) { return known(m.clockMhz); }};
const Column<Measured> kRoof = {"roof", "GFLOP/s", 10, 1, "roof", [](auto& m) { return m.roof; }};
const Column<Measured> kIntensity = {
    "intensity", "FLOP/byte", 9, 4, "intensity", [](auto& m) { return m.intensity(); }};
const Column<Measured> kAtItsWall = {"at its wall", "", -3, 0, "", [](auto& m) { return atWall(m); }};

Columns ceilingColumns() {
  return columnsOf("", {{"shape", "", -31, 0, "shape", [](auto& m) { return m.row.shape; }}},
      {kClock, {"of the SMs' rate", "%", 6, 2, "percent", [](auto& m) { return known(m.percent); }}, kAtItsWall,
          {"ridge DRAM", "FLOP/byte", 7, 2, "ridge_dram", [](auto& m) { return known(m.ridges[0]); }},
          {"ridge L2", "FLOP/byte", 7, 2, "ridge_l2", [](auto& m) { return known(m.ridges[1]); }},
          {"ridge L1", "FLOP/byte", 7, 2, "ridge_l1", [](auto& m) { return known(m.ridges[2]); }}});
}

Table<Measured> ceilingTable(Report& report) {
  report.say(
      "\nCeilings, each the fastest of its shapes: the shapes take %d samples each, the fastest then %d.\n"
      "SM clock: while the row ran. Of the SMs' rate: the share of what the SMs can do at that clock, where that is\n"
      "known. Here and below a row is at its wall from %.0f %% of it on (kAtWall in the source). Ridge: where the row\n"
      "meets the ceiling of DRAM copy, L2 or L1.\n",
      kSearchSamples, kSamples, kAtWall);
  return {report, "ceiling", ceilingColumns()};
}

Table<Measured> sweepTable(Report& report) {
  report.say("\nWorking sets, each SM its own, with L1 as small as shared memory can make it: %d samples a row\n",
      kSearchSamples);
  return {report, "sweep", columnsOf("GB/s", {}, {kClock})};
}

Table<Measured> plateauTable(Report& report) {
  report.say("\nPlateaus of these working sets, by the row in the middle\n");
  return {report, "plateau",
      columnsOf("GB/s", {},
          {{"from", "", -16, 0, "from", [](auto& m) { return m.from; }},
              {"to", "", -16, 0, "to", [](auto& m) { return m.to; }}})};
}

Table<Measured> curveTable(Report& report) {
  report.say(
      "\nThe copy with more and more FMAs in it: %d samples a row. Roof: the lower one of the FMA ceiling, and of the\n"
      "copy ceiling times the intensity.\n",
      kSearchSamples);
  return {report, "curve",
      columnsOf("GFLOP/s", {},
          {kIntensity, kRoof, {"of the roof", "%", 6, 2, "percent", [](auto& m) { return m.percent; }}, kAtItsWall})};
}

Table<Measured> scalingTable(Report& report) {
  report.say(
      "\nHow many SMs it takes, each with one block of 1024 threads: %d samples a row. Ceiling: dram-copy or\n"
      "compute-fp32-fma.\n",
      kSearchSamples);
  return {report, "scaling",
      columnsOf("", {{"SMs", "", 4, 0, "sms", [](auto& m) { return m.row.sms; }}},
          {{"of the ceiling", "%", 6, 2, "percent", [](auto& m) { return m.percent; }}, kAtItsWall})};
}

Table<Measured> kernelTable(Report& report) {
  report.say(
      "\nKernels: rate and intensity by the bytes that they request; compulsory: the intensity with each byte once, "
      "as\n"
      "behind a perfect cache. FMA mix: what the kernel's share of FMAs leaves of the FMA ceiling. Ceiling: DRAM's\n"
      "faster one (copy or triad), or the FMA mix (fma).\n");
  return {report, "row",
      columnsOf("GB/s", {},
          {kIntensity,
              {"compulsory", "FLOP/byte", 9, 4, "compulsory_intensity",
                  [](auto& m) { return m.row.flop / m.row.compulsory; }},
              {"FMA mix", "GFLOP/s", 10, 1, "mix_ceiling", [](auto& m) { return m.roof; }},
              {"ceiling", "", -7, 0, "ceiling", [](auto& m) { return m.ceiling; }},
              {"of it", "%", 7, 2, "percent", [](auto& m) { return m.percent; }}, kAtItsWall,
              {"*", "", -1, 0, "", [](auto& m) { return isAboveDram(m) ? "*" : ""; }}})};
}

// ---- The day

// Checks at the ragged size, then at the size that is timed, then measures. On the CPU the full size would run the same
// code again.
int runDay(Report& report) {
  const Options& options = report.options();
  const Device device = openDevice(options.device, vectorAdd);
  const cudaDeviceProp& gpu = device.properties;
  const PerClock per = perClockOf(device.code.card);
  const Sizes sizes = timedSizes(gpu, options.mode);
  requireDeviceMemory(Problem::bytes(sizes));
  const Stream stream;
  const Choice choice = choose(device.code, stream);
  reportRun(report, device);
  report.say("%sStreams of %.4g MiB, large ones of %.4g MiB.%s\n", choice.text(device.code).c_str(),
      sizes.words / 262144.0, sizes.large / 262144.0, kOnCpu ? " Skipped: the tensor-* rows, for a GPU." : "");
  if (options.mode == Mode::kProfile) {
    const Problem problem(sizes, stream);
    const Plan plan(problem, gpu, per, choice);
    Rows rows;
    for (const Rows& shapes : plan.ceilings) rows.push_back(shapes.front());
    for (const Rows& more : {plan.curve, plan.kernels}) rows.insert(rows.end(), more.begin(), more.end());
    for (const Row& row : rows) {
      row.launch(stream);
      finish(row.symbol, stream);
    }
    return kExitOk;
  }
  Checks checks(report);
  {
    const Problem ragged(kRagged, stream);
    Plan plan(ragged, gpu, per, choice);
    proveTheComparison(checks, ragged, stream);
    if (!proveAll(checks, plan, true, stream)) return kExitFailed;
  }
  const auto allMatch = [&] {
    report.say("All %d checks match: every kernel and shape, at every element.\n", checks.passed());
  };
  if (kOnCpu) return allMatch(), kExitOk;
  const Problem problem(sizes, stream);
  Plan plan(problem, gpu, per, choice);
  if (!proveAll(checks, plan, false, stream)) return kExitFailed;
  allMatch();
  if (options.mode == Mode::kCheck) return kExitOk;
  Bench bench = {problem, per, stream, device.maxClockMhz};
  bench.ceilings(plan.ceilings, ceilingTable(report), {report, "shape", ceilingColumns(), false});
  const vector<Measured> steps = bench.sweep(plan.sweep, sweepTable(report));
  bench.plateaus(steps, plateauTable(report));
  bench.curveOrScaling(plan.curve, curveTable(report));
  bench.curveOrScaling(plan.scaling, scalingTable(report));
  bench.kernels(plan.kernels, kernelTable(report));
  report.say("* counts the bytes that the kernel requests: caches served part of them, and DRAM did not move those.\n");
  return kExitOk;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
