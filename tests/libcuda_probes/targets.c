/* A program that uses CUDA in one of several modes: `target MODE COUNT WORK...`. WORK is
 * `LAUNCH SYNCHRONISE launches launches-each-synchronisation blocks nanoseconds`. The first two are function names.
 *
 * At a gate the program prints the name of the gate and waits for a line. At its end it prints its counts as JSON. It
 * exits with TARGET_STATUS, or with 70 if CUDA returned an error. `outer_ns` is the time from before each first launch
 * until after the synchronisation. `around_ns` is the time of the synchronisations alone. Between two questions it sleeps
 * for TARGET_PAUSE microseconds. A copy is of `blocks` bytes, values or columns, and of two rows if it has rows; it is from
 * the memory type TARGET_SOURCE to TARGET_DESTINATION. After each launch, captured or not, it copies TARGET_COPIES bytes, if that is set.
 * TARGET_CAPTURES captures of nothing come first. With TARGET_HANDLES, each thread first gets handles in all ways.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "targets.h"

#define MOST 20000

struct work {
    const char *launch, *synchronise;
    unsigned long launches, each;
    unsigned blocks;
    unsigned long nanoseconds;
};

static void *library;
static struct work work;
static int result;
static uint64_t outer_ns, around_ns;
static pthread_barrier_t barrier;
static char **arguments;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

cuda_function *find(const char *name)
{
    cuda_function *found = (cuda_function *)dlsym(library, name);
    if (!found) {
        fprintf(stderr, "libcuda has no function %s\n", name);
        exit(3);
    }
    return found;
}

static int begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

void gate(const char *where)
{
    char byte;
    dprintf(STDOUT_FILENO, "%s\n", where);
    while (read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n')
        ;
}

static void print_truth(void)
{
    struct truth truth;
    find("standin_truth")(&truth);
    dprintf(STDOUT_FILENO,
            "{\"pid\": %d, \"kernels\": %lu, \"graphs\": %lu, \"captured\": %lu, \"spans\": %lu, \"flight_ns\": %lu, "
            "\"busy_ns\": %lu, \"queries\": %lu, \"outer_ns\": %lu, \"around_ns\": %lu, \"result\": %d}\n",
            getpid(), truth.kernels, truth.graphs, truth.captured, truth.spans, truth.flight_ns, truth.busy_ns,
            truth.queries, outer_ns, around_ns, result);
}

void checked(CUresult returned)
{
    if (returned != CUDA_SUCCESS)
        result = returned;
}

/* ---- launch and synchronise ---- */

static CUresult copied(const char *name, cuda_function *copy, size_t number, CUstream stream)
{
    const char *source = getenv("TARGET_SOURCE"), *destination = getenv("TARGET_DESTINATION");
    uint64_t flat[16] = {0}, box[25] = {0};
    flat[2] = box[4] = source ? strtoull(source, NULL, 10) : 2;
    flat[9] = box[15] = destination ? strtoull(destination, NULL, 10) : 2;
    flat[14] = box[22] = number;
    flat[15] = box[23] = 2;
    box[24] = 1;
    if (begins(name, "cuMemcpy2D") || begins(name, "cuMemcpy3D"))
        return copy(begins(name, "cuMemcpy2D") ? flat : box, stream);
    if (begins(name, "cuMemcpyPeer"))
        return copy(NULL, NULL, NULL, NULL, number, stream);
    if (begins(name, "cuMemsetD2D"))
        return copy(NULL, (size_t)0, 0u, number, (size_t)2, stream);
    return copy(NULL, NULL, number, stream);
}

/* Copy within the GPU, if the environment says so. */
static void copied_too(CUstream stream)
{
    const char *bytes = getenv("TARGET_COPIES"), *name = "cuMemcpyDtoDAsync_v2";
    if (bytes)
        checked(copied(name, find(name), strtoull(bytes, NULL, 10), stream));
}

static CUgraph captured(CUstream stream, int variant)
{
    CUgraph graph;
    cuda_function *launch = find(variant ? "cuLaunchKernel_ptsz" : "cuLaunchKernel");
    const char *empty = getenv("TARGET_CAPTURES");
    for (int more = empty ? atoi(empty) : 0; more > 0; more--) {
        find("cuStreamBeginCapture_v2")(stream, 0);
        find("cuStreamEndCapture")(stream, &graph);
    }
    find(variant ? "cuStreamBeginCapture_v2_ptsz" : "cuStreamBeginCapture_v2")(stream, 0);
    for (int kernel = 0; kernel < 3; kernel++)
        launch((CUfunction)work.nanoseconds, work.blocks, 1u, 1u, 32u, 1u, 1u, 0u, stream, NULL, NULL);
    copied_too(stream);
    find(variant ? "cuStreamEndCapture_ptsz" : "cuStreamEndCapture")(stream, &graph);
    return graph;
}

/* Get kernels by name, and graphs. A wrong answer is an error. */
static void got_handles(CUstream stream, int variant)
{
    static const char *copies[] = {"cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams",
                                   "cuGraphInstantiateWithParams_ptsz", "cuGraphClone"};
    uint64_t loop[16] = {13, 0, 0, (uint64_t)1 << 32}; /* a conditional node with one body */
    CUfunction kernel, same, function, expected = (CUfunction)work.nanoseconds;
    CUgraph graph = captured(stream, variant), copy;
    char name[32];
    snprintf(name, sizeof name, "kernel_%lu", work.nanoseconds);
    checked(find("cuModuleGetFunction")(&kernel, NULL, name));
    checked(find("cuLibraryGetKernel")(&same, NULL, name));
    checked(find("cuKernelGetFunction")(&function, same));
    checked(find("cuLibraryGetKernel")(&copy, NULL, "invalid") != CUDA_ERROR_INVALID_VALUE);
    checked(kernel != expected || same != expected || function != (void *)((char *)expected + 1));
    checked(find("cuGraphAddNode")(NULL, graph, NULL, (size_t)0, loop));
    checked(find("cuGraphAddNode_v2")(NULL, graph, NULL, NULL, (size_t)0, loop));
    for (size_t each = 0; each < sizeof copies / sizeof *copies; each++) {
        copy = NULL;
        checked(find(copies[each])(&copy, graph, NULL));
        checked(copy == NULL || copy == graph);
    }
    checked(find("cuGraphDestroy")(graph));
}

static CUresult launched(cuda_function *launch, CUstream stream, CUgraph graph)
{
    CUfunction function = (CUfunction)work.nanoseconds;
    if (graph)
        return launch(graph, stream);
    if (begins(work.launch, "cuMem"))
        return copied(work.launch, launch, work.blocks, stream);
    if (begins(work.launch, "cuLaunchKernelEx")) {
        CUlaunchConfig config = {work.blocks, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
        return launch(&config, function, NULL, NULL);
    }
    if (strcmp(work.launch, "cuLaunchGridAsync") == 0)
        return launch(function, 1, 1, stream);
    if (strcmp(work.launch, "cuLaunchGrid") == 0 || strcmp(work.launch, "cuLaunch") == 0 || strstr(work.launch, "Multi"))
        return launch(function, 1, 1);
    return launch(function, work.blocks, 1u, 1u, 32u, 1u, 1u, 0u, stream, NULL, NULL);
}

static CUresult waited(cuda_function *synchronise, CUstream stream, CUevent event)
{
    char bytes[8];
    if (strstr(work.synchronise, "Query")) {
        CUresult answer;
        const char *pause = getenv("TARGET_PAUSE");
        while ((answer = synchronise(begins(work.synchronise, "cuEvent") ? (void *)event : stream)) == CUDA_ERROR_NOT_READY)
            if (pause != NULL)
                usleep((unsigned)atoi(pause));
        return answer;
    }
    if (begins(work.synchronise, "cuStream"))
        return synchronise(stream);
    if (begins(work.synchronise, "cuEvent"))
        return synchronise(event);
    if (begins(work.synchronise, "cuMemcpyDtoHAsync")) {
        checked(synchronise(bytes, bytes, sizeof bytes, stream));
        return find(strstr(work.synchronise, "_ptsz") ? "cuStreamSynchronize_ptsz" : "cuStreamSynchronize")(stream);
    }
    if (begins(work.synchronise, "cuMemcpy"))
        return synchronise(bytes, bytes, sizeof bytes);
    return synchronise(NULL);
}

static void *worked(void *stream)
{
    static __thread int has_handles;
    int variant = strstr(work.launch, "_ptsz") != NULL, forever = strcmp(work.synchronise, "never") == 0;
    cuda_function *launch = find(work.launch), *synchronise = forever ? NULL : find(work.synchronise);
    cuda_function *record = begins(work.synchronise, "cuEvent") ? find(variant ? "cuEventRecord_ptsz" : "cuEventRecord") : NULL;
    CUgraph graph = begins(work.launch, "cuGraph") ? captured(stream, variant) : NULL;
    CUevent event = NULL;
    uint64_t began = 0;
    checked(find("cuInit")(0u));
    if (!has_handles && getenv("TARGET_HANDLES"))
        got_handles(stream, variant);
    has_handles = 1;
    if (record)
        find("cuEventCreate")(&event, 0u);
    for (unsigned long done = 0; done < work.launches; done++) {
        if (done % work.each == 0)
            began = now();
        checked(launched(launch, stream, graph));
        if (!graph)
            copied_too(stream);
        if (!synchronise || (done + 1) % work.each != 0)
            continue;
        if (record)
            record(event, stream);
        uint64_t called = now();
        checked(waited(synchronise, stream, event));
        uint64_t returned = now();
        __atomic_add_fetch(&outer_ns, returned - began, __ATOMIC_RELAXED);
        __atomic_add_fetch(&around_ns, returned - called, __ATOMIC_RELAXED);
    }
    return NULL;
}

static CUstream another(void)
{
    CUstream stream;
    find("cuStreamCreate")(&stream, 0u);
    return stream;
}

static void *worked_later(void *stream)
{
    pthread_barrier_wait(&barrier);
    return worked(stream);
}

/* ---- modes ---- */

static void in_threads(unsigned long count, int late)
{
    int variant = strstr(work.launch, "_ptsz") != NULL;
    pthread_t threads[count];
    pthread_barrier_init(&barrier, NULL, late ? 1 : (unsigned)count + 1);
    if (late)
        gate("ready");
    for (unsigned long each = 0; each < count; each++)
        if (pthread_create(&threads[each], NULL, late ? worked : worked_later, variant ? NULL : another()) != 0)
            exit(4);
    if (!late) {
        gate("ready");
        pthread_barrier_wait(&barrier);
    }
    for (unsigned long each = 0; each < count; each++)
        pthread_join(threads[each], NULL);
}

static void in_children(unsigned long count)
{
    int status;
    gate("ready");
    for (unsigned long each = 0; each < count; each++) {
        pid_t child = fork();
        if (child == 0) {
            worked(NULL);
            print_truth();
            _exit(result ? 70 : 0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            exit(4);
    }
    worked(NULL);
}

static void on_streams(unsigned long count)
{
    static CUstream streams[MOST];
    cuda_function *launch = find(work.launch), *synchronise = find(work.synchronise);
    if (count > MOST)
        exit(2);
    gate("ready");
    for (unsigned long each = 0; each < count; each++)
        streams[each] = another();
    uint64_t began = now();
    for (unsigned long done = 0; done < work.launches; done++)
        for (unsigned long each = 0; each < count; each++)
            checked(launched(launch, streams[each], NULL));
    checked(waited(synchronise, NULL, NULL));
    outer_ns += now() - began;
}

/* At the gate, all kernels are launched and none is synchronised. */
static void in_flight(void)
{
    unsigned long each = work.each;
    gate("ready");
    work.each = work.launches + 1;
    worked(NULL);
    gate("in flight");
    work.each = each;
    if (strcmp(work.synchronise, "never") != 0)
        checked(waited(find(work.synchronise), NULL, NULL));
}

/*
 * Launch on two devices, `launches` on the first and `each` on the second. Wait for the second from the first. As the CUDA
 * runtime does, make the primary context of the first current before it is retained, and never again.
 */
static void on_two_devices(void)
{
    cuda_function *launch = find(work.launch);
    void *first = (void *)0x1000, *second = NULL, *popped = NULL;
    CUstream other = another();
    gate("ready");
    checked(find("cuInit")(0u));
    find("cuCtxSetCurrent")(first);
    find("cuDevicePrimaryCtxRetain")(&first, 0);
    find("cuCtxCreate_v2")(&second, 0u, 1);
    for (unsigned long done = 0; done < work.each; done++)
        checked(launched(launch, other, NULL));
    find("cuCtxPopCurrent_v2")(&popped);
    for (unsigned long done = 0; done < work.launches; done++)
        checked(launched(launch, NULL, NULL));
    checked(find("cuStreamSynchronize")(other));
    gate("in flight");
    find("cuCtxPushCurrent_v2")(second);
    checked(launched(launch, other, NULL));
    find("cuCtxPopCurrent_v2")(&popped);
    checked(find("cuCtxSynchronize")());
}

/* Synchronise only one of two streams; then launch before and after an event, and synchronise again. */
static void on_two_streams(void)
{
    cuda_function *launch = find(work.launch), *record = find("cuEventRecord"), *synchronise = find(work.synchronise);
    CUstream other = another(), own = another();
    CUevent event;
    find("cuEventCreate")(&event, 0u);
    gate("ready");
    checked(launched(launch, other, NULL));
    checked(launched(launch, own, NULL));
    record(event, own);
    checked(waited(synchronise, own, event));
    gate("waited");
    checked(launched(launch, own, NULL));
    record(event, own);
    checked(launched(launch, own, NULL));
    checked(waited(synchronise, own, event));
    gate("waited again");
    checked(find("cuCtxSynchronize")());
}

static void go(const char *mode, unsigned long count)
{
    if (strcmp(mode, "threads") == 0 || strcmp(mode, "late-threads") == 0)
        in_threads(count, begins(mode, "late"));
    else if (strcmp(mode, "children") == 0)
        in_children(count);
    else if (strcmp(mode, "streams") == 0)
        on_streams(count);
    else if (strcmp(mode, "flight") == 0)
        in_flight();
    else if (strcmp(mode, "devices") == 0)
        on_two_devices();
    else if (strcmp(mode, "apart") == 0)
        on_two_streams();
    else if (strcmp(mode, "bad-configurations") == 0)
        by_bad_configurations();
    else if (strcmp(mode, "cancelled") == 0) {
        gate("ready");
        result = cancelled(work.synchronise) ? 0 : 1;
    } else if (strcmp(mode, "left") == 0)
        left(work.synchronise);
    else if (strcmp(mode, "absurd-grids") == 0)
        by_absurd_grids();
    else if (strcmp(mode, "bad-copies") == 0)
        by_bad_copies();
    else if (strcmp(mode, "turns") == 0)
        for (gate("ready"); count; count--) {
            worked(NULL);
            if (count > 1)
                gate("turn");
        }
    else {
        if (begins(mode, "filtered"))
            filtered(strcmp(mode, "filtered-deadly") == 0);
        for (gate("ready"); count; count--)
            worked(NULL);
    }
    if (strcmp(mode, "exec") == 0) {
        print_truth();
        arguments[1] = "loop";
        execv("/proc/self/exe", arguments);
    }
}

int main(int count, char **words)
{
    const char *status = getenv("TARGET_STATUS");
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || count != 9) {
        fprintf(stderr, "%s\n", library ? "usage" : dlerror());
        return 2;
    }
    arguments = words;
    work = (struct work){words[3], words[4], strtoul(words[5], NULL, 10), strtoul(words[6], NULL, 10),
                         (unsigned)strtoul(words[7], NULL, 10), strtoul(words[8], NULL, 10)};
    go(words[1], strtoul(words[2], NULL, 10));
    print_truth();
    return result ? 70 : status ? atoi(status) : 0;
}
