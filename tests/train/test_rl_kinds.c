/* Reinforcement learning learns what was asked for: the KL in the reward, the task's own rewards, advantages that
 * exist, metrics of every inner step. */
#include "support.h"
#include "format/json.h"
#include "train/rl_batch.h"
#include "train/run.h"

#include <ftw.h>
#include <math.h>
#include <sys/stat.h>

static char folder[64];

static int remove_entry(const char *path, const struct stat *s, int kind, struct FTW *w) {
    (void)s, (void)kind, (void)w;
    return remove(path);
}

static int open_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/invar_kinds_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int close_folder(void **state) {
    (void)state;
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *path_of(const char *name) {
    static char paths[8][300];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *write_text(const char *name, const char *text, mode_t mode) {
    const char *path = path_of(name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

/* A command whose reward of a completion is a shell expression of its id. */
static const char *reward_of(const char *name, const char *expression) {
    char text[600];
    snprintf(text, sizeof text,
             "#!/bin/sh\nwhile IFS= read -r line; do\n    id=${line#*'\"id\":'}\n    id=${id%%%%,*}\n"
             "    echo '{\"id\":'$id',\"reward\":'$((%s))'}'\ndone\n",
             expression);
    return write_text(name, text, 0755);
}

static iv_run_options options_of(const char *output, const char *algorithm) {
    static char model[4096], data[300], out[300], reward[300];
    iv_run_options o;
    iv_run_defaults(&o, IV_RUN_RL);
    snprintf(model, sizeof model, "%s/tests/data/hf/qwen3", INVAR_SOURCE_DIR);
    snprintf(data, sizeof data, "%s",
             write_text("data.jsonl", "{\"ids\": [5, 7, 3]}\n{\"ids\": [9, 2]}\n{\"ids\": [40, 41, 42, 4]}\n", 0644));
    snprintf(reward, sizeof reward, "%s", reward_of("reward.sh", "id % 16 * 7 % 5"));
    snprintf(out, sizeof out, "%s", path_of(output));
    o.trainer.model = model, o.data = data, o.output = out, o.reward = reward, o.algorithm = algorithm;
    o.batch_size = 3, o.group_size = 4, o.max_new_tokens = 8, o.steps = 3, o.learning_rate = 1e-2, o.seed = 5;
    o.trainer.threads = 1, o.quiet = true;
    return o;
}

/* A number of the line of step `step` of metrics.jsonl. */
static double metric_of(const iv_run_options *o, int step, const char *name) {
    char path[400], line[8192];
    iv_error err;
    snprintf(path, sizeof path, "%s/metrics.jsonl", o->output);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (int i = 0; i < step; i++) assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    json_t *j;
    ASSERT_OK(iv_json_parse(path, line, strlen(line) - 1, &j, &err), &err);
    double value = json_number_value(json_object_get(j, name));
    json_decref(j);
    return value;
}

/* Step 1 has no KL, so all betas sample the same completions in step 2. There the advantages are linear in beta, the
 * gradient too, and the square of its norm is a quadratic: three betas give the fourth. */
static void the_kl_in_the_reward_is_learned(void **state) {
    (void)state;
    static const double betas[] = {0, 0.5, 2, 1};
    double squares[4], kl[4];
    char hashes[4][65];
    iv_run_summary s;
    iv_error err;
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "beta%d", i);
        iv_run_options o = options_of(name, "rloo");
        o.kl_beta = betas[i], o.trainer.dtype = "float32";
        ASSERT_OK(iv_run_train(&o, &s, &err), &err);
        memcpy(hashes[i], s.weights_hash, sizeof hashes[i]);
        squares[i] = pow(metric_of(&o, 2, "gradient_norm"), 2);
        kl[i] = metric_of(&o, 3, "kl_reference");
        printf("rloo, kl_beta %g: gradient norms %.6f %.6f, KL %.4f\n", betas[i], metric_of(&o, 1, "gradient_norm"),
               sqrt(squares[i]), kl[i]);
        if (i) assert_string_not_equal(hashes[i], hashes[0]);
    }
    double at_half = (squares[1] - squares[0]) / 0.5, at_two = (squares[2] - squares[0]) / 2; /* b + c beta */
    double c = (at_two - at_half) / 1.5, b = at_two - 2 * c, want = squares[0] + b + c;
    assert_true(c > 0 && fabs(squares[3] / want - 1) < 1e-4);
    assert_true(fabs(squares[2] / squares[0] - 1) > 1e-2);
    /* Scored by the learner instead of taken from the sampler: the same bits. */
    iv_run_options o = options_of("report", "rloo");
    o.kl_beta = 2, o.trainer.dtype = "float32", o.on_mismatch = "report";
    ASSERT_OK(iv_run_train(&o, &s, &err), &err);
    assert_string_equal(s.weights_hash, hashes[2]);
}

/* In float64: rewards minus beta times the sum of old - reference, of sequences that dynamic sampling drops too. */
static void rewards_are_shaped_before_advantages(void **state) {
    (void)state;
    enum { N = 4, TOKENS = 3 };
    float old[N][TOKENS], reference[N][TOKENS], mask[TOKENS] = {0, 1, 0.5f}, *olds[N], *references[N];
    double rewards[N] = {1, 0, 0.5, 0.25}, advantages[N], shaped[N];
    uint32_t groups[N] = {0, 0, 1, 1};
    size_t completion[N] = {2, 2, 2, 2}, kept;
    bool keep[N];
    iv_loss_sequence losses[N];
    iv_error err;
    for (int i = 0; i < N; i++) {
        for (int t = 0; t < TOKENS; t++) old[i][t] = -0.3f * (float)(i + t), reference[i][t] = -0.7f * (float)(t + 1);
        olds[i] = old[i], references[i] = reference[i];
        losses[i] = (iv_loss_sequence){TOKENS, mask, old[i], old[i], old[i], reference[i]};
    }
    iv_rl_batch b = {.n = N,
                     .group = 2,
                     .losses = losses,
                     .old = olds,
                     .reference = references,
                     .groups = groups,
                     .rewards = rewards,
                     .advantages = advantages,
                     .completion = completion,
                     .kept = keep};
    for (double beta = 0; beta < 1; beta += 0.25) {
        iv_algorithm a = iv_algorithm_defaults(IV_RLOO, 8);
        a.kl_beta = beta;
        ASSERT_OK(iv_rl_batch_weigh(&b, &a, &kept, &err), &err);
        for (int i = 0; i < N; i++) {
            double kl = 0;
            for (int t = 1; t < TOKENS; t++) kl += (double)mask[t] * ((double)old[i][t] - (double)reference[i][t]);
            shaped[i] = rewards[i] - beta * kl;
        }
        for (int i = 0; i < N; i++) assert_true(fabs(advantages[i] - (shaped[i] - shaped[i ^ 1])) < 1e-12);
    }
    /* Lengths alone are no signal. */
    iv_algorithm dapo = iv_algorithm_defaults(IV_DAPO, 8);
    dapo.overlong_max = 8, dapo.overlong_buffer = 3;
    for (int i = 0; i < N; i++) rewards[i] = i == 0, completion[i] = i % 2 ? 8 : 5;
    ASSERT_OK(iv_rl_batch_weigh(&b, &dapo, &kept, &err), &err);
    assert_int_equal(kept, 2);
    assert_true(keep[0] && keep[1] && !keep[2] && !keep[3] && advantages[0] > 0);
}

static void one_completion_is_refused(void **state) {
    (void)state;
    static const char *const algorithms[] = {"reinforce", "rloo", "grpo", "dr-grpo", "dapo", "gspo"};
    iv_run_summary s;
    iv_error err;
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        iv_run_options o = options_of("alone", algorithms[i]);
        o.group_size = 1;
        assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
        assert_non_null(strstr(err.message, "--group-size: wanted 2 at least, found 1"));
    }
    struct stat st;
    assert_int_not_equal(stat(path_of("alone"), &st), 0);
}

static void equal_rewards_are_reported(void **state) {
    (void)state;
    char text[4096] = "";
    iv_run_summary s;
    iv_error err;
    iv_run_options o = options_of("idle", "grpo");
    o.reward = reward_of("equal.sh", "1"), o.steps = 12, o.group_size = 2, o.max_new_tokens = 2, o.quiet = false;
    o.progress = tmpfile();
    assert_non_null(o.progress);
    ASSERT_OK(iv_run_train(&o, &s, &err), &err);
    rewind(o.progress);
    assert_true(fread(text, 1, sizeof text - 1, o.progress) > 0);
    fclose(o.progress);
    if (!strstr(text, "step 12/12") || !strstr(text, "no advantage for 12 steps")) fail_msg("found: %s", text);
    if (!strstr(text, "3 examples") || strstr(text, "fewer than a batch")) fail_msg("found: %s", text);
    assert_int_equal(s.idle_steps, 12);
    assert_true(metric_of(&o, 9, "steps_without_advantage") == 0 && metric_of(&o, 10, "steps_without_advantage") == 10);
    o = options_of("busy", "grpo");
    ASSERT_OK(iv_run_train(&o, &s, &err), &err);
    assert_int_equal(s.idle_steps, 0);
}

static void metrics_are_of_every_inner_step(void **state) {
    (void)state;
    iv_run_summary s;
    iv_error err;
    iv_run_options o = options_of("inner", "grpo");
    o.inner_steps = 3, o.learning_rate = 0.05;
    ASSERT_OK(iv_run_train(&o, &s, &err), &err);
    assert_int_equal(s.different, 0); /* compared with the sampler before the first update */
    double low = metric_of(&o, 1, "clipped_low"), high = metric_of(&o, 1, "clipped_high");
    printf("3 inner steps: clipped %.3f below, %.3f above; ratio %.3f, at most %.3f\n", low, high,
           metric_of(&o, 1, "ratio_mean"), metric_of(&o, 1, "ratio_max"));
    assert_true(low + high > 0 && low + high < 2.0 / 3); /* nothing is clipped in the first */
    assert_true(metric_of(&o, 1, "ratio_max") > 1 && metric_of(&o, 1, "ratio_mean") != 1);
    assert_true(metric_of(&o, 1, "tokens_compared") == metric_of(&o, 1, "tokens_equal"));
}

/* A sampler decodes row by row, from slots and tails of states; the learner has whole sequences. */
static void sampler_and_learner_of_states_agree(void **state) {
    (void)state;
    static const struct {
        const char *model, *arithmetic;
    } cases[] = {{"qwen3_5_text_a", "fma32"}, {"qwen3_5_moe_a", "tc16"}, {"lfm2_a", "fma32"}};
    for (size_t i = 0; i < (SANITIZED ? 1 : sizeof cases / sizeof *cases); i++) {
        static char model[4096];
        iv_run_summary s;
        iv_error err;
        iv_run_options o = options_of(cases[i].model, "grpo");
        snprintf(model, sizeof model, "%s/tests/data/families/%s", INVAR_SOURCE_DIR, cases[i].model);
        o.trainer.model = model, o.trainer.arithmetic = cases[i].arithmetic, o.max_new_tokens = 210, o.steps = 2;
        ASSERT_OK(iv_run_train(&o, &s, &err), &err);
        printf("%s %s: %llu tokens compared, %llu different\n", cases[i].model, cases[i].arithmetic,
               (unsigned long long)s.compared, (unsigned long long)s.different);
        assert_true(s.compared > 1500);
        assert_int_equal(s.different, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kl_in_the_reward_is_learned), cmocka_unit_test(rewards_are_shaped_before_advantages),
        cmocka_unit_test(one_completion_is_refused),       cmocka_unit_test(equal_rewards_are_reported),
        cmocka_unit_test(metrics_are_of_every_inner_step), cmocka_unit_test(sampler_and_learner_of_states_agree)};
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
