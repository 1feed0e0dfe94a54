"""scripts/resources.py: reading what ptxas says, the occupancy, recording and checking, and the record of this tree."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
import resources  # noqa: E402
from resources import Design, LaunchShape, Problem  # noqa: E402

# ---- Reading --------------------------------------------------------------------------------------------------------

PTXAS = """\
ptxas info    : 0 bytes gmem, 32 bytes cmem[3]
ptxas info    : Compiling entry function '_Z5callsPf' for 'sm_75'
ptxas info    : Function properties for _Z5callsPf
    160 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 168 bytes cumulative stack size, 2048 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 1.5 ms
ptxas info    : Function properties for _Z6helperf
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function '_Z10copyVectorI6float4Li2EEvPKT_PS1_i' for 'sm_75'
ptxas info    : Function properties for _Z10copyVectorI6float4Li2EEvPKT_PS1_i
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 0 barriers
"""


def test_ptxas_output():
    calls, copy_vector = resources.parse_ptxas(PTXAS)
    assert calls == resources.Kernel(
        "_Z5callsPf", registers=40, spill_stores=12, spill_loads=16, stack=168, shared=2048, barriers=2
    )
    assert copy_vector == resources.Kernel("_Z10copyVectorI6float4Li2EEvPKT_PS1_i", registers=22, barriers=0)
    resources.name_kernels([calls, copy_vector])
    assert [calls.name, copy_vector.name] == ["calls", "copyVector<float4, 2>"]


def test_barriers_that_ptxas_does_not_tell_are_not_read_as_none():
    """CUDA 12.4 has no word of them, whether a kernel has any or not."""
    calls, copy_vector = resources.parse_ptxas(re.sub(r", used \d barriers", "", PTXAS))
    assert (calls.barriers, calls.shared, copy_vector.barriers) == (None, 2048, None)


def test_ptxas_in_other_words_is_an_error_and_not_a_zero():
    with pytest.raises(Problem, match="_Z10copyVector"):
        resources.parse_ptxas(PTXAS.replace("Used 22 registers", "22 registers in use"))


@pytest.mark.parametrize(
    ("readable", "short"),
    [
        ("vectorAdd(float const*, float*, int)", "vectorAdd"),
        ("void copyVector<float4, 2>(float4 const*, float4*, int)", "copyVector<float4, 2>"),
        ("void (anonymous namespace)::sum<double>(double*)", "sum<double>"),
        ("ns::apply(float*, float (*)(int))", "ns::apply"),
        ("extern_c_kernel", "extern_c_kernel"),
    ],
)
def test_short_names(readable, short):
    assert resources.short_name(readable) == short


def test_overloads_keep_their_parameters():
    kernels = [resources.Kernel("_Z2ovPi"), resources.Kernel("_Z2ovPf"), resources.Kernel("_Z5otherPf")]
    resources.name_kernels(kernels)
    assert [kernel.name for kernel in kernels] == ["ov(int*)", "ov(float*)", "other"]


LOG = """\
CPU: CPU, sized as a T4
CPU backend: launch add grid (5987, 1, 1) block (256, 1, 1) skipped
CPU backend: launch add grid (2, 3, 1) block (32, 8, 1)
CPU backend: launch tile<float, 4> grid (1,1,1) block (16,16,1)
CPU backend: launch tile<Vector, kLoads> grid (1, 1, 1) block (64, 1, 1) skipped
CPU backend: launch sum grid (1, 1, 1) block (128, 1, 1) shared 512
"""


def test_launches():
    launches = resources.parse_launches(LOG)
    kernels = ["add", "ns::add", "tile<float, 4>", "tile<int, 1>", "sum", "idle"]
    assert {name: resources.shapes_of(name, kernels, launches) for name in kernels} == {
        "add": [LaunchShape((32, 8, 1)), LaunchShape((256, 1, 1))],
        "ns::add": [],
        "tile<float, 4>": [LaunchShape((16, 16, 1))],  # spelled out
        "tile<int, 1>": [LaunchShape((64, 1, 1))],  # from within a template
        "sum": [LaunchShape((128, 1, 1), 512)],
        "idle": [],
    }


def test_a_design_tells_whose_a_launch_within_a_template_is_and_stands_in_for_none():
    launches = resources.parse_launches(
        "launch tile<T> grid (1, 1, 1) block (16, 16, 1) shared 512\n"
        "launch tile<T> grid (1, 1, 1) block (256, 1, 1) shared 1024\n"
        "launch sum grid (1, 1, 1) block (64, 1, 1)\n"
    )
    small, large = LaunchShape((16, 16, 1), 512), LaunchShape((256, 1, 1), 1024)
    kernels = ["tile<A>", "tile<B>", "sum", "cluster"]

    def shapes(kernel, *design):
        return resources.shapes_of(kernel, kernels, launches, Design(*design, {}) if design else None)

    assert shapes("tile<A>") == [small, large]
    assert shapes("tile<A>", 256, 512) == [small]
    assert shapes("tile<B>", 256, 1024) == [large]
    assert shapes("tile<B>", 128, 1024) == [small, large]  # neither: nothing is hidden
    assert shapes("sum", 32, 0) == [LaunchShape((64, 1, 1))]  # a launch of its own says more than a design
    assert shapes("cluster") == []
    assert shapes("cluster", 256, 2048) == [LaunchShape((256, 1, 1), 2048)]


def test_days_by_name(tmp_path):
    for name in ("day04-x/x.cu", "day44-matmul/matmul.cu"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    for name in ("4", "04", "day4", "day04-x", "x", "day04-x/x.cu", str(tmp_path / "day04-x")):
        assert resources.find_days(tmp_path, [name]) == [Path("day04-x/x.cu")], name
    assert len(resources.find_days(tmp_path)) == 2
    with pytest.raises(Problem, match="'day5' is no day; there are day04-x, day44-matmul"):
        resources.find_days(tmp_path, ["day5"])


def test_build_line(tmp_path):
    source = tmp_path / "a.cu"
    source.write_text("// A\n//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o a a.cu -lcublas\n")
    assert resources.build_line(source) == (["-std=c++17", "-O3", "-lineinfo"], ["-lcublas"])
    source.write_text("int main() {}\n")
    with pytest.raises(Problem, match="build: nvcc"):
        resources.build_line(source)


# ---- Occupancy ------------------------------------------------------------------------------------------------------

# What Nsight Compute 2025.3.1 reported for launches on an H200: threads a block, registers a thread, static bytes and
# barriers; then the blocks that registers and warps let an SM hold (launch__occupancy_limit_registers, _warps).
H200 = [
    (256, 16, 0, 0, 16, 8),
    (1024, 16, 0, 0, 4, 2),
    (1024, 18, 4224, 1, 2, 2),
    (256, 32, 2048, 1, 8, 8),
    (256, 30, 1360, 1, 8, 8),
    (256, 24, 0, 0, 10, 8),
]


def test_occupancy_is_what_a_profiler_reports_on_an_h200(nvcc):
    questions = [(90, threads, registers, shared, 0, barriers) for threads, registers, shared, barriers, _, _ in H200]
    for answer, (threads, *_, by_registers, by_warps) in zip(resources.ask_occupancy(nvcc, questions), H200):
        blocks, warps, *held, limits = answer
        assert blocks == min(by_registers, by_warps)
        assert warps == blocks * threads // 32
        assert bool(limits & 2) == (by_registers == blocks)
        assert bool(limits & 1) == (by_warps == blocks)
        # Its device__attribute_max_..._per_multiprocessor: threads, registers, shared memory, blocks.
        assert held == [2048 // 32, 65536, 233472, 32]


def test_occupancy_on_a_t4_by_each_limit(nvcc):
    answers = resources.ask_occupancy(
        nvcc,
        [
            (75, 256, 32, 0, 0, 0),  # 32 warps
            (75, 250, 32, 0, 0, 0),  # a part of a warp takes a whole one's place
            (75, 256, 128, 0, 0, 0),  # 65536 registers
            (75, 256, 32, 20 * 1024, 0, 1),  # 64 KiB of shared memory, static
            (75, 256, 32, 0, 40 * 1024, 1),  # and dynamic
            (75, 32, 32, 0, 0, 0),  # 16 blocks
            (75, 256, 32, 0, 65 * 1024, 0),  # more than there is
        ],
    )
    assert [(blocks, warps, limits) for blocks, warps, *_, limits in answers] == [
        (4, 32, 1),
        (4, 32, 1),
        (2, 16, 2),
        (3, 24, 4),
        (1, 8, 4),
        (16, 16, 8),
        (0, 0, 4),
    ]


def test_occupancy_knows_every_architecture_and_names_one_it_does_not(nvcc):
    known = sorted(resources.known_architectures(nvcc) & set(resources.ARCHITECTURES))
    assert known[:4] == [75, 80, 86, 89]
    assert len(resources.ask_occupancy(nvcc, [(arch, 32, 16, 0, 0, 0) for arch in known])) == len(known)
    with pytest.raises(Problem, match="sm_70"):
        resources.ask_occupancy(nvcc, [(70, 32, 16, 0, 0, 0)])


# ---- Recording and checking, on a small tree ------------------------------------------------------------------------

SOURCE = """\
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o add add.cu
template <int N>
__global__ void add(float* out) {
  out[threadIdx.x] += N;
}
__global__ void sum(float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x];
}
int main() {
  add<1><<<1, 256>>>(nullptr);
  add<2><<<1, 256>>>(nullptr);
  sum<<<1, 64>>>(nullptr);
}
"""
# 128 values alive at once, in the 64 registers that a block of 1024 threads leaves to each.
SPILLS = """\
__global__ void __launch_bounds__(1024) spill(float* out) {
  float value[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) value[i] = out[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i * 1024 + threadIdx.x] = value[127 - i] * value[i];
}
"""


class Tree:
    """A root folder with one day and a shell script in place of its CPU build."""

    def __init__(self, root, nvcc):
        self.root = root
        self.nvcc = nvcc
        self.day = root / "day01-add/add.cu"
        self.program = root / "build/cpu/day01-add/add"
        self.record_folder = root / "profile/t4"

    def write(self, source, block="256, 1, 1"):
        for folder in (self.day.parent, self.program.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.day.write_text(source)
        log = [f"add<1> grid (1, 1, 1) block ({block})", f"add<N> grid (1, 1, 1) block ({block}) skipped"]
        log += ["sum grid (1, 1, 1) block (64, 1, 1) skipped"]
        lines = "\n".join(f"CPU backend: launch {entry}" for entry in log)
        self.program.write_text(f'#!/bin/sh\n[ "$CUDA_DAYS_CPU_SKIP" ] || exit 3\necho "{lines}" >&2\nexit 1\n')
        self.program.chmod(0o755)

    def run(self, command, *arguments, **options):
        return subprocess.run(
            [sys.executable, SCRIPTS / "resources.py", command, "--root", self.root, "--nvcc", self.nvcc, *arguments],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )

    def design(self, **changes):
        """Write the day's facts: kernels as SOURCE has them, with these changes: None takes a kernel out."""
        kernels = {"add<1>": (256, 0, {"75": 4}), "add<2>": (256, 0, {"75": 4}), "sum": (64, 0, {"90": 99, "75": 16})}
        kernels.update(changes)
        keys = ("threads", "dynamic_shared", "blocks_per_sm")
        designs = {name: dict(zip(keys, design)) for name, design in kernels.items() if design}
        facts = {
            "number": 1,
            "program": "add",
            **dict.fromkeys(("libraries", "headers", "optional_headers", "not_profiled", "off"), []),
        }
        facts.update(counters=False, timeline=False, kernels=designs)
        (self.root / "day01-add/day.json").write_text(json.dumps(facts))

    def files(self):
        return {path.name: path.read_bytes() for path in self.record_folder.glob("*")}

    def edit(self, pattern, replacement, name="resources.json"):
        path = self.record_folder / name
        text, count = re.subn(pattern, replacement, path.read_text(), count=1)
        assert count, pattern
        path.write_text(text)


@pytest.fixture
def empty_tree(tmp_path, nvcc):
    made = Tree(tmp_path / "tree", nvcc)
    made.write(SOURCE)
    return made


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, nvcc):
    """A tree with its record, made once."""
    made = Tree(tmp_path_factory.mktemp("recorded") / "tree", nvcc)
    made.write(SOURCE)
    done = made.run("record")
    assert done.returncode == 0, done.stderr
    return made.root


@pytest.fixture
def tree(tmp_path, recorded, nvcc):
    """A copy of that."""
    shutil.copytree(recorded, tmp_path / "tree")
    return Tree(tmp_path / "tree", nvcc)


def fails(result, *parts, code=1):
    assert result.returncode == code, result.stdout + result.stderr
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.stderr


def test_record_and_check(tree):
    files = tree.files()
    assert sorted(files) == ["resources.json", "resources.txt"]
    record = json.loads(files["resources.json"])
    assert record["flags"] == {"day01-add/add.cu": "-std=c++17 -O3 -lineinfo"}
    assert record["architectures"]["75"] == {"warps": 32, "registers": 65536, "shared": 65536, "blocks": 16}
    assert record["nvcc"] == resources.toolkit_version(tree.nvcc)
    rows = {row["kernel"]: row for row in record["rows"]}
    assert sorted(rows) == ["add<1>", "add<2>", "sum"]
    assert rows["add<2>"]["block"] == [256, 1, 1]
    row = rows["sum"]
    assert (row["arch"], row["shared"], row["spill_stores"], row["stack"]) == (75, 256, 0, 0)
    assert row["barriers"] in (1, None)
    assert (row["block"], row["blocks_per_sm"], row["warps_per_sm"]) == ([64, 1, 1], 16, 32)
    assert row["occupancy_percent"] == 100.0
    assert row["limited_by"] == ["warps", "blocks"]
    assert f"by nvcc {record['nvcc']}" in files["resources.txt"].decode()
    assert re.search(r"\nsum +\d+ +0 +0 +256 +0 +64 +16 +32 +100.0 % +warps, blocks\n", files["resources.txt"].decode())

    done = tree.run("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 kernels on sm_75: no spills" in done.stdout
    assert tree.files() == files


def test_a_kernel_that_needs_more_is_named_with_field_both_values_and_the_command(tree):
    tree.write(SOURCE.replace("[64]", "[80]"))
    fails(
        tree.run("check"),
        "day01-add/add.cu, sm_75, sum: shared: recorded 256, now 320 (bytes a block, static)",
        "1 failed",
        "python3 scripts/resources.py record --arch 75",
    )


def test_a_kernel_that_spills_is_named_and_never_recorded(tree):
    files = tree.files()
    tree.write(SOURCE + SPILLS)
    spilling = r"day01-add/add.cu, sm_75, spill: spills [1-9]\d* bytes of stores and [1-9]\d* bytes of loads"
    for command in ("check", "record"):
        result = tree.run(command)
        fails(result)
        assert re.search(spilling, result.stderr), result.stderr
    assert tree.files() == files


def test_a_kernel_that_spills_on_one_architecture_alone_is_named(empty_tree):
    empty_tree.write(SOURCE + "#if __CUDA_ARCH__ >= 900\n" + SPILLS + "#endif\n")
    assert empty_tree.run("record", "--arch", "75").returncode == 0
    result = empty_tree.run("record", "--arch", "75", "90")
    fails(result, "day01-add/add.cu, sm_90, spill: spills")
    assert "sm_75" not in result.stderr


def test_kernels_as_designed_pass(tree):
    files = tree.files()
    tree.design()
    for command in ("check", "record"):
        done = tree.run(command)
        assert (done.returncode, done.stderr) == (0, "")
    assert tree.files() == files


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"sum": (64, 0, {"75": 12})},
            "day01-add/add.cu, sm_75, sum: designed for 12 blocks an SM, and 16 fit: ",
        ),
        (
            {"add<2>": (128, 0, {"75": 4})},
            "day01-add/add.cu, sm_75, add<2>: designed for 128 threads and 0 bytes of dynamic shared memory a block, "
            "launched with 256x1x1 and 0",
        ),
        (
            {"add<1>": (256, 64, {"75": 4})},
            "day01-add/add.cu, sm_75, add<1>: designed for 256 threads and 64 bytes of dynamic shared memory a block, "
            "launched with 256x1x1 and 0",
        ),
        ({"sum": None}, "day01-add/add.cu, sum: has no design: add it to day01-add/day.json"),
        ({"total": (64, 0, {"75": 16})}, "day01-add/day.json: day01-add/add.cu has no kernel total: take it out"),
    ],
)
def test_a_kernel_that_is_not_as_designed_is_named_and_never_recorded(tree, changes, said):
    files = tree.files()
    tree.design(**changes)
    fails(tree.run("check"), said, "1 failed")
    fails(tree.run("record"), said, "Nothing is recorded")
    assert tree.files() == files


def test_a_kernel_that_outgrows_its_design_is_named_with_what_limits_it(tree):
    tree.design()
    tree.write(SOURCE.replace("[64]", "[2048]"))
    said = "sum: designed for 16 blocks an SM, and 8 fit: "
    fails(tree.run("record"), said, "8192 bytes of shared memory a block, limited by shared memory")


def test_blocks_are_compared_on_the_architectures_that_a_design_names(tree):
    tree.design()
    assert tree.run("record", "--arch", "75", "86").returncode == 0
    result = tree.run("record", "--arch", "75", "90")
    fails(result, "day01-add/add.cu, sm_90, sum: designed for 99 blocks an SM, and 32 fit: ")
    assert len(result.stderr.splitlines()) == 2


def test_a_kernel_that_the_cpu_build_never_launches_has_the_occupancy_of_its_design(empty_tree):
    empty_tree.write(SOURCE + "__global__ void cluster(float* out) {\n  *out = 1;\n}\n")
    empty_tree.design(cluster=(128, 40960, {"75": 1, "90": 5}))
    done = empty_tree.run("record", "--arch", "75")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = [row for row in resources.read_record(empty_tree.record_folder)["rows"] if row["kernel"] == "cluster"]
    assert (row["block"], row["dynamic_shared"]) == ([128, 1, 1], 40960)
    assert (row["blocks_per_sm"], row["limited_by"]) == (1, ["shared memory"])
    assert re.search(
        r"\ncluster .* 40960 +128 +1 +4 +12.5 % +shared memory\n", empty_tree.files()["resources.txt"].decode()
    )
    empty_tree.design(cluster=(128, 65537, {"75": 1}))
    fails(empty_tree.run("record", "--arch", "75"), "cluster: designed for 1 blocks an SM, and 0 fit")


def test_with_another_nvcc_a_design_is_no_error(tree):
    tree.design(sum=(64, 0, {"75": 12}))
    tree.edit('"nvcc": "[^"]*"', '"nvcc": "9.9.9"')
    assert tree.run("check").returncode == 0


@pytest.mark.parametrize(
    ("design", "said"),
    [
        ({"threads": 64}, "the design of sum must have blocks_per_sm, dynamic_shared, threads"),
        (5, "the design of sum must have"),
        ({"threads": "many", "dynamic_shared": 0, "blocks_per_sm": {}}, "their form is"),
        ({"threads": 64, "dynamic_shared": 0, "blocks_per_sm": {"sm_75": 1}}, "their form is"),
        ({"threads": 64, "dynamic_shared": 0, "blocks_per_sm": 2}, "their form is"),
    ],
)
def test_designs_that_are_none_are_named(tree, design, said):
    tree.design()
    path = tree.root / "day01-add/day.json"
    facts = json.loads(path.read_text())
    facts["kernels"]["sum"] = design
    path.write_text(json.dumps(facts))
    fails(tree.run("check"), "day01-add/day.json: ", said)


def test_new_and_lost_kernels_are_named(tree):
    tree.write(SOURCE.replace("void sum", "void total").replace("sum<<<", "total<<<"))
    fails(
        tree.run("check"),
        "day01-add/add.cu, sm_75, sum: recorded, but it is not there any more",
        "day01-add/add.cu, sm_75, total: not recorded",
    )


def test_another_block_size_is_a_difference(tree):
    tree.write(SOURCE, block="32, 8, 2")
    fails(
        tree.run("check"),
        "sm_75, add<1>: block: recorded 256x1x1, now 32x8x2",
        "sm_75, add<1>: blocks_per_sm: recorded 4, now 2",
        "sm_75, add<2>: block: recorded 256x1x1, now 32x8x2",
    )


def test_other_flags_are_a_difference(tree):
    tree.write(SOURCE.replace("-lineinfo", "-lineinfo -DX"))
    fails(tree.run("check"), "flags: recorded -std=c++17 -O3 -lineinfo, now -std=c++17 -O3 -lineinfo -DX")


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "named"),
    [
        ("resources.json", r'("kernel": "sum", "registers": )\d+', r"\g<1>99", "sum: registers: recorded 99, now"),
        ("resources.json", '"warps": 32', '"warps": 64', "an SM holds"),
        ("resources.txt", "100.0 %", "100.1 %", "profile/t4/resources.txt is not the table"),
        ("resources.json", "(?s).*", "", "profile/t4/resources.json is not a record"),
        ("resources.json", '"registers": 8, ', "", "profile/t4/resources.json is not a record"),
        ("resources.json", '"schema": 1', '"schema": 2', "schema 2; this script reads 1"),
    ],
)
def test_an_edited_record_is_found(tree, name, pattern, replacement, named):
    tree.edit(pattern, replacement, name)
    fails(tree.run("check"), named)


def test_with_another_nvcc_only_spills_are_an_error(tree):
    tree.edit('"nvcc": "[^"]*"', '"nvcc": "9.9.9"')
    tree.edit(r'("kernel": "sum", "registers": )\d+', r"\g<1>99")
    done = tree.run("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "recorded was 9.9.9" in done.stdout
    assert "1 figures that differ are no error" in done.stdout
    tree.write(SOURCE + SPILLS)
    fails(tree.run("check"), "sm_75, spill: spills")


def test_without_a_cpu_build_the_recorded_block_sizes_count_and_this_is_said(tree):
    tree.program.unlink()
    done = tree.run("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: day01-add/add.cu: block sizes are the recorded ones" in done.stdout
    fails(tree.run("record", "--out", tree.root / "new"), "build/cpu/day01-add/add is not there", "scripts/lessons run")
    assert not (tree.root / "new").exists()


def test_a_cpu_build_that_is_older_than_the_source_is_not_believed(empty_tree):
    os.utime(empty_tree.program, (1, 1))
    fails(empty_tree.run("record"), "is older than day01-add/add.cu")


def test_dynamic_shared_memory_that_the_log_does_not_tell_is_an_error(empty_tree):
    empty_tree.write(SOURCE.replace("__shared__ float tile[64]", "extern __shared__ float tile[]"))
    fails(empty_tree.run("record"), "dynamic shared memory")


def test_without_a_record_the_command_is_named(empty_tree):
    fails(
        empty_tree.run("check"),
        "profile/t4/resources.json",
        "scripts/resources.py record --arch 75 80 86 89 90 100 120",
    )


def test_a_source_that_does_not_compile_shows_the_compilers_words(empty_tree):
    empty_tree.write(SOURCE + "int main(;\n")
    fails(empty_tree.run("record"), "add.cu for sm_75", "error")
    assert not empty_tree.record_folder.exists()


def test_show_prints_what_record_writes(tree):
    done = tree.run("show", "--day", "1")
    assert done.stdout == tree.files()["resources.txt"].decode()


def test_without_nvcc_it_is_a_skip(tmp_path):
    Path(tmp_path, "day01-add").mkdir()
    Path(tmp_path, "day01-add/add.cu").write_text(SOURCE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, SCRIPTS / "resources.py", "show", "--root", tmp_path],
        env={"PATH": "/nowhere", "CUDACXX": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    fails(done, "skipped: there is no nvcc", code=77)


# ---- This tree ------------------------------------------------------------------------------------------------------


def test_nothing_spills_and_all_is_as_recorded(source_dir, build_dir, nvcc):
    done = subprocess.run(
        [sys.executable, SCRIPTS / "resources.py", "check", "--nvcc", nvcc, "--build", build_dir],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = resources.read_record(source_dir / "profile/t4")
    assert sorted(record["flags"]) == [day.as_posix() for day in resources.find_days(source_dir)]
    assert {"75", "90"} <= record["architectures"].keys()


def test_what_is_recorded_spills_nowhere_and_is_as_designed(source_dir):
    """Without a compiler too."""
    record = resources.read_record(source_dir / "profile/t4")
    assert resources.spills(record) == []
    assert resources.misfits(record, resources.read_designs(source_dir)) == []


def test_every_kernel_of_the_matrix_products_has_a_design(source_dir):
    designs = resources.read_designs(source_dir)
    for source in source_dir.glob("day44-*/*.cu"):
        kernels = designs.get(source.relative_to(source_dir).as_posix(), {})
        assert kernels, f"{resources.DESIGNED} has nothing on {source.name}"
        assert all(90 in design.blocks_per_sm for design in kernels.values())
        assert any(75 in design.blocks_per_sm for design in kernels.values())


@pytest.mark.parametrize("field", ["spill_stores", "spill_loads"])
def test_a_spill_in_a_record_is_found(source_dir, field):
    record = resources.read_record(source_dir / "profile/t4")
    row = record["rows"][-1]
    row[field] = 4
    (said,) = resources.spills(record)
    assert said.startswith(f"{row['day']}, sm_{row['arch']}, {row['kernel']}: spills ")
