// SPDX-License-Identifier: MIT
// Device memory: every allocation between red zones, poisoned at its start, kept a while when
// freed.

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "backend.h"
#include "trace.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_cpu {

namespace {

// Address space alone: wide enough to catch a whole row or plane too far.
constexpr size_t kGuardBytes = 16 << 20;
constexpr size_t kFreedKept = 64;

// In the slack around an allocation: a NaN as float and as double, so a read of it shows as well.
// Its payload depends on the address: slack copied or added to other slack is damage too.
unsigned char canaryAt(const char* address) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const unsigned char bytes[] = {
      static_cast<unsigned char>(mix(at / 4)), static_cast<unsigned char>(mix(at / 4) >> 8), 0xf5, 0x7f};
  return bytes[at % sizeof bytes];
}

void setSlack(const Allocation& allocation) {
  setCanary(allocation.pages, allocation.start);
  setCanary(allocation.end(), allocation.pagesEnd());
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(allocation.pages, allocation.start - allocation.pages);
  __asan_poison_memory_region(allocation.end(), allocation.pagesEnd() - allocation.end());
#endif
}

void unmapOldest(std::deque<Allocation>& freed) {
  const Allocation& oldest = freed.front();
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(oldest.pages, oldest.pageBytes);
#endif
  munmap(oldest.pages - kGuardBytes, oldest.pageBytes + 2 * kGuardBytes);
  freed.pop_front();
}

}  // namespace

bool Allocation::guards(const char* address) const {
  return address >= pages - kGuardBytes && address < pagesEnd() + kGuardBytes;
}

Memory& memory() {
  static Memory& instance = *new Memory;
  return instance;
}

void setCanary(char* from, char* to) {
  for (; from < to; ++from) *from = canaryAt(from);
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
      fail("%s wrote before the start of an allocation of %zu bytes, at byte %td", after, allocation.bytes,
          damage - allocation.start);
    }
    damage = firstDamage(allocation.end(), allocation.pagesEnd());
    if (damage) {
      fail("%s wrote past the end of an allocation of %zu bytes, at byte %td", after, allocation.bytes,
          damage - allocation.start);
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
  void* mapped = mmap(nullptr, pageBytes + 2 * kGuardBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
  traceAllocated(allocation);
  *pointer = allocation.start;
  return cudaSuccess;
}

cudaError_t release(void* pointer) {
  if (!pointer) return cudaSuccess;
  std::lock_guard<std::mutex> lock(memory().mutex);
  std::vector<Allocation>& live = memory().live;
  const auto found = std::find_if(live.begin(), live.end(), [=](const Allocation& a) { return a.start == pointer; });
  if (found == live.end()) return cudaErrorInvalidValue;
  madvise(found->pages, found->pageBytes, MADV_DONTNEED);
  mprotect(found->pages, found->pageBytes, PROT_NONE);
  memory().used -= found->bytes;
  traceReleased(found->start);
  memory().freed.push_back(*found);
  live.erase(found);
  if (memory().freed.size() > kFreedKept) unmapOldest(memory().freed);
  return cudaSuccess;
}

Place placeOf(const void* pointer, size_t bytes) {
  const char* first = static_cast<const char*>(pointer);
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (const Allocation& a : memory().live) {
    if (!a.guards(first)) continue;
    const bool inside = first >= a.start && first <= a.end();
    return inside && bytes <= static_cast<size_t>(a.end() - first) ? Place::kDevice : Place::kOutside;
  }
  for (const Allocation& a : memory().freed) {
    if (a.guards(first)) return Place::kOutside;
  }
  return Place::kHost;
}

}  // namespace cuda_cpu
