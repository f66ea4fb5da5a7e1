// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * BPF programs for the uprobes on libcuda. They count kernel launches by process, and measure how long
 * work is in flight on each CUDA stream: from its first launch until a synchronisation returns that
 * waited for its last one. Such a time is a span. They also record the last launch of each kernel, by its
 * handle, and send what libcuda is asked about handles: names, and the kernels of graphs.
 *
 * build.sh compiles this file to probes.MACHINE.o, which is checked in; a test compiles it again and
 * compares. loader.py creates the maps and loads the programs; probes.py lists the functions that
 * each is attached to. The programs read the saved registers of the probed function, of a fixed layout,
 * and no other kernel data. So they need no vmlinux.h and no CO-RE, but Linux 5.12 (atomic exchange).
 *
 * A workload chooses all arguments. A failed read of its memory yields 0. Its threads run the programs
 * concurrently: a shared number changes by one atomic operation, or by a store that may be lost.
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

#define HELPER(name, result, ...) static result (*const bpf_##name)(__VA_ARGS__) = (void *)BPF_FUNC_##name
HELPER(map_lookup_elem, void *, void *map, const void *key);
HELPER(map_update_elem, long, void *map, const void *key, const void *value, u64 flags);
HELPER(map_delete_elem, long, void *map, const void *key);
HELPER(get_current_pid_tgid, u64, void);
HELPER(probe_read_user, long, void *to, u32 size, const void *from);
HELPER(probe_read_user_str, long, void *to, u32 size, const void *from);
HELPER(ktime_get_boot_ns, u64, void);
HELPER(get_current_uid_gid, u64, void);
HELPER(get_current_cgroup_id, u64, void);
HELPER(ringbuf_reserve, void *, void *ring, u64 size, u64 flags);
HELPER(ringbuf_submit, void, void *data, u64 flags);
HELPER(ringbuf_discard, void, void *data, u64 flags);

/* bpf_probe_read_user() is for programs under a GPL-compatible license only. */
char _license[] SEC("license") = "Dual BSD/GPL";

/* -- registers of the probed function ---------------------------------------------------------- */

#if defined(MACHINE_X86_64) /* struct pt_regs, arch/x86/include/asm/ptrace.h; System V ABI */
struct registers {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	u64 orig_ax, ip, cs, flags, sp, ss;
};
#define ARGUMENT_0(regs) ((regs)->di)
#define ARGUMENT_1(regs) ((regs)->si)
#define ARGUMENT_2(regs) ((regs)->dx)
#define ARGUMENT_3(regs) ((regs)->cx)
#define ARGUMENT_4(regs) ((regs)->r8)
#define ARGUMENT_5(regs) ((regs)->r9)
#define ARGUMENT_6_ADDRESS(regs) ((regs)->sp + 8) /* after the return address; then 7 and 8 */
#define ARGUMENT_8_ADDRESS(regs) (ARGUMENT_6_ADDRESS(regs) + 8 * (8 - 6))
#define RESULT(regs) ((regs)->ax)
#define CODE(regs) ((regs)->ip)
#elif defined(MACHINE_AARCH64) /* struct user_pt_regs, arch/arm64/include/uapi/asm/ptrace.h; AAPCS64 */
struct registers { u64 x[31], sp, pc, pstate; };
#define ARGUMENT_0(regs) ((regs)->x[0])
#define ARGUMENT_1(regs) ((regs)->x[1])
#define ARGUMENT_2(regs) ((regs)->x[2])
#define ARGUMENT_3(regs) ((regs)->x[3])
#define ARGUMENT_4(regs) ((regs)->x[4])
#define ARGUMENT_5(regs) ((regs)->x[5])
#define ARGUMENT_6(regs) ((regs)->x[6])
#define ARGUMENT_8_ADDRESS(regs) ((regs)->sp)
#define RESULT(regs) ((regs)->x[0])
#define CODE(regs) ((regs)->pc)
#else
#error "define MACHINE_X86_64 or MACHINE_AARCH64"
#endif

/* -- what the exporter reads: probes.py has the same fields in the same order ------------------ */

#define STREAMS 16
#define MOST_DEVICES 64
#define FRACTION_BITS 4
#define MEAN_WIDTH(width, launches) (((width) << FRACTION_BITS) / (launches)) /* in 16ths of an SM */

/*
 * The width of a kernel is the number of SMs that it occupies; fields named width are sums over
 * kernels. A burst is the last part of a span without a pause between launches.
 */
struct stream {
	u64 key; /* see stream_key(); 0: no stream has used this slot yet */
	u64 since, last; /* the begin of the span (0: the stream is idle), and its last launch */
	u64 launches, width, widest; /* the width of the widest kernel */
	u64 copied; /* when the last copy to the host was called that took so long that the GPU was behind */
	u64 waited; /* `called` of the last wait for all of it that has not returned; 0: none */
	u64 burst_since, burst_launches, burst_width; /* burst_since is 0 if launches were missed, or it had a long copy */
	u64 burst_gaps; /* the widths, each multiplied by the gap before its kernel: see launch() */
	u64 kernels; /* a bit for each entry of `struct kernels` that was launched in the span */
};

struct process {
	u64 first; /* the time of its first call */
	u64 kernels, graphs, graph_kernels, syncs, records, uploads; /* uploads are copies to the GPU */
	u64 contexts; /* calls that change the current context, first calls, and begins and ends of captures */
	u64 context_syncs; /* those of `syncs` that wait for a context, or end one or a stream */
	u64 queries, lookups; /* lookups are calls of functions that some programs call often: see tell_once() */
	u64 unnamed; /* messages that were lost because too many came at once, and launches without room */
	u64 changes; /* messages other than SAME: what was the same before may be another now */
	u64 hidden; /* the last launch with an end that may be missed: it is not counted, or its stream has no slot of its own */
	u64 code; /* the address of cuInit: it changes if the process executes another program */
	/* Copies within the GPU and memsets, and the bytes that these read and write; copies from and to the host. */
	u64 copies, copied, transfers, transferred, graph_copies; /* copies in launched graphs are in both */
	/* Ended spans: their number, length, and length times mean width and times the greatest width. */
	u64 spans, flight, area, bound;
	u64 widths;
	/* Bursts at whose end the client had to wait, so that the GPU was busy all along. */
	u64 sure_area, sure_widths, sure_gaps, sure_heights, sure_event_heights;
	u64 launched, failed; /* the last launch, and the first synchronisation that failed */
	u64 initialized; /* the first call of cuInit, which precedes all launches */
	u64 synced; /* when the last synchronisation of a whole context was called that succeeded */
	u64 answered; /* the last query that ended a span */
	u64 capturing; /* since when a graph is captured; 0: none is */
	u64 captures, captured, captured_width; /* captures, and the kernels in them */
	u64 captured_widest; /* the width of the widest one; ~0: some were missed */
	u64 captured_copies, captured_bytes;
	u64 zero; /* always 0; the verifier does not know this, so it checks one path for all streams */
	u64 busy, gaps; /* time with work in flight on any stream, and short times between */
	u64 busy_since, idle_since; /* the last time that work was in flight, and the end of it */
	struct stream streams[STREAMS];
};

/*
 * A kernel or graph that a process launched, with its last launch. It came into flight at `since`, and a synchronisation
 * that waited for it returned at `until` (0: none has). `completed` are the launches before `since`.
 */
struct kernel {
	u64 handle; /* CUfunction, CUkernel or CUgraphExec; 0: the entry is free */
	u64 since, until, last, flight, launches, completed, stream;
	u32 grid[3], block[3];
};

#define KERNELS 64
struct kernels { struct kernel all[KERNELS]; };

/*
 * A message about a handle of a process. NAMED: `value` is a function of the module or library `of`, and a text follows.
 * SAME: `value` is the same as `of`. ADDED: the graph `of` has a node of `value`. REPLACED: so has the executable graph
 * `of`, in place of another node; 0: any graph. CAPTURED: the graph `value` has `of` kernels; their handles follow. GONE: `value`
 * and all that belongs to it no longer exist. ANEW: the process executes another program.
 */
enum { NAMED, SAME, ADDED, CAPTURED, GONE, ANEW, REPLACED };
struct message { u32 pid, kind; u64 at, value, of; };

/* -- maps: all are bounded; the LRU maps forget their oldest entries --------------------------- */

struct call { /* the synchronisation that a thread is in */
	u64 process; /* its key: see process_key() */
	u64 stream; /* its key, or EVERY_STREAM */
	u64 before; /* launches until then are done when it returns */
	u64 called, kind; /* the lowest bits of `called` are the kind */
};

struct question { /* what a thread asked last, without another call since; `called` is 0 after one */
	struct call call; /* `called` is its first question */
	u64 event, previous, at; /* the last two questions; `previous` is 0 if there was only one */
};

struct handle { u64 pid, value; }; /* of an event, a stream or a context of a process */
struct recording { u64 process, stream, at; };
/*
 * The contexts that a thread has pushed; the last one is current. `device` is that of the current one, plus one (0: not
 * known yet): the CUDA runtime makes a primary context current before it retains it, which shows its device.
 */
#define DEPTH 4
struct current { u32 depth, device; u64 contexts[DEPTH]; };
struct map_definition { u32 type, key_size, value_size, max_entries; };
enum { WATCHED_SINCE, LOST, ALL_SMS, SEVERAL_GPUS, RARE_SINCE, QUERIES_SINCE, NAMES_SINCE, LOOKUPS_SINCE, NUMBERS };

/* What a thread asks libcuda: the address `value` receives a handle. `text` is the address of its name, or one of these. */
struct lookup { u64 value, of, text; };
#define SAME_AS_OF 0 /* it is the same as `of` */
#define END_OF_CAPTURE ~0ULL
#define BODIES ~1ULL /* `value` has the number of bodies of a node of the graph `of`, and the address of their handles */
#define MOST_BODIES 4
#define OLD_CONTEXT ~2ULL /* `of` is a device */
#define NEW_CONTEXT ~3ULL
struct rate { u64 second, bytes; };
struct relation { u64 of, changes; };
#define CAPTURED_KERNELS 48
/* The different kernels that a thread captures; `number` can be larger, as if two captures are mixed. */
struct capture { u64 thread, number, kernels[CAPTURED_KERNELS]; };

#define MAP(name, type, key, value, entries) \
	struct map_definition name SEC("maps") = { type, sizeof(key), sizeof(value), entries }

MAP(processes, BPF_MAP_TYPE_HASH, u64, struct process, 2048); /* by process_key() */
MAP(calls, BPF_MAP_TYPE_LRU_HASH, u64, struct call, 4096); /* by pid_tgid */
MAP(questions, BPF_MAP_TYPE_LRU_HASH, u64, struct question, 4096); /* by pid_tgid */
MAP(events, BPF_MAP_TYPE_LRU_HASH, struct handle, struct recording, 32768);
/* On nodes with several GPUs: devices by context, the contexts of threads, and processes by stream. */
MAP(contexts, BPF_MAP_TYPE_LRU_HASH, struct handle, u32, 4096);
MAP(currents, BPF_MAP_TYPE_LRU_HASH, u64, struct current, 8192);
MAP(streams, BPF_MAP_TYPE_LRU_HASH, struct handle, u64, 8192);
/* How many SMs a process may use, by PID, if not all. The exporter writes it. */
MAP(sm_limits, BPF_MAP_TYPE_HASH, u64, u64, 2048);
/* Since when each group is attached (~0: it is not), launches without room, the SMs of a GPU, and several GPUs. */
MAP(numbers, BPF_MAP_TYPE_ARRAY, u32, u64, NUMBERS);
/* An empty process, and what else is too large for a program's stack. */
MAP(blank, BPF_MAP_TYPE_ARRAY, u32, struct process, 1);
MAP(no_kernels, BPF_MAP_TYPE_ARRAY, u32, struct kernels, 1);
MAP(no_capture, BPF_MAP_TYPE_ARRAY, u32, struct capture, 1);
MAP(kernels_of, BPF_MAP_TYPE_HASH, u64, struct kernels, 896); /* by process_key() */
MAP(lookups, BPF_MAP_TYPE_LRU_HASH, u64, struct lookup, 1024); /* by pid_tgid */
MAP(captures, BPF_MAP_TYPE_LRU_HASH, u64, struct capture, 256); /* by PID, of which one thread captures */
MAP(same, BPF_MAP_TYPE_LRU_HASH, struct handle, struct relation, 4096); /* what messages reported of handles */
MAP(rates, BPF_MAP_TYPE_LRU_HASH, u64, struct rate, 1024); /* by UID, and by cgroup */
struct map_definition messages SEC("maps") = { BPF_MAP_TYPE_RINGBUF, 0, 0, 1 << 21 }; /* bytes */

/* -- parts of several programs ----------------------------------------------------------------- */

#define LEGACY_STREAM 1 /* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in cuda.h; 0 is either */
#define PER_THREAD_STREAM 2
#define EVERY_STREAM 0

enum { PLAIN, CONTEXT, BY_EVENT, COPY, DESTROY, KINDS = 8 }; /* kinds of synchronisations */

INLINE u64 current_pid(void) { return bpf_get_current_pid_tgid() >> 32; }
INLINE u64 *number(u32 index) { return bpf_map_lookup_elem(&numbers, &index); }
INLINE struct process *find_process(u64 key) { return bpf_map_lookup_elem(&processes, &key); }

/*
 * What identifies a process: its PID. If the node has several GPUs, also the device of the current
 * context, plus one: each device has counts of its own.
 */
INLINE u64 process_key(void)
{
	u64 thread = bpf_get_current_pid_tgid(), *several = number(SEVERAL_GPUS);
	struct handle context = { thread >> 32, 0 };
	struct current *current;
	u32 *device;

	if (!several || !*several)
		return thread >> 32;
	current = bpf_map_lookup_elem(&currents, &thread);
	if (!current || !current->depth)
		return thread >> 32;
	if (!current->device) {
		context.value = current->contexts[(current->depth - 1) & (DEPTH - 1)];
		device = bpf_map_lookup_elem(&contexts, &context);
		current->device = device ? *device : 0;
	}
	return thread >> 32 | (u64)current->device << 32;
}

/* The key of the process that launched on a stream: a wait need not have its context current. */
INLINE u64 process_of_stream(u64 stream)
{
	u64 *several = number(SEVERAL_GPUS), *found;
	struct handle key = { current_pid(), stream };

	if (!several || !*several || stream == EVERY_STREAM)
		return process_key();
	found = bpf_map_lookup_elem(&streams, &key);
	return found ? *found : process_key();
}

/*
 * What identifies a stream within its process; never 0. A handle is an address, a multiple of 8. To
 * functions for per-thread default streams (their names end with _ptsz), 0 is the thread's stream.
 */
INLINE u64 stream_key(u64 handle, int ptsz)
{
	if (handle == 0)
		handle = ptsz ? PER_THREAD_STREAM : LEGACY_STREAM;
	if (handle == PER_THREAD_STREAM)
		return (u64)(u32)bpf_get_current_pid_tgid() << 8 | PER_THREAD_STREAM;
	return handle;
}

/* Return the process, created if it is new; NULL if there is no room. */
INLINE struct process *get_process(u64 key, u64 now)
{
	struct process *process = find_process(key), *empty;
	u32 zero = 0;

	if (process)
		return process;
	empty = bpf_map_lookup_elem(&blank, &zero);
	if (!empty)
		return 0;
	bpf_map_update_elem(&processes, &key, empty, BPF_NOEXIST);
	process = find_process(key);
	if (process)
		COMPARE_EXCHANGE(process->first, 0, now);
	return process;
}

/* -- kernels ----------------------------------------------------------------------------------- */

/* The first argument of cuLaunchKernel and its equals: CUfunction, CUkernel or CUgraphExec; its stream, grid and block. */
struct launched { u64 handle, stream; u32 grid[3], block[3]; };

#define FIRST_ENTRY(handle) ((handle) * 0x9E3779B97F4A7C15ULL >> 58)
#define WAYS 8 /* how many entries, from the first one on, a handle can have */

/* Return the entry of a handle. If there is none, the handle replaces the one with the oldest last launch. */
INLINE u64 kernel_index(struct process *process, struct kernels *kernels, u64 handle)
{
	u64 first = FIRST_ENTRY(handle), oldest = ~0ULL, index = first, at, known;
	struct kernel *kernel;

#pragma nounroll
	for (u64 i = 0; i < WAYS; i++) {
		at = (first + i) & (KERNELS - 1);
		kernel = &kernels->all[at];
		known = READ_ONCE(kernel->handle);
		if (known == 0)
			known = COMPARE_EXCHANGE(kernel->handle, 0, handle) ?: handle;
		if (known == handle)
			return at;
		if (READ_ONCE(kernel->last) < oldest) {
			oldest = READ_ONCE(kernel->last);
			index = at;
		}
	}
	index &= KERNELS - 1;
	kernel = &kernels->all[index];
	__builtin_memset(kernel, 0, sizeof(*kernel));
	WRITE_ONCE(kernel->handle, handle);
#pragma nounroll
	for (u64 i = 0; i < STREAMS; i++)
		(void)__sync_fetch_and_and(&process->streams[i].kernels, ~(1ULL << index));
	return index;
}

/* Record a launch. Those after a failed synchronisation fail as well, and do not replace what was in flight. */
INLINE void remember(struct process *process, u64 owner, struct stream *stream, struct launched *launched, u64 now)
{
	struct kernels *kernels = bpf_map_lookup_elem(&kernels_of, &owner), *empty;
	u64 *watched = number(WATCHED_SINCE), index, since;
	struct kernel *kernel;
	u32 zero = 0;

	if (READ_ONCE(process->failed) || !watched)
		return;
	if (!kernels) {
		empty = bpf_map_lookup_elem(&no_kernels, &zero);
		if (!empty)
			return;
		bpf_map_update_elem(&kernels_of, &owner, empty, BPF_NOEXIST);
		kernels = bpf_map_lookup_elem(&kernels_of, &owner);
	}
	if (!kernels) {
		ADD(process->unnamed, 1);
		return;
	}
	index = kernel_index(process, kernels, launched->handle) & (KERNELS - 1);
	kernel = &kernels->all[index];
	since = READ_ONCE(kernel->since);
	if (!since || since < *watched || READ_ONCE(kernel->until)) {
		WRITE_ONCE(kernel->completed, READ_ONCE(kernel->launches));
		WRITE_ONCE(kernel->since, now);
		WRITE_ONCE(kernel->until, 0);
	}
	if (!(READ_ONCE(stream->kernels) & 1ULL << index))
		(void)__sync_fetch_and_or(&stream->kernels, 1ULL << index);
	ADD(kernel->launches, 1);
	WRITE_ONCE(kernel->last, now);
	kernel->stream = launched->stream;
	__builtin_memcpy(kernel->grid, launched->grid, sizeof(launched->grid) + sizeof(launched->block));
}

/* So long after the last launch, what no call waits for counts as done: programs never wait for some streams. */
#define DONE_NS 1000000000ULL

/* The kernels with these bits are in flight no more. Their synchronisation was called at `called`. */
INLINE void end_kernels(u64 owner, u64 bits, u64 called, u64 now)
{
	struct kernels *kernels = bits ? bpf_map_lookup_elem(&kernels_of, &owner) : 0;
	struct kernel *kernel;
	u64 since, last;

	if (!kernels)
		return;
#pragma nounroll
	for (u64 i = 0; i < KERNELS && bits; i++, bits >>= 1) {
		kernel = &kernels->all[i];
		since = READ_ONCE(kernel->since);
		if (!(bits & 1) || READ_ONCE(kernel->until) || since > now)
			continue;
		WRITE_ONCE(kernel->until, now);
		last = READ_ONCE(kernel->last);
		ADD(kernel->flight, (last + DONE_NS < called ? last : now) - since);
	}
}

/* -- launches ---------------------------------------------------------------------------------- */

/* After such a pause a new burst begins: the GPU may have been idle in between. */
#define PAUSE_NS 300000ULL

/* A capture that fails has no end that a probe sees. After this time it counts as ended. */
#define CAPTURE_NS 60000000000ULL

/*
 * Return the slot of a stream. Prefer a slot that no stream has used to one of an idle stream: a
 * thread may be launching on that just now. Streams without a slot share the last one.
 */
INLINE struct stream *get_slot(struct process *process, u64 key)
{
	struct stream *stream;
	u64 owner, i;

#pragma nounroll
	for (i = 0; i < STREAMS; i++) {
		stream = &process->streams[i];
		owner = READ_ONCE(stream->key);
		if (owner == 0)
			owner = COMPARE_EXCHANGE(stream->key, 0, key) ?: key;
		if (owner == key)
			goto found;
	}
#pragma nounroll
	for (i = 0; i < STREAMS - 1; i++) {
		stream = &process->streams[i];
		if (READ_ONCE(stream->since))
			continue;
		owner = READ_ONCE(stream->key);
		if (COMPARE_EXCHANGE(stream->key, owner, key) == owner)
			goto found;
	}
	WRITE_ONCE(process->hidden, bpf_ktime_get_boot_ns());
found:
	return &process->streams[(i + READ_ONCE(process->zero)) & (STREAMS - 1)];
}

/* After a longer pause the client had nothing to do. A shorter one is its work on the CPU. */
#define IDLE_NS 10000000ULL

INLINE int is_busy(struct process *process, u64 now)
{
	struct stream *each = process->streams;
	int busy = 0;

	for (int i = 0; i < STREAMS; i++, each++)
		if (READ_ONCE(each->since) && (READ_ONCE(each->waited) || READ_ONCE(each->last) + DONE_NS > now))
			busy = 1;
	return busy;
}

INLINE void begin_busy(struct process *process, u64 now)
{
	u64 idle_since = READ_ONCE(process->idle_since);

	if (now > idle_since && now - idle_since < IDLE_NS)
		ADD(process->gaps, now - idle_since);
	WRITE_ONCE(process->busy_since, now);
}

/* End the span of a stream. Return whether there was one. */
INLINE int end_span(struct process *process, struct stream *stream, u64 now)
{
	u64 since = EXCHANGE(stream->since, 0), launches = EXCHANGE(stream->launches, 0);
	u64 width = EXCHANGE(stream->width, 0), widest = EXCHANGE(stream->widest, 0), length = now - since;

	WRITE_ONCE(stream->kernels, 0);
	if (!since || since > now)
		return 0;
	ADD(process->spans, 1);
	ADD(process->flight, length);
	ADD(process->area, length * MEAN_WIDTH(width, launches ?: 1) >> FRACTION_BITS);
	ADD(process->bound, length * widest);
	return 1;
}

/*
 * Add kernels to the span of a stream, or begin one. A span from before `watched_since` ends: its work may have ended at
 * any time. `width` is the sum of the kernels, and `widest` that of one.
 */
INLINE void add_to_stream(struct process *process, struct stream *stream, u64 now, u64 watched_since,
			  u64 kernels, u64 width, u64 widest, u64 gaps)
{
	u64 since = READ_ONCE(stream->since);
	int begins = since == 0 || since < watched_since;

	if ((begins || now - READ_ONCE(stream->last) >= DONE_NS) && !is_busy(process, now))
		begin_busy(process, now);
	if (begins) {
		if (since)
			end_span(process, stream, now);
		COMPARE_EXCHANGE(stream->since, 0, now);
		WRITE_ONCE(stream->waited, 0);
	}
	if (begins || now - READ_ONCE(stream->last) >= PAUSE_NS) {
		WRITE_ONCE(stream->burst_since, now);
		WRITE_ONCE(stream->burst_launches, 0);
		WRITE_ONCE(stream->burst_width, 0);
		WRITE_ONCE(stream->burst_gaps, 0);
	}
	ADD(stream->launches, kernels);
	ADD(stream->burst_launches, kernels);
	ADD(stream->width, width);
	if (widest > READ_ONCE(stream->widest))
		WRITE_ONCE(stream->widest, widest);
	ADD(stream->burst_width, width);
	ADD(stream->burst_gaps, width * gaps);
	WRITE_ONCE(stream->last, now);
}

/* Return the process that calls, or count the call as lost. */
INLINE struct process *get_caller(u64 owner, u64 now)
{
	struct process *process = get_process(owner, now);
	u64 *lost = number(LOST);

	if (!process && lost)
		ADD(*lost, 1);
	return process;
}

/* Add work to a stream of a process; return the stream. See add_to_stream(). */
INLINE struct stream *begin_work(struct process *process, u64 owner, u64 key, u64 now, u64 kernels, u64 width,
				 u64 widest, u64 gaps)
{
	struct handle handle = { current_pid(), key };
	struct stream *stream = get_slot(process, key);
	u64 *since = number(WATCHED_SINCE);

	WRITE_ONCE(process->launched, now);
	if (owner >> 32)
		bpf_map_update_elem(&streams, &handle, &owner, BPF_ANY);
	if (since)
		add_to_stream(process, stream, now, *since, kernels, width, widest, gaps);
	return stream;
}

INLINE int is_capturing(struct process *process, u64 now)
{
	u64 since = READ_ONCE(process->capturing);

	return since && now - since <= CAPTURE_NS;
}

/* A launch in a capture adds a node of the kernel to the graph. */
INLINE void add_to_capture(u64 handle)
{
	u64 thread = bpf_get_current_pid_tgid(), pid = thread >> 32;
	struct capture *capture = bpf_map_lookup_elem(&captures, &pid);

	if (!capture || capture->thread != thread)
		return;
#pragma nounroll
	for (u64 i = 0; i < CAPTURED_KERNELS && i < capture->number; i++)
		if (capture->kernels[i] == handle)
			return;
	if (capture->number < CAPTURED_KERNELS)
		capture->kernels[capture->number & 63] = handle;
	capture->number++;
}

/* A launch of a kernel of so many blocks, or of a graph. */
INLINE int launch(struct launched *launched, u64 blocks, int graph, int ptsz)
{
	u64 pid = current_pid(), owner = process_key(), key = stream_key(launched->stream, ptsz);
	u64 now = bpf_ktime_get_boot_ns();
	u64 width = blocks, widest, kernels = 1, captured, captures, copies, *limit, *rare;
	struct process *process = get_caller(owner, now);
	struct stream *stream;

	if (!process)
		return 0;

	/* A kernel is no wider than the SMs that its process may use. */
	limit = bpf_map_lookup_elem(&sm_limits, &pid) ?: number(ALL_SMS);
	if (!limit)
		return 0;
	if (graph || width > *limit)
		width = *limit;
	widest = width;
	launched->stream = key;

	if (graph) { /* its kernels are the average of what was captured, if anything was */
		captured = READ_ONCE(process->captured);
		captures = READ_ONCE(process->captures);
		rare = number(RARE_SINCE);
		if (captures) {
			copies = (READ_ONCE(process->captured_copies) + captures - 1) / captures;
			ADD(process->copies, copies);
			ADD(process->graph_copies, copies);
			ADD(process->copied, READ_ONCE(process->captured_bytes) / captures);
		}
		if (captured && captures) {
			width = READ_ONCE(process->captured_width) / captures;
			kernels = captured / captures;
			if (rare && process->first >= *rare && READ_ONCE(process->captured_widest) < widest)
				widest = READ_ONCE(process->captured_widest);
		}
		ADD(process->graphs, 1);
		ADD(process->graph_kernels, kernels);
	} else if (is_capturing(process, now)) { /* it does not run */
		ADD(process->captured, 1);
		ADD(process->captured_width, width);
		if (width > READ_ONCE(process->captured_widest))
			WRITE_ONCE(process->captured_widest, width);
		add_to_capture(launched->handle);
		WRITE_ONCE(process->hidden, now); /* it does run if its stream is not captured */
		return 0;
	} else {
		ADD(process->kernels, 1);
	}
	ADD(process->widths, width);
	/* Within a graph, the gap before a kernel is 1 unit; before other kernels it is 2. */
	stream = begin_work(process, owner, key, now, kernels, width, widest, graph ? 1 : 2);
	remember(process, owner, stream, launched, now);
	return 0;
}

/* In bytes moved. A longer copy hides the kernel time of its burst; a shorter one takes no longer than a small kernel. */
#define SHORT_COPY (1ULL << 20)

/*
 * A copy within the GPU, or a memset: both run on SMs. A copy of unknown direction counts as one, too. `bytes` is what it
 * reads and writes in the GPU's memory.
 */
INLINE int copy(u64 bytes, u64 handle, int ptsz)
{
	u64 owner = process_key(), now = bpf_ktime_get_boot_ns();
	struct process *process = get_caller(owner, now);
	struct stream *stream;

	if (!process)
		return 0;
	if (is_capturing(process, now)) {
		ADD(process->captured_copies, 1);
		ADD(process->captured_bytes, bytes);
		return 0;
	}
	ADD(process->copies, 1);
	ADD(process->copied, bytes);
	stream = begin_work(process, owner, stream_key(handle, ptsz), now, 0, 0, 0, 0);
	if (bytes > SHORT_COPY)
		WRITE_ONCE(stream->burst_since, 0);
	return 0;
}

/* A copy between the host and the GPU, by a copy engine. */
INLINE int transfer(u64 bytes)
{
	struct process *process = get_process(process_key(), bpf_ktime_get_boot_ns());

	if (process) {
		ADD(process->transfers, 1);
		ADD(process->transferred, bytes);
	}
	return 0;
}

/*
 * A copy of a rectangle or box. `from`, `to` and `extents` are indices of 8-byte words of its description
 * (CUDA_MEMCPY2D_st, CUDA_MEMCPY3D_st in cuda.h): those with the memory types, and the first extent.
 */
#define HOST_MEMORY 1
INLINE int copy_box(const u64 *box, u32 from, u32 to, u32 extents, int dimensions, u64 handle, int ptsz)
{
	u64 bytes = 1, extent;
	u32 source, destination;

	bpf_probe_read_user(&source, sizeof(source), box + from);
	bpf_probe_read_user(&destination, sizeof(destination), box + to);
	for (int i = 0; i < dimensions; i++) {
		bpf_probe_read_user(&extent, sizeof(extent), box + extents + i);
		bytes *= extent;
	}
	if ((source == HOST_MEMORY) != (destination == HOST_MEMORY))
		return transfer(bytes);
	return copy(2 * bytes, handle, ptsz);
}

#define BLOCKS(grid) ((u64)(grid)[0] * (grid)[1] * (grid)[2])

/* cuLaunchKernel(function, grid x, y, z, block x, y, z, shared memory, stream, ...) */
INLINE int launch_kernel(struct registers *regs, int ptsz)
{
	struct launched launched = { ARGUMENT_0(regs), 0, { ARGUMENT_1(regs), ARGUMENT_2(regs), ARGUMENT_3(regs) },
				     { ARGUMENT_4(regs), ARGUMENT_5(regs) } };

#ifdef ARGUMENT_6_ADDRESS
	bpf_probe_read_user(&launched.block[2], sizeof(launched.block[2]), (void *)ARGUMENT_6_ADDRESS(regs));
#else
	launched.block[2] = ARGUMENT_6(regs);
#endif
	bpf_probe_read_user(&launched.stream, sizeof(launched.stream), (void *)ARGUMENT_8_ADDRESS(regs));
	return launch(&launched, BLOCKS(launched.grid), 0, ptsz);
}

/* cuLaunchKernelEx(config, function, ...): struct CUlaunchConfig_st has grid and block, and the stream at byte 32. */
INLINE int launch_kernel_ex(struct registers *regs, int ptsz)
{
	u64 config = ARGUMENT_0(regs);
	struct launched launched = { .handle = ARGUMENT_1(regs) };

	bpf_probe_read_user(launched.grid, sizeof(launched.grid) + sizeof(launched.block), (void *)config);
	bpf_probe_read_user(&launched.stream, sizeof(launched.stream), (void *)(config + 32));
	return launch(&launched, BLOCKS(launched.grid), 0, ptsz);
}

INLINE int launch_other(u64 handle, u64 stream, u64 blocks, int graph, int ptsz)
{
	struct launched launched = { .handle = handle, .stream = stream, .grid[0] = !graph }; /* a graph has no grid */

	return launch(&launched, blocks, graph, ptsz);
}

/* -- messages ---------------------------------------------------------------------------------- */

#define LONG_TEXT 4096 /* with its end */
#define SHORT_TEXT 256
/* What a user, and a cgroup, can send in a second. Twice as much leaves room in the ring, which is read once a second. */
#define MOST_BYTES (7ULL << 17)
#define CGROUP 1ULL << 63
#define ROOT_CGROUP 1 /* of all processes on nodes with cgroup v1 */

struct short_message { struct message message; char text[SHORT_TEXT]; };
struct long_message { struct message message; char text[LONG_TEXT]; };
struct captured_message { struct message message; u64 kernels[CAPTURED_KERNELS]; };

INLINE int has_room(u64 who, u64 now, u64 bytes)
{
	struct rate *found = bpf_map_lookup_elem(&rates, &who), rate = { now / 1000000000, 0 };

	if (found && found->second == rate.second)
		rate.bytes = found->bytes;
	rate.bytes += bytes;
	bpf_map_update_elem(&rates, &who, &rate, BPF_ANY);
	return rate.bytes <= MOST_BYTES;
}

/*
 * Return room in the ring. NULL: it is full, or the user or cgroup has sent too much. Then all that is known of the process
 * may be wrong. All containers may be of root, who can become any user; and a user may have many cgroups.
 */
INLINE void *message(u32 kind, u64 value, u64 of, u64 bytes)
{
	u64 now = bpf_ktime_get_boot_ns(), cgroup = bpf_get_current_cgroup_id();
	u32 uid = bpf_get_current_uid_gid();
	struct process *process = get_process(current_pid(), now);
	struct message *into = 0;

	if ((!uid || has_room(uid, now, bytes)) && (cgroup <= ROOT_CGROUP || has_room(cgroup | CGROUP, now, bytes)))
		into = bpf_ringbuf_reserve(&messages, bytes, 0);
	if (into)
		*into = (struct message){ current_pid(), kind, now, value, of };
	else if (process)
		ADD(process->unnamed, 1);
	if (process && kind != SAME && (kind != REPLACED || !of))
		ADD(process->changes, 1);
	return into;
}

INLINE int tell(u32 kind, u64 value, u64 of)
{
	struct message *into = message(kind, value, of, sizeof(struct short_message)); /* a small one takes as much time */

	if (into)
		bpf_ringbuf_submit(into, 0);
	return !!into;
}

/* Programs call some functions before each launch. So what was reported before is not reported again. */
INLINE int tell_once(u32 kind, u64 about, u64 value, u64 of)
{
	struct handle key = { current_pid(), about };
	struct process *process = get_process(current_pid(), bpf_ktime_get_boot_ns());
	struct relation *known = bpf_map_lookup_elem(&same, &key), new = { of, 0 };

	if (process) { /* its counts may have been deleted, with all that is known of it */
		ADD(process->lookups, 1);
		new.changes = process->first + process->changes;
	}
	if ((!known || known->of != of || known->changes != new.changes) && tell(kind, value, of))
		bpf_map_update_elem(&same, &key, &new, BPF_ANY);
	return 0;
}

/* The handle has another meaning from now on, so what was counted for it ends. */
INLINE void forget(u64 handle)
{
	u64 owner = process_key(), first = FIRST_ENTRY(handle);
	struct kernels *kernels = bpf_map_lookup_elem(&kernels_of, &owner);
	struct kernel *kernel;

	if (!kernels)
		return;
#pragma nounroll
	for (u64 i = 0; i < WAYS; i++) {
		kernel = &kernels->all[(first + i) & (KERNELS - 1)];
		if (READ_ONCE(kernel->handle) == handle) {
			__builtin_memset(kernel, 0, sizeof(*kernel));
			WRITE_ONCE(kernel->handle, handle);
		}
	}
}

INLINE int tell_name(u64 value, struct lookup *lookup)
{
	struct short_message *into = message(NAMED, value, lookup->of, sizeof(*into));
	struct long_message *longer;

	if (!into)
		return 0;
	if (bpf_probe_read_user_str(into->text, SHORT_TEXT, (void *)lookup->text) < SHORT_TEXT) {
		bpf_ringbuf_submit(into, 0);
		return 0;
	}
	bpf_ringbuf_discard(into, 0);
	longer = message(NAMED, value, lookup->of, sizeof(*longer));
	if (!longer)
		return 0;
	bpf_probe_read_user_str(longer->text, LONG_TEXT, (void *)lookup->text);
	bpf_ringbuf_submit(longer, 0);
	return 0;
}

/* Keep the address of the name until the call returns: its page may not be in memory yet, and libcuda reads it. */
INLINE int look_up(u64 value, u64 of, u64 text)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct lookup lookup = { value, of, text };

	bpf_map_update_elem(&lookups, &thread, &lookup, BPF_ANY);
	return 0;
}

/* Conditional nodes have graphs, as a loop has a body. */
INLINE int tell_bodies(struct lookup *lookup)
{
	u64 bodies, body;
	u32 number = 0;

	bpf_probe_read_user(&number, sizeof(number), (void *)lookup->value);
	bpf_probe_read_user(&bodies, sizeof(bodies), (void *)(lookup->value + 4));
#pragma nounroll
	for (u64 i = 0; i < MOST_BODIES && i < number; i++) {
		bpf_probe_read_user(&body, sizeof(body), (void *)(bodies + 8 * i));
		tell(ADDED, body, lookup->of);
	}
	return 0;
}

/* Return whether the thread asked for something, and the call succeeded. */
INLINE int take_lookup(struct registers *regs, struct lookup *lookup)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct lookup *found = bpf_map_lookup_elem(&lookups, &thread);

	if (!found)
		return 0;
	*lookup = *found;
	bpf_map_delete_elem(&lookups, &thread);
	return !(u32)RESULT(regs);
}

INLINE int found_handle(struct registers *regs)
{
	struct lookup lookup;
	u64 value = 0;

	if (!take_lookup(regs, &lookup))
		return 0;
	if (lookup.text == BODIES)
		return tell_bodies(&lookup);
	bpf_probe_read_user(&value, sizeof(value), (void *)lookup.value);
	if (!value)
		return 0;
	if (lookup.text == SAME_AS_OF)
		return tell_once(SAME, value, value, lookup.of);
	forget(value);
	return tell_name(value, &lookup);
}

/* Return the kernel of a node. Its description has a CUfunction, or if `kernel` is not 0, at that offset a CUkernel. */
INLINE u64 kernel_of_node(u64 description, u64 kernel)
{
	u64 handle = 0;

	bpf_probe_read_user(&handle, sizeof(handle), (void *)description);
	if (!handle && kernel)
		bpf_probe_read_user(&handle, sizeof(handle), (void *)(description + kernel));
	return handle;
}

#define IN_VERSION_2 56 /* CUDA_KERNEL_NODE_PARAMS_v2_st and later have `kern` at this byte */
#define KERNEL_NODE 0 /* CU_GRAPH_NODE_TYPE_KERNEL and _CONDITIONAL in cuda.h */
#define CONDITIONAL_NODE 13

/*
 * cuGraphAddNode(node, graph, ...): struct CUgraphNodeParams has the type. At byte 16 it has the description of a kernel,
 * at byte 28 the number of bodies, which the call creates.
 */
INLINE int add_any_node(u64 graph, u64 parameters)
{
	u64 thread = bpf_get_current_pid_tgid();
	u32 type = ~0U;

	bpf_probe_read_user(&type, sizeof(type), (void *)parameters);
	bpf_map_delete_elem(&lookups, &thread);
	if (type == CONDITIONAL_NODE)
		return look_up(parameters + 28, graph, BODIES);
	return type == KERNEL_NODE ? tell(ADDED, kernel_of_node(parameters + 16, IN_VERSION_2), graph) : 0;
}

/* A node of an executable graph gets another kernel, or only other parameters of it. */
INLINE int replace_node(u64 graph, u64 kernel)
{
	return tell_once(REPLACED, graph ^ kernel << 16, kernel, graph);
}

INLINE int captured(struct registers *regs)
{
	u64 thread = bpf_get_current_pid_tgid(), pid = thread >> 32, graph = 0;
	struct capture *capture = bpf_map_lookup_elem(&captures, &pid);
	struct captured_message *into;
	struct lookup lookup;
	int succeeded = take_lookup(regs, &lookup) && lookup.text == END_OF_CAPTURE;

	if (!capture || capture->thread != thread)
		return 0;
	if (succeeded)
		bpf_probe_read_user(&graph, sizeof(graph), (void *)lookup.value);
	if (graph && (into = message(CAPTURED, graph, capture->number, sizeof(*into)))) {
		__builtin_memcpy(into->kernels, capture->kernels, sizeof(into->kernels));
		bpf_ringbuf_submit(into, 0);
	}
	bpf_map_delete_elem(&captures, &pid);
	return 0;
}

/* The first call of a process, which creates its entry: without one, the probes came too late. */
INLINE int init(struct registers *regs)
{
	u64 pid = current_pid(), now = bpf_ktime_get_boot_ns(), code = CODE(regs);
	struct process *process = get_process(pid, now);

	if (!process)
		return 0;
	ADD(process->contexts, 1);
	if (EXCHANGE(process->code, code) != code)
		tell(ANEW, 0, 0);
	/* A program may call it again: then it says nothing about what came before. */
	if (READ_ONCE(process->first) == now)
		WRITE_ONCE(process->initialized, now);
	return 0;
}

INLINE int capture(int begins, u64 graph)
{
	u64 key = process_key(), now = bpf_ktime_get_boot_ns(), *since = number(WATCHED_SINCE);
	u64 thread = bpf_get_current_pid_tgid(), pid = thread >> 32;
	struct process *process = begins ? get_process(key, now) : find_process(key);
	struct capture *capture;
	u32 zero = 0, mixed;
	void *empty = bpf_map_lookup_elem(&no_capture, &zero);

	if (!process || !since)
		return 0;
	if (begins && empty) {
		mixed = !!bpf_map_lookup_elem(&captures, &pid);
		bpf_map_update_elem(&captures, &pid, empty, BPF_ANY);
		capture = bpf_map_lookup_elem(&captures, &pid);
		if (capture) {
			capture->thread = thread;
			capture->number = mixed ? CAPTURED_KERNELS + 1 : 0;
		}
	} else if (!begins)
		look_up(graph, 0, END_OF_CAPTURE);
	ADD(process->contexts, 1);
	if (begins)
		ADD(process->captures, 1);
	else if (READ_ONCE(process->capturing) < *since) {
		WRITE_ONCE(process->captured_widest, ~0ULL);
		capture = bpf_map_lookup_elem(&captures, &pid);
		if (capture)
			capture->number = CAPTURED_KERNELS + 1; /* some are missing */
	}
	WRITE_ONCE(process->capturing, begins ? now : 0);
	return 0;
}

/* -- synchronisations -------------------------------------------------------------------------- */

/* A wait of this length found the GPU busy since the burst began. Without work it takes 10 us (H200). */
#define BEHIND_NS 40000ULL

/* cuEventRecord(event, stream): a wait for the event waits for what the stream has now. */
INLINE int record(struct registers *regs, int ptsz)
{
	struct handle key = { current_pid(), ARGUMENT_0(regs) };
	u64 stream = stream_key(ARGUMENT_1(regs), ptsz), owner = process_of_stream(stream);
	struct recording recording = { owner, stream, bpf_ktime_get_boot_ns() };
	struct process *process = find_process(owner);

	if (process) {
		ADD(process->records, 1);
		bpf_map_update_elem(&events, &key, &recording, BPF_ANY);
	}
	return 0;
}

/* cuMemcpyHtoDAsync: its time in flight is no kernel's. */
INLINE int upload(u64 bytes)
{
	struct process *process = find_process(process_key());

	if (process)
		ADD(process->uploads, 1);
	return transfer(bytes);
}

/* The slots that streams use. They are used in order, and never again empty. */
#define FOR_USED(stream, process) \
	for (int i = 0; i < STREAMS && READ_ONCE((stream = &(process)->streams[i])->key); i++)

/* Whether a call waits for all work of a stream, if it has any. */
INLINE int covers(struct call *call, struct stream *stream)
{
	return READ_ONCE(stream->since) && READ_ONCE(stream->last) <= call->before &&
	       (call->stream == EVERY_STREAM || READ_ONCE(stream->key) == call->stream);
}

/* A wait begins. It creates the process too: waits have a cost, which the rate limit counts. */
INLINE int wait(u64 stream, u64 event, int kind)
{
	u64 owner = process_of_stream(stream), thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	u64 called = (now & ~(u64)(KINDS - 1)) | kind, *since = number(WATCHED_SINCE);
	struct call call = { owner, stream, now, called, kind };
	struct handle key = { current_pid(), event };
	struct process *process = get_process(owner, now);
	struct recording *recording;
	struct stream *each;

	if (!process || !since)
		return 0;
	ADD(process->syncs, 1);
	if (kind == CONTEXT || kind == DESTROY)
		ADD(process->context_syncs, 1);
	if (kind == BY_EVENT) {
		recording = bpf_map_lookup_elem(&events, &key);
		process = recording ? find_process(recording->process) : 0;
		if (!process) {
			bpf_map_delete_elem(&calls, &thread); /* the return of an earlier wait may have been missed */
			return 0;
		}
		call.process = recording->process;
		call.stream = recording->stream;
		call.before = recording->at;
	}
	FOR_USED(each, process) {
		if (!covers(&call, each))
			continue;
		if (READ_ONCE(each->burst_since) < *since)
			WRITE_ONCE(each->burst_since, 0);
		if (kind != DESTROY) /* which does not wait */
			WRITE_ONCE(each->waited, called);
	}
	bpf_map_update_elem(&calls, &thread, &call, BPF_ANY);
	return 0;
}

/* Add a burst to what is sure, if the client waited for its end for long, or most of its time. */
INLINE void add_sure(struct process *process, struct stream *stream, struct call *call, u64 now, u64 since)
{
	u64 begun = READ_ONCE(stream->burst_since), length = now - begun, waited = now - call->called;
	u64 width, launches, height, copied = READ_ONCE(stream->copied);

	if (!begun || begun < since)
		return;
	if (copied > READ_ONCE(stream->last) && copied < call->called)
		waited = now - copied;
	if (waited < BEHIND_NS && length > 2 * waited)
		return;
	width = READ_ONCE(stream->burst_width);
	launches = READ_ONCE(stream->burst_launches);
	ADD(process->sure_gaps, READ_ONCE(stream->burst_gaps));
	ADD(process->sure_widths, width);
	if (!launches)
		return;
	height = MEAN_WIDTH(width, launches);
	ADD(*(call->kind == BY_EVENT ? &process->sure_event_heights : &process->sure_heights), height);
	ADD(process->sure_area, length * height >> FRACTION_BITS);
}

/* End the spans that a call waited for, and return whether there were any. Bursts from before `since` are not sure. */
INLINE int done(struct process *process, struct call *call, u64 now, u64 since)
{
	u64 spans = READ_ONCE(process->spans), busy_since, kernels, ended = 0;
	struct stream *stream;

#pragma unroll /* the verifier then needs a quarter of the steps */
	FOR_USED(stream, process) {
		kernels = READ_ONCE(stream->kernels);
		if (covers(call, stream) && end_span(process, stream, now)) {
			add_sure(process, stream, call, now, since);
			ended |= kernels;
		}
	}
	end_kernels(call->process, ended, call->called, now);
	if (READ_ONCE(process->spans) == spans)
		return 0;
	busy_since = READ_ONCE(process->busy_since);
	if (busy_since && now > busy_since && !is_busy(process, now) &&
	    COMPARE_EXCHANGE(process->busy_since, busy_since, 0) == busy_since) {
		ADD(process->busy, now - busy_since);
		WRITE_ONCE(process->idle_since, now);
	}
	return 1;
}

/* Whether all later calls fail too: an error of the GPU, of MPS or of a kernel. See CUresult in cuda.h. */
INLINE int is_fatal(u32 result)
{
	return (result >= 700 && result < 800) || (result >= 805 && result < 810) || result == 999 || result == 214 ||
	       result == 220;
}

/*
 * A wait returns. After an error, its spans have no end. If a copy to the host took long, the client has waited since
 * it was called. It ends no span: only the next synchronisation proves that it has ended, and not just been queued.
 */
INLINE int wait_returns(struct registers *regs)
{
	u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	struct call *found = bpf_map_lookup_elem(&calls, &thread), call;
	struct process *process;
	struct stream *stream;

	if (!found)
		return 0;
	call = *found;
	bpf_map_delete_elem(&calls, &thread);
	process = find_process(call.process);
	if (!process)
		return 0;
#pragma unroll
	FOR_USED(stream, process) {
		if (READ_ONCE(stream->waited) == call.called)
			WRITE_ONCE(stream->waited, 0);
		if (call.kind == COPY && now - call.called >= BEHIND_NS && READ_ONCE(stream->key) == call.stream)
			WRITE_ONCE(stream->copied, call.called);
	}
	if (is_fatal(RESULT(regs)))
		COMPARE_EXCHANGE(process->failed, 0, now);
	if ((u32)RESULT(regs) || call.kind == COPY)
		return 0;
	if (call.kind == CONTEXT && call.called > READ_ONCE(process->synced))
		WRITE_ONCE(process->synced, call.called);
	if (!done(process, &call, now, 0) || call.kind != DESTROY)
		return 0;
	WRITE_ONCE(process->synced, 0); /* what was destroyed may still run, or have failed */
	process = find_process(thread >> 32);
	if (process)
		WRITE_ONCE(process->initialized, 0);
	return 0;
}

/* -- queries ----------------------------------------------------------------------------------- */

/*
 * A thread calls something else than the query that it repeated: the last answer was that the work is done. It ended
 * between the last two questions, and their middle counts as its end. A single question proves nothing: PyTorch's
 * allocator asks once, and goes on. If it asks twice, something was usually launched after that event. A return probe
 * would cost as much again, and breaks C++ exceptions and pthread_cancel.
 */
INLINE int goes_on(void)
{
	u64 thread = bpf_get_current_pid_tgid(), *since = number(QUERIES_SINCE);
	struct question *found = bpf_map_lookup_elem(&questions, &thread), question;
	struct process *process;
	u64 ended;

	if (!found || !since)
		return 0;
	question = *found;
	found->call.called = 0;
	ended = question.previous + (question.at - question.previous) / 2;
	if (question.call.before > ended) /* what other threads have launched since is not known to be done */
		question.call.before = ended;
	process = find_process(question.call.process);
	if (process && question.previous && question.call.called >= *since &&
	    done(process, &question.call, ended, *since))
		WRITE_ONCE(process->answered, question.at);
	return 0;
}

INLINE int query(u64 stream, u64 event)
{
	u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns(), *since = number(QUERIES_SINCE);
	struct handle key = { current_pid(), event };
	struct recording *recording = event ? bpf_map_lookup_elem(&events, &key) : 0;
	struct question *last = bpf_map_lookup_elem(&questions, &thread), question = {
		{ recording ? recording->process : process_of_stream(stream), recording ? recording->stream : stream,
		  recording ? recording->at : now, now, PLAIN }, event, 0, now };
	struct process *process = get_process(question.call.process, now);

	if (!process || !since)
		return 0;
	ADD(process->queries, 1);
	if (last && last->call.called >= *since && last->event == event &&
	    last->call.stream == question.call.stream && (!event || last->call.before == question.call.before)) {
		last->call.before = question.call.before;
		last->previous = last->at;
		last->at = now;
		return 0;
	}
	goes_on();
	if (!event || recording)
		bpf_map_update_elem(&questions, &thread, &question, BPF_ANY);
	return 0;
}

/* -- contexts: only nodes with several GPUs have these probes ---------------------------------- */

enum { REPLACE, PUSH, POP };

/* Change the contexts of a thread. */
INLINE int change_current(u64 context, int change)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct current *known = bpf_map_lookup_elem(&currents, &thread), current = {};
	struct process *process;

	if (known)
		current = *known;
	current.device = 0;
	if (current.depth > DEPTH)
		current.depth = DEPTH;
	if (change == POP) {
		if (current.depth)
			current.depth--;
	} else {
		if (current.depth == 0 || (change == PUSH && current.depth < DEPTH))
			current.depth++;
		current.contexts[(current.depth - 1) & (DEPTH - 1)] = context;
	}
	bpf_map_update_elem(&currents, &thread, &current, BPF_ANY);
	process = find_process(process_key());
	if (process)
		ADD(process->contexts, 1);
	return 0;
}

/* A context of the device `of` was created, which makes it current, or retained. */
INLINE int created(struct registers *regs)
{
	struct handle key = { current_pid(), 0 };
	struct lookup lookup;
	u32 device;

	if (!take_lookup(regs, &lookup) || lookup.of >= MOST_DEVICES)
		return 0;
	bpf_probe_read_user(&key.value, sizeof(key.value), (void *)lookup.value);
	device = lookup.of + 1;
	bpf_map_update_elem(&contexts, &key, &device, BPF_ANY);
	return lookup.text == NEW_CONTEXT ? change_current(key.value, PUSH) : 0;
}

/* -- programs: the names are those in probes.py ------------------------------------------------ */

#define PROGRAM(name, call) SEC("uprobe/" #name) int on_##name(struct registers *regs) { return call; }

PROGRAM(launch, launch_kernel(regs, 0))
PROGRAM(launch_ptsz, launch_kernel(regs, 1))
PROGRAM(launch_ex, launch_kernel_ex(regs, 0))
PROGRAM(launch_ex_ptsz, launch_kernel_ex(regs, 1))
PROGRAM(graph, launch_other(ARGUMENT_0(regs), ARGUMENT_1(regs), 0, 1, 0)) /* cuGraphLaunch(graph, stream) */
PROGRAM(graph_ptsz, launch_other(ARGUMENT_0(regs), ARGUMENT_1(regs), 0, 1, 1))
PROGRAM(launch_old, launch_other(ARGUMENT_0(regs), 0, ~0ULL, 0, 0)) /* cuLaunch(function) and the like: of unknown width */
PROGRAM(init, init(regs))
PROGRAM(begin_capture, capture(1, 0))
PROGRAM(end_capture, capture(0, ARGUMENT_1(regs))) /* cuStreamEndCapture(stream, graph) */
PROGRAM(captured, captured(regs))
PROGRAM(get_function, look_up(ARGUMENT_0(regs), ARGUMENT_1(regs), ARGUMENT_2(regs))) /* cuModuleGetFunction(function, module, name) */
PROGRAM(same_kernel, look_up(ARGUMENT_0(regs), ARGUMENT_1(regs), SAME_AS_OF)) /* cuKernelGetFunction(function, kernel) */
PROGRAM(same_graph, look_up(ARGUMENT_0(regs), ARGUMENT_1(regs), SAME_AS_OF)) /* cuGraphInstantiate(executable, graph, ...) */
PROGRAM(found_handle, found_handle(regs))
/* cuGraphAddKernelNode(node, graph, needed, number, description); since version 2 it can have a CUkernel */
PROGRAM(add_kernel, tell(ADDED, kernel_of_node(ARGUMENT_4(regs), 0), ARGUMENT_1(regs)))
PROGRAM(add_kernel_v2, tell(ADDED, kernel_of_node(ARGUMENT_4(regs), IN_VERSION_2), ARGUMENT_1(regs)))
PROGRAM(add_graph, tell(ADDED, ARGUMENT_4(regs), ARGUMENT_1(regs))) /* cuGraphAddChildGraphNode(..., graph) */
PROGRAM(add_node, add_any_node(ARGUMENT_1(regs), ARGUMENT_4(regs)))
PROGRAM(add_node_v2, add_any_node(ARGUMENT_1(regs), ARGUMENT_5(regs)))
/* cuGraphExecKernelNodeSetParams(executable, node, description), cuGraphExecUpdate(executable, graph, ...) */
PROGRAM(replace_kernel, replace_node(ARGUMENT_0(regs), kernel_of_node(ARGUMENT_2(regs), 0)))
PROGRAM(replace_kernel_v2, replace_node(ARGUMENT_0(regs), kernel_of_node(ARGUMENT_2(regs), IN_VERSION_2)))
PROGRAM(replace_in_graph, tell_once(REPLACED, 0, 0, 0)) /* cuGraphKernelNodeSetParams(node, ...), of an unknown graph */
PROGRAM(update_graph, tell_once(SAME, ARGUMENT_0(regs), ARGUMENT_0(regs), ARGUMENT_1(regs)))
PROGRAM(unload, tell(GONE, ARGUMENT_0(regs), 0)) /* cuModuleUnload(module), cuGraphDestroy(graph) */
PROGRAM(record, record(regs, 0))
PROGRAM(record_ptsz, record(regs, 1))
PROGRAM(upload, upload(ARGUMENT_2(regs))) /* cuMemcpyHtoDAsync(to, from, bytes, stream) */
PROGRAM(transfer, transfer(ARGUMENT_2(regs))) /* cuMemcpyHtoD(to, from, bytes) */
PROGRAM(end_context, wait(EVERY_STREAM, 0, DESTROY))
PROGRAM(wait_context, wait(EVERY_STREAM, 0, CONTEXT))
PROGRAM(end_stream, wait(stream_key(ARGUMENT_0(regs), 0), 0, DESTROY))
PROGRAM(wait_stream, wait(stream_key(ARGUMENT_0(regs), 0), 0, PLAIN))
PROGRAM(wait_stream_ptsz, wait(stream_key(ARGUMENT_0(regs), 1), 0, PLAIN))
PROGRAM(wait_default, wait(stream_key(0, 0), 0, PLAIN))
PROGRAM(wait_default_ptsz, wait(stream_key(0, 1), 0, PLAIN))
PROGRAM(wait_event, wait(EVERY_STREAM, ARGUMENT_0(regs), BY_EVENT))
/* cuMemcpyDtoHAsync(to, from, bytes, stream) */
PROGRAM(download, wait(stream_key(ARGUMENT_3(regs), 0), 0, COPY) + transfer(ARGUMENT_2(regs)))
PROGRAM(download_ptsz, wait(stream_key(ARGUMENT_3(regs), 1), 0, COPY) + transfer(ARGUMENT_2(regs)))

/* Of each, the second is for functions to which stream 0 is the thread's own. `_default` are those of the default stream. */
#define COPY_PROGRAMS(name, stream, call, ...) \
	PROGRAM(name, call(__VA_ARGS__, stream, 0)) PROGRAM(name##_ptsz, call(__VA_ARGS__, stream, 1)) \
	PROGRAM(name##_default, call(__VA_ARGS__, 0, 0)) PROGRAM(name##_default_ptsz, call(__VA_ARGS__, 0, 1))
/* cuMemcpyDtoDAsync(to, from, bytes, stream), cuMemcpyPeerAsync(to, context, from, context, bytes, stream) */
COPY_PROGRAMS(copy, ARGUMENT_3(regs), copy, 2 * ARGUMENT_2(regs))
COPY_PROGRAMS(copy_peer, ARGUMENT_5(regs), copy, 2 * ARGUMENT_4(regs))
COPY_PROGRAMS(copy_2d, ARGUMENT_1(regs), copy_box, (u64 *)ARGUMENT_0(regs), 2, 9, 14, 2)
COPY_PROGRAMS(copy_3d, ARGUMENT_1(regs), copy_box, (u64 *)ARGUMENT_0(regs), 4, 15, 22, 3)
/* cuMemsetD8Async(to, value, number, stream), cuMemsetD2D8Async(to, pitch, value, width, height, stream) */
COPY_PROGRAMS(fill_8, ARGUMENT_3(regs), copy, ARGUMENT_2(regs))
COPY_PROGRAMS(fill_16, ARGUMENT_3(regs), copy, 2 * ARGUMENT_2(regs))
COPY_PROGRAMS(fill_32, ARGUMENT_3(regs), copy, 4 * ARGUMENT_2(regs))
COPY_PROGRAMS(fill_2d, ARGUMENT_5(regs), copy, ARGUMENT_3(regs) * ARGUMENT_4(regs))
PROGRAM(return, wait_returns(regs))
PROGRAM(query_event, query(EVERY_STREAM, ARGUMENT_0(regs)))
PROGRAM(query_stream, query(stream_key(ARGUMENT_0(regs), 0), 0))
PROGRAM(query_stream_ptsz, query(stream_key(ARGUMENT_0(regs), 1), 0))
PROGRAM(other, goes_on())
PROGRAM(set_context, change_current(ARGUMENT_0(regs), REPLACE))
PROGRAM(push_context, change_current(ARGUMENT_0(regs), PUSH))
PROGRAM(pop_context, change_current(0, POP))
PROGRAM(retain_context, look_up(ARGUMENT_0(regs), (u32)ARGUMENT_1(regs), OLD_CONTEXT)) /* cuDevicePrimaryCtxRetain(context, device) */
PROGRAM(create_context, look_up(ARGUMENT_0(regs), (u32)ARGUMENT_2(regs), NEW_CONTEXT)) /* cuCtxCreate(context, flags, device) */
PROGRAM(create_context_v3, look_up(ARGUMENT_0(regs), (u32)ARGUMENT_4(regs), NEW_CONTEXT)) /* (context, limits, number, flags, device) */
PROGRAM(create_context_v4, look_up(ARGUMENT_0(regs), (u32)ARGUMENT_3(regs), NEW_CONTEXT)) /* (context, limits, flags, device) */
PROGRAM(created, created(regs))
