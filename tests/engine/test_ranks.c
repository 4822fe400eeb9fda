/* An engine over ranks gives the answers of an engine without: in a batch, in chunks, with drafts, and after failures.
 * So do replicas in other processes. The baseline bio shows that answers can differ by rank. */
#include "client.h"
#include "made_model.h"

#include <sys/wait.h>

enum { REQUESTS = 8 };

static void make_requests(const iv_engine *e, iv_request *r, char (*text)[400]) {
    static const char *const questions[] = {"12345 + 678 = ?", "What comes next: 60, 73, 86, 99?", "Compute 10 - 39.",
                                            "7 mod 4 = ?"};
    for (size_t i = 0; i < REQUESTS; i++) {
        snprintf(text[i], 400, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", questions[i % 4]);
        r[i] = ask(e, text[i], 12 + 3 * i);
        r[i].temperature = i % 3 ? 0.8f : 0.0f, r[i].seed = 7 + i, r[i].ignore_eos = i % 2;
    }
}

static answer *answers_of(const iv_engine_options *o) {
    char text[REQUESTS][400];
    iv_request r[REQUESTS];
    iv_engine *e = open_with(o);
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    assert_int_equal(info.tensor_parallel_size, o->tensor_parallel_size ? o->tensor_parallel_size : 1);
    assert_int_equal(info.rank, 0);
    answer *a = answers_new(REQUESTS);
    make_requests(e, r, text);
    for (size_t i = 0; i < REQUESTS; i++) submit(e, &r[i], &a[i]);
    run_all(e, a, REQUESTS);
    iv_engine_close(e);
    return a;
}

static void any_number_of_ranks(void **state) {
    (void)state;
    static const char *const arithmetics[] = {"fma32", "tc16"};
    size_t most = SANITIZED ? 4 : 8;
    for (size_t k = 0; k < 2; k++) {
        iv_engine_options o = small_options();
        o.arithmetic = arithmetics[k];
        answer *want = answers_of(&o);
        for (size_t tp = 2; tp <= most; tp++) {
            o.tensor_parallel_size = tp, o.threads = tp % 3, o.max_num_batched_tokens = tp % 2 ? 512 : 5 + tp;
            o.speculative = tp % 2 ? "ngram" : "off", o.prefix_caching = tp % 4 > 0;
            answer *got = answers_of(&o);
            for (size_t i = 0; i < REQUESTS; i++) {
                char what[100];
                snprintf(what, sizeof what, "%s, %zu ranks, request %zu", arithmetics[k], tp, i);
                assert_same_answer(what, &want[i], &got[i]);
            }
            answers_free(got, REQUESTS);
        }
        answers_free(want, REQUESTS);
    }
}

/* Sums rank by rank differ from one chain, and the baseline's digests show it. */
static void control_bio_differs_by_rank(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.numerics = "bio";
    answer *one = answers_of(&o);
    o.tensor_parallel_size = 4;
    answer *four = answers_of(&o);
    size_t differ = 0;
    for (size_t i = 0; i < REQUESTS; i++) differ += strcmp(one[i].digest, four[i].digest) != 0;
    printf("bio: %zu of %d answers differ between one rank and four\n", differ, REQUESTS);
    assert_true(differ > 0);
    answers_free(one, REQUESTS), answers_free(four, REQUESTS);
}

/* ---- failure ------------------------------------------------------------------------------------------- */

/* Only keys of the last KV head overflow, on one rank; all ranks leave the step, and the error is the same. */
static void an_overflow_on_one_rank(void **state) {
    (void)state;
    static const int32_t zeros[] = {0, 0, 0, 0, 0, 0}, others[] = {0, 0, 7};
    static const iv_logit_bias only_zero = {0, 100};
    static const size_t sizes[] = {1, 2, 4, 8};
    made_model m;
    made_open(&m, "mistral_v03");
    size_t k = made_find(&m, "model.layers.1.self_attn.k_proj.weight"), n = made_elements(&m, k);
    for (size_t i = n / 4 * 3; i < n; i++) put_type(m.tensors[k].dtype, m.data[k], i, 3e38f);
    memset(m.data[made_find(&m, "model.embed_tokens.weight")], 0, 128 * 2);
    iv_engine_options o = small_options();
    o.model = made_write(&m);
    answer *want = NULL;
    for (size_t s = 0; s < 4; s++) {
        o.tensor_parallel_size = sizes[s];
        iv_engine *e = open_with(&o);
        answer *a = answers_new(3);
        for (size_t i = 0; i < 3; i++) {
            iv_request r = ask_ids(e, i == 1 ? others : zeros, i == 1 ? 3 : 6, 20);
            r.logit_bias = &only_zero, r.logit_bias_count = 1;
            submit(e, &r, &a[i]);
        }
        run_all(e, a, 3);
        iv_engine_close(e);
        assert_int_equal(a[1].finish, IV_FINISH_ERROR);
        assert_non_null(strstr(a[1].error, "layer 1: a key or value"));
        assert_int_equal(a[0].count, 20);
        for (size_t i = 0; want && i < 3; i++) assert_same_answer("next to one that overflows", &want[i], &a[i]);
        if (want)
            answers_free(a, 3);
        else
            want = a;
    }
    answers_free(want, 3);
    made_close(&m);
}

static void refused(iv_engine_options o, const char *message) {
    iv_engine *e = NULL;
    iv_error err;
    if (iv_engine_open(&o, &e, &err) == IV_OK) fail_msg("opened; wanted: %s", message);
    if (!strstr(err.message, message)) fail_msg("wanted '%s', found '%s'", message, err.message);
}

static void what_cannot_be(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.tensor_parallel_size = 9;
    refused(o, "tensor_parallel_size: wanted 1 to 8, found 9");
    o.tensor_parallel_size = 2, o.rank_timeout_ms = 0;
    refused(o, "rank_timeout_ms: wanted 1 or more, found 0");
    o.rank_timeout_ms = 1000;
    iv_engine *e = open_with(&o);
    iv_error err;
    assert_int_equal(iv_engine_serve_rank(e, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "this process is rank 0"));
    iv_engine_close(e); /* without a step */
    made_model m;
    made_open(&m, "qwen3_moe");
    o.model = made_write(&m), o.tensor_parallel_size = 8;
    iv_engine_close(open_with(&o)); /* one expert each */
    made_close(&m);
}

/* ---- replicas ------------------------------------------------------------------------------------------ */

/* Another process, with other threads, memory and load. Writes the digest of one answer. */
static void replica(size_t which, int out) {
    iv_engine_options o = small_options();
    o.threads = 1 + which, o.kv_bytes = (size_t)(4 + 9 * which) << 20, o.max_num_batched_tokens = which ? 9 : 512;
    o.tensor_parallel_size = which == 2 ? 2 : 1;
    char text[REQUESTS][400];
    iv_request r[REQUESTS];
    iv_engine *e = open_with(&o);
    answer *a = answers_new(REQUESTS);
    make_requests(e, r, text);
    size_t load = which * 3;
    for (size_t i = 0; i < load; i++) submit(e, &r[i], &a[i]);
    submit(e, &r[REQUESTS - 1], &a[load]);
    run_all(e, a, load + 1);
    iv_engine_close(e);
    ssize_t n = write(out, a[load].digest, sizeof a[load].digest);
    answers_free(a, REQUESTS);
    _exit(n == sizeof a[load].digest ? 0 : 1);
}

static void replicas_answer_alike(void **state) {
    (void)state;
    char digest[3][sizeof((answer *)NULL)->digest];
    for (size_t i = 0; i < 3; i++) {
        int pipe_of[2], status;
        assert_int_equal(pipe(pipe_of), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) replica(i, pipe_of[1]);
        assert_int_equal(read(pipe_of[0], digest[i], sizeof digest[i]), sizeof digest[i]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        close(pipe_of[0]), close(pipe_of[1]);
        assert_int_equal(strncmp(digest[i], "sha256:", 7), 0);
        assert_string_equal(digest[i], digest[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_number_of_ranks),
                                       cmocka_unit_test(control_bio_differs_by_rank),
                                       cmocka_unit_test(an_overflow_on_one_rank), cmocka_unit_test(what_cannot_be),
                                       cmocka_unit_test(replicas_answer_alike)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
