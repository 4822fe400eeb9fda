/* module.c: the calls into MPI, and nothing else. */
#include "comm/mpi/module.h"

#include <mpi.h>

static MPI_Request requests[IV_MPI_REQUESTS_MAX];

enum { TAG = 1 };

static bool init(size_t *rank, size_t *size) {
    int level, r, n;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) return false;
    if (MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) != MPI_SUCCESS) return false;
    if (MPI_Comm_rank(MPI_COMM_WORLD, &r) != MPI_SUCCESS || MPI_Comm_size(MPI_COMM_WORLD, &n) != MPI_SUCCESS)
        return false;
    for (int i = 0; i < IV_MPI_REQUESTS_MAX; i++) requests[i] = MPI_REQUEST_NULL;
    *rank = (size_t)r, *size = (size_t)n;
    return true;
}

static bool send_bytes(int i, const void *bytes, int n, size_t peer) {
    return MPI_Isend(bytes, n, MPI_BYTE, (int)peer, TAG, MPI_COMM_WORLD, &requests[i]) == MPI_SUCCESS;
}

static bool receive_bytes(int i, void *bytes, int n, size_t peer) {
    return MPI_Irecv(bytes, n, MPI_BYTE, (int)peer, TAG, MPI_COMM_WORLD, &requests[i]) == MPI_SUCCESS;
}

static bool is_done(int i, bool *done) {
    int flag = 0;
    if (MPI_Test(&requests[i], &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    *done = flag;
    return true;
}

static bool finalize(void) { return MPI_Finalize() == MPI_SUCCESS; }

extern const iv_mpi_module iv_mpi_module_v1;
__attribute__((visibility("default")))
const iv_mpi_module iv_mpi_module_v1 = {IV_MPI_MODULE_VERSION, init, send_bytes, receive_bytes, is_done, finalize};
