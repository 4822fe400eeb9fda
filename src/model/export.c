/* export.c: the table of tensors as the source of a checkpoint that is written. */
#include "model/export.h"
#include "model/stored.h"

#include <stdlib.h>

typedef struct exporting {
    const iv_stored **tensors;
    iv_tensor_info *infos;
    size_t count;
} exporting;

static iv_status collect(const iv_model *first, const iv_model_export_options *o, exporting *x, iv_error *err) {
    x->tensors = calloc(first->stored_count + 1, sizeof *x->tensors);
    x->infos = calloc(first->stored_count + 1, sizeof *x->infos);
    if (!x->tensors || !x->infos)
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tensors", o->dir, first->stored_count);
    for (size_t i = 0; i < first->stored_count; i++) {
        const iv_stored *t = &first->stored[i];
        if (!t->count) continue;
        x->tensors[x->count] = t, x->infos[x->count] = iv_stored_info(t);
        if (o->has_dtype) x->infos[x->count].dtype = o->dtype;
        x->count++;
    }
    return IV_OK;
}

static iv_status read_rows(void *user, size_t index, size_t first, size_t rows, void *out, iv_error *err) {
    const exporting *x = user;
    return iv_stored_read_rows(x->tensors[index], first, rows, x->infos[index].dtype, out, err);
}

iv_status iv_model_export(const iv_model *first, const iv_model_export_options *o, iv_model_exported *out,
                          iv_error *err) {
    exporting x = {0};
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
    free(x.tensors), free(x.infos);
    return status;
}
