// SPDX-License-Identifier: MIT
// A model of the tensor core's TF32 multiply-add, mma.sync m16n8k8, for kernels on the CPU: its operands are cut to
// TF32, products are exact, and the sum of eight of them and the old value is cut off towards zero at 24 bits, as
// tensor cores do it (Ootomo and Yokota 2022). How they align the nine terms before is not documented, and not
// modelled.
#pragma once

#include <cmath>

namespace cuda_cpu {

// What a lane holds of the operands: see the fragments of mma.m16n8k8 in the PTX ISA.
struct TensorOperands {
  float a[4], b[2];
};

inline float tf32OfBits(unsigned bits) { return __uint_as_float(bits & 0xFFFFE000u); }

inline float cutToFloat(double exact) {
  const float nearest = static_cast<float>(exact);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(exact) ? std::nextafterf(nearest, 0.0f) : nearest;
}

// A whole warp calls it together. Lane 0 has a table of where the lanes' operands lie; all read it between two
// barriers.
inline void multiplyTensor(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2],
    const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  constexpr unsigned kAll = 0xffffffffu;
  TensorOperands mine;
  for (int i = 0; i < 4; ++i) mine.a[i] = tf32OfBits(a[i]);
  for (int i = 0; i < 2; ++i) mine.b[i] = tf32OfBits(b[i]);
  const TensorOperands* table[32];
  const auto all = __shfl_sync(kAll, table, 0, 32, file, line);
  const int lane = laneInWarp(), group = lane / 4, column = lane % 4 * 2;
  all[lane] = &mine;
  __syncwarp(kAll, file, line);
  for (int i = 0; i < 4; ++i) {
    double exact = sum[i];
    for (int k = 0; k < 8; ++k)
      exact += static_cast<double>(all[4 * group + k % 4]->a[k / 4 * 2 + i / 2]) *
          all[4 * (column + i % 2) + k % 4]->b[k / 4];
    sum[i] = cutToFloat(exact);
  }
  __syncwarp(kAll, file, line);
}

}  // namespace cuda_cpu
