// SPDX-License-Identifier: MIT
// Records what a CUDA program does, as a timeline: its NVTX ranges, its calls of the CUDA runtime and the kernels on
// the GPU, in the Chrome trace format (ui.perfetto.dev opens it). scripts/timeline.py builds this library and runs a
// program with it: the driver loads it because CUDA_INJECTION64_PATH names it, and NVTX hands its ranges to CUPTI
// because NVTX_INJECTION64_PATH names that. CUDA_DAYS_TRACE is the file to write; nothing is written where CUPTI fails.
//
// Tracing slows every call down. The timeline shows what happens and in which order, and no time is to be read off it.

#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

#if CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
#else
using KernelRecord = CUpti_ActivityKernel9;
#endif

struct Event {
  const char* track;
  std::string name;
  uint64_t start, end;  // ns, one clock for host and GPU
  uint32_t correlation;  // the same for a call and the kernels that it started; 0 for a range
};

std::vector<Event> events;
std::map<uint32_t, Event> openRanges;
bool failed = false;

void require(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = "unknown";
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "trace_cuda: %s failed: %s\n", call, text);
  failed = true;
}

// "void applyGelu<1, false>(float const*, float*, int)" gives applyGelu.
std::string plainName(const char* mangled) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  const std::string signature = demangled != nullptr ? demangled : mangled;
  std::free(demangled);
  const size_t open = signature.find_first_of("<(");
  return signature.substr(signature.find_last_of(" :", open) + 1, open - signature.find_last_of(" :", open) - 1);
}

void take(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* kernel = reinterpret_cast<const KernelRecord*>(record);
    events.push_back({"GPU", plainName(kernel->name), kernel->start, kernel->end, kernel->correlationId});
  } else if (record->kind == CUPTI_ACTIVITY_KIND_RUNTIME) {
    const auto* call = reinterpret_cast<const CUpti_ActivityAPI*>(record);
    const char* name = "unknown";
    cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, call->cbid, &name);
    std::string plain = name;  // cudaLaunchKernel_v7000
    plain = plain.substr(0, plain.find("_v"));
    events.push_back({"CUDA calls", plain, call->start, call->end, call->correlationId});
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MARKER) {
    const auto* marker = reinterpret_cast<const CUpti_ActivityMarker2*>(record);
    if (marker->flags & CUPTI_ACTIVITY_FLAG_MARKER_START) {
      openRanges[marker->id] = {"NVTX ranges", marker->name ? marker->name : "", marker->timestamp, 0, 0};
    } else if (marker->flags & CUPTI_ACTIVITY_FLAG_MARKER_END) {
      const auto opened = openRanges.find(marker->id);
      if (opened == openRanges.end()) return;
      opened->second.end = marker->timestamp;
      events.push_back(opened->second);
      openRanges.erase(opened);
    }
  }
}

void CUPTIAPI giveBuffer(uint8_t** buffer, size_t* bytes, size_t* records) {
  *bytes = size_t(1) << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *records = 0;
}

void CUPTIAPI takeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) take(record);
  size_t dropped = 0;
  require(cuptiActivityGetNumDroppedRecords(context, stream, &dropped), "cuptiActivityGetNumDroppedRecords");
  if (dropped > 0) {
    std::fprintf(stderr, "trace_cuda: %zu records were dropped\n", dropped);
    failed = true;
  }
  std::free(buffer);
}

void writeTrace() {
  require(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  const char* path = std::getenv("CUDA_DAYS_TRACE");
  if (failed || path == nullptr || events.empty()) return;
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.start < b.start; });
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return;
  std::fprintf(file, "{\"traceEvents\":[\n");
  const uint64_t origin = events.front().start;
  for (const Event& event : events) {
    std::string name;  // of kernels, calls and this project's ranges: printable
    for (const char c : event.name)
      if (c >= ' ' && c <= '~' && c != '"' && c != '\\') name += c;
    std::fprintf(file,
        "{\"ph\":\"X\",\"pid\":\"graphs\",\"tid\":\"%s\",\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
        "\"args\":{\"correlation\":%u}}%s\n",
        event.track, name.c_str(), 1e-3 * static_cast<double>(event.start - origin),
        1e-3 * static_cast<double>(event.end - event.start), event.correlation, &event == &events.back() ? "" : ",");
  }
  std::fprintf(file, "]}\n");
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  require(cuptiActivityRegisterCallbacks(giveBuffer, takeBuffer), "cuptiActivityRegisterCallbacks");
  for (const CUpti_ActivityKind kind :
      {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_MARKER})
    require(cuptiActivityEnable(kind), "cuptiActivityEnable");
  std::atexit(writeTrace);
  return 1;
}
