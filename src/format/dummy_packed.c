/* dummy_packed.c: the parts of a tensor by its format, and their bytes from dummy.h's numbers. */
#include "format/dummy_packed.h"
#include "base/size.h"
#include "format/dummy.h"
#include "format/quantized_layers.h"
#include "numerics/floats.h"
#include "numerics/quantize.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NUMBERS = 64 };
#define LARGEST 0.07f                /* of a weight */
#define OF_UNIT (65536.0f / 9 / 510) /* from dummy.h's value to t */

/* ---- which parts ------------------------------------------------------------------------------------------- */

typedef struct listing {
    const iv_tensor_info *t;
    size_t module; /* bytes of the name without .weight */
    iv_arena *arena;
    iv_dummy_part *parts;
    size_t count;
    bool failed;
} listing;

static void add(listing *l, const char *suffix, iv_dtype dtype, iv_dummy_kind kind, float value, int64_t rows,
                int64_t columns) {
    size_t n = l->module + strlen(suffix) + 1;
    char *name = iv_arena_alloc(l->arena, n, 1);
    if (!name) {
        l->failed = true;
        return;
    }
    snprintf(name, n, "%.*s%s", (int)l->module, l->t->name, suffix);
    IV_ASSERT(l->count < IV_DUMMY_PARTS_MAX);
    l->parts[l->count++] = (iv_dummy_part){
        .info = {.name = name, .dtype = dtype, .ndim = 2, .shape = {rows, columns}}, .kind = kind, .value = value};
}

static int64_t divided(int64_t n, size_t by) { return (n + (int64_t)by - 1) / (int64_t)by; }

static void add_transposed(listing *l, const iv_quant_group *g, int64_t rows, int64_t columns, bool from_one) {
    bool awq = g->format == IV_WEIGHT_AWQ, eight = g->format == IV_WEIGHT_GPTQ8;
    int64_t per = eight ? 4 : 8, groups = g->group ? divided(columns, g->group) : 1;
    float zero = eight ? (from_one ? 0x7f : 0x80) : (from_one ? 0x77 : 0x88);
    iv_dummy_kind codes = eight ? IV_DUMMY_BYTE : IV_DUMMY_NIBBLE;
    add(l, ".qweight", IV_I32, codes, 0, awq ? columns : divided(columns, (size_t)per), awq ? rows / per : rows);
    if (!awq || g->zero_points) add(l, ".qzeros", IV_I32, IV_DUMMY_ZEROS, zero, groups, divided(rows, (size_t)per));
    add(l, ".scales", IV_F16, IV_DUMMY_SCALE, LARGEST / (eight ? 127 : 7), groups, rows);
    if (awq) return;
    add(l, ".g_idx", IV_I32, IV_DUMMY_GROUPS, (float)(g->group ? g->group : (size_t)columns), columns, 0);
    if (l->count) l->parts[l->count - 1].info.ndim = 1;
}

static void add_scales(listing *l, const iv_quantization *q, const iv_quant_group *g, const char *suffix, float value,
                       int64_t rows, int64_t columns) {
    iv_dtype type = q->method == IV_QUANT_FP8 || q->method == IV_QUANT_MODELOPT ? IV_F32 : l->t->dtype;
    int64_t down = g->block_rows ? divided(rows, g->block_rows) : 1, across = g->group ? divided(columns, g->group) : 1;
    add(l, suffix, type, IV_DUMMY_SCALE, value, down, across);
    if (down == 1 && across == 1 && l->count) l->parts[l->count - 1].info.ndim = 1;
}

static void add_zeros(listing *l, const iv_quant_group *g, int64_t rows, int64_t columns) {
    int64_t down = g->block_rows ? divided(rows, g->block_rows) : 1, across = g->group ? divided(columns, g->group) : 1;
    bool four = g->format == IV_WEIGHT_PACK4;
    if (!g->zero_points) return;
    if (g->format == IV_WEIGHT_INT8)
        add(l, ".weight_zero_point", IV_I8, IV_DUMMY_ZEROS, 0, down, across);
    else
        add(l, ".weight_zero_point", IV_I32, IV_DUMMY_ZEROS, four ? 0x88 : 0x80, divided(rows, four ? 8 : 4), across);
}

static void add_parts(listing *l, const iv_quantization *q, const iv_quant_group *g) {
    int64_t rows = l->t->shape[0], columns = l->t->shape[1];
    bool modelopt = q->method == IV_QUANT_MODELOPT, blocks = q->method == IV_QUANT_FP8 && g->group;
    switch (g->format) {
    case IV_WEIGHT_FP8:
        add(l, ".weight", IV_F8_E4M3, IV_DUMMY_E4M3, 0, rows, columns);
        add_scales(l, q, g, blocks ? ".weight_scale_inv" : ".weight_scale", LARGEST / 448, rows, columns);
        break;
    case IV_WEIGHT_MXFP8:
        add(l, ".weight", IV_F8_E4M3, IV_DUMMY_E4M3, 0, rows, columns);
        add(l, ".weight_scale", IV_U8, IV_DUMMY_ZEROS, 127 - 13, rows, divided(columns, 32)); /* 448 becomes 0.055 */
        break;
    case IV_WEIGHT_INT8:
        add(l, ".weight", IV_I8, IV_DUMMY_INT8, 0, rows, columns);
        add_scales(l, q, g, ".weight_scale", LARGEST / 127, rows, columns), add_zeros(l, g, rows, columns);
        break;
    case IV_WEIGHT_PACK8:
    case IV_WEIGHT_PACK4: {
        bool four = g->format == IV_WEIGHT_PACK4;
        add(l, ".weight_packed", IV_I32, four ? IV_DUMMY_NIBBLE : IV_DUMMY_BYTE, 0, rows,
            divided(columns, four ? 8 : 4));
        add_scales(l, q, g, ".weight_scale", LARGEST / (four ? 7 : 127), rows, columns), add_zeros(l, g, rows, columns);
        break;
    }
    case IV_WEIGHT_NVFP4:
        add(l, modelopt ? ".weight" : ".weight_packed", IV_U8, IV_DUMMY_E2M1, 0, rows, columns / 2);
        add(l, ".weight_scale", IV_F8_E4M3, IV_DUMMY_E4M3_SCALE, 0, rows, divided(columns, 16));
        add(l, modelopt ? ".weight_scale_2" : ".weight_global_scale", IV_F32, IV_DUMMY_NUMBER,
            modelopt ? LARGEST / 2688 : 2688 / LARGEST, 1, 0);
        if (l->count) l->parts[l->count - 1].info.ndim = 1;
        break;
    case IV_WEIGHT_MXFP4:
        add(l, ".weight_packed", IV_U8, IV_DUMMY_E2M1, 0, rows, columns / 2);
        add(l, ".weight_scale", IV_U8, IV_DUMMY_E8M0, 0, rows, divided(columns, 32));
        break;
    default: add_transposed(l, g, rows, columns, q->zero_from_one);
    }
}

/* gpt-oss's experts, which files in 16 bits have transposed. */
static bool add_experts(listing *l) {
    const iv_tensor_info *t = l->t;
    l->module = strlen(t->name);
    if (t->ndim != 3 || !strstr(t->name, ".experts.")) return false;
    add(l, "_blocks", IV_U8, IV_DUMMY_E2M1, 0, 0, 0), add(l, "_scales", IV_U8, IV_DUMMY_E8M0, 0, 0, 0);
    for (size_t i = 0; i < l->count; i++) {
        iv_tensor_info *info = &l->parts[i].info;
        info->ndim = i ? 3 : 4, info->shape[0] = t->shape[0], info->shape[1] = t->shape[2];
        info->shape[2] = divided(t->shape[1], 32), info->shape[3] = 16;
    }
    return true;
}

iv_status iv_dummy_parts(const iv_quantization *q, const iv_tensor_info *t, iv_arena *arena,
                         iv_dummy_part out[IV_DUMMY_PARTS_MAX], size_t *count, iv_error *err) {
    listing l = {.t = t, .arena = arena, .parts = out};
    const iv_quant_group *g = NULL;
    if (q->method == IV_QUANT_MXFP4)
        add_experts(&l);
    else if (q->method != IV_QUANT_NONE && iv_quantize_is_layer(t)) {
        IV_TRY(iv_quantization_group_of(q, t->name, strlen(t->name) - strlen(".weight"), &g, err));
        l.module = strlen(t->name) - strlen(".weight");
        if (g) add_parts(&l, q, g);
    }
    if (l.failed) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory for names");
    if (!l.count) out[l.count++] = (iv_dummy_part){.info = *t};
    *count = l.count;
    return IV_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------- */

/* Bits of what one number becomes. */
static size_t width_of(const iv_dummy_part *p) {
    switch (p->kind) {
    case IV_DUMMY_NIBBLE:
    case IV_DUMMY_E2M1: return 4;
    case IV_DUMMY_SCALE:
    case IV_DUMMY_NUMBER:
    case IV_DUMMY_GROUPS: return 8 * iv_dtype_bytes(p->info.dtype);
    default: return 8;
    }
}

static int nearest(float x, int least, int most) {
    int q = (int)rintf(x);
    return q < least ? least : q > most ? most : q;
}

static void put_number(iv_dtype type, float x, unsigned char *out) {
    uint16_t half = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
    if (type == IV_F32)
        memcpy(out, &x, sizeof x);
    else
        memcpy(out, &half, sizeof half);
}

/* What number i, counted from `index`, becomes. */
static void put(const iv_dummy_part *p, size_t index, const float *t, size_t i, unsigned char *out) {
    int32_t group;
    switch (p->kind) {
    case IV_DUMMY_E4M3: out[i] = iv_e4m3_from_f32(t[i] * 448); break;
    case IV_DUMMY_INT8: out[i] = (unsigned char)nearest(t[i] * 127, -127, 127); break;
    case IV_DUMMY_BYTE: out[i] = (unsigned char)(nearest(t[i] * 127, -127, 127) + 128); break;
    case IV_DUMMY_E8M0: out[i] = (unsigned char)(t[i] < 0 ? 127 - 7 : 127 - 6); break;
    case IV_DUMMY_E4M3_SCALE: out[i] = iv_e4m3_from_f32(448 * (1 + t[i] / 4)); break;
    case IV_DUMMY_ZEROS: out[i] = (unsigned char)p->value; break;
    case IV_DUMMY_SCALE:
        put_number(p->info.dtype, p->value * (1 + t[i] / 4), out + i * iv_dtype_bytes(p->info.dtype));
        break;
    case IV_DUMMY_NUMBER: put_number(IV_F32, p->value, out + 4 * i); break;
    case IV_DUMMY_GROUPS:
        group = (int32_t)((index + i) / (size_t)p->value);
        memcpy(out + 4 * i, &group, sizeof group);
        break;
    default: {
        unsigned code =
            p->kind == IV_DUMMY_E2M1 ? iv_e2m1_from_f32(t[i] * 6) : (unsigned)(nearest(t[i] * 7, -7, 7) + 8);
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | code << 4 : code);
    }
    }
}

void iv_dummy_part_fill(uint64_t seed, const iv_dummy_part *p, void *dst, size_t offset, size_t n) {
    if (p->kind == IV_DUMMY_PLAIN) {
        iv_dummy_fill(seed, &p->info, dst, offset, n);
        return;
    }
    size_t chunk = NUMBERS * width_of(p) / 8; /* bytes of NUMBERS numbers */
    iv_tensor_info numbers = {.name = p->info.name, .dtype = IV_F32, .ndim = 2, .bytes = SIZE_MAX / 2};
    unsigned char *to = dst, whole[NUMBERS * 8];
    while (n > 0) {
        size_t index = offset / chunk * NUMBERS, skip = offset % chunk, some = iv_size_min(n, chunk - skip);
        float t[NUMBERS];
        iv_dummy_fill(seed, &numbers, t, index * sizeof *t, sizeof t);
        for (size_t i = 0; i < NUMBERS; i++) t[i] *= OF_UNIT;
        for (size_t i = 0; i < NUMBERS; i++) put(p, index, t, i, whole);
        memcpy(to, whole + skip, some);
        to += some, offset += some, n -= some;
    }
}
