/* attention_plan.c: divides a step's attention among a GPU's workers. Pure host code. */
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/latent.h"
#include "base/size.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = IV_ATTENTION_BLOCK,
    EACH = IV_ATTENTION_BLOCKS_PER_SPLIT,
    GENERIC_ROWS = 8,
    HOPPER_ROWS = 16,
    SPLIT_COST = 1, /* per split, in blocks */
    SLICE_COST = 1,
    MERGE_COST = 5 /* of a worker's part in a shared slice */
};

iv_attention_geometry iv_attention_geometry_of(const iv_gpu_attention_shape *s, bool generic) {
    iv_attention_geometry g = {0};
    bool pairs = s->head_dim == 256 || s->capped;
    g.tall_rows = pairs ? IV_ATTENTION_PAIR_ROWS : IV_ATTENTION_TALL_ROWS;
    g.hopper = s->arithmetic == IV_TC16 && s->type != IV_F32 && !generic && s->group <= (size_t)g.tall_rows &&
               (s->head_dim == 64 || s->head_dim == 128 || s->head_dim == 256);
    g.rows = g.hopper ? HOPPER_ROWS : GENERIC_ROWS;
    int group = (int)s->group, slices = (group + g.rows - 1) / g.rows;
    g.width = (group + slices - 1) / slices;
    g.slices = (int)s->kv_heads * slices;
    g.tokens = g.rows / g.width;
    g.tall_tokens = g.hopper ? g.tall_rows / group : 0;
    g.workers_each = g.hopper ? 1 : 8;
    return g;
}

static size_t tiles_max(const iv_attention_geometry *g, size_t rows_max, size_t spans_max) {
    size_t n = rows_max / (size_t)g->tokens + spans_max;
    return g->tall_tokens ? n + rows_max / (size_t)g->tall_tokens + spans_max : n;
}

static size_t bytes_with(size_t tiles) {
    return sizeof(iv_attention_plan) + IV_ATTENTION_WORKERS_MAX * sizeof(iv_attention_worker) +
           IV_ATTENTION_WORKERS_MAX * sizeof(iv_attention_kv_split) + tiles * sizeof(iv_attention_tile);
}

size_t iv_gpu_attention_plan_bytes(const iv_gpu_attention_shape *s, size_t rows_max, size_t spans_max) {
    size_t tiles = 0;
    for (int generic = 0; generic < 2; generic++) {
        iv_attention_geometry g = iv_attention_geometry_of(s, generic);
        tiles = iv_size_max(tiles, tiles_max(&g, rows_max, spans_max));
    }
    return bytes_with(tiles);
}

size_t iv_gpu_attention_scratch(const iv_gpu_attention_shape *s) {
    return IV_ATTENTION_WORKERS_MAX * sizeof(int32_t) +
           (size_t)IV_ATTENTION_PARTIAL_ROWS * iv_attention_partial_stride(s->head_dim) * sizeof(float);
}

/* ---- tiles ---------------------------------------------------------------------------------------------------- */

static iv_attention_tile make_tile(const iv_gpu_attention_shape *s, const iv_gpu_span *span, int token, int tokens) {
    iv_attention_tile t = {.first_row = span->first_row + token, .tokens = tokens, .table = span->table};
    t.position = span->position + token;
    t.first_block = (int32_t)(iv_first_visible(t.position, s->window) / BLOCK);
    t.last_block = (t.position + tokens - 1) / BLOCK;
    return t;
}

static int tile_blocks(const iv_attention_tile *t) { return t->last_block - t->first_block + 1; }

static int longest_first(const void *x, const void *y) {
    const iv_attention_tile *a = x, *b = y;
    int d = tile_blocks(b) - tile_blocks(a);
    return d ? d : (a->first_row > b->first_row) - (a->first_row < b->first_row);
}

/* Is the span processed in tall tiles? A single row never is, so a decode step launches no prefill kernel. */
static bool is_tall(const iv_gpu_attention_shape *s, const iv_attention_geometry *g, const iv_gpu_span *span) {
    return g->tall_tokens && span->rows > 1 && (size_t)span->rows * s->group > (size_t)g->rows;
}

/* Makes the tiles of the spans that are tall, or of the others. Returns their number; more than `capacity` if they do
 * not fit. */
static size_t make_tiles(const iv_gpu_attention_shape *s, const iv_attention_geometry *g, const iv_gpu_span *spans,
                         size_t count, bool tall, iv_attention_tile *tiles, size_t capacity) {
    size_t n = 0;
    int step = tall ? g->tall_tokens : g->tokens;
    for (size_t i = 0; i < count; i++) {
        if (is_tall(s, g, &spans[i]) != tall) continue;
        for (int token = 0; token < spans[i].rows; token += step, n++) {
            int here = spans[i].rows - token < step ? spans[i].rows - token : step;
            if (n >= capacity) return capacity + 1;
            tiles[n] = make_tile(s, &spans[i], token, here);
        }
    }
    return n;
}

/* ---- cuts ----------------------------------------------------------------------------------------------------- */

static int tile_splits(const iv_attention_tile *t) { return t->last_block / EACH - t->first_block / EACH + 1; }

/* The cost of a slice's first `splits` splits. */
static int64_t cost_before(const iv_attention_tile *t, int splits) {
    if (splits == 0) return 0;
    int end = (t->first_block / EACH + splits) * EACH; /* blocks before it */
    if (end > t->last_block + 1) end = t->last_block + 1;
    return SLICE_COST + end - t->first_block + splits * SPLIT_COST;
}

/* The split, of 0..splits, whose cost is nearest to `cost`. */
static int cut_near(const iv_attention_tile *t, int64_t cost) {
    int n = tile_splits(t), low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (cost_before(t, middle) < cost)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && cost - cost_before(t, low - 1) < cost_before(t, low) - cost ? low - 1 : low;
}

typedef struct cutter {
    const iv_attention_geometry *g;
    const iv_attention_tile *tiles;
    int tile_count;
    iv_attention_worker *workers;
    iv_attention_kv_split *kv_splits;
    int worker_count, kv_split_count;
    int kv_split_tile, kv_split_slice; /* of the last shared slice */
    int64_t last, longest;             /* where the last worker begins; the highest cost of the workers before it */
    int64_t partial_rows;
} cutter;

/* Makes the tile's slice a shared one, cut at `split`, unless it already is. False: the scratch is full. */
static bool open_kv_split(cutter *c, int tile, int slice, int split) {
    if (c->kv_split_count && c->kv_split_tile == tile && c->kv_split_slice == slice) return true;
    const iv_attention_tile *t = &c->tiles[tile];
    int64_t rows = (int64_t)t->tokens * c->g->width * (tile_splits(t) - split + 1);
    if (c->partial_rows + rows > IV_ATTENTION_PARTIAL_ROWS) return false;
    c->kv_splits[c->kv_split_count++] = (iv_attention_kv_split){(int32_t)c->partial_rows, split, 1, 0};
    c->kv_split_tile = tile, c->kv_split_slice = slice;
    c->partial_rows += rows;
    return true;
}

/* Ends the last worker's range at `end`, a cost counted from the first tile. */
static void close_worker(cutter *c, int64_t end) {
    const iv_attention_worker *w = &c->workers[c->worker_count - 1];
    int64_t cost = end - c->last + MERGE_COST * ((w->kv_split_first >= 0) + (w->kv_split_last >= 0));
    if (cost > c->longest) c->longest = cost;
    c->last = end;
}

/* Begins the next worker at the cut nearest to `cost` within `tile`; `before` is the cost of all earlier tiles. No
 * worker begins if the previous one begins there. */
static void cut(cutter *c, int tile, int64_t before, int64_t cost) {
    const iv_attention_tile *t = &c->tiles[tile];
    int n = tile_splits(t);
    int64_t each = cost_before(t, n);
    int slice = (int)(cost / each), split = cut_near(t, cost % each);
    int kv_split = -1, part = 0;
    if (split == n) slice++, split = 0;
    int64_t at = before + slice * each + cost_before(t, split);
    if (slice == c->g->slices) tile++, slice = 0, n = 0;
    iv_attention_worker *last = &c->workers[c->worker_count - 1];
    if (tile == c->tile_count || (last->tile == tile && last->unit >= slice * n + split)) return;
    if (split && open_kv_split(c, tile, slice, split))
        kv_split = c->kv_split_count - 1, part = c->kv_splits[kv_split].parts++;
    else if (split) {
        at -= cost_before(t, split), split = 0;
        if (last->tile == tile && last->unit >= slice * n) return;
    }
    last->kv_split_last = kv_split, last->part_last = part - 1;
    close_worker(c, at);
    c->workers[c->worker_count++] = (iv_attention_worker){
        .tile = tile, .unit = slice * n + split, .kv_split_first = kv_split, .part_first = part, .kv_split_last = -1};
}

/* The cost of a tile. */
static int64_t tile_cost(const cutter *c, int tile) {
    return c->g->slices * cost_before(&c->tiles[tile], tile_splits(&c->tiles[tile]));
}

/* Gives every worker the same cost, wherever the cuts fall. */
static void cut_evenly(cutter *c, int workers, int64_t total) {
    int64_t before = 0;
    for (int w = 1, tile = 0; w < workers; w++) {
        int64_t target = total * w / workers;
        for (; target >= before + tile_cost(c, tile); tile++) before += tile_cost(c, tile);
        cut(c, tile, before, target - before);
    }
}

/* Cuts at the slice boundaries nearest to even cuts, and within slices that need several workers: a worker then has
 * a part in at most one shared slice. */
static void cut_slices(cutter *c, int workers, int64_t total) {
    int64_t before = 0;
    int begun = 0;
    for (int tile = 0; tile < c->tile_count; before += tile_cost(c, tile++)) {
        int64_t each = tile_cost(c, tile) / c->g->slices;
        for (int slice = 0; slice < c->g->slices; slice++) {
            int64_t end = before + (slice + 1) * each;
            int64_t half = each * workers < total ? each * workers : total; /* of a slice or of a worker's range */
            int parts = (int)((2 * end * workers - half) / (2 * total)) + 1 - begun;
            if (parts < 0) parts = 0;
            for (int k = 0; k < parts; k++) cut(c, tile, before, slice * each + each * k / parts);
            begun += parts;
        }
    }
}

static void make_cuts(cutter *c, int workers, bool slices) {
    int64_t total = 0;
    for (int i = 0; i < c->tile_count; i++) total += tile_cost(c, i);
    c->workers[0] = (iv_attention_worker){.kv_split_first = -1, .kv_split_last = -1};
    c->worker_count = 1, c->kv_split_count = 0, c->partial_rows = 0, c->last = c->longest = 0;
    if (slices)
        cut_slices(c, workers, total);
    else
        cut_evenly(c, workers, total);
    close_worker(c, total);
}

/* Cuts at slice boundaries need fewer merges, or none. They are preferred unless they take 5 % longer. If memory is
 * the bottleneck that costs nothing: fewer workers reach the full bandwidth as well. */
static void divide_work(cutter *c, int workers) {
    make_cuts(c, workers, true);
    int64_t longest = c->longest;
    make_cuts(c, workers, false);
    if (longest <= c->longest + c->longest / 20) make_cuts(c, workers, true);
    for (int w = 0; w < c->worker_count; w++) {
        iv_attention_worker *here = &c->workers[w], *next = here + 1;
        bool last = w + 1 == c->worker_count;
        here->end_tile = last ? c->tile_count : next->tile, here->end_unit = last ? 0 : next->unit;
        here->first = c->tiles[here->tile];
    }
}

/* ---- the plan ------------------------------------------------------------------------------------------------- */

static int workers_of(const iv_attention_geometry *g, int sms) {
    int n = sms * g->workers_each;
    return n < 1 ? 1 : n > IV_ATTENTION_WORKERS_MAX ? IV_ATTENTION_WORKERS_MAX : n;
}

static size_t plan_with(const iv_attention_geometry *g, const iv_gpu_attention_shape *s, const iv_gpu_span *spans,
                        size_t count, int sms, void *plan, size_t bytes) {
    iv_attention_plan *p = plan;
    int workers = workers_of(g, sms);
    size_t kv_splits_at = sizeof *p + (size_t)workers * sizeof(iv_attention_worker);
    size_t short_at = kv_splits_at + (size_t)workers * sizeof(iv_attention_kv_split);
    short_at = (short_at + 31) / 32 * 32;
    if (bytes < short_at) return 0;
    char *base = plan;
    iv_attention_tile *tiles = (iv_attention_tile *)(base + short_at);
    size_t capacity = (bytes - short_at) / sizeof *tiles;
    size_t few = make_tiles(s, g, spans, count, false, tiles, capacity);
    if (few > capacity) return 0;
    size_t tall = g->tall_tokens ? make_tiles(s, g, spans, count, true, tiles + few, capacity - few) : 0;
    if (tall > capacity - few) return 0;
    qsort(tiles + few, tall, sizeof *tiles, longest_first);
    cutter c = {.g = g, .tiles = tiles, .tile_count = (int)few};
    memset(p, 0, kv_splits_at);
    c.workers = p->worker, c.kv_splits = (iv_attention_kv_split *)(base + kv_splits_at);
    *p = (iv_attention_plan){.short_tiles = (int32_t)few, .tall_tiles = (int32_t)tall};
    p->kv_splits_at = (uint32_t)kv_splits_at, p->short_at = (uint32_t)short_at;
    p->tall_at = (uint32_t)(short_at + few * sizeof *tiles);
    if (few) divide_work(&c, workers);
    p->workers = c.worker_count, p->kv_splits = c.kv_split_count;
    return short_at + (few + tall) * sizeof *tiles;
}

size_t iv_attention_plan_as(const iv_gpu_attention_shape *s, bool generic, const iv_gpu_span *spans, size_t count,
                            int sms, void *plan, size_t bytes) {
    iv_attention_geometry g = iv_attention_geometry_of(s, generic);
    return plan_with(&g, s, spans, count, sms, plan, bytes);
}

size_t iv_gpu_attention_plan(const iv_gpu_attention_shape *s, const iv_gpu_span *spans, size_t count, int sms,
                             void *plan, size_t bytes) {
    return iv_attention_plan_as(s, false, spans, count, sms, plan, bytes);
}

/* ---- the launch ------------------------------------------------------------------------------------------------- */

int iv_attention_launch_as(const iv_gpu_attention_args *a, bool generic, iv_gpu_stream stream) {
    iv_attention_geometry g = iv_attention_geometry_of(&a->shape, generic);
    IV_ASSERT(a->shape.type == a->kv.type && a->shape.kv_heads == a->kv.heads && a->shape.head_dim == a->kv.head_dim);
    IV_ASSERT(a->shape.head_dim % 2 == 0 && a->shape.group > 0);
    int workers = workers_of(&g, a->sms);
    if (!g.hopper) return iv_attention_generic(a, workers, stream);
    int failed = iv_attention_decode(a, workers, stream);
    if (failed || a->decode) return failed;
    return g.tall_rows == IV_ATTENTION_PAIR_ROWS ? iv_attention_prefill_pairs(a, stream)
                                                 : iv_attention_prefill(a, stream);
}

int iv_gpu_attention(const iv_gpu_attention_args *a, iv_gpu_stream stream) {
    return iv_attention_launch_as(a, false, stream);
}

/* ---- latent attention ---------------------------------------------------------------------------------------------
 */

enum { LATENT_ROWS = 32, LATENT_FEW_ROWS = 16 };

static iv_latent_packing packing_of(size_t group, int rows, int width) {
    int slices = ((int)group + width - 1) / width;
    width = ((int)group + slices - 1) / slices;
    return (iv_latent_packing){rows, width, slices, rows / width};
}

/* A block of keys is read for each slice of heads, so as few as possible. */
iv_latent_packing iv_latent_short_tiles(size_t group) {
    int rows = group <= LATENT_FEW_ROWS ? LATENT_FEW_ROWS : LATENT_ROWS;
    return packing_of(group, rows, group < (size_t)rows ? (int)group : rows);
}

/* Of many tokens: the widest slices among those that leave the fewest rows empty. */
iv_latent_packing iv_latent_tall_tiles(size_t group) {
    iv_latent_packing best = packing_of(group, LATENT_ROWS, 1);
    for (int width = 2; width <= LATENT_ROWS && width <= (int)group; width++) {
        iv_latent_packing one = packing_of(group, LATENT_ROWS, width);
        if (one.tokens * best.slices >= best.tokens * one.slices) best = one;
    }
    return best;
}

bool iv_latent_fits_tiles(const iv_gpu_attention_shape *s, size_t turns) {
    return s->arithmetic == IV_TC16 && s->type != IV_F32 && turns == 64 && (s->head_dim == 512 || s->head_dim == 256);
}

static iv_attention_geometry latent_geometry(const iv_gpu_attention_shape *s, size_t turns, bool general) {
    if (general || !iv_latent_fits_tiles(s, turns)) return iv_attention_geometry_of(s, true);
    iv_latent_packing few = iv_latent_short_tiles(s->group);
    return (iv_attention_geometry){.hopper = true,
                                   .rows = few.rows,
                                   .width = few.width,
                                   .slices = few.slices,
                                   .tokens = few.tokens,
                                   .tall_tokens = iv_latent_tall_tiles(s->group).tokens,
                                   .workers_each = 1};
}

size_t iv_gpu_latent_plan_bytes(const iv_gpu_attention_shape *s, size_t turns, size_t rows_max, size_t spans_max) {
    size_t tiles = 0;
    for (int general = 0; general < 2; general++) {
        iv_attention_geometry g = latent_geometry(s, turns, general);
        tiles = iv_size_max(tiles, tiles_max(&g, rows_max, spans_max));
    }
    return bytes_with(tiles);
}

size_t iv_latent_plan_as(const iv_gpu_attention_shape *s, size_t turns, bool general, const iv_gpu_span *spans,
                         size_t count, int sms, void *plan, size_t bytes) {
    iv_attention_geometry g = latent_geometry(s, turns, general);
    return plan_with(&g, s, spans, count, sms, plan, bytes);
}

size_t iv_gpu_latent_plan(const iv_gpu_attention_shape *s, size_t turns, const iv_gpu_span *spans, size_t count,
                          int sms, void *plan, size_t bytes) {
    return iv_latent_plan_as(s, turns, false, spans, count, sms, plan, bytes);
}

int iv_latent_attention_as(const iv_gpu_attention_args *a, size_t turns, bool general, iv_gpu_stream stream) {
    iv_attention_geometry g = latent_geometry(&a->shape, turns, general);
    IV_ASSERT(a->shape.kv_heads == 1 && a->shape.group_first == 0 && a->shape.heads <= a->shape.group);
    IV_ASSERT(turns % 2 == 0 && a->shape.head_dim + turns <= IV_GPU_LATENT_MAX);
    int workers = workers_of(&g, a->sms);
    return g.hopper ? iv_latent_tiles(a, turns, workers, stream) : iv_latent_general(a, turns, workers, stream);
}

int iv_gpu_latent_attention(const iv_gpu_attention_args *a, size_t turns, iv_gpu_stream stream) {
    return iv_latent_attention_as(a, turns, false, stream);
}
