/* Runs from files to checkpoints (run.h): log, resumption, stopping, damaged checkpoints, and what is refused. */
#include "train/run_case.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>

static void train(const iv_run_options *o, iv_run_summary *summary) {
    iv_error err;
    ASSERT_OK(iv_run_train(o, summary, &err), &err);
}

static size_t count_entries(const char *folder, const char *begin) {
    size_t n = 0;
    DIR *d = opendir(folder);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) n += strncmp(e->d_name, begin, strlen(begin)) == 0 && e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The caller's view of a run's steps; it stops after step `last` if that is not 0. */
typedef struct watch {
    uint64_t steps, last;
    char weights[CASE_STEPS_MAX][65];
    volatile sig_atomic_t stop;
} watch;

static void see_step(void *user, uint64_t step, const char *hash) {
    watch *w = user;
    snprintf(w->weights[step - 1], 65, "%s", hash);
    w->steps = step;
    if (step == w->last) w->stop = 1;
}

static void watch_run(iv_run_options *o, watch *w, uint64_t last) {
    *w = (watch){.last = last};
    o->step = see_step, o->step_user = w, o->stop = &w->stop;
}

/* ---- what a run leaves --------------------------------------------------------------------------------- */

static void a_run_leaves_log_and_checkpoints(void **state) {
    (void)state;
    rng r = rng_start("a_run_leaves_log_and_checkpoints");
    iv_run_summary s;
    case_log log;
    watch w;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("left", 7);
    o.save_every = 2, o.keep = 2;
    watch_run(&o, &w, 0);
    train(&o, &s);
    case_read_log(o.output, &log);
    assert_int_equal(log.lines, 7);
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(log.steps[i], i + 1);
        assert_string_equal(log.weights[i], w.weights[i]);
        if (i) assert_string_not_equal(log.weights[i], log.weights[i - 1]);
    }
    assert_true(s.first_step == 0 && s.steps == 7 && !s.stopped && s.loss == log.loss[6]);
    assert_string_equal(s.weights_hash, log.weights[6]);
    assert_string_equal(s.arithmetic, "fma32");
    assert_string_equal(s.dtype, "bfloat16");
    assert_string_equal(s.checkpoint, case_path("left/checkpoint-000007"));
    assert_true(exists(o.output, "checkpoint-000006") && exists(o.output, "checkpoint-000007"));
    assert_int_equal(count_entries(o.output, "checkpoint-"), 2); /* keep */
    assert_true(exists(o.output, "curves.html") && exists(o.output, "curves.svg"));
    assert_int_equal(count_entries(o.output, "events.out."), 1);
    /* Another seed has another order of examples, and other weights. */
    watch other;
    iv_run_options b = case_options(NULL, 7);
    b.seed++;
    watch_run(&b, &other, 0);
    train(&b, &s);
    assert_string_not_equal(other.weights[0], w.weights[0]);
    assert_string_not_equal(other.weights[6], w.weights[6]);
}

/* Without a directory the weights are the same, and nothing is written. */
static void a_run_without_files(void **state) {
    (void)state;
    rng r = rng_start("a_run_without_files");
    iv_run_summary s;
    watch w, bare;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("files", 4), b = case_options(NULL, 4);
    watch_run(&o, &w, 0), watch_run(&b, &bare, 0);
    train(&o, &s);
    train(&b, &s);
    assert_int_equal(bare.steps, 4);
    for (size_t i = 0; i < 4; i++) assert_string_equal(w.weights[i], bare.weights[i]);
    assert_string_equal(s.checkpoint, "");
    b.resume = true;
    expect_failure(&b, IV_INVALID, "output: wanted a directory for checkpoints, found none");
    b.resume = false, b.save_every = 2;
    expect_failure(&b, IV_INVALID, "output: wanted a directory for checkpoints, found none");
}

static void losses_fall(void **state) {
    (void)state;
    rng r = rng_start("losses_fall");
    iv_run_summary s;
    case_log log;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("falls", 24);
    o.batch_size = CASE_EXAMPLES, o.learning_rate = 3e-3;
    train(&o, &s);
    case_read_log(o.output, &log);
    if (!(log.loss[23] < log.loss[0] - 1)) fail_msg("loss %f at first, %f at the end", log.loss[0], log.loss[23]);
}

/* ---- interruption -------------------------------------------------------------------------------------- */

static void stopped_runs_resume_at_other_worlds(void **state) {
    (void)state;
    rng r = rng_start("stopped_runs_resume_at_other_worlds");
    static const uint64_t worlds[] = {2, 8, 1, 4}, tps[] = {1, 1, 4, 2}, until[] = {2, 3, 7, 9};
    iv_run_summary s;
    case_log want;
    watch w;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("whole", 9), p = case_options("parts", 9);
    train(&o, &s);
    case_read_log(o.output, &want);
    p.resume = true; /* from the beginning too, where there is nothing yet */
    for (size_t i = 0; i < 4; i++) {
        p.trainer.data_parallel = worlds[i], p.trainer.tensor_parallel = tps[i], p.trainer.micro_batch = i;
        watch_run(&p, &w, until[i]);
        train(&p, &s);
        assert_int_equal(s.first_step, i ? until[i - 1] : 0);
        assert_int_equal(s.steps, until[i]);
        assert_int_equal(s.stopped, i < 3); /* the last step is the end in any case */
        char name[32];
        snprintf(name, sizeof name, "checkpoint-%06d", (int)until[i]);
        assert_true(exists(p.output, name));
    }
    case_same_log(p.output, &want);
    /* A run that has ended: nothing is left to do, and the hash is still known. */
    watch_run(&p, &w, 0);
    train(&p, &s);
    assert_true(w.steps == 0 && s.first_step == 9 && s.steps == 9);
    assert_string_equal(s.weights_hash, want.weights[8]);
    case_same_log(p.output, &want);
}

/* ---- checkpoints that do not serve --------------------------------------------------------------------- */

/* Changes one byte in the middle of the largest file below a checkpoint. */
static char largest[4096];
static off_t largest_bytes;
static int find_largest(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)at;
    if (type == FTW_F && st->st_size > largest_bytes)
        snprintf(largest, sizeof largest, "%s", path), largest_bytes = st->st_size;
    return 0;
}
static void damage(const char *folder) {
    char byte;
    largest_bytes = 0;
    assert_int_equal(nftw(folder, find_largest, 16, FTW_PHYS), 0);
    assert_true(largest_bytes > 0);
    int fd = open(largest, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, largest_bytes / 2), 1);
    byte ^= 16;
    assert_int_equal(pwrite(fd, &byte, 1, largest_bytes / 2), 1);
    close(fd);
}

static void a_damaged_checkpoint_is_passed_over(void **state) {
    (void)state;
    rng r = rng_start("a_damaged_checkpoint_is_passed_over");
    iv_run_summary s;
    iv_error err;
    case_log want;
    watch w;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("sound", 6), p = case_options("damaged", 6);
    train(&o, &s);
    case_read_log(o.output, &want);
    p.save_every = 1, p.keep = 3;
    watch_run(&p, &w, 4);
    train(&p, &s);
    damage(case_path("damaged/checkpoint-000004"));
    char *text = NULL, *notes = NULL;
    size_t bytes;
    assert_int_equal(iv_run_inspect(case_path("damaged/checkpoint-000004"), true, &text, &err), IV_FORMAT);
    assert_non_null(strstr(err.message, "SHA-256"));
    p.resume = true, p.quiet = false;
    p.progress = open_memstream(&notes, &bytes);
    watch_run(&p, &w, 0);
    train(&p, &s);
    fclose(p.progress);
    assert_int_equal(s.first_step, 3);
    if (!strstr(notes, "checkpoint-000004 cannot be used") ||
        !strstr(notes, "checkpoint-000003 is the last good checkpoint"))
        fail_msg("notes: %s", notes);
    free(notes);
    case_same_log(p.output, &want);
    /* All of them: an error, and no run from the beginning over the remains. */
    for (size_t i = 4; i <= 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "damaged/checkpoint-%06zu", i);
        damage(case_path(name));
    }
    p.progress = NULL, p.quiet = true;
    expect_failure(&p, IV_FORMAT, "SHA-256");
}

static void another_run_is_refused(void **state) {
    (void)state;
    rng r = rng_start("another_run_is_refused");
    iv_run_summary s;
    watch w;
    char model[4096];
    case_write_data("data.jsonl", &r);
    case_write_data("other.jsonl", &r);
    iv_run_options o = case_options("one", 4);
    watch_run(&o, &w, 2);
    train(&o, &s);
    o.resume = true, o.step = NULL, o.stop = NULL;
    iv_run_options x = o;
    x.learning_rate = 2e-3;
    expect_failure(&x, IV_INVALID, "learning_rate");
    x = o, x.seed = 4;
    expect_failure(&x, IV_INVALID, "seed");
    x = o, x.steps = 5;
    expect_failure(&x, IV_INVALID, "steps");
    x = o, x.trainer.virtual_ranks = 4;
    expect_failure(&x, IV_INVALID, "virtual_ranks");
    x = o, x.trainer.arithmetic = "tc16";
    expect_failure(&x, IV_INVALID, "arithmetic");
    x = o, x.trainer.dtype = "float32";
    expect_failure(&x, IV_INVALID, "dtype");
    x = o, x.numerics = "vanilla";
    expect_failure(&x, IV_INVALID, "numerics");
    x = o, x.data = case_path("other.jsonl");
    expect_failure(&x, IV_INVALID, "belongs to another run");
    x = o, x.trainer.model = model;
    snprintf(model, sizeof model, "%s/tests/data/hf/llama31", INVAR_SOURCE_DIR);
    expect_failure(&x, IV_INVALID, "belongs to another run");
    train(&o, &s); /* none of these has touched it */
    assert_true(s.first_step == 2 && s.steps == 4);
}

/* ---- what is refused at the start ---------------------------------------------------------------------- */

static void outputs_are_checked(void **state) {
    (void)state;
    rng r = rng_start("outputs_are_checked");
    iv_run_summary s;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("taken", 1);
    train(&o, &s);
    expect_failure(&o, IV_INVALID, "has a run already: wanted --resume, or another directory");
    o.output = case_path("data.jsonl");
    expect_failure(&o, IV_IO, "data.jsonl");
    o.output = case_path("data.jsonl/run");
    expect_failure(&o, IV_IO, "data.jsonl/run: cannot make the directory: Not a directory");
    char longest[5000];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    o.output = longest;
    expect_failure(&o, IV_INVALID, "the path is too long");
}

static void options_are_checked(void **state) {
    (void)state;
    rng r = rng_start("options_are_checked");
    case_write_data("data.jsonl", &r);
    const iv_run_options good = case_options(NULL, 1);
#define REFUSED(status, words, ...)        \
    do {                                   \
        iv_run_options o = good;           \
        __VA_ARGS__;                       \
        expect_failure(&o, status, words); \
    } while (0)
    REFUSED(IV_INVALID, "dtype: wanted auto, bfloat16, float16 or float32, found 'int8'", o.trainer.dtype = "int8");
    REFUSED(IV_INVALID, "arithmetic: wanted auto, fma32 or tc16, found 'x'", o.trainer.arithmetic = "x");
    REFUSED(IV_INVALID, "recompute: wanted none, attention or layer, found 'all'", o.trainer.recompute = "all");
    REFUSED(IV_INVALID, "isa: wanted auto, scalar, avx2 or avx512, found 'sse'", o.trainer.isa = "sse");
    REFUSED(IV_INVALID, "longer examples: wanted error, truncate or drop, found ''", o.longer = "");
    REFUSED(IV_UNSUPPORTED, "found vanilla-blas", o.numerics = "vanilla-blas");
    REFUSED(IV_INVALID, "device: wanted auto, cpu or cuda, found 'gpu'", o.trainer.device = "gpu");
    REFUSED(IV_UNSUPPORTED, "wanted invar for training on device cuda, found bio", o.trainer.device = "cuda",
            o.numerics = "bio");
    REFUSED(IV_UNSUPPORTED, "shard parameters: wanted 1 tensor-parallel rank on device cpu, found 2",
            o.trainer.tensor_parallel = 2, o.shard = "parameters");
    REFUSED(IV_INVALID, "batch size: wanted 1 at least, found 0", o.batch_size = 0);
    REFUSED(IV_UNSUPPORTED, "3", o.trainer.data_parallel = 3);
    REFUSED(IV_UNSUPPORTED, "8 tensor-parallel ranks", o.trainer.tensor_parallel = 8);
    REFUSED(IV_INVALID, "tokens of a pass: wanted", o.trainer.pass_tokens = 1);
    REFUSED(IV_INVALID, "'sometimes'", o.schedule = "sometimes");
    REFUSED(IV_NOT_FOUND, "absent.jsonl", o.data = case_path("absent.jsonl"));
    REFUSED(IV_NOT_FOUND, "absent", o.trainer.model = case_path("absent"));
#undef REFUSED
    FILE *file = fopen(case_path("bad.jsonl"), "w");
    fputs("{\"ids\": [1, 2]}\n{\"ids\": [1, 600]}\n", file);
    fclose(file);
    iv_run_options o = good;
    o.data = case_path("bad.jsonl");
    expect_failure(&o, IV_FORMAT, "bad.jsonl:2: ids[1]: wanted a token id from 0 to 511, found 600");
}

/* ---- numbers that are not finite ----------------------------------------------------------------------- */

/* The first update makes weights so large that the second forward overflows: that step is refused by name, and the log
 * and the checkpoints end with the step before. */
static void a_gradient_that_is_not_finite(void **state) {
    (void)state;
    rng r = rng_start("a_gradient_that_is_not_finite");
    case_log log;
    watch w;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("overflow", 4);
    o.learning_rate = 1e30, o.save_every = 1, o.schedule = "constant";
    watch_run(&o, &w, 0);
    expect_failure(&o, IV_NOT_FINITE, "wanted a finite number, found");
    assert_int_equal(w.steps, 1);
    case_read_log(o.output, &log);
    assert_int_equal(log.lines, 1);
    assert_int_equal(count_entries(o.output, "checkpoint-"), 1);
    assert_true(exists(o.output, "checkpoint-000001"));
    /* Resumed, it is refused again, at the same step, with the same words. */
    o.resume = true;
    expect_failure(&o, IV_NOT_FINITE, "wanted a finite number, found");
    assert_int_equal(w.steps, 1);
    assert_int_equal(count_entries(o.output, "checkpoint-"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_leaves_log_and_checkpoints),
        cmocka_unit_test(a_run_without_files),
        cmocka_unit_test(losses_fall),
        cmocka_unit_test(stopped_runs_resume_at_other_worlds),
        cmocka_unit_test(a_damaged_checkpoint_is_passed_over),
        cmocka_unit_test(another_run_is_refused),
        cmocka_unit_test(outputs_are_checked),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(a_gradient_that_is_not_finite),
    };
    return cmocka_run_group_tests(tests, case_open, case_close);
}
