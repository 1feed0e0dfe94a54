// SPDX-License-Identifier: MIT
// Stream capture and graphs: what must work, and what a capture refuses. The errors are those that
// CUDA 13.0 gave on an H200 for the same calls.
#include <cuda_runtime.h>

#include <cstring>
#include <functional>
#include <vector>

#include "tests/expect.cuh"

namespace {

__global__ void add(int* values, int what) { values[blockIdx.x * 32 + threadIdx.x] += what; }
__global__ void nothing() {}

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    EXPECT(cudaStreamCreateWithFlags(&stream_, flags) == cudaSuccess);
  }
  ~Stream() { EXPECT(cudaStreamDestroy(stream_) == cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

cudaStreamCaptureStatus statusOf(cudaStream_t stream) {
  auto status = static_cast<cudaStreamCaptureStatus>(-1);
  EXPECT(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
  return status;
}

cudaGraph_t capture(
    cudaStream_t stream, const std::function<void()>& work, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  cudaGraph_t graph = nullptr;
  EXPECT(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
  work();
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  EXPECT(graph != nullptr);
  return graph;
}

// ---- What must work -----------------------------------------------------------------------------

void aCaptureRunsNothingAndAReplayAll() {
  Stream stream;
  Buffer<int> values(64);
  Buffer<int> copied(64);
  values.upload(std::vector<int>(64, 5));
  int what = 1;
  const cudaGraph_t graph = capture(stream, [&] {
    EXPECT(statusOf(stream) == cudaStreamCaptureStatusActive);
    EXPECT(cudaMemsetAsync(values.data(), 0, 32 * sizeof(int), stream) == cudaSuccess);
    add<<<2, 32, 0, stream>>>(values.data(), what);
    EXPECT(cudaGetLastError() == cudaSuccess);
    what = 100;  // arguments were copied
    EXPECT(cudaMemcpyAsync(copied.data(), values.data(), 64 * sizeof(int), cudaMemcpyDefault, stream) == cudaSuccess);
    add<<<1, 32, 0, stream>>>(values.data(), 10);
  });
  EXPECT(statusOf(stream) == cudaStreamCaptureStatusNone);
  EXPECT(values.download() == std::vector<int>(64, 5));

  cudaGraphExec_t executable = nullptr;
  EXPECT(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);  // the executable graph has its own copy
  std::vector<int> wantValues(64, 5);
  std::vector<int> wantCopied(64);
  for (int launch = 0; launch < 3; ++launch) {
    EXPECT(cudaGraphLaunch(executable, stream) == cudaSuccess);
    for (int i = 0; i < 64; ++i) {
      wantCopied[i] = i < 32 ? 1 : wantValues[i] + 1;
      wantValues[i] = i < 32 ? 11 : wantCopied[i];
    }
    EXPECT(copied.download() == wantCopied);
    EXPECT(values.download() == wantValues);
  }
  EXPECT(cudaGraphExecDestroy(executable) == cudaSuccess);
  EXPECT(cudaGraphLaunch(executable, stream) == cudaErrorInvalidValue);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
}

void nodesTellWhatTheyAre() {
  Stream stream;
  Buffer<int> values(12 * 32);
  const cudaGraph_t graph = capture(stream, [&] {
    EXPECT(cudaMemsetAsync(values.data(), 0, 4, stream) == cudaSuccess);
    add<<<dim3(2, 3), dim3(4, 5, 1), 100, stream>>>(values.data(), 1);
    EXPECT(cudaMemcpyAsync(values.data(), values.data() + 8, 4, cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
  });
  size_t count = 0;
  EXPECT(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
  EXPECT(count == 3);
  cudaGraphNode_t nodes[5] = {nullptr, nullptr, nullptr, reinterpret_cast<cudaGraphNode_t>(&count)};
  count = 5;
  EXPECT(cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess);
  EXPECT(count == 3 && nodes[2] != nullptr && nodes[3] == nullptr);
  cudaGraphNode_t roots[2] = {nullptr, reinterpret_cast<cudaGraphNode_t>(&count)};
  EXPECT(cudaGraphGetRootNodes(graph, nullptr, &count) == cudaSuccess && count == 1);
  count = 2;
  EXPECT(cudaGraphGetRootNodes(graph, roots, &count) == cudaSuccess && count == 1);
  EXPECT(roots[0] == nodes[0] && roots[1] == nullptr);
  const cudaGraphNodeType want[] = {cudaGraphNodeTypeMemset, cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy};
  for (int i = 0; i < 3; ++i) {
    cudaGraphNodeType type{};
    EXPECT(cudaGraphNodeGetType(nodes[i], &type) == cudaSuccess);
    EXPECT(type == want[i]);
  }
  cudaKernelNodeParams parameters{};
  EXPECT(cudaGraphKernelNodeGetParams(nodes[1], &parameters) == cudaSuccess);
  EXPECT(parameters.func == reinterpret_cast<void*>(add));
  EXPECT(parameters.gridDim.x == 2 && parameters.gridDim.y == 3 && parameters.gridDim.z == 1);
  EXPECT(parameters.blockDim.x == 4 && parameters.blockDim.y == 5);
  EXPECT(parameters.sharedMemBytes == 100);
  EXPECT(cudaGraphKernelNodeGetParams(nodes[0], &parameters) == cudaErrorInvalidValue);
  count = 2;
  EXPECT(cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess);
  EXPECT(count == 2);
  cudaGraphExec_t executable = nullptr;
  EXPECT(cudaGraphInstantiateWithFlags(&executable, graph, 1 << 20) == cudaErrorInvalidValue);
  EXPECT(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  EXPECT(cudaGraphExecDestroy(executable) == cudaSuccess);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
  EXPECT(cudaGraphGetNodes(graph, nullptr, &count) == cudaErrorInvalidValue);
  EXPECT(cudaGraphInstantiate(&executable, graph, 0) == cudaErrorInvalidValue);
  EXPECT(cudaGraphInstantiate(&executable, nullptr) == cudaErrorInvalidValue);
  EXPECT(cudaGraphNodeGetType(nullptr, nullptr) == cudaErrorInvalidValue);
  EXPECT(cudaGraphExecDestroy(nullptr) == cudaErrorInvalidValue);
  EXPECT(cudaGraphDestroy(nullptr) == cudaErrorInvalidValue);
  cudaGetLastError();
}

// Memory, number and grid of an instantiated node change; the graph that it came from stays as it was.
void anExecutableTakesOtherArguments() {
  Stream stream;
  Buffer<int> first(64);
  Buffer<int> second(64);
  first.upload(std::vector<int>(64, 0));
  second.upload(std::vector<int>(64, 0));
  const cudaGraph_t graph = capture(stream, [&] {
    EXPECT(cudaMemsetAsync(first.data(), 0, 64 * sizeof(int), stream) == cudaSuccess);
    add<<<1, 32, 0, stream>>>(first.data(), 1);
  });
  cudaGraphNode_t nodes[2];
  size_t count = 2;
  EXPECT(cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess && count == 2);
  cudaGraphExec_t executable = nullptr;
  EXPECT(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  EXPECT(cudaGraphUpload(executable, stream) == cudaSuccess);

  int* values = second.data();
  int what = 7;
  void* arguments[] = {&values, &what};
  cudaKernelNodeParams parameters{};
  EXPECT(cudaGraphKernelNodeGetParams(nodes[1], &parameters) == cudaSuccess);
  parameters.gridDim = dim3(2);
  parameters.kernelParams = arguments;
  EXPECT(cudaGraphExecKernelNodeSetParams(executable, nodes[1], &parameters) == cudaSuccess);
  what = 100;  // arguments were copied
  EXPECT(cudaGraphLaunch(executable, stream) == cudaSuccess);
  EXPECT(second.download() == std::vector<int>(64, 7));
  EXPECT(first.download() == std::vector<int>(64, 0));

  EXPECT(cudaGraphExecKernelNodeSetParams(executable, nodes[0], &parameters) == cudaErrorInvalidValue);
  EXPECT(cudaGraphExecKernelNodeSetParams(executable, nullptr, &parameters) == cudaErrorInvalidValue);
  EXPECT(cudaGraphExecKernelNodeSetParams(nullptr, nodes[1], &parameters) == cudaErrorInvalidValue);
  parameters.blockDim = dim3(1025);
  EXPECT(cudaGraphExecKernelNodeSetParams(executable, nodes[1], &parameters) == cudaErrorInvalidValue);
  parameters.blockDim = dim3(32);
  parameters.kernelParams = nullptr;
  EXPECT(cudaGraphExecKernelNodeSetParams(executable, nodes[1], &parameters) == cudaErrorInvalidValue);
  parameters.kernelParams = arguments;
  parameters.func = reinterpret_cast<void*>(nothing);  // CUDA takes it, the CPU backend does not offer it
  EXPECT(cudaGraphExecKernelNodeSetParams(executable, nodes[1], &parameters) == cudaErrorNotSupported);
  EXPECT(cudaGraphLaunch(executable, stream) == cudaSuccess);
  EXPECT(second.download() == std::vector<int>(64, 14));

  EXPECT(cudaGraphExecDestroy(executable) == cudaSuccess);
  EXPECT(cudaGraphUpload(executable, stream) == cudaErrorInvalidValue);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
  cudaGetLastError();
}

void aLaunchMayHaveAttributes() {
  Stream stream;
  Buffer<int> values(64);
  values.upload(std::vector<int>(64, 0));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  EXPECT(cudaLaunchKernelEx(&config, add, values.data(), 5) == cudaSuccess);
  EXPECT(values.download() == std::vector<int>(64, 5));
  config.blockDim = dim3(1025);
  const cudaError_t refused = cudaLaunchKernelEx(&config, add, values.data(), 5);
  EXPECT(refused != cudaSuccess && cudaGetLastError() == refused);
}

void aReplayLooksAtItsMemoryAgain() {
  Stream stream;
  int* gone = nullptr;
  EXPECT(cudaMalloc(&gone, 4) == cudaSuccess);
  const cudaGraph_t graph = capture(stream, [&] { EXPECT(cudaMemsetAsync(gone, 0, 4, stream) == cudaSuccess); });
  cudaGraphExec_t executable = nullptr;
  EXPECT(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  EXPECT(cudaGraphLaunch(executable, stream) == cudaSuccess);
  EXPECT(cudaFree(gone) == cudaSuccess);
  EXPECT(cudaGraphLaunch(executable, stream) == cudaErrorInvalidValue);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  EXPECT(cudaGraphExecDestroy(executable) == cudaSuccess);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
}

void capturesBeginAndEndInPairs() {
  Stream stream;
  cudaGraph_t graph = nullptr;
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
  EXPECT(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
  EXPECT(cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(7)) == cudaErrorInvalidValue);
  EXPECT(cudaStreamIsCapturing(stream, nullptr) == cudaErrorInvalidValue);
  EXPECT(statusOf(nullptr) == cudaStreamCaptureStatusNone);
  graph = capture(stream, [&] {
    EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaErrorIllegalState);
    EXPECT(statusOf(stream) == cudaStreamCaptureStatusActive);
  });
  size_t count = 9;
  EXPECT(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
  EXPECT(count == 0);
  EXPECT(cudaGraphGetRootNodes(graph, nullptr, &count) == cudaSuccess && count == 0);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
  cudaGetLastError();
}

// ---- What a capture refuses ---------------------------------------------------------------------

struct Case {
  const char* name;
  std::function<cudaError_t()> call;
  cudaError_t strict;  // in a capture of mode global or thread-local
  cudaError_t relaxed;  // in a relaxed one
  cudaError_t blocking;  // in a strict one of a stream that the default stream waits for
  bool ends = true;  // whether an error ends the capture
};

constexpr cudaError_t kGood = cudaSuccess;
constexpr cudaError_t kRefused = cudaErrorStreamCaptureUnsupported;
constexpr cudaError_t kImplicit = cudaErrorStreamCaptureImplicit;
constexpr cudaError_t kCaptured = cudaErrorCapturedEvent;
constexpr cudaError_t kInvalid = cudaErrorInvalidValue;

void capturesRefuse() {
  Stream plain;
  Stream blocking(cudaStreamDefault);
  Stream other;
  Buffer<int> values(64);
  int host[64] = {};
  cudaEvent_t event = nullptr;
  cudaEvent_t elsewhere = nullptr;
  EXPECT(cudaEventCreate(&event) == cudaSuccess);
  EXPECT(cudaEventCreate(&elsewhere) == cudaSuccess);
  EXPECT(cudaEventRecord(elsewhere, other) == cudaSuccess);
  const cudaGraph_t graph = capture(plain, [&] { nothing<<<1, 1, 0, plain>>>(); });
  cudaGraphExec_t executable = nullptr;
  EXPECT(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);

  cudaStream_t stream = nullptr;  // the one being captured
  void* memory = nullptr;
  size_t bytes = 0;
  float milliseconds = 0;
  const auto launch = [&](dim3 block, size_t shared, cudaStream_t on) {
    nothing<<<1, block, shared, on>>>();
    return cudaGetLastError();
  };
  const std::vector<Case> cases = {
      {"launch", [&] { return launch(32, 0, stream); }, kGood, kGood, kGood},
      {"bad block", [&] { return launch(1025, 0, stream); }, kInvalid, kInvalid, kInvalid},
      {"bad shared", [&] { return launch(1, 49153, stream); }, kInvalid, kInvalid, kInvalid},
      {"launch elsewhere", [&] { return launch(32, 0, other); }, kGood, kGood, kGood},
      {"launch on default", [&] { return launch(32, 0, nullptr); }, kGood, kGood, kImplicit},
      {"synchronize", [&] { return cudaStreamSynchronize(stream); }, kRefused, kRefused, kRefused},
      {"synchronize other", [&] { return cudaStreamSynchronize(other); }, kRefused, kGood, kRefused},
      {"synchronize default", [&] { return cudaStreamSynchronize(nullptr); }, kRefused, kGood, kImplicit},
      {"synchronize device", [&] { return cudaDeviceSynchronize(); }, kRefused, kRefused, kRefused},
      {"malloc", [&] { return cudaMalloc(&memory, 256); }, kRefused, kGood, kRefused},
      {"free", [&] { return cudaFree(std::exchange(memory, nullptr)); }, kRefused, kGood, kRefused},
      {"malloc host", [&] { return cudaMallocHost(&memory, 256); }, kRefused, kGood, kRefused},
      {"free host", [&] { return cudaFreeHost(std::exchange(memory, nullptr)); }, kRefused, kGood, kRefused},
      {"copy", [&] { return cudaMemcpy(host, values.data(), 4, cudaMemcpyDeviceToHost); }, kGood, kGood, kImplicit},
      {"set", [&] { return cudaMemset(values.data(), 0, 4); }, kGood, kGood, kImplicit},
      {"copy on stream", [&] { return cudaMemcpyAsync(host, values.data(), 4, cudaMemcpyDeviceToHost, stream); }, kGood,
          kGood, kGood},
      {"bad copy", [&] { return cudaMemcpyAsync(host, values.data(), 4, cudaMemcpyHostToDevice, stream); }, kInvalid,
          kInvalid, kInvalid, false},
      {"set on stream", [&] { return cudaMemsetAsync(values.data(), 0, 4, stream); }, kGood, kGood, kGood},
      {"record", [&] { return cudaEventRecord(event, stream); }, kGood, kGood, kGood},
      {"record, synchronize",
          [&] {
            EXPECT(cudaEventRecord(event, stream) == cudaSuccess);
            return cudaEventSynchronize(event);
          },
          kCaptured, kCaptured, kCaptured},
      {"record, elapsed",
          [&] {
            EXPECT(cudaEventRecord(event, stream) == cudaSuccess);
            return cudaEventElapsedTime(&milliseconds, elsewhere, event);
          },
          kCaptured, kCaptured, kCaptured, false},
      {"synchronize event", [&] { return cudaEventSynchronize(elsewhere); }, kRefused, kGood, kRefused},
      {"record other", [&] { return cudaEventRecord(elsewhere, other); }, kGood, kGood, kGood},
      {"memory info", [&] { return cudaMemGetInfo(&bytes, &bytes); }, kGood, kGood, kGood},
      {"upload graph other", [&] { return cudaGraphUpload(executable, other); }, kGood, kGood, kGood},
      {"launch graph", [&] { return cudaGraphLaunch(executable, stream); }, kRefused, kRefused, kRefused},
      {"launch graph other", [&] { return cudaGraphLaunch(executable, other); }, kGood, kGood, kGood},
  };
  struct Capture {
    cudaStream_t stream;
    cudaStreamCaptureMode mode;
    cudaError_t Case::*want;
  };
  const Capture captures[] = {
      {plain, cudaStreamCaptureModeGlobal, &Case::strict},
      {plain, cudaStreamCaptureModeThreadLocal, &Case::strict},
      {plain, cudaStreamCaptureModeRelaxed, &Case::relaxed},
      {blocking, cudaStreamCaptureModeGlobal, &Case::blocking},
  };
  for (const Capture& how : captures) {
    stream = how.stream;
    for (const Case& row : cases) {
      const cudaError_t want = row.*how.want;
      EXPECT(cudaStreamBeginCapture(stream, how.mode) == cudaSuccess);
      const cudaError_t got = row.call();
      const bool ended = want != cudaSuccess && row.ends;
      const cudaStreamCaptureStatus status = statusOf(stream);
      cudaGraph_t captured = nullptr;
      const cudaError_t end = cudaStreamEndCapture(stream, &captured);
      if (!ended && captured) EXPECT(cudaGraphDestroy(captured) == cudaSuccess);
      const bool good = got == want && (captured == nullptr) == ended &&
          status == (ended ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive) &&
          end == (ended ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
      EXPECT(good);
      if (!good) std::printf("  %s, mode %d: %s\n", row.name, how.mode, cudaGetErrorName(got));
      cudaGetLastError();
    }
  }

  // An invalid capture refuses all that follows, until it is ended.
  EXPECT(cudaStreamBeginCapture(plain, cudaStreamCaptureModeGlobal) == cudaSuccess);
  EXPECT(cudaStreamSynchronize(plain) == kRefused);
  EXPECT(cudaGetLastError() == kRefused);
  EXPECT(launch(32, 0, plain) == cudaErrorStreamCaptureInvalidated);
  EXPECT(launch(1025, 0, plain) == cudaErrorStreamCaptureInvalidated);
  EXPECT(cudaMemsetAsync(values.data(), 0, 4, plain) == cudaErrorStreamCaptureInvalidated);
  EXPECT(cudaEventRecord(event, plain) == cudaErrorStreamCaptureInvalidated);
  EXPECT(cudaStreamSynchronize(plain) == kRefused);
  cudaGraph_t none = nullptr;
  EXPECT(cudaStreamEndCapture(plain, &none) == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  EXPECT(launch(32, 0, plain) == cudaSuccess);
  EXPECT(cudaStreamSynchronize(plain) == cudaSuccess);

  EXPECT(cudaGraphExecDestroy(executable) == cudaSuccess);
  EXPECT(cudaEventDestroy(event) == cudaSuccess);
  EXPECT(cudaEventDestroy(elsewhere) == cudaSuccess);
}

}  // namespace

int main() {
  aCaptureRunsNothingAndAReplayAll();
  nodesTellWhatTheyAre();
  anExecutableTakesOtherArguments();
  aLaunchMayHaveAttributes();
  aReplayLooksAtItsMemoryAgain();
  capturesBeginAndEndInPairs();
  capturesRefuse();
  return report();
}
