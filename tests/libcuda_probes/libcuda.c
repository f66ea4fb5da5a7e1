/* A stand-in for libcuda.so.1 without a GPU. The kernels of a stream run one after the other. The handle of a function
 * is the run time of its kernel in nanoseconds. A synchronisation sleeps until its kernels have ended.
 *
 * It has the functions of cuda.h (12 and 13) that launch, synchronise and capture, with their signatures and their
 * _ptsz and _ptds variants. It counts what happened: see `struct truth`. A child process starts with empty counts.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "libcuda.h"

struct graph {
    uint64_t kernels, nanoseconds;
};

struct stream {
    uint64_t ends;        /* when its last kernel ends */
    uint64_t opened;      /* first launch since the last synchronisation; 0 if none */
    uint64_t launches;
    struct graph *capture; /* receives launches during a capture */
    struct stream *next;
};

struct event {
    struct stream *stream;
    uint64_t ends, launches;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct truth truth;
static struct stream *streams;
static struct stream *legacy_stream;
static __thread struct stream *thread_stream;
static uint64_t synchronisations;
static uint64_t faulty_from = UINT64_MAX; /* the first synchronisation that returns an error */
static CUresult faulty_with = CUDA_ERROR_ILLEGAL_ADDRESS;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t when)
{
    struct timespec time = {.tv_sec = (time_t)(when / 1000000000u), .tv_nsec = (long)(when % 1000000000u)};
    while (when > now() && clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &time, NULL) != 0)
        ;
}

static struct stream *made(void)
{
    struct stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_lock(&mutex);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&mutex);
    return stream;
}

static void in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    memset(&truth, 0, sizeof truth);
    synchronisations = 0;
    for (struct stream *each = streams; each; each = each->next)
        each->ends = each->opened = each->launches = 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *faulty = getenv("STANDIN_CUDA_FAULTY_FROM");
    const char *with = getenv("STANDIN_CUDA_FAULTY_WITH");
    if (faulty)
        faulty_from = strtoull(faulty, NULL, 10);
    if (with)
        faulty_with = atoi(with);
    legacy_stream = made();
    pthread_atfork(NULL, NULL, in_child);
}

static struct stream *per_thread(CUstream stream);

/* Handles 1 and 2 name the two default streams, however the program was compiled. */
static struct stream *legacy(CUstream stream)
{
    if (stream == CU_STREAM_PER_THREAD)
        return per_thread(NULL);
    return stream == NULL || stream == CU_STREAM_LEGACY ? legacy_stream : stream;
}

static struct stream *per_thread(CUstream stream)
{
    if (stream != NULL && stream != CU_STREAM_PER_THREAD)
        return legacy(stream);
    if (thread_stream == NULL)
        thread_stream = made();
    return thread_stream;
}

/* ---- launches ---- */

static void enqueue(struct stream *stream, uint64_t nanoseconds, uint64_t entered)
{
    uint64_t begins = stream->ends > entered ? stream->ends : entered;
    stream->ends = begins + nanoseconds;
    stream->launches++;
    if (!stream->opened)
        stream->opened = entered;
    truth.busy_ns += nanoseconds;
}

static CUresult kernel(struct stream *stream, CUfunction function, uint64_t entered)
{
    pthread_mutex_lock(&mutex);
    if (stream->capture) {
        stream->capture->kernels++;
        stream->capture->nanoseconds += (uintptr_t)function;
        truth.captured++;
    } else {
        enqueue(stream, (uintptr_t)function, entered);
        truth.kernels++;
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult graph(struct stream *stream, CUgraph launched, uint64_t entered)
{
    pthread_mutex_lock(&mutex);
    enqueue(stream, launched->nanoseconds, entered);
    truth.graphs++;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* A copy takes a nanosecond for each byte of its argument. */
static CUresult copying(struct stream *stream, uint64_t bytes, uint64_t entered)
{
    pthread_mutex_lock(&mutex);
    if (stream->capture)
        stream->capture->nanoseconds += bytes;
    else
        enqueue(stream, bytes, entered);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static int mapped(const void *address)
{
    unsigned char resident[2];
    uintptr_t page = (uintptr_t)address & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
    return mincore((void *)page, (uintptr_t)address - page + sizeof(CUlaunchConfig), resident) == 0;
}

/* The real function crashes on a bad pointer. This one returns, so that only a probe could crash the program. */
static CUresult extended(struct stream *(*on)(CUstream), const CUlaunchConfig *config, CUfunction f, uint64_t entered)
{
    return mapped(config) ? kernel(on(config->hStream), f, entered) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- synchronisations ---- */

static CUresult synchronised(void)
{
    return __atomic_add_fetch(&synchronisations, 1, __ATOMIC_RELAXED) >= faulty_from ? faulty_with : CUDA_SUCCESS;
}

static void closed(struct stream *stream)
{
    if (!stream->opened)
        return;
    truth.spans++;
    truth.flight_ns += now() - stream->opened;
    stream->opened = 0;
}

static CUresult wait_for(struct stream *stream)
{
    uint64_t launches = stream->launches;
    sleep_until(stream->ends);
    pthread_mutex_lock(&mutex);
    if (stream->launches == launches)
        closed(stream);
    pthread_mutex_unlock(&mutex);
    return synchronised();
}

static CUresult wait_for_all(void)
{
    uint64_t ends = 0;
    pthread_mutex_lock(&mutex);
    for (struct stream *each = streams; each; each = each->next)
        ends = each->ends > ends ? each->ends : ends;
    pthread_mutex_unlock(&mutex);
    sleep_until(ends);
    pthread_mutex_lock(&mutex);
    for (struct stream *each = streams; each; each = each->next)
        if (each->ends <= ends)
            closed(each);
    pthread_mutex_unlock(&mutex);
    return synchronised();
}

/* ---- queries: a successful one ends what a synchronisation would ---- */

/* A call does not return, if a test wants that. */
static void interrupted(void)
{
    const char *raised = getenv("STANDIN_CUDA_RAISES");
    if (getenv("STANDIN_CUDA_BLOCKS"))
        pause();
    if (raised)
        raise(atoi(raised));
}

static CUresult asked(struct stream *stream, uint64_t ends, uint64_t launches)
{
    int done = now() >= ends;
    interrupted();
    pthread_mutex_lock(&mutex);
    truth.queries++;
    if (done && stream && stream->launches == launches)
        closed(stream);
    pthread_mutex_unlock(&mutex);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult asked_for(struct stream *stream) { return asked(stream, stream->ends, stream->launches); }

/* ---- functions with probes; in the variants, stream 0 is the thread's own ---- */

#define TWINS(name, suffix, parameters, done)                                      \
    CUresult name parameters                                                       \
    {                                                                              \
        struct stream *(*on)(CUstream) = legacy;                                   \
        uint64_t entered = now();                                                  \
        (void)on, (void)entered;                                                   \
        return done;                                                               \
    }                                                                              \
    CUresult name##suffix parameters                                               \
    {                                                                              \
        struct stream *(*on)(CUstream) = per_thread;                               \
        uint64_t entered = now();                                                  \
        (void)on, (void)entered;                                                   \
        return done;                                                               \
    }
#define UNUSED __attribute__((unused))
#define SIZES                                                                                              \
    UNUSED unsigned gx, UNUSED unsigned gy, UNUSED unsigned gz, UNUSED unsigned bx, UNUSED unsigned by,    \
        UNUSED unsigned bz, UNUSED unsigned shared

TWINS(cuLaunchKernel, _ptsz, (CUfunction f, SIZES, CUstream s, UNUSED void **params, UNUSED void **extra),
      kernel(on(s), f, entered))
TWINS(cuLaunchCooperativeKernel, _ptsz, (CUfunction f, SIZES, CUstream s, UNUSED void **params),
      kernel(on(s), f, entered))
TWINS(cuLaunchKernelEx, _ptsz,
      (const CUlaunchConfig *config, CUfunction f, UNUSED void **params, UNUSED void **extra),
      extended(on, config, f, entered))
TWINS(cuGraphLaunch, _ptsz, (CUgraph launched, CUstream s), graph(on(s), launched, entered))

CUresult cuInit(UNUSED unsigned flags) { return CUDA_SUCCESS; }
CUresult cuLaunch(CUfunction f) { return kernel(legacy_stream, f, now()); }
CUresult cuLaunchGrid(CUfunction f, UNUSED int width, UNUSED int height) { return kernel(legacy_stream, f, now()); }
CUresult cuLaunchGridAsync(CUfunction f, UNUSED int width, UNUSED int height, CUstream s)
{
    return kernel(legacy(s), f, now());
}
/* The real function has a list of launches. Here it has the function of one. */
CUresult cuLaunchCooperativeKernelMultiDevice(void *f, UNUSED unsigned devices, UNUSED unsigned flags)
{
    return kernel(legacy_stream, f, now());
}

static CUresult capture(struct stream *stream, struct graph *into)
{
    stream->capture = into;
    return CUDA_SUCCESS;
}

static CUresult captured(struct stream *stream, CUgraph *into)
{
    interrupted();
    *into = stream->capture;
    return capture(stream, NULL);
}

TWINS(cuStreamBeginCapture, _ptsz, (CUstream s), capture(on(s), calloc(1, sizeof(struct graph))))
TWINS(cuStreamBeginCapture_v2, _ptsz, (CUstream s, UNUSED int mode), capture(on(s), calloc(1, sizeof(struct graph))))
TWINS(cuStreamBeginCaptureToGraph, _ptsz,
      (CUstream s, CUgraph into, UNUSED const void *after, UNUSED const void *edges, UNUSED size_t count,
       UNUSED int mode),
      capture(on(s), into))
TWINS(cuStreamEndCapture, _ptsz, (CUstream s, CUgraph *into), captured(on(s), into))

static CUresult recorded(struct event *event, struct stream *stream)
{
    pthread_mutex_lock(&mutex);
    *event = (struct event){.stream = stream, .ends = stream->ends, .launches = stream->launches};
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

TWINS(cuEventRecord, _ptsz, (CUevent event, CUstream s), recorded(event, on(s)))
TWINS(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream s, UNUSED unsigned flags), recorded(event, on(s)))

CUresult cuEventSynchronize(CUevent event)
{
    sleep_until(event->ends);
    pthread_mutex_lock(&mutex);
    if (event->stream && event->stream->launches == event->launches)
        closed(event->stream);
    pthread_mutex_unlock(&mutex);
    return synchronised();
}

CUresult cuEventQuery(CUevent event) { return asked(event->stream, event->ends, event->launches); }
TWINS(cuStreamQuery, _ptsz, (CUstream s), asked_for(on(s)))

CUresult cuCtxSynchronize(void) { return wait_for_all(); }
CUresult cuCtxSynchronize_v2(UNUSED void *context) { return wait_for_all(); }
TWINS(cuStreamSynchronize, _ptsz, (CUstream s), wait_for(on(s)))
CUresult cuStreamDestroy_v2(CUstream s) { return wait_for(legacy(s)); }
CUresult cuCtxDestroy_v2(UNUSED void *context) { return wait_for_all(); }
CUresult cuDevicePrimaryCtxReset_v2(UNUSED int device) { return wait_for_all(); }
#define RANGE UNUSED void *to, UNUSED void *from, size_t bytes
#define CONTEXTS UNUSED void *to, UNUSED void *in, UNUSED void *from, UNUSED void *of, size_t bytes
#define FILL UNUSED void *to, UNUSED unsigned value, size_t bytes
#define FILL_2D UNUSED void *to, UNUSED size_t pitch, UNUSED unsigned value, size_t bytes, UNUSED size_t rows
#define COPIES(name, version, ...)                                                             \
    TWINS(name##Async##version, _ptsz, (__VA_ARGS__, CUstream s), copying(on(s), bytes, entered)) \
    TWINS(name##_v2, _ptds, (__VA_ARGS__), copying(on(NULL), bytes, entered))
COPIES(cuMemcpyDtoD, _v2, RANGE)
COPIES(cuMemsetD8, , FILL)
COPIES(cuMemsetD16, , FILL)
COPIES(cuMemsetD32, , FILL)
COPIES(cuMemsetD2D8, , FILL_2D)
TWINS(cuMemcpyAsync, _ptsz, (RANGE, CUstream s), copying(on(s), bytes, entered))
TWINS(cuMemcpyPeerAsync, _ptsz, (CONTEXTS, CUstream s), copying(on(s), bytes, entered))
TWINS(cuMemcpyPeer, _ptds, (CONTEXTS), copying(on(NULL), bytes, entered))
TWINS(cuMemcpy2DAsync_v2, _ptsz, (UNUSED void *box, CUstream s), copying(on(s), 1, entered))
TWINS(cuMemcpy2D_v2, _ptds, (UNUSED void *box), copying(on(NULL), 1, entered))
TWINS(cuMemcpy2DUnaligned_v2, _ptds, (UNUSED void *box), copying(on(NULL), 1, entered))
TWINS(cuMemcpy3DAsync_v2, _ptsz, (UNUSED void *box, CUstream s), copying(on(s), 1, entered))
TWINS(cuMemcpy3D_v2, _ptds, (UNUSED void *box), copying(on(NULL), 1, entered))
TWINS(cuMemcpyHtoD_v2, _ptds, (UNUSED void *to, UNUSED void *from, UNUSED size_t bytes), CUDA_SUCCESS)
TWINS(cuMemcpyDtoH_v2, _ptds, (UNUSED void *to, UNUSED uint64_t from, UNUSED size_t bytes), wait_for(on(NULL)))
TWINS(cuMemcpy, _ptds, (RANGE), (copying(on(NULL), bytes, entered), wait_for(on(NULL))))

/* A copy to pageable memory waits for the stream. It does not return the stream's errors. */
static CUresult copied(struct stream *stream)
{
    sleep_until(stream->ends);
    return CUDA_SUCCESS;
}

TWINS(cuMemcpyDtoHAsync_v2, _ptsz, (UNUSED void *to, UNUSED uint64_t from, UNUSED size_t bytes, CUstream s),
      copied(on(s)))

TWINS(cuMemcpyHtoDAsync_v2, _ptsz, (UNUSED uint64_t to, UNUSED void *from, UNUSED size_t bytes, UNUSED CUstream s),
      CUDA_SUCCESS)

/* Contexts: the handle of a context is its device plus 0x1000. Streams do not depend on them here. */
static CUresult made_context(void **context, int device)
{
    *context = (void *)(uintptr_t)(0x1000 + device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(void **context, int device) { return made_context(context, device); }
CUresult cuCtxCreate_v2(void **context, UNUSED unsigned flags, int device) { return made_context(context, device); }
CUresult cuCtxCreate_v3(void **context, UNUSED void *limits, UNUSED int number, UNUSED unsigned flags, int device)
{
    return made_context(context, device);
}
CUresult cuCtxCreate_v4(void **context, UNUSED void *limits, UNUSED unsigned flags, int device)
{
    return made_context(context, device);
}
CUresult cuCtxSetCurrent(UNUSED void *context) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(UNUSED void *context) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(UNUSED void **context) { return CUDA_SUCCESS; }

/* ---- handles: a name ends with the handle of the function ---- */

static CUresult named(CUfunction *function, const char *name)
{
    interrupted();
    const char *handle = strrchr(name, '_');
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    *function = (void *)(uintptr_t)strtoull(handle + 1, NULL, 10);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *f, UNUSED void *module, const char *name) { return named(f, name); }
CUresult cuLibraryGetKernel(CUfunction *f, UNUSED void *library, const char *name) { return named(f, name); }
CUresult cuKernelGetFunction(CUfunction *f, void *kernel)
{
    interrupted();
    *f = (char *)kernel + 1;
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(UNUSED void *module) { return CUDA_SUCCESS; }
CUresult cuLibraryUnload(UNUSED void *library) { return CUDA_SUCCESS; }
CUresult cuGraphDestroy(UNUSED CUgraph graph) { return CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(UNUSED CUgraph graph) { return CUDA_SUCCESS; }

static CUresult cloned(CUgraph *into, CUgraph from)
{
    interrupted();
    *into = malloc(sizeof(struct graph));
    **into = *from;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *into, UNUSED unsigned flags)
{
    *into = calloc(1, sizeof(struct graph));
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraph *into, CUgraph from) { return cloned(into, from); }
CUresult cuGraphInstantiate_v2(CUgraph *into, CUgraph from) { return cloned(into, from); }
CUresult cuGraphInstantiateWithFlags(CUgraph *into, CUgraph from, UNUSED uint64_t flags) { return cloned(into, from); }
CUresult cuGraphInstantiateWithParams(CUgraph *into, CUgraph from, UNUSED void *p) { return cloned(into, from); }
CUresult cuGraphInstantiateWithParams_ptsz(CUgraph *into, CUgraph from, UNUSED void *p) { return cloned(into, from); }
CUresult cuGraphClone(CUgraph *into, CUgraph from) { return cloned(into, from); }
#define NODE UNUSED void *node, UNUSED CUgraph graph, UNUSED void *after, UNUSED size_t count
CUresult cuGraphAddKernelNode(NODE, UNUSED void *description) { return CUDA_SUCCESS; }
CUresult cuGraphAddKernelNode_v2(NODE, UNUSED void *description) { return CUDA_SUCCESS; }

/* A conditional node receives its bodies. */
struct parameters {
    int type, reserved[3];
    uint64_t handle;
    unsigned kind, bodies;
    CUgraph *graphs;
};

static CUresult added(struct parameters *parameters)
{
    interrupted();
    if (parameters->type != 13)
        return CUDA_SUCCESS;
    parameters->graphs = calloc(parameters->bodies, sizeof(CUgraph));
    for (unsigned i = 0; i < parameters->bodies; i++)
        parameters->graphs[i] = calloc(1, sizeof(struct graph));
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode(NODE, struct parameters *parameters) { return added(parameters); }
CUresult cuGraphAddNode_v2(UNUSED void *node, UNUSED CUgraph graph, UNUSED void *after, UNUSED void *edges,
                           UNUSED size_t count, struct parameters *parameters)
{
    return added(parameters);
}
CUresult cuGraphExecKernelNodeSetParams(UNUSED CUgraph g, UNUSED void *n, UNUSED void *d) { return CUDA_SUCCESS; }
CUresult cuGraphExecKernelNodeSetParams_v2(UNUSED CUgraph g, UNUSED void *n, UNUSED void *d) { return CUDA_SUCCESS; }
CUresult cuGraphKernelNodeSetParams(UNUSED void *n, UNUSED void *d) { return CUDA_SUCCESS; }
CUresult cuGraphKernelNodeSetParams_v2(UNUSED void *n, UNUSED void *d) { return CUDA_SUCCESS; }
CUresult cuGraphExecUpdate(UNUSED CUgraph g, UNUSED CUgraph from, UNUSED void *result) { return CUDA_SUCCESS; }
CUresult cuGraphExecUpdate_v2(UNUSED CUgraph g, UNUSED CUgraph from, UNUSED void *result) { return CUDA_SUCCESS; }
CUresult cuGraphAddChildGraphNode(NODE, UNUSED CUgraph child) { return CUDA_SUCCESS; }

/* ---- functions without probes ---- */

CUresult cuStreamCreate(CUstream *stream, UNUSED unsigned flags)
{
    *stream = made();
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, UNUSED unsigned flags)
{
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}

CUresult standin_truth(struct truth *copy)
{
    pthread_mutex_lock(&mutex);
    *copy = truth;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
