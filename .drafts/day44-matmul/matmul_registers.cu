// SPDX-License-Identifier: MIT
//
// Day 44: how close does a hand-written SGEMM come to cuBLAS?
//
// C = A B in FP32, row-major, as a ladder. Each rung is one idea; its comment says what it should
// gain on an H200 and why, the table what it gains. sgemm() picks the rung for shape and card, and
// is compared with cublasGemmEx in CUBLAS_COMPUTE_32F. Tensor cores compute another product: not
// here.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o matmul_registers matmul_registers.cu
//   -lcublas run:   ./matmul_registers    (--help lists the rest)

// common: includes
// end common: includes

#include <chrono>
#include <thread>

#if !__has_include(<cublas_v2.h>) || !__has_include(<cuda_pipeline.h>)
#error "day 44 needs cublas_v2.h and cuda_pipeline.h: install the toolkit's cuBLAS (libcublas-dev)"
#endif
#include <cublas_v2.h>
#include <cuda_pipeline.h>
#ifndef CUDA_DAYS_CPU
#include <cooperative_groups.h>
#endif

// The `// common:` blocks are the same in every day; the lesson goes on at "Sizes and knobs".

// common: errors
// end common: errors

// common: arguments
// end common: arguments

// common: output
// end common: output

// common: device
// end common: device

// common: memory
// end common: memory

// common: compare
// end common: compare

// common: timing
// end common: timing

// common: clock
// end common: clock

// common: json
// end common: json

// ---- Sizes and knobs ---------------------------------------------------------------------------

constexpr Program kProgram = {44, "matmul_registers",
                              "Day 44: SGEMM rung by rung, from shared tiles to above cuBLAS."};

constexpr int kSizes[] = {512, 1024, 2048, 4096, 8192};
constexpr int kLargest = kOnCpu ? 1024 : 8192;
constexpr double kBudgetSeconds = 17;     // sizes that would take longer are left out
constexpr double kLaunchesPerSize = 300;  // what a size costs, in launches of cuBLAS
constexpr int kAllElementsUpTo = 2048;    // uniform inputs against double at every element,
constexpr int kRandomRows = 4;            // above that in whole rows
constexpr int kCpuUniformUpTo = 513;      // the CPU build takes a minute as it is
constexpr double kOverL2 = 2;    // timed buffers rotate through this much, so none waits in L2
constexpr int kGraphUpTo = 512;  // timed in graph replay: launching takes as long as the work
constexpr double kFar = 0.85;    // rungs below this share of the best rung's rate, by the front
constexpr int kFarUpTo = 4096;   // door's rule, stop at this size, and are sampled
constexpr int kFarSamples = 5;   // so often

// kThreadM x kThreadN outputs a thread, in rungs 4 to 6, are the reader's knob: change them,
// and the number of threads follows or a static_assert says why it cannot.
constexpr int kSharedTile = 16;  // rung 3: 256 threads, one output each
constexpr int kTile1d = 64;      // rung 4
constexpr int kTileM = 128;      // rungs 5 and 6
constexpr int kTileN = 128;
constexpr int kTileK = 8;
constexpr int kThreadM = 8;
constexpr int kThreadN = 8;
constexpr int kThreads1d = kTile1d * kTile1d / kThreadM;
constexpr int kThreads2d = (kTileM / kThreadM) * (kTileN / kThreadN);

constexpr bool everySizeIsWhole(int tile) {
  for (const int size : kSizes)
    if (size % tile != 0) return false;
  return true;
}
static_assert(everySizeIsWhole(kSharedTile) && everySizeIsWhole(kTile1d) &&
                  everySizeIsWhole(kTileM) && everySizeIsWhole(kTileN) && everySizeIsWhole(kTileK),
              "rungs 3 to 6 have no edge guard");
static_assert(kTileM % kThreadM == 0 && kTileN % kThreadN == 0, "threads cover the tile exactly");
static_assert(kThreads2d <= 1024 && kThreads2d % 32 == 0, "a block is whole warps, 1024 threads");
static_assert(kThreadM % 4 == 0 && kThreadN % 4 == 0, "rung 6 reads its operands as float4");
static_assert(kTileM * kTileK % (4 * kThreads2d) == 0 && kTileK * kTileN % (4 * kThreads2d) == 0 &&
                  kThreads2d % kTileK == 0 && kThreads2d % kTileN == 0,
              "rungs 5 and 6 load their tiles in whole passes");
static_assert(kTile1d * kTileK == kThreads1d, "rung 4: a thread loads one element of each tile");

// C = alpha A B: A is m x k, B k x n, C m x n, all row-major; ld is the distance between two rows
// in floats. alpha is no constant on purpose: see storeTile.
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

constexpr int ceilDivide(int a, int b) { return (a + b - 1) / b; }

// ---- Rungs 3 to 6: from one output a thread to 64 ----------------------------------------------

__device__ inline std::size_t rows(int count, int ld) {
  return static_cast<std::size_t>(count) * ld;
}

// Rung 3, where day 43 stops. One thread, one output: each FMA needs two shared loads, and an SM
// serves one load of a warp per clock where it could do four FMAs.
__global__ void matmulSharedTiled(Gemm g) {
  __shared__ float tileA[kSharedTile][kSharedTile];
  __shared__ float tileB[kSharedTile][kSharedTile];
  const int x = threadIdx.x % kSharedTile;
  const int y = threadIdx.x / kSharedTile;
  const int row = blockIdx.y * kSharedTile + y;
  const int column = blockIdx.x * kSharedTile + x;
  float sum = 0;
  for (int first = 0; first < g.k; first += kSharedTile) {
    tileA[y][x] = g.a[rows(row, g.lda) + first + x];
    tileB[y][x] = g.b[rows(first + y, g.ldb) + column];
    __syncthreads();
    for (int k = 0; k < kSharedTile; ++k) sum += tileA[y][k] * tileB[k][x];
    __syncthreads();  // nobody may overwrite the tiles that others still read
  }
  g.c[rows(row, g.ldc) + column] = g.alpha * sum;
}

// Rung 4. A thread owns a column of kThreadM outputs: one value of B in a register serves all of
// them, so 8 FMAs need 9 shared loads instead of 16.
__global__ void matmulRegTile1d(Gemm g) {
  __shared__ float tileA[kTile1d][kTileK];
  __shared__ float tileB[kTileK][kTile1d];
  const int thread = threadIdx.x;
  const int x = thread % kTile1d;
  const int y = thread / kTile1d;
  const int firstRow = blockIdx.y * kTile1d;
  const int column = blockIdx.x * kTile1d + x;
  float sum[kThreadM] = {};
  for (int first = 0; first < g.k; first += kTileK) {
    tileA[thread / kTileK][thread % kTileK] =
        g.a[rows(firstRow + thread / kTileK, g.lda) + first + thread % kTileK];
    tileB[y][x] = g.b[rows(first + y, g.ldb) + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileK; ++k) {
      const float inB = tileB[k][x];
#pragma unroll
      for (int i = 0; i < kThreadM; ++i) sum[i] += tileA[y * kThreadM + i][k] * inB;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kThreadM; ++i)
    g.c[rows(firstRow + y * kThreadM + i, g.ldc) + column] = g.alpha * sum[i];
}

template <int kRows, int kColumns>
__device__ inline void outerProduct(float (&sum)[kRows][kColumns], const float (&a)[kRows],
                                    const float (&b)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum[i][j] += a[i] * b[j];
}

// Rung 5. A thread owns kThreadM x kThreadN outputs: 16 loads feed 64 FMAs.
__global__ void __launch_bounds__(kThreads2d) matmulRegTile2d(Gemm g) {
  __shared__ float tileA[kTileM][kTileK];
  __shared__ float tileB[kTileK][kTileN];
  const int thread = threadIdx.x;
  const int y = thread / (kTileN / kThreadN) * kThreadM;
  const int x = thread % (kTileN / kThreadN) * kThreadN;
  const int firstRow = blockIdx.y * kTileM;
  const int firstColumn = blockIdx.x * kTileN;
  float sum[kThreadM][kThreadN] = {};
  for (int first = 0; first < g.k; first += kTileK) {
    for (int row = thread / kTileK; row < kTileM; row += kThreads2d / kTileK)
      tileA[row][thread % kTileK] = g.a[rows(firstRow + row, g.lda) + first + thread % kTileK];
    for (int row = thread / kTileN; row < kTileK; row += kThreads2d / kTileN)
      tileB[row][thread % kTileN] = g.b[rows(first + row, g.ldb) + firstColumn + thread % kTileN];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileK; ++k) {
      float inA[kThreadM];
      float inB[kThreadN];
#pragma unroll
      for (int i = 0; i < kThreadM; ++i) inA[i] = tileA[y + i][k];
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) inB[j] = tileB[k][x + j];
      outerProduct(sum, inA, inB);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kThreadM; ++i)
#pragma unroll
    for (int j = 0; j < kThreadN; ++j)
      g.c[rows(firstRow + y + i, g.ldc) + firstColumn + x + j] = g.alpha * sum[i][j];
}

// kFloats / 4 loads of a float4, `step` floats apart, into registers.
template <int kFloats>
__device__ inline void readWide(float (&to)[kFloats], const float* from, int step) {
#pragma unroll
  for (int i = 0; i < kFloats; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i / 4 * step);
    to[i] = four.x;
    to[i + 1] = four.y;
    to[i + 2] = four.z;
    to[i + 3] = four.w;
  }
}
__device__ inline void writeFour(float* to, float by, const float* from) {
  *reinterpret_cast<float4*>(to) =
      make_float4(by * from[0], by * from[1], by * from[2], by * from[3]);
}

// Rung 6. The same tile, every access four floats wide: 4 shared loads feed 64 FMAs. A turns over
// on its way into shared memory, so that a thread's 8 rows of one k lie side by side.
__global__ void __launch_bounds__(kThreads2d, 2) matmulRegTile2dVec4(Gemm g) {
  __shared__ __align__(16) float tileA[kTileK][kTileM];
  __shared__ __align__(16) float tileB[kTileK][kTileN];
  const int y = threadIdx.x / (kTileN / kThreadN) * kThreadM;
  const int x = threadIdx.x % (kTileN / kThreadN) * kThreadN;
  const int firstRow = blockIdx.y * kTileM;
  const int firstColumn = blockIdx.x * kTileN;
  float sum[kThreadM][kThreadN] = {};
  for (int first = 0; first < g.k; first += kTileK) {
    float four[4];
    for (int i = threadIdx.x * 4; i < kTileM * kTileK; i += kThreads2d * 4) {
      readWide(four, g.a + rows(firstRow + i / kTileK, g.lda) + first + i % kTileK, 4);
      for (int e = 0; e < 4; ++e) tileA[i % kTileK + e][i / kTileK] = four[e];
    }
    for (int i = threadIdx.x * 4; i < kTileK * kTileN; i += kThreads2d * 4) {
      readWide(four, g.b + rows(first + i / kTileN, g.ldb) + firstColumn + i % kTileN, 4);
      writeFour(&tileB[i / kTileN][i % kTileN], 1, four);
    }
    __syncthreads();
#pragma unroll 2  // all 8 steps at once keep more values than a thread has registers
    for (int k = 0; k < kTileK; ++k) {
      float inA[kThreadM];
      float inB[kThreadN];
      readWide(inA, &tileA[k][y], 4);
      readWide(inB, &tileB[k][x], 4);
      outerProduct(sum, inA, inB);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kThreadM; ++i)
#pragma unroll
    for (int j = 0; j < kThreadN; j += 4)
      writeFour(g.c + rows(firstRow + y + i, g.ldc) + firstColumn + x + j, g.alpha, &sum[i][j]);
}

// ---- What the rungs above are made of: a tile, its way into shared memory, the loop over k -----

// A block's work: kM x kN outputs, kK steps of k in shared memory at a time, in kStages buffers.
// Each warp owns kWarpM x kWarpN outputs, each thread kThreadM x kThreadN. With kSlices a block has
// that many copies of its warps, each with its own part of every kK steps.
template <int kBlockM, int kBlockN, int kBlockK, int kOutM, int kOutN, int kPartM, int kPartN,
          int kCopies, int kBuffers>
struct Tile {
  static constexpr int kM = kBlockM, kN = kBlockN, kK = kBlockK;
  static constexpr int kThreadM = kOutM, kThreadN = kOutN;
  static constexpr int kWarpM = kPartM, kWarpN = kPartN;
  static constexpr int kSlices = kCopies, kStages = kBuffers;

  static constexpr int kWarpsM = kM / kWarpM, kWarpsN = kN / kWarpN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN * kSlices;
  static constexpr int kLanesM = kWarpM / kThreadM, kLanesN = kWarpN / kThreadN;
  static constexpr int kSteps = kK / kSlices;  // of k, for one slice
  // Registers allow 16 warps an SM with 8 x 8 outputs a thread, 8 with 8 x 16.
  static constexpr int kBlocksPerSm = kThreadN == 8 && kThreads < 512 ? 512 / kThreads : 1;
  // A lies turned over. Four floats of padding spread what a warp stores at once (16 rows x 2 k,
  // or 4 rows x 8 k) over 32 banks, and keep its rows aligned for float4.
  static constexpr int kPitchA = kM + 4;
  static constexpr int kStageFloats = kK * (kPitchA + kN);
  static constexpr int kRounds = kThreadM / 4;  // see sharePartials
  static constexpr int kRoundM = kWarpM / kRounds;
  static constexpr int kRoundFloats = kM * kN / kRounds;
  static constexpr int kFloats =
      std::max(kStages * kStageFloats, kSlices > 1 ? kSlices * kRoundFloats : 0);
  static constexpr int kSharedBytes = 4 * kFloats;

  static_assert(kLanesM * kLanesN == 32 && (kLanesM == 4 || kLanesM == 8), "Place maps 32 lanes");
  static_assert(kM % kWarpM == 0 && kN % kWarpN == 0 && kK % (8 * kSlices) == 0, "whole parts");
  static_assert(kThreadM % 4 == 0 && kThreadN % 4 == 0, "operands are read as float4");
};

// Where a thread works: its slice, and its first row and column in the block's tile. Its rows come
// in groups of four, 4 * kLanesM apart, its columns likewise, so that a warp reads and writes
// whole stretches. Lanes i and i ^ 1 share their rows, i and i ^ 2 their columns: shared memory
// serves a 128-bit load of such pairs in 2.2 clocks instead of 4.
template <class T>
struct Place {
  int slice;
  int row;
  int column;

  __device__ Place() {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const bool tall = T::kLanesM == 8;
    const int laneM = (lane >> 1 & 1) | (lane >> 2 & (tall ? 6 : 2));
    const int laneN = (lane & 1) | (lane >> 1 & 2) | (tall ? 0 : lane >> 2 & 4);
    slice = T::kSlices == 1 ? 0 : warp / (T::kWarpsM * T::kWarpsN);
    row = warp % T::kWarpsM * T::kWarpM + 4 * laneM;
    column = warp / T::kWarpsM % T::kWarpsN * T::kWarpN + 4 * laneN;
  }
};

// Moves on to the next buffer; returns the distance, which pointers into the buffers then move by.
// (base + offset would be computed anew at every use.)
template <class T>
__device__ inline int nextBuffer(int& buffer) {
  const int before = buffer;
  buffer = T::kStages == 2                                ? T::kStageFloats - buffer
           : buffer == (T::kStages - 1) * T::kStageFloats ? 0
                                                          : buffer + T::kStageFloats;
  return buffer - before;
}

enum class Edge {
  kNone,     // whole tiles, rows 16-byte aligned
  kVectors,  // any m; k, n and the leading dimensions are multiples of 4, pointers 16-byte aligned
  kScalars,  // anything: every access is one float
};

// Brings A and B into shared memory, a tile per start() and finish(). Without kAsync a value waits
// in a register in between. With it (cp.async, sm_80 on) it goes by itself, and start() can run
// kStages - 1 tiles ahead; since A turns over on the way, its copies are then 4 bytes each.
// Outside the matrices a tile holds zeros, and nothing is read there.
template <class T, Edge kEdge, bool kAsyncA, bool kAsyncB>
class Feed {
 public:
  __device__ Feed(const Gemm& gemm, float* shared, int firstK, int lastK) : g(gemm) {
    const int passRow = threadIdx.x / kLanesK;
    const int passK = threadIdx.x % kLanesK * kWidthA + (kRowsA > T::kM ? passRow / T::kM * 8 : 0);
    row = blockIdx.y * T::kM + passRow % T::kM;
    k = passK;
    fromA = g.a + rows(row, g.lda) + (firstK + passK);
    toA = shared + passK * T::kPitchA + passRow % T::kM;
    column = blockIdx.x * T::kN + threadIdx.x % kLanesN * kWidthB;
    rowB = threadIdx.x / kLanesN;
    fromB = g.b + rows(firstK + rowB, g.ldb) + column;
    toB = shared + T::kK * T::kPitchA + threadIdx.x / kLanesN * T::kN +
          threadIdx.x % kLanesN * kWidthB;
    left = lastK - firstK;
    const bool inside = static_cast<int>(blockIdx.y + 1) * T::kM <= g.m &&
                        static_cast<int>(blockIdx.x + 1) * T::kN <= g.n;
    guardBelow = inside ? T::kK : lastK + 1;
  }

  // Begins to load the next tile, if there is one. Only tiles at an edge pay for guards.
  __device__ void start(bool more) {
    if (more) {
      if (kEdge == Edge::kNone || left >= guardBelow) {
        startBoth<false>();
      } else {
        startBoth<true>();
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

  // Completes the oldest tile begun, for this thread; a barrier must follow. After the last tile
  // it stores stale registers into a buffer that nobody reads.
  __device__ void finish() {
    if constexpr (!kAsyncA) {
#pragma unroll
      for (int p = 0; p < kPassesA; ++p)
#pragma unroll
        for (int e = 0; e < 4; ++e) toA[(stepK(p) + e) * T::kPitchA + stepRow(p)] = heldA[p][e];
      const int hop = nextBuffer<T>(finished);
      toA += hop;
      if constexpr (!kAsyncB) {
#pragma unroll
        for (int p = 0; p < kPassesB; ++p) writeFour(toB + p * kRowsB * T::kN, 1, heldB[p]);
        toB += hop;
      }
    }
    if constexpr (kAsyncB) __pipeline_wait_prior(T::kStages - 2);
  }

 private:
  template <bool kGuard>
  __device__ void startBoth() {
    if constexpr (!kAsyncB) startA<kGuard>();
#pragma unroll
    for (int p = 0; p < kPassesB; ++p) {
      const float* from = fromB + rows(p * kRowsB, g.ldb);
      const bool reads = !kGuard || (column < g.n && rowB + p * kRowsB < left);
      if constexpr (kAsyncB) {
        __pipeline_memcpy_async(toB + p * kRowsB * T::kN, from, 4 * kWidthB,
                                reads ? 0 : 4 * kWidthB);
      } else {
        readWide(heldB[p], from, 4);
      }
    }
    if constexpr (kAsyncB && !kAsyncA) __pipeline_commit();
    if constexpr (kAsyncB) startA<kGuard>();
  }
  template <bool kGuard>
  __device__ void startA() {
#pragma unroll
    for (int p = 0; p < kPassesA; ++p) {
      const float* from = fromA + stepK(p) + rows(stepRow(p), g.lda);
      const bool reads = !kGuard || (row + stepRow(p) < g.m && k + stepK(p) < left);
      if constexpr (kAsyncA) {
        __pipeline_memcpy_async(toA + stepK(p) * T::kPitchA + stepRow(p), from, 4, reads ? 0 : 4);
      } else if (reads) {
        readWide(heldA[p], from, 4);
      } else {
        for (int e = 0; e < 4; ++e) heldA[p][e] = 0;
      }
    }
  }

  // kLanesK threads load 8 of k, kWidthA floats each; a pass of the block covers kRowsA rows (or,
  // above kM, all rows for several 8 of k).
  static constexpr int kWidthA = kAsyncA ? 1 : 4;
  static constexpr int kLanesK = 8 / kWidthA;
  static constexpr int kRowsA = T::kThreads / kLanesK;
  static constexpr int kPassesA = T::kM * T::kK / (kWidthA * T::kThreads);
  static constexpr int kWidthB = kEdge == Edge::kScalars ? 1 : 4;
  static constexpr int kLanesN = T::kN / kWidthB;
  static constexpr int kRowsB = T::kThreads / kLanesN;
  static constexpr int kPassesB = T::kK / kRowsB;
  static_assert(kEdge == Edge::kNone || kAsyncB, "only asynchronous copies of B are guarded");
  static_assert(kEdge != Edge::kScalars || kAsyncA, "only asynchronous copies are scalars");
  static_assert(kPassesA * kWidthA * T::kThreads == T::kM * T::kK, "whole passes over A");
  static_assert(T::kM % kRowsA == 0 || kRowsA % T::kM == 0, "a pass is whole rows");
  static_assert(kRowsB * kLanesN == T::kThreads && kPassesB * kRowsB == T::kK, "and over B");

  // How far pass p lies from pass 0.
  __device__ static constexpr int stepRow(int p) { return p * kRowsA % T::kM; }
  __device__ static constexpr int stepK(int p) { return p * kRowsA / T::kM * 8; }

  const Gemm& g;
  const float *fromA, *fromB;
  float *toA, *toB;
  int started = 0;           // offset of the buffer for the next asynchronous copies,
  int finished = 0;          // and for the next stores from registers
  int row, k, rowB, column;  // this thread's place in pass 0; k and rowB within the tile
  int left;                  // of k, not yet begun
  int guardBelow;            // so much left: compare every access
  float heldA[kPassesA][4], heldB[kPassesB][4];
};

// kThreadM x kThreadN FMAs. Their order matters: the register file has two banks with one read a
// clock each, so of an FMA's three operands one should still be in the operand cache from the FMA
// before. Going down a column and up the next (serpentine) keeps one at every step.
template <class T>
__device__ inline void multiplyAdd(float (&sum)[T::kThreadM][T::kThreadN],
                                   const float (&a)[T::kThreadM], const float (&b)[T::kThreadN]) {
  constexpr bool kColumns = T::kThreadN > T::kThreadM;
  constexpr int kOuter = kColumns ? T::kThreadN : T::kThreadM;
  constexpr int kInner = kColumns ? T::kThreadM : T::kThreadN;
#pragma unroll
  for (int outer = 0; outer < kOuter; ++outer)
#pragma unroll
    for (int step = 0; step < kInner; ++step) {
      const int inner = outer % 2 == 0 ? step : kInner - 1 - step;
      const int i = kColumns ? inner : outer;
      const int j = kColumns ? outer : inner;
      sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
}

// The loop over k. Tiles and operands are double-buffered or better: while a step multiplies, the
// next step's operands come from shared memory, the next tile from global memory. One barrier a
// tile stands before its last step, when all its operands are in registers: it publishes the next
// tile and frees this one.
template <class T, class TileFeed>
__device__ inline void multiplyTiles(TileFeed& feed, const Place<T>& at, const float* shared,
                                     int tiles, float (&sum)[T::kThreadM][T::kThreadN]) {
  const float* a = shared + at.slice * T::kSteps * T::kPitchA + at.row;
  const float* b = shared + T::kK * T::kPitchA + at.slice * T::kSteps * T::kN + at.column;
#pragma unroll
  for (int stage = 0; stage < T::kStages - 1; ++stage) feed.start(stage < tiles);
  feed.finish();
  __syncthreads();
  float inA[2][T::kThreadM];
  float inB[2][T::kThreadN];
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
      multiplyAdd<T>(sum, inA[step % 2], inB[step % 2]);
    }
  }
}

// Stores four outputs, or those of them that lie inside C.
template <Edge kEdge>
__device__ inline void storeFour(const Gemm& g, int row, int column, float by, const float* four) {
  float* to = g.c + rows(row, g.ldc) + column;
  if (kEdge == Edge::kScalars) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (row < g.m && column + e < g.n) to[e] = by * four[e];
  } else if (kEdge == Edge::kNone || (row < g.m && column < g.n)) {
    writeFour(to, by, four);
  }
}

// With slices, a tile's partial sums meet in shared memory, four of each thread's rows at a time (a
// round), so that all slices' sums fit where the tiles were. sumSlices adds four of them.
template <class T>
__device__ inline void sharePartials(float alpha, const float (&sum)[T::kThreadM][T::kThreadN],
                                     const Place<T>& at, float* shared, int round) {
  const int row = at.row / T::kWarpM * T::kRoundM + at.row % T::kWarpM;
  float* to = shared + at.slice * T::kRoundFloats + row * T::kN + at.column;
  __syncthreads();  // what lies there may still be read
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < T::kThreadN; j += 4)
      writeFour(to + i * T::kN + j * T::kLanesN, alpha, &sum[4 * round + i][j]);
  __syncthreads();
}
template <class T>
__device__ inline void sumSlices(float (&total)[4], const float* shared, int i) {
  readWide(total, shared + i, 4);
#pragma unroll
  for (int slice = 1; slice < T::kSlices; ++slice) {
    float four[4];
    readWide(four, shared + slice * T::kRoundFloats + i, 4);
#pragma unroll
    for (int e = 0; e < 4; ++e) total[e] += four[e];
  }
}
template <class T, Edge kEdge>
__device__ inline void storeShared(const Gemm& g, int round, int i, const float (&four)[4]) {
  const int row = i / T::kN / T::kRoundM * T::kWarpM + round * T::kRoundM + i / T::kN % T::kRoundM;
  storeFour<kEdge>(g, blockIdx.y * T::kM + row, blockIdx.x * T::kN + i % T::kN, 1, four);
}

// The last step: outputs into C. The multiplication by alpha is free, and it keeps the sums out of
// the aligned quads of registers that a float4 store of them would force: there sum[i][j] and b[j]
// share a bank of the register file, and an FMA runs at half rate.
template <class T, Edge kEdge>
__device__ inline void storeTile(const Gemm& g, const float (&sum)[T::kThreadM][T::kThreadN],
                                 const Place<T>& at, float* shared) {
  if constexpr (T::kSlices == 1) {
#pragma unroll
    for (int i = 0; i < T::kThreadM; ++i)
#pragma unroll
      for (int j = 0; j < T::kThreadN; j += 4)
        storeFour<kEdge>(g, blockIdx.y * T::kM + at.row + i / 4 * T::kRoundM + i % 4,
                         blockIdx.x * T::kN + at.column + j * T::kLanesN, g.alpha, &sum[i][j]);
  } else {
#pragma unroll
    for (int round = 0; round < T::kRounds; ++round) {
      sharePartials<T>(g.alpha, sum, at, shared, round);
      for (int i = 4 * threadIdx.x; i < T::kRoundFloats; i += 4 * T::kThreads) {
        float four[4];
        sumSlices<T>(four, shared, i);
        storeShared<T, kEdge>(g, round, i, four);
      }
    }
  }
}

// A whole block's work: what all rungs from 8 on but the cluster do.
template <class T, Edge kEdge, bool kAsyncA, bool kAsyncB>
__device__ inline void multiplyBlock(const Gemm& g, float* shared) {
  const Place<T> at;
  Feed<T, kEdge, kAsyncA, kAsyncB> feed(g, shared, 0, g.k);
  float sum[T::kThreadM][T::kThreadN] = {};
  multiplyTiles<T>(feed, at, shared, (g.k + T::kK - 1) / T::kK, sum);
  storeTile<T, kEdge>(g, sum, at, shared);
}

// ---- Rungs 7 and up ----------------------------------------------------------------------------

using WarpTile = Tile<128, 128, 8, 8, 8, 32, 64, 1, 1>;
using StagedTile = Tile<128, 128, 8, 8, 8, 32, 64, 1, 2>;
using SlicedTile = Tile<64, 128, 32, 8, 8, 32, 64, 4, 2>;
using WideTile = Tile<128, 256, 8, 8, 16, 64, 64, 1, 2>;
using AheadTile = Tile<64, 128, 32, 8, 8, 32, 64, 4, 3>;
using ClusterTile = Tile<64, 64, 32, 8, 8, 32, 64, 4, 4>;
using ScalarTile = Tile<128, 128, 16, 8, 8, 32, 64, 1, 3>;
using SmallTile = Tile<64, 64, 32, 8, 8, 32, 64, 4, 2>;

// Rung 7, conflict-free lanes: warps own 32 x 64 outputs and read 96 values a step where rung 6's
// read 144, lanes share loads in pairs, A's stores do not collide. Rung 6 is bound by shared
// memory: predicted + 30 %.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) matmulWarpTile(Gemm g) {
  extern __shared__ float4 dynamicShared[];
  float* shared = reinterpret_cast<float*>(dynamicShared);
  const Place<T> at;
  Feed<T, Edge::kNone, false, false> feed(g, shared, 0, g.k);
  float sum[T::kThreadM][T::kThreadN] = {};
  for (int first = 0; first < g.k; first += T::kK) {
    feed.start(true);
    feed.finish();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      float inA[T::kThreadM];
      float inB[T::kThreadN];
      readWide(inA, shared + step * T::kPitchA + at.row, 4 * T::kLanesM);
      readWide(inB, shared + T::kK * T::kPitchA + step * T::kN + at.column, 4 * T::kLanesN);
      multiplyAdd<T>(sum, inA, inB);
    }
    __syncthreads();
  }
  storeTile<T, Edge::kNone>(g, sum, at, shared);
}

// Rung 8, double buffers: the next tile waits in registers while this one is multiplied, and one
// barrier a tile is left. Rung 7 waits a memory latency, some 600 clocks, for every 1100 of
// arithmetic, and the SM's second block hides half of that: predicted + 20 %.
// Rung 9, slices of k: the same kernel with SlicedTile. At 1024, 128 x 128 tiles are 64 blocks for
// 132 SMs; 64 x 128 are 128, and four slices give each SM its 16 warps: predicted x 2 at 1024,
// - 10 % from 2048 on (less reuse). Rungs 7 to 9 are all that sm_75 can do.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) matmulStaged(Gemm g) {
  extern __shared__ float4 dynamicShared[];
  multiplyBlock<T, Edge::kNone, false, false>(g, reinterpret_cast<float*>(dynamicShared));
}

// Rung 10, 8 x 16 outputs and cp.async for B. A scheduler of Hopper issues one instruction a clock,
// and 8 x 8 outputs spend 4 loads on 64 FMAs: at most 94 %. 8 x 16 spend 6 on 128, 95.5 %, and B
// comes without registers or stores. (On a T4 an FMA takes two clocks: 8 x 8 suffices.) A still
// goes through registers, 4-byte copies cost more than they save. Predicted + 4 %.
// Rung 11, two tiles ahead: all by cp.async, for sizes where an SM has one block and latency is
// what is left to hide. Predicted + 5 % over rung 9 at 1024, a loss at large sizes.
template <class T, bool kAsyncA>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) matmulAsync(Gemm g) {
  extern __shared__ float4 dynamicShared[];
  multiplyBlock<T, Edge::kNone, kAsyncA, true>(g, reinterpret_cast<float*>(dynamicShared));
}

// Rung 12, thread-block clusters (sm_90). At 512 even 64 x 64 tiles are only 64 blocks. Here two
// blocks share a tile and take half of k each; each sends the other half a tile of sums through
// distributed shared memory, nothing through global memory. Predicted + 60 % at 512.
constexpr int kCluster = 2;
constexpr int kInboxBytes = 4 * ClusterTile::kM * ClusterTile::kN / kCluster;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER_OF(blocks) __cluster_dims__(1, 1, blocks)
#else
#define CLUSTER_OF(blocks)
#endif

template <class T>
__global__ void CLUSTER_OF(kCluster) __launch_bounds__(T::kThreads, 1) matmulCluster(Gemm g) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kHalf = T::kRoundFloats / kCluster;  // of a round's sums: one block's part
  constexpr int kMine = kHalf / (4 * T::kThreads);   // float4 of it in one thread
  static_assert(kMine * 4 * T::kThreads == kHalf, "each thread adds the same number of outputs");
  extern __shared__ float4 dynamicShared[];
  float* shared = reinterpret_cast<float*>(dynamicShared);
  float* inbox = shared + T::kFloats;  // behind the tiles: nothing else lies there
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.barrier_arrive();  // waited for below: by then the other block has started
  const int mine = blockIdx.z;
  float* outbox = cluster.map_shared_rank(inbox, 1 - mine);
  const Place<T> at;
  const int depth = g.k / kCluster;
  Feed<T, Edge::kNone, true, true> feed(g, shared, mine * depth, (mine + 1) * depth);
  float sum[T::kThreadM][T::kThreadN] = {};
  multiplyTiles<T>(feed, at, shared, depth / T::kK, sum);
  cluster.barrier_wait();
  float kept[T::kRounds][kMine][4];
#pragma unroll
  for (int round = 0; round < T::kRounds; ++round) {
    sharePartials<T>(g.alpha, sum, at, shared, round);
#pragma unroll
    for (int p = 0; p < kMine; ++p) {
      const int i = 4 * (p * T::kThreads + threadIdx.x);
      float sent[4];
      sumSlices<T>(kept[round][p], shared, mine * kHalf + i);
      sumSlices<T>(sent, shared, (1 - mine) * kHalf + i);
      writeFour(outbox + round * kHalf + i, 1, sent);
    }
  }
  cluster.sync();
#pragma unroll
  for (int round = 0; round < T::kRounds; ++round)
#pragma unroll
    for (int p = 0; p < kMine; ++p) {
      const int i = 4 * (p * T::kThreads + threadIdx.x);
      float four[4];
      readWide(four, inbox + round * kHalf + i, 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) four[e] += kept[round][p][e];
      storeShared<T, Edge::kNone>(g, round, mine * kHalf + i, four);
    }
#else
  (void)g;  // never launched: its row says "needs sm_90"
#endif
}

// The edge rung: any m, n, k >= 1, leading dimensions, 4-byte aligned pointers. Tiles at an edge
// compare every access and fill in zeros, which add nothing; the others run as in rung 10, or, if
// rows are not 16-byte aligned, by 4-byte copies. Predicted price: 2 %, for scalars 8 %.
template <class T, Edge kEdge>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) matmulGuarded(Gemm g) {
  extern __shared__ float4 dynamicShared[];
  multiplyBlock<T, kEdge, kEdge == Edge::kScalars, true>(g,
                                                         reinterpret_cast<float*>(dynamicShared));
}

// ---- The table ---------------------------------------------------------------------------------

using Run = std::function<void(const Gemm&, cudaStream_t)>;

struct Row {
  const char *variant, *symbol;
  int needs;  // compute capability
  int tileM, tileN;
  int multipleK;  // of k; 0: takes any shape
  int splits;     // blocks per tile
  int threads, sharedBytes;
  double loads;        // from shared memory, per FMA
  double rate;         // share of the FMA ceiling in full waves, on an H200; 0: never chosen
  const void* kernel;  // nullptr: the front door, or cuBLAS
  Run run;
};

// The early rungs' shape, in the words of Tile.
template <int kBlockM, int kBlockN, int kCount>
struct Early {
  static constexpr int kM = kBlockM, kN = kBlockN, kK = kSharedTile;
  static constexpr int kThreads = kCount, kSharedBytes = 0;
};
using Rung3 = Early<kSharedTile, kSharedTile, kSharedTile * kSharedTile>;
using Rung4 = Early<kTile1d, kTile1d, kThreads1d>;
using Rung5 = Early<kTileM, kTileN, kThreads2d>;

template <class T>
dim3 gridOf(const Gemm& g, int splits = 1) {
  return dim3(ceilDivide(g.n, T::kN), ceilDivide(g.m, T::kM), splits);
}
template <class T>
void runStaged(const Gemm& g, cudaStream_t s) {
  matmulStaged<T><<<gridOf<T>(g), T::kThreads, T::kSharedBytes, s>>>(g);
}
template <class T, bool kAsyncA>
void runAsync(const Gemm& g, cudaStream_t s) {
  matmulAsync<T, kAsyncA><<<gridOf<T>(g), T::kThreads, T::kSharedBytes, s>>>(g);
}
template <class T, Edge kEdge>
void runGuarded(const Gemm& g, cudaStream_t s) {
  if (T::kSharedBytes > 48 << 10)  // the other rungs ask in prepare()
    CUDA_CHECK(cudaFuncSetAttribute(matmulGuarded<T, kEdge>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes));
  matmulGuarded<T, kEdge><<<gridOf<T>(g), T::kThreads, T::kSharedBytes, s>>>(g);
}
bool isAligned(const Gemm& g) {
  const auto bits = reinterpret_cast<std::uintptr_t>(g.a) | reinterpret_cast<std::uintptr_t>(g.b) |
                    reinterpret_cast<std::uintptr_t>(g.c);
  return bits % 16 == 0 && (g.lda | g.ldb | g.ldc | g.k | g.n) % 4 == 0;
}
template <class Vectors, class Scalars>
void runEdges(const Gemm& g, cudaStream_t s) {
  (isAligned(g) ? runGuarded<Vectors, Edge::kVectors> : runGuarded<Scalars, Edge::kScalars>)(g, s);
}

template <class T>
Row rung(const char* variant, const char* symbol, int needs, double loads, double rate,
         void (*kernel)(Gemm), Run run, int multipleK = T::kK, int splits = 1, int bytes = 0) {
  return {variant, symbol,      needs,
          T::kM,   T::kN,       multipleK,
          splits,  T::kThreads, T::kSharedBytes + bytes,
          loads,   rate,        reinterpret_cast<const void*>(kernel),
          run};
}

std::vector<Row> makeRungs() {
  constexpr double k8x8 = 4 / 64.0;  // float4 loads per FMA
  constexpr double k8x16 = 6 / 128.0;
  return {
      rung<Rung3>("3 shared tile", "matmulSharedTiled", 0, 2, 0, matmulSharedTiled,
                  [](const Gemm& g, cudaStream_t s) {
                    matmulSharedTiled<<<gridOf<Rung3>(g), Rung3::kThreads, 0, s>>>(g);
                  }),
      rung<Rung4>("4 column of 8", "matmulRegTile1d", 0, 1 + 1.0 / kThreadM, 0, matmulRegTile1d,
                  [](const Gemm& g, cudaStream_t s) {
                    matmulRegTile1d<<<gridOf<Rung4>(g), Rung4::kThreads, 0, s>>>(g);
                  }),
      rung<Rung5>("5 square of 8 x 8", "matmulRegTile2d", 0, 1.0 / kThreadM + 1.0 / kThreadN, 0,
                  matmulRegTile2d,
                  [](const Gemm& g, cudaStream_t s) {
                    matmulRegTile2d<<<gridOf<Rung5>(g), Rung5::kThreads, 0, s>>>(g);
                  }),
      rung<Rung5>("6 float4", "matmulRegTile2dVec4", 0, 0.25 / kThreadM + 0.25 / kThreadN, 0,
                  matmulRegTile2dVec4,
                  [](const Gemm& g, cudaStream_t s) {
                    matmulRegTile2dVec4<<<gridOf<Rung5>(g), Rung5::kThreads, 0, s>>>(g);
                  }),
      rung<WarpTile>("7 warp tiles", "matmulWarpTile", 0, k8x8, 0, matmulWarpTile<WarpTile>,
                     [](const Gemm& g, cudaStream_t s) {
                       matmulWarpTile<WarpTile>
                           <<<gridOf<WarpTile>(g), WarpTile::kThreads, WarpTile::kSharedBytes, s>>>(
                               g);
                     }),
      rung<StagedTile>("8 double buffers", "matmulStaged", 0, k8x8, 0.76, matmulStaged<StagedTile>,
                       runStaged<StagedTile>),
      rung<SlicedTile>("9 slices of k", "matmulStaged", 0, k8x8, 0.68, matmulStaged<SlicedTile>,
                       runStaged<SlicedTile>),
      rung<WideTile>("10 8 x 16, cp.async", "matmulAsync", 80, k8x16, 0.8,
                     matmulAsync<WideTile, false>, runAsync<WideTile, false>),
      rung<AheadTile>("11 two tiles ahead", "matmulAsync", 80, k8x8, 0.7,
                      matmulAsync<AheadTile, true>, runAsync<AheadTile, true>),
      rung<ClusterTile>(
          "12 clusters", "matmulCluster", 90, k8x8, 0.6, matmulCluster<ClusterTile>,
          [](const Gemm& g, cudaStream_t s) {
            matmulCluster<ClusterTile><<<gridOf<ClusterTile>(g, kCluster), ClusterTile::kThreads,
                                         ClusterTile::kSharedBytes + kInboxBytes, s>>>(g);
          },
          ClusterTile::kK * kCluster, kCluster, kInboxBytes),
      rung<WideTile>("edges, large", "matmulGuarded", 0, k8x16, 0.77,
                     matmulGuarded<WideTile, Edge::kVectors>, runEdges<WideTile, ScalarTile>, 0),
      rung<SmallTile>("edges, small", "matmulGuarded", 0, k8x8, 0.6,
                      matmulGuarded<SmallTile, Edge::kVectors>, runEdges<SmallTile, SmallTile>, 0),
  };
}

// What the program works with.
struct Lab {
  const Options& options;
  int cc;  // compute capability, 10 * major + minor
  int sms;
  int sharedLimit;  // bytes a block may have
  cudaStream_t stream;
  std::vector<Row> rungs;
  std::vector<Row> rows;       // the rungs, the front door, and cuBLAS twice, the fair one last
  std::vector<double> errors;  // of each row at the size checked last
};

bool runsOn(const Row& row, const Lab& lab) {
  return row.needs <= lab.cc && row.sharedBytes <= lab.sharedLimit;
}
bool fits(const Row& row, const Gemm& g) {
  return row.multipleK == 0 ||
         (isAligned(g) && g.m % row.tileM == 0 && g.n % row.tileN == 0 && g.k % row.multipleK == 0);
}
// The share of the SMs that have work, over the run: the last wave of blocks is not full, and tiles
// hang over the edges.
double waveShare(const Row& row, const Lab& lab, const Gemm& g) {
  const double tiles = static_cast<double>(ceilDivide(g.m, row.tileM)) * ceilDivide(g.n, row.tileN);
  const double perSm = tiles * row.splits / lab.sms;
  return static_cast<double>(g.m) / row.tileM * g.n / row.tileN / tiles * perSm / std::ceil(perSm);
}

// The rule of the front door: of the rungs that run on the card and fit the shape, the one with
// the largest rate x share of SMs with work. The edge rungs fit everything.
double score(const Row& row, const Lab& lab, const Gemm& g) {
  return runsOn(row, lab) && fits(row, g) ? row.rate * waveShare(row, lab, g) : 0;
}
const Row& choose(const Lab& lab, const Gemm& g) {
  return *std::max_element(lab.rungs.begin(), lab.rungs.end(), [&](const Row& x, const Row& y) {
    return score(x, lab, g) < score(y, lab, g);
  });
}

// The front door: C = alpha A B for any shape and alignment, on any card.
void sgemm(int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb,
           float* c, int ldc, const Lab& lab, cudaStream_t stream) {
  const Gemm g = {m, n, k, a, lda, b, ldb, c, ldc, alpha};
  choose(lab, g).run(g, stream);
}

void checkCublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Stop{kExitFailed, std::string(call) + " failed: cuBLAS status " + std::to_string(status)};
}
struct Cublas {
  Cublas() { checkCublas(cublasCreate(&handle), "cublasCreate"); }
  ~Cublas() { releaseFailed |= cublasDestroy(handle) != CUBLAS_STATUS_SUCCESS; }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  cublasHandle_t handle = nullptr;
};

// cuBLAS is column-major, where our matrices read as their transposes; it is asked for
// C^T = B^T A^T: the operands swap, nothing moves.
void addOtherRows(Lab& lab, const Cublas& cublas) {
  lab.rows = lab.rungs;
  const auto add = [&](const char* variant, const char* symbol, Run run) {
    lab.rows.push_back({variant, symbol, 0, 1, 1, 0, 1, 0, 0, 0, 0, nullptr, run});
  };
  add("sgemm()", "sgemm", [&lab](const Gemm& g, cudaStream_t s) {
    sgemm(g.m, g.n, g.k, g.alpha, g.a, g.lda, g.b, g.ldb, g.c, g.ldc, lab, s);
  });
  for (const bool pedantic : {true, false})
    add(pedantic ? "cuBLAS, pedantic" : "cuBLAS", "cublasGemmEx",
        [&cublas, pedantic](const Gemm& g, cudaStream_t s) {
          const float zero = 0;
          checkCublas(cublasSetStream(cublas.handle, s), "cublasSetStream");
          checkCublas(
              cublasGemmEx(cublas.handle, CUBLAS_OP_N, CUBLAS_OP_N, g.n, g.m, g.k, &g.alpha, g.b,
                           CUDA_R_32F, g.ldb, g.a, CUDA_R_32F, g.lda, &zero, g.c, CUDA_R_32F, g.ldc,
                           pedantic ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT),
              "cublasGemmEx");
        });
}

// ---- Inputs, references and checks -------------------------------------------------------------

// Integers: products in [-6, 6], so every sum is exact in float, in any order, and any difference
// is a bug. A repeats after 7 rows, B after 5 columns, so the first 7 rows of C hold all of C at
// every size, exactly. No tile or pitch is a multiple of 7 or 5: what comes from a wrong place has
// another value.
float integerA(int row, int column) { return static_cast<float>((row + 2 * column) % 7 - 3); }
float integerB(int row, int column) { return static_cast<float>((3 * row + column) % 5 - 2); }

// Uniform in [-1, 1) from a fixed seed: what is timed (integers draw less power and can run
// faster), and what shows rounding.
float uniform(std::uint64_t seed, int row, int column) {
  std::uint64_t bits = (seed << 58) + (static_cast<std::uint64_t>(row) << 29) + column + 1;
  bits = (bits ^ (bits >> 30) ^ (bits << 23)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>((bits ^ (bits >> 31)) >> 40) / 8388608.0f - 1.0f;
}
float uniformA(int row, int column) { return uniform(1, row, column); }
float uniformB(int row, int column) { return uniform(2, row, column); }

// In any order a sum stays within eps k sum |a||b| <= eps k k of the exact one. Errors of random
// numbers do not line up, so beyond k = 16 no more than eps 16 k is allowed: room to spare, but not
// for TF32, which is off by 2^-11 per product.
double allowedError(int k) { return std::ldexp(1.0, -24) * std::min(k, 16) * k; }

// Calls work(i) for i in [0, count), on all cores of the host.
template <class Work>
void inParallel(int count, Work work) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (int core = 0; core < std::min(cores, count); ++core)
    threads.emplace_back([=] {
      for (int i = core; i < count; i += cores) work(i);
    });
  for (std::thread& thread : threads) thread.join();
}

// rows x columns floats, `gap` floats between rows, the first one `offset` floats into the memory.
struct Matrix {
  Matrix(int rowCount, int columnCount, int gap, int start)
      : rows(rowCount),
        columns(columnCount),
        ld(columnCount + gap),
        offset(start),
        host(static_cast<std::size_t>(rows) * ld + start, std::nanf("")),
        device(host.size()) {}
  float* at(int row) { return &host[offset + static_cast<std::size_t>(row) * ld]; }
  void fill(float (*value)(int row, int column)) {
    inParallel(rows, [this, value](int row) {
      for (int column = 0; column < columns; ++column) at(row)[column] = value(row, column);
    });
    CUDA_CHECK(cudaMemcpy(device, host.data(), device.bytes(), cudaMemcpyHostToDevice));
  }
  int rows, columns, ld, offset;
  std::vector<float> host;  // NaN in the gaps: nobody may use them
  DeviceBuffer<float> device;
};

// Launches a row once. An error of the launch, or of the kernel while it runs, names the kernel.
void runRow(const Row& row, const Gemm& g, cudaStream_t stream) {
  row.run(g, stream);
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (status != cudaSuccess)
    throw Stop{kExitFailed, std::string("kernel ") + row.symbol + ": " + cudaGetErrorName(status) +
                                ": " + cudaGetErrorString(status)};
}

bool isFar(const Row& row, const Lab& lab, const Gemm& g) {
  return row.kernel != nullptr && score(row, lab, g) < kFar * score(choose(lab, g), lab, g);
}
bool takesPart(const Row& row, const Lab& lab, const Gemm& g) {
  return runsOn(row, lab) && fits(row, g) && (g.m <= kFarUpTo || !isFar(row, lab, g));
}

struct Shape {
  int m, n, k;
};
constexpr Shape kRagged[] = {{1, 1, 1},        {3, 3, 431},     {17, 1, 3},    {1, 17, 129},
                             {127, 129, 17},   {128, 127, 128}, {35, 79, 19},  {64, 256, 4},
                             {132, 260, 36},   {128, 256, 12},  {257, 300, 1}, {513, 36, 1000},
                             {1000, 1037, 513}};
constexpr Shape kTimedRagged = {4097, 4095, 4093};

// Prints one verdict; returns 1 if it is a failure.
int report(const Row& row, const char* size, const Verdict& verdict, const Options& options) {
  if (verdict.wrong > 0)
    std::fprintf(stderr, "FAILED %s (%s, %s): %zu of %zu wrong, %s\n", row.symbol, row.variant,
                 size, verdict.wrong, verdict.checked, verdict.message.c_str());
  if (options.json) {
    JsonLine line("check");
    line.integer("day", kProgram.day)
        .text("variant", row.variant)
        .text("symbol", row.symbol)
        .text("size", size)
        .boolean("ok", verdict.wrong == 0)
        .integer("checked", static_cast<long long>(verdict.checked))
        .integer("wrong", static_cast<long long>(verdict.wrong))
        .number("worst", verdict.worst);
    if (verdict.wrong > 0) line.text("message", verdict.message);
    line.print();
  } else if (options.mode == Mode::kCheck) {
    std::printf("%-20s %-20s %-28s %9zu values, worst error %5.1f %% of allowed  %s\n", row.symbol,
                row.variant, size, verdict.checked, 100 * verdict.worst,
                verdict.wrong == 0 ? "ok" : "FAILED");
    flushOutput();
  }
  return verdict.wrong > 0;
}

// Checks every row that takes the shape, with integers, then with uniform numbers. C is poisoned
// before every launch: what is not written fails, and so does what is written outside.
int checkShape(Lab& lab, const Shape& s, int gap, int offset) {
  Matrix a(s.m, s.k, gap, offset);
  Matrix b(s.k, s.n, gap, offset);
  Matrix c(s.m, s.n, gap, offset);
  const Gemm g = {
      s.m, s.n, s.k, a.device + offset, a.ld, b.device + offset, b.ld, c.device + offset, c.ld, 1};
  int failed = 0;
  lab.errors.assign(lab.rows.size(), 0);
  for (const bool integers : {true, false}) {
    if (kOnCpu && !integers && s.m > kCpuUniformUpTo) continue;
    a.fill(integers ? integerA : uniformA);
    b.fill(integers ? integerB : uniformB);
    std::vector<int> some;  // the rows of C that are looked at
    const bool all = integers || s.m <= kAllElementsUpTo;
    for (int i = 0; i < (all ? s.m : kRandomRows); ++i)
      some.push_back(all ? i : static_cast<int>((uniform(3, i, 0) + 1) / 2 * s.m));
    // In double: for each row of C over k, and then along a row of B.
    std::vector<std::vector<double>> want(std::min<std::size_t>(integers ? 7 : s.m, some.size()));
    inParallel(static_cast<int>(want.size()), [&](int i) {
      want[i].assign(s.n, 0);
      for (int p = 0; p < s.k; ++p)
        for (int column = 0; column < s.n; ++column)
          want[i][column] += static_cast<double>(a.at(some[i])[p]) * b.at(p)[column];
    });
    std::vector<float> got(some.size() * s.n);
    for (std::size_t r = 0; r < lab.rows.size(); ++r) {
      const Row& row = lab.rows[r];
      if (!takesPart(row, lab, g)) continue;
      poison(c.device, c.device.bytes(), lab.stream);
      runRow(row, g, lab.stream);
      const bool gaps = gap + offset > 0;
      const std::size_t stretch = gaps ? c.host.size() : all ? got.size() : s.n;
      for (std::size_t i = 0; i * stretch < got.size(); ++i)
        CUDA_CHECK(cudaMemcpy(gaps ? c.host.data() : &got[i * stretch],
                              c.device + (gaps ? 0 : some[i] * std::size_t(s.n)), stretch * 4,
                              cudaMemcpyDeviceToHost));
      for (std::size_t i = 0; gaps && i < some.size(); ++i)
        std::copy_n(c.at(some[i]), s.n, &got[i * s.n]);
      double difference = 0;
      double norm = 0;
      Verdict verdict = compare(got.data(), some.size(), s.n, 0, integers ? 0 : allowedError(s.k),
                                [&](std::size_t i, std::size_t column) {
                                  const double is = want[integers ? i % 7 : i][column];
                                  const double error = got[i * s.n + column] - is;
                                  difference += error * error;
                                  norm += is * is;
                                  return is;
                                });
      if (!integers) lab.errors[r] = std::sqrt(difference / norm);
      std::size_t outside = 0;
      for (std::size_t i = 0; gaps && i < c.host.size(); ++i) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &c.host[i], sizeof bits);
        const bool inside = i >= static_cast<std::size_t>(offset) &&
                            (i - offset) % c.ld < static_cast<std::size_t>(s.n);
        outside += !inside && bits != 0xFFFFFFFFu;
      }
      if (outside > 0) verdict.message += " (wrote outside of C)";
      verdict.wrong += outside;
      char size[60];
      std::snprintf(size, sizeof size, "%dx%dx%d %s%s", s.m, s.n, s.k,
                    integers ? "integer" : "uniform",
                    gap == 0       ? ""
                    : isAligned(g) ? " aligned"
                                   : " gaps");
      failed += report(row, size, verdict, lab.options);
    }
  }
  return failed;
}

// ---- Timing ------------------------------------------------------------------------------------

// The FMA ceiling: registers only, kChains independent chains a thread, one wave of blocks.
constexpr int kPeakBlock = 256;
constexpr int kChains = 8;
constexpr int kUnroll = 1024;  // FMAs a trip, so that the loop itself does not count
constexpr int kPeakFmas = 131072;

__global__ void fmaPeak(float* out, ClockSpan* span, float a, float b) {
  const int thread = blockIdx.x * kPeakBlock + threadIdx.x;
  float chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = static_cast<float>(thread % 7 + c);
  ClockSpan begin = {0, 0};
  if (thread == 0) begin = readClock();
  for (int done = 0; done < kPeakFmas; done += kUnroll) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) chain[i % kChains] = fmaf(chain[i % kChains], a, b);
  }
  if (thread == 0) {
    const ClockSpan end = readClock();
    *span = {end.cycles - begin.cycles, end.nanoseconds - begin.nanoseconds};
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += chain[c];
  out[thread] = sum;
}

struct Ceiling {
  Timing timing;
  double flop, gflops, clockMhz, theory;
};

double gigaPerSecond(double amount, double ms) { return amount / ms * 1e-6; }

int fp32LanesPerSm(int cc) { return cc <= 80 ? 64 : 128; }  // Volta, Turing, GA100; then double

Ceiling measureCeiling(const Lab& lab, int threadsPerSm) {
  const int blocks = lab.sms * (threadsPerSm / kPeakBlock);
  const DeviceBuffer<float> out(static_cast<std::size_t>(blocks) * kPeakBlock);
  const DeviceBuffer<ClockSpan> onDevice(1);
  Ceiling is;
  is.timing = measure(lab.stream, [&](cudaStream_t s) {
    fmaPeak<<<blocks, kPeakBlock, 0, s>>>(out, onDevice, 1 - 1.0f / (1 << 20), 1.0f / (1 << 10));
  });
  CUDA_CHECK(cudaGetLastError());
  ClockSpan span;
  CUDA_CHECK(cudaMemcpy(&span, onDevice, sizeof span, cudaMemcpyDeviceToHost));
  is.flop = 2.0 * kPeakFmas * blocks * kPeakBlock;
  is.gflops = gigaPerSecond(is.flop, is.timing.ms);
  is.clockMhz = span.megahertz();
  is.theory = 2e-3 * is.clockMhz * fp32LanesPerSm(lab.cc) * lab.sms;
  if (!(is.gflops <= 1.02 * is.theory))
    throw Stop{kExitFailed, "fmaPeak is faster than all lanes at its clock: the time is wrong"};
  return is;
}

// The model: what is left of the FMA ceiling when SMs idle in the last wave and shared loads take
// their turn. For one FMA of a warp each of an SM's four schedulers needs 128 / lanes clocks and
// 1 + loads issue slots; all four share one memory pipe, 1 clock for a load, 2.2 for a float4. On a
// T4 (64 lanes) an FMA takes two clocks and 8 x 8 outputs hide their loads; on Hopper (128) each
// load displaces an FMA.
double modelShare(const Row& row, const Lab& lab, const Gemm& g) {
  const double fma = 128.0 / fp32LanesPerSm(lab.cc);
  const double pipe = 4 * row.loads * (row.loads < 0.1 ? 2.2 : 1);
  return waveShare(row, lab, g) * fma / std::max(fma, std::max(1 + row.loads, pipe));
}

// Many launches replayed as one.
struct Graph {
  Graph(cudaStream_t stream, const Launch& launch, int count) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < count; ++i) launch(stream);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiateWithFlags(&replay, graph, 0);
    release(cudaGraphDestroy(graph), "cudaGraphDestroy");
    CUDA_CHECK(status);
  }
  ~Graph() { release(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy"); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  cudaGraphExec_t replay = nullptr;
};

// One line of the table.
struct Line {
  const char *variant, *symbol;
  Row row;           // the rung that ran
  std::string note;  // which one, and how, where the variant does not say it
  Gemm g;
  Timing timing, cublas;  // sampled in turn
  double error;

  double flop() const { return 2.0 * g.m * g.n * g.k; }
  double gflops() const { return gigaPerSecond(flop(), timing.ms); }
  double percent() const { return 100 * cublas.ms / timing.ms; }
  // What blocks ask global memory for, in floats per output.
  double floats() const { return 1.0 * g.k / row.tileN + 1.0 * g.k / row.tileM + 1; }
  double intensity() const { return g.k / (2 * floats()); }
};

// Samples two launches strictly in turn, A B A B; each sample is `batch` launches of `each`
// products.
void samplePair(const Launch& a, const Launch& b, int samples, int each, Line& line,
                cudaStream_t stream) {
  const Event begin;
  const Event end;
  const Launch* launches[2] = {&a, &b};
  Timing* timings[2] = {&line.timing, &line.cublas};
  std::vector<double> times[2];
  for (int i = 0; i < 2; ++i) {
    const double ms = warmUp(stream, begin, end, *launches[i]);
    timings[i]->batch = std::max(1, static_cast<int>(std::ceil(kSampleMs / ms)));
  }
  for (int sample = 0; sample < samples; ++sample)
    for (int i = 0; i < 2; ++i)
      times[i].push_back(timeBatch(stream, begin, end, *launches[i], timings[i]->batch) / each);
  for (int i = 0; i < 2; ++i) {
    std::sort(times[i].begin(), times[i].end());
    *timings[i] = {times[i][samples / 2], times[i].front(), times[i].back(), samples,
                   timings[i]->batch * each};
  }
}

// Times rows from `first` on at one shape, each in turn with cuBLAS.
void timeShape(const Lab& lab, int l2Bytes, const Shape& s, std::size_t first,
               std::vector<Line>& lines) {
  const std::size_t sizes[3] = {static_cast<std::size_t>(s.m) * s.k,
                                static_cast<std::size_t>(s.k) * s.n,
                                static_cast<std::size_t>(s.m) * s.n};
  const int sets =
      static_cast<int>(std::ceil(kOverL2 * l2Bytes / 4 / (sizes[0] + sizes[1] + sizes[2])));
  const DeviceBuffer<float> a(sets * sizes[0]);
  const DeviceBuffer<float> b(sets * sizes[1]);
  const DeviceBuffer<float> c(sets * sizes[2]);
  {
    Matrix from(s.m, s.k, 0, 0);
    Matrix also(s.k, s.n, 0, 0);
    from.fill(uniformA);
    also.fill(uniformB);
    for (int i = 0; i < sets; ++i) {
      CUDA_CHECK(
          cudaMemcpy(a + i * sizes[0], from.device, from.device.bytes(), cudaMemcpyDeviceToDevice));
      CUDA_CHECK(
          cudaMemcpy(b + i * sizes[1], also.device, also.device.bytes(), cudaMemcpyDeviceToDevice));
    }
  }
  int set = 0;
  const auto next = [&] {
    set = (set + 1) % sets;
    return Gemm{s.m, s.n, s.k, a + set * sizes[0], s.k, b + set * sizes[1], s.n, c + set * sizes[2],
                s.n, 1};
  };
  const Gemm g = next();
  const bool graphs = s.m <= kGraphUpTo;
  for (std::size_t r = first; r + 1 < lab.rows.size(); ++r) {
    const Row& row = lab.rows[r];
    if (!takesPart(row, lab, g)) continue;
    const bool door = row.symbol == std::string("sgemm");
    const Launch ours = [&](cudaStream_t stream) { row.run(next(), stream); };
    const Launch theirs = [&](cudaStream_t stream) { lab.rows.back().run(next(), stream); };
    const int samples = isFar(row, lab, g) ? kFarSamples : kSamples;
    Line line = {row.variant, row.symbol, door ? choose(lab, g) : row, "", g, {}, {}, 0};
    if (door) line.note = std::string("  ") + line.row.variant;
    if (first == 0) line.error = lab.errors[r];
    if (graphs) {
      constexpr int kEach = 100;
      const Graph x(lab.stream, ours, kEach);
      const Graph y(lab.stream, theirs, kEach);
      samplePair([&](cudaStream_t stream) { CUDA_CHECK(cudaGraphLaunch(x.replay, stream)); },
                 [&](cudaStream_t stream) { CUDA_CHECK(cudaGraphLaunch(y.replay, stream)); },
                 samples, kEach, line, lab.stream);
      lines.push_back(line);
      line.note += ", launch loop";
    }
    if (!graphs || door) {
      samplePair(ours, theirs, samples, 1, line, lab.stream);
      lines.push_back(line);
    }
    CUDA_CHECK(cudaGetLastError());
  }
}

// ---- The report --------------------------------------------------------------------------------

// What the compiler made of the rungs. Also lets them have the shared memory that they ask for.
void prepare(const Lab& lab, int threadsPerSm) {
  const bool table = !lab.options.json;
  for (const Row& row : lab.rungs) {
    if (table) std::printf("%-19s %-19s ", row.variant, row.symbol);
    if (!runsOn(row, lab)) {
      if (table)
        std::printf(row.needs > lab.cc ? "needs sm_%d\n" : "needs %d bytes of shared memory\n",
                    row.needs > lab.cc ? row.needs : row.sharedBytes);
      continue;
    }
    cudaFuncAttributes is;
    int blocks = 0;
    if (row.sharedBytes > 48 << 10)
      CUDA_CHECK(cudaFuncSetAttribute(row.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      row.sharedBytes));
    CUDA_CHECK(cudaFuncGetAttributes(&is, row.kernel));
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, row.kernel, row.threads,
                                                             row.sharedBytes));
    if (table)
      std::printf("%4d threads %4d registers %zu spilled %6zu B shared %2d blocks/SM %3.0f %%\n",
                  row.threads, is.numRegs, is.localSizeBytes, is.sharedSizeBytes + row.sharedBytes,
                  blocks, 100.0 * blocks * row.threads / threadsPerSm);
  }
}

void printLines(const std::vector<Line>& lines, const Lab& lab, double peak) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    const Gemm& g = line.g;
    const bool modelled = line.row.loads > 0;
    const double model = modelled ? 100 * modelShare(line.row, lab, g) : 0;
    const double fma = 100 * line.gflops() / peak;
    if (lab.options.json) {
      JsonLine json("gemm");
      json.integer("day", kProgram.day)
          .text("variant", line.variant)
          .text("symbol", line.symbol)
          .integer("m", g.m)
          .integer("n", g.n)
          .integer("k", g.k)
          .timing(line.timing)
          .integer("flop", static_cast<long long>(line.flop()))
          .metric("gflops", line.gflops(), "GFLOP/s")
          .number("cublas_ms", line.cublas.ms)
          .number("cublas_percent", line.percent())
          .number("fma_percent", fma);
      if (modelled)
        json.number("model_percent", model)
            .number("intensity", line.intensity())
            .number("loads_per_fma", line.row.loads);
      if (line.error > 0) json.number("error", line.error);
      if (!line.note.empty()) json.text("note", line.note.substr(2));
      json.print();
      continue;
    }
    if (i == 0 || g.m != lines[i - 1].g.m)
      std::printf("\nm = %d, n = %d, k = %d\n%-19s %9s %7s %8s %7s %6s %7s %8s %7s %6s %8s\n", g.m,
                  g.n, g.k, "rung", "ms", "spread", "GFLOP/s", "cuBLAS", "FMA", "model", "floats/C",
                  "FLOP/B", "loads", "error");
    std::printf("%-19s %9.4f %5.1f %% %8.0f %5.1f %% %4.1f %%", line.variant, line.timing.ms,
                line.timing.spreadPercent(), line.gflops(), line.percent(), fma);
    if (modelled)
      std::printf(" %5.1f %% %8.1f %7.1f %6.3f", model, line.floats(), line.intensity(),
                  line.row.loads);
    if (line.error > 0) std::printf(" %*.1e", modelled ? 8 : 40, line.error);
    std::printf("%s\n", line.note.c_str());
    if (line.symbol == std::string("sgemm"))
      std::printf("%-19s %9.4f %5.1f %% %8.0f\n", "cuBLAS", line.cublas.ms,
                  line.cublas.spreadPercent(), gigaPerSecond(line.flop(), line.cublas.ms));
  }
}

int runDay(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begun).count(); };
  const bool table = options.mode == Mode::kTable;
  const Device device = openDevice(options.device, matmulSharedTiled);
  const cudaDeviceProp& gpu = device.properties;
  requireDeviceMemory(static_cast<std::size_t>(6 * 4) * kLargest * kLargest);
  const Stream stream;
  const Cublas cublas;
  Lab lab = {options,
             10 * gpu.major + gpu.minor,
             gpu.multiProcessorCount,
             static_cast<int>(gpu.sharedMemPerBlockOptin),
             stream,
             makeRungs(),
             {},
             {}};
  if (kOnCpu) lab.cc = 80;  // its copies are asynchronous; it lacks clusters
  addOtherRows(lab, cublas);
  int version = 0;
  checkCublas(cublasGetVersion(cublas.handle, &version), "cublasGetVersion");
  if (options.json) {
    printRunRecord(kProgram, device);
  } else {
    printBanner(device);
    std::printf("cuBLAS %d: cublasGemmEx, CUBLAS_COMPUTE_32F, as C^T = B^T A^T\n\n", version);
  }
  for (const char* name : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"})
    if (std::getenv(name) != nullptr)
      std::fprintf(stderr, "warning: %s is set, so cuBLAS may not compute in FP32\n", name);
  prepare(lab, gpu.maxThreadsPerMultiProcessor);

  if (options.mode == Mode::kProfile) {
    constexpr int n = 2048;
    Matrix a(n, n, 0, 0);
    a.fill(uniformA);
    const DeviceBuffer<float> c(a.host.size());
    for (const Row& row : lab.rows)
      if (runsOn(row, lab)) runRow(row, {n, n, n, a.device, n, a.device, n, c, n, 1}, stream);
    return kExitOk;
  }
  int failed = 0;
  for (const Shape& s : kRagged)  // nothing aligned; and rows with gaps, aligned where s allows
    failed += checkShape(lab, s, 3, 1) + checkShape(lab, s, 4, 0);
  Ceiling ceiling = {};
  if (table) ceiling = measureCeiling(lab, gpu.maxThreadsPerMultiProcessor);
  std::vector<Line> lines;
  std::string leftOut;
  for (const int n : kSizes) {
    const double ms = lines.empty() ? 0 : 8 * lines.back().cublas.ms;  // of cuBLAS at this size
    if (n > kLargest || (table && elapsed() + 1 + 1e-3 * kLaunchesPerSize * ms > kBudgetSeconds)) {
      leftOut += " " + std::to_string(n);
      continue;
    }
    failed += checkShape(lab, {n, n, n}, 0, 0);
    if (failed == 0 && table) timeShape(lab, gpu.l2CacheSize, {n, n, n}, 0, lines);
  }
  if (failed > 0) {
    std::fprintf(stderr, "%d checks FAILED, so no times are printed\n", failed);
    return kExitFailed;
  }
  if (!options.json)
    std::printf(
        "\nEvery rung matches the CPU reference, at every size and every ragged shape.\n%s%s%s",
        leftOut.empty() ? "" : "Left out (time, or the CPU build):", leftOut.c_str(),
        leftOut.empty() ? "" : "\n");
  if (!table) return kExitOk;
  if (leftOut.empty()) timeShape(lab, gpu.l2CacheSize, kTimedRagged, lab.rungs.size(), lines);
  if (options.json) {
    JsonLine("ceiling")
        .integer("day", kProgram.day)
        .text("variant", "fma-peak")
        .text("symbol", "fmaPeak")
        .timing(ceiling.timing)
        .integer("flop", static_cast<long long>(ceiling.flop))
        .integer("bytes", 0)
        .metric("gflops", ceiling.gflops, "GFLOP/s")
        .number("clock_mhz", ceiling.clockMhz)
        .number("theory", ceiling.theory)
        .print();
  } else {
    std::printf("\nFMA ceiling: %.0f GFLOP/s, %.1f %% of all lanes at the measured %.0f MHz\n",
                ceiling.gflops, 100 * ceiling.gflops / ceiling.theory, ceiling.clockMhz);
  }
  printLines(lines, lab, ceiling.gflops);
  if (!options.json)
    std::printf(
        "\ncuBLAS: share of its rate, sampled in turn (at %d in graph replay: no CPU time per\n"
        "launch). FMA, model: shares of the FMA ceiling, measured, and what idle SMs in the last\n"
        "wave and shared loads leave. error: |C - exact| / |exact|; TF32 gives 1e-4.\n%.1f s\n",
        kGraphUpTo, elapsed());
  return kExitOk;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
