// SPDX-License-Identifier: MIT
//
// Tests of common/lesson.cuh, the code that all days share, on the CPU backend.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <thread>

#include "lesson.cuh"

namespace {

int passed = 0;
int failed = 0;

void expect(bool ok, const std::string& what) {
  ok ? ++passed : ++failed;
  if (!ok) std::printf("FAILED: %s\n", what.c_str());
}

// The Stop that `run` throws; exit code -1 when it throws none.
template <class Run>
Stop stopOf(Run run) {
  try {
    run();
  } catch (const Stop& stop) {
    return stop;
  }
  return {-1, ""};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr Program kTested = {7, "tested", "A program that only tests know."};

Options parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "tested");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(&argument[0]);
  return parseArguments(static_cast<int>(argv.size()), argv.data(), kTested);
}

int exitCodeOf(std::vector<std::string> arguments) {
  return stopOf([&] { parse(arguments); }).exitCode;
}

void testArguments() {
  expect(parse({"--check"}).mode == Mode::kCheck, "--check is a mode");
  expect(parse({"--profile"}).mode == Mode::kProfile, "--profile is a mode");
  expect(parse({"--check", "--device", "3"}).device == 3, "--device takes a number");
  expect(parse({"--check", "--json"}).json, "--json goes with --check");
  expect(parse({"--check", "--json-file", "x"}).jsonFile == "x", "--json-file takes a name");
  expect(exitCodeOf({"--check", "--json-file"}) == kExitUsage, "and needs it");
  expect(exitCodeOf({"--check", "--json-file", "x", "--json"}) == kExitUsage, "one of the two ways");
  expect(exitCodeOf({"--profile", "--json-file", "x"}) == kExitUsage, "--profile has nothing for a file");
  expect(parse({"--check", "--check"}).mode == Mode::kCheck, "the same mode twice is no conflict");
  expect(exitCodeOf({"--check", "--profile"}) == kExitUsage, "two modes exclude each other");
  expect(exitCodeOf({"--profile", "--json"}) == kExitUsage, "--profile has no rows to print");
  for (const char* number : {"", "x", "-1", "1x", "99999999999999999999", " "})
    expect(exitCodeOf({"--check", "--device", number}) == kExitUsage, std::string("--device refuses '") + number + "'");
  expect(exitCodeOf({"--check", "--device"}) == kExitUsage, "--device needs a number");
  const Stop unknown = stopOf([] { parse({"--chekc"}); });
  expect(unknown.exitCode == kExitUsage && contains(unknown.message, "'--chekc'") &&
          contains(unknown.message, "usage: tested"),
      "an unknown argument is named, with the usage");
  expect(exitCodeOf({}) == kExitSkipped, "the CPU build refuses to time, as a skip");
  expect(exitCodeOf({"--json"}) == kExitSkipped, "also as JSON");
}

void testCompare() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto wantOne = [](std::size_t, std::size_t) { return 1.0; };
  for (const float bad : {nan, infinity, -infinity, 1.1f, -1.0f, 0.0f}) {
    for (std::size_t at = 0; at < 6; ++at) {
      std::vector<float> got(6, 1.0f);
      got[at] = bad;
      const Verdict verdict = compare(got.data(), 2, 3, 0.01, 0.0, wantOne);
      const std::string place = "element " + std::to_string(at) + " (row " + std::to_string(at / 3) + ", column " +
          std::to_string(at % 3) + ")";
      expect(verdict.wrong == 1 && contains(verdict.message, place),
          "a wrong value at " + place + " is found and placed: " + verdict.message);
    }
  }
  for (const double reference : {double(nan), double(infinity), -double(infinity)}) {
    const std::vector<float> got(2, static_cast<float>(reference));
    const auto want = [reference](std::size_t, std::size_t) { return reference; };
    expect(compare(got.data(), 1, 2, 1.0, 1.0, want).wrong == 2,
        "a reference that is not finite fails even against itself");
    const std::vector<float> finite(2, 1.0f);
    expect(compare(finite.data(), 1, 2, 1.0, 1.0, want).wrong == 2, "a reference that is not finite allows nothing");
  }
  const std::vector<float> close = {1.0f, 1.005f, 1.0f};
  const Verdict good = compare(close.data(), 1, 3, 0.01, 0.0, wantOne);
  expect(good.wrong == 0 && good.checked == 3 && std::fabs(good.worst - 0.5) < 1e-4,
      "an error of half the tolerance passes and is reported as half");
  expect(compare(close.data(), 1, 3, 0.0, 0.0, wantOne).wrong == 1, "zero tolerance is exact");
  expect(compare(close.data(), 1, 3, 0.0, 0.01, wantOne).wrong == 0, "absolute tolerance counts");
  std::vector<float> poisoned(4);
  std::memset(poisoned.data(), 0xFF, sizeof(float) * poisoned.size());
  expect(compare(poisoned.data(), 1, 4, 1e30, 1e30, wantOne).wrong == 4, "poison never passes");
  const std::vector<float> digits = {0.123456789f};
  expect(contains(compare(digits.data(), 1, 1, 0, 0, wantOne).message, "got 0.123456791, want 1"),
      "got and want are printed with nine significant digits");
}

void testErrors() {
  const Stop stop = stopOf([] { CUDA_CHECK(cudaSetDevice(12345)); });
  for (const char* part : {"lesson_test.cu:", "cudaSetDevice(12345)", "cudaErrorInvalidDevice"})
    expect(stop.exitCode == kExitFailed && contains(stop.message, part),
        std::string("a failed call's message has ") + part + ": " + stop.message);
  cudaGetLastError();  // it stays until it is asked for
}

void testRunLesson() {
  char name[] = "tested";
  char check[] = "--check";
  char* argv[] = {name, check};
  const auto exitCode = [&](auto body) { return runLesson(2, argv, kTested, body); };
  expect(exitCode([](const Report&) { return 0; }) == 0, "a body that returns 0 exits 0");
  expect(exitCode([](const Report&) { return 1; }) == 1, "a body that returns 1 exits 1");
  expect(exitCode([](const Report&) -> int { throw Stop{77, ""}; }) == 77, "a Stop's code is the exit code");
  expect(exitCode([](const Report&) -> int { throw std::bad_alloc(); }) == 1, "any other exception exits 1");
  releaseFailed = true;
  expect(exitCode([](const Report&) { return 0; }) == 1, "a failed release exits 1");
  releaseFailed = false;
}

// Which code the driver loads where a program holds code for one architecture, as the CUDA C++ Programming Guide says
// it: machine code runs on cards of the same major version and the same or a newer minor one; PTX is translated for any
// card as new or newer; both for sm_90a fit a card of 9.0 alone. Returns false where it finds none.
bool loads(int card, int build, bool specific, bool asPtx, LoadedCode& code) {
  const bool fits = specific ? card == build : asPtx ? card >= build : card / 10 == build / 10 && card >= build;
  code = {card, build, asPtx ? card : build};
  return fits;
}

void testLoadedCode() {
  struct Build {
    int capability;
    bool specific;
  };
  constexpr Build kBuilds[] = {
      {75, false}, {80, false}, {86, false}, {90, false}, {90, true}, {100, false}, {120, false}};
  constexpr int kCards[] = {75, 80, 86, 90, 100, 120};
  int pairs = 0;
  for (const int card : kCards) {
    for (const Build& build : kBuilds) {
      for (const bool asPtx : {false, true}) {
        LoadedCode code;
        if (!loads(card, build.capability, build.specific, asPtx, code)) continue;
        ++pairs;
        const std::string what = "code for " + std::to_string(build.capability) + (asPtx ? " as PTX" : "") + " on sm_" +
            std::to_string(card);
        expect(code.features() == build.capability, what + " has what it was compiled with, and no more");
        for (const int needed : {75, 80, 90})
          expect(
              code.offers(needed) == (build.capability >= needed), what + ": what needs sm_" + std::to_string(needed));
        expect(code.translated() == (asPtx && card != build.capability), what + ": the driver translates PTX alone");
      }
    }
  }
  // 21 of the 36 pairs of plain PTX and card, 7 of plain machine code (sm_80 code runs on sm_86), 2 of sm_90a.
  expect(pairs == 21 + 7 + 2, "the pairs that load: " + std::to_string(pairs));
  expect(!LoadedCode{80, 90, 90}.offers(90), "code that is newer than its card promises nothing");
  expect(archFlag(90) == "sm_90a" && archFlag(75) == "sm_75", "the flag that gives all of a card");
}

void testPossible() {
  expect(stopOf([] { requirePossible("a row", 100, 100, "GB/s"); }).exitCode == -1, "a rate may reach its bound");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double rate : {103.0, 70000.0, double(INFINITY), nan}) {
    const Stop stop = stopOf([&] { requirePossible("a row", rate, 100, "GB/s"); });
    expect(stop.exitCode == kExitFailed && contains(stop.message, "a row reads"), "what cannot be is refused");
  }
}

void testMemory() {
  std::size_t before = 0;
  std::size_t during = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&before, &total));
  {
    DeviceBuffer<float> buffer(1 << 20);
    DeviceBuffer<float> moved(std::move(buffer));
    moved = DeviceBuffer<float>(1 << 20);
    CUDA_CHECK(cudaMemGetInfo(&during, &total));
    const Stream stream;
    poison(moved, moved.bytes(), stream);
    const PinnedBuffer<float> host(moved.count());
    CUDA_CHECK(cudaMemcpyAsync(host, moved, moved.bytes(), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    expect(std::isnan(host[0]) && std::isnan(host[host.count() - 1]),
        "poison is a NaN from the first element to the last");
  }
  CUDA_CHECK(cudaMemGetInfo(&after, &total));
  expect(during < before && after == before, "device memory goes back with its owner");
  expect(stopOf([&] { requireDeviceMemory(total + 1); }).exitCode == kExitSkipped, "too little memory is a skip");
  expect(stopOf([&] { requireDeviceMemory(before); }).exitCode == -1, "enough memory is enough");
}

void testTiming() {
  const Stream stream;
  std::string order;
  const auto sleepAs = [&order](char name, int microseconds) {
    return [&order, name, microseconds](cudaStream_t) {
      order += name;
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    };
  };
  const std::vector<Timing> timings = measureInTurn(stream, {sleepAs('A', 3000), sleepAs('B', 6000)});
  expect(timings.size() == 2 && timings[0].samples == kSamples, "one timing per launch");
  for (const Timing& timing : timings)
    expect(timing.msMin > 0 && timing.msMin <= timing.ms && timing.ms <= timing.msMax,
        "minimum, median and maximum are in order");
  expect(timings[0].ms > 2.9 && timings[1].ms > 5.9 && timings[0].ms < timings[1].ms,
      "the times are those of the launches");
  std::string turns;
  for (int i = 0; i < kSamples; ++i) turns += "AB";
  expect(
      order.size() > turns.size() && order.substr(order.size() - turns.size()) == turns, "samples alternate: " + order);
  const std::size_t warmups = order.find('B');
  expect(warmups >= 3, "each launch is warmed up before it is sampled");
  expect(ClockSpan{1980000, 1000000}.megahertz() == 1980.0, "cycles over nanoseconds are GHz");
}

void testJson() {
  expect(JsonLine("row").add("n", -5).add("ok", true).add("x", 0.5).str() ==
          R"({"record":"row","n":-5,"ok":true,"x":0.5})",
      "keys stay in the order they were added");
  expect(JsonLine("row").add("t", "a\"b\\c\n\t\x01").str() == R"({"record":"row","t":"a\"b\\c\u000a\u0009\u0001"})",
      "quotes, backslashes and control characters are escaped");
  expect(JsonLine("row").add("n", 9007199254740993).str() == R"({"record":"row","n":9007199254740993})",
      "counts keep every digit");
  expect(JsonLine("row").add("none", Value()).str() == R"({"record":"row"})", "nothing is no key");
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
           -std::numeric_limits<double>::infinity()}) {
    const Stop stop = stopOf([bad] { JsonLine("row").add("rate", bad); });
    expect(stop.exitCode == kExitFailed && contains(stop.message, "'rate'"),
        "a number that is not finite is an error that names its key");
  }
}

std::string contentOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A path in TMPDIR or /tmp that no other process uses.
std::string scratch(const char* name) {
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr ? folder : "/tmp") + "/lesson_test." + std::to_string(getpid()) + "." + name;
}

// What `run` prints to stdout.
template <class Run>
std::string printedBy(Run run) {
  const std::string path = scratch("stdout");
  std::fflush(stdout);
  const int before = dup(1);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, 1);
  close(file);
  run();
  std::fflush(stdout);
  dup2(before, 1);
  close(before);
  const std::string printed = contentOf(path);
  std::remove(path.c_str());
  return printed;
}

struct Measured {
  const char* name;
  int count;
  double rate;
  bool fits;
};

// A table of two rows, of which the second has no rate.
void reportRows(Report& report) {
  const Table<Measured> table(report, "row",
      {
          {"kernel", "", -8, 0, "variant", [](const Measured& m) { return m.name; }},
          {"count", "", 3, 0, "", [](const Measured& m) { return m.count; }},
          {"rate", "GB/s", 4, 1, "value", [](const Measured& m) { return m.rate > 0 ? m.rate : Value(); }},
          {"fits", "", -4, 0, "fits", [](const Measured& m) { return m.fits; }},
          {"", "", 0, 0, "n", [](const Measured& m) { return m.count; }},
      });
  table.add({"copy", 7, 1234.56, true});
  table.add({"a long name", 1234567, 0, false});
}

void testReport() {
  const std::string text =
      "kernel    count  rate GB/s  fits\n"
      "copy          7     1234.6  yes\n"
      "a long name  1234567             no\n";
  const std::string lines =
      "{\"record\":\"row\",\"variant\":\"copy\",\"value\":1234.56,\"fits\":true,\"n\":7}\n"
      "{\"record\":\"row\",\"variant\":\"a long name\",\"fits\":false,\"n\":1234567}\n";
  const auto printed = [&](const Options& options) {
    return printedBy([&] {
      Report report(kTested, options);
      report.say("%s\n", "words");
      reportRows(report);
      report.keep();
    });
  };
  expect(printed(parse({"--check"})) == "words\n" + text, "a table as text");
  expect(printed(parse({"--check", "--json"})) == lines, "the same as JSON lines, and nothing else");
  const std::string path = scratch("jsonl");
  expect(printed(parse({"--check", "--json-file", path})) == "words\n" + text, "beside --json-file the text is whole");
  expect(contentOf(path) == lines, "and the file has the lines");

  const Options toFile = parse({"--check", "--json-file", path});
  std::ofstream(path) << "of before\n";
  printedBy([&] {
    Report report(kTested, toFile);
    reportRows(report);
  });
  expect(contentOf(path) == "of before\n", "a run that stops leaves the file as it was");
  expect(access((path + ".part").c_str(), F_OK) != 0, "and no part of its own");
  std::remove(path.c_str());

  const std::string nowhere = scratch("missing") + "/rows.jsonl";
  const Stop stop = stopOf([&] { Report report(kTested, parse({"--check", "--json-file", nowhere})); });
  expect(stop.exitCode == kExitFailed && contains(stop.message, nowhere) && contains(stop.message, "No such file"),
      "a file that cannot be written is named, with the reason: " + stop.message);
}

// The checks' table shows with --check alone, and its lines in both.
void testChecks() {
  for (const bool wrong : {false, true}) {
    Verdict verdict;
    verdict.checked = 5;
    verdict.worst = 0.5;
    verdict.wrong = wrong;
    verdict.message = wrong ? "got 1, want 2" : "";
    int failures = 0;
    const Options options = parse({"--check"});
    const std::string printed = printedBy([&] {
      Report report(kTested, options);
      Checks checks(report);
      failures = checks.add({7, "v", "copy", "ragged", verdict}) + 10 * checks.failed();
    });
    expect(failures == (wrong ? 11 : 0), "failed checks are counted");
    expect(contains(printed, "error % of allowed") && contains(printed, wrong ? "  50.0  FAILED\n" : "  50.0  ok\n"),
        "a check's row says what came of it: " + printed);
  }
}

// A launch converts buffers to pointers and numbers to the kernel's types.
__global__ void scale(const float* in, float* out, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = factor * in[i];
}

void testLaunch() {
  const Stream stream;
  const PinnedBuffer<float> host(100);
  const DeviceBuffer<float> in(100), out(100);
  for (int i = 0; i < 100; ++i) host[i] = float(i);
  upload(in, host, in.bytes(), stream);
  launch(scale, ceilDivide(100, 32), 32, in, out, 2, size_t(100))(stream);
  finish("scale", stream);
  download(host, out, out.bytes(), stream);
  expect(host[0] == 0 && host[99] == 198, "a bound launch does what <<<>>> would");
}

}  // namespace

int main() {
  testArguments();
  testCompare();
  testErrors();
  testRunLesson();
  testLoadedCode();
  testPossible();
  testMemory();
  testTiming();
  testJson();
  testReport();
  testChecks();
  testLaunch();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
