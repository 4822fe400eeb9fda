/* inspect.c: what a checkpoint says, as JSON. */
#include "format/json.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/files.h"
#include "train/run.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>

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
    if (j && notes.len) json_object_set_new(j, "notes", lines_of(&notes));
    iv_buf_free(&notes);
    *out = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    json_decref(j);
    iv_training_close(c);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
}

void iv_run_text_free(char *text) { free(text); }
