/* mpi.h: ranks that are processes started by mpirun. MPI is not a dependency: the calls are in a module
 * (comm/mpi/module.c, libinvar_mpi.so), which is loaded only under mpirun: from the folder of this library or program,
 * or where it was installed. */
#ifndef IV_COMM_MPI_H
#define IV_COMM_MPI_H

#include "comm/comm.h"

/* The number of processes of mpirun; 1 without it. Read from the environment alone. */
size_t iv_mpi_processes(void);
/* The index of this process on its machine; 0 if unknown. Read from the environment alone. */
size_t iv_mpi_local_rank(void);

/* Connects to the other processes. IV_NOT_FOUND names what to install. A second call in a process is IV_UNSUPPORTED.
 * Closing an unbroken communicator finalizes MPI, a collective call. */
iv_status iv_comm_mpi_open(iv_comm **out, iv_error *err);

/* Collective. From now on a call fails at once when the process of a rank on this machine has ended; a rank on another
 * machine is detected by the timeout. */
iv_status iv_comm_mpi_watch(iv_comm *c, iv_error *err);

/* How long a call waits for another rank. */
void iv_comm_mpi_timeout(iv_comm *c, size_t ms);

#endif
