// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * BPF programs for the uprobes on libcuda. They count kernel launches by process, and measure how
 * long work is in flight on each CUDA stream: from the first launch to the return of the
 * synchronisation that waits for the last one.
 *
 * build.sh compiles this file to probes.x86_64.o and probes.aarch64.o, which are checked in. A test
 * compiles it again and compares. loader.py creates the maps and loads the programs;
 * probe_points.py lists the libcuda functions that each program is attached to.
 *
 * The file uses no vmlinux.h, CO-RE or libbpf: the programs read nothing of the kernel but the saved
 * registers of the traced function, and their layout is fixed for each machine. They need Linux 5.12
 * (atomic exchange).
 *
 * All arguments come from a workload and can have any value. A failed read of user memory yields 0.
 * Several threads of a process run the programs at the same time, so that every shared number is
 * changed by one atomic operation, or by a store that may be lost without harm.
 */
#include <linux/bpf.h>

typedef __u32 u32;
typedef __u64 u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define ADD(x, value) ((void)__sync_fetch_and_add(&(x), (value)))
#define EXCHANGE(x, value) __sync_lock_test_and_set(&(x), (value))
#define COMPARE_EXCHANGE(x, old, new) __sync_val_compare_and_swap(&(x), (old), (new))

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const map_update)(void *map, const void *key, const void *value,
				u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*const map_delete)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static u64 (*const current_pid_tgid)(void) = (void *)BPF_FUNC_get_current_pid_tgid;
static long (*const probe_read_user)(void *to, u32 size,
				     const void *from) = (void *)BPF_FUNC_probe_read_user;
static u64 (*const boot_ns)(void) = (void *)BPF_FUNC_ktime_get_boot_ns;

/* The kernel offers bpf_probe_read_user() only to programs under a GPL-compatible license. */
char _license[] SEC("license") = "Dual BSD/GPL";

/* -- registers of the traced function ---------------------------------------------------------- */

#if defined(MACHINE_X86_64)
/* struct pt_regs (arch/x86/include/asm/ptrace.h); arguments by the System V ABI. */
struct registers {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	u64 orig_ax, ip, cs, flags, sp, ss;
};
#define ARGUMENT_0(regs) ((regs)->di)
#define ARGUMENT_1(regs) ((regs)->si)
#define ARGUMENT_2(regs) ((regs)->dx)
#define ARGUMENT_3(regs) ((regs)->cx)
#define RESULT(regs) ((regs)->ax)
/* Arguments 0 to 5 are in registers; the return address lies below the others. */
#define ARGUMENT_8_ADDRESS(regs) ((regs)->sp + 8 + 8 * (8 - 6))
#elif defined(MACHINE_AARCH64)
/* struct user_pt_regs (arch/arm64/include/uapi/asm/ptrace.h); arguments by AAPCS64. */
struct registers {
	u64 regs[31], sp, pc, pstate;
};
#define ARGUMENT_0(r) ((r)->regs[0])
#define ARGUMENT_1(r) ((r)->regs[1])
#define ARGUMENT_2(r) ((r)->regs[2])
#define ARGUMENT_3(r) ((r)->regs[3])
#define RESULT(r) ((r)->regs[0])
/* Arguments 0 to 7 are in registers. */
#define ARGUMENT_8_ADDRESS(r) ((r)->sp)
#else
#error "define MACHINE_X86_64 or MACHINE_AARCH64"
#endif

/* -- what the exporter reads: layout.py has the same numbers in the same order ------------------ */

#define STREAMS 16
#define FRACTION_BITS 4 /* widths are divided in 16ths of an SM */

struct stream {
	u64 key; /* see stream_key(); 0: no stream has used this slot yet */
	u64 since; /* since when it has been in flight; 0: it is idle */
	u64 last; /* the time of its last launch */
	u64 launches; /* kernels in this span */
	u64 width; /* the sum of their widths in SMs */
	/* The same of the last burst in this span; a burst is a span without a pause of PAUSE_NS. */
	u64 burst_since;
	u64 burst_launches;
	u64 burst_width;
	u64 burst_gaps; /* the sum of the widths, in units of the gap before each kernel */
};

struct process {
	u64 first; /* the time of its first call */
	u64 kernels, graphs, syncs, records; /* calls */
	u64 spans, flight, area; /* finished spans, their time, and time multiplied by width */
	u64 widths;
	/* Bursts after which the client had to wait, so that the GPU was certainly busy all along. */
	u64 sure_area, sure_widths, sure_gaps, sure_heights, sure_event_heights;
	u64 launched; /* the time of the last launch */
	u64 failed; /* the time of the first synchronisation that returned an error */
	u64 capturing; /* since when a graph is captured; 0: none is */
	u64 captures, captured, captured_width; /* captures, and the kernels in them */
	struct stream streams[STREAMS];
};

/* -- maps -------------------------------------------------------------------------------------- */

/* Entries are the most that the exporter asks for; every map is bounded. */
struct map_definition {
	u32 type, key_size, value_size, max_entries;
};

struct map_definition processes SEC("maps") = {
	BPF_MAP_TYPE_HASH, sizeof(u64), sizeof(struct process), 2048
};

/* A process without a work item of its own: it is too large for a program's stack. */
struct map_definition blank SEC("maps") = {
	BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(struct process), 1
};

/* The synchronisation that each thread is in, by pid_tgid. */
struct call {
	u64 stream; /* the stream that it waits for, or EVERY_STREAM */
	u64 before; /* launches until then are done when it returns */
	u64 called;
	u64 by_event;
};

struct map_definition calls SEC("maps") = {
	BPF_MAP_TYPE_LRU_HASH, sizeof(u64), sizeof(struct call), 4096
};

/* The last recording of each event. */
struct event_key {
	u64 pid, event;
};

struct recording {
	u64 stream, at;
};

struct map_definition events SEC("maps") = {
	BPF_MAP_TYPE_LRU_HASH, sizeof(struct event_key), sizeof(struct recording), 16384
};

/* How many SMs a process may use, by PID, if not all. The exporter writes it. */
struct map_definition sm_limits SEC("maps") = {
	BPF_MAP_TYPE_HASH, sizeof(u64), sizeof(u64), 2048
};

/* Single numbers. */
enum {
	WATCHED_SINCE, /* earlier spans are incomplete and do not count */
	LOST, /* launches for which the map of processes had no room */
	ALL_SMS, /* SMs of a GPU */
	NUMBERS,
};

struct map_definition numbers SEC("maps") = {
	BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(u64), NUMBERS
};

/* -- parts of the programs ---------------------------------------------------------------------- */

#define LEGACY_STREAM 1 /* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD (cuda.h); 0 is either */
#define PER_THREAD_STREAM 2
#define EVERY_STREAM 0

/* After such a pause a new burst begins: the GPU may have been idle in between. */
#define PAUSE_NS 300000ULL

/* A synchronisation that waits so long found the GPU busy since the last burst began. One with
 * nothing to wait for takes about 10 us (measured, H200). */
#define BEHIND_NS 40000ULL

/* A capture that failed has no end that a probe sees. After this time it is over. */
#define CAPTURE_NS 60000000000ULL

INLINE u64 current_pid(void)
{
	return current_pid_tgid() >> 32;
}

INLINE u64 *number(u32 index)
{
	return map_lookup(&numbers, &index);
}

/*
 * What tells a stream from the others of its process; never 0. A handle is an address, a multiple
 * of 8. In the variants of functions for per-thread default streams, 0 is the thread's own stream.
 */
INLINE u64 stream_key(u64 handle, int per_thread)
{
	if (handle == 0)
		handle = per_thread ? PER_THREAD_STREAM : LEGACY_STREAM;
	if (handle == PER_THREAD_STREAM)
		return (u64)(u32)current_pid_tgid() << 8 | PER_THREAD_STREAM;
	return handle;
}

/* The numbers of a process, created if it has none yet; NULL if there is no room. */
INLINE struct process *process_of(u64 pid, u64 now)
{
	struct process *process = map_lookup(&processes, &pid);
	struct process *empty;
	u32 zero = 0;

	if (process)
		return process;
	empty = map_lookup(&blank, &zero);
	if (!empty)
		return 0;
	map_update(&processes, &pid, empty, BPF_NOEXIST);
	process = map_lookup(&processes, &pid);
	if (process)
		COMPARE_EXCHANGE(process->first, 0, now);
	return process;
}

/* -- launches ----------------------------------------------------------------------------------- */

/*
 * The slot of a stream. A slot that no stream has used comes before one of an idle stream, of which
 * a thread may be launching just now. Streams for which there is no slot share the last one.
 */
INLINE struct stream *slot_of(struct process *process, u64 key)
{
	struct stream *stream = process->streams;
	u64 used;
	int i;

	for (i = 0; i < STREAMS; i++) {
		stream = &process->streams[i];
		used = READ_ONCE(stream->key);
		if (used == key)
			return stream;
		if (used)
			continue;
		used = COMPARE_EXCHANGE(stream->key, 0, key);
		if (used == 0 || used == key)
			return stream;
	}
	for (i = 0; i < STREAMS; i++) {
		stream = &process->streams[i];
		if (READ_ONCE(stream->since))
			continue;
		used = READ_ONCE(stream->key);
		if (COMPARE_EXCHANGE(stream->key, used, key) == used)
			return stream;
	}
	return stream;
}

INLINE void launch_on(struct stream *stream, u64 now, u64 watched_since, u64 kernels, u64 width,
		      u64 gaps)
{
	u64 since = READ_ONCE(stream->since);

	if (since == 0 || since < watched_since) {
		if (since) {
			WRITE_ONCE(stream->launches, 0);
			WRITE_ONCE(stream->width, 0);
		}
		COMPARE_EXCHANGE(stream->since, since, now);
	}
	if (since == 0 || since < watched_since || now - READ_ONCE(stream->last) >= PAUSE_NS) {
		WRITE_ONCE(stream->burst_since, now);
		WRITE_ONCE(stream->burst_launches, 0);
		WRITE_ONCE(stream->burst_width, 0);
		WRITE_ONCE(stream->burst_gaps, 0);
	}
	ADD(stream->launches, kernels);
	ADD(stream->burst_launches, kernels);
	ADD(stream->width, width);
	ADD(stream->burst_width, width);
	ADD(stream->burst_gaps, width * gaps);
	WRITE_ONCE(stream->last, now);
}

/* A launch of a kernel of so many blocks, or of a graph, whose kernels are known by their capture. */
INLINE int launch(u64 blocks, u64 handle, int graph, int per_thread)
{
	u64 pid = current_pid(), key = stream_key(handle, per_thread), now = boot_ns();
	u64 width = blocks, kernels = 1, *limit, *all, *since;
	struct process *process = process_of(pid, now);

	if (!process) {
		u64 *lost = number(LOST);

		if (lost)
			ADD(*lost, 1);
		return 0;
	}

	/* A kernel is no wider than the SMs that its process may use. */
	all = number(ALL_SMS);
	limit = map_lookup(&sm_limits, &pid);
	if (!limit)
		limit = all;
	if (!limit)
		return 0;
	if (graph || width > *limit)
		width = *limit;

	if (graph) {
		u64 captured = READ_ONCE(process->captured), captures = READ_ONCE(process->captures);

		if (captured && captures) {
			width = READ_ONCE(process->captured_width) / captures;
			kernels = captured / captures;
		}
		ADD(process->graphs, 1);
	} else {
		u64 capturing = READ_ONCE(process->capturing);

		/* A launch into a capture does not run. */
		if (capturing && now - capturing <= CAPTURE_NS) {
			ADD(process->captured, 1);
			ADD(process->captured_width, width);
			return 0;
		}
		ADD(process->kernels, 1);
	}
	WRITE_ONCE(process->launched, now);
	ADD(process->widths, width);
	since = number(WATCHED_SINCE);
	if (!since)
		return 0;
	/* The gap before a kernel within a graph is half of that before another kernel. */
	launch_on(slot_of(process, key), now, *since, kernels, width, graph ? 1 : 2);
	return 0;
}

/* cuLaunchKernel(function, grid x, y, z, block x, y, z, shared memory, stream, ...) */
INLINE int launch_kernel(struct registers *regs, int per_thread)
{
	u64 blocks = (u64)(u32)ARGUMENT_1(regs) * (u32)ARGUMENT_2(regs) * (u32)ARGUMENT_3(regs);
	u64 stream;

	probe_read_user(&stream, sizeof(stream), (void *)ARGUMENT_8_ADDRESS(regs));
	return launch(blocks, stream, 0, per_thread);
}

/* cuLaunchKernelEx(config, ...); CUlaunchConfig in cuda.h */
INLINE int launch_kernel_ex(struct registers *regs, int per_thread)
{
	struct {
		u32 grid[3], block[3], shared_memory, padding;
		u64 stream;
	} config;
	const char *address = (const char *)ARGUMENT_0(regs);

	/* Two reads: if the first page alone can be read, the grid is known. */
	probe_read_user(config.grid, sizeof(config.grid), address);
	probe_read_user(&config.stream, sizeof(config.stream),
			address + __builtin_offsetof(typeof(config), stream));
	return launch((u64)config.grid[0] * config.grid[1] * config.grid[2], config.stream, 0,
		      per_thread);
}

/* -- recordings --------------------------------------------------------------------------------- */

/* cuEventRecord(event, stream): a wait for the event is a wait for what the stream has now. */
INLINE int record(struct registers *regs, int per_thread)
{
	struct event_key key = { current_pid(), ARGUMENT_0(regs) };
	struct recording recording = { stream_key(ARGUMENT_1(regs), per_thread), boot_ns() };
	struct process *process = map_lookup(&processes, &key.pid);

	if (!process)
		return 0;
	ADD(process->records, 1);
	map_update(&events, &key, &recording, BPF_ANY);
	return 0;
}

/* -- synchronisations --------------------------------------------------------------------------- */

/* A synchronisation is called. `event` is 0 if it waits for no event. */
INLINE int wait(u64 stream, u64 event, int by_event)
{
	u64 pid = current_pid(), thread = current_pid_tgid(), now = boot_ns();
	struct call call = { stream, now, now, by_event };
	/* A process that only waits is created too: its calls have their cost, which has a limit. */
	struct process *process = process_of(pid, now);

	if (!process)
		return 0;
	ADD(process->syncs, 1);
	if (by_event) {
		struct event_key key = { pid, event };
		struct recording *recording = map_lookup(&events, &key);

		if (!recording)
			return 0;
		call.stream = recording->stream;
		call.before = recording->at;
	}
	map_update(&calls, &thread, &call, BPF_ANY);
	return 0;
}

INLINE u64 mean_width(u64 width, u64 launches)
{
	return (width << FRACTION_BITS) / launches;
}

/* Add the last burst of a span to what is sure, if the client waited for it, long or mostly. */
INLINE void add_sure(struct process *process, struct stream *stream, struct call *call, u64 now)
{
	u64 length = now - READ_ONCE(stream->burst_since), waited = now - call->called;
	u64 width, launches, height;

	if (waited < BEHIND_NS && length > 2 * waited)
		return;
	ADD(process->sure_gaps, READ_ONCE(stream->burst_gaps));
	width = READ_ONCE(stream->burst_width);
	ADD(process->sure_widths, width);
	launches = READ_ONCE(stream->burst_launches);
	if (!launches)
		return;
	height = mean_width(width, launches);
	if (call->by_event)
		ADD(process->sure_event_heights, height);
	else
		ADD(process->sure_heights, height);
	ADD(process->sure_area, length * height >> FRACTION_BITS);
}

/* End the span of a stream, if this synchronisation waited for all of it. */
INLINE void end_span(struct process *process, struct stream *stream, struct call *call, u64 now,
		     u64 watched_since)
{
	u64 since, launches, width, length;

	if (!READ_ONCE(stream->since))
		return;
	if (call->stream != EVERY_STREAM && READ_ONCE(stream->key) != call->stream)
		return;
	if (READ_ONCE(stream->last) > call->before)
		return;
	since = EXCHANGE(stream->since, 0);
	launches = EXCHANGE(stream->launches, 0);
	width = EXCHANGE(stream->width, 0);
	if (since < watched_since || since > now)
		return;
	length = now - since;
	ADD(process->spans, 1);
	ADD(process->flight, length);
	ADD(process->area, length * mean_width(width, launches ? launches : 1) >> FRACTION_BITS);
	add_sure(process, stream, call, now);
}

/* A synchronisation returns: the streams that it waited for are idle. */
SEC("uprobe/return")
int wait_returns(struct registers *regs)
{
	u64 pid = current_pid(), thread = current_pid_tgid(), now, *since;
	struct call *found = map_lookup(&calls, &thread), call;
	struct process *process;
	int i;

	if (!found)
		return 0;
	call = *found;
	map_delete(&calls, &thread);
	now = boot_ns();
	process = map_lookup(&processes, &pid);
	if (!process)
		return 0;
	if ((u32)RESULT(regs)) {
		if (!READ_ONCE(process->failed))
			WRITE_ONCE(process->failed, now);
		return 0;
	}
	since = number(WATCHED_SINCE);
	if (!since)
		return 0;
	for (i = 0; i < STREAMS; i++)
		end_span(process, &process->streams[i], &call, now, *since);
	return 0;
}

/* -- programs: one for each kind of function, and one for its variant with per-thread streams ------ */

#define PROGRAM(name, body)                                                                        \
	SEC("uprobe/" #name)                                                                       \
	int on_##name(struct registers *regs)                                                      \
	{                                                                                          \
		body;                                                                              \
	}

PROGRAM(launch, return launch_kernel(regs, 0))
PROGRAM(launch_ptsz, return launch_kernel(regs, 1))
PROGRAM(launch_ex, return launch_kernel_ex(regs, 0))
PROGRAM(launch_ex_ptsz, return launch_kernel_ex(regs, 1))
PROGRAM(graph, return launch(0, ARGUMENT_1(regs), 1, 0))
PROGRAM(graph_ptsz, return launch(0, ARGUMENT_1(regs), 1, 1))
PROGRAM(record, return record(regs, 0))
PROGRAM(record_ptsz, return record(regs, 1))
PROGRAM(wait_every, return wait(EVERY_STREAM, 0, 0))
PROGRAM(wait_stream, return wait(stream_key(ARGUMENT_0(regs), 0), 0, 0))
PROGRAM(wait_stream_ptsz, return wait(stream_key(ARGUMENT_0(regs), 1), 0, 0))
PROGRAM(wait_default, return wait(stream_key(0, 0), 0, 0))
PROGRAM(wait_default_ptsz, return wait(stream_key(0, 1), 0, 0))
PROGRAM(wait_event, return wait(EVERY_STREAM, ARGUMENT_0(regs), 1))

SEC("uprobe/begin_capture")
int on_begin_capture(struct registers *regs)
{
	u64 now = boot_ns();
	struct process *process = process_of(current_pid(), now);

	if (process) {
		ADD(process->captures, 1);
		WRITE_ONCE(process->capturing, now);
	}
	return 0;
}

SEC("uprobe/end_capture")
int on_end_capture(struct registers *regs)
{
	u64 pid = current_pid();
	struct process *process = map_lookup(&processes, &pid);

	if (process)
		WRITE_ONCE(process->capturing, 0);
	return 0;
}
