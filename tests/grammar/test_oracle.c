/* Random schemas and expressions, and random answers through the allowed tokens of a vocabulary, checked by Python
 * (oracle.py). */
#include "with_vocabulary.h"

#include <jansson.h>
#include <sys/wait.h>

enum { WALK_TOKENS_MAX = 400, NAMES = 6 };

static const char *const names[NAMES] = {"a", "ab", "id", "\xc3\xa9t\xc3\xa9", "q\"\\", "a b"};

/* ---- random schemas ------------------------------------------------------------------------------------ */

static json_t *random_schema(rng *r, int depth);

static json_t *random_string(rng *r) {
    static const char *const formats[] = {"date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname"};
    static const char *const patterns[] = {"^[a-f]{2,4}$",    "x",    "^(ab|cd)*-\\\\d+$",
                                           "^[^ ]+ ?[^a-z]$", "a|^b", "[\"\\\\]"};
    json_t *s = json_pack("{s:s}", "type", "string");
    switch (rng_below(r, 5)) {
    case 0: json_object_set_new(s, "format", json_string(formats[rng_below(r, 8)])); break;
    case 1: json_object_set_new(s, "pattern", json_string(patterns[rng_below(r, 6)])); break;
    case 2: json_object_set_new(s, "minLength", json_integer((json_int_t)rng_below(r, 4))); /* fall through */
    case 3: json_object_set_new(s, "maxLength", json_integer((json_int_t)(4 + rng_below(r, 9)))); break;
    default: break;
    }
    return s;
}

static json_t *random_number(rng *r) {
    bool whole = rng_below(r, 2);
    json_t *s = json_pack("{s:s}", "type", whole ? "integer" : "number");
    double low = (double)(int64_t)rng_below(r, 3000) / (whole ? 1 : 16) - 100, width = (double)rng_below(r, 2000) / 8;
    if (rng_below(r, 3)) json_object_set_new(s, rng_below(r, 3) ? "minimum" : "exclusiveMinimum", json_real(low));
    if (rng_below(r, 3))
        json_object_set_new(s, rng_below(r, 3) ? "maximum" : "exclusiveMaximum", json_real(low + width + 2));
    return s;
}

static json_t *random_array(rng *r, int depth) {
    json_t *s = json_pack("{s:s}", "type", "array");
    size_t least = rng_below(r, 3);
    if (rng_below(r, 4)) json_object_set_new(s, "items", random_schema(r, depth - 1));
    if (rng_below(r, 3) == 0)
        json_object_set_new(s, "prefixItems",
                            json_pack("[o, o]", random_schema(r, depth - 1), random_schema(r, depth - 1)));
    if (least) json_object_set_new(s, "minItems", json_integer((json_int_t)least));
    if (rng_below(r, 2)) json_object_set_new(s, "maxItems", json_integer((json_int_t)(least + rng_below(r, 3))));
    return s;
}

static json_t *random_object(rng *r, int depth) {
    json_t *s = json_pack("{s:s}", "type", "object"), *list = json_object(), *required = json_array();
    for (size_t i = 0; i < NAMES; i++) {
        if (rng_below(r, 2)) json_object_set_new(list, names[i], random_schema(r, depth - 1));
        if (rng_below(r, 4) == 0 && json_object_get(list, names[i]))
            json_array_append_new(required, json_string(names[i]));
    }
    if (rng_below(r, 5)) json_object_set(s, "properties", list);
    if (rng_below(r, 5)) json_object_set(s, "required", required);
    json_decref(list), json_decref(required);
    if (rng_below(r, 3) == 0) json_object_set_new(s, "additionalProperties", json_false());
    if (rng_below(r, 4) == 0) json_object_set_new(s, "additionalProperties", random_schema(r, depth - 1));
    return s;
}

static json_t *random_schema(rng *r, int depth) {
    switch (rng_below(r, depth > 0 ? 13 : 6)) {
    case 0:
    case 1: return random_string(r);
    case 2:
    case 3: return random_number(r);
    case 4: return json_pack("{s:[s, s]}", "type", "boolean", "null");
    case 5: return json_pack("{s:[i, s, f, [n], {s:i}]}", "enum", 3, "x\"\n", 0.25, "k", 1);
    case 6:
    case 7: return random_array(r, depth);
    case 8:
    case 9: return random_object(r, depth);
    case 10: return json_pack("{s:[o, o]}", "anyOf", random_schema(r, depth - 1), random_schema(r, depth - 1));
    case 11: return json_pack("{s:s}", "$ref", "#/$defs/node");
    default: return json_pack("{s:[{s:i}, o]}", "allOf", "maximum", 5000, random_number(r));
    }
}

static json_t *whole_schema(rng *r) {
    json_t *s = random_schema(r, 3);
    json_object_set_new(s, "$defs",
                        json_pack("{s:{s:s, s:{s:{s:s}, s:{s:[{s:s}, {s:s}]}}, s:[s]}}", "node", "type", "object",
                                  "properties", "v", "type", "integer", "n", "anyOf", "type", "null", "$ref",
                                  "#/$defs/node", "required", "v"));
    return s;
}

/* ---- random expressions -------------------------------------------------------------------------------- */

static void random_regex(rng *r, int depth, iv_buf *out) {
    static const char *const atoms[] = {"a",    "b",   "1", "_", "\\d",    "\\w",    "[ab]",
                                        "[^a]", "\\.", "-", " ", "[a-c1]", "[\\d_]", "\\W"};
    static const char *const repeats[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"};
    size_t pieces = 1 + rng_below(r, 3);
    for (size_t i = 0; i < pieces; i++) {
        if (depth > 0 && rng_below(r, 3) == 0) {
            assert_true(iv_buf_puts(out, rng_below(r, 2) ? "(" : "(?:"));
            random_regex(r, depth - 1, out);
            if (rng_below(r, 2)) {
                assert_true(iv_buf_putc(out, '|'));
                random_regex(r, depth - 1, out);
            }
            assert_true(iv_buf_putc(out, ')'));
        } else {
            assert_true(iv_buf_puts(out, atoms[rng_below(r, 14)]));
        }
        assert_true(iv_buf_puts(out, repeats[rng_below(r, 11)]));
    }
}

/* A rule may call later rules anywhere, and any rule inside brackets: too many readings of one text are not tested
 * here. */
static const char *const rule_names[] = {"root", "x", "y"};

static void random_body(rng *r, size_t rule, size_t depth, iv_buf *out) {
    static const char *const atoms[] = {"\"a\"", "\"b\"",   "\"ab\"",   "\"\"",    "[ab]",
                                        "[^a1]", "[a-c_-]", "\"1\\n\"", "\".\" .", "\"c\""};
    static const char *const repeats[] = {"",    "",      "",      "",     "*",  "+",    "?",
                                          "{2}", "{1,3}", "{0,2}", "{2,}", "?*", "{,2}+"};
    size_t branches = 1 + rng_below(r, 2);
    for (size_t b = 0; b < branches; b++) {
        if (b) assert_true(iv_buf_puts(out, rng_below(r, 2) ? " | " : "\n  | "));
        for (size_t i = 0, pieces = rng_below(r, 6) ? 1 + rng_below(r, 3) : 0; i < pieces; i++) {
            bool group = depth > 0 && rng_below(r, 3) == 0, named = !group && rule < 2 && rng_below(r, 5) == 0;
            assert_true(iv_buf_puts(out, group ? "( " : " "));
            if (group)
                random_body(r, rule, depth - 1, out);
            else
                assert_true(
                    iv_buf_puts(out, named ? rule_names[rule + 1 + rng_below(r, 2 - rule)] : atoms[rng_below(r, 10)]));
            assert_true(iv_buf_puts(out, group ? ")" : "") && iv_buf_puts(out, repeats[rng_below(r, 13)]));
        }
        if (rng_below(r, 4) == 0) assert_true(iv_buf_printf(out, " \"1\" %s \"-\"", rule_names[rng_below(r, 3)]));
    }
}

static void random_rules(rng *r, iv_buf *out) {
    size_t first = rng_below(r, 3);
    for (size_t i = 0; i < 3; i++) {
        size_t rule = (first + i) % 3;
        assert_true(iv_buf_puts(out, rule_names[rule]) && iv_buf_puts(out, " ::="));
        random_body(r, rule, 2, out);
        assert_true(iv_buf_puts(out, rng_below(r, 2) ? "\n" : " # the next\n\n"));
    }
}

/* ---- cases --------------------------------------------------------------------------------------------- */

static void put(FILE *f, json_t *line) {
    char *text = json_dumps(line, JSON_COMPACT);
    assert_non_null(text);
    fprintf(f, "%s\n", text);
    free(text), json_decref(line);
}

/* A random walk through free strings rarely ends: incomplete answers are not checked. */
static size_t put_schema(FILE *f, rng *r, const iv_vocabulary *v) {
    json_t *schema = whole_schema(r);
    char *text = json_dumps(schema, JSON_COMPACT);
    int32_t ids[WALK_TOKENS_MAX];
    iv_grammar *g;
    iv_error err;
    size_t judged = 0;
    iv_status status = iv_grammar_open(IV_CONSTRAINT_JSON_SCHEMA, text, IV_REASONING_NONE, v, &g, &err);
    if (status == IV_OK) {
        for (size_t walk = 0; walk < 4; walk++) {
            bool ended;
            size_t length, n = random_walk(g, v, r, 2, ids, WALK_TOKENS_MAX, &ended);
            char *answer = bytes_of(v, ids, n, &length);
            if (ended) put(f, json_pack("{s:O, s:s%}", "schema", schema, "text", answer, length));
            judged += ended;
            free(answer);
        }
        iv_grammar_close(g);
    } else if (!strstr(err.message, "no finite text")) {
        fail_msg("%s: %s", text, err.message);
    }
    free(text), json_decref(schema);
    return judged;
}

/* Some rules exceed the limit of readings: their further texts are not checked. */
static void put_texts(FILE *f, rng *r, const iv_vocabulary *v, iv_grammar *g, const char *kind, const char *source) {
    static const char alphabet[] = "aab1_-. c2";
    iv_error err;
    int32_t ids[40];
    for (size_t k = 0; k < 12; k++) {
        char text[40];
        size_t n = rng_below(r, 8);
        bool matches, ended = true;
        for (size_t i = 0; i < n; i++) text[i] = alphabet[rng_below(r, sizeof alphabet - 1)];
        text[n] = 0;
        if (k % 3 == 0) { /* a match, sometimes with one character changed */
            iv_status status = try_walk(g, v, r, 3, ids, 30, &n, &ended, &err);
            if (status == IV_LIMIT && strcmp(kind, "grammar") == 0) return;
            ASSERT_OK(status, &err);
            for (size_t i = 0; i < n; i++) text[i] = (char)ids[i];
            for (size_t i = 0; i < n; i++) ended &= text[i] >= ' ' && text[i] < 0x7f;
            if (n && k % 6 == 0) text[rng_below(r, n)] = 'b';
        }
        if (!ended) continue;
        iv_status status = iv_grammar_matches(g, text, n, &matches, NULL, &err);
        if (status == IV_LIMIT && strcmp(kind, "grammar") == 0) return;
        ASSERT_OK(status, &err);
        put(f, json_pack("{s:s, s:s%, s:b}", kind, source, "text", text, n, "matches", (int)matches));
    }
}

static void put_regex(FILE *f, rng *r, const iv_vocabulary *v) {
    iv_buf pattern = {0};
    random_regex(r, 2, &pattern);
    iv_grammar *g = open_grammar(IV_CONSTRAINT_REGEX, pattern.data, IV_REASONING_NONE, v);
    put_texts(f, r, v, g, "regex", pattern.data);
    iv_grammar_close(g);
    iv_buf_free(&pattern);
}

/* Whether the rules are usable: not left-recursive, and finite. */
static bool put_rules(FILE *f, rng *r, const iv_vocabulary *v) {
    iv_buf rules = {0};
    iv_grammar *g;
    iv_error err;
    random_rules(r, &rules);
    iv_status status = iv_grammar_open(IV_CONSTRAINT_GRAMMAR, rules.data, IV_REASONING_NONE, v, &g, &err);
    if (status == IV_OK) {
        put_texts(f, r, v, g, "grammar", rules.data);
        iv_grammar_close(g);
    } else if (!strstr(err.message, "no finite text") && !strstr(err.message, "refers to itself")) {
        fail_msg("%s: %s", rules.data, err.message);
    }
    iv_buf_free(&rules);
    return status == IV_OK;
}

static void judge(const char *file, bool good) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!good) close(1);
        execlp("python3", "python3", source_path("tests/grammar/oracle.py"), file, (char *)NULL);
        _exit(77);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("SKIPPED: no python3, or no package jsonschema\n");
        unlink(file);
        skip();
    }
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0) == good);
}

static FILE *open_file(char *path) {
    strcpy(path, "/tmp/invar-oracle-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    return fdopen(fd, "w");
}

static void judge_schemas(const char *dir, size_t count) {
    char path[64];
    rng r = rng_start("schemas");
    iv_vocabulary v;
    iv_tokenizer *t = open_tokenizer(dir, &v);
    FILE *f = open_file(path);
    size_t judged = 0;
    for (size_t i = 0; i < count; i++) judged += put_schema(f, &r, &v);
    fclose(f);
    assert_true(judged > count / 4);
    judge(path, true);
    unlink(path);
    iv_vocabulary_close(&v);
    iv_tokenizer_close(t);
}

static void schemas_are_satisfied(void **state) {
    (void)state;
    judge_schemas(source_path("models/tiny-math"), trials(SANITIZED ? 30 : 300, 5000));
}

static void with_a_large_vocabulary(void **state) {
    (void)state;
    const char *dir = shared_path("tokenizers/qwen3");
    SKIP_WITHOUT(dir, "shared/tokenizers/qwen3");
    judge_schemas(dir, trials(SANITIZED ? 4 : 20, 400));
}

static void expressions_match_as_python_says(void **state) {
    (void)state;
    char path[64];
    rng r = rng_start("expressions");
    iv_vocabulary v;
    open_bytes(&v);
    FILE *f = open_file(path);
    for (size_t i = 0; i < trials(SANITIZED ? 50 : 500, 10000); i++) put_regex(f, &r, &v);
    fclose(f);
    judge(path, true);
    unlink(path);
    iv_vocabulary_close(&v);
}

static void rules_match_as_their_reader_says(void **state) {
    (void)state;
    char path[64];
    rng r = rng_start("rules");
    iv_vocabulary v;
    open_bytes(&v);
    FILE *f = open_file(path);
    size_t used = 0, count = trials(SANITIZED ? 100 : 1000, 20000);
    for (size_t i = 0; i < count; i++) used += put_rules(f, &r, &v);
    fclose(f);
    assert_true(used > count / 4);
    judge(path, true);
    unlink(path);
    iv_vocabulary_close(&v);
}

/* Negative control of the oracle. */
static void wrong_ones_are_seen(void **state) {
    (void)state;
    static const char *const lines[] = {"{\"schema\":{\"type\":\"integer\"},\"text\":\"1.5\"}",
                                        "{\"schema\":true,\"text\":\"{ }\"}",
                                        "{\"schema\":true,\"text\":\"[1\"}",
                                        "{\"schema\":{\"format\":\"date\"},\"text\":\"\\\"2023-02-29\\\"\"}",
                                        "{\"regex\":\"a+\",\"text\":\"b\",\"matches\":true}",
                                        "{\"grammar\":\"root ::= [ab]{2}\",\"text\":\"abb\",\"matches\":true}"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char path[64];
        FILE *f = open_file(path);
        fprintf(f, "%s\n", lines[i]);
        fclose(f);
        judge(path, false);
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_are_satisfied),
        cmocka_unit_test(with_a_large_vocabulary),
        cmocka_unit_test(expressions_match_as_python_says),
        cmocka_unit_test(rules_match_as_their_reader_says),
        cmocka_unit_test(wrong_ones_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
