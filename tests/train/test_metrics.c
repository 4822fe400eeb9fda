/* Metrics: the log and its cutting back, the progress line, TensorBoard's files. INVAR_TEST_RECORD=DIR keeps the log
 * and the event files of one run in DIR, for events.py. */
#include "format/scratch.h"
#include "random.h"
#include "base/file.h"
#include "format/json.h"
#include "train/metrics/metrics.h"
#include "train/metrics/events.h"
#include "train/metrics/progress.h"

#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <signal.h>

/* ---- one step ---- */

static void assert_line(const iv_train_metrics *m, const char *wanted) {
    iv_buf line = {0};
    assert_true(iv_train_metrics_line(m, &line));
    assert_string_equal(line.data, wanted);
    iv_buf_free(&line);
}

static void writes_lines(void **state) {
    (void)state;
    iv_train_metrics m;
    double v = 3;
    iv_train_metrics_begin(&m, 12);
    assert_line(&m, "{\"step\":12}\n");
    iv_train_metrics_set(&m, "loss", 1.0 / 3);
    iv_train_metrics_set(&m, "kl", 0);
    iv_train_metrics_set(&m, "worst", NAN);
    iv_train_metrics_set(&m, "largest", -HUGE_VAL);
    iv_train_metrics_set_text(&m, "weights", "ab\"c");
    iv_train_metrics_set(&m, "kl", -0.5);
    assert_line(&m, "{\"step\":12,\"loss\":0.3333333333333333,\"kl\":-0.5,\"worst\":null,\"largest\":null,"
                    "\"weights\":\"ab\\\"c\"}\n");
    assert_true(iv_train_metrics_get(&m, "kl", &v) && v == -0.5);
    assert_false(iv_train_metrics_get(&m, "weights", &v) || iv_train_metrics_get(&m, "nothing", &v));
    assert_true(v == -0.5);
    iv_train_metrics_set(&m, "weights", 2);
    assert_true(iv_train_metrics_get(&m, "weights", &v) && v == 2);
    rng r = rng_start("metrics");
    for (size_t t = trials(300, 100000); t-- > 0;) {
        uint64_t bits = rng_next(&r);
        iv_buf line = {0};
        json_t *root;
        iv_error err;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        iv_train_metrics_begin(&m, UINT32_MAX);
        iv_train_metrics_set(&m, "x", v);
        assert_true(iv_train_metrics_line(&m, &line));
        ASSERT_OK(iv_json_parse("line", line.data, line.len, &root, &err), &err);
        assert_true(json_number_value(json_object_get(root, "x")) == v);
        json_decref(root);
        iv_buf_free(&line);
    }
}

/* ---- the log ---- */

static void add_step(iv_train_log *log, uint64_t step, double loss) {
    iv_train_metrics m;
    iv_error err;
    iv_train_metrics_begin(&m, step);
    iv_train_metrics_set(&m, "loss", loss);
    ASSERT_OK(iv_train_log_add(log, &m, &err), &err);
}

static void assert_file(const char *path, const char *wanted) {
    iv_buf file = {0};
    iv_error err;
    ASSERT_OK(iv_file_read(path, 1 << 20, &file, &err), &err);
    assert_string_equal(file.len ? file.data : "", wanted);
    iv_buf_free(&file);
}

static void appends_and_resumes(void **state) {
    (void)state;
    scratch s;
    char path[1024];
    iv_train_log *log;
    iv_error err;
    scratch_open(&s);
    snprintf(path, sizeof path, "%s", scratch_path(&s, "metrics.jsonl"));
    ASSERT_OK(iv_train_log_open(path, 1, &log, &err), &err);
    for (uint64_t step = 1; step <= 4; step++) {
        add_step(log, step, 0.5 * (double)step);
        if (step == 1) assert_file(path, "{\"step\":1,\"loss\":0.5}\n"); /* written at once */
    }
    ASSERT_OK(iv_train_log_close(log, &err), &err);
    ASSERT_OK(iv_train_log_open(path, 3, &log, &err), &err);
    assert_file(path, "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":1}\n");
    add_step(log, 3, 7);
    ASSERT_OK(iv_train_log_close(log, &err), &err);
    FILE *f = fopen(path, "a");
    fputs("{\"step\":4,\"lo", f);
    fclose(f);
    ASSERT_OK(iv_train_log_open(path, 9, &log, &err), &err);
    add_step(log, 9, 1);
    ASSERT_OK(iv_train_log_close(log, &err), &err);
    assert_file(
        path, "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":1}\n{\"step\":3,\"loss\":7}\n{\"step\":9,\"loss\":1}\n");
    ASSERT_OK(iv_train_log_open(path, 1, &log, &err), &err);
    assert_file(path, "");
    ASSERT_OK(iv_train_log_close(log, &err), &err);
    assert_int_equal(scratch_count(&s), 1); /* no temporary file */
    ASSERT_OK(iv_train_log_close(NULL, &err), &err);
    scratch_close(&s);
}

static void refuses_other_files(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"{\"step\":1}\nhello\n", "metrics.jsonl:2:"},
                                         {"{\"loss\":1}\n", "metrics.jsonl:1: step: wanted an integer"},
                                         {"{\"step\":1.5}\n", "found 1.5"},
                                         {"{\"step\":-1}\n", "found -1"},
                                         {"\n", "metrics.jsonl:1:"},
                                         {"[]\n", "found nothing"}};
    scratch s;
    char path[1024];
    iv_train_log *log;
    iv_error err;
    scratch_open(&s);
    snprintf(path, sizeof path, "%s", scratch_path(&s, "metrics.jsonl"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        scratch_write(&s, "metrics.jsonl", bad[i][0], strlen(bad[i][0]));
        expect_error(bad[i][0], iv_train_log_open(path, 1, &log, &err), &err, IV_FORMAT, bad[i][1]);
        assert_file(path, bad[i][0]);
    }
    expect_error("no folder", iv_train_log_open(scratch_path(&s, "no/log"), 1, &log, &err), &err, IV_IO,
                 "cannot write");
    ASSERT_OK(iv_train_log_open("/dev/null", 1, &log, &err), &err);
    add_step(log, 1, 1);
    ASSERT_OK(iv_train_log_close(log, &err), &err);
    scratch_close(&s);
}

/* A file that can grow no more stands for a full disk. */
static void a_full_disk_leaves_whole_lines(void **state) {
    (void)state;
    scratch s;
    iv_train_log *log;
    iv_train_metrics m;
    iv_error err;
    struct rlimit old, small;
    scratch_open(&s);
    ASSERT_OK(iv_train_log_open(scratch_path(&s, "metrics.jsonl"), 1, &log, &err), &err);
    add_step(log, 1, 0.5);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old, small.rlim_cur = 30;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    iv_train_metrics_begin(&m, 2);
    iv_train_metrics_set(&m, "loss", 1);
    iv_status status = iv_train_log_add(log, &m, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, IV_IO);
    assert_non_null(strstr(err.message, "write failed"));
    assert_file(scratch_path(&s, "metrics.jsonl"), "{\"step\":1,\"loss\":0.5}\n");
    add_step(log, 2, 1);
    ASSERT_OK(iv_train_log_close(log, &err), &err);
    assert_file(scratch_path(&s, "metrics.jsonl"), "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":1}\n");
    scratch_close(&s);
}

/* ---- progress ---- */

static void assert_progress(const iv_train_metrics *m, double left, const char *wanted) {
    iv_buf line = {0};
    assert_true(iv_train_progress_line(m, 300, left, &line));
    assert_string_equal(line.data, wanted);
    iv_buf_free(&line);
}

static void shows_progress(void **state) {
    (void)state;
    iv_train_metrics m;
    iv_train_metrics_begin(&m, 12);
    assert_progress(&m, -1, "step 12/300");
    iv_train_metrics_set(&m, "loss", 1.23456);
    iv_train_metrics_set(&m, "tokens_per_second", 987.4);
    assert_progress(&m, 5, "step 12/300  loss 1.235  987 tokens/s  0:05 left");
    iv_train_metrics_set(&m, "reward", 0.5);
    iv_train_metrics_set(&m, "kl", 0);
    iv_train_metrics_set(&m, "tokens_per_second", 12345);
    assert_progress(&m, 125.6, "step 12/300  reward 0.5  kl 0  12.3k tokens/s  2:06 left");
    iv_train_metrics_set(&m, "tokens_per_second", 2.5e6);
    assert_progress(&m, 3725, "step 12/300  reward 0.5  kl 0  2.50M tokens/s  1:02:05 left");
    iv_train_metrics_set(&m, "tokens_per_second", NAN);
    assert_progress(&m, HUGE_VAL, "step 12/300  reward 0.5  kl 0");
}

/* What a run of ten steps, two seconds each, writes. */
static void run_progress(bool terminal, size_t columns, char *out, size_t n) {
    FILE *f = fmemopen(out, n, "w");
    FILE *file = tmpfile();
    iv_train_progress p;
    iv_train_metrics m;
    assert_non_null(f);
    iv_train_progress_begin(&p, file, 10, 100);
    assert_false(p.terminal);
    p.out = f, p.terminal = terminal, p.columns = columns;
    for (uint64_t step = 1; step <= 10; step++) {
        iv_train_metrics_begin(&m, step);
        iv_train_metrics_set(&m, "loss", 0.25);
        iv_train_progress_step(&p, &m, 100 + 2 * (double)step);
    }
    iv_train_progress_break(&p);
    iv_train_progress_break(&p);
    fclose(f), fclose(file);
}

static void assert_begins(const char *text, const char *start) {
    if (strncmp(text, start, strlen(start)) != 0) fail_msg("wanted '%s' at the beginning of '%s'", start, text);
}

static void progress_suits_its_output(void **state) {
    (void)state;
    char out[2000] = {0};
    run_progress(false, 0, out, sizeof out);
    assert_string_equal(out, "step 1/10  loss 0.25  0:18 left\nstep 4/10  loss 0.25  0:12 left\n"
                             "step 7/10  loss 0.25  0:06 left\nstep 10/10  loss 0.25  0:00 left\n");
    memset(out, 0, sizeof out);
    run_progress(true, 80, out, sizeof out);
    assert_begins(out, "\rstep 1/10  loss 0.25  0:18 left\033[K\rstep 2/10");
    assert_non_null(strstr(out, "\rstep 10/10  loss 0.25  0:00 left\033[K\n"));
    assert_null(strchr(strchr(out, '\n') + 1, '\n'));
    memset(out, 0, sizeof out);
    run_progress(true, 10, out, sizeof out);
    assert_begins(out, "\rstep 1/10\033[K\r");
    iv_train_progress p;
    iv_train_metrics m;
    iv_train_metrics_begin(&m, 1);
    iv_train_progress_begin(&p, NULL, 10, 0);
    iv_train_progress_step(&p, &m, 1);
    iv_train_progress_break(&p);
}

/* ---- event files ---- */

static void checks_sums(void **state) {
    (void)state;
    uint8_t zeros[32] = {0};
    assert_int_equal(iv_train_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(iv_train_crc32c(zeros, 32), 0x8a9136aau);
    assert_int_equal(iv_train_crc32c("", 0), 0);
}

static uint64_t little(const char *p, int n) {
    uint64_t v = 0;
    for (int i = n; i-- > 0;) v = v << 8 | (uint8_t)p[i];
    return v;
}

static uint32_t unmasked(uint32_t v) { return (v - 0xa282ead8u) << 15 | (v - 0xa282ead8u) >> 17; }

/* The only file in the folder whose name has the part. */
static void find_file(const scratch *s, const char *part, iv_buf *out) {
    DIR *d = opendir(s->dir);
    iv_error err;
    int found = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, part)) {
            ASSERT_OK(iv_file_read(scratch_path(s, e->d_name), 1 << 20, out, &err), &err);
            found++;
        }
    closedir(d);
    assert_int_equal(found, 1);
}

static void writes_event_files(void **state) {
    (void)state;
    scratch s;
    iv_train_events *e;
    iv_train_metrics m;
    iv_error err;
    iv_buf file = {0};
    scratch_open(&s);
    ASSERT_OK(iv_train_events_open(s.dir, 300, 1700000000.5, &e, &err), &err);
    iv_train_metrics_begin(&m, 300);
    iv_train_metrics_set(&m, "loss", 1.5);
    iv_train_metrics_set_text(&m, "weights", "abc");
    ASSERT_OK(iv_train_events_add(e, &m, 1700000001, &err), &err);
    ASSERT_OK(iv_train_events_close(e, &err), &err);
    find_file(&s, "events.out.tfevents.1700000000.", &file);
    static const char want[][40] = {
        "\x09\0\0\x20\x40\xfc\x54\xd9\x41\x10\0\x1a\015brain.Event:2",
        "\x09\0\0\x20\x40\xfc\x54\xd9\x41\x10\xac\x02\x3a\x02\x08\x01",
        "\x09\0\0\x40\x40\xfc\x54\xd9\x41\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\xc0\x3f"};
    static const size_t bytes[] = {26, 16, 27};
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        assert_true(at + 16 + bytes[i] <= file.len);
        assert_int_equal(little(file.data + at, 8), bytes[i]);
        assert_int_equal(unmasked((uint32_t)little(file.data + at + 8, 4)), iv_train_crc32c(file.data + at, 8));
        assert_memory_equal(file.data + at + 12, want[i], bytes[i]);
        assert_int_equal(unmasked((uint32_t)little(file.data + at + 12 + bytes[i], 4)),
                         iv_train_crc32c(file.data + at + 12, bytes[i]));
        at += 16 + bytes[i];
    }
    assert_int_equal(at, file.len);
    iv_buf_free(&file);
    /* Two files of one second have two names. */
    ASSERT_OK(iv_train_events_open(s.dir, 1, 1700000000.5, &e, &err), &err);
    ASSERT_OK(iv_train_events_close(e, &err), &err);
    assert_int_equal(scratch_count(&s), 2);
    expect_error("no folder", iv_train_events_open(scratch_path(&s, "no"), 1, 0, &e, &err), &err, IV_IO,
                 "cannot write");
    ASSERT_OK(iv_train_events_close(NULL, &err), &err);
    scratch_close(&s);
}

/* ---- a recorded run, for events.py ---- */

static void record_part(const char *dir, uint64_t from, uint64_t to) {
    iv_train_events *e;
    iv_train_log *log;
    iv_train_metrics m;
    iv_error err;
    char path[1024];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    ASSERT_OK(iv_train_events_open(dir, from, 1700000000.0 + (double)from, &e, &err), &err);
    ASSERT_OK(iv_train_log_open(path, from, &log, &err), &err);
    for (uint64_t step = from; step <= to; step++) {
        double x = (double)step;
        iv_train_metrics_begin(&m, step);
        iv_train_metrics_set(&m, "loss", 2 / sqrt(x) + 0.05 * sin(x));
        iv_train_metrics_set(&m, "reward", 1 - exp(-x / 60) + 0.04 * cos(3 * x));
        iv_train_metrics_set(&m, "kl", 0);
        iv_train_metrics_set(&m, "learning_rate", x < 20 ? x * 5e-6 : 1e-4);
        iv_train_metrics_set(&m, "grad_norm", step % 50 == 0 ? NAN : 1 + 1 / x);
        iv_train_metrics_set(&m, "tokens_per_second", 8000 + 300 * sin(x / 9));
        iv_train_metrics_set_text(&m, "weights", "5f0c");
        ASSERT_OK(iv_train_log_add(log, &m, &err), &err);
        ASSERT_OK(iv_train_events_add(e, &m, 1700000000.0 + x, &err), &err);
    }
    ASSERT_OK(iv_train_log_close(log, &err), &err);
    ASSERT_OK(iv_train_events_close(e, &err), &err);
}

static void records_a_run(void **state) {
    (void)state;
    scratch s;
    const char *dir = getenv("INVAR_TEST_RECORD");
    iv_buf file = {0};
    iv_error err;
    scratch_open(&s);
    record_part(dir ? dir : s.dir, 1, 130);
    record_part(dir ? dir : s.dir, 101, 200); /* resumed from step 100's checkpoint */
    char path[1024];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir ? dir : s.dir);
    ASSERT_OK(iv_file_read(path, 1 << 20, &file, &err), &err);
    size_t lines = 0;
    for (size_t i = 0; i < file.len; i++) lines += file.data[i] == '\n';
    assert_int_equal(lines, 200);
    iv_buf_free(&file);
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_lines),        cmocka_unit_test(appends_and_resumes),
        cmocka_unit_test(refuses_other_files), cmocka_unit_test(a_full_disk_leaves_whole_lines),
        cmocka_unit_test(shows_progress),      cmocka_unit_test(progress_suits_its_output),
        cmocka_unit_test(checks_sums),         cmocka_unit_test(writes_event_files),
        cmocka_unit_test(records_a_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
