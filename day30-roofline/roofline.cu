// SPDX-License-Identifier: MIT
//
// Day 30: the roofline's lines, measured.
//
// What can this GPU reach, at every level of its memory and in every kind of arithmetic? Kernels that do one thing only
// answer it. Others under those lines show a flaw that day 49 repairs: by the bytes they ask for, some pass the line.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o roofline roofline.cu
//   run:   ./roofline            (--help lists the rest)

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

using std::string, std::to_string, std::vector;
// end common: includes

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <map>

// The blocks between `// common:` markers are the same in every day.

// common: lesson
constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;  // a check, a CUDA call or writing the output failed
constexpr int kExitUsage = 2;  // a bad argument
constexpr int kExitSkipped = 77;  // no usable GPU: a skip for CTest and Automake

struct Stop {
  int exitCode;
  string message;
};

inline void checkCuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw Stop{kExitFailed,
      string(file) + ":" + to_string(line) + ": " + call + " failed: " + cudaGetErrorName(status) + ": " +
          cudaGetErrorString(status)};
}
#define CUDA_CHECK(call) checkCuda((call), #call, __FILE__, __LINE__)

inline bool releaseFailed = false;
inline void release(cudaError_t status, const char* call) {
  if (status == cudaSuccess || std::uncaught_exceptions() > 0) return;
  fprintf(stderr, "%s failed: %s: %s\n", call, cudaGetErrorName(status), cudaGetErrorString(status));
  releaseFailed = true;
}

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
  const char* summary;
};

inline string usage(const Program& program) {
  return string("usage: ") + program.name + " [--check | --profile] [--json] [--device N] [--help]\n\n" +
      program.summary + R"(

  (no argument)  check every kernel, time it, print the table
  --check        the checks alone: without a GPU, for compute-sanitizer
  --json         the same run as JSON lines, and nothing else on stdout
  --profile      one launch per kernel in table order, no checks, for a profiler
  --device N     which GPU, as the CUDA runtime counts them (default 0)
  --help         this text

exit code: 0 all checks passed, 1 a check or a call failed, 2 bad usage,
           77 skipped: no usable GPU or not enough memory
)";
}

inline void flushOutput() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw Stop{kExitFailed, string("cannot write to stdout: ") + std::strerror(errno)};
}

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
    } else if (argument == "--device") {
      if (++i == argc) refuse("--device: a device number is missing");
      int length = 0;
      if (std::sscanf(argv[i], "%6d%n", &options.device, &length) != 1 || argv[i][length] != '\0' || options.device < 0)
        refuse(string("--device: '") + argv[i] + "' is not a device number (0, 1, ...)");
    } else {
      refuse("unknown argument '" + argument + "'");
    }
  }
  if (options.json && options.mode == Mode::kProfile)
    refuse("--json: --profile prints no rows, so there is nothing to write as JSON");
  if (kOnCpu && options.mode == Mode::kTable)
    throw Stop{kExitSkipped,
        string(program.name) + " is built for the CPU, which proves results and never speed: run it with --check"};
  return options;
}

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
    exitCode = body(parseArguments(argc, argv, program));
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

#ifndef CUDA_DAYS_REVISION
#define CUDA_DAYS_REVISION "unknown"
#define CUDA_DAYS_FLAGS "unknown"
#endif

struct Device {
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;  // CUDA versions: supported, built with
  int codeArch = 0;  // 10 * major + minor of the machine code the driver picked
};

inline string cudaVersionText(int version) { return to_string(version / 1000) + "." + to_string(version % 1000 / 10); }

#ifndef __CUDA_ARCH_LIST__
#define __CUDA_ARCH_LIST__ 0
#endif

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

  cudaFuncAttributes attributes;
  const cudaError_t fits = cudaFuncGetAttributes(&attributes, kernel);
  if (fits == cudaErrorNoKernelImageForDevice || fits == cudaErrorInvalidDeviceFunction ||
      fits == cudaErrorUnsupportedPtxVersion) {
    const string sm = to_string(10 * gpu.major + gpu.minor);
    string held;
    for (const int arch : {__CUDA_ARCH_LIST__}) held += (held.empty() ? "sm_" : ", sm_") + to_string(arch / 10);
    throw Stop{kExitFailed,
        string("this GPU (") + gpu.name + ") is sm_" + sm + ", the program holds " + held + ": build with -arch=sm_" +
            sm + " (CMake: -DCMAKE_CUDA_ARCHITECTURES=" + sm + ")"};
  }
  CUDA_CHECK(fits);
  device.codeArch = attributes.binaryVersion;
  return device;
}

inline void requireDeviceMemory(size_t bytes) {
  size_t free = 0;
  size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (bytes > free)
    throw Stop{kExitSkipped,
        "not enough device memory: " + to_string(bytes >> 20) + " MiB needed, " + to_string(free >> 20) + " MiB free"};
}

inline void printBanner(const Device& device) {
  const cudaDeviceProp& gpu = device.properties;
  printf("%s%s (compute capability %d.%d), %d SMs, %.1f MiB L2\n", kOnCpu ? "" : "GPU: ", gpu.name, gpu.major,
      gpu.minor, gpu.multiProcessorCount, gpu.l2CacheSize / 1048576.0);
  printf("CUDA driver %s, runtime %s, code for sm_%d\n\n", cudaVersionText(device.driver).c_str(),
      cudaVersionText(device.runtime).c_str(), device.codeArch);
}

template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) { CUDA_CHECK(cudaMalloc(&data_, bytes())); }
  ~DeviceBuffer() { release(cudaFree(data_), "cudaFree"); }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  operator T*() const { return data_; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_;
};

class Stream {
 public:
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { release(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { release(cudaEventDestroy(event_), "cudaEventDestroy"); }
  Event(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

inline void poison(void* data, size_t bytes, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(data, 0xFF, bytes, stream));
}

struct Verdict {
  size_t checked = 0, wrong = 0;
  double worst = 0;  // accepted error, as a fraction of what is allowed
  string message;
};

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

inline void finish(const char* symbol, cudaStream_t stream) {
  const string call = string("kernel ") + symbol;
  checkCuda(cudaGetLastError(), call.c_str(), __FILE__, __LINE__);
  checkCuda(cudaStreamSynchronize(stream), call.c_str(), __FILE__, __LINE__);
}

using Launch = std::function<void(cudaStream_t)>;

struct Timing {
  double ms = 0, msMin = 0, msMax = 0;  // of one launch; ms is the median
  int samples = 0, batch = 0;  // batch: launches per sample

  double spreadPercent() const { return 100 * (msMax - msMin) / ms; }
};

constexpr double kSampleMs = 1, kWarmupWindowMs = 5, kWarmupLimitMs = 1000, kWarmupAgreement = 0.01;
constexpr int kSamples = 21;

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

inline Timing measure(cudaStream_t stream, const Launch& launch) { return measureInTurn(stream, {launch}).front(); }

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

class JsonLine {
 public:
  explicit JsonLine(const char* record) { text("record", record); }
  JsonLine(const char* record, int day, const string& variant, const char* symbol) : JsonLine(record) {
    integer("day", day).text("variant", variant).text("symbol", symbol);
  }

  JsonLine& text(const char* key, const string& value) {
    string quoted = "\"";
    for (const unsigned char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      char control[8] = {char(c)};
      if (c < 0x20) snprintf(control, sizeof control, "\\u%04x", c);
      quoted += control;
    }
    return raw(key, quoted + "\"");
  }
  JsonLine& integer(const char* key, long long value) { return raw(key, to_string(value)); }
  JsonLine& boolean(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonLine& number(const char* key, double value) {
    if (!std::isfinite(value)) throw Stop{kExitFailed, string("JSON: '") + key + "' is not a finite number"};
    char digits[32];
    snprintf(digits, sizeof digits, "%.9g", value);
    return raw(key, digits);
  }
  JsonLine& timing(const Timing& timing) {
    number("ms", timing.ms).number("ms_min", timing.msMin).number("ms_max", timing.msMax);
    return integer("samples", timing.samples).integer("batch", timing.batch);
  }
  JsonLine& metric(const char* name, double value, const char* unit) {
    return text("metric", name).number("value", value).text("unit", unit);
  }

  string str() const { return "{" + body_ + "}"; }
  void print() const {
    printf("%s\n", str().c_str());
    flushOutput();
  }

 private:
  JsonLine& raw(const char* key, const string& value) {
    if (!body_.empty()) body_ += ',';
    body_ += string("\"") + key + "\":" + value;
    return *this;
  }

  string body_;
};

inline int reportCheck(int day, const string& variant, const char* symbol, const string& size, const Verdict& verdict,
    Mode mode, bool json) {
  const bool ok = verdict.wrong == 0;
  if (!ok)
    fprintf(stderr, "FAILED %s (%s, %s): %zu of %zu wrong, %s\n", symbol, variant.c_str(), size.c_str(), verdict.wrong,
        verdict.checked, verdict.message.c_str());
  if (json) {
    JsonLine line("check", day, variant, symbol);
    line.text("size", size)
        .boolean("ok", ok)
        .integer("checked", verdict.checked)
        .integer("wrong", verdict.wrong)
        .number("worst", verdict.worst);
    if (!ok) line.text("message", verdict.message);
    line.print();
  } else if (mode == Mode::kCheck) {
    printf("%-26s %-24s %-28s %9zu values, worst error %5.1f %% of allowed  %s\n", symbol, variant.c_str(),
        size.c_str(), verdict.checked, 100 * verdict.worst, ok ? "ok" : "FAILED");
    flushOutput();
  }
  return !ok;
}

inline void printRunRecord(const Program& program, const Device& device) {
  const cudaDeviceProp& gpu = device.properties;
  char uuid[48] = "GPU-";
  for (int i = 0, at = 4; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid[at++] = '-';
    at += snprintf(uuid + at, sizeof uuid - at, "%02x", gpu.uuid.bytes[i] & 0xFF);
  }
  char pci[24];
  snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
  char utc[24] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(utc, sizeof utc, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  JsonLine line("run");
  line.integer("schema", 1).integer("day", program.day).text("program", program.name);
  line.text("device", gpu.name).text("cc", to_string(gpu.major) + "." + to_string(gpu.minor));
  line.integer("sms", gpu.multiProcessorCount).integer("l2_bytes", gpu.l2CacheSize);
  line.text("driver", cudaVersionText(device.driver)).text("runtime", cudaVersionText(device.runtime));
  line.text("arch", "sm_" + to_string(device.codeArch)).text("backend", kOnCpu ? "cpu" : "cuda");
  line.text("uuid", uuid).text("pci", pci).text("revision", CUDA_DAYS_REVISION).text("flags", CUDA_DAYS_FLAGS);
  line.text("utc", utc).print();
}
// end common: lesson

// ---- Sizes and knobs

constexpr Program kProgram = {
    30, "roofline", "Day 30: what this GPU reaches at every level of memory, in every arithmetic."};

constexpr int kWarp = 32;
constexpr int kBlock = 256;
constexpr int kSmBlock = 1024;  // keeps an SM busy alone
constexpr int kInFlight = 8;
constexpr int kTile = 16;
constexpr int kMatrix = 512;  // 1 MiB each: caches hold them

// Four times the L2 or more, so that streams come from DRAM; and four times that, where a launch's ends do not count.
constexpr size_t kStreamBytes = size_t(256) << 20;
constexpr int kTimes = 4;

constexpr int kSearchSamples = 5;  // to find the best shape
constexpr int kSweepSizes = 72;  // before those that round to the same go
constexpr int kLength = 128;  // of the loops, for milliseconds

// 8 chains cover an FMA's 4 clocks with one warp per scheduler. At 64 steps a trip FP16's drift apart: 93 % on an H200.
constexpr int kChains = 8;
constexpr int kUnroll = 32;
constexpr int kSeeds = 7;  // thread t starts as t % 7: a period that divides no block

// Every chain is x <- x * x + c. With c near -1.7 it neither settles nor grows, keeps all mantissa bits busy, and the
// CPU can follow it bit by bit. Half precision falls into cycles, odd ones with these c: half the steps show.
constexpr float kMap = -1.74f;

constexpr int kSharedWords = 2048, kTurns = 32, kTurn = 4, kHops = 8, kHop = 128;
static_assert((kTurns - 1) * kTurn + 31 * kWarp + 7 * kHop < kSharedWords, "the farthest read");

constexpr float kScale = 3;
constexpr double kHeat = 0.125;
constexpr double kAllowed = 1e-4;  // of a product's element: one wrong term is larger

// What an SM does per clock (CUDA C++ Programming Guide), to hold the measured against: multiply-adds, bytes of L1 or
// shared memory, dense FP16 tensor FLOP (0: cards differ).
struct PerClock {
  int capability, fp32, fp64, fp16, bf16, int32, bytes, tensor;
};
constexpr PerClock kPerClock[] = {
    {75, 64, 2, 128, 0, 64, 64, 1024},
    {80, 64, 32, 256, 128, 64, 128, 2048},
    {86, 128, 2, 128, 128, 64, 128, 0},
    {90, 128, 64, 256, 256, 64, 128, 4096},
    {100, 128, 64, 256, 256, 64, 128, 0},
    {120, 128, 2, 128, 128, 64, 128, 0},
};

constexpr int ceilDivide(int a, int b) { return (a + b - 1) / b; }

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

// Word i of a stream, a multiple of 2^-15: sums of a few are exact. Neighbours differ, and words 2^16 apart.
__host__ __device__ inline float pattern(unsigned i) { return (int((i ^ (i >> 16)) & 0xFFFF) - 32768) / 32768.0f; }

__host__ __device__ inline unsigned bitsOf(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ inline unsigned blockSum(unsigned sum) {
  __shared__ unsigned total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % kWarp == 0) atomicAdd(&total, sum);
  __syncthreads();
  return total;
}

// The SM clock while block 0 works.
__device__ inline void startClock(ClockSpan* span) {
  if (blockIdx.x + threadIdx.x == 0) *span = readClock();
}
__device__ inline void stopClock(ClockSpan* span) {
  if (blockIdx.x + threadIdx.x > 0) return;
  const ClockSpan end = readClock();
  *span = {end.cycles - span->cycles, end.nanoseconds - span->nanoseconds};
}

// Runs beside kernels whose blocks come and go.
__global__ void watchClock(ClockSpan* span, long long cycles) {
  startClock(span);
  const long long first = readClock().cycles;
  while (readClock().cycles - first < cycles) continue;
  stopClock(span);
}

// ---- Memory: DRAM, L2, L1, shared

enum Access { kRead, kWrite, kCopy, kTriad };

// snippet: stream
// Four ways through DRAM. What decides the bytes in flight: the width of an access (kWords), the loads a thread issues
// before it uses the first (kLoads), the number of blocks (one a tile, or fewer that walk on).
template <Access kAccess, int kWords, int kLoads>
__global__ void streamDram(
    const Pack<float, kWords>* a, const Pack<float, kWords>* b, Pack<float, kWords>* out, double* sums, int count) {
  const int tile = kLoads * blockDim.x;
  unsigned sum = 0;
  for (int first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
    Pack<float, kWords> held[kLoads] = {};
    Pack<float, kWords> other[kLoads] = {};
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      if (i < count && kAccess != kWrite) held[k] = a[i];
      if (i < count && kAccess == kTriad) other[k] = b[i];
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * blockDim.x + threadIdx.x;
      for (int w = 0; w < kWords; ++w) {
        float& word = held[k].at[w];
        if (kAccess == kRead && i < count) sum += bitsOf(word);
        if (kAccess == kWrite) word = pattern(i * kWords + w);
        if (kAccess == kTriad) word = fmaf(kScale, other[k].at[w], word);
      }
      if (kAccess != kRead && i < count) out[i] = held[k];
    }
  }
  if (kAccess == kRead) {  // stores must not weigh on it
    sum = blockSum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
}
// end snippet: stream

// Through L1; past it; and past it with the slices going round among the SMs: what several ask for at about the same
// time is merged on the way, and the rate counts bytes that the L2 never served.
enum Route { kThroughL1, kPastL1, kRotating };

// Each block, one on an SM, reads its slice over and over, every warp its own part: warps that shared lines would
// follow one another and find them in L1, however large the slice. 8 loads a thread are in flight.
template <Route kRoute>
__global__ void __launch_bounds__(kSmBlock)
    readSlices(const uint4* in, double* sums, ClockSpan* span, int slice, int trips) {
  startClock(span);
  int owner = blockIdx.x;
  const uint4* from = in + size_t(owner) * slice;
  const int step = 2 * blockDim.x;
  int position = threadIdx.x / kWarp * 2 * kWarp + threadIdx.x % kWarp;
  unsigned sum = 0;
  for (int trip = 0; trip < trips; ++trip) {
    uint4 held[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint4* at = from + position + k % 2 * kWarp;
      held[k] = kRoute == kThroughL1 ? *at : __ldcg(at);
      if (k % 2 == 0) continue;
      position += step;
      if (position >= slice) {
        position -= slice;
        if (kRoute == kRotating) {
          owner = owner + 1 == int(gridDim.x) ? 0 : owner + 1;
          from = in + size_t(owner) * slice;
        }
      }
    }
    for (int k = 0; k < kInFlight; ++k) sum += held[k].x + held[k].y + held[k].z + held[k].w;
  }
  stopClock(span);
  sum = blockSum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Lane l reads word l * stride: all banks, or many lanes meet in one. The start moves, or the compiler would load once.
__global__ void readShared(double* out, ClockSpan* span, int stride, int trips) {
  __shared__ unsigned words[kSharedWords];
  for (unsigned i = threadIdx.x; i < kSharedWords; i += blockDim.x) words[i] = bitsOf(pattern(i));
  __syncthreads();
  startClock(span);
  unsigned sum = 0;
  for (int trip = 0; trip < trips; ++trip) {
    const int start = threadIdx.x % kWarp * stride + trip % kTurns * kTurn;
#pragma unroll
    for (int k = 0; k < kHops; ++k) sum += words[start + k * kHop];
  }
  stopClock(span);
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// ---- Arithmetic

__host__ __device__ inline float chainStart(int seed, int chain) {
  return (seed * kChains + chain) * 0.015625f - 0.45f;
}

// Rounds to `bits` significant bits, ties to even, as the hardware does.
double rounded(double value, int bits) {
  if (bits == 24) return float(value);
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, bits - exponent)), exponent - bits);
}

// The chain on the CPU, in a type of `bits` significant bits.
double floatChain(int bits, bool fused, double start, double c, int steps) {
  double x = rounded(start, bits);
  c = rounded(c, bits);
  for (int step = 0; step < steps; ++step) x = rounded(fused ? std::fma(x, x, c) : rounded(x * x, bits) + c, bits);
  return x;
}

// Arithmetic: a chain's register, its constants (kernel parameters: the compiler cannot fold them), its start, a step
// and what that counts for, its worth, and the same on the CPU.
template <class Float, bool kFused>
struct Scalar {
  using Value = Float;
  using Map = Float;
  static constexpr int kWork = 2, kFlop = 2;
  static Map map() { return kMap; }
  static __device__ Value start(float x) { return x; }
  static __device__ float step(float x, float c) { return kFused ? fmaf(x, x, c) : __fadd_rn(__fmul_rn(x, x), c); }
  static __device__ double step(double x, double c) { return kFused ? fma(x, x, c) : __dadd_rn(__dmul_rn(x, x), c); }
  static __device__ double worth(Value x) { return x; }
  static double onCpu(float x, int steps) { return floatChain(sizeof(Float) == 4 ? 24 : 53, kFused, x, kMap, steps); }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800  // and not launched
__device__ __nv_bfloat162 __hfma2(__nv_bfloat162, __nv_bfloat162, __nv_bfloat162 c) { return c; }
#endif

// Pairs. What is not fused is an FMA with -0 and one by 1: Hopper has HMUL2 and HADD2 in one of its two half-precision
// pipes only, FMAs in both. An operand that the compiler knows to have equal halves would run at half rate.
template <class Pair, Pair (*kPack)(float, float), int kBits, bool kFused>
struct Packed {
  using Value = Pair;
  struct Map {
    Pair c, one, zero;
  };
  static constexpr int kWork = 4, kFlop = 4;
  static constexpr float kLow = kBits == 11 ? -1.74f : -1.70f;
  static constexpr float kHigh = kBits == 11 ? -1.86f : -1.68f;
  static Map map() { return {kPack(kLow, kHigh), kPack(1, 1), kPack(-0.0f, -0.0f)}; }
  static __device__ Value start(float x) { return kPack(x, x); }
  static __device__ Value step(Value x, const Map& map) {
    return kFused ? __hfma2(x, x, map.c) : __hfma2(__hfma2(x, x, map.zero), map.one, map.c);
  }
  static __device__ double worth(Value x) { return __low2float(x) + __high2float(x); }
  static double onCpu(float x, int steps) {
    return floatChain(kBits, kFused, x, kLow, steps) + floatChain(kBits, kFused, x, kHigh, steps);
  }
};

template <bool kFused>
using Half = Packed<__half2, __floats2half2_rn, 11, kFused>;
template <bool kFused>
using Brain = Packed<__nv_bfloat162, __floats2bfloat162_rn, 8, kFused>;

// Integers: x <- x * a + c, of full period.
struct Int32 {
  using Value = unsigned;
  struct Map {
    unsigned a, c;
  };
  static constexpr int kWork = 2, kFlop = 0;
  static Map map() { return {1664525, 1013904223}; }
  static __device__ Value start(float x) { return bitsOf(x); }
  static __device__ Value step(Value x, const Map& map) { return x * map.a + map.c; }
  static __device__ double worth(Value x) { return x; }
  static double onCpu(float start, int steps) {
    unsigned x = bitsOf(start);
    for (int step = 0; step < steps; ++step) x = x * map().a + map().c;
    return x;
  }
};

struct IssueFma : Scalar<float, true> {
  static constexpr int kWork = 1;
};

// Warp instructions: FMAs, or half of them integer, because the FP32 lanes of T4 and A100 fill half the issue slots.
struct IssueMix : Int32 {
  struct Value {
    float f, g;
    unsigned u;
  };
  static constexpr int kWork = 4, kFlop = 4;
  static __device__ Value start(float x) { return {x, -0.5f * x, bitsOf(x)}; }
  static __device__ Value step(Value x, const Map& map) {
    return {fmaf(x.f, x.f, kMap), fmaf(x.g, x.g, kMap), (x.u + map.a) ^ map.c};
  }
  static __device__ double worth(Value x) { return double(x.f) + x.g + x.u; }
  static double onCpu(float start, int steps) {
    unsigned u = bitsOf(start);
    for (int step = 0; step < steps; ++step) u = (u + map().a) ^ map().c;
    return Scalar<float, true>::onCpu(start, steps) + Scalar<float, true>::onCpu(-0.5f * start, steps) + u;
  }
};

#ifndef CUDA_DAYS_CPU
// Tensor cores: a step is D += A B, 16 x 8 of D a warp. All of A and B is 2, so D counts the steps.
enum Mma { kFp16Turing, kFp16, kBf16, kTf32, kInt8Turing, kInt8, kFp64Ampere, kFp64 };
#define MMA(instruction, a, b, type, input)                                              \
  asm("mma.sync.aligned." instruction " {%0,%1,%2,%3}, {" a "}, {" b "}, {%0,%1,%2,%3};" \
      : "+" type(v.d[0]), "+" type(v.d[1]), "+" type(v.d[2]), "+" type(v.d[3])           \
      : input(two))
#define MMA_8_ROWS(instruction, type, input)                           \
  for (int i = 0; i < 4; i += 2)                                       \
  asm("mma.sync.aligned." instruction " {%0,%1}, {%2}, {%2}, {%0,%1};" \
      : "+" type(v.d[i]), "+" type(v.d[i + 1])                         \
      : input(two))
template <Mma kMma, class Sum, int kDepth, class Input = unsigned>
struct Tensor {
  struct Value {
    Sum d[4];
  };
  using Map = Input;
  static constexpr int kWork = 2 * 16 * 8 * kDepth / kWarp;
  static constexpr int kFlop = kMma == kInt8 || kMma == kInt8Turing ? 0 : kWork;
  static Map map() {
    return kMma >= kFp64Ampere ? 2 : kFlop == 0 ? 0x02020202 : kMma == kTf32 ? 0x40000000 : 0x40004000;
  }
  static __device__ Value start(float x) {
    const Sum first = int(64 * x);
    return {{first, first, first, first}};
  }
  static __device__ Value step(Value v, [[maybe_unused]] Map two) {
    if constexpr (kMma == kFp16Turing) MMA("m16n8k8.row.col.f32.f16.f16.f32", "%4,%4", "%4", "f", "r");
    if constexpr (kMma == kInt8Turing) MMA_8_ROWS("m8n8k16.row.col.s32.s8.s8.s32", "r", "r");
#if __CUDA_ARCH__ >= 800
    if constexpr (kMma == kFp16) MMA("m16n8k16.row.col.f32.f16.f16.f32", "%4,%4,%4,%4", "%4,%4", "f", "r");
    if constexpr (kMma == kBf16) MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "%4,%4,%4,%4", "%4,%4", "f", "r");
    if constexpr (kMma == kTf32) MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "%4,%4,%4,%4", "%4,%4", "f", "r");
    if constexpr (kMma == kInt8) MMA("m16n8k32.row.col.s32.s8.s8.s32", "%4,%4,%4,%4", "%4,%4", "r", "r");
    if constexpr (kMma == kFp64Ampere) MMA_8_ROWS("m8n8k4.row.col.f64.f64.f64.f64", "d", "d");
#endif
#if __CUDA_ARCH__ >= 900
    if constexpr (kMma == kFp64)
      MMA("m16n8k16.row.col.f64.f64.f64.f64", "%4,%4,%4,%4,%4,%4,%4,%4", "%4,%4,%4,%4", "d", "d");
#endif
    return v;
  }
  static __device__ double worth(const Value& v) { return double(v.d[0]) + v.d[1] + v.d[2] + v.d[3]; }
  static double onCpu(float x, int steps) { return 4 * (int(64 * x) + 4.0 * kDepth * steps); }
};

// Hopper reaches its peak with wgmma alone, which an -arch=sm_90a build has: four warps multiply A, in registers, by B,
// in shared memory. All of both is 2, so the layout does not matter.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ bool wgmmaIsThere = true;
#else
__device__ bool wgmmaIsThere = false;
#endif
#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
__global__ void __launch_bounds__(kBlock) warpgroupPeak(double* out, ClockSpan* span, unsigned two, int steps) {
  [[maybe_unused]] __shared__ __align__(128) unsigned b[64 * 16 / 2];
  for (int i = threadIdx.x; i < 64 * 16 / 2; i += blockDim.x) b[i] = two;
  __syncthreads();
  float d[32] = {};
  startClock(span);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // Address and strides, in 16 bytes.
  const std::uint64_t descriptor = __cvta_generic_to_shared(b) >> 4 | 1ull << 16 | 1ull << 32;
  for (int step = 0; step < steps; step += kUnroll) {
    asm volatile("fence.proxy.async; wgmma.fence.sync.aligned;");
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
          "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%32,%32,%32}, %33, 1, 1, 1, 0;"
          : SUMS_16(0), SUMS_16(16)
          : "r"(two), "l"(descriptor));
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
#endif
  stopClock(span);
  float sum = 0;
  for (const float element : d) sum += element;
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
#endif

// Registers only: kChains independent chains a thread, and their sum, so that none is dead.
template <class Type>
__global__ void arithmeticPeak(double* out, ClockSpan* span, typename Type::Map map, int steps) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  typename Type::Value chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = Type::start(chainStart(thread % kSeeds, c));
  startClock(span);
  for (int step = 0; step < steps; step += kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) chain[c] = Type::step(chain[c], map);
    }
  }
  stopClock(span);
  double sum = 0;
  for (int c = 0; c < kChains; ++c) sum += Type::worth(chain[c]);
  out[thread] = sum;
}

// ---- The measured curve, and the kernels under the lines

// kFmas FMAs on the four floats of a load, which then go out again: kFmas / 16 FLOP per byte.
template <int kFmas>
__global__ void intensity(const Pack<float, 4>* in, Pack<float, 4>* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Pack<float, 4> x = in[i];
#pragma unroll
  for (int k = 0; k < kFmas; ++k) x.at[k % 4] = fmaf(x.at[k % 4], x.at[k % 4], kMap);
  out[i] = x;
}

__global__ void vectorAdd(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

__global__ void triadFp64(const double* a, const double* b, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = fma(double(kScale), b[i], a[i]);
}

// A heat step in 3D, 5 additions and an FMA a cell. Of its seven reads one is its own: caches may serve the others.
__global__ void stencil7(const double* in, double* out, int g) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y;
  const int z = blockIdx.z;
  if (x >= g) return;
  const int i = (z * g + y) * g + x;
  const bool inside = x > 0 && x < g - 1 && y > 0 && y < g - 1 && z > 0 && z < g - 1;
  out[i] =
      inside ? fma(kHeat, in[i - 1] + in[i + 1] + in[i - g] + in[i + g] + in[i - g * g] + in[i + g * g], in[i]) : in[i];
}

// C = A B, d x d, a multiple of kTile. Of an output's 2 d reads a cache, or tiles in shared memory, serve most.
__global__ void matmulNaive(const float* a, const float* b, float* out, int d) {
  const int x = blockIdx.x * kTile + threadIdx.x;
  const int y = blockIdx.y * kTile + threadIdx.y;
  float sum = 0;
  for (int k = 0; k < d; ++k) sum = fmaf(a[y * d + k], b[k * d + x], sum);
  out[y * d + x] = sum;
}

__global__ void matmulTiled(const float* a, const float* b, float* out, int d) {
  __shared__ float tileA[kTile][kTile], tileB[kTile][kTile];
  const int x = threadIdx.x, y = threadIdx.y;
  a += (blockIdx.y * kTile + y) * d + x;
  b += y * d + blockIdx.x * kTile + x;
  float sum = 0;
  for (int first = 0; first < d; first += kTile) {
    tileA[y][x] = a[first];
    tileB[y][x] = b[first * d];
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum = fmaf(tileA[y][k], tileB[k][x], sum);
    __syncthreads();
  }
  out[(blockIdx.y * kTile + y) * d + blockIdx.x * kTile + x] = sum;
}

// ---- A problem

struct Sizes {
  int words, large;  // floats of a stream, and of a large one
  int grid, matrix;  // of the stencil, the products
  int sms, wave;  // wave: blocks that fit at once
  int l2Bytes;
  int length;  // of the loops: 1 is the shortest
};

// No launch shape divides 100,052: it is a multiple of 4, as float4 needs, and of none of 8, 32 or 256.
constexpr Sizes kRagged = {100052, 100052, 19, 80, 3, 6, 200000, 1};

Sizes timedSizes(const cudaDeviceProp& gpu) {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const size_t least = kTimes * gpu.l2CacheSize;
  const size_t bytes = kOnCpu ? least : std::max(kStreamBytes, least);
  const int words = int(bytes / sizeof(float) / kSmBlock * kSmBlock);
  int large = kTimes;
  while (large > 1 && 3 * large * bytes > free / 2) large /= 2;  // a card with little memory
  const int grid = int(std::cbrt(words / 2)) / kWarp * kWarp;
  return {words, large * words, grid, kMatrix, gpu.multiProcessorCount,
      gpu.multiProcessorCount * (gpu.maxThreadsPerMultiProcessor / kBlock), gpu.l2CacheSize, kOnCpu ? 1 : kLength};
}

constexpr int kShift = 12345;

template <class T>
void fill(const DeviceBuffer<T>& buffer, int shift) {
  vector<T> host(buffer.count());
  for (size_t i = 0; i < host.size(); ++i) host[i] = pattern(unsigned(i) + shift);
  CUDA_CHECK(cudaMemcpy(buffer, host.data(), buffer.bytes(), cudaMemcpyHostToDevice));
}

struct Problem {
  explicit Problem(const Sizes& of)
      : sizes(of),
        a(of.large),
        b(of.large),
        out(of.large),
        results(std::max(ceilDivide(of.large, kBlock), 2 * of.sms * kSmBlock)),
        wideA(of.words / 2),
        wideB(of.words / 2),
        wideOut(of.words / 2),
        span(1),
        before(of.large + 1) {
    fill(a, 0);
    fill(b, kShift);
    fill(wideA, 0);
    fill(wideB, kShift);
    for (int i = 0; i < of.large; ++i) before[i + 1] = before[i] + bitsOf(pattern(i));
  }

  static size_t bytes(const Sizes& of) { return sizeof(float) * (5 * size_t(of.large) + 3 * size_t(of.words)); }
  const Sizes sizes;
  const DeviceBuffer<float> a, b, out;
  const DeviceBuffer<double> results;
  const DeviceBuffer<double> wideA, wideB, wideOut;
  const DeviceBuffer<ClockSpan> span;
  vector<unsigned> before;  // the sum of all words of `a` before each, modulo 2^32
};

// ---- The tables: ceilings with the shapes that compete for them, and what stands under

string text(const char* format, double number) {
  char digits[80];
  snprintf(digits, sizeof digits, format, number);
  return digits;
}

struct Row {
  string level;  // of memory, compute, issue, or what stands under
  string kind;
  string shape;
  const char* symbol;  // the kernel's name in the source
  double work;  // of a launch, in what the level counts
  double flop;
  double bytes;  // asked of that level
  double perClock = 0;  // what an SM can do, if known
  double leastBytes = 0;
  double fmas = 0;  // of the floating-point instructions
  Launch launch = {};
  void* out = nullptr;
  size_t outBytes = 0;
  std::function<Verdict(const void* got)> judge = {};

  template <class T, class Want>
  void writes(const DeviceBuffer<T>& buffer, size_t count, Want want, double allowed = 0) {
    out = buffer;
    outBytes = count * sizeof(T);
    judge = [count, want, allowed](const void* got) {
      const T* values = static_cast<const T*>(got);
      Verdict verdict;
      verdict.checked = count;
      for (size_t i = 0; i < count; ++i) verdict.wrong += values[i] != T(want(unsigned(i)));
      if (verdict.wrong == 0) return verdict;
      return compare(values, 1, count, 0, allowed, [&](size_t, size_t i) -> double { return want(unsigned(i)); });
    };
  }
  string name() const { return level + "-" + kind; }
};
using Shapes = vector<Row>;

template <class... P>
Launch launch(void (*kernel)(P...), dim3 grid, dim3 block, int shared, std::common_type_t<P>... arguments) {
  return [=](cudaStream_t on) { kernel<<<grid, block, shared, on>>>(arguments...); };
}

template <int kWords>
Pack<float, kWords>* packs(const DeviceBuffer<float>& buffer) {
  return reinterpret_cast<Pack<float, kWords>*>(&buffer[0]);
}

// With 0 `resident` blocks, one for every tile.
template <Access kAccess, int kWords, int kLoads>
Row streamRow(const Problem& p, int words, int resident) {
  constexpr const char* kNames[] = {"read", "write", "copy", "triad"};
  constexpr int kStreams = kAccess == kTriad ? 3 : kAccess == kCopy ? 2 : 1;
  const int tile = kBlock * kLoads;
  const int count = words / kWords;
  const int blocks = resident == 0 ? ceilDivide(count, tile) : resident;
  const double bytes = 4.0 * kStreams * words;
  Row row = {"dram", kNames[kAccess], "float" + to_string(kWords) + " x " + to_string(kLoads), "streamDram", bytes,
      kAccess == kTriad ? 2.0 * words : 0, bytes};
  if (words > p.sizes.words) row.kind += "-large";
  if (resident > 0) row.shape += ", " + to_string(resident) + " blocks";
  const auto sums = [=, &p](unsigned i) {
    unsigned sum = 0;
    for (unsigned first = i * tile; first < unsigned(count); first += blocks * tile)
      sum += p.before[std::min<unsigned>(first + tile, count) * kWords] - p.before[first * kWords];
    return sum;
  };
  const auto values = [](unsigned i) { return pattern(i) + (kAccess == kTriad ? kScale * pattern(i + kShift) : 0); };
  if (kAccess == kRead)
    row.writes(p.results, blocks, sums);
  else
    row.writes(p.out, words, values);
  row.launch = launch(streamDram<kAccess, kWords, kLoads>, blocks, kBlock, 0, packs<kWords>(p.a), packs<kWords>(p.b),
      packs<kWords>(p.out), p.results, count);
  return row;
}

template <Access kAccess, int kWords, int... kLoads>
void addStreams(Shapes& shapes, const Problem& p, int words, int resident) {
  (shapes.push_back(streamRow<kAccess, kWords, kLoads>(p, words, resident)), ...);
}

template <Access kAccess>
Shapes streamShapes(const Problem& p, int words) {
  Shapes shapes;
  for (const int resident : {0, p.sizes.wave / 2, p.sizes.wave}) {
    if (resident > 0 && words > p.sizes.words) break;  // one pass is best
    addStreams<kAccess, 4, 1, 2, 4, 8>(shapes, p, words, resident);
    addStreams<kAccess, 2, 1, 2, 4, 8>(shapes, p, words, resident);
    addStreams<kAccess, 1, 1, 2, 4, 8>(shapes, p, words, resident);
  }
  return shapes;
}

template <Route kRoute>
Row sliceRow(const Problem& p, const char* level, double sliceBytes, int block, double perClock, int shared = 0) {
  const int slice = std::max(1, int(sliceBytes / 32 / block)) * 2 * block;
  const int blocks = p.sizes.sms;
  const int trips = 8 * p.sizes.length * kSmBlock / block;
  const unsigned covered = kInFlight * trips * block;  // vectors of 16 bytes
  const double bytes = 16.0 * covered * blocks;
  Row row = {level, kRoute == kRotating ? "rotating" : "read", to_string(slice / 64) + " KiB per SM", "readSlices",
      bytes, 0, bytes, perClock};
  row.writes(p.results, blocks, [=, &p](unsigned block) {
    unsigned sum = 0;
    for (unsigned pass = 0; pass * slice < covered; ++pass) {
      const unsigned owner = kRoute == kRotating ? (block + pass) % blocks : block;
      const unsigned vectors = std::min<unsigned>(slice, covered - pass * slice);
      sum += p.before[4 * (owner * slice + vectors)] - p.before[4 * owner * slice];
    }
    return sum;
  });
  row.launch = launch(
      readSlices<kRoute>, blocks, block, shared, reinterpret_cast<uint4*>(&p.a[0]), p.results, p.span, slice, trips);
  return row;
}

template <Route kRoute>
Shapes sliceShapes(const Problem& p, const char* level, double sliceBytes, double perClock) {
  Shapes shapes;
  for (const int block : {256, 512, 1024}) {
    shapes.push_back(sliceRow<kRoute>(p, level, sliceBytes, block, perClock));
    shapes.back().shape += ", " + to_string(block) + " threads";
  }
  return shapes;
}

Row sharedRow(const Problem& p, int ways, double perClock) {
  const int trips = 32 * p.sizes.length;
  const int blocks = p.sizes.sms;
  const double bytes = 4.0 * kHops * trips * blocks * kSmBlock;
  Row row = {"shared", ways == 1 ? "read" : to_string(ways) + "-way", "4-byte reads", "readShared", bytes, 0, bytes,
      perClock / ways};
  vector<unsigned> sums(kWarp);
  for (int i = 0; i < trips * kWarp * kHops; ++i)
    sums[i % kWarp] +=
        bitsOf(pattern(i / kWarp / kHops % kTurns * kTurn + i % kWarp * ways + i / kWarp % kHops * kHop));
  row.writes(p.results, blocks * kSmBlock, [=](unsigned i) { return sums[i % kWarp]; });
  row.launch = launch(readShared, blocks, kSmBlock, 0, p.results, p.span, ways, trips);
  return row;
}

template <class Type>
Row arithmeticRow(const Problem& p, const string& kind, const char* shape, double perClock, int blocks) {
  const int steps = 8 * kUnroll * p.sizes.length;
  const double all = double(kChains) * steps * blocks * kBlock;
  Row row = {"compute", kind, shape, "arithmeticPeak", all * Type::kWork, all * Type::kFlop, 0, perClock};
  vector<double> seeds;
  for (int seed = 0; seed < kSeeds; ++seed) {
    double sum = 0;
    for (int c = 0; c < kChains; ++c) sum += Type::onCpu(chainStart(seed, c), steps);
    seeds.push_back(sum);
  }
  row.writes(p.results, blocks * kBlock, [seeds](unsigned i) { return seeds[i % kSeeds]; });
  row.launch = launch(arithmeticPeak<Type>, blocks, kBlock, 0, p.results, p.span, Type::map(), steps);
  return row;
}

#ifndef CUDA_DAYS_CPU
Row wgmmaRow(const Problem& p, double perClock) {
  const int steps = 4 * kUnroll * p.sizes.length;
  const int blocks = 2 * p.sizes.sms;
  const double flop = 64.0 * 64 * 16 * 2 / (4 * kWarp) * steps * blocks * kBlock;
  Row row = {"compute", "tensor-fp16-wgmma", "wgmma m64n64k16", "warpgroupPeak", flop, flop, 0, perClock};
  row.writes(p.results, blocks * kBlock, [=](unsigned) { return 32 * 4.0 * 16 * steps; });
  row.launch = launch(warpgroupPeak, blocks, kBlock, 0, p.results, p.span, 0x40004000, steps);
  return row;
}
#endif

template <class Type>
Row issueRow(const Problem& p, const char* shape, int blocks) {
  Row row = arithmeticRow<Type>(p, "warp-instructions", shape, 4, blocks);
  row.level = "issue";
  row.work /= kWarp;
  return row;
}

// --profile launches the first shape of each.
vector<Shapes> makeCeilings(const Problem& p, int capability) {
  PerClock per = kPerClock[0];
  for (const PerClock& row : kPerClock)
    if (row.capability <= capability) per = row;
  vector<Shapes> all;
  for (int words = p.sizes.words;; words = p.sizes.large) {
    all.push_back(streamShapes<kRead>(p, words));
    all.push_back(streamShapes<kWrite>(p, words));
    all.push_back(streamShapes<kCopy>(p, words));
    all.push_back(streamShapes<kTriad>(p, words));
    Row library = all[all.size() - 2].front();  // the driver's copy, which must not be faster
    library.kind.replace(0, 4, "memcpy");
    library.shape = "cudaMemcpyAsync";
    library.symbol = "cudaMemcpyAsync";
    library.launch = [=, &p](cudaStream_t on) {
      CUDA_CHECK(cudaMemcpyAsync(p.out, p.a, sizeof(float) * words, cudaMemcpyDeviceToDevice, on));
    };
    all.push_back({library});
    if (words == p.sizes.large) break;
  }
  const double l2 = double(p.sizes.l2Bytes) / p.sizes.sms;
  all.push_back(sliceShapes<kPastL1>(p, "l2", l2 / 2, 0));
  all.push_back(sliceShapes<kRotating>(p, "l2", l2 / 2, 0));
  all.push_back(sliceShapes<kThroughL1>(p, "l1", 32 << 10, per.bytes));
  for (int ways = 1; ways <= kWarp; ways *= 2) all.push_back({sharedRow(p, ways, per.bytes)});

  const auto add = [&](auto type, const string& kind, double perClock, const char* shape = "8 chains") {
    const int blocks = shape[0] == 'm' ? 2 * p.sizes.sms : p.sizes.wave;  // 16 warps are enough for mma.sync
    all.push_back({arithmeticRow<decltype(type)>(p, kind, shape, perClock, blocks)});
  };
  const auto addBoth = [&](auto fused, auto split, const string& type, double lanes) {
    add(fused, type + "-fma", 2 * lanes);
    add(split, type + "-muladd", lanes);
  };
  addBoth(Scalar<float, true>(), Scalar<float, false>(), "fp32", per.fp32);
  addBoth(Scalar<double, true>(), Scalar<double, false>(), "fp64", per.fp64);
  addBoth(Half<true>(), Half<false>(), "fp16x2", per.fp16);
  if (per.bf16 > 0 || kOnCpu) addBoth(Brain<true>(), Brain<false>(), "bf16x2", per.bf16);
  add(Int32(), "int32-mad", 2 * per.int32);
#ifndef CUDA_DAYS_CPU
  if (capability < 80) add(Tensor<kFp16Turing, float, 8>(), "tensor-fp16", per.tensor, "mma.sync m16n8k8");
  if (capability >= 80) {
    add(Tensor<kFp16, float, 16>(), "tensor-fp16", per.tensor, "mma.sync m16n8k16");
    add(Tensor<kBf16, float, 16>(), "tensor-bf16", per.tensor, "mma.sync m16n8k16");
    add(Tensor<kTf32, float, 8>(), "tensor-tf32", per.tensor / 2, "mma.sync m16n8k8");
    add(Tensor<kInt8, int, 32>(), "tensor-int8", 2 * per.tensor, "mma.sync m16n8k32");
  }
  if (capability < 80) add(Tensor<kInt8Turing, int, 16>(), "tensor-int8", 2 * per.tensor, "mma.sync m8n8k16");
  if (capability == 80)
    add(Tensor<kFp64Ampere, double, 4, double>(), "tensor-fp64", per.tensor / 16, "mma.sync m8n8k4");
  if (capability >= 90) add(Tensor<kFp64, double, 16, double>(), "tensor-fp64", per.tensor / 16, "mma.sync m16n8k16");
  bool wgmma = false;
  CUDA_CHECK(cudaMemcpyFromSymbol(&wgmma, wgmmaIsThere, sizeof wgmma));
  if (wgmma) all.push_back({wgmmaRow(p, per.tensor)});
#endif
  all.push_back({issueRow<IssueMix>(p, "FMA and integer", p.sizes.wave), issueRow<IssueFma>(p, "FMA", p.sizes.wave)});
  return all;
}

// The copy with more and more FMAs in it.
template <int kFmas>
void addCurve(Shapes& rows, const Problem& p) {
  const int count = p.sizes.words / 4;
  const double flop = 2.0 * kFmas * count;
  Row row = {"curve", text("%g", kFmas / 16.0), "float4 x 1", "intensity", flop, flop, 32.0 * count};
  vector<float> after;  // what the FMAs make of each value of the pattern
  for (unsigned i = 0; i < 1 << 16; ++i)
    after.push_back(floatChain(24, true, pattern(i), kMap, std::max(1, kFmas / 4)));
  row.writes(p.out, 4 * count,
      [after](unsigned i) { return i % 4 < unsigned(kFmas) ? after[(i ^ (i >> 16)) & 0xFFFF] : pattern(i); });
  row.launch = launch(intensity<kFmas>, ceilDivide(count, kBlock), kBlock, 0, packs<4>(p.a), packs<4>(p.out), count);
  rows.push_back(row);
  if constexpr (kFmas < 2048) addCurve<2 * kFmas>(rows, p);
}

// Kernels have two counts of bytes: what the source asks for, and what a perfect cache would leave.
Shapes makeRows(const Problem& p) {
  Shapes rows;
  addCurve<1>(rows, p);
  const int n = p.sizes.words;
  const int half = n / 2;
  const int g = p.sizes.grid;
  const double cells = std::pow(g - 2, 3);
  const auto add = [&](const char* name, const char* symbol, double flop, double asked, double least, double fmas,
                       const Launch& launch) -> Row& {
    rows.push_back({"kernel", name, "plain", symbol, asked, flop, asked, 0, least, fmas, launch});
    return rows.back();
  };
  const auto heated = [g](unsigned i) -> double {
    const int x = i % g, y = i / g % g, z = i / g / g;
    if (std::min({x, y, z}) == 0 || std::max({x, y, z}) == g - 1) return pattern(i);
    const auto pair = [i](int step) { return pattern(i - step) + pattern(i + step); };
    return pattern(i) + kHeat * (pair(1) + pair(g) + pair(g * g));
  };
  add("vector add", "vectorAdd", n, 12.0 * n, 12.0 * n, 0,
      launch(vectorAdd, ceilDivide(n, kBlock), kBlock, 0, p.a, p.b, p.out, n))
      .writes(p.out, n, [](unsigned i) { return pattern(i) + pattern(i + kShift); });
  add("triad FP64", "triadFp64", n, 12.0 * n, 12.0 * n, 1,
      launch(triadFp64, ceilDivide(half, kBlock), kBlock, 0, p.wideA, p.wideB, p.wideOut, half))
      .writes(p.wideOut, half, [](unsigned i) { return pattern(i) + kScale * pattern(i + kShift); });
  add("stencil FP64", "stencil7", 7 * cells, 64 * cells, 16 * cells, 1.0 / 6,
      launch(stencil7, dim3(ceilDivide(g, kBlock), g, g), kBlock, 0, p.wideA, p.wideOut, g))
      .writes(p.wideOut, size_t(g) * g * g, heated);

  const int d = p.sizes.matrix;
  vector<double> product(d * d);
  for (int i = 0; i < d * d; ++i)
    for (int k = 0; k < d; ++k) product[i] += double(pattern(i / d * d + k)) * pattern(k * d + i % d + kShift);
  const double reads = 8.0 * d * d * d, matrix = 4.0 * d * d;
  const auto matmul = [&](const char* name, const char* symbol, double asked, auto kernel) {
    add(name, symbol, reads / 4, asked + matrix, 3 * matrix, 1,
        launch(kernel, dim3(d / kTile, d / kTile), dim3(kTile, kTile), 0, p.a, p.b, p.out, d))
        .writes(
            p.out, d * d, [product](unsigned i) { return product[i]; }, kAllowed);
  };
  matmul("matmul naive", "matmulNaive", reads, matmulNaive);
  matmul("matmul tiled", "matmulTiled", reads / kTile, matmulTiled);
  return rows;
}

void runRow(const Row& row, cudaStream_t stream) {
  row.launch(stream);
  finish(row.symbol, stream);
}

// Returns how many rows were wrong.
int check(const Shapes& rows, const char* size, const Options& options, cudaStream_t stream) {
  vector<double> host;
  int failed = 0;
  for (const Row& row : rows) {
    poison(row.out, row.outBytes, stream);
    runRow(row, stream);
    host.resize(row.outBytes / sizeof(double) + 1);
    CUDA_CHECK(cudaMemcpy(host.data(), row.out, row.outBytes, cudaMemcpyDeviceToHost));
    const Verdict verdict = row.judge(host.data());
    const string variant = row.name() + ", " + row.shape;
    failed += reportCheck(kProgram.day, variant, row.symbol, size, verdict, options.mode, options.json);
  }
  return failed;
}

// ---- Measuring and the report

struct Measured {
  Row row;
  Timing timing;
  double value;  // giga per second
  double clockMhz = 0;
  double percent = 0;  // of what the SMs can do at this clock
};

struct Column {
  const char* key;
  double number;
  string words = "";  // instead
};

struct Report {
  const Problem& p;
  const cudaDeviceProp& gpu;
  const Options& options;
  cudaStream_t stream;
  int failed = 0;
  std::map<string, double> rates = {};  // of the ceilings

  void title(const char* words) const {
    if (!options.json) printf("\n%s\n", words);
  }

  void print(const char* record, const Measured& m, const vector<Column>& columns) const {
    const Row& row = m.row;
    const bool memory = row.level != "curve" && row.work == row.bytes;
    const int metric = memory ? 0 : row.level == "issue" ? 3 : row.flop == 0 ? 2 : 1;
    constexpr const char* kMetrics[] = {"gbps", "gflops", "gops", "ginst"};
    constexpr const char* kUnits[] = {"GB/s", "GFLOP/s", "GOP/s", "Ginst/s"};
    if (!options.json) {
      printf("%-26s %8.4f ms %4.1f %% %10.1f %-8s", row.name().c_str(), m.timing.ms, m.timing.spreadPercent(), m.value,
          kUnits[metric]);
      for (const Column& c : columns)
        printf("  %s %s", c.key, c.words.empty() ? text("%-8.6g", c.number).c_str() : c.words.c_str());
      printf("\n");
      return flushOutput();
    }
    JsonLine line(record, kProgram.day, row.name(), row.symbol);
    line.timing(m.timing).integer("flop", row.flop).integer("bytes", row.bytes);
    if (row.level == "kernel")
      line.metric("ms", m.timing.ms, "ms");
    else
      line.metric(kMetrics[metric], m.value, kUnits[metric]);
    line.text("level", row.level).text("kind", row.kind);
    for (const Column& c : columns) c.words.empty() ? line.number(c.key, c.number) : line.text(c.key, c.words);
    line.print();
  }

  vector<Measured> measureAll(const Shapes& rows, int samples = kSearchSamples) const {
    vector<Launch> launches;
    for (const Row& row : rows) launches.push_back(row.launch);
    const vector<Timing> timings = measureInTurn(stream, launches, samples);
    vector<Measured> all;
    for (size_t i = 0; i < rows.size(); ++i) all.push_back({rows[i], timings[i], rows[i].work / timings[i].ms * 1e-6});
    return all;
  }

  void readClock(Measured& m) const {
    if (m.row.level == "dram") {
      const Stream beside;
      watchClock<<<1, 1, 0, beside>>>(p.span, 1 << 21);  // about a millisecond
      for (double spent = 0; spent < 2; spent += m.timing.ms) m.row.launch(stream);
      finish("watchClock", beside);
    }
    finish(m.row.symbol, stream);
    ClockSpan span;
    CUDA_CHECK(cudaMemcpy(&span, p.span, sizeof span, cudaMemcpyDeviceToHost));
    m.clockMhz = span.megahertz();
    if (m.row.perClock > 0) m.percent = 1e5 * m.value / (m.row.perClock * p.sizes.sms * m.clockMhz);
    if (!(m.percent <= 102))
      throw Stop{kExitFailed, m.row.name() + text(" reads %.1f, beyond the SMs: the time is wrong", m.value)};
  }

  // The best is measured in full.
  void ceiling(const Shapes& shapes) {
    vector<Measured> found = measureAll(shapes, shapes.size() > 1 ? kSearchSamples : kSamples);
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.value > b.value; });
    for (size_t i = 1; i < found.size() && options.json; ++i)
      print("shape", found[i], {{"shape", 0, found[i].row.shape}});
    Measured best = found.size() > 1 ? measureAll({found[0].row}, kSamples)[0] : found[0];
    failed += check({best.row}, "full", options, stream);
    readClock(best);
    vector<Column> columns = {{"clock_mhz", best.clockMhz}};
    if (best.percent > 0) columns.push_back({"percent", best.percent});
    if (best.row.level == "compute" && best.row.flop > 0)
      columns.insert(columns.end(),
          {{"ridge_dram", best.value / rates.at("dram-copy")}, {"ridge_l2", best.value / rates.at("l2-read")},
              {"ridge_l1", best.value / rates.at("l1-read")}});
    columns.push_back({"shape", 0, best.row.shape});
    print(best.row.kind == "rotating" ? "shape" : "ceiling", best, columns);
    rates[best.row.name()] = best.value;
  }

  // A plateau keeps 90 % of its first rate. The first is L1, the last DRAM, the longest between L2.
  void sweep() const {
    title("Working sets: each SM its own, L1 as small as shared memory can make it");
    constexpr double kFirst = 8 << 10;  // the step of a block of 256
    constexpr double kWide = 512 << 10;  // from here on it takes 1024 to keep DRAM busy
    const int shared = int(gpu.sharedMemPerBlockOptin) - 1024;
    CUDA_CHECK(cudaFuncSetAttribute(readSlices<kThroughL1>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    vector<Measured> steps;
    const double last = double(kTimes) * gpu.l2CacheSize / p.sizes.sms;
    for (int i = 0; i < kSweepSizes; ++i) {
      const double bytes = kFirst * std::pow(last / kFirst, i / (kSweepSizes - 1.0));
      Row row = sliceRow<kThroughL1>(p, "sweep", bytes, bytes < kWide ? kBlock : kSmBlock, 128, shared);
      row.kind = row.shape;
      if (!steps.empty() && row.kind == steps.back().row.kind) continue;
      steps.push_back(measureAll({row})[0]);
      readClock(steps.back());
      print("sweep", steps.back(), {{"clock_mhz", steps.back().clockMhz}});
    }
    vector<std::pair<size_t, size_t>> flat;
    for (size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
      while (end < steps.size() && steps[end].value > 0.9 * steps[begin].value) ++end;
      if (end - begin >= 2) flat.push_back({begin, end});
    }
    if (flat.size() < 3) throw Stop{kExitFailed, "the sweep shows no three plateaus"};
    const auto shorter = [](const auto& a, const auto& b) { return a.second - a.first < b.second - b.first; };
    flat = {flat.front(), *std::max_element(flat.begin() + 1, flat.end() - 1, shorter), flat.back()};
    title("Plateaus");
    for (int i = 0; i < 3; ++i) {
      Measured m = steps[(flat[i].first + flat[i].second) / 2];
      const double before = i == 0 ? 1e18 : steps[flat[i - 1].first].value;
      m.row.level = "plateau";
      m.row.kind = i == 0 ? "l1" : i == 1 ? "l2" : "dram";
      print("plateau", m, {{"from", 0, steps[flat[i].first].row.kind}, {"to", 0, steps[flat[i].second - 1].row.kind}});
      if (!(m.value < before)) throw Stop{kExitFailed, m.row.kind + " is too fast"};
    }
  }

  void under(const Shapes& rows) const {
    const double fp32 = rates.at("compute-fp32-fma");
    title("The copy with more and more FMAs in it");
    for (const Row& row : rows) {
      if (row.level != "curve") continue;
      const Measured m = measureAll({row})[0];
      const double roof = std::min(fp32, row.flop / row.bytes * rates.at("dram-copy"));
      print("curve", m, {{"intensity", row.flop / row.bytes}, {"roof", roof}, {"percent", 100 * m.value / roof}});
    }
    title("How many SMs it takes");
    const int all = p.sizes.sms;
    for (int sms = 1; sms <= all; sms = sms < all ? std::min(2 * sms, all) : all + 1) {
      for (Row row : {streamRow<kCopy, 4, 8>(p, p.sizes.words, sms),
               arithmeticRow<Scalar<float, true>>(p, "fp32-fma", "", 0, sms)}) {
        row.level = "scaling";
        print("scaling", measureAll({row})[0], {{"sms", double(sms)}});
      }
    }
    title("Kernels: FLOP per byte as asked and at least");
    for (const Row& row : rows) {
      if (row.level != "kernel") continue;
      const Measured m = measureAll({row}, kSamples)[0];
      const double dram = std::max(rates.at("dram-copy"), rates.at("dram-triad"));
      const double line = (row.out == p.wideOut ? rates.at("compute-fp64-fma") : fp32) * (1 + row.fmas) / 2;
      const double asked = row.flop / row.bytes;
      const bool memory = asked * dram < line;
      const double percent = 100 * (memory ? m.value / dram : asked * m.value / line);
      vector<Column> columns = {{"intensity", asked}, {"least", row.flop / row.leastBytes}, {"line", line},
          {"percent", percent}, {"ceiling", 0, memory ? "copy" : "fma"}};
      if (!options.json && percent > 100) columns.push_back({"*", 0, "asked, not moved by DRAM"});
      print("row", m, columns);
    }
  }
};

int runDay(const Options& options) {
  const Device device = openDevice(options.device, vectorAdd);
  const cudaDeviceProp& gpu = device.properties;
  const int capability = 10 * gpu.major + gpu.minor;
  Sizes sizes = timedSizes(gpu);
  if (options.mode == Mode::kCheck) sizes.length = 8;
  requireDeviceMemory(Problem::bytes(sizes));
  if (options.json) {
    printRunRecord(kProgram, device);
  } else {
    printBanner(device);
    printf("Streams of %d MiB, large ones of %d MiB.%s\n", sizes.words >> 18, sizes.large >> 18,
        kOnCpu ? " Skipped: the tensor-* rows, for a GPU." : "");
  }
  const Stream stream;
  int failed = 0;
  if (options.mode != Mode::kProfile) {
    const Problem ragged(kRagged);
    for (const Shapes& shapes : makeCeilings(ragged, capability)) failed += check(shapes, "ragged", options, stream);
    failed += check(makeRows(ragged), "ragged", options, stream);
  }
  // On the CPU the full size would run the same code again.
  if (failed == 0 && (!kOnCpu || options.mode == Mode::kProfile)) {
    const Problem problem(sizes);
    const vector<Shapes> ceilings = makeCeilings(problem, capability);
    const Shapes rows = makeRows(problem);
    Shapes first;
    for (const Shapes& shapes : ceilings) first.push_back(shapes.front());
    first.insert(first.end(), rows.begin(), rows.end());
    if (options.mode == Mode::kProfile) {
      for (const Row& row : first) runRow(row, stream);
      return kExitOk;
    }
    failed += check(options.mode == Mode::kCheck ? first : rows, "full", options, stream);
    if (failed == 0 && options.mode == Mode::kTable) {
      Report report = {problem, gpu, options, stream};
      report.title("Ceilings");
      for (const Shapes& shapes : ceilings) report.ceiling(shapes);
      report.sweep();
      report.under(rows);
      failed = report.failed;
    }
  }
  if (failed > 0) throw Stop{kExitFailed, to_string(failed) + " checks FAILED"};
  return kExitOk;
}

int main(int argc, char** argv) { return runLesson(argc, argv, kProgram, runDay); }
