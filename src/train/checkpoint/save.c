/* save.c: a save by all ranks. After each phase the ranks gather their results, so that all of them continue
 * or all return the same error. Rank 0 does what is done once. */
#include "base/digest.h"
#include "base/file.h"
#include "comm/agree.h"
#include "train/checkpoint/files.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/record.h"
#include "train/checkpoint/state.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file that a rank has written. */
typedef struct written {
    uint64_t first, count, bytes;
    uint8_t sha256[32];
} written;

typedef struct saving {
    const iv_training_run *run;
    const iv_training_progress *progress;
    const iv_training_save_options *o;
    iv_comm *comm; /* NULL: one rank */
    size_t rank, ranks;
    written all[IV_RANKS_MAX]; /* by rank, gathered */
    iv_buf temporary, final;
    iv_buf replaced; /* where an older checkpoint of this step is until it is removed */
    int lock;        /* rank 0: the run's directory, locked; else -1 */
} saving;

/* ---- the beginning -------------------------------------------------------------------------------------- */

static iv_status make_paths(saving *s, iv_error *err) {
    char name[IV_TRAINING_NAME_BYTES];
    IV_TRY(iv_training_path(s->run->dir, s->progress->step, &s->final, err));
    iv_training_aside_name(s->run->identity, s->progress->step, IV_TRAINING_WRITING, name);
    IV_TRY(iv_path_join(s->run->dir, name, &s->temporary, err));
    iv_training_aside_name(s->run->identity, s->progress->step, IV_TRAINING_REMOVING, name);
    return iv_path_join(s->run->dir, name, &s->replaced, err);
}

static iv_status check_shard(const iv_training_run *run, const iv_training_shard *m, iv_error *err) {
    if (m->first > run->elements || m->count > run->elements - m->first)
        return iv_fail(err, IV_INVALID, "checkpoint: shard: wanted a range of %zu elements, found %zu from %zu on",
                       run->elements, m->count, m->first);
    for (size_t p = 0; m->count && p < IV_TRAINING_BUFFERS; p++)
        if (!m->data[p] && !m->read) return iv_fail(err, IV_INVALID, "checkpoint: shard: array %zu is missing", p);
    return IV_OK;
}

static iv_status cannot_make(const char *path, iv_error *err) {
    return iv_fail(err, IV_IO, "%s: cannot make the directory: %s", path, strerror(errno));
}

/* A new directory is also an entry of its parent, which is flushed. */
static iv_status make_run_dir(const char *path, iv_error *err) {
    if (mkdir(path, 0777) != 0) return errno == EEXIST ? IV_OK : cannot_make(path, err);
    char *copy = strdup(path);
    if (!copy) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    iv_status status = iv_training_flush_dir(dirname(copy), err);
    free(copy);
    return status;
}

/* Two processes of one run would write to the same temporary directory. */
static iv_status lock_run(saving *s, iv_error *err) {
    const char *dir = s->run->dir;
    s->lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->lock < 0) return iv_fail(err, IV_IO, "%s: cannot open the directory: %s", dir, strerror(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB) == 0 || errno == ENOLCK || errno == ENOTSUP) return IV_OK;
    int why = errno;
    close(s->lock), s->lock = -1; /* what is there belongs to the other one */
    if (why == EWOULDBLOCK) return iv_fail(err, IV_BUSY, "%s: another process saves a checkpoint there", dir);
    return iv_fail(err, IV_IO, "%s: cannot lock the directory: %s", dir, strerror(why));
}

/* A whole checkpoint of this step may be replaced by its own run only. */
static iv_status check_owner(const saving *s, iv_error *err) {
    iv_training_manifest m;
    iv_error unused;
    if (iv_training_manifest_read(s->final.data, s->progress->step, false, &m, &unused) != IV_OK) return IV_OK;
    bool ours = strcmp(m.identity, s->run->identity) == 0;
    if (!ours)
        iv_fail(err, IV_INVALID, "%s: belongs to another run: identity: wanted %s, found %s", s->final.data,
                s->run->identity, m.identity);
    iv_training_manifest_free(&m);
    return ours ? IV_OK : IV_INVALID;
}

static iv_status begin(saving *s, iv_error *err) {
    if (s->rank != 0) return IV_OK;
    IV_TRY(make_run_dir(s->run->dir, err));
    IV_TRY(lock_run(s, err));
    IV_TRY(check_owner(s, err));
    IV_TRY(iv_training_remove_leftovers(s->run->dir, s->run->identity, err));
    return mkdir(s->temporary.data, 0777) == 0 ? IV_OK : cannot_make(s->temporary.data, err);
}

/* ---- shards --------------------------------------------------------------------------------------------- */

static iv_status write_shard(const saving *s, const iv_training_shard *mine, written *done, iv_error *err) {
    char name[IV_TRAINING_STATE_NAME_BYTES];
    iv_buf path = {0};
    done->first = mine->first, done->count = mine->count;
    if (mine->count == 0) return IV_OK;
    iv_training_state_name(s->rank, s->ranks, name);
    iv_status status = iv_path_join(s->temporary.data, name, &path, err);
    if (status == IV_OK) status = iv_training_state_write(path.data, mine, err);
    if (status == IV_OK) status = iv_training_hash_file(path.data, false, &done->bytes, done->sha256, err);
    iv_buf_free(&path);
    return status;
}

static int by_first(const void *a, const void *b) {
    const written *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* From the gathered ranges, so that every rank finds the same. */
static iv_status check_cover(const saving *s, iv_error *err) {
    written sorted[IV_RANKS_MAX];
    size_t n = 0, at = 0;
    for (size_t r = 0; r < s->ranks; r++)
        if (s->all[r].count) sorted[n++] = s->all[r];
    qsort(sorted, n, sizeof *sorted, by_first);
    for (size_t i = 0; i < n && sorted[i].first == at; i++) at += sorted[i].count;
    if (at == s->run->elements) return IV_OK;
    return iv_fail(err, IV_INVALID,
                   "checkpoint: the ranks' shards: wanted ranges that cover %zu elements once, found a hole or an "
                   "overlap at element %zu",
                   s->run->elements, at);
}

/* ---- the end -------------------------------------------------------------------------------------------- */

static iv_status export_model(const saving *s, iv_error *err) {
    iv_buf path = {0};
    if (!s->o->export) return IV_OK;
    if (s->o->model_in_dir) return s->o->export(s->o->export_user, s->temporary.data, err);
    iv_status status = iv_path_join(s->temporary.data, "model", &path, err);
    if (status == IV_OK) status = s->o->export(s->o->export_user, path.data, err);
    iv_buf_free(&path);
    return status;
}

/* A rank has hashed and flushed its own file; here its size is compared, as another machine may have written it. */
static iv_status list_file(const saving *s, const char *path, const char *name, iv_training_manifest *m,
                           iv_error *err) {
    uint64_t bytes = 0;
    uint8_t sha256[32];
    char state[IV_TRAINING_STATE_NAME_BYTES];
    for (size_t r = 0; r < s->ranks; r++) {
        struct stat st;
        iv_training_state_name(r, s->ranks, state);
        if (!s->all[r].count || strcmp(name, state) != 0) continue;
        if (stat(path, &st) != 0 || (uint64_t)st.st_size != s->all[r].bytes)
            return iv_fail(err, IV_IO, "%s: wanted the %" PRIu64 " bytes that rank %zu wrote", path, s->all[r].bytes,
                           r);
        return iv_training_manifest_add(m, name, s->all[r].bytes, s->all[r].sha256, err);
    }
    IV_TRY(iv_training_hash_file(path, true, &bytes, sha256, err));
    return iv_training_manifest_add(m, name, bytes, sha256, err);
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

/* Lists and flushes all files, and flushes folders after their files. */
static iv_status list_files(const saving *s, iv_training_manifest *m, iv_error *err) {
    char *roots[] = {s->temporary.data, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    if (!walk) return iv_fail(err, IV_IO, "%s: cannot read the directory: %s", roots[0], strerror(errno));
    iv_status status = IV_OK;
    for (FTSENT *e; status == IV_OK && (errno = 0, e = fts_read(walk));) {
        if (e->fts_info == FTS_F)
            status = list_file(s, e->fts_path, e->fts_path + s->temporary.len + 1, m, err);
        else if (e->fts_info == FTS_DP)
            status = iv_training_flush_dir(e->fts_path, err);
        else if (e->fts_info != FTS_D)
            status = iv_fail(err, IV_IO, "%s: wanted a file or a directory that can be read: %s", e->fts_path,
                             strerror(e->fts_errno));
    }
    if (status == IV_OK && errno)
        status = iv_fail(err, IV_IO, "%s: cannot read the directory: %s", roots[0], strerror(errno));
    fts_close(walk);
    for (size_t r = 0; status == IV_OK && r < s->ranks; r++) {
        char name[IV_TRAINING_STATE_NAME_BYTES];
        iv_training_state_name(r, s->ranks, name);
        if (s->all[r].count && !iv_training_manifest_find(m, name))
            status = iv_fail(err, IV_IO, "%s: %s of rank %zu is missing: wanted one file system for all ranks",
                             s->temporary.data, name, r);
    }
    return status;
}

static iv_status write_manifest(const saving *s, iv_error *err) {
    iv_training_manifest m = {.step = s->progress->step};
    snprintf(m.identity, sizeof m.identity, "%s", s->run->identity);
    iv_status status = list_files(s, &m, err);
    if (status == IV_OK) status = iv_training_manifest_write(&m, s->temporary.data, err);
    if (status == IV_OK) status = iv_training_flush_dir(s->temporary.data, err);
    iv_training_manifest_free(&m);
    return status;
}

/* Renames a checkpoint to a name that no reader uses, then removes it: a kill in between leaves no half of it. */
static iv_status remove_checkpoint(const saving *s, uint64_t step, iv_error *err) {
    char name[IV_TRAINING_NAME_BYTES];
    iv_buf from = {0}, to = {0};
    iv_training_aside_name(s->run->identity, step, IV_TRAINING_REMOVING, name);
    iv_status status = iv_training_path(s->run->dir, step, &from, err);
    if (status == IV_OK) status = iv_path_join(s->run->dir, name, &to, err);
    if (status == IV_OK && rename(from.data, to.data) != 0)
        status = iv_fail(err, IV_IO, "%s: cannot be renamed: %s", from.data, strerror(errno));
    if (status == IV_OK) status = iv_training_remove_tree(to.data, err);
    iv_buf_free(&from), iv_buf_free(&to);
    return status;
}

static iv_status cannot_rename(const char *to, iv_error *err) {
    return iv_fail(err, IV_IO, "%s: cannot rename into place: %s", to, strerror(errno));
}

/* For file systems that cannot swap two names in one move: after a failure the older checkpoint is back. */
static iv_status move_in_two(const saving *s, iv_error *err) {
    const char *to = s->final.data, *aside = s->replaced.data;
    if (rename(to, aside) != 0) return cannot_rename(aside, err);
    if (rename(s->temporary.data, to) == 0) return iv_training_flush_dir(s->run->dir, err);
    cannot_rename(to, err);
    if (rename(aside, to) != 0) iv_error_prefix(err, "the older checkpoint is at %s", aside);
    return err->status;
}

/* An older checkpoint of this step is swapped out. */
static iv_status move_into_place(const saving *s, iv_error *err) {
    const char *from = s->temporary.data, *to = s->final.data;
    if (iv_file_exists(to)) {
        if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
            return iv_training_flush_dir(s->run->dir, err);
        return errno == EINVAL || errno == ENOSYS ? move_in_two(s, err) : cannot_rename(to, err);
    }
    return rename(from, to) == 0 ? iv_training_flush_dir(s->run->dir, err) : cannot_rename(to, err);
}

/* Whole checkpoints of this run are counted; damaged ones and those of other runs are left to their owner. The newest
 * stays, and so does the one just written, if an older step was saved again. */
static iv_status remove_old(const saving *s, iv_error *err) {
    uint64_t *steps = NULL;
    size_t count = 0, whole = 0;
    iv_buf path = {0};
    IV_TRY(iv_training_remove_tree(s->temporary.data, err)); /* what was swapped out, in either way */
    IV_TRY(iv_training_remove_tree(s->replaced.data, err));
    if (s->o->keep == 0) return IV_OK;
    iv_status status = iv_training_list(s->run->dir, &steps, &count, err);
    for (size_t i = 0; status == IV_OK && i < count; i++) {
        iv_training_manifest m;
        iv_error unused;
        status = iv_training_path(s->run->dir, steps[i], &path, err);
        if (status != IV_OK || iv_training_manifest_read(path.data, steps[i], false, &m, &unused) != IV_OK) continue;
        bool ours = strcmp(m.identity, s->run->identity) == 0;
        iv_training_manifest_free(&m);
        if (!ours || ++whole <= s->o->keep || steps[i] == s->progress->step) continue;
        status = remove_checkpoint(s, steps[i], err);
    }
    free(steps);
    iv_buf_free(&path);
    return status;
}

static iv_status finish(saving *s, iv_error *err) {
    if (s->rank != 0) return IV_OK;
    IV_TRY(iv_training_record_write(s->temporary.data, s->run, s->progress, err));
    IV_TRY(export_model(s, err));
    IV_TRY(write_manifest(s, err));
    IV_TRY(move_into_place(s, err));
    iv_status status = remove_old(s, err);
    if (status != IV_OK) iv_error_prefix(err, "%s is complete, but an older one stays", s->final.data);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------------------ */

static iv_status prepare(saving *s, const iv_training_shard *mine, iv_error *err) {
    IV_TRY(iv_training_record_check(s->run, s->progress, err));
    IV_TRY(check_shard(s->run, mine, err));
    IV_TRY(make_paths(s, err));
    return begin(s, err);
}

static iv_status save(saving *s, const iv_training_shard *mine, iv_error *err) {
    written shard = {0};
    IV_TRY(iv_comm_agree(s->comm, prepare(s, mine, err), err));
    IV_TRY(iv_comm_agree(s->comm, write_shard(s, mine, &shard, err), err));
    IV_TRY(iv_comm_gather_copies(s->comm, &shard, sizeof shard, s->all, err));
    IV_TRY(check_cover(s, err));
    return iv_comm_agree(s->comm, finish(s, err), err);
}

iv_status iv_training_save(const iv_training_run *run, const iv_training_progress *progress,
                           const iv_training_shard *mine, const iv_training_save_options *o, iv_comm *comm,
                           iv_error *err) {
    static const iv_training_save_options none = {0};
    saving s = {.run = run,
                .progress = progress,
                .o = o ? o : &none,
                .comm = comm,
                .rank = comm ? comm->rank : 0,
                .ranks = comm ? comm->size : 1,
                .lock = -1};
    iv_status status = save(&s, mine, err);
    iv_error unused;
    if (status != IV_OK && s.lock >= 0) iv_training_remove_tree(s.temporary.data, &unused);
    if (s.lock >= 0) close(s.lock);
    iv_buf_free(&s.temporary), iv_buf_free(&s.final), iv_buf_free(&s.replaced);
    return status;
}
