/* memory.c: anonymous mappings. Weights are streamed, so large pages save TLB misses. */
#include "device/memory.h"
#include "base/size.h"

#include <stdio.h>
#include <sys/mman.h>

enum { PAGE = 2 * 1024 * 1024 };

static size_t mapped_bytes(size_t bytes) {
    size_t rounded;
    return iv_size_round_up(bytes, PAGE, &rounded) ? rounded : 0;
}

void *iv_memory_alloc(size_t bytes) {
    size_t n = mapped_bytes(bytes);
    if (n == 0) return NULL;
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    madvise(p, n, MADV_HUGEPAGE);
    return p;
}

void iv_memory_free(void *p, size_t bytes) {
    if (p) munmap(p, mapped_bytes(bytes));
}

size_t iv_memory_available(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return 0;
    char line[256];
    size_t kib = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}
