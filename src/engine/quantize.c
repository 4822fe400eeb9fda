/* quantize.c: invar.h's copy of a model with fewer bits. */
#include "base/cpu.h"
#include "engine/gguf_copy.h"
#include "engine/sized.h"
#include "format/model_dir.h"
#include "invar_model.h"
#include "model/gptq.h"
#include "model/smooth.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES 5000000000u /* transformers' save_pretrained */

void iv_quantize_options_init_sized(iv_quantize_options *o, size_t size) {
    iv_quantize_options defaults = {
        .format = "fp8", .max_shard_bytes = SHARD_BYTES, .method = "nearest", .damping = 0.01, .smooth = -1};
    iv_sized_init(o, size, &defaults, sizeof defaults);
}

static const char wanted[] =
    "fp8, int8, w8a8, int4, mxfp4 or nvfp4 for a directory; q8_0, q4_0, q4_1, q5_0, q5_1, f16, "
    "bf16 or f32 for a file whose name ends with .gguf";

static iv_status check(const iv_quantize_options *o, const iv_quantize_scheme **scheme, iv_error *err) {
    static const char *const unwritten[] = {"q2_k",   "q3_k", "q3_k_m", "q4_k",   "q4_k_m", "q4_k_s", "q5_k",
                                            "q5_k_m", "q6_k", "iq4_nl", "iq4_xs", "awq",    "gptq"};
    *scheme = iv_quantize_scheme_of(o->format);
    if (!o->max_shard_bytes) return iv_fail(err, IV_INVALID, "max_shard_bytes: wanted 1 at least, found 0");
    for (size_t i = 0; !*scheme && i < sizeof unwritten / sizeof *unwritten; i++)
        if (strcasecmp(o->format, unwritten[i]) == 0)
            return iv_fail(err, IV_UNSUPPORTED, "format %s is read, not written: wanted %s", o->format, wanted);
    if (!*scheme) return iv_fail(err, IV_INVALID, "format: wanted %s, found '%.60s'", wanted, o->format);
    if (o->group_size && !(*scheme)->any_group)
        return iv_fail(err, IV_INVALID, "group_size: format %s has its own", o->format);
    if (o->group_size % 16 || o->group_size > 1 << 20)
        return iv_fail(err, IV_INVALID, "group_size: wanted a multiple of 16, found %llu",
                       (unsigned long long)o->group_size);
    return IV_OK;
}

static bool is_gptq(const iv_quantize_options *o) { return strcmp(o->method, "gptq") == 0; }
static bool smooths(const iv_quantize_options *o) { return !(o->smooth < 0); }

static iv_status check_method(const iv_quantize_options *o, iv_error *err) {
    if (!is_gptq(o) && strcmp(o->method, "nearest") != 0)
        return iv_fail(err, IV_INVALID, "method: wanted nearest or gptq, found '%.60s'", o->method);
    if (is_gptq(o) && !o->calibration_count)
        return iv_fail(err, IV_INVALID, "method gptq: wanted calibration texts, found none");
    if (!is_gptq(o) && o->calibration_count && !smooths(o))
        return iv_fail(err, IV_INVALID, "calibration: method nearest has no use for it without smooth");
    if (smooths(o) && !(o->smooth <= 1)) return iv_fail(err, IV_INVALID, "smooth: wanted 0 to 1, found %g", o->smooth);
    if (smooths(o) && is_gptq(o)) return iv_fail(err, IV_UNSUPPORTED, "smooth: is of method nearest, found gptq");
    if (smooths(o) && !o->calibration_count)
        return iv_fail(err, IV_INVALID, "smooth: wanted calibration texts, found none");
    if (is_gptq(o) && !(isfinite(o->damping) && o->damping > 0))
        return iv_fail(err, IV_INVALID, "damping: wanted a number above 0, found %g", o->damping);
    return IV_OK;
}

/* The two halves of the work as one progress: the total is an estimate until all is rounded. */
typedef struct progress {
    const iv_quantize_options *o;
    size_t before;
} progress;

static void step_round(void *user, size_t done, size_t total) {
    progress *p = user;
    p->before = total;
    if (p->o->progress) p->o->progress(p->o->user, done, 2 * total);
}

static void step_write(void *user, size_t done, size_t total) {
    const progress *p = user;
    if (p->o->progress) p->o->progress(p->o->user, p->before + done, p->before + total);
}

/* The texts, and how long the longest is. */
static iv_status check_texts(const iv_quantize_options *o, const iv_model *m, iv_calibration_text *texts,
                             size_t *longest, iv_error *err) {
    for (size_t i = 0; i < o->calibration_count; i++) {
        const iv_ids *t = &o->calibration[i];
        texts[i] = (iv_calibration_text){t->data, t->count};
        if (t->count == 0 || t->count > (size_t)m->config.max_positions)
            return iv_fail(err, IV_INVALID, "calibration: text %zu: wanted 1 to %lld tokens, found %zu", i,
                           (long long)m->config.max_positions, t->count);
        if (t->count > *longest) *longest = t->count;
        for (size_t k = 0; k < t->count; k++)
            if (t->data[k] < 0 || t->data[k] >= m->config.vocab_size)
                return iv_fail(err, IV_INVALID, "calibration: text %zu: wanted ids below %lld, found %d", i,
                               (long long)m->config.vocab_size, (int)t->data[k]);
    }
    return IV_OK;
}

/* What calibration gives. */
typedef struct calibrated {
    iv_gptq_result rounded;
    iv_smooth_result smoothed;
} calibrated;

static iv_status smooth_model(const iv_model *m, const iv_checkpoint *c, const iv_quantize_options *o, iv_pool *pool,
                              const iv_calibration_text *texts, iv_smooth_result *out, iv_error *err) {
    return iv_smooth_run(m,
                         &(iv_smooth_options){.from = c,
                                              .alpha = o->smooth,
                                              .kernels = iv_kernels_select(iv_isa_detect()),
                                              .arithmetic = iv_arithmetic_auto(false, m->gemm_type),
                                              .pool = pool,
                                              .texts = texts,
                                              .count = o->calibration_count},
                         out, err);
}

/* Opens the model twice: its headers, for the longest text it may have, and then its weights. */
static iv_status calibrate(const char *model, const iv_checkpoint *c, const iv_quantize_options *o, progress *p,
                           const iv_quantize_scheme *scheme, calibrated *out, iv_error *err) {
    iv_calibration_text *texts = calloc(o->calibration_count, sizeof *texts);
    iv_model_options options = {.expand_as_saved = true};
    iv_model planned, *m = NULL;
    iv_checkpoint *headers;
    iv_pool *pool = NULL;
    if (!texts) return iv_fail(err, IV_NO_MEMORY, "calibration: no memory for %zu texts", o->calibration_count);
    iv_status status = iv_model_plan(model, &options, &planned, &headers, err);
    if (status == IV_OK) {
        status = check_texts(o, &planned, texts, &options.positions, err);
        iv_checkpoint_close(headers);
        iv_arena_free(&planned.arena);
    }
    if (status == IV_OK) status = iv_pool_open(o->threads, &pool, err);
    if (status == IV_OK) status = iv_model_open(model, &options, pool, &m, err);
    if (status == IV_OK && smooths(o)) status = smooth_model(m, c, o, pool, texts, &out->smoothed, err);
    if (status == IV_OK && is_gptq(o)) {
        const iv_gptq_options g = {.from = c,
                                   .scheme = scheme,
                                   .group = (size_t)o->group_size,
                                   .damping = o->damping,
                                   .act_order = o->act_order,
                                   .kernels = iv_kernels_select(iv_isa_detect()),
                                   .arithmetic = iv_arithmetic_auto(false, m->gemm_type),
                                   .pool = pool,
                                   .texts = texts,
                                   .count = o->calibration_count,
                                   .progress = step_round,
                                   .user = p};
        status = iv_gptq_run(m, &g, &out->rounded, err);
    }
    iv_model_close(m);
    iv_pool_close(pool);
    free(texts);
    return status;
}

static iv_status write_model(iv_model_dir *d, const iv_quantize_options *o, const iv_quantize_scheme *scheme,
                             iv_quantize_info *info, iv_error *err) {
    iv_checkpoint *c = NULL;
    iv_quantize_result r;
    calibrated from_texts = {0};
    const iv_gptq_result *rounded = &from_texts.rounded;
    const iv_smooth_result *smoothed = &from_texts.smoothed;
    progress p = {.o = o};
    iv_status status = iv_checkpoint_open(d->source, &c, err);
    if (status == IV_OK && o->calibration_count) status = calibrate(d->source, c, o, &p, scheme, &from_texts, err);
    if (status == IV_OK) status = iv_model_dir_clear(d, err);
    if (status == IV_OK) {
        const iv_quantize_job job = {.from = c,
                                     .scheme = scheme,
                                     .group = (size_t)o->group_size,
                                     .rounded = rounded->layers,
                                     .factors = smoothed->of,
                                     .order = o->act_order ? "weight" : NULL,
                                     .dir = d->path,
                                     .shard_bytes_max = (size_t)o->max_shard_bytes,
                                     .progress = step_write,
                                     .user = &p};
        status = iv_quantize_write(&job, &d->config, &r, err);
    }
    if (status == IV_OK)
        *info = (iv_quantize_info){.tensors = r.tensors,
                                   .files = r.files,
                                   .quantized = r.quantized,
                                   .bytes = r.bytes,
                                   .model_bytes = iv_checkpoint_stored_bytes(c),
                                   .calibration_tokens = smooths(o) ? smoothed->tokens : rounded->tokens,
                                   .unseen = rounded->unseen,
                                   .smoothed = smoothed->norms};
    iv_gptq_result_free(&from_texts.rounded), iv_smooth_result_free(&from_texts.smoothed);
    iv_checkpoint_close(c);
    return status;
}

static iv_status check_gguf(const char *path, const iv_quantize_options *o, iv_error *err) {
    if (!iv_gguf_is_asked(path))
        return iv_fail(err, IV_INVALID, "format %s: wanted a file whose name ends with .gguf, found %s", o->format,
                       path);
    if (o->group_size) return iv_fail(err, IV_INVALID, "group_size: format %s has its own", o->format);
    if (is_gptq(o))
        return iv_fail(err, IV_UNSUPPORTED, "method gptq: format %s is rounded to nearest, as ggml's reference does",
                       o->format);
    if (smooths(o))
        return iv_fail(err, IV_UNSUPPORTED, "smooth: is of formats of a directory, found format %s", o->format);
    return IV_OK;
}

/* A model that is packed is refused, as for directories. */
static iv_status check_plain(const char *model, uint64_t *bytes, iv_error *err) {
    iv_checkpoint *c;
    iv_status status = IV_OK;
    size_t packed;
    IV_TRY(iv_checkpoint_open(model, &c, err));
    for (size_t i = 0; status == IV_OK && i < iv_checkpoint_count(c); i++) {
        const char *format = iv_checkpoint_format(c, i, &packed);
        if (format)
            status = iv_fail(err, IV_INVALID, "%s: is stored as %s: invar export expands a model first",
                             iv_checkpoint_at(c, i)->name, format);
    }
    *bytes = iv_checkpoint_stored_bytes(c);
    iv_checkpoint_close(c);
    return status;
}

static iv_status write_gguf(const char *model, const char *path, const iv_quantize_options *o, iv_weight_format format,
                            iv_quantize_info *info, iv_error *err) {
    const iv_gguf_copy_options c = {.model = model,
                                    .path = path,
                                    .format = format,
                                    .overwrite = o->overwrite,
                                    .threads = o->threads,
                                    .progress = o->progress,
                                    .user = o->user};
    iv_gguf_exported written;
    uint64_t model_bytes;
    IV_TRY(check_gguf(path, o, err));
    IV_TRY(check_plain(model, &model_bytes, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_gguf_copy(&c, &written, err);
    iv_fp_env_leave(mode);
    if (status == IV_OK)
        *info = (iv_quantize_info){.tensors = written.tensors,
                                   .files = 1,
                                   .quantized = written.quantized,
                                   .bytes = written.bytes,
                                   .model_bytes = model_bytes};
    return status;
}

iv_status iv_quantize(const char *model, const char *dir, const iv_quantize_options *given, iv_quantize_info *info,
                      iv_error *err) {
    iv_quantize_options options, *o = &options;
    const iv_quantize_scheme *scheme;
    iv_weight_format format;
    iv_model_dir d;
    iv_quantize_options_init(o);
    IV_TRY(iv_sized_read("options", given, offsetof(iv_quantize_options, overwrite), o, sizeof *o, err));
    IV_TRY(check_method(o, err));
    if (iv_gguf_format_of(o->format, &format)) return write_gguf(model, dir, o, format, info, err);
    IV_TRY(check(o, &scheme, err));
    if (iv_gguf_is_asked(dir))
        return iv_fail(err, IV_INVALID, "format %s: wanted a directory, found %s (a GGUF has q8_0, q4_0, ...)",
                       o->format, dir);
    IV_TRY(iv_model_dir_open(dir, model, o->overwrite, false, IV_BF16, &d, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = write_model(&d, o, scheme, info, err);
    iv_fp_env_leave(mode);
    return iv_model_dir_close(&d, status, err);
}
