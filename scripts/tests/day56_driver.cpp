// SPDX-License-Identifier: MIT
//
// Drives day 56's own code for test_day56.py: the lowered day is included whole, its main under another name. The
// calls of the runtime whose answers a test must choose go through functions here.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <utility>

namespace double_of {

std::function<size_t(size_t)> freeMemory;  // from what is free to what is told; none: the truth
bool nodesReversed = false;

cudaError_t memGetInfo(size_t* free, size_t* total) {
  const cudaError_t status = cudaMemGetInfo(free, total);
  if (freeMemory) *free = freeMemory(*free);
  return status;
}

cudaError_t graphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const cudaError_t status = cudaGraphGetNodes(graph, nodes, count);
  if (nodesReversed && nodes != nullptr) std::reverse(nodes, nodes + *count);
  return status;
}

}  // namespace double_of

#define cudaMemGetInfo double_of::memGetInfo
#define cudaGraphGetNodes double_of::graphGetNodes
#define main mainOfTheDay
#include "day.cpp"
#undef main

namespace {

// ---- Noise

std::mt19937_64 generator(56);
double uniform() { return std::uniform_real_distribution<double>(0, 1)(generator); }

// Samples around a median, by what was recorded of them: below the median and up to the 95th percentile along the
// recorded quantiles, above it with a heavy tail (Pareto, 2) of the recorded width. `scale` widens all of it.
struct Noise {
  double median, least, p5, p95, greatest;

  double draw(double scale) const {
    const auto between = [](double from, double to, double part) { return from + part * (to - from); };
    const double u = uniform();
    const double value = u < 0.05 ? between(least, p5, u / 0.05)
        : u < 0.5                 ? between(p5, median, (u - 0.05) / 0.45)
        : u < 0.95                ? between(median, p95, (u - 0.5) / 0.45)
                                  : p95 + (greatest - p95) * (1 / std::sqrt(1 - uniform()) - 1);
    return std::max(0.05 * median, median + scale * (value - median));
  }
};

struct Row {
  int n, quantity;
  Noise launches, graph;
};

// Reads rows of "n quantity", then median, least, p5, p95, greatest of the launches and of the graph.
vector<Row> readRows() {
  vector<Row> rows;
  Row row;
  const auto noise = [](Noise& of) {
    return std::scanf("%lf %lf %lf %lf %lf", &of.median, &of.least, &of.p5, &of.p95, &of.greatest) == 5;
  };
  while (std::scanf("%d %d", &row.n, &row.quantity) == 2 && noise(row.launches) && noise(row.graph))
    rows.push_back(row);
  return rows;
}

// A host that is slow for a while, now and then: samples in a row depend on each other.
struct Bursts {
  double factor() {
    if (uniform() < (slow ? 0.1 : 0.01)) slow = !slow;
    return slow ? 1.4 : 1;
  }
  bool slow = false;
};

// Samples of two variants, the other one's first.
using Pair = std::pair<vector<double>, vector<double>>;

// The graph against the launches, or these against themselves as a control.
Comparison comparisonOf(const Variant& variant, int n, int quantity, const Pair& samples) {
  return {{samples.first, samples.second}, n, quantity, kBatch, variant, kLaunches};
}

// One run's comparisons, sampled in the order of the day.
Results simulate(const vector<Row>& rows, double scale, bool withBursts) {
  Results results;
  for (const Row& row : rows) {
    for (const Variant& variant : {kGraph, kLaunches}) {
      Bursts bursts;
      Pair samples;
      for (int round = 0; round < kRounds; ++round) {
        for (const int which : {0, 1, 1, 0}) {
          const Noise& noise = variant.role == Role::kSubject && which == 1 ? row.graph : row.launches;
          const double us = noise.draw(scale) * (withBursts ? bursts.factor() : 1);
          (which == 0 ? samples.first : samples.second).push_back(us);
        }
      }
      results.comparisons.push_back(comparisonOf(variant, row.n, row.quantity, samples));
    }
  }
  return results;
}

// The verdicts on graph against launches, in the order of the rows.
vector<string> verdicts(const Results& results) {
  vector<string> all;
  for (const Comparison& each : results.comparisons)
    if (!each.isControl()) all.push_back(each.verdict());
  return all;
}

int noise(int runs, double scale, bool withBursts) {
  const vector<Row> rows = readRows();
  const vector<string> want = verdicts(simulate(rows, 0, false));
  vector<int> untold(rows.size());  // runs in which the difference of a row drowns
  int remarked = 0, wrong = 0;  // wrong: some verdict names the other one as the faster
  for (int run = 0; run < runs; ++run) {
    const Results results = simulate(rows, scale, withBursts);
    const vector<string> got = verdicts(results);
    remarked += results.count(&Comparison::isNoise) > 0;
    bool isWrong = false;
    for (size_t i = 0; i < got.size(); ++i) {
      const bool drowned = got[i] == "indistinguishable" && got[i] != want[i];
      untold[i] += drowned;
      isWrong = isWrong || (got[i] != want[i] && !drowned);
    }
    wrong += isWrong;
  }
  printf("runs %d remarked %d wrong %d\n", runs, remarked, wrong);
  for (size_t i = 0; i < rows.size(); ++i)
    printf("verdict %d %d %s %d\n", rows[i].n, rows[i].quantity, want[i].c_str(), untold[i]);
  return 0;
}

Report reportOf(Mode mode, bool json = false) {
  Options options;
  options.mode = mode;
  options.json = json;
  return Report(kProgram, options);
}

// The tables of a run in which the control of the smallest size, on the GPU, is `percent` slower against itself.
int disturbed(double percent) {
  const vector<Row> rows = readRows();
  Results results = simulate(rows, 1, false);
  results.copyBytes = results.copy.ms = 1;
  for (Comparison& each : results.comparisons) {
    if (!each.isControl() || each.quantity != kGpu || each.n != rows.front().n) continue;
    Pair samples = {each.otherUs.sorted, each.otherUs.sorted};
    for (double& us : samples.second) us *= 1 + percent / 100;
    each = comparisonOf(kLaunches, each.n, kGpu, samples);
  }
  for (const bool json : {false, true}) {
    Report report = reportOf(Mode::kTable, json);
    reportVerdicts(report, results);
  }
  printf("noisy %ld of %ld\n", results.count(&Comparison::isNoise), results.count(&Comparison::isControl));
  return 0;
}

// ---- Checks

// What the checks find when so many MiB are gone after each round.
int leaks(const vector<double>& lostMiB) {
  const Stream stream;
  const Problem at(kSmallest, stream);
  Report report = reportOf(Mode::kCheck);
  Checker checker(report, stream, kSmallest);
  size_t asked = 0;
  int64_t gone = 0;
  double_of::freeMemory = [&](size_t free) {
    if (asked > 0) gone += int64_t(lostMiB.at(asked - 1) * 1048576);
    ++asked;
    return free - gone;
  };
  checker.checkLeaks(at);
  double_of::freeMemory = nullptr;
  printf("failed %d rounds %zu\n", checker.failed(), asked - 1);
  return 0;
}

int reversedNodes() {
  const Stream stream;
  const Problem from(kSecond, stream), to(kSmallest, stream);
  Report report = reportOf(Mode::kCheck);
  Checker checker(report, stream, from.n);
  double_of::nodesReversed = true;
  checker.checkVariants(to, false);
  checker.checkUpdate(from, to);
  vector<Cost> costs;
  measureUpdates(from, to, stream, costs);
  printf("failed %d\n", checker.failed());
  return 0;
}

// A sample whose gate gives up `times` times before it opens: behind the gate of the CPU build nothing runs later.
int gate(int times) {
  const Stream stream;
  const Gate gate{};
  const Sampler with = {stream, gate, 1e9, {}, {}};
  int launches = 0;
  const Times measured = sample(
      [&](cudaStream_t) {
        if (launches++ >= times) static_cast<volatile int*>(gate.flags)[1] = kReleased;
      },
      1, 1, with);
  printf("launches %d, submission %g\n", launches, measured[0]);
  return 0;
}

// Stops, since 36 bytes an element in so many microseconds are more than the card can move.
int impossible(double us) {
  const vector<double> times(kPairs, us);
  comparisonOf(kGraph, 1 << 20, kGpu, {times, times}).requirePossibleRates(1000);
  printf("possible\n");
  return 0;
}

int table() {
  Report report = reportOf(Mode::kTable);
  return runDay(report);
}

}  // namespace

int main(int argc, char** argv) {
  const string what = argc > 1 ? argv[1] : "";
  vector<double> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(std::atof(argv[i]));
  try {
    if (what == "noise") return noise(int(numbers.at(0)), numbers.at(1), numbers.at(2) != 0);
    if (what == "disturbed") return disturbed(numbers.at(0));
    if (what == "leaks") return leaks(numbers);
    if (what == "reversed-nodes") return reversedNodes();
    if (what == "gate") return gate(int(numbers.at(0)));
    if (what == "impossible") return impossible(numbers.at(0));
    if (what == "table") return table();
  } catch (const Stop& stop) {
    fprintf(stderr, "%s\n", stop.message.c_str());
    return stop.exitCode;
  }
  return mainOfTheDay(argc, argv);  // --check, --profile
}
