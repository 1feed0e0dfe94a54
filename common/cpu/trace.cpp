// SPDX-License-Identifier: MIT
// Records what kernels ask of memory. GCC's -fsanitize=thread makes every access of the lowered source call a function;
// here those functions are ours, and the sanitizer's own library is not linked. The accesses of a warp's lanes are put
// together by instruction (the address that the call returns to) and occurrence (the lane's n-th time there since the
// last barrier), at the next barrier they are counted, and races are looked for.

#include "trace.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

extern "C" char __executable_start, _end;  // the linker's: the program's own image, where constants lie

namespace cuda_cpu {

namespace {

constexpr unsigned kLineSectors = 4;  // an L1 line is 128 bytes
constexpr unsigned kBanks = 32;
constexpr uint64_t kMostRuns = 16;  // of neighbours, so at most 128 blocks a launch;
constexpr uint64_t kFewestRuns = 3;  // for what runs have in common; in between,
constexpr uint64_t kAccessBudget = uint64_t{1} << 24;  // as many as make so many accesses of lanes: a second
constexpr size_t kNear = 16 << 20;  // how far outside an access is still told by the memory that it missed
constexpr size_t kStackSpan = 64 << 10;  // no frame of a kernel lies farther from the accessing one
constexpr double kGolden = 0.6180339887498949;  // its multiples, modulo 1, spread evenly however many there are

// ---- What has been written of device memory -----------------------------------------------------

// A bit for each byte, 16 of them together. A piece of 1 to 16 bytes, aligned to its size, lies in one group.
class ByteBits {
 public:
  explicit ByteBits(size_t bytes) : groups_(static_cast<uint16_t*>(std::calloc(bytes / 16 + 1, 2))) {
    if (!groups_) fail("no memory to trace %zu bytes", bytes);
  }
  ~ByteBits() { std::free(groups_); }
  ByteBits(ByteBits&& other) noexcept : groups_(std::exchange(other.groups_, nullptr)) {}
  ByteBits& operator=(ByteBits&& other) noexcept {
    std::swap(groups_, other.groups_);
    return *this;
  }

  void clear(size_t bytes) { std::memset(groups_, 0, 2 * (bytes / 16 + 1)); }
  bool has(size_t at, unsigned bytes) const { return (groups_[at / 16] & mask(at, bytes)) == mask(at, bytes); }
  void set(size_t at, unsigned bytes) {  // several workers may share a group
    if (!has(at, bytes)) __atomic_fetch_or(&groups_[at / 16], mask(at, bytes), __ATOMIC_RELAXED);
  }

 private:
  static uint16_t mask(size_t at, unsigned bytes) { return static_cast<uint16_t>(((1u << bytes) - 1) << at % 16); }
  uint16_t* groups_;
};

struct Written {
  char* start;
  size_t bytes;
  bool all;  // then the bits are not looked at
  ByteBits bits;
};

std::vector<Written>& allWritten() {  // guarded by memory().mutex, and constant while a kernel runs
  static auto& instance = *new std::vector<Written>;
  return instance;
}

Written* findWritten(const char* address) {
  for (Written& written : allWritten()) {
    if (address >= written.start && address < written.start + written.bytes) return &written;
  }
  return nullptr;
}

// The next piece of a stretch that the hardware accesses at once: 1 to 16 bytes, aligned to its size.
unsigned pieceOf(const char* address, size_t bytes) {
  unsigned piece = 16;
  while (piece > bytes || reinterpret_cast<uintptr_t>(address) % piece != 0) piece /= 2;
  return piece;
}

// ---- The launch that is being traced ------------------------------------------------------------

std::mutex& trafficMutex() {
  static std::mutex& instance = *new std::mutex;
  return instance;
}

const char* verb(Access operation) {
  switch (operation) {
    case Access::kLoad:
      return "reads";
    case Access::kStore:
      return "writes";
    case Access::kAtomic:
      return "updates";
    case Access::kAsyncCopy:
      return "copies";
  }
  return "";
}

bool writes(Access operation, Space space) {
  return operation == Access::kStore || operation == Access::kAtomic ||
      (operation == Access::kAsyncCopy && space == Space::kShared);
}

// ---- The L1 of one block ------------------------------------------------------------------------

// Loads find what earlier loads of the block brought; least recently used lines go first. Stores pass through.
class L1Cache {
 public:
  void clear(size_t bytes) {
    capacity_ = std::max<size_t>(1, bytes / (kLineSectors * kSectorBytes));
    lines_.clear();
    uses_.clear();
  }

  bool findOrBring(uintptr_t sector) {
    Line& line = lines_[sector / kLineSectors];
    const unsigned bit = 1u << sector % kLineSectors;
    const bool found = line.sectors & bit;
    line.sectors |= bit;
    line.lastUse = ++clock_;
    uses_.push_back({sector / kLineSectors, clock_});
    while (lines_.size() > capacity_) {
      const auto [oldest, use] = uses_.front();
      uses_.pop_front();
      if (lines_[oldest].lastUse == use) lines_.erase(oldest);  // otherwise it was used again
    }
    return found;
  }

 private:
  struct Line {
    unsigned sectors = 0;
    uint64_t lastUse = 0;
  };
  size_t capacity_ = 1;
  uint64_t clock_ = 0;
  std::unordered_map<uintptr_t, Line> lines_;
  std::deque<std::pair<uintptr_t, uint64_t>> uses_;
};

// ---- Requests -----------------------------------------------------------------------------------

// Memory that a kernel may touch.
struct Region {
  char* start;
  size_t bytes;
  Space space;
  ByteBits* written;  // null: all of it is
  bool writtenNow;  // since the last barrier

  size_t bitOf(const char* address) const {
    return address - start + reinterpret_cast<uintptr_t>(start) % 16;  // aligned as the address is
  }
};

struct Request {
  unsigned instruction;
  unsigned region;
  unsigned bytes;  // of one lane
  uint32_t lanes = 0;
  const char* address[32];
  uint32_t epoch[32];  // warp operations that the lane had passed
};

struct Instruction {
  InstructionKey key;
  Counts counts;
  std::vector<uint32_t> executed;  // by each thread, since the last barrier
  std::vector<std::vector<uint32_t>> requests;  // of each warp, by occurrence
};

// Who wrote a word last since the last barrier.
struct Touch {
  unsigned thread;
  unsigned epoch;
  unsigned instruction;
  unsigned bytes;  // a bit per byte of the word
};

// The lanes of one pass: its wavefronts are the words of the fullest bank. Lanes that ask for the same word share it.
unsigned wavefrontsOf(const Request& request, uint32_t lanes) {
  uintptr_t words[kBanks][64];
  unsigned counts[kBanks] = {};
  unsigned most = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const uintptr_t first = reinterpret_cast<uintptr_t>(request.address[lane]) / 4;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(request.address[lane]) + request.bytes - 1) / 4;
    for (uintptr_t word = first; word <= last; ++word) {
      uintptr_t* bank = words[word % kBanks];
      unsigned& count = counts[word % kBanks];
      if (std::find(bank, bank + count, word) != bank + count) continue;
      bank[count++] = word;
      most = std::max(most, count);
    }
  }
  return most;
}

// Whether each of these lanes asks for the same as its neighbour at this distance.
bool inPairs(const Request& request, uint32_t lanes, unsigned distance) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned other = lane ^ distance;
    if ((lanes >> lane & 1) && (lanes >> other & 1) && request.address[lane] != request.address[other]) return false;
  }
  return true;
}

// A request of 4 bytes a lane is one pass, of 8 bytes one per half of the warp, of 16 one per quarter; where lanes are
// alike in pairs (1 or 2 apart), two of these go together.
void countWavefronts(const Request& request, Counts* counts) {
  const unsigned passes = request.bytes <= 4 ? 1 : request.bytes <= 8 ? 2 : 4;
  const unsigned width = 32 / passes;
  const unsigned merged = passes == 1 ? 1 : 2;
  for (unsigned first = 0; first < 32; first += merged * width) {
    const auto lanesOf = [&](unsigned from, unsigned count) {
      return request.lanes & static_cast<uint32_t>(((uint64_t{1} << count) - 1) << from);
    };
    const uint32_t both = lanesOf(first, merged * width);
    if (merged == 1 || inPairs(request, both, 1) || inPairs(request, both, 2)) {
      counts->wavefronts += wavefrontsOf(request, both);
      counts->ideal += both != 0;
      continue;
    }
    for (unsigned half = 0; half < merged; ++half) {
      const uint32_t lanes = lanesOf(first + half * width, width);
      counts->wavefronts += wavefrontsOf(request, lanes);
      counts->ideal += lanes != 0;
    }
  }
}

}  // namespace

// ---- The tracer of one worker -------------------------------------------------------------------

// Null while the worker's thread is not in a kernel's own code.
static __thread Tracer* active;

class Tracer {
 public:
  void beginLaunch(const std::vector<Allocation>& allocations, const std::vector<Extent>& shared) {
    const Traffic& traffic = allTraffic().back();
    regions_.clear();
    sharedBits_.clear();
    for (const Extent& extent : shared) {
      sharedBits_.emplace_back(extent.bytes + 16);
      regions_.push_back({extent.start, extent.bytes, Space::kShared, nullptr, false});
    }
    for (size_t i = 0; i < shared.size(); ++i) regions_[i].written = &sharedBits_[i];
    for (const Allocation& allocation : allocations) {
      Written* written = findWritten(allocation.start);
      regions_.push_back(
          {allocation.start, allocation.bytes, Space::kGlobal, written->all ? nullptr : &written->bits, false});
    }
    threads_ = traffic.block.x * traffic.block.y * traffic.block.z;
    block_ = traffic.block;
    const Card& card = *environment().device.card;
    size_t resident = std::min<size_t>(card.threadsPerSm / threads_, card.blocksPerSm);
    if (traffic.sharedBytes != 0) resident = std::min(resident, card.sharedPerSm / traffic.sharedBytes);
    const size_t share = card.l1Bytes / std::max<size_t>(1, resident);
    l1Bytes_ = share - std::min(share, traffic.sharedBytes);
    instructions_.clear();
    known_.clear();
    std::fill(std::begin(last_), std::end(last_), Last{});
    reported_.clear();
    order_.assign((threads_ + 31) / 32, {});
    epochs_.assign(threads_, 0);
  }

  void beginBlock(uint64_t number) {
    run_ = number / kNeighbours;
    for (size_t i = 0; i < sharedBits_.size(); ++i) sharedBits_[i].clear(regions_[i].bytes + 16);
    std::fill(epochs_.begin(), epochs_.end(), 0);
    l1_.clear(l1Bytes_);
    l1Misses_ = 0;
    footprint_.clear();
    active = this;
  }

  void setThread(unsigned thread) { thread_ = thread; }
  void passedWarpOperation() { ++epochs_[thread_]; }

  // Counts what has gathered since the last barrier: warps in turn, each in its own order.
  void passedBarrier() {
    active = nullptr;
    findRaces();
    bool more = true;
    for (size_t i = 0; more; ++i) {
      more = false;
      for (const std::vector<uint32_t>& requests : order_) {
        if (i >= requests.size()) continue;
        more = true;
        count(requests_[requests[i]]);
      }
    }
    for (Instruction& instruction : instructions_) {
      std::fill(instruction.executed.begin(), instruction.executed.end(), 0);
      for (std::vector<uint32_t>& requests : instruction.requests) requests.clear();
    }
    for (std::vector<uint32_t>& requests : order_) requests.clear();
    for (Region& region : regions_) region.writtenNow = false;
    requests_.clear();
    active = this;
  }

  void endBlock() {
    passedBarrier();
    active = nullptr;
    std::lock_guard<std::mutex> lock(trafficMutex());
    Traffic& traffic = allTraffic().back();
    ++traffic.traced;
    traffic.accesses += std::exchange(accesses_, 0);
    traffic.l1Misses += l1Misses_;
    for (Instruction& instruction : instructions_) {
      traffic.instructions[instruction.key] += instruction.counts;
      instruction.counts = {};
    }
    Footprint& run = traffic.footprints[run_];
    for (const auto& [sector, touched] : footprint_) run[sector] += touched;
  }

  void access(uintptr_t pc, const char* address, size_t size, Access operation) {
    const char* frame = static_cast<const char*>(__builtin_frame_address(0));
    if (address >= frame && address < frame + kStackSpan) return;  // a local: registers on a GPU
    active = nullptr;
    accessPieces(pc, address, size, operation);
    active = this;
  }

  void asyncCopy(uintptr_t pc, const char* to, const char* from, size_t bytes, size_t zeros) {
    accessPieces(pc, from, bytes - zeros, Access::kAsyncCopy);
    accessPieces(pc, to, bytes, Access::kAsyncCopy);
  }

 private:
  void accessPieces(uintptr_t pc, const char* address, size_t size, Access operation) {
    while (size > 0) {
      const unsigned piece = pieceOf(address, size);
      accessPiece(pc, address, piece, operation);
      address += piece;
      size -= piece;
    }
  }

  void accessPiece(uintptr_t pc, const char* address, unsigned bytes, Access operation) {
    ++accesses_;
    Last& last = last_[(pc + static_cast<unsigned>(operation)) % std::size(last_)];
    if (last.pc != pc || !isInside(last.region, address)) {
      unsigned region = 0;
      while (region < regions_.size() && !isInside(region, address)) ++region;
      if (region == regions_.size()) return outside(pc, address, bytes, operation);
      last = {pc, region, instructionOf({pc, operation, regions_[region].space})};
    }
    Region& region = regions_[last.region];
    if (address + bytes > region.start + region.bytes) return outside(pc, address, bytes, operation);
    const bool isWrite = writes(operation, region.space);
    if (region.written) {
      if (isWrite) {
        region.written->set(region.bitOf(address), bytes);
      } else if (!region.written->has(region.bitOf(address), bytes)) {
        reportUnwritten(pc, region, address, bytes);
      }
    }
    region.writtenNow |= isWrite;

    Instruction& instruction = instructions_[last.instruction];
    const unsigned warp = thread_ / 32;
    std::vector<uint32_t>& requests = instruction.requests[warp];
    const uint32_t occurrence = instruction.executed[thread_]++;
    if (occurrence == requests.size()) {
      const uint32_t number = static_cast<uint32_t>(requests_.size());
      requests_.push_back({last.instruction, last.region, bytes, 0, {}, {}});
      requests.push_back(number);
      order_[warp].push_back(number);
    }
    Request& request = requests_[requests[occurrence]];
    request.lanes |= 1u << thread_ % 32;
    request.address[thread_ % 32] = address;
    request.epoch[thread_ % 32] = epochs_[thread_];
  }

  bool isInside(unsigned region, const char* address) const {
    return region < regions_.size() && static_cast<size_t>(address - regions_[region].start) < regions_[region].bytes;
  }

  unsigned instructionOf(const InstructionKey& key) {
    const auto [entry, isNew] = known_.try_emplace(key, static_cast<unsigned>(instructions_.size()));
    if (isNew) {
      instructions_.push_back({key, {}, std::vector<uint32_t>(threads_), {}});
      instructions_.back().requests.resize(order_.size());
    }
    return entry->second;
  }

  void count(const Request& request) {
    Instruction& instruction = instructions_[request.instruction];
    Counts& counts = instruction.counts;
    ++counts.requests;
    counts.bytes += uint64_t{request.bytes} * __builtin_popcount(request.lanes);
    if (instruction.key.space == Space::kShared) return countWavefronts(request, &counts);

    std::pair<uintptr_t, uint32_t> sectors[32];  // number, bytes touched
    unsigned lanes = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (!(request.lanes >> lane & 1)) continue;
      const uintptr_t address = reinterpret_cast<uintptr_t>(request.address[lane]);
      // Aligned pieces of at most 16 bytes never straddle two sectors.
      const uint32_t bytes = ((1u << request.bytes) - 1) << address % kSectorBytes;
      sectors[lanes++] = {address / kSectorBytes, bytes};
    }
    std::sort(sectors, sectors + lanes);
    for (unsigned i = 0; i < lanes;) {
      const uintptr_t sector = sectors[i].first;
      uint32_t bytes = 0;
      for (; i < lanes && sectors[i].first == sector; ++i) bytes |= sectors[i].second;
      ++counts.sectors;
      Touched& touched = footprint_[sector];
      if (instruction.key.access != Access::kStore) {
        touched.read |= bytes;
        touched.readers = 1;
      }
      if (writes(instruction.key.access, Space::kGlobal)) touched.written |= bytes;
      const bool cached = instruction.key.access == Access::kLoad ||
          (instruction.key.access == Access::kAsyncCopy && request.bytes < 16);  // cp.async.cg passes L1 by
      if (instruction.key.access == Access::kLoad || instruction.key.access == Access::kAsyncCopy)
        l1Misses_ += !cached || !l1_.findOrBring(sector);
    }
  }

  // ---- What is wrong ----

  // Two threads of the block touch the same bytes between two barriers, and one of them writes: all writes go into a
  // table, then every access to memory that was written is looked up in it.
  void findRaces() {
    writers_.clear();
    for (const bool isWrite : {true, false}) {
      for (size_t warp = 0; warp < order_.size(); ++warp) {
        for (const uint32_t number : order_[warp]) {
          const Request& request = requests_[number];
          const InstructionKey& key = instructions_[request.instruction].key;
          if (!regions_[request.region].writtenNow || writes(key.access, key.space) != isWrite) continue;
          for (unsigned lane = 0; lane < 32; ++lane) {
            if (request.lanes >> lane & 1) checkRace(request, static_cast<unsigned>(warp * 32 + lane), isWrite);
          }
        }
      }
    }
  }

  void checkRace(const Request& request, unsigned thread, bool isWrite) {
    const uintptr_t from = reinterpret_cast<uintptr_t>(request.address[thread % 32]);
    for (uintptr_t word = from / 4; word * 4 < from + request.bytes; ++word) {
      const unsigned bytes = request.bytes < 4 ? ((1u << request.bytes) - 1) << from % 4 : 0xf;
      const Touch touch{thread, request.epoch[thread % 32], request.instruction, bytes};
      const auto writer = writers_.find(word);
      if (writer != writers_.end() && (writer->second.bytes & bytes)) reportIfRace(request, writer->second, touch);
      if (isWrite) writers_[word] = touch;
    }
  }

  void reportIfRace(const Request& request, const Touch& a, const Touch& b) {
    if (a.thread == b.thread) return;
    // Lanes of a warp are ordered by the warp's own operations only.
    if (a.thread / 32 == b.thread / 32 && a.epoch != b.epoch) return;
    const InstructionKey& first = instructions_[a.instruction].key;
    const InstructionKey& second = instructions_[b.instruction].key;
    if (first.access == Access::kAtomic && second.access == Access::kAtomic) return;
    const Region& region = regions_[request.region];
    report(first.pc, second.pc, [&] {
      return textOf("race: thread %s %s byte %td of %s at @1, thread %s %s it at @2, and no barrier lies between",
          coordinates(a.thread).chars, verb(first.access), request.address[b.thread % 32] - region.start,
          nameOf(region), coordinates(b.thread).chars, verb(second.access));
    });
  }

  void reportUnwritten(uintptr_t pc, const Region& region, const char* address, unsigned bytes) {
    report(pc, 0, [&] {
      return textOf("unwritten: thread %s reads %u bytes that nobody wrote at @1: byte %td of %s",
          coordinates(thread_).chars, bytes, address - region.start, nameOf(region));
    });
  }

  // Once for each pair of instructions; `what` makes the text.
  template <class What>
  void report(uintptr_t first, uintptr_t second, What what) {
    if (!reported_.insert({first, second}).second) return;
    std::lock_guard<std::mutex> lock(trafficMutex());
    std::vector<Finding>& findings = allTraffic().back().findings;
    const bool known = std::any_of(findings.begin(), findings.end(),
        [&](const Finding& finding) { return finding.first == first && finding.second == second; });
    if (known) return;
    findings.push_back({textOf("block %s: %s", textOf(blockIdx).chars, what().chars).chars, first, second});
  }

  // What no kernel may touch. Near a kernel's memory the access itself may end the program, so that it is told first.
  void outside(uintptr_t pc, const char* address, unsigned bytes, Access operation) {
    for (const uint3* own : {&threadIdx, &blockIdx, &blockDim, &gridDim}) {
      const char* start = reinterpret_cast<const char*>(own);
      if (address >= start && address < start + sizeof *own) return;
    }
    if (address >= &__executable_start && address < &_end) return;
    const Region* nearest = nullptr;
    for (const Region& region : regions_) {
      if (distance(region, address) < (nearest ? distance(*nearest, address) : kNear)) nearest = &region;
    }
    const auto who = [&] {
      return textOf("thread %s %s %u bytes", coordinates(thread_).chars, verb(operation), bytes);
    };
    if (!nearest) {
      return report(pc, 0, [&] { return textOf("outside: %s of the host's memory at @1", who().chars); });
    }
    const std::string line = sourceLines({pc})[0];
    if (line.empty()) return;
    const bool before = address < nearest->start;
    fail("kernel %s, block %s: outside: %s, %zu %s of %s of %zu bytes, at %s", allTraffic().back().kernel.c_str(),
        textOf(blockIdx).chars, who().chars, distance(*nearest, address), before ? "before the start" : "past the end",
        nameOf(*nearest), nearest->bytes, line.c_str());
  }

  // In bytes; past the end, how far beyond the last byte but one, so that the first byte outside is 0 past the end.
  static size_t distance(const Region& region, const char* address) {
    return address < region.start ? region.start - address : address - region.start - region.bytes;
  }

  static const char* nameOf(const Region& region) {
    return region.space == Space::kShared ? "a shared array" : "an allocation";
  }

  Text coordinates(unsigned thread) const {
    return textOf(uint3{thread % block_.x, thread / block_.x % block_.y, thread / (block_.x * block_.y)});
  }

  std::vector<Region> regions_;
  std::vector<ByteBits> sharedBits_;  // of the first regions
  struct Last {  // what an instruction touched last, which most often it does again
    uintptr_t pc;
    unsigned region;
    unsigned instruction;
  };
  Last last_[1024] = {};
  unsigned threads_ = 0;
  dim3 block_;
  size_t l1Bytes_ = 0;
  uint64_t run_ = 0;
  unsigned thread_ = 0;
  std::vector<uint32_t> epochs_;  // warp operations that each thread has passed
  uint64_t accesses_ = 0;
  std::vector<Instruction> instructions_;
  std::map<InstructionKey, unsigned> known_;
  std::vector<Request> requests_;  // since the last barrier
  std::vector<std::vector<uint32_t>> order_;  // of each warp's requests
  L1Cache l1_;
  uint64_t l1Misses_ = 0;
  Footprint footprint_;
  std::unordered_map<uintptr_t, Touch> writers_;  // of words, since the last barrier
  std::set<std::pair<uintptr_t, uintptr_t>> reported_;
};

// ---- The hooks of the backend -------------------------------------------------------------------

void Recorder::beginLaunch(const std::vector<Allocation>& allocations, const std::vector<Extent>& shared) {
  if (!tracer_) tracer_ = new Tracer;  // never released, as its worker
  tracer_->beginLaunch(allocations, shared);
}
void Recorder::beginBlock(uint64_t number) {
  if (tracer_) tracer_->beginBlock(number);
}
void Recorder::setThread(unsigned thread) {
  if (tracer_) tracer_->setThread(thread);
}
void Recorder::passedWarpOperation() {
  if (tracer_) tracer_->passedWarpOperation();
}
void Recorder::passedBarrier() {
  if (tracer_) tracer_->passedBarrier();
}
void Recorder::endBlock() {
  if (tracer_) tracer_->endBlock();
}
void Recorder::asyncCopy(const void* caller, const char* to, const char* from, size_t bytes, size_t zeros) {
  if (tracer_) tracer_->asyncCopy(reinterpret_cast<uintptr_t>(caller), to, from, bytes, zeros);
}

std::vector<Traffic>& allTraffic() {
  static auto& instance = *new std::vector<Traffic>;
  return instance;
}

static bool tracing = false;
bool isTracing() { return tracing; }
void startTracing() {
  tracing = true;
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (const Allocation& allocation : memory().live) {
    traceAllocated(allocation);
    allWritten().back().all = true;  // what was written of it by now was not seen
  }
}

void traceAllocated(const Allocation& allocation) {
  if (!tracing) return;
  allWritten().push_back({allocation.start, allocation.bytes, false, ByteBits(allocation.bytes)});
}

void traceReleased(const void* start) {
  if (Written* written = findWritten(static_cast<const char*>(start))) {
    std::swap(*written, allWritten().back());
    allWritten().pop_back();
  }
}

void traceWritten(const void* to, size_t bytes) {
  const char* address = static_cast<const char*>(to);
  Written* written = findWritten(address);
  if (!written || written->all) return;
  written->all = bytes == written->bytes;
  for (size_t done = 0; !written->all && done < bytes;) {
    const unsigned piece = pieceOf(address + done, bytes - done);
    written->bits.set(address + done - written->start, piece);
    done += piece;
  }
}

std::vector<uint64_t> nextToTrace(
    const Kernel& kernel, const LaunchConfig& config, const std::vector<Allocation>& allocations) {
  static uint64_t picked = 0;  // runs of this launch
  if (picked == 0) {
    Traffic traffic;
    traffic.kernel = kernel.full;
    traffic.symbol = kernel.symbol;
    traffic.grid = config.grid;
    traffic.block = config.block;
    traffic.sharedBytes = staticSharedBytes(kernel.function) + config.sharedBytes;
    traffic.blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
    traffic.allocations = allocations;
    allTraffic().push_back(std::move(traffic));
  }
  Traffic& traffic = allTraffic().back();
  const uint64_t runs = (traffic.blocks + kNeighbours - 1) / kNeighbours;
  uint64_t wanted = 1;
  if (picked != 0) {
    wanted = std::clamp(kAccessBudget / std::max<uint64_t>(1, traffic.accesses), kFewestRuns, kMostRuns);
  }
  const bool all = runs <= wanted;
  std::vector<uint64_t> blocks;
  for (; picked < std::min(runs, wanted); ++picked) {
    const double place = 0.5 + static_cast<double>(picked) * kGolden;
    uint64_t run = static_cast<uint64_t>((place - static_cast<uint64_t>(place)) * static_cast<double>(runs));
    while (traffic.footprints.count(run)) run = (run + 1) % runs;
    traffic.footprints[run];
    for (uint64_t block = run * kNeighbours; block < std::min(traffic.blocks, (run + 1) * kNeighbours); ++block) {
      blocks.push_back(block);
    }
  }
  if (!blocks.empty()) return blocks;
  picked = 0;
  // The blocks that did not run would have written too.
  for (const auto& [run, footprint] : traffic.footprints) {
    for (const auto& [sector, touched] : footprint) {
      if (all || !touched.written) continue;
      if (Written* written = findWritten(reinterpret_cast<const char*>(sector * kSectorBytes))) written->all = true;
    }
  }
  return {};
}

}  // namespace cuda_cpu

// ---- What the compiler calls --------------------------------------------------------------------

using namespace cuda_cpu;

namespace {
[[gnu::always_inline]] inline void seen(void* pc, const volatile void* address, size_t bytes, Access operation) {
  if (active) active->access(reinterpret_cast<uintptr_t>(pc), (const char*)address, bytes, operation);
}
}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void __tsan_read_range(void* at, size_t bytes) { seen(__builtin_return_address(0), at, bytes, Access::kLoad); }
void __tsan_write_range(void* at, size_t bytes) { seen(__builtin_return_address(0), at, bytes, Access::kStore); }

#define PLAIN(name, bytes, access) \
  void __tsan_##name##bytes(void* at) { seen(__builtin_return_address(0), at, bytes, access); }
#define PLAINS(bytes)                           \
  PLAIN(read, bytes, Access::kLoad)             \
  PLAIN(write, bytes, Access::kStore)           \
  PLAIN(unaligned_read, bytes, Access::kLoad)   \
  PLAIN(unaligned_write, bytes, Access::kStore) \
  static_assert(bytes <= 16)
PLAINS(1);
PLAINS(2);
PLAINS(4);
PLAINS(8);
PLAINS(16);

// The last parameters are memory orders; the strongest serves for all. A load is not counted: kernels have none but the
// one with which atomicAdd(float) starts, and the hardware needs none.
#define ATOMIC(bits, result, name, parameters, value)                   \
  result __tsan_atomic##bits##_##name parameters {                      \
    seen(__builtin_return_address(0), at, sizeof *at, Access::kAtomic); \
    return value;                                                       \
  }
#define FETCH(bits, T, name) \
  ATOMIC(bits, T, fetch_##name, (volatile T * at, T value, int), __atomic_fetch_##name(at, value, __ATOMIC_SEQ_CST))
#define EXCHANGE(bits, T, name, weak)                                                            \
  ATOMIC(bits, int, compare_exchange_##name, (volatile T * at, T * expected, T value, int, int), \
      __atomic_compare_exchange_n(at, expected, value, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define ATOMICS(bits, T)                                                                                       \
  T __tsan_atomic##bits##_load(const volatile T* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }    \
  ATOMIC(bits, void, store, (volatile T * at, T value, int), __atomic_store_n(at, value, __ATOMIC_SEQ_CST))    \
  ATOMIC(bits, T, exchange, (volatile T * at, T value, int), __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST)) \
  EXCHANGE(bits, T, strong, false)                                                                             \
  EXCHANGE(bits, T, weak, true)                                                                                \
  FETCH(bits, T, add)                                                                                          \
  FETCH(bits, T, sub)                                                                                          \
  FETCH(bits, T, and)                                                                                          \
  FETCH(bits, T, or)                                                                                           \
  FETCH(bits, T, xor)                                                                                          \
  static_assert(sizeof(T) * 8 == bits)
ATOMICS(8, uint8_t);
ATOMICS(16, uint16_t);
ATOMICS(32, uint32_t);
ATOMICS(64, uint64_t);

}  // extern "C"
