/* load.c: opening a checkpoint, finding the newest whole one, reading ranges at any number of ranks. */
#include "base/file.h"
#include "base/size.h"
#include "comm/agree.h"
#include "train/checkpoint/files.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/record.h"
#include "train/checkpoint/state.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>

struct iv_training_checkpoint {
    iv_training_saved saved;
    iv_arena arena;            /* strings */
    iv_training_state *states; /* by first element, without holes */
    size_t count;
};

iv_status iv_training_path(const char *dir, uint64_t step, iv_buf *out, iv_error *err) {
    char name[IV_TRAINING_NAME_BYTES];
    iv_training_name(step, name);
    return iv_path_join(dir, name, out, err);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static int by_first(const void *a, const void *b) {
    const iv_training_state *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static iv_status check_cover(const iv_training_checkpoint *c, const char *path, iv_error *err) {
    size_t at = 0;
    for (size_t i = 0; i < c->count && c->states[i].first == at; i++) at += c->states[i].count;
    if (at == c->saved.run.elements) return IV_OK;
    return iv_fail(err, IV_FORMAT,
                   "%s: state: wanted files that cover %zu elements once, found a hole or an overlap "
                   "at element %zu",
                   path, c->saved.run.elements, at);
}

static iv_status open_states(iv_training_checkpoint *c, const char *dir, const iv_training_manifest *m, iv_error *err) {
    iv_buf path = {0};
    iv_status status = IV_OK;
    c->states = calloc(m->count + 1, sizeof *c->states);
    if (!c->states) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu files", dir, m->count);
    for (size_t i = 0; status == IV_OK && i < m->count; i++) {
        if (!iv_training_state_is_name(m->files[i].name)) continue;
        status = iv_path_join(dir, m->files[i].name, &path, err);
        if (status == IV_OK)
            status = iv_training_state_open(path.data, c->saved.run.elements, &c->states[c->count], err);
        if (status == IV_OK) c->count++;
    }
    iv_buf_free(&path);
    IV_TRY(status);
    if (c->count > 1) qsort(c->states, c->count, sizeof *c->states, by_first);
    c->saved.shards = c->count;
    return check_cover(c, dir, err);
}

/* model/ is named if the manifest has a file there. */
static iv_status name_model(iv_training_checkpoint *c, const char *dir, const iv_training_manifest *m, iv_error *err) {
    iv_buf path = {0};
    size_t i = 0;
    while (i < m->count && strncmp(m->files[i].name, "model/", 6) != 0) i++;
    if (i == m->count) return IV_OK;
    iv_status status = iv_path_join(dir, "model", &path, err);
    if (status == IV_OK && !(c->saved.model = iv_arena_strndup(&c->arena, path.data, path.len)))
        status = iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    iv_buf_free(&path);
    return status;
}

static iv_status open_all(iv_training_checkpoint *c, const char *dir, const iv_training_manifest *m, iv_error *err) {
    if (!iv_training_manifest_find(m, IV_TRAINING_RECORD_NAME))
        return iv_fail(err, IV_FORMAT, "%s: %s is not in the manifest", dir, IV_TRAINING_RECORD_NAME);
    if (!(c->saved.path = iv_arena_strndup(&c->arena, dir, strlen(dir))))
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    IV_TRY(iv_training_record_read(dir, &c->arena, &c->saved, err));
    if (c->saved.progress.step != m->step || strcmp(c->saved.run.identity, m->identity) != 0)
        return iv_fail(err, IV_FORMAT, "%s: %s and %s differ in the step or the identity", dir, IV_TRAINING_RECORD_NAME,
                       IV_TRAINING_MANIFEST_NAME);
    IV_TRY(name_model(c, dir, m, err));
    c->saved.adapter = iv_training_manifest_find(m, "adapter_config.json") != NULL;
    return open_states(c, dir, m, err);
}

/* The step that the directory's name has. */
static iv_status step_of(const char *path, uint64_t *step, iv_error *err) {
    char *copy = strdup(path);
    if (!copy) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    bool named = iv_training_parse_name(basename(copy), step);
    free(copy);
    if (!iv_file_exists(path)) return iv_fail(err, IV_NOT_FOUND, "%s: no such checkpoint", path);
    return named
               ? IV_OK
               : iv_fail(err, IV_FORMAT, "%s: wanted a directory named checkpoint-STEP, with six digits or more", path);
}

iv_status iv_training_open(const char *path, bool verify, iv_training_checkpoint **out, iv_error *err) {
    iv_training_manifest m;
    uint64_t step;
    IV_TRY(step_of(path, &step, err));
    IV_TRY(iv_training_manifest_read(path, step, verify, &m, err));
    iv_training_checkpoint *c = calloc(1, sizeof *c);
    iv_status status = c ? open_all(c, path, &m, err) : iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    iv_training_manifest_free(&m);
    if (status == IV_OK)
        *out = c;
    else
        iv_training_close(c);
    return status;
}

void iv_training_close(iv_training_checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; i < c->count; i++) iv_training_state_close(&c->states[i]);
    free(c->states);
    iv_arena_free(&c->arena);
    free(c);
}

const iv_training_saved *iv_training_get(const iv_training_checkpoint *c) { return &c->saved; }

iv_status iv_training_match(const iv_training_checkpoint *c, const iv_training_run *run, iv_error *err) {
    IV_TRY(iv_training_record_check(run, NULL, err));
    return iv_training_record_match(c->saved.path, &c->saved.run, run, err);
}

/* ---- reading -------------------------------------------------------------------------------------------- */

iv_status iv_training_read(const iv_training_checkpoint *c, iv_training_buffer buffer, size_t first, size_t count,
                           float *out, iv_error *err) {
    size_t elements = c->saved.run.elements;
    if ((size_t)buffer >= IV_TRAINING_BUFFERS || first > elements || count > elements - first)
        return iv_fail(err, IV_INVALID, "%s: wanted a range of %zu elements, found %zu from %zu on", c->saved.path,
                       elements, count, first);
    for (size_t i = 0; i < c->count; i++) {
        const iv_training_state *s = &c->states[i];
        size_t begin = iv_size_max(first, s->first), end = iv_size_min(first + count, s->first + s->count);
        if (begin < end) IV_TRY(iv_training_state_read(s, buffer, begin, end - begin, out + (begin - first), err));
    }
    return IV_OK;
}

/* ---- the newest whole one ------------------------------------------------------------------------------- */

/* Is it the checkpoint's fault, so that an older one may serve? A checkpoint of another version is not damaged. */
static bool is_damage(iv_status status) {
    return status == IV_FORMAT || status == IV_IO || status == IV_NOT_FOUND || status == IV_LIMIT;
}

iv_status iv_training_latest(const char *dir, iv_training_checkpoint **out, iv_buf *notes, iv_error *err) {
    uint64_t *steps = NULL;
    size_t count = 0, i = 0;
    iv_buf path = {0};
    bool noted = true;
    *out = NULL;
    if (!iv_file_exists(dir)) return IV_OK;
    iv_status status = iv_training_list(dir, &steps, &count, err);
    for (; status == IV_OK && i < count; i++) {
        status = iv_training_path(dir, steps[i], &path, err);
        if (status == IV_OK) status = iv_training_open(path.data, true, out, err);
        if (status == IV_OK || !is_damage(status)) break;
        noted = noted && iv_buf_printf(notes, "%s cannot be used: %s\n", path.data, err->message);
        status = IV_OK;
    }
    if (*out && i > 0) noted = noted && iv_buf_printf(notes, "%s is the last good checkpoint\n", path.data);
    if (status == IV_OK && count > 0 && !*out)
        status = iv_error_prefix(err, "%s: none of %zu checkpoints is whole; the oldest", dir, count);
    if (status == IV_OK && !noted) status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for notes", dir);
    if (status != IV_OK) iv_training_close(*out), *out = NULL;
    free(steps);
    iv_buf_free(&path);
    return status;
}

/* Rank 0 chooses and verifies; the others open the same directory. */
iv_status iv_training_resume(const iv_training_run *run, iv_comm *comm, iv_training_checkpoint **out, iv_buf *notes,
                             iv_error *err) {
    size_t rank = comm ? comm->rank : 0;
    uint64_t mine[2] = {0, 0}, all[IV_RANKS_MAX][2]; /* is there one; its step */
    iv_buf path = {0};
    iv_status status = iv_training_record_check(run, NULL, err);
    *out = NULL;
    if (status == IV_OK && rank == 0) status = iv_training_latest(run->dir, out, notes, err);
    if (status == IV_OK && *out) status = iv_training_match(*out, run, err);
    if (*out) mine[0] = 1, mine[1] = (*out)->saved.progress.step;
    status = iv_comm_agree(comm, status, err);
    if (status == IV_OK) status = iv_comm_gather_copies(comm, mine, sizeof mine, all, err);
    if (status == IV_OK) {
        if (rank != 0 && all[0][0]) {
            status = iv_training_path(run->dir, all[0][1], &path, err);
            if (status == IV_OK) status = iv_training_open(path.data, false, out, err);
        }
        status = iv_comm_agree(comm, status, err);
    }
    if (status != IV_OK) iv_training_close(*out), *out = NULL;
    iv_buf_free(&path);
    return status;
}
