/* The declarations of cuda.h that the stand-in and its programs need. */
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef void *CUfunction; /* here: the run time of the kernel in nanoseconds */
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph; /* also an instantiated graph */

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_NOT_READY 600
#define CUDA_ERROR_ILLEGAL_ADDRESS 700
#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

/* The true counts of a process. A span starts in the first launch on an idle stream, and ends in the synchronisation
 * after which the stream is idle. Measured from outside, each span is a little longer. `busy_ns` is the run time of the
 * kernels. */
struct truth {
    uint64_t kernels, graphs, captured, spans, flight_ns, busy_ns, queries;
};
