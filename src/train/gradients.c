/* gradients.c: the gradient of the mean loss over one batch, as a file to hold next to another framework's. */
#include "base/size.h"
#include "format/safetensors_write.h"
#include "train/run_state.h"

#include <stdlib.h>

static iv_status put_tensor(iv_trainer *t, const iv_tensor *x, double weight, float *piece, iv_safetensors_writer *w,
                            iv_error *err) {
    for (size_t at = 0, n; at < x->info.elements; at += n) {
        n = iv_size_min(IV_TRAIN_PIECE, x->info.elements - at);
        IV_TRY(iv_train_read(t, IV_TRAIN_GRADIENT, x->offset + at, n, piece, err));
        for (size_t k = 0; k < n; k++) piece[k] = (float)((double)piece[k] / weight);
        IV_TRY(iv_safetensors_writer_put(w, piece, n * sizeof *piece, err));
    }
    return IV_OK;
}

static iv_status write_tensors(iv_run *r, const char *path, double weight, iv_error *err) {
    iv_model *m = iv_train_model(r->trainer);
    iv_tensor_info *infos = calloc(m->tensor_count + 1, sizeof *infos);
    size_t count = 0;
    if (!infos) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    for (size_t i = 0; i < m->tensor_count; i++) {
        if (!iv_parameter_is_trained(&m->tensors[i])) continue;
        infos[count] = m->tensors[i].info, infos[count++].dtype = IV_F32;
    }
    float *mean = malloc(IV_TRAIN_PIECE * sizeof *mean);
    iv_safetensors_writer w;
    iv_status status = mean ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    if (status == IV_OK) status = iv_safetensors_writer_open(path, infos, count, "pt", &w, err);
    bool opened = status == IV_OK;
    for (size_t i = 0; status == IV_OK && i < m->tensor_count; i++) {
        const iv_tensor *t = &m->tensors[i];
        if (!iv_parameter_is_trained(t)) continue;
        status = put_tensor(r->trainer, t, weight, mean, &w, err);
    }
    if (opened) status = iv_safetensors_writer_close(&w, status, err);
    free(mean), free(infos);
    return status;
}

static iv_status run(iv_run *r, const char *out, iv_gradients_summary *s, iv_error *err) {
    iv_train_result g;
    iv_train_sums sums = {0};
    size_t n = iv_train_data_count(r->data);
    IV_TRY(iv_run_reserve(r, n, err));
    iv_run_fill(r, r->data, NULL, 0, n);
    iv_train_add_masks(&sums, r->sequences, n);
    iv_train_batch b = {.sequences = r->sequences, .count = n, .temperature = 1.0f};
    IV_TRY(iv_train_gradients(r->trainer, &b, sums.weight, &g, err));
    iv_train_add_losses(&sums, r->sequences, n);
    *s = (iv_gradients_summary){n, sums.tokens, sums.loss / sums.weight, g.norm};
    return write_tensors(r, out, sums.weight, err);
}

iv_status iv_run_gradients(const iv_run_options *o, const char *out, iv_gradients_summary *s, iv_error *err) {
    iv_run r;
    iv_run_summary unused;
    *s = (iv_gradients_summary){0};
    IV_TRY(iv_run_open_model(&r, o, &unused, err));
    iv_status status = run(&r, out, s, err);
    iv_run_close(&r);
    return status;
}
