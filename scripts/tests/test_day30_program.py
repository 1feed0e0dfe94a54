"""Day 30's program without a GPU: what the lanes of its tensor kernels hold and must get, which rows a build has, and
what it refuses to time; and its tables, from made-up times.

A harness is compiled with the day's own source. It multiplies the fragments that the source puts into registers, by the
layouts of the PTX ISA written out once more for each instruction, and compares with what the source's reference wants.
"""

import json
import subprocess
import sys

import jsonschema
import pytest
from planting import exchanged

HARNESS = r"""
int planted = 0;  // which of the faults
#define main dayMain
#include "day.cpp"
#undef main

#include <set>

namespace {

int failures = 0;
void expect(bool ok, const string& what) {
  if (ok) return;
  ++failures;
  printf("FAILED %s\n", what.c_str());
}

double valueOf(Mma mma, unsigned word, int e) {
  if (mma == kInt8 || mma == kInt8Turing) return int8_t(word >> 8 * e);
  if (mma == kTf32) word &= 0xFFFFE000u;  // what the hardware reads of it
  if (mma == kBf16) word = word >> 16 * e << 16;
  if (mma == kFp16 || mma == kFp16Turing) {
    const unsigned half = word >> 16 * e & 0xFFFF;
    return std::ldexp(1 + (half & 0x3FF) / 1024.0, int(half >> 10 & 31) - 15) * (half >> 15 ? -1 : 1);
  }
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}
double valueOf(Mma, double word, int) { return word; }

// Position of element e of register r, from the PTX ISA's figures, an instruction at a time.
struct Position {
  int row, column;
};
Position positionOfA(Mma mma, int lane, int r, int e) {
  const int g = lane >> 2, t = lane & 3;
  switch (mma) {
    case kFp16Turing: return {r == 0 ? g : g + 8, t * 2 + e};
    case kFp16:
    case kBf16: return {r == 0 || r == 2 ? g : g + 8, t * 2 + e + (r >= 2 ? 8 : 0)};
    case kTf32: return {r == 0 || r == 2 ? g : g + 8, r < 2 ? t : t + 4};
    case kInt8Turing: return {g + 8 * r, t * 4 + e};
    case kInt8: return {r == 0 || r == 2 ? g : g + 8, t * 4 + e + (r >= 2 ? 16 : 0)};
    case kFp64Ampere: return {g + 8 * r, t};
    default: return {r % 2 == 0 ? g : g + 8, r % 2 == 0 ? r * 2 + t : r * 2 - 2 + t};
  }
}
Position positionOfB(Mma mma, int lane, int r, int e) {  // row: k
  const int g = lane >> 2, t = lane & 3;
  switch (mma) {
    case kFp16Turing: return {t * 2 + e, g};
    case kFp16:
    case kBf16: return {t * 2 + e + (r == 1 ? 8 : 0), g};
    case kTf32: return {r == 0 ? t : t + 4, g};
    case kInt8Turing: return {t * 4 + e, g};
    case kInt8: return {t * 4 + e + (r == 1 ? 16 : 0), g};
    case kFp64Ampere: return {t, g};
    default: return {t + r * 4, g};
  }
}
Position positionOfSum(int lane, int i) { return {(lane >> 2) + (i < 2 ? 0 : 8), (lane & 3) * 2 + (i & 1)}; }

enum Fault { kNone, kLeaveOut, kTwice, kSwapSums, kSwapA, kSwapB, kSwapAB };

// What each lane's `worth` is after `steps`, with a fault in register `one` (and `other`).
template <class T, int kDepth, Mma kMma>
vector<double> run(float x, int steps, Fault fault = kNone, int one = 0, int other = 0) {
  vector<vector<double>> a(16, vector<double>(kDepth, NAN)), b(kDepth, vector<double>(8, NAN));
  for (int lane = 0; lane < 32; ++lane) {
    typename T::Operands held = T::fragments(lane, 0);
    if (fault == kSwapA) std::swap(held.a[one], held.a[other]);
    if (fault == kSwapB) std::swap(held.b[one], held.b[other]);
    if (fault == kSwapAB) std::swap(held.a[one], held.b[other]);
    for (int r = 0; r < int(std::size(held.a)); ++r)
      for (int e = 0; e < T::kWide; ++e) {
        const Position at = positionOfA(kMma, lane, r, e);
        a.at(at.row).at(at.column) = valueOf(kMma, held.a[r], e);
      }
    for (int r = 0; r < int(std::size(held.b)); ++r)
      for (int e = 0; e < T::kWide; ++e) {
        const Position at = positionOfB(kMma, lane, r, e);
        b.at(at.row).at(at.column) = valueOf(kMma, held.b[r], e);
      }
  }
  vector<double> worths;
  for (int lane = 0; lane < 32; ++lane) {
    auto v = T::start(x);
    std::set<double> sums;
    for (int i = 0; i < 4; ++i) {
      const Position at = positionOfSum(lane, i);
      double sum = 0;
      for (int k = 0; k < kDepth; ++k) sum += a[at.row][k] * b[k][at.column];
      if (fault == kNone) {
        expect(sum == tensorSum(at.row, at.column, kDepth), "the reference's sum");
        expect(sum != 0, "no sum is 0");
        expect(T::kFlop == 0 || sum * 32768 + 64 < 1 << 22, "a sum is exact in FP32");
        sums.insert(sum);
      }
      v.d[i] += steps * sum;
    }
    if (fault == kNone) expect(sums.size() == 4, "the four sums of lane " + to_string(lane) + " differ");
    if (fault == kLeaveOut) v.d[one] = 0;
    if (fault == kTwice) v.d[one] *= 2;
    if (fault == kSwapSums) std::swap(v.d[one], v.d[other]);
    worths.push_back(T::worth(v));
  }
  return worths;
}

template <class T, int kDepth, Mma kMma>
void test(const char* name) {
  const float x = chainStart(3, 2);
  constexpr int kSteps = 32768;
  const vector<double> right = run<T, kDepth, kMma>(x, kSteps);
  const auto differing = [&](Fault fault, int one, int other) {
    const vector<double> got = run<T, kDepth, kMma>(x, kSteps, fault, one, other);
    int lanes = 0;
    for (int lane = 0; lane < 32; ++lane) lanes += got[lane] != right[lane];
    return lanes;
  };
  for (int lane = 0; lane < 32; ++lane)
    expect(right[lane] == T::onCpu(x, kSteps, lane), string(name) + ": lane " + to_string(lane) + " is not as wanted");
  for (int i = 0; i < 4; ++i) {
    expect(differing(kLeaveOut, i, 0) == 32, string(name) + ": a sum left out shows in every lane");
    expect(differing(kTwice, i, 0) == 32, string(name) + ": a sum counted twice shows in every lane");
    for (int j = 0; j < i; ++j)
      expect(differing(kSwapSums, i, j) == 32, string(name) + ": two exchanged sums show in every lane");
  }
  constexpr int kA = std::extent_v<decltype(T::Operands::a)>, kB = std::extent_v<decltype(T::Operands::b)>;
  for (int i = 0; i < kA; ++i)
    for (int j = 0; j < i; ++j)
      expect(differing(kSwapA, i, j) >= 26, string(name) + ": exchanged registers of A show");
  for (int i = 0; i < kB; ++i)
    for (int j = 0; j < i; ++j)
      expect(differing(kSwapB, i, j) >= 26, string(name) + ": exchanged registers of B show");
  for (int i = 0; i < kA; ++i)
    for (int j = 0; j < kB; ++j) expect(differing(kSwapAB, i, j) > 0, string(name) + ": A and B exchanged show");
}

// wgmma: A from the registers of four warps, B from shared memory by the descriptor's strides, D with 32 sums a lane.
void testGroup() {
  using T = Tensor<kFp16, float, kGroupDepth>;
  vector<vector<double>> a(64, vector<double>(16, NAN)), b(16, vector<double>(64, NAN));
  for (int thread = 0; thread < 128; ++thread) {
    const int lane = thread % 32;
    const auto held = T::fragments(lane, 16 * (thread / 32));
    for (int r = 0; r < 4; ++r)
      for (int e = 0; e < 2; ++e) {
        const Position at = positionOfA(kFp16, lane, r, e);
        a[16 * (thread / 32) + at.row][at.column] = valueOf(kFp16, held.a[r], e);
      }
  }
  for (int column = 0; column < 64; ++column)
    for (int k = 0; k < 16; ++k) {
      const int byte = k / 8 * 64 * 16 + column / 8 * 8 * 16 + column % 8 * 16 + k % 8 * 2;  // K-major, no swizzle
      const int word = byte / 4;
      expect(columnOfWord(word) == column && depthOfWord(word) == k - k % 2, "B's word " + to_string(word));
      b[k][column] = valueOf(kFp16, T::bitsOfElement(tensorB(depthOfWord(word) + k % 2, columnOfWord(word))), 0);
    }
  constexpr int kSteps = 16384;
  for (int thread = 0; thread < 128; ++thread) {
    double worth = 0;
    for (int i = 0; i < 32; ++i) {
      const int row = 16 * (thread / 32) + thread % 32 / 4 + (i % 4 < 2 ? 0 : 8);
      const int column = 8 * (i / 4) + 2 * (thread % 4) + i % 2;
      double sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      expect(sum > 0 && sum * kSteps < 1 << 22, "a sum of wgmma is exact in FP32, and not 0");
      worth += (i + 1) * kSteps * sum;
    }
    expect(worth == groupOnCpu(kSteps, thread), "wgmma: thread " + to_string(thread) + " is not as wanted");
  }
}

template <class Body>
string stopOf(Body body) {
  try {
    body();
  } catch (const Stop& stop) {
    return stop.message;
  }
  return "";
}
void expectStop(const string& message, const char* part) {
  expect(message.find(part) != string::npos, "a stop that says '" + string(part) + "', got '" + message + "'");
}

// Nothing is timed that was not proven, no rate is taken that the SMs cannot reach, and the memory that is required is
// what the buffers take.
void testReport() {
  const Stream stream;
  Report report(kProgram, Options());
  constexpr double kMhz = 1000;
  size_t before = 0, after = 0, total = 0, sum = 0;
  CUDA_CHECK(cudaMemGetInfo(&before, &total));
  const Problem p(kRagged, stream);
  CUDA_CHECK(cudaMemGetInfo(&after, &total));
  for (const size_t bytes : Problem::bytesOf(kRagged)) sum += bytes;
  expect(before - after == sum, "the buffers of a problem are those of its list");
  expect(Problem::bytes(kRagged) >= sum, "what is required holds them");

  const PerClock per = perClockOf(75);
  const Bench bench = {p, per, stream, kMhz};
  Rows rows = kernelRows(p, per);
  expectStop(stopOf([&] { bench.measureAll({rows[0]}, 1); }), "kernel-vector add, plain was not proven at this size");
  Checks checks(report);
  proveRow(checks, rows[0], true, stream);
  expect(checks.failed() == 0 && rows[0].proven, "a row that is right is proven");
  // 3 SMs at 1 GHz: 192 GB/s through L1, 384 GFLOP/s, so these rows take 6.3 microseconds for their bytes, or more.
  const auto possible = [&](const Row& row, double ms) {
    return stopOf([&] { bench.requirePossibleAt(kMhz, row, ms); });
  };
  expect(possible(rows[0], 6.3e-3) == "", "a rate that can be");
  expectStop(possible(rows[0], 6.0e-3), "kernel-vector add, plain reads 200.1 GB/s, and this card cannot exceed 192.0");
  Row fma = arithmeticRow<Scalar<float, true>>(p, "fp32-fma", "8 chains", 2 * per.fp32);
  expectStop(possible(fma, fma.flop / 400e6), "GFLOP/s, and this card cannot exceed 384.0");
  cudaDeviceProp gpu;
  CUDA_CHECK(cudaGetDeviceProperties(&gpu, 0));
  for (const Row& row : sweepRows(p, gpu))
    expectStop(possible(row, row.requested / 200e6), "GB/s, and this card cannot exceed 192.0");
}

// Made-up times of all rows, in the program's own tables: with --json as JSON lines.
void printTables(const char* json) {
  Options options;
  options.json = string(json) == "--json";
  Report report(kProgram, options);
  const Stream stream;
  const Problem p(kRagged, stream);
  const PerClock per = perClockOf(90);
  cudaDeviceProp gpu;
  CUDA_CHECK(cudaGetDeviceProperties(&gpu, 0));
  Plan plan(p, gpu, per, Choice(kLastCard, kLastCard));
  Bench bench = {p, per, stream, 1e9};
  const auto print = [&](const Rows& rows, const Table<Measured>& table) {
    vector<Measured> all;
    for (const Row& row : rows) {
      const double ms = row.work / (all.size() < 3 ? 30e9 : all.size() < 9 ? 9e9 : 4e9);
      Measured m = {row, {ms, ms, ms, 5, 1}, 1980, row.wall == Wall::kFp32 ? 94.994 : 95.004, {}, 1234.5, "copy"};
      if (row.unit.metric == kFlops.metric) m.ridges = {15.718, 7.309, 2.0298};
      if (row.unit.metric == kBytes.metric && row.level != string("kernel") && row.level != string("scaling") &&
          row.perClock == 0)
        m.percent = 0;  // nothing is known that it is a share of
      if (row.compulsory > row.requested / 2) m.percent = 100.004;
      bench.add(table, m);
      all.push_back(m);
    }
    return all;
  };
  Rows firsts;
  for (const Rows& shapes : plan.ceilings) firsts.push_back(shapes[0]);
  print(firsts, ceilingTable(report));
  bench.plateaus(print(plan.sweep, sweepTable(report)), plateauTable(report));
  print(plan.curve, curveTable(report));
  print(plan.scaling, scalingTable(report));
  print(plan.kernels, kernelTable(report));
}

// Which rows there are, and which are left out.
string lines(const LoadedCode& code, bool sm90a) {
  const Choice choice(code.card, sm90a ? kSm90a : code.features());
  string all;
  for (const Arithmetic* line : choice.rows)
    if (line->code > 75 || string(line->kind).find("tensor") == 0) all += string(line->kind) + " " + line->shape + "; ";
  return all + "| " + choice.text(code);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5) {  // card, PTX, binary, whether it is of sm_90a
    const LoadedCode code = {std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3])};
    printf("%s\n", lines(code, std::atoi(argv[4]) != 0).c_str());
    return 0;
  }
  if (argc == 3) {  // "tables" and how
    printTables(argv[2]);
    return 0;
  }
  if (argc == 2) planted = std::atoi(argv[1]);
  test<Tensor<kFp16Turing, float, 8>, 8, kFp16Turing>("m16n8k8 fp16");
  test<Tensor<kFp16, float, 16>, 16, kFp16>("m16n8k16 fp16");
  test<Tensor<kBf16, float, 16>, 16, kBf16>("m16n8k16 bf16");
  test<Tensor<kTf32, float, 8>, 8, kTf32>("m16n8k8 tf32");
  test<Tensor<kInt8Turing, int, 16>, 16, kInt8Turing>("m8n8k16 int8");
  test<Tensor<kInt8, int, 32>, 32, kInt8>("m16n8k32 int8");
  test<Tensor<kFp64Ampere, double, 4, double>, 4, kFp64Ampere>("m8n8k4 fp64");
  test<Tensor<kFp64, double, 16, double>, 16, kFp64>("m16n8k16 fp64");
  testGroup();
  if (planted == 0) testReport();
  const SumBefore before;
  unsigned sum = 0;
  for (unsigned n = 0; n < 3 * 65536 + 777; sum += bitsOf(pattern(n++)))
    expect(before(n) == sum, "the sum before word " + to_string(n));
  for (const unsigned n : {1u << 28, (1u << 28) - 12345})
    expect(before(n) + bitsOf(pattern(n)) == before(n + 1), "the sum before word " + to_string(n));
  return failures > 0;
}
"""
# Fewer instances to compile, as test_mutations.py has them.
SMALLER = {
    "addStreams<kAccess, 4, 1, 2, 4, 8>(": "addStreams<kAccess, 4, 8>(",
    "addStreams<kAccess, 2, 1, 2, 4, 8>(shapes, p, words, blocks);": "",
    "addStreams<kAccess, 1, 1, 2, 4, 8>(shapes, p, words, blocks);": "",
    "kMostFmas = 2048": "kMostFmas = 8",
}
WORTH = "1.0 * v.d[0] + 2.0 * v.d[1] + 3.0 * v.d[2] + 4.0 * v.d[3]"
# Planted faults: what they are, an expression of the source, what takes its place, and what the harness must say.
FAULTS = [
    ("a sum left out", WORTH, WORTH.replace("1.0 * v.d[0] + ", ""), "m16n8k16 fp16: lane 0 is not as wanted"),
    ("a sum counted twice", WORTH, WORTH.replace("1.0 *", "2.0 *"), "m16n8k16 fp16: lane 0 is not as wanted"),
    ("sums that weigh alike", WORTH, "v.d[0] + v.d[1] + v.d[2] + v.d[3]", "m16n8k16 fp16: two exchanged sums show"),
    ("fragments of A exchanged", "lane / 4 + 8 * (r % 2)", "lane / 4 + 8 * (r / 2)", "the reference's sum"),
    ("words of B exchanged", "i / 32 % 8 * 8 + i % 32 / 4", "i / 32 % 8 * 8 + i % 8", "B's word"),
    (
        "operands that repeat",
        "1 + row / 8 % 2 + (4 * (row % 8 + row / 16 * 8) + 2 * k) % 5 % 2",
        "2",
        "of lane 0 differ",
    ),
    ("a run of words too short", "below_[first + (1u << k)]", "below_[first + (1u << k) - 1]", "the sum before word"),
]


@pytest.fixture(scope="module")
def harness(source_dir, build_dir, cxx, tmp_path_factory):
    """Compile the harness with day 30's source, in which an argument chooses a planted fault; return the program."""
    folder = tmp_path_factory.mktemp("tensor")
    source = (source_dir / "day30-roofline/roofline.cu").read_text()
    planted = {}
    for number, (_, old, new, _) in enumerate(FAULTS, 1):
        planted[old] = f"planted == {number} ? {new} : {planted.get(old, old)}"
    for old, new in (*SMALLER.items(), *((old, f"({new})") for old, new in planted.items())):
        source = exchanged(source, "", old, new, "day 30")
    (folder / "day.cu").write_text(source)
    (folder / "harness.cpp").write_text(HARNESS)
    cpu = source_dir / "common/cpu"
    subprocess.run([sys.executable, cpu / "lower.py", folder / "day.cu", "-o", folder / "day.cpp"], check=True)
    flags = ["-std=c++17", "-O1", "-w", "-rdynamic", "-I", cpu, "-ffp-contract=off"]
    libraries = [build_dir / "libcpu_backend.a", "-lboost_context", "-pthread"]
    subprocess.run([cxx, *flags, folder / "harness.cpp", *libraries, "-o", folder / "harness"], check=True)
    return folder / "harness"


def test_lanes_get_what_the_reference_wants(harness):
    result = subprocess.run([harness], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("number", range(1, len(FAULTS) + 1), ids=[name for name, *_ in FAULTS])
def test_planted_faults_show(harness, number):
    result = subprocess.run([harness, str(number)], capture_output=True, text=True)
    assert result.returncode == 1
    assert FAULTS[number - 1][3] in result.stdout


CAPABILITIES = [75, 80, 86, 90, 100, 120]
PAIRS = [(card, ptx) for card in CAPABILITIES for ptx in CAPABILITIES if ptx <= card]  # no driver loads newer code
NEEDS_80 = ["bf16x2-fma", "bf16x2-muladd", "tensor-bf16", "tensor-tf32"]


def choice(harness, card, ptx, binary, sm90a=False):
    """Return what the program chooses: {kind: shape} of rows that depend on the code, and its sentence."""
    words = [str(int(word)) for word in (card, ptx, binary, sm90a)]
    output = subprocess.run([harness, *words], capture_output=True, text=True, check=True).stdout
    rows, sentence = output.split("| ")
    return dict(row.split(" ", 1) for row in rows.split("; ") if row), sentence.strip()


@pytest.mark.parametrize(("card", "ptx"), PAIRS)
def test_the_loaded_code_decides(harness, card, ptx):
    for binary in (card, ptx):  # translated by the driver, or machine code of that architecture
        rows, sentence = choice(harness, card, ptx, binary)
        modern = ptx >= 80
        assert rows["tensor-fp16"] == ("mma.sync m16n8k16" if modern else "mma.sync m16n8k8")
        assert rows["tensor-int8"] == ("mma.sync m16n8k32" if modern else "mma.sync m8n8k16")
        for kind in NEEDS_80:
            assert (kind in rows) == modern
            assert (kind in sentence) == (card >= 80 and not modern)
        has_fp64 = card == 80 or card >= 90
        shape = "mma.sync m16n8k16" if ptx >= 90 else "mma.sync m8n8k4"
        assert rows.get("tensor-fp64") == (shape if has_fp64 and modern else None)
        assert ("tensor-fp64" in sentence) == (has_fp64 and not modern)
        assert "tensor-fp16-wgmma" not in rows
        assert ("wgmma (needs code for sm_90a)" in sentence) == (card == 90)
        if sentence:
            assert f"is of compute_{ptx}: " in sentence and "-arch=sm_" in sentence


def test_a_build_for_sm_90a_leaves_nothing_out(harness):
    rows, sentence = choice(harness, 90, 90, 90, sm90a=True)
    assert rows["tensor-fp16-wgmma"] == "wgmma m64n64k16"
    assert rows["tensor-fp64"] == "mma.sync m16n8k16"
    assert sentence == ""


def test_a_card_is_not_said_to_lack_code_for_what_it_cannot_do(harness):
    assert choice(harness, 75, 75, 75)[1] == ""
    assert choice(harness, 86, 86, 86)[1] == ""


def tables(harness, how):
    return subprocess.run([harness, "tables", how], capture_output=True, text=True, check=True).stdout


def test_every_table_has_one_heading_with_units_and_aligned_columns(harness):
    headings = [line for line in tables(harness, "--text").splitlines() if line.startswith("name ")]
    assert len(headings) == 6  # ceilings, sweep, plateaus, curve, scaling, kernels
    for heading in headings:
        assert "time ms" in heading and "spread %" in heading
    for table, units in zip(
        headings, ["of the SMs' rate %", "rate GB/s", "rate GB/s", "roof GFLOP/s", "SMs", "FLOP/byte"]
    ):
        assert units in table


def test_a_row_is_at_its_wall_from_95_percent_on_and_none_is_above_100(harness):
    text = tables(harness, "--text")
    lines = {line[:25].strip(): line.split() for line in text.splitlines() if line}
    assert lines["shared-read"][-2:] == ["95.00", "yes"]
    assert lines["curve-0.5"][-2:] == ["94.99", "no"]
    assert "yes" not in lines["dram-copy"] and "no" not in lines["dram-copy"]  # no share of the SMs' rate is known
    assert lines["kernel-vector add"][-2:] == ["100.00", "*"]
    assert lines["kernel-stencil FP64"][-2:] == ["95.00", "yes"]


def test_the_tables_records_keep_the_schema(harness, source_dir):
    schema = json.loads((source_dir / "scripts/schema/row.schema.json").read_text())
    records = [json.loads(line) for line in tables(harness, "--json").splitlines()]
    validator = jsonschema.Draft202012Validator(schema)
    assert [(record, error.message) for record in records for error in validator.iter_errors(record)] == []
    kinds = {record["record"] for record in records}
    assert kinds == {"ceiling", "shape", "sweep", "plateau", "curve", "scaling", "row"}
    assert [record["kind"] for record in records if record["record"] == "shape"] == ["rotating"]
