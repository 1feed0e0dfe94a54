// SPDX-License-Identifier: MIT
// The CPU backend: runs lowered kernels on the host's cores and looks for what a GPU hides.
// README.md describes it for its users. Link with boost_context and pthread.

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/context/fiber.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

// GCC says by a macro what clang says by a feature test.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "cuda_runtime.h"

struct CUstream_st {};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
  bool recorded = false;
};

namespace cuda_cpu {

__thread Indices indices;

namespace {

// ---- Limits -------------------------------------------------------------------------------------

constexpr int kPoison = 0xff;  // as float and double a NaN, as int -1
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxWarps = kMaxThreads / 32;
constexpr unsigned kMaxBlockZ = 64;
constexpr unsigned kMaxGridX = 0x7fffffff;
constexpr unsigned kMaxGridYZ = 65535;
constexpr size_t kSharedPerBlock = 48 << 10;
constexpr int kMaxBlocksPerSm = 16;
constexpr int kMaxThreadsPerSm = 1024;
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;  // what cudaMalloc promises
// Address space alone: wide enough to catch a whole row or plane too far.
constexpr size_t kGuardBytes = 16 << 20;
constexpr size_t kFreedKept = 64;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 256 << 10;  // red zones around every local
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kStackGuardBytes = 256 << 10;  // below a stack: wider than most frames
// A fiber's stack and its guard are two mappings, and Linux gives a process 65530: 1024 fibers for
// each of 24 OS threads stay below.
constexpr unsigned kMaxWorkers = 24;
constexpr unsigned kOrders = 16;  // shuffled orders prepared for a launch

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

[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  sayArguments(format, arguments);
  va_end(arguments);
}

// What the program printed so far belongs before the message, unless somebody is printing just now.
void flushOutput() {
  if (ftrylockfile(stdout) != 0) return;
  fflush(stdout);
  funlockfile(stdout);
}

// Several blocks may fail at once; the first one speaks.
void claimFailure() {
  static std::atomic_flag failing = ATOMIC_FLAG_INIT;
  if (failing.test_and_set()) {
    for (;;) pause();
  }
  flushOutput();
}

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...) {
  claimFailure();
  va_list arguments;
  va_start(arguments, format);
  sayArguments(format, arguments);
  va_end(arguments);
  _exit(1);
}

struct Text {
  char chars[512];
};

[[gnu::format(printf, 1, 2)]] Text textOf(const char* format, ...) {
  Text result;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(result.chars, sizeof result.chars, format, arguments);
  va_end(arguments);
  return result;
}

Text textOf(uint3 at) { return textOf("(%u, %u, %u)", at.x, at.y, at.z); }

// ---- The device it pretends to be ---------------------------------------------------------------

struct Device {
  const char* key;
  const char* name;
  int sms;
  int major;
  int minor;
  int l2Bytes;
  size_t totalBytes;
  size_t freeBytes;
  int driverVersion;
  cudaError_t anyCall;      // what every call that needs a device gives
  cudaError_t kernelImage;  // what looking up or launching a kernel gives
};

constexpr size_t kGiB = size_t{1} << 30;
constexpr const char* kT4Name = "CPU, sized as a T4";
constexpr Device kDevices[] = {
    {"t4", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, CUDART_VERSION, cudaSuccess,
     cudaSuccess},
    {"no-driver", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, 0, cudaErrorInsufficientDriver,
     cudaErrorInsufficientDriver},
    {"no-gpu", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, CUDART_VERSION, cudaErrorNoDevice,
     cudaErrorNoDevice},
    {"old-driver", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 16 * kGiB, 11040,
     cudaErrorInsufficientDriver, cudaErrorInsufficientDriver},
    {"other-arch", "CPU, of another architecture", 40, 6, 1, 4 << 20, 16 * kGiB, 16 * kGiB,
     CUDART_VERSION, cudaSuccess, cudaErrorNoKernelImageForDevice},
    {"small", kT4Name, 40, 7, 5, 4 << 20, 16 * kGiB, 64 << 20, CUDART_VERSION, cudaSuccess,
     cudaSuccess},
};

// ---- Environment --------------------------------------------------------------------------------

struct Skip {
  std::string name;  // without blanks
  bool matched = false;
};

std::string withoutBlanks(const char* name) {
  std::string result;
  for (; *name; ++name) {
    if (*name != ' ') result += *name;
  }
  return result;
}

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

void checkAtExit(int status, void* unused);

struct Environment {
  const Device& device = readDevice();
  std::vector<Skip> skips = readSkips();
  uint64_t seed = 0;
  bool seedGiven = readSeed(&seed);
  bool log = readSwitch("CUDA_DAYS_CPU_LOG");
  bool leaksFail = readSwitch("CUDA_DAYS_CPU_LEAKS");

  Environment() {
    if (!seedGiven) seed = std::random_device{}() % 1000000;  // short enough to type again
    on_exit(checkAtExit, nullptr);
  }
};

// Never destroyed: worker threads and exit handlers may use it to the end.
Environment& environment() {
  static Environment& instance = *new Environment;
  return instance;
}

// Bad values and names nobody launches are errors even in a program that makes no call.
[[maybe_unused]] const Environment& kReadAtStart = environment();

uint64_t mix(uint64_t value) {  // the finaliser of splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// ---- Device memory ------------------------------------------------------------------------------

struct Allocation {
  char* start;
  size_t bytes;
  char* pages;  // the accessible part: slack, the allocation, slack
  size_t pageBytes;

  char* end() const { return start + bytes; }
  char* pagesEnd() const { return pages + pageBytes; }
  bool guards(const char* address) const {
    return address >= pages - kGuardBytes && address < pagesEnd() + kGuardBytes;
  }
};

struct Memory {
  std::mutex mutex;
  std::vector<Allocation> live;
  std::deque<Allocation> freed;  // kept inaccessible for a while, to catch late uses
  size_t used = 0;
  std::map<void*, size_t> pinned;
};

Memory& memory() {
  static Memory& instance = *new Memory;
  return instance;
}

// In the slack around an allocation: a NaN as float and as double, so a read of it shows as well.
// Its payload depends on the address: slack copied or added to other slack is damage too.
unsigned char canaryAt(const char* address) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const unsigned char bytes[] = {static_cast<unsigned char>(mix(at / 4)),
                                 static_cast<unsigned char>(mix(at / 4) >> 8), 0xf5, 0x7f};
  return bytes[at % sizeof bytes];
}

void setSlack(const Allocation& allocation) {
  for (char* at = allocation.pages; at < allocation.start; ++at) *at = canaryAt(at);
  for (char* at = allocation.end(); at < allocation.pagesEnd(); ++at) *at = canaryAt(at);
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(allocation.pages, allocation.start - allocation.pages);
  __asan_poison_memory_region(allocation.end(), allocation.pagesEnd() - allocation.end());
#endif
}

__attribute__((no_sanitize("address"))) const char* firstDamage(const char* from, const char* to) {
  for (; from < to; ++from) {
    if (static_cast<unsigned char>(*from) != canaryAt(from)) return from;
  }
  return nullptr;
}

void checkSlack(const char* after) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (const Allocation& allocation : memory().live) {
    const char* damage = firstDamage(allocation.pages, allocation.start);
    if (damage) {
      fail("%s wrote before the start of an allocation of %zu bytes, at byte %td", after,
           allocation.bytes, damage - allocation.start);
    }
    damage = firstDamage(allocation.end(), allocation.pagesEnd());
    if (damage) {
      fail("%s wrote past the end of an allocation of %zu bytes, at byte %td", after,
           allocation.bytes, damage - allocation.start);
    }
  }
}

size_t freeBytes() { return environment().device.freeBytes - memory().used; }

cudaError_t allocate(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (bytes > freeBytes()) return cudaErrorMemoryAllocation;
  const size_t aligned = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t pageBytes = (aligned + kPage - 1) / kPage * kPage;
  void* mapped =
      mmap(nullptr, pageBytes + 2 * kGuardBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return cudaErrorMemoryAllocation;
  char* pages = static_cast<char*>(mapped) + kGuardBytes;
  if (mprotect(pages, pageBytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped, pageBytes + 2 * kGuardBytes);
    return cudaErrorMemoryAllocation;
  }
  const Allocation allocation{pages + pageBytes - aligned, bytes, pages, pageBytes};
  std::memset(allocation.start, kPoison, bytes);
  setSlack(allocation);
  memory().live.push_back(allocation);
  memory().used += bytes;
  *pointer = allocation.start;
  return cudaSuccess;
}

void unmapOldest(std::deque<Allocation>& freed) {
  const Allocation& oldest = freed.front();
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(oldest.pages, oldest.pageBytes);
#endif
  munmap(oldest.pages - kGuardBytes, oldest.pageBytes + 2 * kGuardBytes);
  freed.pop_front();
}

cudaError_t release(void* pointer) {
  if (!pointer) return cudaSuccess;
  std::lock_guard<std::mutex> lock(memory().mutex);
  std::vector<Allocation>& live = memory().live;
  const auto found = std::find_if(live.begin(), live.end(),
                                  [=](const Allocation& a) { return a.start == pointer; });
  if (found == live.end()) return cudaErrorInvalidValue;
  madvise(found->pages, found->pageBytes, MADV_DONTNEED);
  mprotect(found->pages, found->pageBytes, PROT_NONE);
  memory().used -= found->bytes;
  memory().freed.push_back(*found);
  live.erase(found);
  if (memory().freed.size() > kFreedKept) unmapOldest(memory().freed);
  return cudaSuccess;
}

enum class Place { kHost, kDevice, kOutside };

// Outside: near a device allocation, live or freed, and not wholly in a live one.
Place placeOf(const void* pointer, size_t bytes) {
  const char* first = static_cast<const char*>(pointer);
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (const Allocation& a : memory().live) {
    if (!a.guards(first)) continue;
    const bool inside = first >= a.start && first <= a.end();
    return inside && bytes <= static_cast<size_t>(a.end() - first) ? Place::kDevice
                                                                   : Place::kOutside;
  }
  for (const Allocation& a : memory().freed) {
    if (a.guards(first)) return Place::kOutside;
  }
  return Place::kHost;
}

// ---- A launch -----------------------------------------------------------------------------------

struct Launch {
  KernelName name;
  uint3 grid;
  uint3 block;
  const ThreadBody* body;
  unsigned threads;
  uint64_t blocks;
  uint64_t chunk;
  uint64_t salt;
  std::vector<uint3> coordinates;    // of each thread in its block
  std::vector<uint16_t> orders;      // kOrders shufflings of the block's threads
  std::vector<uint16_t> warpOrders;  // kOrders shufflings of a warp's lanes
  std::atomic<uint64_t> nextBlock{0};

  // Which shuffling: a function of seed, launch, block and phase alone, so that a seed repeats it
  // however the OS schedules the workers. The odd step makes a phase differ from the one before.
  unsigned pick(uint64_t blockNumber, unsigned phase) const {
    const uint64_t hash = mix(salt + blockNumber * 0x9e3779b97f4a7c15u);
    return (hash + phase * (hash >> 32 | 1)) % kOrders;
  }
};

std::vector<uint16_t> shuffledOrders(unsigned count, std::mt19937_64& random) {
  std::vector<uint16_t> orders(kOrders * count);
  for (unsigned k = 0; k < kOrders; ++k) {
    uint16_t* order = &orders[k * count];
    for (unsigned i = 0; i < count; ++i) {
      const unsigned j = random() % (i + 1);
      order[i] = order[j];
      order[j] = static_cast<uint16_t>(i);
    }
  }
  return orders;
}

// ---- Shared memory ------------------------------------------------------------------------------

struct SharedArray {
  size_t offset;  // in the program's thread-local storage
  size_t bytes;
};

template <class T>
bool readAt(int file, off_t offset, std::vector<T>* into, size_t count) {
  into->resize(count);
  const ssize_t bytes = static_cast<ssize_t>(count * sizeof(T));
  return pread(file, into->data(), bytes, offset) == bytes;
}

// Finds the arrays by the tag that __shared__ puts in their symbols.
std::vector<SharedArray> findSharedArrays() {
  std::vector<SharedArray> arrays;
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  std::vector<ElfW(Ehdr)> header;
  std::vector<ElfW(Shdr)> sections;
  bool found = false;
  if (file >= 0 && readAt(file, 0, &header, 1) &&
      readAt(file, header[0].e_shoff, &sections, header[0].e_shnum)) {
    for (const auto& section : sections) {
      if (section.sh_type != SHT_SYMTAB) continue;
      std::vector<ElfW(Sym)> symbols;
      std::vector<char> names;
      const auto& strings = sections[section.sh_link];
      found = readAt(file, section.sh_offset, &symbols, section.sh_size / sizeof(ElfW(Sym))) &&
              readAt(file, strings.sh_offset, &names, strings.sh_size);
      for (const auto& symbol : symbols) {
        if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS || symbol.st_shndx == SHN_UNDEF) continue;
        if (!std::strstr(&names[symbol.st_name], "B11cuda_shared")) continue;
        arrays.push_back({symbol.st_value, symbol.st_size});
      }
    }
  }
  if (file >= 0) close(file);
  if (!found)
    fail("this program has no symbol table to find its shared arrays by; do not strip it");
  return arrays;
}

// The calling thread's copy of the program's thread-local storage. The program is the first module.
int programThreadStorage(dl_phdr_info* module, size_t, void* result) {
  *static_cast<char**>(result) = static_cast<char*>(module->dlpi_tls_data);
  return 1;
}

// ---- The fibers of one OS thread ----------------------------------------------------------------

struct Fiber {
  boost::context::fiber context;
  char* stack = nullptr;  // its lowest usable byte; a guard lies below
  size_t stackBytes = 0;
  void* fakeStack = nullptr;  // AddressSanitizer's
};

struct StackOf {
  char* top;
  size_t bytes;
  boost::context::stack_context allocate() {
    boost::context::stack_context context;
    context.size = bytes;
    context.sp = top;
    return context;
  }
  void deallocate(boost::context::stack_context&) {}
};

const char* operationName(WarpOperation operation) {
  switch (operation) {
    case WarpOperation::kSync:
      return "__syncwarp";
    case WarpOperation::kShfl:
      return "__shfl_sync";
    case WarpOperation::kShflUp:
      return "__shfl_up_sync";
    case WarpOperation::kShflDown:
      return "__shfl_down_sync";
    case WarpOperation::kShflXor:
      return "__shfl_xor_sync";
    case WarpOperation::kBallot:
      return "__ballot_sync";
    case WarpOperation::kAny:
      return "__any_sync";
    case WarpOperation::kAll:
      return "__all_sync";
  }
  return "";
}

// Lanes of one warp that wait in the same operation with the same mask.
struct Gathering {
  WarpOperation operation;
  unsigned mask;
  unsigned arrived;
};

struct Warp {
  unsigned gone;  // lanes that returned or that the block does not have
  unsigned gatherings;
  Gathering gathering[32];
  uint64_t values[32];
  uint64_t results[32];
  int sources[32];
};

struct Lane {
  Fiber* fiber;  // where it waits
  bool inWarpOperation;
  WarpOperation operation;
  unsigned mask;
  Site site;
};

// Runs blocks, one at a time, on one OS thread. Threads of a block are plain calls, one after
// another on one fiber; only when a thread has to wait does its fiber stay behind with it, and the
// next fiber goes on. A kernel without a barrier therefore never switches inside a block.
class Worker {
 public:
  void runBlocks(Launch& launch) {
    launch_ = &launch;
    indices.blockSize = launch.block;
    indices.gridSize = launch.grid;
    for (;;) {
      const uint64_t first = launch.nextBlock.fetch_add(launch.chunk);
      if (first >= launch.blocks) break;
      const uint64_t last = std::min(first + launch.chunk, launch.blocks);
      for (uint64_t number = first; number < last; ++number) runBlock(number);
    }
    launch_ = nullptr;
  }

  void start() {
    shared_ = findSharedArrays();
    if (!shared_.empty()) dl_iterate_phdr(programThreadStorage, &threadStorage_);
  }

  int waitForBlock(BlockVote vote, bool predicate, Site site) {
    Lane& lane = lanes_[current_];
    lane.fiber = running_;
    lane.inWarpOperation = false;
    if (atBarrier_ == 0) {
      barrier_ = site;
      firstAtBarrier_ = current_;
    } else if (barrier_.line != site.line ||
               (barrier_.file != site.file && std::strcmp(barrier_.file, site.file) != 0)) {
      fail("%s: thread %s waits at the barrier in %s:%d, thread %s at the one in %s:%d",
           blockText().chars, threadText(firstAtBarrier_).chars, barrier_.file, barrier_.line,
           threadText(current_).chars, site.file, site.line);
    }
    ++atBarrier_;
    votes_ += predicate;
    suspend();
    switch (vote) {
      case BlockVote::kNone:
        return 0;
      case BlockVote::kCount:
        return static_cast<int>(lastVotes_);
      case BlockVote::kAnd:
        return lastVotes_ == launch_->threads;
      case BlockVote::kOr:
        return lastVotes_ != 0;
    }
    return 0;
  }

  uint64_t waitForWarp(WarpOperation operation, unsigned mask, uint64_t value, int source,
                       Site site) {
    const unsigned self = current_ % 32;
    Warp& warp = warps_[current_ / 32];
    if (!(mask >> self & 1)) {
      fail("%s, thread %s: calls %s in %s:%d with mask 0x%08x, which leaves this thread out",
           blockText().chars, threadText(current_).chars, operationName(operation), site.file,
           site.line, mask);
    }
    warp.values[self] = value;
    warp.sources[self] = source;
    lanes_[current_] = {running_, true, operation, mask, site};
    unsigned k = 0;
    while (k < warp.gatherings &&
           (warp.gathering[k].operation != operation || warp.gathering[k].mask != mask)) {
      ++k;
    }
    if (k == warp.gatherings) warp.gathering[warp.gatherings++] = {operation, mask, 0};
    warp.gathering[k].arrived |= 1u << self;
    releaseGathering(current_ / 32, k);
    suspend();
    return warp.results[self];
  }

  int laneInWarp() const { return static_cast<int>(current_ % 32); }

  // For messages, also from the signal handler.
  bool inKernel() const { return launch_ != nullptr; }
  Text blockText() const {
    return textOf("kernel %s, block %s", launch_->name.full, textOf(indices.block).chars);
  }
  Text threadText() const { return textOf(indices.thread); }
  bool onStackGuard(const char* address) const {
    for (const Fiber* fiber : fibers_) {
      if (address < fiber->stack && address >= fiber->stack - kStackGuardBytes) return true;
    }
    return false;
  }

 private:
  Text threadText(unsigned thread) const { return textOf(launch_->coordinates[thread]); }

  void runBlock(uint64_t number) {
    number_ = number;
    const uint64_t row = number / launch_->grid.x;
    indices.block = {static_cast<unsigned>(number % launch_->grid.x),
                     static_cast<unsigned>(row % launch_->grid.y),
                     static_cast<unsigned>(row / launch_->grid.y)};
    for (const SharedArray& array : shared_) {
      std::memset(threadStorage_ + array.offset, kPoison, array.bytes);
    }
    const unsigned threads = launch_->threads;
    for (unsigned w = 0; w * 32 < threads; ++w) {
      warps_[w].gatherings = 0;
      warps_[w].gone = threads - w * 32 < 32 ? ~0u << (threads - w * 32) : 0;
    }
    finished_ = atBarrier_ = votes_ = phase_ = warpPhase_ = 0;
    startPhase();
    switchTo(*idleFiber());
  }

  void startPhase() {
    next_ = 0;
    order_ = &launch_->orders[launch_->pick(number_, phase_) * launch_->threads];
  }

  void makeCurrent(unsigned thread) {
    current_ = thread;
    indices.thread = launch_->coordinates[thread];
  }

  void suspend() {
    Fiber* to = nextToRun();
    if (!to) to = idleFiber();
    if (to != running_) switchTo(*to);
  }

  // The fiber of a thread that can go on, which becomes the current thread; the OS thread's own
  // when the block is done; null when threads remain to be started, which takes a fresh fiber.
  Fiber* nextToRun() {
    for (;;) {
      if (ready_ > 0) {
        makeCurrent(readyThreads_[--ready_]);
        return lanes_[current_].fiber;
      }
      if (next_ < launch_->threads) {
        if (phase_ == 0) return nullptr;
        makeCurrent(order_[next_++]);
        return lanes_[current_].fiber;
      }
      if (finished_ == launch_->threads) return &home_;
      releaseBarrier();
    }
  }

  void releaseBarrier() {
    if (atBarrier_ != launch_->threads) failStuck();
    atBarrier_ = 0;
    lastVotes_ = votes_;
    votes_ = 0;
    ++phase_;
    startPhase();
  }

  void finish(unsigned thread) {
    ++finished_;
    Warp& warp = warps_[thread / 32];
    warp.gone |= 1u << (thread % 32);
    // A lane that returned is waited for no longer, as on the hardware.
    for (unsigned k = warp.gatherings; k-- > 0;) releaseGathering(thread / 32, k);
  }

  // Lets the lanes go on once all that the mask names are there.
  void releaseGathering(unsigned warpNumber, unsigned k) {
    Warp& warp = warps_[warpNumber];
    const Gathering gathering = warp.gathering[k];
    if (gathering.mask & ~(gathering.arrived | warp.gone)) return;
    warp.gathering[k] = warp.gathering[--warp.gatherings];
    const bool vote = gathering.operation == WarpOperation::kBallot ||
                      gathering.operation == WarpOperation::kAny ||
                      gathering.operation == WarpOperation::kAll;
    uint64_t ballot = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (gathering.arrived >> lane & 1) ballot |= warp.values[lane] << lane;
    }
    const uint16_t* order = &launch_->warpOrders[launch_->pick(number_, warpPhase_++) * 32];
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned lane = order[i];
      if (!(gathering.arrived >> lane & 1)) continue;
      const unsigned source = static_cast<unsigned>(warp.sources[lane]);
      // The value of a lane that takes no part is undefined: poison.
      warp.results[lane] = vote                                               ? ballot
                           : source < 32 && (gathering.arrived >> source & 1) ? warp.values[source]
                                                                              : ~uint64_t{0};
      readyThreads_[ready_++] = static_cast<uint16_t>(warpNumber * 32 + lane);
    }
  }

  bool returned(unsigned thread) const { return warps_[thread / 32].gone >> (thread % 32) & 1; }

  [[noreturn]] void failStuck() const {
    unsigned waits = 0;  // a thread that waits in vain
    while (returned(waits) || (atBarrier_ > 0 && lanes_[waits].inWarpOperation)) ++waits;
    unsigned missing = 0;  // and one that it waits for
    if (atBarrier_ > 0) {
      while (!returned(missing) && !lanes_[missing].inWarpOperation) ++missing;
    } else {
      const unsigned first = waits / 32 * 32;
      missing = first;
      while (returned(missing) || !(lanes_[waits].mask >> (missing - first) & 1) ||
             (lanes_[missing].operation == lanes_[waits].operation &&
              lanes_[missing].mask == lanes_[waits].mask)) {
        ++missing;
      }
    }
    fail("%s: thread %s waits %s, thread %s %s%s", blockText().chars, threadText(waits).chars,
         placeText(waits).chars, threadText(missing).chars,
         returned(missing) ? "returned without reaching it" : "waits ",
         returned(missing) ? "" : placeText(missing).chars);
  }

  Text placeText(unsigned thread) const {
    const Lane& lane = lanes_[thread];
    if (!lane.inWarpOperation)
      return textOf("at the barrier in %s:%d", barrier_.file, barrier_.line);
    return textOf("at the %s with mask 0x%08x in %s:%d", operationName(lane.operation), lane.mask,
                  lane.site.file, lane.site.line);
  }

  Fiber* idleFiber() {
    if (idle_.empty()) idle_.push_back(makeFiber());
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }

  Fiber* makeFiber() {
    void* mapped = mmap(nullptr, kStackGuardBytes + kStackBytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char* stack = static_cast<char*>(mapped) + kStackGuardBytes;
    if (mapped == MAP_FAILED || mprotect(stack, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
      fail("%s: no memory for the stack of another waiting thread", blockText().chars);
    }
    Fiber* fiber = new Fiber;
    fiber->stack = stack;
    // Tops at different offsets in their pages; at the same one they would fight for the same few
    // sets of the cache.
    fiber->stackBytes = kStackBytes - fibers_.size() % 48 * 64;
    fiber->context = boost::context::fiber(
        std::allocator_arg, StackOf{fiber->stack + fiber->stackBytes, fiber->stackBytes},
        [this](boost::context::fiber&& from) {
          arrive(nullptr, std::move(from));
          runThreads();
          return boost::context::fiber{};  // never reached
        });
    fibers_.push_back(fiber);
    return fiber;
  }

  void switchTo(Fiber& to) {
    Fiber& self = *running_;
    left_ = running_;
    running_ = &to;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&self.fakeStack, to.stack, to.stackBytes);
#endif
    boost::context::fiber from = std::move(to.context).resume();
    arrive(self.fakeStack, std::move(from));
  }

  // The first thing on the new stack: keep the context of the fiber that was left.
  void arrive([[maybe_unused]] void* fakeStack, boost::context::fiber&& from) {
#ifdef __SANITIZE_ADDRESS__
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fakeStack, &bottom, &bytes);
    if (left_ == &home_) {  // the stack of the OS thread is not ours: learn where it lies
      home_.stack = static_cast<char*>(const_cast<void*>(bottom));
      home_.stackBytes = bytes;
    }
#endif
    left_->context = std::move(from);
  }

  // What a fiber does that no waiting thread occupies, for ever.
  void runThreads() {
    for (;;) {
      Fiber* to;
      while (!(to = nextToRun())) {
        const unsigned thread = order_[next_++];
        makeCurrent(thread);
        (*launch_->body)();
        finish(thread);
      }
      idle_.push_back(running_);
      switchTo(*to);
    }
  }

  Launch* launch_ = nullptr;
  uint64_t number_ = 0;  // of the block
  unsigned current_ = 0;
  unsigned next_ = 0;  // in order_
  const uint16_t* order_ = nullptr;
  unsigned finished_ = 0;
  unsigned phase_ = 0;
  unsigned warpPhase_ = 0;
  unsigned atBarrier_ = 0;
  unsigned firstAtBarrier_ = 0;
  unsigned votes_ = 0;
  unsigned lastVotes_ = 0;
  Site barrier_{};
  unsigned ready_ = 0;
  Fiber* running_ = &home_;
  Fiber* left_ = nullptr;
  Fiber home_;  // the OS thread's own stack
  std::vector<Fiber*> idle_;
  std::vector<Fiber*> fibers_;
  std::vector<SharedArray> shared_;
  char* threadStorage_ = nullptr;
  uint16_t readyThreads_[kMaxThreads];
  Lane lanes_[kMaxThreads];
  Warp warps_[kMaxWarps];
};

__thread Worker* worker;

// ---- Faults -------------------------------------------------------------------------------------

Text whoText() {
  if (!worker || !worker->inKernel()) return textOf("the host's code");
  return textOf("%s, thread %s", worker->blockText().chars, worker->threadText().chars);
}

const char* accessText([[maybe_unused]] const void* context) {
#ifdef __x86_64__
  const auto* machine = static_cast<const ucontext_t*>(context);
  return machine->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
#else
  return "reads or writes";
#endif
}

void reportFault(const Allocation& a, bool freed, const char* address, const char* access) {
  const Text who = whoText();
  const char* what = freed ? "a freed allocation" : "an allocation";
  if (address < a.start) {
    fail("%s: %s %td bytes before the start of %s of %zu bytes", who.chars, access,
         a.start - address, what, a.bytes);
  }
  if (address >= a.end()) {
    fail("%s: %s %td bytes past the end of %s of %zu bytes", who.chars, access, address - a.end(),
         what, a.bytes);
  }
  fail("%s: %s byte %td of %s of %zu bytes", who.chars, access, address - a.start, what, a.bytes);
}

// Takes no lock: allocations change only between launches, and a wrong answer beats a deadlock.
void onFault(int number, siginfo_t* info, void* context) {
  const char* address = static_cast<const char*>(info->si_addr);
  const char* access = accessText(context);
  for (const Allocation& a : memory().live) {
    if (a.guards(address)) reportFault(a, false, address, access);
  }
  for (const Allocation& a : memory().freed) {
    if (a.guards(address)) reportFault(a, true, address, access);
  }
  if (worker && worker->onStackGuard(address)) {
    fail("%s: its local variables need more than the %zu KiB of stack a thread has",
         whoText().chars, kStackBytes >> 10);
  }
  if (worker && worker->inKernel()) {
    flushOutput();
    say("%s: %s address %p, near no allocation", whoText().chars, access, info->si_addr);
  }
  signal(number, SIG_DFL);
  raise(number);
}

// A fiber that ran out of stack cannot run the handler on it. AddressSanitizer brings its own
// alternate stack and frees it itself.
void useAlternateStack() {
  stack_t old{};
  sigaltstack(nullptr, &old);
  if (!(old.ss_flags & SS_DISABLE)) return;
  constexpr size_t kBytes = 64 << 10;
  stack_t stack{};
  stack.ss_sp = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack.ss_size = kBytes;
  if (stack.ss_sp != MAP_FAILED) sigaltstack(&stack, nullptr);
}

void installFaultHandler() {
  useAlternateStack();
  struct sigaction action {};
  action.sa_sigaction = onFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_set_death_callback([] {
    if (worker && worker->inKernel()) say("the sanitizer stopped %s", whoText().chars);
  });
#endif
}

// ---- The pool -----------------------------------------------------------------------------------

class Pool {
 public:
  Pool() : count_(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxWorkers)) {
    installFaultHandler();
    for (unsigned i = 0; i < count_; ++i) std::thread([this] { work(); }).detach();
  }

  unsigned count() const { return count_; }

  // Returns when every block has run.
  void run(Launch& launch) {
    std::unique_lock<std::mutex> lock(mutex_);
    launch_ = &launch;
    ++generation_;
    busy_ = count_;
    wake_.notify_all();
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void work() {
    useAlternateStack();
    worker = new Worker;
    worker->start();
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      Launch& launch = *launch_;
      lock.unlock();
      worker->runBlocks(launch);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  const unsigned count_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Launch* launch_ = nullptr;
  uint64_t generation_ = 0;
  unsigned busy_ = 0;
};

// Never destroyed: its threads sleep until the process ends.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

// ---- Launching ----------------------------------------------------------------------------------

thread_local cudaError_t lastError = cudaSuccess;

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) lastError = error;
  return error;
}

cudaError_t deviceError() { return environment().device.anyCall; }

struct Handles {
  std::mutex mutex;
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  std::mutex launching;  // one kernel at a time
  uint64_t launches = 0;
};

Handles& handles() {
  static Handles& instance = *new Handles;
  return instance;
}

bool isLive(cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(handles().mutex);
  return !stream || handles().streams.count(stream) != 0;
}

bool isLive(cudaEvent_t event) {
  std::lock_guard<std::mutex> lock(handles().mutex);
  return handles().events.count(event) != 0;
}

// Every operation on a stream comes through here. They run at once and in the order of the calls.
cudaError_t enqueue(cudaStream_t stream, const std::function<cudaError_t()>& operation) {
  if (deviceError() != cudaSuccess) return deviceError();
  if (!isLive(stream)) return cudaErrorInvalidResourceHandle;
  return operation();
}

cudaError_t validate(const LaunchConfig& config) {
  const dim3& grid = config.grid;
  const dim3& block = config.block;
  if (environment().device.kernelImage != cudaSuccess) return environment().device.kernelImage;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0 ||
      grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ || block.z > kMaxBlockZ ||
      block.x > kMaxThreads || block.y > kMaxThreads ||
      uint64_t{block.x} * block.y * block.z > kMaxThreads) {
    return cudaErrorInvalidConfiguration;
  }
  return config.sharedBytes > kSharedPerBlock ? cudaErrorInvalidValue : cudaSuccess;
}

bool isSkipped(KernelName name) {
  bool skipped = false;
  const std::string full = withoutBlanks(name.full);
  for (Skip& skip : environment().skips) {
    if (skip.name != name.symbol && skip.name != full) continue;
    skip.matched = true;
    skipped = true;
  }
  return skipped;
}

void prepare(Launch& launch, uint64_t number) {
  std::mt19937_64 random(mix(environment().seed * 0x9e3779b97f4a7c15u + number));
  launch.salt = random();
  launch.orders = shuffledOrders(launch.threads, random);
  launch.warpOrders = shuffledOrders(32, random);
  launch.coordinates.reserve(launch.threads);
  for (unsigned z = 0; z < launch.block.z; ++z) {
    for (unsigned y = 0; y < launch.block.y; ++y) {
      for (unsigned x = 0; x < launch.block.x; ++x) launch.coordinates.push_back({x, y, z});
    }
  }
  // Chunks small enough that no worker ends long before the others.
  launch.chunk = std::clamp<uint64_t>(launch.blocks / (pool().count() * 16), 1, 64);
}

cudaError_t runLaunch(KernelName name, const LaunchConfig& config, const ThreadBody& body) {
  const cudaError_t error = validate(config);
  if (error != cudaSuccess) return error;
  std::lock_guard<std::mutex> lock(handles().launching);
  const uint64_t number = handles().launches++;
  const bool skipped = isSkipped(name);
  if (environment().log) {
    say("launch %s grid %s block %s%s", name.full, textOf(config.grid).chars,
        textOf(config.block).chars, skipped ? " skipped" : "");
  }
  if (skipped) return cudaSuccess;
  if (number == 0 && !environment().seedGiven) {
    say("threads run in an order shuffled from a random seed; CUDA_DAYS_CPU_SEED=%llu repeats it",
        static_cast<unsigned long long>(environment().seed));
  }
  Launch launch;
  launch.name = name;
  launch.grid = config.grid;
  launch.block = config.block;
  launch.body = &body;
  launch.threads = config.block.x * config.block.y * config.block.z;
  launch.blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  prepare(launch, number);
  pool().run(launch);
  checkSlack((std::string("kernel ") + name.full).c_str());
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  const Place target = placeOf(to, bytes);
  const Place source = placeOf(from, bytes);
  const bool toDevice = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool fromDevice = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if (!to || !from || target == Place::kOutside || source == Place::kOutside) {
    return cudaErrorInvalidValue;
  }
  if (kind != cudaMemcpyDefault &&
      ((target == Place::kDevice) != toDevice || (source == Place::kDevice) != fromDevice)) {
    return cudaErrorInvalidValue;
  }
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (placeOf(to, bytes) != Place::kDevice) return cudaErrorInvalidValue;
  std::memset(to, value, bytes);
  return cudaSuccess;
}

// ---- The end of the program ---------------------------------------------------------------------

void checkAtExit(int status, void*) {
  bool failed = false;
  for (const Skip& skip : environment().skips) {
    if (skip.matched) continue;
    say("CUDA_DAYS_CPU_SKIP names \"%s\", and no kernel of that name was launched",
        skip.name.c_str());
    failed = true;
  }
  const size_t allocations = memory().live.size() + memory().pinned.size();
  if (allocations != 0) say("%zu allocation(s) never freed", allocations);
  const size_t unreleased = handles().streams.size() + handles().events.size();
  if (unreleased != 0) say("%zu stream(s) or event(s) never destroyed", unreleased);
  failed = failed || (environment().leaksFail && allocations + unreleased != 0);
  if (!failed || status != 0) return;
  fflush(nullptr);
  _exit(1);
}

}  // namespace

int blockBarrier(BlockVote vote, bool predicate, Site site) {
  return worker->waitForBlock(vote, predicate, site);
}

uint64_t warpExchange(WarpOperation operation, unsigned mask, uint64_t value, int source,
                      Site site) {
  return worker->waitForWarp(operation, mask, value, source, site);
}

int laneInWarp() { return worker->laneInWarp(); }

void launchKernel(KernelName name, const LaunchConfig& config, ThreadBody body) {
  note(enqueue(config.stream,
               [name, config, body = std::move(body)] { return runLaunch(name, config, body); }));
}

cudaError_t functionAttributes(cudaFuncAttributes* attributes) {
  const Device& device = environment().device;
  if (device.kernelImage != cudaSuccess) return note(device.kernelImage);
  *attributes = {};
  attributes->maxThreadsPerBlock = kMaxThreads;
  attributes->ptxVersion = attributes->binaryVersion = device.major * 10 + device.minor;
  return cudaSuccess;
}

cudaError_t maxActiveBlocks(int* blocks, int blockSize, size_t dynamicSharedBytes) {
  if (environment().device.kernelImage != cudaSuccess)
    return note(environment().device.kernelImage);
  if (blockSize <= 0 || dynamicSharedBytes > kSharedPerBlock) return note(cudaErrorInvalidValue);
  const int warps = (blockSize + 31) / 32;
  *blocks = std::min(kMaxThreadsPerSm / (warps * 32), kMaxBlocksPerSm);
  return cudaSuccess;
}

}  // namespace cuda_cpu

// ---- The runtime's functions --------------------------------------------------------------------

using namespace cuda_cpu;

long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

cudaError_t cudaGetLastError() { return std::exchange(lastError, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return lastError; }

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrorTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

// Most calls need a device first, and a place for their answer.
cudaError_t check(bool argumentsGood) {
  if (deviceError() != cudaSuccess) return note(deviceError());
  return note(argumentsGood ? cudaSuccess : cudaErrorInvalidValue);
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  for (const ErrorText& known : kErrorTexts) {
    if (known.error == error) return known.name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  for (const ErrorText& known : kErrorTexts) {
    if (known.error == error) return known.text;
  }
  return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return note(cudaErrorInvalidValue);
  *version = environment().device.driverVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return note(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return note(cudaErrorInvalidValue);
  *count = deviceError() == cudaSuccess ? 1 : 0;
  return note(deviceError());
}

cudaError_t cudaSetDevice(int device) {
  if (deviceError() != cudaSuccess) return note(deviceError());
  return note(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  const cudaError_t error = check(device != nullptr);
  if (error == cudaSuccess) *device = 0;
  return error;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const cudaError_t error = check(properties != nullptr);
  if (error != cudaSuccess) return error;
  if (device != 0) return note(cudaErrorInvalidDevice);
  const Device& pretended = environment().device;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", pretended.name);
  properties->totalGlobalMem = pretended.totalBytes;
  properties->sharedMemPerBlock = kSharedPerBlock;
  properties->sharedMemPerBlockOptin = 64 << 10;
  properties->sharedMemPerMultiprocessor = 64 << 10;
  properties->regsPerBlock = 64 << 10;
  properties->regsPerMultiprocessor = 64 << 10;
  properties->warpSize = warpSize;
  properties->maxThreadsPerBlock = kMaxThreads;
  properties->maxThreadsPerMultiProcessor = kMaxThreadsPerSm;
  properties->maxBlocksPerMultiProcessor = kMaxBlocksPerSm;
  properties->maxThreadsDim[0] = kMaxThreads;
  properties->maxThreadsDim[1] = kMaxThreads;
  properties->maxThreadsDim[2] = kMaxBlockZ;
  properties->maxGridSize[0] = kMaxGridX;
  properties->maxGridSize[1] = kMaxGridYZ;
  properties->maxGridSize[2] = kMaxGridYZ;
  properties->major = pretended.major;
  properties->minor = pretended.minor;
  properties->multiProcessorCount = pretended.sms;
  properties->l2CacheSize = pretended.l2Bytes;
  properties->memoryBusWidth = 256;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error != cudaSuccess) return error;
  if (!value) return note(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = p.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = p.maxThreadsDim[1];
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = p.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = p.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
      *value = p.maxGridSize[1];
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = p.maxGridSize[2];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = p.regsPerBlock;
      break;
    case cudaDevAttrClockRate:
      *value = 1590000;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 5001000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = p.memoryBusWidth;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = p.regsPerMultiprocessor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = p.maxBlocksPerMultiProcessor;
      break;
    default:
      return note(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return check(true); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const cudaError_t error = check(free && total);
  if (error != cudaSuccess) return error;
  std::lock_guard<std::mutex> lock(memory().mutex);
  *free = freeBytes();
  *total = environment().device.totalBytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const cudaError_t error = check(pointer != nullptr);
  return error == cudaSuccess ? note(allocate(pointer, bytes)) : error;
}

cudaError_t cudaFree(void* pointer) {
  const cudaError_t error = check(true);
  return error == cudaSuccess ? note(release(pointer)) : error;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  const cudaError_t error = check(pointer != nullptr);
  if (error != cudaSuccess) return error;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const size_t aligned = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* allocated = std::aligned_alloc(kAlignment, aligned);
  if (!allocated) return note(cudaErrorMemoryAllocation);
  std::memset(allocated, kPoison, bytes);
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().pinned[allocated] = bytes;
  *pointer = allocated;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t error = check(true);
  if (error != cudaSuccess || !pointer) return error;
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (memory().pinned.erase(pointer) == 0) return note(cudaErrorInvalidValue);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return note(enqueue(stream, [=] { return copy(to, from, bytes, kind); }));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return note(enqueue(stream, [=] { return fill(to, value, bytes); }));
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const cudaError_t error =
      check(stream && (flags == cudaStreamDefault || flags == cudaStreamNonBlocking));
  if (error != cudaSuccess) return error;
  *stream = new CUstream_st;
  std::lock_guard<std::mutex> lock(handles().mutex);
  handles().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = check(true);
  if (error != cudaSuccess) return error;
  std::lock_guard<std::mutex> lock(handles().mutex);
  if (handles().streams.erase(stream) == 0) return note(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return note(enqueue(stream, [] { return cudaSuccess; }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const cudaError_t error =
      check(event && (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) == 0);
  if (error != cudaSuccess) return error;
  *event = new CUevent_st;
  std::lock_guard<std::mutex> lock(handles().mutex);
  handles().events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!isLive(event)) return note(cudaErrorInvalidResourceHandle);
  return note(enqueue(stream, [=] {
    event->at = std::chrono::steady_clock::now();
    event->recorded = true;
    return cudaSuccess;
  }));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return note(isLive(event) ? deviceError() : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  const cudaError_t error = check(milliseconds != nullptr);
  if (error != cudaSuccess) return error;
  if (!isLive(start) || !isLive(stop) || !start->recorded || !stop->recorded) {
    return note(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = check(true);
  if (error != cudaSuccess) return error;
  std::lock_guard<std::mutex> lock(handles().mutex);
  if (handles().events.erase(event) == 0) return note(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}
