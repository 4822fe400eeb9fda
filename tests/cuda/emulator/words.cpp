// words.cpp: the emulated instructions: shared memory, synchronization of threads, mbarriers, copies; tensor cores are
// in tensor.cpp. Copies land at some moment between their issue and the wait for them: late and early ones both reveal
// missing waits.
#include "machine.h"

#include <algorithm>

namespace emu {

// ---- shared memory ----

Cta *other_cta(Cta *from, uint32_t address) {
    uint32_t other = address >> 24;
    if (other > from->cluster->ctas.size()) fail("address %#x is of no CTA of the cluster", address);
    Cta *c = &from->cluster->ctas[other - 1];
    if (c->left == 0) fail("reaches into the shared memory of a CTA that has left");
    return c;
}

void fail_memory(const Cta *c, uint32_t address, size_t bytes, size_t align) {
    uint32_t offset = address & OFFSET;
    if (offset % align) fail("shared address %#x is not a multiple of %zu", address, align);
    if (offset < SYSTEM || offset + bytes > c->statics_end) fail("shared address %#x is outside", address);
}

unsigned char *memory(uint32_t address, size_t bytes, size_t align) {
    return memory_of(me->cta, address, bytes, align);
}

uint32_t shared_address(const void *p) {
    size_t offset = (size_t)((const unsigned char *)p - me->cta->memory);
    if (offset >= SHARED_BYTES) fail("not shared memory");
    return (uint32_t)offset;
}

uint32_t shared_address_of(uint32_t address, uint32_t cta) { return (address & OFFSET) | (cta + 1) << 24; }
unsigned cluster_rank() { return (unsigned)me->cta->rank; }

// Not aligned more strictly than requested.
void *shared_dynamic(size_t align) { return me->cta->memory + SYSTEM + (align < 1024 ? align : 0); }

void *shared_static(const void *key, size_t bytes, size_t align) {
    Cta *c = me->cta;
    auto found = c->statics.find(key);
    if (found != c->statics.end()) return c->memory + found->second;
    size_t at = (c->statics_end + align - 1) / align * align;
    if (at + bytes - SYSTEM > SHARED_MAX) fail("too much shared memory");
    c->statics[key] = at, c->statics_end = at + bytes;
    memset(c->memory + at, 0xff, bytes);
    return c->memory + at;
}

// ---- synchronization ----

uint32_t lane_id() { return me->where.thread.x % LANES; }

void sync_warp() {
    if (fault_strikes(EMU_FORGET_SYNCS, 2)) return;
    together("__syncwarp", nullptr, 0, [](Meeting &) {});
}

uint32_t shuffle_word(uint32_t v, int from) {
    uint32_t in[2] = {v, (uint32_t)from};
    return together("a shuffle", in, 2, [](Meeting &m) {
        for (int l = 0; l < LANES; l++) m.out[l][0] = m.in[m.in[l][1] % LANES][0];
    })[0];
}

unsigned ballot(bool b) {
    uint32_t in = b;
    return together("a vote", &in, 1, [](Meeting &m) {
        uint32_t votes = 0;
        for (int l = 0; l < LANES; l++) votes |= m.in[l][0] << l;
        for (int l = 0; l < LANES; l++) m.out[l][0] = votes;
    })[0];
}

uint32_t reduce_max(uint32_t v) {
    return together("a maximum", &v, 1, [](Meeting &m) {
        uint32_t most = 0;
        for (int l = 0; l < LANES; l++) most = std::max(most, m.in[l][0]);
        for (int l = 0; l < LANES; l++) m.out[l][0] = most;
    })[0];
}

static uint64_t arrive(Barrier &b, int threads) {
    uint64_t turn = b.turn;
    if (b.arrived && b.threads != threads) fail("a barrier of %d threads and of %d", b.threads, threads);
    b.threads = threads, progress++;
    if (++b.arrived == threads) b.arrived = 0, b.turn++, b.result = b.votes, b.votes = 0;
    return turn;
}

void barrier(int id, int threads, bool wait) {
    if (id < 0 || id >= BARRIERS || threads % LANES) fail("barrier %d of %d threads", id, threads);
    Barrier &b = me->cta->barriers[id];
    uint64_t turn = arrive(b, threads);
    if (wait && b.turn == turn && !fault_strikes(EMU_FORGET_SYNCS, 2))
        block({BARRIER, "a barrier", (uint32_t)id, turn});
}

int barrier_count(int threads, bool vote) {
    Barrier &b = me->cta->barriers[0];
    b.votes += vote;
    barrier(0, threads, true);
    return b.result;
}

void cluster_barrier(bool comes, bool wait) {
    Cluster *k = me->cta->cluster;
    if (comes) me->cluster_turn = arrive(k->barrier, (int)(k->ctas.size() * me->cta->threads.size()));
    if (wait && k->barrier.turn == me->cluster_turn) block({CLUSTER, "the cluster", 0, me->cluster_turn});
}

// ---- mbarriers ----

Mbarrier &mbarrier_of(Cta *from, uint32_t address) {
    memory_of(from, address, 8, 8);
    Cta *c = cta_of(from, address);
    auto found = c->mbarriers.find(address & OFFSET);
    static thread_local Mbarrier none;
    if (found != c->mbarriers.end()) return found->second;
    fail("there is no mbarrier at %#x", address);
    return none;
}

void mbarrier_init(uint32_t bar, uint32_t count) {
    memory(bar, 8, 8);
    if (!count || me->cta->mbarriers.count(bar)) fail("mbarrier at %#x is made twice, or for no thread", bar);
    me->cta->mbarriers[bar] = {count, count, 0, 0};
}

void mbarrier_took(Mbarrier &b) {
    if (b.pending == 0 && b.bytes == 0) b.phase++, b.pending = b.count;
    progress++;
}

void mbarrier_arrive(uint32_t bar, uint32_t bytes) {
    Mbarrier &b = mbarrier_of(me->cta, bar);
    b.bytes += bytes;
    if (!fault_happened && fault_strikes(EMU_LOSE_ARRIVAL, 16)) return;
    if (b.pending == 0) fail("the mbarrier at %#x has more arrivals than it counts", bar);
    b.pending--;
    mbarrier_took(b);
}

void mbarrier_wait(uint32_t bar, uint32_t parity) {
    mbarrier_of(me->cta, bar);
    if (parity > 1) fail("parity %u", parity);
    if (fault_strikes(EMU_FORGET_WAITS, 2)) return;
    Wait w = {MBARRIER, "an mbarrier", bar & OFFSET, parity};
    while ((me->cta->mbarriers.at(w.address).phase & 1) == parity) block(w);
}

bool mbarrier_test(uint32_t bar, uint32_t parity) {
    if (parity > 1) fail("parity %u", parity);
    return (mbarrier_of(me->cta, bar).phase & 1) != parity;
}

// ---- copies ----

// A row, 16 bytes after 16.
static void copy_row(Cta *cta, const CUtensorMap &m, uint32_t to, const char *row, int64_t x, bool in) {
    uint32_t width = (uint32_t)m.stride[0], each = 16 / width;
    for (uint32_t i = 0; i < m.box[0]; i += each) {
        char v[16] = {};
        for (uint32_t k = 0; in && k < each; k++)
            if (x + i + k >= 0 && (uint64_t)(x + i + k) < m.size[0])
                memcpy(v + k * width, row + (x + i + k) * width, width);
        uint32_t at = to + width * i;
        memcpy(memory_of(cta, m.swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? swizzled(at) : at, 16, 16), v, 16);
    }
}

static uint32_t box_bytes(const CUtensorMap &m) {
    return (uint32_t)m.stride[0] * m.box[0] * m.box[1] * m.box[2] * m.box[3];
}

static void land_box(Cta *cta, const Copy &c, uint32_t to) {
    const CUtensorMap &m = c.map;
    for (uint32_t i = 0; i < m.box[1] * m.box[2] * m.box[3]; i++, to += (uint32_t)m.stride[0] * m.box[0]) {
        int64_t at[4] = {0, c.corner[1] + (int64_t)(i % m.box[1]), c.corner[2] + (int64_t)(i / m.box[1] % m.box[2]),
                         c.corner[3] + (int64_t)(i / m.box[1] / m.box[2])};
        bool in = true;
        const char *row = m.base;
        for (int k = 1; k < 4; k++) {
            in = in && at[k] >= 0 && (uint64_t)at[k] < m.size[k];
            row += at[k] * (int64_t)m.stride[k];
        }
        copy_row(cta, m, to, row, c.corner[0], in);
    }
}

static void bytes_came(const Copy &c) {
    uint32_t bytes = c.box ? box_bytes(c.map) : c.bytes;
    for (uint32_t r = 0; r < (c.ctas ? 8 : 1); r++) {
        if (c.ctas && !(c.ctas >> r & 1)) continue;
        Mbarrier &b = mbarrier_of(c.cta, c.ctas ? shared_address_of(c.bar, r) : c.bar);
        b.bytes -= bytes;
        mbarrier_took(b);
    }
}

static void land(const Copy &c) {
    for (uint32_t r = 0; r < (c.ctas ? 8 : 1); r++) {
        if (c.ctas && !(c.ctas >> r & 1)) continue;
        uint32_t to = c.ctas ? shared_address_of(c.to, r) : c.to;
        if (c.box)
            land_box(c.cta, c, to);
        else
            memcpy(memory_of(c.cta, to, c.bytes, c.from ? 16 : 4), c.from ? c.from : &c.word, c.bytes);
    }
    if (!c.signaled) bytes_came(c);
}

void land_copies() {
    for (size_t i = 0; i < copies.size();) {
        if (copies[i].due > now) {
            i++;
            continue;
        }
        Copy c = copies[i];
        copies.erase(copies.begin() + (long)i);
        land(c);
    }
}

// May `bytes` at `to` be overwritten? What a warp has read must have come.
static void check_reads(uint32_t to, uint32_t bytes) {
    Cta *cta = cta_of(me->cta, to);
    uint32_t first = (to & OFFSET) / 16;
    for (size_t w = 0; w < cta->warps.size(); w++) {
        Warp &warp = cta->warps[w];
        if (warp.read.empty()) continue;
        uint32_t fenced = *std::min_element(warp.fenced, warp.fenced + LANES);
        for (uint32_t i = first; i < first + bytes / 16; i++) {
            if (warp.read[i] > fenced) fail("a copy into %#x, which warp %zu has read without a fence", i * 16, w);
            warp.read[i] = 0;
        }
    }
}

void fence_proxy() {
    if (fault_strikes(EMU_FORGET_FENCES, 2)) return;
    my_warp().fenced[lane_id()] = my_warp().reads;
}

static void ask(Copy c) {
    uint32_t bytes = c.box ? box_bytes(c.map) : c.bytes;
    for (uint32_t r = 0; r < (c.ctas ? 8 : 1); r++)
        if (!c.ctas || c.ctas >> r & 1) check_reads(c.ctas ? shared_address_of(c.to, r) : c.to, bytes);
    c.cta = me->cta, c.due = now + (long)random_below(lateness), progress++;
    if (fault_strikes(EMU_RELEASE_EARLY, 2)) bytes_came(c), c.signaled = true, c.due += 8;
    copies.push_back(c);
}

void copy_box(uint32_t to, const CUtensorMap *map, uint32_t bar, const int (&corner)[4], uint32_t ctas) {
    Copy c = {};
    c.box = true, c.map = *map, c.to = to, c.bar = bar, c.ctas = ctas;
    std::copy(corner, corner + 4, c.corner);
    bool swizzles = c.map.swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    if (swizzles && c.map.box[0] * c.map.stride[0] != 128) fail("a swizzled box whose rows are not 128 bytes");
    memory(to, box_bytes(c.map), 128);
    mbarrier_of(me->cta, bar);
    ask(c);
}

void copy_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    Copy c = {};
    c.to = to, c.bar = bar, c.from = from, c.bytes = bytes;
    if ((uintptr_t)from % 16 || bytes % 16) fail("a copy that is not of whole 16 bytes");
    memory(to, bytes, 16);
    ask(c);
}

void store_async(uint32_t to, uint32_t word, uint32_t bar) {
    Copy c = {};
    c.to = to, c.bar = bar, c.bytes = sizeof word, c.word = word;
    if (to >> 24 != bar >> 24) fail("a word and its mbarrier in different CTAs");
    memory(to, sizeof word, sizeof word);
    mbarrier_of(me->cta, bar);
    ask(c);
}

static void land_own(const Own &c) {
    unsigned char *to = memory(c.to, 16, 16);
    memset(to, 0, 16);
    if (c.there) memcpy(to, c.from, c.there);
}

void copy_own(uint32_t to, const void *from, uint32_t there) {
    if ((uintptr_t)from % 16) fail("a copy from an address that is not a multiple of 16");
    memory(to, 16, 16);
    if (random_below(2))
        land_own({to, from, there});
    else
        me->copies.push_back({to, from, there});
}

void copies_commit() {
    me->committed.push_back(std::move(me->copies));
    me->copies.clear();
}

void copies_wait(int pending) {
    if (pending < 0) copies_commit(), pending = 0;
    for (; me->committed.size() > (size_t)pending; me->committed.pop_front())
        for (const Own &c : me->committed.front()) land_own(c);
}

// The source of a store is read at once or at its wait: premature overwrites show.
static void land_store(const Store &s) { memcpy(s.to, memory(s.from, s.bytes, 16), s.bytes); }

std::atomic<size_t> stores_made;

void store_bytes(void *to, uint32_t from, uint32_t bytes) {
    stores_made++;
    if ((uintptr_t)to % 16 || bytes % 16 || !bytes) fail("a store that is not of whole 16 bytes");
    memory(from, bytes, 16);
    if (random_below(2))
        land_store({to, from, bytes});
    else
        me->stores.push_back({to, from, bytes});
}

void stores_commit() {
    if (!me->stores.empty()) me->stored.push_back(std::move(me->stores));
    me->stores.clear();
}

void stores_wait(int pending) {
    if (!me->stored.empty() && fault_strikes(EMU_FORGET_STORES, 2)) return;
    for (; me->stored.size() > (size_t)pending; me->stored.pop_front())
        for (const Store &s : me->stored.front()) land_store(s);
}

} // namespace emu
