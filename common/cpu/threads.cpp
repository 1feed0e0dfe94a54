// SPDX-License-Identifier: MIT
// Runs kernels: blocks spread over OS threads, the threads of a block as plain calls and fibers,
// and what a fault in one of them says.

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <condition_variable>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "backend.h"
#include "trace.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef __has_feature  // Clang's way to say what GCC defines
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__
#endif
#endif

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread uint3 blockDim;
__thread uint3 gridDim;

namespace cuda_cpu {

namespace {

constexpr unsigned kMaxWarps = kMaxThreads / 32;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 256 << 10;  // red zones around every local
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kStackGuardBytes = 256 << 10;  // below a stack: wider than most frames
// A fiber's stack and its guard are two mappings, and Linux gives a process 65530: 1024 fibers for
// each of 24 OS threads stay below.
constexpr unsigned kMaxWorkers = 24;
#ifdef __SANITIZE_THREAD__
constexpr unsigned kMinWorkers = 8;  // Launch::workerOf needs as many
#else
constexpr unsigned kMinWorkers = 1;
#endif
constexpr unsigned kOrders = 16;  // shuffled orders prepared for a launch
constexpr size_t kMostBatches = 8;  // that __pipeline_wait_prior leaves pending, on the hardware

// ---- A launch -----------------------------------------------------------------------------------

struct Launch {
  Kernel kernel;
  uint3 grid;
  uint3 block;
  size_t dynamicBytes;
  const ThreadBody* body;
  std::vector<Allocation> allocations;
  unsigned threads;
  uint64_t blocks;
  uint64_t chunk;
  uint64_t salt;
  std::vector<uint3> coordinates;  // of each thread in its block
  std::vector<uint16_t> orders;  // kOrders shufflings of the block's threads
  std::vector<uint16_t> warpOrders;  // kOrders shufflings of a warp's lanes
  std::atomic<uint64_t> nextBlock{0};
  std::vector<uint64_t> chosen;  // the blocks to run; empty: all

  // Which shuffling: a function of seed, launch, block and phase alone, so that a seed repeats it
  // however the OS schedules the workers. The odd step makes a phase differ from the one before.
  unsigned pick(uint64_t blockNumber, unsigned phase) const {
    const uint64_t hash = mix(salt + blockNumber * 0x9e3779b97f4a7c15u);
    return (hash + phase * (hash >> 32 | 1)) % kOrders;
  }

  // For ThreadSanitizer, which compares what different OS threads do: two neighbouring blocks, also diagonal ones, are
  // never one worker's. Their coordinates differ by -1, 0 or 1, so this sum by 1 to 7.
  unsigned workerOf(uint64_t blockNumber, unsigned workers) const {
    const uint64_t row = blockNumber / grid.x;
    return static_cast<unsigned>((blockNumber % grid.x + 2 * (row % grid.y) + 4 * (row / grid.y)) % workers);
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

// A copy to shared memory that its thread has not waited for. What it read is kept here.
struct AsyncCopy {
  char* to;
  size_t bytes;
  char data[16];
  Site site;
};

// The copies of one thread, oldest first.
struct AsyncCopies {
  std::vector<AsyncCopy> pending;
  std::vector<size_t> batches;  // of each committed one, how many copies it holds
  size_t committed = 0;  // copies in all batches
};

// Runs blocks, one at a time, on one OS thread. Threads of a block are plain calls, one after
// another on one fiber; only when a thread has to wait does its fiber stay behind with it, and the
// next fiber goes on. A kernel without a barrier therefore never switches inside a block.
class Worker {
 public:
  void runBlocks(Launch& launch, [[maybe_unused]] unsigned self, [[maybe_unused]] unsigned workers) {
    launch_ = &launch;
    blockDim = launch.block;
    gridDim = launch.grid;
    shared_.beginLaunch(launch.dynamicBytes);
    if (isTracing()) recorder_.beginLaunch(launch.allocations, shared_.extentsOf(launch.kernel.function));
#ifdef __SANITIZE_THREAD__
    for (uint64_t number = 0; number < launch.blocks; ++number) {
      if (launch.workerOf(number, workers) == self) runBlock(number);
    }
#else
    for (;;) {
      const uint64_t first = launch.nextBlock.fetch_add(launch.chunk);
      if (first >= launch.blocks) break;
      const uint64_t last = std::min(first + launch.chunk, launch.blocks);
      for (uint64_t number = first; number < last; ++number)
        runBlock(launch.chosen.empty() ? number : launch.chosen[number]);
    }
#endif
    launch_ = nullptr;
  }

  void start() { shared_.start(); }

  int waitForBlock(BlockVote vote, bool predicate, Site site) {
    Lane& lane = lanes_[current_];
    lane.fiber = running_;
    lane.inWarpOperation = false;
    if (atBarrier_ == 0) {
      barrier_ = site;
      firstAtBarrier_ = current_;
    } else if (barrier_.line != site.line ||
        (barrier_.file != site.file && std::strcmp(barrier_.file, site.file) != 0)) {
      fail("%s: thread %s waits at the barrier in %s:%d, thread %s at the one in %s:%d", blockText().chars,
          threadText(firstAtBarrier_).chars, barrier_.file, barrier_.line, threadText(current_).chars, site.file,
          site.line);
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

  uint64_t waitForWarp(WarpOperation operation, unsigned mask, uint64_t value, int source, Site site) {
    const unsigned self = current_ % 32;
    Warp& warp = warps_[current_ / 32];
    if (!(mask >> self & 1)) {
      fail("%s, thread %s: calls %s in %s:%d with mask 0x%08x, which leaves this thread out", blockText().chars,
          threadText(current_).chars, operationName(operation), site.file, site.line, mask);
    }
    warp.values[self] = value;
    warp.sources[self] = source;
    lanes_[current_] = {running_, true, operation, mask, site};
    unsigned k = 0;
    while (k < warp.gatherings && (warp.gathering[k].operation != operation || warp.gathering[k].mask != mask)) {
      ++k;
    }
    if (k == warp.gatherings) warp.gathering[warp.gatherings++] = {operation, mask, 0};
    warp.gathering[k].arrived |= 1u << self;
    releaseGathering(current_ / 32, k);
    suspend();
    recorder_.passedWarpOperation();
    return warp.results[self];
  }

  // The destination is undefined until the wait: poison, so that a reader that does not wait, or
  // that still needs what was there, shows.
  void copyAsync(
      char* to, const char* from, size_t bytes, size_t zeros, Site site, [[maybe_unused]] const void* caller) {
    if (bytes != 4 && bytes != 8 && bytes != 16) failCopy(site, "copies 4, 8 or 16 bytes at a time");
    if (zeros > bytes) failCopy(site, "fills more bytes with zeros than it copies");
    if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) {
      failCopy(site, "needs both addresses aligned to the size of the copy");
    }
    if (!shared_.holds(to, bytes)) {
      failCopy(site, "has a destination that does not lie in the block's shared memory");
    }
    recorder_.asyncCopy(caller, to, from, bytes, zeros);
    AsyncCopy copy{to, bytes, {}, site};
    if (zeros < bytes) {
      if (!holdsSource(from, bytes - zeros)) {
        failCopy(site, "has a source that does not lie in an allocation of device memory");
      }
      std::memcpy(copy.data, from, bytes - zeros);
    }
    std::memset(to, kPoison, bytes);
    copiesOfThread().pending.push_back(copy);
  }

  void commitCopies() {
    AsyncCopies& copies = copiesOfThread();
    copies.batches.push_back(copies.pending.size() - copies.committed);
    copies.committed = copies.pending.size();
  }

  void waitForCopies(size_t batchesLeft) {
    AsyncCopies& copies = copiesOfThread();
    batchesLeft = std::min(batchesLeft, kMostBatches);
    if (copies.batches.size() <= batchesLeft) return;
    const auto firstLeft = copies.batches.end() - static_cast<ptrdiff_t>(batchesLeft);
    const size_t done = std::accumulate(copies.batches.begin(), firstLeft, size_t{0});
    for (size_t i = 0; i < done; ++i) {
      std::memcpy(copies.pending[i].to, copies.pending[i].data, copies.pending[i].bytes);
    }
    copies.batches.erase(copies.batches.begin(), firstLeft);
    copies.pending.erase(copies.pending.begin(), copies.pending.begin() + static_cast<ptrdiff_t>(done));
    copies.committed -= done;
  }

  int laneInWarp() const { return static_cast<int>(current_ % 32); }

  // For messages, also from the signal handler.
  bool inKernel() const { return launch_ != nullptr; }
  Text blockText() const { return textOf("kernel %s, block %s", launch_->kernel.full, textOf(blockIdx).chars); }
  Text threadText() const { return textOf(threadIdx); }
  SharedMemory& shared() { return shared_; }
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
    blockIdx = {static_cast<unsigned>(number % launch_->grid.x), static_cast<unsigned>(row % launch_->grid.y),
        static_cast<unsigned>(row / launch_->grid.y)};
    shared_.poison();
    const unsigned threads = launch_->threads;
    for (unsigned w = 0; w * 32 < threads; ++w) {
      warps_[w].gatherings = 0;
      warps_[w].gone = threads - w * 32 < 32 ? ~0u << (threads - w * 32) : 0;
    }
    finished_ = atBarrier_ = votes_ = phase_ = warpPhase_ = 0;
    startPhase();
    recorder_.beginBlock(number);
    switchTo(*idleFiber());
    recorder_.endBlock();
    const char* damage = shared_.damage();
    if (damage) shared_.failAt(damage, blockText(), "wrote");
  }

  AsyncCopies& copiesOfThread() {
    if (copies_.empty()) copies_.resize(kMaxThreads);
    return copies_[current_];
  }

  bool holdsSource(const char* from, size_t bytes) {
    const std::vector<Allocation>& live = launch_->allocations;
    for (size_t i = 0; i < live.size(); ++i, ++lastSource_) {
      const Allocation& a = live[lastSource_ %= live.size()];  // most often that of the last copy
      if (from >= a.start && from < a.end()) return bytes <= static_cast<size_t>(a.end() - from);
    }
    return false;
  }

  [[noreturn]] void failCopy(Site site, const char* why) const {
    fail("%s, thread %s: __pipeline_memcpy_async in %s:%d %s", blockText().chars, threadText().chars, site.file,
        site.line, why);
  }

  void startPhase() {
    next_ = 0;
    order_ = &launch_->orders[launch_->pick(number_, phase_) * launch_->threads];
  }

  void makeCurrent(unsigned thread) {
    current_ = thread;
    threadIdx = launch_->coordinates[thread];
    recorder_.setThread(thread);
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
    recorder_.passedBarrier();
    startPhase();
  }

  void finish(unsigned thread) {
    ++finished_;
    Warp& warp = warps_[thread / 32];
    warp.gone |= 1u << (thread % 32);
    if (!copies_.empty()) {
      AsyncCopies& copies = copies_[thread];
      if (!copies.pending.empty()) {
        fail(
            "%s, thread %s: returned with %zu asynchronous copies that it never waited for, the "
            "first from %s:%d",
            blockText().chars, threadText(thread).chars, copies.pending.size(), copies.pending[0].site.file,
            copies.pending[0].site.line);
      }
      copies.batches.clear();
    }
    // A lane that returned is waited for no longer, as on the hardware.
    for (unsigned k = warp.gatherings; k-- > 0;) releaseGathering(thread / 32, k);
  }

  // Lets the lanes go on once all that the mask names are there.
  void releaseGathering(unsigned warpNumber, unsigned k) {
    Warp& warp = warps_[warpNumber];
    const Gathering gathering = warp.gathering[k];
    if (gathering.mask & ~(gathering.arrived | warp.gone)) return;
    warp.gathering[k] = warp.gathering[--warp.gatherings];
    const bool vote = gathering.operation == WarpOperation::kBallot || gathering.operation == WarpOperation::kAny ||
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
      warp.results[lane] = vote                              ? ballot
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
          (lanes_[missing].operation == lanes_[waits].operation && lanes_[missing].mask == lanes_[waits].mask)) {
        ++missing;
      }
    }
    fail("%s: thread %s waits %s, thread %s %s%s", blockText().chars, threadText(waits).chars, placeText(waits).chars,
        threadText(missing).chars, returned(missing) ? "returned without reaching it" : "waits ",
        returned(missing) ? "" : placeText(missing).chars);
  }

  Text placeText(unsigned thread) const {
    const Lane& lane = lanes_[thread];
    if (!lane.inWarpOperation) return textOf("at the barrier in %s:%d", barrier_.file, barrier_.line);
    return textOf("at the %s with mask 0x%08x in %s:%d", operationName(lane.operation), lane.mask, lane.site.file,
        lane.site.line);
  }

  Fiber* idleFiber() {
    if (idle_.empty()) idle_.push_back(makeFiber());
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }

  Fiber* makeFiber() {
    void* mapped =
        mmap(nullptr, kStackGuardBytes + kStackBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char* stack = static_cast<char*>(mapped) + kStackGuardBytes;
    if (mapped == MAP_FAILED || mprotect(stack, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
      fail("%s: no memory for the stack of another waiting thread", blockText().chars);
    }
    Fiber* fiber = new Fiber;
    fiber->stack = stack;
    // Tops at different offsets in their pages; at the same one they would fight for the same few
    // sets of the cache.
    fiber->stackBytes = kStackBytes - fibers_.size() % 48 * 64;
    fiber->context = boost::context::fiber(std::allocator_arg,
        StackOf{fiber->stack + fiber->stackBytes, fiber->stackBytes}, [this](boost::context::fiber&& from) {
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
  SharedMemory shared_;
  Recorder recorder_;
  std::vector<AsyncCopies> copies_;  // of every thread, once a kernel makes any
  size_t lastSource_ = 0;
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
    fail("%s: %s %td bytes before the start of %s of %zu bytes", who.chars, access, a.start - address, what, a.bytes);
  }
  if (address >= a.end()) {
    fail("%s: %s %td bytes past the end of %s of %zu bytes", who.chars, access, address - a.end(), what, a.bytes);
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
  if (worker && worker->inKernel() && worker->shared().guards(address)) {
    worker->shared().failAt(address, whoText(), access);
  }
  if (worker && worker->onStackGuard(address)) {
    fail(
        "%s: its local variables need more than the %zu KiB of stack a thread has", whoText().chars, kStackBytes >> 10);
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
  Pool() : count_(std::clamp(std::thread::hardware_concurrency(), kMinWorkers, kMaxWorkers)) {
    installFaultHandler();
#ifdef __SANITIZE_THREAD__
    pthread_barrier_init(&awake_, nullptr, count_);
#endif
    for (unsigned i = 0; i < count_; ++i) std::thread([this, i] { work(i); }).detach();
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
  void work(unsigned self) {
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
#ifdef __SANITIZE_THREAD__
      // Whoever took the lock after another had run its blocks would be ordered after these, and no race be seen.
      pthread_barrier_wait(&awake_);
#endif
      worker->runBlocks(launch, self, count_);
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
#ifdef __SANITIZE_THREAD__
  pthread_barrier_t awake_;
#endif
};

// Never destroyed: its threads sleep until the process ends.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

// ---- Launching ----------------------------------------------------------------------------------

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

}  // namespace

void runKernel(const Kernel& kernel, const LaunchConfig& config, const ThreadBody& body, uint64_t number) {
  Launch launch;
  launch.kernel = kernel;
  launch.grid = config.grid;
  launch.block = config.block;
  launch.dynamicBytes = config.sharedBytes;
  launch.body = &body;
  launch.threads = config.block.x * config.block.y * config.block.z;
  launch.blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  {
    std::lock_guard<std::mutex> lock(memory().mutex);
    launch.allocations = memory().live;
  }
  prepare(launch, number);
  if (isTracing()) {
    launch.chunk = 1;
    while (!(launch.chosen = nextToTrace(kernel, config, launch.allocations)).empty()) {
      launch.blocks = launch.chosen.size();
      launch.nextBlock = 0;
      pool().run(launch);
    }
  } else {
    pool().run(launch);
  }
  checkSlack((std::string("kernel ") + kernel.full).c_str());
}

int blockBarrier(BlockVote vote, bool predicate, Site site) { return worker->waitForBlock(vote, predicate, site); }

uint64_t warpExchange(WarpOperation operation, unsigned mask, uint64_t value, int source, Site site) {
  return worker->waitForWarp(operation, mask, value, source, site);
}

int laneInWarp() { return worker->laneInWarp(); }

void* dynamicSharedMemory(size_t alignment) {
  if (!worker) fail("an extern __shared__ array stands outside a kernel; declare it inside");
  return worker->shared().dynamic(alignment);
}

void copyAsync(void* to, const void* from, size_t bytes, size_t zeros, Site site) {
  worker->copyAsync(
      static_cast<char*>(to), static_cast<const char*>(from), bytes, zeros, site, __builtin_return_address(0));
}

void commitCopies() { worker->commitCopies(); }

void waitForCopies(size_t batchesLeft) { worker->waitForCopies(batchesLeft); }

}  // namespace cuda_cpu

#ifdef __SANITIZE_THREAD__
// What ThreadSanitizer asks the program for.
extern "C" {
__attribute__((no_sanitize("thread"))) const char* __tsan_default_options() { return "exitcode=1"; }

void __tsan_on_report(void*) {
  using namespace cuda_cpu;
  if (worker && worker->inKernel()) say("%s: races with another block", whoText().chars);
}
}
#endif
