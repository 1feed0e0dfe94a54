// What the CUDA runtime sees on this machine. It is asked rather than nvidia-smi, which lists cards that
// CUDA_VISIBLE_DEVICES hides, counts them in another order, and has no compute capability in drivers of branch 470.
//
//   build: nvcc -o gpus gpus.cu
//
// One fact a line, its fields separated by tabs:
//   runtime  13.0                     CUDA version of the toolkit that built this
//   driver   12.4                     the newest CUDA version that the driver knows; 0.0: no driver is visible
//   error    cudaErrorNoDevice  ...   why no card can be listed: the error's name, and its text
//   gpu      0  7.5  0000:3b:00.0  GPU-...  cudaSuccess  Tesla T4
//            index as the runtime counts (and `--device` of the days takes), compute capability, PCI bus id, UUID,
//            whether a context can be made on it (cudaSuccess, or the error's name), name
//
// Exit code: 0 a card is usable, 77 none is.
#include <cuda_runtime.h>

#include <cstdio>

static void printVersion(const char* name, int version) {  // 1000 * major + 10 * minor
  printf("%s\t%d.%d\n", name, version / 1000, version % 1000 / 10);
}

static bool printCard(int index) {
  cudaDeviceProp gpu;
  char pci[32] = "?";
  cudaError_t status = cudaGetDeviceProperties(&gpu, index);
  if (status != cudaSuccess) {
    printf("error\t%s\tcard %d does not answer\n", cudaGetErrorName(status), index);
    return false;
  }
  cudaDeviceGetPCIBusId(pci, sizeof pci, index);
  printf("gpu\t%d\t%d.%d\t%s\tGPU-", index, gpu.major, gpu.minor, pci);
  for (int i = 0; i < 16; ++i)
    printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", gpu.uuid.bytes[i] & 0xFF);
  status = cudaSetDevice(index);
  if (status == cudaSuccess) status = cudaFree(nullptr);
  printf("\t%s\t%s\n", cudaGetErrorName(status), gpu.name);
  cudaDeviceReset();
  return status == cudaSuccess;
}

int main() {
  int driver = 0, count = 0, usable = 0;
  cudaDriverGetVersion(&driver);
  printVersion("runtime", CUDART_VERSION);  // cudaRuntimeGetVersion() of CUDA 11 fails where the driver does
  printVersion("driver", driver);
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) printf("error\t%s\t%s\n", cudaGetErrorName(status), cudaGetErrorString(status));
  for (int i = 0; status == cudaSuccess && i < count; ++i) usable += printCard(i);
  return usable ? 0 : 77;
}
