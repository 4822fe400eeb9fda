/* invar eval: valid and invalid datasets and --configs; metrics against hand-computed values; the command: interrupting
 * and resuming gives the same files, and the comparison can find differences. */
#include "program.h"
#include "xml.h"

#include "eval.h"

#include <math.h>
#include <sys/file.h>

#define PROBLEMS INVAR_SOURCE_DIR "/models/tiny-math/problems.jsonl"

/* ---- datasets ------------------------------------------------------------------------------------------ */

static void reads_datasets(void **state) {
    (void)state;
    static const char text[] =
        "{\"question\": \"a\", \"answer\": 27.0, \"id\": 5}\n\n"
        "{\"problem\": \"b\", \"question\": null, \"answer\": \"x\\n#### 1,000\", \"more\": []}\n"
        "{\"prompt\": \"c\", \"id\": \"C\", \"answer\": null}";
    cli_dataset d;
    iv_error err;
    write_file("d.jsonl", text, sizeof text - 1);
    assert_int_equal(cli_dataset_read(in_folder("d.jsonl"), 100, &d, &err), CLI_OK);
    assert_int_equal(d.count, 3);
    assert_string_equal(d.items[0].id, "5");
    assert_string_equal(d.items[0].answer, "27");
    assert_string_equal(d.items[1].id, "3"); /* its line number */
    assert_string_equal(d.items[1].question, "b");
    assert_string_equal(d.items[1].answer, "1,000");
    assert_string_equal(d.items[2].id, "C");
    assert_null(d.items[2].answer);
    assert_int_equal(d.scored, 2);
    uint64_t hash = d.hash;
    cli_dataset_free(&d);
    assert_int_equal(cli_dataset_read(in_folder("d.jsonl"), 2, &d, &err), CLI_OK);
    assert_true(d.count == 2 && d.scored == 2 && d.hash != hash);
    cli_dataset_free(&d);
    char marked[sizeof text + 3] = "\xef\xbb\xbf"; /* with a byte order mark: the same dataset */
    memcpy(marked + 3, text, sizeof text);
    write_file("d.jsonl", marked, sizeof marked - 1);
    assert_int_equal(cli_dataset_read(in_folder("d.jsonl"), 100, &d, &err), CLI_OK);
    assert_true(d.count == 3 && d.hash == hash);
    cli_dataset_free(&d);
}

static void bad_lines_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "d.jsonl: wanted a problem, found none"},
        {"{\"question\": \"a\"}\n{\"question\": \n", "d.jsonl:2:"},
        {"\n\n[1]\n", "d.jsonl:3: wanted a JSON object"},
        {"{\"text\": \"a\"}\n", "d.jsonl:1: wanted a question, problem or prompt, found none"},
        {"{\"question\": \"\"}\n", "d.jsonl:1: question: wanted a text that is not empty"},
        {"{\"problem\": 7}\n", "d.jsonl:1: problem: wanted a text that is not empty"},
        {"{\"question\": \"a\\u0000b\"}\n", "d.jsonl:1: question: wanted a text"},
        {"{\"question\": \"a\", \"answer\": [1]}\n", "d.jsonl:1: answer: wanted a text or a number"},
        {"{\"question\": \"a\", \"answer\": \" \"}\n", "d.jsonl:1: answer: wanted a text that is not empty"},
        {"{\"question\": \"a\", \"id\": 1.5}\n", "d.jsonl:1: id: wanted a text or an integer"},
        {"{\"question\": \"a\", \"question\": \"b\"}\n", "d.jsonl:1:"},
        {"{\"question\": \"a\", \"id\": 2}\n{\"question\": \"b\"}\n", "problem 2: id '2' is that of problem 1"},
        {"{\"question\": \"\xff\"}\n", "wanted UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("d.jsonl", cases[i].text, strlen(cases[i].text));
        RUN("eval", "tiny-math", "--dataset", in_folder("d.jsonl"));
        expect_error(1, cases[i].words);
    }
}

/* ---- configurations ------------------------------------------------------------------------------------ */

static void multiplies_axes(void **state) {
    (void)state;
    iv_engine_options base;
    cli_configs c;
    iv_error err;
    iv_engine_options_init(&base);
    base.threads = 3;
    assert_int_equal(cli_configs_parse("bs=8,16,32  tp=1,2,4,8 numerics=invar,bio prefix=off", &base, &c, &err),
                     CLI_OK);
    assert_int_equal(c.count, 24);
    assert_string_equal(c.items[0].label, "bs=8 tp=1 numerics=invar prefix=off");
    assert_string_equal(c.items[1].label, "bs=8 tp=1 numerics=bio prefix=off");
    assert_string_equal(c.items[1].method, "numerics=bio");
    assert_string_equal(c.items[23].label, "bs=32 tp=8 numerics=bio prefix=off");
    const iv_engine_options *o = &c.items[23].options;
    assert_true(o->max_num_seqs == 32 && o->tensor_parallel_size == 8 && o->threads == 3 && !o->prefix_caching);
    assert_string_equal(o->numerics, "bio");
    cli_configs_free(&c);
    assert_int_equal(cli_configs_parse("isa=scalar chunk=7 threads=1 dtype=float32 arithmetic=tc16 speculative=ngram",
                                       &base, &c, &err),
                     CLI_OK);
    o = &c.items[0].options;
    assert_true(c.count == 1 && o->max_num_batched_tokens == 7 && o->threads == 1);
    assert_string_equal(o->isa, "scalar");
    assert_string_equal(o->dtype, "float32");
    assert_string_equal(o->arithmetic, "tc16");
    assert_string_equal(o->speculative, "ngram");
    assert_string_equal(c.items[0].method, "dtype=float32 arithmetic=tc16");
    cli_configs_free(&c);
    assert_int_equal(cli_configs_parse(NULL, &base, &c, &err), CLI_OK);
    assert_true(c.count == 1 && c.items[0].options.threads == 3);
    assert_string_equal(c.items[0].label, "as given");
    cli_configs_free(&c);
}

static void bad_axes_are_usage_errors(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"batch=8", "--configs: wanted KEY=VALUE,VALUE with bs,"},
        {"bs", "--configs: wanted KEY=VALUE"},
        {"bs=", "--configs: bs: wanted a value, found none"},
        {"bs=0", "--configs: bs: --max-num-seqs: wanted a whole number from 1"},
        {"tp=9", "--configs: tp: --tensor-parallel-size: wanted a whole number from 1 to 8, found '9'"},
        {"bs=8,8", "--configs: bs: 8 is given twice"},
        {"bs=8 bs=16", "--configs: bs is given twice"},
        {"prefix=maybe", "--configs: prefix: wanted on or off, found 'maybe'"},
        {"numerics=exact", "--configs: numerics: --numerics: wanted one of"},
        {"bs=1,2,3,4,5,6,7,8 tp=1,2,3,4,5,6,7,8 threads=1,2,3,4,5", "wanted at most 256 configurations"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RUN("eval", "tiny-math", "--dataset", PROBLEMS, "--configs", cases[i][0]);
        expect_error(2, cases[i][1]);
    }
    RUN("eval", "tiny-math");
    expect_error(2, "wanted --dataset FILE");
    RUN("eval", "tiny-math", "--dataset", PROBLEMS, "--no-chat", "--system", "x");
    expect_error(2, "--system needs the chat template");
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    RUN("eval", "tiny-math", "--dataset", PROBLEMS, "--configs", "tp=1,2");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    expect_error(2, "--configs: wanted one configuration under mpirun, found 2");
}

/* ---- metrics ------------------------------------------------------------------------------------------- */

/* A record of n tokens whose top two are `token` (probability p) and 9 (probability q). */
static cli_record make_record(size_t n, const int32_t *tokens, const double *p, const double *q) {
    cli_record r = {.count = n, .top_count = 2, .done = true};
    r.ids = calloc(n + 1, sizeof *r.ids);
    r.top = calloc(2 * n + 1, sizeof *r.top);
    assert_true(r.ids && r.top);
    for (size_t i = 0; i < n; i++) {
        r.ids[i] = tokens[i];
        r.top[2 * i] = (iv_logprob){tokens[i], (float)log(p[i])};
        r.top[2 * i + 1] = (iv_logprob){9, (float)log(q[i])};
    }
    return r;
}

static void metrics_by_hand(void **state) {
    (void)state;
    const double near = 1e-6;
    cli_record a = make_record(3, (int32_t[]){1, 2, 3}, (double[]){0.8, 0.6, 0.5}, (double[]){0.1, 0.2, 0.3});
    cli_record b = make_record(3, (int32_t[]){1, 2, 3}, (double[]){0.7, 0.6, 0.5}, (double[]){0.15, 0.2, 0.3});
    cli_record c = make_record(2, (int32_t[]){1, 4}, (double[]){0.8, 0.5}, (double[]){0.1, 0.25});
    const cli_record *all[] = {&a, &b, &c};
    assert_int_equal(cli_unique_outputs(all, 1), 1);
    assert_int_equal(cli_unique_outputs(all, 2), 1);
    assert_int_equal(cli_unique_outputs(all, 3), 2);
    strcpy(a.digest, "x"), strcpy(b.digest, "y"), strcpy(c.digest, "x");
    assert_int_equal(cli_unique_digests(all, 3), 2);
    assert_int_equal(cli_unique_digests(all, 1), 1);
    assert_true(cli_output_divergence(all, 1) == 0);
    /* Positions 0 to 2: 0.1, 0, 0. */
    assert_true(fabs(cli_output_divergence(all, 2) - 0.1 / 3) < near);
    /* Position 0: 0.1. Position 1, the last with equal prefixes: token 2 has 0.6, 0.6 and at most 0.25 in c; token 4
     * has 0.5 in c and at most 0.2 in a and b. */
    assert_true(fabs(cli_output_divergence(all, 3) - (0.1 + 0.35) / 2) < near);
    const cli_record *same[] = {&a, &a, &a};
    assert_true(cli_output_divergence(same, 3) == 0);
    for (size_t i = 0; i < 3; i++) free(all[i]->ids), free(all[i]->top);
}

/* ---- the command --------------------------------------------------------------------------------------- */

#define EVAL(out, ...) \
    "eval", "tiny-math", "--dataset", PROBLEMS, "--limit", "8", "--threads", "2", "--out", out, __VA_ARGS__

static const char *in_run(const char *run, const char *file) {
    char name[64];
    snprintf(name, sizeof name, "%s/%s", run, file);
    return in_folder(name);
}

static char *slurp(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: %s", path, strerror(errno));
    char *data = malloc(OUTPUT_MAX);
    assert_non_null(data);
    *n = fread(data, 1, OUTPUT_MAX - 1, file);
    fclose(file);
    data[*n] = 0;
    return data;
}

static void expect_same_files(const char *a, const char *b) {
    static const char *const files[] = {"results.jsonl", "report.md", "report.json", "report.svg"};
    for (size_t i = 0; i < 4; i++) {
        size_t n, m;
        char *x = slurp(in_run(a, files[i]), &n), *y = slurp(in_run(b, files[i]), &m);
        if (n != m || memcmp(x, y, n) != 0)
            fail_msg("%s of %s and %s differ (%zu and %zu bytes)", files[i], a, b, n, m);
        free(x), free(y);
    }
}

static void scores_and_compares(void **state) {
    (void)state;
    RUN(EVAL(in_folder("full"), "--temperature", "0", "--configs", "bs=1,5 chunk=16,512", "--title",
             "<Sums> & | more"));
    expect_ok();
    expect_out("| as given | 4 | 1.00 | 1 | 8 of 8 | 1.00 | 0 | 0 | 100.00 % (deviation 0.00) |");
    expect_out("| bs=5 chunk=512 | ");
    size_t n;
    char *report = slurp(in_run("full", "report.md"), &n);
    assert_string_equal(report, came.out);
    free(report);
    char *svg = slurp(in_run("full", "report.svg"), &n);
    assert_null(xml_broken_at(svg));
    assert_non_null(strstr(svg, "&lt;Sums&gt; &amp; | more"));
    free(svg);
    RUN("replay", in_run("full", "results.jsonl"), "--threads", "1", "--max-num-batched-tokens", "5");
    expect_ok();
    RUN(EVAL(in_folder("full"), "--temperature", "0", "--configs", "bs=1,5 chunk=16,512", "--json"));
    expect_ok(); /* nothing is left to do */
    json_t *o = expect_json(), *method = json_array_get(json_object_get(o, "methods"), 0);
    assert_true(json_real_value(json_object_get(method, "accuracy")) == 1 ||
                json_integer_value(json_object_get(method, "accuracy")) == 1);
    assert_int_equal(json_array_size(json_object_get(o, "configurations")), 4);
    assert_int_equal(json_array_size(json_object_get(o, "problems")), 8);
    json_decref(o);
}

/* The comparison finds differences: vanilla's bits depend on batch and ranks, bio's on ranks. */
static void baselines_differ(void **state) {
    (void)state;
    RUN("eval", "tiny-math", "--dataset", PROBLEMS, "--limit", "6", "--max-tokens", "12", "--json", "--configs",
        "numerics=vanilla,bio,invar bs=1,6 tp=1,2");
    expect_ok();
    json_t *o = expect_json(), *configs = json_object_get(o, "configurations"),
           *methods = json_object_get(o, "methods");
    const char *digest[12];
    for (size_t i = 0; i < 12; i++) digest[i] = text_of(json_array_get(configs, i), "all_digests");
    assert_string_not_equal(digest[0], digest[2]); /* vanilla: bs */
    assert_string_not_equal(digest[4], digest[5]); /* bio: tp ... */
    assert_string_equal(digest[4], digest[6]);     /* ... but not bs */
    for (size_t i = 9; i < 12; i++) assert_string_equal(digest[8], digest[i]);
    for (size_t i = 0; i < 3; i++) {
        const json_t *method = json_array_get(methods, i);
        double bits = json_number_value(json_object_get(method, "unique_bits"));
        double divergence = json_number_value(json_object_get(method, "probability_divergence"));
        if (i < 2) assert_true(bits > 1 && divergence > 0);
        if (i == 2) assert_true(bits == 1 && divergence == 0);
    }
    json_decref(o);
}

/* Runs truncated at any byte resume to the same files; numerics "vanilla" too, whose bits depend on the batch. */
static void goes_on_where_it_stopped(void **state) {
    (void)state;
    static const char axes[] = "numerics=invar,vanilla bs=3,8";
    size_t n;
    RUN(EVAL(in_folder("whole"), "--max-tokens", "10", "--configs", axes));
    expect_ok();
    char *all = slurp(in_run("whole", "results.jsonl"), &n);
    const size_t cuts[] = {0, 10, n / 8, n / 3, n / 2, n * 7 / 8, n - 1, n};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        mkdir(in_folder("cut"), 0700);
        write_file("cut/results.jsonl", all, cuts[i]);
        RUN(EVAL(in_folder("cut"), "--max-tokens", "10", "--configs", axes));
        expect_ok();
        expect_same_files("whole", "cut");
    }
    free(all);
}

static size_t lines_of(const char *path) {
    size_t lines = 0;
    FILE *file = fopen(path, "r");
    for (int c; file && (c = getc(file)) != EOF;) lines += c == '\n';
    if (file) fclose(file);
    return lines;
}

static void ctrl_c_can_be_continued(void **state) {
    (void)state;
#define ARGUMENTS(out) EVAL(out, "--configs", "bs=1,2,3,4,5,6,7,8", "--ignore-eos", "--max-tokens", "40")
    pid_t pid = start(NULL, -1, (const char *const[]){ARGUMENTS(in_folder("stopped")), NULL});
    for (size_t i = 0; i < 6000 && lines_of(in_run("stopped", "results.jsonl")) < 4; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    kill(pid, SIGINT);
    finish(pid);
    if (came.code != 128 + SIGINT) fail_msg("wanted to end by SIGINT, found %d: %s", came.code, came.err);
    assert_non_null(strstr(came.err, "the same command resumes after 'bs="));
    assert_true(lines_of(in_run("stopped", "results.jsonl")) < 1 + 8 * 8);
    RUN(ARGUMENTS(in_folder("stopped")));
    expect_ok();
    RUN(ARGUMENTS(in_folder("quiet")));
    expect_ok();
    expect_same_files("quiet", "stopped");
#undef ARGUMENTS
}

static void other_settings_are_refused(void **state) {
    (void)state;
    RUN(EVAL(in_folder("set"), "--max-tokens", "4"));
    expect_ok();
    RUN(EVAL(in_folder("set"), "--max-tokens", "4", "--seed", "43"));
    expect_error(1, "results.jsonl: made with other settings: seed is 42 there and 43 here (choose another --out)");
    RUN(EVAL(in_folder("set"), "--max-tokens", "5"));
    expect_error(1, "other settings: sampling is ");
    RUN(EVAL(in_folder("set"), "--max-tokens", "4", "--arithmetic", "tc16"));
    expect_error(1, "other settings: fingerprint is ");
    RUN("eval", "tiny-math", "--dataset", PROBLEMS, "--limit", "7", "--max-tokens", "4", "--out", in_folder("set"));
    expect_error(1, "other settings: problems is 8 there and 7 here");
    RUN(EVAL(in_folder("set"), "--max-tokens", "4", "--max-model-len", "60"));
    expect_error(1, "other settings: max_model_len is 0 there and 60 here");
    RUN(EVAL(in_folder("set"), "--max-tokens", "4", "--tp", "2")); /* a baseline could answer differently */
    expect_error(1, "other settings: tensor_parallel_size is 1 there and 2 here");
    RUN(EVAL(in_folder("set"), "--max-tokens", "4", "--isa", "scalar")); /* neutral: not a setting */
    expect_ok();
}

static void one_process_at_a_time(void **state) {
    (void)state;
    FILE *file = fopen(in_run("set", "results.jsonl"), "r");
    assert_non_null(file);
    assert_int_equal(flock(fileno(file), LOCK_EX), 0);
    RUN(EVAL(in_folder("set"), "--max-tokens", "4"));
    expect_error(1, "results.jsonl: in use by another process");
    fclose(file);
}

static void damaged_results_are_named(void **state) {
    (void)state;
    size_t n;
    char *all = slurp(in_run("set", "results.jsonl"), &n), *line = strchr(strchr(all, '\n') + 1, '\n') + 1;
    char *end = strchr(line, '\n');
    mkdir(in_folder("bad"), 0700);
#define BAD(words)                                        \
    do {                                                  \
        write_file("bad/results.jsonl", all, n);          \
        RUN(EVAL(in_folder("bad"), "--max-tokens", "4")); \
        expect_error(1, words);                           \
    } while (0)
    char *bits = strstr(line, "\"logprob_bits\":\"") + 20, was = *bits;
    *bits = was == '0' ? '1' : '0';
    BAD("results.jsonl:3: outcome.digest");
    *bits = was;
    was = *line;
    *line = 'x';
    BAD("results.jsonl:3: not valid JSON");
    *line = was;
    n -= (size_t)(end - line) + 1;
    memmove(line, end + 1, n - (size_t)(line - all) + 1); /* a line is missing */
    BAD("results.jsonl:3: wanted the result of problem 'held-out-0002' with as given");
#undef BAD
    free(all);
    static const char other[] = "{\"ours\": false}"; /* without a newline, as if truncated */
    write_file("bad/results.jsonl", other, sizeof other - 1);
    RUN(EVAL(in_folder("bad"), "--max-tokens", "4"));
    expect_error(1, "results.jsonl: wanted results of invar eval, found another file");
    all = slurp(in_run("bad", "results.jsonl"), &n);
    assert_true(n == sizeof other - 1 && memcmp(all, other, n) == 0);
    free(all);
    write_file("file", "", 0);
    RUN(EVAL(in_folder("file"), "--max-tokens", "4"));
    expect_error(1, "file/results.jsonl: cannot open: Not a directory");
    RUN(EVAL(in_folder("no/such/folder"), "--max-tokens", "4"));
    expect_error(1, "cannot create the directory");
}

static void plain_prompts_and_long_ones(void **state) {
    (void)state;
    static const char text[] = "{\"prompt\": \"2 + 2 =\", \"id\": \"a\"}\n{\"prompt\": \"Mia has\", \"id\": \"b\"}\n";
    write_file("plain.jsonl", text, sizeof text - 1);
    RUN("eval", "tiny-math", "--dataset", in_folder("plain.jsonl"), "--no-chat", "--max-tokens", "3", "--out",
        in_folder("plain"));
    expect_ok();
    expect_out("not scored");
    static const char some[] = "{\"prompt\": \"2 + 2 =\", \"answer\": 4}\n{\"prompt\": \"1 + 1 =\", \"answer\": 99}\n"
                               "{\"prompt\": \"Mia has\"}\n";
    write_file("some.jsonl", some, sizeof some - 1);
    RUN("eval", "tiny-math", "--dataset", in_folder("some.jsonl"), "--no-chat", "--max-tokens", "3", "--temperature",
        "0");
    expect_ok();
    expect_out("3 problems, of which 1 have no answer and are not scored.");
    expect_out(" of 2 | ");
    size_t n;
    char *results = slurp(in_run("plain", "results.jsonl"), &n);
    assert_non_null(strstr(results, "\"prompt_ids\":[17,289,220,17,265]"));
    free(results);
    static char big[40000];
    memset(big, 0, sizeof big);
    strcpy(big, "{\"prompt\": \"");
    while (strlen(big) < sizeof big - 20) strcat(big + strlen(big), "1 + 2 = 3, ");
    strcat(big, "\"}\n");
    write_file("big.jsonl", big, strlen(big));
    RUN("eval", "tiny-math", "--dataset", in_folder("big.jsonl"));
    expect_error(1, "tiny-math: the longest prompt, that of problem '1', has ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_datasets),
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(multiplies_axes),
        cmocka_unit_test(bad_axes_are_usage_errors),
        cmocka_unit_test(metrics_by_hand),
        cmocka_unit_test(scores_and_compares),
        cmocka_unit_test(baselines_differ),
        cmocka_unit_test(goes_on_where_it_stopped),
        cmocka_unit_test(ctrl_c_can_be_continued),
        cmocka_unit_test(other_settings_are_refused),
        cmocka_unit_test(one_process_at_a_time),
        cmocka_unit_test(damaged_results_are_named),
        cmocka_unit_test(plain_prompts_and_long_ones),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
