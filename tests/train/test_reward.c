/* The built-in rewards on texts that models write, and every way in which an external program can fail. */
#include "random.h"
#include "base/clock.h"
#include "train/reward/reward.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>

static iv_text_view view(const char *s) { return (iv_text_view){s, strlen(s)}; }

typedef struct pair {
    const char *completion, *answer;
    bool same;
} pair;

static void check_pairs(const char *what, bool (*rule)(iv_text_view, iv_text_view), const pair *pairs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        /* From memory of exactly that size, so that sanitizers see a read beyond the end. */
        size_t bytes = strlen(pairs[i].completion);
        char *copy = malloc(bytes + !bytes);
        memcpy(copy, pairs[i].completion, bytes);
        bool got = rule((iv_text_view){copy, bytes}, view(pairs[i].answer));
        free(copy);
        if (got != pairs[i].same)
            fail_msg("%s: '%s' against '%s': wanted %d, got %d", what, pairs[i].completion, pairs[i].answer,
                     pairs[i].same, got);
    }
}
#define CHECK(rule, pairs) check_pairs(#rule, rule, pairs, sizeof(pairs) / sizeof *(pairs))

static const pair number_pairs[] = {
    {"The answer is 42.", "42", true},
    {"40 + 2 = 42", "#### 42", true},
    {"It is 42, not 43", "42", false},
    {"no number", "42", false},
    {"42", "none", false},
    {"", "1", false},
    {"x = 0.50", "1/2", true},
    {"so 3/4", "0.75", true},
    {"\\frac{3}{4}", "0.75", true},
    {"\\dfrac34", "0.75", true},
    {"-\\frac{3}{4}", "-0.75", true},
    {"\\frac{-3}{4}", "-.75", true},
    {"\\frac{3}{0}", "3", false},
    {"1/3", "0.3333333333", false},
    {"2/6", "1/3", true},
    {"5/0", "0", true}, /* no fraction: two numbers */
    {"1,234,567", "1234567", true},
    {"$1,234.50 in all", "1234.5", true},
    {"1,2345", "2345", true},
    {"12,34", "34", true},
    {"0,125", "125", true},
    {"1{,}000", "1000", true},
    {"10\\,000", "10000", true},
    {"1\xc2\xa0"
     "000",
     "1000", true},
    {"1\xe2\x80\xaf"
     "000",
     "1000", true},
    {"1'000", "1000", true},
    {"7-3", "3", true},
    {"7 -3", "-3", true},
    {"7 - 3", "3", true},
    {"= -3", "-3", true},
    {"\xe2\x88\x92"
     "5",
     "-5", true},
    {"\xe2\x80\x93"
     "5",
     "-5", true},
    {"\xef\xbc\x8d"
     "5",
     "-5", true},
    {"-$5", "-5", true},
    {"$-5", "-5", true},
    {"-0", "0", true},
    {"+5", "5", true},
    {"50%", "0.5", true},
    {"50\\%", "1/2", true},
    {"50%", "50%", true},
    {"50%", "50", true},
    {"50", "50%", true},
    {"1.5e3", "1500", true},
    {"2E-2", "0.02", true},
    {"1e5x", "5", true},
    {"3.14.", "3.14", true},
    {"0.1", "0.10000000000000000001", false},
    {"123456789012345678901234567890", "123456789012345678901234567891", false},
    {"123456789012345678901234567890", "123456789012345678901234567890.0", true},
    {"1e999999999999", "1", false},
    {"2.", "2", true},
    {".5", "0.5", true},
    {"\\frac{\\frac{\\frac{1", "1", true},
};

static void numbers(void **state) {
    (void)state;
    CHECK(iv_reward_numeric, number_pairs);
    char *digits = malloc(100001);
    memset(digits, '7', 100000), digits[100000] = 0;
    assert_false(iv_reward_numeric(view(digits), view("7")));
    free(digits);
}

static void boxes(void **state) {
    (void)state;
    static const pair pairs[] = {
        {"so \\boxed{42}", "42", true},
        {"\\boxed{1} then \\boxed{2}", "2", true},
        {"\\boxed{1} then \\boxed{2}", "1", false},
        {"\\boxed{\\frac{a}{b}}", "\\dfrac{a}{b}", true},
        {"\\boxed{\\frac{3}{4}}", "3/4", true},
        {"\\boxed{0.75}", "\\frac{3}{4}", true},
        {"\\boxed{ x + 1 }", "x+1", true},
        {"\\boxed{\\text{yes}}", "yes", true},
        {"\\boxed{\\left( 1, 2 \\right)}", "(1,2)", true},
        {"\\boxed{\\leftarrow}", "arrow", false},
        {"\\boxed{\\{1\\}}", "\\{1\\}", true},
        {"\\boxed{{{1}}}", "{{1}}", true},
        {"\\boxed{1,000}", "1000", true},
        {"\\boxed{50\\%}", "50%", true},
        {"\\boxed{$5$}", "5", true},
        {"\\boxed{5.}", "5", true},
        {"\\boxed{42", "42", false},
        {"\\boxed{1} and \\boxed{42", "1", false},
        {"\\boxed 42", "42", false},
        {"\\boxedx{42}", "42", false},
        {"42", "42", false},
        {"\\boxed{}", "42", false},
        {"\\boxed", "42", false},
        {"\\boxed{\\", "42", false},
        {"\\boxed{42 apples}", "42", false},
        {"\\boxed{7}", "the proof gives \\boxed{7}", true},
    };
    CHECK(iv_reward_boxed, pairs);
}

/* Pieces of numbers and of TeX in any order: no read beyond the text (under the sanitizers), and a text with a number
 * agrees with itself. */
static void random_texts(void **state) {
    (void)state;
    static const char *const pieces[] = {"\\boxed", "{", "}",  "\\",  "\\frac", "\\dfrac", "\\text",
                                         "\\left",  "1", "23", "456", ".",      ",",       "{,}",
                                         "\\,",     "-", "+",  "/",   "%",      "e",       "E5",
                                         "$",       " ", "\n", "x",   "0",      "\\%",     "\xe2\x88\x92",
                                         "\xe2",    "'", "\\$"};
    rng r = rng_start("reward");
    size_t with = 0, n = trials(20000, 2000000);
    for (size_t k = 0; k < n; k++) {
        char text[256];
        size_t bytes = 0;
        for (size_t i = rng_below(&r, 24); i > 0; i--) {
            const char *piece = pieces[rng_below(&r, sizeof pieces / sizeof *pieces)];
            memcpy(text + bytes, piece, strlen(piece)), bytes += strlen(piece);
        }
        char *copy = malloc(bytes + !bytes);
        memcpy(copy, text, bytes);
        iv_text_view t = {copy, bytes}, content;
        bool digit = false;
        for (size_t i = 0; i < bytes; i++) digit |= copy[i] >= '0' && copy[i] <= '9';
        if (iv_reward_numeric(t, t) != digit) fail_msg("'%.*s' against itself: wanted %d", (int)bytes, copy, digit);
        bool boxed = iv_reward_boxed_content(t, &content);
        if (iv_reward_boxed(t, t) != boxed) fail_msg("'%.*s' against itself: wanted %d", (int)bytes, copy, boxed);
        assert_true(iv_reward_exact(t, t));
        with += boxed;
        free(copy);
    }
    printf("reward: %zu random texts, %zu with a box\n", n, with);
}

static void exact_texts(void **state) {
    (void)state;
    static const pair pairs[] = {{" yes\n", "yes", true}, {"Yes", "yes", false}, {"", " ", true}, {"a b", "ab", false}};
    CHECK(iv_reward_exact, pairs);
}

static iv_reward_item item_of(const char *completion, const char *answer, size_t tokens) {
    return (iv_reward_item){.prompt = view("Question \"1\"?\n"),
                            .completion = view(completion),
                            .answer = answer ? view(answer) : (iv_text_view){NULL, 0},
                            .line = view("{\"problem\": \"1\", \"n\": 3}\n"),
                            .tokens = tokens};
}

static void rules_are_weighted_and_added(void **state) {
    (void)state;
    iv_reward *r;
    iv_error err;
    iv_reward_options o = {
        .spec = "numeric,format:0.25,length:-0.5", .format = "(?s)<think>.*</think> ?[0-9]+", .length = 4};
    ASSERT_OK(iv_reward_open(&o, &r, &err), &err);
    assert_true(iv_reward_needs_answer(r));
    iv_reward_item items[] = {item_of("<think>a\nb</think> 7", "7", 4), item_of("7", "7", 6),
                              item_of("<think></think> 8 ", "7", 100), item_of("\xff", "7", 0)};
    double reward[4];
    ASSERT_OK(iv_reward_score(r, items, 4, reward, &err), &err);
    assert_true(reward[0] == 0.75 && reward[1] == 0.75 && reward[2] == 0.0 && reward[3] == 0.0);
    items[2].answer.bytes = NULL;
    assert_int_equal(iv_reward_score(r, items, 4, reward, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "completion 2"));
    iv_reward_close(r);
    o = (iv_reward_options){.spec = "format", .format = "a|ab"};
    ASSERT_OK(iv_reward_open(&o, &r, &err), &err);
    assert_false(iv_reward_needs_answer(r));
    iv_reward_item ab[] = {item_of("ab", NULL, 1), item_of("abc", NULL, 1), item_of("", NULL, 1)};
    ASSERT_OK(iv_reward_score(r, ab, 3, reward, &err), &err);
    assert_true(reward[0] == 1.0 && reward[1] == 0.0 && reward[2] == 0.0);
    iv_reward_close(r);
}

static void bad_specifications_are_named(void **state) {
    (void)state;
    static const struct {
        iv_reward_options o;
        const char *want;
    } cases[] = {
        {{.spec = ""}, "wanted 1 to"},
        {{.spec = NULL}, "wanted 1 to"},
        {{.spec = "exact,nmeric"}, "found 'nmeric'"},
        {{.spec = "exact:"}, "weight"},
        {{.spec = "exact:nan"}, "weight"},
        {{.spec = "exact:1x"}, "weight"},
        {{.spec = "exact:1e999"}, "weight"},
        {{.spec = "exact,"}, "found ''"},
        {{.spec = "exact,exact:2"}, "exact again"},
        {{.spec = "format"}, "regular expression"},
        {{.spec = "format", .format = "a)("}, "reward format"},
        {{.spec = "format", .format = "("}, "reward format"},
        {{.spec = "length"}, "above 0 tokens"},
        {{.spec = "numerics"}, "found 'numerics'"},
        {{.spec = "cat", .seconds = 0}, "time limit"},
        {{.spec = "cat", .seconds = (double)NAN}, "time limit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_reward *r = NULL;
        iv_error err = {0};
        if (iv_reward_open(&cases[i].o, &r, &err) == IV_OK || r) fail_msg("case %zu: accepted", i);
        if (!strstr(err.message, cases[i].want))
            fail_msg("case %zu: wanted '%s' in: %s", i, cases[i].want, err.message);
    }
}

/* ---- programs ---- */

#define PYTHON "python3 -c '\nimport json, sys, time, os, random\n"

static size_t open_files(void) {
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void no_child_is_left(void) {
    int status;
    if (waitpid(-1, &status, WNOHANG) != -1 || errno != ECHILD) fail_msg("a child process is left");
}

static iv_reward *open_command(const char *command, double seconds) {
    iv_reward *r;
    iv_error err;
    iv_reward_options o = {.spec = command, .seconds = seconds};
    ASSERT_OK(iv_reward_open(&o, &r, &err), &err);
    assert_false(iv_reward_needs_answer(r));
    return r;
}

/* Answers out of order, over several batches, with rewards from the fields that were sent. */
static void a_program_scores_batches(void **state) {
    (void)state;
    size_t files = open_files();
    iv_reward *r =
        open_command(PYTHON "batch = []\n"
                            "for line in sys.stdin:\n"
                            "    d = json.loads(line)\n"
                            "    assert d[\"prompt\"] == \"Question \\\"1\\\"?\\n\" and d[\"line\"][\"n\"] == 3\n"
                            "    good = d[\"completion\"] == d[\"answer\"]\n"
                            "    batch.append({\"id\": d[\"id\"], \"reward\": 1 if good else -0.5, \"more\": []})\n"
                            "    if len(batch) == 3:\n"
                            "        for x in reversed(batch): print(json.dumps(x))\n"
                            "        print(flush=True)\n"
                            "        batch = []\n'",
                     20);
    for (int step = 0; step < 4; step++) {
        iv_reward_item items[] = {item_of("a", "a", 1), item_of("\xff\"\n", "b", 1), item_of("", NULL, 1)};
        double reward[3];
        iv_error err;
        ASSERT_OK(iv_reward_score(r, items, 3, reward, &err), &err);
        assert_true(reward[0] == 1.0 && reward[1] == -0.5 && reward[2] == -0.5);
        ASSERT_OK(iv_reward_score(r, items, 0, reward, &err), &err);
    }
    iv_reward_close(r);
    no_child_is_left();
    assert_int_equal(open_files(), files);
}

/* More than a pipe holds in both directions; the program reads all before it answers, or answers while it reads. */
static void large_batches_do_not_deadlock(void **state) {
    (void)state;
    enum { N = 2000 };
    static const char *const programs[] = {
        PYTHON "lines = [json.loads(sys.stdin.readline()) for _ in range(2000)]\n"
               "for d in lines: print(json.dumps({\"id\": d[\"id\"], \"reward\": len(d[\"completion\"]), \"pad\": "
               "\"x\" * 500}))\n'",
        PYTHON "for line in sys.stdin:\n    d = json.loads(line)\n    print(\"e\" * 300, file=sys.stderr)\n"
               "    print(json.dumps({\"id\": d[\"id\"], \"reward\": len(d[\"completion\"]), \"pad\": \"x\" * 500}), "
               "flush=True)\n'"};
    char *text = malloc(1001);
    memset(text, 'a', 1000), text[1000] = 0;
    iv_reward_item *items = malloc(N * sizeof *items);
    double *reward = malloc(N * sizeof *reward);
    for (size_t i = 0; i < N; i++) items[i] = item_of(text + i % 1000, NULL, 1);
    for (size_t k = 0; k < 2; k++) {
        iv_reward *r = open_command(programs[k], 60);
        iv_error err;
        ASSERT_OK(iv_reward_score(r, items, N, reward, &err), &err);
        for (size_t i = 0; i < N; i++) assert_true(reward[i] == (double)(1000 - i % 1000));
        iv_reward_close(r);
    }
    no_child_is_left();
    free(text), free(items), free(reward);
}

typedef struct failure {
    const char *command;
    iv_status status;
    const char *want[3]; /* in the message */
} failure;

static void programs_that_fail_are_named(void **state) {
    (void)state;
    static const failure cases[] = {
        {"sleep 100", IV_IO, {"wanted 2 rewards within 1 seconds, found 0", "no errors", NULL}},
        {"echo bad luck >&2; exec sleep 100", IV_IO, {"within 1 seconds", "last line of errors: bad luck", NULL}},
        {"(sleep 100) & cat > /dev/null & wait", IV_IO, {"within 1 seconds", NULL}},
        {"trap \"\" TERM HUP PIPE INT; while :; do sleep 1; done", IV_IO, {"within 1 seconds", NULL}},
        {"exit 3", IV_IO, {"found 0: it closed its output and exited with status 3", NULL}},
        {"echo first >&2; echo last >&2; exit 1", IV_IO, {"status 1", "last line of errors: last", NULL}},
        {"printf unfinished >&2; kill -9 $$", IV_IO, {"ended by signal 9", "unfinished", NULL}},
        {"/nonexistent/program", IV_IO, {"status 127", "/nonexistent/program", NULL}},
        {"exec >&-; exec sleep 100", IV_IO, {"it closed its output and was ended", NULL}},
        {"echo '{\"id\": 0, \"reward\": 1}'; exit 0", IV_IO, {"wanted 2 rewards, found 1", "status 0", NULL}},
        {"echo nonsense; sleep 100", IV_FORMAT, {"found 'nonsense'", NULL}},
        {"echo '[1]'; sleep 100", IV_FORMAT, {"{\"id\": 17, \"reward\": 0.5}", NULL}},
        {"echo '{\"id\": 7, \"reward\": 1}'; sleep 100", IV_FORMAT, {"wanted an id from 0 to 1, found 7", NULL}},
        {"echo '{\"id\": -1, \"reward\": 1}'; sleep 100", IV_FORMAT, {"found -1", NULL}},
        {"echo '{\"id\": \"0\", \"reward\": 1}'; sleep 100", IV_FORMAT, {"an id from 0 to 1", NULL}},
        {"echo '{\"reward\": 1}'; sleep 100", IV_FORMAT, {"found nothing", NULL}},
        {"echo '{\"id\": 0}'; sleep 100", IV_FORMAT, {"a finite number as reward, found nothing", NULL}},
        {"echo '{\"id\": 0, \"reward\": \"1\"}'; sleep 100", IV_FORMAT, {"a finite number as reward", NULL}},
        {"echo '{\"id\": 0, \"reward\": NaN}'; sleep 100",
         IV_FORMAT,
         {"a finite number as reward, found", "NaN", NULL}},
        {"echo '{\"id\": 0, \"reward\": Infinity}'; sleep 100", IV_FORMAT, {"a finite number", "Infinity", NULL}},
        {"echo '{\"id\": 0, \"reward\": 1e999}'; sleep 100", IV_FORMAT, {"found", NULL}},
        {"echo '{\"id\": 0, \"reward\": 1}'; echo '{\"id\": 0, \"reward\": 1}'; sleep 100",
         IV_FORMAT,
         {"each id once", NULL}},
        {"head -c 3000000 /dev/zero | tr \"\\0\" a; sleep 100", IV_LIMIT, {"lines of at most 1048576 bytes", NULL}},
        {"yes x", IV_FORMAT, {"found 'x'", NULL}},
        {"yes '' & exec sleep 100", IV_IO, {"within 1 seconds", NULL}},
    };
    size_t files = open_files();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool waits = strstr(cases[i].want[0], "1 seconds") != NULL;
        iv_reward *r = open_command(cases[i].command, waits ? 1.0 : 20.0);
        iv_reward_item items[] = {item_of("a", "a", 1), item_of("b", NULL, 1)};
        double reward[2], begin = iv_now();
        iv_error err;
        iv_status status = iv_reward_score(r, items, 2, reward, &err);
        double took = iv_now() - begin;
        if (status != cases[i].status) fail_msg("'%s': status %d: %s", cases[i].command, (int)status, err.message);
        if (!strstr(err.message, "reward command '")) fail_msg("'%s': %s", cases[i].command, err.message);
        for (size_t k = 0; k < 3 && cases[i].want[k]; k++)
            if (!strstr(err.message, cases[i].want[k]))
                fail_msg("'%s': wanted '%s' in: %s", cases[i].command, cases[i].want[k], err.message);
        if (took > 15.0) fail_msg("'%s': took %.1f seconds", cases[i].command, took);
        no_child_is_left();
        assert_int_equal(iv_reward_score(r, items, 2, reward, &err), IV_IO);
        assert_non_null(strstr(err.message, "earlier error"));
        iv_reward_close(r);
    }
    assert_int_equal(open_files(), files);
}

/* A line too many after a batch is an error of the next one. */
static void late_answers_are_refused(void **state) {
    (void)state;
    iv_reward *r = open_command("answer() { read line; echo \"{\\\"id\\\": 0, \\\"reward\\\": $1}\"; }\n"
                                "answer 1; answer 2; sleep 100",
                                20);
    iv_reward_item item = item_of("a", "a", 1);
    double reward;
    iv_error err;
    ASSERT_OK(iv_reward_score(r, &item, 1, &reward, &err), &err);
    assert_true(reward == 1.0);
    assert_int_equal(iv_reward_score(r, &item, 1, &reward, &err), IV_FORMAT);
    assert_non_null(strstr(err.message, "wanted an id from 1 to 1, found 0"));
    iv_reward_close(r);
    no_child_is_left();
}

/* Closing a program that does not end when its input does. */
static void closing_never_hangs(void **state) {
    (void)state;
    double begin = iv_now();
    iv_reward_close(open_command("trap \"\" TERM HUP PIPE; while :; do sleep 1; done", 20));
    iv_reward_close(open_command("exit 0", 20));
    iv_reward_close(open_command("cat > /dev/null", 20));
    assert_true(iv_now() - begin < 10.0);
    no_child_is_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(boxes),
        cmocka_unit_test(exact_texts),
        cmocka_unit_test(random_texts),
        cmocka_unit_test(rules_are_weighted_and_added),
        cmocka_unit_test(bad_specifications_are_named),
        cmocka_unit_test(a_program_scores_batches),
        cmocka_unit_test(large_batches_do_not_deadlock),
        cmocka_unit_test(programs_that_fail_are_named),
        cmocka_unit_test(late_answers_are_refused),
        cmocka_unit_test(closing_never_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
