// SPDX-License-Identifier: MIT
//
// Day 44: how close does a hand-written SGEMM come to cuBLAS?
//
// C = A B in FP32, row-major, as a ladder: a rung is one idea, its comment says what it should gain on an H200 and why,
// and what it gained (profile/h200/day44.txt). sgemm() picks the kernel for shape and card. No other format is tried.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o matmul_registers matmul_registers.cu -lcublas
//   run:   ./matmul_registers    (--help lists the rest)
//
// The kernels in the order of this file, and what each shows:
//   fmaPeak, fmaLoads0 to 6    the ceiling: FMAs on registers alone, then with shared loads beside them
//   1  matmulUncoalesced       one output a thread, a warp down a column; 2 matmulCoalesced: along a row
//   3  matmulSharedTiled       tiles in shared memory: two shared loads for an FMA
//   4  matmulRegTile1d         a column of 8 outputs: 9 loads for 8 FMAs
//   5  matmulRegTile2d         8 x 8 outputs: 16 loads for 64 FMAs, in the same banks; 6 matmulRegTile2dVec4: by float4
//   7  matmulWarpTiles         a warp's lanes placed so that no access meets a bank twice
//   8  matmulDoubleBuffered    the next tile on its way while this one is multiplied
//   9  matmulWideThreads       8 x 16 outputs a thread: fewer loads for an FMA
//   10 matmulBalanced          register banks, and a last wave that is cut along k
//   11 matmulSplitK            a block's warps share the inner dimension: small tiles; 12 matmulSmallTiles: smaller
//   13 matmulAsyncWide         rung 9 with B copied asynchronously (sm_80)
//   14 matmulTwoAhead          rung 11, all copied asynchronously, two tiles ahead (sm_80)
//   15 matmulCluster           two blocks share a tile, launches overlap (sm_90)
//   any shape: matmulGuardedVectors, packMatrix, matmulPacked, matmulGuardedSmall (13, 10, 11), matmulFewColumns

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

// ---- The FMA ceiling (day 30), and what shared loads leave of it

// Registers only, kChains independent chains a thread, one wave of blocks: 98 % of all lanes on an H200.
constexpr int kPeakBlock = 256, kChains = 8, kPeakFmas = 131072;
constexpr float kPeakA = 0.999999f, kPeakB = 0.001f;

__global__ void fmaPeak(float* out, ClockSpan* span, float a, float b) {
  constexpr int kUnroll = 1024;  // FMAs an iteration, so that the loop itself does not count
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

// Adds an outer product row by row: an element of A stays in the operand cache while B is stepped through. With a's and
// b's registers in aligned quads, as a float4 load puts them, b[j] is in bank j % 2; what sum[i][j] is stored with
// decides its bank (see writeSwapped).
template <int kRows, int kColumns>
__device__ void multiplyAddByRows(float (&sum)[kRows][kColumns], const float (&a)[kRows], const float (&b)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int step = 0; step < kColumns; ++step) {
      const int j = i % 2 == 0 ? step : kColumns - 1 - step;
      sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
}

// Stores four sums with the members of each pair swapped. A float4 store takes an aligned quad of registers, so this
// one puts sum[i][j] into bank 1 - j % 2, where its operand b[j] is not.
__device__ inline void writeSwapped(float* to, const float* four) {
  *reinterpret_cast<float4*>(to) = make_float4(four[1], four[0], four[3], four[2]);
}

// What a shared load costs beside FMAs: the loop of rung 10, 8 x 16 FMAs a step, with kLoads loads of 128 bits and
// nothing else. A load is one instruction, but with six of them beside 128 FMAs it takes the issue slots of two on an
// H200 (the rows fma-loads-* of profile/h200/day44.txt). These rows, and not a count, are what the column `model` goes
// by. The loop with four is no faster than the one with six: ptxas places its sums and operands less well.
constexpr int kBesideSteps = 4096, kBesideBody = 2, kBesideM = 8, kBesideN = 16, kBesideFmas = kBesideM * kBesideN;
constexpr int kBesideRows = kBesideBody * (kBesideM + kBesideN) / 4;

// A row of shared memory holds one value, so that a sum does not depend on the lane.
__host__ __device__ inline float besideValue(int row, float a) { return a * float(row % 7 - 3); }

template <int kLoads>
__device__ void multiplyBeside(float* out, ClockSpan* span, float a) {
  __shared__ __align__(16) float shared[kBesideRows][32];
  for (int i = threadIdx.x; i < kBesideRows * 32; i += kPeakBlock) shared[i / 32][i % 32] = besideValue(i / 32, a);
  __syncthreads();
  // Never true, which the compiler cannot know: it would take the loads out of the loop.
  const int advance = a > 1 ? 32 : 0;
  const float* from = &shared[0][threadIdx.x % 8 * 4];
  float sum[kBesideM][kBesideN] = {}, inA[2][kBesideM], inB[2][kBesideN];
  for (int set = 0; set < 2; ++set) {
    readWide(inA[set], from, 32);
    readWide(inB[set], from + kBesideM / 4 * 32, 32);
  }
  const ClockSpan begin = readClock();
#pragma unroll 1
  for (int done = 0; done < kBesideSteps; done += kBesideBody) {
#pragma unroll
    for (int step = 0; step < kBesideBody; ++step) {
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        float four[4];
        readWide(four, from + (step * kLoads + load) * 32, 4);
        for (int e = 0; e < 4; ++e) {
          const int i = 4 * load + e;
          (i < kBesideM ? inA[(step + 1) % 2][i] : inB[(step + 1) % 2][i - kBesideM]) = four[e];
        }
      }
      multiplyAddByRows(sum, inA[step % 2], inB[step % 2]);
    }
    from += advance;
  }
  const ClockSpan end = readClock();
  const int thread = blockIdx.x * kPeakBlock + threadIdx.x;
  if (thread == 0) *span = {end.cycles - begin.cycles, end.nanoseconds - begin.nanoseconds};
  // Never stored either, but for this store's sake the sums lie in the other bank than their operands of B.
  if (advance > 0)
    for (int i = 0; i < kBesideFmas; i += 4) writeSwapped(out + i, &sum[i / kBesideN][i % kBesideN]);
  float total = float(thread);
  for (int i = 0; i < kBesideM; ++i)
    for (int j = 0; j < kBesideN; ++j) total += sum[i][j];
  out[thread] = total;
}
__global__ void __launch_bounds__(kPeakBlock, 1) fmaLoads0(float* out, ClockSpan* span, float a, float) {
  multiplyBeside<0>(out, span, a);
}
__global__ void __launch_bounds__(kPeakBlock, 1) fmaLoads2(float* out, ClockSpan* span, float a, float) {
  multiplyBeside<2>(out, span, a);
}
__global__ void __launch_bounds__(kPeakBlock, 1) fmaLoads4(float* out, ClockSpan* span, float a, float) {
  multiplyBeside<4>(out, span, a);
}
__global__ void __launch_bounds__(kPeakBlock, 1) fmaLoads6(float* out, ClockSpan* span, float a, float) {
  multiplyBeside<6>(out, span, a);
}

// ---- Rungs 1 to 6: from one output a thread to 64

struct Shape {
  int m, n, k;
};
#ifndef CUDA_DAYS_SANITIZE
constexpr int kSizes[] = {512, 1024, 2048, 4096, 8192};
constexpr Shape kTimedRagged[] = {{4097, 4095, 4093}, {4096, 1, 4096}, {5, 7, 2049}, {129, 257, 8191}};
constexpr Shape kRagged[] = {{1, 1, 1}, {3, 3, 431}, {17, 1, 3}, {1, 17, 129}, {127, 129, 17}, {128, 127, 128},
    {35, 79, 19}, {64, 256, 4}, {132, 260, 36}, {128, 256, 12}, {128, 256, 64}, {257, 300, 1}, {513, 36, 1000},
    {1000, 1037, 513}, {5, 7, 2049}, {129, 257, 1031}};
#else
// For compute-sanitizer: one size that is a whole number of every rung's tiles and fills every buffer of a rung more
// than once. Of the others one each with less than a tile; many tiles of k and a rest; several blocks and a rest, in
// scalars and in float4; whole blocks with a rest of k; and whole tiles of every rung, which meet gaps between rows.
constexpr int kSizes[] = {256};
constexpr Shape kTimedRagged[] = {{257, 255, 253}, {5, 7, 513}};
constexpr Shape kRagged[] = {{1, 1, 1}, {3, 3, 431}, {127, 129, 17}, {132, 260, 36}, {128, 256, 12}, {128, 256, 64}};
#endif

// How the tiles that do not fill a wave of blocks are shared: see multiplyBalanced.
struct LastWave {
  int whole = 0;  // tiles before them, a block for each
  float* sums = nullptr;  // two tiles a block, for what it adds to a tile that others add to as well
  unsigned* arrived = nullptr;  // a tile: how many of its blocks have written their sums; 0 between launches
};

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
  LastWave last = {};
};

__host__ __device__ inline size_t rows(int count, int ld) { return size_t(count) * ld; }

// What keeps a kernel inside the matrices.
enum class Guard {
  kNone,  // nothing: it takes whole tiles, whose rows are aligned as for kVectors
  kVectors,  // pointers aligned to 16 bytes; k, n and leading dimensions are multiples of 4
  kPacked,  // takes anything, as a copy with aligned rows and whole tiles; only C is guarded
  kScalars,  // takes anything: every access is one float
  kFewColumns,  // takes anything of at most kFew columns
};

// 16 x 16 threads are a block of all these rungs but the fourth.
constexpr int kSide = 16, kSquareThreads = kSide * kSide;

// Rung 1: a thread an output, straight from global memory, and neighbouring threads go down a column. A warp has 16
// rows and 2 columns. At each step of k it reads 16 floats of A that lie a row apart, each in a sector and a line of
// its own, and 2 of B in one sector; in the end it stores C in 16 sectors. If L1 serves one line a clock, which is
// assumed, a warp's FMA takes 17 clocks of an SM that could do four in one: predicted 1/68 of the ceiling, 1.5 %;
// measured 1.5 % at 2048.
__global__ void __launch_bounds__(kSquareThreads) matmulUncoalesced(Gemm g) {
  const int row = blockIdx.y * kSide + threadIdx.x % kSide;
  const int column = blockIdx.x * kSide + threadIdx.x / kSide;
  float sum = 0;
  for (int k = 0; k < g.k; ++k) sum = fmaf(g.a[rows(row, g.lda) + k], g.b[rows(k, g.ldb) + column], sum);
  g.c[rows(row, g.ldc) + column] = g.alpha * sum;
}

// Rung 2: the same, but neighbouring threads go along a row. A warp has 2 rows and 16 columns: at each step of k it
// reads 2 floats of A in two lines and 16 of B in two sectors of one line, and it stores C in 4 sectors. An FMA still
// needs two loads, but these take 3 clocks instead of 17: predicted 1/12 of the ceiling, 8.3 %, x 5.7; measured
// 8.3 %, x 5.63 at 2048.
__global__ void __launch_bounds__(kSquareThreads) matmulCoalesced(Gemm g) {
  const int row = blockIdx.y * kSide + threadIdx.x / kSide;
  const int column = blockIdx.x * kSide + threadIdx.x % kSide;
  float sum = 0;
  for (int k = 0; k < g.k; ++k) sum = fmaf(g.a[rows(row, g.lda) + k], g.b[rows(k, g.ldb) + column], sum);
  g.c[rows(row, g.ldc) + column] = g.alpha * sum;
}

// Rung 3, where day 43 stops: tiles of A and B in shared memory, one output a thread. A thread brings one float of
// each tile, which 16 threads then read: a sixteenth of the loads from global memory. Each FMA still needs two loads,
// now from shared memory, and an SM serves one warp's load a clock where it could do four FMAs: predicted an eighth of
// the ceiling; measured 12.3 % at 2048.
__global__ void __launch_bounds__(kSquareThreads) matmulSharedTiled(Gemm g) {
  __shared__ float tileA[kSide][kSide], tileB[kSide][kSide];
  const int y = threadIdx.x / kSide, x = threadIdx.x % kSide;
  const int row = blockIdx.y * kSide + y, column = blockIdx.x * kSide + x;
  float sum = 0;
  for (int first = 0; first < g.k; first += kSide) {
    tileA[y][x] = g.a[rows(row, g.lda) + first + x];
    tileB[y][x] = g.b[rows(first + y, g.ldb) + column];
    __syncthreads();
#pragma unroll 8  // all 16 take nearly twice the registers on a T4
    for (int k = 0; k < kSide; ++k) sum = fmaf(tileA[y][k], tileB[k][x], sum);
    __syncthreads();  // others may still read the tiles
  }
  g.c[rows(row, g.ldc) + column] = g.alpha * sum;
}

// The reader's knob: a thread makes a column of kThreadM outputs in rung 4 and kThreadM x kThreadN in rungs 5 and 6. A
// block keeps its threads, so its tile grows and shrinks with the knob.
constexpr int kThreadM = 8, kThreadN = 8;
static_assert(kThreadM == 8 ? kThreadN == 4 || kThreadN == 8 || kThreadN == 16
                            : kThreadM == 4 && (kThreadN == 4 || kThreadN == 8),
    "choose 4 x 4, 4 x 8, 8 x 4, 8 x 8 or 8 x 16 for kThreadM x kThreadN: rung 6 loads operands four at a time, tiles "
    "of 16 threads a side must divide every size, and a thread's 255 registers hold 128 sums beside their operands");

// A block of rung 4 is 64 columns of 8 threads. In rungs 5 and 6 a launch bound of two blocks an SM leaves each thread
// 128 of the 65,536 registers, and more than 64 sums do not fit there beside their operands.
constexpr int kColumnM = 8 * kThreadM, kColumnN = 64, kColumnThreads = 512;
constexpr int kTileM = kSide * kThreadM, kTileN = kSide * kThreadN;
constexpr int kTileBlocks = kThreadM * kThreadN > 64 ? 1 : 2;

// Steps of k in shared memory at a time: as few as give every thread a float4 of A's tile and one of B's.
constexpr int kTileK = kThreadM == 4 || kThreadN == 4 ? 16 : 8;

constexpr bool dividesSizes(int tile) {
  for (const int size : kSizes)
    if (size % tile != 0) return false;
  return true;
}
static_assert(dividesSizes(kSide) && dividesSizes(kColumnM) && dividesSizes(kColumnN) && dividesSizes(kTileM) &&
        dividesSizes(kTileN) && dividesSizes(kTileK),
    "rungs 1 to 6 have no guards: every size is a whole number of every tile");
static_assert(kColumnM * kTileK % kColumnThreads == 0 && kTileK * kColumnN % kColumnThreads == 0 &&
        kTileM * kTileK % (4 * kSquareThreads) == 0 && kTileK * kTileN % (4 * kSquareThreads) == 0,
    "a block brings every tile to shared memory in whole passes of its threads");

// Rung 4: a column of outputs a thread. One value of B in a register serves all of them, so 8 FMAs need 9 shared loads
// instead of 16; a warp's lanes read 32 neighbouring floats of B, and the same float of A. Predicted x 1.8 once the
// grid fills the card; measured x 1.92 at 1024 and x 1.88 at 2048.
__global__ void __launch_bounds__(kColumnThreads, 2) matmulRegTile1d(Gemm g) {
  __shared__ float tileA[kColumnM][kTileK], tileB[kTileK][kColumnN];
  const int y = threadIdx.x / kColumnN * kThreadM, x = threadIdx.x % kColumnN;
  const float* a = g.a + rows(blockIdx.y * kColumnM, g.lda);
  const float* b = g.b + blockIdx.x * kColumnN;
  float sum[kThreadM] = {};
  for (int first = 0; first < g.k; first += kTileK) {
    for (int pass = 0; pass < kColumnM * kTileK; pass += kColumnThreads) {
      const int i = pass + threadIdx.x;
      tileA[i / kTileK][i % kTileK] = a[rows(i / kTileK, g.lda) + first + i % kTileK];
    }
    for (int pass = 0; pass < kTileK * kColumnN; pass += kColumnThreads) {
      const int i = pass + threadIdx.x;
      tileB[i / kColumnN][i % kColumnN] = b[rows(first + i / kColumnN, g.ldb) + i % kColumnN];
    }
    __syncthreads();
#pragma unroll 4  // by 8 registers spill on a T4
    for (int k = 0; k < kTileK; ++k) {
      const float inB = tileB[k][x];
      for (int i = 0; i < kThreadM; ++i) sum[i] = fmaf(tileA[y + i][k], inB, sum[i]);
    }
    __syncthreads();
  }
  float* c = g.c + rows(blockIdx.y * kColumnM + y, g.ldc) + blockIdx.x * kColumnN + x;
  for (int i = 0; i < kThreadM; ++i) c[rows(i, g.ldc)] = g.alpha * sum[i];
}

// Rung 5: a square of outputs a thread, 16 loads for 64 FMAs. A warp is 2 x 16 threads: a load of A reads two floats,
// but one of B reads 16 that lie 8 apart, since a thread's 8 columns lie side by side, and four of them meet in each
// bank. Predicted x 2, not 4.5; measured x 1.73 at 2048.
__global__ void __launch_bounds__(kSquareThreads, kTileBlocks) matmulRegTile2d(Gemm g) {
  __shared__ float tileA[kTileM][kTileK], tileB[kTileK][kTileN];
  const int y = threadIdx.x / kSide * kThreadM, x = threadIdx.x % kSide * kThreadN;
  const float* a = g.a + rows(blockIdx.y * kTileM, g.lda);
  const float* b = g.b + blockIdx.x * kTileN;
  float sum[kThreadM][kThreadN] = {};
  for (int first = 0; first < g.k; first += kTileK) {
    for (int pass = 0; pass < kTileM * kTileK; pass += kSquareThreads) {
      const int i = pass + threadIdx.x;
      tileA[i / kTileK][i % kTileK] = a[rows(i / kTileK, g.lda) + first + i % kTileK];
    }
    for (int pass = 0; pass < kTileK * kTileN; pass += kSquareThreads) {
      const int i = pass + threadIdx.x;
      tileB[i / kTileN][i % kTileN] = b[rows(first + i / kTileN, g.ldb) + i % kTileN];
    }
    __syncthreads();
#pragma unroll 2  // by 4 registers spill
    for (int k = 0; k < kTileK; ++k) {
      float inA[kThreadM], inB[kThreadN];
      for (int i = 0; i < kThreadM; ++i) inA[i] = tileA[y + i][k];
      for (int j = 0; j < kThreadN; ++j) inB[j] = tileB[k][x + j];
      multiplyAdd(sum, inA, inB);
    }
    __syncthreads();
  }
  float* c = g.c + rows(blockIdx.y * kTileM + y, g.ldc) + blockIdx.x * kTileN + x;
  for (int i = 0; i < kThreadM; ++i)
    for (int j = 0; j < kThreadN; ++j) c[rows(i, g.ldc) + j] = g.alpha * sum[i][j];
}

// Rung 6: every load, and every store of B and C, is a float4: 4 shared loads for 64 FMAs. A float4 of A in shared
// memory must hold rows of one k, so A is transposed on its way there. But a load of A takes 2 wavefronts of shared
// memory, and one of B takes 8, because lanes that lie 8 floats apart use half of the banks: 20 wavefronts a step.
// Predicted x 1.1; measured x 1.31 at 2048.
__global__ void __launch_bounds__(kSquareThreads, kTileBlocks) matmulRegTile2dVec4(Gemm g) {
  __shared__ __align__(16) float tileA[kTileK][kTileM], tileB[kTileK][kTileN];
  const int y = threadIdx.x / kSide * kThreadM, x = threadIdx.x % kSide * kThreadN;
  const float* a = g.a + rows(blockIdx.y * kTileM, g.lda);
  const float* b = g.b + blockIdx.x * kTileN;
  float sum[kThreadM][kThreadN] = {};
  for (int first = 0; first < g.k; first += kTileK) {
    for (int pass = 0; pass < kTileM * kTileK; pass += 4 * kSquareThreads) {
      const int i = pass + 4 * threadIdx.x;
      float four[4];
      readWide(four, a + rows(i / kTileK, g.lda) + first + i % kTileK, 4);
      for (int e = 0; e < 4; ++e) tileA[i % kTileK + e][i / kTileK] = four[e];
    }
    for (int pass = 0; pass < kTileK * kTileN; pass += 4 * kSquareThreads) {
      const int i = pass + 4 * threadIdx.x;
      float four[4];
      readWide(four, b + rows(first + i / kTileN, g.ldb) + i % kTileN, 4);
      writeFour(&tileB[i / kTileN][i % kTileN], 1, four);
    }
    __syncthreads();
#pragma unroll 2  // as rung 5, which it is compared with
    for (int k = 0; k < kTileK; ++k) {
      float inA[kThreadM], inB[kThreadN];
      readWide(inA, &tileA[k][y], 4);
      readWide(inB, &tileB[k][x], 4);
      multiplyAdd(sum, inA, inB);
    }
    __syncthreads();
  }
  float* c = g.c + rows(blockIdx.y * kTileM + y, g.ldc) + blockIdx.x * kTileN + x;
  for (int i = 0; i < kThreadM; ++i)
    for (int j = 0; j < kThreadN; j += 4) writeFour(c + rows(i, g.ldc) + j, g.alpha, &sum[i][j]);
}

// ---- What the rungs above them are made of

// Adds four values that writeSwapped stored.
__device__ inline void addSwapped(float (&total)[4], const float4& four) {
  total[0] += four.y;
  total[1] += four.x;
  total[2] += four.w;
  total[3] += four.z;
}

// A block's work in rungs 7 and up, from a structure of named fields: kM x kN outputs, kWarpM x 64 a warp, 8 x kOutN a
// thread; kK steps of k in each of kStages buffers, kBody of them written out in the body of the loop. With kSplitK
// above 1 the block has so many times the warps, and each has its part of those steps. kAsyncA and kAsyncB: whether
// copies of A and of B are asynchronous (cp.async). kByRows: whether the FMAs go by rows.
template <class Sizes>
struct Tile : Sizes {
  using Sizes::kM, Sizes::kN, Sizes::kK, Sizes::kOutN, Sizes::kSplitK, Sizes::kStages;
  static constexpr int kOutM = 8, kWide = 4, kSteps = kK / kSplitK;
  static constexpr int kLanesN = 64 / kOutN, kLanesM = 32 / kLanesN, kWarpM = kOutM * kLanesM;
  static constexpr int kWarpsM = kM / kWarpM, kWarpsN = kN / 64, kThreads = 32 * kWarpsM * kWarpsN * kSplitK;
  // Four floats of padding spread a warp's stores of A, which lies transposed, over 32 banks
  // and keep its rows aligned.
  static constexpr int kPitchA = kM + 4, kStageFloats = kK * (kPitchA + kN);
  // The sums of all parts meet where the tiles were.
  static constexpr int kSharedBytes = 4 * std::max(kStages * kStageFloats, kSplitK > 1 ? kSplitK * kM * kN : 0);
  // Where a thread's row i lies: in groups of four, so that a warp's loads are whole stretches.
  __device__ static constexpr int rowOf(int i) { return i / 4 * 4 * kLanesM + i % 4; }

  static_assert(kOutN == 8 || kOutN == 16, "ThreadCoordinates maps 4 x 8 lanes or 8 x 4");
  static_assert(kM % kWarpM == 0 && kN % 64 == 0 && kK % (8 * kSplitK) == 0, "whole parts");
  static_assert(
      Sizes::kBody % 2 == 0 && kSteps % Sizes::kBody == 0, "operands alternate between two sets of registers");
  static_assert(kSharedBytes <= (Sizes::kNeeds < 90 ? 64 : 227) << 10, "what a block may have on a T4, on Hopper");
};

// A thread's part of k, and its first row and column in the tile. Lanes i and i ^ 1 share their rows,
// i and i ^ 2 their columns: shared memory serves a 128-bit load of such pairs in 2 wavefronts, not 4.
template <class T>
struct ThreadCoordinates {
  int part, row, column;

  __device__ ThreadCoordinates() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool tall = T::kLanesM == 8;
    const int laneM = (lane >> 1 & 1) | (lane >> 2 & (tall ? 6 : 2));
    const int laneN = (lane & 1) | (lane >> 1 & 2) | (tall ? 0 : lane >> 2 & 4);
    part = T::kSplitK == 1 ? 0 : warp / (T::kWarpsM * T::kWarpsN);
    row = warp % T::kWarpsM * T::kWarpM + 4 * laneM;
    column = warp / T::kWarpsM % T::kWarpsN * 64 + 4 * laneN;
  }
};

// A block's part of a product: the tile of C in row y and column x of tiles, and the steps of k from firstK to lastK.
struct Piece {
  int x, y, firstK, lastK;
};

// Moves on to the next buffer; returns by how much pointers into the buffers move.
template <class T>
__device__ int nextBuffer(int& buffer) {
  const int before = buffer;
  buffer = buffer == (T::kStages - 1) * T::kStageFloats ? 0 : buffer + T::kStageFloats;
  return buffer - before;
}

// Brings A and B into shared memory, a tile per start() and finish(). In between a value waits in a register, or an
// asynchronous copy (cp.async, sm_80) is on its way without one, up to kStages - 1 tiles ahead. A is transposed on the
// way, so its asynchronous copies are 4 bytes each.
template <class T>
class TileLoader {
 public:
  __device__ TileLoader(const Gemm& gemm, float* shared, const Piece& piece) : g(gemm) {
    const int passRow = threadIdx.x / kLanesK;
    const int passK = threadIdx.x % kLanesK * kWidthA + (kRowsA > T::kM ? passRow / T::kM * 8 : 0);
    row = piece.y * T::kM + passRow % T::kM;
    if constexpr (kGuard == Guard::kVectors) row = min(row, g.m - 1);
    k = passK;
    fromA = g.a + rows(row, g.lda) + (piece.firstK + passK);
    toA = shared + passK * T::kPitchA + passRow % T::kM;
    column = piece.x * T::kN + threadIdx.x % kLanesN * kWidthB;
    if constexpr (kGuard == Guard::kVectors) column = min(column, g.n - 4);
    rowB = threadIdx.x / kLanesN;
    fromB = g.b + rows(piece.firstK + rowB, g.ldb) + column;
    toB = shared + T::kK * T::kPitchA + threadIdx.x / kLanesN * T::kN + threadIdx.x % kLanesN * kWidthB;
    left = piece.lastK - piece.firstK;
    const bool inside = (piece.y + 1) * T::kM <= g.m && (piece.x + 1) * T::kN <= g.n;
    guardBelow = inside ? T::kK : piece.lastK + 1;
  }

  // Begins to load the next tile, if there is one, with zeros beyond k. Beyond m and n, where nothing
  // is stored, kVectors repeats the last row or column; kScalars compares, in tiles that hang over.
  __device__ void start(bool more) {
    if (more) {
      if (kGuard == Guard::kScalars && left < guardBelow) {
        startNext<true>();
      } else {
        startNext<kGuard == Guard::kVectors>();
      }
      left -= T::kK;
      if constexpr (kAsyncB) {
        const int offset = nextBuffer<T>(started);
        toB += offset;
        if constexpr (kAsyncA) toA += offset;
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
      const int offset = nextBuffer<T>(finished);
      toA += offset;
      if constexpr (!kAsyncB) {
        for (int p = 0; p < kPassesB; ++p) writeFour(toB + p * kRowsB * T::kN, 1, heldB[p]);
        toB += offset;
      }
    }
    if constexpr (kAsyncB) __pipeline_wait_prior(T::kStages - 2);
  }

 private:
  static constexpr Guard kGuard = T::kGuard;
  static constexpr bool kAsyncA = T::kAsyncA, kAsyncB = T::kAsyncB;

  template <bool kCompares>
  __device__ void startNext() {
    for (int p = 0; p < kPassesB; ++p)
      load<kAsyncB, kWidthB>(toB + p * kRowsB * T::kN, fromB + rows(p * kRowsB, g.ldb), heldB[p],
          !kCompares || (rowB + p * kRowsB < left && (kGuard == Guard::kVectors || column < g.n)));
    if constexpr (kAsyncB && !kAsyncA) __pipeline_commit();
    for (int p = 0; p < kPassesA; ++p)
      load<kAsyncA, kWidthA>(toA + stepK(p) * T::kPitchA + stepRow(p), fromA + stepK(p) + rows(stepRow(p), g.lda),
          heldA[p], !kCompares || (k + stepK(p) < left && (kGuard == Guard::kVectors || row + stepRow(p) < g.m)));
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
  static constexpr int kWidthB = kGuard == Guard::kScalars ? 1 : 4, kLanesN = T::kN / kWidthB;
  static constexpr int kRowsB = T::kThreads / kLanesN, kPassesB = T::kK / kRowsB;
  static_assert(kGuard == Guard::kNone || kGuard == Guard::kPacked ||
          (kAsyncB && (kGuard == Guard::kVectors ? kRowsA >= T::kM : kAsyncA)),
      "guards: B is copied asynchronously; a thread has one row of A, or scalars");
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
  int row, k, rowB, column;  // of this thread in pass 0; k and rowB within the tile
  int left, guardBelow;  // of k, not yet begun; if less, every access is compared
  float heldA[kPassesA][4] = {}, heldB[kPassesB][4] = {};
};

// The loop of rung 7, with one buffer: a tile is brought, then multiplied, and nothing overlaps.
template <class T>
__device__ void multiplyInTurn(
    TileLoader<T>& loader, const float* a, const float* b, int tiles, float (&sum)[T::kOutM][T::kOutN]) {
  for (int t = 0; t < tiles; ++t) {
    loader.start(true);
    loader.finish();
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
}

// snippet: loop
// The loop over k of all rungs above. While a step multiplies, the next step's operands come from shared memory, the
// next tile from global memory. The barrier stands before a tile's last step, whose operands are in registers already:
// it publishes the next tile and frees this one. a and b are a lane's first operands in the first buffer.
template <class T>
__device__ void multiplyAhead(
    TileLoader<T>& loader, const float* a, const float* b, int tiles, float (&sum)[T::kOutM][T::kOutN]) {
  float inA[2][T::kOutM], inB[2][T::kOutN];  // one set is multiplied while the other is filled
  const auto read = [&](int set, const float* fromA, const float* fromB) {
    readWide(inA[set], fromA, 4 * T::kLanesM);
    readWide(inB[set], fromB, 4 * T::kLanesN);
  };
  const auto multiply = [&](int set) {
    if constexpr (T::kByRows)
      multiplyAddByRows(sum, inA[set], inB[set]);
    else
      multiplyAdd(sum, inA[set], inB[set]);
  };
#pragma unroll
  for (int stage = 0; stage < T::kStages - 1; ++stage) loader.start(stage < tiles);
  loader.finish();
  __syncthreads();
  read(0, a, b);
  int buffer = 0;
  for (int t = 0; t < tiles; ++t) {
    loader.start(t + T::kStages - 1 < tiles);
    const float *bodyA = a, *bodyB = b;
#pragma unroll 1
    for (int first = 0; first < T::kSteps - T::kBody; first += T::kBody) {
#pragma unroll
      for (int step = 0; step < T::kBody; ++step) {
        read((step + 1) % 2, bodyA + (step + 1) * T::kPitchA, bodyB + (step + 1) * T::kN);
        multiply(step % 2);
      }
      bodyA += T::kBody * T::kPitchA;
      bodyB += T::kBody * T::kN;
    }
#pragma unroll
    for (int step = 0; step < T::kBody - 1; ++step) {
      read((step + 1) % 2, bodyA + (step + 1) * T::kPitchA, bodyB + (step + 1) * T::kN);
      multiply(step % 2);
    }
    loader.finish();
    __syncthreads();
    const int offset = nextBuffer<T>(buffer);
    a += offset;
    b += offset;
    read(0, a, b);
    multiply(1);
  }
}
// end snippet: loop

template <Guard kGuard>
__device__ void storeFour(const Gemm& g, int row, int column, float by, const float* four) {
  float* to = g.c + rows(row, g.ldc) + column;
  if (kGuard == Guard::kScalars || kGuard == Guard::kPacked) {
    for (int e = 0; e < 4; ++e)
      if (row < g.m && column + e < g.n) to[e] = by * four[e];
  } else if (kGuard == Guard::kNone || (row < g.m && column < g.n)) {
    writeFour(to, by, four);
  }
}

// Each part of k writes its sums to shared memory, and sumParts adds them, four at a time.
template <class T>
__device__ void shareSums(const float (&sum)[T::kOutM][T::kOutN], const ThreadCoordinates<T>& at, float* shared) {
  float* to = shared + (at.part * T::kM + at.row) * T::kN + at.column;
  __syncthreads();  // what lies there may still be read
  for (int i = 0; i < T::kOutM; ++i)
    for (int j = 0; j < T::kOutN; j += 4) writeSwapped(to + T::rowOf(i) * T::kN + j * T::kLanesN, &sum[i][j]);
  __syncthreads();
}

template <class T>
__device__ void sumParts(float (&total)[4], const float* shared, int i) {
  for (float& value : total) value = 0;
  for (int part = 0; part < T::kSplitK; ++part)
    addSwapped(total, *reinterpret_cast<const float4*>(shared + part * T::kM * T::kN + i));
}

// Calls use(n, row, column) for the n-th four outputs of a tile that are this thread's to store.
template <class T, class Use>
__device__ void forEachFour(const ThreadCoordinates<T>& at, Use use) {
  if constexpr (T::kSplitK == 1) {
    for (int i = 0; i < T::kOutM; ++i)
      for (int j = 0; j < T::kOutN; j += 4)
        use((i * T::kOutN + j) / 4, at.row + T::rowOf(i), at.column + j * T::kLanesN);
  } else {
    constexpr int kPass = 4 * T::kThreads;
    for (int n = 0; n < T::kM * T::kN / kPass; ++n) {
      const int i = n * kPass + 4 * threadIdx.x;
      use(n, i / T::kN, i % T::kN);
    }
  }
}

// Outputs into C. The multiplication by alpha keeps the sums out of the aligned quads of registers
// that a float4 store of them would force: there sum[i][j] and b[j] share a bank, and an FMA runs at
// half rate.
template <class T>
__device__ void storeTile(const Gemm& g, const Piece& piece, const float (&sum)[T::kOutM][T::kOutN],
    const ThreadCoordinates<T>& at, float* shared) {
  if constexpr (T::kSplitK > 1) shareSums<T>(sum, at, shared);
  forEachFour<T>(at, [&](int n, int row, int column) {
    const int y = piece.y * T::kM + row, x = piece.x * T::kN + column;
    if constexpr (T::kSplitK == 1) {
      storeFour<T::kGuard>(g, y, x, g.alpha, &sum[n * 4 / T::kOutN][n * 4 % T::kOutN]);
    } else {
      float four[4];
      sumParts<T>(four, shared, row * T::kN + column);
      storeFour<T::kGuard>(g, y, x, g.alpha, four);
    }
  });
}

template <class T>
__device__ void multiplyPiece(const Gemm& g, const Piece& piece, const ThreadCoordinates<T>& at, float* shared,
    float (&sum)[T::kOutM][T::kOutN]) {
  TileLoader<T> loader(g, shared, piece);
  const float* a = shared + at.part * T::kSteps * T::kPitchA + at.row;
  const float* b = shared + T::kK * T::kPitchA + at.part * T::kSteps * T::kN + at.column;
  const int tiles = (piece.lastK - piece.firstK + T::kK - 1) / T::kK;
  if constexpr (T::kStages == 1)
    multiplyInTurn<T>(loader, a, b, tiles, sum);
  else
    multiplyAhead<T>(loader, a, b, tiles, sum);
}

template <class T>
__device__ void multiplyTiled(const Gemm& g) {
  extern __shared__ float4 dynamicShared[];
  float* shared = reinterpret_cast<float*>(dynamicShared);
  const ThreadCoordinates<T> at;
  const Piece piece = {int(blockIdx.x), int(blockIdx.y), 0, g.k};
  float sum[T::kOutM][T::kOutN] = {};
  multiplyPiece<T>(g, piece, at, shared, sum);
  storeTile<T>(g, piece, sum, at, shared);
}

// What a block knows of the tiles that are cut: `units` steps of kK, those of one tile after those of another, of which
// each of `parts` blocks takes as many as the others, give or take one.
struct Cut {
  int steps, parts;  // of a tile; of all
  int64_t units;

  __device__ int begin(int part) const { return int(units * part / parts); }
  // The part that has a unit.
  __device__ int partOf(int64_t unit) const { return int(((unit + 1) * parts - 1) / units); }
};

// Leaves this block's sums of a cut tile in the workspace. Of the blocks that share the tile, the last to arrive reads
// all of them, adds them in the order of k and stores the tile: none waits, and the order of adding is always the same.
// Only the first part of a tile can be the second piece of its block, so two places a block are enough.
template <class T>
__device__ void storeShare(const Gemm& g, const Piece& piece, const Cut& cut, int tile, int part,
    const float (&sum)[T::kOutM][T::kOutN], const ThreadCoordinates<T>& at, float* shared) {
  const int first = cut.partOf(int64_t(tile) * cut.steps), last = cut.partOf(int64_t(tile + 1) * cut.steps - 1);
  const auto placeOf = [&](int of) {
    return g.last.sums + (size_t(2) * of + (of == first)) * T::kM * T::kN + 4 * threadIdx.x;
  };
  if constexpr (T::kSplitK > 1) shareSums<T>(sum, at, shared);
  float* const mine = placeOf(part);
  forEachFour<T>(at, [&](int n, int row, int column) {
    float* to = mine + n * 4 * T::kThreads;
    if constexpr (T::kSplitK == 1) {
      writeSwapped(to, &sum[n * 4 / T::kOutN][n * 4 % T::kOutN]);
    } else {
      float four[4];
      sumParts<T>(four, shared, row * T::kN + column);
      writeSwapped(to, four);
    }
  });
  __threadfence();
  __syncthreads();
  // Nobody needs the tiles any more; a variable of its own would be more shared memory than a T4 has.
  int* const isLast = reinterpret_cast<int*>(shared);
  if (threadIdx.x == 0) *isLast = atomicAdd(&g.last.arrived[tile], 1u) == unsigned(last - first);
  __syncthreads();
  if (*isLast == 0) return;
  __threadfence();
  forEachFour<T>(at, [&](int n, int row, int column) {
    float total[4] = {};
    for (int of = first; of <= last; ++of) {
      addSwapped(total, __ldcg(reinterpret_cast<const float4*>(placeOf(of) + n * 4 * T::kThreads)));
    }
    storeFour<T::kGuard>(g, piece.y * T::kM + row, piece.x * T::kN + column, g.alpha, total);
  });
  if (threadIdx.x == 0) g.last.arrived[tile] = 0;  // for the next launch
}

// As multiplyTiled, but the tiles that do not fill a wave are cut along k, so that every SM has as much of them. The
// first g.last.whole blocks have a tile each, the others a share of the rest: the end of a tile, the start of another.
template <class T>
__device__ void multiplyBalanced(const Gemm& g) {
  extern __shared__ float4 dynamicShared[];
  float* shared = reinterpret_cast<float*>(dynamicShared);
  const ThreadCoordinates<T> at;
  const int across = (g.n + T::kN - 1) / T::kN, tiles = across * ((g.m + T::kM - 1) / T::kM);
  const int steps = (g.k + T::kK - 1) / T::kK, whole = g.last.whole;
  const Cut cut = {steps, int(gridDim.x) - whole, int64_t(tiles - whole) * steps};
  const int part = int(blockIdx.x) - whole;
  int unit = part < 0 ? 0 : cut.begin(part);
  const int end = part < 0 ? steps : cut.begin(part + 1);
  while (unit < end) {
    const int tile = part < 0 ? int(blockIdx.x) : whole + unit / steps;
    const int first = unit % steps, last = min(steps, first + end - unit);
    const Piece piece = {tile % across, tile / across, first * T::kK, min(last * T::kK, g.k)};
    float sum[T::kOutM][T::kOutN] = {};
    multiplyPiece<T>(g, piece, at, shared, sum);
    if (last - first == steps)
      storeTile<T>(g, piece, sum, at, shared);
    else
      storeShare<T>(g, piece, cut, tile - whole, part, sum, at, shared);
    unit += last - first;
    __syncthreads();  // the next piece's tiles come where this one's are
  }
}

// ---- Rungs 7 and up

// Where an SM has 100 KiB of shared memory, it holds one block of more than half of it, which may have all registers.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1200)
#define BLOCKS_OF(Sizes) (Tile<Sizes>::kSharedBytes > 50 << 10 ? 1 : Tile<Sizes>::kBlocksPerSm)
#else
#define BLOCKS_OF(Sizes) Tile<Sizes>::kBlocksPerSm
#endif
#define BOUNDS_OF(Sizes) __launch_bounds__(Tile<Sizes>::kThreads, BLOCKS_OF(Sizes))

// Rung 7, conflict-free lanes: warps own 32 x 64 outputs and read 96 values a step where rung 6's
// read 144, lanes share loads in pairs, A's stores do not collide. Predicted x 1.3, measured
// x 1.32 at 2048.
struct WarpTiles {
  static constexpr int kM = 128, kN = 128, kK = 8, kOutN = 8, kSplitK = 1, kStages = 1, kBody = 8;
  static constexpr int kBlocksPerSm = 2;  // that registers are kept free for
  static constexpr int kNeeds = 0;  // the compute capability that its code must be compiled for; 0: any
  static constexpr int kLeastK = 0;  // of a tile that multiplyBalanced cuts; 0: it cuts none
  static constexpr bool kAsyncA = false, kAsyncB = false, kByRows = false;
  static constexpr Guard kGuard = Guard::kNone;
};
__global__ void BOUNDS_OF(WarpTiles) matmulWarpTiles(Gemm g) { multiplyTiled<Tile<WarpTiles>>(g); }

// Rung 8, double buffers: rung 7 waits a memory latency for every tile, whose arithmetic takes 1024
// clocks of an SM's FMA lanes. A latency of 600 clocks was assumed, not measured; the SM's second
// block hides half of it. Predicted x 1.2, measured x 1.41 at 1024 (over rung 4) and x 1.07 at 2048.
struct DoubleBuffered : WarpTiles {
  static constexpr int kStages = 2;
};
__global__ void BOUNDS_OF(DoubleBuffered) matmulDoubleBuffered(Gemm g) { multiplyTiled<Tile<DoubleBuffered>>(g); }

// Rung 9, 8 x 16 outputs a thread: a scheduler issues one instruction a clock, and a 128-bit shared load takes about
// two of its slots (the rows fma-loads-* of the table). 8 x 8 outputs spend 4 loads on 64 FMAs, 8 x 16 spend 6 on 128.
// A warp's tile is 64 x 64, so a block of 128 x 128 is 128 threads, two blocks an SM. Predicted x 1.06 from 2048,
// measured x 1.05 at 2048, x 1.03 at 4096, x 1.02 at 8192.
struct WideThreads : DoubleBuffered {
  static constexpr int kOutN = 16;
};
__global__ void BOUNDS_OF(WideThreads) matmulWideThreads(Gemm g) { multiplyTiled<Tile<WideThreads>>(g); }

// Rung 10, banks and balance. The register file has two banks, and an FMA waits where two of its operands come from
// one: 14 % of rung 9's, in the machine code that nvcc 13.0 makes for sm_90. Here FMAs go by rows, the sums lie in the
// bank that B's operand does not (writeSwapped), and a short body of two steps keeps the loads where the source has
// them: 3 % are left in it. And the last wave: at 8192, 2048 blocks of 128 x 256 are 15.5 waves of 132, so that 3 % of
// the SMs' time is lost; the tiles that are over are cut along k. Predicted x 1.04 at 4096 and 8192; measured x 1.03
// and x 1.04, and x 1.01 at 2048, where no tile is cut.
struct Balanced : WideThreads {
  static constexpr int kN = 256, kK = 16, kBody = 2, kBlocksPerSm = 1;
  static constexpr int kLeastK = 2048;  // below, exchanging sums costs more than it saves
  static constexpr bool kByRows = true;
};
__global__ void BOUNDS_OF(Balanced) matmulBalanced(Gemm g) { multiplyBalanced<Tile<Balanced>>(g); }

// Rung 11, split-K inside a block: at 1024, 128 x 128 tiles are 64 blocks for 132 SMs; 64 x 64 are 256, and four parts
// of k give each 8 warps. Predicted x 2 at 1024 over rung 8, x 0.9 from 2048 on (less reuse); measured x 2.07
// (over rung 8, the best at 1024) and x 0.91 at 2048.
struct SplitK : DoubleBuffered {
  static constexpr int kM = 64, kN = 64, kK = 32, kSplitK = 4, kBody = 8;
  static constexpr bool kByRows = true;
};
__global__ void BOUNDS_OF(SplitK) matmulSplitK(Gemm g) { multiplyTiled<Tile<SplitK>>(g); }

// Rung 12, small tiles: at 512 even 64 x 64 tiles are only 64 blocks; 32 x 64 are 128, with eight parts of k each. A
// block has 64 KiB of shared memory, all that an SM of a T4 has. Predicted x 1.7 at 512, measured x 1.71. Here ends
// what sm_75 can do.
struct SmallTiles : SplitK {
  static constexpr int kM = 32, kK = 64, kSplitK = 8, kBody = 2, kBlocksPerSm = 1;
};
__global__ void BOUNDS_OF(SmallTiles) matmulSmallTiles(Gemm g) { multiplyTiled<Tile<SmallTiles>>(g); }

// Rung 13, cp.async for B (sm_80): rung 9 in blocks of 128 x 256, whose tiles of B need no registers on their way.
// Predicted x 1.02 over rung 9 at 2048, where rung 10 has nothing to balance; measured x 1.02.
struct AsyncWide : WideThreads {
  static constexpr int kN = 256, kBlocksPerSm = 1, kNeeds = 80;
  static constexpr bool kAsyncB = true;
};
__global__ void BOUNDS_OF(AsyncWide) matmulAsyncWide(Gemm g) { multiplyTiled<Tile<AsyncWide>>(g); }

// Rung 14, two tiles ahead, all by cp.async, where few warps hide latency: rung 11 with three buffers. Predicted x 1.05
// to 1024, measured x 1.17 over rung 11 at 512 and x 0.94 at 1024.
struct TwoAhead : SplitK {
  static constexpr int kStages = 3, kBody = 2, kNeeds = 80;
  static constexpr bool kAsyncA = true, kAsyncB = true;
};
__global__ void BOUNDS_OF(TwoAhead) matmulTwoAhead(Gemm g) { multiplyTiled<Tile<TwoAhead>>(g); }

// Rung 15, thread-block clusters (sm_90), for 512: two blocks share a 64 x 64 tile, each takes half of k and sends half
// a tile of sums into the other's shared memory. Five buffers hold more than half of what a block reads at 512. And the
// next launch may begin while this one ends (programmatic dependent launch): its blocks start up and wait for the data
// alone. Predicted x 1.2 at 512 over rung 12, measured x 1.16.
struct Cluster : TwoAhead {
  static constexpr int kStages = 5, kBody = 8, kBlocksPerSm = 1, kNeeds = 90;
};
constexpr int kCluster = 2;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER __cluster_dims__(1, 1, kCluster)
#else
#define CLUSTER
#endif

__global__ void CLUSTER BOUNDS_OF(Cluster) matmulCluster([[maybe_unused]] Gemm g) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using T = Tile<Cluster>;
  cudaTriggerProgrammaticLaunchCompletion();
  extern __shared__ float4 dynamicShared[];
  float* shared = reinterpret_cast<float*>(dynamicShared);
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int mine = blockIdx.z;
  constexpr int kHalf = T::kM * T::kN / kCluster;
  __shared__ __align__(16) float inbox[kHalf];
  float* outbox = cluster.map_shared_rank(inbox, 1 - mine);
  cluster.barrier_arrive();
  const ThreadCoordinates<T> at;
  const int depth = g.k / kCluster;
  const Piece piece = {int(blockIdx.x), int(blockIdx.y), mine * depth, (mine + 1) * depth};
  float sum[T::kOutM][T::kOutN] = {}, four[4], more[4];
  cudaGridDependencySynchronize();
  multiplyPiece<T>(g, piece, at, shared, sum);
  shareSums<T>(sum, at, shared);
  cluster.barrier_wait();  // by now the other block has started
  for (int i = 4 * threadIdx.x; i < kHalf; i += 4 * T::kThreads) {
    sumParts<T>(four, shared, (1 - mine) * kHalf + i);
    writeFour(outbox + i, 1, four);
  }
  cluster.sync();
  for (int i = 4 * threadIdx.x; i < kHalf; i += 4 * T::kThreads) {
    const int mineAt = mine * kHalf + i;
    sumParts<T>(four, shared, mineAt);
    readWide(more, inbox + i, 4);
    for (int e = 0; e < 4; ++e) four[e] += more[e];
    storeFour<T::kGuard>(g, piece.y * T::kM + mineAt / T::kN, piece.x * T::kN + mineAt % T::kN, g.alpha, four);
  }
#endif
}

// ---- Any shape

// The guarded kernels take any m, n, k >= 1 that their alignment allows. Rung 13 with guards: predicted price 2 %,
// measured 2 % at 2048.
struct GuardedVectors : AsyncWide {
  static constexpr int kNeeds = 0;
  static constexpr Guard kGuard = Guard::kVectors;
};
__global__ void BOUNDS_OF(GuardedVectors) matmulGuardedVectors(Gemm g) { multiplyTiled<Tile<GuardedVectors>>(g); }

// Where rows are not aligned, no float4 can be loaded from them. This copies a matrix into rows that are, filled up
// with zeros to whole tiles.
constexpr int kPackThreads = 256;
__global__ void __launch_bounds__(kPackThreads)
    packMatrix(const float* from, int height, int width, int ldFrom, float* to, int ldTo) {
  const int row = blockIdx.x, column = 4 * (blockIdx.y * kPackThreads + threadIdx.x);
  if (column >= ldTo) return;
  float four[4];
  for (int e = 0; e < 4; ++e) four[e] = row < height && column + e < width ? from[rows(row, ldFrom) + column + e] : 0;
  writeFour(to + rows(row, ldTo) + column, 1, four);
}

// Rung 10 on such copies, with guards for C alone. Copying moves 16 bytes for 2 n or 2 m FMAs: at 4097 x 4095 x 4093
// predicted 2 % of the time. Together it is 101.5 % of cuBLAS there.
struct Packed : Balanced {
  static constexpr Guard kGuard = Guard::kPacked;
};
__global__ void BOUNDS_OF(Packed) matmulPacked(Gemm g) { multiplyBalanced<Tile<Packed>>(g); }

// Rung 11 with scalar guards, and all of its tiles may be cut: few outputs and a long k keep all SMs busy.
struct GuardedSmall : SplitK {
  static constexpr int kLeastK = 256, kBody = 2;
  static constexpr bool kAsyncA = true, kAsyncB = true;
  static constexpr Guard kGuard = Guard::kScalars;
};
__global__ void BOUNDS_OF(GuardedSmall) matmulGuardedSmall(Gemm g) { multiplyBalanced<Tile<GuardedSmall>>(g); }

// A matrix times few columns is bound by reading the matrix: a tile would be nearly empty. A block has a row of A and
// up to kFew columns, and its threads share k.
constexpr int kFew = 8, kFewThreads = 256;
__global__ void __launch_bounds__(kFewThreads) matmulFewColumns(Gemm g) {
  __shared__ float parts[kFewThreads / 32][kFew];
  const int row = blockIdx.y, first = blockIdx.x * kFew, columns = min(kFew, g.n - first);
  const float* a = g.a + rows(row, g.lda);
  const float* b = g.b + first;
  float sum[kFew] = {};
#pragma unroll 4
  for (int k = threadIdx.x; k < g.k; k += kFewThreads) {
    const float element = a[k];
    for (int j = 0; j < kFew; ++j)
      if (j < columns) sum[j] = fmaf(element, b[rows(k, g.ldb) + j], sum[j]);
  }
  for (int j = 0; j < kFew; ++j) {
    for (int distance = 16; distance > 0; distance /= 2) sum[j] += __shfl_xor_sync(0xFFFFFFFFu, sum[j], distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][j] = sum[j];
  }
  __syncthreads();
  if (int(threadIdx.x) >= columns) return;
  float total = 0;
  for (int warp = 0; warp < kFewThreads / 32; ++warp) total += parts[warp][threadIdx.x];
  g.c[rows(row, g.ldc) + first + threadIdx.x] = g.alpha * total;
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

#include <memory>
#include <numeric>
#include <thread>

constexpr Program kProgram = {44, "matmul_registers", "Day 44: SGEMM rung by rung, from shared tiles to above cuBLAS."};

// ---- The table

constexpr double kFastRate = 0.75;  // of a Row's rates: those at least so large are timed at every size

// What a row of the table is.
enum class Role {
  kKernel,  // a rung of the ladder: whole tiles, from aligned rows
  kGuarded,  // a kernel for shapes whose tiles hang over
  kDispatch,  // sgemm(), which chooses among these kernels
  kLibrary,  // cuBLAS in FP32, which every row is timed against
  kLibraryPedantic,  // cuBLAS, which may not change the order of a sum or its precision
};

// What a block of a kernel does, and what it takes to do it.
struct BlockShape {
  int m, n, k;  // it makes m x n outputs; the inner dimension is a whole number of k
  int threads, sharedBytes = 0;  // shared memory beyond the static arrays
  double loadsPerFma = 0;  // from shared memory, as the source has them
  double issuedLoads = 0, wavefronts = 0;  // of shared memory, for an FMA, as the card executes them
  int blocks = 1;  // that share the outputs
  int perSm = 1;  // blocks an SM that it is built for
  int leastK = 0;  // of a tile that is cut; 0: none is
  bool overlaps = false;  // whether it may begin while the launch before it ends
};

struct Row {
  Role role;
  const char *variant, *symbol;
  void (*kernel)(Gemm) = nullptr;  // of a kernel's row, which has all that follows
  Guard guard = Guard::kScalars;  // what shapes it takes
  BlockShape block = {};
  int needs = 0;  // the compute capability that its code must be compiled for; 0: any
  double rate = 0;  // share of the FMA ceiling on an H200 where all SMs have work; 0: never chosen
};

bool isKernel(const Row& row) { return row.role == Role::kKernel || row.role == Role::kGuarded; }
bool isLibrary(const Row& row) { return row.role == Role::kLibrary || row.role == Role::kLibraryPedantic; }

#define KERNEL(kernel) #kernel, kernel  // its symbol, and itself

// Rungs 1 to 6, whose tiles are constants of their own and no structure that rowOf could take.
Row earlyRow(const char* variant, const char* symbol, void (*kernel)(Gemm), const BlockShape& block) {
  return {Role::kKernel, variant, symbol, kernel, Guard::kNone, block};
}

// Lanes in pairs share their addresses: a load of 128 bits takes 2 wavefronts.
template <class Sizes>
Row rowOf(const char* variant, const char* symbol, void (*kernel)(Gemm), double rate = 0) {
  using T = Tile<Sizes>;
  const double loads = 1.0 * (T::kOutM + T::kOutN) / T::kWide / (T::kOutM * T::kOutN);
  const int blocks = T::kNeeds >= 90 ? kCluster : 1;
  const BlockShape block = {T::kM, T::kN, T::kK * blocks, T::kThreads, T::kSharedBytes, loads, loads, 2 * loads, blocks,
      T::kBlocksPerSm, T::kLeastK, T::kNeeds >= 90};
  return {T::kGuard == Guard::kNone ? Role::kKernel : Role::kGuarded, variant, symbol, kernel, T::kGuard, block,
      T::kNeeds, rate};
}

// The last number of a row is its rate, which sgemm() chooses by. day44-matmul/rates.py takes it from the recorded run:
// the best that the kernel did at any shape, as a share of the FMA ceiling, over the share of the SMs that had work.
vector<Row> makeRows() {
  // What nvcc makes of the loads of rungs 3 to 6, for an FMA: loads, and wavefronts of loads and stores together,
  // counted on an H200 (profile/h200/day44-counters*.csv). It joins loads of neighbouring steps, and banks conflict.
  constexpr double kSquareLoads = 1.0 * (kThreadM + kThreadN) / (kThreadM * kThreadN);
  return {
      earlyRow("1 uncoalesced", KERNEL(matmulUncoalesced), {kSide, kSide, 1, kSquareThreads}),
      earlyRow("2 coalesced", KERNEL(matmulCoalesced), {kSide, kSide, 1, kSquareThreads}),
      earlyRow("3 shared tile", KERNEL(matmulSharedTiled), {kSide, kSide, kSide, kSquareThreads, 0, 2, 1.25, 1.63}),
      earlyRow("4 column of 8", KERNEL(matmulRegTile1d),
          {kColumnM, kColumnN, kTileK, kColumnThreads, 0, (kThreadM + 1.0) / kThreadM, 0.375, 0.66}),
      earlyRow("5 square of 8 x 8", KERNEL(matmulRegTile2d),
          {kTileM, kTileN, kTileK, kSquareThreads, 0, kSquareLoads, 0.094, 0.39}),
      earlyRow("6 float4", KERNEL(matmulRegTile2dVec4),
          {kTileM, kTileN, kTileK, kSquareThreads, 0, kSquareLoads / 4, 0.0625, 0.34}),
      rowOf<WarpTiles>("7 warp tiles", KERNEL(matmulWarpTiles)),
      rowOf<DoubleBuffered>("8 double buffers", KERNEL(matmulDoubleBuffered), 0.797),
      rowOf<WideThreads>("9 8 x 16 outputs", KERNEL(matmulWideThreads), 0.815),
      rowOf<Balanced>("10 banks and balance", KERNEL(matmulBalanced), 0.82),
      rowOf<SplitK>("11 split-K in a block", KERNEL(matmulSplitK), 0.725),
      rowOf<SmallTiles>("12 small tiles", KERNEL(matmulSmallTiles), 0.541),
      rowOf<AsyncWide>("13 8 x 16, cp.async", KERNEL(matmulAsyncWide), 0.831),
      rowOf<TwoAhead>("14 two tiles ahead", KERNEL(matmulTwoAhead), 0.694),
      rowOf<Cluster>("15 clusters", KERNEL(matmulCluster), 0.594),
      rowOf<GuardedVectors>("guarded, float4", KERNEL(matmulGuardedVectors), 0.81),
      rowOf<Packed>("packed", KERNEL(matmulPacked), 0.769),
      rowOf<GuardedSmall>("guarded, small", KERNEL(matmulGuardedSmall), 0.577),
      {Role::kGuarded, "few columns", KERNEL(matmulFewColumns), Guard::kFewColumns, {1, kFew, 1, kFewThreads}, 0, 0.11},
      {Role::kDispatch, "sgemm()", "sgemm"},
      {Role::kLibrary, "cuBLAS", "cublasGemmEx"},
      {Role::kLibraryPedantic, "cuBLAS, pedantic", "cublasGemmEx"},
  };
}

// Device memory for what a product needs beside its matrices; one product at a time may use it.
struct Workspace {
  float* sums;  // LastWave::sums
  unsigned* arrived;
  float* packed;  // copies of A and B with aligned rows
  size_t packedFloats;
};

// Of a loop of FMAs beside shared loads: the loads for an FMA, and the time of one over that of an FMA alone.
struct BesideLoads {
  double loadsPerFma, time;
};

// What a run works with, and what it found out about the card.
struct Context {
  LoadedCode code;
  int sms;
  double maxClockMhz;
  cudaStream_t stream;
  cublasHandle_t cublas;
  vector<Row> rows;
  Workspace work = {};
  bool cutsOften = false;  // checks alone: even small products have tiles that are cut, and some that are not
  string notFp32 = "";  // the environment variable, if one is set, that lets cuBLAS compute in another format
  double peak = HUGE_VAL;  // the FMA ceiling, GFLOP/s
  vector<BesideLoads> beside = {};  // what shared loads leave of it
};

const Row& onlyRow(Role role, const Context& context) {
  return *std::find_if(context.rows.begin(), context.rows.end(), [=](const Row& row) { return row.role == role; });
}

// The code decides and not the card: what the driver translates for a newer card still lacks what that card adds.
bool runsOn(const Row& row, const Context& context) { return context.code.offers(row.needs); }
bool cardCould(const Row& row, const Context& context) { return row.needs <= context.code.card; }

// Names the kernels that this card could run and the loaded code cannot, and the flag that gives them; "" if none.
string leftOut(const Context& context) {
  vector<LeftOut> all;
  for (const Row& row : context.rows)
    if (!runsOn(row, context) && cardCould(row, context)) all.push_back({row.variant, row.needs});
  return leftOutText(context.code, all);
}

bool isAligned(const Gemm& g) {
  return (uintptr_t(g.a) | uintptr_t(g.b) | uintptr_t(g.c)) % 16 == 0 && (g.lda | g.ldb | g.ldc | g.k | g.n) % 4 == 0;
}
int roundUp(int value, int to) { return ceilDivide(value, to) * to; }

constexpr int kFewSlots = 3;  // blocks in a wave, where Context::cutsOften

// A and B as Guard::kPacked wants them: rows of whole tiles.
size_t packedFloats(const Row& row, const Shape& g) {
  const int depth = roundUp(g.k, row.block.k);
  return rows(roundUp(g.m, row.block.m), depth) + rows(depth, roundUp(g.n, row.block.n));
}

// How many floats and counters the rows need, for any shape up to the first of kTimedRagged.
struct WorkspaceSize {
  size_t sums = 0, arrived = 0, packed = 0;
  size_t bytes() const { return sizeof(float) * (sums + packed) + sizeof(unsigned) * arrived; }
};
WorkspaceSize workspaceOf(const Context& context) {
  WorkspaceSize size;
  for (const Row& row : context.rows) {
    const size_t slots = row.block.leastK > 0 ? std::max(kFewSlots, context.sms * row.block.perSm) : 0;
    size.sums = std::max(size.sums, 2 * slots * row.block.m * row.block.n);
    size.arrived = std::max(size.arrived, slots);
    if (row.guard == Guard::kPacked) size.packed = packedFloats(row, kTimedRagged[0]);
  }
  return size;
}

// Which tiles have a block of their own, and how many blocks share the others; see multiplyBalanced.
struct Shares {
  int whole, parts, tiles;
};
Shares sharesOf(const Row& row, const Context& context, const Gemm& g) {
  const int tiles = ceilDivide(g.m, row.block.m) * ceilDivide(g.n, row.block.n);
  if (row.block.leastK == 0) return {tiles, 0, tiles};
  const int slots = context.cutsOften ? kFewSlots : context.sms * row.block.perSm;
  const int leastK = context.cutsOften ? row.block.k : row.block.leastK;
  const int left = tiles % slots, parts = int(std::min<int64_t>(slots, int64_t(left) * g.k / leastK));
  return parts > left ? Shares{tiles - left, parts, tiles} : Shares{tiles, 0, tiles};
}

dim3 gridOf(const Row& row, const Context& context, const Gemm& g) {
  const auto [whole, parts, tiles] = sharesOf(row, context, g);
  if (row.block.leastK > 0) return dim3(whole + parts);
  return dim3(ceilDivide(g.n, row.block.n), ceilDivide(g.m, row.block.m), row.block.blocks);
}

bool fits(const Row& row, const Context& context, const Gemm& g) {
  constexpr unsigned kMostRows = 65535;  // of blocks in a grid
  if (row.guard == Guard::kFewColumns && g.n > kFew) return false;
  if (isKernel(row) && gridOf(row, context, g).y > kMostRows) return false;
  if (row.guard == Guard::kPacked) return packedFloats(row, {g.m, g.n, g.k}) <= context.work.packedFloats;
  if (row.guard == Guard::kScalars || row.guard == Guard::kFewColumns) return true;
  const bool whole = g.m % row.block.m == 0 && g.n % row.block.n == 0 && g.k % row.block.k == 0;
  return isAligned(g) && (row.guard == Guard::kVectors || whole);
}

// The share of SMs with work, over the run: the last wave is not full where it is not cut, exchanging the sums of a cut
// tile takes as long as kExchangeK steps of k, tiles hang over the matrix.
constexpr int kExchangeK = 256;  // from matmulGuardedSmall at 512 and matmulBalanced at 4096 on an H200
double waveShare(const Row& row, const Context& context, const Gemm& g) {
  const auto [whole, parts, tiles] = sharesOf(row, context, g);
  const auto waves = [&](double blocks) { return std::ceil(blocks / context.sms); };
  const double inside = 1.0 * g.m / roundUp(g.m, row.block.m) * g.n / roundUp(g.n, row.block.n);
  const double cut = parts == 0 ? 0 : waves(parts) * (1.0 * (tiles - whole) / parts + 1.0 * kExchangeK / g.k);
  return inside * tiles * row.block.blocks / context.sms / (waves(1.0 * whole * row.block.blocks) + cut);
}

// The rule of the dispatch: of the kernels that run here and take the shape, the one with the largest rate x share of
// SMs with work.
double score(const Row& row, const Context& context, const Gemm& g) {
  return isKernel(row) && runsOn(row, context) && fits(row, context, g) ? row.rate * waveShare(row, context, g) : 0;
}
const Row& choose(const Context& context, const Gemm& g) {
  const auto less = [&](const Row& x, const Row& y) { return score(x, context, g) < score(y, context, g); };
  return *std::max_element(context.rows.begin(), context.rows.end(), less);
}

// The same product of copies of A and B whose rows are aligned and whole tiles.
Gemm pack(const Gemm& g, const Row& row, const Context& context) {
  const int depth = roundUp(g.k, row.block.k), height = roundUp(g.m, row.block.m), width = roundUp(g.n, row.block.n);
  float *const a = context.work.packed, *const b = a + rows(height, depth);
  const auto copy = [&](const float* from, int m, int n, int ld, float* to, int height, int width) {
    const dim3 grid(height, ceilDivide(width, 4 * kPackThreads));
    packMatrix<<<grid, kPackThreads, 0, context.stream>>>(from, m, n, ld, to, width);
  };
  copy(g.a, g.m, g.k, g.lda, a, height, depth);
  copy(g.b, g.k, g.n, g.ldb, b, depth, width);
  Gemm packed = g;
  packed.a = a;
  packed.lda = depth;
  packed.b = b;
  packed.ldb = width;
  return packed;
}

void runKernel(const Row& row, const Gemm& product, const Context& context) {
  Gemm g = row.guard == Guard::kPacked ? pack(product, row, context) : product;
  g.last = {sharesOf(row, context, g).whole, context.work.sums, context.work.arrived};
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {gridOf(row, context, g), dim3(row.block.threads), size_t(row.block.sharedBytes),
      context.stream, &overlap, row.block.overlaps ? 1u : 0u};
  CUDA_CHECK(cudaLaunchKernelEx(&config, row.kernel, g));
}

// The product that other code would call, sgemm({m, n, k, a, lda, b, ldb, c, ldc, alpha}, context): any shape, any
// card, whatever the code was compiled for.
void sgemm(const Gemm& g, const Context& context) { runKernel(choose(context, g), g, context); }

void checkCublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Stop{kExitFailed, string(call) + " failed with cuBLAS status " + to_string(status)};
}
Owned<cublasHandle_t> createCublas(cudaStream_t stream) {
  cublasHandle_t handle = nullptr;
  checkCublas(cublasCreate(&handle), "cublasCreate");
  const auto destroy = [](cublasHandle_t it) {
    return cublasDestroy(it) == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
  };
  Owned<cublasHandle_t> cublas(handle, destroy, "cublasDestroy");
  checkCublas(cublasSetStream(cublas, stream), "cublasSetStream");
  return cublas;
}

// cuBLAS is column-major, where our matrices read as their transposes: it is told to compute C^T = B^T A^T.
void multiplyByCublas(const Gemm& g, const Context& context, cublasComputeType_t type) {
  const float zero = 0;
  checkCublas(cublasGemmEx(context.cublas, CUBLAS_OP_N, CUBLAS_OP_N, g.n, g.m, g.k, &g.alpha, g.b, CUDA_R_32F, g.ldb,
                  g.a, CUDA_R_32F, g.lda, &zero, g.c, CUDA_R_32F, g.ldc, type, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

// One product by any row.
void multiply(const Row& row, const Gemm& g, const Context& context) {
  switch (row.role) {
    case Role::kKernel:
    case Role::kGuarded:
      return runKernel(row, g, context);
    case Role::kDispatch:
      return sgemm(g, context);
    case Role::kLibrary:
      return multiplyByCublas(g, context, CUBLAS_COMPUTE_32F);
    case Role::kLibraryPedantic:
      return multiplyByCublas(g, context, CUBLAS_COMPUTE_32F_PEDANTIC);
  }
}

Context makeContext(const Device& device, cudaStream_t stream, cublasHandle_t cublas) {
  // The CPU build has asynchronous copies, as code for sm_80, and no clusters, whatever card it stands in for.
  const LoadedCode code = kOnCpu && !device.code.translated() ? LoadedCode{80, 80, 80} : device.code;
  Context context = {code, device.properties.multiProcessorCount, device.maxClockMhz, stream, cublas, makeRows()};
  for (const char* name : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"}) {
    if (std::getenv(name) == nullptr) continue;
    fprintf(stderr, "warning: %s is set, so cuBLAS may not compute in FP32\n", name);
    context.notFp32 = name;
  }
  return context;
}

// What the compiler made of a kernel. Local memory is a thread's stack and what was spilled from registers, together.
struct Compiled {
  const Row* row;
  int blocksPerSm;  // 0: it does not run here, for the reason that `lacks` gives
  double occupancy;  // share of an SM's threads, in percent
  cudaFuncAttributes attributes;
  string lacks;
};

// Lets the kernels have their shared memory, and looks at each.
vector<Compiled> prepareKernels(const Context& context, int threadsPerSm) {
  vector<Compiled> all;
  for (const Row& row : context.rows) {
    if (!isKernel(row)) continue;
    Compiled is = {&row, 0, 0, {}, ""};
    const int threads = row.block.threads, sharedBytes = row.block.sharedBytes;
    if (runsOn(row, context)) {
      CUDA_CHECK(cudaFuncSetAttribute(row.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sharedBytes));
      CUDA_CHECK(cudaFuncGetAttributes(&is.attributes, row.kernel));
      CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&is.blocksPerSm, row.kernel, threads, sharedBytes));
      is.occupancy = 100.0 * is.blocksPerSm * threads / threadsPerSm;
    } else {
      is.lacks = "needs sm_" + to_string(row.needs) + (cardCould(row, context) ? " code" : "");
    }
    all.push_back(is);
  }
  return all;
}

// ---- Inputs, references and checks

// Under compute-sanitizer kernels are 50 to 100 times slower. Build for it with the card's own -arch and with
// -DCUDA_DAYS_SANITIZE: the short list of shapes passes every barrier and every guard.
//   race:  compute-sanitizer --tool racecheck --kernel-name kernel_substring=matmul ./matmul_registers --check

constexpr int kLargestOnCpu = 512;
constexpr int kLargest = kOnCpu ? kLargestOnCpu : kSizes[std::size(kSizes) - 1];

constexpr int kAllUpTo = 2048;  // uniform inputs: every element against double; above,
constexpr int kRandomRows = 4;  // so many whole rows, and the fast kernels alone

// Integers: products in [-6, 6], so every sum is exact in float, in any order. A repeats after 7
// rows, so the first 7 rows of C hold all of it, exactly, at any size. No tile or pitch is a multiple
// of 7 or 5: what comes from a wrong place has another value.
constexpr int kPeriod = 7;
float integerA(int row, int column) { return float((row + 2 * column) % kPeriod - 3); }
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

using Element = float (*)(int row, int column);
void fillRows(float* first, int height, int width, int ld, Element element) {
  inParallel(height, [=](int row) {
    for (int column = 0; column < width; ++column) first[rows(row, ld) + column] = element(row, column);
  });
}

// `gap` floats of NaN, which nobody may use, lie between rows, and before the first unless that would misalign all.
struct Matrix {
  int height, width, gap;
  int ld = width + gap;
  int offset = gap % 4;
  PinnedBuffer<float> host{rows(height, ld) + offset};
  DeviceBuffer<float> device{host.count()};

  float* at(int row) const { return host + offset + rows(row, ld); }
  float* onDevice() const { return device + offset; }
  void fill(Element element, cudaStream_t stream) {
    if (gap > 0) std::fill_n(&host[0], host.count(), std::nanf(""));
    fillRows(at(0), height, width, ld, element);
    upload(device, host, device.bytes(), stream);
  }
};

string shapeText(const Shape& s) { return to_string(s.m) + "x" + to_string(s.n) + "x" + to_string(s.k); }

bool takesPart(const Row& row, const Context& context, const Gemm& g) {
  if (!runsOn(row, context) || !fits(row, context, g)) return false;
  const bool cubed = g.m == g.n && g.n == g.k;
  return g.m <= kAllUpTo || row.rate >= kFastRate || row.role == Role::kDispatch || row.role == Role::kLibrary ||
      (row.role == Role::kGuarded && !cubed);
}

// The matrices of a product that is checked, and what must be in C.
struct Trial {
  Shape shape;
  int gap;
  bool integers = true;
  Matrix a{shape.m, shape.k, gap}, b{shape.k, shape.n, gap}, c{shape.m, shape.n, gap};
  float alpha = gap > 0 ? -2.0f : 1.0f;  // exact in any order, and a kernel that forgets it fails
  Gemm g = {shape.m, shape.n, shape.k, a.onDevice(), a.ld, b.onDevice(), b.ld, c.onDevice(), c.ld, alpha};
  vector<vector<double>> want = {};  // rows of A B; of integers the first kPeriod, which repeat

  bool comparesAll() const { return integers || shape.m <= kAllUpTo; }
  int compared() const { return comparesAll() ? shape.m : kRandomRows; }  // rows of C
  int rowAt(int i) const { return comparesAll() ? i : int((uniform<3>(i, 0) + 1) / 2 * shape.m); }

  void fill(bool withIntegers, cudaStream_t stream) {
    integers = withIntegers;
    a.fill(integers ? integerA : uniform<1>, stream);
    b.fill(integers ? integerB : uniform<2>, stream);
  }
  void computeReference() {
    want.assign(integers ? std::min(shape.m, kPeriod) : compared(), {});
    inParallel(int(want.size()), [this](int i) {
      want[i].assign(shape.n, 0);
      for (int p = 0; p < shape.k; ++p)
        for (int column = 0; column < shape.n; ++column) want[i][column] += double(a.at(rowAt(i))[p]) * b.at(p)[column];
    });
  }
  string name() const {
    return shapeText(shape) + (integers ? " integer" : " uniform") +
        (gap == 0              ? ""
                : isAligned(g) ? " aligned"
                               : " gaps");
  }
};

// The errors of uniform inputs, by variant and shape: the largest of C over its typical value, sqrt(k) / 3.
using Errors = std::map<std::pair<string, string>, double>;

// Checks one row. C is poisoned before: what is not written fails, and what is written outside.
void checkRow(const Context& context, const Row& row, Trial& t, Checks& checks, Errors& errors) {
  poison(t.c.device, t.c.device.bytes(), context.stream);
  multiply(row, t.g, context);
  finish(row.symbol, context.stream);
  download(t.c.host, t.c.device, t.c.device.bytes(), context.stream);

  const size_t columns = t.shape.n;
  vector<float> copied;  // of the rows that are compared, where they do not lie one after the other
  if (t.gap > 0 || !t.comparesAll()) {
    copied.resize(t.compared() * columns);
    for (int i = 0; i < t.compared(); ++i) {
      std::copy_n(t.c.at(t.rowAt(i)), columns, &copied[i * columns]);
      if (t.gap > 0) std::memset(t.c.at(t.rowAt(i)), 0xFF, 4 * columns);
    }
  }
  const auto expected = [&](size_t i, size_t column) { return t.alpha * t.want[t.integers ? i % kPeriod : i][column]; };
  const double allowed = t.integers ? 0 : std::fabs(t.alpha) * allowedError(t.shape.k);
  const float* got = copied.empty() ? &t.c.host[0] : copied.data();
  Verdict verdict = compare(got, t.compared(), columns, 0, allowed, expected);
  if (!t.integers && t.gap == 0)
    errors[{row.variant, shapeText(t.shape)}] = verdict.worst * allowed / (std::sqrt(t.shape.k) / 3);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&t.c.host[0]);
  if (t.gap > 0 && std::count(bytes, bytes + t.c.device.bytes(), 0xFF) != std::ptrdiff_t(t.c.device.bytes())) {
    verdict.message += " (wrote outside of C)";
    ++verdict.wrong;
  }
  checks.add({kProgram.day, row.variant, row.symbol, t.name(), verdict});
}

// Checks every row that takes the shape, with integers, then with uniform numbers.
void checkShape(const Context& context, const Shape& s, int gap, Checks& checks, Errors& errors) {
  Trial trial = {s, gap};
  for (const bool integers : {true, false}) {
    trial.fill(integers, context.stream);
    trial.computeReference();
    for (const Row& row : context.rows)
      if (takesPart(row, context, trial.g)) checkRow(context, row, trial, checks, errors);
  }
}

// One launch of every row, for a profiler.
void profileShape(const Context& context, const Shape& s) {
  Trial trial = {s, 0};
  trial.fill(true, context.stream);
  for (const Row& row : context.rows) {
    if (!takesPart(row, context, trial.g)) continue;
    poison(trial.c.device, trial.c.device.bytes(), context.stream);
    multiply(row, trial.g, context);
    finish(row.symbol, context.stream);
  }
}

// ---- Measuring: the FMA ceiling

// What all lanes of the card can do at a clock, in GFLOP/s.
double lanesAt(double megahertz, const Context& context) {
  return 2e-3 * megahertz * fp32LanesPerSm(context.code.card) * context.sms;
}

// A loop of FMAs: the ceiling itself, or shared loads beside it.
struct FmaLoop {
  const char *variant, *symbol;
  void (*kernel)(float*, ClockSpan*, float, float);
  int blocksPerSm;  // 0: as many as fit
  double fmas;  // of a thread
  int loads;  // of 128 bits, a step of kBesideM x kBesideN FMAs
};
constexpr FmaLoop kFmaLoops[] = {
    {"fma-peak", KERNEL(fmaPeak), 0, kPeakFmas, 0},
    {"fma-loads-0", KERNEL(fmaLoads0), 1, kBesideSteps* kBesideFmas, 0},
    {"fma-loads-2", KERNEL(fmaLoads2), 1, kBesideSteps* kBesideFmas, 2},
    {"fma-loads-4", KERNEL(fmaLoads4), 1, kBesideSteps* kBesideFmas, 4},
    {"fma-loads-6", KERNEL(fmaLoads6), 1, kBesideSteps* kBesideFmas, 6},
};

// Its launch, and what that writes.
struct Peak {
  const FmaLoop* loop;
  int blocks;
  DeviceBuffer<float> out{size_t(blocks) * kPeakBlock};
  DeviceBuffer<ClockSpan> span{1};
  Launch run = launch(loop->kernel, blocks, kPeakBlock, out, span, kPeakA, kPeakB);

  Peak(const FmaLoop& of, int sms, int threadsPerSm)
      : loop(&of), blocks(kOnCpu ? 1 : sms * (of.blocksPerSm > 0 ? of.blocksPerSm : threadsPerSm / kPeakBlock)) {}
};

// What a loop of FMAs reached.
struct Ceiling {
  const FmaLoop* loop;
  Timing timing;
  double flop, gflops;
  double clockMhz;  // while it ran
  double theory;  // what all lanes give at that clock, GFLOP/s
};

// One launch, for a profiler or before a check.
void runPeak(const Context& context, const Peak& peak) {
  poison(peak.out, peak.out.bytes(), context.stream);
  peak.run(context.stream);
  finish(peak.loop->symbol, context.stream);
}

// What a thread of the loop adds up, in that order.
vector<float> expectedTerms(const FmaLoop& loop) {
  vector<float> terms(loop.blocksPerSm == 0 ? kChains : kBesideFmas);
  if (loop.blocksPerSm == 0) {
    for (int c = 0; c < kChains; ++c) {
      terms[c] = float(c);
      for (int step = 0; step < kPeakFmas / kChains; ++step) terms[c] = fmaf(terms[c], kPeakA, kPeakB);
    }
    return terms;
  }
  float operand[2][kBesideM + kBesideN];
  for (int i = 0; i < kBesideM + kBesideN; ++i) operand[0][i] = operand[1][i] = besideValue(i / 4, kPeakA);
  for (int step = 0; step < kBesideSteps; ++step) {
    for (int load = 0; load < loop.loads; ++load)
      std::fill_n(&operand[(step + 1) % 2][4 * load], 4, besideValue(step % kBesideBody * loop.loads + load, kPeakA));
    for (int i = 0; i < kBesideFmas; ++i)
      terms[i] = fmaf(operand[step % 2][i / kBesideN], operand[step % 2][kBesideM + i % kBesideN], terms[i]);
  }
  return terms;
}

// Checks the loop against the CPU. Returns 1 for a failure.
int checkPeak(const Context& context, const Peak& peak, Checks& checks) {
  runPeak(context, peak);
  const PinnedBuffer<float> got(peak.out.count());
  download(got, peak.out, peak.out.bytes(), context.stream);
  const vector<float> terms = expectedTerms(*peak.loop);
  const auto expected = [&](size_t, size_t thread) {
    return std::accumulate(terms.begin(), terms.end(), float(thread));
  };
  const Verdict verdict = compare(&got[0], 1, got.count(), 0, 0, expected);
  return checks.add({kProgram.day, peak.loop->variant, peak.loop->symbol, to_string(got.count()), verdict});
}

// Times a loop, and keeps in the context what bounds the rates of all rows, or what shared loads cost.
Ceiling measurePeak(Context& context, const Peak& peak) {
  const FmaLoop& loop = *peak.loop;
  const Timing timing = measure(context.stream, peak.run);
  const PinnedBuffer<ClockSpan> spans(1);
  download(spans, peak.span, peak.span.bytes(), context.stream);
  const double clockMhz = spans[0].megahertz(), theory = lanesAt(clockMhz, context);
  const double flop = 2.0 * loop.fmas * peak.out.count(), gflops = gigaPerSecond(flop, timing.ms);
  requirePossible(loop.symbol, gflops, theory, "GFLOP/s");
  context.maxClockMhz = std::max(context.maxClockMhz, clockMhz);  // some cards run faster than they promise
  if (loop.blocksPerSm == 0)
    context.peak = gflops;
  else
    context.beside.push_back({1.0 * loop.loads / kBesideFmas, context.peak / gflops});
  return {&loop, timing, flop, gflops, clockMhz, theory};
}

// ---- Measuring: the products

constexpr double kBudgetSeconds = 15;  // for all sizes, each of which is taken to cost
constexpr double kProductsPerSize = 700;  // so many products at the FMA ceiling
constexpr int kFewSamples = 5;  // where kSamples would cost too much

constexpr double kOverL2 = 2;  // timed buffers rotate through this much, so none waits in L2
constexpr int kGraphUpTo = 512;  // timed in replays of a graph of
constexpr int kGraphLaunches = 100;  // launches, since launching takes as long as the work

// The shapes that are checked and timed, each with its samples.
struct Plan {
  vector<std::pair<Shape, int>> shapes;
  string said;
};

Plan makePlan(double peak, bool timed) {
  Plan plan;
  double left = kBudgetSeconds;
  for (const int n : kSizes) {
    double cost = kProductsPerSize * 2e-9 * n * n * n / peak;
    const int samples = cost <= left ? kSamples : kFewSamples;
    cost *= samples / double(kSamples);
    const bool runs = cost <= left && n <= kLargest;
    plan.said += " " + to_string(n) + (!runs ? " left out" : timed ? " x " + to_string(samples) : "");
    if (!runs) continue;
    plan.shapes.push_back({{n, n, n}, samples});
    left -= cost;
  }
  if (plan.shapes.size() == std::size(kSizes))
    for (const Shape& shape : kTimedRagged) plan.shapes.push_back({shape, kSamples});
  return plan;
}

// The model: what the SMs that idle in the last wave and the shared loads leave of the FMA ceiling. What a load takes
// of the issue slots was measured: on a straight line from the loop without loads to the one with most (fma-loads-*).
// And an SM serves one wavefront of shared memory a clock. 0 for a kernel without shared memory.
double modelShare(const Row& row, const Context& context, const Gemm& g) {
  if (row.block.wavefronts == 0) return 0;
  const BesideLoads &none = context.beside.front(), &most = context.beside.back();
  const double issue = none.time + (most.time - none.time) * row.block.issuedLoads / most.loadsPerFma;
  const double pipe = row.block.wavefronts * fp32LanesPerSm(context.code.card) / 32;
  return waveShare(row, context, g) / std::max(issue, pipe);
}

// kGraphLaunches launches as one, which replays a graph of them.
Launch replay(cudaStream_t stream, const Launch& launch) {
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t instance = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < kGraphLaunches; ++i) launch(stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &captured));
  const Owned<cudaGraph_t> graph(captured, cudaGraphDestroy, "cudaGraphDestroy");
  CUDA_CHECK(cudaGraphInstantiateWithFlags(&instance, graph, 0));
  // A Launch can be copied, and its copies share the instance.
  const auto owner = std::make_shared<Owned<cudaGraphExec_t>>(instance, cudaGraphExecDestroy, "cudaGraphExecDestroy");
  return [owner](cudaStream_t s) { CUDA_CHECK(cudaGraphLaunch(*owner, s)); };
}

// No FP32 product is faster than all lanes at the card's highest clock: a row above that ends the run. Only cuBLAS may
// be, where the user has it compute in another format; then the text that is returned says so.
string explainRate(const Row& row, const Gemm& g, double gflops, const Context& context) {
  const double bound = lanesAt(context.maxClockMhz, context);
  if (isLibrary(row) && !context.notFp32.empty())
    return gflops > bound ? "above all FP32 lanes: " + context.notFp32 + " is set" : "";
  requirePossible(row.variant + (" at " + shapeText({g.m, g.n, g.k})), gflops, bound, "GFLOP/s");
  return "";
}

// What was measured of a row at one shape, in turn with cuBLAS, and what follows from it.
struct Product {
  const Row *row, *ran;  // ran: the kernel that sgemm() chose, or the row itself
  Gemm g;
  Timing timing, cublas;
  double flop, gflops, cublasPercent, fmaPercent;
  double wavePercent, modelPercent, floatsPerOutput;  // the latter are requested of global memory; only of a kernel
  double error;
  double gain = 0;  // over the best rung above; 0: there is none, or the row is no kernel
  string note = "";

  // FLOP per byte that is requested of global memory.
  double intensity() const { return g.k / (2 * floatsPerOutput); }
};

// `looped`: launched in a loop, where the other rows of this shape are replayed.
Product evaluate(const Context& context, const Row& row, const Gemm& g, bool looped, const vector<Timing>& both,
    const Errors& errors) {
  const Timing &timing = both[0], &cublas = both[1];
  const Row& ran = row.role == Role::kDispatch ? choose(context, g) : row;
  const double flop = 2.0 * g.m * g.n * g.k, gflops = gigaPerSecond(flop, timing.ms);
  Product is = {&row, &ran, g, timing, cublas, flop, gflops, 100 * cublas.ms / timing.ms, 100 * gflops / context.peak,
      0, 0, 0, errors.at({row.variant, shapeText({g.m, g.n, g.k})})};
  if (isKernel(ran)) {
    is.wavePercent = 100 * waveShare(ran, context, g);
    is.modelPercent = 100 * modelShare(ran, context, g);
    is.floatsPerOutput = 1.0 * g.k / std::min(ran.block.n, g.n) + 1.0 * g.k / std::min(ran.block.m, g.m) + 1;
  }
  // The row's partner must be possible too.
  explainRate(onlyRow(Role::kLibrary, context), g, gigaPerSecond(flop, cublas.ms), context);
  for (const string& part : {string(row.role == Role::kDispatch ? ran.variant : ""),
           string(looped ? "launch loop" : ""), explainRate(row, g, gflops, context)})
    if (!part.empty()) is.note += (is.note.empty() ? "" : ", ") + part;
  return is;
}

// Operands of a shape that rotate through more memory than L2 holds. Every set holds the same numbers.
class Rotation {
 public:
  Rotation(const Shape& s, double bytes, cudaStream_t stream) : shape_(s) {
    const PinnedBuffer<float> a(rows(s.m, s.k)), b(rows(s.k, s.n));
    fillRows(a, s.m, s.k, s.k, uniform<1>);
    fillRows(b, s.k, s.n, s.n, uniform<2>);
    for (double held = 0; held < bytes; held += a_.back().bytes() + b_.back().bytes() + c_.back().bytes()) {
      a_.emplace_back(a.count());
      b_.emplace_back(b.count());
      c_.emplace_back(rows(s.m, s.n));
      upload(a_.back(), a, a_.back().bytes(), stream);
      upload(b_.back(), b, b_.back().bytes(), stream);
    }
  }
  Gemm next() {
    set_ = (set_ + 1) % a_.size();
    return {shape_.m, shape_.n, shape_.k, a_[set_], shape_.k, b_[set_], shape_.n, c_[set_], shape_.n, 1};
  }

 private:
  const Shape shape_;
  vector<DeviceBuffer<float>> a_, b_, c_;
  size_t set_ = 0;
};

// Times the rows that take the shape, each strictly in turn with cuBLAS. Each goes into the table when it is timed.
vector<Product> timeShape(const Context& context, const Shape& s, int samples, double bytes, const Errors& errors,
    const Table<Product>& table) {
  Rotation operands(s, bytes, context.stream);
  const Gemm g = operands.next();
  const Row& library = onlyRow(Role::kLibrary, context);
  const Launch theirs = [&](cudaStream_t) { multiply(library, operands.next(), context); };
  const bool replayed = s.m <= kGraphUpTo;
  double best = 0;
  vector<Product> all;
  for (const Row& row : context.rows) {
    if (!takesPart(row, context, g)) continue;
    const Launch ours = [&](cudaStream_t) { multiply(row, operands.next(), context); };
    const auto show = [&](bool looped, const vector<Timing>& both) {
      Product product = evaluate(context, row, g, looped, both, errors);
      if (isKernel(row) && best > 0) product.gain = product.gflops / best;
      if (row.role == Role::kKernel) best = std::max(best, product.gflops);
      table.add(product);
      all.push_back(product);
    };
    if (replayed) {
      const vector<Launch> pair = {replay(context.stream, ours), replay(context.stream, theirs)};
      show(false, measureInTurn(context.stream, pair, samples, kGraphLaunches));
    }
    if (!replayed || !isKernel(row)) show(replayed, measureInTurn(context.stream, {ours, theirs}, samples));
    CUDA_CHECK(cudaGetLastError());
  }
  return all;
}

// ---- Report

vector<Column<Compiled>> compiledColumns() {
  const auto ifRuns = [](auto value) {
    return [=](const Compiled& c) { return c.blocksPerSm == 0 ? Value() : Value(value(c)); };
  };
  return {
      {"variant", "", -20, 0, "", [](auto& c) { return c.row->variant; }},
      {"kernel", "", -20, 0, "", [](auto& c) { return c.row->symbol; }},
      {"threads", "", 7, 0, "", [](auto& c) { return c.row->block.threads; }},
      {"registers", "", 9, 0, "", ifRuns([](auto& c) { return c.attributes.numRegs; })},
      {"local", "B", 7, 0, "", ifRuns([](auto& c) { return c.attributes.localSizeBytes; })},
      {"shared", "B", 8, 0, "",
          ifRuns([](auto& c) { return c.attributes.sharedSizeBytes + c.row->block.sharedBytes; })},
      {"blocks", "per SM", 6, 0, "", ifRuns([](auto& c) { return c.blocksPerSm; })},
      {"occupancy", "%", 9, 1, "", ifRuns([](auto& c) { return c.occupancy; })},
      {"", "", -1, 0, "", [](auto& c) { return c.lacks; }},
  };
}

vector<Column<Ceiling>> ceilingColumns() {
  return join<Ceiling>({
      {
          {"", "", 0, 0, "day", [](auto&) { return kProgram.day; }},
          {"ceiling", "", -20, 0, "variant", [](auto& c) { return c.loop->variant; }},
          {"", "", 0, 0, "symbol", [](auto& c) { return c.loop->symbol; }},
      },
      timingColumns<Ceiling>([](const Ceiling& c) { return c.timing; }),
      {
          {"", "", 0, 0, "flop", [](auto& c) { return int64_t(c.flop); }},
          {"", "", 0, 0, "requested_bytes", [](auto&) { return 0; }},
          {"", "", 0, 0, "metric", [](auto&) { return "gflops"; }},
          {"rate", "GFLOP/s", 9, 0, "value", [](auto& c) { return c.gflops; }},
          {"", "", 0, 0, "unit", [](auto&) { return "GFLOP/s"; }},
          {"clock", "MHz", 9, 0, "clock_mhz", [](auto& c) { return c.clockMhz; }},
          {"all lanes", "GFLOP/s", 9, 0, "theory", [](auto& c) { return c.theory; }},
          {"of them", "%", 9, 1, "", [](auto& c) { return 100 * c.gflops / c.theory; }},
      },
  });
}

vector<Column<Product>> productColumns() {
  const auto ofKernel = [](auto value) {
    return [=](const Product& p) { return isKernel(*p.ran) ? Value(value(p)) : Value(); };
  };
  return join<Product>({
      {
          {"", "", 0, 0, "day", [](auto&) { return kProgram.day; }},
          {"variant", "", -20, 0, "variant", [](auto& p) { return p.row->variant; }},
          {"", "", 0, 0, "symbol", [](auto& p) { return p.row->symbol; }},
          {"", "", 0, 0, "m", [](auto& p) { return p.g.m; }},
          {"", "", 0, 0, "n", [](auto& p) { return p.g.n; }},
          {"", "", 0, 0, "k", [](auto& p) { return p.g.k; }},
      },
      timingColumns<Product>([](const Product& p) { return p.timing; }),
      {
          {"", "", 0, 0, "flop", [](auto& p) { return int64_t(p.flop); }},
          {"", "", 0, 0, "metric", [](auto&) { return "gflops"; }},
          {"GFLOP/s", "", 8, 0, "value", [](auto& p) { return p.gflops; }},
          {"", "", 0, 0, "unit", [](auto&) { return "GFLOP/s"; }},
          {"", "", 0, 0, "cublas_ms", [](auto& p) { return p.cublas.ms; }},
          {"cuBLAS", "%", 8, 1, "cublas_percent", [](auto& p) { return p.cublasPercent; }},
          {"FMA", "%", 6, 1, "fma_percent", [](auto& p) { return p.fmaPercent; }},
          {"model", "%", 7, 1, "model_percent",
              [](auto& p) { return p.modelPercent > 0 ? Value(p.modelPercent) : Value(); }},
          {"", "", 0, 0, "wave_percent", ofKernel([](auto& p) { return p.wavePercent; })},
          {"floats/C", "", 8, 1, "", ofKernel([](auto& p) { return p.floatsPerOutput; })},
          {"FLOP/B", "", 6, 1, "intensity", ofKernel([](auto& p) { return p.intensity(); })},
          {"loads/FMA", "", 9, 3, "loads_per_fma", ofKernel([](auto& p) { return p.ran->block.loadsPerFma; })},
          {"error", "1e-6", 10, 2, "", [](auto& p) { return 1e6 * p.error; }},
          {"", "", 0, 0, "error", [](auto& p) { return p.error; }},
          {"gain", "x", 6, 2, "", [](auto& p) { return p.gain > 0 ? Value(p.gain) : Value(); }},
          {"", "", -1, 0, "note", [](auto& p) { return p.note.empty() ? Value() : Value(p.note); }},
      },
  });
}

// The fastest of a shape, of all kernels and of those that a T4 can run, and what sgemm() took.
struct Best {
  Product any, onT4, dispatched;
};
Best bestOf(const vector<Product>& all) {
  const auto fastest = [&](auto counts) {
    const Product* best = nullptr;
    for (const Product& p : all)
      if (counts(*p.row) && (best == nullptr || p.timing.ms < best->timing.ms)) best = &p;
    return *best;
  };
  return {fastest(isKernel), fastest([](const Row& row) { return isKernel(row) && row.needs == 0; }),
      fastest([](const Row& row) { return row.role == Role::kDispatch; })};
}
vector<Column<Best>> bestColumns() {
  return {
      {"shape", "", -16, 0, "",
          [](auto& b) {
            return shapeText({b.any.g.m, b.any.g.n, b.any.g.k});
          }},
      {"best", "", -20, 0, "", [](auto& b) { return b.any.row->variant; }},
      {"cuBLAS", "%", 8, 1, "", [](auto& b) { return b.any.cublasPercent; }},
      {"  best that a T4 can run", "", -24, 0, "", [](auto& b) { return string("  ") + b.onT4.row->variant; }},
      {"cuBLAS", "%", 8, 1, "", [](auto& b) { return b.onT4.cublasPercent; }},
      {"  sgemm()", "", -20, 0, "", [](auto& b) { return string("  ") + b.dispatched.ran->variant; }},
      {"cuBLAS", "%", 8, 1, "", [](auto& b) { return b.dispatched.cublasPercent; }},
  };
}

void explainTable(const Report& report) {
  report.say(
      "\ncuBLAS: share of its rate, sampled in turn (up to m = %d: in graph replay). FMA: share of the FMA ceiling.\n"
      "model: what the last wave and shared loads leave of it. floats/C: requested of global memory for an output;\n"
      "FLOP/B follows from it. loads/FMA: from shared memory. error: largest of C over its typical value, sqrt(k) / "
      "3.\n"
      "gain: over the best rung above.\n",
      kGraphUpTo);
}

// ---- The day

void reportSetup(Report& report, const Device& device, const Context& context) {
  reportRun(report, device);
  int version = 0;
  checkCublas(cublasGetVersion(context.cublas, &version), "cublasGetVersion");
  report.say("cuBLAS %d: cublasGemmEx, CUBLAS_COMPUTE_32F, as C^T = B^T A^T\n\n", version);
  const Table<Compiled> table(report, "", compiledColumns());
  for (const Compiled& one : prepareKernels(context, device.properties.maxThreadsPerMultiProcessor)) table.add(one);
  report.say("%s\n", leftOut(context).c_str());
}

// Checks the loops, and times them if all came out.
void runPeaks(Context& context, int threadsPerSm, bool timed, Checks& checks, Report& report) {
  int failed = 0;
  for (const FmaLoop& loop : kFmaLoops) failed += checkPeak(context, Peak(loop, context.sms, threadsPerSm), checks);
  if (failed > 0 || !timed) return;
  const Table<Ceiling> table(report, "ceiling", ceilingColumns());
  for (const FmaLoop& loop : kFmaLoops) table.add(measurePeak(context, Peak(loop, context.sms, threadsPerSm)));
}

int runDay(Report& report) {
  const bool timed = report.options().mode == Mode::kTable;
  const Device device = openDevice(report.options().device, matmulSharedTiled);
  const Stream stream;
  const Owned<cublasHandle_t> cublas = createCublas(stream);
  Context context = makeContext(device, stream, cublas);
  const WorkspaceSize size = workspaceOf(context);
  requireDeviceMemory(size_t(3 * 4) * kLargest * kLargest + size.bytes());
  reportSetup(report, device, context);

  const DeviceBuffer<float> sums(size.sums), packed(size.packed);
  const DeviceBuffer<unsigned> arrived(size.arrived);
  CUDA_CHECK(cudaMemsetAsync(arrived, 0, arrived.bytes(), stream));
  context.work = {sums, arrived, packed, size.packed};
  context.cutsOften = report.options().mode == Mode::kCheck;

  const int threadsPerSm = device.properties.maxThreadsPerMultiProcessor;
  if (report.options().mode == Mode::kProfile) {
    for (const FmaLoop& loop : kFmaLoops) runPeak(context, Peak(loop, context.sms, threadsPerSm));
    profileShape(context, {2048, 2048, 2048});
    return kExitOk;
  }
  Checks checks(report);
  runPeaks(context, threadsPerSm, timed, checks, report);

  const Plan plan = makePlan(context.peak, timed);
  Errors errors;
  for (const Shape& s : kRagged)  // nothing aligned; then rows with gaps
    for (const int gap : {3, 4}) checkShape(context, s, gap, checks, errors);
  for (const auto& [shape, samples] : plan.shapes) checkShape(context, shape, 0, checks, errors);
  if (checks.failed() > 0) {
    fprintf(stderr, "%d checks FAILED, so no products are timed\n", checks.failed());
    return kExitFailed;
  }
  report.say(
      "\nEvery path matches the CPU reference, at every size and ragged shape.\nSizes%s estimated for %.0f s:%s\n",
      timed ? " (x samples)" : "", kBudgetSeconds, plan.said.c_str());
  if (!timed) return kExitOk;

  vector<Best> all;
  for (const auto& [shape, samples] : plan.shapes) {
    report.say("\nm = %d, n = %d, k = %d\n", shape.m, shape.n, shape.k);
    const Table<Product> table(report, "gemm", productColumns());
    const double bytes = kOverL2 * device.properties.l2CacheSize;
    all.push_back(bestOf(timeShape(context, shape, samples, bytes, errors, table)));
  }
  explainTable(report);
  report.say("\n");
  const Table<Best> bests(report, "", bestColumns());
  for (const Best& best : all) bests.add(best);
  return kExitOk;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
