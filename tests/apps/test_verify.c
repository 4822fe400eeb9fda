/* invar verify as a user runs it, and its comparisons alone: equal results pass, differences are found. The baseline
 * `vanilla` is the negative control of these checks. */
#include "program.h"
#include "random.h"
#include "xml.h"

#include "verify.h"

#include <math.h>

static const char few[] =
    "{\"prompt\": \"Mia has 34 marbles. Mia buys 18 more. How many\", \"max_tokens\": 6}\n"
    "\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 5 + 6?\"}], \"temperature\": 1}\n"
    "{\"ids\": [17, 289, 220], \"temperature\": 0.7, \"top_k\": 20, \"seed\": 7, \"ignore_eos\": true}\r\n";

/* Lengths around an attention block; two with a common prefix; one sampled. Every test model has these ids. */
static void write_lengths(void) {
    static const size_t lengths[] = {1, 40, 64, 65, 130};
    static char text[8192];
    size_t used = 0;
    for (size_t i = 0; i < (SANITIZED ? 3 : 5); i++) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"ignore_eos\": true, \"temperature\": %s, \"ids\": [", i == 1 ? "1" : "0");
        for (size_t t = 0; t < lengths[i]; t++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%zu", t ? "," : "",
                                     (t * 37 + (i == 2 ? 3 : i) * 5) % 512);
        used += (size_t)snprintf(text + used, sizeof text - used, "]}\n");
    }
    write_file("lengths.jsonl", text, used);
}

static json_t *read_json(const char *name) {
    static char text[OUTPUT_MAX];
    json_error_t why;
    size_t n = read_back(name, text);
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!value) fail_msg("%s: not JSON: %s", name, why.text);
    return value;
}

static json_int_t count_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("no whole number \"%s\"", key);
    return json_integer_value(value);
}

static double real_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}

/* The picture is well-formed; returns its text. */
static const char *expect_picture(const char *name) {
    static char text[OUTPUT_MAX];
    read_back(name, text);
    const char *at = xml_broken_at(text);
    if (at) fail_msg("%s: not well-formed at: %.60s", name, at);
    return text;
}

/* ---- the program --------------------------------------------------------------------------------------- */

static void every_axis_is_equal(void **state) {
    (void)state;
    write_lengths();
    RUN("verify", "tiny-math", "--prompts", in_folder("lengths.jsonl"), "--max-tokens", "5", "--scalar-tokens",
        SANITIZED ? "1" : "10", "--combinations", SANITIZED ? "1" : "6", "--json", in_folder("equal.json"), "--plot",
        in_folder("equal.svg"));
    if (came.code != 0) fail_msg("exit code %d: %s%s", came.code, came.out, came.err);
    assert_string_equal(came.err, "");
    expect_out("unique outputs 1 at most");
    expect_out("largest divergence 0 of probability");
    json_t *found = read_json("equal.json");
    assert_true(json_is_true(json_object_get(found, "equal")));
    assert_int_equal(count_of(found, "unique_outputs"), 1);
    assert_int_equal(count_of(found, "configurations_differing"), 0);
    assert_true(real_of(found, "max_probability_divergence") == 0.0);
    size_t i, ran = 0, preempted = 0;
    json_t *config, *configs = json_object_get(found, "configurations");
    json_array_foreach(configs, i, config) {
        if (strcmp(text_of(config, "status"), "not run") == 0) continue;
        assert_string_equal(text_of(config, "status"), "equal");
        preempted += (size_t)count_of(config, "preemptions");
        if (i == 0) continue;
        assert_true(count_of(config, "rows_compared") >= 5);
        ran++;
    }
    assert_int_equal(count_of(found, "configurations_compared"), ran);
    assert_true(ran >= 20 && preempted > 0);
    json_decref(found);
    assert_non_null(strstr(expect_picture("equal.svg"), "1 unique output<"));
}

static void vanilla_is_found_out(void **state) {
    (void)state;
    write_lengths();
    RUN("verify", "tiny-math", "--prompts", in_folder("lengths.jsonl"), "--numerics", "vanilla", "--axes",
        "batch,chunk,order", "--combinations", "2", "--json", in_folder("vanilla.json"), "--plot",
        in_folder("vanilla.svg"));
    assert_int_equal(came.code, 1);
    if (strncmp(came.err, "invar: ", 7) != 0 ||
        !strstr(came.err, "configurations differ, first batch 2: request 0, position") || !strstr(came.err, "ulp") ||
        strchr(came.err, '\n')[1])
        fail_msg("not one clear line: %s", came.err);
    json_t *found = read_json("vanilla.json");
    assert_true(json_is_false(json_object_get(found, "equal")));
    assert_true(count_of(found, "unique_outputs") > 1);
    assert_true(real_of(found, "max_probability_divergence") > 0.0);
    assert_true(real_of(found, "top5_divergence_mean") > 0.0);
    const json_t *config = json_array_get(json_object_get(found, "configurations"), 1),
                 *first = json_object_get(config, "first_difference");
    assert_string_equal(text_of(config, "name"), "batch 2");
    assert_string_equal(text_of(config, "status"), "differs");
    assert_string_equal(text_of(first, "what"), "logits");
    assert_true(count_of(first, "ulps") > 0);
    json_decref(found);
    const char *picture = expect_picture("vanilla.svg");
    assert_non_null(strstr(picture, "shape fill near\" x="));
}

static void bio_holds_across_batches(void **state) {
    (void)state;
    RUN("verify", "tiny-math", "--numerics", "bio", "--axes", "batch,chunk", "--combinations", "2", "--max-tokens",
        "4");
    if (came.code != 0) fail_msg("exit code %d: %s%s", came.code, came.out, came.err);
}

/* The same axis for both: ranks, which only invar's summation tree makes neutral. */
static void bio_differs_across_ranks(void **state) {
    (void)state;
    write_lengths();
    RUN("verify", "tiny-math", "--prompts", in_folder("lengths.jsonl"), "--axes", "tp", "--tp-sizes", "2,4", "--json",
        "-");
    expect_ok();
    json_t *found = expect_json();
    assert_int_equal(count_of(found, "configurations_compared"), 2);
    json_decref(found);
    RUN("verify", source_path("tests/data/hf/qwen3_moe"), "--prompts", in_folder("lengths.jsonl"), "--axes", "ep",
        "--ep-sizes", "2,4", "--json", "-"); /* the same ranks divide experts */
    expect_ok();
    found = expect_json();
    assert_int_equal(count_of(found, "configurations_compared"), 2);
    json_decref(found);
    RUN("verify", "tiny-math", "--prompts", in_folder("lengths.jsonl"), "--axes", "tp", "--tp-sizes", "2,4", "--json",
        "-", "--numerics", "bio");
    assert_int_equal(came.code, 1);
    found = expect_json();
    assert_int_equal(count_of(found, "configurations_differing"), 2);
    assert_true(count_of(found, "unique_outputs") > 1);
    json_decref(found);
}

static void prompts_from_a_file(void **state) {
    (void)state;
    write_file("few.jsonl", few, sizeof few - 1);
    RUN("verify", "tiny-math", "--prompts", in_folder("few.jsonl"), "--axes", "batch,threads", "--batch-sizes",
        "3,2,3,1", "--thread-counts", "2", "--product", "--max-tokens", "4", "--json", "-");
    expect_ok();
    json_t *found = expect_json(), *requests = json_object_get(found, "requests");
    static const int most[] = {6, 4, 4}, seeds[] = {1, 3, 7};
    assert_int_equal(json_array_size(requests), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *request = json_array_get(requests, i);
        assert_int_equal(count_of(request, "max_tokens"), most[i]);
        assert_int_equal(count_of(request, "seed"), seeds[i]);
    }
    assert_int_equal(count_of(json_array_get(requests, 2), "prompt_tokens"), 3);
    /* Sizes 3 and 2 (1 is the quiet run), 2 threads: quiet, three alone, two together. */
    assert_int_equal(json_array_size(json_object_get(found, "configurations")), 6);
    json_decref(found);
    RUN_WITH("{\"ids\": [1]}", "verify", "tiny-math", "--prompts", "-", "--axes", "threads", "--thread-counts", "2");
    expect_ok();
}

/* Another seed draws other combinations; the answers are unchanged. */
static void seeds_draw_combinations(void **state) {
    (void)state;
    char names[3][1024] = {"", "", ""};
    for (size_t run = 0; run < 3; run++) {
        write_lengths();
        RUN("verify", "tiny-math", "--prompts", in_folder("lengths.jsonl"), "--axes", "batch,chunk,order,restart",
            "--combinations", "3", "--seed", run == 2 ? "12" : "11", "--max-tokens", "2", "--json", "-");
        expect_ok();
        json_t *found = expect_json(), *configs = json_object_get(found, "configurations");
        size_t n = json_array_size(configs);
        for (size_t i = n - 3; i < n; i++)
            strncat(names[run], text_of(json_array_get(configs, i), "name"), sizeof names[run] / 3 - 2);
        json_decref(found);
    }
    assert_string_equal(names[0], names[1]);
    assert_string_not_equal(names[0], names[2]);
}

/* Endless decoys and memory for one request: the request of the lowest priority is still served. */
static void no_request_starves(void **state) {
    (void)state;
    write_lengths();
    RUN("verify", "tiny-math", "--prompts", in_folder("lengths.jsonl"), "--axes", "order,preempt,sampling", "--product",
        "--max-tokens", "4", "--json", "-");
    expect_ok();
    json_t *found = expect_json();
    assert_int_equal(json_array_size(json_object_get(found, "configurations")), 36);
    json_decref(found);
}

static void usage_is_checked(void **state) {
    (void)state;
    static const struct {
        const char *words[6], *said;
    } cases[] = {
        {{"verify"}, "wanted MODEL"},
        {{"verify", "tiny-math", "--axes", "batch,speed"}, "--axes: wanted some of batch,order,"},
        {{"verify", "tiny-math", "--axes", ""}, "--axes: wanted some of"},
        {{"verify", "tiny-math", "--axes", "batch,"}, "found ''"},
        {{"verify", "tiny-math", "--batch-sizes", "0"}, "--batch-sizes: wanted numbers from 1 to 1024, found 0"},
        {{"verify", "tiny-math", "--tp-sizes", "9"}, "--tp-sizes: wanted numbers from 1 to 8, found 9"},
        {{"verify", "tiny-math", "--chunk-sizes", "x"}, "--chunk-sizes: wanted numbers such as 2,4,8, found 'x'"},
        {{"verify", "tiny-math", "--thread-counts", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"},
         "--thread-counts: wanted at most 16 numbers, found 17"},
        {{"verify", "tiny-math", "--axes=order", "--tp-sizes=2"}, "--tp-sizes needs tp among --axes"},
        {{"verify", "tiny-math", "--product"}, "--product: wanted at most 4096 configurations"},
        {{"verify", "tiny-math", "--numerics", "magic"}, "--numerics: wanted one of"},
        {{"verify", "tiny-math", "--tp-size", "2"}, "unknown flag '--tp-size': did you mean --tp-sizes?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[7] = {0};
        memcpy(words, cases[i].words, sizeof cases[i].words);
        finish(start(NULL, -1, words));
        expect_error(2, cases[i].said);
    }
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    RUN("verify", "tiny-math");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    expect_error(2, "do not use mpirun");
}

/* Before anything has run, not afterwards. */
static void files_that_cannot_be_written(void **state) {
    (void)state;
    RUN("verify", "tiny-math", "--axes", "batch", "--plot", in_folder("no/such/folder.svg"));
    expect_error(1, "no/such/folder.svg: cannot write: No such file or directory");
    assert_string_equal(came.out, "");
    RUN("verify", "tiny-math", "--axes", "batch", "--json", in_folder("no/such/folder.json"));
    expect_error(1, "no/such/folder.json: cannot write: No such file or directory");
    assert_string_equal(came.out, "");
}

static void bad_prompt_files(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", "bad.jsonl: wanted a prompt, found none"},
        {" \n\t\n", "bad.jsonl: wanted a prompt, found none"},
        {"{\"ids\": [1]}\n{\"ids\": [1]", "bad.jsonl: line 2, column"},
        {"[1]", "line 1: wanted a JSON object"},
        {"{}", "line 1: wanted one of \"prompt\", \"messages\" and \"ids\", found none"},
        {"{\"ids\": [1], \"prompt\": \"x\"}", "found more"},
        {"{\"ids\": []}", "line 1: ids: wanted a list of token ids from 0 to 1023"},
        {"{\"ids\": [1024]}", "line 1: ids: wanted"},
        {"{\"ids\": [-1]}", "line 1: ids: wanted"},
        {"{\"ids\": [1.5]}", "line 1: ids: wanted"},
        {"{\"ids\": 7}", "line 1: ids: wanted"},
        {"{\"prompt\": 7}", "line 1: prompt: wanted a text"},
        {"{\"prompt\": \"\"}", "line 1: prompt: wanted at least one token"},
        {"{\"messages\": \"hi\"}", "line 1: messages: wanted a list"},
        {"{\"ids\": [1], \"temprature\": 1}", "line 1: unknown field \"temprature\""},
        {"{\"ids\": [1], \"max_tokens\": 0}", "line 1: max_tokens: wanted a whole number from 1 to 4096"},
        {"{\"ids\": [1], \"max_tokens\": 2048}", "line 1: 1 tokens and 2048 to generate, the model has 2048 positions"},
        {"{\"ids\": [1], \"top_k\": 3000000000}", "line 1: top_k: wanted a whole number"},
        {"{\"ids\": [1], \"seed\": -1}", "line 1: seed: wanted a whole number"},
        {"{\"ids\": [1], \"temperature\": \"hot\"}", "line 1: temperature: wanted a number"},
        {"{\"ids\": [1], \"ignore_eos\": 1}", "line 1: ignore_eos: wanted true or false"},
        {"{\"ids\": [1]}\n{\"ids\": [2], \"temperature\": 101}", "request 1 (line 2): temperature"},
        {"{\"ids\": [1], \"ids\": [2]}", "line 1, column"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("bad.jsonl", cases[i].text, strlen(cases[i].text));
        RUN("verify", "tiny-math", "--prompts", in_folder("bad.jsonl"));
        if (came.code != 1 || !strstr(came.err, cases[i].said)) fail_msg("%s: %s", cases[i].text, came.err);
        expect_error(1, cases[i].said);
    }
    RUN("verify", "tiny-math", "--prompts", in_folder("absent"));
    expect_error(1, "absent: cannot open");
    RUN("verify", "no-such-model");
    expect_error(1, "no such model directory");
    RUN("verify", "tiny-math", "--max-tokens", "2048");
    expect_error(1, "--max-tokens 2048: the model has 2048 positions");
    write_file("few.jsonl", few, sizeof few - 1);
    RUN("verify", "tiny-math", "--prompts", in_folder("few.jsonl"), "--axes", "restart", "--json",
        in_folder("no/such/file"));
    assert_int_equal(came.code, 1);
    assert_non_null(strstr(came.err, "no/such/file: cannot write: No such file"));
}

static void an_interrupt_ends_it(void **state) {
    (void)state;
    const struct timespec moment = {.tv_nsec = 20000000};
    pid_t pid = start(NULL, -1, (const char *const[]){"verify", "tiny-math", "--combinations", "1000", NULL});
    struct stat st = {0};
    for (size_t i = 0; i < 1500 && st.st_size == 0; i++) { /* until the first row is out */
        nanosleep(&moment, NULL);
        assert_int_equal(stat(in_folder("out"), &st), 0);
    }
    kill(pid, SIGINT);
    finish(pid);
    assert_int_equal(came.code, 128 + SIGINT);
    assert_string_equal(came.err, "");
    expect_out("quiet run");
}

static void other_families(void **state) {
    (void)state;
    static const char *const names[] = {"llama31", "mistral_v03", "qwen2", "qwen3", "qwen3_moe"};
    for (size_t i = 0; i < (SANITIZED ? 1 : sizeof names / sizeof *names); i++) {
        char relative[64];
        snprintf(relative, sizeof relative, "tests/data/hf/%s", names[i]);
        write_lengths();
        RUN("verify", source_path(relative), "--prompts", in_folder("lengths.jsonl"), "--max-tokens", "3", "--axes",
            "batch,order,chunk,prefix,preempt,threads,tp,restart", "--combinations", "2", "--arithmetic",
            i % 2 ? "tc16" : "fma32");
        if (came.code != 0) fail_msg("%s: exit code %d: %s%s", names[i], came.code, came.out, came.err);
        expect_out("unique outputs 1 at most");
    }
}

/* ---- comparisons alone --------------------------------------------------------------------------------- */

enum { WIDE_ROW = 50, ANSWER = 4, KEPT = 2 };

/* A quiet answer of ANSWER random rows, of which the first KEPT are kept whole. */
typedef struct sample {
    iv_model_info model;
    verify_job job;
    verify_answer answer;
    float rows[ANSWER * WIDE_ROW]; /* all rows: those beyond KEPT only the test needs */
    float logprobs[ANSWER];
    int32_t tokens[ANSWER];
    uint64_t hashes[ANSWER];
} sample;

static iv_event event_at(const float *rows, size_t at) {
    return (iv_event){.kind = IV_EVENT_TOKEN, .token = (int32_t)at, .logprob = -0.5f, .logits = rows + at * WIDE_ROW};
}

static void make_sample(sample *s, rng *r) {
    iv_error err;
    *s = (sample){.model = {.vocab_size = WIDE_ROW}};
    s->job = (verify_job){.model = &s->model, .kept = KEPT};
    s->answer = (verify_answer){.tokens = s->tokens, .logprobs = s->logprobs, .rows = s->rows, .hashes = s->hashes};
    float rows[ANSWER * WIDE_ROW];
    for (size_t i = 0; i < ANSWER * WIDE_ROW; i++) rows[i] = random_float(r, NORMAL);
    rows[3] = 0.0f;
    for (size_t i = 0; i < ANSWER; i++) {
        iv_event e = event_at(rows, i);
        assert_int_equal(verify_record_token(&s->job, &s->answer, &e, &err), CLI_OK);
    }
    iv_event end = {.kind = IV_EVENT_DONE, .finish = IV_FINISH_LENGTH, .digest = "sha256:x"};
    assert_int_equal(verify_record_end(&s->job, &s->answer, &end, &err), CLI_OK);
    memcpy(s->rows, rows, sizeof rows);
}

/* Replays the answer with one change, made by `change` to event `at`. */
typedef void (*change_fn)(iv_event *event, float *row, rng *r);
static verify_cell play(const sample *s, size_t at, change_fn change, rng *r) {
    verify_cell cell = {.token_from = SIZE_MAX};
    float rows[ANSWER * WIDE_ROW];
    size_t count = 0;
    bool together = true;
    memcpy(rows, s->rows, sizeof rows);
    for (size_t i = 0; i < ANSWER; i++, count++) {
        iv_event e = event_at(rows, i);
        if (change && i == at) change(&e, rows + i * WIDE_ROW, r);
        if (together) together = verify_compare_token(&s->job, &s->answer, i, &e, &cell);
    }
    iv_event end = {.kind = IV_EVENT_DONE, .finish = IV_FINISH_LENGTH, .digest = "sha256:x"};
    verify_compare_end(&s->answer, count, &end, &cell);
    return cell;
}

static void one_ulp(iv_event *event, float *row, rng *r) {
    size_t i = rng_below(r, WIDE_ROW);
    row[i] = nextafterf(row[i], INFINITY);
    event->logits = row;
}
static void sign_of_zero(iv_event *event, float *row, rng *r) {
    (void)r;
    row[3] = -row[3];
    event->logits = row;
}
static void other_logprob(iv_event *event, float *row, rng *r) {
    (void)row, (void)r;
    event->logprob = nextafterf(event->logprob, 0);
}
static void other_token(iv_event *event, float *row, rng *r) {
    (void)row, (void)r;
    event->token += 100;
}

static void any_single_bit_is_seen(void **state) {
    (void)state;
    rng r = rng_start("any_single_bit_is_seen");
    static sample s;
    for (size_t trial = 0; trial < 500; trial++) {
        char line[256];
        make_sample(&s, &r);
        size_t at = rng_below(&r, ANSWER);
        verify_cell same = play(&s, 0, NULL, &r);
        assert_int_equal(same.kind, VERIFY_SAME);
        assert_int_equal(same.rows, ANSWER);
        assert_true(same.ran && same.most == 0.0 && same.top_sum == 0.0);
        verify_cell zero = play(&s, 0, sign_of_zero, &r);
        assert_int_equal(zero.kind, VERIFY_LOGITS);
        assert_int_equal(zero.token, 3);
        verify_cell ulp = play(&s, at, one_ulp, &r);
        assert_int_equal(ulp.kind, VERIFY_LOGITS);
        assert_int_equal(ulp.position, at);
        assert_int_equal(ulp.rows, ANSWER);
        assert_int_equal(ulp.token < 0, at >= KEPT);
        verify_difference(&ulp, line);
        if (!strstr(line, at < KEPT ? "1 ulp apart" : "by hash only")) fail_msg("%s", line);
        verify_cell logprob = play(&s, at, other_logprob, &r);
        assert_int_equal(logprob.kind, VERIFY_LOGPROB);
        assert_int_equal(logprob.position, at);
        verify_cell token = play(&s, at, other_token, &r);
        assert_int_equal(token.kind, VERIFY_TOKEN);
        assert_int_equal(token.token_from, at);
        assert_int_equal(token.rows, at + 1);
    }
}

static void ends_are_compared(void **state) {
    (void)state;
    rng r = rng_start("ends_are_compared");
    static sample s;
    make_sample(&s, &r);
    const iv_event ends[] = {
        {.finish = IV_FINISH_LENGTH, .digest = "sha256:x"},
        {.finish = IV_FINISH_STOP, .digest = "sha256:x"},
        {.finish = IV_FINISH_LENGTH, .digest = "sha256:y"},
        {.finish = IV_FINISH_ERROR, .error = "no"},
    };
    for (size_t i = 0; i < 4; i++) {
        verify_cell cell = {.token_from = SIZE_MAX};
        verify_compare_end(&s.answer, ANSWER, &ends[i], &cell);
        assert_int_equal(cell.kind, i == 0 ? VERIFY_SAME : VERIFY_END);
        assert_int_equal(cell.token_from == SIZE_MAX, true);
    }
    verify_cell early = {.token_from = SIZE_MAX};
    verify_compare_end(&s.answer, ANSWER - 1, &ends[0], &early);
    assert_int_equal(early.kind, VERIFY_END);
    assert_int_equal(early.token_from, ANSWER - 1);
    iv_event more = event_at(s.rows, 0);
    verify_cell late = {.token_from = SIZE_MAX};
    assert_false(verify_compare_token(&s.job, &s.answer, ANSWER, &more, &late));
    assert_int_equal(late.kind, VERIFY_END);
}

/* Standard error of a run with a terminal; standard output is discarded. */
static void run_on_terminal(const char *const *words, char *out, size_t room) {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    char name[64];
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    assert_int_equal(ptsname_r(terminal, name, sizeof name), 0);
    int held = open(name, O_RDWR | O_NOCTTY); /* held until the program has it too: otherwise reading fails at once */
    assert_true(held >= 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        send_to(1, "/dev/null", O_WRONLY);
        dup2(held, 2);
        close(held), close(terminal);
        execv(INVAR_BINARY, (char *const *)words);
        _exit(99);
    }
    close(held);
    size_t n = 0;
    ssize_t got;
    while ((got = read(terminal, out + n, room - 1 - n)) > 0) n += (size_t)got; /* EIO: no writer is left */
    out[n] = 0;
    close(terminal);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* For any terminal width: a wrapped line could not be erased. */
static void the_bar_does_not_wrap(void **state) {
    (void)state;
    static char said[OUTPUT_MAX];
    const char *const words[] = {INVAR_BINARY,        "verify",         "tiny-math", "--axes",
                                 "batch,chunk,order", "--combinations", "0",         NULL};
    run_on_terminal(words, said, sizeof said);
    assert_non_null(strstr(said, "verify ["));
    for (const char *at = said; (at = strstr(at, "verify [")) != NULL; at++) {
        static const char begins[] = "\r\033[K\033[?7l";
        assert_true(at - said >= (ptrdiff_t)strlen(begins));
        assert_memory_equal(at - strlen(begins), begins, strlen(begins));
        const char *end = strstr(at, "\033[?7h");
        assert_non_null(end);
        assert_true(strcspn(at, "\r\n") > (size_t)(end - at));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_single_bit_is_seen),   cmocka_unit_test(ends_are_compared),
        cmocka_unit_test(usage_is_checked),         cmocka_unit_test(files_that_cannot_be_written),
        cmocka_unit_test(bad_prompt_files),         cmocka_unit_test(prompts_from_a_file),
        cmocka_unit_test(seeds_draw_combinations),  cmocka_unit_test(no_request_starves),
        cmocka_unit_test(every_axis_is_equal),      cmocka_unit_test(vanilla_is_found_out),
        cmocka_unit_test(bio_holds_across_batches), cmocka_unit_test(bio_differs_across_ranks),
        cmocka_unit_test(an_interrupt_ends_it),     cmocka_unit_test(other_families),
        cmocka_unit_test(the_bar_does_not_wrap),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
