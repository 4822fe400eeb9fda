// emulator.h: a GPU emulated in one thread: the threads of CTAs are fibers. Work in a stream runs in that stream's
// thread (streams.cpp), so the GPUs of a process can synchronize through each other's memory.
//
// Modelled: warps whose lanes synchronize at warp-wide instructions (a lane that is elsewhere is an error); named
// barriers; mbarriers with arrivals and bytes; clusters and their shared memory; TMA, whose copies land late; wgmma,
// which reads and writes between its issue and the wait for it; as many concurrent CTAs as the device has
// multiprocessors. The schedule (the next warp and how far it runs, the direction of its lanes, starved warps, delays
// of copies) is drawn from a seed. A deadlock is detected: the launch fails and reports what each thread waits for.
// Shared memory begins uninitialized. A copy into what ldmatrix has read, without a proxy fence of every lane since, is
// an error: the values might not have come. Not modelled: memory ordering and caches (every store is visible at once,
// in order, and fences do nothing), time, registers, the overlap of kernels in a stream, and that the four warps of a
// warpgroup run wgmma together.
#ifndef IV_EMULATOR_H
#define IV_EMULATOR_H

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace emu {

template <class To, class From> static inline To cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// ---- launches ----

struct shape {
    dim3 grid, block;
    size_t shared;
    int cluster;
    bool overlaps; // begins when all CTAs of the preceding launch have released it or exited
    void *stream;
    shape(dim3 g, dim3 b, size_t s = 0, int c = 1, bool o = false, void *t = nullptr)
        : grid(g), block(b), shared(s), cluster(c), overlaps(o), stream(t) {}
    shape(dim3 g, dim3 b, size_t s, void *t) : shape(g, b, s, 1, false, t) {} // of <<<>>>
};
int launch(const shape &s, std::function<void()> body); // runs at the next synchronization, or in its stream
template <class F, class... A> static inline void start(const shape &s, F kernel, A... arguments) {
    launch(s, [=] { kernel(arguments...); });
}
void release_next();
void wait_for_last();
int multiprocessors();
uint64_t host_ns(); // of a clock

// Ends the launch with an error; does not return in a fiber.
[[gnu::format(printf, 1, 2)]] void fail(const char *format, ...);

// ---- memory. An address is an offset in the CTA's shared memory; its highest byte may name a CTA of the cluster ----

void *shared_dynamic(size_t align);
void *shared_static(const void *key, size_t bytes, size_t align);
uint32_t shared_address(const void *p);
uint32_t shared_address_of(uint32_t address, uint32_t cta);
unsigned char *memory(uint32_t address, size_t bytes, size_t align); // checked
unsigned cluster_rank();

// ---- synchronization ----

void sync_warp();
void fence_proxy();
uint32_t shuffle_word(uint32_t v, int from);
template <class T> static inline T shuffle(T v, int from) {
    if constexpr (sizeof(T) == 4) {
        return cast<T>(shuffle_word(cast<uint32_t>(v), from));
    } else {
        uint64_t u = cast<uint64_t>(v), low = shuffle_word((uint32_t)u, from);
        return cast<T>(low | (uint64_t)shuffle_word((uint32_t)(u >> 32), from) << 32);
    }
}
unsigned ballot(bool b);
uint32_t reduce_max(uint32_t v);
uint32_t lane_id();
void barrier(int id, int threads, bool wait);
int barrier_count(int threads, bool vote); // all threads; returns the votes
void cluster_barrier(bool arrive, bool wait);
void spin();            // yields to another thread: the awaited value is not in memory yet
void wrote_for_peers(); // a value that they may wait for
bool spin_for_peer();   // the value may come from another GPU; false: treated as arrived (a planted fault)

void mbarrier_init(uint32_t bar, uint32_t count);
void mbarrier_arrive(uint32_t bar, uint32_t bytes);
void mbarrier_wait(uint32_t bar, uint32_t parity);
bool mbarrier_test(uint32_t bar, uint32_t parity); // does not wait

// ---- copies ----

void copy_box(uint32_t to, const CUtensorMap *map, uint32_t bar, const int (&corner)[4],
              uint32_t ctas); // bit mask or 0
void copy_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar);
void store_async(uint32_t to, uint32_t word, uint32_t bar);   // to a CTA of the cluster
void copy_own(uint32_t to, const void *from, uint32_t there); // cp.async
void store_bytes(void *to, uint32_t from, uint32_t bytes);    // by TMA, for this thread
void stores_commit();
void stores_wait(int pending);
void copies_commit();
void copies_wait(int pending); // -1: also uncommitted ones

// ---- tensor cores ----

enum matrix_type { BF16, F16, S8 };
void load_matrices(uint32_t (&r)[4], uint32_t address, bool turned);
void store_matrices(const uint32_t (&r)[4], uint32_t address);
uint32_t transpose_matrix(uint32_t pair);
void multiply(matrix_type type, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]);

// rows of A: 16 with 32 k, or 8 with 16
void multiply_int8(int rows, int32_t *d, const uint32_t *a, const uint32_t *b, const int32_t *c);

struct wgmma_step { // of a lane
    matrix_type type;
    float *d; // of S8: int32_t
    int count;
    bool a_is_shared, add, a_turned, b_turned;
    uint64_t a, b;
    uint32_t a_words[4];
};
void wgmma(const wgmma_step &s);
void wgmma_commit();
void wgmma_wait(int pending);

} // namespace emu

#endif
