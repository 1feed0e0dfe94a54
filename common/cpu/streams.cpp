// SPDX-License-Identifier: MIT
// Streams, events, and graphs captured from streams. What a capture refuses, and with which error,
// is what CUDA 13.0 did on an H200.

#include <algorithm>
#include <chrono>

#include "backend.h"

struct CUgraphNode_st {
  cuda_cpu::Operation operation;
};

struct CUstream_st {
  bool withDefault = true;  // ordered against the default stream
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::deque<CUgraphNode_st> captured;
};

struct CUevent_st {
  std::chrono::steady_clock::time_point at;
  bool recorded = false;
  bool captured = false;  // last recorded in a stream that was being captured
};

// What was captured from one stream, in its order.
struct CUgraph_st {
  std::deque<CUgraphNode_st> nodes;  // a deque: handles point into it
};

struct CUgraphExec_st {
  std::deque<CUgraphNode_st> nodes;
  std::vector<cudaGraphNode_t> origins;  // of which nodes of the graph these are copies
};

namespace cuda_cpu {

namespace {

HandleSet& streams() {
  static HandleSet& instance = *new HandleSet("stream(s)");
  return instance;
}
HandleSet& events() {
  static HandleSet& instance = *new HandleSet("event(s)");
  return instance;
}
HandleSet& graphs() {
  static HandleSet& instance = *new HandleSet("graph(s)");
  return instance;
}
HandleSet& executables() {
  static HandleSet& instance = *new HandleSet("executable graph(s)");
  return instance;
}

std::vector<HandleSet*>& handleSets() {
  static auto& instance = *new std::vector<HandleSet*>;
  return instance;
}

// The streams being captured, those among them whose capture is already invalid included.
std::vector<cudaStream_t>& capturing() {
  static auto& instance = *new std::vector<cudaStream_t>;
  return instance;
}

bool isCapturing(cudaStream_t stream) { return stream && stream->capture != cudaStreamCaptureStatusNone; }

// Ends the captures that the condition picks, and tells whether there were any.
template <class Condition>
bool invalidateWhere(Condition condition) {
  bool any = false;
  for (cudaStream_t stream : capturing()) {
    if (!condition(*stream)) continue;
    stream->capture = cudaStreamCaptureStatusInvalidated;
    any = true;
  }
  return any;
}

// The default stream waits for every stream that is not cudaStreamNonBlocking, and a capture cannot
// be waited for.
cudaError_t refuseDefaultStream() {
  return invalidateWhere([](const CUstream_st& s) { return s.withDefault; }) ? cudaErrorStreamCaptureImplicit
                                                                             : cudaSuccess;
}

cudaError_t refuseCapturing(cudaStream_t stream) {
  if (!isCapturing(stream)) return cudaSuccess;
  stream->capture = cudaStreamCaptureStatusInvalidated;
  return cudaErrorStreamCaptureUnsupported;
}

// What any use of a stream comes down to first.
cudaError_t checkStream(cudaStream_t stream) {
  if (deviceError() != cudaSuccess) return deviceError();
  if (!stream) return refuseDefaultStream();
  if (!streams().has(stream)) return cudaErrorInvalidResourceHandle;
  return cudaSuccess;
}

cudaError_t runNodes(const std::deque<CUgraphNode_st>& nodes) {
  for (const CUgraphNode_st& node : nodes) {
    const Operation& operation = node.operation;
    // Again: what it works on may have been freed since.
    cudaError_t error = operation.check ? operation.check() : cudaSuccess;
    if (error == cudaSuccess) error = operation.run();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

void leaveCapture(cudaStream_t stream) {
  stream->capture = cudaStreamCaptureStatusNone;
  stream->captured.clear();
  capturing().erase(std::remove(capturing().begin(), capturing().end(), stream), capturing().end());
}

}  // namespace

HandleSet::HandleSet(const char* kind) : kind_(kind) { handleSets().push_back(this); }

void HandleSet::add(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  handles_.insert(handle);
}

bool HandleSet::remove(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  return handles_.erase(handle) != 0;
}

bool HandleSet::has(const void* handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  return handles_.count(handle) != 0;
}

size_t HandleSet::size() {
  std::lock_guard<std::mutex> lock(mutex_);
  return handles_.size();
}

const std::vector<HandleSet*>& allHandleSets() { return handleSets(); }

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
  cudaError_t error = checkStream(stream);
  if (error != cudaSuccess) return error;
  if (stream && stream->capture == cudaStreamCaptureStatusInvalidated) {
    return cudaErrorStreamCaptureInvalidated;
  }
  error = operation.check ? operation.check() : cudaSuccess;
  if (!isCapturing(stream)) return error == cudaSuccess ? operation.run() : error;
  if (error == cudaSuccess) {
    stream->captured.push_back({std::move(operation)});
  } else if (operation.type == cudaGraphNodeTypeKernel) {
    stream->capture = cudaStreamCaptureStatusInvalidated;
    error = cudaErrorInvalidValue;  // whatever a launch outside a capture would give
  }
  return error;
}

cudaError_t refuseInCapture(bool evenRelaxed) {
  return invalidateWhere([=](const CUstream_st& s) { return evenRelaxed || s.mode != cudaStreamCaptureModeRelaxed; })
      ? cudaErrorStreamCaptureUnsupported
      : cudaSuccess;
}

}  // namespace cuda_cpu

using namespace cuda_cpu;

// ---- Streams ------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const cudaError_t error = check(stream && (flags == cudaStreamDefault || flags == cudaStreamNonBlocking));
  if (error != cudaSuccess) return error;
  *stream = new CUstream_st;
  (*stream)->withDefault = flags == cudaStreamDefault;
  streams().add(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = check(true);
  if (error != cudaSuccess) return error;
  if (!streams().remove(stream)) return note(cudaErrorInvalidResourceHandle);
  leaveCapture(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cudaError_t error = checkStream(stream);
  if (error == cudaSuccess) error = refuseCapturing(stream);
  if (error == cudaSuccess) error = refuseInCapture(false);
  return note(error);
}

// ---- Events -------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const cudaError_t error = check(event && (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) == 0);
  if (error != cudaSuccess) return error;
  *event = new CUevent_st;
  events().add(*event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!events().has(event)) return note(cudaErrorInvalidResourceHandle);
  const cudaError_t error = checkStream(stream);
  if (error != cudaSuccess) return note(error);
  if (stream && stream->capture == cudaStreamCaptureStatusInvalidated) {
    return note(cudaErrorStreamCaptureInvalidated);
  }
  // In a capture it marks a place to branch from, which nobody does here, and makes no node.
  event->captured = isCapturing(stream);
  event->recorded = !event->captured;
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (deviceError() != cudaSuccess) return note(deviceError());
  if (!events().has(event)) return note(cudaErrorInvalidResourceHandle);
  const cudaError_t error = refuseInCapture(event->captured);
  return note(event->captured ? cudaErrorCapturedEvent : error);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  const cudaError_t error = check(milliseconds != nullptr);
  if (error != cudaSuccess) return error;
  if (!events().has(start) || !events().has(stop)) return note(cudaErrorInvalidResourceHandle);
  if (start->captured || stop->captured) return note(cudaErrorCapturedEvent);
  if (!start->recorded || !stop->recorded) return note(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = check(true);
  if (error != cudaSuccess) return error;
  if (!events().remove(event)) return note(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

// ---- Capture ------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (deviceError() != cudaSuccess) return note(deviceError());
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) {
    return note(cudaErrorInvalidValue);
  }
  if (!stream) return note(cudaErrorStreamCaptureUnsupported);
  if (!streams().has(stream)) return note(cudaErrorInvalidResourceHandle);
  if (isCapturing(stream)) return note(cudaErrorIllegalState);
  stream->capture = cudaStreamCaptureStatusActive;
  stream->mode = mode;
  capturing().push_back(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t error = check(graph != nullptr);
  if (error != cudaSuccess) return error;
  *graph = nullptr;
  if (stream && !streams().has(stream)) return note(cudaErrorInvalidResourceHandle);
  if (!isCapturing(stream)) return note(cudaErrorIllegalState);
  const bool good = stream->capture == cudaStreamCaptureStatusActive;
  if (good) {
    *graph = new CUgraph_st{std::move(stream->captured)};
    graphs().add(*graph);
  }
  leaveCapture(stream);
  return note(good ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  cudaError_t error = check(status != nullptr);
  if (error == cudaSuccess) error = note(checkStream(stream));
  if (error == cudaSuccess) {
    *status = stream ? stream->capture : cudaStreamCaptureStatusNone;
  }
  return error;
}

// ---- Graphs -------------------------------------------------------------------------------------

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const cudaError_t error = check(graphs().has(graph) && count);
  if (error != cudaSuccess) return error;
  if (!nodes) {
    *count = graph->nodes.size();
    return cudaSuccess;
  }
  const size_t given = std::min(*count, graph->nodes.size());
  std::fill(nodes + given, nodes + *count, nullptr);
  for (size_t i = 0; i < given; ++i) nodes[i] = &graph->nodes[i];
  *count = given;
  return cudaSuccess;
}

// What was captured from one stream is one chain: its first node alone waits for none.
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const cudaError_t error = check(graphs().has(graph) && count);
  if (error != cudaSuccess) return error;
  const size_t roots = std::min<size_t>(graph->nodes.size(), 1);
  if (nodes) {
    const size_t given = std::min(*count, roots);
    std::fill(nodes + given, nodes + *count, nullptr);
    if (given != 0) nodes[0] = &graph->nodes.front();
    *count = given;
  } else {
    *count = roots;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  const cudaError_t error = check(node && type);
  if (error == cudaSuccess) *type = node->operation.type;
  return error;
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* parameters) {
  const cudaError_t error = check(node && parameters && node->operation.type == cudaGraphNodeTypeKernel);
  if (error != cudaSuccess) return error;
  // A library's kernel is none that the runtime knows.
  if (!node->operation.kernel.func) return note(cudaErrorInvalidDeviceFunction);
  *parameters = node->operation.kernel;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  const cudaError_t error = check(executable && graphs().has(graph) && flags == 0);
  if (error != cudaSuccess) return error;
  *executable = new CUgraphExec_st{graph->nodes, {}};
  for (CUgraphNode_st& node : graph->nodes) (*executable)->origins.push_back(&node);
  executables().add(*executable);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  cudaError_t error = check(executables().has(executable));
  if (error != cudaSuccess) return error;
  error = checkStream(stream);
  if (error == cudaSuccess) error = refuseCapturing(stream);
  return note(error == cudaSuccess ? runNodes(executable->nodes) : error);
}

// What it moves to the device lies there already; a capture and a stream that is gone refuse it all the same.
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  cudaError_t error = check(executables().has(executable));
  if (error != cudaSuccess) return error;
  error = checkStream(stream);
  return note(error == cudaSuccess ? refuseCapturing(stream) : error);
}

cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t executable, cudaGraphNode_t node, const cudaKernelNodeParams* parameters) {
  const cudaError_t error = check(executables().has(executable) && parameters && parameters->kernelParams);
  if (error != cudaSuccess) return error;
  const auto& origins = executable->origins;
  const size_t at = std::find(origins.begin(), origins.end(), node) - origins.begin();
  if (at == origins.size() || !executable->nodes[at].operation.with) return note(cudaErrorInvalidValue);
  Operation& operation = executable->nodes[at].operation;
  if (parameters->func != operation.kernel.func) return note(cudaErrorNotSupported);  // CUDA takes another kernel
  Operation changed = operation.with(*parameters);
  if (changed.check() != cudaSuccess) return note(cudaErrorInvalidValue);
  operation = std::move(changed);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const cudaError_t error = check(executables().remove(executable));
  if (error == cudaSuccess) delete executable;
  return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const cudaError_t error = check(graphs().remove(graph));
  if (error == cudaSuccess) delete graph;
  return error;
}
