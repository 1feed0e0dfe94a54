// SPDX-License-Identifier: MIT
//
// What the days share, written once. A day is one standalone file, so it cannot include this
// header: it carries a verbatim copy of the blocks it uses, between the same `// common:` marker
// lines, and scripts/sync_common.py rewrites those copies from here. Edit here, then run it.
#pragma once

// common: includes
#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>
// end common: includes

// common: errors
constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;    // a check, a CUDA call or writing the output failed
constexpr int kExitUsage = 2;     // a bad argument
constexpr int kExitSkipped = 77;  // no usable GPU: the code that CTest and Automake read as a skip

// Every early end is this exception: `runLesson` prints the message and returns the code, and the
// destructors on the way out release device memory, events and streams.
struct Stop {
  int exitCode;
  std::string message;
};

inline void checkCuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw Stop{kExitFailed, std::string(file) + ":" + std::to_string(line) + ": " + call +
                              " failed: " + cudaGetErrorName(status) + " (" +
                              std::to_string(static_cast<int>(status)) +
                              "): " + cudaGetErrorString(status)};
}
#define CUDA_CHECK(call) checkCuda((call), #call, __FILE__, __LINE__)

// Destructors cannot throw. While a Stop is on its way its message is the story; otherwise a failed
// release is reported here and turns the exit code of `runLesson` to 1.
inline bool releaseFailed = false;

inline void release(cudaError_t status, const char* call) {
  if (status == cudaSuccess || std::uncaught_exceptions() > 0) return;
  std::fprintf(stderr, "%s failed: %s: %s\n", call, cudaGetErrorName(status),
               cudaGetErrorString(status));
  releaseFailed = true;
}
// end common: errors

// common: arguments
// The CPU build (common/cpu) compiles this same file; its header defines CUDA_DAYS_CPU.
#ifdef CUDA_DAYS_CPU
constexpr bool kOnCpu = true;
#else
constexpr bool kOnCpu = false;
#endif

enum class Mode { kTable, kCheck, kProfile };

struct Options {
  Mode mode = Mode::kTable;
  bool json = false;
  int device = 0;
};

struct Program {
  int day;
  const char* name;
  const char* summary;  // one line for --help
};

inline std::string usage(const Program& program) {
  return std::string("usage: ") + program.name +
         " [--check | --profile] [--json] [--device N] [--help]\n\n" + program.summary +
         "\n\n"
         "  (no argument)  check every kernel, time it, print the table\n"
         "  --check        the checks alone: for a machine without a GPU, for compute-sanitizer\n"
         "  --json         the same run as JSON lines, and nothing else on stdout\n"
         "  --profile      one launch per kernel in table order, no checks, for a profiler\n"
         "  --device N     which GPU, as the CUDA runtime counts them (default 0)\n"
         "  --help         this text\n\n"
         "exit code: 0 all checks passed, 1 a check or a call failed, 2 bad usage,\n"
         "           77 skipped: no usable GPU or not enough memory\n";
}

// Reads the command line. Throws Stop with kExitUsage for anything it does not know, with kExitOk
// after printing the help, and with kExitSkipped where the CPU build is asked for times.
inline Options parseArguments(int argc, char** argv, const Program& program) {
  Options options;
  const auto refuse = [&](const std::string& why) {
    throw Stop{kExitUsage, why + "\n" + usage(program)};
  };
  const auto choose = [&](Mode mode, const char* argument) {
    if (options.mode != Mode::kTable && options.mode != mode)
      refuse(std::string(argument) + ": --check and --profile exclude each other");
    options.mode = mode;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") {
      std::fputs(usage(program).c_str(), stdout);
      throw Stop{kExitOk, ""};
    } else if (argument == "--check") {
      choose(Mode::kCheck, "--check");
    } else if (argument == "--profile") {
      choose(Mode::kProfile, "--profile");
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "--device") {
      if (++i == argc) refuse("--device: a device number is missing");
      char* end = nullptr;
      errno = 0;
      const long number = std::strtol(argv[i], &end, 10);
      if (end == argv[i] || *end != '\0' || errno != 0 || number < 0 || number > 1 << 20)
        refuse(std::string("--device: '") + argv[i] + "' is not a device number (0, 1, ...)");
      options.device = static_cast<int>(number);
    } else {
      refuse("unknown argument '" + argument + "'");
    }
  }
  if (options.json && options.mode == Mode::kProfile)
    refuse("--json: --profile prints no rows, so there is nothing to write as JSON");
  if (kOnCpu && options.mode == Mode::kTable)
    throw Stop{kExitSkipped, std::string(program.name) +
                                 " is built for the CPU, which proves results and never speed: "
                                 "run it with --check. Times need an NVIDIA GPU and a build "
                                 "by nvcc."};
  return options;
}
// end common: arguments

// common: output
// A full disk or a closed pipe must not end as a success, so stdout's state is looked at after
// every line that matters and once more at the end.
inline void flushOutput() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw Stop{kExitFailed, std::string("cannot write to stdout: ") + std::strerror(errno)};
}

// Runs `body(options)` and turns what it throws into a message on stderr and the exit code.
template <class Body>
int runLesson(int argc, char** argv, const Program& program, Body body) {
#ifdef SIGPIPE
  std::signal(SIGPIPE, SIG_IGN);  // so a broken pipe is a failed write, exit code 1
#endif
  int exitCode = kExitOk;
  try {
    // With stdout closed, the next file anybody opens (the driver's own) would get its number.
    errno = 0;
    if (std::ftell(stdout) < 0 && errno == EBADF) throw Stop{kExitFailed, "stdout is closed"};
    try {
      exitCode = body(parseArguments(argc, argv, program));
    } catch (const Stop& stop) {
      if (!stop.message.empty()) {
        std::fflush(stdout);
        std::fprintf(stderr, "%s\n", stop.message.c_str());
      }
      exitCode = stop.exitCode;
    }
    flushOutput();
  } catch (const Stop& stop) {
    std::fprintf(stderr, "%s: %s\n", program.name, stop.message.c_str());
    exitCode = stop.exitCode;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.name, error.what());
    exitCode = kExitFailed;
  }
  return exitCode == kExitOk && releaseFailed ? kExitFailed : exitCode;
}
// end common: output

// common: device
#ifndef CUDA_DAYS_REVISION
#define CUDA_DAYS_REVISION "unknown"
#endif
#ifndef CUDA_DAYS_FLAGS
#define CUDA_DAYS_FLAGS "unknown"
#endif

struct Device {
  cudaDeviceProp properties;
  int driver = 0;    // CUDA version the driver supports, 1000 * major + 10 * minor
  int runtime = 0;   // CUDA version of the toolkit in this binary, likewise
  int codeArch = 0;  // 10 * major + minor of the machine code the driver picked from this binary
};

inline std::string cudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

#ifndef __CUDA_ARCH_LIST__  // nvcc lists what it compiled this file for: 750,900 or the like
#define __CUDA_ARCH_LIST__ 0
#endif

inline std::string architecturesInBinary() {
  std::string list;
  for (const int arch : {__CUDA_ARCH_LIST__})
    list += (list.empty() ? "sm_" : ", sm_") + std::to_string(arch / 10);
  return list;
}

// Opens GPU `index`, or throws Stop with what is wrong and the way out. `kernel` is any kernel of
// the program: whether the driver finds code for it tells whether the build fits the GPU.
template <class Kernel>
Device openDevice(int index, Kernel* kernel) {
  Device device;
  CUDA_CHECK(cudaRuntimeGetVersion(&device.runtime));
  CUDA_CHECK(cudaDriverGetVersion(&device.driver));
  if (device.driver == 0)
    throw Stop{kExitSkipped,
               "no NVIDIA driver is visible (WSL: update the Windows driver; Docker: --gpus all). "
               "Without a GPU the CPU build proves the same kernels: scripts/lessons run"};
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorInsufficientDriver)
    throw Stop{kExitFailed, "the driver supports CUDA " + cudaVersionText(device.driver) +
                                ", this program was built with toolkit " +
                                cudaVersionText(device.runtime) +
                                ": update the driver, or build with toolkit " +
                                cudaVersionText(device.driver) + " or older"};
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0))
    throw Stop{kExitSkipped,
               "an NVIDIA driver is here but it shows no GPU (is CUDA_VISIBLE_DEVICES set?)"};
  CUDA_CHECK(found);
  if (index >= count)
    throw Stop{kExitUsage, "--device " + std::to_string(index) + " is out of range: valid is " +
                               (count == 1 ? "0" : "0 to " + std::to_string(count - 1))};
  CUDA_CHECK(cudaSetDevice(index));
  CUDA_CHECK(cudaGetDeviceProperties(&device.properties, index));

  cudaFuncAttributes attributes;
  const cudaError_t fits = cudaFuncGetAttributes(&attributes, kernel);
  if (fits == cudaErrorNoKernelImageForDevice || fits == cudaErrorInvalidDeviceFunction ||
      fits == cudaErrorUnsupportedPtxVersion) {
    const std::string sm =
        std::to_string(device.properties.major) + std::to_string(device.properties.minor);
    throw Stop{kExitFailed, std::string("this GPU (") + device.properties.name + ") is sm_" + sm +
                                ", the program holds " + architecturesInBinary() +
                                ": build with -arch=sm_" + sm +
                                " (CMake: -DCMAKE_CUDA_ARCHITECTURES=" + sm + ")"};
  }
  CUDA_CHECK(fits);
  device.codeArch = attributes.binaryVersion;
  return device;
}

// Throws Stop (77) when `bytes` of device memory are not free, before anything is allocated.
inline void requireDeviceMemory(std::size_t bytes) {
  std::size_t free = 0;
  std::size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (bytes > free)
    throw Stop{kExitSkipped, "not enough device memory: " + std::to_string(bytes >> 20) +
                                 " MiB needed, " + std::to_string(free >> 20) + " MiB free"};
}

inline void printBanner(const Device& device) {
  std::printf("%s%s (compute capability %d.%d), %d SMs, %.1f MiB L2\n",
              kOnCpu ? "" : "GPU: ", device.properties.name, device.properties.major,
              device.properties.minor, device.properties.multiProcessorCount,
              device.properties.l2CacheSize / 1048576.0);
  std::printf("CUDA driver %s, runtime %s, code for sm_%d\n\n",
              cudaVersionText(device.driver).c_str(), cudaVersionText(device.runtime).c_str(),
              device.codeArch);
}
// end common: device

// common: memory
// Device memory of `count` elements, freed with its owner.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    CUDA_CHECK(cudaMalloc(&data_, bytes()));
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) release(cudaFree(data_), "cudaFree");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  operator T*() const { return data_; }  // so that it stands for its pointer in a launch
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

// Page-locked host memory: copies to and from the device run at the full speed of the bus.
template <class T>
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t count) : count_(count) {
    CUDA_CHECK(cudaMallocHost(&data_, count * sizeof(T)));
  }
  ~PinnedBuffer() { release(cudaFreeHost(data_), "cudaFreeHost"); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  operator T*() const { return data_; }
  std::size_t count() const { return count_; }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

class Stream {
 public:
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { release(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { release(cudaEventDestroy(event_), "cudaEventDestroy"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// 0xFF in every byte is a NaN in every float: an element that a kernel forgets to write cannot
// pass for a result.
inline void poison(void* data, std::size_t bytes, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(data, 0xFF, bytes, stream));
}
// end common: memory

// common: compare
struct Verdict {
  std::size_t checked = 0;
  std::size_t wrong = 0;
  double worst = 0;     // largest error among the accepted, as a fraction of what is allowed
  std::string message;  // where the first wrong element is, and by how much it is off
};

// Compares got[row * columns + column] with want(row, column), a double, for all elements:
// |got - want| <= absolute + relative * |want|. The test is written so that a NaN fails, and a
// reference that is not finite fails too, since it would allow anything.
template <class Want>
Verdict compare(const float* got, std::size_t rows, std::size_t columns, double relative,
                double absolute, Want want) {
  Verdict verdict;
  verdict.checked = rows * columns;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t index = row * columns + column;
      const double expected = want(row, column);
      const double difference = got[index] - expected;
      if (difference == 0) continue;  // never for a NaN or an infinity: inf - inf is a NaN
      const double error = std::fabs(difference);
      const double allowed = absolute + relative * std::fabs(expected);
      if (!(error <= allowed) || !std::isfinite(expected)) {
        if (verdict.wrong++ == 0) {
          char text[200];
          std::snprintf(text, sizeof text,
                        "first wrong element %zu (row %zu, column %zu): got %.9g, want %.9g", index,
                        row, column, static_cast<double>(got[index]), expected);
          verdict.message = text;
        }
      } else {
        verdict.worst = std::max(verdict.worst, error / allowed);
      }
    }
  }
  return verdict;
}
// end common: compare

// common: timing
using Launch = std::function<void(cudaStream_t)>;

struct Timing {
  double ms = 0;  // median over the samples of one launch's time
  double msMin = 0;
  double msMax = 0;
  int samples = 0;
  int batch = 0;  // launches per sample

  double spreadPercent() const { return 100 * (msMax - msMin) / ms; }
};

constexpr double kSampleMs = 1;        // event resolution is about 0.5 microseconds
constexpr double kWarmupWindowMs = 5;  // an idle card takes several of these to raise its clock
constexpr double kWarmupAgreement = 0.01;
constexpr double kWarmupLimitMs = 1000;
constexpr int kSamples = 21;  // odd, so the median is a sample

// Times `count` launches back to back with events on `stream`; milliseconds for one of them.
inline double timeBatch(cudaStream_t stream, const Event& begin, const Event& end,
                        const Launch& launch, int count) {
  CUDA_CHECK(cudaEventRecord(begin, stream));
  for (int i = 0; i < count; ++i) launch(stream);
  CUDA_CHECK(cudaEventRecord(end, stream));
  CUDA_CHECK(cudaEventSynchronize(end));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  if (!std::isfinite(ms) || !(ms > 0))
    throw Stop{kExitFailed, "timing: " + std::to_string(count) + " launches took " +
                                std::to_string(ms) + " ms, which cannot be"};
  return static_cast<double>(ms) / count;
}

// Launches until two successive windows agree, so that clocks have risen and modules are loaded.
// Returns the milliseconds of one launch in the last window.
inline double warmUp(cudaStream_t stream, const Event& begin, const Event& end,
                     const Launch& launch) {
  double previous = timeBatch(stream, begin, end, launch, 1);
  for (double spent = previous; spent < kWarmupLimitMs;) {
    const int count = std::max(1, static_cast<int>(std::ceil(kWarmupWindowMs / previous)));
    const double now = timeBatch(stream, begin, end, launch, count);
    spent += now * count;
    if (std::fabs(now - previous) <= kWarmupAgreement * previous) return now;
    previous = now;
  }
  return previous;
}

// Times several launches against each other: each is warmed up, then they are sampled in turn
// (A B C A B C ...), so that clock drift meets all of them alike. One Timing each, in order.
inline std::vector<Timing> measureInTurn(cudaStream_t stream, const std::vector<Launch>& launches) {
  const Event begin;
  const Event end;
  std::vector<Timing> timings(launches.size());
  std::vector<std::vector<double>> samples(launches.size());
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const double ms = warmUp(stream, begin, end, launches[i]);
    timings[i].batch = std::max(1, static_cast<int>(std::ceil(kSampleMs / ms)));
  }
  for (int sample = 0; sample < kSamples; ++sample)
    for (std::size_t i = 0; i < launches.size(); ++i)
      samples[i].push_back(timeBatch(stream, begin, end, launches[i], timings[i].batch));
  for (std::size_t i = 0; i < launches.size(); ++i) {
    std::sort(samples[i].begin(), samples[i].end());
    timings[i].ms = samples[i][samples[i].size() / 2];
    timings[i].msMin = samples[i].front();
    timings[i].msMax = samples[i].back();
    timings[i].samples = kSamples;
  }
  return timings;
}

inline Timing measure(cudaStream_t stream, const Launch& launch) {
  return measureInTurn(stream, {launch}).front();
}
// end common: timing

// common: clock
// The SM clock while a kernel ran: cycles that one SM counted over the nanoseconds they took.
struct ClockSpan {
  long long cycles;
  long long nanoseconds;

  double megahertz() const { return 1e3 * static_cast<double>(cycles) / nanoseconds; }
};

__device__ inline ClockSpan readClock() {
  ClockSpan now = {0, 0};
#ifdef __CUDA_ARCH__  // on the CPU there is no such clock, and nothing is timed
  now.cycles = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now.nanoseconds));
#endif
  return now;
}
// end common: clock

// common: json
// One JSON object on one line, keys in the order they are added.
class JsonLine {
 public:
  explicit JsonLine(const char* record) { text("record", record); }

  JsonLine& text(const char* key, const std::string& value) {
    std::string quoted = "\"";
    for (const char c : value) {
      const unsigned char byte = static_cast<unsigned char>(c);
      char escaped[8];
      if (c == '"' || c == '\\') {
        std::snprintf(escaped, sizeof escaped, "\\%c", c);
      } else if (byte < 0x20) {
        std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      } else {
        std::snprintf(escaped, sizeof escaped, "%c", c);
      }
      quoted += escaped;
    }
    return raw(key, quoted + "\"");
  }
  JsonLine& integer(const char* key, long long value) { return raw(key, std::to_string(value)); }
  JsonLine& boolean(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonLine& number(const char* key, double value) {
    if (!std::isfinite(value))
      throw Stop{kExitFailed, std::string("JSON: '") + key + "' is not a finite number"};
    char digits[32];  // "%g" prints a point: no day calls setlocale, so the locale stays "C"
    std::snprintf(digits, sizeof digits, "%.9g", value);
    return raw(key, digits);
  }
  JsonLine& timing(const Timing& timing) {
    return number("ms", timing.ms)
        .number("ms_min", timing.msMin)
        .number("ms_max", timing.msMax)
        .integer("samples", timing.samples)
        .integer("batch", timing.batch);
  }
  JsonLine& metric(const char* name, double value, const char* unit) {
    return text("metric", name).number("value", value).text("unit", unit);
  }

  std::string str() const { return "{" + body_ + "}"; }
  void print() const {
    std::printf("%s\n", str().c_str());
    flushOutput();
  }

 private:
  JsonLine& raw(const char* key, const std::string& value) {
    if (!body_.empty()) body_ += ',';
    body_ += std::string("\"") + key + "\":" + value;
    return *this;
  }

  std::string body_;
};

inline constexpr int kJsonSchema = 1;  // the version in scripts/schema/row.schema.json

inline void printRunRecord(const Program& program, const Device& device) {
  const cudaDeviceProp& properties = device.properties;
  char uuid[48] = "GPU-";
  for (int i = 0, at = 4; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid[at++] = '-';
    at += std::snprintf(uuid + at, sizeof uuid - at, "%02x",
                        static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  char pci[24];
  std::snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", static_cast<unsigned>(properties.pciDomainID),
                static_cast<unsigned>(properties.pciBusID),
                static_cast<unsigned>(properties.pciDeviceID));
  char utc[24] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(utc, sizeof utc, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  JsonLine("run")
      .integer("schema", kJsonSchema)
      .integer("day", program.day)
      .text("program", program.name)
      .text("device", properties.name)
      .text("cc", std::to_string(properties.major) + "." + std::to_string(properties.minor))
      .integer("sms", properties.multiProcessorCount)
      .integer("l2_bytes", properties.l2CacheSize)
      .text("driver", cudaVersionText(device.driver))
      .text("runtime", cudaVersionText(device.runtime))
      .text("arch", "sm_" + std::to_string(device.codeArch))
      .text("backend", kOnCpu ? "cpu" : "cuda")
      .text("uuid", uuid)
      .text("pci", pci)
      .text("revision", CUDA_DAYS_REVISION)
      .text("flags", CUDA_DAYS_FLAGS)
      .text("utc", utc)
      .print();
}
// end common: json
