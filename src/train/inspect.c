/* inspect.c: what a checkpoint says, as JSON. */
#include "format/json.h"
#include "train/checkpoint.h"
#include "train/run.h"

#include <stdlib.h>
#include <string.h>

static json_t *parsed(const char *text) {
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    return j ? j : json_object();
}

iv_status iv_run_inspect(const char *path, bool verify, char **out, iv_error *err) {
    iv_training_checkpoint *c;
    IV_TRY(iv_training_open(path, verify, &c, err));
    const iv_training_saved *s = iv_training_get(c);
    json_t *j = json_pack("{ss ss ss* ss ss si sI sI sI sI ss so so sI sb}", "checkpoint", s->path, "invar_version",
                          s->invar_version, "model", s->model, "identity", s->run.identity, "initial_weights",
                          s->run.initial_weights, "training_version", s->run.law_version, "elements",
                          (json_int_t)s->run.elements, "step", (json_int_t)s->progress.step, "epoch",
                          (json_int_t)s->progress.epoch, "cursor", (json_int_t)s->progress.cursor, "weights",
                          s->progress.weight_hash, "hyperparameters", parsed(s->run.hyperparameters), "state",
                          parsed(s->progress.state), "shards", (json_int_t)s->shards, "verified", (int)verify);
    *out = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    json_decref(j);
    iv_training_close(c);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
}

void iv_run_text_free(char *text) { free(text); }
