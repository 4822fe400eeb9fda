/* process_stats.c: readers of /proc/PID/stat, /proc/PID/fd and /proc/stat. */
#include "serve/state/process_stats.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The name in parentheses may hold blanks and parentheses: fields are counted after its last one. */
static void read_stat(pid_t pid, iv_process_stats *out, uint64_t *start_ticks) {
    char path[64], line[1024];
    unsigned long long user, system, start, bytes;
    long long pages;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f) fclose(f);
    line[n] = 0;
    const char *after = strrchr(line, ')');
    if (!after || sscanf(after + 1,
                         " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu %llu "
                         "%lld",
                         &user, &system, &start, &bytes, &pages) != 5)
        return;
    out->cpu_seconds = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    out->virtual_bytes = bytes;
    out->resident_bytes = pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
    *start_ticks = start;
}

/* Seconds since 1970 at which the machine was started. */
static double read_boot(void) {
    char line[256];
    unsigned long long seconds = 0;
    FILE *f = fopen("/proc/stat", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "btime %llu", &seconds) == 1) break;
    if (f) fclose(f);
    return (double)seconds;
}

static uint64_t count_files(pid_t pid) {
    char path[64];
    uint64_t count = 0;
    snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) count += e->d_name[0] != '.';
    if (d) closedir(d);
    return count - (d && pid == getpid()); /* the folder itself */
}

iv_process_stats iv_process_stats_read(pid_t pid) {
    iv_process_stats out = {0};
    uint64_t start_ticks = 0;
    struct rlimit files;
    read_stat(pid, &out, &start_ticks);
    if (start_ticks) out.start_seconds = read_boot() + (double)start_ticks / (double)sysconf(_SC_CLK_TCK);
    out.open_files = count_files(pid);
    if (prlimit(pid, RLIMIT_NOFILE, NULL, &files) == 0)
        out.files_max = files.rlim_cur == RLIM_INFINITY ? UINT64_MAX : (uint64_t)files.rlim_cur;
    return out;
}
