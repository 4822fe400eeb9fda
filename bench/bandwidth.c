/* bandwidth.c: memory read bandwidth of this machine, which bounds every decode step.
 *
 * One large buffer of random bytes is read once per repeat, in equal contiguous parts by 1, 2, ... threads,
 * with each instruction set of the CPU. Prints one JSON line for each. Flags: --mib (buffer size; it
 * should be several times the last-level cache), --threads (the most to try). */
#include "bandwidth.h"
#include "measure.h"

#include <stdbool.h>
#include <unistd.h>

enum { PART_BYTES = 512 };

typedef struct pass {
    iv_bench_read *read;
    const uint8_t *bytes;
    size_t n;
    uint64_t sums[IV_BENCH_THREADS_MAX];
} pass;

static uint64_t read_scalar(const uint8_t *bytes, size_t n) {
    const uint64_t *words = (const uint64_t *)(const void *)bytes;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < n / 8; i += 8)
        for (size_t j = 0; j < 8; j++) sum[j] ^= words[i + j];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

static void read_part(void *context, int thread, int threads) {
    pass *p = context;
    size_t part = p->n / PART_BYTES / (size_t)threads * PART_BYTES;
    size_t begin = part * (size_t)thread;
    size_t n = thread == threads - 1 ? p->n - begin : part;
    p->sums[thread] = p->read(p->bytes + begin, n);
}

static void fill_random(uint64_t *words, size_t n) {
    uint64_t x = 0x2545f4914f6cdd1du;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

/* Prints the line; false if passes returned different sums. */
static bool measure(const char *isa, pass *p, int threads, uint64_t want) {
    double rates[IV_BENCH_REPEATS];
    for (int i = 0; i < IV_BENCH_REPEATS; i++) {
        rates[i] = (double)p->n / iv_bench_together(read_part, p, threads) / 1e9;
        uint64_t sum = 0;
        for (int t = 0; t < threads; t++) sum ^= p->sums[t];
        if (sum != want) {
            fprintf(stderr, "bench_bandwidth: %s on %d threads read other bytes\n", isa, threads);
            return false;
        }
    }
    double median = iv_bench_median(rates, IV_BENCH_REPEATS);
    printf("{\"bench\":\"bandwidth\",\"isa\":\"%s\",\"threads\":%d,\"mib\":%zu,\"repeats\":%d,"
           "\"gb_per_s_median\":%.2f,\"gb_per_s_best\":%.2f}\n",
           isa, threads, p->n >> 20, IV_BENCH_REPEATS, median, rates[IV_BENCH_REPEATS - 1]);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores > IV_BENCH_THREADS_MAX) cores = IV_BENCH_THREADS_MAX;
    size_t n = (size_t)iv_bench_argument(argc, argv, "--mib", 2048, 1, 1 << 20) << 20;
    int threads_max = (int)iv_bench_argument(argc, argv, "--threads", cores, 1, IV_BENCH_THREADS_MAX);

    uint8_t *bytes = aligned_alloc(64, n);
    if (!bytes) {
        fprintf(stderr, "bench_bandwidth: no memory for %zu MiB\n", n >> 20);
        return 1;
    }
    fill_random((uint64_t *)(void *)bytes, n / 8);
    uint64_t want = read_scalar(bytes, n);
    pass p = {.read = read_scalar, .bytes = bytes, .n = n};

    bool ok = true;
    for (int threads = 1; ok && threads <= threads_max; threads *= 2) {
        p.read = read_scalar;
        ok = measure("scalar", &p, threads, want);
#if defined(__x86_64__)
        if (ok && __builtin_cpu_supports("avx2")) {
            p.read = iv_bench_read_avx2;
            ok = measure("avx2", &p, threads, want);
        }
        if (ok && __builtin_cpu_supports("avx512f")) {
            p.read = iv_bench_read_avx512;
            ok = measure("avx512", &p, threads, want);
        }
#endif
    }
    free(bytes);
    return ok ? 0 : 1;
}
