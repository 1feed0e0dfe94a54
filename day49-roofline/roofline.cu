// SPDX-License-Identifier: MIT
//
// Day 49: the roofline with measured bytes.
//
// Where do ten kernels stand under the two ceilings of this GPU, and which count of bytes puts them there? The bytes
// that a kernel requests from global memory, divided by its time, are a rate that DRAM never moved wherever a cache
// served a re-read: some rows read far above 100 % of the copy ceiling. That flaw is the lesson. The program shows it,
// and reads no counter; those of the profiler, which repair it, are in README.md.
// The lesson's author calls these bytes compulsory, as the table does; elsewhere that word means each byte once.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o roofline roofline.cu
//   run:   ./roofline            (--help lists the rest)
//
// The kernels in the order of this file, and what each shows:
//   copyCoalesced, copyVector    the copy ceiling: how many bytes must be in flight
//   vectorAdd                    three streams, each byte used once: the sloped roof as it should be
//   vectorAddPermuted            one float used of each 32-byte sector
//   transposeNaive               reads along rows, writes down columns
//   transposeTiled               both along rows, turned in shared memory without a bank conflict
//   matmulNaive                  requests 341 times what there is to move: above 100 %
//   matmulTiled                  a sixteenth of those requests
//   reduceSequentialAddressing   a tree of sums in shared memory: barriers bind, not bytes
//   heatStepGlobal               five loads a cell, of which caches serve four: above 100 %
//   heatStepTiled                fewer bytes requested, and yet slower than the caches
//   polynomialHorner             513 FLOP for 8 bytes: the one kernel right of the ridge
//   fmaPeak                      the FMA ceiling, with the SM clock that it ran at
//   globalStride0, 1, 8, globalRandom    what one load of a warp costs in L1, by pattern
//   sharedStride1, 2, 4 ... 32   and in shared memory, by bank conflict

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

// ---- The copy ceiling (day 30)

constexpr int kBlock = 256;  // 4 blocks fill an SM of a T4 (1024 threads), 8 one of an H200

// One thread copies one float. A warp reads 128 adjacent bytes and writes 128: four full sectors each way, nothing
// wasted. Yet every thread has only 4 bytes in flight, and on a card whose memory is fast for its number of threads
// that is too little to cover the latency: 63 % of the best copy on an H200 (profile/h200/day49.txt, as all figures
// below).
__global__ void copyCoalesced(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i];
}

// snippet: copy
// The same copy with the three knobs that decide how many bytes are in flight: the width of an access (Vector), the
// loads a thread issues before its first store (kLoads), and the number of blocks (as many as there are tiles, or fewer
// that walk on). A block owns a tile of kLoads stretches of blockDim.x vectors, so every access of a warp stays
// coalesced. One float4 a thread is the fastest on an H200, and the ceiling; four floats a thread reach 99 % of it:
// what counts is the 16 bytes that a thread has in flight.
template <class Vector, int kLoads>
__global__ void copyVector(const Vector* in, Vector* out, int count) {
  const int tile = kLoads * blockDim.x;
  for (int first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
    Vector held[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      if (i < count) held[k] = in[i];
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      if (i < count) out[i] = held[k];
    }
  }
}
// end snippet: copy

// What the copies and transposes move: distinct for 16,777,213 elements (the largest prime below
// 2^24, where float stops holding every integer), so no shift of a row or a tile maps it to itself.
float inputIndex(unsigned i) { return float(i % 16777213); }

// ---- Streams: every byte used once, or an eighth of every sector

// Day 5. One thread, one element; three coalesced streams. Nothing is read twice, so requested bytes are moved bytes,
// and it should run at the copy ceiling. Measured: 81 % of it; as in copyCoalesced, a thread has few bytes in flight.
__global__ void vectorAdd(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

constexpr int kStride = 32;  // floats: 128 bytes, so no two lanes of a warp share a sector

// Day 11. The same sums in another order: neighbouring lanes work kStride floats apart, so each lane touches a 32-byte
// sector of its own and uses 4 bytes of it: an eighth of the ceiling at best, 12.5 %. Measured: 4.6 %. blockIdx.y picks
// the offset within a stride, which makes the walk a permutation: every index exactly once. (The tempting `(i *
// kStride) % n` visits n / kStride indices kStride times when n is a power of two.)
__global__ void vectorAddPermuted(const float* a, const float* b, float* out, int n) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int i = column * kStride + blockIdx.y;
  if (i < n) out[i] = a[i] + b[i];
}

// Small integers keep every sum exact in float. Their periods divide neither the row lengths nor
// the tiles, so an element fetched from the wrong row or column has another value.
float inputA(unsigned i) { return float(i % 7 + 1); }  // 1 ... 7
float inputB(unsigned i) { return float(int(i % 5) - 2); }  // -2 ... 2

// ---- Transposes

constexpr int kTransposeTile = 32;  // one warp reads one row of the tile
constexpr int kTransposePitch = kTransposeTile + 1;  // padded: a column then falls in 32 banks

static_assert(kTransposeTile * kTransposeTile <= 1024, "a transpose block has a thread per element");

// Day 12. Reads along a row, writes down a column: each lane's store opens a sector of its own, so that one float moves
// as 4 bytes in and 32 out, 22 % of the ceiling at best. Measured: 13 %.
__global__ void transposeNaive(const float* in, float* out, int side) {
  const int column = blockIdx.x * kTransposeTile + threadIdx.x;
  const int row = blockIdx.y * kTransposeTile + threadIdx.y;
  if (row < side && column < side) out[size_t(column) * side + row] = in[size_t(row) * side + column];
}

// Day 13. The tile turns in shared memory, so reads and writes both run along rows. A warp reads a column of the tile:
// with a pitch of 32 all lanes would meet in one bank, with 33 none do. It moves what a copy moves, and should reach
// its rate. Measured: 43 % of it, 3.3 times the naive one.
__global__ void transposeTiled(const float* in, float* out, int side) {
  __shared__ float tile[kTransposeTile][kTransposePitch];
  int column = blockIdx.x * kTransposeTile + threadIdx.x;
  int row = blockIdx.y * kTransposeTile + threadIdx.y;
  if (row < side && column < side) tile[threadIdx.y][threadIdx.x] = in[size_t(row) * side + column];
  __syncthreads();
  column = blockIdx.y * kTransposeTile + threadIdx.x;
  row = blockIdx.x * kTransposeTile + threadIdx.y;
  if (row < side && column < side) out[size_t(row) * side + column] = tile[threadIdx.x][threadIdx.y];
}

// ---- Matrix products

// The matmul and the stencil stay small on purpose: their inputs fit in the L2 of every card from
// a T4 on, so their re-reads are served by a cache, and the count of requested bytes does not know it.
constexpr int kMatmul = 512;
constexpr int kMatmulTile = 16;

static_assert(kMatmul % kMatmulTile == 0, "the matmul's byte model counts whole tiles");

// Day 16. One thread, one element of C = A B, both operands from global memory at every step: a warp reads 32 adjacent
// floats of B and two addresses of A (its 16 x 16 block spans two rows). Each element of A and B is requested 512
// times: 1,075 MB, where each byte once is 3.15 MB. At the copy ceiling the requests would take 0.26 ms. Measured:
// 0.059 ms, 437 % of the ceiling, because caches serve nearly all of them.
__global__ void matmulNaive(const float* a, const float* b, float* c, int d) {
  const int column = blockIdx.x * kMatmulTile + threadIdx.x;
  const int row = blockIdx.y * kMatmulTile + threadIdx.y;
  if (row >= d || column >= d) return;
  float sum = 0;
  for (int k = 0; k < d; ++k) sum += a[row * d + k] * b[k * d + column];
  c[row * d + column] = sum;
}

// Day 16. Each element of a 16 x 16 tile is loaded once and read 16 times from shared memory, so global memory is asked
// for a sixteenth. Cells outside the matrix are zero. By its requested bytes it should be 16 times as fast; those bytes
// did not bind, so it is 1.5 times as fast.
__global__ void matmulTiled(const float* a, const float* b, float* c, int d) {
  __shared__ float tileA[kMatmulTile][kMatmulTile];
  __shared__ float tileB[kMatmulTile][kMatmulTile];
  const int column = blockIdx.x * kMatmulTile + threadIdx.x;
  const int row = blockIdx.y * kMatmulTile + threadIdx.y;
  float sum = 0;
  for (int first = 0; first < d; first += kMatmulTile) {
    const int columnA = first + threadIdx.x;
    const int rowB = first + threadIdx.y;
    tileA[threadIdx.y][threadIdx.x] = row < d && columnA < d ? a[row * d + columnA] : 0.0f;
    tileB[threadIdx.y][threadIdx.x] = rowB < d && column < d ? b[rowB * d + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kMatmulTile; ++k) sum += tileA[threadIdx.y][k] * tileB[k][threadIdx.x];
    __syncthreads();  // nobody may overwrite the tiles that others still read
  }
  if (row < d && column < d) c[row * d + column] = sum;
}

vector<double> matmulReference(int d) {
  vector<double> c(size_t(d) * d, 0.0);
  for (int row = 0; row < d; ++row) {
    for (int k = 0; k < d; ++k) {
      const double a = inputA(row * d + k);
      for (int column = 0; column < d; ++column) c[row * d + column] += a * inputB(k * d + column);
    }
  }
  return c;
}

// ---- A reduction

static_assert((kBlock & (kBlock - 1)) == 0, "the reduction halves the block until one is left");

// Day 24. One partial sum per block. Active threads stay adjacent, so whole warps retire as the stride halves, and no
// two lanes meet in a bank. kBlock - 1 additions a block. It reads one stream and should run at the ceiling; measured:
// 23 % of it, since a block waits at nine barriers for each 1 KiB that it loads.
__global__ void reduceSequentialAddressing(const float* in, float* partial, int n) {
  __shared__ float sum[kBlock];
  const int i = blockIdx.x * kBlock + threadIdx.x;
  sum[threadIdx.x] = i < n ? in[i] : 0.0f;
  __syncthreads();
  for (int stride = kBlock / 2; stride > 0; stride /= 2) {
    if (int(threadIdx.x) < stride) sum[threadIdx.x] += sum[threadIdx.x + stride];
    __syncthreads();
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

// ---- Stencils

constexpr int kStencil = 2048;
constexpr int kStencilX = 32;
constexpr int kStencilY = 8;
constexpr int kApronX = kStencilX + 2;
constexpr int kApronY = kStencilY + 2;
constexpr float kDiffusion = 0.2f;  // an explicit step in 2D is stable up to 1/4 (CFL)

static_assert(kStencil % kStencilX == 0 && kStencil % kStencilY == 0, "the stencil's byte model counts whole tiles");

static_assert(kStencilX * kStencilY == kBlock, "a stencil block has a thread per cell");

static_assert(kDiffusion <= 0.25f, "the heat step is unstable above 1/4");

// One explicit step of the heat equation, 7 FLOP a cell; the outermost ring is the boundary condition and is copied.
__device__ inline float heatCell(float centre, float north, float south, float west, float east) {
  return centre + kDiffusion * (north + south + west + east - 4.0f * centre);
}

__device__ inline bool onRing(int row, int column, int g) {
  return row == 0 || row == g - 1 || column == 0 || column == g - 1;
}

// Day 34. One thread a cell, five loads: four of them somebody else's too. Measured by requested bytes: 191 % of the
// copy ceiling.
__global__ void heatStepGlobal(const float* in, float* out, int g) {
  const int column = blockIdx.x * kStencilX + threadIdx.x;
  const int row = blockIdx.y * kStencilY + threadIdx.y;
  if (row >= g || column >= g) return;
  const int i = row * g + column;
  out[i] = onRing(row, column, g) ? in[i] : heatCell(in[i], in[i - g], in[i + g], in[i - 1], in[i + 1]);
}

// Day 34. The block first loads its cells and their apron, 34 x 10 = 340 cells to make 256, and then reads neighbours
// from shared memory. It requests 2.6 times fewer bytes and should win by that. Measured: 1.5 times slower than
// heatStepGlobal. The caches did the same work without a barrier.
__global__ void heatStepTiled(const float* in, float* out, int g) {
  __shared__ float tile[kApronY][kApronX];
  const int left = blockIdx.x * kStencilX - 1;
  const int top = blockIdx.y * kStencilY - 1;
  for (int cell = threadIdx.y * kStencilX + threadIdx.x; cell < kApronX * kApronY; cell += kBlock) {
    const int row = top + cell / kApronX;
    const int column = left + cell % kApronX;
    if (row >= 0 && row < g && column >= 0 && column < g) tile[cell / kApronX][cell % kApronX] = in[row * g + column];
  }
  __syncthreads();
  const int x = threadIdx.x + 1;
  const int y = threadIdx.y + 1;
  const int column = left + x;
  const int row = top + y;
  if (row >= g || column >= g) return;
  out[row * g + column] = onRing(row, column, g)
      ? tile[y][x]
      : heatCell(tile[y][x], tile[y - 1][x], tile[y + 1][x], tile[y][x - 1], tile[y][x + 1]);
}

double heatReference(int row, int column, int g) {
  const auto at = [g](int y, int x) { return double(inputA(y * g + x)); };
  const double centre = at(row, column);
  if (row == 0 || row == g - 1 || column == 0 || column == g - 1) return centre;
  return centre +
      0.2 * (at(row - 1, column) + at(row + 1, column) + at(row, column - 1) + at(row, column + 1) - 4 * centre);
}

// ---- Arithmetic

constexpr int kDegree = 256;  // 513 FLOP for 8 bytes: the one kernel right of every ridge
constexpr float kPolynomialScale = 0.0625f;

// Day 49. 1 + x + x^2 + ... + x^256 by Horner's rule: one multiplication to scale x, then 256 dependent FMAs. Occupancy
// hides the chain's latency; the two streams are far from binding, so the FMA ceiling is its roof. Measured: 85 % of
// it.
__global__ void polynomialHorner(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = in[i] * kPolynomialScale;
  float y = 1.0f;
#pragma unroll
  for (int k = 0; k < kDegree; ++k) y = fmaf(y, x, 1.0f);
  out[i] = y;
}

// Scaled by kPolynomialScale these run from -1 to 1. At both ends every one of the 256 terms
// counts, so a chain that is one step short is seen; below 1/2 the sum has converged long before.
float inputX(unsigned i) { return float(int(i % 33) - 16); }

double polynomialReference(double x) {
  double sum = 0;
  double power = 1;
  for (int k = 0; k <= kDegree; ++k, power *= x) sum += power;
  return sum;
}

// ---- The FMA ceiling (day 30)

// The FMA ceiling. One FMA takes 4 cycles on every architecture from Volta on, so 8 independent
// chains a thread cover it twice over even for one warp per scheduler. 128 steps unrolled make 1024
// FMAs per trip of the loop, so that its counter and branch do not count: on an H200 that reaches
// 98.4 to 98.8 % of all lanes at the measured clock, and 4 steps 91 %.
constexpr int kChains = 8;
constexpr int kUnroll = 128;
constexpr int kFmaSteps = 32768;  // milliseconds of work, so the launch itself does not count
// x <- x * kFmaA + kFmaB: kFmaA just below 1 keeps all mantissa bits busy (adding zeros draws less
// power and can clock higher) and still lets the result grow with every step, so that half the
// steps give about half the value.
constexpr float kFmaA = 1.0f - 1.0f / (1 << 20);
constexpr float kFmaB = 1.0f / (1 << 10);

static_assert(kFmaSteps % kUnroll == 0, "whole trips of the unrolled loop");

// Registers only: kChains independent chains a thread, one store at the end so that the work is
// not dead. One wave of blocks fills every SM. Block 0 also reads the SM clock around its work.
__global__ void fmaPeak(float* out, ClockSpan* span, float a, float b, int steps) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  float chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) chain[c] = float(thread % 7 + c);
  ClockSpan begin = {0, 0};
  if (thread == 0) begin = readClock();  // by one thread: the timer is slow to read
  for (int step = 0; step < steps; step += kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) chain[c] = fmaf(chain[c], a, b);
    }
  }
  if (thread == 0) {
    const ClockSpan end = readClock();
    *span = {end.cycles - begin.cycles, end.nanoseconds - begin.nanoseconds};
  }
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += chain[c];
  out[thread] = sum;
}

double fmaReference(int thread) {
  double sum = 0;
  for (int c = 0; c < kChains; ++c) {
    double chain = thread % 7 + c;
    for (int step = 0; step < kFmaSteps; ++step) chain = chain * kFmaA + kFmaB;
    sum += chain;
  }
  return sum;
}

// ---- Ten access patterns

// The access patterns. Their words stay in the L1 of every card, so that nothing but the pattern
// decides; a turn is kHops loads in a row, so that the loop does not count.
constexpr int kWarp = 32;
constexpr int kPatternBits = 13;
constexpr int kPatternWords = 1 << kPatternBits;
constexpr int kSharedWords = 2048;
constexpr int kTurns = kForSanitizer ? 8 : 64;
constexpr int kHops = 16;
constexpr int kGlobalHop = 256;  // words from one load of a thread to its next: another line
constexpr int kSharedHop = 64;
constexpr int kSector = 32;  // bytes of a transaction of L1
constexpr int kWavefront = 128;  // and of shared memory

// snippet: walk
// The 32 lanes of a warp load one float each, by one instruction. L1 moves sectors of 32 bytes, so
// that becomes 1 transaction if all lanes want the same word, 4 if they want adjacent words, and 32
// if each wants its own. Every turn starts elsewhere, or the compiler would load once.
template <int kLaneStride>
__device__ inline void sumGlobal(const float* words, float* out) {
  float sum = 0;
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int first = threadIdx.x % kWarp * kLaneStride + (turn + threadIdx.x / kWarp) * kWarp;
#pragma unroll
    for (int hop = 0; hop < kHops; ++hop) sum += words[first + hop * kGlobalHop];
  }
  out[blockIdx.x * kBlock + threadIdx.x] = sum;
}
// end snippet: walk

// Word numbers that look random: two rounds of xor-shift and multiply, the multipliers those of
// C. Wellons' lowbias32, and the upper 13 of the 32 bits.
__host__ __device__ inline unsigned scatter(unsigned i) {
  i = (i ^ i >> 16) * 0x7feb352du;
  i = (i ^ i >> 15) * 0x846ca68bu;
  return i >> (32 - kPatternBits);
}

// Shared memory has 32 banks of one word, and word w lies in bank w % 32: lanes kLaneStride
// words apart meet in groups of kLaneStride (a power of two), and a bank serves one word at a time.
template <int kLaneStride>
__device__ inline void sumShared(const float* in, float* out) {
  __shared__ float words[kSharedWords];
  for (int i = threadIdx.x; i < kSharedWords; i += kBlock) words[i] = in[i];
  __syncthreads();
  float sum = 0;
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int first = threadIdx.x % kWarp * kLaneStride + turn % kWarp;
#pragma unroll
    for (int hop = 0; hop < kHops; ++hop) sum += words[first + hop * kSharedHop];
  }
  out[blockIdx.x * kBlock + threadIdx.x] = sum;
}

// Each pattern is a kernel with a name of its own, because the profiler's export is joined by name. A load of 32
// sectors should take 8 times one of 4. Measured on an H200: 6.9 times; one of 1 sector is no faster than one of 4. In
// shared memory every doubling of the stride should halve the rate, and does, from 236 to 8.1 giga warp loads a second.
__global__ void globalStride0(const float* in, float* out) { sumGlobal<0>(in, out); }
__global__ void globalStride1(const float* in, float* out) { sumGlobal<1>(in, out); }
__global__ void globalStride8(const float* in, float* out) { sumGlobal<8>(in, out); }
__global__ void globalRandom(const float* in, float* out) {
  float sum = 0;
  for (int load = 0; load < kTurns * kHops; ++load) sum += in[scatter(load * kBlock + threadIdx.x)];
  out[blockIdx.x * kBlock + threadIdx.x] = sum;
}
__global__ void sharedStride1(const float* in, float* out) { sumShared<1>(in, out); }
__global__ void sharedStride2(const float* in, float* out) { sumShared<2>(in, out); }
__global__ void sharedStride4(const float* in, float* out) { sumShared<4>(in, out); }
__global__ void sharedStride8(const float* in, float* out) { sumShared<8>(in, out); }
__global__ void sharedStride16(const float* in, float* out) { sumShared<16>(in, out); }
__global__ void sharedStride32(const float* in, float* out) { sumShared<32>(in, out); }

constexpr double kRandomSectors = 31.5;  // of 1024, if 32 are drawn: 1024 (1 - (1 - 1/1024)^32)

static_assert((kWarp - 1) * 8 + (kTurns + kBlock / kWarp) * kWarp + kHops * kGlobalHop <= kPatternWords,
    "the widest walk through global memory ends inside its words");
static_assert(kWarp * kWarp + kHops * kSharedHop <= kSharedWords, "and that through shared memory");
static_assert(double(kPatternWords) * kTurns * kHops <= 1 << 24, "sums of word numbers are exact in float");

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

constexpr Program kProgram = {49, "roofline", "Day 49: ten kernels under this GPU's two measured ceilings."};

// ---- The table: a row per kernel

// Streams must come from DRAM, not from the L2 cache: every buffer is at least six times the L2
// that the GPU reports, and never under 64 MiB (a T4's L2 is 4 MiB, an H200's 60). At the end of a
// kernel up to a third of the L2 waits to be written back (19 MB on an H200), and no counter of
// DRAM has seen it: with buffers of four times the L2 that is 3.5 % of a copy.
constexpr size_t kStreamOverL2 = 6;
constexpr size_t kStreamMinBytes = size_t(64) << 20;
constexpr int kSideStep = 1024;  // buffers are squares whose side is a multiple of this

static_assert(kSideStep % kBlock == 0, "a row of a stream must be whole blocks");

static_assert(kSideStep % kTransposeTile == 0 && kSideStep % kStride == 0,
    "full-size transposes and permutations have no partial tile");

// How large the problem is. The run has two: the timed one, and a small ragged one that no launch
// shape divides, on which every guard and every partial tile is checked.
struct Sizes {
  int side;  // the streams hold side x side floats
  int matmul;
  int stencil;

  int n() const { return side * side; }
};

// 1238^2 = 1,532,644 is a multiple of 4, as float4 needs, and of none of 8, 32 or 256; 131 is
// prime.
constexpr Sizes kRagged = {1238, 131, 131};
constexpr int kRaggedThreads = 3 * kBlock;

constexpr Sizes kSanitizerSizes = {2 * kSideStep, 8 * kMatmulTile, 8 * kStencilX};

Sizes timedSizes(const cudaDeviceProp& gpu) {
  if (kForSanitizer) return kSanitizerSizes;
  const size_t bytes = std::max(kStreamMinBytes, kStreamOverL2 * size_t(gpu.l2CacheSize));
  int side = kSideStep;
  while (sizeof(float) * side * side < bytes) side += kSideStep;
  return {side, kMatmul, kStencil};
}

// Everything on the GPU. Each buffer has exactly the size that its kernels may touch, so that
// compute-sanitizer and the CPU build see a step outside.
struct Buffers {
  Buffers(const Sizes& sizes, int residentThreads)
      : a(sizes.n()),
        b(sizes.n()),
        x(sizes.n()),
        index(sizes.n()),
        out(sizes.n()),
        hostIndex(sizes.n()),
        matrixA(sizes.matmul * sizes.matmul),
        matrixB(sizes.matmul * sizes.matmul),
        matrixC(sizes.matmul * sizes.matmul),
        heatIn(sizes.stencil * sizes.stencil),
        heatOut(sizes.stencil * sizes.stencil),
        partial(ceilDivide(sizes.n(), kBlock)),
        perThread(residentThreads),
        span(1) {
    for (unsigned i = 0; i < hostIndex.size(); ++i) hostIndex[i] = inputIndex(i);
  }

  static size_t bytes(const Sizes& sizes, int residentThreads) {
    const size_t n = sizes.n();
    return sizeof(float) *
        (5 * n + 3 * sizes.matmul * sizes.matmul + 2 * sizes.stencil * sizes.stencil + n / kBlock + residentThreads);
  }

  DeviceBuffer<float> a, b, x, index, out;
  vector<float> hostIndex;  // what `index` holds
  DeviceBuffer<float> matrixA, matrixB, matrixC;
  DeviceBuffer<float> heatIn, heatOut;
  DeviceBuffer<float> partial;
  DeviceBuffer<float> perThread;  // one result of each thread that the GPU holds at once
  DeviceBuffer<ClockSpan> span;
};

void uploadInputs(const Buffers& at, const PinnedBuffer<float>& staging, cudaStream_t stream) {
  const auto fill = [&](const DeviceBuffer<float>& to, auto value) {
    for (unsigned i = 0; i < to.count(); ++i) staging[i] = value(i);
    upload(to, staging, to.bytes(), stream);
  };
  // Lambdas, because a call through a function's name is a call for each of 67 million elements.
  const auto valueA = [](unsigned i) { return inputA(i); };
  const auto valueB = [](unsigned i) { return inputB(i); };
  fill(at.a, valueA);
  fill(at.b, valueB);
  fill(at.x, [](unsigned i) { return inputX(i); });
  fill(at.index, [&](unsigned i) { return at.hostIndex[i]; });
  fill(at.matrixA, valueA);
  fill(at.matrixB, valueB);
  fill(at.heatIn, valueA);
}

// One kernel: its models, its only launch, and how its output is judged.
struct Row {
  const char* variant;
  const char* symbol;  // the kernel's name, by which the profiler's export is joined
  int day;
  double flop;
  double bytes;  // compulsory: asked of global memory, whoever answers
  Launch launch;
  const DeviceBuffer<float>* output;
  std::function<Verdict(const float* got)> check;
  double transactions = 0;  // of an access pattern: what one warp instruction becomes
  int transactionBytes = 0;  // kSector for global memory, kWavefront for shared
};

constexpr double kTolerance = 1e-5;  // relative; sums of small integers come out exact anyway
constexpr double kLiveness = 0.01;  // of 32768 rounded steps; half the steps would be 50 % off
constexpr double kFloatBytes = sizeof(float);

// Makes the judge of an output of rows x columns floats.
template <class Want>
std::function<Verdict(const float*)> judge(size_t rows, size_t columns, double tolerance, Want want) {
  return [=](const float* got) { return compare(got, rows, columns, tolerance, 0.0, want); };
}

// The twelve kernels in the order of the page: the copy, ten rows, the FMA.
vector<Row> makeRows(const Sizes& sizes, const Buffers& at) {
  const int n = sizes.n();
  const int side = sizes.side;
  const int d = sizes.matmul;
  const int g = sizes.stencil;
  const int threads = int(at.perThread.count());
  const double d3 = double(d) * d * d;
  const double cells = double(g - 2) * (g - 2);

  const int blocks = ceilDivide(n, kBlock);
  const dim3 permutedGrid(ceilDivide(ceilDivide(n, kStride), kBlock), kStride);
  const dim3 transposeBlock(kTransposeTile, kTransposeTile);
  const dim3 transposeGrid(ceilDivide(side, kTransposeTile), ceilDivide(side, kTransposeTile));
  const dim3 matmulBlock(kMatmulTile, kMatmulTile);
  const dim3 matmulGrid(ceilDivide(d, kMatmulTile), ceilDivide(d, kMatmulTile));
  const dim3 stencilBlock(kStencilX, kStencilY);
  const dim3 stencilGrid(ceilDivide(g, kStencilX), ceilDivide(g, kStencilY));
  const double tiles = double(stencilGrid.x) * stencilGrid.y;

  const auto copied = [&at, side](const float* got) {
    // There are many copies, so the quick way first: the very floats that went in.
    if (std::equal(at.hostIndex.begin(), at.hostIndex.end(), got)) {
      Verdict same;
      same.checked = at.hostIndex.size();
      return same;
    }
    return compare(
        got, side, side, 0, 0, [=](unsigned row, unsigned column) { return inputIndex(row * side + column); });
  };
  const auto added = judge(1, n, kTolerance, [](unsigned, unsigned i) { return double(inputA(i)) + inputB(i); });
  const auto transposed =
      judge(side, side, 0, [=](unsigned row, unsigned column) { return inputIndex(column * side + row); });
  const auto multiplied = judge(d, d, kTolerance,
      [d, want = matmulReference(d)](unsigned row, unsigned column) { return want[row * d + column]; });
  const auto reduced = judge(1, blocks, kTolerance, [n](unsigned, unsigned block) {
    double sum = 0;
    const unsigned end = std::min<unsigned>(n, (block + 1) * kBlock);
    for (unsigned i = block * kBlock; i < end; ++i) sum += inputA(i);
    return sum;
  });
  const auto heated =
      judge(g, g, kTolerance, [g](unsigned row, unsigned column) { return heatReference(row, column, g); });
  vector<double> polynomials;  // inputX repeats after 33, so there are 33 results
  for (int i = 0; i < 33; ++i) polynomials.push_back(polynomialReference(double(inputX(i)) * kPolynomialScale));
  const auto evaluated = judge(1, n, kTolerance, [polynomials](unsigned, unsigned i) { return polynomials[i % 33]; });
  vector<double> chains;  // and the chains' starts repeat after 7 threads
  for (int thread = 0; thread < 7; ++thread) chains.push_back(fmaReference(thread));
  const auto alive = judge(1, threads, kLiveness, [chains](unsigned, unsigned thread) { return chains[thread % 7]; });

  return {
      {"ceiling-copy", "copyCoalesced", 30, 0, kFloatBytes * 2 * n,
          [=, &at](cudaStream_t s) { copyCoalesced<<<blocks, kBlock, 0, s>>>(at.index, at.out, n); }, &at.out, copied},
      {"vector add", "vectorAdd", 5, double(n), kFloatBytes * 3 * n,
          [=, &at](cudaStream_t s) { vectorAdd<<<blocks, kBlock, 0, s>>>(at.a, at.b, at.out, n); }, &at.out, added},
      {"vector add, stride 32", "vectorAddPermuted", 11, double(n), kFloatBytes * 3 * n,
          [=, &at](cudaStream_t s) { vectorAddPermuted<<<permutedGrid, kBlock, 0, s>>>(at.a, at.b, at.out, n); },
          &at.out, added},
      {"transpose, naive", "transposeNaive", 12, 0, kFloatBytes * 2 * n,
          [=, &at](cudaStream_t s) { transposeNaive<<<transposeGrid, transposeBlock, 0, s>>>(at.index, at.out, side); },
          &at.out, transposed},
      {"transpose, tiled", "transposeTiled", 13, 0, kFloatBytes * 2 * n,
          [=, &at](cudaStream_t s) { transposeTiled<<<transposeGrid, transposeBlock, 0, s>>>(at.index, at.out, side); },
          &at.out, transposed},
      {"matmul, naive", "matmulNaive", 16, 2 * d3, kFloatBytes * (2 * d3 + double(d) * d),
          [=, &at](cudaStream_t s) {
            matmulNaive<<<matmulGrid, matmulBlock, 0, s>>>(at.matrixA, at.matrixB, at.matrixC, d);
          },
          &at.matrixC, multiplied},
      {"matmul, tiled 16", "matmulTiled", 16, 2 * d3, kFloatBytes * (2 * d3 / kMatmulTile + double(d) * d),
          [=, &at](cudaStream_t s) {
            matmulTiled<<<matmulGrid, matmulBlock, 0, s>>>(at.matrixA, at.matrixB, at.matrixC, d);
          },
          &at.matrixC, multiplied},
      {"block reduction", "reduceSequentialAddressing", 24, double(n) - blocks, kFloatBytes * (double(n) + blocks),
          [=, &at](cudaStream_t s) { reduceSequentialAddressing<<<blocks, kBlock, 0, s>>>(at.a, at.partial, n); },
          &at.partial, reduced},
      {"stencil, global", "heatStepGlobal", 34, 7 * cells, kFloatBytes * 6 * cells,
          [=, &at](cudaStream_t s) { heatStepGlobal<<<stencilGrid, stencilBlock, 0, s>>>(at.heatIn, at.heatOut, g); },
          &at.heatOut, heated},
      {"stencil, tiled", "heatStepTiled", 34, 7 * cells, kFloatBytes * (kApronX * kApronY * tiles + cells),
          [=, &at](cudaStream_t s) { heatStepTiled<<<stencilGrid, stencilBlock, 0, s>>>(at.heatIn, at.heatOut, g); },
          &at.heatOut, heated},
      {"polynomial, 256", "polynomialHorner", 49, (2.0 * kDegree + 1) * n, kFloatBytes * 2 * n,
          [=, &at](cudaStream_t s) { polynomialHorner<<<blocks, kBlock, 0, s>>>(at.x, at.out, n); }, &at.out,
          evaluated},
      {"ceiling-fma", "fmaPeak", 30, 2.0 * kChains * kFmaSteps * threads, 0,
          [=, &at](cudaStream_t s) {
            fmaPeak<<<threads / kBlock, kBlock, 0, s>>>(at.perThread, at.span, kFmaA, kFmaB, kFmaSteps);
          },
          &at.perThread, alive},
  };
}

// The ten access patterns in the order of the page.
vector<Row> makePatterns(const Buffers& at) {
  const int threads = int(at.perThread.count());
  const int grid = threads / kBlock;
  const double loads = double(kTurns) * kHops * threads;
  // Each word holds its own number, so a thread's result is the sum of the numbers that it walks.
  const auto walk = [=, &at](const char* variant, const char* symbol, double transactions, int transactionBytes,
                        Launch launch, auto wordOf) {
    vector<double> sums(kBlock, 0.0);
    for (int thread = 0; thread < kBlock; ++thread)
      for (int load = 0; load < kTurns * kHops; ++load) sums[thread] += wordOf(thread, load / kHops, load % kHops);
    const double asked = transactionBytes == kWavefront ? double(kSharedWords) * grid : loads;
    return Row{variant, symbol, kProgram.day, loads, kFloatBytes * (asked + threads), std::move(launch), &at.perThread,
        judge(1, threads, 0, [sums](unsigned, unsigned thread) { return sums[thread % kBlock]; }), transactions,
        transactionBytes};
  };
  const auto global = [=](const char* variant, const char* symbol, int stride, int sectors, Launch launch) {
    return walk(variant, symbol, sectors, kSector, std::move(launch), [stride](int thread, int turn, int hop) {
      return thread % 32 * stride + (turn + thread / 32) * 32 + hop * kGlobalHop;
    });
  };
  const auto shared = [=](const char* variant, const char* symbol, int stride, Launch launch) {
    return walk(variant, symbol, stride, kWavefront, std::move(launch),
        [stride](int thread, int turn, int hop) { return thread % 32 * stride + turn % 32 + hop * kSharedHop; });
  };
  return {
      global("global, stride 0", "globalStride0", 0, 1,
          [=, &at](cudaStream_t s) { globalStride0<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      global("global, stride 1", "globalStride1", 1, 4,
          [=, &at](cudaStream_t s) { globalStride1<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      global("global, stride 8", "globalStride8", 8, 32,
          [=, &at](cudaStream_t s) { globalStride8<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      walk(
          "global, random", "globalRandom", kRandomSectors, kSector,
          [=, &at](cudaStream_t s) { globalRandom<<<grid, kBlock, 0, s>>>(at.index, at.perThread); },
          [](int thread, int turn, int hop) { return scatter((turn * kHops + hop) * kBlock + thread); }),
      shared("shared, stride 1", "sharedStride1", 1,
          [=, &at](cudaStream_t s) { sharedStride1<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      shared("shared, stride 2", "sharedStride2", 2,
          [=, &at](cudaStream_t s) { sharedStride2<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      shared("shared, stride 4", "sharedStride4", 4,
          [=, &at](cudaStream_t s) { sharedStride4<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      shared("shared, stride 8", "sharedStride8", 8,
          [=, &at](cudaStream_t s) { sharedStride8<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      shared("shared, stride 16", "sharedStride16", 16,
          [=, &at](cudaStream_t s) { sharedStride16<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
      shared("shared, stride 32", "sharedStride32", 32,
          [=, &at](cudaStream_t s) { sharedStride32<<<grid, kBlock, 0, s>>>(at.index, at.perThread); }),
  };
}

// One shape of copy: copyVector of kLoads vectors a thread, by at most `blockLimit` blocks.
template <class Vector, int kLoads>
Row copyShape(const char* variant, const Row& plain, const Sizes& sizes, const Buffers& at, int blockLimit) {
  const int count = int(sizes.n() / (sizeof(Vector) / sizeof(float)));
  const int blocks = std::min(ceilDivide(count, kBlock * kLoads), blockLimit);
  const Vector* in = reinterpret_cast<const Vector*>(static_cast<float*>(at.index));
  Vector* out = reinterpret_cast<Vector*>(static_cast<float*>(at.out));
  Row row = plain;
  row.variant = variant;
  row.symbol = "copyVector";
  row.launch = [=](cudaStream_t s) { copyVector<Vector, kLoads><<<blocks, kBlock, 0, s>>>(in, out, count); };
  return row;
}

// The copies that compete for the ceiling.
vector<Row> makeCopyShapes(const Row& plain, const Sizes& sizes, const Buffers& at) {
  const int residentBlocks = int(at.perThread.count()) / kBlock;  // one full wave
  constexpr int kOnePass = 1 << 30;  // as many blocks as there are tiles
  Row coalesced = plain;
  coalesced.variant = "float x 1";
  Row library = plain;  // the driver's own copy competes too
  library.variant = "cudaMemcpy";
  library.symbol = "cudaMemcpyAsync";
  library.launch = [&at](cudaStream_t s) {
    CUDA_CHECK(cudaMemcpyAsync(at.out, at.index, at.out.bytes(), cudaMemcpyDeviceToDevice, s));
  };
  return {
      coalesced,
      copyShape<float2, 1>("float2 x 1", plain, sizes, at, kOnePass),
      copyShape<float4, 1>("float4 x 1", plain, sizes, at, kOnePass),
      copyShape<float4, 2>("float4 x 2", plain, sizes, at, kOnePass),
      copyShape<float4, 4>("float4 x 4", plain, sizes, at, kOnePass),
      copyShape<float, 4>("float x 4", plain, sizes, at, kOnePass),
      copyShape<float4, 1>("float4 x 1, resident", plain, sizes, at, residentBlocks),
      copyShape<float4, 4>("float4 x 4, resident", plain, sizes, at, residentBlocks),
      library,
  };
}

// One size of the whole: its memory, and the kernels bound to it.
struct Problem {
  Problem(const Sizes& of, int residentThreads)
      : sizes(of),
        buffers(sizes, residentThreads),
        rows(makeRows(sizes, buffers)),
        patterns(makePatterns(buffers)),
        shapes(makeCopyShapes(rows.front(), sizes, buffers)) {}

  // The rows of the table: all but the two ceilings, which stand first and last.
  const Row& table(size_t i) const { return rows[i + 1]; }

  const Sizes sizes;
  const Buffers buffers;
  const vector<Row> rows;  // the twelve of the page
  const vector<Row> patterns;  // and the ten access patterns
  const vector<Row> shapes;  // the copies that compete for the ceiling
};

// ---- Checking

void runRow(const Row& row, cudaStream_t stream) {
  row.launch(stream);
  finish(row.symbol, stream);
}

// Runs every row on poisoned output and judges all of it; returns how many rows failed.
int checkRows(const vector<Row>& rows, const char* size, const Options& options, const PinnedBuffer<float>& staging,
    cudaStream_t stream) {
  int failed = 0;
  for (const Row& row : rows) {
    poison(*row.output, row.output->bytes(), stream);
    runRow(row, stream);
    download(staging, *row.output, row.output->bytes(), stream);
    failed += reportCheck(row.day, row.variant, row.symbol, size, row.check(staging), options.mode, options.json);
  }
  return failed;
}

// ---- Measuring

// FP32 lanes of one SM, which is FMAs per clock: an architectural constant of the compute
// capability (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
int fp32LanesPerSm(int major, int minor) {
  const bool half = major < 8 || (major == 8 && minor == 0);  // Volta, Turing, GA100
  return half ? 64 : 128;
}

// The two ceilings and what stands behind them.
struct Ceilings {
  vector<Timing> copies;  // one per shape
  size_t best = 0;  // the fastest shape
  double copyGbps = 0;
  Timing fma;
  double fmaGflops = 0;
  double fmaTheory = 0;  // GFLOP/s of all lanes at the clock measured while fmaPeak ran
  double clockMhz = 0;

  double ridge() const { return fmaGflops / copyGbps; }
};

double gigaPerSecond(double amount, double ms) { return amount / ms * 1e-6; }

// The most that the SMs can do at `megahertz`, whatever the kernel: an FMA in every FP32 lane, and 128 bytes a
// clock from L1 or from shared memory, which share one data path (64 on a T4, so this bound is twice its own).
struct Limits {
  Limits(const cudaDeviceProp& gpu, double megahertz) {
    const double clocks = 1e-3 * megahertz * gpu.multiProcessorCount;  // of all SMs, giga per second
    gflops = 2 * fp32LanesPerSm(gpu.major, gpu.minor) * clocks;
    gbps = kWavefront * clocks;
  }

  void check(const Row& row, const Timing& timing) const {
    requirePossible(row.variant, gigaPerSecond(row.flop, timing.ms), gflops, "GFLOP/s");
    requirePossible(row.variant, gigaPerSecond(row.bytes, timing.ms), gbps, "GB/s");
  }

  double gflops, gbps;
};

Ceilings measureCeilings(const Problem& problem, const cudaDeviceProp& gpu, cudaStream_t stream) {
  const Row& fmaRow = problem.rows.back();
  Ceilings ceilings;

  // The arithmetic first: its warm-up raises the clocks for everything that follows.
  ceilings.fma = measure(stream, fmaRow.launch);
  ceilings.fmaGflops = gigaPerSecond(fmaRow.flop, ceilings.fma.ms);
  ClockSpan span;
  download(&span, problem.buffers.span, sizeof span, stream);
  ceilings.clockMhz = span.megahertz();
  ceilings.fmaTheory = 1e-3 * ceilings.clockMhz * 2 * fp32LanesPerSm(gpu.major, gpu.minor) * gpu.multiProcessorCount;
  requirePossible("fmaPeak, at its measured clock,", ceilings.fmaGflops, ceilings.fmaTheory, "GFLOP/s");

  vector<Launch> launches;
  for (const Row& shape : problem.shapes) launches.push_back(shape.launch);
  ceilings.copies = measureInTurn(stream, launches);
  for (size_t i = 1; i < problem.shapes.size(); ++i)
    if (ceilings.copies[i].ms < ceilings.copies[ceilings.best].ms) ceilings.best = i;
  ceilings.copyGbps = gigaPerSecond(problem.shapes[ceilings.best].bytes, ceilings.copies[ceilings.best].ms);
  return ceilings;
}

// Left of the ridge the copy ceiling binds, right of it the FMA ceiling.
bool leftOfRidge(const Row& row, const Ceilings& ceilings) { return row.flop / row.bytes < ceilings.ridge(); }

double percentOfCeiling(const Row& row, const Timing& timing, const Ceilings& ceilings) {
  return leftOfRidge(row, ceilings) ? 100 * gigaPerSecond(row.bytes, timing.ms) / ceilings.copyGbps
                                    : 100 * gigaPerSecond(row.flop, timing.ms) / ceilings.fmaGflops;
}

// Giga warp instructions a second of an access pattern: its loads, each of which is added once.
double loadRate(const Row& row, const Timing& timing) { return gigaPerSecond(row.flop / kWarp, timing.ms); }

// ---- Report

void printTable(const Problem& problem, const Ceilings& ceilings, const vector<Timing>& timings) {
  printf("The two ends of this card's roofline, both measured\n");
  printf("  %-32s %9s %8s\n", "", "ms", "spread");
  for (size_t i = 0; i < problem.shapes.size(); ++i) {
    const Row& shape = problem.shapes[i];
    const Timing& timing = ceilings.copies[i];
    const double gbps = gigaPerSecond(shape.bytes, timing.ms);
    printf("  copy, %-26s %9.4f %6.1f %% %9.1f GB/s    %5.1f %%%s\n", shape.variant, timing.ms, timing.spreadPercent(),
        gbps, 100 * gbps / ceilings.copyGbps, i == ceilings.best ? "  <- the copy ceiling" : "");
  }
  printf("  %-32s %9.4f %6.1f %% %9.1f GFLOP/s  100.0 %%  <- the FMA ceiling\n", "fma, 8 chains", ceilings.fma.ms,
      ceilings.fma.spreadPercent(), ceilings.fmaGflops);
  printf("  %-32s %28.2f FLOP/byte\n", "ridge point", ceilings.ridge());
  printf(
      "\"float x 1\" is copyCoalesced, one float a thread; \"float4 x 2\" is two float4 a thread,\n"
      "\"resident\" no more blocks than fit at once. The FMA ceiling is %.1f %% of what all FP32\n"
      "lanes could do at the SM clock that it measured, %.0f MHz. Left of the ridge point nothing\n"
      "on this card can be compute bound.\n\n",
      100 * ceilings.fmaGflops / ceilings.fmaTheory, ceilings.clockMhz);

  printf("Ten kernels, with the bytes the algorithm asks for\n");
  printf("%-22s %3s %9s %9s %8s %9s %10s  %s\n", "kernel", "day", "FLOP/byte", "ms", "spread", "asked MB", "asked GB/s",
      "% of ceiling");
  size_t left = 0;
  size_t above = 0;
  for (size_t i = 0; i < timings.size(); ++i) {
    const Row& row = problem.table(i);
    const double percent = percentOfCeiling(row, timings[i], ceilings);
    left += leftOfRidge(row, ceilings);
    above += percent > 100;
    printf("%-22s %3d %9.3f %9.4f %6.1f %% %9.1f %10.1f %7.1f %s%s\n", row.variant, row.day, row.flop / row.bytes,
        timings[i].ms, timings[i].spreadPercent(), row.bytes * 1e-6, gigaPerSecond(row.bytes, timings[i].ms), percent,
        leftOfRidge(row, ceilings) ? "copy" : "fma", percent > 100 ? " *" : "");
  }
  printf(
      "\n%zu of the %zu sit left of the ridge point, so for those the sloped ceiling (copy) is\n"
      "the one that binds.\n\n"
      "The byte columns are COMPULSORY: what the algorithm asks global memory for. Divided by\n"
      "the measured time they count a byte that a cache served as if DRAM had moved it. Any row\n"
      "over 100 %% (marked *, here %zu) is the tell: DRAM cannot have done that. What it did\n"
      "move, the hardware counters say: README.md.\n",
      left, timings.size(), above);
}

JsonLine line(const char* record, const Row& row, const Timing& timing) {
  JsonLine line(record, row.day, row.variant, row.symbol);
  line.timing(timing).integer("flop", int64_t(row.flop));
  return line.integer("bytes", int64_t(row.bytes));
}

void printJson(const Problem& problem, const Ceilings& ceilings, const vector<Timing>& timings) {
  Row copy = problem.shapes[ceilings.best];
  const char* shape = copy.variant;
  copy.variant = problem.rows.front().variant;
  line("ceiling", copy, ceilings.copies[ceilings.best])
      .metric("gbps", ceilings.copyGbps, "GB/s")
      .text("shape", shape)
      .print();
  line("ceiling", problem.rows.back(), ceilings.fma)
      .metric("gflops", ceilings.fmaGflops, "GFLOP/s")
      .number("clock_mhz", ceilings.clockMhz)
      .number("theory", ceilings.fmaTheory)
      .print();
  JsonLine("ridge")
      .integer("day", kProgram.day)
      .text("variant", "ridge-point")
      .metric("ridge", ceilings.ridge(), "FLOP/byte")
      .print();
  for (size_t i = 0; i < timings.size(); ++i) {
    const Row& row = problem.table(i);
    line("row", row, timings[i])
        .metric("ms", timings[i].ms, "ms")
        .number("percent", percentOfCeiling(row, timings[i], ceilings))
        .text("ceiling", leftOfRidge(row, ceilings) ? "copy" : "fma")
        .print();
  }
  for (size_t i = 0; i < problem.shapes.size(); ++i)
    line("shape", problem.shapes[i], ceilings.copies[i])
        .metric("gbps", gigaPerSecond(problem.shapes[i].bytes, ceilings.copies[i].ms), "GB/s")
        .print();
}

void printPatterns(const vector<Row>& patterns, const vector<Timing>& timings) {
  printf("\nTen access patterns: what the loads of one warp instruction become\n");
  printf("%-22s %12s %9s %8s %14s %11s\n", "pattern", "transactions", "ms", "spread", "warp Gloads/s", "moved GB/s");
  for (size_t i = 0; i < patterns.size(); ++i) {
    const Row& row = patterns[i];
    const double rate = loadRate(row, timings[i]);
    printf("%-22s %12.1f %9.4f %6.1f %% %14.1f %11.1f\n", row.variant, row.transactions, timings[i].ms,
        timings[i].spreadPercent(), rate, rate * row.transactions * row.transactionBytes);
  }
  printf(
      "A transaction is a sector of %d bytes of L1 or a wavefront of %d bytes of shared memory.\n"
      "Their number follows from the pattern; README.md has what the counters say.\n",
      kSector, kWavefront);
}

void printPatternsJson(const vector<Row>& patterns, const vector<Timing>& timings) {
  for (size_t i = 0; i < patterns.size(); ++i)
    line("pattern", patterns[i], timings[i])
        .metric("ginst", loadRate(patterns[i], timings[i]), "Ginst/s")
        .text("level", patterns[i].transactionBytes == kSector ? "global" : "shared")
        .number("transactions", patterns[i].transactions)
        .print();
}

// ---- The day

int runDay(const Options& options) {
  const Device device = openDevice(options.device, copyCoalesced);
  const cudaDeviceProp& gpu = device.properties;
  const Sizes sizes = timedSizes(gpu);
  const int residentThreads = gpu.multiProcessorCount * (gpu.maxThreadsPerMultiProcessor / kBlock) * kBlock;
  requireDeviceMemory(Buffers::bytes(sizes, residentThreads));

  if (options.json) {
    printRunRecord(kProgram, device);
  } else {
    printBanner(device);
    printf(
        "Streams of %d x %d floats (%.0f MiB each, %.1f x L2), matmul %d cubed, tile %d,\n"
        "stencil %d squared.\n\n",
        sizes.side, sizes.side, kFloatBytes * sizes.n() / 1048576, kFloatBytes * sizes.n() / gpu.l2CacheSize,
        sizes.matmul, kMatmulTile, sizes.stencil);
  }

  const Stream stream;
  const PinnedBuffer<float> staging(sizes.n());
  const auto check = [&](const Problem& problem, const char* size) {
    return checkRows(problem.rows, size, options, staging, stream) +
        checkRows(problem.patterns, size, options, staging, stream) +
        checkRows(problem.shapes, size, options, staging, stream);
  };

  int failed = 0;
  if (options.mode != Mode::kProfile) {
    const Problem ragged(kRagged, kRaggedThreads);
    uploadInputs(ragged.buffers, staging, stream);
    failed += check(ragged, "ragged");
  }
  const Problem problem(sizes, residentThreads);
  uploadInputs(problem.buffers, staging, stream);
  if (options.mode == Mode::kProfile) {
    for (const Row& row : problem.rows) runRow(row, stream);
    for (const Row& row : problem.patterns) runRow(row, stream);
    return kExitOk;
  }
  if (failed == 0) failed += check(problem, "full");  // the large problem once the small one is right
  if (failed > 0) {
    fprintf(stderr, "%d checks FAILED, so no times are printed\n", failed);
    return kExitFailed;
  }
  if (!options.json)
    printf("All %zu kernels match their CPU reference at every element, full and ragged.\n\n",
        problem.rows.size() + problem.patterns.size());
  if (options.mode == Mode::kCheck) return kExitOk;

  const Ceilings ceilings = measureCeilings(problem, gpu, stream);
  // Some cards run faster than the clock that they promise.
  const Limits limits(gpu, std::max(device.maxClockMhz, ceilings.clockMhz));
  const auto measureRow = [&](const Row& row) {
    const Timing timing = measure(stream, row.launch);
    limits.check(row, timing);
    return timing;
  };
  for (size_t i = 0; i < problem.shapes.size(); ++i) limits.check(problem.shapes[i], ceilings.copies[i]);
  vector<Timing> timings;
  for (size_t i = 0; i < problem.rows.size() - 2; ++i) timings.push_back(measureRow(problem.table(i)));
  (options.json ? printJson : printTable)(problem, ceilings, timings);
  timings.clear();
  for (const Row& row : problem.patterns) timings.push_back(measureRow(row));
  (options.json ? printPatternsJson : printPatterns)(problem.patterns, timings);
  return kExitOk;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
