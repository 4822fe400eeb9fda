/* invar train: one weight hash for every layout, interruption and resumption; gradients against recorded ones; the
 * summary, inspection of checkpoints, and refused calls. */
#include "program.h"

#include <math.h>

#define MODEL source_path("tests/data/hf/qwen3")
enum { EXAMPLES = 7 };

/* Seven examples of 3 to 21 ids; the first id of each is not learned. */
static const char *data(void) {
    static char text[4096];
    size_t n = 0;
    for (unsigned e = 0; e < EXAMPLES; e++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "{\"ids\": [");
        for (unsigned i = 0; i < 3 + 3 * e; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", i ? ", " : "", (e * 97 + i * i * 31 + 5) % 512);
        n += (size_t)snprintf(text + n, sizeof text - n, "]}\n");
    }
    write_file("data.jsonl", text, n);
    return in_folder("data.jsonl");
}

#define SFT(out, ...)                                                                                             \
    RUN("train", "sft", MODEL, "--data", data(), "--output", in_folder(out), "--batch-size", "4", "--lr", "1e-3", \
        "--json", __VA_ARGS__)

/* A member of the last run's JSON. */
static const char *member(const char *key) {
    static char text[200];
    expect_ok();
    json_t *root = expect_json();
    const char *found = text_of(root, key);
    snprintf(text, sizeof text, "%s", found ? found : "");
    json_decref(root);
    return text;
}

static const char *weights(void) {
    const char *hash = member("weights");
    assert_int_equal(strlen(hash), 64);
    return hash;
}

static void one_hash_for_every_layout(void **state) {
    (void)state;
    char want[80];
    SFT("one", "--steps", "5");
    snprintf(want, sizeof want, "%s", weights());
    static const char *const layouts[][4] = {
        {"--data-parallel", "2", "--threads", "1"}, {"--dp", "8", "--micro-batch", "1"},
        {"--tp", "2", "--recompute", "layer"},      {"--micro-batch", "1", "--threads", "2"},
        {"--threads", "1", "--isa", "scalar"},      {"--pass-tokens", "32", "--recompute", "attention"}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char out[16];
        snprintf(out, sizeof out, "layout%zu", i);
        SFT(out, "--steps", "5", layouts[i][0], layouts[i][1], layouts[i][2], layouts[i][3]);
        assert_string_equal(weights(), want);
    }
    SFT("seed", "--steps", "5", "--seed", "1"); /* the check can fail */
    assert_string_not_equal(weights(), want);
}

/* The defaults that help names are those of the run: written out, they are the same run. */
static void defaults_are_as_documented(void **state) {
    (void)state;
    char want[200];
    SFT("plain", "--quiet");
    snprintf(want, sizeof want, "%s", member("identity"));
    assert_string_equal(came.err, "");
    SFT("spelled", "--epochs", "1", "--lr-scheduler-type", "linear", "--warmup", "0", "--weight-decay", "0",
        "--adam-beta1", "0.9", "--adam-beta2", "0.999", "--adam-eps", "1e-8", "--max-grad-norm", "1", "--seed", "0",
        "--virtual-ranks", "8", "--arithmetic", "fma32", "--numerics", "invar");
    expect_ok();
    expect_out(want);
}

static void wait_for_a_step(const char *run) {
    char path[256];
    struct stat s;
    snprintf(path, sizeof path, "%s/metrics.jsonl", in_folder(run));
    for (int i = 0; i < 6000; i++) {
        if (stat(path, &s) == 0 && s.st_size > 0) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("%s: no step", path);
}

static void interrupted_and_resumed(void **state) {
    (void)state;
    char want[80];
    SFT("whole", "--steps", "80", "--quiet");
    snprintf(want, sizeof want, "%s", weights());
    const char *words[] = {"train",  "sft",          MODEL, "--data", data(), "--output", in_folder("cut"),
                           "--json", "--batch-size", "4",   "--lr",   "1e-3", "--steps",  "80",
                           NULL};
    pid_t pid = start(NULL, -1, words);
    wait_for_a_step("cut");
    kill(pid, SIGINT);
    finish(pid);
    assert_int_equal(came.code, 128 + SIGINT);
    json_t *root = expect_json();
    json_int_t steps = json_integer_value(json_object_get(root, "steps"));
    assert_true(json_is_true(json_object_get(root, "stopped")) && steps > 0 && steps < 80);
    json_decref(root);
    SFT("cut", "--steps", "80");
    expect_error(1, "has a run already: wanted --resume, or another directory");
    SFT("cut", "--steps", "80", "--seed", "3", "--resume");
    assert_int_equal(came.code, 1);
    if (!strstr(came.err, "belongs to another run: seed: wanted")) fail_msg("found: %s", came.err);
    SFT("cut", "--steps", "80", "--resume", "--dp", "2");
    assert_string_equal(weights(), want);
    if (!strstr(came.err, "resumed from ")) fail_msg("no note in: %s", came.err);
    root = expect_json();
    assert_int_equal(json_integer_value(json_object_get(root, "first_step")), steps);
    json_decref(root);
    RUN("train", "sft", MODEL, "--data", data(), "--output", in_folder("cut"), "--batch-size", "4", "--lr", "1e-3",
        "--steps", "80", "--resume", "--quiet");
    expect_ok();
    expect_out("steps 80, all done before\n");
    expect_out(want);
}

static void checkpoints_described(void **state) {
    (void)state;
    char want[80], path[256];
    SFT("kept", "--steps", "3", "--save-every", "1", "--keep", "2");
    snprintf(want, sizeof want, "%s", weights());
    RUN("train", "inspect", in_folder("kept"));
    expect_ok();
    expect_out("checkpoint-000003\n");
    expect_out(want);
    snprintf(path, sizeof path, "%s/checkpoint-000002", in_folder("kept"));
    RUN("train", "inspect", path, "--verify", "--json");
    expect_ok();
    json_t *root = expect_json();
    assert_int_equal(json_integer_value(json_object_get(root, "step")), 2);
    assert_int_equal(json_integer_value(json_object_get(root, "epoch")), 1); /* 8 of 7 examples */
    assert_int_equal(json_integer_value(json_object_get(root, "cursor")), 1);
    assert_true(json_is_true(json_object_get(root, "verified")));
    json_decref(root);
    snprintf(path, sizeof path, "%s/checkpoint-000001", in_folder("kept"));
    assert_int_not_equal(access(path, F_OK), 0);
    /* The newest is damaged: the one before it, and why. */
    snprintf(path, sizeof path, "%s/checkpoint-000003/training.json", in_folder("kept"));
    assert_int_equal(truncate(path, 5), 0);
    RUN("train", "inspect", in_folder("kept"));
    expect_ok();
    expect_out("checkpoint-000002\n");
    expect_out("checkpoint-000003 cannot be used: ");
    RUN("train", "inspect", folder);
    expect_error(1, "wanted a checkpoint or a run's directory with one, found none");
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

typedef struct gradients {
    char *bytes;
    const char *data;
    json_t *header;
} gradients;

static gradients read_gradients(const char *path) {
    gradients g = {0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long n = ftell(file);
    uint64_t header;
    assert_true(n > 8 && (g.bytes = malloc((size_t)n)) != NULL);
    rewind(file);
    assert_int_equal(fread(g.bytes, 1, (size_t)n, file), n);
    fclose(file);
    memcpy(&header, g.bytes, sizeof header);
    assert_true(header < (uint64_t)n - 8);
    g.header = json_loadb(g.bytes + 8, header, 0, NULL);
    assert_non_null(g.header);
    g.data = g.bytes + 8 + header;
    return g;
}

static void free_gradients(gradients *g) { json_decref(g->header), free(g->bytes); }

/* |a - b| / |b| of one tensor; b may have every fifth element of it (tests/data/gradients). */
static double relative_error(const gradients *a, const gradients *b, const char *name) {
    double apart = 0, size = 0;
    json_int_t from[2], to[2];
    const gradients *both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        json_t *t = json_object_get(both[i]->header, name), *at = json_object_get(t, "data_offsets");
        if (!t) fail_msg("%s is missing", name);
        assert_string_equal(text_of(t, "dtype"), "F32");
        from[i] = json_integer_value(json_array_get(at, 0)), to[i] = json_integer_value(json_array_get(at, 1));
    }
    json_int_t step = to[0] - from[0] == to[1] - from[1] ? 1 : 5;
    assert_int_equal((to[1] - from[1]) / 4, ((to[0] - from[0]) / 4 + step - 1) / step);
    for (json_int_t i = 0; i < to[1] - from[1]; i += 4) {
        float x, y;
        memcpy(&x, a->data + from[0] + i * step, sizeof x), memcpy(&y, b->data + from[1] + i, sizeof y);
        apart += ((double)x - (double)y) * ((double)x - (double)y), size += (double)y * (double)y;
    }
    return sqrt(apart / size);
}

static void gradients_of_a_batch(void **state) {
    (void)state;
    static char one[OUTPUT_MAX], two[OUTPUT_MAX];
    RUN("train", "gradients", MODEL, "--data", data(), "--out", in_folder("one.st"), "--dtype", "float32");
    expect_ok();
    expect_out(": gradient of 7 sequences, 84 tokens\nloss ");
    RUN("train", "gradients", MODEL, "--data", data(), "--out", in_folder("two.st"), "--dtype", "float32", "--dp", "4",
        "--micro-batch", "1", "--json");
    expect_ok();
    json_decref(expect_json());
    size_t n = read_back("one.st", one);
    assert_true(n > 0);
    assert_int_equal(read_back("two.st", two), n);
    assert_memory_equal(one, two, n);
}

static void gradients_as_recorded(void **state) {
    (void)state;
    char batch[4096];
    snprintf(batch, sizeof batch, "%s", source_path("tests/data/gradients/qwen3/batch.jsonl"));
    RUN("train", "gradients", MODEL, "--data", batch, "--out", in_folder("mine.st"), "--dtype", "float32");
    expect_ok();
    gradients mine = read_gradients(in_folder("mine.st")), recorded = {0};
    recorded = read_gradients(source_path("tests/data/gradients/qwen3/gradients.safetensors"));
    size_t compared = 0;
    const char *name;
    json_t *tensor;
    json_object_foreach(recorded.header, name, tensor) {
        if (strcmp(name, "__metadata__") == 0) continue;
        double error = relative_error(&mine, &recorded, name);
        if (!(error <= 1e-5)) fail_msg("%s: relative error %g", name, error);
        compared++;
    }
    assert_true(compared > 10);
    free_gradients(&mine), free_gradients(&recorded);
}

/* ---- reinforcement learning ---------------------------------------------------------------------------- */

static const char problems[] = "{\"problem\": \"What is 17 + 6?\", \"answer\": 23}\n"
                               "{\"problem\": \"What is 8 * 7?\", \"answer\": \"56\"}\n";

#define RL(out, ...)                                                                                                   \
    RUN("train", "rl", "tiny-math", "--data", in_folder("problems.jsonl"), "--output", in_folder(out), "--batch-size", \
        "2", "--group-size", "3", "--steps", "1", "--max-new-tokens", "24", "--reward", "numeric", "--lr", "1e-4",     \
        __VA_ARGS__)

static void sampler_and_learner_agree(void **state) {
    (void)state;
    char want[80];
    write_file("problems.jsonl", problems, sizeof problems - 1);
    RL("deep/rl", "--quiet"); /* directories above are made */
    expect_ok();
    const char *last = strstr(came.out, "tokens compared ");
    unsigned compared = 0, different = 1;
    assert_non_null(last);
    assert_int_equal(sscanf(last, "tokens compared %u, different %u\n", &compared, &different), 2);
    assert_true(compared > 0 && strchr(last, '\n')[1] == 0);
    assert_int_equal(different, 0);
    RL("rl1", "--json");
    snprintf(want, sizeof want, "%s", weights());
    RL("rl2", "--json", "--rollout-tp", "2", "--speculative", "ngram", "--dp", "2", "--rollout-max-num-seqs", "2");
    assert_string_equal(weights(), want);
    RL("no", "--temperature", "0.5", "--top-k", "5");
    expect_error(2, "--temperature: wanted 1 with --top-p, --top-k or --min-p, found 0.5");
    RUN("train", "rl", INVAR_SOURCE_DIR "/models/tiny-sum", "--data",
        INVAR_SOURCE_DIR "/models/tiny-sum/problems.jsonl", "--output", in_folder("no"), "--reward", "exact", "--steps",
        "1", "--quiet");
    expect_error(1,
                 "problems.jsonl:1: wanted a prompt and 256 new tokens in the model's 64 positions, found 6 tokens: a "
                 "smaller max_new_tokens (--max-new-tokens) fits");
    RL("no", "--eps-low", "1");
    expect_error(2, "--eps-low: wanted a number from 0 to below 1, found '1'");
}

/* A field of a line that the program received. */
static const char *received(const json_t *line, const char *key) {
    const char *text = json_string_value(json_object_get(line, key));
    if (!text) fail_msg("%s: wanted a string", key);
    return text;
}

/* Every field that docs/formats/reward_program.md names, as a run sends it. */
static void a_reward_program_gets_the_documented_fields(void **state) {
    (void)state;
    static const char lines[] = "{\"problem\": \"Say \\\"a\\\".\", \"answer\": 5.50, \"level\": [1, {\"x\": null}]}\n"
                                "{\"prompt\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
                                "\"content\": [{\"type\": \"text\", \"text\": \"B\"}]}]}\n";
    static const char *const prompts[] = {
        "<|im_start|>user\nSay \"a\".<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n"};
    char program[512], path[256];
    snprintf(path, sizeof path, "%s", in_folder("received.jsonl"));
    write_file("problems.jsonl", lines, sizeof lines - 1);
    snprintf(program, sizeof program,
             "tee %s | while IFS= read -r l; do i=${l#*'\"id\":'}; i=${i%%%%,*}; "
             "echo \"{\\\"id\\\":$i,\\\"reward\\\":$((i %% 2))}\"; done",
             path);
    RUN("train", "rl", "tiny-math", "--data", in_folder("problems.jsonl"), "--output", in_folder("program"),
        "--batch-size", "2", "--group-size", "3", "--steps", "1", "--max-new-tokens", "8", "--reward", program,
        "--no-shuffle", "--quiet");
    expect_ok();
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (size_t i = 0; i < 6; i++) {
        char text[4096];
        assert_non_null(fgets(text, sizeof text, f));
        json_t *line = json_loads(text, 0, NULL);
        assert_int_equal(json_object_size(line), 5);
        assert_int_equal(json_integer_value(json_object_get(line, "id")), i);
        assert_string_equal(received(line, "prompt"), prompts[i / 3]);
        assert_non_null(received(line, "completion"));
        const json_t *answer = json_object_get(line, "answer"), *given = json_object_get(line, "line");
        if (i < 3)
            assert_string_equal(received(line, "answer"), "5.50");
        else
            assert_true(json_is_null(answer));
        const char *end = strchr(lines, '\n');
        json_t *whole = i < 3 ? json_loadb(lines, (size_t)(end - lines), 0, NULL) : json_loads(end + 1, 0, NULL);
        assert_true(json_equal(whole, given));
        json_decref(whole), json_decref(line);
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

/* ---- refused ------------------------------------------------------------------------------------------- */

static void what_is_refused(void **state) {
    (void)state;
    char out[256]; /* in_folder has a few paths alone */
    snprintf(out, sizeof out, "%s", in_folder("refused"));
    static const struct {
        const char *flag, *value, *words;
        int code;
    } bad[] = {
        {"--lr", "-1", "--lr: wanted a number from 0 to 1000, found '-1'", 2},
        {"--lr-scheduler", "step", "--lr-scheduler: wanted one of: constant ", 2},
        {"--warmup", "few", "--warmup: wanted a number of steps or a ratio from 0.0 to 1.0, found 'few'", 2},
        {"--warmup", "1.5", "--warmup: wanted a number of steps or a ratio from 0.0 to 1.0, found '1.5'", 2},
        {"--adam-beta2", "1", "--adam-beta2: wanted a number from 0 to below 1, found '1'", 2},
        {"--adam-eps", "0", "--adam-eps: wanted a number above 0 and at most 1, found '0'", 2},
        {"--longer", "cut", "--longer: wanted one of: error truncate drop, found 'cut'", 2},
        {"--batch-size", "0", "--batch-size: wanted a whole number from 1 to ", 2},
        {"--group-size", "4", "unknown flag '--group-size'", 2},
        {"--max-length", "5", "data.jsonl:2: wanted at most 5 tokens, found 6", 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        RUN("train", "sft", MODEL, "--data", data(), "--output", out, bad[i].flag, bad[i].value);
        expect_error(bad[i].code, bad[i].words);
    }
    static const char *const layouts[][3] = {
        {"--dp", "3", "data-parallel ranks: wanted a divisor of the 8 virtual ranks, found 3"},
        {"--virtual-ranks", "3", "virtual ranks: wanted a power of two, at most 64, found 3"},
        {"--tp", "8", "8 tensor-parallel ranks: wanted a divisor of "},
        {"--pass-tokens", "8", "tokens of a pass: wanted 21 at least, the longest sequence, found 8"},
        {"--warmup", "100", "warmup: wanted at most the run's 1 steps, found 100"}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        RUN("train", "sft", MODEL, "--data", data(), "--output", out, "--quiet", layouts[i][0], layouts[i][1]);
        expect_error(1, layouts[i][2]);
    }
    RUN("train", "sft", MODEL, "--output", out);
    expect_error(2, "train-sft: wanted --data FILE, the examples (see invar help train-sft)");
    RUN("train", "sft", MODEL, "--data", data());
    expect_error(2, "wanted --output DIR, for checkpoints, metrics and curves");
    RUN("train", "sft", MODEL, "--data", in_folder("none.jsonl"), "--output", out);
    expect_error(1, "none.jsonl: cannot open: No such file or directory");
    RUN("train", "sft", MODEL, "--data", data(), "--output", out, "--steps", "1", "--epochs", "2");
    expect_error(2, "wanted --steps or --epochs, found both");
    write_file("bad.jsonl", "{\"ids\": [1, 2]}\n{\"ids\": [1, 900]}\n", 34);
    RUN("train", "sft", MODEL, "--data", in_folder("bad.jsonl"), "--output", out);
    expect_error(1, "bad.jsonl:2: ids[1]: wanted a token id from 0 to 511, found 900");
    RUN("train", "gradients", MODEL, "--data", data());
    expect_error(2, "wanted --out FILE, the safetensors file to write");
    assert_int_not_equal(access(out, F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_for_every_layout), cmocka_unit_test(defaults_are_as_documented),
        cmocka_unit_test(interrupted_and_resumed),   cmocka_unit_test(checkpoints_described),
        cmocka_unit_test(gradients_of_a_batch),      cmocka_unit_test(gradients_as_recorded),
        cmocka_unit_test(sampler_and_learner_agree), cmocka_unit_test(a_reward_program_gets_the_documented_fields),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
