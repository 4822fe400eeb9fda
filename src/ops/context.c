/* context.c: opening and closing, memory, axes. */
#include "ops/context.h"
#include "base/cpu.h"
#include "device/memory.h"
#include "numerics/tree.h"
#include "ops/gpu.h"

#include <stdlib.h>
#include <string.h>

/* Of a CPU: none; else the GPU's number. */
static iv_status parse_device(const char *text, bool *gpu, size_t *ordinal, iv_error *err) {
    *gpu = text && strncmp(text, "cuda", 4) == 0, *ordinal = 0;
    if (!text || strcmp(text, "cpu") == 0 || (*gpu && text[4] == 0)) return IV_OK;
    const char *digits = *gpu && text[4] == ':' ? text + 5 : "";
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 4 || digits[n])
        return iv_fail(err, IV_INVALID, "ops: device: wanted cpu, cuda or cuda:N, found '%s'", text);
    *ordinal = (size_t)strtoul(digits, NULL, 10);
    return IV_OK;
}

static iv_status open_cpu(iv_ops **out, iv_error *err) {
    *out = calloc(1, sizeof **out);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "ops: no memory");
}

iv_status iv_ops_open(const iv_ops_options *o, iv_ops **out, iv_error *err) {
    iv_dtype type;
    iv_arithmetic arithmetic;
    iv_isa isa;
    iv_ops *ops;
    iv_pool *pool;
    size_t ordinal;
    bool gpu, given;
    IV_TRY(iv_gemm_type_parse(o->dtype, &given, &type, err));
    if (!given)
        return iv_fail(err, IV_INVALID, "ops: dtype: wanted bfloat16, float16 or float32, found '%s'",
                       o->dtype ? o->dtype : "");
    IV_TRY(parse_device(o->device, &gpu, &ordinal, err));
    arithmetic = iv_arithmetic_auto(gpu, type);
    IV_TRY(iv_arithmetic_parse(o->arithmetic, &given, &arithmetic, err));
    IV_TRY(iv_arithmetic_check(arithmetic, type, err));
    IV_TRY(iv_isa_parse(o->isa ? o->isa : "auto", &isa, err));
    if (o->memory && (!o->memory->allocate || !o->memory->release))
        return iv_fail(err, IV_INVALID, "ops: memory: wanted both functions, found NULL");
    IV_TRY(iv_pool_open(gpu ? 1 : o->threads, &pool, err));
    iv_status status = gpu ? iv_ops_open_gpu(ordinal, arithmetic, o->memory, &ops, err) : open_cpu(&ops, err);
    if (status != IV_OK) {
        iv_pool_close(pool);
        return status;
    }
    pthread_mutex_init(&ops->lock, NULL);
    ops->type = type, ops->pool = pool;
    ops->compute = (iv_compute){.kernels = iv_kernels_select(isa), .arithmetic = arithmetic, .pool = pool};
    *out = ops;
    return IV_OK;
}

void iv_ops_close(iv_ops *ops) {
    if (!ops) return;
    iv_pool_close(ops->pool);
    iv_memory_free(ops->compute.scratch, ops->compute.scratch_bytes);
    iv_memory_free(ops->work, ops->work_bytes);
    pthread_mutex_destroy(&ops->lock);
    if (ops->gpu)
        ops->gpu->close(ops);
    else
        free(ops);
}

const char *iv_ops_arithmetic(const iv_ops *ops) { return iv_arithmetic_name(ops->compute.arithmetic); }

iv_status iv_ops_set_stream(iv_ops *ops, void *stream, iv_error *err) {
    if (!ops->gpu) return iv_fail(err, IV_INVALID, "ops: stream: wanted a context of a GPU");
    pthread_mutex_lock(&ops->lock);
    iv_status status = ops->gpu->set_stream(ops, stream, err);
    pthread_mutex_unlock(&ops->lock);
    return status;
}

iv_status iv_ops_synchronize(iv_ops *ops, iv_error *err) {
    if (!ops->gpu) return IV_OK;
    pthread_mutex_lock(&ops->lock);
    iv_status status = ops->gpu->synchronize(ops, err);
    pthread_mutex_unlock(&ops->lock);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

iv_status iv_ops_leave(iv_ops *ops, iv_status status) {
    if (ops->gpu) ops->gpu->end(ops);
    iv_fp_env_leave(ops->fp_env);
    pthread_mutex_unlock(&ops->lock);
    return status;
}

iv_status iv_ops_enter(iv_ops *ops, const char *what, iv_error *err) {
    pthread_mutex_lock(&ops->lock);
    ops->fp_env = iv_fp_env_enter(IV_FP_DEFAULT);
    ops->what = what;
    iv_status status = ops->gpu ? ops->gpu->begin(ops, err) : IV_OK;
    return status == IV_OK ? IV_OK : iv_ops_leave(ops, status);
}

static bool grow(unsigned char **at, size_t *bytes, size_t wanted) {
    if (wanted <= *bytes) return true;
    size_t n;
    if (!iv_size_add(wanted, wanted / 4, &n)) return false;
    unsigned char *more = iv_memory_alloc(n);
    if (!more) return false;
    iv_memory_free(*at, *bytes);
    *at = more, *bytes = n;
    return true;
}

iv_status iv_ops_reserve(iv_ops *ops, const char *what, size_t scratch, size_t work, iv_error *err) {
    unsigned char *at = ops->compute.scratch;
    bool grown = grow(&at, &ops->compute.scratch_bytes, scratch);
    ops->compute.scratch = at;
    if (grown && grow(&ops->work, &ops->work_bytes, work)) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu MiB of scratch", what, (scratch >> 20) + (work >> 20));
}

iv_status iv_ops_check_size(const char *what, size_t a, size_t b, iv_error *err) {
    size_t n;
    if (iv_size_mul(a, b, &n) && iv_size_mul(n, 8, &n)) return IV_OK;
    return iv_fail(err, IV_LIMIT, "%s: %zu x %zu elements are too large", what, a, b);
}

static iv_status check_axis(const char *what, const iv_ops_axis *a, size_t *rows, iv_error *err) {
    size_t v = a->virtual_ranks;
    if (v == 0 || v > IV_VIRTUAL_RANKS_MAX || (v & (v - 1)))
        return iv_fail(err, IV_INVALID, "%s: axis: virtual ranks: wanted a power of two up to %d, found %zu", what,
                       IV_VIRTUAL_RANKS_MAX, v);
    if (a->from > a->to || a->to > a->count)
        return iv_fail(err, IV_INVALID, "%s: axis: wanted from <= to <= count, found %zu, %zu, %zu", what, a->from,
                       a->to, a->count);
    for (size_t i = 0; i < a->count; i++)
        if (a->ranks[i] >= v || (i && a->ranks[i] < a->ranks[i - 1]))
            return iv_fail(err, IV_INVALID,
                           "%s: axis: sequence %zu: wanted ascending virtual ranks below %zu, found %u", what, i, v,
                           a->ranks[i]);
    *rows = 0;
    for (size_t i = 0; i < a->to - a->from; i++)
        if (!iv_size_add(*rows, a->tokens[i], rows) || *rows > INT32_MAX / 2)
            return iv_fail(err, IV_LIMIT, "%s: axis: too many tokens", what);
    return IV_OK;
}

iv_status iv_ops_pass_open(const char *what, const iv_ops_axis *a, iv_ops_pass *out, iv_error *err) {
    size_t padded = 0;
    *out = (iv_ops_pass){0};
    IV_TRY(check_axis(what, a, &out->rows, err));
    out->idle = a->from == a->to && a->count > 0;
    for (size_t i = 0; i < a->to - a->from; i++) padded += iv_padded_k(a->tokens[i]);
    out->sequences = malloc((a->count + 1) * sizeof *out->sequences);
    out->row_of = malloc((padded + 1) * sizeof *out->row_of);
    if (!out->sequences || !out->row_of) {
        iv_ops_pass_close(out);
        return iv_fail(err, IV_NO_MEMORY, "%s: axis: no memory for %zu tokens", what, padded);
    }
    for (size_t i = 0; i < a->count; i++)
        out->sequences[i] = (iv_axis_sequence){i >= a->from && i < a->to ? a->tokens[i - a->from] : 0, a->ranks[i]};
    iv_token_axis_make(out->sequences, a->count, a->virtual_ranks, a->from, a->to, out->row_of, out->ranges,
                       &out->axis);
    return IV_OK;
}

iv_status iv_ops_pass_open_of(const char *what, const iv_ops_axis *axis, size_t rows, iv_ops_pass *out, iv_error *err) {
    IV_TRY(iv_ops_pass_open(what, axis, out, err));
    if (out->rows == rows) return IV_OK;
    iv_ops_pass_close(out);
    return iv_fail(err, IV_INVALID, "%s: axis: wanted %zu tokens, found %zu", what, rows, out->rows);
}

void iv_ops_pass_close(iv_ops_pass *p) { free(p->sequences), free(p->row_of); }

iv_status iv_ops_sums_of(const char *what, const iv_ops_axis *a, const iv_ops_sums *s, iv_axis_sums *out,
                         iv_error *err) {
    *out = (iv_axis_sums){.sum = s->sum};
    bool whole = a->from == 0 && a->to == a->count;
    if (!s->sum) return iv_fail(err, IV_INVALID, "%s: sums: wanted an array, found NULL", what);
    if (!s->level && !whole && a->virtual_ranks > 1)
        return iv_fail(err, IV_INVALID, "%s: sums: wanted levels, because a pass holds sequences %zu to %zu of %zu",
                       what, a->from, a->to, a->count);
    for (size_t i = 0; s->level && (size_t)1 << i < a->virtual_ranks; i++) out->level[i] = s->level[i];
    return IV_OK;
}
