/* process_stats.h: what /proc says about a process. */
#ifndef IV_SERVE_STATE_PROCESS_STATS_H
#define IV_SERVE_STATE_PROCESS_STATS_H

#include <stdint.h>
#include <sys/types.h>

typedef struct iv_process_stats {
    double cpu_seconds;   /* user and system, all threads */
    double start_seconds; /* since 1970 */
    uint64_t resident_bytes, virtual_bytes;
    uint64_t open_files, files_max; /* files_max: the soft limit; UINT64_MAX: none */
} iv_process_stats;

/* All 0 if the process is gone, or what cannot be read. Takes some microseconds for each open file. */
iv_process_stats iv_process_stats_read(pid_t pid);

#endif
