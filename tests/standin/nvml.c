/*
 * A libnvidia-ml.so.1 for machines without a GPU.
 *
 * It holds no data: every call looks whether the file named by STANDIN_NVML_STATE was replaced, so a test changes what the
 * "driver" says, or makes it fail or hang, while the program under test runs. One statement a line, words separated by spaces:
 *
 *   driver VERSION CUDA                     e.g. 580.159.04 13000
 *   device INDEX UUID BUS_ID MAJOR MINOR MEMORY_TOTAL MEMORY_USED ENERGY_MJ GPU% MEMORY% COMPUTE_MODE NAME...
 *   reading DEVICE NAME VALUE               what the call for it says; without this line, that it is not supported:
 *                                           power, persistence, mig, numa_node, cores, sm_utilization, dram_bandwidth (GPM, percent), events
 *                                           (a mask)
 *   process DEVICE PID USED_BYTES IN_MPS_LIST SM%    (SM% -1: no utilisation samples)
 *   mig PARENT POSITION DEVICE GPU_INSTANCE COMPUTE_INSTANCE SMS    DEVICE, with an index from 100 on, is a MIG device of
 *                                           PARENT; GPM of the GPU instance is that of DEVICE
 *   xid SEQUENCE DEVICE NUMBER              an event, delivered once to every event set made before it was written
 *   behaviour FUNCTION DEVICE|* error CODE  the call fails
 *   behaviour FUNCTION DEVICE|* slow MS     the call takes so long
 *   behaviour FUNCTION DEVICE|* hang 0      the call returns only when this line has gone
 *
 * FUNCTION is a symbol's name, with or without its _vN, or * for all. Compile with -DnvmlSomething=absent to lack a
 * function, as an older driver does, and with -DVERSION=\"580.159.04\" to make a library that works with that driver
 * alone, as the real one does.
 *
 * Between the first nvmlInit and the last nvmlShutdown it keeps the file named by STANDIN_NVML_DEVICE open, and once more
 * for each event set and each GPM sample: so its descriptors show what has not been given back. Whoever uses an event set
 * that was freed, or closes the library while another thread waits for events, is aborted.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    LIB_RM_VERSION_MISMATCH = 18,
    UNKNOWN = 999,
};

enum { FIRST_MIG_DEVICE = 100, MAX_MIG_DEVICES = 64 };
enum { MAX_DEVICES = 128, MAX_PROCESSES = 2048, MAX_BEHAVIOURS = 64, MAX_XIDS = 256,
       MAX_READINGS = 256, MAX_EVENT_SETS = 1024 };
enum { NO_DEVICE = -1, HANG_POLL_MS = 10, EVENT_POLL_MS = 50 };

typedef unsigned long long ull;
typedef struct device *Device; /* index + 1, never dereferenced */

/* The structures of nvml.h that pynvml declares, field by field. */
typedef struct { unsigned pid; ull used; unsigned gpu_instance, compute_instance; } ProcessInfo;
typedef struct { ull total, free, used; } Memory;
typedef struct { unsigned version; ull total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; ull timestamp; unsigned sm, memory, encoder, decoder; } UtilizationSample;
typedef struct { ull timestamp; unsigned pid, sm, memory, encoder, decoder, jpeg, ofa; } UtilizationInfo;
typedef struct { unsigned version, count; ull last_seen; UtilizationInfo *rows; } UtilizationInfos;
typedef struct { Device device; ull type, data; unsigned gpu_instance, compute_instance; } EventData;
typedef struct { unsigned version, is_supported; } GpmSupport;
typedef struct { unsigned id; int result; double value; const char *short_name, *long_name, *unit; } GpmMetric;
typedef struct { unsigned version, count; struct gpm_sample *first, *second; GpmMetric metrics[]; } GpmMetricsGet;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

struct device_line {
    int index, major, minor, compute_mode;
    char uuid[96], bus_id[32], name[96];
    ull total, used, energy;
    unsigned gpu, memory;
};
struct process_line { int device, in_mps, sm; unsigned pid; ull used; };
struct mig_line { int parent, position, device; unsigned gpu_instance, compute_instance, sms; };
struct xid_line { ull sequence; int device; unsigned number; };
struct reading_line { int device; char name[32]; double value; };
struct behaviour_line { char function[96], device[8], kind[8]; int value; };

struct state {
    char driver[80];
    int cuda;
    int devices, processes, readings, migs, xids, behaviours;
    struct mig_line mig[MAX_MIG_DEVICES];
    struct device_line device[MAX_DEVICES];
    struct reading_line reading[MAX_READINGS];
    struct xid_line xid[MAX_XIDS];
    struct behaviour_line behaviour[MAX_BEHAVIOURS];
    struct process_line process[MAX_PROCESSES]; /* last, so that only those there are need be copied */
};

struct event_set { int alive, descriptor; atomic_int waiting; unsigned devices; ull seen; };
struct gpm_sample { int descriptor, device; struct timespec taken; };

static atomic_int initialized, waiting;
static int device_descriptor = -1;
static struct event_set event_sets[MAX_EVENT_SETS]; /* never reused: what was freed stays recognizable */
static atomic_int event_set_count;

/* ---- reading the state ------------------------------------------------------------------------------------------ */

static void sleep_ms(int milliseconds)
{
    struct timespec span = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    nanosleep(&span, NULL);
}

static void read_line(struct state *state, const char *line)
{
    struct device_line device = {0};
    struct process_line process = {0};
    struct reading_line reading = {0};
    struct mig_line mig = {0};
    struct xid_line xid = {0};
    struct behaviour_line behaviour = {0};

    if (sscanf(line, "device %d %95s %31s %d %d %llu %llu %llu %u %u %d %95[^\n]", &device.index, device.uuid,
               device.bus_id, &device.major, &device.minor, &device.total, &device.used, &device.energy, &device.gpu,
               &device.memory, &device.compute_mode, device.name) == 12) {
        if (state->devices < MAX_DEVICES) state->device[state->devices++] = device;
    } else if (sscanf(line, "process %d %u %llu %d %d", &process.device, &process.pid, &process.used,
                      &process.in_mps, &process.sm) == 5) {
        if (state->processes < MAX_PROCESSES) state->process[state->processes++] = process;
    } else if (sscanf(line, "reading %d %31s %lf", &reading.device, reading.name, &reading.value) == 3) {
        if (state->readings < MAX_READINGS) state->reading[state->readings++] = reading;
    } else if (sscanf(line, "mig %d %d %d %u %u %u", &mig.parent, &mig.position, &mig.device, &mig.gpu_instance,
                      &mig.compute_instance, &mig.sms) == 6) {
        if (state->migs < MAX_MIG_DEVICES) state->mig[state->migs++] = mig;
    } else if (sscanf(line, "xid %llu %d %u", &xid.sequence, &xid.device, &xid.number) == 3) {
        if (state->xids < MAX_XIDS) state->xid[state->xids++] = xid;
    } else if (sscanf(line, "behaviour %95s %7s %7s %d", behaviour.function, behaviour.device, behaviour.kind,
                      &behaviour.value) == 4) {
        if (state->behaviours < MAX_BEHAVIOURS) state->behaviour[state->behaviours++] = behaviour;
    } else {
        sscanf(line, "driver %79s %d", state->driver, &state->cuda);
    }
}

static int parse(const char *path, struct state *state)
{
    FILE *file = fopen(path, "re");
    char line[512];

    memset(state, 0, sizeof *state);
    if (!file) return UNKNOWN;
    while (fgets(line, sizeof line, file)) read_line(state, line);
    fclose(file);
    return SUCCESS;
}

static int same_file(const struct stat *one, const struct stat *other)
{
    return one->st_ino == other->st_ino && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
           one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

/* The file is parsed once for each time that it is replaced, so that a program's cost is its own. */
static int read_state(struct state *state)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct state parsed;
    static struct stat parsed_from;
    const char *path = getenv("STANDIN_NVML_STATE");
    struct stat now;
    int problem = SUCCESS;

    if (!path || stat(path, &now) != 0) return UNKNOWN;
    pthread_mutex_lock(&lock);
    if (!same_file(&now, &parsed_from)) {
        problem = parse(path, &parsed);
        parsed_from = now;
    }
    memcpy(state, &parsed, offsetof(struct state, process) + (size_t)parsed.processes * sizeof *parsed.process);
    pthread_mutex_unlock(&lock);
    return problem;
}

/* ---- misbehaving ------------------------------------------------------------------------------------------------ */

static size_t unversioned_length(const char *function)
{
    size_t length = strlen(function);
    return length > 3 && strncmp(function + length - 3, "_v", 2) == 0 ? length - 3 : length;
}

static int concerns(const struct behaviour_line *behaviour, const char *function, int device)
{
    size_t length = unversioned_length(function);
    int same_function = strcmp(behaviour->function, "*") == 0 || strcmp(behaviour->function, function) == 0 ||
                        (strlen(behaviour->function) == length && strncmp(behaviour->function, function, length) == 0);
    return same_function && (strcmp(behaviour->device, "*") == 0 || atoi(behaviour->device) == device);
}

static const struct behaviour_line *find_behaviour(const struct state *state, const char *function, int device)
{
    for (int i = 0; i < state->behaviours; i++)
        if (concerns(&state->behaviour[i], function, device)) return &state->behaviour[i];
    return NULL;
}

/* Beside the state file, a file that says to the test: a call hangs. */
static void say_that_it_hangs(void)
{
    char path[4096];
    const char *state = getenv("STANDIN_NVML_STATE");
    if (!state || snprintf(path, sizeof path, "%s.hangs", state) >= (int)sizeof path) return;
    FILE *file = fopen(path, "w");
    if (file) fclose(file);
}

/* What every call does first: read the state, then fail, dawdle or hang if the state says so. */
static int enter(const char *function, int device, struct state *state)
{
    const struct behaviour_line *behaviour;

    for (;;) {
        int problem = read_state(state);
        if (problem) return problem;
        behaviour = find_behaviour(state, function, device);
        if (!behaviour || strcmp(behaviour->kind, "hang") != 0) break;
        say_that_it_hangs();
        sleep_ms(HANG_POLL_MS);
    }
#ifdef VERSION
    if (strcmp(state->driver, VERSION) != 0) return LIB_RM_VERSION_MISMATCH;
#endif
    if (behaviour && strcmp(behaviour->kind, "error") == 0) return behaviour->value;
    if (behaviour && strcmp(behaviour->kind, "slow") == 0) sleep_ms(behaviour->value);
    return SUCCESS;
}

static int enter_initialized(const char *function, struct state *state)
{
    return initialized > 0 ? enter(function, NO_DEVICE, state) : UNINITIALIZED;
}

static int handle_index(Device handle) { return (int)(intptr_t)handle - 1; }
static Device index_handle(int index) { return (Device)(intptr_t)(index + 1); }

static int enter_device(const char *function, Device handle, struct state *state, const struct device_line **device)
{
    int problem = initialized > 0 ? enter(function, handle_index(handle), state) : UNINITIALIZED;
    if (problem) return problem;
    for (int i = 0; i < state->devices; i++)
        if (state->device[i].index == handle_index(handle)) {
            *device = &state->device[i];
            return SUCCESS;
        }
    return INVALID_ARGUMENT;
}

static int read_value(const struct state *state, int device, const char *name, double *value)
{
    for (int i = 0; i < state->readings; i++)
        if (state->reading[i].device == device && strcmp(state->reading[i].name, name) == 0) {
            *value = state->reading[i].value;
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

#define ENTER()                                             \
    struct state state;                                     \
    int problem = enter_initialized(__func__, &state);      \
    if (problem) return problem

/* What is given back is given back, whatever the driver has to say to it. */
#define GIVE_BACK()                                         \
    struct state state;                                     \
    int problem = enter_initialized(__func__, &state);      \
    if (problem == UNINITIALIZED && initialized == 0) return problem

#define ENTER_DEVICE()                                                  \
    struct state state;                                                 \
    const struct device_line *device = NULL;                            \
    int problem = enter_device(__func__, handle, &state, &device);      \
    if (problem) return problem

static int copy_text(char *target, unsigned size, const char *text)
{
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return SUCCESS;
}

/* ---- the library and the system --------------------------------------------------------------------------------- */

static int open_device(void)
{
    const char *path = getenv("STANDIN_NVML_DEVICE");
    return path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
}

static void close_device(int descriptor)
{
    if (descriptor >= 0) close(descriptor);
}

int nvmlInitWithFlags(unsigned flags)
{
    struct state state;
    int problem = enter(__func__, NO_DEVICE, &state);
    if (!problem) problem = enter("nvmlInit", NO_DEVICE, &state); /* whichever of the two a test names */
    (void)flags;
    if (!problem && initialized++ == 0) device_descriptor = open_device();
    return problem;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    GIVE_BACK();
    if (--initialized > 0) return problem;
    if (waiting) abort();
    close_device(device_descriptor);
    device_descriptor = -1;
    return problem;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires restart";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ENTER();
    return copy_text(version, length, state.driver);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ENTER();
    char text[sizeof state.driver + 3];
    snprintf(text, sizeof text, "13.%s", state.driver);
    return copy_text(version, length, text);
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER();
    *version = state.cuda;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER();
    *version = state.cuda;
    return SUCCESS;
}

/* ---- what a device is ------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER();
    *count = 0;
    for (int i = 0; i < state.devices; i++) *count += state.device[i].index < FIRST_MIG_DEVICE;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *handle)
{
    struct state state;
    const struct device_line *device = NULL;
    *handle = index_handle((int)index);
    return enter_device(__func__, *handle, &state, &device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *handle)
{
    ENTER();
    for (int i = 0; i < state.devices; i++)
        if (strcmp(state.device[i].uuid, uuid) == 0) {
            *handle = index_handle(state.device[i].index);
            return enter(__func__, state.device[i].index, &state);
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Device handle, char *uuid, unsigned length)
{
    ENTER_DEVICE();
    return copy_text(uuid, length, device->uuid);
}

int nvmlDeviceGetName(Device handle, char *name, unsigned length)
{
    ENTER_DEVICE();
    return copy_text(name, length, device->name);
}

int nvmlDeviceGetIndex(Device handle, unsigned *index)
{
    ENTER_DEVICE();
    *index = (unsigned)device->index;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device handle, PciInfo *pci)
{
    ENTER_DEVICE();
    unsigned function = 0;
    memset(pci, 0, sizeof *pci);
    if (sscanf(device->bus_id, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function) != 4) return UNKNOWN;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.%X", pci->domain, pci->bus, pci->device, function);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.%X", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff, function & 0xf);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device handle, int *major, int *minor)
{
    ENTER_DEVICE();
    *major = device->major;
    *minor = device->minor;
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(Device handle, unsigned *mode)
{
    ENTER_DEVICE();
    *mode = (unsigned)device->compute_mode;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device handle, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE();
    double value = 0;
    read_value(&state, device->index, "mig", &value);
    *current = *pending = (unsigned)value;
    return SUCCESS;
}

/* ---- MIG -------------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned sms, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    ull memory_mb;
} Attributes;

static const struct mig_line *find_mig(const struct state *state, int device)
{
    for (int i = 0; i < state->migs; i++)
        if (state->mig[i].device == device) return &state->mig[i];
    return NULL;
}

int nvmlDeviceGetMaxMigDeviceCount(Device handle, unsigned *count)
{
    ENTER_DEVICE();
    double value = 0;
    if (read_value(&state, device->index, "mig", &value)) return NOT_SUPPORTED;
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device handle, unsigned position, Device *instance)
{
    ENTER_DEVICE();
    for (int i = 0; i < state.migs; i++)
        if (state.mig[i].parent == device->index && state.mig[i].position == (int)position) {
            *instance = index_handle(state.mig[i].device);
            return SUCCESS;
        }
    return NOT_FOUND;
}

#define MIG_DEVICE()                                                \
    ENTER_DEVICE();                                                 \
    const struct mig_line *mig = find_mig(&state, device->index);   \
    if (!mig) return NOT_SUPPORTED

int nvmlDeviceGetGpuInstanceId(Device handle, unsigned *number)
{
    MIG_DEVICE();
    *number = mig->gpu_instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(Device handle, unsigned *number)
{
    MIG_DEVICE();
    *number = mig->compute_instance;
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(Device handle, Attributes *attributes)
{
    MIG_DEVICE();
    memset(attributes, 0, sizeof *attributes);
    attributes->sms = mig->sms;
    attributes->memory_mb = device->total >> 20;
    return SUCCESS;
}

/* ---- how a device fares ----------------------------------------------------------------------------------------- */

int nvmlDeviceGetMemoryInfo(Device handle, Memory *memory)
{
    ENTER_DEVICE();
    *memory = (Memory){device->total, device->total - device->used, device->used};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device handle, MemoryV2 *memory)
{
    ENTER_DEVICE();
    *memory = (MemoryV2){memory->version, device->total, 0, device->total - device->used, device->used};
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device handle, Utilization *utilization)
{
    ENTER_DEVICE();
    *utilization = (Utilization){device->gpu, device->memory};
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device handle, ull *millijoules)
{
    ENTER_DEVICE();
    *millijoules = device->energy;
    return SUCCESS;
}

/* What a `reading` line says, in the type that the function has for it. */
#define READING(name, type, target)                                   \
    ENTER_DEVICE();                                                   \
    double value = 0;                                                 \
    problem = read_value(&state, device->index, name, &value);        \
    if (!problem) *(target) = (type)value;                            \
    return problem

int nvmlDeviceGetPersistenceMode(Device handle, unsigned *mode) { READING("persistence", unsigned, mode); }

int nvmlDeviceGetPowerUsage(Device handle, unsigned *milliwatts) { READING("power", unsigned, milliwatts); }

int nvmlDeviceGetNumGpuCores(Device handle, unsigned *cores) { READING("cores", unsigned, cores); }
int nvmlDeviceGetNumaNodeId(Device handle, unsigned *node) { READING("numa_node", unsigned, node); }

/* What other programs ask that this GPU cannot tell. */
#define CANNOT_TELL(function) \
    int function(Device handle, ...) { ENTER_DEVICE(); return NOT_SUPPORTED; }

CANNOT_TELL(nvmlDeviceGetClockInfo)
CANNOT_TELL(nvmlDeviceGetMaxClockInfo)
CANNOT_TELL(nvmlDeviceGetDecoderUtilization)
CANNOT_TELL(nvmlDeviceGetEncoderUtilization)
CANNOT_TELL(nvmlDeviceGetFanSpeed)
CANNOT_TELL(nvmlDeviceGetFieldValues)
CANNOT_TELL(nvmlDeviceGetPcieThroughput)
CANNOT_TELL(nvmlDeviceGetPerformanceState)
CANNOT_TELL(nvmlDeviceGetPowerManagementLimit)
CANNOT_TELL(nvmlDeviceGetSerial)

/* ---- GPM -------------------------------------------------------------------------------------------------------- */

enum { SM_UTIL = 2, DRAM_BW_UTIL = 10, GPM_SHORTEST_MS = 100 };

int nvmlGpmQueryDeviceSupport(Device handle, GpmSupport *support)
{
    ENTER_DEVICE();
    double value = 0;
    support->is_supported = read_value(&state, device->index, "sm_utilization", &value) == SUCCESS;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    ENTER();
    *sample = calloc(1, sizeof **sample);
    (*sample)->descriptor = open_device();
    (*sample)->device = NO_DEVICE;
    return SUCCESS;
}

int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    GIVE_BACK();
    close_device(sample->descriptor);
    free(sample);
    return problem;
}

int nvmlGpmSampleGet(Device handle, struct gpm_sample *sample)
{
    ENTER_DEVICE();
    sample->device = device->index;
    clock_gettime(CLOCK_MONOTONIC, &sample->taken);
    return SUCCESS;
}

int nvmlGpmMigSampleGet(Device handle, unsigned gpu_instance, struct gpm_sample *sample)
{
    ENTER_DEVICE();
    for (int i = 0; i < state.migs; i++)
        if (state.mig[i].parent == device->index && state.mig[i].gpu_instance == gpu_instance) {
            sample->device = state.mig[i].device;
            clock_gettime(CLOCK_MONOTONIC, &sample->taken);
            return SUCCESS;
        }
    return INVALID_ARGUMENT;
}

static double ms_between(const struct gpm_sample *first, const struct gpm_sample *second)
{
    return (double)(second->taken.tv_sec - first->taken.tv_sec) * 1e3 +
           (double)(second->taken.tv_nsec - first->taken.tv_nsec) / 1e6;
}

int nvmlGpmMetricsGet(GpmMetricsGet *question)
{
    ENTER();
    int device = question->first->device;
    if (device == NO_DEVICE || question->second->device != device) return INVALID_ARGUMENT;
    if (ms_between(question->first, question->second) < GPM_SHORTEST_MS) return INVALID_ARGUMENT;
    problem = enter(__func__, device, &state);
    for (unsigned i = 0; !problem && i < question->count; i++) {
        GpmMetric *metric = &question->metrics[i];
        const char *name = metric->id == SM_UTIL ? "sm_utilization" : metric->id == DRAM_BW_UTIL ? "dram_bandwidth" : "";
        metric->result = read_value(&state, device, name, &metric->value);
    }
    return problem;
}

/* ---- who runs on it --------------------------------------------------------------------------------------------- */

static int list_processes(const struct state *state, int device, int mps_list, unsigned *count, ProcessInfo *rows)
{
    unsigned found = 0;

    for (int i = 0; i < state->processes; i++) {
        const struct process_line *process = &state->process[i];
        if (process->device != device || (mps_list && !process->in_mps)) continue;
        if (rows && found < *count) rows[found] = (ProcessInfo){process->pid, process->used, ~0u, ~0u};
        found++;
    }
    int problem = found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return problem;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device handle, unsigned *count, ProcessInfo *rows)
{
    ENTER_DEVICE();
    return list_processes(&state, device->index, 0, count, rows);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device handle, unsigned *count, ProcessInfo *rows)
{
    ENTER_DEVICE();
    return list_processes(&state, device->index, 1, count, rows);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device handle, unsigned *count, ProcessInfo *rows)
{
    ENTER_DEVICE();
    (void)rows;
    *count = 0;
    return SUCCESS;
}

/* The driver samples about five times a second: the newest sample's time is the last full fifth. */
static ull newest_sample_us(void)
{
    const ull interval = 200000;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    ull us = (ull)now.tv_sec * 1000000 + (ull)now.tv_nsec / 1000;
    return us - us % interval;
}

static unsigned count_samples(const struct state *state, int device)
{
    unsigned samples = 0;
    for (int i = 0; i < state->processes; i++)
        samples += state->process[i].device == device && state->process[i].sm >= 0;
    return samples;
}

/* Both calls answer so: how many rows there would be, or that there was no sample since. */
static int utilization_size(const struct state *state, int device, ull last_seen, unsigned *count)
{
    unsigned room = *count;
    *count = last_seen < newest_sample_us() ? count_samples(state, device) : 0;
    if (*count == 0) return NOT_FOUND;
    return room < *count ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetProcessUtilization(Device handle, UtilizationSample *rows, unsigned *count, ull last_seen)
{
    ENTER_DEVICE();
    unsigned row = 0;

    problem = utilization_size(&state, device->index, last_seen, count);
    if (problem || !rows) return problem ? problem : INSUFFICIENT_SIZE;
    for (int i = 0; i < state.processes; i++) {
        const struct process_line *process = &state.process[i];
        if (process->device == device->index && process->sm >= 0)
            rows[row++] = (UtilizationSample){process->pid, newest_sample_us(), (unsigned)process->sm, 0, 0, 0};
    }
    return SUCCESS;
}

int nvmlDeviceGetProcessesUtilizationInfo(Device handle, UtilizationInfos *infos)
{
    ENTER_DEVICE();
    unsigned row = 0;

    problem = utilization_size(&state, device->index, infos->last_seen, &infos->count);
    if (problem || !infos->rows) return problem ? problem : INSUFFICIENT_SIZE;
    for (int i = 0; i < state.processes; i++) {
        const struct process_line *process = &state.process[i];
        if (process->device == device->index && process->sm >= 0)
            infos->rows[row++] =
                (UtilizationInfo){newest_sample_us(), process->pid, (unsigned)process->sm, 0, 0, 0, 0, 0};
    }
    return SUCCESS;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

enum { EVENT_XID = 8 };

int nvmlEventSetCreate(struct event_set **set)
{
    ENTER();
    int number = event_set_count++;
    if (number >= MAX_EVENT_SETS) abort();
    *set = &event_sets[number];
    **set = (struct event_set){.alive = 1, .descriptor = open_device()};
    for (int i = 0; i < state.xids; i++)
        if (state.xid[i].sequence > (*set)->seen) (*set)->seen = state.xid[i].sequence;
    return SUCCESS;
}

int nvmlEventSetFree(struct event_set *set)
{
    GIVE_BACK();
    if (!set->alive || set->waiting) abort();
    set->alive = 0;
    close_device(set->descriptor);
    return problem;
}

int nvmlDeviceGetSupportedEventTypes(Device handle, ull *types)
{
    ENTER_DEVICE();
    double value = EVENT_XID;
    read_value(&state, device->index, "events", &value);
    *types = (ull)value;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device handle, ull types, struct event_set *set)
{
    ENTER_DEVICE();
    double value = EVENT_XID;
    read_value(&state, device->index, "events", &value);
    if (types & ~(ull)value) return NOT_SUPPORTED;
    if (!set->alive) abort();
    set->devices |= 1u << device->index;
    return SUCCESS;
}

static const struct xid_line *next_xid(const struct state *state, const struct event_set *set)
{
    for (int i = 0; i < state->xids; i++)
        if (state->xid[i].sequence > set->seen && (set->devices >> state->xid[i].device & 1)) return &state->xid[i];
    return NULL;
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Be notified when the state is replaced: the driver does not poll for events, and a poll would count as the program's. */
static int watch_state(void)
{
    char path[4096];
    const char *state = getenv("STANDIN_NVML_STATE");
    if (!state || snprintf(path, sizeof path, "%s", state) >= (int)sizeof path || !strrchr(path, '/')) return -1;
    *strrchr(path, '/') = 0;
    int notifications = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (notifications >= 0) inotify_add_watch(notifications, path, IN_MOVED_TO);
    return notifications;
}

static int wait_for_xid(const char *function, struct event_set *set, EventData *data, unsigned timeout_ms)
{
    struct pollfd changes = {.fd = watch_state(), .events = POLLIN};
    long left, ends = now_ms() + timeout_ms;
    int problem;
    for (;;) {
        char passed[4096];
        struct state state;
        problem = enter_initialized(function, &state);
        if (problem) break;
        const struct xid_line *xid = next_xid(&state, set);
        if (xid) {
            set->seen = xid->sequence;
            *data = (EventData){index_handle(xid->device), EVENT_XID, xid->number, ~0u, ~0u};
            break;
        }
        problem = TIMEOUT;
        if ((left = ends - now_ms()) <= 0) break;
        poll(&changes, 1, changes.fd < 0 && left > EVENT_POLL_MS ? EVENT_POLL_MS : (int)left);
        while (read(changes.fd, passed, sizeof passed) > 0) continue;
    }
    if (changes.fd >= 0) close(changes.fd);
    return problem;
}

int nvmlEventSetWait_v2(struct event_set *set, EventData *data, unsigned timeout_ms)
{
    if (!set->alive) abort();
    waiting++;
    set->waiting++;
    int result = wait_for_xid(__func__, set, data, timeout_ms);
    set->waiting--;
    waiting--;
    return result;
}
