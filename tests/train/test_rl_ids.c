/* Reinforcement learning of a model with ids that have no token (tiny-sum): sampler and learner agree in every bit on
 * the policy, which lacks these ids, however the learner is divided; sample_all_ids is another policy. */
#include "support.h"
#include "train/run.h"

#include <ftw.h>
#include <stdlib.h>

typedef struct ids_way {
    double temperature, top_p, kl_beta;
    size_t world;
    bool all;
} ids_way;

static int remove_entry(const char *path, const struct stat *s, int kind, struct FTW *w) {
    (void)s, (void)kind, (void)w;
    return remove(path);
}

static void run_way(const char *base, const ids_way *w, size_t i, iv_run_summary *s) {
    char out[300];
    iv_run_options o;
    iv_error err;
    snprintf(out, sizeof out, "%s/%zu", base, i);
    iv_run_defaults(&o, IV_RUN_RL);
    o.trainer.model = INVAR_SOURCE_DIR "/models/tiny-sum", o.data = INVAR_SOURCE_DIR "/models/tiny-sum/problems.jsonl";
    o.output = out, o.algorithm = "grpo", o.reward = "exact", o.trainer.device = "cpu";
    o.batch_size = 8, o.group_size = 16, o.max_new_tokens = 5, o.steps = 3, o.learning_rate = 1e-3, o.seed = 4;
    o.temperature = w->temperature, o.top_p = w->top_p, o.kl_beta = w->kl_beta, o.sample_all_ids = w->all;
    o.trainer.data_parallel = w->world;
    ASSERT_OK(iv_run_train(&o, s, &err), &err);
    assert_true(s->compared > 500 && s->different == 0 && s->largest_difference == 0);
}

static void policies(void **state) {
    (void)state;
    static const ids_way ways[] = {{1, 1, 0, 1, false},      {1, 1, 0, 4, false},    {1.3, 1, 0.05, 1, false},
                                   {1.3, 1, 0.05, 2, false}, {1, 0.95, 0, 1, false}, {1, 0.95, 0, 2, false}};
    char base[] = "/tmp/invar-rl-ids-XXXXXX";
    assert_non_null(mkdtemp(base));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += 2) {
        iv_run_summary one, divided, all;
        ids_way w = ways[i];
        run_way(base, &ways[i], 10 * i, &one), run_way(base, &ways[i + 1], 10 * i + 1, &divided);
        assert_string_equal(one.weights_hash, divided.weights_hash);
        assert_string_equal(one.identity, divided.identity);
        w.all = true;
        run_way(base, &w, 10 * i + 2, &all);
        if (w.top_p == 1) assert_string_not_equal(one.weights_hash, all.weights_hash); /* else the filter drops them */
        assert_string_not_equal(one.identity, all.identity);
    }
    nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(policies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
