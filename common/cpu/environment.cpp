// SPDX-License-Identifier: MIT
// The backend's messages, the device that it pretends to be, and its environment variables.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "backend.h"

namespace cuda_cpu {

namespace {

// ---- Messages -----------------------------------------------------------------------------------

// Also called from the signal handler, so no allocation and no stdio here.
void sayArguments(const char* format, va_list arguments) {
  char text[2048];
  int length = std::snprintf(text, sizeof text, "CPU backend: ");
  length += std::vsnprintf(text + length, sizeof text - length - 1, format, arguments);
  length = std::min<int>(length, sizeof text - 2);
  text[length++] = '\n';
  for (int done = 0; done < length;) {
    const ssize_t wrote = write(STDERR_FILENO, text + done, length - done);
    if (wrote <= 0) return;
    done += static_cast<int>(wrote);
  }
}

// Several blocks may fail at once; the first one speaks.
void claimFailure() {
  static std::atomic_flag failing = ATOMIC_FLAG_INIT;
  if (failing.test_and_set()) {
    for (;;) pause();
  }
  flushOutput();
}

}  // namespace

void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  sayArguments(format, arguments);
  va_end(arguments);
}

void flushOutput() {
  if (ftrylockfile(stdout) != 0) return;
  fflush(stdout);
  funlockfile(stdout);
}

void fail(const char* format, ...) {
  claimFailure();
  va_list arguments;
  va_start(arguments, format);
  sayArguments(format, arguments);
  va_end(arguments);
  _exit(1);
}

void failWithoutNans() {
  fail(
      "the compiler was told that there are no NaNs (-fno-honor-nans?), so a day's checks would pass whatever its "
      "kernels compute; build it without such flags");
}

Text textOf(const char* format, ...) {
  Text result;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(result.chars, sizeof result.chars, format, arguments);
  va_end(arguments);
  return result;
}

Text textOf(uint3 at) { return textOf("(%u, %u, %u)", at.x, at.y, at.z); }

// ---- The device it pretends to be ---------------------------------------------------------------

namespace {

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

// SMs, compute capability, threads, blocks and shared memory of an SM, L1, L2, copies, fetch, memory. Sizes: CUDA C++
// Programming Guide, technical specifications per compute capability; the data sheets. A partitioned L2 keeps a sector
// that SMs of the other partition read in both: half of the sectors twice where all SMs stream, which is the 1.5
// lookups a sector that the counter lts__t_bytes shows on A100, H100 and H200. The H200 fetches pairs of sectors (day
// 49's permuted add reads 64 bytes a sector); of the others this is an assumption.
constexpr Card kCards[] = {
    {"t4", "CPU, sized as a T4", 40, 7, 5, 1024, 16, 64 * kKiB, 96 * kKiB, 4 << 20, 1, 32, 16 * kGiB},
    {"a100", "CPU, sized as an A100", 108, 8, 0, 2048, 32, 164 * kKiB, 192 * kKiB, 40 << 20, 1.5, 64, 80 * kGiB},
    {"h100", "CPU, sized as an H100", 132, 9, 0, 2048, 32, 228 * kKiB, 256 * kKiB, 50 << 20, 1.5, 64, 80 * kGiB},
    {"h200", "CPU, sized as an H200", 132, 9, 0, 2048, 32, 228 * kKiB, 256 * kKiB, 60 << 20, 1.5, 64, 141 * kGiB},
};
constexpr const Card* kT4 = &kCards[0];
constexpr const Card* kH200 = &kCards[3];
constexpr Card kOtherArch = {
    "other-arch", "CPU, of another architecture", 40, 12, 1, 1024, 16, 64 * kKiB, 96 * kKiB, 4 << 20, 1, 32, 16 * kGiB};
constexpr Card kTooOld = {
    "too-old", "CPU, sized as a V100", 80, 7, 0, 2048, 32, 96 * kKiB, 128 * kKiB, 6 << 20, 1, 32, 16 * kGiB};

// The states in which something is wrong, or other than it could be: "translated" is a build for sm_75 on an H200.
constexpr Device kDevices[] = {
    {"no-driver", kT4, 16 * kGiB, 0, cudaErrorInsufficientDriver, cudaErrorInsufficientDriver},
    {"no-gpu", kT4, 16 * kGiB, CUDART_VERSION, cudaErrorNoDevice, cudaErrorNoDevice},
    {"old-driver", kT4, 16 * kGiB, 11040, cudaErrorInsufficientDriver, cudaErrorInsufficientDriver},
    {"other-arch", &kOtherArch, 16 * kGiB, CUDART_VERSION, cudaSuccess, cudaErrorNoKernelImageForDevice},
    {"too-old", &kTooOld, 16 * kGiB, CUDART_VERSION, cudaSuccess, cudaErrorNoKernelImageForDevice},
    {"small", kT4, 16 * kMiB, CUDART_VERSION, cudaSuccess, cudaSuccess},
    {"translated", kH200, 141 * kGiB, CUDART_VERSION, cudaSuccess, cudaSuccess, 75},
};

// ---- Environment --------------------------------------------------------------------------------

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

bool readSwitch(const char* name) {
  const char* value = variable(name);
  if (!value || std::strcmp(value, "0") == 0) return false;
  if (std::strcmp(value, "1") == 0) return true;
  fail("%s is \"%s\"; it takes 0 or 1", name, value);
}

Device deviceOf(const char* name, const char* asked) {
  std::string known;
  for (const Card& card : kCards) {
    if (std::strcmp(name, card.key) == 0)
      return {card.key, &card, card.totalBytes, CUDART_VERSION, cudaSuccess, cudaSuccess};
    known += std::string(known.empty() ? "" : ", ") + card.key;
  }
  for (const Device& device : kDevices) {
    if (std::strcmp(name, device.key) == 0) return device;
    known += std::string(", ") + device.key;
  }
  fail("%s is \"%s\"; it takes one of %s", asked, name, known.c_str());
}

Device readDevice() {
  const char* value = variable("CUDA_DAYS_CPU_DEVICE");
  return deviceOf(value ? value : kT4->key, "CUDA_DAYS_CPU_DEVICE");
}

// Commas between angle brackets belong to a template's name.
std::vector<Skip> readSkips() {
  std::vector<Skip> skips;
  const char* value = variable("CUDA_DAYS_CPU_SKIP");
  if (!value) return skips;
  skips.emplace_back();
  int depth = 0;
  for (char c : withoutBlanks(value)) {
    depth += (c == '<') - (c == '>');
    if (c == ',' && depth == 0) {
      skips.emplace_back();
    } else {
      skips.back().name += c;
    }
  }
  return skips;
}

bool readSeed(uint64_t* seed) {
  const char* value = variable("CUDA_DAYS_CPU_SEED");
  if (!value) return false;
  char* end = nullptr;
  errno = 0;
  *seed = std::strtoull(value, &end, 10);
  if (*value < '0' || *value > '9' || *end || errno) {
    fail("CUDA_DAYS_CPU_SEED is \"%s\"; it takes a whole number from 0 on", value);
  }
  return true;
}

}  // namespace

void pretend(const char* name, const char* asked) { environment().device = deviceOf(name, asked); }

std::string withoutBlanks(const char* name) {
  std::string result;
  for (; *name; ++name) {
    if (*name != ' ') result += *name;
  }
  return result;
}

Environment::Environment()
    : device(readDevice()),
      skips(readSkips()),
      seedGiven(readSeed(&seed)),
      log(readSwitch("CUDA_DAYS_CPU_LOG")),
      leaksFail(readSwitch("CUDA_DAYS_CPU_LEAKS")) {
  if (!seedGiven) seed = std::random_device{}() % 1000000;  // short enough to type again
  on_exit(checkAtExit, nullptr);
}

// Never destroyed: worker threads and exit handlers may use it to the end.
Environment& environment() {
  static Environment& instance = *new Environment;
  return instance;
}

// Bad values and names nobody launches are errors even in a program that makes no call.
[[maybe_unused]] static const Environment& kReadAtStart = environment();

uint64_t mix(uint64_t value) {  // the finaliser of splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace cuda_cpu
