// SPDX-License-Identifier: MIT
// The model of the tensor cores' TF32 multiply-add: the operands' bits, the sum's cut, and which lane has what.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/expect.cuh"

namespace {

constexpr int kM = 16, kN = 8, kK = 8, kLanes = 32;

// Each lane gives what PTX's fragments of mma.m16n8k8 say for .tf32: of A rows g and g + 8 in columns t and t + 4, of B
// rows t and t + 4 in column g, of C rows g and g + 8 in columns 2 t and 2 t + 1, where lane = 4 g + t.
__global__ void multiply(const unsigned* a, const unsigned* b, float* c) {
  const int g = threadIdx.x / 4 % 8, t = threadIdx.x % 4;
  const size_t warp = blockIdx.x * blockDim.x / kLanes + threadIdx.x / kLanes;
  a += warp * kM * kK;
  b += warp * kK * kN;
  c += warp * kM * kN;
  const unsigned mineA[4] = {a[g * kK + t], a[(g + 8) * kK + t], a[g * kK + t + 4], a[(g + 8) * kK + t + 4]};
  const unsigned mineB[2] = {b[t * kN + g], b[(t + 4) * kN + g]};
  float* const mineC[4] = {
      &c[g * kN + 2 * t], &c[g * kN + 2 * t + 1], &c[(g + 8) * kN + 2 * t], &c[(g + 8) * kN + 2 * t + 1]};
  float sum[4] = {*mineC[0], *mineC[1], *mineC[2], *mineC[3]};
  cuda_cpu::multiplyTensor(sum, mineA, mineB);
  for (int i = 0; i < 4; ++i) *mineC[i] = sum[i];
}

unsigned bitsOf(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

std::vector<unsigned> bitsOf(const std::vector<float>& values) {
  std::vector<unsigned> bits;
  for (const float value : values) bits.push_back(bitsOf(value));
  return bits;
}

// C + A B of as many warps as there are matrices, some of them in one block.
std::vector<float> onDevice(const std::vector<unsigned>& a, const std::vector<unsigned>& b, std::vector<float> c) {
  const int warps = static_cast<int>(c.size()) / (kM * kN), perBlock = warps % 2 == 0 ? 2 : 1;
  Buffer<unsigned> toA(a.size()), toB(b.size());
  Buffer<float> toC(c.size());
  toA.upload(a);
  toB.upload(b);
  toC.upload(c);
  multiply<<<warps / perBlock, kLanes * perBlock>>>(toA.data(), toB.data(), toC.data());
  EXPECT(cudaGetLastError() == cudaSuccess);
  return toC.download();
}

// Whole numbers, no two alike in a matrix, so that every element comes from its own place: all sums are exact.
void productsAreThoseOfATripleLoop() {
  constexpr int kWarps = 6;
  std::vector<float> a(kWarps * kM * kK), b(kWarps * kK * kN), c(kWarps * kM * kN);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 37 % 211) - 100);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 53 % 223) - 110);
  for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(static_cast<int>(i * 91 % 1009) - 500);
  const std::vector<float> got = onDevice(bitsOf(a), bitsOf(b), c);
  int wrong = 0;
  for (int warp = 0; warp < kWarps; ++warp)
    for (int row = 0; row < kM; ++row)
      for (int column = 0; column < kN; ++column) {
        float& want = c[(warp * kM + row) * kN + column];
        for (int k = 0; k < kK; ++k) want += a[(warp * kM + row) * kK + k] * b[(warp * kK + k) * kN + column];
        wrong += got[(warp * kM + row) * kN + column] != want;
      }
  EXPECT(wrong == 0);
}

// An operand's last 13 bits may be anything; the 14th from below counts.
void theLastBitsOfOperandsDoNotCount() {
  std::vector<float> a(kM * kK), b(kK * kN);
  const std::vector<float> zeros(kM * kN);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 19) - 9.5f;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 23) - 11.5f;
  const std::vector<float> clean = onDevice(bitsOf(a), bitsOf(b), zeros);
  std::vector<unsigned> dirtyA = bitsOf(a), dirtyB = bitsOf(b);
  for (size_t i = 0; i < dirtyA.size(); ++i) dirtyA[i] |= 0x1FFFu & (0x1FFFu - static_cast<unsigned>(i));
  for (unsigned& bits : dirtyB) bits |= 0x1FFFu;
  EXPECT(onDevice(dirtyA, dirtyB, zeros) == clean);
  dirtyA[0] ^= 0x2000u;
  EXPECT(onDevice(dirtyA, dirtyB, zeros) != clean);
}

// c + a b with one product: the exact sum lies between two floats, and the one nearer to zero comes out.
float cutSum(float a, float b, float c) {
  std::vector<float> all(kM * kK), allB(kK * kN), sums(kM * kN, c);
  for (int row = 0; row < kM; ++row) all[row * kK + 5] = a;
  for (int column = 0; column < kN; ++column) allB[5 * kN + column] = b;
  const std::vector<float> got = onDevice(bitsOf(all), bitsOf(allB), sums);
  for (const float value : got) EXPECT(value == got[0]);
  return got[0];
}

void sumsAreCutTowardsZero() {
  const float unit = std::ldexp(1.0f, -23);  // between 1 and the next float
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT(cutSum(sign, 0.75f * unit, 1.0f * sign) == sign);  // the nearest is the next
    EXPECT(cutSum(sign, 0.25f * unit, 1.0f * sign) == sign);
    EXPECT(cutSum(sign, unit, 1.0f * sign) == sign * (1 + unit));  // exact
    EXPECT(cutSum(sign, -0.125f * unit, 1.0f * sign) == sign * (1 - unit / 2));  // the nearest is 1
  }
}

// The sum is cut once, and not after each product.
void eightProductsAreAddedBeforeTheCut() {
  const float unit = std::ldexp(1.0f, -23);
  const std::vector<float> a(kM * kK, 1.0f), b(kK * kN, 0.25f * unit), c(kM * kN, 1.0f);
  for (const float value : onDevice(bitsOf(a), bitsOf(b), c)) EXPECT(value == 1 + 2 * unit);
}

// One element of A and one of B are not 0: only one of C changes, and by the lane's place alone.
void eachLaneHasWhatPtxGivesIt() {
  int wrong = 0;
  for (int row = 0; row < kM; ++row)
    for (int k = 0; k < kK; ++k) {
      const int column = (row + 3 * k) % kN;
      std::vector<float> a(kM * kK), b(kK * kN), want(kM * kN);
      a[row * kK + k] = 3;
      b[k * kN + column] = 5;
      want[row * kN + column] = 15;
      wrong += onDevice(bitsOf(a), bitsOf(b), std::vector<float>(kM * kN)) != want;
    }
  EXPECT(wrong == 0);
}

// Infinities and NaN come out as they do of any sum.
void whatIsNotFiniteStaysSo() {
  EXPECT(std::isinf(cutSum(INFINITY, 2, 1)));
  EXPECT(cutSum(-INFINITY, 2, 1) < 0);
  // cutSum compares with itself, which a NaN is not: one element is looked at here.
  std::vector<float> a(kM * kK), b(kK * kN), c(kM * kN);
  a[0] = INFINITY;
  const std::vector<float> got = onDevice(bitsOf(a), bitsOf(b), c);
  for (int i = 0; i < kM * kN; ++i) EXPECT(std::isnan(got[i]) == (i < kN));
}

}  // namespace

int main() {
  productsAreThoseOfATripleLoop();
  theLastBitsOfOperandsDoNotCount();
  sumsAreCutTowardsZero();
  eightProductsAreAddedBeforeTheCut();
  eachLaneHasWhatPtxGivesIt();
  whatIsNotFiniteStaysSo();
  return report();
}
