/* The metrics page: well-formed Prometheus text in each dialect, correct values, consistent histograms. */
#include "support.h"
#include "serve/state/metrics.h"

#include <ctype.h>
#include <time.h>
#include <unistd.h>

static const iv_engine_info info = {.fingerprint = "iv1-x",
                                    .dtype = "bfloat16",
                                    .arithmetic = "fma32",
                                    .device = "cpu",
                                    .kv_tokens = 6400,
                                    .max_num_seqs = 16};

static iv_bridge_stats some_stats(void) {
    iv_bridge_stats s = {.engine = {.steps = 12,
                                    .tokens_computed = 300,
                                    .tokens_generated = 90,
                                    .prompt_tokens = 200,
                                    .cached_tokens = 50,
                                    .preemptions = 2,
                                    .running = 3,
                                    .waiting = 4,
                                    .kv_pages = 100,
                                    .kv_pages_free = 60,
                                    .kv_pages_cached = 15},
                         .queued = 1,
                         .fingerprint = "iv1-now",
                         .weight_version = 7,
                         .cancelled = 10};
    s.step_tokens[0] = 5, s.step_tokens[3] = 6, s.step_tokens[IV_STEP_BUCKETS - 1] = 1;
    return s;
}

static iv_metrics *open_metrics(iv_metrics_names names, const char *model) {
    iv_metrics *m = NULL;
    iv_error err;
    ASSERT_OK(iv_metrics_open(names, model, &m, &err), &err);
    return m;
}

static void note_some(iv_metrics *m) {
    iv_metrics_note_request(m, &(iv_metrics_request){.finish = IV_FINISH_STOP,
                                                     .prompt_tokens = 10,
                                                     .generated_tokens = 20,
                                                     .cached_tokens = 5,
                                                     .queued = 0.004,
                                                     .first = 0.1,
                                                     .total = 3,
                                                     .decode = 2.9});
    iv_metrics_note_longest(m, 9);
    iv_metrics_note_request(m, &(iv_metrics_request){.finish = IV_FINISH_CANCELLED, .prompt_tokens = 7, .first = -1});
    iv_metrics_note_request(m, &(iv_metrics_request){.finish = IV_FINISH_LENGTH,
                                                     .prompt_tokens = 2000000,
                                                     .generated_tokens = 1,
                                                     .queued = 1,
                                                     .first = 1.5,
                                                     .total = 9999});
    for (int i = 0; i < 4; i++) iv_metrics_note_gap(m, 0.002);
    iv_metrics_note_gap(m, -1);
    iv_metrics_note_refused(m);
}

/* ---- a small reader of the format ---------------------------------------------------------------------- */

static bool is_name(const char *s, size_t n) {
    if (n == 0 || isdigit((unsigned char)s[0])) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != ':') return false;
    return true;
}

/* The length of {name="value",...}, in which backslash escapes. */
static size_t labels_length(const char *s) {
    const char *c = s;
    assert_int_equal(*c++, '{');
    for (;;) {
        const char *equals = strchr(c, '=');
        assert_non_null(equals);
        assert_true(is_name(c, (size_t)(equals - c)));
        c = equals + 1;
        assert_int_equal(*c++, '"');
        while (*c != '"') {
            assert_true(*c && *c != '\n');
            c += *c == '\\' ? 2 : 1;
        }
        if (*++c == '}') return (size_t)(c + 1 - s);
        assert_int_equal(*c++, ',');
    }
}

/* Checks every line: a sample belongs to the family announced above it. Returns the number of families. */
static size_t check_page(const char *page) {
    char family[128] = "", type[32] = "";
    size_t families = 0;
    for (const char *line = page; *line; line = strchr(line, '\n') + 1) {
        assert_non_null(strchr(line, '\n'));
        if (strncmp(line, "# HELP ", 7) == 0) {
            assert_int_equal(sscanf(line + 7, "%127s", family), 1);
            char again[160];
            snprintf(again, sizeof again, "# HELP %s ", family);
            assert_null(strstr(strchr(line, '\n'), again)); /* announced once */
            families++;
            continue;
        }
        if (line[0] == '#') {
            char name[128];
            assert_int_equal(sscanf(line, "# TYPE %127s %31s", name, type), 2);
            assert_string_equal(name, family);
            continue;
        }
        size_t n = strcspn(line, "{ ");
        assert_true(is_name(line, n) && strncmp(line, family, strlen(family)) == 0);
        const char *suffix = line + strlen(family);
        if (strcmp(type, "histogram") != 0) assert_int_equal(n, strlen(family));
        if (strcmp(type, "histogram") == 0)
            assert_true(!strncmp(suffix, "_bucket{", 8) || !strncmp(suffix, "_sum{", 5) ||
                        !strncmp(suffix, "_count{", 7));
        const char *value = line + n + (line[n] == '{' ? labels_length(line + n) : 0);
        char *end;
        assert_int_equal(*value, ' ');
        strtod(value, &end);
        assert_true(end > value + 1 && *end == '\n');
    }
    return families;
}

static const char *page_of(const iv_metrics *m, iv_buf *buf) {
    iv_bridge_stats s = some_stats();
    iv_buf_clear(buf);
    assert_true(iv_metrics_write(m, &s, &info, buf));
    return buf->data;
}

/* The value behind "NAME{...}" whose labels contain `label`. */
static double value_of(const char *page, const char *name, const char *label) {
    char start[160];
    snprintf(start, sizeof start, "\n%s{", name);
    for (const char *at = page; (at = strstr(at, start)); at++) {
        const char *labels = at + strlen(start) - 1, *behind = labels + labels_length(labels),
                   *has = strstr(labels, label);
        if (has && has < behind) return strtod(behind, NULL);
    }
    fail_msg("no %s with %s", name, label);
    return 0;
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static void values_and_types(void **state) {
    (void)state;
    iv_metrics *m = open_metrics(IV_METRICS_OWN, "tiny");
    iv_buf buf = {0};
    note_some(m);
    const char *p = page_of(m, &buf);
    assert_true(check_page(p) > 20);
    assert_null(strstr(p, "vllm:"));
    assert_null(strstr(p, "sglang:"));
    assert_true(value_of(p, "invar_requests_running", "model_name=\"tiny\"") == 3);
    assert_true(value_of(p, "invar_requests_waiting", "") == 5);
    assert_true(value_of(p, "invar_kv_usage_ratio", "") == 0.25);
    assert_true(value_of(p, "invar_requests_total", "finish=\"cancelled\"") == 11);
    assert_true(value_of(p, "invar_requests_total", "finish=\"error\"") == 0);
    assert_true(value_of(p, "invar_requests_refused_total", "") == 1);
    assert_true(value_of(p, "invar_weight_version", "") == 7);
    assert_true(value_of(p, "invar_info", "fingerprint=\"iv1-now\"") == 1);
    iv_metrics_close(m);
    iv_metrics_close(NULL);
    iv_buf_free(&buf);
}

static void histograms_add_up(void **state) {
    (void)state;
    iv_metrics *m = open_metrics(IV_METRICS_OWN, "tiny");
    iv_buf buf = {0};
    note_some(m);
    const char *p = page_of(m, &buf);
    assert_true(value_of(p, "invar_request_seconds_bucket", "le=\"2.5\"") == 1);
    assert_true(value_of(p, "invar_request_seconds_bucket", "le=\"5\"") == 2);
    assert_true(value_of(p, "invar_request_seconds_bucket", "le=\"2560\"") == 2);
    assert_true(value_of(p, "invar_request_seconds_bucket", "le=\"+Inf\"") == 3);
    assert_true(value_of(p, "invar_request_seconds_count", "") == 3);
    assert_true(value_of(p, "invar_request_seconds_sum", "") == 10002);
    assert_true(value_of(p, "invar_time_to_first_token_seconds_count", "") == 2);            /* one had no token */
    assert_true(value_of(p, "invar_time_to_first_token_seconds_bucket", "le=\"0.1\"") == 1); /* bounds are inclusive */
    assert_true(value_of(p, "invar_inter_token_seconds_bucket", "le=\"0.0005\"") == 1);
    assert_true(value_of(p, "invar_inter_token_seconds_bucket", "le=\"0.0025\"") == 5);
    assert_true(value_of(p, "invar_request_prompt_tokens_bucket", "le=\"1000000\"") ==
                value_of(p, "invar_request_prompt_tokens_bucket", "le=\"10\""));
    assert_true(value_of(p, "invar_step_tokens_bucket", "le=\"1\"") == 5);
    assert_true(value_of(p, "invar_step_tokens_bucket", "le=\"4\"") == 5);
    assert_true(value_of(p, "invar_step_tokens_bucket", "le=\"8\"") == 11);
    assert_true(value_of(p, "invar_step_tokens_bucket", "le=\"32768\"") == 11);
    assert_true(value_of(p, "invar_step_tokens_count", "") == 12);
    assert_true(value_of(p, "invar_step_tokens_sum", "") == 300);
    iv_metrics_close(m);
    iv_buf_free(&buf);
}

static const char *const vllm_names[] = {"num_requests_running",
                                         "num_requests_waiting",
                                         "kv_cache_usage_perc",
                                         "prompt_tokens_total",
                                         "generation_tokens_total",
                                         "prefix_cache_queries_total",
                                         "prefix_cache_hits_total",
                                         "num_preemptions_total",
                                         "request_success_total",
                                         "time_to_first_token_seconds_bucket",
                                         "inter_token_latency_seconds_bucket",
                                         "e2e_request_latency_seconds_sum",
                                         "request_queue_time_seconds_count",
                                         "request_prefill_time_seconds_count",
                                         "request_decode_time_seconds_count",
                                         "request_inference_time_seconds_count",
                                         "request_prompt_tokens_bucket",
                                         "request_generation_tokens_bucket",
                                         "iteration_tokens_total_bucket",
                                         "cache_config_info"};

/* The names used by dashboards of the two. */
static void other_dialects(void **state) {
    (void)state;
    static const char *const sglang[] = {"num_running_reqs",
                                         "num_queue_reqs",
                                         "num_used_tokens",
                                         "token_usage",
                                         "gen_throughput",
                                         "cache_hit_rate",
                                         "max_total_num_tokens",
                                         "prompt_tokens_total",
                                         "generation_tokens_total",
                                         "cached_tokens_total",
                                         "num_requests_total",
                                         "num_aborted_requests_total",
                                         "time_to_first_token_seconds_bucket",
                                         "inter_token_latency_seconds_bucket",
                                         "e2e_request_latency_seconds_bucket"};
    iv_buf buf = {0};
    char name[100];
    iv_metrics *m = open_metrics(IV_METRICS_VLLM, "a \"b\"\\c\nd");
    note_some(m);
    const char *p = page_of(m, &buf);
    check_page(p);
    for (size_t i = 0; i < sizeof vllm_names / sizeof *vllm_names; i++) {
        snprintf(name, sizeof name, "vllm:%s", vllm_names[i]);
        value_of(p, name, "model_name=\"a \\\"b\\\"\\\\c\\nd\",engine=\"0\"");
    }
    assert_true(value_of(p, "vllm:request_success_total", "finished_reason=\"abort\"") == 11);
    assert_true(value_of(p, "vllm:prefix_cache_queries_total", "") == 200);
    assert_true(value_of(p, "vllm:request_max_num_generation_tokens_sum", "") == 9);
    assert_true(value_of(p, "vllm:request_max_num_generation_tokens_bucket", "le=\"5\"") == 0);
    assert_true(value_of(p, "vllm:prefix_cache_hits_total", "") == 50);
    assert_true(value_of(p, "invar_requests_running", "") == 3); /* ours are included */
    iv_metrics_close(m);
    m = open_metrics(IV_METRICS_SGLANG, "tiny");
    iv_bridge_stats s = some_stats();
    iv_metrics_note_time(m, &s, 100);
    assert_true(value_of(page_of(m, &buf), "sglang:gen_throughput", "") == 0);
    s.engine.tokens_generated += 50;
    iv_metrics_note_time(m, &s, 102);
    p = page_of(m, &buf);
    check_page(p);
    for (size_t i = 0; i < sizeof sglang / sizeof *sglang; i++) {
        snprintf(name, sizeof name, "sglang:%s", sglang[i]);
        value_of(p, name, "model_name=\"tiny\"");
    }
    assert_true(value_of(p, "sglang:gen_throughput", "") == 25);
    assert_true(value_of(p, "sglang:num_requests_total", "") == 10);
    assert_true(value_of(p, "sglang:num_used_tokens", "") == 1600);
    assert_true(value_of(p, "sglang:cache_hit_rate", "") == 0.25);
    iv_metrics_close(m);
    iv_buf_free(&buf);
}

/* A client's own methods and paths make no new lines. */
static void http_requests(void **state) {
    (void)state;
    iv_metrics *m = open_metrics(IV_METRICS_OWN, "tiny");
    iv_buf buf = {0};
    char made[16];
    assert_null(strstr(page_of(m, &buf), "invar_http_requests_total"));
    for (int i = 0; i < 3; i++) iv_metrics_note_http(m, "POST", "/generate", 200);
    iv_metrics_note_http(m, "POST", "/generate", 400);
    iv_metrics_note_http(m, "GET", "/generate", 405);
    for (int i = 0; i < 5000; i++) {
        snprintf(made, sizeof made, "M%d", i);
        iv_metrics_note_http(m, made, NULL, 404);
    }
    const char *p = page_of(m, &buf);
    check_page(p);
    const char *name = "invar_http_requests_total";
    assert_true(value_of(p, name, "method=\"POST\",route=\"/generate\",status=\"200\"") == 3);
    assert_true(value_of(p, name, "method=\"POST\",route=\"/generate\",status=\"400\"") == 1);
    assert_true(value_of(p, name, "method=\"GET\",route=\"/generate\",status=\"405\"") == 1);
    assert_true(value_of(p, name, "method=\"other\",route=\"other\",status=\"404\"") == 5000);
    for (int status = 600; status < 2000; status++) iv_metrics_note_http(m, "GET", "/", status); /* bounded */
    check_page(page_of(m, &buf));
    iv_metrics_close(m);
    iv_buf_free(&buf);
}

static double plain_value(const char *page, const char *name) {
    char start[80];
    snprintf(start, sizeof start, "\n%s ", name);
    const char *at = strstr(page, start);
    if (!at) fail_msg("no %s", name);
    return strtod(at + strlen(start), NULL);
}

/* This process, and itself again in the place of an engine's. */
static void processes(void **state) {
    (void)state;
    iv_metrics *m = open_metrics(IV_METRICS_OWN, "tiny");
    iv_buf buf = {0};
    iv_bridge_stats s = some_stats();
    assert_true(iv_metrics_write(m, &s, &info, &buf));
    check_page(buf.data);
    assert_null(strstr(buf.data, "invar_engine_cpu_seconds_total"));
    double before = plain_value(buf.data, "process_cpu_seconds_total"),
           files = plain_value(buf.data, "process_open_fds"),
           bytes = plain_value(buf.data, "process_resident_memory_bytes");
    assert_true(files >= 3 && files < plain_value(buf.data, "process_max_fds"));
    assert_true(bytes > 100e3 && bytes <= plain_value(buf.data, "process_virtual_memory_bytes"));
    double age = (double)time(NULL) - plain_value(buf.data, "process_start_time_seconds");
    assert_true(age > -3 && age < 600);
    enum { MORE = 40, HELD = 64 << 20 };
    int held[MORE];
    char *memory = malloc(HELD);
    assert_non_null(memory);
    for (int i = 0; i < MORE; i++) assert_true((held[i] = dup(0)) >= 0);
    memset(memory, 1, HELD);
    while (clock() < (clock_t)((before + 0.1) * CLOCKS_PER_SEC)) memset(memory, (int)clock(), HELD);
    s.engine_pid = getpid();
    iv_buf_clear(&buf);
    assert_true(iv_metrics_write(m, &s, &info, &buf));
    check_page(buf.data);
    assert_true(plain_value(buf.data, "process_open_fds") == files + MORE);
    assert_true(plain_value(buf.data, "process_cpu_seconds_total") >= before + 0.05);
    assert_true(plain_value(buf.data, "process_resident_memory_bytes") > bytes + HELD / 2.0);
    assert_true(plain_value(buf.data, "invar_engine_resident_memory_bytes") > bytes + HELD / 2.0);
    assert_true(plain_value(buf.data, "invar_engine_open_fds") == files + MORE);
    for (int i = 0; i < MORE; i++) close(held[i]);
    free(memory);
    s.engine_pid = 0x3fffffff; /* gone meanwhile */
    iv_buf_clear(&buf);
    assert_true(iv_metrics_write(m, &s, &info, &buf));
    assert_true(plain_value(buf.data, "invar_engine_resident_memory_bytes") == 0);
    iv_metrics_close(m);
    iv_buf_free(&buf);
}

/* Reports a page that does not fit. */
static void a_full_buffer(void **state) {
    (void)state;
    iv_metrics *m = open_metrics(IV_METRICS_OWN, "tiny");
    iv_bridge_stats s = some_stats();
    iv_buf buf = {.limit = 1000};
    assert_false(iv_metrics_write(m, &s, &info, &buf));
    iv_metrics_close(m);
    iv_buf_free(&buf);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(http_requests),    cmocka_unit_test(processes),
                                       cmocka_unit_test(values_and_types), cmocka_unit_test(histograms_add_up),
                                       cmocka_unit_test(other_dialects),   cmocka_unit_test(a_full_buffer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
