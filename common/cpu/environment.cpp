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

constexpr size_t kGiB = size_t{1} << 30;
constexpr const char* kT4Name = "CPU, sized as a T4";
constexpr Device kDevices[] = {
    {"t4", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, CUDART_VERSION, cudaSuccess, cudaSuccess},
    {"no-driver", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, 0, cudaErrorInsufficientDriver,
        cudaErrorInsufficientDriver},
    {"no-gpu", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, CUDART_VERSION, cudaErrorNoDevice, cudaErrorNoDevice},
    {"old-driver", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, 11040, cudaErrorInsufficientDriver,
        cudaErrorInsufficientDriver},
    {"other-arch", "CPU, of another architecture", 40, 6, 1, 4 << 20, 16 * kGiB, 16 * kGiB, CUDART_VERSION, cudaSuccess,
        cudaErrorNoKernelImageForDevice},
    {"small", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 << 20, CUDART_VERSION, cudaSuccess, cudaSuccess},
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

const Device& readDevice() {
  const char* value = variable("CUDA_DAYS_CPU_DEVICE");
  if (!value) return kDevices[0];
  std::string known;
  for (const Device& device : kDevices) {
    if (std::strcmp(value, device.key) == 0) return device;
    known += known.empty() ? "" : ", ";
    known += device.key;
  }
  fail("CUDA_DAYS_CPU_DEVICE is \"%s\"; it takes one of %s", value, known.c_str());
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
