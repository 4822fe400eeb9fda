/* Records between a server and its engine process: every kind comes back as it was written, in any pieces; damaged
 * bytes are refused or are another valid record, and are never read past their end. */
#include "serve/engine/frames.h"
#include "random.h"

#include <sys/socket.h>

enum { ROUNDS = 300, DAMAGES = 4000, BIG = 3 << 20 };

static const char *const words[] = {"", "a", "twelve bytes", "sixteen bytes...", "\xe2\x82\xac and more than that"};

static const char *word(rng *r) { return words[rng_below(r, sizeof words / sizeof *words)]; }
static const char *word_or_none(rng *r) { return rng_below(r, 3) ? word(r) : NULL; }
static float real(rng *r) { return (float)rng_below(r, 1000) / 8 - 60; }

/* Arrays of random length, which the records point to. */
typedef struct material {
    int32_t ids[40];
    float reals[40];
    iv_logprob pairs[20];
    iv_logit_bias bias[20];
    const char *stops[IV_STOPS_MAX];
} material;

static void fill_request(rng *r, material *m, iv_request *q) {
    *q = (iv_request){.priority = (int32_t)rng_next(r),
                      .add_special = rng_below(r, 2),
                      .max_tokens = rng_below(r, 100),
                      .temperature = real(r),
                      .top_k = (int32_t)rng_below(r, 100) - 2,
                      .has_seed = rng_below(r, 2),
                      .seed = rng_next(r),
                      .logprobs = (int)rng_below(r, 21) - 1,
                      .prompt_logprobs = -1,
                      .prompt_logprobs_start = rng_below(r, 9),
                      .sampling_logprobs = rng_below(r, 2),
                      .report_kept = rng_below(r, 2),
                      .report_experts = rng_below(r, 2),
                      .constraint = (iv_constraint_kind)rng_below(r, IV_CONSTRAINT_GRAMMAR + 1),
                      .constraint_text = word_or_none(r),
                      .reasoning = (iv_reasoning)rng_below(r, 3),
                      .ignore_eos = rng_below(r, 2),
                      .keep_receipt = rng_below(r, 2)};
    if (rng_below(r, 2))
        q->text = word(r), q->text_bytes = strlen(q->text);
    else
        q->ids = m->ids, q->id_count = rng_below(r, 41);
    q->stop_count = rng_below(r, IV_STOPS_MAX + 1);
    for (size_t i = 0; i < q->stop_count; i++) m->stops[i] = word(r);
    q->stop = q->stop_count ? m->stops : NULL;
    if (rng_below(r, 2)) q->logit_bias = m->bias, q->logit_bias_count = rng_below(r, 21);
    if (rng_below(r, 2)) q->given_ids = m->ids, q->given_logprobs = m->reals, q->given_count = rng_below(r, 41);
}

static void fill_event(rng *r, material *m, iv_event *e) {
    static const char text[] = "with a \0 inside";
    *e = (iv_event){.kind = (iv_event_kind)rng_below(r, 3),
                    .seed = rng_next(r),
                    .text = text,
                    .text_bytes = rng_below(r, sizeof text),
                    .token = (int32_t)rng_next(r),
                    .position = rng_below(r, 5000),
                    .logprob = real(r),
                    .sampling_logprob = real(r)};
    if (rng_below(r, 2)) e->top = m->pairs, e->top_count = rng_below(r, 21);
    if (e->kind != IV_EVENT_DONE) return;
    e->finish = (iv_finish)rng_below(r, 5), e->error = word_or_none(r), e->error_status = IV_LIMIT;
    e->ids = m->ids, e->id_count = rng_below(r, 41), e->digest = word(r), e->receipt = word_or_none(r);
    e->prefill_seconds = 0.25, e->cached_tokens = 7, e->stop = word_or_none(r);
}

static iv_frame random_frame(rng *r, material *m) {
    for (size_t i = 0; i < 40; i++) m->ids[i] = (int32_t)rng_next(r), m->reals[i] = real(r);
    for (size_t i = 0; i < 20; i++) m->pairs[i] = (iv_logprob){(int32_t)i, real(r)}, m->bias[i].id = (int32_t)i;
    iv_frame f = {.kind = (iv_frame_kind)(1 + rng_below(r, IV_FRAME_KINDS - 1)),
                  .id = rng_next(r),
                  .flag = rng_below(r, 2),
                  .status = (iv_status)rng_below(r, IV_NOT_FINITE + 1),
                  .command = (iv_command)rng_below(r, IV_COMMAND_KINDS),
                  .text = word(r),
                  .weight_version = rng_next(r),
                  .done = rng_next(r),
                  .total = rng_next(r),
                  .beat_ms = 5};
    iv_engine_options_init(&f.options);
    f.options.model = word(r), f.options.kv_fraction = 0.5, f.options.threads = rng_below(r, 9);
    f.info = (iv_engine_info){.fingerprint = word(r), .model_type = "m", .dtype = "d", .arithmetic = "a", .isa = "i"};
    f.info.numerics = f.info.device = f.info.gpu = f.info.rank_transport = f.info.weights_digest = word(r);
    f.info.configuration_digest = f.info.tokenizer_digest = f.info.template_digest = f.info.generation_unapplied =
        f.info.sampled_ids_digest = "";
    f.info.vocab_size = 689, f.info.load_seconds = 1.5, f.info.numerics_version = 2;
    f.stats.engine.steps = rng_next(r), f.stats.engine.step_seconds = 3.5, f.stats.paused = rng_below(r, 2);
    snprintf(f.stats.fingerprint, sizeof f.stats.fingerprint, "%s", word(r));
    f.stats.step_tokens[IV_STEP_BUCKETS - 1] = rng_next(r);
    fill_request(r, m, &f.request);
    fill_event(r, m, &f.event);
    static const float reported[] = {-1.5f, -2.25f};
    static const int32_t kept[] = {7, 9, 4};
    static const uint16_t experts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    if (rng_below(r, 2)) f.details.reported = reported, f.details.reported_count = 1 + rng_below(r, 2);
    if (rng_below(r, 2)) f.details.kept = kept, f.details.kept_count = 1 + rng_below(r, 3);
    if (rng_below(r, 2))
        f.details.experts = experts, f.details.expert_rows = 2, f.details.expert_layers = 3,
        f.details.experts_per_token = 2;
    return f;
}

/* A record's bytes at an aligned address, and nothing behind them that may be read. */
static char *aligned_copy(const char *bytes, size_t n) {
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    if (n) memcpy(copy, bytes, n);
    return copy;
}

/* Decodes, encodes again, and returns whether that gave the same bytes. */
static bool comes_back(const char *bytes, size_t n) {
    static iv_frame f;
    iv_error err;
    iv_buf again = {0};
    size_t used;
    char *copy = aligned_copy(bytes, n);
    ASSERT_OK(iv_frame_decode(copy, n, &f, &used, &err), &err);
    assert_int_equal(used, n);
    assert_true(iv_frame_encode(&f, &again));
    bool same = again.len == n && memcmp(again.data, bytes, n) == 0;
    iv_buf_free(&again);
    free(copy);
    return same;
}

static void every_kind_comes_back(void **state) {
    (void)state;
    rng r = rng_start("engine frames");
    static material m;
    bool seen[IV_FRAME_KINDS] = {false};
    for (size_t i = 0; i < ROUNDS; i++) {
        iv_buf out = {0};
        iv_frame f = random_frame(&r, &m);
        seen[f.kind] = true;
        assert_true(iv_frame_encode(&f, &out));
        assert_true(comes_back(out.data, out.len));
        iv_buf_free(&out);
    }
    for (int k = 1; k < IV_FRAME_KINDS; k++) assert_true(seen[k]);
}

/* The members themselves, not only equal bytes. */
static void members_arrive(void **state) {
    (void)state;
    static const int32_t ids[] = {5, -6, 7};
    static const float reals[] = {-1.5f, -0.0f, -3.25f};
    static const char *const stops[] = {"one", "", "three"};
    static iv_frame f, back;
    iv_buf out = {0};
    iv_error err;
    size_t used;
    f = (iv_frame){.kind = IV_FRAME_SUBMIT, .id = 9, .flag = true};
    f.request = (iv_request){.text = "a\0b", .text_bytes = 3, .seed = UINT64_MAX, .has_seed = true, .top_k = -1};
    f.request.stop = stops, f.request.stop_count = 3;
    f.request.given_ids = ids, f.request.given_logprobs = reals, f.request.given_count = 3;
    assert_true(iv_frame_encode(&f, &out));
    ASSERT_OK(iv_frame_decode(out.data, out.len, &back, &used, &err), &err);
    assert_true(back.id == 9 && back.flag && back.request.seed == UINT64_MAX && back.request.top_k == -1);
    assert_true(back.request.text_bytes == 3 && memcmp(back.request.text, "a\0b", 4) == 0 && !back.request.ids);
    assert_int_equal(back.request.size, sizeof back.request);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(back.request.stop[i], stops[i]);
        assert_int_equal(back.request.given_ids[i], ids[i]);
        assert_memory_equal(&back.request.given_logprobs[i], &reals[i], sizeof(float));
    }
    iv_buf_free(&out);
}

/* Flipped bits, cut ends, words of random values. */
static void damage_is_found(void **state) {
    (void)state;
    rng r = rng_start("damaged engine frames");
    static material m;
    static iv_frame f;
    size_t refused = 0, incomplete = 0, valid = 0;
    for (size_t i = 0; i < DAMAGES; i++) {
        iv_buf out = {0}, again = {0};
        iv_error err;
        size_t used;
        f = random_frame(&r, &m);
        assert_true(iv_frame_encode(&f, &out));
        size_t n = out.len;
        if (rng_below(&r, 4) == 0) n = rng_below(&r, n);
        char *copy = aligned_copy(out.data, n);
        for (size_t k = rng_below(&r, 4); n && k > 0; k--) {
            size_t at = rng_below(&r, n) & ~(size_t)7;
            uint64_t value = rng_below(&r, 2) ? rng_next(&r) : rng_below(&r, 70);
            if (rng_below(&r, 2))
                copy[rng_below(&r, n)] ^= (char)(1 << rng_below(&r, 8));
            else if (at + 8 <= n)
                memcpy(copy + at, &value, 8);
        }
        iv_status status = iv_frame_decode(copy, n, &f, &used, &err);
        if (status != IV_OK) {
            assert_int_equal(status, IV_FORMAT);
            refused++;
        } else if (used == 0) {
            incomplete++;
        } else {
            assert_true(used <= n && iv_frame_encode(&f, &again));
            assert_true(comes_back(again.data, again.len));
            valid++;
        }
        iv_buf_free(&out), iv_buf_free(&again);
        free(copy);
    }
    printf("%zu refused, %zu incomplete, %zu other records\n", refused, incomplete, valid);
    assert_true(refused > DAMAGES / 10 && incomplete > DAMAGES / 20 && valid > DAMAGES / 50);
}

static void headers_are_checked(void **state) {
    (void)state;
    static iv_frame f;
    iv_error err;
    iv_buf out = {0};
    size_t used;
    assert_true(iv_frame_encode(&(iv_frame){.kind = IV_FRAME_CANCEL, .id = 3}, &out));
    static const struct {
        size_t at;
        unsigned char value;
    } wrong[] = {{0, 'X'}, {4, 2}, {6, 0}, {6, IV_FRAME_KINDS}, {8, 9}, {12, 0x80}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char before = out.data[wrong[i].at];
        out.data[wrong[i].at] = (char)wrong[i].value;
        assert_int_equal(iv_frame_decode(out.data, out.len, &f, &used, &err), IV_FORMAT);
        out.data[wrong[i].at] = before;
    }
    iv_buf_free(&out);
    assert_false(iv_frame_encode(&(iv_frame){.kind = IV_FRAME_KINDS}, &out));
    assert_int_equal(out.len, 0);
    iv_buf_free(&out);
}

/* Through a socket, in pieces of any size, with one record larger than every buffer. */
static void pieces_arrive_whole(void **state) {
    (void)state;
    rng r = rng_start("engine frames through a socket");
    static material m;
    static iv_frame f;
    int pair[2];
    iv_frame_writer w = {0};
    iv_frame_reader in = {0};
    iv_buf all = {0}, got_all = {0};
    iv_error err;
    char *big = malloc(BIG + 1);
    assert_non_null(big);
    memset(big, 'x', BIG), big[BIG] = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    size_t wanted = 200, sent = 0, got_count = 0;
    while (got_count < wanted) {
        if (sent < wanted) {
            f = random_frame(&r, &m);
            if (sent++ == 100) f.kind = IV_FRAME_SUBMIT, f.request.text = big, f.request.text_bytes = BIG;
            assert_true(iv_frame_encode(&f, &w.buf) && iv_frame_encode(&f, &all));
        }
        assert_true(iv_frame_send(&w, pair[0]));
        for (size_t reads = 0; reads < 3 && iv_frame_receive(&in, pair[1]) == IV_FRAME_IO_MORE; reads++) continue;
        const char *raw;
        size_t raw_bytes;
        for (bool got = true; got;) {
            ASSERT_OK(iv_frame_next(&in, &f, &got, &raw, &raw_bytes, &err), &err);
            if (!got) break;
            got_count++;
            assert_true(iv_frame_encode(&f, &got_all));
        }
    }
    assert_int_equal(got_all.len, all.len);
    assert_memory_equal(got_all.data, all.data, all.len);
    assert_int_equal(iv_frame_receive(&in, pair[1]), IV_FRAME_IO_NONE);
    close(pair[0]);
    assert_int_equal(iv_frame_receive(&in, pair[1]), IV_FRAME_IO_END);
    close(pair[1]);
    iv_buf_free(&all), iv_buf_free(&got_all);
    iv_frame_writer_free(&w), iv_frame_reader_free(&in);
    free(big);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind_comes_back), cmocka_unit_test(members_arrive),
                                       cmocka_unit_test(damage_is_found), cmocka_unit_test(headers_are_checked),
                                       cmocka_unit_test(pieces_arrive_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
