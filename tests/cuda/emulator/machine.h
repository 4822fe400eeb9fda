// machine.h: shared definitions of the emulator: threads, warps, CTAs, and what a thread waits for. Included only by
// the emulator's sources.
#ifndef IV_EMULATOR_MACHINE_H
#define IV_EMULATOR_MACHINE_H

#include "emulator.h"

#include <atomic>
#include <csetjmp>
#include <cuda_runtime_api.h>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <ucontext.h>
#include <unordered_map>
#include <vector>

namespace emu {

enum {
    LANES = 32,
    BARRIERS = 16,
    SHARED_MAX = 227 * 1024,
    SHARED_BYTES = 232 * 1024,
    STACK_BYTES = 64 * 1024 + 17 * 64, /* lanes' frames are in different sets of the caches */
    LOOKS_A_PAUSE = 8,                 /* at what other GPUs write, and how long a pause is */
    PAUSE_US = 500
};

struct Cta;
struct Cluster;

enum Reason { NOTHING, WARP, BARRIER, CLUSTER, MBARRIER, SPIN, PEER, GRID };

struct Wait { // until a count changes; of an mbarrier, until the phase of a parity has ended
    Reason reason = NOTHING;
    const char *what = "";
    uint32_t address = 0; // or the barrier's number
    uint64_t was = 0;     // or the parity
};

struct Own { // a thread's cp.async
    uint32_t to;
    const void *from;
    uint32_t there;
};

struct Store { // by TMA, for a thread
    void *to;
    uint32_t from, bytes;
};

struct ThreadIndex {
    dim3 thread, block, block_dim, grid;
};

// What a fiber leaves when it switches. On x86-64 the registers that calls keep are on its stack; libc's jumps,
// elsewhere, took a tenth of the processor time.
#if defined(__x86_64__)
struct Context {
    void *stack_top;
};
#else
struct Context {
    jmp_buf registers;
    ucontext_t first;
};
#endif

struct Thread {
    ThreadIndex where;
    Cta *cta = nullptr;
    bool begun = false, done = true;
    Wait wait;
    uint64_t cluster_turn = 0;
    std::deque<std::vector<Own>> committed;
    std::vector<Own> copies;
    std::deque<std::vector<Store>> stored;
    std::vector<Store> stores;
    Context context;
    char *stack = nullptr;
};

struct Meeting { // of a warp's lanes at one instruction
    int arrived = 0;
    uint64_t turn = 0;
    const char *what = "";
    uint32_t in[LANES][16], out[LANES][4];
};

struct Warpgroup_step { // one wgmma of a warp
    wgmma_step lane[LANES];
};

struct Warp {
    Meeting meeting;
    std::vector<std::shared_ptr<Warpgroup_step>> issued;
    std::deque<std::vector<std::shared_ptr<Warpgroup_step>>> committed;
    unsigned eagerness = 1; // runs in one of this many rounds
    // Its ldmatrix are numbered: those before each lane's last proxy fence, and the last that read 16 bytes of shared
    // memory.
    uint32_t reads = 0, fenced[LANES] = {};
    std::vector<uint32_t> read;
};

struct Barrier {
    int arrived = 0, threads = 0, votes = 0, result = 0;
    uint64_t turn = 0;
};

struct Mbarrier {
    uint32_t count, pending;
    int64_t bytes;
    uint32_t phase;
};

struct Grid { // a launch
    shape s;
    std::function<void()> body;
    std::shared_ptr<Grid> before;
    size_t count, begun, released, ended; // CTAs
};

struct Cta {
    Grid *grid;
    bool released;
    Cluster *cluster;
    int rank;
    unsigned char *memory; // SHARED_BYTES
    size_t statics_end;    // of all shared memory
    std::unordered_map<const void *, size_t> statics;
    std::unordered_map<uint32_t, Mbarrier> mbarriers;
    std::vector<Thread *> threads;
    std::vector<Warp> warps;
    Barrier barriers[BARRIERS];
    size_t left; // threads
};

struct Cluster {
    std::vector<Cta> ctas;
    Barrier barrier;
};

struct Copy { // TMA copies and words for other CTAs in flight
    long due;
    Cta *cta;           // the requesting thread
    bool box, signaled; // signaled: the bytes were counted before they landed (a planted fault)
    CUtensorMap map;
    int corner[4];
    uint32_t to, bar, ctas;
    const void *from; // NULL: a word
    uint32_t bytes, word;
};

extern __thread Thread *me; // NULL: the scheduler runs
extern __thread uint64_t progress;
extern __thread long now; // turns of warps
extern __thread unsigned lateness;
extern thread_local std::vector<Copy> copies;
extern std::atomic<emu_fault> fault;
extern std::atomic<bool> fault_happened;
extern std::atomic<size_t> stores_made;
inline std::mutex memory_lock; // protects the state shared by all host threads in machine.cpp

uint32_t random_below(uint32_t n);
bool fault_strikes(emu_fault kind, uint32_t one_of); // if that fault is planted: in one of this many cases
void block(const Wait &w);
inline Warp &my_warp() { return me->cta->warps[me->where.thread.x / LANES]; }
enum : uint32_t { OFFSET = 0xffffff, SYSTEM = 1024 /* what lies before a CTA's own memory */ };
inline uint32_t swizzled(uint32_t address) { return address ^ ((address >> 3) & 0x70); }
Cta *other_cta(Cta *from, uint32_t address);
[[gnu::cold]] void fail_memory(const Cta *c, uint32_t address, size_t bytes, size_t align);
inline Cta *cta_of(Cta *from, uint32_t address) { return address >> 24 ? other_cta(from, address) : from; }
inline unsigned char *memory_of(Cta *from, uint32_t address, size_t bytes, size_t align) {
    Cta *c = cta_of(from, address);
    uint32_t offset = address & OFFSET;
    if (offset % align || offset < SYSTEM || offset + bytes > c->statics_end) fail_memory(c, address, bytes, align);
    return c->memory + offset;
}
Mbarrier &mbarrier_of(Cta *cta, uint32_t address);
void mbarrier_took(Mbarrier &b);
void land_copies();
inline bool ready(const Thread &t) {
    const Wait &w = t.wait;
    switch (w.reason) {
    case WARP: return t.cta->warps[t.where.thread.x / LANES].meeting.turn != w.was;
    case BARRIER: return t.cta->barriers[w.address].turn != w.was;
    case CLUSTER: return t.cta->cluster->barrier.turn != w.was;
    case MBARRIER: return (t.cta->mbarriers.at(w.address).phase & 1) != w.was;
    case GRID: return t.cta->grid->before->ended == t.cta->grid->before->count;
    default: return true;
    }
}

// ---- a host thread and what it runs (machine.cpp), streams (streams.cpp) ----

void begin_thread(int device, uint64_t number);
void end_thread();
void enqueue(const shape &s, const std::function<void()> &body); // after the launches of this thread
int finish_all();                                                // all of that
inline bool is_stream(void *s) { return (uintptr_t)s > 2; }      // neither the default stream nor a per-thread one
void launch_in(void *stream, const shape &s, std::function<void()> body);
int wait_for_streams(int device);

// All lanes of the warp bring `words` of `in`; the last one to arrive calls finish(meeting); returns the lane's output.
template <class F> const uint32_t *together(const char *what, const uint32_t *in, int words, F finish) {
    Meeting &m = my_warp().meeting;
    int lane = (int)(me->where.thread.x % LANES);
    if (m.arrived == 0)
        m.what = what;
    else if (m.what != what && strcmp(m.what, what) != 0)
        fail("lanes of a warp are at %s and at %s", m.what, what);
    for (int i = 0; i < words; i++) m.in[lane][i] = in[i];
    progress++;
    if (++m.arrived < LANES) {
        block({WARP, what, 0, m.turn});
    } else {
        finish(m);
        m.arrived = 0, m.turn++;
    }
    return m.out[lane];
}

} // namespace emu

#endif
