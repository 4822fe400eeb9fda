/* peak.c: multiply-adds per second of a core of this machine, which bounds every prefill.
 *
 * Each instruction set of the CPU, on 1, 2, ... threads; one JSON line for each. Flag: --threads (the
 * most to try). */
#include "peak.h"
#include "measure.h"

#include <unistd.h>

#if defined(__x86_64__)

enum { CALIBRATE_ROUNDS = 1000000 };

typedef struct loop {
    iv_bench_peak *peak;
    long rounds;
    double operations[IV_BENCH_THREADS_MAX];
} loop;

static void run_loop(void *context, int thread, int threads) {
    loop *l = context;
    (void)threads;
    l->operations[thread] = l->peak(l->rounds);
}

static void measure(const char *isa, iv_bench_peak *peak, int threads) {
    loop l = {.peak = peak, .rounds = CALIBRATE_ROUNDS};
    /* About a tenth of a second, so that thread creation is negligible. */
    double seconds = iv_bench_together(run_loop, &l, 1);
    l.rounds = (long)(CALIBRATE_ROUNDS * 0.1 / seconds) + 1;
    double rates[IV_BENCH_REPEATS];
    for (int i = 0; i < IV_BENCH_REPEATS; i++) {
        seconds = iv_bench_together(run_loop, &l, threads);
        double operations = 0;
        for (int t = 0; t < threads; t++) operations += l.operations[t];
        rates[i] = operations / seconds / 1e9;
    }
    double median = iv_bench_median(rates, IV_BENCH_REPEATS);
    printf("{\"bench\":\"peak\",\"isa\":\"%s\",\"threads\":%d,\"repeats\":%d,\"gflop_per_s_median\":%.1f,"
           "\"gflop_per_s_best\":%.1f,\"gflop_per_s_per_thread\":%.1f}\n",
           isa, threads, IV_BENCH_REPEATS, median, rates[IV_BENCH_REPEATS - 1], median / threads);
    fflush(stdout);
}

int main(int argc, char **argv) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores > IV_BENCH_THREADS_MAX) cores = IV_BENCH_THREADS_MAX;
    int threads_max = (int)iv_bench_argument(argc, argv, "--threads", cores, 1, IV_BENCH_THREADS_MAX);
    for (int threads = 1; threads <= threads_max; threads *= 2) {
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            measure("avx2", iv_bench_peak_avx2, threads);
        if (__builtin_cpu_supports("avx512f")) measure("avx512", iv_bench_peak_avx512, threads);
        if (__builtin_cpu_supports("avx512bf16")) measure("avx512bf16", iv_bench_peak_avx512bf16, threads);
    }
    return 0;
}

#else

int main(void) {
    fputs("bench_peak: only x86-64 is measured\n", stderr);
    return 1;
}

#endif
