/* Invalid calls of libcuda, and seccomp filters as container runtimes set them. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "targets.h"

/* Launch with configurations that are not readable, or whose page was never touched. */
void by_bad_configurations(void)
{
    cuda_function *launch = find("cuLaunchKernelEx");
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + page, page);
    void *bad[] = {NULL, (void *)8, pages + page, pages + page - 8, (void *)-8, (void *)0x8000000000000000u};
    gate("ready");
    for (size_t each = 0; each < sizeof bad / sizeof *bad; each++)
        if (launch(bad[each], NULL, NULL, NULL) != CUDA_ERROR_INVALID_VALUE)
            exit(5);
    checked(launch(pages, NULL, NULL, NULL));
    checked(find("cuCtxSynchronize")());
}

/* Copy boxes that are not readable, and more bytes than there are. The stand-in does not read a box. */
void by_bad_copies(void)
{
    void *bad[] = {NULL, (void *)8, (void *)-8, (void *)0x8000000000000000u};
    gate("ready");
    checked(find("cuInit")(0u));
    for (size_t each = 0; each < sizeof bad / sizeof *bad; each++)
        checked(find("cuMemcpy2DAsync_v2")(bad[each], NULL));
    checked(find("cuMemcpy3D_v2")(bad[0]));
    checked(find("cuMemsetD32Async")(NULL, 0u, (size_t)1 << 62, NULL));
    checked(find("cuMemcpyDtoDAsync_v2")(NULL, NULL, ~(size_t)0, NULL));
}

void by_absurd_grids(void)
{
    static const unsigned sizes[][3] = {{0, 0, 0}, {1, 0, 7}, {~0u, 1, 1}, {~0u, ~0u, 1}, {~0u, ~0u, ~0u}, {1u << 31, 2, 1}, {1u << 22, 1u << 21, 1u << 21}};
    cuda_function *launch = find("cuLaunchKernel"), *synchronise = find("cuCtxSynchronize");
    gate("ready");
    for (size_t each = 0; each < sizeof sizes / sizeof *sizes; each++) {
        checked(launch(NULL, sizes[each][0], sizes[each][1], sizes[each][2], 1u, 1u, 1u, 0u, NULL, NULL, NULL));
        checked(synchronise());
    }
}

static int cleaned_up, is_inside;

static void clean_up(int *unused)
{
    (void)unused;
    cleaned_up = 1;
}

static void *calling(void *name)
{
    __attribute__((cleanup(clean_up))) int frame = 0; /* as a destructor in C++ */
    __atomic_store_n(&is_inside, 1, __ATOMIC_RELEASE);
    find(name)(NULL);
    return NULL;
}

/* Cancel a thread in a function of the library that blocks. Return whether the stack was unwound through it. */
int cancelled(const char *name)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, calling, (void *)name) != 0)
        exit(4);
    while (!__atomic_load_n(&is_inside, __ATOMIC_ACQUIRE))
        ;
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    return cleaned_up;
}

static sigjmp_buf outside;

static void leave(int number) { siglongjmp(outside, number); }

/* A signal handler leaves a function of the library, more often than the kernel has room for pending returns (64). */
void left(const char *name)
{
    gate("ready");
    signal(SIGUSR1, leave);
    for (volatile int each = 0; each < 200; each++)
        if (sigsetjmp(outside, 1) == 0)
            find(name)(NULL);
}

/* From now on, seccomp refuses the kernel's own system calls for probes, or kills the process. */
void filtered(int deadly)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 335, 1, 0), /* uretprobe */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 336, 0, 1), /* uprobe */
        BPF_STMT(BPF_RET | BPF_K, deadly ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        exit(6);
}
