/* Every field of iv_trainer_options and iv_policy_options: it changes the result, or never does, or is refused where it
 * could not. A field that invar_train.h has and no row here tries fails the test. */
#include "base/file.h"
#include "train/public_case.h"

#include <math.h>
#include <stdlib.h>

typedef enum effect { CHANGES, NEVER, REFUSED } effect;

/* ---- the trainer ------------------------------------------------------------------------------------------------- */

static void set_nothing(iv_trainer_options *o) { (void)o; }
#define SETTER(name, ...) \
    static void name(iv_trainer_options *o) { __VA_ARGS__; }
SETTER(other_model, o->model = INVAR_SOURCE_DIR "/tests/data/hf/qwen3_moe")
SETTER(dummy, o->load_format = "dummy")
SETTER(dummy_one, o->load_format = "dummy", o->dummy_seed = 1)
SETTER(seed_alone, o->dummy_seed = 1)
SETTER(float32, o->dtype = "float32")
SETTER(tc16, o->arithmetic = "tc16")
SETTER(one_chain, o->virtual_ranks = 1)
SETTER(beta1, o->beta1 = 0.5)
SETTER(beta2, o->beta2 = 0.5)
SETTER(eps, o->eps = 0.1)
SETTER(decay, o->weight_decay = 0.5)
SETTER(decay_all, o->decay_all = true)
SETTER(decay_all_of_none, o->decay_all = true, o->weight_decay = 0)
SETTER(run, o->run = "{\"seed\": 1}")
SETTER(no_optimizer, o->no_optimizer = true)
SETTER(scalar, o->isa = "scalar")
SETTER(threads, o->threads = 3)
SETTER(two_ranks, o->data_parallel = 2)
SETTER(two_parts, o->tensor_parallel = 2)
SETTER(short_passes, o->pass_tokens = 64)
SETTER(micro_batch, o->micro_batch = 1)
SETTER(layer, o->recompute = "layer")
SETTER(any_device, o->device = "auto", o->arithmetic = "fma32")
SETTER(offload, o->offload_optimizer = true)
SETTER(lora, o->lora_rank = 4)
SETTER(wider, o->lora_rank = 5)
SETTER(alpha, o->lora_rank = 4, o->lora_alpha = 9)
SETTER(some, o->lora_rank = 4, o->lora_targets = "q_proj,o_proj")
SETTER(rslora, o->lora_rank = 4, o->lora_rslora = true)
SETTER(lora_seed, o->lora_rank = 4, o->lora_seed = 1)
SETTER(alpha_alone, o->lora_alpha = 9)
SETTER(targets_alone, o->lora_targets = "q_proj")
SETTER(rslora_alone, o->lora_rslora = true)
SETTER(lora_seed_alone, o->lora_seed = 1)
SETTER(from, o->lora = INVAR_SOURCE_DIR "/tests/data/adapters/qwen3")
SETTER(both, o->lora_rank = 4, o->lora = INVAR_SOURCE_DIR "/tests/data/adapters/qwen3")
SETTER(base_alone, o->base = (iv_engine *)o)

static const struct {
    const char *field;
    effect effect;
    void (*one)(iv_trainer_options *o), (*other)(iv_trainer_options *o);
    const char *error;
} trainer_rows[] = {
    {"model", CHANGES, other_model, set_nothing, NULL},
    {"load_format", CHANGES, dummy, set_nothing, NULL},
    {"dummy_seed", CHANGES, dummy_one, dummy, NULL},
    {"dummy_seed", REFUSED, seed_alone, NULL, "dummy_seed: wanted load_format dummy, found auto"},
    {"dtype", CHANGES, float32, set_nothing, NULL},
    {"arithmetic", CHANGES, tc16, set_nothing, NULL},
    {"virtual_ranks", CHANGES, one_chain, set_nothing, NULL},
    {"beta1", CHANGES, beta1, set_nothing, NULL},
    {"beta2", CHANGES, beta2, set_nothing, NULL},
    {"eps", CHANGES, eps, set_nothing, NULL},
    {"weight_decay", CHANGES, decay, set_nothing, NULL},
    {"decay_all", CHANGES, decay_all, set_nothing, NULL},
    {"decay_all", REFUSED, decay_all_of_none, NULL, "decay_all: wanted weight_decay above 0"},
    {"run", NEVER, run, set_nothing, NULL},
    {"no_optimizer", REFUSED, no_optimizer, NULL, "was opened with no_optimizer"},
    {"isa", NEVER, scalar, set_nothing, NULL},
    {"threads", NEVER, threads, set_nothing, NULL},
    {"data_parallel", NEVER, two_ranks, set_nothing, NULL},
    {"tensor_parallel", NEVER, two_parts, set_nothing, NULL},
    {"pass_tokens", NEVER, short_passes, set_nothing, NULL},
    {"micro_batch", NEVER, micro_batch, set_nothing, NULL},
    {"recompute", NEVER, layer, set_nothing, NULL},
    {"device", NEVER, any_device, set_nothing, NULL},
    {"lora_rank", CHANGES, lora, set_nothing, NULL},
    {"lora_rank", CHANGES, wider, lora, NULL},
    {"lora_rank", REFUSED, both, NULL, "lora_rank: wanted lora to be left out"},
    {"lora_alpha", CHANGES, alpha, lora, NULL},
    {"lora_alpha", REFUSED, alpha_alone, NULL, "lora_alpha: wanted lora_rank of 1 or more"},
    {"lora_targets", CHANGES, some, lora, NULL},
    {"lora_targets", REFUSED, targets_alone, NULL, "lora_targets: wanted lora_rank of 1 or more"},
    {"lora_rslora", CHANGES, rslora, lora, NULL},
    {"lora_rslora", REFUSED, rslora_alone, NULL, "lora_rslora: wanted lora_rank of 1 or more"},
    {"lora_seed", CHANGES, lora_seed, lora, NULL},
    {"lora_seed", REFUSED, lora_seed_alone, NULL, "lora_seed: wanted lora_rank of 1 or more"},
    {"lora", CHANGES, from, set_nothing, NULL},
    {"base", REFUSED, base_alone, NULL, "base: wanted an adapter that learns"}, /* never a bit: test_adapters.c */
    {"offload_optimizer", REFUSED, offload, NULL, "offload_optimizer: wanted device cuda, found the CPU"},
};
enum { TRAINER_ROWS = sizeof trainer_rows / sizeof *trainer_rows };

/* Two steps on the same batch: the hash of the weights, or an error. */
static iv_status two_steps(void (*set)(iv_trainer_options *o), char hash[65], iv_error *err) {
    static owned_batch b;
    iv_trainer *t;
    iv_trainer_metrics m;
    if (!b.batch.count) {
        rng r = rng_start("options");
        batch_random(&r, &b);
    }
    iv_trainer_options o = trainer_options();
    set(&o);
    iv_status status = iv_trainer_open(&o, &t, err);
    if (status != IV_OK) return status;
    for (int i = 0; status == IV_OK && i < 2; i++) status = iv_trainer_step(t, &b.batch, 1e-3, 1.0, err);
    iv_trainer_get_metrics(t, &m);
    memcpy(hash, m.weights_hash, 65);
    iv_trainer_close(t);
    return status;
}

static void trainer_fields_do_what_their_rows_say(void **state) {
    (void)state;
    iv_error err;
    char one[65], other[65], base[65];
    ASSERT_OK(two_steps(set_nothing, base, &err), &err);
    for (size_t i = 0; i < TRAINER_ROWS; i++) {
        const char *field = trainer_rows[i].field;
        iv_status status = two_steps(trainer_rows[i].one, one, &err);
        if (trainer_rows[i].effect == REFUSED) {
            if (status != IV_INVALID || !strstr(err.message, trainer_rows[i].error))
                fail_msg("%s: wanted '%s', found status %d: %s", field, trainer_rows[i].error, status, err.message);
            continue;
        }
        if (status != IV_OK) fail_msg("%s: %s", field, err.message);
        memcpy(other, base, sizeof other);
        if (trainer_rows[i].other != set_nothing) ASSERT_OK(two_steps(trainer_rows[i].other, other, &err), &err);
        if ((strcmp(one, other) == 0) != (trainer_rows[i].effect == NEVER))
            fail_msg("%s: wanted %s, found %.12s and %.12s", field,
                     trainer_rows[i].effect == NEVER ? "one hash" : "two hashes", one, other);
    }
}

/* ---- the policy -------------------------------------------------------------------------------------------------- */

#define POLICY(...) ((iv_policy_options){.size = sizeof(iv_policy_options), __VA_ARGS__})
#define OWN .eps_low = -1, .eps_high = -1, .correction_cap = -1
#define PLAIN(name) .algorithm = name, .correction = "none"

static const struct {
    const char *field;
    effect effect;
    iv_policy_options one, other;
    const char *error;
} policy_rows[] = {
    {"algorithm", CHANGES, POLICY(OWN, PLAIN("reinforce")), POLICY(OWN, PLAIN("grpo")), NULL},
    {"algorithm", CHANGES, POLICY(OWN, PLAIN("rloo")), POLICY(OWN, PLAIN("grpo")), NULL},
    {"algorithm", CHANGES, POLICY(OWN, PLAIN("dapo")), POLICY(OWN, PLAIN("grpo")), NULL},
    {"algorithm", CHANGES, POLICY(OWN, PLAIN("gspo")), POLICY(OWN, PLAIN("grpo")), NULL},
    {"max_completion", CHANGES, POLICY(OWN, PLAIN("dr-grpo"), .max_completion = 5),
     POLICY(OWN, PLAIN("dr-grpo"), .max_completion = 9), NULL},
    {"max_completion", NEVER, POLICY(OWN, PLAIN("grpo"), .max_completion = 5), POLICY(OWN, PLAIN("grpo")), NULL},
    {"eps_low", CHANGES, POLICY(PLAIN("grpo"), .eps_low = 0.9, .eps_high = -1, .correction_cap = -1),
     POLICY(OWN, PLAIN("grpo")), NULL},
    {"eps_low", REFUSED, POLICY(PLAIN("reinforce"), .eps_low = 0.9, .eps_high = -1, .correction_cap = -1), POLICY(OWN),
     "eps_low: wanted an algorithm with a clipped ratio, found reinforce"},
    {"eps_high", CHANGES, POLICY(PLAIN("grpo"), .eps_low = -1, .eps_high = 9, .correction_cap = -1),
     POLICY(OWN, PLAIN("grpo")), NULL},
    {"eps_high", REFUSED, POLICY(PLAIN("reinforce"), .eps_low = -1, .eps_high = 9, .correction_cap = -1), POLICY(OWN),
     "eps_high: wanted an algorithm with a clipped ratio, found reinforce"},
    {"kl_beta", CHANGES, POLICY(OWN, PLAIN("reinforce"), .kl_beta = 0.5), POLICY(OWN, PLAIN("reinforce")), NULL},
    {"kl_beta", CHANGES, POLICY(OWN, PLAIN("rloo"), .kl_beta = 0.5), POLICY(OWN, PLAIN("rloo")), NULL},
    {"kl_beta", CHANGES, POLICY(OWN, PLAIN("grpo"), .kl_beta = 0.5), POLICY(OWN, PLAIN("grpo")), NULL},
    {"kl_beta", CHANGES, POLICY(OWN, PLAIN("gspo"), .kl_beta = 0.5), POLICY(OWN, PLAIN("gspo")), NULL},
    {"kl", CHANGES, POLICY(OWN, PLAIN("grpo"), .kl_beta = 0.5, .kl = "k1"), POLICY(OWN, PLAIN("grpo"), .kl_beta = 0.5),
     NULL},
    {"kl", NEVER, POLICY(OWN, PLAIN("grpo"), .kl = "k1"), POLICY(OWN, PLAIN("grpo")), NULL},
    {"kl", REFUSED, POLICY(OWN, PLAIN("rloo"), .kl_beta = 0.5, .kl = "k3"), POLICY(OWN), "kl: wanted k1 for rloo"},
    {"correction", CHANGES, POLICY(OWN, .algorithm = "grpo", .correction = "truncate"), POLICY(OWN, PLAIN("grpo")),
     NULL},
    {"correction_cap", CHANGES,
     POLICY(.algorithm = "grpo", .correction = "truncate", .eps_low = -1, .eps_high = -1, .correction_cap = 0.5),
     POLICY(OWN, .algorithm = "grpo", .correction = "truncate"), NULL},
    {"correction_cap", REFUSED, POLICY(PLAIN("grpo"), .eps_low = -1, .eps_high = -1, .correction_cap = 0.5),
     POLICY(OWN), "correction_cap: wanted correction truncate or mask"},
};
enum { POLICY_ROWS = sizeof policy_rows / sizeof *policy_rows, SEQUENCES = 4, TOKENS = 6 };

typedef struct weighed {
    double advantages[SEQUENCES], denominator;
    float c[SEQUENCES][TOKENS];
} weighed;

static const uint32_t groups[SEQUENCES] = {0, 0, 1, 1};
static const double rewards[SEQUENCES] = {1, 0, 0.25, 0.5};
static float arrays[4][SEQUENCES][TOKENS]; /* now, old, behavior, reference */
static const float masks[TOKENS] = {0, 0, 1, 1, 1, 1};

static void fill_arrays(iv_policy_sequence s[SEQUENCES], weighed *w) {
    for (int a = 0; a < 4; a++)
        for (int i = 0; i < SEQUENCES; i++)
            for (int t = 2; t < TOKENS; t++) arrays[a][i][t] = -0.2f * (float)(1 + (a * 7 + i * 3 + t * 5) % 11);
    for (int i = 0; i < SEQUENCES; i++)
        s[i] = (iv_policy_sequence){TOKENS, masks, arrays[0][i], arrays[1][i], arrays[2][i], arrays[3][i], 0, w->c[i]};
}

static iv_status weigh(const iv_policy_options *o, weighed *w, iv_error *err) {
    iv_policy_sequence s[SEQUENCES];
    memset(w, 0, sizeof *w);
    fill_arrays(s, w);
    iv_status status = iv_policy_sequence_advantages(o, s, groups, rewards, SEQUENCES, w->advantages, err);
    for (int i = 0; i < SEQUENCES; i++) s[i].advantage = w->advantages[i];
    if (status == IV_OK) status = iv_policy_denominator(o, s, SEQUENCES, &w->denominator, err);
    return status == IV_OK ? iv_policy_coefficients(o, s, SEQUENCES, NULL, err) : status;
}

static void policy_fields_do_what_their_rows_say(void **state) {
    (void)state;
    iv_error err;
    weighed one, other;
    for (size_t i = 0; i < POLICY_ROWS; i++) {
        const char *field = policy_rows[i].field;
        iv_status status = weigh(&policy_rows[i].one, &one, &err);
        if (policy_rows[i].effect == REFUSED) {
            if (status != IV_INVALID || !strstr(err.message, policy_rows[i].error))
                fail_msg("%s: wanted '%s', found status %d: %s", field, policy_rows[i].error, status, err.message);
            continue;
        }
        if (status != IV_OK) fail_msg("%s, row %zu: %s", field, i, err.message);
        ASSERT_OK(weigh(&policy_rows[i].other, &other, &err), &err);
        if ((memcmp(&one, &other, sizeof one) == 0) != (policy_rows[i].effect == NEVER))
            fail_msg("%s, row %zu: wanted %s", field, i,
                     policy_rows[i].effect == NEVER ? "the same coefficients" : "others");
    }
}

/* rloo: reward minus kl_beta times the sum of old - reference, then minus that of the other; in float64. Without the
 * sequences it is refused. */
static void the_kl_of_rloo_is_in_the_rewards(void **state) {
    (void)state;
    iv_error err;
    weighed w;
    double shaped[SEQUENCES], plain[SEQUENCES];
    for (double beta = 0; beta < 1; beta += 0.125) {
        iv_policy_options o = POLICY(OWN, PLAIN("rloo"), .kl_beta = beta);
        ASSERT_OK(weigh(&o, &w, &err), &err);
        for (int i = 0; i < SEQUENCES; i++) {
            shaped[i] = rewards[i];
            for (int t = 2; t < TOKENS; t++) shaped[i] -= beta * ((double)arrays[1][i][t] - (double)arrays[3][i][t]);
        }
        for (int i = 0; i < SEQUENCES; i++) assert_true(fabs(w.advantages[i] - (shaped[i] - shaped[i ^ 1])) < 1e-12);
        iv_status status = iv_policy_advantages(&o, groups, rewards, SEQUENCES, plain, &err);
        if (beta == 0) assert_true(status == IV_OK && memcmp(plain, w.advantages, sizeof plain) == 0);
        if (beta != 0) assert_true(status == IV_INVALID && strstr(err.message, "iv_policy_sequence_advantages"));
    }
}

/* The squared norm of the gradient at some betas, against the sum of the sequences' own gradients in float64. */
static void gradients_have_the_kl(void **state) {
    (void)state;
    enum { MAX = 1 << 21 };
    rng r = rng_start("gradients_have_the_kl");
    static owned_batch b;
    static const char tensor[] = "model.layers.0.self_attn.q_proj.weight";
    iv_error err;
    batch_random(&r, &b);
    iv_trainer_options o = trainer_options();
    o.dtype = "float32";
    iv_trainer *t = trainer_with(&o);
    float *parts[SEQUENCES], *whole = malloc(MAX * sizeof(float));
    size_t n = 0;
    for (size_t i = 0; i < SEQUENCES; i++) {
        b.sequences[i].logprobs = b.logprobs[i];
        parts[i] = malloc(MAX * sizeof(float));
        iv_trainer_batch one = b.batch;
        one.sequences = &b.sequences[i], one.count = 1;
        ASSERT_OK(iv_trainer_gradients(t, &one, 1.0, &err), &err);
        for (n = 1; n <= MAX && iv_trainer_get_gradient(t, tensor, parts[i], n, &err) != IV_OK;)
            n = strtoull(strstr(err.message, "wanted ") + 7, NULL, 10);
    }
    static float reference[SEQUENCES][LENGTH_MAX];
    iv_policy_sequence s[SEQUENCES];
    for (double beta = 0; beta <= 2; beta += 0.5) {
        double advantages[SEQUENCES], denominator, shaped[SEQUENCES], want = 0, found = 0, apart = 0;
        iv_policy_options p = POLICY(OWN, PLAIN("rloo"), .kl_beta = beta);
        for (size_t i = 0; i < SEQUENCES; i++) {
            size_t count = b.sequences[i].count;
            shaped[i] = rewards[i];
            for (size_t k = 0; k < count; k++) {
                reference[i][k] = b.mask[i][k] != 0 ? b.logprobs[i][k] + 0.01f * (float)(k % 7) - 0.02f * (float)i : 0;
                shaped[i] -= beta * (double)b.mask[i][k] * ((double)b.logprobs[i][k] - (double)reference[i][k]);
            }
            s[i] = (iv_policy_sequence){count,        b.mask[i], b.logprobs[i],    NULL, b.logprobs[i],
                                        reference[i], 0,         b.coefficients[i]};
        }
        ASSERT_OK(iv_policy_sequence_advantages(&p, s, groups, rewards, SEQUENCES, advantages, &err), &err);
        for (size_t i = 0; i < SEQUENCES; i++) s[i].advantage = advantages[i];
        ASSERT_OK(iv_policy_denominator(&p, s, SEQUENCES, &denominator, &err), &err);
        ASSERT_OK(iv_policy_coefficients(&p, s, SEQUENCES, NULL, &err), &err);
        iv_trainer_sequence weighed_sequences[SEQUENCES];
        for (size_t i = 0; i < SEQUENCES; i++)
            weighed_sequences[i] = b.sequences[i], weighed_sequences[i].coefficients = b.coefficients[i];
        iv_trainer_batch all = b.batch;
        all.sequences = weighed_sequences, all.count = SEQUENCES;
        ASSERT_OK(iv_trainer_gradients(t, &all, denominator, &err), &err);
        ASSERT_OK(iv_trainer_get_gradient(t, tensor, whole, n, &err), &err);
        for (size_t k = 0; k < n; k++) {
            double sum = 0;
            for (size_t i = 0; i < SEQUENCES; i++) sum += (shaped[i] - shaped[i ^ 1]) * (double)parts[i][k];
            sum /= SEQUENCES;
            want += sum * sum, found += (double)whole[k] * (double)whole[k];
            apart += pow(sum - (double)whole[k], 2);
        }
        printf("rloo, kl_beta %g: norm %.6f, in float64 %.6f\n", beta, sqrt(found), sqrt(want));
        assert_true(apart < 1e-8 * want);
    }
    for (size_t i = 0; i < SEQUENCES; i++) free(parts[i]);
    free(whole);
    iv_trainer_close(t);
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

static bool has_row(const char *name) {
    for (size_t i = 0; i < TRAINER_ROWS; i++)
        if (strcmp(trainer_rows[i].field, name) == 0) return true;
    for (size_t i = 0; i < POLICY_ROWS; i++)
        if (strcmp(policy_rows[i].field, name) == 0) return true;
    return strcmp(name, "size") == 0;
}

/* The fields of a struct in the header, by its declarators: the words before ; and , outside comments. */
static size_t check_fields(char *text, const char *name) {
    char begin[80], word[80] = "";
    size_t fields = 0, n = 0;
    snprintf(begin, sizeof begin, "typedef struct %s {", name);
    char *at = strstr(text, begin);
    assert_non_null(at);
    for (at += strlen(begin); *at != '}'; at++) {
        if (strncmp(at, "/*", 2) == 0) at = strstr(at, "*/") + 2;
        if (*at == ';' || *at == ',') {
            if (!has_row(word)) fail_msg("%s.%s: wanted a row in this test, found none", name, word);
            fields++;
        }
        bool letter = (*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9') || *at == '_';
        if (!letter) n = 0;
        if (letter && n < sizeof word - 1) word[n++] = *at, word[n] = 0;
    }
    return fields;
}

static void every_field_has_a_row(void **state) {
    (void)state;
    iv_buf text = {0};
    iv_error err;
    ASSERT_OK(iv_file_read(INVAR_SOURCE_DIR "/include/invar_train.h", 1 << 20, &text, &err), &err);
    assert_int_equal(check_fields(text.data, "iv_trainer_options"), 30);
    assert_int_equal(check_fields(text.data, "iv_policy_options"), 9);
    iv_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_has_a_row), cmocka_unit_test(trainer_fields_do_what_their_rows_say),
        cmocka_unit_test(policy_fields_do_what_their_rows_say), cmocka_unit_test(the_kl_of_rloo_is_in_the_rewards),
        cmocka_unit_test(gradients_have_the_kl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
