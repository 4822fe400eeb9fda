/* race_control.cu: the synchronization of attention's backward kernels and nothing else: bulk copies that complete at
 * mbarriers, an item in shared memory, and loads from both. Under compute-sanitizer's racecheck it tells whether the
 * tool reports this pattern where it is right; the kernels whose name ends in `true` are wrong and must be reported.
 *
 *   compute-sanitizer --tool racecheck build/bench/gpu/bench_race_control
 *
 * Without the tool: 0 if the sums of the kernels that are right are right. */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"

#include <stdio.h>

namespace {

enum {
    STAGES = 2,
    ROW = 32,      /* floats of a stage, twice: of two producers */
    ITEMS = 3,     /* of a CTA */
    BLOCKS = 5,    /* of an item: more than stages */
    CONSUMERS = 2, /* warps */
    THREADS = 64 + 32 * CONSUMERS,
    CTAS = 4
};

/* What a kernel has. AGAIN: the item is also read just before it is released, and used after that. All: as attention's. */
enum { COPIES = 1, ITEM = 2, AGAIN = 4 };

struct item {
    int n, blocks;
};

struct state {
    float stage[STAGES][2][ROW];
    uint64_t own_full, own_empty, full[STAGES], empty[STAGES];
    item now; /* valid from own_full until own_empty */
};

IV_DEVICE void copy(uint32_t to, const float *from, uint32_t bar) {
    iv_mbar_expect(bar, ROW * 4);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3],"
        " %4;" ::"r"(to),
        "l"(from), "r"(ROW * 4), "r"(bar), "l"(IV_L2_NORMAL)
        : "memory");
}

IV_DEVICE void release(uint64_t *bar) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(iv_shared(bar));
}

/* One of two threads; the first one also writes the items. */
template <int HAS> IV_DEVICE void produce(state &s, const float *x, int which) {
    int at = 0, phase = 1, taken = 0;
    for (int n = 0; n < ITEMS; n++) {
        int blocks = BLOCKS;
        if (HAS & ITEM) {
            if (which == 0) {
                iv_mbar_wait(iv_shared(&s.own_empty), (n & 1) ^ 1);
                s.now = {n, BLOCKS};
                iv_mbar_arrive(iv_shared(&s.own_full));
            } else {
                iv_mbar_wait(iv_shared(&s.own_full), n & 1);
                blocks = s.now.blocks;
                iv_mbar_arrive(iv_shared(&s.own_empty));
            }
        }
        for (int i = 0; i < blocks && HAS & COPIES; i++, taken++) {
            iv_mbar_wait(iv_shared(&s.empty[at]), phase);
            copy(iv_shared(s.stage[at][which]), x + (taken * 2 + which) * ROW, iv_shared(&s.full[at]));
            if (++at == STAGES) at = 0, phase ^= 1;
        }
    }
}

/* EARLY: what is read is released before it is read. */
template <int HAS, bool EARLY> IV_DEVICE float consume(state &s) {
    float sum = 0.0f;
    int at = 0, phase = 0;
    for (int n = 0; n < ITEMS; n++) {
        int blocks = BLOCKS;
        if (HAS & ITEM) {
            iv_mbar_wait(iv_shared(&s.own_full), n & 1);
            if (EARLY) release(&s.own_empty);
            item it = s.now;
            blocks = it.blocks, sum += (float)it.n;
        }
        for (int i = 0; i < blocks && HAS & COPIES; i++) {
            iv_mbar_wait(iv_shared(&s.full[at]), phase);
            if (EARLY) release(&s.empty[at]);
            sum += s.stage[at][0][threadIdx.x % 32] + s.stage[at][1][threadIdx.x % 32];
            if (!EARLY) iv_fence_async(), release(&s.empty[at]);
            if (++at == STAGES) at = 0, phase ^= 1;
        }
        if (HAS & ITEM && !EARLY) {
            item last = {n, 0};
            if (HAS & AGAIN) last = s.now;
            release(&s.own_empty);
            sum += (float)(last.n - n);
        }
    }
    return sum;
}

template <int HAS, bool EARLY> __global__ void __launch_bounds__(THREADS) control(const float *x, float *out) {
    __shared__ __align__(128) state s;
    if (threadIdx.x == 0) {
        iv_mbar_init(iv_shared(&s.own_full), 1), iv_mbar_init(iv_shared(&s.own_empty), CONSUMERS + 1);
        for (int i = 0; i < STAGES; i++)
            iv_mbar_init(iv_shared(&s.full[i]), 2), iv_mbar_init(iv_shared(&s.empty[i]), CONSUMERS);
        iv_mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) produce<HAS>(s, x, 0);
    if (threadIdx.x == 32) produce<HAS>(s, x, 1);
    if (threadIdx.x >= 64) out[blockIdx.x * 32 * CONSUMERS + threadIdx.x - 64] = consume<HAS, EARLY>(s);
}

template <int HAS, bool EARLY> int run(const char *what, const float *x, const float *host) {
    static float got[CTAS * 32 * CONSUMERS];
    float *out;
    int wrong = 0;
    if (cudaMalloc(&out, sizeof got)) return 1;
    int e = iv_launch(control<HAS, EARLY>, dim3(CTAS), THREADS, (cudaStream_t)NULL, x, out);
    if (!e) e = cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
    for (int i = 0; i < CTAS * 32 * CONSUMERS && !e; i++) {
        float want = HAS & ITEM ? ITEMS * (ITEMS - 1) / 2 : 0;
        for (int b = 0; b < ITEMS * BLOCKS && HAS & COPIES; b++)
            want += host[b * 2 * ROW + i % 32] + host[(b * 2 + 1) * ROW + i % 32];
        wrong += got[i] != want; /* small integers: every order has the same sum */
    }
    printf("%-14s %-22s %s, %d sums wrong\n", what, EARLY ? "released too early" : "right",
           cudaGetErrorString((cudaError_t)e), wrong);
    cudaFree(out);
    return !EARLY && (e || wrong);
}

} // namespace

int main(void) {
    static float host[ITEMS * BLOCKS * 2 * ROW];
    float *x;
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) host[i] = (float)(i * 7 % 64);
    if (cudaMalloc(&x, sizeof host) || cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice))
        return fputs("race_control: wanted a GPU of compute capability 9.0, found none\n", stderr), 1;
    int failed = run<COPIES, false>("copies", x, host) + run<ITEM, false>("item", x, host) +
                 run<COPIES | ITEM, false>("copies, item", x, host) + run<ITEM | AGAIN, false>("item, again", x, host);
    run<COPIES, true>("copies", x, host), run<ITEM, true>("item", x, host);
    cudaFree(x);
    return failed != 0;
}
