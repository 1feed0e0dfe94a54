// SPDX-License-Identifier: MIT
//
// Day 49: the roofline with measured bytes.
//
// Where do kernels of earlier days stand under the two ceilings of this GPU, and which count of bytes puts them there?
// The bytes that a kernel requests from global memory, divided by its time, count each re-read that a cache served as
// if DRAM had served it: some rows read far above 100 % of the copy ceiling. That flaw is the lesson. The program shows
// it and reads no counter; README.md has the profiler's counters, which repair it.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o roofline roofline.cu
//   run:   ./roofline            (--help lists the rest)
//
// The kernels in the order of this file, and what each shows:
//   copyCoalesced                the textbook copy: too few bytes in flight
//   copyFloat2, copyFloat4, copyFloat4x2, copyFloatx4, copyFloat4Resident, copyFloat4x4Resident
//                                copies with more of them: the fastest is the copy ceiling
//   vectorAdd                    three streams, each byte used once: the sloped roof as it should be
//   vectorAddPermuted            one float used of each 32-byte sector
//   transposeNaive               reads along rows, writes down columns
//   transposeTiled               both along rows, transposed in shared memory without a bank conflict
//   matmulNaive                  requests 342 times what there is to move: above 100 %
//   matmulTiled                  a sixteenth of those requests
//   reduceSequentialAddressing   a tree of sums in shared memory: barriers bind, not bytes
//   heatStepGlobal               five loads a cell, of which caches serve four: above 100 %
//   heatStepTiled                fewer bytes requested, and yet slower than heatStepGlobal
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
// that is too little to cover the latency: 63 % of the best copy on an H200 (this and all below: profile/h200).
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
__device__ inline void copyVector(const Vector* in, Vector* out, int count) {
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

// Each shape is a kernel with a name of its own, by which a profiler and the table tell it: float4 x 2 is two float4 a
// thread. The resident ones are launched with no more blocks than run at once.
__global__ void copyFloat2(const float2* in, float2* out, int n) { copyVector<float2, 1>(in, out, n); }
__global__ void copyFloat4(const float4* in, float4* out, int n) { copyVector<float4, 1>(in, out, n); }
__global__ void copyFloat4x2(const float4* in, float4* out, int n) { copyVector<float4, 2>(in, out, n); }
__global__ void copyFloat4x4(const float4* in, float4* out, int n) { copyVector<float4, 4>(in, out, n); }
__global__ void copyFloatx4(const float* in, float* out, int n) { copyVector<float, 4>(in, out, n); }
__global__ void copyFloat4Resident(const float4* in, float4* out, int n) { copyVector<float4, 1>(in, out, n); }
__global__ void copyFloat4x4Resident(const float4* in, float4* out, int n) { copyVector<float4, 4>(in, out, n); }

// What the copies and transposes move: distinct for 16,777,213 elements (the largest prime below 2^24, where float
// stops holding every integer), so no shift of a row or a tile maps it to itself.
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
// sector of its own and uses 4 bytes of it: an eighth of the ceiling at best, 12.5 %. Measured: 4.8 %, as an H200's
// DRAM delivers two sectors for each. blockIdx.y picks the offset within a stride, which makes the walk a permutation:
// every index exactly once. (The tempting `(i * kStride) % n` visits n / kStride indices kStride times when n is a
// power of two.)
__global__ void vectorAddPermuted(const float* a, const float* b, float* out, int n) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int i = column * kStride + blockIdx.y;
  if (i < n) out[i] = a[i] + b[i];
}

// Small integers keep every sum exact in float. Their periods divide neither the row lengths nor the tiles, so an
// element fetched from the wrong row or column has another value.
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

// Day 13. The tile is transposed in shared memory, so reads and writes both run along rows. A warp reads a column of
// the tile: with a pitch of 32 all lanes would meet in one bank, with 33 none do. It moves what a copy moves, and
// should reach its rate. Measured: 42 % of the ceiling, 3.2 times the naive one.
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

// The matmul and the stencil stay small on purpose: their inputs fit in the L2 of every card from a T4 on, so a cache
// serves their re-reads, and the count of requested bytes does not know it.
constexpr int kMatmul = 512;
constexpr int kMatmulTile = 16;
static_assert(kMatmul % kMatmulTile == 0, "the matmul's byte model counts whole tiles");

// Day 16. One thread, one element of C = A B, both operands from global memory at every step: a warp reads 32 adjacent
// floats of B and two addresses of A (its 16 x 16 block spans two rows). Each element of A and B is requested 512
// times: 1,075 MB, where each byte once is 3.15 MB. At the copy ceiling the requests would take 0.26 ms. Measured:
// 0.058 ms, 439 % of the ceiling, because caches serve nearly all of them.
__global__ void matmulNaive(const float* a, const float* b, float* c, int d) {
  const int column = blockIdx.x * kMatmulTile + threadIdx.x;
  const int row = blockIdx.y * kMatmulTile + threadIdx.y;
  if (row >= d || column >= d) return;
  float sum = 0;
  for (int k = 0; k < d; ++k) sum += a[row * d + k] * b[k * d + column];
  c[row * d + column] = sum;
}

// Day 16. Each element of a 16 x 16 tile is loaded once and read 16 times from shared memory, so a sixteenth is
// requested from global memory. Cells outside the matrix are zero. By its requested bytes it should be 16 times as
// fast; those bytes did not bind, so it is 1.5 times as fast.
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
  for (int row = 0; row < d; ++row)
    for (int k = 0; k < d; ++k)
      for (int column = 0; column < d; ++column)
        c[row * d + column] += double(inputA(row * d + k)) * inputB(k * d + column);
  return c;
}

// ---- A reduction

static_assert((kBlock & (kBlock - 1)) == 0, "the reduction halves the block until one is left");

// Day 24. One partial sum per block. Active threads stay adjacent, so whole warps retire as the stride halves, and no
// two lanes meet in a bank. kBlock - 1 additions a block. It reads one stream and should run at the ceiling; measured:
// 22 % of it, since a block waits at nine barriers for each 1 KiB that it loads.
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

double reductionReference(unsigned block, unsigned n) {
  double sum = 0;
  for (unsigned i = block * kBlock; i < std::min(n, (block + 1) * kBlock); ++i) sum += inputA(i);
  return sum;
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

// Day 34. One thread a cell, five loads, four of which neighbours load too. Requested bytes: 191 % of the copy ceiling.
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
  const auto at = [=](int down, int right) { return double(inputA((row + down) * g + column + right)); };
  if (row == 0 || row == g - 1 || column == 0 || column == g - 1) return at(0, 0);
  return at(0, 0) + 0.2 * (at(-1, 0) + at(1, 0) + at(0, -1) + at(0, 1) - 4 * at(0, 0));
}

// ---- Arithmetic

constexpr int kDegree = 256;  // 513 FLOP for 8 bytes: the one kernel right of every ridge
constexpr float kPolynomialScale = 0.0625f;

// Day 49. 1 + x + x^2 + ... + x^256 by Horner's rule: one multiplication to scale x, then 256 dependent FMAs. Occupancy
// hides the chain's latency; the two streams are far from binding, so its roof is the FMA ceiling. Measured: 84 %.
__global__ void polynomialHorner(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = in[i] * kPolynomialScale;
  float y = 1.0f;
#pragma unroll
  for (int k = 0; k < kDegree; ++k) y = fmaf(y, x, 1.0f);
  out[i] = y;
}

// Scaled by kPolynomialScale these run from -1 to 1. At both ends every one of the 256 terms counts, so a chain that is
// one step short is seen; below 1/2 the sum has converged long before.
constexpr int kInputXPeriod = 33;
float inputX(unsigned i) { return float(int(i % kInputXPeriod) - 16); }

double polynomialReference(double x) {
  double sum = 0;
  for (int k = 0; k <= kDegree; ++k) sum += std::pow(x, k);
  return sum;
}

// ---- The FMA ceiling (day 30)

// One FMA takes 4 cycles on every architecture from Volta on, so 8 independent chains a thread cover it twice over,
// even for one warp per scheduler. 128 steps unrolled make 1024 FMAs in each iteration of the loop, so that its counter
// and branch do not count: on an H200 that reaches 98.7 % of all lanes at the measured clock. (4 steps: about 91 %,
// unrecorded.)
constexpr int kChains = 8;
constexpr int kFmaUnroll = 128;
constexpr int kFmaSteps = 32768;  // milliseconds of work, so the launch itself does not count
constexpr int kFmaStarts = 7;  // as many threads start with values of their own, then they repeat
// x <- x * kFmaA + kFmaB: kFmaA just below 1 keeps all mantissa bits busy (adding zeros draws less power and can clock
// higher) and still lets the result grow with every step, so that half the steps give about half the value.
constexpr float kFmaA = 1.0f - 1.0f / (1 << 20);
constexpr float kFmaB = 1.0f / (1 << 10);
static_assert(kFmaSteps % kFmaUnroll == 0, "whole iterations of the unrolled loop");

// Registers only: kChains independent chains a thread, and one store at the end, or the compiler would drop the work.
// One wave of blocks fills every SM. Block 0 also reads the SM clock around its work.
__global__ void fmaPeak(float* out, ClockSpan* span, float a, float b, int steps) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  float chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) chain[c] = float(thread % kFmaStarts + c);
  ClockSpan begin = {0, 0};
  if (thread == 0) begin = readClock();  // by one thread: the timer is slow to read
  for (int step = 0; step < steps; step += kFmaUnroll) {
#pragma unroll
    for (int u = 0; u < kFmaUnroll; ++u) {
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
    double chain = thread % kFmaStarts + c;
    for (int step = 0; step < kFmaSteps; ++step) chain = chain * kFmaA + kFmaB;
    sum += chain;
  }
  return sum;
}

// ---- Access patterns

// Their words stay in the L1 of every card, so that nothing but the pattern decides. An iteration is kPatternUnroll
// loads in a row, so that the loop does not count.
constexpr int kWarp = 32;
constexpr int kPatternBits = 13;
constexpr int kPatternWords = 1 << kPatternBits;
constexpr int kSharedWords = 2048;
constexpr int kIterations = kForSanitizer ? 8 : 64;
constexpr int kPatternUnroll = 16;
constexpr int kGlobalStep = 256;  // words from one load of a thread to its next: another line
constexpr int kSharedStep = 64;
constexpr int kSector = 32;  // bytes of a transaction of L1
constexpr int kWavefront = 128;  // and of shared memory

// snippet: walk
// The 32 lanes of a warp load one float each, by one instruction. L1 moves sectors of 32 bytes, so that becomes 1
// transaction if all lanes want the same word, 4 if they want adjacent words, and 32 if each wants a word of another
// sector. Every iteration starts elsewhere, or the compiler would load once.
template <int kLaneStride>
__device__ inline void sumGlobal(const float* words, float* out) {
  float sum = 0;
#pragma unroll 1
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const int first = threadIdx.x % kWarp * kLaneStride + (iteration + threadIdx.x / kWarp) * kWarp;
#pragma unroll
    for (int load = 0; load < kPatternUnroll; ++load) sum += words[first + load * kGlobalStep];
  }
  out[blockIdx.x * kBlock + threadIdx.x] = sum;
}
// end snippet: walk

// Word numbers that look random: the upper 13 bits of C. Wellons' lowbias32, two rounds of xor-shift and multiply.
__host__ __device__ inline unsigned scatter(unsigned i) {
  i = (i ^ i >> 16) * 0x7feb352du;
  i = (i ^ i >> 15) * 0x846ca68bu;
  return i >> (32 - kPatternBits);
}

// Shared memory has 32 banks, and word w lies in bank w % 32. A bank serves one word at a time, so lanes whose words
// are kLaneStride apart (a power of two) wait for each other: kLaneStride of them share a bank.
template <int kLaneStride>
__device__ inline void sumShared(const float* in, float* out) {
  __shared__ float words[kSharedWords];
  for (int i = threadIdx.x; i < kSharedWords; i += kBlock) words[i] = in[i];
  __syncthreads();
  float sum = 0;
#pragma unroll 1
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const int first = threadIdx.x % kWarp * kLaneStride + iteration % kWarp;
#pragma unroll
    for (int load = 0; load < kPatternUnroll; ++load) sum += words[first + load * kSharedStep];
  }
  out[blockIdx.x * kBlock + threadIdx.x] = sum;
}

// Each pattern is a kernel with a name of its own, because the profiler's export is joined by name. A load of 32
// sectors should take 8 times one of 4. Measured on an H200: 6.9 times; one of 1 sector is no faster than one of 4. In
// shared memory every doubling of the stride should halve the rate, and does, from 237 to 8.1 giga warp loads a second.
__global__ void globalStride0(const float* in, float* out) { sumGlobal<0>(in, out); }
__global__ void globalStride1(const float* in, float* out) { sumGlobal<1>(in, out); }
__global__ void globalStride8(const float* in, float* out) { sumGlobal<8>(in, out); }
__global__ void globalRandom(const float* in, float* out) {
  float sum = 0;
  for (int load = 0; load < kIterations * kPatternUnroll; ++load) sum += in[scatter(load * kBlock + threadIdx.x)];
  out[blockIdx.x * kBlock + threadIdx.x] = sum;
}
__global__ void sharedStride1(const float* in, float* out) { sumShared<1>(in, out); }
__global__ void sharedStride2(const float* in, float* out) { sumShared<2>(in, out); }
__global__ void sharedStride4(const float* in, float* out) { sumShared<4>(in, out); }
__global__ void sharedStride8(const float* in, float* out) { sumShared<8>(in, out); }
__global__ void sharedStride16(const float* in, float* out) { sumShared<16>(in, out); }
__global__ void sharedStride32(const float* in, float* out) { sumShared<32>(in, out); }

constexpr double kRandomSectors = 31.5;  // of 1024, if 32 are drawn: 1024 (1 - (1 - 1/1024)^32)

// Which word a thread loads in each of these kernels.
int globalWord(int stride, int thread, int iteration, int load) {
  return thread % kWarp * stride + (iteration + thread / kWarp) * kWarp + load * kGlobalStep;
}
int sharedWord(int stride, int thread, int iteration, int load) {
  return thread % kWarp * stride + iteration % kWarp + load * kSharedStep;
}
int randomWord(int, int thread, int iteration, int load) {
  return int(scatter((iteration * kPatternUnroll + load) * kBlock + thread));
}

static_assert((kWarp - 1) * 8 + (kIterations + kBlock / kWarp) * kWarp + kPatternUnroll * kGlobalStep <= kPatternWords,
    "the widest walk through global memory ends inside its words");
static_assert(kWarp * kWarp + kPatternUnroll * kSharedStep <= kSharedWords, "and that through shared memory");
static_assert(
    double(kPatternWords) * kIterations * kPatternUnroll <= 1 << 24, "sums of word numbers are exact in float");

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

constexpr Program kProgram = {49, "roofline",
    "Day 49: kernels of earlier days under this GPU's two measured ceilings, by the bytes they request."};

// ---- Sizes and memory

// Streams must come from DRAM, not from the L2 cache: every buffer is at least six times the L2 that the GPU reports,
// and never under 64 MiB (a T4's L2 is 4 MiB, an H200's 60). At the end of a kernel up to a third of the L2 waits to be
// written back (19 MB on an H200), and no counter of DRAM has seen it: with buffers of four times the L2 that is 3.7 %
// of a copy.
constexpr size_t kStreamOverL2 = 6;
constexpr size_t kStreamMinBytes = size_t(64) << 20;
constexpr int kSideStep = 1024;  // buffers are squares whose side is a multiple of this
static_assert(kSideStep % kBlock == 0, "a row of a stream must be whole blocks");
static_assert(kSideStep % kTransposeTile == 0 && kSideStep % kStride == 0,
    "full-size transposes and permutations have no partial tile");

// How large the problem is. A run has two: the timed one, and a small ragged one that no launch shape divides, on which
// every guard and every partial tile is checked.
struct Sizes {
  int side;  // the streams hold side x side floats
  int matmul;  // the matrices are squares of this side
  int stencil;  // and so is the grid of the stencil

  int n() const { return side * side; }
};

// 1238^2 = 1,532,644 is a multiple of 4, as float4 needs, and of none of 8, 32 or 256; 131 is prime.
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

// Everything on the GPU. A buffer is exactly as large as its kernels may touch, so that a step outside is seen.
struct Buffers {
  Buffers(const Sizes& wanted, int residentThreads) : sizes(wanted), perThread(residentThreads) {}

  static size_t bytes(const Sizes& sizes, int residentThreads) {
    const size_t n = sizes.n();
    return sizeof(float) *
        (5 * n + 3 * sizes.matmul * sizes.matmul + 2 * sizes.stencil * sizes.stencil + n / kBlock + residentThreads);
  }

  // How many blocks run at once.
  int residentBlocks() const { return int(perThread.count()) / kBlock; }

  const Sizes sizes;
  const size_t n = sizes.n(), d2 = sizes.matmul * sizes.matmul, g2 = sizes.stencil * sizes.stencil;
  DeviceBuffer<float> a{n}, b{n}, x{n}, index{n}, out{n};
  DeviceBuffer<float> matrixA{d2}, matrixB{d2}, matrixC{d2};
  DeviceBuffer<float> heatIn{g2}, heatOut{g2};
  DeviceBuffer<float> partial{size_t(ceilDivide(sizes.n(), kBlock))};  // one sum of each block of the reduction
  DeviceBuffer<float> perThread;  // one result of each thread that the GPU holds at once
  DeviceBuffer<ClockSpan> span{1};
};

void uploadInputs(const Buffers& data, const PinnedBuffer<float>& staging, cudaStream_t stream) {
  const auto fill = [&](const DeviceBuffer<float>& to, auto value) {
    for (unsigned i = 0; i < to.count(); ++i) staging[i] = value(i);
    upload(to, staging, to.bytes(), stream);
  };
  // Lambdas, because a call through a function's name is a call for each of 105 million elements.
  for (const auto* to : {&data.a, &data.matrixA, &data.heatIn}) fill(*to, [](unsigned i) { return inputA(i); });
  for (const auto* to : {&data.b, &data.matrixB}) fill(*to, [](unsigned i) { return inputB(i); });
  fill(data.x, [](unsigned i) { return inputX(i); });
  fill(data.index, [](unsigned i) { return inputIndex(i); });
}

// ---- The table: a row per kernel

// What a row is for.
enum class Role {
  kCopyCeiling,  // the textbook copy; the ceiling is the fastest of the copies that compete
  kShape,  // a copy that competes
  kLibrary,  // so does the driver's own
  kFmaCeiling,
  kKernel,  // is held against the two ceilings
  kGlobalPattern,  // a pattern of access to global memory
  kSharedPattern,  // and to shared memory
};

using Matches = std::function<Verdict(const float* got)>;

// One kernel: its work, its only launch, and what its output must be.
struct Row {
  Role role;
  const char* variant;  // its name in the table
  const char* symbol;  // the kernel's name, by which the profiler's export is joined
  int day;  // whose kernel it is
  double flop;
  double requestedBytes;  // of global memory, whoever answers
  Launch launch;
  const DeviceBuffer<float>* output;
  Matches matches;  // whether the output is right
  double transactions = 0;  // of an access pattern: what one warp instruction becomes
};

constexpr double kTolerance = 1e-5;  // relative; sums of small integers come out exact anyway
constexpr double kFloatBytes = sizeof(float);

// The check of an output of rows x columns floats, each within a relative tolerance of want(row, column).
template <class Want>
Matches expect(size_t rows, size_t columns, double tolerance, Want want) {
  return [=](const float* got) { return compare(got, rows, columns, tolerance, 0.0, want); };
}

// A buffer of floats as one of wider vectors.
template <class Vector>
Vector* as(const DeviceBuffer<float>& floats) {
  return reinterpret_cast<Vector*>(static_cast<float*>(floats));
}

// A copy with `loads` vectors a thread: a block per tile, but at most `mostBlocks`.
template <class Vector>
Row copyRow(Role role, const char* variant, const char* symbol, void (*kernel)(const Vector*, Vector*, int), int loads,
    const Buffers& data, int mostBlocks = 1 << 30) {
  const int count = int(data.out.bytes() / sizeof(Vector));
  const int blocks = std::min(ceilDivide(count, kBlock * loads), mostBlocks);
  const Matches copied = expect(1, data.n, 0, [](unsigned, unsigned i) { return inputIndex(i); });
  return {role, variant, symbol, 30, 0, kFloatBytes * 2 * data.n,
      launch(kernel, blocks, kBlock, as<Vector>(data.index), as<Vector>(data.out), count), &data.out, copied};
}

vector<Row> copyShapeRows(const Buffers& data) {
  const int resident = data.residentBlocks();
  Row library = copyRow(Role::kLibrary, "cudaMemcpy", "cudaMemcpyAsync", copyCoalesced, 1, data);
  library.launch = [&data](cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(data.out, data.index, data.out.bytes(), cudaMemcpyDeviceToDevice, stream));
  };
  return {
      copyRow(Role::kShape, "float x 1", "copyCoalesced", copyCoalesced, 1, data),
      copyRow(Role::kShape, "float2 x 1", "copyFloat2", copyFloat2, 1, data),
      copyRow(Role::kShape, "float4 x 1", "copyFloat4", copyFloat4, 1, data),
      copyRow(Role::kShape, "float4 x 2", "copyFloat4x2", copyFloat4x2, 2, data),
      copyRow(Role::kShape, "float4 x 4", "copyFloat4x4", copyFloat4x4, 4, data),
      copyRow(Role::kShape, "float x 4", "copyFloatx4", copyFloatx4, 4, data),
      copyRow(Role::kShape, "float4 x 1, resident", "copyFloat4Resident", copyFloat4Resident, 1, data, resident),
      copyRow(Role::kShape, "float4 x 4, resident", "copyFloat4x4Resident", copyFloat4x4Resident, 4, data, resident),
      library,
  };
}

vector<Row> streamRows(const Buffers& data) {
  const int n = data.sizes.n();
  const dim3 permutedGrid(ceilDivide(ceilDivide(n, kStride), kBlock), kStride);
  const double bytes = kFloatBytes * 3 * n;
  const Matches sums = expect(1, n, kTolerance, [](unsigned, unsigned i) { return double(inputA(i)) + inputB(i); });
  return {
      copyRow(Role::kCopyCeiling, "ceiling-copy", "copyCoalesced", copyCoalesced, 1, data),
      {Role::kKernel, "vector add", "vectorAdd", 5, double(n), bytes,
          launch(vectorAdd, ceilDivide(n, kBlock), kBlock, data.a, data.b, data.out, n), &data.out, sums},
      {Role::kKernel, "vector add, stride 32", "vectorAddPermuted", 11, double(n), bytes,
          launch(vectorAddPermuted, permutedGrid, kBlock, data.a, data.b, data.out, n), &data.out, sums},
  };
}

vector<Row> transposeRows(const Buffers& data) {
  const int side = data.sizes.side;
  const dim3 block(kTransposeTile, kTransposeTile);
  const dim3 grid(ceilDivide(side, kTransposeTile), ceilDivide(side, kTransposeTile));
  const double bytes = kFloatBytes * 2 * data.n;
  const Matches transposed = expect(side, side, 0, [=](unsigned y, unsigned x) { return inputIndex(x * side + y); });
  return {
      {Role::kKernel, "transpose, naive", "transposeNaive", 12, 0, bytes,
          launch(transposeNaive, grid, block, data.index, data.out, side), &data.out, transposed},
      {Role::kKernel, "transpose, tiled", "transposeTiled", 13, 0, bytes,
          launch(transposeTiled, grid, block, data.index, data.out, side), &data.out, transposed},
  };
}

// Each step of a product is a multiplication and an addition, on an element of A and one of B; the tiled kernel
// requests each of these once for kMatmulTile steps.
vector<Row> matmulRows(const Buffers& data) {
  const int d = data.sizes.matmul;
  const dim3 block(kMatmulTile, kMatmulTile);
  const dim3 grid(ceilDivide(d, kMatmulTile), ceilDivide(d, kMatmulTile));
  const double steps = double(d) * d * d, written = double(d) * d;
  const Matches product =
      expect(d, d, kTolerance, [d, want = matmulReference(d)](unsigned y, unsigned x) { return want[y * d + x]; });
  return {
      {Role::kKernel, "matmul, naive", "matmulNaive", 16, 2 * steps, kFloatBytes * (2 * steps + written),
          launch(matmulNaive, grid, block, data.matrixA, data.matrixB, data.matrixC, d), &data.matrixC, product},
      {Role::kKernel, "matmul, tiled 16", "matmulTiled", 16, 2 * steps,
          kFloatBytes * (2 * steps / kMatmulTile + written),
          launch(matmulTiled, grid, block, data.matrixA, data.matrixB, data.matrixC, d), &data.matrixC, product},
  };
}

vector<Row> reductionRows(const Buffers& data) {
  const int n = data.sizes.n();
  const int blocks = ceilDivide(n, kBlock);
  const Matches sums = expect(1, blocks, kTolerance, [n](unsigned, unsigned i) { return reductionReference(i, n); });
  const double flop = double(n) - blocks, bytes = kFloatBytes * (double(n) + blocks);
  return {{Role::kKernel, "block reduction", "reduceSequentialAddressing", 24, flop, bytes,
      launch(reduceSequentialAddressing, blocks, kBlock, data.a, data.partial, n), &data.partial, sums}};
}

// The ring is copied, which takes no FLOP, and its bytes are left out of the count.
vector<Row> stencilRows(const Buffers& data) {
  const int g = data.sizes.stencil;
  const dim3 block(kStencilX, kStencilY);
  const dim3 grid(ceilDivide(g, kStencilX), ceilDivide(g, kStencilY));
  const double tiles = double(grid.x) * grid.y, cells = double(g - 2) * (g - 2);
  const Matches heated = expect(g, g, kTolerance, [g](unsigned y, unsigned x) { return heatReference(y, x, g); });
  return {
      {Role::kKernel, "stencil, global", "heatStepGlobal", 34, 7 * cells, kFloatBytes * 6 * cells,
          launch(heatStepGlobal, grid, block, data.heatIn, data.heatOut, g), &data.heatOut, heated},
      {Role::kKernel, "stencil, tiled", "heatStepTiled", 34, 7 * cells,
          kFloatBytes * (kApronX * kApronY * tiles + cells),
          launch(heatStepTiled, grid, block, data.heatIn, data.heatOut, g), &data.heatOut, heated},
  };
}

constexpr double kGrowth = 0.01;  // of 32768 rounded steps; half the steps would be 50 % off

vector<Row> arithmeticRows(const Buffers& data) {
  const int n = data.sizes.n(), threads = int(data.perThread.count());
  vector<double> values, sums;  // the inputs repeat, and so do the results
  for (int i = 0; i < kInputXPeriod; ++i) values.push_back(polynomialReference(double(inputX(i)) * kPolynomialScale));
  for (int thread = 0; thread < kFmaStarts; ++thread) sums.push_back(fmaReference(thread));
  const Matches evaluated = expect(1, n, kTolerance, [=](unsigned, unsigned i) { return values[i % kInputXPeriod]; });
  const Matches grown =
      expect(1, threads, kGrowth, [=](unsigned, unsigned thread) { return sums[thread % kFmaStarts]; });
  return {
      {Role::kKernel, "polynomial, 256", "polynomialHorner", 49, (2.0 * kDegree + 1) * n, kFloatBytes * 2 * n,
          launch(polynomialHorner, ceilDivide(n, kBlock), kBlock, data.x, data.out, n), &data.out, evaluated},
      {Role::kFmaCeiling, "ceiling-fma", "fmaPeak", 30, 2.0 * kChains * kFmaSteps * threads, 0,
          launch(fmaPeak, data.residentBlocks(), kBlock, data.perThread, data.span, kFmaA, kFmaB, kFmaSteps),
          &data.perThread, grown},
  };
}

// An access pattern, run by as many threads as the GPU holds at once. A word of memory holds its own number, so a
// thread's result is the sum of the numbers of the words that it loads; each load is one FLOP. A pattern of shared
// memory requests from global memory only what each block copies into its shared memory.
Row patternRow(Role role, const char* variant, const char* symbol, void (*kernel)(const float*, float*),
    int (*wordOf)(int stride, int thread, int iteration, int load), int stride, double transactions,
    const Buffers& data) {
  const int threads = int(data.perThread.count());
  const double loads = double(kIterations) * kPatternUnroll * threads;
  const double requested = role == Role::kGlobalPattern ? loads : double(kSharedWords) * data.residentBlocks();
  vector<double> sums(kBlock, 0.0);
  for (int thread = 0; thread < kBlock; ++thread)
    for (int load = 0; load < kIterations * kPatternUnroll; ++load)
      sums[thread] += wordOf(stride, thread, load / kPatternUnroll, load % kPatternUnroll);
  return {role, variant, symbol, 49, loads, kFloatBytes * (requested + threads),
      launch(kernel, data.residentBlocks(), kBlock, data.index, data.perThread), &data.perThread,
      expect(1, threads, 0, [sums](unsigned, unsigned thread) { return sums[thread % kBlock]; }), transactions};
}

vector<Row> patternRows(const Buffers& data) {
  constexpr Role kGlobal = Role::kGlobalPattern, kShared = Role::kSharedPattern;
  return {
      patternRow(kGlobal, "global, stride 0", "globalStride0", globalStride0, globalWord, 0, 1, data),
      patternRow(kGlobal, "global, stride 1", "globalStride1", globalStride1, globalWord, 1, 4, data),
      patternRow(kGlobal, "global, stride 8", "globalStride8", globalStride8, globalWord, 8, 32, data),
      patternRow(kGlobal, "global, random", "globalRandom", globalRandom, randomWord, 0, kRandomSectors, data),
      patternRow(kShared, "shared, stride 1", "sharedStride1", sharedStride1, sharedWord, 1, 1, data),
      patternRow(kShared, "shared, stride 2", "sharedStride2", sharedStride2, sharedWord, 2, 2, data),
      patternRow(kShared, "shared, stride 4", "sharedStride4", sharedStride4, sharedWord, 4, 4, data),
      patternRow(kShared, "shared, stride 8", "sharedStride8", sharedStride8, sharedWord, 8, 8, data),
      patternRow(kShared, "shared, stride 16", "sharedStride16", sharedStride16, sharedWord, 16, 16, data),
      patternRow(kShared, "shared, stride 32", "sharedStride32", sharedStride32, sharedWord, 32, 32, data),
  };
}

// The problem at one size: its memory, and every row in the order in which they are checked and profiled.
struct Problem {
  Problem(const Sizes& sizes, int residentThreads) : data(sizes, residentThreads) {
    for (const auto& family :
        {streamRows, transposeRows, matmulRows, reductionRows, stencilRows, arithmeticRows, patternRows, copyShapeRows})
      for (const Row& row : family(data)) rows.push_back(row);
  }

  // The rows of some roles, in order.
  vector<const Row*> select(const vector<Role>& roles) const {
    vector<const Row*> selected;
    for (const Row& row : rows)
      if (std::find(roles.begin(), roles.end(), row.role) != roles.end()) selected.push_back(&row);
    return selected;
  }
  const Row* only(Role role) const { return select({role}).at(0); }
  // What --profile launches. The counters are read of one copy, copyCoalesced; the others only compete.
  vector<const Row*> profiled() const {
    return select({Role::kCopyCeiling, Role::kFmaCeiling, Role::kKernel, Role::kGlobalPattern, Role::kSharedPattern});
  }

  const Buffers data;
  vector<Row> rows;
};

// ---- Checking

void run(const Row& row, cudaStream_t stream) {
  row.launch(stream);
  finish(row.symbol, stream);
}

// Runs every row on poisoned output and checks all of it.
void checkRows(
    const Problem& problem, const char* size, Checks& checks, const PinnedBuffer<float>& staging, cudaStream_t stream) {
  for (const Row& row : problem.rows) {
    poison(*row.output, row.output->bytes(), stream);
    run(row, stream);
    download(staging, *row.output, row.output->bytes(), stream);
    checks.add({row.day, row.variant, row.symbol, size, row.matches(staging)});
  }
}

// ---- Measuring

// A row and its time.
struct Measured {
  const Row* row = nullptr;
  const char* variant = "";  // what a table calls it
  Timing timing;

  double gflops() const { return gigaPerSecond(row->flop, timing.ms); }
  double gbps() const { return gigaPerSecond(row->requestedBytes, timing.ms); }
  double intensity() const { return row->flop / row->requestedBytes; }
  // Of an access pattern: billions of warp instructions a second that load.
  double loadRate() const { return gigaPerSecond(row->flop / kWarp, timing.ms); }
};

// What a run measures: all rows, the two ceilings among them.
struct Results {
  vector<Measured> copies, kernels, patterns;
  Measured copyCeiling;  // the fastest of the copies
  Measured fmaCeiling;
  double clockMhz = 0;  // of the SMs while fmaPeak ran
  double fmaTheory = 0;  // GFLOP/s of all lanes at that clock

  double ridge() const { return fmaCeiling.gflops() / copyCeiling.gbps(); }
  // Left of the ridge the copy ceiling binds, right of it the FMA ceiling.
  bool copyBinds(const Measured& kernel) const { return kernel.intensity() < ridge(); }
  double percentOf(const Measured& kernel) const {
    return 100 * (copyBinds(kernel) ? kernel.gbps() / copyCeiling.gbps() : kernel.gflops() / fmaCeiling.gflops());
  }
};

// GFLOP/s of an FMA a clock in every FP32 lane of the card.
double fmaLimit(const Device& device, double megahertz) {
  return 1e-3 * megahertz * 2 * fp32LanesPerSm(device.code.card) * device.properties.multiProcessorCount;
}

// Stops where a row reads more than the SMs can do at `megahertz`, whatever the kernel: an FMA in every FP32 lane, and
// 128 bytes a clock from L1 or shared memory, which share one data path. (A T4 has 64, half of this bound.)
void requireWithinLimits(const Measured& measured, const Device& device, double megahertz) {
  const double gbps = 1e-3 * megahertz * kWavefront * device.properties.multiProcessorCount;
  requirePossible(measured.variant, measured.gflops(), fmaLimit(device, megahertz), "GFLOP/s");
  requirePossible(measured.variant, measured.gbps(), gbps, "GB/s");
}

Results measureAll(const Problem& problem, const Device& device, cudaStream_t stream) {
  Results results;
  // The arithmetic first: its warm-up raises the clocks for everything that follows.
  const Row* const fma = problem.only(Role::kFmaCeiling);
  results.fmaCeiling = {fma, fma->variant, measure(stream, fma->launch)};
  ClockSpan span;
  download(&span, problem.data.span, sizeof span, stream);
  results.clockMhz = span.megahertz();
  results.fmaTheory = fmaLimit(device, results.clockMhz);
  requirePossible("fmaPeak, at its measured clock,", results.fmaCeiling.gflops(), results.fmaTheory, "GFLOP/s");

  const vector<const Row*> copies = problem.select({Role::kShape, Role::kLibrary});
  vector<Launch> launches;
  for (const Row* copy : copies) launches.push_back(copy->launch);
  const vector<Timing> timings = measureInTurn(stream, launches);
  // Some cards run faster than the clock that they promise.
  const double megahertz = std::max(device.maxClockMhz, results.clockMhz);
  const auto keep = [&](vector<Measured>& measured, const Row* row, const Timing& timing) {
    measured.push_back({row, row->variant, timing});
    requireWithinLimits(measured.back(), device, megahertz);
  };
  for (size_t i = 0; i < copies.size(); ++i) keep(results.copies, copies[i], timings[i]);
  results.copyCeiling = *std::min_element(results.copies.begin(), results.copies.end(),
      [](const Measured& one, const Measured& other) { return one.timing.ms < other.timing.ms; });
  results.copyCeiling.variant = problem.only(Role::kCopyCeiling)->variant;

  for (const Row* row : problem.select({Role::kKernel})) keep(results.kernels, row, measure(stream, row->launch));
  for (const Row* row : problem.select({Role::kGlobalPattern, Role::kSharedPattern}))
    keep(results.patterns, row, measure(stream, row->launch));
  return results;
}

// ---- Report

using Columns = vector<Column<Measured>>;

// A text that all rows of a table share, in their JSON lines alone.
Column<Measured> constant(const char* key, const char* text) {
  return {"", "", 0, 0, key, [=](const Measured&) { return text; }};
}

// A table: what each row is and how long it takes, and then figures of its own.
void reportRows(
    Report& report, const char* record, const char* heading, const vector<Measured>& rows, const Columns& figures) {
  const Columns names = {
      {heading, "", -22, 0, "variant", [](const Measured& m) { return m.variant; }},
      {"day", "", 3, 0, "day", [](const Measured& m) { return m.row->day; }},
      {"", "", 0, 0, "symbol", [](const Measured& m) { return m.row->symbol; }},
      {"", "", 0, 0, "flop", [](const Measured& m) { return int64_t(m.row->flop); }},
      {"", "", 0, 0, "requested_bytes", [](const Measured& m) { return int64_t(m.row->requestedBytes); }},
  };
  const Columns times = timingColumns<Measured>([](const Measured& m) { return m.timing; });
  const Table<Measured> table(report, record, join<Measured>({names, times, figures}));
  for (const Measured& row : rows) table.add(row);
}

void reportCeilings(Report& report, const Results& results) {
  report.say(
      "%zu copies compete for the copy ceiling: float4 x 2 is two float4 a thread, resident one wave of blocks\n",
      results.copies.size());
  reportRows(report, "shape", "copy", results.copies,
      {
          constant("metric", "gbps"),
          {"rate", "GB/s", 9, 1, "value", [](const Measured& m) { return m.gbps(); }},
          constant("unit", "GB/s"),
          {"of best", "%", 8, 1, "", [&](const Measured& m) { return 100 * m.gbps() / results.copyCeiling.gbps(); }},
      });

  const auto isFma = [](const Measured& m) { return m.row->role == Role::kFmaCeiling; };
  const auto ofFma = [=](auto value) { return [=](const Measured& m) { return isFma(m) ? Value(value) : Value(); }; };
  report.say("\nThe two ends of this card's roofline, both measured\n");
  reportRows(report, "ceiling", "ceiling", {results.copyCeiling, results.fmaCeiling},
      {
          {"", "", 0, 0, "metric", [=](const Measured& m) { return isFma(m) ? "gflops" : "gbps"; }},
          {"rate", "", 9, 1, "value", [=](const Measured& m) { return isFma(m) ? m.gflops() : m.gbps(); }},
          {"unit", "", -7, 0, "unit", [=](const Measured& m) { return isFma(m) ? "GFLOP/s" : "GB/s"; }},
          {"copy", "", -12, 0, "shape", [=](const Measured& m) { return isFma(m) ? Value() : m.row->variant; }},
          {"of all lanes", "%", 9, 1, "", ofFma(100 * results.fmaCeiling.gflops() / results.fmaTheory)},
          {"", "", 0, 0, "theory", ofFma(results.fmaTheory)},
          {"SM clock", "MHz", 8, 0, "clock_mhz", ofFma(results.clockMhz)},
      });
  report.say(
      "All lanes: what all FP32 lanes could do at the SM clock that fmaPeak measured while it ran.\n"
      "Ridge point: %.2f FLOP/byte. Left of it nothing on this card can be compute bound.\n\n",
      results.ridge());
  JsonLine ridge("ridge");
  ridge.add("day", kProgram.day).add("variant", "ridge-point").add("metric", "ridge");
  report.line(ridge.add("value", results.ridge()).add("unit", "FLOP/byte"));
}

void reportKernels(Report& report, const Results& results) {
  const auto isLeft = [&](const Measured& m) { return results.copyBinds(m); };
  const auto isAbove = [&](const Measured& m) { return results.percentOf(m) > 100; };
  const vector<Measured>& kernels = results.kernels;
  report.say("%zu kernels, with the bytes that their algorithms request\n", kernels.size());
  reportRows(report, "row", "kernel", kernels,
      {
          constant("metric", "ms"),
          {"", "", 0, 0, "value", [](const Measured& m) { return m.timing.ms; }},
          constant("unit", "ms"),
          {"FLOP/byte", "", 9, 3, "", [](const Measured& m) { return m.intensity(); }},
          {"requested", "MB", 9, 1, "", [](const Measured& m) { return m.row->requestedBytes * 1e-6; }},
          {"requested", "GB/s", 9, 1, "", [](const Measured& m) { return m.gbps(); }},
          {"of ceiling", "%", 7, 1, "percent", [&](const Measured& m) { return results.percentOf(m); }},
          {"", "", -1, 0, "", [=](const Measured& m) { return isAbove(m) ? "*" : " "; }},
          {"ceiling", "", -5, 0, "ceiling", [=](const Measured& m) { return isLeft(m) ? "copy" : "fma"; }},
      });
  report.say(
      "\n%d of the %zu sit left of the ridge point, so for those the sloped ceiling (copy) is the one that binds.\n\n"
      "The bytes are REQUESTED bytes, all that the algorithm requests from global memory. The lesson's author\n"
      "calls them compulsory, a word that the literature keeps for each byte counted once. Divided by the time,\n"
      "they count a byte that a cache served as if DRAM had moved it. Rows over 100 %% (marked *, here %d) give that\n"
      "away: DRAM cannot have done this. What DRAM did move, the hardware counters say: README.md.\n\n",
      int(std::count_if(kernels.begin(), kernels.end(), isLeft)), kernels.size(),
      int(std::count_if(kernels.begin(), kernels.end(), isAbove)));
}

void reportPatterns(Report& report, const vector<Measured>& patterns) {
  const auto isGlobal = [](const Measured& m) { return m.row->role == Role::kGlobalPattern; };
  const auto bytesOf = [=](const Measured& m) { return m.row->transactions * (isGlobal(m) ? kSector : kWavefront); };
  report.say("%zu access patterns: what the loads of one warp instruction become\n", patterns.size());
  reportRows(report, "pattern", "pattern", patterns,
      {
          {"", "", 0, 0, "level", [=](const Measured& m) { return isGlobal(m) ? "global" : "shared"; }},
          {"transactions", "", 12, 1, "transactions", [](const Measured& m) { return m.row->transactions; }},
          constant("metric", "ginst"),
          {"warp loads", "G/s", 11, 1, "value", [](const Measured& m) { return m.loadRate(); }},
          constant("unit", "Ginst/s"),
          {"moved", "GB/s", 11, 1, "", [=](const Measured& m) { return m.loadRate() * bytesOf(m); }},
      });
  report.say(
      "A transaction is a sector of %d bytes of L1 or a wavefront of %d bytes of shared memory.\n"
      "Their number follows from the pattern; README.md has what the counters say.\n",
      kSector, kWavefront);
}

// ---- The day

int runDay(Report& report) {
  const Mode mode = report.options().mode;
  const Device device = openDevice(report.options().device, copyCoalesced);
  const cudaDeviceProp& gpu = device.properties;
  const Sizes sizes = timedSizes(gpu);
  const int residentThreads = gpu.multiProcessorCount * (gpu.maxThreadsPerMultiProcessor / kBlock) * kBlock;
  requireDeviceMemory(Buffers::bytes(sizes, residentThreads));
  const Stream stream;
  const PinnedBuffer<float> staging(sizes.n());
  reportRun(report, device);
  report.say("Streams of %d x %d floats (%.0f MiB each, %.1f x L2), matmul %d cubed, tile %d, stencil %d squared.\n\n",
      sizes.side, sizes.side, kFloatBytes * sizes.n() / 1048576, kFloatBytes * sizes.n() / gpu.l2CacheSize,
      sizes.matmul, kMatmulTile, sizes.stencil);

  Checks checks(report);
  if (mode != Mode::kProfile) {
    const Problem ragged(kRagged, kRaggedThreads);
    uploadInputs(ragged.data, staging, stream);
    checkRows(ragged, "ragged", checks, staging, stream);
  }
  const Problem problem(sizes, residentThreads);
  uploadInputs(problem.data, staging, stream);
  if (mode == Mode::kProfile) {
    for (const Row* row : problem.profiled()) run(*row, stream);
    return kExitOk;
  }
  if (checks.failed() == 0) checkRows(problem, "full", checks, staging, stream);  // once the small one is right
  if (checks.failed() > 0) {
    fprintf(stderr, "%d checks FAILED, so no times are printed\n", checks.failed());
    return kExitFailed;
  }
  report.say(
      "All %zu kernels match their CPU reference at every element, full and ragged.\n\n", problem.profiled().size());
  if (mode == Mode::kCheck) return kExitOk;

  const Results results = measureAll(problem, device, stream);
  reportCeilings(report, results);
  reportKernels(report, results);
  reportPatterns(report, results.patterns);
  return kExitOk;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
