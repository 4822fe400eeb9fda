/* Curves: well-formed pictures of any log, and the errors of files that are none. INVAR_TEST_RECORD=DIR draws
 * DIR/metrics.jsonl, which test_metrics.c writes. */
#include "apps/xml.h"
#include "format/scratch.h"
#include "base/file.h"
#include "train/metrics/curves.h"

static size_t occurrences(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

/* Draws the log; the files' texts, owned by the caller. */
static void draw(const char *log, const char *title, iv_buf *html, iv_buf *svg) {
    scratch s;
    iv_error err;
    char paths[3][1024];
    static const char *const names[] = {"metrics.jsonl", "curves.html", "curves.svg"};
    scratch_open(&s);
    for (int i = 0; i < 3; i++) snprintf(paths[i], sizeof paths[i], "%s", scratch_path(&s, names[i]));
    scratch_write(&s, names[0], log, strlen(log));
    ASSERT_OK(iv_train_curves_write(paths[0], title, paths[1], paths[2], &err), &err);
    ASSERT_OK(iv_file_read(paths[1], 1 << 24, html, &err), &err);
    ASSERT_OK(iv_file_read(paths[2], 1 << 24, svg, &err), &err);
    const char *at = xml_broken_at(svg->data);
    if (at) fail_msg("not well-formed at: %.60s", at);
    assert_int_equal(scratch_count(&s), 3);
    scratch_close(&s);
}

static void draws_every_metric(void **state) {
    (void)state;
    iv_buf html = {0}, svg = {0};
    draw("{\"step\":1,\"loss\":2.5,\"kl\":0,\"w\":\"a<b\"}\n{\"step\":2,\"loss\":null,\"kl\":0,\"w\":\"c&d\"}\n"
         "{\"step\":3,\"loss\":0.001,\"kl\":0,\"late\":-7}\n{\"step\":4,\"loss\":0.01,\"kl\":0}\n{\"step\":5,\"lo",
         "run <1>", &html, &svg);
    assert_non_null(strstr(svg.data, "run &lt;1&gt;"));
    assert_non_null(strstr(svg.data, "steps 1 to 4, 3 metrics, 1 of them constant"));
    assert_non_null(strstr(svg.data, "<title>step 1: 2.5</title>"));
    assert_non_null(strstr(svg.data, "last 0.01, 1 not finite"));
    assert_int_equal(occurrences(svg.data, "<circle"), 3 + 1);
    assert_int_equal(occurrences(svg.data, "<polyline"), 1); /* loss after its gap */
    assert_int_equal(occurrences(svg.data, ">step</text>"), 2);
    assert_null(strstr(svg.data, "nan"));
    assert_non_null(strstr(html.data, "<title>run &lt;1&gt;</title>"));
    assert_non_null(strstr(html.data, "<dt>w</dt><dd>c&amp;d</dd>"));
    assert_non_null(strstr(svg.data, ">kl</text>")); /* listed, not drawn */
    assert_non_null(strstr(svg.data, ">0 in every step</text>"));
    assert_non_null(strstr(html.data, "<dt>kl</dt><dd>0 in every step</dd>"));
    assert_int_equal(occurrences(html.data, "<svg"), 2); /* a picture for each chart, as wide as a phone */
    assert_int_equal(occurrences(html.data, "viewBox=\"0 0 360 250\""), 2);
    assert_null(strstr(html.data, "<script"));
    iv_buf_free(&html), iv_buf_free(&svg);
}

static void evaluations_stand_next_to_their_metric(void **state) {
    (void)state;
    iv_buf html = {0}, svg = {0};
    draw("{\"step\":1,\"loss\":2,\"kl\":0,\"eval_x\":1}\n{\"step\":2,\"loss\":1,\"kl\":1,\"eval_loss\":1.5}\n", "t",
         &html, &svg);
    const char *loss = strstr(svg.data, ">loss<"), *held = strstr(svg.data, ">eval_loss<"),
               *kl = strstr(svg.data, ">kl<"), *x = strstr(svg.data, ">eval_x<");
    assert_true(loss && loss < held && held < kl && kl < x);
    iv_buf_free(&html), iv_buf_free(&svg);
}

static void draws_extremes(void **state) {
    (void)state;
    static const char *const logs[] = {
        "{\"step\":7}\n",
        "{\"step\":7,\"a\":null}\n",
        "{\"step\":7,\"a\":-3,\"<&\\\"\":1}\n",
        "{\"step\":1,\"a\":1e308}\n{\"step\":2,\"a\":-1e308}\n",
        "{\"step\":1,\"a\":1e-320}\n{\"step\":9000000000000000000,\"a\":1e308}\n",
        "{\"step\":5,\"a\":1}\n{\"step\":5,\"a\":1}\n{\"step\":3,\"a\":true,\"b\":[1]}\n",
    };
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        iv_buf html = {0}, svg = {0};
        draw(logs[i], "t", &html, &svg);
        assert_null(strstr(svg.data, "nan"));
        assert_null(strstr(svg.data, "inf\""));
        iv_buf_free(&html), iv_buf_free(&svg);
    }
}

static void joins_many_steps(void **state) {
    (void)state;
    iv_buf log = {0}, html = {0}, svg = {0};
    for (int i = 1; i <= 1600; i++) iv_buf_printf(&log, "{\"step\":%d,\"a\":%d}\n", i, i % 10);
    draw(log.data, "t", &html, &svg);
    assert_int_equal(occurrences(svg.data, "<circle"), IV_TRAIN_CURVES_POINTS);
    assert_non_null(strstr(svg.data, "<title>steps 1 to 10: mean 4.5, from 0 to 9</title>"));
    iv_buf_free(&log), iv_buf_free(&html), iv_buf_free(&svg);
}

static void refuses_other_files(void **state) {
    (void)state;
    scratch s;
    iv_error err;
    iv_buf log = {0};
    scratch_open(&s);
    static const char *const bad[][2] = {{"", "found an empty log"},
                                         {"{\"step\":1", "found an empty log"},
                                         {"{\"step\":1}\n{\"a\":1}\n", "log:2: step: wanted an integer"}};
    char path[1024];
    snprintf(path, sizeof path, "%s", scratch_path(&s, "log"));
    for (size_t i = 0; i < 3; i++) {
        scratch_write(&s, "log", bad[i][0], strlen(bad[i][0]));
        expect_error(bad[i][0], iv_train_curves_write(path, "t", NULL, NULL, &err), &err, IV_FORMAT, bad[i][1]);
    }
    iv_buf_puts(&log, "{\"step\":1");
    for (int i = 0; i <= IV_TRAIN_CURVES_METRICS_MAX; i++) iv_buf_printf(&log, ",\"m%d\":1", i);
    iv_buf_puts(&log, "}\n");
    scratch_write(&s, "log", log.data, log.len);
    expect_error("many", iv_train_curves_write(path, "t", NULL, NULL, &err), &err, IV_LIMIT, "at most 256 metrics");
    expect_error("none", iv_train_curves_write(scratch_path(&s, "no"), "t", NULL, NULL, &err), &err, IV_NOT_FOUND,
                 "no");
    iv_buf_free(&log);
    scratch_close(&s);
}

static void draws_the_recorded_run(void **state) {
    (void)state;
    const char *dir = getenv("INVAR_TEST_RECORD");
    char paths[3][1024];
    iv_error err;
    if (!dir) return;
    snprintf(paths[0], sizeof paths[0], "%s/metrics.jsonl", dir);
    snprintf(paths[1], sizeof paths[1], "%s/curves.html", dir);
    snprintf(paths[2], sizeof paths[2], "%s/curves.svg", dir);
    ASSERT_OK(iv_train_curves_write(paths[0], "tiny-math, GRPO", paths[1], paths[2], &err), &err);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_every_metric),  cmocka_unit_test(evaluations_stand_next_to_their_metric),
        cmocka_unit_test(draws_extremes),      cmocka_unit_test(joins_many_steps),
        cmocka_unit_test(refuses_other_files), cmocka_unit_test(draws_the_recorded_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
