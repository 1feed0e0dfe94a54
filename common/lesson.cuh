// SPDX-License-Identifier: MIT
//
// What the days share, written once. A day is one standalone file, so it cannot include this
// header: it carries a verbatim copy of the blocks it uses, between the same `// common:` marker
// lines, and scripts/sync_common.py rewrites those copies from here. Edit here, then run it.
#pragma once

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
