/* export.c: the table of tensors as the source of a checkpoint that is written. */
#include "model/export.h"
#include "model/stored.h"

#include <stdlib.h>

typedef struct exporting {
    const iv_stored **tensors;
    iv_tensor_info *infos;
    size_t count;
    iv_checkpoint *source; /* open if something is copied */
    const char *dir;       /* of it */
} exporting;

/* Parts that are not read come from the files of the source, in their own types. */
static bool is_copied(const iv_stored *s) { return !s->count && !iv_tensor_is_buffer(s->info.name); }

static iv_status collect(const iv_model *first, const iv_model_export_options *o, exporting *x, iv_error *err) {
    x->tensors = calloc(first->stored_count + 1, sizeof *x->tensors);
    x->infos = calloc(first->stored_count + 1, sizeof *x->infos);
    if (!x->tensors || !x->infos)
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tensors", o->dir, first->stored_count);
    for (size_t i = 0; i < first->stored_count; i++) {
        const iv_stored *s = &first->stored[i];
        if (!s->count && !is_copied(s)) continue;
        if (is_copied(s) && !x->source) IV_TRY(iv_checkpoint_open(o->source, &x->source, err));
        x->tensors[x->count] = s, x->infos[x->count] = iv_stored_info(s);
        if (o->has_dtype && s->count) x->infos[x->count].dtype = o->dtype;
        x->count++;
    }
    return IV_OK;
}

static iv_status copy(const exporting *x, size_t index, size_t offset, size_t n, void *out, iv_error *err) {
    const iv_tensor_info *want = &x->infos[index], *t = iv_checkpoint_find(x->source, want->name);
    if (!t || t->dtype != want->dtype || t->bytes != want->bytes)
        return iv_fail(err, IV_FORMAT, "%s: %s is not there as it was when the model was loaded", x->dir, want->name);
    return iv_checkpoint_read(x->source, t, out, offset, n, err);
}

/* first, rows: of the first dimension. */
static iv_status read_rows(void *user, size_t index, size_t first, size_t rows, void *out, iv_error *err) {
    const exporting *x = user;
    const iv_stored *s = x->tensors[index];
    size_t per = s->info.ndim && s->info.shape[0] ? s->rows / (size_t)s->info.shape[0] : 1;
    size_t row = per * s->columns * iv_dtype_bytes(s->info.dtype);
    if (!s->count) return copy(x, index, first * row, rows * row, out, err);
    return iv_stored_read_rows(s, first * per, rows * per, x->infos[index].dtype, out, err);
}

iv_status iv_model_export(const iv_model *first, const iv_model_export_options *o, iv_model_exported *out,
                          iv_error *err) {
    exporting x = {.dir = o->source};
    iv_status status = collect(first, o, &x, err);
    *out = (iv_model_exported){.tensors = x.count};
    iv_checkpoint_write_options w = {.dir = o->dir,
                                     .tensors = x.infos,
                                     .count = x.count,
                                     .shard_bytes_max = o->shard_bytes_max,
                                     .source = read_rows,
                                     .source_user = &x,
                                     .progress = o->progress,
                                     .progress_user = o->user};
    if (status == IV_OK) status = iv_checkpoint_write(&w, &out->files, out->weights_digest, err);
    for (size_t i = 0; status == IV_OK && i < x.count; i++)
        out->bytes += x.infos[i].elements * iv_dtype_bytes(x.infos[i].dtype);
    iv_checkpoint_close(x.source);
    free(x.tensors), free(x.infos);
    return status;
}
