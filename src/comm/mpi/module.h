/* module.h: the calls that are made into MPI. The module owns the requests; a call returns false if MPI reports an
 * error. */
#ifndef IV_COMM_MPI_MODULE_H
#define IV_COMM_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>

enum { IV_MPI_MODULE_VERSION = 1, IV_MPI_REQUESTS_MAX = 16 };

typedef struct iv_mpi_module {
    int version;
    bool (*init)(size_t *rank, size_t *size);
    bool (*send)(int request, const void *bytes, int n, size_t peer);
    bool (*receive)(int request, void *bytes, int n, size_t peer);
    bool (*done)(int request, bool *done); /* a completed request stays complete until it is reused */
    bool (*finalize)(void);
} iv_mpi_module;

#define IV_MPI_MODULE_SYMBOL "iv_mpi_module_v1"

#endif
