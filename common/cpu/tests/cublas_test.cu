// SPDX-License-Identifier: MIT
// The backend's cuBLAS: what must work, and which status each bad argument gives. The statuses are
// those that cuBLAS 13.1 gave on an H200 for the same calls. With the name of a fault as argument,
// it commits that one instead; test_faults.py expects it to be named.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/expect.cuh"

namespace {

// One product with small whole numbers, so that every result is exact.
struct Problem {
  cublasOperation_t opA;
  cublasOperation_t opB;
  int m, n, k;
  int lda, ldb, ldc;
  float alpha, beta;
};

std::vector<float> numbers(size_t count, int seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<int>((i * 7 + i / 5 + seed) % 9) - 4);
  }
  return values;
}

size_t extent(cublasOperation_t operation, int rows, int columns, int leading) {
  return static_cast<size_t>(leading) * (operation == CUBLAS_OP_N ? columns : rows);
}

bool isRight(cublasHandle_t handle, const Problem& p, bool throughGemmEx) {
  const std::vector<float> a = numbers(extent(p.opA, p.m, p.k, p.lda), 1);
  const std::vector<float> b = numbers(extent(p.opB, p.k, p.n, p.ldb), 2);
  // With beta = 0, C is not read: it may hold NaNs, as after a poisoning.
  const std::vector<float> c = p.beta == 0 ? std::vector<float>(static_cast<size_t>(p.ldc) * p.n, NAN)
                                           : numbers(static_cast<size_t>(p.ldc) * p.n, 3);
  Buffer<float> onA(a.size());
  Buffer<float> onB(b.size());
  Buffer<float> onC(c.size());
  onA.upload(a);
  onB.upload(b);
  onC.upload(c);
  const cublasStatus_t status = throughGemmEx
      ? cublasGemmEx(handle, p.opA, p.opB, p.m, p.n, p.k, &p.alpha, onA.data(), CUDA_R_32F, p.lda, onB.data(),
            CUDA_R_32F, p.ldb, &p.beta, onC.data(), CUDA_R_32F, p.ldc, CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT)
      : cublasSgemm(handle, p.opA, p.opB, p.m, p.n, p.k, &p.alpha, onA.data(), p.lda, onB.data(), p.ldb, &p.beta,
            onC.data(), p.ldc);
  if (status != CUBLAS_STATUS_SUCCESS) return false;
  const std::vector<float> got = onC.download();
  for (int column = 0; column < p.n; ++column) {
    for (int row = 0; row < p.ldc; ++row) {
      const size_t at = static_cast<size_t>(column) * p.ldc + row;
      if (row >= p.m) {  // between the columns nothing is written
        if (std::memcmp(&got[at], &c[at], sizeof(float)) != 0) return false;
        continue;
      }
      double sum = 0;
      for (int i = 0; i < p.k; ++i) {
        const float inA =
            p.opA == CUBLAS_OP_N ? a[static_cast<size_t>(i) * p.lda + row] : a[static_cast<size_t>(row) * p.lda + i];
        const float inB = p.opB == CUBLAS_OP_N ? b[static_cast<size_t>(column) * p.ldb + i]
                                               : b[static_cast<size_t>(i) * p.ldb + column];
        sum += static_cast<double>(inA) * inB;
      }
      const double want = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * c[at]);
      if (!(got[at] == want)) return false;
    }
  }
  return true;
}

void productsAreRight(cublasHandle_t handle) {
  const cublasOperation_t n = CUBLAS_OP_N;
  const cublasOperation_t t = CUBLAS_OP_T;
  const Problem problems[] = {
      {n, n, 1, 1, 1, 1, 1, 1, 1, 0},
      {n, n, 35, 79, 19, 35, 19, 35, 1, 0},
      {t, n, 35, 79, 19, 21, 30, 40, 1, 0},
      {n, t, 35, 79, 19, 37, 80, 35, 2, 1},
      {t, t, 64, 3, 431, 431, 3, 64, -1, 0.5},
      {CUBLAS_OP_C, n, 17, 17, 17, 17, 17, 17, 1, 0},
      {n, n, 129, 127, 128, 130, 131, 132, 1, 0},
      {n, n, 5, 6, 7, 5, 7, 5, 0, 2},
      {n, n, 256, 256, 256, 256, 256, 256, 1, 0},
      {n, n, 4, 5, 0, 4, 1, 4, 1, 0},
      {n, n, 4, 5, 0, 4, 1, 4, 1, 3},
  };
  for (const Problem& problem : problems) {
    EXPECT(isRight(handle, problem, true));
    EXPECT(isRight(handle, problem, false));
  }
}

void noProductIsNoAccess(cublasHandle_t handle) {
  const float one = 1;
  const float zero = 0;
  Buffer<float> c(16);
  EXPECT(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 0, 4, 4, &one, nullptr, 1, nullptr, 4, &zero, nullptr, 1) ==
      CUBLAS_STATUS_SUCCESS);
  EXPECT(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &zero, nullptr, 4, nullptr, 4, &zero, c.data(), 4) ==
      CUBLAS_STATUS_SUCCESS);
  EXPECT(c.download() == std::vector<float>(16, 0.0f));
}

void badArgumentsAreRefused(cublasHandle_t good) {
  const cublasOperation_t n = CUBLAS_OP_N;
  const float one = 1;
  Buffer<float> a(256);
  Buffer<float> b(256);
  Buffer<float> c(256);
  cublasHandle_t handle = good;
  const float* inA = a.data();
  const float* inB = b.data();
  float* inC = c.data();
  const float* alpha = &one;
  cublasOperation_t opA = n;
  int m = 16, k = 16, lda = 16, ldb = 16, ldc = 16;
  cudaDataType type = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasGemmAlgo_t algorithm = CUBLAS_GEMM_DEFAULT;
  const auto gemm = [&] {
    return cublasGemmEx(handle, opA, n, m, 16, k, alpha, inA, type, lda, inB, CUDA_R_32F, ldb, &one, inC, CUDA_R_32F,
        ldc, compute, algorithm);
  };
  // Changes one argument, calls, and puts it back.
  const auto with = [&](auto& argument, auto value) {
    const auto before = std::exchange(argument, value);
    const cublasStatus_t status = gemm();
    argument = before;
    return status;
  };
  EXPECT(gemm() == CUBLAS_STATUS_SUCCESS);
  EXPECT(with(handle, nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(with(opA, static_cast<cublasOperation_t>(9)) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(m, -1) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(k, -1) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(lda, 15) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(ldb, 15) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(ldc, 15) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(alpha, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(inA, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(inB, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(inC, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(type, static_cast<cudaDataType>(1)) == CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT(with(compute, static_cast<cublasComputeType_t>(64)) == CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT(with(algorithm, static_cast<cublasGemmAlgo_t>(12345)) == CUBLAS_STATUS_INVALID_VALUE);
  m = k = 0;
  EXPECT(with(lda, 0) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(with(ldb, 0) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(cublasSgemm(nullptr, n, n, 1, 1, 1, &one, inA, 1, inB, 1, &one, inC, 1) == CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(cublasSgemm(good, n, n, 1, 1, -1, &one, inA, 1, inB, 1, &one, inC, 1) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(cudaGetLastError() == cudaSuccess);
}

void handlesAndStatuses() {
  cublasHandle_t handle = nullptr;
  EXPECT(cublasCreate(nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  int version = 0;
  EXPECT(cublasGetVersion(handle, &version) == CUBLAS_STATUS_SUCCESS);
  EXPECT(version == CUBLAS_VERSION);
  EXPECT(cublasGetVersion(handle, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH) == CUBLAS_STATUS_SUCCESS);
  EXPECT(cublasSetMathMode(handle, static_cast<cublasMath_t>(77)) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(cublasSetMathMode(nullptr, CUBLAS_DEFAULT_MATH) == CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(cublasSetStream(nullptr, nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
  EXPECT(cublasDestroy(handle) == CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(cublasDestroy(nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(std::strcmp(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED") == 0);
  EXPECT(std::strcmp(
             cublasGetStatusString(CUBLAS_STATUS_EXECUTION_FAILED), "the function failed to launch on the GPU") == 0);
  EXPECT(std::strcmp(cublasGetStatusName(static_cast<cublasStatus_t>(99)), "unrecognized status") == 0);
}

void capturesHoldProducts(cublasHandle_t handle) {
  cudaStream_t stream = nullptr;
  EXPECT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  EXPECT(cublasSetStream(handle, stream) == CUBLAS_STATUS_SUCCESS);
  cudaStream_t set = nullptr;
  EXPECT(cublasGetStream(handle, &set) == CUBLAS_STATUS_SUCCESS && set == stream);
  Buffer<float> a(4);
  Buffer<float> c(4);
  a.upload({1, 2, 3, 4});
  float alpha = 2;
  float beta = 0;
  const auto square = [&] {
    return cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &alpha, a.data(), 2, a.data(), 2, &beta, c.data(), 2);
  };
  EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  EXPECT(square() == CUBLAS_STATUS_SUCCESS);
  alpha = beta = NAN;  // they were copied
  cublasHandle_t none = nullptr;
  cudaGraph_t graph = nullptr;
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  EXPECT(std::isnan(c.download()[0]));

  cudaGraphNode_t node = nullptr;
  size_t count = 1;
  cudaGraphNodeType type{};
  cudaKernelNodeParams parameters{};
  EXPECT(cudaGraphGetNodes(graph, &node, &count) == cudaSuccess && count == 1);
  EXPECT(cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel);
  EXPECT(cudaGraphKernelNodeGetParams(node, &parameters) == cudaErrorInvalidDeviceFunction);
  cudaGraphExec_t executable = nullptr;
  EXPECT(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  EXPECT(cudaGraphLaunch(executable, stream) == cudaSuccess);
  EXPECT(c.download() == (std::vector<float>{14, 20, 30, 44}));
  EXPECT(cudaGraphExecDestroy(executable) == cudaSuccess);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);

  EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  EXPECT(cublasCreate(&none) == CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(square() == CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  EXPECT(cublasSetStream(handle, nullptr) == CUBLAS_STATUS_SUCCESS);
  EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
  cudaGetLastError();
}

// ---- Faults -------------------------------------------------------------------------------------

int commit(const std::string& fault, cublasHandle_t handle) {
  const float one = 1;
  const float zero = 0;
  float host[64] = {};
  Buffer<float> a(64);
  Buffer<float> c(64);
  a.upload(std::vector<float>(64, 1.0f));
  const float* in = fault == "host-pointer" ? host : a.data();
  float* out = c.data() + (fault == "past-end" ? 1 : 0);
  if (cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, a.data(), CUDA_R_32F, 8, in, CUDA_R_32F, 8, &zero,
          out, CUDA_R_32F, 8, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS) {
    return 3;
  }
  if (c.download()[63] == 8.0f) return 0;
  std::printf("cublasGemmEx: got %.9g, want 8\n", c.download()[63]);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  cublasHandle_t handle = nullptr;
  EXPECT(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  if (argc == 2) {
    const int result = commit(argv[1], handle);
    return cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS ? result : 3;
  }
  productsAreRight(handle);
  noProductIsNoAccess(handle);
  badArgumentsAreRefused(handle);
  capturesHoldProducts(handle);
  EXPECT(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
  handlesAndStatuses();
  return report();
}
