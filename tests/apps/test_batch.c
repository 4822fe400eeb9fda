/* invar batch as a user runs it: the bits of a server, in order, after any truncation; invalid lines. */
#include "server.h"

enum { BIG_LINES = 150 };

#define CHAT_BODY                                                                                         \
    "{\"model\":\"tiny-math\",\"messages\":[{\"role\":\"user\",\"content\":\"17 * 6 = ?\"}],\"seed\":11," \
    "\"max_tokens\":24,\"logprobs\":true}"
#define TEXT_BODY "{\"prompt\":[\"1 + 2 =\",\"3 + 4 =\"],\"n\":2,\"max_tokens\":9,\"seed\":5,\"temperature\":0.7}"
#define LINE(id, url, body) "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"" url "\",\"body\":" body "}\n"
#define CHAT_LINE(id) LINE(id, "/v1/chat/completions", CHAT_BODY)
#define TEXT_LINE(id) LINE(id, "/v1/completions", TEXT_BODY)

static char first[OUTPUT_MAX], second[OUTPUT_MAX];

#define BATCH(...)                                                                                         \
    RUN("batch", "tiny-math", "-i", in_folder("in.jsonl"), "-o", in_folder("out.jsonl"), "--threads", "1", \
        "--max-model-len", "256", ##__VA_ARGS__)

static void forget(void) { unlink(in_folder("out.jsonl")); }

/* The n-th answer of the output, from 0. */
static json_t *answer_of(const char *text, size_t n) {
    for (; n > 0; n--) {
        text = strchr(text, '\n');
        assert_non_null(text);
        text++;
    }
    json_error_t why;
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &why);
    if (!value) fail_msg("%s", why.text);
    assert_true(json_is_null(json_object_get(value, "error")));
    return value;
}

static json_t *body_of(const json_t *answer, int status) {
    const json_t *response = json_object_get(answer, "response");
    assert_int_equal(json_integer_value(json_object_get(response, "status_code")), status);
    assert_non_null(text_of(response, "request_id"));
    return json_object_get(response, "body");
}

/* Ids and times differ from run to run; everything else must be equal. */
static void same_answer(json_t *a, json_t *b) {
    static const char *const own[] = {"id", "created"};
    for (size_t i = 0; i < 2; i++) assert_int_equal(json_object_del(a, own[i]), 0), json_object_del(b, own[i]);
    char *x = json_dumps(a, JSON_SORT_KEYS), *y = json_dumps(b, JSON_SORT_KEYS);
    assert_non_null(strstr(x, "sha256:"));
    assert_string_equal(x, y);
    free(x), free(y);
}

static void expect_counts(const char *words) {
    expect_ok();
    if (!strstr(came.err, words)) fail_msg("wanted \"%s\" in: %s", words, came.err);
}

/* The server's answer to compare with. */
static json_t *post(uint16_t port, const char *path, const char *body) {
    snprintf(second, sizeof second,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", path,
             strlen(body), body);
    ask_text(port, second);
    json_error_t why;
    const char *at = strstr(reply, "\r\n\r\n");
    json_t *value = at ? json_loads(at, 0, &why) : NULL;
    assert_non_null(value);
    return value;
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static void answers_as_the_server(void **state) {
    (void)state;
    static const char in[] = CHAT_LINE("one") "\n" TEXT_LINE("two");
    uint16_t port = 0;
    pid_t pid = serve(&port, NULL);
    json_t *chat = post(port, "/v1/chat/completions", CHAT_BODY), *text = post(port, "/v1/completions", TEXT_BODY);
    kill(pid, SIGTERM);
    finish(pid);
    forget();
    write_file("in.jsonl", in, strlen(in));
    BATCH();
    expect_counts("2 lines: 0 answered before, 2 answered now, 0 refused");
    assert_int_equal(came.out_bytes, 0);
    read_back("out.jsonl", first);
    json_t *a = answer_of(first, 0), *b = answer_of(first, 1);
    assert_string_equal(text_of(a, "custom_id"), "one");
    assert_string_equal(text_of(b, "custom_id"), "two");
    assert_int_equal(json_array_size(json_object_get(body_of(b, 200), "choices")), 4);
    same_answer(chat, body_of(a, 200));
    same_answer(text, body_of(b, 200));
    json_decref(chat), json_decref(text), json_decref(a), json_decref(b);
}

/* Truncated at many offsets, the output is completed by the same command to the same file, except for times. */
static void goes_on_after_a_cut(void **state) {
    (void)state;
    static const char in[] = TEXT_LINE("one") TEXT_LINE("two") CHAT_LINE("three");
    forget();
    write_file("in.jsonl", in, strlen(in));
    BATCH();
    expect_counts("3 answered now");
    size_t n = read_back("out.jsonl", first), one = (size_t)(strchr(first, '\n') - first) + 1;
    const struct {
        size_t bytes;
        const char *words;
    } cuts[] = {{0, "0 answered before, 3 answered now"},        {1, "0 answered before, 3 answered now"},
                {one - 1, "0 answered before, 3 answered now"},  {one, "1 answered before, 2 answered now"},
                {one + 40, "1 answered before, 2 answered now"}, {n - 1, "2 answered before, 1 answered now"},
                {n, "3 answered before, 0 answered now"}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        write_file("out.jsonl", first, cuts[i].bytes);
        BATCH();
        expect_counts(cuts[i].words);
        assert_int_equal(read_back("out.jsonl", second), n);
        for (size_t line = 0; line < 3; line++) {
            json_t *a = answer_of(first, line), *b = answer_of(second, line);
            same_answer(body_of(a, 200), body_of(b, 200));
            assert_true(json_equal(a, b));
            json_decref(a), json_decref(b);
        }
    }
}

/* A file that does not belong to this input is left unchanged. */
static void other_files_stay(void **state) {
    (void)state;
    static const char in[] = TEXT_LINE("one"), other[] = TEXT_LINE("other");
    static const char *const files[] = {"hello\n",
                                        "hello",
                                        other,
                                        "{\"id\":\"batch_req_1\",\"custom_id\":\"other\",\"response\":{}}\n",
                                        "{\"id\":\"batch_req_1\",\"custom_id\":\"one\",\"response\":null}\n",
                                        "{\"id\":\"batch_req_1\",\"custom_id\":\"one\",\"response\":{}}\nmore"};
    write_file("in.jsonl", in, strlen(in));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_file("out.jsonl", files[i], strlen(files[i]));
        BATCH();
        expect_error(1, "out.jsonl: ");
        read_back("out.jsonl", second);
        assert_string_equal(second, files[i]);
    }
}

static void wrong_lines_are_answered(void **state) {
    (void)state;
    static const char in[] =
        "nothing\n"
        "[1]\n"
        "{\"method\":\"POST\"}\n" TEXT_LINE("a") TEXT_LINE("a") LINE("b", "/v1/embeddings", "{}")
            LINE("c", "/v1/completions", "[]") LINE("d", "/v1/completions", "{\"prompt\":\"x\",\"temperature\":-1}")
                LINE("e", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}")
                    LINE("f", "/v1/completions", "{\"prompt\":\"x\",\"model\":\"gpt\"}") LINE(
                        "g", "/v1/completions",
                        "{\"prompt\":[999999999]}") "{\"custom_id\":\"h\",\"method\":\"GET\",\"url\":\"/v1/"
                                                    "completions\",\"body\":{}}\n"
                                                    "{\"custom_id\":\"i\",\"url\":\"/v1/completions\",\"body\":{}}\n"
                                                    "{\"custom_id\":\"j\",\"method\":\"POST\",\"url\":\"/v1/"
                                                    "completions\",\"body\":{},\"more\":1}\n"
                                                    "{\"custom_id\":7,\"method\":\"POST\",\"url\":\"/v1/"
                                                    "completions\",\"body\":{}}\n";
    static const struct {
        const char *id;
        int status;
        const char *words;
    } wanted[] = {{NULL, 400, "line 1"},
                  {NULL, 400, "wanted a JSON object, found array"},
                  {NULL, 400, "custom_id: wanted a string, found nothing"},
                  {"a", 200, NULL},
                  {"a", 400, "that of line 4"},
                  {"b", 400, "\"/v1/messages\", found \"/v1/embeddings\""},
                  {"c", 400, "body: wanted a JSON object, found []"},
                  {"d", 400, "temperature: wanted"},
                  {"e", 400, "stream: wanted false in a batch, found true"},
                  {"f", 404, "model: wanted \"tiny-math\""},
                  {"g", 400, "999999999"},
                  {"h", 400, "method: wanted \"POST\", found \"GET\""},
                  {"i", 400, "method: wanted \"POST\", found nothing"},
                  {"j", 400, "more: wanted one of a batch's fields, custom_id, method, url and body, found this one"},
                  {NULL, 400, "custom_id: wanted a string, found 7"}};
    enum { COUNT = sizeof wanted / sizeof *wanted };
    forget();
    write_file("in.jsonl", in, strlen(in));
    BATCH();
    expect_counts("15 lines: 0 answered before, 1 answered now, 14 refused");
    read_back("out.jsonl", first);
    for (size_t i = 0; i < COUNT; i++) {
        json_t *a = answer_of(first, i), *body = body_of(a, wanted[i].status), *id = json_object_get(a, "custom_id");
        if (wanted[i].id)
            assert_string_equal(json_string_value(id), wanted[i].id);
        else
            assert_true(json_is_null(id));
        if (wanted[i].words) {
            const char *message = text_of(json_object_get(body, "error"), "message");
            if (!strstr(message, wanted[i].words)) fail_msg("wanted \"%s\" in: %s", wanted[i].words, message);
        }
        json_decref(a);
    }
    BATCH();
    expect_counts("15 answered before, 0 answered now, 0 refused");
}

/* More lines than a window, of very different lengths, come out in order; an interrupt leaves a valid prefix. */
static void order_and_interrupt(void **state) {
    (void)state;
    size_t n = 0;
    for (int i = 0; i < BIG_LINES; i++)
        n += (size_t)snprintf(first + n, sizeof first - n,
                              LINE("line %d", "/v1/completions",
                                   "{\"prompt\":\"%d + 1 =\",\"seed\":1,\"ignore_eos\":true,\"max_tokens\":%d}"),
                              i, i, i % 7 == 6 ? 60 : 1 + i % 5);
    forget();
    write_file("in.jsonl", first, n);
    write_file("out.jsonl", "", 0); /* to be readable before it is created */
    pid_t pid =
        start(NULL, -1,
              (const char *const[]){"batch", "tiny-math", "-i", in_folder("in.jsonl"), "-o", in_folder("out.jsonl"),
                                    "--threads", "1", "--isa", "scalar", "--max-model-len", "256", NULL});
    for (int waited = 0; waited < START_MS && read_back("out.jsonl", second) == 0; waited += STEP_MS)
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
    kill(pid, SIGTERM);
    finish(pid);
    assert_int_equal(came.code, 128 + SIGTERM);
    assert_non_null(strstr(came.err, "interrupted"));
    size_t wrote = read_back("out.jsonl", second);
    assert_true(wrote > 0 && second[wrote - 1] == '\n');
    BATCH();
    expect_ok();
    assert_null(strstr(came.err, " 0 answered before"));
    read_back("out.jsonl", second);
    const char *at = second;
    for (int i = 0; i < BIG_LINES; i++, at = strchr(at, '\n') + 1) {
        char name[24];
        json_t *a = answer_of(at, 0);
        snprintf(name, sizeof name, "line %d", i);
        assert_string_equal(text_of(a, "custom_id"), name);
        (void)body_of(a, 200);
        json_decref(a);
    }
    assert_int_equal(*at, 0);
}

/* Lines that exceed the engine's queue wait; none receives 429. */
static void more_than_fit(void **state) {
    (void)state;
    enum { LINES = 5 }; /* of 1024 answers each; 4096 may wait */
    size_t n = 0;
    for (int i = 0; i < LINES; i++)
        n += (size_t)snprintf(
            first + n, sizeof first - n,
            LINE("%d", "/v1/completions",
                 "{\"prompt\":[[1],[2],[3],[4],[5],[6],[7],[8]],\"n\":128,\"max_tokens\":1,\"seed\":1}"),
            i);
    forget();
    write_file("in.jsonl", first, n);
    BATCH();
    expect_counts("5 answered now, 0 refused");
}

#define RESPONSE_BODY "{\"input\":\"What is 2 + 3?\",\"max_output_tokens\":30,\"seed\":4}"
#define RESPONSE_LINE \
    "{\"custom_id\":\"three\",\"method\":\"POST\",\"url\":\"/v1/responses\",\"body\":" RESPONSE_BODY "}\n"

static void copy_digest(json_t *body, char out[80]) {
    const char *digest = text_of(json_object_get(body, "invar"), "digest");
    assert_true(digest && strlen(digest) < 80);
    memcpy(out, digest, strlen(digest) + 1);
}

/* /v1/responses: the server's own bits. */
static void responses(void **state) {
    (void)state;
    char wanted[80], found[80];
    uint16_t port = 0;
    pid_t pid = serve(&port, NULL);
    json_t *whole = post(port, "/v1/responses", RESPONSE_BODY);
    kill(pid, SIGTERM);
    finish(pid);
    forget();
    write_file("in.jsonl", RESPONSE_LINE, strlen(RESPONSE_LINE));
    BATCH();
    expect_counts("1 lines: 0 answered before, 1 answered now, 0 refused");
    read_back("out.jsonl", first);
    json_t *answer = answer_of(first, 0), *body = body_of(answer, 200);
    assert_string_equal(text_of(body, "object"), "response");
    copy_digest(whole, wanted), copy_digest(body, found);
    assert_string_equal(wanted, found);
    json_t *a = json_object_get(whole, "output"), *b = json_object_get(body, "output");
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++)
        assert_true(json_equal(json_object_get(json_array_get(a, i), "content"),
                               json_object_get(json_array_get(b, i), "content")));
    json_decref(whole), json_decref(answer);
}

#define MESSAGE_BODY "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}],\"max_tokens\":30,\"seed\":4}"
#define MESSAGE_LINE(id, body) \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/messages\",\"body\":" body "}\n"

/* /v1/messages: the server's own bits, and errors in Anthropic's form. */
static void messages(void **state) {
    (void)state;
    static const char in[] =
        MESSAGE_LINE("a", MESSAGE_BODY) MESSAGE_LINE("b", "{\"messages\":[]}") MESSAGE_LINE("c", "{\"stream\":true}");
    char wanted[80], found[80];
    uint16_t port = 0;
    pid_t pid = serve(&port, NULL);
    json_t *whole = post(port, "/v1/messages", MESSAGE_BODY);
    kill(pid, SIGTERM);
    finish(pid);
    forget();
    write_file("in.jsonl", in, strlen(in));
    BATCH();
    expect_counts("3 lines: 0 answered before, 1 answered now, 2 refused");
    read_back("out.jsonl", first);
    json_t *answer = answer_of(first, 0), *body = body_of(answer, 200);
    copy_digest(whole, wanted), copy_digest(body, found);
    assert_string_equal(wanted, found);
    assert_true(json_equal(json_object_get(whole, "content"), json_object_get(body, "content")));
    json_decref(whole), json_decref(answer);
    for (size_t i = 1; i < 3; i++) {
        answer = answer_of(first, i), body = body_of(answer, 400);
        assert_string_equal(text_of(body, "type"), "error");
        assert_string_equal(text_of(json_object_get(body, "error"), "type"), "invalid_request_error");
        json_decref(answer);
    }
}

static void expect_replayed(json_t *body) {
    char digest[80];
    copy_digest(body, digest);
    char *receipt = json_dumps(json_object_get(json_object_get(body, "invar"), "receipt"), JSON_COMPACT);
    write_file("receipt", receipt, strlen(receipt));
    RUN("replay", in_folder("receipt"), "--threads", "1");
    expect_ok();
    assert_non_null(strstr(came.out, digest));
    free(receipt);
}

/* A truncated prompt is equivalent to its last tokens, and the receipt records these. */
static void a_cut_prompt_replays(void **state) {
    (void)state;
#define FIELDS "\"max_tokens\":6,\"seed\":3,\"temperature\":2,\"return_receipt\":true,\"return_token_ids\":true"
    static const char in[] =
        LINE("a", "/v1/completions", "{\"prompt\":\"1 + 2 + 3 =\",\"truncate_prompt_tokens\":4," FIELDS "}")
            LINE("b", "/v1/completions", "{\"prompt\":\"1 + 2 + 3 =\"," FIELDS "}");
    char cut[80], ids[80], whole[80];
    forget();
    write_file("in.jsonl", in, sizeof in - 1);
    BATCH();
    expect_counts("2 answered now, 0 refused");
    read_back("out.jsonl", first);
    json_t *a = answer_of(first, 0), *b = answer_of(first, 1), *body = body_of(a, 200);
    json_t *left = json_object_get(json_array_get(json_object_get(body, "choices"), 0), "prompt_token_ids");
    assert_int_equal(json_array_size(left), 4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(body, "usage"), "prompt_tokens")), 4);
    copy_digest(body, cut), copy_digest(body_of(b, 200), whole);
    assert_string_not_equal(cut, whole);
    char *prompt = json_dumps(left, JSON_COMPACT);
    expect_replayed(body);
    int n = snprintf(second, sizeof second, LINE("c", "/v1/completions", "{\"prompt\":%s," FIELDS "}"), prompt);
    forget();
    write_file("in.jsonl", second, (size_t)n);
    BATCH();
    read_back("out.jsonl", first);
    json_t *c = answer_of(first, 0);
    copy_digest(body_of(c, 200), ids);
    assert_string_equal(cut, ids);
    free(prompt);
    json_decref(a), json_decref(b), json_decref(c);
#undef FIELDS
}

static json_int_t tokens_of(const json_t *body) {
    return json_integer_value(json_object_get(json_object_get(body, "usage"), "completion_tokens"));
}

/* min_tokens through the whole program; the receipt records it. So does the receipt of an answer that a constraint
 * ended earlier. */
static void least_tokens_replay(void **state) {
    (void)state;
#define BODY(more)                                              \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"17 * 6 = " \
    "?\"}],\"seed\":11,\"max_tokens\":80,\"return_receipt\":true" more "}"
    static const char in[] = LINE("a", "/v1/chat/completions", BODY("")) LINE("b", "/v1/chat/completions",
                                                                              BODY(",\"min_tokens\":60"))
        LINE("c", "/v1/chat/completions", BODY(",\"min_tokens\":60,\"structured_outputs\":{\"regex\":\"[a-c]{9}\"}"))
            LINE("d", "/v1/chat/completions", BODY(",\"min_tokens\":81"));
#undef BODY
    char plain[80], digest[80];
    forget();
    write_file("in.jsonl", in, sizeof in - 1);
    BATCH();
    expect_counts("3 answered now, 1 refused");
    read_back("out.jsonl", first);
    assert_non_null(strstr(first, "min_tokens: wanted at most 80, as the answer may have, found 81\""));
    json_t *a = answer_of(first, 0), *b = answer_of(first, 1), *c = answer_of(first, 2);
    assert_in_range(tokens_of(body_of(a, 200)), 1, 59);
    assert_in_range(tokens_of(body_of(b, 200)), 60, 80);
    assert_in_range(tokens_of(body_of(c, 200)), 1, 59);
    copy_digest(body_of(a, 200), plain), copy_digest(body_of(b, 200), digest);
    assert_string_not_equal(plain, digest);
    expect_replayed(body_of(b, 200)), expect_replayed(body_of(c, 200));
    json_decref(a), json_decref(b), json_decref(c);
}

/* Bodies are read exactly: large seeds keep every digit, and -1 is equivalent to 2^64 - 1. */
static void large_seeds(void **state) {
    (void)state;
    static const char in[] = LINE(
        "a", "/v1/completions", "{\"prompt\":\"1 +\",\"max_tokens\":3,\"temperature\":2,\"seed\":18446744073709551615}")
        LINE("b", "/v1/completions", "{\"prompt\":\"1 +\",\"max_tokens\":3,\"temperature\":2,\"seed\":-1}");
    forget();
    write_file("in.jsonl", in, sizeof in - 1);
    BATCH();
    expect_counts("2 lines: 0 answered before, 2 answered now, 0 refused");
    read_back("out.jsonl", first);
    const char *a = strstr(first, "\"seed\":18446744073709551615,"), *b = strstr(first, "\"seed\":-1,");
    assert_true(a && b && a < b);
    a = strstr(a, "\"digest\""), b = strstr(b, "\"digest\"");
    assert_true(a && b);
    assert_memory_equal(a, b, 80);
    BATCH();
    expect_counts("2 answered before, 0 answered now");
}

/* In a pipe the output equals that of a file, except for ids and times; nothing is kept, so a second run computes
 * everything again. */
static void standard_input_and_output(void **state) {
    (void)state;
    static const char in[] = CHAT_LINE("one") "\n" TEXT_LINE("two") RESPONSE_LINE;
    char digests[3][80], found[80];
    forget();
    write_file("in.jsonl", in, strlen(in));
    BATCH();
    expect_counts("3 answered now, 0 refused");
    read_back("out.jsonl", first);
    for (size_t i = 0; i < 3; i++) {
        json_t *answer = answer_of(first, i);
        copy_digest(body_of(answer, 200), digests[i]);
        json_decref(answer);
    }
    for (int run = 0; run < 2; run++) {
        RUN_WITH(in, "batch", "tiny-math", "-i", "-", "-o", "-", "--max-model-len", "256");
        expect_counts("3 lines: 0 answered before, 3 answered now, 0 refused");
        for (size_t i = 0; i < 3; i++) {
            json_t *answer = answer_of(came.out, i);
            copy_digest(body_of(answer, 200), found);
            assert_string_equal(found, digests[i]);
            json_decref(answer);
        }
    }
    forget();
    RUN_WITH(in, "batch", "tiny-math", "-i", "-", "-o", in_folder("out.jsonl"), "--max-model-len", "256");
    expect_counts("0 answered before, 3 answered now");
    RUN_WITH(in, "batch", "tiny-math", "-i", "-", "-o", in_folder("out.jsonl"), "--max-model-len", "256");
    expect_counts("3 answered before, 0 answered now");
    RUN_WITH("\n", "batch", "tiny-math", "-i", "-", "-o", "-");
    expect_error(1, "standard input: wanted lines with requests");
}

/* A closed reader ends it silently. */
static void reader_that_leaves(void **state) {
    (void)state;
    int ends[2];
    static const char in[] = CHAT_LINE("one") TEXT_LINE("two");
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    finish(start(in, ends[1], (const char *const[]){"batch", "tiny-math", "-i", "-", "-o", "-", NULL}));
    close(ends[1]);
    assert_int_equal(came.code, 1);
    assert_string_equal(came.err, "");
}

static void output_that_is_full(void **state) {
    (void)state;
    static const char in[] = TEXT_LINE("one");
    int full = open("/dev/full", O_WRONLY);
    if (full < 0) {
        printf("SKIPPED: there is no /dev/full\n");
        skip();
    }
    finish(start(in, full, (const char *const[]){"batch", "tiny-math", "-i", "-", "-o", "-", NULL}));
    close(full);
    expect_error(1, "standard output: No space left on device");
}

/* The same while it waits for input. */
static void interrupted_while_it_reads(void **state) {
    (void)state;
    int status, ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[0], 0);
        close(ends[1]);
        send_to(2, in_folder("err"), O_WRONLY | O_CREAT | O_TRUNC);
        execl(INVAR_BINARY, INVAR_BINARY, "batch", "tiny-math", "-i", "-", "-o", "-", (char *)NULL);
        _exit(99);
    }
    usleep(500000); /* loading takes some milliseconds */
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    close(ends[0]), close(ends[1]);
}

static void what_cannot_start(void **state) {
    (void)state;
    RUN("batch", "tiny-math", "-i", in_folder("in.jsonl"));
    expect_error(2, "--output: wanted");
    RUN("batch", "tiny-math", "-o", in_folder("out.jsonl"));
    expect_error(2, "--input: wanted");
    RUN("batch", "tiny-math", "-i", in_folder("nothing.jsonl"), "-o", in_folder("out.jsonl"));
    expect_error(1, "nothing.jsonl");
    write_file("empty.jsonl", "\n \n", 3);
    RUN("batch", "tiny-math", "-i", in_folder("empty.jsonl"), "-o", in_folder("out.jsonl"));
    expect_error(1, "empty.jsonl: wanted lines");
    RUN("batch", "tiny-math", "-i", in_folder("in.jsonl"), "-o", in_folder("no/where.jsonl"));
    expect_error(1, "where.jsonl: cannot write: No such file");
    RUN("batch", "tiny-math", "-i", in_folder("in.jsonl"), "-o", "/dev/null");
    expect_error(1, "/dev/null: wanted a regular file, or - for standard output, found a device or a pipe");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_as_the_server),
                                       cmocka_unit_test(goes_on_after_a_cut),
                                       cmocka_unit_test(other_files_stay),
                                       cmocka_unit_test(wrong_lines_are_answered),
                                       cmocka_unit_test(order_and_interrupt),
                                       cmocka_unit_test(more_than_fit),
                                       cmocka_unit_test(responses),
                                       cmocka_unit_test(messages),
                                       cmocka_unit_test(a_cut_prompt_replays),
                                       cmocka_unit_test(least_tokens_replay),
                                       cmocka_unit_test(large_seeds),
                                       cmocka_unit_test(standard_input_and_output),
                                       cmocka_unit_test(reader_that_leaves),
                                       cmocka_unit_test(output_that_is_full),
                                       cmocka_unit_test(interrupted_while_it_reads),
                                       cmocka_unit_test(what_cannot_start)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
