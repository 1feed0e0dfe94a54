// SPDX-License-Identifier: MIT
// Stands in for the CUDA Toolkit's header of the same name and offers nothing: what the days do
// with it, clusters, needs sm_90 and stands under a test of __CUDA_ARCH__.
#pragma once
