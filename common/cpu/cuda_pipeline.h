// SPDX-License-Identifier: MIT
// Stands in for the CUDA Toolkit's header of the same name: the primitives of asynchronous copies
// to shared memory. Until its thread has waited for it, a copy's destination is poison.
#pragma once

#include "cuda_runtime.h"

// Copies 4, 8 or 16 bytes, the last `zfill` of them zeros instead of what the source holds.
inline void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes, size_t zfill = 0,
    const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::cuda_cpu::copyAsync(shared, global, bytes, zfill, {file, line});
}

inline void __pipeline_commit() { ::cuda_cpu::commitCopies(); }

// Waits for this thread's committed copies but those of the last `prior` batches.
inline void __pipeline_wait_prior(size_t prior) { ::cuda_cpu::waitForCopies(prior); }
