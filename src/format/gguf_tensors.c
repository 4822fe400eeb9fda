/* gguf_tensors.c: names and shapes of Hugging Face checkpoints for GGUF's tensors. */
#include "base/size.h"
#include "format/gguf_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct renamed {
    const char *from, *to;
} renamed;

static const renamed outer[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
static const renamed inner[] = {{"attn_norm", "input_layernorm"},
                                {"ffn_norm", "post_attention_layernorm"},
                                {"attn_q", "self_attn.q_proj"},
                                {"attn_k", "self_attn.k_proj"},
                                {"attn_v", "self_attn.v_proj"},
                                {"attn_output", "self_attn.o_proj"},
                                {"attn_q_norm", "self_attn.q_norm"},
                                {"attn_k_norm", "self_attn.k_norm"},
                                {"ffn_gate", "mlp.gate_proj"},
                                {"ffn_up", "mlp.up_proj"},
                                {"ffn_down", "mlp.down_proj"},
                                {"ffn_gate_inp", "mlp.gate"},
                                {"ffn_gate_exps", "mlp.experts.%zu.gate_proj"},
                                {"ffn_up_exps", "mlp.experts.%zu.up_proj"},
                                {"ffn_down_exps", "mlp.experts.%zu.down_proj"}};

/* Gemma's layers have norms before and behind their blocks, by 1 + weight, which GGUF has as one number. */
static const renamed of_gemma[] = {{"ffn_norm", "pre_feedforward_layernorm"},
                                   {"post_attention_norm", "post_attention_layernorm"},
                                   {"post_ffw_norm", "post_feedforward_layernorm"}};

static const char *look_up(const renamed *table, size_t count, const char *name, size_t n) {
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].from) == n && memcmp(table[i].from, name, n) == 0) return table[i].to;
    return NULL;
}

/* Splits "blk.7.attn_q.weight" into a layer (-1: none), the new middle and the ending. */
static bool split(bool gemma, const char *name, long *layer, const char **middle, const char **ending) {
    const char *rest = name;
    char *end;
    *layer = -1;
    if (strncmp(name, "blk.", 4) == 0) {
        *layer = strtol(name + 4, &end, 10);
        if (end == name + 4 || *end != '.' || *layer < 0 || *layer > 1 << 20 || name[4] == '+' || name[4] == ' ')
            return false;
        rest = end + 1;
    }
    *ending = strrchr(rest, '.');
    if (!*ending || (strcmp(*ending, ".weight") != 0 && strcmp(*ending, ".bias") != 0)) return false;
    size_t n = (size_t)(*ending - rest);
    *middle = gemma && *layer >= 0 ? look_up(of_gemma, sizeof of_gemma / sizeof *of_gemma, rest, n) : NULL;
    if (*middle) return true;
    *middle = *layer < 0 ? look_up(outer, sizeof outer / sizeof *outer, rest, n)
                         : look_up(inner, sizeof inner / sizeof *inner, rest, n);
    return *middle != NULL;
}

static const char *look_back(const renamed *table, size_t count, const char *name, size_t n) {
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].to) == n && memcmp(table[i].to, name, n) == 0) return table[i].from;
    return NULL;
}

/* With an expert's number as in the table; *expert: it, or -1. */
static size_t without_expert(const char *name, size_t n, char *out, size_t room, long *expert) {
    static const char mark[] = "mlp.experts.";
    size_t head = sizeof mark - 1;
    char *end;
    *expert = -1;
    if (n <= head || memcmp(name, mark, head) != 0 || name[head] < '0' || name[head] > '9')
        return (size_t)snprintf(out, room, "%.*s", (int)n, name);
    *expert = strtol(name + head, &end, 10);
    return (size_t)snprintf(out, room, "%s%%zu%.*s", mark, (int)(n - (size_t)(end - name)), end);
}

bool iv_gguf_name_of(bool gemma, const char *name, char *out, long *expert) {
    static const char layers[] = "model.layers.";
    const char *ending = strrchr(name, '.'), *middle = NULL;
    char inside[IV_GGUF_NAME_BYTES], *rest;
    *expert = -1;
    if (!ending) return false;
    if (strncmp(name, layers, sizeof layers - 1) != 0) {
        middle = look_back(outer, sizeof outer / sizeof *outer, name, (size_t)(ending - name));
        return middle && snprintf(out, IV_GGUF_NAME_BYTES, "%s%s", middle, ending) < IV_GGUF_NAME_BYTES;
    }
    long layer = strtol(name + sizeof layers - 1, &rest, 10);
    if (*rest != '.' || ending <= rest) return false;
    size_t n = without_expert(rest + 1, (size_t)(ending - rest - 1), inside, sizeof inside, expert);
    if (n >= sizeof inside) return false;
    if (gemma) middle = look_back(of_gemma, sizeof of_gemma / sizeof *of_gemma, inside, n);
    if (!middle) middle = look_back(inner, sizeof inner / sizeof *inner, inside, n);
    return middle && snprintf(out, IV_GGUF_NAME_BYTES, "blk.%ld.%s%s", layer, middle, ending) < IV_GGUF_NAME_BYTES;
}

typedef struct expanding {
    const iv_gguf_set *s;
    iv_dtype type;
    iv_arena *arena;
    iv_expansion *x;
    size_t head_rows; /* of llama's q and k; 0: their rows are in order */
    bool gemma;
    iv_error *err;
} expanding;

static iv_status add(expanding *e, const iv_gguf_tensor *t, const char *name, size_t expert, bool permuted) {
    iv_tensor_info *info = &e->x->tensors[e->x->count];
    iv_packed *p = &e->x->packed[e->x->count];
    int lead = t->info.ndim == 3;
    *info = t->info, *p = (iv_packed){0};
    info->name = iv_arena_strndup(e->arena, name, strlen(name));
    if (!info->name) return iv_fail(e->err, IV_NO_MEMORY, "%s: no memory for names", t->info.name);
    if (lead) info->ndim = 2, info->shape[0] = t->info.shape[1], info->shape[1] = t->info.shape[2], info->shape[2] = 0;
    bool plain = iv_weight_is_plain(t->format), offset = e->gemma && plain && strstr(name, "norm.weight") != NULL;
    e->x->count++;
    if (plain && !lead && !permuted && !offset) return IV_OK; /* read as it is */
    iv_tensor_info *stored = IV_ARENA_NEW(e->arena, 1, iv_tensor_info);
    if (!stored) return iv_fail(e->err, IV_NO_MEMORY, "%s: no memory", t->info.name);
    *stored = t->info;
    stored->name = iv_arena_strndup(e->arena, t->info.name, strlen(t->info.name));
    if (!stored->name) return iv_fail(e->err, IV_NO_MEMORY, "%s: no memory for names", t->info.name);
    if (!plain) info->dtype = e->type;
    if (!iv_safetensors_shape_bytes(info->shape, info->ndim, iv_dtype_bytes(info->dtype), &info->elements,
                                    &info->bytes))
        return iv_fail(e->err, IV_LIMIT, "%s: its expansion is too large", t->info.name);
    size_t columns = info->ndim == 2 ? (size_t)info->shape[1] : plain ? 1 : info->elements;
    size_t rows = columns ? info->elements / columns : 0;
    *p = (iv_packed){.format = t->format, .data = stored, .rows = rows, .columns = columns, .base = expert * rows};
    p->minus_one = offset;
    if (permuted) p->head_rows = e->head_rows;
    return iv_packed_check(p, e->err);
}

static iv_status rename_one(expanding *e, const iv_gguf_tensor *t) {
    char name[256], format[128];
    const char *middle = NULL, *ending = NULL;
    long layer;
    if (strcmp(t->info.name, "rope_freqs.weight") == 0) return IV_OK; /* in config.json */
    if (!split(e->gemma, t->info.name, &layer, &middle, &ending) || t->info.ndim > 3)
        return iv_fail(e->err, IV_UNSUPPORTED, "%s: tensor '%.200s' is not known for this architecture", e->s->paths[0],
                       t->info.name);
    bool experts = strstr(middle, "%zu") != NULL, plural = t->info.ndim == 3;
    if (experts != plural)
        return iv_fail(e->err, IV_FORMAT, "%s: tensor '%.200s': wanted %d dimensions, found %d", e->s->paths[0],
                       t->info.name, experts ? 3 : 2, t->info.ndim);
    bool permuted =
        e->head_rows && (strcmp(middle, "self_attn.q_proj") == 0 || strcmp(middle, "self_attn.k_proj") == 0);
    size_t count = experts ? (size_t)t->info.shape[0] : 1;
    for (size_t i = 0; i < count; i++) {
        const char *mark = strstr(middle, "%zu");
        if (experts)
            snprintf(format, sizeof format, "%.*s%zu%s", (int)(mark - middle), middle, i, mark + 3);
        else
            snprintf(format, sizeof format, "%s", middle);
        if (layer >= 0)
            snprintf(name, sizeof name, "model.layers.%ld.%s%s", layer, format, ending);
        else
            snprintf(name, sizeof name, "%s%s", format, ending);
        IV_TRY(add(e, t, name, i, permuted));
    }
    return IV_OK;
}

static bool is_arch(const iv_gguf *g, const char *name) {
    const iv_gguf_value *v = iv_gguf_find(g, "general.architecture");
    return v && v->text.len == strlen(name) && memcmp(v->text.data, name, v->text.len) == 0;
}

/* llama.cpp's llama turns neighbouring rows of a head together, Hugging Face's its halves. */
static size_t llama_head(const iv_gguf *g) {
    const iv_gguf_value *dim = iv_gguf_arch_find(g, "attention.key_length");
    const iv_gguf_value *hidden = iv_gguf_arch_find(g, "embedding_length");
    const iv_gguf_value *heads = iv_gguf_arch_find(g, "attention.head_count");
    if (!is_arch(g, "llama")) return 0;
    const iv_gguf_value *values[] = {dim, hidden, heads};
    int64_t of[3] = {0, 0, 0};
    for (size_t i = 0; i < 3; i++) { /* an array: a number per layer, all the same (gguf_config.c) */
        const iv_gguf_value *v = values[i];
        bool array = v && v->type == IV_GGUF_ARRAY && v->item != IV_GGUF_STRING && v->count;
        if (v) of[i] = array ? iv_gguf_integer_at(v, 0) : v->integer;
    }
    if (of[0] > 0) return (size_t)of[0];
    return of[1] > 0 && of[2] > 0 ? (size_t)(of[1] / of[2]) : 0;
}

iv_status iv_gguf_expand(const iv_gguf_set *s, iv_dtype type, iv_arena *arena, iv_expansion *out, iv_error *err) {
    size_t count = 0;
    *out = (iv_expansion){0};
    for (size_t i = 0; i < s->g.tensor_count; i++) {
        const iv_tensor_info *t = &s->g.tensors[i].info;
        size_t n = t->ndim == 3 ? (size_t)t->shape[0] : 1;
        if (!iv_size_add(count, n, &count) || count > IV_SAFETENSORS_TENSORS_MAX)
            return iv_fail(err, IV_LIMIT, "%s: too many experts", s->paths[0]);
    }
    expanding e = {
        .s = s, .type = type == IV_DTYPE_COUNT ? iv_gguf_dtype(s) : type, .arena = arena, .x = out, .err = err};
    e.head_rows = llama_head(&s->g), e.gemma = is_arch(&s->g, "gemma3");
    out->tensors = IV_ARENA_NEW(arena, count + 1, iv_tensor_info);
    out->packed = IV_ARENA_NEW(arena, count + 1, iv_packed);
    if (!out->tensors || !out->packed) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for tensors", s->paths[0]);
    for (size_t i = 0; i < s->g.tensor_count; i++) {
        iv_status status = rename_one(&e, &s->g.tensors[i]);
        if (status != IV_OK) return status;
    }
    return iv_expansion_sort(s->paths[0], out, err);
}
