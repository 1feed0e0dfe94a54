// SPDX-License-Identifier: MIT
//
// What day 44 decides without a GPU: which kernels run, which one sgemm() takes, which rates can be. This is no
// program: scripts/tests/test_day44.py appends it to the day's source, whose main() it renames to dayMain().

namespace {

int failures = 0;

void expect(bool ok, const string& what) {
  if (ok) return;
  ++failures;
  printf("FAILED: %s\n", what.c_str());
}

// `packedFloats`: room for copies of A and B.
Context contextOf(const LoadedCode& code, int sms, size_t packedFloats = 0) {
  Context context = {code, sms, 1980, nullptr, nullptr, makeRows()};
  context.work = {nullptr, nullptr, nullptr, packedFloats};
  return context;
}

// A product at addresses that nobody follows: `offset` floats from a multiple of 256 bytes, `gap` floats between rows.
Gemm productOf(const Shape& s, int offset, int gap) {
  float* const data = reinterpret_cast<float*>(uintptr_t(4096 + 4 * offset));
  return {s.m, s.n, s.k, data, s.k + gap, data, s.n + gap, data, s.n + gap, 1};
}

bool contains(const string& text, const string& part) { return text.find(part) != string::npos; }

// The message of the Stop that `run` throws, empty where it throws none.
template <class Run>
string stopOf(Run run) {
  try {
    run();
  } catch (const Stop& stop) {
    expect(stop.exitCode == kExitFailed, "what cannot be is a failure: " + stop.message);
    return stop.message;
  }
  return "";
}

constexpr Shape kShapes[] = {{1, 1, 1}, {3, 3, 431}, {17, 1, 3}, {128, 127, 128}, {132, 260, 36}, {128, 256, 12},
    {128, 256, 64}, {64, 64, 64}, {192, 192, 32}, {4097, 4095, 4093}, {4096, 4100, 4}, {256, 256, 256}, {512, 512, 512},
    {1024, 1024, 1024}, {2048, 2048, 2048}, {8192, 8192, 8192}, {1, 65536, 65536}, {65536, 1, 65536}};

// sgemm() takes a kernel that the code holds and that takes the shape, whatever the card, the code and the shape.
void testDispatch() {
  for (const int card : {75, 80, 86, 90, 100, 120}) {
    for (const int ptx : {75, 80, 90}) {
      if (ptx > card) continue;
      for (const int sms : {1, 40, 108, 132}) {
        const Context context = contextOf({card, ptx, card}, sms);
        for (const Shape& s : kShapes) {
          for (const auto& [offset, gap] : {std::pair{0, 0}, {0, 4}, {0, 3}, {3, 3}, {1, 0}}) {
            const Gemm g = productOf(s, offset, gap);
            const Row& row = choose(context, g);
            const string what = string(row.variant) + " for " + to_string(s.m) + "x" + to_string(s.n) + "x" +
                to_string(s.k) + " by compute_" + to_string(ptx) + " on sm_" + to_string(card);
            expect(isKernel(row) && row.rate > 0, "something takes the shape: " + what);
            expect(row.needs <= ptx, "the code has it: " + what);
            if (row.guard == Guard::kFewColumns) expect(s.n <= kFew, "its columns are few: " + what);
            const bool aligned = offset == 0 && gap % 4 == 0 && s.n % 4 == 0 && s.k % 4 == 0;
            const bool whole = s.m % row.block.m == 0 && s.n % row.block.n == 0 && s.k % row.block.k == 0;
            const bool anyRows = row.guard != Guard::kNone && row.guard != Guard::kVectors;
            expect(anyRows || aligned, "its accesses are aligned: " + what);
            expect(row.guard != Guard::kNone || whole, "its tiles are whole: " + what);
          }
        }
      }
    }
  }
  const auto chosen = [](const LoadedCode& code) {
    return string(choose(contextOf(code, 132), productOf({512, 512, 512}, 0, 0)).variant);
  };
  expect(chosen({90, 90, 90}) == "15 clusters", "code for sm_90 has clusters");
  expect(chosen({90, 80, 90}) == "12 small tiles", "translated from compute_80 there are none");
  const auto chosenAt = [](int ptx, const Shape& s, int gap) {
    return string(choose(contextOf({90, ptx, 90}, 132, size_t(1) << 28), productOf(s, 0, gap)).variant);
  };
  expect(chosenAt(75, {1024, 1024, 1024}, 0) == "11 split-K in a block", "at 1024 small tiles fill the card");
  expect(chosenAt(75, {8192, 8192, 8192}, 0) == "10 banks and balance", "at 8192 the last wave is cut");
  expect(chosenAt(75, {4097, 4095, 4093}, 0) == "packed", "rows that are not aligned are copied");
  expect(chosenAt(90, {4096, 1, 4096}, 0) == "few columns", "a column is no tile");
  expect(chosenAt(90, {129, 257, 8191}, 0) == "guarded, small", "few outputs and a long k are cut");
}

// Only what the card could do with other code is called left out.
void testLeftOut() {
  const auto said = [](int card, int ptx) { return leftOut(contextOf({card, ptx, card}, 132)); };
  for (const auto& [card, ptx] :
      {std::pair{75, 75}, {80, 80}, {86, 80}, {90, 90}, {100, 90}, {120, 100}, {120, 120}, {89, 80}})
    expect(said(card, ptx).empty(), "nothing is left out: " + said(card, ptx));
  struct Case {
    int card, ptx;
    vector<string> named, unnamed;
  };
  const vector<Case> cases = {{90, 75, {"13 8 x 16", "14 two", "15 clusters", "sm_80", "-arch=sm_90a"}, {"split-K"}},
      {80, 75, {"13 8 x 16", "14 two", "-arch=sm_80"}, {"clusters"}},
      {90, 80, {"15 clusters", "sm_90 or newer", "-arch=sm_90a"}, {"14 two"}},
      {120, 80, {"15 clusters", "-arch=sm_120"}, {"14 two"}}};
  for (const Case& c : cases) {
    const string text = said(c.card, c.ptx);
    for (const string& part : c.named) expect(contains(text, part), part + " is named: " + text);
    for (const string& part : c.unnamed) expect(!contains(text, part), part + " is not: " + text);
    expect(std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n', "in one line: " + text);
  }
}

// A row 700 times above all lanes, or whose cuBLAS partner is, ends the run with its name.
void testRates() {
  Context context = contextOf({90, 90, 90}, 132);
  context.peak = 65000;
  context.beside = {{0, 1}, {6.0 / 128, 1.15}};
  const Gemm g = productOf({2048, 2048, 2048}, 0, 0);
  const double lanes = 2e-3 * 1980 * 128 * 132, ms = 2.0 * g.m * g.n * g.k / lanes * 1e-6;
  for (const Row& row : context.rows) {
    const Errors errors = {{{row.variant, "2048x2048x2048"}, 1e-6}};
    const auto refused = [&](double rowMs, double cublasMs) {
      const auto timing = [](double of) { return Timing{of, of, of, 21, 1}; };
      return stopOf([&] { evaluate(context, row, g, false, {timing(rowMs), timing(cublasMs)}, errors); });
    };
    context.notFp32 = "";
    expect(refused(ms, ms).empty(), string(row.variant) + " may reach what all lanes give");
    expect(contains(refused(ms / 700, ms), string(row.variant) + " at 2048x2048x2048 reads"),
        string(row.variant) + " at 700 times that is refused");
    expect(contains(refused(ms, ms / 700), "cuBLAS at 2048x2048x2048 reads"), "so is cuBLAS beside it");
    context.notFp32 = "NVIDIA_TF32_OVERRIDE";
    expect(refused(ms / 3, ms / 3).empty() == isLibrary(row), "another format explains cuBLAS's rate and no other");
    expect(explainRate(row, g, lanes, context).empty(), "a possible rate needs no explanation");
    if (isLibrary(row))
      expect(contains(explainRate(row, g, 3 * lanes, context), context.notFp32), "the explanation names the reason");
  }
}

// Each unit of the cut tiles belongs to one part, and each part has as much as the others, give or take one step.
void testShares() {
  for (const bool often : {false, true}) {
    Context context = contextOf({90, 90, 90}, 132);
    context.cutsOften = often;
    for (const Row& row : context.rows) {
      if (!isKernel(row)) continue;
      for (const Shape& s : kShapes) {
        const Gemm g = productOf(s, 0, 0);
        const auto [whole, parts, tiles] = sharesOf(row, context, g);
        const string what = string(row.variant) + " at " + shapeText(s);
        expect(whole >= 0 && whole <= tiles && (parts == 0) == (whole == tiles), "all tiles are shared out: " + what);
        if (row.block.leastK == 0) expect(parts == 0, "it cuts no tile: " + what);
        if (parts == 0) continue;
        const int64_t steps = ceilDivide(s.k, row.block.k), units = steps * (tiles - whole);
        expect(parts > tiles - whole && parts <= units, "no part is empty, and there are more than tiles: " + what);
        const double share = waveShare(row, context, g);
        expect(share > 0 && share <= 1, "a share of the SMs' time: " + what);
      }
    }
  }
}

// Every role that is looked up by itself is there once, and a row has a kernel where its role says so.
void testRoles() {
  const Context context = contextOf({90, 90, 90}, 132);
  for (const Role role : {Role::kDispatch, Role::kLibrary, Role::kLibraryPedantic}) {
    const auto is = [=](const Row& row) { return row.role == role; };
    expect(std::count_if(context.rows.begin(), context.rows.end(), is) == 1, "one row of each role without a kernel");
  }
  for (const Row& row : context.rows) {
    expect(isKernel(row) == (row.kernel != nullptr), string(row.variant) + " has the kernel of its role");
    expect((row.role == Role::kKernel) == (row.guard == Guard::kNone), string(row.variant) + " has its role's guard");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return dayMain(argc, argv);
  testDispatch();
  testLeftOut();
  testRates();
  testShares();
  testRoles();
  printf("%d failed\n", failures);
  return failures > 0;
}
