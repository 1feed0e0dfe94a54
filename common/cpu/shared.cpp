// SPDX-License-Identifier: MIT
// Shared memory: the __shared__ arrays, which are thread-local storage of the OS thread that runs
// the block, and the dynamic part, which ends at a guard.

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "backend.h"

namespace cuda_cpu {

namespace {

// The dynamic part starts at a multiple of this: more than any array asks for.
constexpr size_t kDynamicAlignment = 128;
// What is looked at before it after every block.
constexpr ptrdiff_t kRedZoneBytes = 256;
// Around the dynamic part, address space alone.
constexpr size_t kDynamicGuardBytes = 1 << 20;

template <class T>
bool readAt(int file, off_t offset, std::vector<T>* into, size_t count) {
  into->resize(count);
  const ssize_t bytes = static_cast<ssize_t>(count * sizeof(T));
  return pread(file, into->data(), bytes, offset) == bytes;
}

// The program is the first module.
int firstModule(dl_phdr_info* module, size_t, void* result) {
  *static_cast<dl_phdr_info*>(result) = *module;
  return 1;
}

struct NamedArray {
  std::string name;
  SharedArray array;
};

struct Symbols {
  std::vector<NamedArray> arrays;  // marked by the tag that __shared__ puts in their names
  std::map<const void*, std::string> functions;
  std::set<const void*> kernels;  // where cuda_runtime.h marks them

  Symbols() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const bool found = file >= 0 && read(file);
    if (file >= 0) close(file);
    if (!found) fail("this program has no symbol table to find its shared arrays by; do not strip it");
  }

 private:
  bool read(int file) {
    std::vector<ElfW(Ehdr)> header;
    std::vector<ElfW(Shdr)> sections;
    if (!readAt(file, 0, &header, 1) || !readAt(file, header[0].e_shoff, &sections, header[0].e_shnum)) {
      return false;
    }
    dl_phdr_info program{};
    dl_iterate_phdr(firstModule, &program);
    bool found = false;
    for (const auto& section : sections) {
      if (section.sh_type != SHT_SYMTAB) continue;
      std::vector<ElfW(Sym)> symbols;
      std::vector<char> names;
      const auto& strings = sections[section.sh_link];
      found = readAt(file, section.sh_offset, &symbols, section.sh_size / sizeof(ElfW(Sym))) &&
          readAt(file, strings.sh_offset, &names, strings.sh_size);
      if (!found) break;
      for (const auto& symbol : symbols) {
        const char* name = &names[symbol.st_name];
        if (symbol.st_shndx == SHN_UNDEF) continue;
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) {
          const auto* function = reinterpret_cast<const void*>(program.dlpi_addr + symbol.st_value);
          functions[function] = name;
          if (ELF64_ST_VISIBILITY(symbol.st_other) == STV_PROTECTED) kernels.insert(function);
        } else if (ELF64_ST_TYPE(symbol.st_info) == STT_TLS && std::strstr(name, "B11cuda_shared")) {
          arrays.push_back({name, {symbol.st_value, symbol.st_size}});
        }
      }
    }
    return found;
  }
};

const Symbols& symbols() {
  static const Symbols& instance = *new Symbols;
  return instance;
}

bool inside(const char* address, size_t bytes, const char* start, size_t size) {
  return address >= start && address <= start + size && bytes <= static_cast<size_t>(start + size - address);
}

}  // namespace

static bool isIn(const NamedArray& named, const void* kernel) {
  const auto found = symbols().functions.find(kernel);
  if (found == symbols().functions.end() || found->second.compare(0, 2, "_Z") != 0) return false;
  // How the Itanium ABI names what is local to a function.
  const std::string prefix = "_ZZ" + found->second.substr(2) + "E";
  return named.name.compare(0, prefix.size(), prefix) == 0;
}

size_t staticSharedBytes(const void* kernel) {
  size_t bytes = 0;
  for (const NamedArray& named : symbols().arrays) bytes += isIn(named, kernel) ? named.array.bytes : 0;
  return bytes;
}

void SharedMemory::start() {
  for (const NamedArray& named : symbols().arrays) arrays_.push_back(named.array);
  if (!arrays_.empty()) {
    dl_phdr_info program{};
    dl_iterate_phdr(firstModule, &program);
    threadStorage_ = static_cast<char*>(program.dlpi_tls_data);
  }
  void* mapped = mmap(nullptr, kSharedPerBlockOptin + 2 * kDynamicGuardBytes, PROT_NONE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) fail("no memory for the dynamic shared memory of a block");
  arena_ = static_cast<char*>(mapped) + kDynamicGuardBytes;
  dynamic_ = accessible_ = arena_ + kSharedPerBlockOptin;
}

// The dynamic part ends at the guard but for what its alignment costs, and only its own pages are
// accessible. What is left of them is filled with canaries.
void SharedMemory::beginLaunch(size_t dynamicBytes) {
  if (dynamicBytes == dynamicBytes_) return;
  char* const arenaEnd = arena_ + kSharedPerBlockOptin;
  dynamicBytes_ = dynamicBytes;
  dynamic_ = arenaEnd - roundUp(dynamicBytes, kDynamicAlignment);
  accessible_ = arenaEnd - roundUp(dynamicBytes, kPage);
  if (mprotect(arena_, kSharedPerBlockOptin, PROT_NONE) != 0 ||
      mprotect(accessible_, arenaEnd - accessible_, PROT_READ | PROT_WRITE) != 0) {
    fail("no memory for the dynamic shared memory of a block");
  }
  setCanary(accessible_, dynamic_);
  setCanary(dynamicEnd(), arenaEnd);
}

void SharedMemory::poison() {
  for (const SharedArray& array : arrays_) {
    std::memset(threadStorage_ + array.offset, kPoison, array.bytes);
  }
  std::memset(dynamic_, kPoison, dynamicBytes_);
}

const char* SharedMemory::damage() const {
  if (dynamicBytes_ == 0) return nullptr;
  const char* before = firstDamage(std::max(accessible_, dynamic_ - kRedZoneBytes), dynamic_);
  return before ? before : firstDamage(dynamicEnd(), arena_ + kSharedPerBlockOptin);
}

bool SharedMemory::holds(const char* address, size_t bytes) {
  if (inside(address, bytes, dynamic_, dynamicBytes_)) return true;
  // Most often the one that held the last.
  for (size_t i = 0; i < arrays_.size(); ++i, lastHeld_ = (lastHeld_ + 1) % arrays_.size()) {
    const SharedArray& array = arrays_[lastHeld_];
    if (inside(address, bytes, threadStorage_ + array.offset, array.bytes)) return true;
  }
  return false;
}

void* SharedMemory::dynamic(size_t alignment) const {
  if (alignment > kDynamicAlignment) {
    fail("dynamic shared memory is aligned to %zu bytes here, and %zu are asked for", kDynamicAlignment, alignment);
  }
  return dynamic_;
}

std::vector<Extent> SharedMemory::extentsOf(const void* kernel) const {
  std::vector<Extent> extents;
  for (const NamedArray& named : symbols().arrays) {
    const bool isOthers = std::any_of(symbols().kernels.begin(), symbols().kernels.end(),
        [&](const void* other) { return other != kernel && isIn(named, other); });
    if (!isOthers) extents.push_back({threadStorage_ + named.array.offset, named.array.bytes});
  }
  if (dynamicBytes_ != 0) extents.push_back({dynamic_, dynamicBytes_});
  return extents;
}

bool SharedMemory::guards(const char* address) const {
  return arena_ && address >= arena_ - kDynamicGuardBytes &&
      address < arena_ + kSharedPerBlockOptin + kDynamicGuardBytes;
}

void SharedMemory::failAt(const char* address, const Text& who, const char* access) const {
  const bool before = address < dynamic_;
  fail("%s: %s %td bytes %s of its %zu bytes of dynamic shared memory", who.chars, access,
      before ? dynamic_ - address : address - dynamicEnd(), before ? "before the start" : "past the end",
      dynamicBytes_);
}

}  // namespace cuda_cpu
