/* record.c: the record as JSON, and the comparison of two runs. */
#include "train/checkpoint/record.h"
#include "base/file.h"
#include "base/json_out.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_BYTES_MAX = 64 << 20 };

/* ---- writing -------------------------------------------------------------------------------------------- */

static iv_status check_word(const char *name, const char *text, iv_error *err) {
    size_t n = text ? strlen(text) : 0;
    bool visible = n > 0 && n <= IV_TRAINING_IDENTITY_BYTES_MAX;
    for (size_t i = 0; visible && i < n; i++) visible = text[i] > ' ' && text[i] < 0x7f;
    if (visible) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted 1 to %d visible ASCII characters, found %zu characters: '%.40s'", name,
                   IV_TRAINING_IDENTITY_BYTES_MAX, n, n ? text : "");
}

static iv_status check_object(const char *name, const char *text, iv_error *err) {
    json_t *value;
    if (!text) return iv_fail(err, IV_INVALID, "%s: wanted a JSON object, found nothing", name);
    iv_status status = iv_json_parse(name, text, strlen(text), &value, err);
    if (status == IV_NO_MEMORY) return status;
    if (status != IV_OK) return err->status = IV_INVALID;
    bool object = json_is_object(value);
    if (!object) iv_fail(err, IV_INVALID, "%s: wanted a JSON object, found %s", name, iv_json_type_name(value));
    json_decref(value);
    return object ? IV_OK : IV_INVALID;
}

static iv_status check_number(const char *name, uint64_t v, iv_error *err) {
    if (v <= INT64_MAX) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted at most %" PRId64 ", found %" PRIu64, name, INT64_MAX, v);
}

iv_status iv_training_record_check(const iv_training_run *run, const iv_training_progress *p, iv_error *err) {
    if (!run->dir || !*run->dir) return iv_fail(err, IV_INVALID, "checkpoint: wanted the run's directory");
    IV_TRY(check_word("checkpoint: identity", run->identity, err));
    IV_TRY(check_word("checkpoint: initial_weights", run->initial_weights, err));
    IV_TRY(check_object("checkpoint: hyperparameters", run->hyperparameters, err));
    IV_TRY(check_number("checkpoint: elements", run->elements, err));
    if (run->elements == 0) return iv_fail(err, IV_INVALID, "checkpoint: elements: wanted 1 or more, found 0");
    if (!p) return IV_OK;
    IV_TRY(check_number("checkpoint: step", p->step, err));
    IV_TRY(check_number("checkpoint: epoch", p->epoch, err));
    IV_TRY(check_number("checkpoint: cursor", p->cursor, err));
    IV_TRY(check_word("checkpoint: weight_hash", p->weight_hash, err));
    return p->state ? check_object("checkpoint: state", p->state, err) : IV_OK;
}

static bool make_text(const iv_training_run *run, const iv_training_progress *p, iv_buf *text) {
    iv_json_out o = {.buf = text, .spaced = true};
    const char *state = p->state ? p->state : "{}";
    iv_out_open(&o, '{');
    iv_out_kv_int(&o, "training_checkpoint", IV_TRAINING_CHECKPOINT_VERSION);
    iv_out_kv_text(&o, "invar", INVAR_VERSION);
    iv_out_kv_int(&o, "law_version", run->law_version);
    iv_out_kv_text(&o, "identity", run->identity);
    iv_out_kv_text(&o, "initial_weights", run->initial_weights);
    iv_out_kv_uint(&o, "elements", run->elements);
    iv_out_kv_uint(&o, "step", p->step);
    iv_out_kv_uint(&o, "epoch", p->epoch);
    iv_out_kv_uint(&o, "cursor", p->cursor);
    iv_out_kv_text(&o, "weight_hash", p->weight_hash);
    iv_out_key(&o, "hyperparameters");
    iv_out_raw(&o, run->hyperparameters, strlen(run->hyperparameters));
    iv_out_key(&o, "state");
    iv_out_raw(&o, state, strlen(state));
    iv_out_close(&o, '}');
    return !o.failed && iv_buf_putc(text, '\n');
}

iv_status iv_training_record_write(const char *dir, const iv_training_run *run, const iv_training_progress *p,
                                   iv_error *err) {
    iv_buf path = {0}, text = {0};
    iv_status status = iv_path_join(dir, IV_TRAINING_RECORD_NAME, &path, err);
    if (status == IV_OK && (!make_text(run, p, &text) || text.len > RECORD_BYTES_MAX))
        status = iv_fail(err, IV_LIMIT, "%s: wanted at most %d bytes of text", path.data, RECORD_BYTES_MAX);
    if (status == IV_OK) status = iv_file_write(path.data, text.data, text.len, err);
    iv_buf_free(&path), iv_buf_free(&text);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

typedef struct reading {
    const char *path;
    iv_json_object o;
    iv_arena *arena;
} reading;

static iv_status read_text(const reading *r, const char *key, const char **out, iv_error *err) {
    const char *text = NULL;
    bool found;
    IV_TRY(iv_json_object_string(&r->o, key, &text, &found, err));
    if (!found) return iv_fail(err, IV_FORMAT, "%s: %s is missing", r->path, key);
    *out = iv_arena_strndup(r->arena, text, strlen(text));
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory for %s", r->path, key);
}

static iv_status read_number(const reading *r, const char *key, int64_t min, int64_t max, int64_t *out, iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_int(&r->o, key, min, max, out, &found, err));
    return found ? IV_OK : iv_fail(err, IV_FORMAT, "%s: %s is missing", r->path, key);
}

static iv_status read_object(const reading *r, const char *key, const char **out, iv_error *err) {
    const json_t *value = json_object_get(r->o.json, key);
    if (!json_is_object(value)) return iv_fail(err, IV_FORMAT, "%s: %s: wanted an object", r->path, key);
    char *text = json_dumps(value, JSON_COMPACT);
    *out = text ? iv_arena_strndup(r->arena, text, strlen(text)) : NULL;
    free(text);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory for %s", r->path, key);
}

static iv_status read_members(const reading *r, iv_training_saved *out, iv_error *err) {
    int64_t version, law, elements, step, epoch, cursor;
    IV_TRY(read_number(r, "training_checkpoint", 0, INT64_MAX, &version, err));
    if (version != IV_TRAINING_CHECKPOINT_VERSION)
        return iv_fail(err, IV_UNSUPPORTED, "%s: training_checkpoint: wanted version %d, found %" PRId64, r->path,
                       IV_TRAINING_CHECKPOINT_VERSION, version);
    IV_TRY(read_text(r, "invar", &out->invar_version, err));
    IV_TRY(read_number(r, "law_version", INT32_MIN, INT32_MAX, &law, err));
    IV_TRY(read_text(r, "identity", &out->run.identity, err));
    IV_TRY(read_text(r, "initial_weights", &out->run.initial_weights, err));
    IV_TRY(read_number(r, "elements", 1, INT64_MAX, &elements, err));
    IV_TRY(read_number(r, "step", 0, INT64_MAX, &step, err));
    IV_TRY(read_number(r, "epoch", 0, INT64_MAX, &epoch, err));
    IV_TRY(read_number(r, "cursor", 0, INT64_MAX, &cursor, err));
    IV_TRY(read_text(r, "weight_hash", &out->progress.weight_hash, err));
    IV_TRY(read_object(r, "hyperparameters", &out->run.hyperparameters, err));
    IV_TRY(read_object(r, "state", &out->progress.state, err));
    out->run.law_version = (int)law, out->run.elements = (size_t)elements;
    out->progress.step = (uint64_t)step, out->progress.epoch = (uint64_t)epoch;
    out->progress.cursor = (uint64_t)cursor;
    return IV_OK;
}

iv_status iv_training_record_read(const char *dir, iv_arena *arena, iv_training_saved *out, iv_error *err) {
    iv_buf path = {0};
    json_t *root = NULL;
    reading r = {.arena = arena};
    iv_status status = iv_path_join(dir, IV_TRAINING_RECORD_NAME, &path, err);
    if (status == IV_OK) status = iv_json_read(path.data, RECORD_BYTES_MAX, &root, err);
    r.path = path.data;
    if (status == IV_OK) status = iv_json_object_of(path.data, "", root, &r.o, err);
    if (status == IV_OK) status = read_members(&r, out, err);
    json_decref(root);
    iv_buf_free(&path);
    return status;
}

/* ---- comparison ----------------------------------------------------------------------------------------- */

static bool differs(iv_buf *list, const char *name, const char *want, const char *found) {
    return iv_buf_printf(list, "%s%s: wanted %s, found %s", list->len ? "; " : "", name, want, found);
}

static bool compare_texts(iv_buf *list, const char *name, const char *want, const char *found) {
    return strcmp(want, found) == 0 || differs(list, name, want, found);
}

static bool compare_numbers(iv_buf *list, const char *name, uint64_t want, uint64_t found) {
    char a[24], b[24];
    snprintf(a, sizeof a, "%" PRIu64, want), snprintf(b, sizeof b, "%" PRIu64, found);
    return want == found || differs(list, name, a, b);
}

/* Every member of the one object, then those that only the other has. */
static bool compare_members(iv_buf *list, json_t *want, json_t *found) {
    const char *key;
    json_t *value;
    char a[IV_JSON_SHOWN_BYTES], b[IV_JSON_SHOWN_BYTES];
    bool ok = true;
    json_object_foreach(want, key, value) {
        const json_t *other = json_object_get(found, key);
        if (!other || !json_equal(value, other))
            ok = ok && differs(list, key, iv_json_shown(value, a), iv_json_shown(other, b));
    }
    json_object_foreach(found, key, value) {
        if (!json_object_get(want, key)) ok = ok && differs(list, key, "nothing", iv_json_shown(value, b));
    }
    return ok;
}

static iv_status compare_hyperparameters(const char *path, iv_buf *list, const iv_training_run *saved,
                                         const iv_training_run *want, bool *ok, iv_error *err) {
    json_t *a, *b;
    IV_TRY(iv_json_parse("hyperparameters", want->hyperparameters, strlen(want->hyperparameters), &a, err));
    iv_status status = iv_json_parse(path, saved->hyperparameters, strlen(saved->hyperparameters), &b, err);
    if (status == IV_OK) {
        *ok = compare_members(list, a, b);
        json_decref(b);
    }
    json_decref(a);
    return status;
}

iv_status iv_training_record_match(const char *path, const iv_training_run *saved, const iv_training_run *want,
                                   iv_error *err) {
    iv_buf list = {0};
    bool ok = compare_texts(&list, "initial weights (another model)", want->initial_weights, saved->initial_weights) &&
              compare_numbers(&list, "elements of the layout", want->elements, saved->elements) &&
              compare_numbers(&list, "law version of training", (uint64_t)want->law_version,
                              (uint64_t)saved->law_version),
         compared = true;
    iv_status status = compare_hyperparameters(path, &list, saved, want, &compared, err);
    if (status == IV_OK && ok && list.len == 0)
        ok = compare_texts(&list, "identity (data or program)", want->identity, saved->identity);
    if (status == IV_OK && !(ok && compared)) status = iv_fail(err, IV_NO_MEMORY, "%s: no memory to compare", path);
    if (status == IV_OK && list.len > 0)
        status = iv_fail(err, IV_INVALID, "%s: belongs to another run: %s", path, list.data);
    iv_buf_free(&list);
    return status;
}
