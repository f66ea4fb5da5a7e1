/* What the modes of the program have in common. */
#include "libcuda.h"

typedef CUresult door();

/* A function of the library. */
door *find(const char *name);

/* Say where the program is, and wait for a line. */
void gate(const char *where);

/* Keep an error for the exit status. */
void checked(CUresult returned);

void by_bad_configurations(void);
void by_absurd_grids(void);
void filtered(int deadly);
