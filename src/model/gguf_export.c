/* gguf_export.c: the tensors of a decoder under GGUF's names and in its order of rows. */
#include "model/gguf_export.h"
#include "base/size.h"
#include "model/tensor_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a tensor of the file is made of: the experts of a layer are one. */
typedef struct source {
    const iv_tensor **parts; /* [count] */
    size_t count, capacity;
    size_t head; /* of llama's q and k: rows of a head, whose halves become neighbours; 0: rows stay */
    bool plus_one;
} source;

typedef struct exporting {
    const iv_model *m;
    const iv_gguf_export_options *o;
    iv_gguf_out *tensors;
    source *sources;
    size_t count;
    float freqs[IV_HEAD_DIM_MAX / 2];
    bool gemma, llama;
    iv_gguf_keys keys;
    iv_buf header;
    iv_arena arena;
    iv_error *err;
} exporting;

/* ---- which ------------------------------------------------------------------------------------------------- */

static bool holds(iv_weight_format format, int64_t columns) {
    return iv_weight_is_plain(format) || columns % (int64_t)iv_weight_facts_of(format)->block == 0;
}

static iv_weight_format format_of(const exporting *x, const iv_tensor *t) {
    const iv_model *m = x->m;
    bool head = strcmp(t->info.name, "lm_head.weight") == 0 ||
                (m->config.tie_embeddings && strcmp(t->info.name, "model.embed_tokens.weight") == 0);
    if (t->info.ndim == 1 || strstr(t->info.name, ".mlp.gate.")) return IV_WEIGHT_F32;
    if (x->o->as_held) return (iv_weight_format)t->held;
    iv_weight_format format = head && !iv_weight_is_plain(x->o->format) ? IV_WEIGHT_Q8_0 : x->o->format;
    if (holds(format, t->info.shape[1])) return format;
    return IV_WEIGHT_F16;
}

/* The tensor of the file of this name, which may be new. */
static iv_status find_or_add(exporting *x, const char *name, size_t *at) {
    for (*at = 0; *at < x->count; ++*at)
        if (strcmp(x->tensors[*at].name, name) == 0) return IV_OK;
    x->count++;
    x->tensors[*at].name = iv_arena_strndup(&x->arena, name, strlen(name));
    return x->tensors[*at].name ? IV_OK : iv_fail(x->err, IV_NO_MEMORY, "%s: no memory", name);
}

static iv_status add_part(exporting *x, size_t at, const iv_tensor *t, long expert) {
    source *s = &x->sources[at];
    iv_gguf_out *to = &x->tensors[at];
    bool rotated = strstr(t->info.name, ".q_proj.") || strstr(t->info.name, ".k_proj.");
    if (s->count == 0) {
        size_t capacity = expert < 0 ? 1 : (size_t)x->m->config.experts;
        s->parts = iv_arena_alloc(&x->arena, capacity, sizeof(iv_tensor *));
        if (!s->parts) return iv_fail(x->err, IV_NO_MEMORY, "%s: no memory", t->info.name);
        s->capacity = capacity, s->head = rotated && x->llama ? (size_t)x->m->config.head_dim : 0;
        s->plus_one = x->gemma && strstr(t->info.name, "norm.weight") != NULL;
        to->format = format_of(x, t), to->ndim = expert < 0 ? t->info.ndim : 3;
        int lead = expert < 0 ? 0 : 1;
        if (lead) to->shape[0] = (int64_t)capacity;
        for (int d = 0; d < t->info.ndim; d++) to->shape[lead + d] = t->info.shape[d];
    }
    size_t place = expert < 0 ? 0 : (size_t)expert;
    IV_ASSERT(place < s->capacity && !s->parts[place]);
    s->parts[place] = t, s->count++;
    return IV_OK;
}

static iv_status add_tensors(exporting *x) {
    const iv_model *m = x->m;
    x->tensors = calloc(m->tensor_count + 2, sizeof *x->tensors);
    x->sources = calloc(m->tensor_count + 2, sizeof *x->sources);
    if (!x->tensors || !x->sources)
        return iv_fail(x->err, IV_NO_MEMORY, "%s: no memory for %zu tensors", x->o->path, m->tensor_count);
    size_t freqs = iv_gguf_rope_freqs(&m->config, x->freqs);
    if (freqs)
        x->tensors[x->count++] =
            (iv_gguf_out){.name = "rope_freqs.weight", .ndim = 1, .shape = {(int64_t)freqs}, .format = IV_WEIGHT_F32};
    for (size_t i = 0; i < m->tensor_count; i++) {
        const iv_tensor *t = &m->tensors[i];
        char name[IV_GGUF_NAME_BYTES];
        size_t at;
        long expert;
        if (t->unused || t->same_as || !t->slices) continue;
        if (!iv_gguf_name_of(x->gemma, t->info.name, name, &expert))
            return iv_fail(x->err, IV_UNSUPPORTED, "%s: GGUF has no name for it in this family", t->info.name);
        IV_TRY(find_or_add(x, name, &at));
        IV_TRY(add_part(x, at, t, expert));
    }
    for (size_t i = 0; i < x->count; i++)
        if (!iv_gguf_out_size(&x->tensors[i]))
            return iv_fail(x->err, IV_LIMIT, "%s: its size overflows", x->tensors[i].name);
    return IV_OK;
}

/* ---- metadata ---------------------------------------------------------------------------------------------- */

/* llama.cpp's general.file_type. */
static uint32_t file_type(iv_weight_format format) {
    static const struct {
        iv_weight_format format;
        uint32_t number;
    } all[] = {{IV_WEIGHT_F32, 0},  {IV_WEIGHT_F16, 1},  {IV_WEIGHT_Q4_0, 2}, {IV_WEIGHT_Q4_1, 3},
               {IV_WEIGHT_Q8_0, 7}, {IV_WEIGHT_Q5_0, 8}, {IV_WEIGHT_Q5_1, 9}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].format == format) return all[i].number;
    return 32; /* bfloat16 */
}

static iv_status put_keys(exporting *x) {
    const iv_gguf_export_options *o = x->o;
    iv_weight_format format = o->format;
    for (size_t i = 0; o->as_held && i < x->count; i++)
        if (strcmp(x->tensors[i].name, "blk.0.attn_q.weight") == 0) format = x->tensors[i].format;
    iv_gguf_put_u32(&x->keys, "general.file_type", file_type(format));
    if (!iv_weight_is_plain(format)) iv_gguf_put_u32(&x->keys, "general.quantization_version", 2);
    if (o->tokens)
        IV_TRY(iv_gguf_put_tokenizer(&x->keys, o->tokens_name, o->tokens, &o->specials, (size_t)x->m->config.vocab_size,
                                     x->err));
    return iv_gguf_header(&x->keys, x->tensors, x->count, &x->header, x->err);
}

/* A file in memory of the header and the rotation's divisors, which are the first tensor. */
static iv_status open_start(const exporting *x, int *fd) {
    *fd = memfd_create("invar-gguf", MFD_CLOEXEC);
    size_t n = x->header.len, freqs = x->count && !x->sources[0].count ? x->tensors[0].bytes : 0;
    if (*fd >= 0 && pwrite(*fd, x->header.data, n, 0) == (ssize_t)n &&
        pwrite(*fd, x->freqs, freqs, (off_t)n) == (ssize_t)freqs)
        return IV_OK;
    if (*fd >= 0) close(*fd);
    return iv_fail(x->err, IV_IO, "%s: no file in memory for its metadata", x->o->path);
}

static iv_status read_back(exporting *x, int fd) {
    iv_gguf_set s = {.count = 1};
    const char *paths[1] = {x->o->path};
    int fds[1] = {fd};
    bool more;
    size_t whole = x->header.len;
    for (size_t i = 0; i < x->count; i++) whole += (x->tensors[i].bytes + 31) / 32 * 32;
    iv_status status =
        iv_gguf_parse(x->o->path, (const uint8_t *)x->header.data, x->header.len, whole, &s.arena, &s.g, &more, x->err);
    s.paths = paths, s.fds = fds;
    if (status == IV_OK) iv_gguf_sort(&s.g);
    if (status == IV_OK) status = iv_gguf_check_config(&s, &x->m->config, x->err);
    if (status == IV_OK && x->o->tokens) status = iv_gguf_check_tokenizer(&s, x->o->tokens_name, x->o->tokens, x->err);
    iv_arena_free(&s.arena);
    return status;
}

static iv_status check(exporting *x) {
    int fd;
    IV_TRY(open_start(x, &fd));
    iv_status status = read_back(x, fd);
    close(fd);
    return status;
}

/* ---- data -------------------------------------------------------------------------------------------------- */

/* Row r of the file in the decoder's order. */
static size_t row_of(const source *s, size_t r) {
    size_t in = s->head ? r % s->head : 0;
    return s->head ? r - in + in % 2 * (s->head / 2) + in / 2 : r;
}

static iv_status give(void *user, size_t index, size_t first, size_t rows, float *out, iv_error *err) {
    const exporting *x = user;
    const source *s = &x->sources[index];
    size_t columns = (size_t)x->tensors[index].shape[x->tensors[index].ndim - 1];
    if (!s->count) { /* the rotation's divisors */
        memcpy(out, x->freqs + first * columns, rows * columns * sizeof *out);
        return IV_OK;
    }
    const iv_tensor *t = s->parts[0];
    if (t->info.ndim == 1) {
        IV_TRY(iv_tensor_read_rows(t, 0, t->rows, IV_F32, out, err));
        for (size_t i = 0; s->plus_one && i < t->rows; i++) out[i] = 1 + out[i];
        return IV_OK;
    }
    for (size_t at = 0, n; at < rows; at += n) {
        size_t r = first + at, each = t->rows;
        n = s->head ? 1 : iv_size_min(rows - at, each - r % each);
        IV_TRY(iv_tensor_read_rows(s->parts[r / each], row_of(s, r % each), n, IV_F32, out + at * columns, err));
    }
    return IV_OK;
}

static iv_status run(exporting *x) {
    const iv_gguf_export_options *o = x->o;
    IV_TRY(iv_gguf_put_config(&x->keys, &x->m->config, x->err)); /* first: the family may have no GGUF */
    IV_TRY(add_tensors(x));
    IV_TRY(put_keys(x));
    IV_TRY(check(x));
    return iv_gguf_write(o->path, &x->header, x->tensors, x->count, give, x, o->progress, o->user, x->err);
}

iv_status iv_gguf_export(const iv_model *first, const iv_gguf_export_options *o, iv_gguf_exported *out, iv_error *err) {
    exporting x = {.m = first, .o = o, .err = err};
    const char *arch = iv_gguf_arch_of(first->config.model_type);
    x.gemma = arch && strcmp(arch, "gemma3") == 0, x.llama = arch && strcmp(arch, "llama") == 0;
    iv_status status = run(&x);
    *out = (iv_gguf_exported){.tensors = x.count};
    for (size_t i = 0; x.tensors && i < x.count; i++) {
        out->bytes += x.tensors[i].bytes;
        out->quantized += !iv_weight_is_plain(x.tensors[i].format);
    }
    free(x.tensors), free(x.sources);
    iv_gguf_keys_free(&x.keys);
    iv_buf_free(&x.header);
    iv_arena_free(&x.arena);
    return status;
}
