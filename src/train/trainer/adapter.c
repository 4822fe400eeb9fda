/* adapter.c: the adapter that a trainer's steps change. */
#include "train/trainer/adapter.h"
#include "base/digest.h"
#include "format/adapter_write.h"
#include "model/tensor_data.h"
#include "train/trainer/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool iv_train_has_adapter(const iv_trainer *t) { return t->learned != NULL; }

iv_status iv_train_adapter_open(iv_trainer *t, iv_error *err) {
    if (!t->o.has_adapter) return IV_OK;
    if (t->o.shard_parameters)
        return iv_fail(err, IV_INVALID,
                       "shard parameters: wanted all weights to learn, found an adapter, which is small");
    IV_TRY(iv_learned_adapter_open(t->model, &t->o.adapter, &t->learned, err));
    t->named = t->learned->table;
    t->elements = t->all = t->learned->elements;
    t->adapters = (iv_adapters){.slot = &t->live, .count = 1, .rank_max = t->learned->parts.rank_max};
    return IV_OK;
}

void iv_train_adapter_close(iv_trainer *t) {
    iv_adapter_free((iv_adapter *)(uintptr_t)t->live);
    iv_learned_adapter_close(t->learned);
}

/* A copy of the master weights in this process's memory, +0 in padding; the caller frees *out. */
static iv_status copy_masters(iv_trainer *t, bool reads, float **out, iv_error *err) {
    *out = calloc(t->elements, sizeof **out);
    if (!*out) return iv_fail(err, IV_NO_MEMORY, "adapter: no memory for %zu weights", t->elements);
    iv_status status = reads ? iv_train_read(t, IV_FLAT_MASTER, 0, t->elements, *out, err) : IV_OK;
    if (status != IV_OK) free(*out);
    return status;
}

iv_status iv_train_adapter_image(iv_trainer *t, iv_dtype type, iv_adapter_files *out, iv_error *err) {
    float *copy;
    if (!t->o.cuda) return iv_adapter_image_make(t->learned, t->devices[0].master, type, out, err);
    IV_TRY(copy_masters(t, true, &copy, err));
    iv_status status = iv_adapter_image_make(t->learned, copy, type, out, err);
    free(copy);
    return status;
}

/* The first values, on all GPUs. */
static iv_status begin_gpus(iv_trainer *t, iv_error *err) {
    float *copy;
    IV_TRY(copy_masters(t, false, &copy, err));
    iv_status status = iv_learned_adapter_begin(t->learned, copy, err);
    if (status == IV_OK) status = iv_train_write(t, IV_FLAT_MASTER, 0, t->elements, copy, err);
    free(copy);
    return status;
}

/* The model's norms and biases, which do not learn, for the learners on GPUs. */
static iv_status copy_vectors(iv_trainer *t, iv_error *err) {
    const iv_model *m = t->model;
    size_t *at = calloc(m->tensor_count, sizeof *at), n = at ? iv_parameters_vectors(m, at) : 0;
    float *vectors = at ? calloc(n + 1, sizeof *vectors) : NULL;
    iv_status status = vectors ? IV_OK : iv_fail(err, IV_NO_MEMORY, "adapter: no memory for the model's vectors");
    for (size_t i = 0; status == IV_OK && i < m->tensor_count; i++)
        if (iv_parameter_is_vector(&m->tensors[i]))
            status = iv_tensor_read_rows(&m->tensors[i], 0, m->tensors[i].rows, IV_F32, vectors + at[i], err);
    for (size_t i = 0; status == IV_OK && i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        d->vectors = d->flat->ops->alloc(d->flat, n);
        status = d->vectors ? d->flat->ops->write(d->flat, d->vectors, n, vectors, err)
                            : iv_fail(err, IV_NO_MEMORY, "adapter: no memory for the model's vectors");
    }
    free(at), free(vectors);
    return status;
}

/* The adapter of the present values, next to the model. */
static iv_status make_live(iv_trainer *t, iv_error *err);

iv_status iv_train_adapter_begin(iv_trainer *t, iv_error *err) {
    if (!t->o.cuda)
        IV_TRY(iv_learned_adapter_begin(t->learned, t->devices[0].master, err));
    else
        IV_TRY(begin_gpus(t, err));
    if (t->o.cuda) IV_TRY(copy_vectors(t, err));
    return make_live(t, err);
}

void iv_train_adapter_opened(iv_trainer *t) {
    if (!t->o.cuda) return;
    iv_adapter_free((iv_adapter *)(uintptr_t)t->live);
    t->live = NULL;
}

iv_status iv_train_adapter_follow(iv_trainer *t, iv_error *err) { return t->o.cuda ? IV_OK : make_live(t, err); }

static iv_status make_live(iv_trainer *t, iv_error *err) {
    iv_adapter_files image;
    iv_adapter *new = NULL;
    IV_TRY(iv_train_adapter_image(t, t->model->gemm_type, &image, err));
    iv_status status = iv_adapter_make(t->model, &image, IV_ADAPTER_RANK_MAX, &new, err);
    iv_adapter_image_close(&image);
    IV_TRY(status);
    iv_adapter_free((iv_adapter *)(uintptr_t)t->live);
    t->live = new;
    return IV_OK;
}

size_t iv_train_adapter_bytes(const iv_trainer *t) { return t->live ? t->live->bytes : 0; }

json_t *iv_train_adapter_parameters(const iv_trainer *t) {
    const iv_adapter_wish *w = &t->o.adapter;
    char text[80];
    if (w->from) {
        snprintf(text, sizeof text, "sha256:");
        iv_digest_hex(t->learned->digest, text + strlen(text));
        return json_pack("{ss}", "digest", text);
    }
    snprintf(text, sizeof text, "%llu", (unsigned long long)w->seed);
    return json_pack("{sI sf ss sb ss}", "rank", (json_int_t)w->rank, "alpha",
                     w->alpha == 0 ? (double)w->rank : w->alpha, "targets", w->targets ? w->targets : "all-linear",
                     "rslora", (int)w->root_scale, "seed", text);
}

iv_status iv_train_adapter_write(iv_trainer *t, const char *dir, iv_dtype type, uint8_t digest[32], iv_error *err) {
    iv_adapter_files image;
    IV_TRY(iv_train_adapter_image(t, type, &image, err));
    iv_status status = iv_adapter_write(&image, dir, err);
    if (digest) memcpy(digest, image.digest, sizeof image.digest);
    iv_adapter_image_close(&image);
    return status;
}
