// SPDX-License-Identifier: MIT
//
// Day 44: how close does a hand-written SGEMM come to cuBLAS?
//
// C = A B in FP32, row-major, as a ladder: a rung is one idea, its comment says what it should gain on an H200 and why,
// the table what it gains. sgemm() picks the rung for shape and card. No other format and no tensor core is tried.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o matmul_registers matmul_registers.cu -lcublas
//   run:   ./matmul_registers    (--help lists the rest)
//
// The kernels in the order of this file, and what each shows:
//   fmaPeak                    the ceiling: FMAs on registers alone
//   3  matmulSharedTiled       one output a thread: two shared loads for an FMA
//   4  matmulRegTile1d         a column of 8 outputs: 9 loads for 8 FMAs
//   5  matmulRegTile2d         8 x 8 outputs: 16 loads for 64 FMAs, but in the same banks
//   6  matmulRegTile2dVec4     every access a float4
//   7 to 11  matmulTiled       lanes without conflicts; double buffers; split k; 8 x 16 outputs; copies two tiles ahead
//   edges, scalars             the same for any m, n, k and alignment
//   12 matmulCluster           two blocks share a tile (sm_90)

#if !__has_include(<cublas_v2.h>) || !__has_include(<cuda_pipeline.h>)
#error "cublas_v2.h or cuda_pipeline.h is missing: install the toolkit with cuBLAS (libcublas-dev)"
#endif
#include <cublas_v2.h>
#include <cuda_pipeline.h>
#ifndef CUDA_DAYS_CPU
#include <cooperative_groups.h>
#endif

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

// ---- The FMA ceiling (day 30)

// Registers only, kChains independent chains a thread, one wave of blocks: 98 % of all lanes on an H200.
constexpr int kPeakBlock = 256, kChains = 8, kPeakFmas = 131072;
constexpr int kUnroll = 1024;  // FMAs a trip, so that the loop itself does not count
constexpr float kPeakA = 0.999999f, kPeakB = 0.001f;

__global__ void fmaPeak(float* out, ClockSpan* span, float a, float b) {
  const int thread = blockIdx.x * kPeakBlock + threadIdx.x;
  float chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = float(c);
  const ClockSpan begin = readClock();
  for (int done = 0; done < kPeakFmas; done += kUnroll) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) chain[i % kChains] = fmaf(chain[i % kChains], a, b);
  }
  const ClockSpan end = readClock();
  if (thread == 0) *span = {end.cycles - begin.cycles, end.nanoseconds - begin.nanoseconds};
  float sum = float(thread);
  for (int c = 0; c < kChains; ++c) sum += chain[c];
  out[thread] = sum;
}

// ---- Rungs 3 to 6: from one output a thread to 64

struct Shape {
  int m, n, k;
};
#ifndef CUDA_DAYS_SANITIZE
constexpr int kSizes[] = {512, 1024, 2048, 4096, 8192};
constexpr Shape kTimedRagged = {4097, 4095, 4093};
constexpr Shape kRagged[] = {{1, 1, 1}, {3, 3, 431}, {17, 1, 3}, {1, 17, 129}, {127, 129, 17}, {128, 127, 128},
    {35, 79, 19}, {64, 256, 4}, {132, 260, 36}, {128, 256, 12}, {128, 256, 64}, {257, 300, 1}, {513, 36, 1000},
    {1000, 1037, 513}};
#else
// For compute-sanitizer: one size that is a whole number of every rung's tiles and fills every buffer of a rung more
// than once. Of the others one each with less than a tile; many tiles of k and a rest; several blocks with edges, in
// scalars and in float4; whole blocks with a rest of k; and whole tiles of every rung, which meet gaps between rows.
constexpr int kSizes[] = {256};
constexpr Shape kTimedRagged = {257, 255, 253};
constexpr Shape kRagged[] = {{1, 1, 1}, {3, 3, 431}, {127, 129, 17}, {132, 260, 36}, {128, 256, 12}, {128, 256, 64}};
#endif

// Rungs 3 to 6. kThreadM x kThreadN outputs a thread are the reader's knob: the threads follow.
constexpr int kThreadM = 8, kThreadN = 8;
constexpr int kSharedTile = 16, kTile1d = 64, kTileM = 128, kTileN = 128, kTileK = 8;

// C = alpha A B: A is m x k, B k x n, C m x n; ld is the distance between rows in floats. alpha is
// no constant on purpose: see storeTile.
struct Gemm {
  int m, n, k;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float* c;
  int ldc;
  float alpha;
};

__host__ __device__ inline size_t rows(int count, int ld) { return size_t(count) * ld; }

// Adds an outer product to the sums. The register file has two banks with one read a clock each, so
// of an FMA's three operands one should still be in the operand cache: going down a column and up
// the next (serpentine) keeps one at every step.
template <int kRows, int kColumns>
__device__ void multiplyAdd(float (&sum)[kRows][kColumns], const float (&a)[kRows], const float (&b)[kColumns]) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
#pragma unroll
    for (int step = 0; step < kRows; ++step) {
      const int i = j % 2 == 0 ? step : kRows - 1 - step;
      sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
}

// A block's work in rungs 3 to 6: kM x kN outputs, kOutM x kOutN a thread, kK steps of k at a time in
// shared memory, kWide floats in an access.
template <int kBlockM, int kBlockN, int kBlockK, int kRows, int kColumns, int kFloats>
struct EarlyTile {
  static constexpr int kM = kBlockM, kN = kBlockN, kK = kBlockK;
  static constexpr int kOutM = kRows, kOutN = kColumns, kWide = kFloats;
  static constexpr int kThreads = kM / kOutM * kN / kOutN, kPass = kWide * kThreads;
  static constexpr int kSharedBytes = 0;  // beyond the static arrays

  static constexpr bool isWhole() {
    for (const int size : kSizes)
      if (size % kM != 0 || size % kN != 0 || size % kK != 0) return false;
    return kM % kOutM + kN % kOutN + kM * kK % kPass + kK * kN % kPass + kOutM % kWide + kOutN % kWide == 0;
  }
  static_assert(isWhole(), "no edge guards: tiles divide sizes, threads and passes a tile, float4 its outputs");
  static_assert(kThreads <= 1024 && kThreads % 32 == 0, "whole warps, at most 1024 threads");
};

template <int kFloats>  // 1 or 4, aligned
__device__ void copy(float* to, const float* from) {
  if constexpr (kFloats == 4)
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  else
    *to = *from;
}

// Tiles of A and B come to shared memory, a warp's lanes side by side in a row; each thread then
// multiplies for its outputs.
template <class T>
__device__ void multiplyShared(const Gemm& g) {
  constexpr int kStepRow = T::kWide == 4 ? 1 : T::kK;  // in tileA: a float4 holds rows of one k,
  constexpr int kStepK = T::kWide == 4 ? T::kM : 1;  // so A lies turned over
  __shared__ __align__(16) float tileA[T::kM * T::kK], tileB[T::kK * T::kN];
  const int y = threadIdx.x / (T::kN / T::kOutN) * T::kOutM;
  const int x = threadIdx.x % (T::kN / T::kOutN) * T::kOutN;
  const float* a = g.a + rows(blockIdx.y * T::kM, g.lda);
  const float* b = g.b + blockIdx.x * T::kN;
  float sum[T::kOutM][T::kOutN] = {};
  __align__(16) float held[T::kWide];
  for (int first = 0; first < g.k; first += T::kK) {
    for (int pass = 0; pass < T::kM * T::kK; pass += T::kPass) {
      const int i = pass + T::kWide * threadIdx.x;
      copy<T::kWide>(held, a + rows(i / T::kK, g.lda) + first + i % T::kK);
      for (int e = 0; e < T::kWide; ++e) tileA[i / T::kK * kStepRow + (i % T::kK + e) * kStepK] = held[e];
    }
    for (int pass = 0; pass < T::kK * T::kN; pass += T::kPass) {
      const int i = pass + T::kWide * threadIdx.x;
      copy<T::kWide>(&tileB[i], b + rows(first + i / T::kN, g.ldb) + i % T::kN);
    }
    __syncthreads();
#pragma unroll(T::kOutN > 1 ? 2 : T::kOutM > 1 ? 4 : 8)  // more spill
    for (int k = 0; k < T::kK; ++k) {
      __align__(16) float inA[T::kOutM], inB[T::kOutN];
      for (int i = 0; i < T::kOutM; i += T::kWide) copy<T::kWide>(&inA[i], &tileA[(y + i) * kStepRow + k * kStepK]);
      for (int j = 0; j < T::kOutN; j += T::kWide) copy<T::kWide>(&inB[j], &tileB[k * T::kN + x + j]);
      multiplyAdd(sum, inA, inB);
    }
    __syncthreads();  // others may still read the tiles
  }
  float* c = g.c + rows(blockIdx.y * T::kM + y, g.ldc) + blockIdx.x * T::kN + x;
  for (int i = 0; i < T::kOutM; ++i)
    for (int j = 0; j < T::kOutN; j += T::kWide) {
      for (int e = 0; e < T::kWide; ++e) held[e] = g.alpha * sum[i][j + e];
      copy<T::kWide>(c + rows(i, g.ldc) + j, held);
    }
}

// Rung 3, where day 43 stops: one output a thread. Each FMA needs two shared loads, and an SM serves
// one warp's load a clock where it could do four FMAs: an eighth of the ceiling.
using Rung3 = EarlyTile<kSharedTile, kSharedTile, kSharedTile, 1, 1, 1>;
__global__ void __launch_bounds__(Rung3::kThreads) matmulSharedTiled(Gemm g) { multiplyShared<Rung3>(g); }

// Rung 4: a column of outputs a thread. One value of B in a register serves all of them, so 8 FMAs
// need 9 shared loads instead of 16. Predicted x 1.8 once the grid fills the card.
using Rung4 = EarlyTile<kTile1d, kTile1d, kTileK, kThreadM, 1, 1>;
__global__ void __launch_bounds__(Rung4::kThreads, 2) matmulRegTile1d(Gemm g) { multiplyShared<Rung4>(g); }

// Rung 5: a square of outputs a thread, 16 loads for 64 FMAs. But a thread's 8 columns lie side by
// side, so a warp's loads of B meet in the same banks: predicted x 2, not 4.5.
using Rung5 = EarlyTile<kTileM, kTileN, kTileK, kThreadM, kThreadN, 1>;
__global__ void __launch_bounds__(Rung5::kThreads, 2) matmulRegTile2d(Gemm g) { multiplyShared<Rung5>(g); }

// Rung 6: every access is a float4, 4 shared loads for 64 FMAs. But a load of A takes 2 wavefronts of shared memory,
// and one of B takes 8, because lanes that lie 8 floats apart use half of the banks: 20 wavefronts a step. Predicted
// x 1.1.
using Rung6 = EarlyTile<kTileM, kTileN, kTileK, kThreadM, kThreadN, 4>;
__global__ void __launch_bounds__(Rung6::kThreads, 2) matmulRegTile2dVec4(Gemm g) { multiplyShared<Rung6>(g); }

// ---- What the rungs above them are made of

// float4 loads, `step` floats apart, into registers.
template <int kFloats>
__device__ void readWide(float (&to)[kFloats], const float* from, int step) {
  for (int i = 0; i < kFloats; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i / 4 * step);
    to[i] = four.x;
    to[i + 1] = four.y;
    to[i + 2] = four.z;
    to[i + 3] = four.w;
  }
}
__device__ inline void writeFour(float* to, float by, const float* from) {
  *reinterpret_cast<float4*>(to) = make_float4(by * from[0], by * from[1], by * from[2], by * from[3]);
}

// A block's work: kM x kN outputs, kWarpM x 64 a warp, 8 x kOutN a thread; kK steps of k in each of
// kStages buffers. Slices are copies of a block's warps, each with its part of k.
template <int kBlockM, int kBlockN, int kBlockK, int kColumns, int kCopies, int kBuffers>
struct Tile {
  static constexpr int kM = kBlockM, kN = kBlockN, kK = kBlockK, kOutM = 8, kOutN = kColumns, kWide = 4;
  static constexpr int kSlices = kCopies, kStages = kBuffers, kSteps = kK / kSlices;
  static constexpr int kLanesN = 64 / kOutN, kLanesM = 32 / kLanesN, kWarpM = kOutM * kLanesM;
  static constexpr int kWarpsM = kM / kWarpM, kWarpsN = kN / 64, kThreads = 32 * kWarpsM * kWarpsN * kSlices;
  // Registers allow 16 warps an SM with 8 x 8 outputs a thread, 8 with 8 x 16.
  static constexpr int kBlocksPerSm = kOutN == 8 ? 512 / kThreads : 1;
  // Four floats of padding spread a warp's stores of A, which lies turned over, over 32 banks
  // and keep its rows aligned.
  static constexpr int kPitchA = kM + 4, kStageFloats = kK * (kPitchA + kN);
  // The slices' sums meet where the tiles were.
  static constexpr int kSharedBytes = 4 * std::max(kStages * kStageFloats, kSlices > 1 ? kSlices * kM * kN : 0);
  // Where a thread's row i lies: in groups of four, so that a warp's loads are whole stretches.
  __device__ static constexpr int rowOf(int i) { return i / 4 * 4 * kLanesM + i % 4; }

  static_assert(kOutN == 8 || kOutN == 16, "Place maps 4 x 8 lanes or 8 x 4");
  static_assert(kM % kWarpM == 0 && kN % 64 == 0 && kK % (8 * kSlices) == 0, "whole parts");
  static_assert(kSharedBytes <= 64 << 10, "what a block may have on a T4");
};

// A thread's slice, and its first row and column in the tile. Lanes i and i ^ 1 share their rows,
// i and i ^ 2 their columns: shared memory serves a 128-bit load of such pairs in 2 wavefronts, not 4.
template <class T>
struct Place {
  int slice, row, column;

  __device__ Place() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool tall = T::kLanesM == 8;
    const int laneM = (lane >> 1 & 1) | (lane >> 2 & (tall ? 6 : 2));
    const int laneN = (lane & 1) | (lane >> 1 & 2) | (tall ? 0 : lane >> 2 & 4);
    slice = T::kSlices == 1 ? 0 : warp / (T::kWarpsM * T::kWarpsN);
    row = warp % T::kWarpsM * T::kWarpM + 4 * laneM;
    column = warp / T::kWarpsM % T::kWarpsN * 64 + 4 * laneN;
  }
};

// Moves on to the next buffer; returns by how much pointers into the buffers move.
template <class T>
__device__ int nextBuffer(int& buffer) {
  const int before = buffer;
  buffer = buffer == (T::kStages - 1) * T::kStageFloats ? 0 : buffer + T::kStageFloats;
  return buffer - before;
}

enum Edge {
  kWhole,  // whole tiles, aligned as
  kVectors,  // pointers to 16 bytes, and k, n, leading dimensions multiples of 4
  kScalars,  // anything: every access is one float
};

// Brings A and B into shared memory, a tile per start() and finish(). In between a value waits in
// a register or, with kAsync (cp.async, sm_80), goes by itself, up to kStages - 1 tiles ahead. A
// turns over on the way: its asynchronous copies are 4 bytes each.
template <class T, Edge kEdge, bool kAsyncA, bool kAsyncB>
class Feed {
 public:
  __device__ Feed(const Gemm& gemm, float* shared, int firstK, int lastK) : g(gemm) {
    const int passRow = threadIdx.x / kLanesK;
    const int passK = threadIdx.x % kLanesK * kWidthA + (kRowsA > T::kM ? passRow / T::kM * 8 : 0);
    row = blockIdx.y * T::kM + passRow % T::kM;
    if constexpr (kEdge == kVectors) row = min(row, g.m - 1);
    k = passK;
    fromA = g.a + rows(row, g.lda) + (firstK + passK);
    toA = shared + passK * T::kPitchA + passRow % T::kM;
    column = blockIdx.x * T::kN + threadIdx.x % kLanesN * kWidthB;
    if constexpr (kEdge == kVectors) column = min(column, g.n - 4);
    rowB = threadIdx.x / kLanesN;
    fromB = g.b + rows(firstK + rowB, g.ldb) + column;
    toB = shared + T::kK * T::kPitchA + threadIdx.x / kLanesN * T::kN + threadIdx.x % kLanesN * kWidthB;
    left = lastK - firstK;
    const bool inside = int(blockIdx.y + 1) * T::kM <= g.m && int(blockIdx.x + 1) * T::kN <= g.n;
    guardBelow = inside ? T::kK : lastK + 1;
  }

  // Begins to load the next tile, if there is one, with zeros beyond k. Beyond m and n, where nothing
  // is stored, kVectors repeats the last row or column; kScalars compares, in tiles at an edge.
  __device__ void start(bool more) {
    if (more) {
      if (kEdge == kScalars && left < guardBelow) {
        startNext<true>();
      } else {
        startNext<kEdge == kVectors>();
      }
      left -= T::kK;
      if constexpr (kAsyncB) {
        const int hop = nextBuffer<T>(started);
        toB += hop;
        if constexpr (kAsyncA) toA += hop;
      }
      fromA += T::kK;
      fromB += rows(T::kK, g.ldb);
    }
    if constexpr (kAsyncA) __pipeline_commit();
  }

  // Completes the oldest tile begun, for this thread; a barrier must follow.
  __device__ void finish() {
    if constexpr (!kAsyncA) {
      for (int p = 0; p < kPassesA; ++p)
        for (int e = 0; e < 4; ++e) toA[(stepK(p) + e) * T::kPitchA + stepRow(p)] = heldA[p][e];
      const int hop = nextBuffer<T>(finished);
      toA += hop;
      if constexpr (!kAsyncB) {
        for (int p = 0; p < kPassesB; ++p) writeFour(toB + p * kRowsB * T::kN, 1, heldB[p]);
        toB += hop;
      }
    }
    if constexpr (kAsyncB) __pipeline_wait_prior(T::kStages - 2);
  }

 private:
  template <bool kGuard>
  __device__ void startNext() {
    for (int p = 0; p < kPassesB; ++p)
      load<kAsyncB, kWidthB>(toB + p * kRowsB * T::kN, fromB + rows(p * kRowsB, g.ldb), heldB[p],
          !kGuard || (rowB + p * kRowsB < left && (kEdge == kVectors || column < g.n)));
    if constexpr (kAsyncB && !kAsyncA) __pipeline_commit();
    for (int p = 0; p < kPassesA; ++p)
      load<kAsyncA, kWidthA>(toA + stepK(p) * T::kPitchA + stepRow(p), fromA + stepK(p) + rows(stepRow(p), g.lda),
          heldA[p], !kGuard || (k + stepK(p) < left && (kEdge == kVectors || row + stepRow(p) < g.m)));
  }
  template <bool kAsync, int kWidth>
  __device__ static void load(float* to, const float* from, float (&held)[4], bool reads) {
    if constexpr (kAsync) {
      __pipeline_memcpy_async(to, from, 4 * kWidth, reads ? 0 : 4 * kWidth);
    } else if (reads) {
      readWide(held, from, 4);
    } else {
      for (float& value : held) value = 0;
    }
  }

  // kLanesK threads load 8 of k; a pass covers kRowsA rows (above kM: all, for several 8 of k).
  static constexpr int kWidthA = kAsyncA ? 1 : 4, kLanesK = 8 / kWidthA, kRowsA = T::kThreads / kLanesK;
  static constexpr int kPassesA = T::kM * T::kK / (kWidthA * T::kThreads);
  static constexpr int kWidthB = kEdge == kScalars ? 1 : 4, kLanesN = T::kN / kWidthB;
  static constexpr int kRowsB = T::kThreads / kLanesN, kPassesB = T::kK / kRowsB;
  static_assert(kEdge == kWhole || (kAsyncB && (kEdge == kVectors ? kRowsA >= T::kM : kAsyncA)),
      "edges: B is copied asynchronously; a thread has one row of A, or scalars");
  static_assert(kPassesA * kWidthA * T::kThreads == T::kM * T::kK && kPassesB * kRowsB == T::kK &&
          kRowsB * kLanesN == T::kThreads && (T::kM % kRowsA == 0 || kRowsA % T::kM == 0),
      "whole passes of whole rows");

  // How far pass p lies from pass 0.
  __device__ static constexpr int stepRow(int p) { return p * kRowsA % T::kM; }
  __device__ static constexpr int stepK(int p) { return p * kRowsA / T::kM * 8; }

  const Gemm& g;
  const float *fromA, *fromB;
  float *toA, *toB;
  int started = 0, finished = 0;  // buffers of the next asynchronous copies, the next stores
  int row, k, rowB, column;  // this thread's place in pass 0; k and rowB within the tile
  int left, guardBelow;  // of k, not yet begun; if less, every access is compared
  float heldA[kPassesA][4] = {}, heldB[kPassesB][4] = {};
};

// snippet: loop
// The loop over k. While a step multiplies, the next step's operands come from shared memory, the
// next tile from global memory. The barrier stands before a tile's last step, whose operands are in
// registers already: it publishes the next tile and frees this one.
template <class T, class TileFeed>
__device__ void multiplyTiles(
    TileFeed& feed, const Place<T>& at, const float* shared, int tiles, float (&sum)[T::kOutM][T::kOutN]) {
  const float* a = shared + at.slice * T::kSteps * T::kPitchA + at.row;
  const float* b = shared + T::kK * T::kPitchA + at.slice * T::kSteps * T::kN + at.column;
  if constexpr (T::kStages == 1) {
    for (int t = 0; t < tiles; ++t) {
      feed.start(true);
      feed.finish();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
        float inA[T::kOutM], inB[T::kOutN];
        readWide(inA, a + step * T::kPitchA, 4 * T::kLanesM);
        readWide(inB, b + step * T::kN, 4 * T::kLanesN);
        multiplyAdd(sum, inA, inB);
      }
      __syncthreads();
    }
  } else {
#pragma unroll
    for (int stage = 0; stage < T::kStages - 1; ++stage) feed.start(stage < tiles);
    feed.finish();
    __syncthreads();
    float inA[2][T::kOutM], inB[2][T::kOutN];
    readWide(inA[0], a, 4 * T::kLanesM);
    readWide(inB[0], b, 4 * T::kLanesN);
    int buffer = 0;
    for (int t = 0; t < tiles; ++t) {
      feed.start(t + T::kStages - 1 < tiles);
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
        if (step == T::kSteps - 1) {
          feed.finish();
          __syncthreads();
          const int hop = nextBuffer<T>(buffer);
          a += hop;
          b += hop;
        }
        const int next = (step + 1) % T::kSteps;
        readWide(inA[(step + 1) % 2], a + next * T::kPitchA, 4 * T::kLanesM);
        readWide(inB[(step + 1) % 2], b + next * T::kN, 4 * T::kLanesN);
        multiplyAdd(sum, inA[step % 2], inB[step % 2]);
      }
    }
  }
}
// end snippet: loop

template <Edge kEdge>
__device__ void storeFour(const Gemm& g, int row, int column, float by, const float* four) {
  float* to = g.c + rows(row, g.ldc) + column;
  if (kEdge == kScalars) {
    for (int e = 0; e < 4; ++e)
      if (row < g.m && column + e < g.n) to[e] = by * four[e];
  } else if (kEdge == kWhole || (row < g.m && column < g.n)) {
    writeFour(to, by, four);
  }
}

// Each slice writes its sums to shared memory, and sumSlices adds them, four at a time.
template <class T>
__device__ void shareSums(float alpha, const float (&sum)[T::kOutM][T::kOutN], const Place<T>& at, float* shared) {
  float* to = shared + (at.slice * T::kM + at.row) * T::kN + at.column;
  __syncthreads();  // what lies there may still be read
  for (int i = 0; i < T::kOutM; ++i)
    for (int j = 0; j < T::kOutN; j += 4) writeFour(to + T::rowOf(i) * T::kN + j * T::kLanesN, alpha, &sum[i][j]);
  __syncthreads();
}

template <class T>
__device__ void sumSlices(float (&total)[4], const float* shared, int i) {
  readWide(total, shared + i, 4);
  for (int slice = 1; slice < T::kSlices; ++slice) {
    float four[4];
    readWide(four, shared + slice * T::kM * T::kN + i, 4);
    for (int e = 0; e < 4; ++e) total[e] += four[e];
  }
}

template <class T, Edge kEdge>
__device__ void storeShared(const Gemm& g, int i, const float (&four)[4]) {
  storeFour<kEdge>(g, blockIdx.y * T::kM + i / T::kN, blockIdx.x * T::kN + i % T::kN, 1, four);
}

// Outputs into C. The multiplication by alpha keeps the sums out of the aligned quads of registers
// that a float4 store of them would force: there sum[i][j] and b[j] share a bank, and an FMA runs at
// half rate.
template <class T, Edge kEdge>
__device__ void storeTile(const Gemm& g, const float (&sum)[T::kOutM][T::kOutN], const Place<T>& at, float* shared) {
  if constexpr (T::kSlices == 1) {
    const int row = blockIdx.y * T::kM + at.row;
    const int column = blockIdx.x * T::kN + at.column;
    for (int i = 0; i < T::kOutM; ++i)
      for (int j = 0; j < T::kOutN; j += 4)
        storeFour<kEdge>(g, row + T::rowOf(i), column + j * T::kLanesN, g.alpha, &sum[i][j]);
  } else {
    shareSums<T>(g.alpha, sum, at, shared);
    for (int i = 4 * threadIdx.x; i < T::kM * T::kN; i += 4 * T::kThreads) {
      float four[4];
      sumSlices<T>(four, shared, i);
      storeShared<T, kEdge>(g, i, four);
    }
  }
}

// ---- Rungs 7 and up

using SingleTile = Tile<128, 128, 8, 8, 1, 1>;
using DoubleTile = Tile<128, 128, 8, 8, 1, 2>;
using SlicedTile = Tile<64, 64, 32, 8, 4, 2>;
using WideTile = Tile<128, 256, 8, 16, 1, 2>;
using AheadTile = Tile<64, 64, 32, 8, 4, 3>;
using ScalarTile = Tile<128, 128, 16, 8, 1, 3>;

// Rung 7, conflict-free lanes: warps own 32 x 64 outputs and read 96 values a step where rung 6's
// read 144, lanes share loads in pairs, A's stores do not collide. Predicted x 1.3.
// Rung 8, double buffers: rung 7 waits a memory latency for every tile, whose arithmetic takes 1024
// clocks of an SM's FMA lanes. A latency of 600 clocks was assumed, not measured; the SM's second
// block hides half of it. Predicted x 1.2.
// Rung 9, slices of k: at 1024, 128 x 128 tiles are 64 blocks for 132 SMs; 64 x 64 are 256, and
// four slices give each 8 warps. Predicted x 2 at 1024, x 0.9 from 2048 on (less reuse). Here ends
// what sm_75 can do.
// Rung 10, 8 x 16 outputs, cp.async for B: a scheduler issues one instruction a clock, and 8 x 8
// outputs spend 4 loads on 64 FMAs, at most 94 %; 8 x 16 spend 6 on 128, 95.5 %. (On a T4 an FMA
// takes two clocks: 8 x 8 suffices.) Predicted x 1.04 from 2048.
// Rung 11, two tiles ahead, all by cp.async, where few warps hide latency. Predicted x 1.05 to 1024.
// Edge rungs: any m, n, k >= 1, leading dimension, alignment. Predicted price 2 %, scalars 8 %.
template <class T, Edge kEdge, bool kAsyncA, bool kAsyncB>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) matmulTiled(Gemm g) {
  extern __shared__ float4 dynamicShared[];
  float* shared = reinterpret_cast<float*>(dynamicShared);
  const Place<T> at;
  Feed<T, kEdge, kAsyncA, kAsyncB> feed(g, shared, 0, g.k);
  float sum[T::kOutM][T::kOutN] = {};
  multiplyTiles<T>(feed, at, shared, (g.k + T::kK - 1) / T::kK, sum);
  storeTile<T, kEdge>(g, sum, at, shared);
}

// Rung 12, thread-block clusters (sm_90): at 512 even 64 x 64 tiles are only 64 blocks. Here two
// blocks share a tile, each takes half of k and sends half a tile of sums into the other's shared
// memory. Predicted x 2 at 512.
constexpr int kCluster = 2;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER __cluster_dims__(1, 1, kCluster)
#else
#define CLUSTER
#endif

template <class T>
__global__ void CLUSTER __launch_bounds__(T::kThreads, 1) matmulCluster([[maybe_unused]] Gemm g) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ float4 dynamicShared[];
  float* shared = reinterpret_cast<float*>(dynamicShared);
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int mine = blockIdx.z;
  constexpr int kHalf = T::kM * T::kN / kCluster;
  __shared__ __align__(16) float inbox[kHalf];
  float* outbox = cluster.map_shared_rank(inbox, 1 - mine);
  cluster.barrier_arrive();
  const Place<T> at;
  const int depth = g.k / kCluster;
  Feed<T, kWhole, true, true> feed(g, shared, mine * depth, (mine + 1) * depth);
  float sum[T::kOutM][T::kOutN] = {}, four[4], more[4];
  multiplyTiles<T>(feed, at, shared, depth / T::kK, sum);
  shareSums<T>(g.alpha, sum, at, shared);
  cluster.barrier_wait();  // by now the other block has started
  for (int i = 4 * threadIdx.x; i < kHalf; i += 4 * T::kThreads) {
    sumSlices<T>(four, shared, (1 - mine) * kHalf + i);
    writeFour(outbox + i, 1, four);
  }
  cluster.sync();
  for (int i = 4 * threadIdx.x; i < kHalf; i += 4 * T::kThreads) {
    sumSlices<T>(four, shared, mine * kHalf + i);
    readWide(more, inbox + i, 4);
    for (int e = 0; e < 4; ++e) four[e] += more[e];
    storeShared<T, kWhole>(g, mine * kHalf + i, four);
  }
#endif
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

// The GPU that was opened, and the code that was loaded for it.
struct Device {
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;  // CUDA versions: supported, built with
  double maxClockMhz = 0;  // the highest clock of the SMs, which no measured rate may exceed
  LoadedCode code;
};

constexpr int kOldestCard = 75;  // Turing: the T4, for which the lessons are written

// FP32 lanes of an SM, which is FMAs per clock, by compute capability (CUDA C++ Programming Guide, throughput of native
// arithmetic instructions): 64 on Volta, Turing and GA100 (sm_80), 128 on every card since sm_86.
inline int fp32LanesPerSm(int capability) { return capability <= 80 ? 64 : 128; }

// The name that -arch takes. On Hopper the tensor cores reach their peak with the instructions of sm_90a alone.
inline string archFlag(int capability) { return "sm_" + to_string(capability) + (capability == 90 ? "a" : ""); }

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

// Red zones: every buffer lies between two stretches of memory that no kernel may write. `Report::check` compares
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
  guardedBuffers[start] = bytes;
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
  if (kRedZone == 0) return damage;
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
  // `record` is what its JSON lines call themselves. `shown`: in the text too.
  Table(Report& report, const char* record, vector<Column<Row>> columns, bool shown = true)
      : report_(report), record_(record), columns_(std::move(columns)), shown_(shown && report.text()) {
    string line;
    for (const Column<Row>& column : columns_)
      if (column.width != 0) append(line, column, heading(column));
    print(line);
  }

  void add(const Row& row) const {
    string line;
    JsonLine json(record_);
    for (const Column<Row>& column : columns_) {
      const Value value = column.value(row);
      if (column.width != 0) append(line, column, shownAs(value, column.decimals));
      if (*column.key != '\0') json.add(column.key, value);
    }
    print(line);
    report_.line(json);
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
    failed_ += !check.ok();
    return !check.ok();
  }

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
  int failed_ = 0;
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

#include <memory>
#include <numeric>
#include <thread>

constexpr Program kProgram = {44, "matmul_registers", "Day 44: SGEMM rung by rung, from shared tiles to above cuBLAS."};

// ---- The table

constexpr double kFastRate = 0.75;  // see Rung

struct Rung {
  const char *variant, *symbol;
  int needs = 0;  // the compute capability that its code must be compiled for; 0: any
  Edge edge = kScalars;  // which shapes it takes
  int tileM = 1, tileN = 1, tileK = 1, blocksPerTile = 1, threads = 0, sharedBytes = 0;
  double loads = 0;  // from shared memory, per FMA
  double rate = 0;  // share of the FMA ceiling in full waves on an H200; 0: never chosen
  void (*kernel)(Gemm) = nullptr;  // the front door and cuBLAS have none
  std::map<int, double> errors = {};  // of uniform inputs, by m
};

template <class T>
Rung rung(const char* variant, const char* symbol, int needs, double rate, void (*kernel)(Gemm), Edge edge = kWhole,
    int blocksPerTile = 1) {
  return {variant, symbol, needs, edge, T::kM, T::kN, T::kK * blocksPerTile, blocksPerTile, T::kThreads,
      T::kSharedBytes, 1.0 * (T::kOutM + T::kOutN) / T::kWide / (T::kOutM * T::kOutN), rate, kernel};
}
template <class T, Edge kEdge, bool kAsyncA, bool kAsyncB>
Rung tiled(const char* variant, int needs, double rate) {
  return rung<T>(variant, "matmulTiled", needs, rate, matmulTiled<T, kEdge, kAsyncA, kAsyncB>, kEdge);
}

vector<Rung> makeRows() {
  return {
      rung<Rung3>("3 shared tile", "matmulSharedTiled", 0, 0, matmulSharedTiled),
      rung<Rung4>("4 column of 8", "matmulRegTile1d", 0, 0, matmulRegTile1d),
      rung<Rung5>("5 square of 8 x 8", "matmulRegTile2d", 0, 0, matmulRegTile2d),
      rung<Rung6>("6 float4", "matmulRegTile2dVec4", 0, 0, matmulRegTile2dVec4),
      tiled<SingleTile, kWhole, false, false>("7 warp tiles", 0, 0),
      tiled<DoubleTile, kWhole, false, false>("8 double buffers", 0, 0.76),
      tiled<SlicedTile, kWhole, false, false>("9 slices of k", 0, 0.66),
      tiled<WideTile, kWhole, false, true>("10 8 x 16, cp.async", 80, 0.8),
      tiled<AheadTile, kWhole, true, true>("11 two tiles ahead", 80, 0.68),
      rung<AheadTile>("12 clusters", "matmulCluster", 90, 0.6, matmulCluster<AheadTile>, kWhole, kCluster),
      tiled<WideTile, kVectors, false, true>("edges, float4", 0, 0.77),
      tiled<ScalarTile, kScalars, true, true>("scalars, large", 0, 0.7),
      tiled<SlicedTile, kScalars, true, true>("scalars, small", 0, 0.55),
      {"sgemm()", "sgemm"},
      {"cuBLAS", "cublasGemmEx"},
      {"cuBLAS, pedantic", "cublasGemmEx"},
  };
}

struct Lab {
  Mode mode;
  bool json;
  LoadedCode code;
  int sms;
  double maxClockMhz;
  cudaStream_t stream;
  cublasHandle_t cublas;
  vector<Rung> rows;
  string notFp32 = "";  // the environment variable, if one is set, that lets cuBLAS compute in another format
  double peak = HUGE_VAL;  // the FMA ceiling, GFLOP/s
};

// The code decides and not the card: what the driver translates for a newer card still lacks what that card adds.
bool runsOn(const Rung& row, const Lab& lab) { return lab.code.offers(row.needs); }
bool cardCould(const Rung& row, const Lab& lab) { return row.needs <= lab.code.card; }

// Names the rungs that this card could run and the loaded code cannot, and the flag that gives them; empty if none.
string leftOut(const Lab& lab) {
  string rungs;
  for (const Rung& row : lab.rows)
    if (!runsOn(row, lab) && cardCould(row, lab))
      rungs += string(rungs.empty() ? "" : "; ") + row.variant + " (needs code for sm_" + to_string(row.needs) + ")";
  if (rungs.empty()) return "";
  return "Left out, though this card could run them: " + rungs + ". Build with -arch=" + archFlag(lab.code.card) +
      " to have them; sgemm() picks among the others.\n";
}

bool isAligned(const Gemm& g) {
  return (uintptr_t(g.a) | uintptr_t(g.b) | uintptr_t(g.c)) % 16 == 0 && (g.lda | g.ldb | g.ldc | g.k | g.n) % 4 == 0;
}
bool fits(const Rung& row, const Gemm& g) {
  const bool whole = g.m % row.tileM == 0 && g.n % row.tileN == 0 && g.k % row.tileK == 0;
  return row.edge == kScalars || (isAligned(g) && (row.edge == kVectors || whole));
}
dim3 gridOf(const Rung& row, const Gemm& g) {
  return dim3((g.n - 1) / row.tileN + 1, (g.m - 1) / row.tileM + 1, row.blocksPerTile);
}
// The share of SMs with work, over the run: the last wave is not full, tiles hang over the edges.
double waveShare(const Rung& row, const Lab& lab, const Gemm& g) {
  const dim3 grid = gridOf(row, g);
  const double perSm = 1.0 * grid.x * grid.y * grid.z / lab.sms;
  const double inside = 1.0 * g.m / (grid.y * row.tileM) * g.n / (grid.x * row.tileN);
  return inside * perSm / std::ceil(perSm);
}

// The rule of the front door: of the rungs that run here and take the shape, the one with the
// largest rate x share of SMs with work.
double score(const Rung& row, const Lab& lab, const Gemm& g) {
  return runsOn(row, lab) && fits(row, g) ? row.rate * waveShare(row, lab, g) : 0;
}
const Rung& choose(const Lab& lab, const Gemm& g) {
  const auto less = [&](const Rung& x, const Rung& y) { return score(x, lab, g) < score(y, lab, g); };
  return *std::max_element(lab.rows.begin(), lab.rows.end(), less);
}
void launch(const Rung& row, const Gemm& g, cudaStream_t stream) {
  row.kernel<<<gridOf(row, g), row.threads, row.sharedBytes, stream>>>(g);
}

// The front door, sgemm({m, n, k, a, lda, b, ldb, c, ldc, alpha}, lab): any shape, any card, whatever the code was
// compiled for.
void sgemm(const Gemm& g, const Lab& lab) { launch(choose(lab, g), g, lab.stream); }

void checkCublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Stop{kExitFailed, string(call) + " failed with cuBLAS status " + to_string(status)};
}
struct Cublas {
  Cublas() { checkCublas(cublasCreate(&handle), "cublasCreate"); }
  ~Cublas() { releaseFailed |= cublasDestroy(handle) != CUBLAS_STATUS_SUCCESS; }
  cublasHandle_t handle = nullptr;
};

// One product by any row. cuBLAS is column-major, where our matrices read as their transposes: it
// is asked for C^T = B^T A^T.
bool isDoor(const Rung& row) { return row.symbol == string("sgemm"); }
void multiply(const Rung& row, const Gemm& g, const Lab& lab) {
  if (row.kernel != nullptr) return launch(row, g, lab.stream);
  if (isDoor(row)) return sgemm(g, lab);
  const bool pedantic = &row == &lab.rows.back();
  const float zero = 0;
  checkCublas(cublasGemmEx(lab.cublas, CUBLAS_OP_N, CUBLAS_OP_N, g.n, g.m, g.k, &g.alpha, g.b, CUDA_R_32F, g.ldb, g.a,
                  CUDA_R_32F, g.lda, &zero, g.c, CUDA_R_32F, g.ldc,
                  pedantic ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

// ---- Inputs, references and checks

// Under compute-sanitizer kernels are 50 to 100 times slower. Build for it with the card's own -arch and with
// -DCUDA_DAYS_SANITIZE: the short list of shapes passes every barrier and every guard.
//   race:  compute-sanitizer --tool racecheck --kernel-name kernel_substring=matmul ./matmul_registers --check

constexpr int kLargestOnCpu = 1024;  // half of it for uniform inputs

constexpr int kAllUpTo = 2048;  // uniform inputs: every element against double; above,
constexpr int kRandomRows = 4;  // so many whole rows, and the fast rungs alone

// Integers: products in [-6, 6], so every sum is exact in float, in any order. A repeats after 7
// rows, so the first 7 rows of C hold all of it, exactly, at any size. No tile or pitch is a multiple
// of 7 or 5: what comes from a wrong place has another value.
float integerA(int row, int column) { return float((row + 2 * column) % 7 - 3); }
float integerB(int row, int column) { return float((3 * row + column) % 5 - 2); }

// Uniform in [-1, 1): shows rounding, and is timed (integers draw less power).
template <int kSeed>
float uniform(int row, int column) {
  uint64_t bits = ((uint64_t(kSeed) << 58) + (uint64_t(row) << 29) + column + 1) * 0x9E3779B97F4A7C15u;
  bits = (bits ^ (bits >> 32)) * 0xBF58476D1CE4E5B9u;
  return float((bits ^ (bits >> 31)) >> 40) / 8388608.0f - 1.0f;
}

// In any order a sum is within eps k sum |a||b| <= eps k k of the exact one. Random errors do not
// line up: beyond k = 16 eps 16 k is allowed, too little for TF32, off by 2^-11 per product.
double allowedError(int k) { return std::ldexp(std::min(k, 16) * k, -24); }

// work(i) for i in [0, count), on all cores.
template <class Work>
void inParallel(int count, Work work) {
  const int cores = std::thread::hardware_concurrency() | 1;  // 0 if unknown
  vector<std::thread> threads;
  for (int core = 0; core < cores; ++core)
    threads.emplace_back([=] {
      for (int i = core; i < count; i += cores) work(i);
    });
  for (std::thread& thread : threads) thread.join();
}

using Value = float (*)(int row, int column);
void fillRows(float* first, int height, int width, int ld, Value value) {
  inParallel(height, [=](int row) {
    for (int column = 0; column < width; ++column) first[rows(row, ld) + column] = value(row, column);
  });
}

// `gap` floats of NaN, which nobody may use, lie between rows, and before the first unless that would misalign all.
struct Matrix {
  int height, width, gap;
  int ld = width + gap;
  int offset = gap % 4;
  PinnedBuffer<float> host{rows(height, ld) + offset};
  DeviceBuffer<float> device{host.count()};

  float* at(int row) { return host + offset + rows(row, ld); }
  void fill(Value value, cudaStream_t stream) {
    if (gap > 0) std::fill_n(&host[0], host.count(), std::nanf(""));
    fillRows(at(0), height, width, ld, value);
    upload(device, host, device.bytes(), stream);
  }
};

bool takesPart(const Rung& row, const Lab& lab, const Gemm& g) {
  return runsOn(row, lab) && fits(row, g) &&
      (g.m <= kAllUpTo || row.rate >= kFastRate || (!row.kernel && &row != &lab.rows.back()));
}

// Checks every row that takes the shape, with integers, then with uniform numbers. C is poisoned
// before each: what is not written fails, and what is written outside.
int checkShape(Lab& lab, const Shape& s, int gap) {
  Matrix a{s.m, s.k, gap}, b{s.k, s.n, gap}, c{s.m, s.n, gap};
  const float alpha = gap > 0 ? -2 : 1;  // exact in any order, and a rung that forgets it fails
  const Gemm g = {
      s.m, s.n, s.k, a.device + a.offset, a.ld, b.device + b.offset, b.ld, c.device + c.offset, c.ld, alpha};
  const size_t columns = s.n;
  const bool profiled = lab.mode == Mode::kProfile;  // launches alone
  int failed = 0;
  for (const bool integers : {true, false}) {
    if (!integers && (profiled || (kOnCpu && s.m > kLargestOnCpu / 2))) continue;
    const char* layout = gap == 0 ? "" : isAligned(g) ? " aligned" : " gaps";
    const string size =
        to_string(s.m) + "x" + to_string(s.n) + "x" + to_string(s.k) + (integers ? " integer" : " uniform") + layout;
    a.fill(integers ? integerA : uniform<1>, lab.stream);
    b.fill(integers ? integerB : uniform<2>, lab.stream);
    const bool all = integers || s.m <= kAllUpTo;
    const int looked = all ? s.m : kRandomRows;  // rows of C
    const auto rowAt = [&](int i) { return all ? i : int((uniform<3>(i, 0) + 1) / 2 * s.m); };
    vector<vector<double>> want(profiled ? 0 : integers ? std::min(s.m, 7) : looked);
    inParallel(int(want.size()), [&](int i) {
      want[i].assign(columns, 0);
      for (int p = 0; p < s.k; ++p)
        for (size_t column = 0; column < columns; ++column)
          want[i][column] += double(a.at(rowAt(i))[p]) * b.at(p)[column];
    });
    const bool copied = gap > 0 || !all;
    vector<float> got(copied ? looked * columns : 0);
    for (Rung& row : lab.rows) {
      if (!takesPart(row, lab, g)) continue;
      poison(c.device, c.device.bytes(), lab.stream);
      multiply(row, g, lab);
      finish(row.symbol, lab.stream);
      if (profiled) continue;
      download(c.host, c.device, c.device.bytes(), lab.stream);
      for (int i = 0; copied && i < looked; ++i) {
        std::copy_n(c.at(rowAt(i)), columns, &got[i * columns]);
        if (gap > 0) std::memset(c.at(rowAt(i)), 0xFF, 4 * columns);
      }
      const auto expected = [&](size_t i, size_t column) { return alpha * want[integers ? i % 7 : i][column]; };
      const double allowed = integers ? 0 : std::fabs(alpha) * allowedError(s.k);
      Verdict verdict = compare(copied ? got.data() : &c.host[0], looked, columns, 0, allowed, expected);
      if (!integers && gap == 0) row.errors[s.m] = verdict.worst * allowed / (std::sqrt(s.k) / 3);
      const auto* bytes = reinterpret_cast<const unsigned char*>(&c.host[0]);
      if (gap > 0 && std::count(bytes, bytes + c.device.bytes(), 0xFF) != std::ptrdiff_t(c.device.bytes())) {
        verdict.message += " (wrote outside of C)";
        ++verdict.wrong;
      }
      failed += reportCheck(kProgram.day, row.variant, row.symbol, size, verdict, lab.mode, lab.json);
    }
  }
  return failed;
}

// ---- Timing

constexpr double kBudgetSeconds = 15;  // for all sizes, each of which is taken to cost
constexpr double kProductsPerSize = 700;  // so many products at the FMA ceiling
constexpr int kFewSamples = 5;  // where kSamples would cost too much

constexpr double kOverL2 = 2;  // timed buffers rotate through this much, so none waits in L2
constexpr int kGraphUpTo = 512;  // timed in replays of a graph of
constexpr int kGraphLaunches = 100;  // launches, since launching takes as long as the work

double gigaPerSecond(double amount, double ms) { return amount / ms * 1e-6; }

// Volta, Turing and GA100 (sm_80) have 64 FP32 lanes an SM, and every card since sm_86 has 128.
int fp32LanesPerSm(int card) { return card <= 80 ? 64 : 128; }

// What all lanes of the card can do at a clock, in GFLOP/s.
double lanesAt(double megahertz, const Lab& lab) { return 2e-3 * megahertz * fp32LanesPerSm(lab.code.card) * lab.sms; }

// Checks fmaPeak against the CPU, then times it. Returns 1 for a failure.
int measureCeiling(Lab& lab, int blocks) {
  const DeviceBuffer<float> out(size_t(blocks) * kPeakBlock);
  const DeviceBuffer<ClockSpan> onDevice(1);
  const Launch launchPeak = [&](cudaStream_t s) {
    fmaPeak<<<blocks, kPeakBlock, 0, s>>>(out, onDevice, kPeakA, kPeakB);
  };
  const Rung row = {"fma-peak", "fmaPeak"};
  poison(out, out.bytes(), lab.stream);
  launchPeak(lab.stream);
  finish(row.symbol, lab.stream);
  if (lab.mode == Mode::kProfile) return 0;
  const PinnedBuffer<float> got(out.count());
  download(got, out, out.bytes(), lab.stream);
  float chain[kChains];
  for (int c = 0; c < kChains; ++c) {
    chain[c] = float(c);
    for (int step = 0; step < kPeakFmas / kChains; ++step) chain[c] = fmaf(chain[c], kPeakA, kPeakB);
  }
  const auto expected = [&](size_t, size_t thread) { return std::accumulate(chain, chain + kChains, float(thread)); };
  const Verdict verdict = compare(&got[0], 1, got.count(), 0, 0, expected);
  if (reportCheck(kProgram.day, row.variant, row.symbol, to_string(got.count()), verdict, lab.mode, lab.json)) return 1;
  if (lab.mode == Mode::kCheck) return 0;
  const Timing timing = measure(lab.stream, launchPeak);
  const PinnedBuffer<ClockSpan> spans(1);
  download(spans, onDevice, onDevice.bytes(), lab.stream);
  const ClockSpan span = spans[0];
  const double flop = 2.0 * kPeakFmas * got.count();
  const double theory = lanesAt(span.megahertz(), lab);
  lab.peak = gigaPerSecond(flop, timing.ms);
  requirePossible(row.symbol, lab.peak, theory, "GFLOP/s");
  lab.maxClockMhz = std::max(lab.maxClockMhz, span.megahertz());  // some cards run faster than they promise
  if (lab.json) {
    JsonLine json("ceiling", kProgram.day, row.variant, row.symbol);
    json.timing(timing).integer("flop", int64_t(flop)).integer("bytes", 0).metric("gflops", lab.peak, "GFLOP/s");
    json.number("clock_mhz", span.megahertz()).number("theory", theory).print();
  } else {
    printf("\nFMA ceiling: %.0f GFLOP/s, %.1f %% of all lanes at the measured %.0f MHz\n", lab.peak,
        100 * lab.peak / theory, span.megahertz());
  }
  return 0;
}

// The model: what SMs idle in the last wave and shared loads leave of the FMA ceiling. For a warp's
// FMA each of four schedulers needs 128 / lanes clocks and 1 + loads issue slots; all share one
// memory pipe, 1 clock for a load, 2 for a float4. It takes the loads as the source has them: nvcc joins loads of rungs
// 3 to 5, and bank conflicts of rungs 5 and 6 are not in it.
double modelShare(const Rung& row, const Lab& lab, const Gemm& g) {
  const double fma = 128.0 / fp32LanesPerSm(lab.code.card);
  const double pipe = 4 * row.loads * (row.loads < 0.1 ? 2 : 1);
  return waveShare(row, lab, g) * fma / std::max({fma, 1 + row.loads, pipe});
}

Launch replay(cudaStream_t stream, const Launch& launch) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t whole = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < kGraphLaunches; ++i) launch(stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  const cudaError_t status = cudaGraphInstantiateWithFlags(&whole, graph, 0);
  release(cudaGraphDestroy(graph), "cudaGraphDestroy");
  CUDA_CHECK(status);
  const auto destroy = [](cudaGraphExec_t it) { release(cudaGraphExecDestroy(it), "cudaGraphExecDestroy"); };
  const std::shared_ptr<void> owner(whole, destroy);
  return [owner, whole](cudaStream_t s) { CUDA_CHECK(cudaGraphLaunch(whole, s)); };
}

// No FP32 product is faster than all lanes at the card's highest clock: a row above that ends the run. Only cuBLAS may
// be, where the user has it compute in another format; then the text that is returned says so.
string explainRate(const Rung& row, const Gemm& g, double gflops, const Lab& lab) {
  const double bound = lanesAt(lab.maxClockMhz, lab);
  if (row.kernel == nullptr && !isDoor(row) && !lab.notFp32.empty())
    return gflops > bound ? "above all FP32 lanes: " + lab.notFp32 + " is set" : "";
  const string what = string(row.variant) + " at " + to_string(g.m) + "x" + to_string(g.n) + "x" + to_string(g.k);
  requirePossible(what, gflops, bound, "GFLOP/s");
  return "";
}

// Prints a row's time and cuBLAS's, sampled in turn. `best` is the rate of the best rung above.
void printRow(const Lab& lab, const Rung& row, const Gemm& g, bool inLoop, const vector<Timing>& both, double& best) {
  const Timing &timing = both[0], &cublas = both[1];
  const Rung& ran = isDoor(row) ? choose(lab, g) : row;
  const bool modelled = ran.loads > 0;
  const double flop = 2.0 * g.m * g.n * g.k, gflops = gigaPerSecond(flop, timing.ms);
  const double share = 100 * cublas.ms / timing.ms, fma = 100 * gflops / lab.peak;
  const double model = 100 * modelShare(ran, lab, g), error = row.errors.at(g.m);
  // What blocks ask global memory for, in floats per output.
  const double floats = 1.0 * g.k / ran.tileN + 1.0 * g.k / ran.tileM + 1, intensity = g.k / (2 * floats);
  explainRate(lab.rows.end()[-2], g, gigaPerSecond(flop, cublas.ms), lab);  // the row's partner must be possible too
  string note;
  for (const string& part :
      {string(isDoor(row) ? ran.variant : ""), string(inLoop ? "launch loop" : ""), explainRate(row, g, gflops, lab)})
    if (!part.empty()) note += (note.empty() ? "" : ", ") + part;
  if (lab.json) {
    JsonLine json("gemm", kProgram.day, row.variant, row.symbol);
    json.integer("m", g.m).integer("n", g.n).integer("k", g.k).timing(timing);
    json.integer("flop", int64_t(flop)).metric("gflops", gflops, "GFLOP/s");
    json.number("cublas_ms", cublas.ms).number("cublas_percent", share).number("fma_percent", fma);
    if (modelled) json.number("model_percent", model).number("intensity", intensity).number("loads_per_fma", ran.loads);
    json.number("error", error);
    if (!note.empty()) json.text("note", note);
    return json.print();
  }
  printf("%-19s %9.4f %5.1f %% %8.0f %5.1f %% %4.1f %%", row.variant, timing.ms, timing.spreadPercent(), gflops, share,
      fma);
  if (modelled) printf(" %5.1f %% %8.1f %7.1f %6.3f", model, floats, intensity, ran.loads);
  printf("%*.1e", modelled ? 9 : 41, error);
  if (row.kernel != nullptr && best > 0) printf(" x %4.2f", gflops / best);
  if (row.edge == kWhole) best = std::max(best, gflops);
  printf("%s%s\n", note.empty() ? "" : "  ", note.c_str());
  flushOutput();
}

// Times the rows that take the shape, each strictly in turn with cuBLAS.
void timeShape(const Lab& lab, int l2Bytes, const Shape& s, int samples) {
  const PinnedBuffer<float> hostA(rows(s.m, s.k)), hostB(rows(s.k, s.n));
  fillRows(hostA, s.m, s.k, s.k, uniform<1>);
  fillRows(hostB, s.k, s.n, s.n, uniform<2>);
  vector<DeviceBuffer<float>> a, b, c;  // every set holds the same numbers
  for (double bytes = 0; bytes < kOverL2 * l2Bytes; bytes += c.back().bytes()) {
    a.emplace_back(hostA.count());
    b.emplace_back(hostB.count());
    c.emplace_back(rows(s.m, s.n));
    upload(a.back(), hostA, a.back().bytes(), lab.stream);
    upload(b.back(), hostB, b.back().bytes(), lab.stream);
  }
  size_t set = 0;
  const auto next = [&] {
    set = (set + 1) % a.size();
    return Gemm{s.m, s.n, s.k, a[set], s.k, b[set], s.n, c[set], s.n, 1};
  };
  if (!lab.json)
    printf("\nm = %d, n = %d, k = %d\n%-19s %9s %7s %8s %7s %6s %7s %8s %7s %6s %8s %6s\n", s.m, s.n, s.k, "rung", "ms",
        "spread", "GFLOP/s", "cuBLAS", "FMA", "model", "floats/C", "FLOP/B", "loads", "error", "gain");
  const Gemm g = next();
  const bool replayed = s.m <= kGraphUpTo;
  const Launch theirs = [&](cudaStream_t) { multiply(lab.rows.end()[-2], next(), lab); };
  double best = 0;
  for (const Rung& row : lab.rows) {
    if (!takesPart(row, lab, g)) continue;
    const Launch ours = [&](cudaStream_t) { multiply(row, next(), lab); };
    if (replayed) {
      const vector<Launch> pair = {replay(lab.stream, ours), replay(lab.stream, theirs)};
      const auto both = measureInTurn(lab.stream, pair, samples, kGraphLaunches);
      printRow(lab, row, g, false, both, best);
    }
    if (!replayed || row.kernel == nullptr) {
      const auto both = measureInTurn(lab.stream, {ours, theirs}, samples);
      printRow(lab, row, g, replayed, both, best);
    }
    CUDA_CHECK(cudaGetLastError());
  }
}

// ---- Report

// Prints what the compiler made of the rungs, and lets them have their shared memory. Local memory is a thread's stack
// and what the compiler spilled from registers, together.
void prepare(const Lab& lab, int threadsPerSm) {
  for (const Rung& row : lab.rows) {
    if (row.kernel == nullptr) continue;
    cudaFuncAttributes is = {};
    int blocks = 0;
    if (runsOn(row, lab)) {
      CUDA_CHECK(cudaFuncSetAttribute(row.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row.sharedBytes));
      CUDA_CHECK(cudaFuncGetAttributes(&is, row.kernel));
      CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, row.kernel, row.threads, row.sharedBytes));
    }
    if (lab.json) continue;
    printf("%-19s %-19s %4d threads ", row.variant, row.symbol, row.threads);
    if (runsOn(row, lab))
      printf("%4d registers %zu B local %6zu B shared %2d blocks/SM %3.0f %%\n", is.numRegs, is.localSizeBytes,
          is.sharedSizeBytes + row.sharedBytes, blocks, 100.0 * blocks * row.threads / threadsPerSm);
    else
      printf("needs sm_%d%s\n", row.needs, cardCould(row, lab) ? " code" : "");
  }
  if (!lab.json) printf("%s", leftOut(lab).c_str());
}

// ---- The day

int runDay(const Options& options) {
  const bool table = options.mode == Mode::kTable;
  const Device device = openDevice(options.device, matmulSharedTiled);
  const cudaDeviceProp& gpu = device.properties;
  const int largest = kOnCpu ? kLargestOnCpu : *std::rbegin(kSizes);
  requireDeviceMemory(size_t(6 * 4) * largest * largest);
  const Stream stream;
  const Cublas cublas;
  checkCublas(cublasSetStream(cublas.handle, stream), "cublasSetStream");
  // The CPU build has asynchronous copies, as code for sm_80, and no clusters, whatever card it stands in for.
  const LoadedCode code = kOnCpu && !device.code.translated() ? LoadedCode{80, 80, 80} : device.code;
  Lab lab = {
      options.mode, options.json, code, gpu.multiProcessorCount, device.maxClockMhz, stream, cublas.handle, makeRows()};
  int version = 0;
  checkCublas(cublasGetVersion(cublas.handle, &version), "cublasGetVersion");
  if (lab.json) {
    printRunRecord(kProgram, device);
  } else {
    printBanner(device);
    printf("cuBLAS %d: cublasGemmEx, CUBLAS_COMPUTE_32F, as C^T = B^T A^T\n\n", version);
  }
  for (const char* name : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"}) {
    if (std::getenv(name) == nullptr) continue;
    fprintf(stderr, "warning: %s is set, so cuBLAS may not compute in FP32\n", name);
    lab.notFp32 = name;
  }
  prepare(lab, gpu.maxThreadsPerMultiProcessor);

  int failed = measureCeiling(lab, kOnCpu ? 1 : lab.sms * (gpu.maxThreadsPerMultiProcessor / kPeakBlock));
  if (lab.mode == Mode::kProfile) return checkShape(lab, {2048, 2048, 2048}, 0);

  vector<std::pair<Shape, int>> shapes;  // and how many samples
  string plan;
  double left = kBudgetSeconds;
  for (const int n : kSizes) {
    double cost = kProductsPerSize * 2e-9 * n * n * n / lab.peak;
    const int samples = cost <= left ? kSamples : kFewSamples;
    cost *= samples / double(kSamples);
    const bool runs = cost <= left && n <= largest;
    plan += " " + to_string(n) + (!runs ? " left out" : table ? " x " + to_string(samples) : "");
    if (runs) shapes.push_back({{n, n, n}, samples});
    if (runs) left -= cost;
  }
  if (shapes.size() == std::size(kSizes)) shapes.push_back({kTimedRagged, kSamples});
  if (!lab.json) printf("Sizes (x samples) estimated for %.0f s:%s\n", kBudgetSeconds, plan.c_str());
  for (const Shape& s : kRagged)  // nothing aligned; then rows with gaps
    failed += checkShape(lab, s, 3) + checkShape(lab, s, 4);
  for (const auto& [shape, samples] : shapes) failed += checkShape(lab, shape, 0);
  if (failed > 0) {
    fprintf(stderr, "%d checks FAILED, so no products are timed\n", failed);
    return kExitFailed;
  }
  if (!lab.json) printf("Every path matches the CPU reference, at every size and ragged shape.\n");
  if (!table) return kExitOk;

  for (const auto& [shape, samples] : shapes) timeShape(lab, gpu.l2CacheSize, shape, samples);
  if (!lab.json)
    printf(
        "\ncuBLAS: share of its rate, sampled in turn (%d: in graph replay). model: what the last wave and shared "
        "loads leave\n"
        "of the FMA ceiling. error: largest of C over its typical value, sqrt(k) / 3. gain: over the best rung "
        "above.\n",
        kGraphUpTo);
  return kExitOk;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
