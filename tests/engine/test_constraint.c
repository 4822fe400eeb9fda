/* Constrained answers satisfy their constraint and have the same bits alone, in a batch, over ranks, drafted, in chunks
 * and preempted. Receipts repeat them. */
#include "client.h"
#include "format/json.h"
#include "grammar/grammar.h"

enum { CASES = 12, TOKENS = 120, VOCAB = 1024 };

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"sum\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":999},"
    "\"why\":{\"type\":\"string\",\"maxLength\":24},\"list\":{\"type\":\"array\",\"items\":{\"enum\":[\"odd\",\"even\"]"
    "},"
    "\"minItems\":1,\"maxItems\":9}},\"required\":[\"sum\",\"why\",\"list\"]}";
static const char tools[] =
    "[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},"
    "\"b\":{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}},{\"name\":\"stop\"}]";
static const char either[] =
    "{\"form\":\"llama3_json\",\"tools\":[{\"name\":\"add\",\"parameters\":{\"properties\":{\"a\":{\"enum\":[1,2]}}}}],"
    "\"schema\":{\"properties\":{\"name\":{\"enum\":[\"add\",\"ad\"]},\"list\":{\"items\":{\"enum\":[1,2,3]}}}}}";
static const char question[] = "<|im_start|>user\nWhat is 17 * 6?<|im_end|>\n<|im_start|>assistant\n";

/* Every kind, with filters, penalties, biases and both ways to end. */
static iv_request make_case(const iv_engine *e, size_t i) {
    static const iv_logit_bias bias[] = {{15, 4.0f}, {220, 1.0f}};
    static const struct {
        iv_constraint_kind kind;
        const char *text;
    } kinds[] = {
        {IV_CONSTRAINT_JSON_SCHEMA, schema},
        {IV_CONSTRAINT_JSON_OBJECT, NULL},
        {IV_CONSTRAINT_REGEX, "([a-c]{2}[0-9]+ ){4,40}end"},
        {IV_CONSTRAINT_CHOICE, "[\"forty\",\"forty-two\",\"102\"]"},
        {IV_CONSTRAINT_TOOL_CALLS, tools},
        {IV_CONSTRAINT_TOOL_CALLS_OR_JSON, either},
        {IV_CONSTRAINT_GRAMMAR, "root ::= e \"\\n\"\ne ::= n ([-+*] n){0,3}\nn ::= [0-9]{1,3} | \"(\" e \")\""}};
    iv_request r = ask(e, question, TOKENS);
    r.constraint = kinds[i % 7].kind, r.constraint_text = kinds[i % 7].text;
    r.temperature = (float[]){0, 0.8f, 1.5f}[i % 3], r.seed = 40 + i, r.sampling_logprobs = true;
    r.reasoning = i % 4 == 3 ? IV_REASONING_OPTIONAL : IV_REASONING_NONE;
    if (i % 3 == 1) r.top_k = 10, r.top_p = 0.9f;
    if (i % 3 == 2) r.min_p = 0.02f, r.repetition_penalty = 1.1f;
    if (i % 7 == 6) r.logit_bias = bias, r.logit_bias_count = 2;
    r.ignore_eos = i % 4 == 2;
    return r;
}

static answer *answers_of(const iv_engine_options *o, bool together, bool decoys, bool preempt) {
    iv_engine *e = open_with(o);
    iv_error err;
    answer *a = answers_new(2 * CASES);
    size_t n = 0;
    for (size_t i = 0; i < CASES; i++) {
        iv_request r = make_case(e, i), other = ask(e, "12 + 30 = 42. What comes next: 60, 73, 86", 20 + 7 * i);
        other.ignore_eos = true, other.temperature = 1, other.seed = i;
        if (decoys) submit(e, &other, &a[CASES + n]);
        submit(e, &r, &a[n++]);
        if (!together) run_all(e, &a[n - 1], 1);
    }
    for (bool busy = together; busy;) {
        iv_engine_stats stats;
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, 2 * CASES);
        iv_engine_get_stats(e, &stats);
        if (preempt && stats.steps % 5 == 0) (void)iv_engine_preempt(e, a[stats.steps / 5 % CASES].request, &err);
    }
    iv_engine_close(e);
    return a;
}

static void expect_same(const char *what, const answer *want, const answer *got) {
    for (size_t i = 0; i < CASES; i++) {
        char name[100];
        snprintf(name, sizeof name, "%s, case %zu", what, i);
        assert_same_answer(name, &want[i], &got[i]);
        assert_same_bits(name, want[i].sampling_logprobs, got[i].sampling_logprobs, got[i].count, 4, false);
    }
}

static void one_digest_in_every_way(void **state) {
    (void)state;
    static const struct {
        const char *what, *speculative;
        size_t ranks, budget, threads;
        bool decoys, preempt;
    } ways[] = {{"together", "off", 1, 512, 1, false, false},  {"among decoys", "off", 1, 512, 3, true, false},
                {"two ranks", "off", 2, 512, 2, false, false}, {"three ranks, drafts", "ngram", 3, 64, 3, true, false},
                {"drafts", "ngram", 1, 512, 1, true, false},   {"chunks of 7", "off", 1, 23, 1, true, false},
                {"preempted", "ngram", 1, 40, 2, true, true}};
    iv_engine_options o = small_options();
    o.max_num_seqs = 2 * CASES;
    answer *want = answers_of(&o, false, false, false);
    size_t accepted = 0, preempted = 0, ends = 0, differ = 0;
    for (size_t i = 0; i < CASES; i++) ends += want[i].finish == IV_FINISH_STOP;
    assert_true(ends >= CASES / 2);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        o.speculative = ways[w].speculative, o.tensor_parallel_size = ways[w].ranks, o.threads = ways[w].threads;
        o.max_num_batched_tokens = ways[w].budget < 2 * CASES ? 2 * CASES + 3 : ways[w].budget;
        answer *got = answers_of(&o, true, ways[w].decoys, ways[w].preempt);
        expect_same(ways[w].what, want, got);
        for (size_t i = 0; i < CASES; i++) accepted += got[i].accepted_tokens, preempted += got[i].preemptions;
        answers_free(got, 2 * CASES);
    }
    printf("%zu of %d ended, %zu drafted tokens accepted, %zu preemptions\n", ends, CASES, accepted, preempted);
    assert_true(accepted > 10 && preempted > 5);
    /* The control: without the constraint the same requests answer otherwise. */
    iv_engine *e = open_small();
    for (size_t i = 0; i < CASES; i++) {
        iv_request r = make_case(e, i);
        r.constraint = IV_CONSTRAINT_NONE;
        answer *a = answer_to(e, &r);
        differ += strcmp(a->digest, want[i].digest) != 0;
        answers_free(a, 1);
    }
    iv_engine_close(e);
    assert_true(differ >= CASES - 1);
    answers_free(want, 2 * CASES);
}

/* The text is a prefix of a match, and a whole match if the answer ended without a limit. */
static void answers_are_what_was_wanted(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_vocabulary v;
    iv_error err;
    static const size_t offsets[] = {0, 1};
    ASSERT_OK(iv_vocabulary_make("x", offsets, 1, &v, &err), &err);
    for (size_t i = 0; i < (SANITIZED ? 10 : 60); i++) {
        iv_request r = make_case(e, i);
        iv_grammar *g;
        bool matches, prefix;
        ASSERT_OK(iv_grammar_open(r.constraint, r.constraint_text, r.reasoning, &v, &g, &err), &err);
        answer *a = answer_to(e, &r);
        ASSERT_OK(iv_grammar_matches(g, text_of(a), a->text.len, &matches, &prefix, &err), &err);
        if (!prefix || matches != (a->finish == IV_FINISH_STOP)) /* this seed list has none cut where it could end */
            fail_msg("case %zu, finish %s: %s", i, iv_finish_name(a->finish), text_of(a));
        assert_true(a->finish == IV_FINISH_STOP || a->finish == IV_FINISH_LENGTH);
        answers_free(a, 1);
        iv_grammar_close(g);
    }
    iv_vocabulary_close(&v);
    iv_engine_close(e);
}

/* End tokens are drawn only where the text may end; without them an answer ends where no token is allowed. */
static void how_answers_end(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, question, 50);
    static const int32_t end[] = {220};
    r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = "[ab]{5}";
    answer *a = answer_to(e, &r);
    assert_int_equal(a->finish, IV_FINISH_STOP);
    assert_int_equal(a->text.len, 5);
    r.ignore_eos = true;
    answer *b = answer_to(e, &r);
    assert_int_equal(b->finish, IV_FINISH_STOP);
    assert_string_equal(text_of(a), text_of(b));
    assert_int_equal(b->count + 1, a->count); /* nothing but the end token is less */
    r.stop_ids = end, r.stop_id_count = 1;    /* as a receipt has the model's own */
    answer *c = answer_to(e, &r);
    assert_true(c->finish == IV_FINISH_STOP && c->count == a->count && c->ids[c->count - 1] == 220);
    r.stop_id_count = 0, r.constraint_text = "a*", r.max_tokens = 7; /* it may always end, but need not */
    answer *d = answer_to(e, &r);
    assert_int_equal(d->finish, IV_FINISH_LENGTH);
    r.constraint_text = "()";
    answer *f = answer_to(e, &r);
    assert_int_equal(f->finish, IV_FINISH_ERROR);
    assert_non_null(strstr(f->error, "empty answer"));
    r.ignore_eos = false;
    answer *g = answer_to(e, &r);
    assert_true(g->finish == IV_FINISH_STOP && g->count == 1 && g->text.len == 0);
    answers_free(a, 1), answers_free(b, 1), answers_free(c, 1), answers_free(d, 1), answers_free(f, 1);
    answers_free(g, 1);
    iv_engine_close(e);
}

static void raw_logprobs_are_before_the_mask(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, question, 1);
    r.constraint = IV_CONSTRAINT_CHOICE, r.constraint_text = "[\"q\"]", r.temperature = 1, r.sampling_logprobs = true;
    r.keep_logits = true;
    answer *a = answers_new(1);
    a->vocab = VOCAB, a->logits = malloc(VOCAB * sizeof(float));
    submit(e, &r, a);
    run_all(e, a, 1);
    assert_string_equal(text_of(a), "q");
    assert_true(a->logprobs[0] < -1 && iv_bits(a->sampling_logprobs[0]) == 0); /* the only one that could come */
    for (size_t i = 0; i < 600; i++) assert_true(isfinite(a->logits[i]));
    free(a->logits);
    answers_free(a, 1);
    iv_engine_close(e);
}

static void refusals_name_what_is_wrong(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    uint64_t id;
    iv_request r = ask(e, "x", 5);
    r.constraint = IV_CONSTRAINT_JSON_SCHEMA, r.constraint_text = "{\"items\":{\"not\":{}}}";
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "json_schema: #/items/not: "));
    r.constraint_text = NULL;
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_INVALID);
    r.constraint = (iv_constraint_kind)77;
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_INVALID);
    r.constraint = IV_CONSTRAINT_JSON_OBJECT, r.score_only = true, r.max_tokens = 0;
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "constraint: "));
    iv_engine_close(e);
}

/* Receipts repeat constrained answers; one with another version of constraints is refused. */
static void receipts_repeat_constraints(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_error err;
    for (size_t i = 0; i < CASES; i++) {
        iv_request r = make_case(e, i), again;
        answer *kept = answer_with_receipt(e, &r);
        iv_receipt *receipt = read_receipt(kept->receipt);
        iv_receipt_get_request(receipt, &again);
        assert_true(again.constraint == r.constraint && again.reasoning == r.reasoning);
        assert_string_equal(again.constraint_text, r.constraint_text ? r.constraint_text : "");
        answer *a = answer_to(e, &again);
        if (!r.ignore_eos) assert_same_answer("from its receipt", kept, a);
        assert_string_equal(kept->digest, a->digest);
        iv_receipt_close(receipt);
        char *text = kept->receipt, *version = strstr(text, "\"version\":3");
        assert_non_null(version);
        version[10] = '1';
        assert_int_equal(iv_receipt_read("receipt", text, strlen(text), &receipt, &err), IV_UNSUPPORTED);
        assert_non_null(strstr(err.message, "request.constraint.version"));
        answers_free(kept, 1), answers_free(a, 1);
    }
    iv_engine_close(e);
}

/* More constraints than are kept idle, repeatedly. */
static void many_constraints(void **state) {
    (void)state;
    iv_engine *e = open_small();
    char text[64], first[80] = "";
    for (size_t i = 0; i < 100; i++) {
        snprintf(text, sizeof text, "%c{%zu}", (char)('a' + i % 25), 1 + i % 25);
        iv_request r = ask(e, "x", 40);
        r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = text;
        answer *a = answer_to(e, &r);
        assert_int_equal(a->text.len, 1 + i % 25);
        if (i == 0) snprintf(first, sizeof first, "%s", a->digest);
        if (i == 75) assert_string_equal(a->digest, first);
        answers_free(a, 1);
    }
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_digest_in_every_way),
        cmocka_unit_test(answers_are_what_was_wanted),
        cmocka_unit_test(how_answers_end),
        cmocka_unit_test(raw_logprobs_are_before_the_mask),
        cmocka_unit_test(refusals_name_what_is_wrong),
        cmocka_unit_test(receipts_repeat_constraints),
        cmocka_unit_test(many_constraints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
