/* mpi.h: ranks that are processes started by mpirun. MPI is no dependency: what calls it is a module of its own
 * (comm/mpi/module.c, libinvar_mpi.so), looked for only under mpirun: beside this library or program, and where it was
 * installed. */
#ifndef IV_COMM_MPI_H
#define IV_COMM_MPI_H

#include "comm/comm.h"

/* How many processes mpirun says there are; 1 without it. From the environment alone. */
size_t iv_mpi_processes(void);
/* Which of the processes on this machine this one is; 0 where nothing says so. From the environment alone. */
size_t iv_mpi_local_rank(void);

/* Joins the other processes. IV_NOT_FOUND says what to install; once a process, so a second time is IV_UNSUPPORTED.
 * Closing an unbroken communicator ends MPI, together with all the others. */
iv_status iv_comm_mpi_open(iv_comm **out, iv_error *err);

/* Called by all ranks: from now on a call fails at once when a rank's process has ended, where it is one of this
 * machine; one of another machine is missed after the timeout. */
iv_status iv_comm_mpi_watch(iv_comm *c, iv_error *err);

/* How long a call waits for another rank. */
void iv_comm_mpi_timeout(iv_comm *c, size_t ms);

#endif
