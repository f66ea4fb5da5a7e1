/* What no program does that means well. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "targets.h"

/* Launches by configurations that nobody can read, or that no program touched before. */
void by_bad_configurations(void)
{
    door *launch = find("cuLaunchKernelEx");
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

void by_absurd_grids(void)
{
    static const unsigned sizes[][3] = {{0, 0, 0}, {1, 0, 7}, {~0u, 1, 1}, {~0u, ~0u, 1}, {~0u, ~0u, ~0u}, {1u << 31, 2, 1}, {1u << 22, 1u << 21, 1u << 21}};
    door *launch = find("cuLaunchKernel"), *synchronise = find("cuCtxSynchronize");
    gate("ready");
    for (size_t each = 0; each < sizeof sizes / sizeof *sizes; each++) {
        checked(launch(NULL, sizes[each][0], sizes[each][1], sizes[each][2], 1u, 1u, 1u, 0u, NULL, NULL, NULL));
        checked(synchronise());
    }
}
