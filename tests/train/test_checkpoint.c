/* Checkpoints of training runs: content, other numbers of ranks, damage of each file, refusals, kills. */
#include "base/clock.h"
#include "engine/client.h"
#include "engine/replace.h"
#include "train/checkpoint_case.h"
#include "train/checkpoint/manifest.h"
#include "train/trainer/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static void expect(iv_status got, const iv_error *err, iv_status want, const char *text) {
    if (got != want) fail_msg("wanted %s, got %s: %s", iv_status_name(want), iv_status_name(got), err->message);
    if (!strstr(err->message, text)) fail_msg("wanted '%s' in '%s'", text, err->message);
}

static size_t entries(const char *dir) {
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static const char *in_run(const checkpoint_case *c, const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", c->dir, name);
    return path;
}

static void test_round_trip(void **state) {
    checkpoint_case c;
    iv_training_checkpoint *found;
    iv_buf notes = {0};
    iv_error err;
    case_open(&c);
    ASSERT_OK(iv_training_resume(&c.run, NULL, &found, &notes, &err), &err);
    assert_null(found); /* nothing yet */
    ASSERT_OK(case_save(&c, 200, &err), &err);
    ASSERT_OK(iv_training_open(in_run(&c, "checkpoint-000200"), true, &found, &err), &err);
    case_check(found, 200);
    const iv_training_saved *s = iv_training_get(found);
    assert_string_equal(s->run.identity, c.run.identity);
    assert_string_equal(s->run.initial_weights, c.run.initial_weights);
    assert_int_equal(s->run.elements, CASE_ELEMENTS);
    assert_int_equal(s->shards, 1);
    ASSERT_OK(iv_training_match(found, &c.run, &err), &err);
    float out[2];
    expect(iv_training_read(found, IV_TRAINING_MASTER, CASE_ELEMENTS - 1, 2, out, &err), &err, IV_INVALID, "range");
    iv_training_close(found);
    ASSERT_OK(case_save(&c, 200, &err), &err); /* the same step again */
    case_expect_latest(&c, 200, &notes);
    assert_int_equal(notes.len, 0);
    assert_int_equal(entries(c.dir), 1);
    case_close(&c);
    (void)state;
}

/* The model in a checkpoint is a directory that an engine opens, with the weights that were in memory. */
static void test_model(void **state) {
    checkpoint_case c;
    iv_training_checkpoint *found;
    iv_error err;
    char model[1024], old[100];
    float zeros[8] = {0};
    case_open(&c);
    for (size_t ranks = 1; ranks <= 2; ranks++) {
        iv_engine_options o = small_options();
        o.tensor_parallel_size = ranks;
        iv_engine *e = open_with(&o);
        iv_engine_info want, got;
        iv_model *first;
        iv_engine_get_info(e, &want);
        snprintf(old, sizeof old, "%s", want.fingerprint);
        ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
        iv_tensor *t = iv_model_tensor(first, "model.norm.weight");
        ASSERT_OK(iv_replace_write(first, t, 3, 1, &(float){0.3f}, &err), &err);
        ASSERT_OK(iv_replace_end(e, NULL, &err), &err);
        iv_engine_get_info(e, &want);
        assert_string_not_equal(want.fingerprint, old);
        iv_training_model source = {.model = first, .source = o.model};
        iv_training_save_options s = {.export = iv_training_export_model, .export_user = &source};
        iv_training_progress p = {.step = ranks, .weight_hash = "x"};
        iv_training_shard shard = {.count = 8, .data = {zeros, zeros, zeros}};
        c.run.elements = 8;
        ASSERT_OK(iv_training_save(&c.run, &p, &shard, &s, NULL, &err), &err);
        iv_buf notes = {0};
        ASSERT_OK(iv_training_resume(&c.run, NULL, &found, &notes, &err), &err);
        assert_int_equal(iv_training_get(found)->progress.step, ranks);
        snprintf(model, sizeof model, "%s", iv_training_get(found)->model);
        iv_training_close(found);
        o.model = model;
        iv_engine *fresh = open_with(&o);
        iv_engine_get_info(fresh, &got);
        assert_string_equal(got.fingerprint, want.fingerprint);
        iv_engine_close(fresh), iv_engine_close(e);
    }
    const iv_model any = {.gemm_type = IV_BF16};
    iv_training_model nowhere = {.model = &any, .source = "/nowhere/at/all"};
    iv_training_save_options s = {.export = iv_training_export_model, .export_user = &nowhere};
    iv_training_progress p = {.step = 9, .weight_hash = "x"};
    iv_training_shard shard = {.count = 8, .data = {zeros, zeros, zeros}};
    expect(iv_training_save(&c.run, &p, &shard, &s, NULL, &err), &err, IV_NOT_FOUND, "/nowhere/at/all");
    assert_int_equal(entries(c.dir), 2);
    case_close(&c);
    (void)state;
}

static void test_keep(void **state) {
    checkpoint_case c;
    iv_error err;
    case_open(&c);
    c.keep = 2;
    for (uint64_t step = 1; step <= 5; step++) ASSERT_OK(case_save(&c, step, &err), &err);
    assert_int_equal(entries(c.dir), 2);
    case_expect_latest(&c, 5, NULL);
    c.keep = 1; /* an older step again: the newest stays */
    ASSERT_OK(case_save(&c, 3, &err), &err);
    assert_int_equal(entries(c.dir), 2);
    case_expect_latest(&c, 5, NULL);
    c.run.identity = "iv1-another-run"; /* whose checkpoints are not counted */
    expect(case_save(&c, 5, &err), &err, IV_INVALID, "belongs to another run");
    ASSERT_OK(case_save(&c, 6, &err), &err);
    assert_int_equal(entries(c.dir), 3);
    c.keep = 0;
    for (uint64_t step = 7; step <= 9; step++) ASSERT_OK(case_save(&c, step, &err), &err);
    assert_int_equal(entries(c.dir), 6);
    case_close(&c);
    (void)state;
}

/* ---- ranks ---- */

typedef struct reader {
    const checkpoint_case *c;
    iv_comm *comm;
    iv_status status;
    iv_error err;
} reader;

static void *read_rank(void *context) {
    reader *r = context;
    iv_training_checkpoint *found = NULL;
    iv_buf notes = {0};
    size_t first = r->comm->rank * CASE_ELEMENTS / r->comm->size,
           count = (r->comm->rank + 1) * CASE_ELEMENTS / r->comm->size - first;
    r->status = iv_training_resume(&r->c->run, r->comm, &found, &notes, &r->err);
    float *got = malloc(count * sizeof *got);
    for (size_t p = 0; r->status == IV_OK && p < IV_TRAINING_BUFFERS; p++) {
        r->status = iv_training_read(found, (iv_training_buffer)p, first, count, got, &r->err);
        for (size_t i = 0; r->status == IV_OK && i < count; i++)
            if (got[i] != case_value(40, p, first + i)) r->status = iv_fail(&r->err, IV_FORMAT, "element %zu", i);
    }
    free(got);
    iv_training_close(found);
    iv_buf_free(&notes);
    return NULL;
}

/* Written by 1, 2, 3 and 8 ranks, read by 1, 2, 4, 5 and 8, and in ranges that begin and end anywhere. */
static void test_worlds(void **state) {
    static const size_t writers[] = {1, 2, 3, 8}, readers[] = {1, 2, 4, 5, 8};
    rng random = rng_start("checkpoint_worlds");
    for (size_t w = 0; w < sizeof writers / sizeof *writers; w++) {
        checkpoint_case c;
        case_rank ranks[IV_RANKS_MAX];
        iv_training_checkpoint *found;
        iv_error err;
        case_open(&c);
        case_save_ranks(&c, 40, writers[w], NULL, ranks);
        for (size_t r = 0; r < writers[w]; r++) ASSERT_OK(ranks[r].status, &ranks[r].err);
        ASSERT_OK(iv_training_open(in_run(&c, "checkpoint-000040"), true, &found, &err), &err);
        assert_int_equal(iv_training_get(found)->shards, writers[w]);
        case_check(found, 40);
        for (int i = 0; i < 50; i++) {
            float got[600];
            size_t count = rng_below(&random, 600), first = rng_below(&random, CASE_ELEMENTS - count + 1);
            ASSERT_OK(iv_training_read(found, IV_TRAINING_SECOND_MOMENT, first, count, got, &err), &err);
            for (size_t k = 0; k < count; k++) assert_true(got[k] == case_value(40, 2, first + k));
        }
        iv_training_close(found);
        for (size_t n = 0; n < sizeof readers / sizeof *readers; n++) {
            iv_comm *comms[IV_RANKS_MAX];
            pthread_t threads[IV_RANKS_MAX];
            reader at[IV_RANKS_MAX];
            ASSERT_OK(iv_comm_threads_open(readers[n], comms, &err), &err);
            for (size_t r = 0; r < readers[n]; r++) {
                at[r] = (reader){.c = &c, .comm = comms[r]};
                assert_int_equal(pthread_create(&threads[r], NULL, read_rank, &at[r]), 0);
            }
            for (size_t r = 0; r < readers[n]; r++) pthread_join(threads[r], NULL);
            for (size_t r = 0; r < readers[n]; r++) iv_comm_close(comms[r]);
            for (size_t r = 0; r < readers[n]; r++) ASSERT_OK(at[r].status, &at[r].err);
        }
        case_close(&c);
    }
    (void)state;
}

/* ---- processes ---- */

/* Collectives of processes of one machine: nothing is shared but the bytes that are passed. */
enum { PROCESSES = 4, BLOCK = 4096 };
typedef struct shared {
    pthread_barrier_t barrier;
    char blocks[2][PROCESSES][BLOCK];
} shared;
typedef struct process_comm {
    iv_comm comm;
    shared *shared;
    size_t calls;
} process_comm;

static iv_status gather_processes(iv_comm *c, bool all, const void *mine, const size_t *bytes, const void **blocks,
                                  iv_error *err) {
    process_comm *p = (process_comm *)(void *)c;
    char(*row)[BLOCK] = p->shared->blocks[p->calls++ % 2];
    (void)all;
    if (bytes[c->rank] > BLOCK) return iv_fail(err, IV_LIMIT, "block of %zu bytes", bytes[c->rank]);
    memcpy(row[c->rank], mine, bytes[c->rank]);
    pthread_barrier_wait(&p->shared->barrier);
    for (size_t r = 0; r < c->size; r++) blocks[r] = row[r];
    return IV_OK;
}

/* Saves, then resumes at the same world and compares its range. With failing < PROCESSES that rank fails, and all
 * return its error. */
static int process_rank(const checkpoint_case *c, shared *s, size_t rank, size_t failing) {
    static const iv_comm_ops ops = {.gather = gather_processes};
    process_comm p = {.comm = {.ops = &ops, .rank = rank, .size = PROCESSES}, .shared = s};
    iv_comm *comm = &p.comm;
    iv_error err;
    if (failing < PROCESSES) {
        static float zero[1];
        iv_training_shard shard = {.first = rank, .count = 1, .data = {zero, rank == failing ? NULL : zero, zero}};
        iv_training_progress progress = {.step = 41, .weight_hash = "x"};
        iv_training_run run = c->run;
        run.elements = PROCESSES;
        if (iv_training_save(&run, &progress, &shard, NULL, comm, &err) != IV_INVALID) return 2;
        return strstr(err.message, "rank 2: ") && strstr(err.message, "array 1 is missing") ? 0 : 3;
    }
    if (case_save_rank(c, 40, rank, PROCESSES, comm, &err) != IV_OK) return 4;
    reader r = {.c = c, .comm = comm};
    read_rank(&r);
    if (r.status != IV_OK) fprintf(stderr, "%s\n", r.err.message);
    return r.status == IV_OK ? 0 : 5;
}

static void run_processes(const checkpoint_case *c, size_t failing) {
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    pid_t children[PROCESSES];
    assert_true(s != MAP_FAILED);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&s->barrier, &attributes, PROCESSES);
    fflush(NULL);
    for (size_t r = 0; r < PROCESSES; r++)
        if ((children[r] = fork()) == 0) _exit(process_rank(c, s, r, failing));
    for (size_t r = 0; r < PROCESSES; r++) {
        int how;
        assert_int_equal(waitpid(children[r], &how, 0), children[r]);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) fail_msg("rank %zu: status %x", r, (unsigned)how);
    }
    munmap(s, sizeof *s);
}

static void test_processes(void **state) {
    checkpoint_case c;
    case_open(&c);
    run_processes(&c, PROCESSES);
    case_expect_latest(&c, 40, NULL); /* and at one rank */
    run_processes(&c, 2);
    assert_int_equal(entries(c.dir), 1);
    case_close(&c);
    (void)state;
}

/* Ranges with a hole, an overlap, or beyond the layout. */
static void test_ranges(void **state) {
    checkpoint_case c;
    iv_error err;
    float zeros[64] = {0};
    case_open(&c);
    iv_training_progress p = {.step = 1, .weight_hash = "x"};
    iv_training_shard shard = {.first = 0, .count = 64, .data = {zeros, zeros, zeros}};
    c.run.elements = 65;
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "at element 64");
    c.run.elements = 63;
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "range of 63 elements");
    c.run.elements = 64, shard.first = SIZE_MAX;
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "range of 64 elements");
    shard.first = 0, shard.data[2] = NULL;
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "array 2 is missing");
    shard.data[2] = zeros;
    c.run.hyperparameters = "[1]";
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "hyperparameters");
    c.run.hyperparameters = "{\"a\": }";
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "hyperparameters");
    c.run.hyperparameters = "{}", c.run.identity = "two words";
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "identity");
    c.run.identity = "one", p.step = (uint64_t)1 << 63;
    expect(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err, IV_INVALID, "step");
    p.step = 1;
    ASSERT_OK(iv_training_save(&c.run, &p, &shard, NULL, NULL, &err), &err);
    assert_int_equal(entries(c.dir), 1);
    case_close(&c);
    (void)state;
}

/* ---- damage ---- */

static char *read_all(const char *path, size_t *n) {
    iv_buf b = {0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char piece[4096];
    for (size_t got; (got = fread(piece, 1, sizeof piece, f)) > 0;) assert_true(iv_buf_append(&b, piece, got));
    fclose(f);
    *n = b.len;
    return b.data;
}

static void write_all(const char *path, const char *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The older one is found, and the notes name the newer one. */
static void expect_older(const checkpoint_case *c, const char *what) {
    iv_buf notes = {0};
    case_expect_latest(c, 10, &notes);
    if (!notes.data || !strstr(notes.data, "checkpoint-000020 cannot be used: ") ||
        !strstr(notes.data, "checkpoint-000010 is the last good checkpoint"))
        fail_msg("%s: notes '%s'", what, notes.data ? notes.data : "");
    iv_buf_free(&notes);
}

static void damage(const checkpoint_case *c, const char *name, rng *random) {
    char path[1024], label[1200];
    size_t n;
    snprintf(path, sizeof path, "%s/checkpoint-000020/%s", c->dir, name);
    char *bytes = read_all(path, &n);
    for (size_t i = 0; i < 24; i++) {
        size_t cut = i == 0 ? 0 : i == 1 ? n - 2 : rng_below(random, n - 1); /* not just a last newline */
        snprintf(label, sizeof label, "%s cut to %zu", name, cut);
        write_all(path, bytes, cut);
        expect_older(c, label);
    }
    size_t flips = n < 700 ? 8 * n : 200; /* every bit of a small file */
    for (size_t i = 0; i < flips; i++) {
        size_t bit = n < 700 ? i : rng_below(random, 8 * n);
        snprintf(label, sizeof label, "%s with bit %zu flipped", name, bit);
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
        write_all(path, bytes, n);
        iv_training_checkpoint *found;
        iv_error err;
        iv_status status = iv_training_open(in_run(c, "checkpoint-000020"), true, &found, &err);
        if (status == IV_OK) fail_msg("%s: was not noticed", label);
        if (!strstr(err.message, "checkpoint-000020")) fail_msg("%s: '%s' names no checkpoint", label, err.message);
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
    }
    assert_int_equal(unlink(path), 0);
    snprintf(label, sizeof label, "%s removed", name);
    expect_older(c, label);
    write_all(path, bytes, n);
    case_expect_latest(c, 20, NULL);
    free(bytes);
}

static void test_damage(void **state) {
    static const char *const files[] = {"manifest.json", "training.json", "model/model.txt",
                                        "state-00001-of-00002.safetensors", "state-00002-of-00002.safetensors"};
    rng random = rng_start("checkpoint_damage");
    checkpoint_case c;
    case_rank ranks[IV_RANKS_MAX];
    case_open(&c);
    for (uint64_t step = 10; step <= 20; step += 10) {
        case_save_ranks(&c, step, 2, NULL, ranks);
        for (size_t r = 0; r < 2; r++) ASSERT_OK(ranks[r].status, &ranks[r].err);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) damage(&c, files[i], &random);
    case_close(&c);
    (void)state;
}

/* No whole checkpoint: an error, not a new start. */
static void test_none_whole(void **state) {
    checkpoint_case c;
    iv_training_checkpoint *found;
    iv_buf notes = {0};
    iv_error err;
    case_open(&c);
    ASSERT_OK(case_save(&c, 1, &err), &err);
    assert_int_equal(unlink(in_run(&c, "checkpoint-000001/manifest.json")), 0);
    iv_status status = iv_training_resume(&c.run, NULL, &found, &notes, &err);
    expect(status, &err, IV_FORMAT, "none of 1 checkpoints is whole");
    expect(status, &err, IV_FORMAT, "half written");
    assert_null(found);
    iv_buf_free(&notes);
    expect(iv_training_open(in_run(&c, "checkpoint-000009"), true, &found, &err), &err, IV_NOT_FOUND, "no such");
    expect(iv_training_open(c.dir, true, &found, &err), &err, IV_FORMAT, "checkpoint-STEP");
    case_close(&c);
    (void)state;
}

/* A manifest that names files elsewhere. */
static void test_hostile_manifest(void **state) {
    static const char *const names[] = {"../x", "/etc/passwd", "a/../../x", "", "a//b", ".", "./a"};
    checkpoint_case c;
    iv_training_manifest m;
    iv_error err;
    case_open(&c);
    assert_int_equal(mkdir(c.dir, 0777), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[512];
        int n =
            snprintf(text, sizeof text,
                     "{\"training_checkpoint\": 1, \"identity\": \"x\", \"step\": 1, \"files\": [{\"name\": \"%s\", "
                     "\"bytes\": 0, \"sha256\": \"%064d\"}]}",
                     names[i], 0);
        write_all(in_run(&c, "manifest.json"), text, (size_t)n);
        expect(iv_training_manifest_read(c.dir, 1, true, &m, &err), &err, IV_FORMAT, "below the checkpoint");
    }
    case_close(&c);
    (void)state;
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
    checkpoint_case c;
    iv_training_checkpoint *found;
    iv_buf notes = {0};
    iv_error err;
    case_open(&c);
    ASSERT_OK(case_save(&c, 5, &err), &err);
    iv_training_run other = c.run;
    other.identity = "x", other.initial_weights = "sha256:aa";
    expect(iv_training_resume(&other, NULL, &found, &notes, &err), &err, IV_INVALID,
           "initial weights (another model): wanted sha256:aa, found sha256:00ff");
    other = c.run, other.elements = 4096;
    expect(iv_training_resume(&other, NULL, &found, &notes, &err), &err, IV_INVALID,
           "elements of the layout: wanted 4096, found 12288");
    other = c.run, other.law_version = 2;
    expect(iv_training_resume(&other, NULL, &found, &notes, &err), &err, IV_INVALID, "law version");
    other = c.run;
    other.hyperparameters = "{\"learning_rate\": 0.002, \"virtual_ranks\": 8, \"clip\": 1.0}";
    iv_status status = iv_training_resume(&other, NULL, &found, &notes, &err);
    expect(status, &err, IV_INVALID, "learning_rate: wanted 0.002, found 0.001");
    expect(status, &err, IV_INVALID, "clip: wanted 1.0, found nothing");
    expect(status, &err, IV_INVALID, "seed: wanted nothing, found \"7\"");
    assert_null(strstr(err.message, "virtual_ranks"));
    other = c.run, other.identity = "iv1-train-other-data";
    expect(iv_training_resume(&other, NULL, &found, &notes, &err), &err, IV_INVALID, "identity (data or program)");
    assert_null(found);
    size_t n;
    char *text = read_all(in_run(&c, "checkpoint-000005/manifest.json"), &n);
    char *version = strstr(text, "\"training_checkpoint\": 1");
    assert_non_null(version);
    version[strlen("\"training_checkpoint\": ")] = '2';
    write_all(in_run(&c, "checkpoint-000005/manifest.json"), text, n);
    expect(iv_training_resume(&c.run, NULL, &found, &notes, &err), &err, IV_UNSUPPORTED, "wanted version 1, found 2");
    free(text);
    iv_buf_free(&notes);
    case_close(&c);
    (void)state;
}

/* ---- leftovers and kills ---- */

static void test_leftovers(void **state) {
    checkpoint_case c;
    iv_error err;
    char mine[IV_TRAINING_NAME_BYTES], old[IV_TRAINING_NAME_BYTES], other[IV_TRAINING_NAME_BYTES];
    case_open(&c);
    ASSERT_OK(case_save(&c, 1, &err), &err);
    iv_training_aside_name(c.run.identity, 2, IV_TRAINING_WRITING, mine);
    iv_training_aside_name(c.run.identity, 0, IV_TRAINING_REMOVING, old);
    iv_training_aside_name("another", 2, IV_TRAINING_WRITING, other);
    const char *const names[] = {mine, old, other, ".checkpoint-000002.tmp", "notes.txt"};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(mkdir(in_run(&c, names[i]), 0777), 0);
        char inside[256];
        snprintf(inside, sizeof inside, "%s/file", names[i]);
        write_all(in_run(&c, inside), "x", 1);
    }
    case_expect_latest(&c, 1, NULL);
    ASSERT_OK(case_save(&c, 3, &err), &err);
    assert_int_equal(access(in_run(&c, mine), F_OK), -1);
    assert_int_equal(access(in_run(&c, old), F_OK), -1);
    for (size_t i = 2; i < 5; i++) assert_int_equal(access(in_run(&c, names[i]), F_OK), 0);
    case_close(&c);
    (void)state;
}

static void save_for_ever(const checkpoint_case *c, uint64_t step) {
    iv_error err;
    for (;; step++)
        if (case_save(c, step, &err) != IV_OK) {
            fprintf(stderr, "step %llu: %s\n", (unsigned long long)step, err.message);
            _exit(1);
        }
}

/* The child reports nothing: what it has done is read from the disk. A checkpoint that was whole once is never lost. */
static void test_kills(void **state) {
    const char *text = getenv("INVAR_TEST_KILLS");
    size_t kills = text ? strtoul(text, NULL, 10) : 30, whole = 0, leftovers = 0;
    rng random = rng_start("checkpoint_kills");
    checkpoint_case c;
    iv_error err;
    case_open(&c);
    c.keep = 2;
    uint64_t last = 1;
    double began = iv_now();
    ASSERT_OK(case_save(&c, last, &err), &err);
    uint64_t longest_us = 40000 + (uint64_t)(3e6 * (iv_now() - began)); /* of a child: some saves, on any machine */
    for (size_t i = 0; i < kills; i++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) save_for_ever(&c, last + 1);
        usleep((useconds_t)(500 + rng_below(&random, longest_us)));
        assert_int_equal(kill(child, SIGKILL), 0);
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        iv_training_checkpoint *found;
        iv_buf notes = {0};
        ASSERT_OK(iv_training_resume(&c.run, NULL, &found, &notes, &err), &err);
        assert_non_null(found);
        uint64_t step = iv_training_get(found)->progress.step;
        if (step < last) fail_msg("kill %zu: step %d was lost: %s", i, (int)last, notes.data ? notes.data : "");
        assert_int_equal(notes.len, 0); /* a kill leaves no damaged checkpoint */
        case_check(found, step);
        iv_training_close(found);
        whole += step > last, last = step;
        leftovers += entries(c.dir) > 2;
        iv_buf_free(&notes);
    }
    printf("%zu kills: %zu after a whole save, %zu left a half-written directory; last step %llu\n", kills, whole,
           leftovers, (unsigned long long)last);
    assert_true(leftovers > 0);
    ASSERT_OK(case_save(&c, last + 1, &err), &err);
    assert_int_equal(entries(c.dir), 2);
    case_close(&c);
    (void)state;
}

/* A second process of the run does not disturb the first. */
static void test_two_writers(void **state) {
    checkpoint_case c;
    iv_error err;
    case_open(&c);
    ASSERT_OK(case_save(&c, 1, &err), &err);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) save_for_ever(&c, 2);
    size_t busy = 0;
    for (int i = 0; i < 2000 && busy == 0; i++) {
        iv_status status = case_save(&c, 1, &err);
        if (status == IV_OK) continue; /* the child was between two saves: it is refused then, and ends */
        expect(status, &err, IV_BUSY, "another process");
        busy++;
    }
    int how;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(busy > 0 || (WIFEXITED(how) && WEXITSTATUS(how) == 1));
    ASSERT_OK(case_save(&c, 100000, &err), &err);
    case_expect_latest(&c, 100000, NULL);
    case_close(&c);
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_model),      cmocka_unit_test(test_keep),
        cmocka_unit_test(test_worlds),     cmocka_unit_test(test_processes),  cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_damage),     cmocka_unit_test(test_none_whole), cmocka_unit_test(test_hostile_manifest),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_leftovers),  cmocka_unit_test(test_kills),
        cmocka_unit_test(test_two_writers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
