// SPDX-License-Identifier: MIT
// Stands in for the CUDA Toolkit's header of the same name: pairs of bfloat16 numbers, on the
// operations of cuda_fp16.h.
#pragma once

#include "cuda_fp16.h"

using __nv_bfloat162 = cuda_cpu::ShortPair<8, -125>;
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return __nv_bfloat162::rounded(x, y); }
