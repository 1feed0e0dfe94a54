"""The kernels of each day's program, in the order in which `--profile` launches them."""

CHAIN = ["applyScaleBias", "applyGelu", "applyAddResidual", "applyClampRange"]

PROFILE_ORDER = {
    "day30-roofline/roofline": [
        *["streamDram"] * 8,
        *["readSlices"] * 3,
        *["readShared"] * 6,
        *["arithmeticPeak"] * 10,  # on a GPU the tensor cores too
        *["intensity"] * 12,
        "vectorAdd",
        "triadFp64",
        "stencil7",
        "matmulNaive",
        "matmulTiled",
    ],
    "day44-matmul/matmul_registers": [
        "fmaPeak",
        "matmulSharedTiled",
        "matmulRegTile1d",
        "matmulRegTile2d",
        "matmulRegTile2dVec4",
        *["matmulTiled"] * 9,  # rungs 7 to 11, three for edges, and the one that sgemm() picks
        *["cublasGemmEx"] * 2,
    ],
    "day49-roofline/roofline": [
        "copyCoalesced",
        "vectorAdd",
        "vectorAddPermuted",
        "transposeNaive",
        "transposeTiled",
        "matmulNaive",
        "matmulTiled",
        "reduceSequentialAddressing",
        "heatStepGlobal",
        "heatStepTiled",
        "polynomialHorner",
        "fmaPeak",
        *["globalStride0", "globalStride1", "globalStride8", "globalRandom"],
        *[f"sharedStride{stride}" for stride in (1, 2, 4, 8, 16, 32)],
    ],
    # At each of five sizes: launches, graph, wide launches, wide graph; fused launch and graph, wide fused launch.
    "day56-graphs/graphs": [*CHAIN * 4, *["applyFused"] * 3] * 5,
}

# What else a day checks and times.
OTHER_KERNELS = {
    "day30-roofline/roofline": [],
    "day44-matmul/matmul_registers": [
        # Each instance on its own: Edge is 0 for whole tiles, 1 for float4 edges, 2 for scalars.
        "matmulTiled<Tile<128, 128, 8, 8, 1, 1>, (Edge)0, false, false>",
        "matmulTiled<Tile<128, 128, 8, 8, 1, 2>, (Edge)0, false, false>",
        "matmulTiled<Tile<64, 64, 32, 8, 4, 2>, (Edge)0, false, false>",
        "matmulTiled<Tile<128, 256, 8, 16, 1, 2>, (Edge)0, false, true>",
        "matmulTiled<Tile<64, 64, 32, 8, 4, 3>, (Edge)0, true, true>",
        "matmulTiled<Tile<128, 256, 8, 16, 1, 2>, (Edge)1, false, true>",
        "matmulTiled<Tile<128, 128, 16, 8, 1, 3>, (Edge)2, true, true>",
        "matmulTiled<Tile<64, 64, 32, 8, 4, 2>, (Edge)2, true, true>",
    ],
    "day49-roofline/roofline": ["copyVector"],
    "day56-graphs/graphs": [
        "holdStream",
        *[f"{kernel}<{width}, false>" for kernel in CHAIN for width in (1, 4)],
        "applyFused<1>",
        "applyFused<4>",
    ],
}
