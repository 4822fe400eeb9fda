/* Held-out examples of a run (run.h, eval_data): no weight depends on them, and their numbers on no layout. */
#include "engine/client.h"
#include "train/run_case.h"

enum { STEPS = 7, EVERY = 3, RL_STEPS = 3, PROMPTS = 40, NEW_TOKENS = 4 };

static void train(const iv_run_options *o, iv_run_summary *summary) {
    iv_error err;
    ASSERT_OK(iv_run_train(o, summary, &err), &err);
}

/* A number of each step of a run's log; NAN where it has none. */
static void read_metric(const char *output, const char *name, double *values, size_t steps) {
    char path[512];
    iv_error err;
    iv_buf file = {0};
    size_t lines = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", output);
    ASSERT_OK(iv_file_read(path, 1 << 24, &file, &err), &err);
    for (char *line = strtok(file.data, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *j;
        assert_true(lines < steps);
        ASSERT_OK(iv_json_parse(path, line, strlen(line), &j, &err), &err);
        const json_t *value = json_object_get(j, name);
        values[lines++] = json_is_number(value) ? json_number_value(value) : (double)NAN;
        json_decref(j);
    }
    assert_int_equal(lines, steps);
    iv_buf_free(&file);
}

static void same_numbers(const char *what, const double *want, const double *got, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (want[i] != got[i] && !(isnan(want[i]) && isnan(got[i])))
            fail_msg("%s, %zu: wanted %.17g, found %.17g", what, i, want[i], got[i]);
}

static bool is_due(size_t step) { return step % EVERY == 0 || step == STEPS; }

/* ---- fine-tuning --------------------------------------------------------------------------------------------- */

typedef struct layout {
    const char *name;
    uint64_t world, tp, micro_batch, batch_size;
    const char *recompute;
} layout;

static void losses_in_every_layout(void **state) {
    (void)state;
    static const layout layouts[] = {
        {"plain", 1, 1, 0, 6, "none"}, {"wide", 4, 1, 1, 6, "layer"}, {"tensors", 2, 2, 2, 6, "attention"}};
    rng r = rng_start("held-out losses");
    iv_run_summary s;
    double want[STEPS], got[STEPS];
    char hash[65];
    case_write_data("data.jsonl", &r), case_write_data("held-out.jsonl", &r);
    iv_run_options bare = case_options("bare", STEPS);
    train(&bare, &s);
    snprintf(hash, sizeof hash, "%s", s.weights_hash);
    assert_false(s.evaluated);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        iv_run_options o = case_options(l->name, STEPS);
        o.eval_data = case_path("held-out.jsonl"), o.eval_every = EVERY;
        o.trainer.data_parallel = l->world, o.trainer.tensor_parallel = l->tp, o.trainer.micro_batch = l->micro_batch;
        o.trainer.recompute = l->recompute;
        train(&o, &s);
        assert_string_equal(s.weights_hash, hash);
        read_metric(o.output, "eval_loss", i ? got : want, STEPS);
        for (size_t k = 0; k < STEPS; k++) assert_int_equal(!isnan((i ? got : want)[k]), is_due(k + 1));
        if (i) same_numbers(l->name, want, got, STEPS);
        assert_true(s.evaluated && s.eval_loss == (i ? got : want)[STEPS - 1]);
    }
    assert_true(want[2] != want[5] && want[5] != want[6]); /* the control: other weights, another loss */
    /* The oracle: the loss over those examples of the model that the run ended with. */
    iv_gradients_summary g;
    iv_error err;
    iv_run_options o = case_options(NULL, 1);
    o.trainer.model = case_path("plain/checkpoint-000007/model"), o.data = case_path("held-out.jsonl");
    ASSERT_OK(iv_run_gradients(&o, case_path("gradient.safetensors"), &g, &err), &err);
    same_numbers("the model\'s own loss", &want[STEPS - 1], &g.loss, 1);
}

/* A resumed run has the same numbers; longer held-out examples than the run's own fit. */
static void longer_examples_and_resumption(void **state) {
    (void)state;
    rng r = rng_start("longer held-out examples");
    iv_run_summary s;
    double want[STEPS], got[STEPS];
    volatile sig_atomic_t stop = 1;
    case_write_data("data.jsonl", &r);
    FILE *f = fopen(case_path("long.jsonl"), "w");
    assert_non_null(f);
    for (int i = 0; i < 3; i++) {
        fputs("{\"ids\": [1", f);
        for (int t = 0; t < 100; t++) fprintf(f, ", %zu", rng_below(&r, CASE_VOCAB));
        fputs("]}\n", f);
    }
    assert_int_equal(fclose(f), 0);
    iv_run_options whole = case_options("whole", STEPS), cut = case_options("cut", STEPS);
    whole.eval_data = cut.eval_data = case_path("long.jsonl"), whole.eval_every = cut.eval_every = 1;
    train(&whole, &s);
    cut.stop = &stop;
    train(&cut, &s);
    assert_true(s.stopped && s.steps == 1);
    cut.stop = NULL, cut.resume = true, cut.trainer.data_parallel = 2;
    train(&cut, &s);
    read_metric(whole.output, "eval_loss", want, STEPS), read_metric(cut.output, "eval_loss", got, STEPS);
    same_numbers("a resumed run", want, got, STEPS);
}

static void refusals(void **state) {
    (void)state;
    rng r = rng_start("held-out refusals");
    iv_run_summary s;
    iv_error err;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options(NULL, 1);
    o.eval_every = 2;
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    assert_string_equal(err.message, "eval data: wanted a file of held-out examples, found none");
    o.eval_data = case_path("absent.jsonl");
    assert_int_equal(iv_run_train(&o, &s, &err), IV_NOT_FOUND);
    assert_non_null(strstr(err.message, "absent.jsonl"));
    o.data = o.eval_data = "-";
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "found standard input"));
}

/* ---- reinforcement learning ---------------------------------------------------------------------------------- */

/* The first PROMPTS problems of models/tiny-sum that are in no training data. */
static void write_held_out(void) {
    char line[500];
    FILE *from = fopen(source_path("models/tiny-sum/held_out.jsonl"), "r"),
         *to = fopen(case_path("held-out.jsonl"), "w");
    assert_true(from && to);
    for (int i = 0; i < PROMPTS; i++) assert_true(fgets(line, sizeof line, from) && fputs(line, to) >= 0);
    fclose(from);
    assert_int_equal(fclose(to), 0);
}

/* The oracle: greedy answers of an engine of the exported model, compared with the file's. */
static void judge(const char *model, double *right, double *length) {
    char line[500], wanted[24];
    iv_error err;
    iv_engine_options e = small_options();
    e.model = model, e.max_model_len = 64;
    iv_engine *engine = open_with(&e);
    FILE *f = fopen(case_path("held-out.jsonl"), "r");
    assert_non_null(f);
    *right = *length = 0;
    while (fgets(line, sizeof line, f)) {
        json_t *j;
        ASSERT_OK(iv_json_parse("held-out", line, strlen(line), &j, &err), &err);
        iv_request q = ask(engine, json_string_value(json_object_get(j, "question")), NEW_TOKENS);
        snprintf(wanted, sizeof wanted, "%d", (int)json_integer_value(json_object_get(j, "answer")));
        answer *a = answer_to(engine, &q);
        *right += a->text.len == strlen(wanted) && memcmp(a->text.data, wanted, a->text.len) == 0;
        *length += (double)a->count;
        answers_free(a, 1);
        json_decref(j);
    }
    fclose(f);
    iv_engine_close(engine);
    *right /= PROMPTS, *length /= PROMPTS;
}

static iv_run_options rl_options(const char *output, const layout *l) {
    static char model[4096], data[4096];
    iv_run_options o;
    snprintf(model, sizeof model, "%s", source_path("models/tiny-sum"));
    snprintf(data, sizeof data, "%s", source_path("models/tiny-sum/problems.jsonl"));
    iv_run_defaults(&o, IV_RUN_RL);
    o.trainer.model = model, o.data = data, o.output = case_path(output), o.steps = RL_STEPS,
    o.batch_size = l->batch_size;
    o.group_size = 4, o.max_new_tokens = NEW_TOKENS, o.learning_rate = 2e-4, o.seed = 5, o.quiet = true;
    o.trainer.data_parallel = o.rollout_tp = l->world, o.trainer.micro_batch = l->micro_batch,
    o.trainer.recompute = l->recompute;
    o.trainer.threads = 1;
    return o;
}

static void rewards_in_every_layout(void **state) {
    (void)state;
    static const layout layouts[] = {{"rl", 1, 1, 0, 16, "none"}, {"rl-wide", 2, 1, 3, 16, "layer"}};
    iv_run_summary s;
    double reward[2][RL_STEPS], length[2][RL_STEPS], right, tokens;
    char hash[65];
    write_held_out();
    iv_run_options o = rl_options("rl-bare", &layouts[0]);
    train(&o, &s);
    snprintf(hash, sizeof hash, "%s", s.weights_hash);
    assert_false(s.evaluated);
    for (size_t i = 0; i < 2; i++) {
        o = rl_options(layouts[i].name, &layouts[i]);
        o.eval_data = case_path("held-out.jsonl"), o.eval_every = 1;
        train(&o, &s);
        assert_string_equal(s.weights_hash, hash);
        assert_int_equal(s.different, 0);
        read_metric(o.output, "eval_reward", reward[i], RL_STEPS);
        read_metric(o.output, "eval_completion_length", length[i], RL_STEPS);
        assert_true(s.evaluated && s.eval_reward == reward[i][RL_STEPS - 1]);
    }
    same_numbers("rewards", reward[0], reward[1], RL_STEPS);
    same_numbers("lengths", length[0], length[1], RL_STEPS);
    judge(case_path("rl/checkpoint-000003/model"), &right, &tokens);
    printf("held-out reward %g, %g, %g; %g tokens\n", reward[0][0], reward[0][1], reward[0][2], tokens);
    assert_true(reward[0][RL_STEPS - 1] == right && length[0][RL_STEPS - 1] == tokens);
    assert_true(right > 0 && right < 1); /* so that another rule would show */
}

/* A missing answer is refused before the first step. A judge that fails at the evaluation costs no step. */
static void failures(void **state) {
    (void)state;
    static const layout plain = {"failures", 1, 1, 0, 4, "none"};
    iv_run_summary s;
    iv_error err;
    iv_run_options o = rl_options("unanswered", &plain);
    FILE *f = fopen(case_path("unanswered.jsonl"), "w");
    assert_non_null(f);
    fputs("{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n\n{\"prompt\": \"2+2=\"}\n", f);
    assert_int_equal(fclose(f), 0);
    o.eval_data = case_path("unanswered.jsonl");
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "unanswered.jsonl:3: answer: wanted one for the reward 'exact', found none"));
    assert_int_equal(s.steps, 0);
    const char *judge_path = case_path("judge.sh");
    f = fopen(judge_path, "w");
    assert_non_null(f);
    fputs("#!/bin/sh\n"
          "while IFS= read -r line; do\n"
          "    case $line in *'\"1+2=\"'*) exit 1 ;; esac\n"
          "    id=${line#*'\"id\":'}\n"
          "    id=${id%%,*}\n"
          "    echo '{\"id\":'$id',\"reward\":'$((id % 3))'}'\n"
          "done\n",
          f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(judge_path, 0755), 0);
    o = rl_options("judged", &plain);
    o.reward = judge_path, o.eval_data = case_path("unanswered.jsonl");
    assert_int_not_equal(iv_run_train(&o, &s, &err), IV_OK);
    assert_int_equal(access(case_path("judged/checkpoint-000003"), F_OK), 0);
    double reward[RL_STEPS];
    read_metric(o.output, "reward", reward, RL_STEPS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(losses_in_every_layout, case_open, case_close),
        cmocka_unit_test_setup_teardown(longer_examples_and_resumption, case_open, case_close),
        cmocka_unit_test_setup_teardown(refusals, case_open, case_close),
        cmocka_unit_test_setup_teardown(rewards_in_every_layout, case_open, case_close),
        cmocka_unit_test_setup_teardown(failures, case_open, case_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
