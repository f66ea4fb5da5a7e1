/* What cuda.h says of the stand-in's functions, as far as its programs need it. */
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef void *CUfunction; /* here: for how many nanoseconds the kernel runs */
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph; /* and what is instantiated of it */

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_ILLEGAL_ADDRESS 700
#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

/* What is true of a process. A span is from within the first launch on an idle stream until within the synchronisation
 * after which it was idle again: whoever looks from outside sees each a little longer. `busy_ns` is how long its kernels
 * ran. */
struct truth {
    uint64_t kernels, graphs, captured, spans, flight_ns, busy_ns;
};
