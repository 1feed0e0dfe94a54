// SPDX-License-Identifier: MIT
// Stands in for the CUDA Toolkit's header of the same name: pairs of half-precision numbers, every
// operation rounded once, to nearest even, as the hardware does. What it does not offer does not
// compile.
#pragma once

#include <cmath>

#include "cuda_runtime.h"

namespace cuda_cpu {

// Rounds to `bits` significant bits, fewer below 2^(minExponent - 1), where numbers are subnormal.
// A double holds products and sums of such short numbers exactly. No value here comes near
// overflow, so it is not modelled.
inline float roundToBits(double value, int bits, int minExponent) {
  if (value == 0 || !std::isfinite(value)) return static_cast<float>(value);
  int exponent = 0;
  std::frexp(value, &exponent);
  const int shift = bits - (exponent < minExponent ? minExponent : exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(value, shift)), -shift));
}

// Two numbers of kBits significant bits.
template <int kBits, int kMinExponent>
struct ShortPair {
  float x, y;

  static ShortPair rounded(double x, double y) {
    return {roundToBits(x, kBits, kMinExponent), roundToBits(y, kBits, kMinExponent)};
  }
};

}  // namespace cuda_cpu

template <int kBits, int kMinExponent>
cuda_cpu::ShortPair<kBits, kMinExponent> __hfma2(cuda_cpu::ShortPair<kBits, kMinExponent> a,
    cuda_cpu::ShortPair<kBits, kMinExponent> b, cuda_cpu::ShortPair<kBits, kMinExponent> c) {
  return a.rounded(static_cast<double>(a.x) * b.x + c.x, static_cast<double>(a.y) * b.y + c.y);
}
template <int kBits, int kMinExponent>
float __low2float(cuda_cpu::ShortPair<kBits, kMinExponent> a) {
  return a.x;
}
template <int kBits, int kMinExponent>
float __high2float(cuda_cpu::ShortPair<kBits, kMinExponent> a) {
  return a.y;
}

using __half2 = cuda_cpu::ShortPair<11, -13>;
inline __half2 __floats2half2_rn(float x, float y) { return __half2::rounded(x, y); }
