/* A driver and a runtime of CUDA for a machine without a GPU: every call succeeds and does nothing.
   PyTorch asks them which device and stream is current while it traces a graph for a GPU. */
#include "cuda_runtime_api.h"
#include <string.h>

#define NOTHING(name, given) cudaError_t name given { return cudaSuccess; }

NOTHING(cudaSetDevice, (int device))
NOTHING(cudaGetLastError, (void))
NOTHING(cudaPeekAtLastError, (void))
NOTHING(cudaFree, (void *memory))
NOTHING(cudaDeviceSynchronize, (void))
NOTHING(cudaStreamSynchronize, (cudaStream_t stream))
NOTHING(cudaStreamQuery, (cudaStream_t stream))

cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = 13020; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = 13020; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) {
  *least = 0; *most = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  *stream = (cudaStream_t)16;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
/* What NVIDIA says of an H100 SXM. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  memset(found, 0, sizeof *found);
  strcpy(found->name, "NVIDIA H100");
  found->major = 9;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->totalGlobalMem = 80ul << 30;
  found->l2CacheSize = 50 << 20;
  found->sharedMemPerBlock = 48 << 10;
  found->sharedMemPerBlockOptin = 227 << 10;
  found->sharedMemPerMultiprocessor = 228 << 10;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  return cudaSuccess;
}

static int nothing(void) { return 0; }
static int state(int device, unsigned *flags, int *active) { *flags = *active = 0; return 0; }
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  return state(device, flags, active);
}
int cuGetErrorString(int error, const char **text) { *text = "no error"; return 0; }
int cuCtxGetCurrent(void **context) { *context = 0; return 0; }
int cuGetProcAddress(const char *name, void **found, int version, unsigned long flags, void *how) {
  *found = strstr(name, "PrimaryCtxGetState") ? (void *)state : (void *)nothing;
  return 0;
}
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, void *how) {
  return cuGetProcAddress(name, found, version, flags, how);
}
