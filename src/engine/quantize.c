/* quantize.c: invar.h's copy of a model with fewer bits. */
#include "base/cpu.h"
#include "engine/sized.h"
#include "format/model_dir.h"
#include "format/quantize_write.h"

#include <stddef.h>
#include <string.h>

#define SHARD_BYTES 5000000000u /* transformers' save_pretrained */

void iv_quantize_options_init_sized(iv_quantize_options *o, size_t size) {
    iv_quantize_options defaults = {.format = "fp8", .max_shard_bytes = SHARD_BYTES};
    iv_sized_init(o, size, &defaults, sizeof defaults);
}

static iv_status check(const iv_quantize_options *o, const iv_quantize_scheme **scheme, iv_error *err) {
    static const char *const unwritten[] = {"q8_0", "q4_0",   "q4_1", "q5_0", "q5_1",   "q2_k", "q3_k",
                                            "q4_k", "q4_k_m", "q5_k", "q6_k", "iq4_nl", "awq",  "gptq"};
    *scheme = iv_quantize_scheme_of(o->format);
    if (!o->max_shard_bytes) return iv_fail(err, IV_INVALID, "max_shard_bytes: wanted 1 at least, found 0");
    for (size_t i = 0; !*scheme && i < sizeof unwritten / sizeof *unwritten; i++)
        if (strcasecmp(o->format, unwritten[i]) == 0)
            return iv_fail(err, IV_UNSUPPORTED,
                           "format %s is read, not written: wanted fp8, int8, int4, mxfp4 or nvfp4", o->format);
    if (!*scheme)
        return iv_fail(err, IV_INVALID, "format: wanted fp8, int8, int4, mxfp4 or nvfp4, found '%.60s'", o->format);
    if (o->group_size && !(*scheme)->any_group)
        return iv_fail(err, IV_INVALID, "group_size: format %s has its own", o->format);
    if (o->group_size % 16 || o->group_size > 1 << 20)
        return iv_fail(err, IV_INVALID, "group_size: wanted a multiple of 16, found %llu",
                       (unsigned long long)o->group_size);
    return IV_OK;
}

static iv_status write_model(iv_model_dir *d, const iv_quantize_options *o, const iv_quantize_scheme *scheme,
                             iv_quantize_info *info, iv_error *err) {
    iv_checkpoint *c = NULL;
    iv_quantize_result r;
    iv_status status = iv_checkpoint_open(d->source, &c, err);
    if (status == IV_OK) status = iv_model_dir_clear(d, err);
    if (status == IV_OK) {
        const iv_quantize_job job = {.from = c,
                                     .scheme = scheme,
                                     .group = (size_t)o->group_size,
                                     .dir = d->path,
                                     .shard_bytes_max = (size_t)o->max_shard_bytes,
                                     .progress = o->progress,
                                     .user = o->user};
        status = iv_quantize_write(&job, &d->config, &r, err);
    }
    if (status == IV_OK)
        *info = (iv_quantize_info){.tensors = r.tensors,
                                   .files = r.files,
                                   .quantized = r.quantized,
                                   .bytes = r.bytes,
                                   .model_bytes = iv_checkpoint_stored_bytes(c)};
    iv_checkpoint_close(c);
    return status;
}

iv_status iv_quantize(const char *model, const char *dir, const iv_quantize_options *given, iv_quantize_info *info,
                      iv_error *err) {
    iv_quantize_options options, *o = &options;
    const iv_quantize_scheme *scheme;
    iv_model_dir d;
    iv_quantize_options_init(o);
    IV_TRY(iv_sized_read("options", given, offsetof(iv_quantize_options, overwrite), o, sizeof *o, err));
    IV_TRY(check(o, &scheme, err));
    IV_TRY(iv_model_dir_open(dir, model, o->overwrite, false, IV_BF16, &d, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = write_model(&d, o, scheme, info, err);
    iv_fp_env_leave(mode);
    return iv_model_dir_close(&d, status, err);
}
