// machine.cpp: fibers and their schedule, launches, and CUDA's host calls that launchers and tests use. emulator.h
// lists what is modelled.
#include "machine.h"

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cudaTypedefs.h>
#include <sys/mman.h>
#include <unistd.h>

__thread dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

// All state belongs to a host thread, which runs its own launches or those of one stream.
__thread Thread *me;
__thread uint64_t progress;
__thread long now;
__thread unsigned lateness;
thread_local std::vector<Copy> copies;
std::atomic<emu_fault> fault;
std::atomic<bool> fault_happened;

static std::atomic<uint64_t> seed;
static __thread uint64_t state = 88172645463325252u;
static __thread Context scheduler;
static const uint64_t STACK_END = 0x5ac4e9d01b7736f2u;
static thread_local std::vector<Thread *> idle_threads;
static thread_local std::vector<char *> all_stacks;
static thread_local std::vector<unsigned char *> idle_memory;
static thread_local std::vector<std::unique_ptr<Cluster>> resident;
static thread_local std::deque<std::shared_ptr<Grid>> grids; // in order; running launches, then the following ones
static thread_local std::shared_ptr<Grid> newest;
static __thread bool failed;
static __thread int device, last_error;
static __thread char message[8192];
static char said[8192]; // of the last failed launch

uint32_t random_below(uint32_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 24) % n;
}

bool fault_strikes(emu_fault kind, uint32_t one_of) {
    if (fault != kind || random_below(one_of)) return false;
    return fault_happened = true;
}

// ---- fibers ----

static void entry();

#if defined(__x86_64__)
// Saves the caller's registers on its stack and the stack's top in *from; continues what has left `to`.
extern "C" void emu_switch(void **from, void *to);
asm(R"(
    .text
    .type emu_switch, @function
emu_switch:
    endbr64
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emu_switch, . - emu_switch
)");

static void leave() { emu_switch(&me->context.stack_top, scheduler.stack_top); }

static void enter(Thread *t) {
    if (!t->begun) {
        void **top = (void **)(t->stack + STACK_BYTES);
        *--top = nullptr; // as after a call: the top is 8 more than a multiple of 16
        *--top = (void *)entry;
        t->context.stack_top = top - 6; // registers, of any values
    }
    t->begun = true;
    emu_switch(&scheduler.stack_top, t->context.stack_top);
}
#else
static void leave() {
    if (_setjmp(me->context.registers) == 0) _longjmp(scheduler.registers, 1);
}

static void enter(Thread *t) {
    if (_setjmp(scheduler.registers)) return;
    if (t->begun) _longjmp(t->context.registers, 1);
    t->begun = true;
    ucontext_t &first = t->context.first;
    getcontext(&first);
    first.uc_stack.ss_sp = t->stack, first.uc_stack.ss_size = STACK_BYTES, first.uc_link = nullptr;
    makecontext(&first, entry, 0);
    setcontext(&first);
}
#endif

static void entry() {
    for (;;) {
        me->cta->grid->body();
        if (!me->stores.empty() || !me->stored.empty()) fail("a thread ends before what the copy engine stores for it");
        me->done = true;
        leave();
    }
}

static void resume(Thread *t) {
    me = t;
    threadIdx = t->where.thread, blockIdx = t->where.block, blockDim = t->where.block_dim, gridDim = t->where.grid;
    enter(t);
    me = nullptr;
    if (memcmp(t->stack, &STACK_END, sizeof STACK_END) != 0) {
        fprintf(stderr, "emulator: a thread needs more than %d bytes of stack\n", STACK_BYTES);
        abort();
    }
}

void block(const Wait &w) {
    me->wait = w;
    leave();
    me->wait = Wait();
}

void spin() { block({SPIN, "a value in memory", 0, 0}); }

bool spin_for_peer() {
    if (fault_strikes(EMU_FORGET_PEERS, 2)) return false;
    block({PEER, "a value that another GPU writes", 0, 0});
    return true;
}

static bool spins(const Thread &t) { return t.wait.reason == SPIN || t.wait.reason == PEER; }

void fail(const char *format, ...) {
    if (!failed) {
        int at = me ? snprintf(message, sizeof message, "block %u,%u thread %u: ", me->where.block.x, me->where.block.y,
                               me->where.thread.x)
                    : 0;
        va_list list;
        va_start(list, format);
        vsnprintf(message + at, sizeof message - (size_t)at, format, list);
        va_end(list);
    }
    failed = true;
    if (me) leave(); // finished
}

// The number of mappings is limited: stacks are allocated many at once, each with a guard word at its end.
static void make_threads() {
    char *stacks = (char *)mmap(nullptr, (size_t)LANES * STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    all_stacks.push_back(stacks);
    for (int i = LANES; i--;) {
        Thread *t = new Thread;
        t->stack = stacks + (size_t)i * STACK_BYTES;
        memcpy(t->stack, &STACK_END, sizeof STACK_END);
        idle_threads.push_back(t);
    }
}

static Thread *take_thread() {
    if (idle_threads.empty()) make_threads();
    Thread *t = idle_threads.back();
    idle_threads.pop_back();
    return t;
}

// ---- CTAs begin and end ----

static bool is_slow_launch;

static void begin_cta(Cta *c, size_t index) {
    const shape &s = c->grid->s;
    if (idle_memory.empty()) idle_memory.push_back((unsigned char *)aligned_alloc(1024, SHARED_BYTES));
    c->memory = idle_memory.back(), idle_memory.pop_back();
    /* NaN, unless a fault is planted: an index that is read too early must not lead outside of all memory. */
    memset(c->memory, fault == EMU_NO_FAULT ? 0xff : 0, 1024 + s.shared + 1024);
    c->statics_end = 1024 + 16 + (s.shared + 15) / 16 * 16;
    c->left = s.block.x;
    c->warps.resize(s.block.x / LANES);
    for (Warp &w : c->warps) w.eagerness = is_slow_launch ? 1u << 2 * random_below(3) : 1;
    for (unsigned i = 0; i < s.block.x; i++) {
        Thread *t = take_thread();
        t->where.thread = dim3(i, 0, 0), t->where.block_dim = s.block, t->where.grid = s.grid;
        t->where.block = dim3((unsigned)(index % s.grid.x), (unsigned)(index / s.grid.x % s.grid.y),
                              (unsigned)(index / s.grid.x / s.grid.y));
        t->cta = c, t->done = false;
        c->threads.push_back(t);
    }
}

static void begin_cluster(Grid *g) {
    resident.push_back(std::make_unique<Cluster>());
    Cluster *k = resident.back().get();
    k->ctas.resize((size_t)g->s.cluster);
    for (int r = 0; r < g->s.cluster; r++) {
        Cta *c = &k->ctas[(size_t)r];
        c->cluster = k, c->rank = r, c->grid = g;
        begin_cta(c, g->begun++);
    }
}

static void end_cluster(Cluster *k) {
    for (Cta &c : k->ctas) {
        for (const Copy &copy : copies)
            if (copy.cta == &c && !failed) fail("a copy is under way when its CTA has left");
        for (Warp &w : c.warps)
            if (!failed && (w.meeting.arrived || !w.issued.empty() || !w.committed.empty()))
                fail("a warp left in the middle of something");
        for (Thread *t : c.threads) {
            if (!t->done) t->begun = false; // abandoned: a new context next time
            t->done = true, t->wait = Wait();
            t->copies.clear(), t->committed.clear(), t->stores.clear(), t->stored.clear();
            idle_threads.push_back(t);
        }
        idle_memory.push_back(c.memory);
    }
}

static bool has_left(const Cluster *k) {
    for (const Cta &c : k->ctas)
        if (c.left) return false;
    return true;
}

// ---- the schedule ----

static void run_warp(Cta *c, unsigned warp) {
    unsigned passes = 1 + random_below(24), backwards = random_below(2) ? LANES - 1 : 0;
    for (unsigned pass = 0; pass < passes && !failed; pass++) {
        bool any = false;
        for (unsigned i = 0; i < LANES && !failed; i++) {
            Thread *t = c->threads[warp * LANES + (i ^ backwards)];
            bool spun = spins(*t);
            if (t->done || !ready(*t) || (spun && pass)) continue;
            resume(t);
            if (failed) return;
            if (t->done) c->left--;
            if (spun && !t->done && spins(*t)) continue;
            progress++, any = true;
        }
        if (!any) return;
    }
}

static void run_round(bool all) {
    std::vector<std::pair<Cta *, unsigned>> warps;
    for (auto &k : resident)
        for (Cta &c : k->ctas)
            for (unsigned w = 0; c.left && w < c.warps.size(); w++) warps.push_back({&c, w});
    if (warps.empty()) return;
    size_t first = random_below((uint32_t)warps.size());
    for (size_t i = 0; i < warps.size() && !failed; i++) {
        auto [cta, warp] = warps[(first + i) % warps.size()];
        if (!all && cta->warps[warp].eagerness > 1 && random_below(cta->warps[warp].eagerness)) continue;
        run_warp(cta, warp);
        now++;
        if (!failed) land_copies();
    }
}

static void describe(const Thread &t, char *text, size_t bytes) {
    const Wait &w = t.wait;
    if (w.reason == MBARRIER) {
        const Mbarrier &b = t.cta->mbarriers.at(w.address);
        snprintf(text, bytes,
                 "the end of a phase of parity %d of the mbarrier at %#x (in phase %u: %u of %u arrivals and %" PRId64
                 " bytes are missing)",
                 (int)w.was, w.address, b.phase, b.pending, b.count, b.bytes);
    } else if (w.reason == BARRIER) {
        const Barrier &b = t.cta->barriers[w.address];
        snprintf(text, bytes, "barrier %u (%d of %d threads are there)", w.address, b.arrived, b.threads);
    } else {
        snprintf(text, bytes, "%s", w.what);
    }
}

// What each thread waits for, lanes of a warp together.
static void report_deadlock() {
    std::string all = "deadlock:";
    size_t threads = 0, lines = 0;
    for (auto &k : resident)
        for (Cta &c : k->ctas)
            for (size_t i = 0, same; i < c.threads.size(); i += same) {
                const Thread &t = *c.threads[i];
                char text[256], other[256], line[400];
                describe(t, text, sizeof text);
                for (same = 1; (i + same) % LANES && c.threads[i + same]->done == t.done; same++) {
                    describe(*c.threads[i + same], other, sizeof other);
                    if (strcmp(text, other) != 0) break;
                }
                if (t.done) continue;
                threads += same;
                if (++lines > 24) continue;
                snprintf(line, sizeof line, "\n  block %u,%u warp %zu, %zu lanes from %zu: %s", t.where.block.x,
                         t.where.block.y, i / LANES, same, i % LANES, text);
                all += line;
            }
    if (lines > 24) all += "\n  ...";
    fail("%s\n  %zu threads in all", all.c_str(), threads);
}

void release_next() {
    if (me->cta->released) return;
    me->cta->released = true, me->cta->grid->released++, progress++;
}

void wait_for_last() {
    const Grid *before = me->cta->grid->before.get();
    if (!before || before->ended == before->count || fault_strikes(EMU_FORGET_LAST, 2)) return;
    block({GRID, "the end of the launch before", 0, 0});
}

static bool may_begin(const Grid *g) {
    const Grid *b = g->before.get();
    if (g->s.overlaps) return !b || b->released == b->count;
    return g == grids.front().get();
}

/* Clusters begin in order, where there is room. */
static void begin_what_can(size_t room) {
    for (auto &g : grids) {
        if (!may_begin(g.get())) return;
        size_t ctas = 0;
        for (auto &k : resident) ctas += k->ctas.size();
        for (; g->begun < g->count && (!ctas || ctas + (size_t)g->s.cluster <= room); ctas += (size_t)g->s.cluster)
            begin_cluster(g.get());
        if (g->begun < g->count) return;
    }
}

static void end_what_has() {
    for (size_t i = 0; i < resident.size() && !failed;) {
        Cluster *k = resident[i].get();
        if (!has_left(k)) {
            i++;
            continue;
        }
        for (Cta &c : k->ctas) c.grid->released += !c.released, c.grid->ended++;
        end_cluster(k);
        resident.erase(resident.begin() + (long)i);
        progress++;
    }
    while (!grids.empty() && grids.front()->ended == grids.front()->count) {
        grids.front()->before.reset();
        grids.pop_front();
    }
}

static std::mutex &peers_lock = *new std::mutex; // never destroyed, like those of streams.cpp
static std::condition_variable &peers_wrote = *new std::condition_variable;

void wrote_for_peers() {
    std::lock_guard<std::mutex> hold(peers_lock);
    peers_wrote.notify_all();
}

static void await_peers() {
    std::unique_lock<std::mutex> hold(peers_lock);
    peers_wrote.wait_for(hold, std::chrono::microseconds(PAUSE_US));
}

// Other GPUs run in other threads, so the awaited value may still come.
static bool waits_for_peer() {
    for (auto &k : resident)
        for (Cta &c : k->ctas)
            for (Thread *t : c.threads)
                if (!t->done && t->wait.reason == PEER) return true;
    return false;
}

/* All that was launched. */
static void run_all() {
    size_t room = (size_t)multiprocessors() * (1 + random_below(2));
    for (int idle = 0; !failed && !grids.empty();) {
        uint64_t before = progress;
        begin_what_can(room);
        run_round(idle > 0);
        if (!failed) end_what_has();
        if (progress != before) {
            idle = 0;
        } else if (!copies.empty()) { /* nothing else can happen: time passes */
            for (const Copy &c : copies) now = now > c.due ? now : c.due;
            land_copies();
        } else if (++idle > 4) {
            if (!waits_for_peer()) report_deadlock();
            if (idle % LOOKS_A_PAUSE == 0) await_peers();
        }
    }
}

int finish_all() {
    if (grids.empty()) return 0;
    failed = false;
    is_slow_launch = random_below(2) != 0, lateness = 1u << 3 * random_below(4);
    run_all();
    for (auto &k : resident) end_cluster(k.get()); // of failed launches
    resident.clear(), copies.clear(), grids.clear(), newest.reset();
    if (failed) {
        std::lock_guard<std::mutex> hold(memory_lock);
        memcpy(said, message, sizeof said);
    }
    return last_error = failed ? cudaErrorLaunchFailure : 0;
}

/* Of device 0: two, or what the environment says, for programs that take this one. */
static int fewest() {
    static const char *said = getenv("INVAR_EMULATED_SMS");
    static const int n = said && atoi(said) > 0 ? atoi(said) : 2;
    return n;
}

int multiprocessors() { return device + fewest(); }

void begin_thread(int its_device, uint64_t number) {
    device = its_device;
    state ^= (seed + number) * 0x9e3779b97f4a7c15u;
}

void end_thread() {
    for (Thread *t : idle_threads) delete t;
    for (char *stacks : all_stacks) munmap(stacks, (size_t)LANES * STACK_BYTES);
    for (unsigned char *m : idle_memory) free(m);
    idle_threads.clear(), all_stacks.clear(), idle_memory.clear();
}

void enqueue(const shape &s, const std::function<void()> &body) {
    size_t count = (size_t)s.grid.x * s.grid.y * s.grid.z;
    auto g = std::make_shared<Grid>(Grid{s, body, grids.empty() ? nullptr : newest, count, 0, 0, 0});
    grids.push_back(newest = g);
}

int launch(const shape &s, std::function<void()> body) {
    last_error = cudaErrorInvalidConfiguration;
    if (!s.grid.x || !s.grid.y || !s.grid.z || s.grid.y > 65535 || s.grid.z > 65535 || !s.block.x || s.block.x > 1024 ||
        s.block.x % LANES || s.block.y != 1 || s.block.z != 1 || s.shared > SHARED_MAX || s.cluster < 1 ||
        s.cluster > 8 || s.grid.x % (unsigned)s.cluster)
        return last_error;
    if (is_stream(s.stream))
        launch_in(s.stream, s, std::move(body));
    else
        enqueue(s, body);
    return last_error = 0;
}

} // namespace emu

// ---- CUDA's host side ----

struct room {
    void *map;
    size_t bytes;
};
static std::unordered_map<void *, room> rooms; // under memory_lock

static CUresult encode(CUtensorMap *m, CUtensorMapDataType type, cuuint32_t sides, void *base, const cuuint64_t *size,
                       const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step, CUtensorMapInterleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    uint32_t width = type == CU_TENSOR_MAP_DATA_TYPE_UINT32 ? 4 : type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
    bool narrow = box[0] * width <= 128 || swizzle == CU_TENSOR_MAP_SWIZZLE_NONE;
    if (sides < 1 || sides > 4 || (uintptr_t)base % 16 || !narrow || box[0] * width % 16)
        return CUDA_ERROR_INVALID_VALUE;
    *m = {};
    m->sides = (int)sides, m->base = (const char *)base, m->swizzle = swizzle;
    for (unsigned i = 0; i < 4; i++) {
        m->size[i] = i < sides ? size[i] : 1, m->box[i] = i < sides ? box[i] : 1;
        m->stride[i] = i == 0 ? width : i < sides ? stride[i - 1] : 0;
        if (!m->size[i] || m->size[i] > UINT32_MAX || !m->box[i] || m->box[i] > 256 || (i && m->stride[i] % 16) ||
            (i < sides && step[i] != 1))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

extern "C" {

static const size_t DEVICE_BYTES = (size_t)4 << 30; // as runtime.c says

cudaError_t emu_malloc(void **p, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (bytes + 15) / 16 * 16, whole = (used + page - 1) / page * page;
    room r = {nullptr, whole + page};
    if (bytes > DEVICE_BYTES) return cudaErrorMemoryAllocation;
    r.map = mmap(nullptr, r.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r.map == MAP_FAILED) return cudaErrorMemoryAllocation;
    mprotect((char *)r.map + whole, page, PROT_NONE);
    *p = (char *)r.map + whole - used;
    memset(*p, 0xa5, used);
    std::lock_guard<std::mutex> hold(emu::memory_lock);
    rooms[*p] = r;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    cudaError_t failed = cudaDeviceSynchronize();
    if (failed) return failed;
    std::lock_guard<std::mutex> hold(emu::memory_lock);
    auto found = rooms.find(p);
    if (found == rooms.end()) return cudaErrorInvalidValue;
    munmap(found->second.map, found->second.bytes);
    rooms.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int) {
    cudaError_t failed = emu::finish_all();
    if (!failed) memcpy(to, from, bytes);
    return failed;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    cudaError_t failed = emu::finish_all();
    if (!failed) memset(to, value, bytes);
    return failed;
}
cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t failed = emu::finish_all();
    return failed ? failed : emu::wait_for_streams(emu::device);
}
cudaError_t cudaGetLastError(void) {
    int e = emu::last_error;
    emu::last_error = 0;
    return e;
}
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorLaunchFailure        ? emu::said
           : e == cudaErrorDevicesUnavailable ? "the GPU is lost"
           : e == cudaErrorInvalidValue       ? "invalid value"
                                              : "error";
}
cudaError_t cudaGetDeviceCount(int *count) { return *count = 64, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = emu::device, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return emu::device = device, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? 9
             : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                              : device + emu::fewest();
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **p, unsigned, int,
                                             cudaDriverEntryPointQueryResult *found) {
    *p = (void *)encode, *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

void emu_seed(uint64_t seed) { emu::seed = seed, emu::state = seed * 0x9e3779b97f4a7c15u + 88172645463325252u; }
void emu_plant(emu_fault kind) { emu::fault = kind, emu::fault_happened = false; }
bool emu_fault_happened(void) { return emu::fault_happened; }
size_t emu_stores(void) { return emu::stores_made; }
}
