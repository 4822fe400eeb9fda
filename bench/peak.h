/* peak.h: loops of independent multiply-adds, per instruction set. */
#ifndef IV_BENCH_PEAK_H
#define IV_BENCH_PEAK_H

/* Executes `rounds` rounds in registers, with enough independent accumulators to hide the latency; returns
 * the floating-point operations done (a multiply and an add are two). Requires the named instruction set. */
typedef double iv_bench_peak(long rounds);

iv_bench_peak iv_bench_peak_avx2, iv_bench_peak_avx512, iv_bench_peak_avx512bf16;

/* Twelve accumulators: two units with a latency of up to six cycles. KEEP stops the compiler from seeing
 * through. */
#define PEAK_CHAINS 12
#define PEAK_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define PEAK_KEEP(register_) __asm__ volatile("" : "+v"(register_))

#endif
