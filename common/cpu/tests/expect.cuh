// SPDX-License-Identifier: MIT
// What the backend's test programs share: checks that are counted, and device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

inline int passed = 0;
inline int failed = 0;

inline void expect(bool good, const char* what, const char* file, int line) {
  ++(good ? passed : failed);
  if (!good) std::printf("%s:%d: failed: %s\n", file, line, what);
}
#define EXPECT(condition) expect((condition), #condition, __FILE__, __LINE__)

// The last line of a test program, and its exit code.
inline int report() {
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) { EXPECT(cudaMalloc(&data_, count * sizeof(T)) == cudaSuccess); }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }
  void upload(const std::vector<T>& values) {
    EXPECT(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    EXPECT(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};
