"""The kernels of each day's program, in the order in which `--profile` launches them."""

PROFILE_ORDER = {
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
    ]
}

# What else a day checks and times.
OTHER_KERNELS = {"day49-roofline/roofline": ["copyVector"]}
