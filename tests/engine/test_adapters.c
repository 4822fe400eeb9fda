/* Adapters of low rank through whole engines: PEFT's logits, one set of bits for an adapter whatever stands next to
 * it, loads and unloads while requests run, and what is refused. */
#include "client.h"
#include "engine/adapters.h"
#include "base/file.h"
#include "device/memory.h"
#include "format/safetensors.h"
#include "format/scratch.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKENS = 12, CASES = 9, ANSWER = 40 };

static const struct {
    const char *adapter, *model;
    size_t ranks; /* more than one, with which it is run, too */
} golden[] = {{"qwen3", "hf/qwen3", 4},
              {"qwen3_ends", "hf/qwen3", 3},
              {"qwen2_tied", "hf/qwen2", 2},
              {"qwen3_moe", "hf/qwen3_moe", 4},
              {"phi3", "families/phi3_a", 1},
              {"lfm2", "families/lfm2_a", 1},
              {"gemma4", "families/gemma4_text_a", 1}};

static const char *data(const char *below) {
    static char path[64][400];
    static size_t next;
    char *out = path[next++ % 64];
    snprintf(out, sizeof path[0], "%s/tests/data/%s", INVAR_SOURCE_DIR, below);
    return out;
}

static const char *adapter_dir(const char *name) {
    char below[200];
    snprintf(below, sizeof below, "adapters/%s", name);
    return data(below);
}

static iv_engine_options options_for(const char *model) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = model, o.device = "cpu", o.threads = 1, o.max_model_len = 512, o.max_loras = 4;
    o.kv_bytes = (size_t)8 << 20;
    return o;
}

static void load(iv_engine *e, const char *name, const char *dir) {
    iv_error err;
    ASSERT_OK(iv_engine_load_adapter(e, name, dir, &err), &err);
}

/* ---- values ------------------------------------------------------------------------------------------------ */

static void read_reference(const char *adapter, int32_t *ids, float *logits, size_t vocab) {
    char below[200];
    iv_arena arena = {0};
    iv_tensor_info *t;
    size_t count;
    iv_error err;
    struct stat st;
    snprintf(below, sizeof below, "adapters/%s/reference.safetensors", adapter);
    const char *path = data(below);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    ASSERT_OK(iv_safetensors_read(path, fd, (size_t)st.st_size, &arena, &t, &count, &err), &err);
    assert_int_equal(count, 2);
    for (size_t i = 0; i < count; i++) {
        bool is_ids = strcmp(t[i].name, "input_ids") == 0;
        assert_int_equal(t[i].elements, is_ids ? TOKENS : TOKENS * vocab);
        assert_int_equal(pread(fd, is_ids ? (void *)ids : (void *)logits, t[i].bytes, (off_t)t[i].offset), t[i].bytes);
    }
    close(fd);
    iv_arena_free(&arena);
}

/* Largest difference, over the largest logit. */
static double difference(const float *a, const float *b, size_t n) {
    double most = 0, size = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - b[i])), size = fmax(size, fabs((double)b[i]));
    return most / size;
}

static void logits_are_pefts(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof golden / sizeof *golden; c++) {
        iv_engine_options o = options_for(data(golden[c].model));
        int32_t ids[TOKENS];
        iv_error err;
        o.dtype = "float32";
        iv_engine *e = open_with(&o);
        iv_engine_info info;
        iv_engine_get_info(e, &info);
        size_t n = TOKENS * info.vocab_size;
        float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got), *base = calloc(n, sizeof *base);
        assert_true(want && got && base);
        load(e, "a", adapter_dir(golden[c].adapter));
        read_reference(golden[c].adapter, ids, want, info.vocab_size);
        ASSERT_OK(iv_engine_logits_with(e, "a", ids, TOKENS, got, &err), &err);
        ASSERT_OK(iv_engine_logits(e, ids, TOKENS, base, &err), &err);
        double apart = difference(got, want, n), effect = difference(base, want, n);
        printf("%s: %.2g from PEFT in float64, the base alone %.2g\n", golden[c].adapter, apart, effect);
        assert_true(apart < 3e-6 && effect > 0.1);
        iv_engine_close(e);
        o.tensor_parallel_size = golden[c].ranks, o.isa = "scalar";
        e = open_with(&o);
        load(e, "b", adapter_dir(golden[c].adapter));
        ASSERT_OK(iv_engine_logits_with(e, "b", ids, TOKENS, want, &err), &err);
        assert_memory_equal(got, want, n * sizeof *got);
        iv_engine_close(e);
        free(want), free(got), free(base);
    }
}

/* ---- bits -------------------------------------------------------------------------------------------------- */

typedef struct way {
    const char *name, *speculative, *isa, *dtype, *arithmetic;
    size_t chunk, seqs, threads, ranks;
    bool caching, preempts, alone; /* alone: one adapter is loaded at a time */
} way;

/* A copy of an adapter with other numbers in its configuration. */
static void copy_adapter(const scratch *to, const char *from, const char *config) {
    char path[500];
    iv_buf bytes = {0};
    iv_error err;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", from);
    ASSERT_OK(iv_file_read(path, 1 << 24, &bytes, &err), &err);
    scratch_write(to, "adapter_model.safetensors", bytes.data, bytes.len);
    iv_buf_free(&bytes);
    scratch_write(to, "adapter_config.json", config, strlen(config));
}

static const char other_scale[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":5,\"target_modules\":"
                                  "[\"gate\",\"gate_proj\",\"up_proj\",\"down_proj\"]}";

static const char *const names[] = {NULL, "one", "two"};

/* Three adapters in turn; beginnings of some in common, so that a cache that mixed them would be found. */
static size_t make_prompt(size_t i, int32_t *ids) {
    static const size_t lengths[3] = {200, 150, 3};
    for (size_t t = 0; t < lengths[i / 3]; t++) ids[t] = (int32_t)((t * t % 251 + t) % 300);
    return lengths[i / 3];
}

static void run_cases(iv_engine *e, const way *w, const char *second, answer *a) {
    iv_error err;
    size_t steps = 0;
    if (!w->alone) load(e, "one", adapter_dir("qwen3_moe")), load(e, "two", second);
    for (size_t i = 0; i < CASES; i++) {
        int32_t ids[512];
        iv_request r = ask_ids(e, ids, make_prompt(i, ids), ANSWER);
        r.temperature = i % 2 ? 0.7f : 0.0f, r.seed = i, r.adapter = names[i % 3];
        if (w->alone && r.adapter) load(e, r.adapter, i % 3 == 1 ? adapter_dir("qwen3_moe") : second);
        submit(e, &r, &a[i]);
        if (!w->alone) continue;
        run_all(e, &a[i], 1);
        if (r.adapter) ASSERT_OK(iv_engine_unload_adapter(e, r.adapter, &err), &err);
    }
    for (bool busy = !w->alone; busy; steps++) {
        if (w->preempts && steps % 5 == 4) iv_engine_preempt(e, a[steps / 5 % CASES].request, &err);
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, CASES);
    }
    if (w->alone) return;
    ASSERT_OK(iv_engine_unload_adapter(e, "one", &err), &err);
    ASSERT_OK(iv_engine_unload_adapter(e, "two", &err), &err);
}

static answer *run_way(const way *w, const char *second, uint64_t *cached) {
    iv_engine_options o = options_for(data("hf/qwen3_moe"));
    o.threads = w->threads, o.tensor_parallel_size = w->ranks, o.max_num_batched_tokens = w->chunk;
    o.max_num_seqs = w->seqs, o.isa = w->isa ? w->isa : "auto", o.speculative = w->speculative ? w->speculative : "off";
    o.prefix_caching = w->caching, o.dtype = w->dtype ? w->dtype : "auto";
    o.arithmetic = w->arithmetic ? w->arithmetic : "auto";
    iv_engine *e = open_with(&o);
    answer *a = answers_new(CASES);
    for (int round = 0; round < 1 + w->caching; round++) { /* the answers of the second round, from the cache */
        answers_free(a, CASES);
        a = answers_new(CASES);
        run_cases(e, w, second, a);
    }
    *cached = 0;
    for (size_t i = 0; i < CASES; i++) *cached += a[i].cached_tokens;
    iv_engine_close(e);
    return a;
}

static void one_digest_an_adapter(void **state) {
    (void)state;
    static const way ways[] = {
        {.name = "mixed", .chunk = 512, .seqs = 9, .threads = 1, .ranks = 1},
        {.name = "chunks of 17", .chunk = 17, .seqs = 5, .threads = 2, .ranks = 1, .isa = "scalar"},
        {.name = "cached", .chunk = 300, .seqs = 9, .threads = 2, .ranks = 1, .caching = true},
        {.name = "preempted", .chunk = 100, .seqs = 9, .threads = 1, .ranks = 1, .caching = true, .preempts = true},
        {.name = "drafts", .chunk = 256, .seqs = 9, .threads = 1, .ranks = 1, .speculative = "ngram"},
        {.name = "two ranks", .chunk = 256, .seqs = 9, .threads = 2, .ranks = 2, .caching = true},
        {.name = "three ranks", .chunk = 31, .seqs = 9, .threads = 3, .ranks = 3}};
    static const char *const arithmetics[] = {"fma32", "tc16"};
    scratch s;
    uint64_t cached;
    scratch_open(&s);
    copy_adapter(&s, adapter_dir("qwen3_moe"), other_scale);
    for (size_t k = 0; k < 2; k++) {
        way alone = {.name = "alone", .chunk = 512, .seqs = 1, .threads = 1, .ranks = 1, .alone = true};
        alone.arithmetic = arithmetics[k];
        answer *want = run_way(&alone, s.dir, &cached);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w += 1 + SANITIZED) {
            way here = ways[w];
            here.arithmetic = arithmetics[k];
            answer *got = run_way(&here, s.dir, &cached);
            for (size_t i = 0; i < CASES; i++) assert_same_answer(here.name, &want[i], &got[i]);
            assert_true(!here.caching || cached > 600);
            answers_free(got, CASES);
        }
        for (size_t i = 0; i < CASES; i += 3) { /* the control: the two differ by their scale alone */
            assert_string_not_equal(want[i].digest, want[i + 1].digest);
            assert_string_not_equal(want[i + 1].digest, want[i + 2].digest);
        }
        answers_free(want, CASES);
    }
    scratch_close(&s);
}

static void the_base_keeps_its_bits(void **state) {
    (void)state;
    static const int32_t ids[] = {5, 9, 100, 42, 7};
    answer *a[2];
    for (size_t i = 0; i < 2; i++) {
        iv_engine_options o = options_for(data("hf/qwen3_moe"));
        if (i == 0) o.max_loras = 0;
        iv_engine *e = open_with(&o);
        if (i == 1) load(e, "one", adapter_dir("qwen3_moe"));
        iv_request r = ask_ids(e, ids, 5, 30);
        a[i] = answer_to(e, &r);
        iv_engine_close(e);
    }
    assert_same_answer("next to an adapter", a[0], a[1]);
    answers_free(a[0], 1), answers_free(a[1], 1);
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* What is set aside is at least what an adapter of this rank takes. */
static void room_is_enough(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof golden / sizeof *golden; c++)
        for (size_t ranks = 1; ranks <= golden[c].ranks; ranks++) {
            iv_engine_options o = options_for(data(golden[c].model));
            iv_adapter_info info = {.size = sizeof info};
            size_t room;
            o.tensor_parallel_size = ranks;
            iv_engine *e = open_with(&o);
            load(e, "a", adapter_dir(golden[c].adapter));
            assert_true(iv_engine_adapter_at(e, 0, &info));
            assert_true(iv_adapters_room(e->model, ranks, info.rank, &room));
            if (room < info.bytes)
                fail_msg("%s on %zu ranks: %zu bytes set aside, %zu taken", golden[c].adapter, ranks, room, info.bytes);
            iv_engine_close(e);
        }
}

static size_t kv_tokens_with(size_t max_loras, size_t rank) {
    iv_engine_options o = options_for(data("hf/qwen3"));
    iv_engine_info info;
    o.kv_bytes = 0, o.kv_fraction = 0.002, o.max_num_seqs = 4;
    o.max_loras = max_loras, o.max_lora_rank = rank;
    iv_engine *e = open_with(&o);
    iv_engine_get_info(e, &info);
    iv_engine_close(e);
    return info.kv_tokens;
}

/* The KV cache leaves room for max_loras of max_lora_rank. The free memory of a shared machine varies. */
static void the_cache_leaves_room(void **state) {
    (void)state;
    enum { RANK = 4096 };
    iv_engine_options o = options_for(data("hf/qwen3"));
    iv_error err;
    iv_engine *e = open_with(&o);
    size_t one, memory = iv_memory_available();
    assert_true(iv_adapters_room(e->model, 1, RANK, &one));
    iv_engine_close(e);
    size_t count = memory / 10 * 4 / one;
    assert_in_range(count, 1, IV_ADAPTERS_MAX);
    size_t all = kv_tokens_with(0, RANK), less = kv_tokens_with(count, RANK);
    printf("%zu adapters of %zu bytes in %zu: %zu tokens of %zu are left\n", count, one, memory, less, all);
    assert_true(less < all / 100 * 85 && less > all / 4);
    o.kv_bytes = 0, o.max_loras = count * 2, o.max_lora_rank = RANK;
    assert_int_equal(iv_engine_open(&o, &e, &err), IV_LIMIT);
    assert_non_null(strstr(err.message, "max_loras"));
}

/* ---- loads while requests run ------------------------------------------------------------------------------ */

/* Names change hands in mid-answer: each request ends with the adapter that it began with. */
static void loads_and_unloads(void **state) {
    (void)state;
    enum { STREAMS = 24, TURNS = 60 };
    static const int32_t ids[] = {5, 9, 100, 42, 7, 8, 9, 10};
    iv_engine_options o = options_for(data("hf/qwen3_moe"));
    scratch s;
    iv_error err;
    o.max_loras = 2, o.max_num_seqs = STREAMS;
    scratch_open(&s);
    copy_adapter(&s, adapter_dir("qwen3_moe"), other_scale);
    iv_engine *e = open_with(&o);
    const char *dirs[2] = {adapter_dir("qwen3_moe"), s.dir};
    answer *want[2], *a = answers_new(STREAMS);
    for (size_t i = 0; i < 2; i++) {
        load(e, "x", dirs[i]);
        iv_request r = ask_ids(e, ids, 8, ANSWER);
        r.adapter = "x";
        want[i] = answer_to(e, &r);
        ASSERT_OK(iv_engine_unload_adapter(e, "x", &err), &err);
    }
    assert_string_not_equal(want[0]->digest, want[1]->digest);
    size_t of[STREAMS] = {0}, ended = 0, begun = 0;
    for (size_t turn = 0; ended < STREAMS * 4 || begun < STREAMS * 4; turn++) {
        load(e, "x", dirs[turn % 2]);
        for (size_t i = 0; i < STREAMS && begun < STREAMS * 4; i++) {
            if (a[i].request && !a[i].done_events) continue;
            if (a[i].done_events) assert_same_answer("after unloads", want[of[i]], &a[i]), ended++;
            iv_buf_free(&a[i].text);
            a[i] = (answer){0};
            iv_request r = ask_ids(e, ids, 8, ANSWER);
            r.adapter = "x", of[i] = turn % 2, begun++;
            submit(e, &r, &a[i]);
            if (i % 3 == turn % 3) break;
        }
        bool busy;
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, STREAMS);
        ASSERT_OK(iv_engine_unload_adapter(e, "x", &err), &err);
        if (begun == STREAMS * 4) {
            run_all(e, a, STREAMS);
            for (size_t i = 0; i < STREAMS; i++) assert_same_answer("at the end", want[of[i]], &a[i]);
            break;
        }
    }
    ASSERT_OK(iv_adapters_sweep(e, &err), &err);
    iv_engine_next_event(e, &(iv_event){0}); /* frees the last sequence */
    ASSERT_OK(iv_adapters_sweep(e, &err), &err);
    for (size_t i = 0; i < e->adapters.count; i++) assert_null(e->loaded[i]);
    iv_engine_close(e);
    answers_free(a, STREAMS), answers_free(want[0], 1), answers_free(want[1], 1);
    scratch_close(&s);
}

/* A name gets another adapter in one step, also where max_loras are loaded; an error leaves it what it had. */
static void replaced_in_mid_answer(void **state) {
    (void)state;
    static const int32_t ids[] = {5, 9, 100, 42, 7, 8, 9, 10};
    iv_engine_options o = options_for(data("hf/qwen3_moe"));
    scratch s;
    iv_error err;
    o.max_loras = 1;
    scratch_open(&s);
    copy_adapter(&s, adapter_dir("qwen3_moe"), other_scale);
    const char *dirs[2] = {adapter_dir("qwen3_moe"), s.dir};
    iv_engine *e = open_with(&o);
    answer *want[2], *a = answers_new(2);
    for (size_t i = 0; i < 2; i++) {
        iv_request r = ask_ids(e, ids, 8, ANSWER);
        ASSERT_OK(iv_engine_replace_adapter(e, "x", dirs[i], &err), &err);
        r.adapter = "x", want[i] = answer_to(e, &r);
    }
    assert_string_not_equal(want[0]->digest, want[1]->digest);
    for (size_t i = 0; i < 2; i++) {
        bool busy;
        iv_request r = ask_ids(e, ids, 8, ANSWER);
        ASSERT_OK(iv_engine_replace_adapter(e, "x", dirs[i], &err), &err);
        r.adapter = "x";
        submit(e, &r, &a[i]);
        for (size_t k = 0; k < 5; k++) {
            ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
            take_events(e, a, 2);
        }
        assert_int_not_equal(iv_engine_replace_adapter(e, "x", "/nowhere", &err), IV_OK);
    }
    run_all(e, a, 2);
    for (size_t i = 0; i < 2; i++) assert_same_answer("replaced", want[i], &a[i]);
    iv_adapter_info info = {.size = sizeof info};
    assert_true(iv_engine_adapter_at(e, 0, &info) && strcmp(info.path, s.dir) == 0);
    assert_false(iv_engine_adapter_at(e, 1, &info));
    iv_engine_close(e);
    answers_free(a, 2), answers_free(want[0], 1), answers_free(want[1], 1);
    scratch_close(&s);
}

/* ---- receipts ---------------------------------------------------------------------------------------------- */

/* A receipt names the adapter by its digest, whatever it is called where it is computed again. */
static void receipts_name_the_adapter(void **state) {
    (void)state;
    static const int32_t ids[] = {5, 9, 100};
    iv_engine_options o = options_for(data("hf/qwen3_moe"));
    iv_error err;
    iv_engine *e = open_with(&o);
    load(e, "one", adapter_dir("qwen3_moe"));
    iv_request r = ask_ids(e, ids, 3, 8), again;
    r.adapter = "one";
    answer *a = answer_with_receipt(e, &r);
    iv_receipt *receipt = read_receipt(a->receipt);
    iv_receipt_info info;
    iv_receipt_get_info(receipt, &info);
    assert_non_null(strstr(info.maker.fingerprint, "+lora-"));
    ASSERT_OK(iv_engine_unload_adapter(e, "one", &err), &err);
    assert_int_equal(iv_receipt_match(receipt, e, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "adapter"));
    load(e, "another name", adapter_dir("qwen3_moe"));
    ASSERT_OK(iv_receipt_match(receipt, e, &err), &err);
    iv_receipt_get_request(receipt, &again);
    answer *b = answer_to(e, &again);
    assert_string_equal(a->digest, b->digest);
    iv_receipt_close(receipt);
    iv_engine_close(e);
    answers_free(a, 1), answers_free(b, 1);
}

/* ---- errors ------------------------------------------------------------------------------------------------ */

static void expect(iv_status wanted, iv_status found, const iv_error *err, const char *part) {
    if (wanted != found || !strstr(err->message, part))
        fail_msg("wanted %s with '%s', found %s: %s", iv_status_name(wanted), part, iv_status_name(found),
                 err->message);
}

static void refused(void **state) {
    (void)state;
    iv_engine_options o = options_for(data("hf/qwen3_moe"));
    static const int32_t ids[] = {5};
    iv_error err = {0};
    uint64_t id;
    o.max_loras = 1, o.max_lora_rank = 8;
    iv_engine *e = open_with(&o);
    iv_request r = ask_ids(e, ids, 1, 4);
    r.adapter = "none";
    expect(IV_NOT_FOUND, iv_engine_submit(e, &r, &id, &err), &err, "none is");
    expect(IV_NOT_FOUND, iv_engine_unload_adapter(e, "none", &err), &err, "'none'");
    expect(IV_NOT_FOUND, iv_engine_load_adapter(e, "a", "/nowhere", &err), &err, "adapter_config.json");
    expect(IV_FORMAT, iv_engine_load_adapter(e, "a", adapter_dir("lfm2"), &err), &err, "wanted a linear layer");
    expect(IV_INVALID, iv_engine_load_adapter(e, "", adapter_dir("qwen3_moe"), &err), &err, "a name of 1 to");
    expect(IV_INVALID, iv_engine_load_adapter(e, "a\nb", adapter_dir("qwen3_moe"), &err), &err, "control");
    load(e, "a", adapter_dir("qwen3_moe"));
    expect(IV_INVALID, iv_engine_load_adapter(e, "a", adapter_dir("qwen3_moe"), &err), &err, "loaded already");
    expect(IV_BUSY, iv_engine_load_adapter(e, "b", adapter_dir("qwen3_moe"), &err), &err, "max_loras");
    expect(IV_NOT_FOUND, iv_engine_submit(e, &r, &id, &err), &err, "(a)");
    iv_adapter_info info = {.size = sizeof info};
    assert_true(iv_engine_adapter_at(e, 0, &info) && !iv_engine_adapter_at(e, 1, &(iv_adapter_info){0}));
    assert_string_equal(info.name, "a");
    assert_int_equal(info.rank, 2);
    assert_non_null(strstr(info.fingerprint, "+lora-"));
    char by_digest[80];
    snprintf(by_digest, sizeof by_digest, "sha256:%s", info.digest);
    r.adapter = by_digest;
    answer *a = answer_to(e, &r);
    answers_free(a, 1);
    iv_engine_close(e);
    o.max_lora_rank = 1;
    e = open_with(&o);
    expect(IV_LIMIT, iv_engine_load_adapter(e, "a", adapter_dir("qwen3_moe"), &err), &err, "max_lora_rank");
    iv_engine_close(e);
    o.max_loras = 0;
    e = open_with(&o);
    expect(IV_INVALID, iv_engine_load_adapter(e, "a", adapter_dir("qwen3_moe"), &err), &err, "max_loras 1 or more");
    iv_engine_close(e);
    o.max_loras = 1, o.max_lora_rank = 0;
    expect(IV_INVALID, iv_engine_open(&o, &e, &err), &err, "max_lora_rank: wanted 1 to");
    o.max_lora_rank = 8, o.numerics = "vanilla";
    expect(IV_UNSUPPORTED, iv_engine_open(&o, &e, &err), &err, "numerics invar");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_pefts),
                                       cmocka_unit_test(one_digest_an_adapter),
                                       cmocka_unit_test(the_base_keeps_its_bits),
                                       cmocka_unit_test(loads_and_unloads),
                                       cmocka_unit_test(receipts_name_the_adapter),
                                       cmocka_unit_test(refused),
                                       cmocka_unit_test(room_is_enough),
                                       cmocka_unit_test(the_cache_leaves_room),
                                       cmocka_unit_test(replaced_in_mid_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
