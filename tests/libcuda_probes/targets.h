/* Functions that all modes of the program use. */
#include "libcuda.h"

typedef CUresult cuda_function();

/* A function of the library. */
cuda_function *find(const char *name);

/* Print the name of the gate, and wait for a line. */
void gate(const char *where);

/* Store an error for the exit status. */
void checked(CUresult returned);

void by_bad_configurations(void);
void by_absurd_grids(void);
void by_bad_copies(void);
void filtered(int deadly);
int cancelled(const char *name);
void left(const char *name);
