// SPDX-License-Identifier: MIT
// cuBLAS's matrix products on OpenBLAS. A library of its own, so that only the days that use cuBLAS
// need OpenBLAS: link with cpu_backend and openblas. Which argument gives which status is what
// cuBLAS 13.1 did on an H200.

#include "cublas_v2.h"

#include <cblas.h>

#include <algorithm>

#include "backend.h"
#include "trace.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t mathMode = CUBLAS_DEFAULT_MATH;
};

using namespace cuda_cpu;

namespace {

HandleSet& contexts() {
  static HandleSet& instance = *new HandleSet("cuBLAS handle(s)");
  return instance;
}

struct StatusText {
  cublasStatus_t status;
  const char* name;
  const char* text;
};

constexpr StatusText kStatusTexts[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE",
        "an unsupported value or parameter was passed to the function"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH",
        "the function requires an architectural feature absent from the device"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR", "an access to GPU memory space failed"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the requested functionality is not supported"},
    {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR", "the license check failed"},
};

// A matrix in memory, column-major; one that op() transposes has its rows and columns swapped.
struct Matrix {
  const char* name;
  const float* data;
  int rows;
  int columns;
  int leading;

  size_t bytes() const { return (static_cast<size_t>(columns - 1) * leading + rows) * sizeof(float); }
};

struct Product {
  const char* call;
  cublasOperation_t opA;
  cublasOperation_t opB;
  int m;
  int n;
  int k;
  float alpha;
  Matrix a;
  Matrix b;
  float beta;
  Matrix c;
};

CBLAS_TRANSPOSE transposed(cublasOperation_t operation) { return operation == CUBLAS_OP_N ? CblasNoTrans : CblasTrans; }

bool isOperation(cublasOperation_t operation) {
  return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C;
}

// On the hardware these would be illegal addresses, or a neighbour's memory.
void requireOnDevice(const char* call, const Matrix& matrix) {
  if (placeOf(matrix.data, matrix.bytes()) == Place::kDevice) return;
  fail(
      "%s: %s, %d x %d with leading dimension %d, takes %zu bytes that do not lie in one "
      "allocation of device memory",
      call, matrix.name, matrix.rows, matrix.columns, matrix.leading, matrix.bytes());
}

void multiply(const Product& p) {
  if (p.m == 0 || p.n == 0) return;
  const bool reads = p.alpha != 0 && p.k != 0;
  if (reads) {
    requireOnDevice(p.call, p.a);
    requireOnDevice(p.call, p.b);
  }
  requireOnDevice(p.call, p.c);
  cblas_sgemm(CblasColMajor, transposed(p.opA), transposed(p.opB), p.m, p.n, reads ? p.k : 0, p.alpha, p.a.data,
      p.a.leading, p.b.data, p.b.leading, p.beta, const_cast<float*>(p.c.data), p.c.leading);
  traceWritten(p.c.data, p.c.bytes());
}

// OpenBLAS picks its kernels by the host's processor, and old versions have picked wrong ones.
void checkOpenBlas() {
  constexpr int kSize = 67;
  constexpr cublasOperation_t kOperations[] = {CUBLAS_OP_N, CUBLAS_OP_T};
  std::vector<float> a(kSize * kSize);
  std::vector<float> b(kSize * kSize);
  for (int i = 0; i < kSize * kSize; ++i) {
    a[i] = static_cast<float>((i + i / kSize) % 7 - 3);
    b[i] = static_cast<float>((3 * i + i / kSize) % 5 - 2);
  }
  for (cublasOperation_t opA : kOperations) {
    for (cublasOperation_t opB : kOperations) {
      std::vector<float> c(kSize * kSize, NAN);
      cblas_sgemm(CblasColMajor, transposed(opA), transposed(opB), kSize, kSize, kSize, 1.0f, a.data(), kSize, b.data(),
          kSize, 0.0f, c.data(), kSize);
      for (int i = 0; i < kSize * kSize; ++i) {
        const int row = i % kSize;
        const int column = i / kSize;
        float want = 0;
        for (int p = 0; p < kSize; ++p) {
          want += a[opA == CUBLAS_OP_N ? p * kSize + row : row * kSize + p] *
              b[opB == CUBLAS_OP_N ? column * kSize + p : p * kSize + column];
        }
        if (c[i] == want) continue;
        fail(
            "OpenBLAS's kernels for \"%s\" compute wrong products on this processor; set "
            "OPENBLAS_CORETYPE to another, such as Haswell or Prescott",
            openblas_get_corename());
      }
    }
  }
}

// cuBLAS, too, says which argument it was.
cublasStatus_t refuse(const char* call, const char* parameter) {
  say("%s: parameter %s had an illegal value", call, parameter);
  return CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = nullptr;
  // It allocates, which a capture refuses unless it is relaxed.
  if (deviceError() != cudaSuccess || refuseInCapture(false) != cudaSuccess) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  if (environment().device.kernelImage != cudaSuccess) return CUBLAS_STATUS_ARCH_MISMATCH;
  static const bool checked = (checkOpenBlas(), true);
  static_cast<void>(checked);
  *handle = new cublasContext;
  contexts().add(*handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (!contexts().remove(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) {
  if (!version) return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!stream) return CUBLAS_STATUS_INVALID_VALUE;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (mode != CUBLAS_DEFAULT_MATH && mode != CUBLAS_PEDANTIC_MATH) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  handle->mathMode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!mode) return CUBLAS_STATUS_INVALID_VALUE;
  *mode = handle->mathMode;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  for (const StatusText& known : kStatusTexts) {
    if (known.status == status) return known.name;
  }
  return "unrecognized status";
}

const char* cublasGetStatusString(cublasStatus_t status) {
  for (const StatusText& known : kStatusTexts) {
    if (known.status == status) return known.text;
  }
  return "unrecognized status";
}

namespace {

cublasStatus_t gemm(const char* call, cublasHandle_t handle, cublasOperation_t opA, cublasOperation_t opB, int m, int n,
    int k, const void* alpha, const void* a, int lda, const void* b, int ldb, const void* beta, void* c, int ldc) {
  if (!isOperation(opA)) return refuse(call, "transa");
  if (!isOperation(opB)) return refuse(call, "transb");
  if (m < 0) return refuse(call, "m");
  if (n < 0) return refuse(call, "n");
  if (k < 0) return refuse(call, "k");
  if (!alpha) return refuse(call, "alpha");
  if (!beta) return refuse(call, "beta");
  const bool plainA = opA == CUBLAS_OP_N;
  const bool plainB = opB == CUBLAS_OP_N;
  const Product product{call, opA, opB, m, n, k, *static_cast<const float*>(alpha),
      {"A", static_cast<const float*>(a), plainA ? m : k, plainA ? k : m, lda},
      {"B", static_cast<const float*>(b), plainB ? k : n, plainB ? n : k, ldb}, *static_cast<const float*>(beta),
      {"C", static_cast<const float*>(c), m, n, ldc}};
  if (lda < std::max(1, product.a.rows)) return refuse(call, "lda");
  if (ldb < std::max(1, product.b.rows)) return refuse(call, "ldb");
  if (ldc < std::max(1, m)) return refuse(call, "ldc");
  const bool writes = m != 0 && n != 0;
  const bool reads = writes && k != 0 && product.alpha != 0;
  if (reads && !a) return refuse(call, "A");
  if (reads && !b) return refuse(call, "B");
  if (writes && !c) return refuse(call, "C");
  const Text shape = textOf("m %d n %d k %d op %c%c", m, n, k, "NTC"[opA], "NTC"[opB]);
  return enqueueLibraryCall(call, shape, handle->stream, [=] { multiply(product); }) == cudaSuccess
      ? CUBLAS_STATUS_SUCCESS
      : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
    int k, const void* alpha, const void* A, cudaDataType Atype, int lda, const void* B, cudaDataType Btype, int ldb,
    const void* beta, void* C, cudaDataType Ctype, int ldc, cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (Atype != CUDA_R_32F || Btype != CUDA_R_32F || Ctype != CUDA_R_32F ||
      (computeType != CUBLAS_COMPUTE_32F && computeType != CUBLAS_COMPUTE_32F_PEDANTIC)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (algo != CUBLAS_GEMM_DEFAULT) return refuse("cublasGemmEx", "algo");
  return gemm("cublasGemmEx", handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
    int k, const float* alpha, const float* A, int lda, const float* B, int ldb, const float* beta, float* C, int ldc) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  return gemm("cublasSgemm", handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}
