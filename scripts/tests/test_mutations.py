"""Faults planted in the days' kernels: each must make the CPU build exit 1 and name the kernel.

A fault is one piece of code in place of another, found by its tokens in the kernel that it is of, so a comment, a line
break or a move changes nothing; where the code itself is no longer there, the test fails and says so. The mutated
source goes through the same lowering as the day and is linked with the CPU backend that the build made.

Newer faults (SWITCHED) are pieces of code that planting.py finds; a day's are compiled into one program, which the
environment tells which of them to commit.
"""

import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
from days import PREPARES, PROGRAMS, skippable
from planting import SANITIZED, SMALLER, CodeFault, exchanged, small_source, switchable


@dataclass(frozen=True)
class Fault:
    """One planted fault: `old` (once in the source) becomes `new`; `kernel` and `says` (a pattern) must be named.

    Faults that make their own kernel's results wrong, and nothing else, share programs, one of each kernel. One that
    ends the program, or that other kernels show too, is planted `alone`.
    """

    name: str
    kernel: str
    old: str
    new: str
    says: str = ""
    alone: bool = False


ADD = "out[i] = a[i] + b[i];"
FAULTS = {
    "day30-roofline/roofline.cu": [
        Fault(
            "read skips its last load",
            "streamDram",
            "if (i < count && kAccess != kWrite) held[k] = a[i];",
            "if (i < count && kAccess != Access::kWrite && k < 7) held[k] = a[i];",
        ),
        Fault(
            "stream stores past the end",
            "streamDram",
            "if (kAccess != kRead && i < count) out[i] = held[k];",
            "if (kAccess != kRead) out[i] = held[k];",
            alone=True,
        ),
        Fault(
            "stream leaves the tail unwritten",
            "streamDram",
            "if (kAccess != kRead && i < count) out[i] = held[k];",
            "if (kAccess != kRead && i < count - 1) out[i] = held[k];",
        ),
        Fault(
            "triad swaps its streams",
            "streamDram",
            "word = fmaf(kScale, other[k].at[w], word);",
            "word = fmaf(kScale, word, other[k].at[w]);",
        ),
        Fault(
            "triad gives a NaN",
            "streamDram",
            "word = fmaf(kScale, other[k].at[w], word);",
            "word = fmaf(NAN, other[k].at[w], word);",
        ),
        Fault(
            "half of the slices' trips",
            "readSlices",
            "for (int trip = 0; trip < trips; ++trip) {\n    uint4",
            "for (int trip = 0; trip < trips; trip += 2) {\n    uint4",
        ),
        Fault(
            "slices wrap one step late",
            "readSlices",
            "if (position >= slice) {",
            "if (position > slice + step) {",
            alone=True,  # the largest working set then ends past the buffer
        ),
        Fault(
            "slices do not rotate",
            "readSlices",
            "owner = owner + 1 == int(gridDim.x) ? 0 : owner + 1;",
            "owner = owner + 0;",
        ),
        Fault(
            "half of the shared trips",
            "readShared",
            "for (int trip = 0; trip < trips; ++trip) {\n    const int start",
            "for (int trip = 0; trip < trips; trip += 2) {\n    const int start",
        ),
        Fault(
            "shared words of another lane",
            "readShared",
            "start = threadIdx.x % kWarp * stride",
            "start = (threadIdx.x ^ 1) % kWarp * stride",
        ),
        Fault(
            "half of the arithmetic steps",
            "arithmeticPeak",
            "step < steps; step += kUnroll) {\n#pragma unroll",
            "step < steps; step += 2 * kUnroll) {\n#pragma unroll",
        ),
        Fault(
            "a chain left out of the sum",
            "arithmeticPeak",
            "for (int c = 0; c < kChains; ++c) sum += Type::worth(chain[c]);",
            "for (int c = 1; c < kChains; ++c) sum += Type::worth(chain[c]);",
        ),
        Fault(
            "multiplication without addition",
            "arithmeticPeak",
            "return kFused ? fmaf(x, x, c) :",
            "return kFused ? fmaf(x, x, 0) :",
        ),
        Fault(
            "block sum without its barrier",
            "streamDram",
            "atomicAdd(&total, sum);\n  __syncthreads();",
            "atomicAdd(&total, sum);",
            alone=True,
        ),
        Fault(
            "one FMA short",
            "intensity",
            "for (int k = 0; k < kFmas; ++k) x.at",
            "for (int k = 1; k < kFmas; ++k) x.at",
        ),
        Fault(
            "add infinity",
            "vectorAdd",
            "out[i] = a[i] + b[i];",
            "out[i] = a[i] + INFINITY;",
        ),
        Fault(
            "add minus infinity",
            "vectorAdd",
            "out[i] = a[i] + b[i];",
            "out[i] = a[i] - INFINITY;",
        ),
        Fault(
            "triad FP64 off by one",
            "triadFp64",
            "fma(double(kScale), b[i], a[i])",
            "fma(double(kScale), b[i ^ 1], a[i])",
        ),
        Fault(
            "stencil takes a face for inside",
            "stencil7",
            "const bool inside = x > 0 &&",
            "const bool inside =",
        ),
        Fault(
            "stencil stores past its end",
            "stencil7",
            "if (x >= g) return;",
            "if (x > g) return;",
            "wrote [0-9]+ bytes past the end of its output",
        ),
        Fault(
            "copy in turn takes no second tile",
            "copyInTurn",
            "first = following[slot];",
            "first = count;",
        ),
        Fault(
            "tickets that nobody makes 0 again",
            "copyInTurn",
            "    atomicExch(&tickets[0], 0u);\n",
            "",
        ),
        Fault(
            "a comparison that a NaN passes",
            "findWrong",
            "if (!(fabs(difference) <= allowed))",
            "if (fabs(difference) > allowed)",
            "one wrong element, 0, holds nan: got 0 wrong",
        ),
        Fault(
            "a comparison that leaves the last element out",
            "findWrong",
            "i < count; i += gridDim.x",
            "i < count - 1; i += gridDim.x",
            "the comparison on the device looked at 100051 elements",
            alone=True,
        ),
        Fault(
            "a comparison that sees what is not there",
            "intensity",
            "const auto difference = got[i] - want(i);",
            "const auto difference = got[i] - want(i) - 1;",
            "their references differ",
            alone=True,  # no kernel passes it
        ),
        Fault(
            "half of the library's copy",
            "cudaMemcpyAsync",
            "cudaMemcpyAsync(p.out, p.a, sizeof(float) * words,",
            "cudaMemcpyAsync(p.out, p.a, sizeof(float) * words / 2,",
        ),
        Fault(
            "product a step short",
            "matmulNaive",
            "for (int k = 0; k < d; ++k) sum = fmaf(a[",
            "for (int k = 1; k < d; ++k) sum = fmaf(a[",
        ),
        Fault(
            "tiles without the barrier before use",
            "matmulTiled",
            "tileB[y][x] = b[first * d];\n    __syncthreads();",
            "tileB[y][x] = b[first * d];",
        ),
    ],
    "day44-matmul/matmul_registers.cu": [
        Fault(
            "a step of the product is missing",
            "matmulUncoalesced",
            "for (int k = 0; k < g.k; ++k)",
            "for (int k = 1; k < g.k; ++k)",
        ),
        Fault(
            "the width of B taken for its leading dimension",
            "matmulCoalesced",
            "rows(k, g.ldb) + column",
            "rows(k, g.n) + column",
        ),
        Fault(
            "tiles without the barrier after use",
            "matmulSharedTiled",
            "sum = fmaf(tileA[y][k], tileB[k][x], sum); __syncthreads();",
            "sum = fmaf(tileA[y][k], tileB[k][x], sum);",
        ),
        Fault(
            "a tile with A's rows and columns swapped",
            "matmulSharedTiled",
            "tileA[y][x] = g.a[",
            "tileA[x][y] = g.a[",
        ),
        Fault(
            "the width of A taken for its leading dimension",
            "matmulRegTile1d",
            "a[rows(i / kTileK, g.lda) + first",
            "a[rows(i / kTileK, g.k) + first",
        ),
        Fault(
            "a square of outputs without alpha",
            "matmulRegTile2d",
            "g.alpha * sum[i][j]",
            "sum[i][j]",
        ),
        Fault(
            "the last k tile is missing",
            "matmulRegTile2dVec4",
            "first < g.k; first += kTileK",
            "first < g.k - kTileK; first += kTileK",
        ),
        Fault(
            "steps of k swapped in pairs in A alone",
            "matmulRegTile2dVec4",
            "tileA[i % kTileK + e][i / kTileK]",
            "tileA[i % kTileK + (e ^ 1)][i / kTileK]",
        ),
        Fault(
            "stored tiles without alpha",
            "matmulWarpTiles",
            "storeFour<T::kGuard>(g, y, x, g.alpha, &sum[",
            "storeFour<T::kGuard>(g, y, x, 1.0f, &sum[",
            alone=True,
        ),
        Fault(
            "a tile without its barrier",
            "matmulDoubleBuffered",
            "    __syncthreads();\n    const int offset",
            "    const int offset",
            alone=True,
        ),
        Fault(
            "a partial tile of k skipped",
            "matmulGuardedSmall",
            "(piece.lastK - piece.firstK + T::kK - 1) / T::kK",
            "(piece.lastK - piece.firstK) / T::kK",
            alone=True,
        ),
        Fault(
            "rows and columns of the stored tiles swapped",
            "matmulGuardedSmall",
            "tile % across, tile / across, first * T::kK",
            "tile / across, tile % across, first * T::kK",
            alone=True,
        ),
        Fault(
            "NaN where a tile hangs over",
            "matmulGuardedVectors",
            "for (float& value : held) value = 0;",
            "for (float& value : held) value = NAN;",
        ),
        Fault(
            "the lanes' swizzle off by one",
            "matmulGuardedSmall",
            "(lane >> 2 & (tall ? 6 : 2))",
            "(lane >> 1 & (tall ? 6 : 2))",
            alone=True,
        ),
        Fault(
            "a store without its guard",
            "matmulPacked",
            "if (row < g.m && column + e < g.n) to[e]",
            "if (row < g.m) to[e]",
            alone=True,
        ),
        Fault(
            "a load without its guard",
            "matmulGuardedSmall",
            "rowB + p * kRowsB < left && (",
            "rowB + p * kRowsB <= left && (",
            alone=True,
        ),
        Fault(
            "the width of A taken for its leading dimension",
            "matmulGuardedSmall",
            "g.a + rows(row, g.lda) +",
            "g.a + rows(row, g.k) +",
            alone=True,
        ),
        Fault(
            "the width of C taken for its leading dimension",
            "matmulGuardedSmall",
            "g.c + rows(row, g.ldc) + column",
            "g.c + rows(row, g.n) + column",
            alone=True,
        ),
        Fault(
            "one part of k not added",
            "matmulGuardedSmall",
            "part < T::kSplitK; ++part",
            "part < T::kSplitK - 1; ++part",
            alone=True,
        ),
        Fault(
            "the dispatch without its test of the shape",
            "matmulSmallTiles",
            "runsOn(row, context) && fits(row, context, g) ? row.rate",
            "runsOn(row, context) ? row.rate",
            alone=True,
        ),
        Fault(
            "a share of a cut tile not added",
            "matmulBalanced",
            "for (int of = first; of <= last; ++of)",
            "for (int of = first; of < last; ++of)",
            alone=True,
        ),
        Fault(
            "two blocks leave their shares in one place",
            "matmulBalanced",
            "(size_t(2) * of + (of == first)) * T::kM",
            "size_t(of) * T::kM",
            alone=True,
        ),
        Fault(
            "no block taken for the last to arrive",
            "matmulBalanced",
            "1u) == unsigned(last - first);",
            "1u) == unsigned(last - first + 1);",
            alone=True,
        ),
        Fault(
            "counters not set back for the next launch",
            "matmulBalanced",
            "if (threadIdx.x == 0) g.last.arrived[tile] = 0;",
            ";",
            alone=True,
        ),
        Fault(
            "packed rows without their zeros",
            "packMatrix",
            "row < height && column + e < width ?",
            "row < height ?",
            alone=True,
        ),
        Fault(
            "the columns of one warp not added",
            "matmulFewColumns",
            "warp < kFewThreads / 32; ++warp",
            "warp < kFewThreads / 32 - 1; ++warp",
            alone=True,
        ),
        Fault("half the FMA steps", "fmaPeak", "done += kUnroll", "done += 2 * kUnroll"),
        Fault("one load too few", "fmaLoads4", "multiplyBeside<4>(", "multiplyBeside<2>("),
        Fault(
            "cuBLAS given the width for the leading dimension",
            "cublasGemmEx",
            "g.b, CUDA_R_32F, g.ldb",
            "g.b, CUDA_R_32F, g.n",
        ),
    ],
    "day56-graphs/graphs.cu": [
        Fault(
            "a graph's launch deleted",
            "applyScaleBias",
            "CUDA_CHECK(cudaGraphLaunch(executable_, stream));",
            "static_cast<void>(stream);",
            r"\(graph, 16995\): 16995 of 16995 wrong, first wrong element 0 .*: got -?nan",
            alone=True,
        ),
        Fault(
            "a capture that loses a kernel",
            "applyGelu",
            "for (const Step& step : steps) step.launch(stream);\n      cudaStreamCaptureStatus",
            "for (const Step& step : steps)\n          if (step.stage != 1) step.launch(stream);\n"
            "      cudaStreamCaptureStatus",
            r"\(graph, 16995\): .*got 3 nodes and 1 roots in the capture, want 4 and 1",
            alone=True,
        ),
        Fault(
            "a capture with a node too many",
            "applyClampRange",
            "      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;",
            "      steps.back().launch(stream);\n      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;",
            "got 5 nodes and 1 roots in the capture, want 4 and 1",
            alone=True,
        ),
        Fault(
            "a capture with another grid",
            "applyScaleBias",
            "step.node.gridDim = dim3(blocks);",
            "step.node.gridDim = dim3(blocks + 1);",
            "0 such kernels of 68 blocks of 256",
            alone=True,
        ),
        Fault(
            "a launch error inside the capture",
            "applyScaleBias",
            "kernel<<<blocks, kBlock, 0, stream>>>(each...);",
            "cudaStreamCaptureStatus c; cudaStreamIsCapturing(stream, &c); kernel<<<blocks, c ? 2048 : kBlock, 0, "
            "stream>>>(each...);",
            "launch of kernel applyScaleBias failed: cudaErrorInvalidValue",
            alone=True,
        ),
        Fault(
            "a capture that something ends",
            "applyScaleBias",
            "      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;",
            "      cudaStreamSynchronize(stream);\n      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;",
            "its capture ended before its end",
            alone=True,
        ),
        Fault(
            "a stale pointer",
            "applyScaleBias",
            "graph.setParameters(graph.nodesOf(before), after);",
            "graph.setParameters(graph.nodesOf(before), before);",
            "a stale pointer",
        ),
        Fault(
            "one node left as it was captured",
            "applyAddResidual",
            "for (size_t i = 0; i < steps.size(); ++i) CUDA_CHECK(cudaGraphExecKernelNodeSetParams",
            "for (size_t i = 0; i < steps.size(); ++i) if (i != 2) CUDA_CHECK(cudaGraphExecKernelNodeSetParams",
            r"\(graph, parameters set, \d+\)",
            alone=True,
        ),
        Fault("scale NaN", "applyScaleBias", "v * kScale + kBias; }", "v * kScale + NAN; }", alone=True),
        Fault("scale infinity", "applyScaleBias", "v * kScale + kBias; }", "v * kScale + INFINITY; }", alone=True),
        Fault(
            "scale minus infinity", "applyScaleBias", "v * kScale + kBias; }", "v * kScale - INFINITY; }", alone=True
        ),
        Fault("GELU with a wrong constant", "applyGelu", "kGeluB = 0.044715f", "kGeluB = 0.04472f", alone=True),
        Fault(
            "the residual of a neighbour",
            "applyAddResidual",
            "n, out, in, residual);\n}\n\ntemplate <int kWidth, bool kOverlap>",
            "n, out, in, residual + 1);\n}\n\ntemplate <int kWidth, bool kOverlap>",
            alone=True,
        ),
        Fault(
            "a clamp without its upper end",
            "applyClampRange",
            "fminf(fmaxf(v, kLow), kHigh)",
            "fmaxf(v, kLow)",
            alone=True,
        ),
        Fault(
            "a wide kernel that leaves its tail",
            "applyScaleBias",
            "i = first; i < n; ++i",
            "i = first; i < n - 1; ++i",
            alone=True,
        ),
        Fault(
            "a wide kernel without its guard",
            "applyScaleBias",
            "if (first + kWidth <= n) {",
            "if (first < n) {",
            alone=True,
        ),
        Fault(
            "fused without the residual",
            "applyFused",
            "clampRange(gelu(scaleBias(v)) + r)",
            "clampRange(gelu(scaleBias(v)) + 0 * r)",
        ),
        Fault("a gate that never opens", "holdStream", "while (*open == 0)", "while (*open < 2)"),
        Fault(
            "half of the library's copy",
            "cudaMemcpyAsync",
            "out, in, out.bytes(),",
            "out, in, out.bytes() / 2,",
        ),
    ],
    "day49-roofline/roofline.cu": [
        Fault("add NaN", "vectorAdd", ADD, ADD.replace("a[i] + b[i]", "a[i] + NAN")),
        Fault("add infinity", "vectorAdd", ADD, ADD.replace("a[i] + b[i]", "a[i] + INFINITY")),
        Fault("add minus infinity", "vectorAdd", ADD, ADD.replace("a[i] + b[i]", "a[i] - INFINITY")),
        Fault("add off by one", "vectorAdd", ADD, ADD.replace("b[i]", "b[i ^ 1]")),
        Fault("add stores past the end", "vectorAdd", f"if (i < n) {ADD}", f"if (i <= n) {ADD}", alone=True),
        Fault(
            "add walks no permutation",
            "vectorAddPermuted",
            "column * kStride + blockIdx.y;",
            "column * kStride % n + 0 * blockIdx.y;",
        ),
        Fault(
            "copy leaves the tail unwritten",
            "copyCoalesced",
            "if (i < n) out[i] = in[i];",
            "if (i < n - 1) out[i] = in[i];",
        ),
        Fault(
            "wide copy stores past the end",
            "copyFloat2",
            "if (i < count) out[i] = held[k];",
            "out[i] = held[k];",
            alone=True,
        ),
        Fault(
            "wide copy skips its last load",
            "copyFloat4x4",
            "if (i < count) held[k] = in[i];",
            "if (i < count && k < 3) held[k] = in[i];",
            alone=True,
        ),
        Fault(
            "half of the library's copy",
            "cudaMemcpyAsync",
            "data.out, data.index, data.out.bytes(),",
            "data.out, data.index, data.out.bytes() / 2,",
        ),
        Fault(
            "transpose swaps its store",
            "transposeNaive",
            "out[size_t(column) * side + row]",
            "out[size_t(row) * side + column]",
        ),
        Fault(
            "transpose swaps the tile's indices",
            "transposeTiled",
            "tile[threadIdx.x][threadIdx.y];",
            "tile[threadIdx.y][threadIdx.x];",
        ),
        Fault(
            "transpose without its barrier",
            "transposeTiled",
            "  __syncthreads();\n  column = blockIdx.y",
            "  column = blockIdx.y",
        ),
        Fault(
            "matmul without the barrier before use",
            "matmulTiled",
            "    __syncthreads();\n    for (int k = 0; k < kMatmulTile",
            "    for (int k = 0; k < kMatmulTile",
        ),
        Fault(
            "matmul without the barrier after use",
            "matmulTiled",
            "__syncthreads(); } if (row < d && column < d) c[",
            "} if (row < d && column < d) c[",
        ),
        Fault(
            "matmul skips the last k",
            "matmulNaive",
            "for (int k = 0; k < d; ++k) sum +=",
            "for (int k = 0; k < d - 1; ++k) sum +=",
        ),
        Fault(
            "reduction without a barrier in its loop",
            "reduceSequentialAddressing",
            "sum[threadIdx.x + stride];\n    __syncthreads();",
            "sum[threadIdx.x + stride];",
        ),
        Fault(
            "reduction with a barrier that only some reach",
            "reduceSequentialAddressing",
            "sum[threadIdx.x] += sum[threadIdx.x + stride];\n    __syncthreads();",
            "{ sum[threadIdx.x] += sum[threadIdx.x + stride]; __syncthreads(); }",
            alone=True,
        ),
        Fault(
            "reduction reads past the end",
            "reduceSequentialAddressing",
            "sum[threadIdx.x] = i < n ? in[i] : 0.0f;",
            "sum[threadIdx.x] = in[i];",
            alone=True,
        ),
        Fault(
            "stencil with a wrong constant",
            "heatStepGlobal",
            "east - 4.0f * centre",
            "east - 4.001f * centre",
            alone=True,
        ),
        Fault(
            "stencil takes the ring for inside",
            "heatStepGlobal",
            "onRing(row, column, g) ? in[i] :",
            "onRing(row, column, g) && row > 0 ? in[i] :",
        ),
        Fault(
            "stencil reads shared memory nobody wrote",
            "heatStepTiled",
            "cell < kApronX * kApronY; cell += kBlock",
            "cell < kApronX * kApronY - kApronX; cell += kBlock",
        ),
        Fault(
            "polynomial one step short",
            "polynomialHorner",
            "for (int k = 0; k < kDegree; ++k) y =",
            "for (int k = 1; k < kDegree; ++k) y =",
        ),
        Fault(
            "half the FMA steps",
            "fmaPeak",
            "step < steps; step += kFmaUnroll",
            "step < steps; step += 2 * kFmaUnroll",
        ),
        Fault(
            "an iteration too few",
            "globalStride8",
            "kIterations; ++iteration) {\n    const int first = threadIdx.x % kWarp * kLaneStride + (iteration",
            "kIterations - 1; ++iteration) {\n    const int first = threadIdx.x % kWarp * kLaneStride + (iteration",
            alone=True,
        ),
        Fault(
            "lanes at another stride",
            "sharedStride32",
            "sumShared<32>(in, out)",
            "sumShared<16>(in, out)",
        ),
        Fault(
            "shared words used before all are there",
            "sharedStride1",
            "words[i] = in[i];\n  __syncthreads();",
            "words[i] = in[i];",
            alone=True,
        ),
    ],
}
BARRIER = "__syncthreads()"
NO_BARRIER = "static_cast<void>(0)"

# What a reader gets wrong in a guard or leaves out of a barrier, a kernel at a time.
SWITCHED = {
    "day30-roofline/roofline.cu": [
        CodeFault("vectorAdd", "a thread too many", "i < n", "i <= n"),
        CodeFault("triadFp64", "a thread too many", "i < n", "i <= n"),
        CodeFault("intensity", "a thread too many", "i >= count", "i > count"),
        CodeFault("blockSum", "no barrier before the sum", BARRIER, NO_BARRIER, nth=0, of=2, kernel="streamDram"),
        CodeFault("readShared", "no barrier before use", BARRIER, NO_BARRIER),
        CodeFault("matmulTiled", "no barrier after use", BARRIER, NO_BARRIER, nth=1, of=2),
        CodeFault("matmulNaive", "the last step of the product is missing", "k < d", "k < d - 1"),
    ],
    "day44-matmul/matmul_registers.cu": [
        CodeFault("matmulCoalesced", "a step too many", "k < g.k", "k <= g.k"),
        CodeFault("matmulRegTile1d", "no barrier before use", BARRIER, NO_BARRIER, nth=0, of=2),
        CodeFault("matmulSharedTiled", "a k tile too many", "first < g.k", "first <= g.k"),
    ],
    "day49-roofline/roofline.cu": [
        CodeFault("copyCoalesced", "a thread too many", "i < n", "i <= n"),
        CodeFault("vectorAddPermuted", "a thread too many", "i < n", "i <= n"),
        CodeFault("polynomialHorner", "a thread too many", "i >= n", "i > n"),
        CodeFault("copyVector", "a thread too many", "i < count", "i <= count", nth=1, of=2, kernel="copyFloat2"),
        CodeFault("transposeNaive", "no row guard", "row < side && column < side", "column < side"),
        CodeFault("transposeTiled", "no row guard", "row < side && column < side", "column < side", nth=1, of=2),
        CodeFault("matmulNaive", "no row guard", "row >= d || column >= d", "column >= d"),
        CodeFault("matmulTiled", "no row guard", "row < d && column < d", "column < d"),
        CodeFault("heatStepGlobal", "no row guard", "row >= g || column >= g", "column >= g"),
        CodeFault("heatStepTiled", "no row guard", "row >= g || column >= g", "column >= g"),
        CodeFault("heatStepTiled", "no barrier", BARRIER, NO_BARRIER),
        CodeFault("reduceSequentialAddressing", "no barrier before the loop", BARRIER, NO_BARRIER, nth=0, of=2),
    ],
    "day56-graphs/graphs.cu": [
        CodeFault("mapStreams", "a thread too many", "i < n", "i <= n", kernel="applyScaleBias"),
        CodeFault("mapStreams", "a pack too many", "first + kWidth <= n", "first <= n", kernel="applyScaleBias"),
    ],
}
pytestmark = pytest.mark.skipif(
    os.environ.get("CUDA_DAYS_BACKEND", "cpu") != "cpu", reason="planted faults run on the CPU build"
)


SEEDS = [str(seed) for seed in range(1, 6)]


def run_check(program, seed=SEEDS[0], **extra):
    """Runs `program --check`, its threads in an order that the seed decides; returns exit code and all it printed."""
    result = subprocess.run(
        [program, "--check"],
        env={**os.environ, "CUDA_DAYS_CPU_SEED": seed, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    return result.returncode, result.stdout


def assert_fails_naming(kernel, code, output):
    assert code == 1, f"exit code {code}, expected 1:\n{output}"
    symbol = kernel.split("<")[0]
    assert re.search(rf"(FAILED|kernel) {symbol}\b", output), f"{kernel} is not named:\n{output}"


def build_day(source, folder, source_dir, build_dir, cxx):
    """Builds a day's source text on the CPU backend; returns the program in `folder`."""
    cu, lowered, program = (folder / f"day{suffix}" for suffix in (".cu", ".cpp", ""))
    cu.write_text(source)
    cpu = source_dir / "common" / "cpu"
    subprocess.run([sys.executable, cpu / "lower.py", cu, "-o", lowered], check=True)
    flags = ["-std=c++17", "-O1", "-march=native", "-w", "-rdynamic", "-I", cpu]
    if os.environ.get("CUDA_DAYS_ASAN") == "1":  # as the backend in this build folder was
        flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=null"]
    libraries = [build_dir / "libcpu_backend.a", "-lboost_context", "-pthread"]
    if "#include <cublas_v2.h>" in source:
        libraries = [build_dir / "libcpu_cublas.a", *libraries, "-lopenblas"]
    subprocess.run([cxx, *flags, lowered, *libraries, "-o", program], check=True)
    return program


def programs_of(faults):
    """Return the faults of a day as lists, each for one program."""
    programs = [[fault] for fault in faults if fault.alone]
    shared = []
    for fault in faults:
        if not fault.alone:
            free = (program for program in shared if fault.kernel not in {other.kernel for other in program})
            program = next(free, None)
            if program is None:
                shared.append(program := [])
            program.append(fault)
    return programs + shared


@pytest.mark.parametrize(
    ("day", "faults"),
    [(day, faults) for day, all_faults in FAULTS.items() for faults in programs_of(all_faults)],
    ids=lambda value: "; ".join(fault.name for fault in value) if isinstance(value, list) else value[:5],
)
def test_planted_faults_are_caught(day, faults, source_dir, build_dir, cxx, tmp_path):
    source = small_source(day, source_dir)
    for fault in faults:
        source = exchanged(source, fault.kernel, fault.old, fault.new, day)
    program = build_day(source, tmp_path, source_dir, build_dir, cxx)
    code, output = run_check(program)
    for fault in faults:
        assert_fails_naming(fault.kernel, code, output)
        assert re.search(fault.says, output), f"{fault.says!r} is not said:\n{output}"
    if not faults[0].alone:  # each for its own fault
        assert set(re.findall(r"^FAILED (\w+)", output, re.MULTILINE)) == {fault.kernel for fault in faults}


@pytest.fixture(scope="module")
def switched_program(source_dir, build_dir, cxx, tmp_path_factory):
    """Returns a function that gives the program with a day's SWITCHED faults; each is built once."""

    @functools.cache
    def build(day):
        source = switchable(small_source(day, source_dir), SWITCHED[day])
        return build_day(source, tmp_path_factory.mktemp("switched"), source_dir, build_dir, cxx)

    return build


@pytest.mark.parametrize(
    ("day", "number"),
    [(day, number) for day, faults in SWITCHED.items() for number in range(1, len(faults) + 1)],
    ids=lambda value: value[:5] if isinstance(value, str) else str(value),
)
def test_wrong_guards_and_missing_barriers_are_caught(day, number, switched_program):
    """A missing barrier shows only where threads run in the wrong order, so a few orders are tried, always the same."""
    fault = SWITCHED[day][number - 1]
    for seed in SEEDS:
        code, output = run_check(switched_program(day), seed, PLANTED=str(number))
        if code != 0 and re.search(rf"(FAILED|kernel) {fault.shown_by}\b", output):
            break
    assert_fails_naming(fault.shown_by, code, output)


@pytest.fixture(scope="module")
def small_program(source_dir, build_dir, cxx, tmp_path_factory):
    """Returns a function that gives a day's program, smaller where SMALLER says so; each is built once."""

    @functools.cache
    def build(program):
        day = f"{program}.cu"
        if day not in SMALLER and day not in SANITIZED:
            return build_dir / program
        return build_day(small_source(day, source_dir), tmp_path_factory.mktemp("small"), source_dir, build_dir, cxx)

    return build


def test_a_graph_that_nobody_destroys_is_a_leak(source_dir, build_dir, cxx, tmp_path):
    day = "day56-graphs/graphs.cu"
    destroy, nothing = "{executable, cudaGraphExecDestroy,", "{executable, [](cudaGraphExec_t) { return cudaSuccess; },"
    source = exchanged(small_source(day, source_dir), "", destroy, nothing, day)
    program = build_day(source, tmp_path, source_dir, build_dir, cxx)
    code, output = run_check(program, CUDA_DAYS_CPU_LEAKS="1")
    assert code == 1
    assert "executable graph(s)" in output


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_day_releases_all_it_takes(program, small_program):
    code, output = run_check(small_program(program), CUDA_DAYS_CPU_LEAKS="1")
    assert code == 0, output


@pytest.mark.parametrize("day", SWITCHED)
def test_a_smaller_day_that_commits_none_of_its_faults_passes(day, switched_program):
    code, output = run_check(switched_program(day))
    assert code == 0, output


@pytest.mark.parametrize(
    ("program", "kernel"),
    [(program, kernel) for program in PROGRAMS for kernel in skippable(program)],
    ids=str,
)
def test_skipped_launch_is_caught(program, kernel, small_program):
    assert_fails_naming(PREPARES.get(kernel, kernel), *run_check(small_program(program), CUDA_DAYS_CPU_SKIP=kernel))
