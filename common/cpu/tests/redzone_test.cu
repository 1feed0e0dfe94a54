// SPDX-License-Identifier: MIT
//
// The red zones of common/lesson.cuh, which the CPU build does without: switched on here, every write next to a buffer
// must be reported once, whatever is written, and a write inside must not.
#define CUDA_DAYS_RED_ZONE 4096
#include "lesson.cuh"

namespace {

int passed = 0;
int failed = 0;

void expect(bool ok, const std::string& what) {
  ok ? ++passed : ++failed;
  if (!ok) std::printf("FAILED: %s\n", what.c_str());
}

__global__ void fill(float* out, int first, int last, float value) {
  for (int i = first + int(threadIdx.x); i < last; i += int(blockDim.x)) out[i] = value;
}

__global__ void copy(const float* in, float* out, int count) {
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) out[i] = in[i];
}

std::string damageBy(const char* kernel) {
  finish(kernel, nullptr);
  const std::string damage = redZoneDamage();
  expect(redZoneDamage().empty(), "what was reported is restored, so that the next check is not blamed");
  return damage;
}

}  // namespace

int main() {
  constexpr int kCount = 1003;
  const DeviceBuffer<float> in(kCount), out(kCount);
  expect(uintptr_t(&out[0]) % 256 == 0, "a buffer keeps the alignment of cudaMalloc");
  expect(redZoneDamage().empty(), "nothing is damaged at first");

  const auto fills = [&](int first, int last, float value) {
    fill<<<1, 64>>>(out, first, last, value);
    return damageBy("fill");
  };
  const std::string size = " of a buffer of " + std::to_string(kCount * sizeof(float)) + " bytes";
  expect(fills(0, kCount, 1).empty(), "writes inside are no damage");
  for (const float value : {0.0f, 1.0f, std::nanf("")}) {
    expect(fills(0, kCount + 1, value) == "wrote 0 bytes past the end" + size, "one element past the end");
    expect(fills(kCount + 7, kCount + 8, value) == "wrote 28 bytes past the end" + size, "and further on");
    expect(fills(-1, 0, value) == "wrote 4 bytes before the start" + size, "one element before the start");
  }
  copy<<<1, 64>>>(in, out, kCount + 1);
  expect(damageBy("copy") == "wrote 0 bytes past the end" + size, "a copy that runs into both zones");

  Verdict verdict;
  verdict.checked = kCount;
  fill<<<1, 64>>>(out, kCount, kCount + 1, 1);
  finish("fill", nullptr);
  Report report({7, "tested", ""}, Options());
  Checks checks(report);
  expect(checks.add({7, "v", "fill", "ragged", verdict}) == 1, "a check reports the damage");
  expect(checks.add({7, "v", "fill", "ragged", verdict}) == 0, "once");

  const float* const outside = in + kCount;
  expect(std::isnan(outside[0]) && std::isnan(outside[-kCount - 1]), "what lies outside reads as a NaN");
  expect(std::isnan(*reinterpret_cast<const double*>(outside + 1)), "also as a double");
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0;
}
