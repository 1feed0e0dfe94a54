// SPDX-License-Identifier: MIT
//
// Tests of common/lesson.cuh, the code that all days share, on the CPU backend.
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
}

void testRunLesson() {
  char name[] = "tested";
  char check[] = "--check";
  char* argv[] = {name, check};
  const auto exitCode = [&](auto body) { return runLesson(2, argv, kTested, body); };
  expect(exitCode([](const Options&) { return 0; }) == 0, "a body that returns 0 exits 0");
  expect(exitCode([](const Options&) { return 1; }) == 1, "a body that returns 1 exits 1");
  expect(exitCode([](const Options&) -> int { throw Stop{77, ""}; }) == 77, "a Stop's code is the exit code");
  expect(exitCode([](const Options&) -> int { throw std::bad_alloc(); }) == 1, "any other exception exits 1");
  releaseFailed = true;
  expect(exitCode([](const Options&) { return 0; }) == 1, "a failed release exits 1");
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
    const DeviceBuffer<float> moved(std::move(buffer));
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
  expect(JsonLine("row").integer("n", -5).boolean("ok", true).number("x", 0.5).str() ==
          R"({"record":"row","n":-5,"ok":true,"x":0.5})",
      "keys stay in the order they were added");
  expect(JsonLine("row").text("t", "a\"b\\c\n\t\x01").str() == R"({"record":"row","t":"a\"b\\c\u000a\u0009\u0001"})",
      "quotes, backslashes and control characters are escaped");
  expect(JsonLine("row").integer("n", 9007199254740993).str() == R"({"record":"row","n":9007199254740993})",
      "integers keep every digit");
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
           -std::numeric_limits<double>::infinity()}) {
    const Stop stop = stopOf([bad] { JsonLine("row").number("rate", bad); });
    expect(stop.exitCode == kExitFailed && contains(stop.message, "'rate'"),
        "a number that is not finite is an error that names its key");
  }
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
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
