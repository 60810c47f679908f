// Streams, contexts, graphs, memory that comes and goes, and ends of all kinds. Argument: which.
#include <cuda.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "sample.h"

constexpr int kThreads = 1024;

__global__ void bump(int* a) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  a[i] = a[i] + 1;
}

__global__ void bump_twice(int* a) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  a[i] = a[i] + 2;
}

__global__ void slow_bump(int* a, long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  a[i] = a[i] + 1;
}

static void run_bump(int* a, cudaStream_t stream = nullptr) {
  bump<<<kThreads / 256, 256, 0, stream>>>(a);
  CHECK(cudaGetLastError());
}

static int streams() {
  constexpr int kStreams = 6, kRounds = 20;
  cudaStream_t all[kStreams];
  int* arrays[kStreams];
  for (int s = 0; s < kStreams; ++s) {
    char name[16];
    snprintf(name, sizeof name, "s%d", s);
    CHECK(cudaStreamCreateWithFlags(&all[s], cudaStreamNonBlocking));
    arrays[s] = device_array<int>(name, kThreads * (s + 1));
  }
  CHECK(cudaDeviceSynchronize());
  for (int r = 0; r < kRounds; ++r) {
    for (int s = 0; s < kStreams; ++s) run_bump(arrays[s], all[s]);
  }
  for (int s = 0; s < kStreams; ++s) CHECK(cudaStreamDestroy(all[s]));
  CHECK(cudaDeviceSynchronize());
  double sum = 0;
  for (int s = 0; s < kStreams; ++s) sum += sum_of(arrays[s], kThreads);
  printf("%.0f\n", sum);
  return 0;
}

// One kernel on two streams at once.
static int overlap() {
  cudaStream_t streams[2];
  int* arrays[2];
  for (int s = 0; s < 2; ++s) {
    CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    arrays[s] = device_array<int>(s ? "o1" : "o0", kThreads * (s + 1));
  }
  CHECK(cudaDeviceSynchronize());
  for (int r = 0; r < 3; ++r) {
    for (int s = 0; s < 2; ++s) {
      slow_bump<<<kThreads / 256, 256, 0, streams[s]>>>(arrays[s], 20'000'000);
    }
  }
  CHECK(cudaDeviceSynchronize());
  printf("%.0f\n", sum_of(arrays[0], kThreads) + sum_of(arrays[1], kThreads));
  return 0;
}

// Functions of the driver, by the runtime: nothing has to be linked.
template <class Function>
static Function driver(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
  return (Function)function;
}

static int contexts() {
  const auto create = driver<CUresult (*)(CUcontext*, unsigned, CUdevice)>("cuCtxCreate", 3020);
  const auto destroy = driver<CUresult (*)(CUcontext)>("cuCtxDestroy", 4000);
  CHECK(cudaFree(nullptr));
  int* first = device_array<int>("first", kThreads);
  run_bump(first);
  CUcontext other = nullptr;
  if (create(&other, 0, 0) != CUDA_SUCCESS) return 4;
  int* second = device_array<int>("second", 2 * kThreads);
  int* brief = device_array<int>("brief", 3 * kThreads);
  CHECK(cudaFree(brief));
  run_bump(second);
  run_bump(second);
  CHECK(cudaDeviceSynchronize());
  const double inside = sum_of(second, kThreads);
  destroy(other);
  CHECK(cudaSetDevice(0));
  run_bump(first);
  printf("%.0f %.0f\n", sum_of(first, kThreads), inside);
  return 0;
}

static int graph(bool loaded) {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  int* a = device_array<int>("a", kThreads);
  int* b = device_array<int>("b", 3 * kThreads);
  cudaFuncAttributes attributes;  // asked for, they load the module, which the capture does else
  if (loaded) CHECK(cudaFuncGetAttributes(&attributes, bump));
  cudaGraph_t captured;
  cudaGraphExec_t ready;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  run_bump(a, stream);
  bump_twice<<<kThreads / 256, 256, 0, stream>>>(b);
  run_bump(b, stream);
  CHECK(cudaStreamEndCapture(stream, &captured));
  CHECK(cudaGraphInstantiate(&ready, captured, 0));
  for (int i = 0; i < 5; ++i) CHECK(cudaGraphLaunch(ready, stream));
  run_bump(a, stream);
  CHECK(cudaStreamSynchronize(stream));
  printf("%.0f %.0f\n", sum_of(a, kThreads), sum_of(b, kThreads));
  return 0;
}

// Memory of a pool, taken and given back on the stream while a kernel still runs.
static int reuse() {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  int* keep = device_array<int>("keep", kThreads);
  for (int i = 0; i < 40; ++i) {
    int* a = nullptr;
    const size_t bytes = (kThreads + 64 * i) * sizeof(int);
    CHECK(cudaMallocAsync(&a, bytes, stream));
    char name[16];
    snprintf(name, sizeof name, "r%d", i);
    piece(name, a, bytes);
    slow_bump<<<kThreads / 256, 256, 0, stream>>>(a, 20000);
    CHECK(cudaFreeAsync(a, stream));
  }
  int* late = nullptr;
  CHECK(cudaMalloc(&late, kThreads * sizeof(int)));
  piece("late", late, kThreads * sizeof(int));
  slow_bump<<<kThreads / 256, 256, 0, stream>>>(late, 1000000);
  CHECK(cudaFree(late));  // waits
  run_bump(keep, stream);
  CHECK(cudaStreamSynchronize(stream));
  printf("%.0f\n", sum_of(keep, kThreads));
  return 0;
}

// How long a program takes to submit launches and changes of memory while the GPU is busy: only
// the first kernel is slow, so that a launch that waits for it shows. Written as a piece: us, 0.
static int ahead() {
  constexpr int kLaunches = 50;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  int* keep = device_array<int>("keep", kThreads);
  double took = 0;
  for (const long long cycles : {1000ll, 600'000'000ll}) {  // at first, all is loaded and laid out
    slow_bump<<<kThreads / 256, 256, 0, stream>>>(keep, cycles);
    timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < kLaunches; ++i) {
      int* a = nullptr;
      CHECK(cudaMallocAsync(&a, (kThreads + 512 * i) * sizeof(int), stream));
      run_bump(a, stream);
      CHECK(cudaFreeAsync(a, stream));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    took = 1e6 * (end.tv_sec - begin.tv_sec) + 1e-3 * (end.tv_nsec - begin.tv_nsec);
    CHECK(cudaStreamSynchronize(stream));
  }
  piece("submitted", (void*)(size_t)took, 0);
  printf("%.0f\n", sum_of(keep, kThreads));
  return 0;
}

static int crash() {
  int* a = device_array<int>("a", kThreads);
  run_bump(a);
  CHECK(cudaDeviceSynchronize());
  bump<<<1, 32>>>((int*)0x10);
  CHECK(cudaDeviceSynchronize());  // says what happened, and ends the process with 3
  return 0;
}

static int forks() {
  fflush(stdout);
  const pid_t child = fork();  // before CUDA is used: both may use it
  int* a = device_array<int>(child ? "parent" : "child", child ? kThreads : 2 * kThreads);
  run_bump(a);
  const double sum = sum_of(a, kThreads);
  if (child == 0) _exit(sum == kThreads ? 11 : 12);
  int status = 0;
  waitpid(child, &status, 0);
  const pid_t late = fork();  // after: the child does something else
  if (late == 0) _exit(13);
  int other = 0;
  waitpid(late, &other, 0);
  printf("%d %d %.0f\n", WEXITSTATUS(status), WEXITSTATUS(other), sum);
  return 0;
}

int main(int argc, char** argv) {
  const char* which = argc > 1 ? argv[1] : "";
  if (!strcmp(which, "streams")) return streams();
  if (!strcmp(which, "contexts")) return contexts();
  if (!strcmp(which, "graph")) return graph(false);
  if (!strcmp(which, "graph_loaded")) return graph(true);
  if (!strcmp(which, "overlap")) return overlap();
  if (!strcmp(which, "reuse")) return reuse();
  if (!strcmp(which, "ahead")) return ahead();
  if (!strcmp(which, "crash")) return crash();
  if (!strcmp(which, "fork")) return forks();
  int* a = device_array<int>("a", kThreads);
  run_bump(a);
  if (!strcmp(which, "exit")) exit(5);    // nobody has waited for the kernel
  if (!strcmp(which, "leave")) _exit(6);
  if (!strcmp(which, "abort")) abort();
  return 2;
}
