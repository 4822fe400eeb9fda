/* adapters_cases.h: terms of adapters against the scalar reference, shared by test_adapters.c and
 * test_emulated_adapters.c: random products, slots, ranks and rows; rows of the step and entries of experts. */
#ifndef IV_TESTS_CUDA_ADAPTERS_CASES_H
#define IV_TESTS_CUDA_ADAPTERS_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/adapters.h"
#include "numerics/adapter.h"
#include "numerics/rows.h"

enum { ADAPTER_SLOTS = 4, ADAPTER_EXPERTS = 5, ADAPTER_PIECES = 4 };

typedef enum adapter_end { ADAPTER_STORES, ADAPTER_ADDS, ADAPTER_ACTIVATES } adapter_end;

/* An adapter's matrices of one piece; a NULL: it has none. */
typedef struct adapter_factors {
    iv_ref_adapter ref; /* b NULL: none. a is the first piece's where A is shared */
    void *a, *b;
    size_t first;
    bool shared;
} adapter_factors;

typedef struct adapter_layer {
    iv_gpu_adapter_args args; /* of the device */
    adapter_end end;
    size_t tables, rows, kpt, entries, width, x_rows;
    adapter_factors of[ADAPTER_EXPERTS][ADAPTER_SLOTS][ADAPTER_PIECES];
    void *x;                           /* [x_rows][x_stride] */
    float *y, *bias, *residual;        /* [y_rows][y_stride], [n], [rows][n] */
    uint32_t *slot;                    /* of the step's rows */
    int32_t *entry_slot, *entry_table; /* of entries: as iv_gpu_groups has it, and the expert; -1: of another GPU */
} adapter_layer;

static void *zero_padded(rng *r, family f, iv_dtype type, size_t rows, size_t k, size_t stride) {
    size_t width = iv_dtype_bytes(type);
    char *p = calloc(rows * stride + 1, width);
    assert_non_null(p);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < k; j++) put_type(type, p, i * stride + j, random_float(r, f));
    return p;
}

static void *packed_factor(const adapter_layer *l, const void *rows, size_t stride, size_t n, size_t k, int leaves) {
    size_t bytes = iv_gpu_factor_bytes(l->args.arithmetic, l->args.type, n, k, leaves);
    void *host = malloc(bytes);
    assert_non_null(host);
    iv_gpu_pack_factor(l->args.arithmetic, l->args.type, rows, stride, n, k, leaves, host);
    void *gpu = gpu_copy(host, bytes);
    free(host);
    return gpu;
}

/* Consecutive ranges of the outputs, some without a piece. */
static void make_pieces(rng *r, adapter_layer *l) {
    iv_gpu_adapter_args *a = &l->args;
    a->n = l->end == ADAPTER_ACTIVATES ? 16 * (1 + rng_below(r, 20)) : 1 + rng_below(r, 300);
    if (l->end == ADAPTER_STORES && rng_below(r, 3) == 0) a->paired = true, a->n = (a->n + 15) / 16 * 16;
    if (l->end == ADAPTER_ACTIVATES) {
        a->paired = true, a->pieces = 2;
        for (uint32_t i = 0; i < 2; i++)
            a->piece[i] = (iv_gpu_adapter_piece){i * (uint32_t)a->n / 2, (uint32_t)a->n / 2};
        return;
    }
    size_t unit = rng_below(r, 2) ? 1 : 8; /* pieces of whole eights: other kernels */
    if (unit > 1) a->n = (a->n + 31) / 32 * 32;
    a->pieces = l->end == ADAPTER_ADDS ? 1 : 1 + rng_below(r, a->n < ADAPTER_PIECES ? a->n : ADAPTER_PIECES);
    for (size_t i = 0; i < a->pieces; i++) {
        size_t from = a->n / unit * i / a->pieces * unit, to = a->n / unit * (i + 1) / a->pieces * unit;
        if (l->end == ADAPTER_STORES && to - from > unit) to -= rng_below(r, (to - from) / unit) * unit;
        a->piece[i] = (iv_gpu_adapter_piece){(uint32_t)from, (uint32_t)(to - from)};
    }
}

static void make_factors(rng *r, adapter_layer *l, size_t expert, size_t slot, iv_gpu_adapted_part *parts) {
    iv_gpu_adapter_args *a = &l->args;
    size_t kp = iv_padded_k(a->k), at = 0;
    for (size_t i = 0; i < a->pieces; i++) {
        adapter_factors *f = &l->of[expert][slot][i], *before = i ? f - 1 : NULL;
        *f = (adapter_factors){.first = at};
        if (slot == 0 || rng_below(r, 4) == 0) continue;
        f->shared = before && before->b && rng_below(r, 3) == 0;
        size_t rank = f->shared ? before->ref.rank : 1 + rng_below(r, rng_below(r, 3) ? 20 : 70),
               rp = iv_padded_k(rank);
        f->first = f->shared ? before->first : at;
        f->a = f->shared ? NULL : zero_padded(r, NORMAL, a->type, rank, a->k, kp);
        f->b = zero_padded(r, rng_below(r, 4) ? NORMAL : SUBNORMAL, a->type, a->piece[i].n, rank, rp);
        f->ref = (iv_ref_adapter){a->arithmetic, a->type,   f->shared ? before->ref.a : f->a, f->b, a->k,
                                  rank,          a->leaves, random_float(r, NORMAL)};
        if (!f->shared) at += rp;
        if (rp > a->rank_max) a->rank_max = rp;
        if (at > a->t_stride) a->t_stride = at;
        parts[i] = (iv_gpu_adapted_part){f->a ? packed_factor(l, f->a, kp, rank, a->k, a->leaves) : NULL,
                                         packed_factor(l, f->b, rp, a->piece[i].n, rank, 1), f->ref.scale,
                                         (int32_t)rank, (int32_t)f->first};
    }
}

/* Tiles as the host of an engine makes them: slots in any order, that of the base last. */
static void make_tiles(rng *r, adapter_layer *l) {
    iv_gpu_adapter_rows *rows = &l->args.rows;
    iv_gpu_adapter_tile *tiles = calloc(l->rows + ADAPTER_SLOTS, sizeof *tiles);
    int32_t *order = calloc(l->rows, sizeof *order), counts[2] = {0, 0}, at = 0;
    for (size_t s = 1; s <= ADAPTER_SLOTS; s++) {
        uint32_t slot = (uint32_t)(s % ADAPTER_SLOTS);
        int32_t first = at;
        for (size_t i = 0; i < l->rows; i++)
            if (l->slot[i] == slot) order[at++] = (int32_t)i;
        for (int32_t n; first < at; first += n) {
            n = at - first < IV_GPU_ADAPTER_ROWS ? at - first : IV_GPU_ADAPTER_ROWS;
            if (n > 1 && rng_below(r, 4) == 0) n = 1 + (int32_t)rng_below(r, (size_t)n);
            tiles[counts[1]++] = (iv_gpu_adapter_tile){(int32_t)slot, first, n, 0};
        }
        if (slot) counts[0] = counts[1];
    }
    rows->tiles_max = (size_t)counts[1] + rng_below(r, 3) + (rng_below(r, 3) == 0 ? 300 : 0); /* other kernels */
    rows->tiles = gpu_copy(tiles, (l->rows + ADAPTER_SLOTS) * sizeof *tiles);
    rows->order = gpu_copy(order, l->rows * sizeof *order), rows->counts = gpu_copy(counts, sizeof counts);
    free(tiles), free(order);
}

/* Each row chooses some experts; those of other GPUs stand before and behind these. */
static void make_entries(rng *r, adapter_layer *l) {
    iv_gpu_adapter_rows *rows = &l->args.rows;
    size_t experts = l->tables + rng_below(r, 4), first = rng_below(r, experts - l->tables + 1), n = 0;
    l->kpt = 1 + rng_below(r, experts), l->entries = l->rows * l->kpt;
    int32_t *offsets = calloc(experts + 1, sizeof *offsets), *slots = calloc(l->entries, sizeof *slots);
    unsigned char *chosen = calloc(l->entries, 1);
    l->entry_slot = calloc(l->entries, sizeof(int32_t)), l->entry_table = calloc(l->entries, sizeof(int32_t));
    for (size_t i = 0; i < l->rows; i++)
        for (size_t e = 0, of = rng_below(r, experts); e < l->kpt; e++)
            chosen[i * l->kpt + e] = (unsigned char)((of + e) % experts);
    for (size_t e = 0; e < experts; e++) {
        offsets[e] = (int32_t)n;
        for (size_t i = 0; i < l->entries; i++)
            if (chosen[i] == e) {
                l->entry_table[n] = e >= first && e < first + l->tables ? (int32_t)(e - first) : -1;
                slots[n] = l->entry_slot[n] = (int32_t)i;
                n++;
            }
    }
    offsets[experts] = (int32_t)n;
    rows->grouped = true, rows->entries = l->entries;
    rows->groups = (iv_gpu_groups){.experts = experts,
                                   .first = first,
                                   .count = l->tables,
                                   .offsets = gpu_copy(offsets, (experts + 1) * sizeof *offsets),
                                   .slots = gpu_copy(slots, l->entries * sizeof *slots),
                                   .experts_per_token = l->kpt};
    rows->slots = gpu_copy(l->slot, l->rows * sizeof *l->slot);
    free(offsets), free(slots), free(chosen);
}

static void make_layer(rng *r, iv_arithmetic arithmetic, iv_dtype type, bool grouped, adapter_layer *l) {
    iv_gpu_adapter_args *a = &l->args;
    *l =
        (adapter_layer){.end = (adapter_end)rng_below(r, grouped ? 1 : 3), .tables = grouped ? 1 + rng_below(r, 4) : 1};
    if (grouped && rng_below(r, 2)) l->end = ADAPTER_ACTIVATES;
    size_t leaves = (size_t)1 << rng_below(r, 4), room = rng_below(r, 3) ? 200 : 900;
    *a = (iv_gpu_adapter_args){.arithmetic = arithmetic, .type = type, .slots = ADAPTER_SLOTS};
    a->k = 1 + rng_below(r, room), a->sms = 1 + (int)rng_below(r, 8);
    if (leaves > 1) a->k = (a->k + 16 * leaves - 1) / (16 * leaves) * 16 * leaves - rng_below(r, 16);
    a->leaves = (int)leaves, a->t_stride = 16;
    l->rows = 1 + rng_below(r, rng_below(r, 4) ? 20 : 90), l->width = iv_dtype_bytes(type);
    l->slot = calloc(l->rows, sizeof *l->slot);
    for (size_t i = 0, kinds = 1 + rng_below(r, ADAPTER_SLOTS); i < l->rows; i++)
        l->slot[i] = (uint32_t)(rng_below(r, 5) ? rng_below(r, kinds) : i * ADAPTER_SLOTS / l->rows);
    bool plain = rng_below(r, 3) == 0; /* all rows are of slot 1 */
    for (size_t i = 0; plain && i < l->rows; i++) l->slot[i] = 1;
    make_pieces(r, l);
    if (grouped) make_entries(r, l);
    if (!grouped && !plain) make_tiles(r, l);
    if (plain) a->rows.plain = l->rows;
    iv_gpu_adapted_part parts[ADAPTER_EXPERTS][ADAPTER_SLOTS * ADAPTER_PIECES] = {0};
    char *table = calloc(l->tables, a->slots * a->pieces * sizeof(iv_gpu_adapted_part));
    for (size_t e = 0; e < l->tables; e++) {
        for (size_t s = 0; s < a->slots; s++) make_factors(r, l, e, s, &parts[e][s * a->pieces]);
        memcpy(table + e * a->slots * a->pieces * sizeof parts[0][0], parts[e],
               a->slots * a->pieces * sizeof parts[0][0]);
    }
    a->parts = gpu_copy(table, l->tables * a->slots * a->pieces * sizeof parts[0][0]);
    free(table);
    a->by_entry = grouped && rng_below(r, 2), a->by_slot = grouped && l->end == ADAPTER_STORES && rng_below(r, 2);
}

/* Values: rows of x, y, and what the end reads. */
static void make_values(rng *r, adapter_layer *l) {
    iv_gpu_adapter_args *a = &l->args;
    size_t rows = a->rows.grouped ? l->entries : l->rows;
    l->x_rows = a->by_entry ? l->entries : l->rows;
    a->x_stride = iv_padded_k(a->k) + 8 * rng_below(r, 2), a->y_stride = a->n + rng_below(r, 3);
    l->x = zero_padded(r, rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES), a->type, l->x_rows, a->k,
                       a->x_stride);
    l->y = random_values(r, rng_below(r, 3) ? NORMAL : SPECIAL, IV_F32, rows * a->y_stride);
    for (size_t i = 0; i < rows * a->y_stride; i++) l->y[i] = iv_canonical(l->y[i]);
    l->residual = random_values(r, NORMAL, IV_F32, rows * a->n);
    l->bias = random_values(r, NORMAL, IV_F32, a->n);
    a->x = gpu_copy(l->x, l->x_rows * a->x_stride * l->width), a->y = gpu_copy(l->y, rows * a->y_stride * sizeof *l->y);
    a->t = gpu_room(rows * a->t_stride * l->width);
    if (l->end != ADAPTER_STORES && rng_below(r, 2)) a->bias = gpu_copy(l->bias, a->n * sizeof *l->bias);
    if (l->end == ADAPTER_ADDS) a->residual = gpu_copy(l->residual, rows * a->n * sizeof *l->residual);
    if (l->end == ADAPTER_ADDS && rng_below(r, 2)) a->to = gpu_room(rows * a->n * sizeof *l->residual);
    if (l->end == ADAPTER_ACTIVATES && rng_below(r, 2))
        a->gate = gpu_room(rows * a->n / 2 * l->width), a->up = gpu_room(rows * a->n / 2 * l->width);
    a->act_stride = a->n / 2 + 16 * rng_below(r, 2);
    if (l->end == ADAPTER_ACTIVATES) a->act = gpu_room(rows * a->act_stride * l->width);
}

/* A row of t, y or act, and what it belongs to; false: to no expert of this GPU. */
static bool place_of_row(const adapter_layer *l, size_t i, size_t *expert, size_t *x, size_t *y, size_t *row) {
    *expert = 0, *x = *y = *row = i;
    if (!l->args.rows.grouped) return true;
    if (l->entry_table[i] < 0) return false;
    *expert = (size_t)l->entry_table[i], *row = (size_t)l->entry_slot[i] / l->kpt;
    *x = l->args.by_entry ? i : *row, *y = l->args.by_slot ? (size_t)l->entry_slot[i] : i;
    return true;
}

static size_t stored_column(const iv_gpu_adapter_args *a, size_t i) {
    size_t half = a->n / 2;
    return !a->paired ? i : i < half ? i / 8 * 16 + i % 8 : (i - half) / 8 * 16 + 8 + (i - half) % 8;
}

/* y of one row with the terms of its slot; t too. */
static void want_row(const adapter_layer *l, size_t expert, size_t slot, size_t x_row, float *y, char *t) {
    const iv_gpu_adapter_args *a = &l->args;
    const char *x = (const char *)l->x + x_row * a->x_stride * l->width;
    for (size_t p = 0; p < a->pieces; p++) {
        const adapter_factors *f = &l->of[expert][slot][p];
        if (!f->b) continue;
        iv_ref_adapter_inner(&f->ref, x, t + f->first * l->width);
        for (size_t i = 0; i < a->piece[p].n; i++) {
            float *at = &y[stored_column(a, a->piece[p].first + i)];
            *at = iv_ref_adapt(&f->ref, t + f->first * l->width, i, *at);
        }
    }
}

static void end_of_row(const adapter_layer *l, float *y, float *residual, void *act, void *gate, void *up) {
    static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};
    const iv_gpu_adapter_args *a = &l->args;
    for (size_t i = 0; a->bias && i < a->n; i++) y[i] = iv_canonical(y[i] + l->bias[i]);
    for (size_t i = 0; l->end == ADAPTER_ADDS && i < a->n; i++) residual[i] = iv_canonical(residual[i] + y[i]);
    for (size_t i = 0; l->end == ADAPTER_ACTIVATES && i < a->n / 2; i++) {
        float out;
        iv_ref_activate(&silu, &y[i / 8 * 16 + i % 8], &y[i / 8 * 16 + i % 8 + 8], 1, &out);
        put_type(a->type, act, i, iv_canonical(out));
        put_type(a->type, gate, i, y[i / 8 * 16 + i % 8]), put_type(a->type, up, i, y[i / 8 * 16 + i % 8 + 8]);
    }
}

static void compare_layer(adapter_layer *l) {
    const iv_gpu_adapter_args *a = &l->args;
    size_t rows = a->rows.grouped ? l->entries : l->rows, expert, x, y, row;
    char *t = host_copy(a->t, rows * a->t_stride * l->width), *want_t = malloc(a->t_stride * l->width);
    float *got = host_copy(a->y, rows * a->y_stride * sizeof *got), *sums = malloc(a->y_stride * sizeof *sums);
    float *added = a->residual ? host_copy(a->to ? a->to : a->residual, rows * a->n * sizeof *added) : NULL;
    size_t half = a->n / 2 * l->width;
    char *gate = a->gate ? host_copy(a->gate, rows * half) : NULL, *up = a->up ? host_copy(a->up, rows * half) : NULL;
    char *want_gate = malloc(half + 1), *want_up = malloc(half + 1);
    char *act = a->act ? host_copy(a->act, rows * a->act_stride * l->width) : NULL, *want_act = malloc(a->n * l->width);
    for (size_t i = 0; i < rows; i++) {
        if (!place_of_row(l, i, &expert, &x, &y, &row)) continue;
        memcpy(want_t, t + i * a->t_stride * l->width, a->t_stride * l->width);
        memcpy(sums, l->y + y * a->y_stride, a->y_stride * sizeof *sums);
        want_row(l, expert, l->slot[row], x, sums, want_t);
        assert_same_bits("t", want_t, t + i * a->t_stride * l->width, a->t_stride, l->width, false);
        if (l->end == ADAPTER_STORES) {
            assert_same_bits("y", sums, got + y * a->y_stride, a->y_stride, sizeof *sums, false);
            continue;
        }
        end_of_row(l, sums, l->residual + y * a->n, want_act, want_gate, want_up);
        if (added) assert_same_bits("x", l->residual + y * a->n, added + y * a->n, a->n, sizeof *added, false);
        if (act) assert_same_bits("act", want_act, act + i * a->act_stride * l->width, a->n / 2, l->width, false);
        if (gate) assert_same_bits("gate", want_gate, gate + i * half, a->n / 2, l->width, false);
        if (up) assert_same_bits("up", want_up, up + i * half, a->n / 2, l->width, false);
    }
    free(gate), free(up), free(want_gate), free(want_up);
    free(t), free(want_t), free(got), free(sums), free(added), free(act), free(want_act);
}

static void close_layer(adapter_layer *l) {
    iv_gpu_adapter_args *a = &l->args;
    iv_gpu_adapted_part *parts = host_copy(a->parts, l->tables * a->slots * a->pieces * sizeof *parts);
    for (size_t i = 0; i < l->tables * a->slots * a->pieces; i++)
        cudaFree((void *)(uintptr_t)parts[i].a), cudaFree((void *)(uintptr_t)parts[i].b);
    for (size_t e = 0; e < l->tables; e++)
        for (size_t s = 0; s < a->slots; s++)
            for (size_t p = 0; p < a->pieces; p++) free(l->of[e][s][p].a), free(l->of[e][s][p].b);
    const void *const gpu[] = {a->parts,
                               a->x,
                               a->y,
                               a->t,
                               a->bias,
                               a->residual,
                               a->to,
                               a->act,
                               a->gate,
                               a->up,
                               a->rows.tiles,
                               a->rows.order,
                               a->rows.counts,
                               a->rows.groups.offsets,
                               a->rows.groups.slots,
                               a->rows.slots};
    for (size_t i = 0; i < sizeof gpu / sizeof *gpu; i++) cudaFree((void *)(uintptr_t)gpu[i]);
    free(parts), free(l->x), free(l->y), free(l->bias), free(l->residual), free(l->slot);
    free(l->entry_slot), free(l->entry_table);
}

static void one_layer(rng *r, iv_arithmetic arithmetic, iv_dtype type, bool grouped) {
    adapter_layer l;
    make_layer(r, arithmetic, type, grouped, &l);
    make_values(r, &l);
    GPU_OK(iv_gpu_adapter_inner(&l.args, NULL));
    GPU_OK(iv_gpu_adapter_outer(&l.args, NULL));
    compare_layer(&l);
    close_layer(&l);
}

static void adapters_of_rows(void **state) {
    (void)state;
    rng r = rng_start("adapters of rows");
    static const iv_dtype types[] = {IV_BF16, IV_F16, IV_F32};
    for (size_t i = 0; i < trials(60, 3000); i++) one_layer(&r, IV_FMA32, types[i % 3], false);
    for (size_t i = 0; i < trials(120, 6000); i++) one_layer(&r, IV_TC16, types[i % 2], false);
}

static void adapters_of_experts(void **state) {
    (void)state;
    rng r = rng_start("adapters of experts");
    static const iv_dtype types[] = {IV_BF16, IV_F16, IV_F32};
    for (size_t i = 0; i < trials(30, 1500); i++) one_layer(&r, IV_FMA32, types[i % 3], true);
    for (size_t i = 0; i < trials(60, 3000); i++) one_layer(&r, IV_TC16, types[i % 2], true);
}

#endif
