// SPDX-License-Identifier: MIT
//
// Day 56: what does a CUDA graph really give back?
//
// A chain of four small kernels, launched one by one and replayed as one graph. It moves no byte less; what it saves is
// submission on the CPU and gaps on the GPU. This program proves that both compute the same, prices each part with its
// interval, the one-off bill and the break-even, and sets the graph beside its competitors. It prices no graph with
// branches, copies or conditions.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o graphs graphs.cu
//   run:   ./graphs              (--help lists the rest)
//
// The kernels in the order of this file, and what each is for:
//   holdStream    holds the GPU back, so that submission is timed without it and it without submission
//   applyScaleBias, applyGelu, applyAddResidual, applyClampRange    the chain: 36 bytes an element, four launches
//   applyFused    the chain in one kernel: 12 bytes an element, one launch. What a graph is measured against

// common: device
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using std::string, std::to_string, std::vector;

// The blocks between `// common:` lines are the same in every day: scripts/sync_common.py copies common/lesson.cuh.

// What one SM counted while something ran. Cycles over nanoseconds give its clock, which a card changes with its load
// and its temperature: a share of the arithmetic peak means something only at the clock that was there. The CPU build
// has no such clock, and times nothing.
struct ClockSpan {
  long long cycles, nanoseconds;
  double megahertz() const { return 1e3 * double(cycles) / nanoseconds; }
};

__device__ inline ClockSpan readClock() {
  ClockSpan now = {0, 0};
#ifdef __CUDA_ARCH__
  now.cycles = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now.nanoseconds));
#endif
  return now;
}

// The CPU build (common/cpu) compiles the same files; its header defines CUDA_DAYS_CPU.
#ifdef CUDA_DAYS_CPU
constexpr bool kOnCpu = true;
#else
constexpr bool kOnCpu = false;
#endif

// A build for compute-sanitizer, whose tools slow a kernel down up to a hundred times: --check takes the smallest sizes
// that still reach every barrier and every guard.
#ifdef CUDA_DAYS_SANITIZE
constexpr bool kForSanitizer = true;
#else
constexpr bool kForSanitizer = false;
#endif

// kWidth adjacent values that move as one access: of 4, 8 or 16 bytes, aligned to them.
template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Pack {
  T at[kWidth];
};

// How many blocks of b cover a.
constexpr int ceilDivide(int a, int b) { return (a + b - 1) / b; }
// end common: device

#include <array>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <tuple>

// ---- The gate

// The gate gives up after so many clocks (about a second).
constexpr long long kPatience = 1LL << 31;

// Holds a stream until the host opens the gate, or patience ends. What is submitted meanwhile waits in the queue, so
// that submission is timed without the GPU, and then the GPU without submission.
enum GateState : int { kUntouched, kReleased, kTimedOut };
__global__ void holdStream(const volatile int* open, volatile int* state, long long patience) {
  const long long begin = clock64();
  while (*open == 0) {
    if (clock64() - begin > patience) {
      *state = kTimedOut;
      return;
    }
  }
  *state = kReleased;
}

// ---- The kernels of the chain

constexpr float kScale = 1.5f, kBias = -0.25f;
constexpr float kGeluA = 0.7978845608f, kGeluB = 0.044715f;  // sqrt(2 / pi); Hendrycks, Gimpel 2016
constexpr float kLow = -6, kHigh = 3;

// One thread owns kWidth adjacent floats of every stream: with 1 it is day 48's kernel, with 4 an access is a float4,
// and the thread that hangs over the end takes its floats one by one. Here a stage is applied to those that it holds.
template <int kWidth, class Stage, class... Packs>
__device__ Pack<float, kWidth> mapPacks(Stage stage, const Packs&... in) {
  Pack<float, kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) result.at[k] = stage(in.at[k]...);
  return result;
}

// A stage over whole streams: the body of every kernel of the chain.
template <int kWidth, class Stage, class... In>
__device__ void mapStreams(Stage stage, int n, float* out, const In*... in) {
  using Wide = Pack<float, kWidth>;
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  if (first + kWidth <= n) {
    *reinterpret_cast<Wide*>(out + first) = mapPacks<kWidth>(stage, *reinterpret_cast<const Wide*>(in + first)...);
  } else {
    for (int i = first; i < n; ++i) out[i] = stage(in[i]...);
  }
}

// Programmatic dependent launch (sm_90): the next kernel may start once every block of this one has come here. It then
// waits until the one before it has ended and its stores can be seen.
template <bool kOverlap>
__device__ void waitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (kOverlap) {
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
  }
#endif
}

// What the stages do to an element; the residual's is a sum.
__device__ float scaleBias(float v) { return v * kScale + kBias; }
__device__ float gelu(float v) { return 0.5f * v * (1.0f + tanhf(kGeluA * (v + kGeluB * v * v * v))); }
__device__ float clampRange(float v) { return fminf(fmaxf(v, kLow), kHigh); }

// The four kernels of the chain, a stage each, as they stand in many a network: they do little to an element, read what
// the one before has written (8, 8, 12 and 8 bytes an element), and are launched one after the other. At 1024 elements
// the work of one takes less time than its launch: the four launches take an H200's host about 18 us and the GPU
// 6.7 us, and DRAM would have moved their bytes in 0.01 us (profile/h200/day56.txt).
template <int kWidth, bool kOverlap>
__global__ void applyScaleBias(const float* in, float* out, int n) {
  waitForPrevious<kOverlap>();
  mapStreams<kWidth>([](float v) { return scaleBias(v); }, n, out, in);
}

template <int kWidth, bool kOverlap>
__global__ void applyGelu(const float* in, float* out, int n) {
  waitForPrevious<kOverlap>();
  mapStreams<kWidth>([](float v) { return gelu(v); }, n, out, in);
}

template <int kWidth, bool kOverlap>
__global__ void applyAddResidual(const float* in, const float* residual, float* out, int n) {
  waitForPrevious<kOverlap>();
  mapStreams<kWidth>([](float v, float r) { return v + r; }, n, out, in, residual);
}

template <int kWidth, bool kOverlap>
__global__ void applyClampRange(const float* in, float* out, int n) {
  waitForPrevious<kOverlap>();
  mapStreams<kWidth>([](float v) { return clampRange(v); }, n, out, in);
}

// The whole chain in registers: 12 bytes an element instead of 36, so a third of the time where memory binds. Not bit
// for bit the chain: gelu's last product and the residual's sum meet here, and become one FMA with one rounding fewer.
// At 1024 elements an H200 takes about 1.8 us for it, 4.9 for a graph of the four and 6.7 for their launches
// (profile/h200/day56.txt).
template <int kWidth>
__global__ void applyFused(const float* in, const float* residual, float* out, int n) {
  mapStreams<kWidth>([](float v, float r) { return clampRange(gelu(scaleBias(v)) + r); }, n, out, in, residual);
}

// ---- Inputs and CPU reference

constexpr int kStages = 4;

constexpr int kPeriodX = 2048, kPeriodR = 97;  // of the inputs; coprime, and 97 divides no size

float inputX(int i) { return float(i % kPeriodX) / (kPeriodX / 8) - 4; }  // [-4, 4)
float inputResidual(int i) { return float(i % kPeriodR) / kPeriodR - 0.5f; }

// The chain in double, up to a stage. Two stages depend on x alone and repeat after kPeriodX elements.
double reference(int stage, int i) {
  static const auto fromX = [] {
    vector<std::array<double, 2>> values;
    for (int at = 0; at < kPeriodX; ++at) {
      const double v = double(inputX(at)) * kScale + kBias;
      values.push_back({v, 0.5 * v * (1 + std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)))});
    }
    return values;
  }();
  if (stage < 2) return fromX[i % kPeriodX][stage];
  const double summed = fromX[i % kPeriodX][1] + inputResidual(i);
  return stage == 2 ? summed : std::min(std::max(summed, double(kLow)), double(kHigh));
}

// common: harness
// ---- The harness, the same in every day: skip it

// It ends early, reads arguments, opens the GPU, owns memory, compares, times and prints records. The lesson uses it
// and is not in it; it goes on behind `// end common: harness`.

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

// ---- Ends and errors

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;  // a check, a CUDA call or writing the output failed
constexpr int kExitUsage = 2;  // a bad argument
constexpr int kExitSkipped = 77;  // no usable GPU: a skip for CTest and Automake

// Every early end is a Stop: runLesson prints its message and returns its code, and the destructors on the way out
// release device memory, events and streams.
struct Stop {
  int exitCode;
  string message;
};

// Stops with the place and the call that failed. Every CUDA call goes through it, by the macro below.
inline void checkCuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw Stop{kExitFailed,
      string(file) + ":" + to_string(line) + ": " + call + " failed: " + cudaGetErrorName(status) + ": " +
          cudaGetErrorString(status)};
}
#define CUDA_CHECK(call) checkCuda((call), #call, __FILE__, __LINE__)

// For destructors, which cannot throw. While a Stop is on its way its message is the story; otherwise a failed release
// is reported and makes the exit code of runLesson 1.
inline bool releaseFailed = false;
inline void release(cudaError_t status, const char* call) {
  if (status == cudaSuccess || std::uncaught_exceptions() > 0) return;
  fprintf(stderr, "%s failed: %s: %s\n", call, cudaGetErrorName(status), cudaGetErrorString(status));
  releaseFailed = true;
}

// ---- Arguments

// What a run is for: the table of times (no argument), the checks alone, or one launch per kernel for a profiler.
enum class Mode { kTable, kCheck, kProfile };

// What the arguments say.
struct Options {
  Mode mode = Mode::kTable;
  bool json = false;  // JSON lines to stdout, and no text
  string jsonFile;  // JSON lines to this file, and the text to stdout; empty: none
  int device = 0;
};

// What a day says of itself: its number, the name of its program, and a line for --help.
struct Program {
  int day;
  const char* name;
  const char* summary;
};

// The text of --help, which a bad argument gets too.
inline string usage(const Program& program) {
  return string("usage: ") + program.name +
      " [--check | --profile] [--json | --json-file F] [--device N] [--help]\n\n" + program.summary + R"(

  (no argument)  check every kernel, time it, print the table
  --check        the checks alone: without a GPU, for compute-sanitizer
  --json         the same run as JSON lines, and nothing else on stdout
  --json-file F  the text to stdout, and the JSON lines of this very run to the file F
  --profile      one launch per kernel in table order, no checks, for a profiler
  --device N     which GPU, as the CUDA runtime counts them (default 0)
  --help         this text

exit code: 0 all checks passed, 1 a check or a call failed, 2 bad usage,
           77 skipped: no usable GPU or not enough memory
)";
}

// A full disk or a closed pipe must not end as a success, so stdout is asked after every line that matters.
inline void flushOutput() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw Stop{kExitFailed, string("cannot write to stdout: ") + std::strerror(errno)};
}

// Throws Stop with kExitUsage for anything it does not know, with kExitOk after printing the help, and with
// kExitSkipped where a build for the CPU is asked for times.
inline Options parseArguments(int argc, char** argv, const Program& program) {
  Options options;
  const auto refuse = [&](const string& why) { throw Stop{kExitUsage, why + "\n" + usage(program)}; };
  for (int i = 1; i < argc; ++i) {
    const string argument = argv[i];
    if (argument == "--help") {
      std::fputs(usage(program).c_str(), stdout);
      flushOutput();
      throw Stop{kExitOk, ""};
    } else if (argument == "--check" || argument == "--profile") {
      const Mode mode = argument == "--check" ? Mode::kCheck : Mode::kProfile;
      if (options.mode != Mode::kTable && options.mode != mode)
        refuse(argument + ": --check and --profile exclude each other");
      options.mode = mode;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "--json-file") {
      if (++i == argc || *argv[i] == '\0') refuse("--json-file: the name of a file is missing");
      options.jsonFile = argv[i];
    } else if (argument == "--device") {
      if (++i == argc) refuse("--device: a device number is missing");
      int length = 0;
      if (std::sscanf(argv[i], "%6d%n", &options.device, &length) != 1 || argv[i][length] != '\0' || options.device < 0)
        refuse(string("--device: '") + argv[i] + "' is not a device number (0, 1, ...)");
    } else {
      refuse("unknown argument '" + argument + "'");
    }
  }
  if (options.json && !options.jsonFile.empty()) refuse("--json and --json-file exclude each other");
  if ((options.json || !options.jsonFile.empty()) && options.mode == Mode::kProfile)
    refuse(string(options.json ? "--json" : "--json-file") +
        ": --profile prints no rows, so there is nothing to write as JSON");
  if (kForSanitizer && options.mode != Mode::kCheck)
    throw Stop{
        kExitUsage, string(program.name) + " is built for compute-sanitizer, with small sizes: run it with --check"};
  if (kOnCpu && options.mode == Mode::kTable)
    throw Stop{kExitSkipped,
        string(program.name) + " is built for the CPU, which proves results and never speed: run it with --check"};
  return options;
}

// ---- The device

// What a recorded run was built from; CMake and scripts/evidence.py define them.
#ifndef CUDA_DAYS_REVISION
#define CUDA_DAYS_REVISION "unknown"
#endif
#ifndef CUDA_DAYS_FLAGS
#define CUDA_DAYS_FLAGS "unknown"
#endif

// What runs on a card is decided by the code that was loaded, not by the card: a build for sm_75 also embeds PTX for
// compute_75, which the driver of a newer card translates, and what needs sm_80 or sm_90 was compiled out of it. All
// three are compute capabilities as 10 * major + minor.
struct LoadedCode {
  int card = 0;
  int ptx = 0;  // the virtual architecture that the source was compiled for (cudaFuncAttributes::ptxVersion)
  int binary = 0;  // the machine code that runs (cudaFuncAttributes::binaryVersion)

  bool translated() const { return binary != ptx; }
  // The newest compute capability whose features a kernel of this program may use here.
  int features() const { return std::min({card, ptx, binary}); }
  bool offers(int capability) const { return features() >= capability; }
};

// The name that -arch takes. On Hopper the tensor cores reach their peak with the instructions of sm_90a alone.
inline string archFlag(int capability) { return "sm_" + to_string(capability) + (capability == 90 ? "a" : ""); }

// What a run leaves out because the loaded code lacks it, and the compute capability that its code needs.
struct LeftOut {
  string name;
  int code;
};
constexpr int kSm90a = 91;  // what only sm_90a has, as if it were a compute capability between 9.0 and the next

// Names it and the build that has it, in a sentence; "" where nothing is left out.
inline string leftOutText(const LoadedCode& code, const vector<LeftOut>& all) {
  string names;
  for (size_t i = 0; i < all.size(); ++i) {
    const int need = all[i].code;
    names += (i == 0 ? "" : ", ") + all[i].name;
    if (i + 1 == all.size() || all[i + 1].code != need)
      names += need == kSm90a ? " (needs code for sm_90a)" : " (need code for sm_" + to_string(need) + " or newer)";
  }
  if (names.empty()) return "";
  return "Left out, because the code that runs is of compute_" + to_string(code.ptx) + ": " + names +
      ". Build with -arch=" + archFlag(code.card) + " for them.\n";
}

// The GPU that was opened, and the code that was loaded for it.
struct Device {
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;  // CUDA versions: supported, built with
  double maxClockMhz = 0;  // the highest clock of the SMs, which no measured rate may exceed
  LoadedCode code;
};

constexpr int kOldestCard = 75;  // Turing: the T4, for which the lessons are written

// What an SM does per clock, to hold a measured rate against (CUDA C++ Programming Guide, throughput of native
// arithmetic instructions): multiply-adds of each type, bytes of L1 or shared memory, dense FP16 tensor FLOP (0 where
// cards of the generation differ).
struct PerClock {
  int card;  // the first compute capability that it holds for
  int fp32, fp64, fp16, bf16, int32, bytes, tensor;
};
inline PerClock perClockOf(int capability) {
  constexpr PerClock kGenerations[] = {
      {75, 64, 2, 128, 0, 64, 64, 1024},
      {80, 64, 32, 256, 128, 64, 128, 2048},
      {86, 128, 2, 128, 128, 64, 128, 0},
      {90, 128, 64, 256, 256, 64, 128, 4096},
      {100, 128, 64, 256, 256, 64, 128, 0},
      {120, 128, 2, 128, 128, 64, 128, 0},
  };
  PerClock per = kGenerations[0];
  for (const PerClock& generation : kGenerations)
    if (generation.card <= capability) per = generation;
  return per;
}

// FP32 lanes of an SM, which is FMAs per clock.
inline int fp32LanesPerSm(int capability) { return perClockOf(capability).fp32; }

// CUDA counts 12040 for 12.4.
inline string cudaVersionText(int version) { return to_string(version / 1000) + "." + to_string(version % 1000 / 10); }

// nvcc lists in it what it compiled the file for: 750,900 or the like.
#ifndef __CUDA_ARCH_LIST__
#define __CUDA_ARCH_LIST__ 0
#endif

// Opens GPU `index`, or throws Stop with what is wrong and the way out. `kernel` is any kernel of the program: whether
// the driver finds code for it tells whether the build fits the GPU, and its attributes tell which code was loaded.
template <class Kernel>
Device openDevice(int index, Kernel* kernel) {
  Device device;
  cudaDeviceProp& gpu = device.properties;
  CUDA_CHECK(cudaRuntimeGetVersion(&device.runtime));
  CUDA_CHECK(cudaDriverGetVersion(&device.driver));
  if (device.driver == 0)
    throw Stop{kExitSkipped,
        "no NVIDIA driver is visible (WSL: update the Windows driver; Docker: --gpus all). "
        "Without a GPU the CPU build proves the same kernels: scripts/lessons run"};
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  const string driver = cudaVersionText(device.driver);
  if (found == cudaErrorInsufficientDriver)
    throw Stop{kExitFailed,
        "the driver supports CUDA " + driver + ", this program was built with toolkit " +
            cudaVersionText(device.runtime) + ": update the driver, or build with toolkit " + driver + " or older"};
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0))
    throw Stop{kExitSkipped, "an NVIDIA driver is here but it shows no GPU (is CUDA_VISIBLE_DEVICES set?)"};
  CUDA_CHECK(found);
  if (index >= count)
    throw Stop{kExitUsage,
        "--device " + to_string(index) + " is out of range: valid is " +
            (count == 1 ? "0" : "0 to " + to_string(count - 1))};
  CUDA_CHECK(cudaSetDevice(index));
  CUDA_CHECK(cudaGetDeviceProperties(&gpu, index));
  const int card = 10 * gpu.major + gpu.minor;
  const string here = "GPU " + to_string(index) + " (" + gpu.name + ") is sm_" + to_string(card);
  if (card < kOldestCard)
    throw Stop{kExitSkipped,
        here + ", and the days start at sm_" + to_string(kOldestCard) +
            " (Turing): choose another GPU with --device, or run the checks without one: scripts/lessons run"};

  cudaFuncAttributes attributes;
  const cudaError_t fits = cudaFuncGetAttributes(&attributes, kernel);
  if (fits == cudaErrorNoKernelImageForDevice || fits == cudaErrorInvalidDeviceFunction ||
      fits == cudaErrorUnsupportedPtxVersion) {
    string held;
    for (const int arch : {__CUDA_ARCH_LIST__}) held += (held.empty() ? "sm_" : ", sm_") + to_string(arch / 10);
    const string wanted = archFlag(card);
    throw Stop{kExitFailed,
        here + ", and the program holds " + held + ": build with -arch=" + wanted +
            " (CMake: -DCMAKE_CUDA_ARCHITECTURES=" + wanted.substr(3) + ")"};
  }
  CUDA_CHECK(fits);
  device.code = {card, attributes.ptxVersion, attributes.binaryVersion};
  int kilohertz = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, index));
  device.maxClockMhz = kilohertz * 1e-3;
  return device;
}

// Throws Stop (77) where so many bytes are not free, before anything is allocated.
inline void requireDeviceMemory(size_t bytes) {
  size_t free = 0;
  size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (bytes > free)
    throw Stop{kExitSkipped,
        "not enough device memory: " + to_string(bytes >> 20) + " MiB needed, " + to_string(free >> 20) + " MiB free"};
}

// The UUID as nvidia-smi prints it. Two cards of one host are told apart by it, and by their place on the PCI bus.
inline string uuidText(const cudaDeviceProp& gpu) {
  char uuid[48] = "GPU-";
  for (int i = 0, at = 4; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid[at++] = '-';
    at += snprintf(uuid + at, sizeof uuid - at, "%02x", gpu.uuid.bytes[i] & 0xFF);
  }
  return uuid;
}

// Domain, bus, device and function, as nvidia-smi prints them.
inline string pciText(const cudaDeviceProp& gpu) {
  char pci[24];
  snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
  return pci;
}

// ---- Memory

// Copies between host and device on the stream that runs the kernels, and waits. A plain cudaMemcpy from pageable
// memory may return before the copy has ended, and a non-blocking stream does not wait for it.
inline void copyAndWait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}
inline void upload(void* device, const void* host, size_t bytes, cudaStream_t stream) {
  copyAndWait(device, host, bytes, cudaMemcpyHostToDevice, stream);
}
inline void download(void* host, const void* device, size_t bytes, cudaStream_t stream) {
  copyAndWait(host, device, bytes, cudaMemcpyDeviceToHost, stream);
}

// Red zones: every buffer lies between two stretches of memory that no kernel may write. `Checks::add` compares
// them after each check, so a write past the end fails on a GPU too, where the neighbour's memory would take it
// silently. Every word is a NaN as float and as double, so that what is read there shows in the result; and each
// buffer's words differ, so that a copy which runs too far is seen as well. The CPU build needs none: its backend stops
// at the exact end of an allocation. compute-sanitizer does so too, for reads as well, so a build for it has none
// either.
#ifndef CUDA_DAYS_RED_ZONE
#define CUDA_DAYS_RED_ZONE (kOnCpu || kForSanitizer ? 0 : 4096)
#endif
constexpr size_t kRedZone = CUDA_DAYS_RED_ZONE;  // bytes on each side
static_assert(kRedZone % 256 == 0, "a buffer keeps the alignment of cudaMalloc");

// The buffers that have zones, by their start, and the bytes of each.
inline std::map<char*, size_t> guardedBuffers;

// The words that a zone must hold. They follow from its address.
inline vector<uint32_t> redZoneWords(const char* zone) {
  vector<uint32_t> words(kRedZone / sizeof(uint32_t));
  const uint32_t first = uint32_t(uintptr_t(zone)) * 2654435761u >> 12;
  for (size_t i = 0; i < words.size(); ++i) words[i] = 0xFFF00000u | ((first + uint32_t(i)) & 0xFFFFFu);
  return words;
}

// Device memory between two zones. Throws Stop where there is none.
inline char* allocateGuarded(size_t bytes) {
  char* base = nullptr;
  CUDA_CHECK(cudaMalloc(&base, bytes + 2 * kRedZone));
  char* const start = base + kRedZone;
  try {
    for (char* zone : {base, start + bytes})
      if (kRedZone > 0) upload(zone, redZoneWords(zone).data(), kRedZone, nullptr);
  } catch (...) {
    cudaFree(base);
    throw;
  }
  if (kRedZone > 0) guardedBuffers[start] = bytes;
  return start;
}

// Gives memory of allocateGuarded back.
inline cudaError_t freeGuarded(void* memory) {
  char* const start = static_cast<char*>(memory);
  guardedBuffers.erase(start);
  return cudaFree(start - kRedZone);
}

// Says which buffer was written outside of, and restores its zone; an empty text if none was.
inline string redZoneDamage() {
  string damage;
  for (const auto& [start, bytes] : guardedBuffers) {
    for (char* zone : {start - kRedZone, start + bytes}) {
      const vector<uint32_t> want = redZoneWords(zone);
      vector<uint32_t> got(want.size());
      download(got.data(), zone, kRedZone, nullptr);
      if (got == want) continue;
      upload(zone, want.data(), kRedZone, nullptr);
      const size_t at = sizeof(uint32_t) * (std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
      damage = "wrote " +
          (zone < start ? to_string(kRedZone - at) + " bytes before the start"
                        : to_string(at) + " bytes past the end") +
          " of a buffer of " + to_string(bytes) + " bytes";
    }
  }
  return damage;
}

// Owns one CUDA object (a stream, an event, a graph, memory) and gives it back by `destroy` when it ends. It stands for
// the object in a call, and can be moved, not copied. `call` is the name of `destroy`, for an error.
template <class Object>
class Owned {
 public:
  Owned() = default;
  Owned(Object object, cudaError_t (*destroy)(Object), const char* call)
      : object_(object), destroy_(destroy), call_(call) {}
  Owned(Owned&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), destroy_(other.destroy_), call_(other.call_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(destroy_, other.destroy_);
    std::swap(call_, other.call_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) release(destroy_(object_), call_);
  }
  operator Object() const { return object_; }

 private:
  Object object_ = nullptr;
  cudaError_t (*destroy_)(Object) = nullptr;
  const char* call_ = nullptr;
};

// A stream that does not wait for the default one.
struct Stream : Owned<cudaStream_t> {
  Stream() : Owned(create(), cudaStreamDestroy, "cudaStreamDestroy") {}

 private:
  static cudaStream_t create() {
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
};

// A point in a stream, with its time.
struct Event : Owned<cudaEvent_t> {
  Event() : Owned(create(), cudaEventDestroy, "cudaEventDestroy") {}

 private:
  static cudaEvent_t create() {
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreate(&event));
    return event;
  }
};

// Memory of `count` elements. It stands for its pointer in a launch.
template <class T>
class Buffer {
 public:
  Buffer(Owned<void*> memory, size_t count) : memory_(std::move(memory)), count_(count) {}
  operator T*() const { return static_cast<T*>(static_cast<void*>(memory_)); }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  Owned<void*> memory_;
  size_t count_;
};

// Device memory, between red zones.
template <class T>
struct DeviceBuffer : Buffer<T> {
  explicit DeviceBuffer(size_t count)
      : Buffer<T>({allocateGuarded(count * sizeof(T)), freeGuarded, "cudaFree"}, count) {}
};

// Page-locked host memory: copies to and from the device run at the full speed of the bus.
template <class T>
struct PinnedBuffer : Buffer<T> {
  explicit PinnedBuffer(size_t count) : Buffer<T>({allocate(count * sizeof(T)), cudaFreeHost, "cudaFreeHost"}, count) {}

 private:
  static void* allocate(size_t bytes) {
    void* memory = nullptr;
    CUDA_CHECK(cudaMallocHost(&memory, bytes));
    return memory;
  }
};

// Fills device memory with valueAt(i), through page-locked memory, a part at a time.
template <class T, class ValueAt>
void fillDevice(const DeviceBuffer<T>& buffer, ValueAt valueAt, cudaStream_t stream) {
  const PinnedBuffer<T> staging(std::min(buffer.count(), size_t(1) << 22));
  for (size_t done = 0; done < buffer.count(); done += staging.count()) {
    const size_t part = std::min(staging.count(), buffer.count() - done);
    for (size_t i = 0; i < part; ++i) staging[i] = valueAt(done + i);
    upload(buffer + done, staging, part * sizeof(T), stream);
  }
}

// Fills memory with 0xFF bytes, a NaN in every float: an element that a kernel forgets to write cannot pass for a
// result.
inline void poison(void* data, size_t bytes, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(data, 0xFF, bytes, stream));
}

// ---- Checking

// What a comparison found.
struct Verdict {
  size_t checked = 0, wrong = 0;
  double worst = 0;  // accepted error, as a fraction of what is allowed
  string message;
};

// Compares got[row * columns + column] with want(row, column), a double, for all elements:
// |got - want| <= absolute + relative * |want|. The test is written so that a NaN fails (a difference is never 0 for a
// NaN or an infinity: inf - inf is a NaN), and a reference that is not finite fails too, since it would allow anything.
template <class T, class Want>
Verdict compare(const T* got, size_t rows, size_t columns, double relative, double absolute, Want want) {
  Verdict verdict;
  verdict.checked = rows * columns;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const size_t index = row * columns + column;
      const double expected = want(row, column);
      const double difference = got[index] - expected;
      if (difference == 0) continue;
      const double error = std::fabs(difference);
      const double allowed = absolute + relative * std::fabs(expected);
      if (!(error <= allowed) || !std::isfinite(expected)) {
        if (verdict.wrong++ == 0) {
          char text[200];
          snprintf(text, sizeof text, "first wrong element %zu (row %zu, column %zu): got %.9g, want %.9g", index, row,
              column, double(got[index]), expected);
          verdict.message = text;
        }
      } else {
        verdict.worst = std::max(verdict.worst, error / allowed);
      }
    }
  }
  return verdict;
}

// Waits for what was launched last: an error of the launch, or of the kernel while it runs, names the kernel.
inline void finish(const char* symbol, cudaStream_t stream) {
  const string call = string("kernel ") + symbol;
  checkCuda(cudaGetLastError(), call.c_str(), __FILE__, __LINE__);
  checkCuda(cudaStreamSynchronize(stream), call.c_str(), __FILE__, __LINE__);
}

// A comparison on the device: a gigabyte takes it less than a millisecond, and the CPU seconds. It compares with a
// reference, a function of the element's index that is written once for both sides. At a small size the CPU compares
// the same output with the same reference, which proves that the device's copy says what the CPU's says.
[[maybe_unused]] constexpr int kCompareParts = 1024;  // of an output, each with its count of wrong elements

// Counts the wrong elements of each part, and in counts[kCompareParts] the elements that were looked at. A NaN or an
// infinity is never within what is allowed.
template <class T, class Want>
__global__ void findWrong(const T* got, size_t count, size_t part, Want want, double allowed, unsigned* counts) {
  unsigned seen = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * size_t(blockDim.x)) {
    ++seen;
    const auto difference = got[i] - want(i);
    if (!(fabs(difference) <= allowed)) atomicAdd(&counts[i / part], 1u);
  }
  for (int lane = 16; lane > 0; lane /= 2) seen += __shfl_xor_sync(0xffffffffu, seen, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(&counts[kCompareParts], seen);
}

// The same as a Verdict: the CPU looks for the first wrong element, in the first part that has one.
template <class T, class Want>
Verdict compareOnDevice(const T* got, size_t count, Want want, double allowed, cudaStream_t stream) {
  constexpr size_t kThreads = 256, kBlocks = kOnCpu ? 24 : 1024;
  const DeviceBuffer<unsigned> counted(kCompareParts + 1);
  CUDA_CHECK(cudaMemsetAsync(counted, 0, counted.bytes(), stream));
  const size_t partSize = (count + kCompareParts - 1) / kCompareParts;
  const int blocks = int(std::min((count + kThreads - 1) / kThreads, kBlocks));
  findWrong<T, Want><<<blocks, kThreads, 0, stream>>>(got, count, partSize, want, allowed, counted);
  finish("findWrong", stream);
  vector<unsigned> counts(counted.count());
  download(counts.data(), counted, counted.bytes(), stream);
  Verdict verdict;
  verdict.checked = count;
  size_t first = kCompareParts;
  for (size_t part = kCompareParts; part-- > 0;) {
    verdict.wrong += counts[part];
    if (counts[part] > 0) first = part;
  }
  if (counts[kCompareParts] != count) {
    ++verdict.wrong;
    verdict.message = "the comparison on the device looked at " + to_string(counts[kCompareParts]) + " elements";
  } else if (first < kCompareParts) {
    const size_t begin = first * partSize;
    vector<T> part(std::min(partSize, count - begin));
    download(part.data(), got + begin, part.size() * sizeof(T), stream);
    size_t i = 0;
    while (i < part.size() && std::fabs(part[i] - want(begin + i)) <= allowed) ++i;
    char text[160] = "the device found a difference that the CPU does not see: their references differ";
    if (i < part.size())
      snprintf(text, sizeof text, "first wrong element %zu: got %.9g, want %.9g", begin + i, double(part[i]),
          double(want(begin + i)));
    verdict.message = text;
  }
  return verdict;
}

// Proves that the comparison on the device finds one wrong element wherever it is and whatever it holds, and no other.
// `data` holds what `want` says; `least` is the smallest difference that must be seen.
template <class Want>
Verdict proveComparison(float* data, size_t count, Want want, float least, cudaStream_t stream) {
  Verdict verdict;
  const auto require = [&](bool right, const string& message) {
    ++verdict.checked;
    if (!right && verdict.wrong++ == 0) verdict.message = message;
  };
  for (const size_t at : {size_t(0), count / kCompareParts, count / 2, count - 1}) {
    const float right = want(at);
    for (const float value : {std::nanf(""), INFINITY, -INFINITY, right + least}) {
      upload(data + at, &value, sizeof value, stream);
      const Verdict found = compareOnDevice<float>(data, count, want, 0, stream);
      const string first = "first wrong element " + to_string(at) + ":";
      require(found.wrong == 1 && found.message.find(first) != string::npos,
          "one wrong element, " + to_string(at) + ", holds " + to_string(value) + ": got " + to_string(found.wrong) +
              " wrong, " + found.message);
    }
    upload(data + at, &right, sizeof right, stream);
  }
  const Verdict clean = compareOnDevice<float>(data, count, want, 0, stream);
  require(clean.wrong == 0, "none is wrong: got " + clean.message);
  return verdict;
}

// What a launch writes, and how that is compared.
struct Output {
  void* data = nullptr;
  size_t bytes = 0, bufferBytes = 0;
  std::function<Verdict(const void* got)> onCpu = {};
  std::function<Verdict(cudaStream_t)> onDevice = {};  // empty: the CPU compares at every size
};

// An output of a few megabytes, whose elements are want(i).
template <class T, class Want>
Output smallOutput(const DeviceBuffer<T>& buffer, size_t count, Want want, double allowed = 0) {
  return {buffer, count * sizeof(T), buffer.bytes(), [=](const void* got) {
            const T* const values = static_cast<const T*>(got);
            return compare(values, 1, count, 0, allowed, [&](size_t, size_t i) -> double { return want(i); });
          }};
}

// An output that the device compares alone at a large size.
template <class T, class Want>
Output largeOutput(const DeviceBuffer<T>& buffer, size_t count, Want want, double allowed = 0) {
  Output output = smallOutput(buffer, count, want, allowed);
  const T* const got = buffer;
  output.onDevice = [=](cudaStream_t stream) { return compareOnDevice(got, count, want, allowed, stream); };
  return output;
}

// Launches on poisoned memory and compares every element of the output. Where `ragged`, the CPU compares, and what lies
// past the output in its buffer must stay as it was; then the device compares too.
inline Verdict prove(const Output& output, const std::function<void(cudaStream_t)>& launch, const char* symbol,
    bool ragged, cudaStream_t stream) {
  const size_t bytes = ragged ? output.bufferBytes : output.bytes;
  poison(output.data, bytes, stream);
  launch(stream);
  finish(symbol, stream);
  Verdict verdict;
  if (ragged || !output.onDevice) {
    vector<double> host((bytes + sizeof(double) - 1) / sizeof(double));
    download(host.data(), output.data, bytes, stream);
    verdict = output.onCpu(host.data());
    const auto* const got = reinterpret_cast<const unsigned char*>(host.data());
    const auto* const past =
        std::find_if(got + output.bytes, got + bytes, [](unsigned char byte) { return byte != 0xFF; });
    if (verdict.wrong == 0 && past != got + bytes) {
      verdict.wrong = 1;
      verdict.message = "wrote " + to_string(past - got - output.bytes) + " bytes past the end of its output";
    }
  }
  if (output.onDevice && verdict.wrong == 0) {
    const double worst = verdict.worst;
    verdict = output.onDevice(stream);
    verdict.worst = std::max(verdict.worst, worst);
  }
  return verdict;
}

// ---- Timing

// Puts one launch into a stream. What is checked, timed and profiled is the same function.
using Launch = std::function<void(cudaStream_t)>;

// One launch of a kernel with its grid, its block, its dynamic shared memory in bytes and its arguments, which are
// converted to the kernel's own types here, once.
template <class... Parameters, class... Arguments>
Launch launchShared(
    void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t sharedBytes, const Arguments&... arguments) {
  const std::tuple<Parameters...> values(arguments...);
  return [=](cudaStream_t stream) {
    std::apply([&](const Parameters&... each) { kernel<<<grid, block, sharedBytes, stream>>>(each...); }, values);
  };
}

// The same without dynamic shared memory.
template <class... Parameters, class... Arguments>
Launch launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, const Arguments&... arguments) {
  return launchShared(kernel, grid, block, 0, arguments...);
}

// Times in milliseconds. Events resolve about half a microsecond, so a sample is a batch of launches.
struct Timing {
  double ms = 0, msMin = 0, msMax = 0;  // of one launch; ms is the median
  int samples = 0, batch = 0;  // batch: launches per sample

  double spreadPercent() const { return 100 * (msMax - msMin) / ms; }
};

// A sample takes a millisecond or more. Before the first, launches go on in windows of 5 ms until two of them agree
// within 1 %, or for a second: an idle card takes several to raise its clock. The number of samples is odd, so that the
// median is one of them.
constexpr double kSampleMs = 1, kWarmupWindowMs = 5, kWarmupLimitMs = 1000, kWarmupAgreement = 0.01;
constexpr int kSamples = 21;

// Times `count` launches back to back with events; returns milliseconds for one of them.
inline double timeBatch(cudaStream_t stream, const Event& begin, const Event& end, const Launch& launch, int count) {
  CUDA_CHECK(cudaEventRecord(begin, stream));
  for (int i = 0; i < count; ++i) launch(stream);
  CUDA_CHECK(cudaEventRecord(end, stream));
  CUDA_CHECK(cudaEventSynchronize(end));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  if (!std::isfinite(ms) || !(ms > 0))
    throw Stop{kExitFailed, "timing: " + to_string(count) + " launches took " + to_string(ms) + " ms, which cannot be"};
  return double(ms) / count;
}

// Launches until two successive windows agree; returns the milliseconds of one launch in the last.
inline double warmUp(cudaStream_t stream, const Event& begin, const Event& end, const Launch& launch) {
  double previous = timeBatch(stream, begin, end, launch, 1);
  for (double spent = previous; spent < kWarmupLimitMs;) {
    const int count = std::max(1, int(std::ceil(kWarmupWindowMs / previous)));
    const double now = timeBatch(stream, begin, end, launch, count);
    spent += now * count;
    if (std::fabs(now - previous) <= kWarmupAgreement * previous) return now;
    previous = now;
  }
  return previous;
}

// Times several launches against each other: each is warmed up, then they are sampled in turn (A B C A B C ...), so
// that clock drift meets all of them alike. Returns one Timing each, in order. A launch of a graph may stand for `each`
// launches of what is timed.
inline vector<Timing> measureInTurn(
    cudaStream_t stream, const vector<Launch>& launches, int samples = kSamples, int each = 1) {
  const Event begin;
  const Event end;
  vector<int> batches;
  vector<vector<double>> times(launches.size());
  for (const Launch& launch : launches)
    batches.push_back(std::max(1, int(std::ceil(kSampleMs / warmUp(stream, begin, end, launch)))));
  for (int sample = 0; sample < samples; ++sample)
    for (size_t i = 0; i < launches.size(); ++i)
      times[i].push_back(timeBatch(stream, begin, end, launches[i], batches[i]) / each);
  vector<Timing> timings;
  for (size_t i = 0; i < launches.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    timings.push_back({times[i][samples / 2], times[i].front(), times[i].back(), samples, batches[i] * each});
  }
  return timings;
}

// Times one launch alone.
inline Timing measure(cudaStream_t stream, const Launch& launch) { return measureInTurn(stream, {launch}).front(); }

// The rate of an amount of work in so many milliseconds, in billions a second.
inline double gigaPerSecond(double amount, double ms) { return amount / ms * 1e-6; }

// ---- Records

// Every table is rendered from one pass over its rows, as text, as JSON lines, or as both: its columns are declared
// once.

// What a cell holds: a number, a count, a truth, a text, or nothing, which is blank in the text and absent in the JSON
// line.
struct Value {
  Value() = default;
  Value(const char* text) : held(string(text)) {}
  Value(const string& text) : held(text) {}
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
  Value(Number number) {
    if constexpr (std::is_same_v<Number, bool>) {
      held = number;
    } else if constexpr (std::is_integral_v<Number>) {
      held = static_cast<long long>(number);
    } else {
      held = static_cast<double>(number);
    }
  }

  std::variant<std::monostate, bool, long long, double, string> held;
};

// One JSON object on one line, its keys in the order they are added (scripts/schema/row.schema.json has them all). "%g"
// prints a point whatever the user's locale, since no day calls setlocale.
class JsonLine {
 public:
  explicit JsonLine(const char* record) { add("record", record); }

  JsonLine& add(const char* key, const Value& value) {
    if (const string* text = std::get_if<string>(&value.held)) return raw(key, quoted(*text));
    if (const bool* truth = std::get_if<bool>(&value.held)) return raw(key, *truth ? "true" : "false");
    if (const long long* count = std::get_if<long long>(&value.held)) return raw(key, to_string(*count));
    if (const double* number = std::get_if<double>(&value.held)) {
      if (!std::isfinite(*number)) throw Stop{kExitFailed, string("JSON: '") + key + "' is not a finite number"};
      char digits[32];
      snprintf(digits, sizeof digits, "%.9g", *number);
      return raw(key, digits);
    }
    return *this;
  }

  string str() const { return "{" + body_ + "}"; }

 private:
  static string quoted(const string& text) {
    string result = "\"";
    for (const unsigned char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      char control[8] = {char(c)};
      if (c < 0x20) snprintf(control, sizeof control, "\\u%04x", c);
      result += control;
    }
    return result + "\"";
  }
  JsonLine& raw(const char* key, const string& value) {
    if (!body_.empty()) body_ += ',';
    body_ += string("\"") + key + "\":" + value;
    return *this;
  }

  string body_;
};

// Where a run's output goes: text to stdout, or with --json its JSON lines, and with --json-file these to a file beside
// the text. The file gets its name when all of the run is in it.
class Report {
 public:
  Report(const Program& program, const Options& options) : program_(program), options_(options) {
    if (options.jsonFile.empty()) return;
    errno = 0;
    file_.open(partial());
    requireFile();
  }
  ~Report() {
    if (!file_.is_open()) return;
    file_.close();
    std::remove(partial().c_str());
  }
  Report(const Report&) = delete;

  const Program& program() const { return program_; }
  const Options& options() const { return options_; }

  // Whether stdout gets text.
  bool text() const { return !options_.json; }

  // Prints text, as printf does, where stdout gets text.
#ifdef __GNUC__
  __attribute__((format(printf, 2, 3)))
#endif
  void
  say(const char* format, ...) const {
    if (!text()) return;
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    flushOutput();
  }

  // Writes one JSON line, where they are asked for.
  void line(const JsonLine& line) {
    if (options_.json) {
      printf("%s\n", line.str().c_str());
      flushOutput();
    }
    if (!file_.is_open()) return;
    errno = 0;
    file_ << line.str() << std::endl;
    requireFile();
  }

  // Gives the file of --json-file its name. What was there before is replaced.
  void keep() {
    if (!file_.is_open()) return;
    errno = 0;
    file_.close();
    if (!file_ || std::rename(partial().c_str(), options_.jsonFile.c_str()) != 0) {
      const int reason = errno;
      std::remove(partial().c_str());
      throw Stop{kExitFailed, "cannot write " + options_.jsonFile + ": " + std::strerror(reason)};
    }
  }

 private:
  string partial() const { return options_.jsonFile + ".part"; }
  void requireFile() {
    if (!file_) throw Stop{kExitFailed, "cannot write " + partial() + ": " + std::strerror(errno)};
  }

  const Program program_;
  const Options options_;
  std::ofstream file_;
};

// A column of a table. Its heading is its name and its unit.
template <class Row>
struct Column {
  const char* name;
  const char* unit;  // "" for none
  int width;  // at least so many characters, to the left if negative; 0: not in the text
  int decimals;  // of a number that is no count
  const char* key;  // in the JSON line; "": not in it
  std::function<Value(const Row&)> value;
};

// A table: its heading is printed at once, and each row as it comes.
template <class Row>
class Table {
 public:
  // `record` is what its JSON lines call themselves; "": it has none. `shown`: in the text too.
  Table(Report& report, const char* record, vector<Column<Row>> columns, bool shown = true)
      : report_(report), record_(record), columns_(std::move(columns)), shown_(shown && report.text()) {
    string line;
    for (const Column<Row>& column : columns_)
      if (column.width != 0) append(line, column, heading(column));
    print(line);
  }

  void add(const Row& row) const { add(row, record_); }

  // A row whose JSON line calls itself another record than those of the table.
  void add(const Row& row, const char* record) const {
    string line;
    JsonLine json(record);
    for (const Column<Row>& column : columns_) {
      const Value value = column.value(row);
      if (column.width != 0) append(line, column, shownAs(value, column.decimals));
      if (*column.key != '\0') json.add(column.key, value);
    }
    print(line);
    if (*record != '\0') report_.line(json);
  }

 private:
  static string heading(const Column<Row>& column) {
    return string(column.name) + (*column.unit == '\0' ? "" : " ") + column.unit;
  }
  static string shownAs(const Value& value, int decimals) {
    if (const string* text = std::get_if<string>(&value.held)) return *text;
    if (const bool* truth = std::get_if<bool>(&value.held)) return *truth ? "yes" : "no";
    if (const long long* count = std::get_if<long long>(&value.held)) return to_string(*count);
    char digits[64] = "";
    if (const double* number = std::get_if<double>(&value.held))
      snprintf(digits, sizeof digits, "%.*f", decimals, *number);
    return digits;
  }
  // Puts a cell at the end of a line, as wide as its column.
  static void append(string& line, const Column<Row>& column, const string& cell) {
    const size_t width = std::max<size_t>(std::abs(column.width), heading(column).size());
    const string blanks(width > cell.size() ? width - cell.size() : 0, ' ');
    line += (line.empty() ? "" : "  ") + (column.width < 0 ? cell + blanks : blanks + cell);
  }
  void print(const string& line) const {
    if (shown_) report_.say("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }

  Report& report_;
  const char* record_;
  vector<Column<Row>> columns_;
  bool shown_;
};

// The columns that every timed row has: `timingOf` gives the timing of a row.
template <class Row>
vector<Column<Row>> timingColumns(Timing (*timingOf)(const Row&)) {
  return {
      {"time", "ms", 9, 4, "ms", [=](const Row& row) { return timingOf(row).ms; }},
      {"spread", "%", 8, 1, "", [=](const Row& row) { return timingOf(row).spreadPercent(); }},
      {"", "", 0, 0, "ms_min", [=](const Row& row) { return timingOf(row).msMin; }},
      {"", "", 0, 0, "ms_max", [=](const Row& row) { return timingOf(row).msMax; }},
      {"", "", 0, 0, "samples", [=](const Row& row) { return timingOf(row).samples; }},
      {"", "", 0, 0, "batch", [=](const Row& row) { return timingOf(row).batch; }},
  };
}

// The columns of several lists, in order.
template <class Row>
vector<Column<Row>> join(const vector<vector<Column<Row>>>& lists) {
  vector<Column<Row>> all;
  for (const vector<Column<Row>>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// What was compared, and what came of it.
struct Check {
  int day;  // whose kernel it is
  string variant;
  const char* symbol;
  string size;
  Verdict verdict;

  bool ok() const { return verdict.wrong == 0; }
};

// The checks of a run: a table with --check, JSON lines in every mode that writes them, and what failed on stderr.
class Checks {
 public:
  explicit Checks(Report& report) : table_(report, "check", columns(), report.options().mode == Mode::kCheck) {}

  // Every buffer's red zones are looked at first. Returns how many checks failed, 0 or 1.
  int add(Check check) {
    Verdict& verdict = check.verdict;
    const string damage = redZoneDamage();
    if (!damage.empty()) {
      verdict.message += (verdict.wrong > 0 ? "; " : "") + damage;
      ++verdict.wrong;
    }
    if (!check.ok())
      fprintf(stderr, "FAILED %s (%s, %s): %zu of %zu wrong, %s\n", check.symbol, check.variant.c_str(),
          check.size.c_str(), verdict.wrong, verdict.checked, verdict.message.c_str());
    table_.add(check);
    (check.ok() ? passed_ : failed_) += 1;
    return !check.ok();
  }

  int passed() const { return passed_; }
  int failed() const { return failed_; }

 private:
  static vector<Column<Check>> columns() {
    return {
        {"kernel", "", -26, 0, "symbol", [](const Check& c) { return c.symbol; }},
        {"variant", "", -24, 0, "variant", [](const Check& c) { return c.variant; }},
        {"size", "", -24, 0, "size", [](const Check& c) { return c.size; }},
        {"values", "", 9, 0, "checked", [](const Check& c) { return c.verdict.checked; }},
        {"error", "% of allowed", 8, 1, "", [](const Check& c) { return 100 * c.verdict.worst; }},
        {"result", "", -6, 0, "", [](const Check& c) { return c.ok() ? "ok" : "FAILED"; }},
        {"", "", 0, 0, "day", [](const Check& c) { return c.day; }},
        {"", "", 0, 0, "ok", [](const Check& c) { return c.ok(); }},
        {"", "", 0, 0, "wrong", [](const Check& c) { return c.verdict.wrong; }},
        {"", "", 0, 0, "worst", [](const Check& c) { return c.verdict.worst; }},
        {"", "", 0, 0, "message", [](const Check& c) { return c.ok() ? Value() : c.verdict.message; }},
    };
  }

  Table<Check> table_;
  int passed_ = 0, failed_ = 0;
};

// Starts the report of a run with what ran, on what, built from what: a banner, and the record `run`.
inline void reportRun(Report& report, const Device& device) {
  const cudaDeviceProp& gpu = device.properties;
  const LoadedCode& code = device.code;
  report.say("%s%s (compute capability %d.%d), %d SMs, %.1f MiB L2\n", kOnCpu ? "" : "GPU: ", gpu.name, gpu.major,
      gpu.minor, gpu.multiProcessorCount, gpu.l2CacheSize / 1048576.0);
  if (!kOnCpu) report.say("%s, PCI %s\n", uuidText(gpu).c_str(), pciText(gpu).c_str());
  report.say("CUDA driver %s, runtime %s, code for sm_%d", cudaVersionText(device.driver).c_str(),
      cudaVersionText(device.runtime).c_str(), code.binary);
  if (code.translated())
    report.say(
        ", translated from compute_%d by the driver\nBuilt with -arch=%s, the program has all that this card offers.",
        code.ptx, archFlag(code.card).c_str());
  report.say("\n\n");

  char utc[24] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(utc, sizeof utc, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  JsonLine line("run");
  line.add("schema", 2).add("day", report.program().day).add("program", report.program().name);
  line.add("device", gpu.name).add("cc", to_string(gpu.major) + "." + to_string(gpu.minor));
  line.add("sms", gpu.multiProcessorCount).add("l2_bytes", gpu.l2CacheSize);
  line.add("driver", cudaVersionText(device.driver)).add("runtime", cudaVersionText(device.runtime));
  line.add("arch", "sm_" + to_string(code.binary)).add("ptx", "compute_" + to_string(code.ptx));
  line.add("backend", kOnCpu ? "cpu" : "cuda").add("max_clock_mhz", device.maxClockMhz);
  line.add("uuid", uuidText(gpu)).add("pci", pciText(gpu));
  line.add("revision", CUDA_DAYS_REVISION).add("flags", CUDA_DAYS_FLAGS).add("utc", utc);
  report.line(line);
}

// Stops where a rate is above what the hardware can do at all: then the time is wrong, or the count of work is.
inline void requirePossible(const string& what, double rate, double bound, const char* unit) {
  constexpr double kMargin = 1.02;  // of the clock's reading
  if (rate <= kMargin * bound) return;
  char text[160];
  snprintf(text, sizeof text, " reads %.1f %s, and this card cannot exceed %.1f: the time or the count is wrong", rate,
      unit, bound);
  throw Stop{kExitFailed, what + text};
}

// Runs body(report) and turns what it throws into a message on stderr and the exit code. SIGPIPE is ignored, so that a
// broken pipe is a failed write, and a closed stdout is refused, because the next file that anybody opens (the driver's
// own) would get its number.
template <class Body>
int runLesson(int argc, char** argv, const Program& program, Body body) {
#ifdef SIGPIPE
  std::signal(SIGPIPE, SIG_IGN);
#endif
  int exitCode = kExitFailed;
  string message;
  try {
    errno = 0;
    if (std::ftell(stdout) < 0 && errno == EBADF) throw Stop{kExitFailed, "stdout is closed"};
    const Options options = parseArguments(argc, argv, program);
    Report report(program, options);
    exitCode = body(report);
    report.keep();
    flushOutput();
  } catch (const Stop& stop) {
    exitCode = stop.exitCode;
    message = stop.message;
  } catch (const std::exception& error) {
    exitCode = kExitFailed;
    message = error.what();
  }
  if (std::fflush(stdout) != 0) exitCode = kExitFailed;
  if (!message.empty()) fprintf(stderr, "%s\n", message.c_str());
  return exitCode == kExitOk && releaseFailed ? kExitFailed : exitCode;
}
// end common: harness

// Ranges for a profiler's timeline. The toolkits of pip and conda may come without the header; then no range is marked.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
constexpr bool kRanges = true;
#else
constexpr bool kRanges = false;
inline int nvtxRangePushA(const char*) { return -1; }
inline int nvtxRangePop() { return -1; }
#endif

constexpr Program kProgram = {56, "graphs", "Day 56: what a CUDA graph gives back to a chain of four small kernels."};

// ---- The chain: its memory, and its kernels bound to it

constexpr int kBlock = 256;  // 4 blocks fill an SM of a T4, 8 one of an H200

constexpr int kCheckSize = 1048576 + 611;  // odd, 611 = 13 x 47: no launch shape covers it exactly
static_assert(kCheckSize % 2 == 1 && kCheckSize % kBlock != 0, "every guard runs, the float4's too");

// The sizes that are timed, in rising order. A size is added here, and nowhere else in the program.
constexpr int kTimedSizes[] = {1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24};
constexpr int kSizes = std::size(kTimedSizes);

constexpr int kSmallest = kTimedSizes[0];
constexpr int kSecond = kTimedSizes[1];  // to which a graph of the smallest is changed
// The greater ones differ from the first two in their grids alone, so compute-sanitizer does without them.
constexpr int kLargest = kForSanitizer ? kSecond : kTimedSizes[kSizes - 1];
static_assert(kSmallest % 4 == 0, "aligned float4 accesses");

// The memory of one size. Every stage has a buffer of its own, so that each can be checked.
struct Problem {
  Problem(int size, cudaStream_t stream) : n(size), x(n), residual(n) {
    fillDevice(x, inputX, stream);
    fillDevice(residual, inputResidual, stream);
    for (int stage = 0; stage < kStages; ++stage) outputs.emplace_back(n);
  }
  static size_t bytes(int n) { return (2 + kStages) * sizeof(float) * n; }

  int n;
  DeviceBuffer<float> x, residual;
  vector<DeviceBuffer<float>> outputs;
};

// One kernel with its arguments: launched, recorded, or set in a graph's node.
struct Step {
  const char* symbol;
  int stage;  // whose output it writes
  cudaKernelNodeParams node;
  Launch launch;
};

template <class... P>
struct Arguments {
  std::tuple<P...> values;
  std::array<void*, sizeof...(P)> addresses;  // of them, for a graph's node
};

// Binds a kernel. Its launch is the only one there is, and its status is looked at also where it is captured.
template <class... P, class... A>
Step makeStep(const char* symbol, int stage, void (*kernel)(P...), int threads, bool overlaps, const A&... given) {
  const auto held = std::make_shared<Arguments<P...>>();
  held->values = std::tuple<P...>(given...);
  std::apply([&](P&... each) { held->addresses = {&each...}; }, held->values);
  const int blocks = ceilDivide(threads, kBlock);
  Step step = {symbol, stage, {}, {}};
  step.node.func = reinterpret_cast<void*>(kernel);
  step.node.gridDim = dim3(blocks);
  step.node.blockDim = dim3(kBlock);
  step.node.kernelParams = held->addresses.data();
  step.launch = [=](cudaStream_t stream) {
    cudaError_t status = cudaSuccess;
    if (overlaps) {
      cudaLaunchAttribute overlap = {};
      overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      overlap.val.programmaticStreamSerializationAllowed = 1;
      const cudaLaunchConfig_t config = {dim3(blocks), dim3(kBlock), 0, stream, &overlap, 1};
      status = std::apply([&](P... each) { return cudaLaunchKernelEx(&config, kernel, each...); }, held->values);
    } else {
      std::apply([&](P... each) { kernel<<<blocks, kBlock, 0, stream>>>(each...); }, held->values);
    }
    if (status == cudaSuccess) status = cudaGetLastError();
    checkCuda(status, (string("launch of kernel ") + symbol).c_str(), __FILE__, __LINE__);
  };
  return step;
}

// The four kernels, in order: launches and captures walk this list, so they cannot drift apart.
template <int kWidth, bool kOverlap>
vector<Step> chainSteps(const Problem& at) {
  const auto step = [&](const char* symbol, int stage, auto kernel, const auto&... in) {
    return makeStep(symbol, stage, kernel, ceilDivide(at.n, kWidth), kOverlap, in..., at.outputs[stage], at.n);
  };
  return {
      step("applyScaleBias", 0, applyScaleBias<kWidth, kOverlap>, at.x),
      step("applyGelu", 1, applyGelu<kWidth, kOverlap>, at.outputs[0]),
      step("applyAddResidual", 2, applyAddResidual<kWidth, kOverlap>, at.outputs[1], at.residual),
      step("applyClampRange", 3, applyClampRange<kWidth, kOverlap>, at.outputs[2]),
  };
}

template <int kWidth>
vector<Step> fusedSteps(const Problem& at) {
  return {makeStep(
      "applyFused", 3, applyFused<kWidth>, ceilDivide(at.n, kWidth), false, at.x, at.residual, at.outputs[3], at.n)};
}

// ---- The graph

// A range on the timeline of a profiler, where the toolkit has NVTX; nothing otherwise.
class Range {
 public:
  explicit Range(const string& name) { nvtxRangePushA(name.c_str()); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
};

// snippet: graph
// A chain recorded by the constructor; instantiate() makes it launchable. A Stop in a capture is the end of the
// program, so nothing ends the capture then.
class Graph {
 public:
  Graph(const vector<Step>& steps, int chains, cudaStream_t stream) {
    const Range range("capture");
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int chain = 0; chain < chains; ++chain)
      for (const Step& step : steps) step.launch(stream);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    if (status != cudaStreamCaptureStatusActive)
      throw Stop{kExitFailed, string("kernel ") + steps.front().symbol + ": its capture ended before its end"};
    cudaGraph_t recorded = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(stream, &recorded));
    graph_ = {recorded, cudaGraphDestroy, "cudaGraphDestroy"};
  }

  void instantiate() {
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaGraphInstantiateWithFlags(&executable, graph_, 0));
    executable_ = {executable, cudaGraphExecDestroy, "cudaGraphExecDestroy"};
  }
  void upload(cudaStream_t stream) const { CUDA_CHECK(cudaGraphUpload(executable_, stream)); }
  void launch(cudaStream_t stream) const { CUDA_CHECK(cudaGraphLaunch(executable_, stream)); }

  // Gives nodesOf(steps) the grids and the arguments of these steps.
  void setParameters(const vector<cudaGraphNode_t>& of, const vector<Step>& steps) const {
    for (size_t i = 0; i < steps.size(); ++i)
      CUDA_CHECK(cudaGraphExecKernelNodeSetParams(executable_, of.at(i), &steps[i].node));
  }

  // The node of each step. CUDA does not say in which order it lists the nodes, so they are known by their kernel.
  vector<cudaGraphNode_t> nodesOf(const vector<Step>& steps) const {
    vector<cudaGraphNode_t> found;
    for (const Step& step : steps) {
      int count = 0;
      for (const Node& node : nodes())
        if (node.kernel.func == step.node.func && ++count == 1) found.push_back(node.handle);
      if (count != 1)
        throw Stop{kExitFailed, string("kernel ") + step.symbol + ": the graph does not hold it in exactly one node"};
    }
    return found;
  }

  // The nodes, with no function where one is no kernel.
  struct Node {
    cudaGraphNode_t handle;
    cudaKernelNodeParams kernel;
  };
  vector<Node> nodes() const {
    size_t count = 0;
    CUDA_CHECK(cudaGraphGetNodes(graph_, nullptr, &count));
    vector<cudaGraphNode_t> handles(count);
    CUDA_CHECK(cudaGraphGetNodes(graph_, handles.data(), &count));
    vector<Node> found;
    for (const cudaGraphNode_t handle : handles) {
      found.push_back({handle, {}});
      cudaGraphNodeType type = cudaGraphNodeTypeKernel;
      CUDA_CHECK(cudaGraphNodeGetType(handle, &type));
      if (type == cudaGraphNodeTypeKernel) CUDA_CHECK(cudaGraphKernelNodeGetParams(handle, &found.back().kernel));
    }
    return found;
  }

  size_t roots() const {
    size_t count = 0;
    CUDA_CHECK(cudaGraphGetRootNodes(graph_, nullptr, &count));
    return count;
  }

 private:
  Owned<cudaGraph_t> graph_;
  Owned<cudaGraphExec_t> executable_;
};
// end snippet: graph

// ---- The table: the variants, each a way to do the chain's work

// What a variant is for: it is what a graph replaces, the graph that the day is about, or what competes with that.
enum class Role { kBaseline, kSubject, kCompetitor };
enum class Start { kLaunches, kGraph };  // a call for each kernel, or one for all of them
enum class Kernels { kChain, kProgrammatic, kFused };  // the four, the four with programmatic launches, or one
struct Variant {
  const char* name;
  Role role;
  Start start;
  Kernels kernels;
  vector<Step> (*steps)(const Problem&);
  int chains;  // in one launch of it

  // Requested by one chain, per element: 8 + 8 + 12 + 8, or two reads and one write.
  constexpr double bytes() const { return kernels == Kernels::kFused ? 12 : 36; }
};

constexpr int kChains = 20;  // many chains in one graph
constexpr int kChainsUpTo = 1 << 18;  // above, submission hides behind the work

constexpr Variant kVariants[] = {
    {"launches", Role::kBaseline, Start::kLaunches, Kernels::kChain, chainSteps<1, false>, 1},
    {"graph", Role::kSubject, Start::kGraph, Kernels::kChain, chainSteps<1, false>, 1},
    {"programmatic launches", Role::kCompetitor, Start::kLaunches, Kernels::kProgrammatic, chainSteps<1, true>, 1},
    {"programmatic graph", Role::kCompetitor, Start::kGraph, Kernels::kProgrammatic, chainSteps<1, true>, 1},
    {"wide launches", Role::kCompetitor, Start::kLaunches, Kernels::kChain, chainSteps<4, false>, 1},
    {"wide graph", Role::kCompetitor, Start::kGraph, Kernels::kChain, chainSteps<4, false>, 1},
    {"wide programmatic graph", Role::kCompetitor, Start::kGraph, Kernels::kProgrammatic, chainSteps<4, true>, 1},
    {"20 chains in a graph", Role::kCompetitor, Start::kGraph, Kernels::kChain, chainSteps<1, false>, kChains},
    {"20 programmatic chains", Role::kCompetitor, Start::kGraph, Kernels::kProgrammatic, chainSteps<1, true>, kChains},
    {"fused launch", Role::kCompetitor, Start::kLaunches, Kernels::kFused, fusedSteps<1>, 1},
    {"fused graph", Role::kCompetitor, Start::kGraph, Kernels::kFused, fusedSteps<1>, 1},
    {"wide fused launch", Role::kCompetitor, Start::kLaunches, Kernels::kFused, fusedSteps<4>, 1},
};
static_assert(kChains == 20, "the names of two variants say 20");

constexpr const Variant& variantOf(Role role) {
  int i = 0;
  while (kVariants[i].role != role) ++i;
  return kVariants[i];
}
constexpr const Variant& kLaunches = variantOf(Role::kBaseline);
constexpr const Variant& kGraph = variantOf(Role::kSubject);
static_assert(kVariants[0].role == Role::kBaseline, "the others are checked against its bits, so it is checked first");

// The variants that can run at a size. A kernel that overlaps needs the wait of sm_90 in its code: code for an older
// card, translated by the driver, would not wait.
vector<Variant> variantsFor(int n, bool programmatic) {
  vector<Variant> variants;
  for (const Variant& variant : kVariants)
    if ((programmatic || variant.kernels != Kernels::kProgrammatic) && (variant.chains == 1 || n <= kChainsUpTo))
      variants.push_back(variant);
  return variants;
}

// A variant bound to a problem.
struct BoundVariant {
  BoundVariant(const Variant& of, const Problem& problem, cudaStream_t stream)
      : variant(of), at(problem), steps(of.steps(problem)) {
    if (variant.start == Start::kGraph) {
      graph = std::make_shared<Graph>(steps, variant.chains, stream);
      graph->instantiate();
      launch = [graph = graph](cudaStream_t s) { graph->launch(s); };
    } else {
      launch = [steps = steps](cudaStream_t s) {
        for (const Step& step : steps) step.launch(s);
      };
    }
  }

  Variant variant;
  const Problem& at;
  vector<Step> steps;
  std::shared_ptr<Graph> graph;
  Launch launch;
};

// Holds a stream until it is opened.
class Gate {
 public:
  void hold(cudaStream_t stream, long long patience = kPatience, bool opened = false) const {
    flags[0] = opened;
    flags[1] = kUntouched;
    launch(holdStream, 1, 1, flags, flags + 1, patience)(stream);
    CUDA_CHECK(cudaGetLastError());
  }
  void open() const { static_cast<volatile int*>(flags)[0] = 1; }
  int state() const { return static_cast<volatile int*>(flags)[1]; }

  const PinnedBuffer<int> flags{2};
};

// A copy that streams from DRAM: its rate is the floor of every variant.
struct Copy {
  explicit Copy(const cudaDeviceProp& gpu) : in(bytes(gpu) / sizeof(float)), out(in.count()) {}
  static size_t bytes(const cudaDeviceProp& gpu) { return std::max(size_t(64) << 20, size_t(4) * gpu.l2CacheSize); }
  void operator()(cudaStream_t stream) const {
    CUDA_CHECK(cudaMemcpyAsync(out, in, out.bytes(), cudaMemcpyDeviceToDevice, stream));
  }

  DeviceBuffer<float> in, out;
};

// ---- Checking

constexpr long long kShortPatience = 1 << 20;

constexpr double kRelative = 1e-5, kAbsolute = 1e-6;

constexpr int kCycles = 1000;  // captured, instantiated and destroyed, to see a leak
// Rounds of so many graphs each, of which a leak shows in most. compute-sanitizer sees leaks without them.
constexpr int kLeakRounds = kForSanitizer ? 1 : 5;
constexpr size_t kGranularity = size_t(2) << 20;  // in which the driver takes memory

// Waits for what was launched, and names it in an error.
void synchronize(cudaStream_t stream, const string& what) {
  checkCuda(cudaStreamSynchronize(stream), what.c_str(), __FILE__, __LINE__);
}

class Checker {
 public:
  Checker(Report& report, cudaStream_t stream, int largest)
      : report_(report), checks_(report), stream_(stream), staging_(largest) {}

  int failed() const { return checks_.failed(); }

  // Returns whether all checks passed, and says what that means.
  bool checkAll(const vector<Problem>& problems, const Gate& gate, const Copy& copy, bool programmatic) {
    const Problem odd(kCheckSize, stream_);
    checkVariants(odd, programmatic);
    checkUpdate(odd, problems.front());
    checkGate(gate);
    checkCopy(copy);
    checkLeaks(problems.front());
    for (const Problem& at : problems) checkVariants(at, programmatic);
    if (failed() > 0) {
      fprintf(stderr, "%d checks FAILED, so no times are printed\n", failed());
      return false;
    }
    const int largest = problems.back().n;
    report_.say(
        "All variants match the reference at every stage, n = %d and %d to %d, and the launches bit for bit\n"
        "(fused kernels: %.1f %% of the elements have other bits, within the tolerance). Each capture holds\n"
        "what was launched: kernels alone, one root, every grid and block. %d graphs left no memory behind.\n\n",
        kCheckSize, kSmallest, largest, 100.0 * otherBits_ / largest, kLeakRounds * kCycles);
    return true;
  }

  // Each variant on poisoned memory: the launches against the reference, the others against their bits.
  void checkVariants(const Problem& at, bool programmatic) {
    const Range range("check " + to_string(at.n));
    bits_.clear();
    for (const Variant& variant : variantsFor(at.n, programmatic)) {
      const BoundVariant bound(variant, at, stream_);
      if (bound.graph && !checkRecording(bound)) continue;
      poisonOutputs(at);
      bound.launch(stream_);
      synchronize(stream_, string("the variant ") + variant.name);
      checkOutputs(at, bound.steps, variant, variant.name);
    }
  }

  // A graph given the size and the memory of another problem writes that, and nothing where it was captured.
  void checkUpdate(const Problem& from, const Problem& to) {
    const char* name = "graph, parameters set";
    const vector<Step> before = kGraph.steps(from);
    const vector<Step> after = kGraph.steps(to);
    Graph graph(before, 1, stream_);
    graph.instantiate();
    graph.setParameters(graph.nodesOf(before), after);
    poisonOutputs(from);
    poisonOutputs(to);
    graph.launch(stream_);
    synchronize(stream_, name);
    const size_t n = from.n;
    const vector<char> untouched(n * sizeof(float), char(0xFF));
    for (const Step& step : before) {
      download(staging_, from.outputs[step.stage], untouched.size(), stream_);
      if (std::memcmp(staging_, untouched.data(), untouched.size()) != 0)
        return add(step.symbol, name, from.n, {n, n, 0, "got writes where the graph was captured: a stale pointer"});
    }
    bits_.clear();
    checkOutputs(to, after, kGraph, name);
  }

  // Many captures leave device memory as it was. What is free is told for the whole card, so that what another process
  // takes meanwhile is lost too: a leak is what most rounds lose.
  void checkLeaks(const Problem& at) {
    const vector<Step> steps = kGraph.steps(at);
    const auto freeAfter = [&](int graphs) {
      for (int i = 0; i < graphs; ++i) Graph(steps, 1, stream_).instantiate();
      size_t free = 0, total = 0;
      CUDA_CHECK(cudaMemGetInfo(&free, &total));
      return static_cast<long long>(free);
    };
    long long before = freeAfter(kCycles / 10);  // by then the driver's pools are full
    size_t losses = 0;
    string lost;
    for (int round = 0; round < kLeakRounds; ++round) {
      const long long after = freeAfter(kCycles);
      losses += before - after > static_cast<long long>(kGranularity);
      lost += (round > 0 ? ", " : "") + to_string((before - after) / 1024);
      before = after;
    }
    Verdict verdict = {kLeakRounds, 0, 0, ""};
    if (2 * losses > kLeakRounds)
      verdict = {
          kLeakRounds, losses, 0, "rounds of " + to_string(kCycles) + " graphs lost " + lost + " KiB of device memory"};
    add("cudaGraphExecDestroy", "captured, destroyed", at.n, verdict);
  }

  // What holds the stream gives up when it is not told to open, and opens when it is.
  void checkGate(const Gate& gate) {
    Verdict verdict;
    for (const GateState want : {kTimedOut, kReleased}) {
      gate.hold(stream_, kShortPatience, want == kReleased);
      synchronize(stream_, "kernel holdStream");
      const int got = gate.state();
      ++verdict.checked;
      if (got != want) verdict.message = "got state " + to_string(got) + ", want " + to_string(want);
      verdict.wrong += got != want;
    }
    add("holdStream", "gate", 1, verdict);
  }

  void checkCopy(const Copy& copy) {
    const auto copied = [](size_t i) { return inputX(int(i)); };
    fillDevice(copy.in, copied, stream_);
    const Output output = smallOutput(copy.out, copy.out.count(), copied);
    const Verdict verdict = prove(output, std::cref(copy), "cudaMemcpyAsync", false, stream_);
    add("cudaMemcpyAsync", "ceiling-copy", int(copy.out.count()), verdict);
  }

 private:
  void poisonOutputs(const Problem& at) {
    for (const DeviceBuffer<float>& output : at.outputs) poison(output, output.bytes(), stream_);
  }

  // The graph holds what was launched and nothing else: kernels alone, one node per launch with its grid and block, one
  // of them the root.
  bool checkRecording(const BoundVariant& bound) {
    const auto shape = [](const cudaKernelNodeParams& p) {
      return to_string(p.gridDim.x * p.gridDim.y) + " blocks of " + to_string(p.blockDim.x * p.blockDim.y);
    };
    const vector<Graph::Node> nodes = bound.graph->nodes();
    const size_t wanted = bound.variant.chains * bound.steps.size(), roots = bound.graph->roots();
    const char* symbol = bound.steps.front().symbol;
    Verdict verdict = {wanted, nodes.size() != wanted || roots != 1, 0,
        "got " + to_string(nodes.size()) + " nodes and " + to_string(roots) + " roots in the capture, want " +
            to_string(wanted) + " and 1"};
    for (const Step& step : bound.steps) {
      const auto same = [&](const Graph::Node& node) {
        return node.kernel.func == step.node.func && shape(node.kernel) == shape(step.node);
      };
      const auto found = std::count_if(nodes.begin(), nodes.end(), same);
      if (found == bound.variant.chains) continue;
      verdict.wrong = 1;
      symbol = step.symbol;
      verdict.message += ", and it has " + to_string(found) + " such kernels of " + shape(step.node);
      break;
    }
    if (verdict.wrong > 0) add(symbol, bound.variant.name, bound.at.n, verdict);
    return verdict.wrong == 0;
  }

  // Names the kernel that wrote outside of a buffer: a red zone is compared after a whole chain, so the kernels are
  // launched once more, one by one. Where none does it alone, the first stands for the chain.
  const char* whoDamages(const vector<Step>& steps) {
    for (const Step& step : steps) {
      step.launch(stream_);
      synchronize(stream_, string("kernel ") + step.symbol);
      if (!redZoneDamage().empty()) return step.symbol;
    }
    return steps.front().symbol;
  }

  // Checks every stage up to the first that is wrong: those after it pass its fault on.
  void checkOutputs(const Problem& at, const vector<Step>& steps, const Variant& variant, const char* name) {
    const size_t n = at.n;
    const string damage = redZoneDamage();
    if (!damage.empty()) return add(whoDamages(steps), name, at.n, {n, 1, 0, damage});
    for (const Step& step : steps) {
      download(staging_, at.outputs[step.stage], n * sizeof(float), stream_);
      const Verdict verdict = checkStage(step.stage, n, variant.kernels == Kernels::kFused);
      add(step.symbol, name, at.n, verdict);
      if (verdict.wrong > 0) break;
      if (variant.role != Role::kBaseline) continue;
      launched_[step.stage] = verdict;
      bits_.emplace_back(static_cast<float*>(staging_), staging_ + n);
    }
  }

  // Checks the output of a stage. Where it has the bits of the launches, it has their verdict too; others are right in
  // the fused kernels alone.
  Verdict checkStage(int stage, size_t n, bool fused) {
    const auto want = [=](size_t, size_t i) { return reference(stage, int(i)); };
    const bool known = bits_.size() == kStages;
    if (known && std::memcmp(bits_[stage].data(), staging_, n * sizeof(float)) == 0) return launched_[stage];
    const Verdict verdict = compare<float>(staging_, 1, n, kRelative, kAbsolute, want);
    if (!known || verdict.wrong > 0) return verdict;
    size_t other = 0;
    for (size_t i = 0; i < n; ++i) other += std::memcmp(&bits_[stage][i], &staging_[i], sizeof(float)) != 0;
    if (!fused) return {n, other, verdict.worst, "got other bits than the launches"};
    otherBits_ = std::max(otherBits_, other);
    return verdict;
  }

  void add(const char* symbol, const char* variant, int n, const Verdict& verdict) {
    checks_.add({kProgram.day, variant, symbol, to_string(n), verdict});
  }

  Report& report_;
  Checks checks_;
  cudaStream_t stream_;
  PinnedBuffer<float> staging_;
  vector<vector<float>> bits_;  // of the launches, per stage
  std::array<Verdict, kStages> launched_;
  size_t otherBits_ = 0;  // elements of fused outputs that are not the chain's bits, at the largest size
};

// ---- Measuring

// A sample is a batch of whole-chain iterations, fewer where the chain takes long.
constexpr int kBatch = 20;
constexpr double kBatchMs = 2;
constexpr int kRounds = 16;  // A B B A: two samples of each, so 32 pairs
constexpr int kWarmRounds = 2;  // rounds before them that do not count
static_assert(kBatch % kChains == 0, "a sample is whole graphs");

// Two variants are told apart where the whole interval of their paired difference lies beyond kMargin of the median.
// Most times on the GPU differ by less than that from one run to the next; what the host's pace bounds differs by far
// more.
constexpr double kMargin = 0.01;
constexpr double kRunError = 0.001;  // the chance that any interval of a run's verdicts misses the true median

constexpr int kAttempts = 3;  // a sample is taken anew where the host was away for so long that the gate gave up
constexpr int kModelChains[] = {1, 5, 25};  // graphs of 4, 20 and 100 nodes
constexpr int kModelBatch = 8;
constexpr int kFresh = 32;  // fresh graphs for the bill

// What an SM can request in a clock, a float for each of 32 lanes. No card from the T4 to Blackwell does more.
constexpr double kBytesPerClock = 128;

// Microseconds of the host's clock since it was last read, or since it was started.
struct Stopwatch {
  using Clock = std::chrono::steady_clock;
  double lap() {
    const Clock::time_point before = std::exchange(last, Clock::now());
    return std::chrono::duration<double, std::micro>(last - before).count();
  }
  Clock::time_point last = Clock::now();
};

// Samples in microseconds, sorted.
struct Summary {
  explicit Summary(vector<double> samples) : sorted(std::move(samples)) { std::sort(sorted.begin(), sorted.end()); }

  // 0 gives the least, 1 the greatest, and what lies between two samples is between them.
  double at(double q) const {
    const double place = q * (sorted.size() - 1);
    const size_t below = size_t(place), above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
  }
  double median() const { return at(0.5); }

  vector<double> sorted;
};

// The three times of an iteration.
enum Quantity { kSubmission, kGpu, kEndToEnd };
constexpr const char* kQuantities[] = {"submission", "gpu", "end to end"};
constexpr int kTimes = std::size(kQuantities);

// snippet: interval
// The chance of at most `heads` heads in so many tosses of a fair coin.
constexpr double chanceOfAtMost(int heads, int tosses) {
  double term = 1, sum = 0;
  for (int i = 0; i < tosses; ++i) term /= 2;
  for (int k = 0; k <= heads; ++k) {
    sum += term;
    term *= double(tosses - k) / (k + 1);
  }
  return sum;
}

// The rank of the interval's ends: the greatest that keeps the chance of a miss within `error`.
constexpr int rankFor(int pairs, double error) {
  int rank = 0;
  while (2 * chanceOfAtMost(rank, pairs) <= error) ++rank;
  return rank;
}

constexpr int kPairs = 2 * kRounds;
// Graph against launches and the control, in three times, at every size: all of them together may err by kRunError.
constexpr int kVerdicts = 2 * kTimes * kSizes;
constexpr int kRank = rankFor(kPairs, kRunError / kVerdicts);
static_assert(kRank > 0, "more rounds are needed for so small an error");

// What a variant saves against another: the median of the paired differences, and its interval, from the kRank-th
// smallest difference to the kRank-th largest. It misses the true median only where fewer than kRank pairs lie on one
// side of it. Each pair lies on either side like a tossed coin, whatever the noise looks like, as long as pairs do not
// depend on each other: so the chance of a miss is known exactly, and no resampling is needed.
struct PairedDifference {
  PairedDifference(const vector<double>& other, const vector<double>& variant) : us(variant), otherUs(other) {
    vector<double> each;
    for (size_t i = 0; i < variant.size(); ++i) each.push_back(other[i] - variant[i]);
    const Summary differences(each);
    saved = differences.median();
    low = differences.sorted.at(kRank - 1);
    high = differences.sorted.at(each.size() - kRank);
    const double margin = kMargin * otherUs.median();
    faster = low > margin ? 1 : high < -margin ? -1 : 0;
  }

  Summary us, otherUs;  // of the two by themselves
  double saved, low, high;
  int faster;  // 1: the variant, -1: the other, 0: indistinguishable
};
// end snippet: interval

// A variant against another, in one of the three times: the graph against the launches, these against themselves as a
// control, or a competitor against the graph.
struct Comparison : PairedDifference {
  bool isControl() const { return variant.role == Role::kBaseline; }
  bool isNoise() const { return isControl() && faster != 0; }
  // A control has no winner: where a variant is told from itself, something disturbed the samples. That is told beside
  // the verdicts and fails nothing, because a check of results it is not.
  const char* verdict() const {
    if (faster == 0) return "indistinguishable";
    if (isNoise()) return "noise";
    return faster > 0 ? variant.name : other.name;
  }

  // Stops at a rate that no card can have.
  void requirePossibleRates(double maxGbps) const {
    const auto require = [&](const Variant& its, const Summary& time) {
      const string what = string(its.name) + ", n = " + to_string(n) + ", " + kQuantities[quantity];
      requirePossible(what, its.bytes() * n / time.median() * 1e-3, maxGbps, "GB/s");
    };
    if (quantity == kSubmission) return;  // the host's clock sees no bytes move
    require(variant, us);
    require(other, otherUs);
  }

  int n, quantity, batch;
  Variant variant, other;
};

// What samples are taken with.
struct Sampler {
  cudaStream_t stream;
  const Gate& gate;
  double maxGbps;  // what the SMs can request, all of them in every clock
  Event begin, end;
};
using Times = std::array<double, kTimes>;

// snippet: sample
// Behind the gate the host's clock sees submission alone, and the events the GPU alone: all its work waits in the
// queue. Then both, on an empty queue.
Times sample(const Launch& launch, int launches, int iterations, const Sampler& with) {
  double submitted = 0;
  for (int attempt = 1;; ++attempt) {
    with.gate.hold(with.stream);
    CUDA_CHECK(cudaEventRecord(with.begin, with.stream));
    Stopwatch stopwatch;
    for (int i = 0; i < launches; ++i) launch(with.stream);
    submitted = stopwatch.lap();
    CUDA_CHECK(cudaEventRecord(with.end, with.stream));
    with.gate.open();
    CUDA_CHECK(cudaEventSynchronize(with.end));
    if (with.gate.state() == kReleased) break;
    if (attempt == kAttempts)
      throw Stop{kExitFailed,
          "timing: the gate gave up " + to_string(kAttempts) + " times: " + to_string(launches) +
              " launches did not fit in the queue, or each of them waited for its kernel (a debugger or a profiler?)"};
  }
  float gpuMs = 0;
  CUDA_CHECK(cudaEventElapsedTime(&gpuMs, with.begin, with.end));
  const double endToEndMs = timeBatch(with.stream, with.begin, with.end, launch, launches) * launches;
  return {submitted / iterations, 1e3 * gpuMs / iterations, 1e3 * endToEndMs / iterations};
}

// Two variants, A B B A, so that clock drift meets both alike: a comparison in each of the three times.
void compareVariants(const BoundVariant& variant, const BoundVariant& other, int batch, const Sampler& with,
    vector<Comparison>& comparisons) {
  vector<double> samples[2][kTimes];
  for (int round = -kWarmRounds; round < kRounds; ++round) {
    for (const int which : {0, 1, 1, 0}) {
      const BoundVariant& bound = which == 0 ? other : variant;
      const int launches = ceilDivide(batch, bound.variant.chains);
      const Times times = sample(bound.launch, launches, launches * bound.variant.chains, with);
      for (int t = 0; t < kTimes && round >= 0; ++t) samples[which][t].push_back(times[t]);
    }
  }
  for (int t = 0; t < kTimes; ++t) {
    comparisons.push_back({{samples[0][t], samples[1][t]}, variant.at.n, t, batch, variant.variant, other.variant});
    comparisons.back().requirePossibleRates(with.maxGbps);
  }
}
// end snippet: sample

// What a graph costs before it saves anything, or a change of it costs, by the host's clock.
struct Cost {
  const char* item;
  bool upFront;  // due before a graph can be launched
  int n, batch;
  Summary us;
};

// An item of a bill, or what is done between two and not timed.
enum class Due { kUpFront, kLater, kUntimed };
struct Item {
  Due due;
  const char* name;
  std::function<void()> work;
};

// Does the items in order, and all of them so many times. The first time pays what the driver does once.
void measureCosts(int n, const vector<Item>& items, vector<Cost>& costs) {
  vector<vector<double>> samples(items.size());
  for (int fresh = -1; fresh < kFresh; ++fresh) {
    Stopwatch stopwatch;
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].work();
      const double us = stopwatch.lap();
      if (fresh >= 0) samples[i].push_back(us);
    }
  }
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].due != Due::kUntimed)
      costs.push_back({items[i].name, items[i].due == Due::kUpFront, n, 1, Summary(samples[i])});
}

// Launches a graph, until its work is done.
void launchAndWait(const Graph& graph, cudaStream_t stream) {
  graph.launch(stream);
  synchronize(stream, "graph");
}

// Over fresh graphs, on an idle stream.
void measureBill(const Problem& at, cudaStream_t stream, vector<Cost>& costs) {
  const vector<Step> steps = kGraph.steps(at);
  std::optional<Graph> graph, cold;
  const vector<Item> items = {
      {Due::kUpFront, "capture", [&] { graph.emplace(steps, 1, stream); }},
      {Due::kUpFront, "instantiate", [&] { graph->instantiate(); }},
      {Due::kUpFront, "upload", [&] { graph->upload(stream), synchronize(stream, "upload"); }},
      {Due::kLater, "first launch, uploaded", [&] { launchAndWait(*graph, stream); }},
      {Due::kLater, "later launch", [&] { launchAndWait(*graph, stream); }},
      {Due::kUntimed, "another graph", [&] { cold.emplace(steps, 1, stream).instantiate(); }},
      {Due::kLater, "first launch, not uploaded", [&] { launchAndWait(*cold, stream); }},
      {Due::kUntimed, "the end of both", [&] { graph.reset(), cold.reset(); }},
  };
  measureCosts(at.n, items, costs);
}

// From one size and memory to another and back, until the result is there, in two ways.
void measureUpdates(const Problem& one, const Problem& two, cudaStream_t stream, vector<Cost>& costs) {
  vector<Step> now = kGraph.steps(one), wanted = kGraph.steps(two);
  Graph graph(now, 1, stream);
  graph.instantiate();
  const vector<cudaGraphNode_t> nodes = graph.nodesOf(now);
  std::optional<Graph> again;
  const auto captureAnew = [&] { again.emplace(wanted, 1, stream).instantiate(); };
  const vector<Item> items = {
      {Due::kLater, "launch, nothing changed", [&] { launchAndWait(graph, stream); }},
      {Due::kLater, "set parameters, launch",
          [&] { graph.setParameters(nodes, wanted), launchAndWait(graph, stream); }},
      {Due::kLater, "capture anew, launch", [&] { captureAnew(), launchAndWait(*again, stream); }},
      {Due::kUntimed, "the other way", [&] { again.reset(), std::swap(now, wanted); }},
  };
  measureCosts(one.n, items, costs);
}

// The launch of a graph, in one of the three times, as fixed + perNode x nodes: the line through the smallest graph and
// the largest, and how far the one between lies off it.
struct Model {
  int n, quantity;
  std::array<double, std::size(kModelChains)> us;  // medians

  static constexpr double nodes(int graph) { return kStages * kModelChains[graph]; }
  double perNode() const { return (us[2] - us[0]) / (nodes(2) - nodes(0)); }
  double fixed() const { return us[0] - nodes(0) * perNode(); }
  double off() const { return std::fabs(us[1] - fixed() - nodes(1) * perNode()); }
};

vector<Model> measureModels(const Problem& at, const Sampler& with) {
  vector<Model> models;
  for (int t = 0; t < kTimes; ++t) models.push_back({at.n, t, {}});
  for (size_t graph = 0; graph < std::size(kModelChains); ++graph) {
    Variant variant = kGraph;
    variant.chains = kModelChains[graph];
    const BoundVariant bound(variant, at, with.stream);
    vector<double> samples[kTimes];
    for (int i = -2 * kWarmRounds; i < 2 * kRounds; ++i) {
      const Times times = sample(bound.launch, kModelBatch, kModelBatch, with);
      for (int t = 0; t < kTimes && i >= 0; ++t) samples[t].push_back(times[t]);
    }
    for (Model& model : models) model.us[graph] = Summary(samples[model.quantity]).median();
  }
  return models;
}

// All that a run measures.
struct Results {
  using Is = bool (Comparison::*)() const;
  long count(Is what) const { return std::count_if(comparisons.begin(), comparisons.end(), std::mem_fn(what)); }
  // The same comparison in another of the three times.
  const Comparison& find(const Comparison& same, int quantity) const {
    const auto is = [&](const Comparison& row) {
      return row.n == same.n && row.quantity == quantity && row.variant.name == same.variant.name &&
          row.other.name == same.other.name;
    };
    return *std::find_if(comparisons.begin(), comparisons.end(), is);
  }
  // Iterations after which a graph has saved what is due up front; 0: never.
  int breakEven(const Comparison& saving) const {
    double price = 0;
    for (const Cost& cost : costs) price += cost.upFront && cost.n == saving.n ? cost.us.median() : 0;
    return saving.faster > 0 ? int(std::ceil(price / saving.saved)) : 0;
  }
  double copyGbps() const { return gigaPerSecond(copyBytes, copy.ms); }
  double floorUs(int n) const { return kLaunches.bytes() * n / copyGbps() * 1e-3; }

  int l2Bytes = 0;
  double copyBytes = 0;
  Timing copy;
  vector<Comparison> comparisons;
  vector<Cost> costs;
  vector<Model> models;
};

// At each size: graph against launches, launches against themselves, all other variants against the graph.
Results measureAll(const vector<Problem>& problems, bool programmatic, const Copy& copy, const Device& device,
    const Gate& gate, cudaStream_t stream) {
  const cudaDeviceProp& gpu = device.properties;
  Results results;
  results.l2Bytes = gpu.l2CacheSize;
  results.copyBytes = 2.0 * copy.out.bytes();
  results.copy = measure(stream, std::cref(copy));
  const double maxGbps = gpu.multiProcessorCount * kBytesPerClock * device.maxClockMhz * 1e-3;
  requirePossible("cudaMemcpy", results.copyGbps(), maxGbps, "GB/s");
  const Sampler with = {stream, gate, maxGbps, {}, {}};
  for (const Problem& at : problems) {
    const BoundVariant launches(kLaunches, at, stream), graph(kGraph, at, stream);
    const int fit = int(kBatchMs / warmUp(stream, with.begin, with.end, graph.launch));
    const int batch = std::min(kBatch, std::max(1, fit));
    compareVariants(graph, launches, batch, with, results.comparisons);
    compareVariants(launches, launches, batch, with, results.comparisons);
    for (const Variant& variant : variantsFor(at.n, programmatic))
      if (variant.role == Role::kCompetitor)
        compareVariants({variant, at, stream}, graph, batch, with, results.comparisons);
    measureBill(at, stream, results.costs);
  }
  measureUpdates(problems[0], problems[1], stream, results.costs);
  results.models = measureModels(problems.front(), with);
  return results;
}

// Every variant once at every size, each in a range of its own.
void profile(const vector<Problem>& problems, bool programmatic, cudaStream_t stream) {
  for (const Problem& at : problems) {
    for (const Variant& variant : variantsFor(at.n, programmatic)) {
      if (variant.chains > 1) continue;
      const BoundVariant bound(variant, at, stream);
      if (bound.graph) bound.graph->upload(stream);
      synchronize(stream, "upload");
      const Range range(variant.name);
      bound.launch(stream);
      synchronize(stream, string("the variant ") + variant.name);
    }
  }
}

// ---- Report

// A column of a record that is the same in all its lines.
template <class Row>
Column<Row> same(const char* key, const Value& value) {
  return {"", "", 0, 0, key, [=](const Row&) { return value; }};
}

// The columns of rows of samples: microseconds in the text, and in a record the milliseconds of every timed row too.
template <class Row>
vector<Column<Row>> sampleColumns(const char* median = "median") {
  vector<Column<Row>> records = timingColumns<Row>([](const Row& row) {
    const Summary& us = row.us;
    return Timing{us.median() * 1e-3, us.at(0) * 1e-3, us.at(1) * 1e-3, int(us.sorted.size()), row.batch};
  });
  for (Column<Row>& column : records) column.width = 0;
  const vector<Column<Row>> columns = {same<Row>("day", kProgram.day), same<Row>("metric", "us"),
      same<Row>("unit", "us"), {median, "us", 9, 2, "value", [](const Row& row) { return row.us.median(); }},
      {"p5", "us", 8, 2, "p5", [](const Row& row) { return row.us.at(0.05); }},
      {"p95", "us", 8, 2, "p95", [](const Row& row) { return row.us.at(0.95); }}};
  return join<Row>({columns, records});
}

// The columns that tell one comparison from another: the time is one of three in a verdict's row. A competitor's row is
// of all three: its own is end to end, and the other two stand beside it.
vector<Column<Comparison>> nameColumns(const Results& results, bool withVerdicts) {
  using Row = const Comparison&;
  const auto median = [&](Row row, int quantity) { return results.find(row, quantity).us.median(); };
  const int ofVerdicts = withVerdicts ? 1 : 0, ofCompetitors = 1 - ofVerdicts;
  return {
      {"n", "", 8, 0, "n", [](Row row) { return row.n; }},
      {"quantity", "", -10 * ofVerdicts, 0, "quantity", [](Row row) { return kQuantities[row.quantity]; }},
      {"variant", "", withVerdicts ? -8 : -23, 0, "variant", [](Row row) { return row.variant.name; }},
      {"submission", "us", 10 * ofCompetitors, 2, "", [=](Row row) { return median(row, kSubmission); }},
      {"gpu", "us", 8 * ofCompetitors, 2, "", [=](Row row) { return median(row, kGpu); }},
  };
}

// What a comparison found. A verdict's row has the other's median, what the graph pays back and the verdict as well.
vector<Column<Comparison>> findingColumns(const Results& results, bool withVerdicts) {
  using Row = const Comparison&;
  const auto onGpu = [](Row row, const Value& value) { return row.quantity == kGpu ? value : Value(); };
  const auto overFloor = [&](Row row) { return row.us.median() / results.floorUs(row.n); };
  const auto fitsL2 = [&](Row row) { return Problem::bytes(row.n) <= size_t(results.l2Bytes); };
  const auto shownOverFloor = [=, &results](Row row) {
    return withVerdicts ? onGpu(row, overFloor(row)) : overFloor(results.find(row, kGpu));
  };
  const auto paysAfter = [&](Row row, const Value& never) {
    if (row.variant.role != Role::kSubject || row.quantity != kEndToEnd) return Value();
    const int iterations = results.breakEven(row);
    return iterations > 0 ? Value(iterations) : never;
  };
  const int ofVerdicts = withVerdicts ? 1 : 0;
  return {
      {"against", "", -8 * ofVerdicts, 0, "against", [](Row row) { return row.other.name; }},
      {"its median", "us", 13 * ofVerdicts, 2, "against_us", [](Row row) { return row.otherUs.median(); }},
      {"speedup", "", 7, 2, "", [](Row row) { return row.otherUs.median() / row.us.median(); }},
      {"saved", "us", 8, 2, "saved_us", [](Row row) { return row.saved; }},
      {"low", "us", 8, 2, "saved_low_us", [](Row row) { return row.low; }},
      {"high", "us", 8, 2, "saved_high_us", [](Row row) { return row.high; }},
      {"x floor", "", 7, 2, "", shownOverFloor},
      {"", "", 0, 0, "times_floor", [=](Row row) { return onGpu(row, overFloor(row)); }},
      {"in L2", "", -5, 0, "", fitsL2},
      {"", "", 0, 0, "fits_l2", [=](Row row) { return onGpu(row, fitsL2(row)); }},
      {"pays after", "", 10 * ofVerdicts, 0, "", [=](Row row) { return paysAfter(row, "never"); }},
      {"", "", 0, 0, "break_even", [=](Row row) { return paysAfter(row, Value()); }},
      {"verdict", "", -17 * ofVerdicts, 0, withVerdicts ? "verdict" : "", [](Row row) { return row.verdict(); }},
  };
}

// All comparisons are recorded; of the competitors' the text has a row for all three times.
void reportComparisons(Report& report, const Results& results, bool withVerdicts) {
  const vector<Column<Comparison>> columns = join<Comparison>({nameColumns(results, withVerdicts),
      sampleColumns<Comparison>(withVerdicts ? "median" : "end to end"), findingColumns(results, withVerdicts)});
  const Table<Comparison> table(report, "path", columns), unshown(report, "path", columns, false);
  for (const int quantity : {kEndToEnd, kGpu, kSubmission})
    for (const Comparison& row : results.comparisons)
      if (row.quantity == quantity && withVerdicts == (row.variant.role != Role::kCompetitor))
        (withVerdicts || quantity == kEndToEnd ? table : unshown).add(row);
}

void reportVerdicts(Report& report, const Results& results) {
  report.say(
      "Four launches against one graph, per iteration of the chain: median, 5th and 95th percentile of %d samples.\n"
      "saved, low, high: the median of the paired differences, and the number %d of them from below and from above;\n"
      "by chance alone any of these intervals misses in at most 1 of %.0f runs. A verdict needs all of it beyond\n"
      "%.0f %% of the launches. Launches against launches are the control (A/A): told apart by noise alone.\n"
      "x floor: over 36 bytes an element at cudaMemcpy's rate, which is beaten where the buffers fit in L2.\n"
      "pays after: iterations until the bill of the graph is paid.\n\n",
      kPairs, kRank, 1 / kRunError, 100 * kMargin);
  reportComparisons(report, results, true);
  if (results.count(&Comparison::isNoise) > 0)
    report.say(
        "\nNoise: in %ld of %ld controls the launches were told from themselves, so something disturbed this\n"
        "host or card while they ran. There, a saving no larger than the control's is noise as well.\n",
        results.count(&Comparison::isNoise), results.count(&Comparison::isControl));
}

void reportCosts(Report& report, const vector<Cost>& costs) {
  const vector<Column<Cost>> names = {
      {"n", "", 8, 0, "n", [](const Cost& row) { return row.n; }},
      {"item", "", -26, 0, "variant", [](const Cost& row) { return row.item; }},
  };
  report.say(
      "\nThe bill of %d fresh graphs of each size, by the host's clock; its last three rows: of a change to n = %d "
      "and\n"
      "other memory, until the result is there\n\n",
      kFresh, kSecond);
  const Table<Cost> table(report, "bill", join<Cost>({names, sampleColumns<Cost>()}));
  for (const Cost& cost : costs) table.add(cost);
}

void reportModels(Report& report, const vector<Model>& models) {
  using Row = const Model&;
  static_assert(Model::nodes(0) == 4 && Model::nodes(1) == 20 && Model::nodes(2) == 100, "as the headings say");
  report.say("\nA launch of a graph: fixed + per node x nodes; off: how far 20 nodes lie off the line\n\n");
  const vector<Column<Model>> columns = {{"n", "", 8, 0, "n", [](Row row) { return row.n; }},
      {"quantity", "", -10, 0, "variant", [](Row row) { return kQuantities[row.quantity]; }},
      {"4 nodes", "us", 9, 2, "", [](Row row) { return row.us[0]; }},
      {"20 nodes", "us", 9, 2, "", [](Row row) { return row.us[1]; }},
      {"100 nodes", "us", 9, 2, "", [](Row row) { return row.us[2]; }},
      {"fixed", "us", 9, 2, "fixed_us", [](Row row) { return row.fixed(); }},
      {"per node", "us", 9, 3, "value", [](Row row) { return row.perNode(); }},
      {"off", "us", 9, 2, "off_us", [](Row row) { return row.off(); }}, same<Model>("metric", "us_per_node"),
      same<Model>("unit", "us"), same<Model>("day", kProgram.day)};
  const Table<Model> table(report, "model", columns);
  for (const Model& model : models) table.add(model);
}

void reportCopy(Report& report, const Results& results) {
  using Row = const Results&;
  const vector<Column<Results>> columns = {{"ceiling", "", -12, 0, "variant", [](Row) { return "ceiling-copy"; }},
      {"call", "", -15, 0, "symbol", [](Row) { return "cudaMemcpyAsync"; }},
      {"rate", "GB/s", 9, 0, "value", [](Row row) { return row.copyGbps(); }},
      {"", "", 0, 0, "requested_bytes", [](Row row) { return int64_t(row.copyBytes); }},
      same<Results>("metric", "gbps"), same<Results>("unit", "GB/s"), same<Results>("shape", "cudaMemcpy"),
      same<Results>("flop", 0), same<Results>("day", kProgram.day)};
  const auto timing = timingColumns<Results>([](Row row) { return row.copy; });
  Table<Results>(report, "ceiling", join<Results>({columns, timing})).add(results);
  report.say("\n");
}

void reportResults(Report& report, const Results& results) {
  reportCopy(report, results);
  reportVerdicts(report, results);
  report.say(
      "\nThe competitors against the graph, sampled in turn: medians of the three times, and what is saved end to "
      "end.\n"
      "They have no verdict, since what is bound by launching follows the host, and that differs from run to run.\n"
      "x floor: of the time on the GPU.\n\n");
  reportComparisons(report, results, false);
  reportCosts(report, results.costs);
  reportModels(report, results.models);
}

// ---- The day

// With CUDA_LAUNCH_BLOCKING every launch waits for its kernel: then there is no queue, the gate gives up, and launches
// look as dear as what they run. Results stay right, so --check goes on.
void refuseBlockingLaunches() {
  const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "0") == 0) return;
  throw Stop{kExitFailed,
      string("CUDA_LAUNCH_BLOCKING=") + value +
          " makes every launch wait for its kernel, so launches and graphs cannot be compared: unset it "
          "(env -u CUDA_LAUNCH_BLOCKING), or run --check, which measures nothing"};
}

int runDay(Report& report) {
  const Mode mode = report.options().mode;
  if (mode == Mode::kTable) refuseBlockingLaunches();
  const Device device = openDevice(report.options().device, applyScaleBias<1, false>);
  size_t needed = 2 * Copy::bytes(device.properties) + Problem::bytes(kCheckSize);
  for (const int n : kTimedSizes)
    if (n <= kLargest) needed += Problem::bytes(n);
  requireDeviceMemory(needed);
  const bool programmatic = device.code.offers(90);
  reportRun(report, device);
  if (!programmatic) report.say("No programmatic variants: they need a card and code of sm_90 or later.\n\n");
  if (!kRanges && mode == Mode::kProfile)
    report.say("No ranges are marked for the profiler: this was built without the header nvtx3/nvToolsExt.h.\n\n");

  const Stream stream;
  vector<Problem> problems;
  for (const int n : kTimedSizes)
    if (n <= kLargest) problems.emplace_back(n, stream);
  Checker checker(report, stream, std::max(kCheckSize, problems.back().n));
  if (mode == Mode::kProfile) {
    profile(problems, programmatic, stream);
    return kExitOk;
  }
  const Gate gate{};
  const Copy copy(device.properties);
  if (!checker.checkAll(problems, gate, copy, programmatic)) return kExitFailed;
  if (mode == Mode::kTable) reportResults(report, measureAll(problems, programmatic, copy, device, gate, stream));
  return kExitOk;  // the checks have passed, and noise fails nothing
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
