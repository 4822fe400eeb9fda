/* commands.c: what invar train does with a run and with its files: train, gradients of one batch, inspect. */
#include "base/digest.h"
#include "base/size.h"
#include "format/json.h"
#include "format/safetensors_write.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/files.h"
#include "train/run_state.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>

iv_status iv_run_train(const iv_run_options *o, iv_run_summary *out, iv_error *err) {
    iv_run r;
    IV_TRY(iv_run_open(&r, o, out, err));
    iv_digest_hex(r.hash, out->weights_hash);
    out->steps = r.at;
    iv_status status = o->kind == IV_RUN_RL ? iv_run_rl(&r, err) : iv_run_sft(&r, err);
    iv_run_close(&r);
    return status;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static iv_status put_tensor(iv_trainer *t, const iv_tensor *x, double weight, float *chunk, iv_safetensors_writer *w,
                            iv_error *err) {
    for (size_t at = 0, n; at < x->info.elements; at += n) {
        n = iv_size_min(IV_TRAIN_CHUNK, x->info.elements - at);
        IV_TRY(iv_train_read(t, IV_FLAT_GRADIENT, x->offset + at, n, chunk, err));
        for (size_t k = 0; k < n; k++) chunk[k] = (float)((double)chunk[k] / weight);
        IV_TRY(iv_safetensors_writer_put(w, chunk, n * sizeof *chunk, err));
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
    float *mean = malloc(IV_TRAIN_CHUNK * sizeof *mean);
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

static iv_status write_gradients(iv_run *r, const char *out, iv_gradients_summary *s, iv_error *err) {
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
    iv_status status = write_gradients(&r, out, s, err);
    iv_run_close(&r);
    return status;
}

/* ---- inspect ----------------------------------------------------------------------------------------------------- */

static json_t *parsed(const char *text) {
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    return j ? j : json_object();
}

/* A checkpoint by its name; of any other directory, the newest one in it. */
static iv_status open_checkpoint(const char *path, bool *verify, iv_buf *notes, iv_training_checkpoint **c,
                                 iv_error *err) {
    uint64_t step;
    char *copy = strdup(path);
    if (!copy) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    bool named = iv_training_parse_name(basename(copy), &step);
    free(copy);
    if (named) return iv_training_open(path, *verify, c, err);
    *verify = true; /* iv_training_latest does */
    IV_TRY(iv_training_latest(path, c, notes, err));
    if (*c) return IV_OK;
    return iv_fail(err, IV_NOT_FOUND, "%s: wanted a checkpoint or a run's directory with one, found none", path);
}

/* Lines of text as a JSON list. */
static json_t *lines_of(const iv_buf *notes) {
    json_t *list = json_array();
    for (size_t at = 0; at < notes->len;) {
        size_t n = strcspn(notes->data + at, "\n");
        json_array_append_new(list, json_stringn(notes->data + at, n));
        at += n + 1;
    }
    return list;
}

iv_status iv_run_inspect(const char *path, bool verify, char **out, iv_error *err) {
    iv_training_checkpoint *c;
    iv_buf notes = {0};
    iv_status status = open_checkpoint(path, &verify, &notes, &c, err);
    if (status != IV_OK) {
        iv_buf_free(&notes);
        return status;
    }
    const iv_training_saved *s = iv_training_get(c);
    json_t *j = json_pack("{ss ss ss* ss ss si sI sI sI sI ss so so sI sb}", "checkpoint", s->path, "invar_version",
                          s->invar_version, "model", s->model, "identity", s->run.identity, "initial_weights",
                          s->run.initial_weights, "training_version", s->run.law_version, "elements",
                          (json_int_t)s->run.elements, "step", (json_int_t)s->progress.step, "epoch",
                          (json_int_t)s->progress.epoch, "cursor", (json_int_t)s->progress.cursor, "weights",
                          s->progress.weight_hash, "hyperparameters", parsed(s->run.hyperparameters), "state",
                          parsed(s->progress.state), "shards", (json_int_t)s->shards, "verified", (int)verify);
    if (j && s->adapter) json_object_set_new(j, "adapter", json_string(s->path));
    if (j && notes.len) json_object_set_new(j, "notes", lines_of(&notes));
    iv_buf_free(&notes);
    *out = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    json_decref(j);
    iv_training_close(c);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
}

void iv_run_text_free(char *text) { free(text); }
