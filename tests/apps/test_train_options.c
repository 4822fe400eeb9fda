/* Every flag of invar train: it changes the weights, or never does, or is refused where it could not. A flag that help
 * names and no row here tries fails the test. */
#include "program.h"

#include <ctype.h>

enum { SFT = 1, RL = 2, BOTH = SFT | RL };
enum { RUNS_MAX = 400, WORDS_MAX = 34 };
typedef enum effect { CHANGES, NEVER, REFUSED } effect;

/* Both runs have `with`, and then `one` or `other`, as words; REFUSED: with and one, and words of the error. */
typedef struct row {
    int commands;
    const char *flag;
    effect effect;
    const char *with, *one, *other;
} row;

#define REPORT "--on-mismatch report "
#define COARSE REPORT "--rollout-mantissa-bits 2 "
#define TEXT "MODEL --steps 1 --max-new-tokens 24 --temperature 2 --data @sums.jsonl "

static const row rows[] = {
    {BOTH, "data", CHANGES, "", "--data @other.jsonl", ""},
    {BOTH, "data", REFUSED, "", "--data @long.jsonl", "long.jsonl:2: wanted "},
    {SFT, "output", NEVER, "", "--output @elsewhere", ""},
    {RL, "output", NEVER, "", "--output @elsewhere-rl", ""},
    {BOTH, "batch-size", CHANGES, "", "--batch-size 3", ""},
    {BOTH, "steps", CHANGES, "", "--steps 2", ""},
    {BOTH, "epochs", CHANGES, "", "--epochs 1", "--epochs 2"},
    {BOTH, "epochs", REFUSED, "--steps 2", "--epochs 1", "wanted --steps or --epochs, found both"},
    {BOTH, "seed", CHANGES, "", "--seed 1", ""},
    {SFT, "seed", NEVER, "--no-shuffle", "--seed 1", ""},
    {BOTH, "eval-data", NEVER, "", "--eval-data @other.jsonl", ""},
    {BOTH, "eval-data", REFUSED, "", "--eval-data @long.jsonl", "long.jsonl:2: wanted "},
    {SFT, "eval-every", NEVER, "--eval-data @other.jsonl", "--eval-every 1", ""},
    {RL, "eval-every", NEVER, TEXT "--reward length --eval-data @sums.jsonl", "--eval-every 1", ""},
    {BOTH, "eval-every", REFUSED, "", "--eval-every 1", "--eval-every: wanted --eval-data"},
    {BOTH, "save-every", NEVER, "", "--save-every 2", ""},
    {BOTH, "keep", NEVER, "--save-every 1", "--keep 1", ""},
    {BOTH, "resume", NEVER, "", "--resume", ""},
    {BOTH, "json", NEVER, "", "--json", ""},
    {BOTH, "quiet", NEVER, "", "--quiet", ""},
    {SFT, "max-length", CHANGES, "--longer truncate", "--max-length 5", "--max-length 9"},
    {RL, "max-length", CHANGES, "--longer drop", "--max-length 3", "--max-length 9"},
    {BOTH, "max-length", REFUSED, "", "--max-length 2", "wanted at most 2 tokens, found 3"},
    {SFT, "longer", CHANGES, "--max-length 5", "--longer truncate", "--longer drop"},
    {RL, "longer", NEVER, "--max-length 400", "--longer drop", ""},
    {BOTH, "longer", REFUSED, "", "--longer drop", "--longer drop: wanted --max-length too"},
    {BOTH, "no-shuffle", CHANGES, "", "--no-shuffle", ""},
    {SFT, "drop-last", CHANGES, "", "--drop-last", ""},
    {RL, "drop-last", CHANGES, "--steps 4", "--drop-last", ""},
    {BOTH, "lr", CHANGES, "", "--lr 0.02", ""},
    {BOTH, "lr", REFUSED, "", "--lr 0", "wanted a learning rate above 0"},
    {BOTH, "lr-scheduler", CHANGES, "", "--lr-scheduler cosine", "--lr-scheduler linear"},
    {BOTH, "warmup", CHANGES, "--lr-scheduler linear", "--warmup 2", ""},
    {BOTH, "warmup", REFUSED, "--lr-scheduler constant", "--warmup 2", "--warmup: wanted another --lr-scheduler"},
    {BOTH, "warmup", REFUSED, "--lr-scheduler linear --steps 1", "--warmup 1", "found 0 in all 1"},
    {BOTH, "decay-steps", CHANGES, "--lr-scheduler wsd", "--decay-steps 2", ""},
    {BOTH, "decay-steps", REFUSED, "--lr-scheduler linear", "--decay-steps 2", "warmup_stable_decay, found linear"},
    {BOTH, "min-lr-ratio", CHANGES, "--lr-scheduler cosine_with_min_lr", "--min-lr-ratio 0.5", ""},
    {BOTH, "min-lr-ratio", CHANGES, "--lr-scheduler wsd --decay-steps 2", "--min-lr-ratio 0.5", ""},
    {BOTH, "min-lr-ratio", REFUSED, "--lr-scheduler linear", "--min-lr-ratio 0.5", "found linear"},
    {BOTH, "min-lr-ratio", REFUSED, "--lr-scheduler wsd", "--min-lr-ratio 0.5", "wanted --decay-steps or --warmup"},
    {BOTH, "weight-decay", CHANGES, "", "--weight-decay 0.5", ""},
    {BOTH, "decay-all", CHANGES, "--weight-decay 0.5", "--decay-all", ""},
    {BOTH, "decay-all", REFUSED, "", "--decay-all", "--decay-all: wanted --weight-decay above 0"},
    {BOTH, "adam-beta1", CHANGES, "", "--adam-beta1 0.5", ""},
    {BOTH, "adam-beta2", CHANGES, "", "--adam-beta2 0.5", ""},
    {BOTH, "adam-eps", CHANGES, "", "--adam-eps 0.1", ""},
    {BOTH, "max-grad-norm", CHANGES, "", "--max-grad-norm 0.01", ""},
    {BOTH, "lora-rank", CHANGES, "", "--lora-rank 4", ""},
    {BOTH, "lora-rank", CHANGES, "", "--lora-rank 4", "--lora-rank 5"},
    {BOTH, "lora-alpha", CHANGES, "--lora-rank 4", "--lora-alpha 9", ""},
    {BOTH, "lora-alpha", REFUSED, "", "--lora-alpha 9", "--lora-alpha: wanted --lora-rank of 1 or more"},
    {BOTH, "lora-targets", CHANGES, "--lora-rank 4", "--lora-targets q_proj,o_proj", ""},
    {BOTH, "lora-targets", REFUSED, "", "--lora-targets q_proj", "--lora-targets: wanted --lora-rank of 1 or more"},
    {BOTH, "lora-rslora", CHANGES, "--lora-rank 4", "--lora-rslora", ""},
    {BOTH, "lora-rslora", REFUSED, "", "--lora-rslora", "--lora-rslora: wanted --lora-rank of 1 or more"},
    {BOTH, "lora-seed", CHANGES, "--lora-rank 4", "--lora-seed 1", ""},
    {BOTH, "lora-seed", REFUSED, "", "--lora-seed 1", "--lora-seed: wanted --lora-rank of 1 or more"},
    {BOTH, "lora", CHANGES, "", "--lora " INVAR_SOURCE_DIR "/tests/data/adapters/qwen3", "--lora-rank 6"},
    {BOTH, "lora", REFUSED, "--lora-rank 4", "--lora /nowhere", "--lora-rank: wanted --lora to be left out"},
    {BOTH, "decay-all", REFUSED, "--lora-rank 4 --weight-decay 0.5", "--decay-all", "found an adapter"},
    {BOTH, "shard", REFUSED, "--lora-rank 4", "--shard parameters", "wanted all weights to learn, found an adapter"},
    {RL, "rollout-mantissa-bits", REFUSED, "--lora-rank 4", "--rollout-mantissa-bits 7", "found an adapter"},
    {BOTH, "load-format", CHANGES, "", "--load-format dummy", ""},
    {BOTH, "dummy-seed", CHANGES, "--load-format dummy", "--dummy-seed 1", ""},
    {BOTH, "dummy-seed", REFUSED, "", "--dummy-seed 1", "--dummy-seed: wanted --load-format dummy"},
    {BOTH, "dtype", CHANGES, "", "--dtype float32", ""},
    {BOTH, "arithmetic", CHANGES, "", "--arithmetic tc16", ""},
    {SFT, "numerics", CHANGES, "", "--numerics vanilla", ""},
    {RL, "numerics", CHANGES, REPORT, "--numerics vanilla", ""},
    {BOTH, "virtual-ranks", CHANGES, "", "--virtual-ranks 1", ""},
    {BOTH, "device", NEVER, "", "--device auto --arithmetic fma32", "--device cpu"},
    {BOTH, "data-parallel-size", NEVER, "", "--data-parallel-size 2", ""},
    {BOTH, "tensor-parallel-size", NEVER, "", "--tensor-parallel-size 2", ""},
    {BOTH, "enable-expert-parallel", REFUSED, "", "--enable-expert-parallel", "wanted a mixture of experts"},
    {BOTH, "threads", NEVER, "", "--threads 2", ""},
    {BOTH, "micro-batch", NEVER, "", "--micro-batch 1", ""},
    {BOTH, "pass-tokens", NEVER, "", "--pass-tokens 32", ""},
    {BOTH, "recompute", NEVER, "", "--recompute layer", ""},
    {BOTH, "offload-optimizer", REFUSED, "--device cpu", "--offload-optimizer", "wanted --device cuda, found the CPU"},
    {BOTH, "rank-transport", NEVER, "", "--rank-transport host", ""},
    {BOTH, "rank-transport", REFUSED, "--device cpu", "--rank-transport nccl", "--rank-transport nccl: wanted"},
    {BOTH, "shard", NEVER, "", "--shard parameters", ""},
    {BOTH, "isa", NEVER, "--steps 1", "--isa scalar", ""},
    {RL, "algorithm", CHANGES, "", "--algorithm reinforce", ""},
    {RL, "algorithm", CHANGES, "", "--algorithm rloo", ""},
    {RL, "algorithm", CHANGES, "", "--algorithm dr-grpo", ""},
    {RL, "algorithm", CHANGES, "--inner-steps 2", "--algorithm dapo", ""},
    {RL, "algorithm", CHANGES, "--inner-steps 2", "--algorithm gspo", ""},
    {RL, "reward", CHANGES, "", "--reward @half.sh", ""},
    {RL, "reward", REFUSED, "", "--reward no-such-rule", "wanted exact, numeric, boxed, format, length or a command"},
    {RL, "reward", REFUSED, "", "--reward exact", "answer: wanted one for the reward 'exact', found none"},
    {RL, "reward-format", CHANGES, TEXT "--reward format", "--reward-format (?s).*3.*", "--reward-format (?s).*8.*"},
    {RL, "reward-format", REFUSED, "--reward length", "--reward-format x", "--reward-format: wanted --reward format"},
    {RL, "reward-timeout", NEVER, "", "--reward-timeout 50", ""},
    {RL, "reward-timeout", REFUSED, "--reward length", "--reward-timeout 5", "--reward-timeout: wanted a command"},
    {RL, "group-size", CHANGES, "", "--group-size 3", ""},
    {RL, "group-size", REFUSED, "", "--group-size 1", "--group-size: wanted"},
    {RL, "inner-steps", CHANGES, "", "--inner-steps 2", ""},
    {RL, "kl-beta", CHANGES, "--algorithm reinforce", "--kl-beta 0.5", ""},
    {RL, "kl-beta", CHANGES, "--algorithm rloo", "--kl-beta 0.5", ""},
    {RL, "kl-beta", CHANGES, "--algorithm grpo", "--kl-beta 0.5", ""},
    {RL, "kl-beta", CHANGES, "--algorithm dr-grpo", "--kl-beta 0.5", ""},
    {RL, "kl-beta", CHANGES, "--algorithm dapo", "--kl-beta 0.5", ""},
    {RL, "kl-beta", CHANGES, "--algorithm gspo", "--kl-beta 0.5", ""},
    {RL, "kl", CHANGES, "--kl-beta 0.5", "--kl k1", "--kl k2"},
    {RL, "kl", CHANGES, "--kl-beta 0.5", "--kl k1", ""},
    {RL, "kl", REFUSED, "", "--kl k1", "--kl: wanted --kl-beta above 0"},
    {RL, "kl", REFUSED, "--algorithm rloo --kl-beta 1", "--kl k3", "--kl: wanted k1 for rloo"},
    {RL, "eps-low", CHANGES, "--inner-steps 3", "--eps-low 0.01", "--eps-low 0.9"},
    {RL, "eps-low", REFUSED, "", "--eps-low 0.1", "--eps-low: wanted --inner-steps above 1"},
    {RL, "eps-low", REFUSED, "--algorithm reinforce --inner-steps 2", "--eps-low 0.1", "found reinforce"},
    {RL, "eps-high", CHANGES, "--inner-steps 3", "--eps-high 0.01", "--eps-high 9"},
    {RL, "eps-high", REFUSED, "", "--eps-high 0.1", "--eps-high: wanted --inner-steps above 1"},
    {RL, "eps-high", REFUSED, "--algorithm reinforce --inner-steps 2", "--eps-high 0.1", "found reinforce"},
    {RL, "correction", CHANGES, COARSE, "--correction truncate", ""},
    {RL, "correction", CHANGES, COARSE "--correction-cap 1.01", "--correction truncate", "--correction mask"},
    {RL, "correction", NEVER, REPORT, "--correction truncate", ""}, /* weights of the same sampler are 1 */
    {RL, "correction", REFUSED, "", "--correction truncate", "--correction truncate: wanted --on-mismatch report"},
    {RL, "correction-cap", CHANGES, COARSE "--correction truncate", "--correction-cap 0.5", ""},
    {RL, "correction-cap", REFUSED, "", "--correction-cap 2", "--correction-cap: wanted --correction"},
    {RL, "overlong-buffer", CHANGES, TEXT "--reward numeric", "--overlong-buffer 20", ""},
    {RL, "overlong-buffer", REFUSED, "--max-new-tokens 1", "--overlong-buffer 1", "wanted --max-new-tokens above 1"},
    {RL, "dynamic-sampling", CHANGES, "--reward @half.sh --max-grad-norm 0", "--dynamic-sampling", ""},
    {RL, "max-new-tokens", CHANGES, "", "--max-new-tokens 5", ""},
    {RL, "max-new-tokens", REFUSED, "", "--max-new-tokens 4094", "data.jsonl:1: wanted a prompt and 4094 new tokens"},
    {RL, "temperature", CHANGES, "", "--temperature 0.7", ""},
    {RL, "temperature", REFUSED, "--top-p 0.5", "--temperature 0.7", "--temperature: wanted 1 with --top-p"},
    {RL, "top-p", CHANGES, "", "--top-p 0.5", ""},
    {RL, "top-k", CHANGES, "", "--top-k 3", ""},
    {RL, "top-k", REFUSED, "", "--top-k 1", "all completions of a prompt are equal"},
    {RL, "min-p", CHANGES, "", "--min-p 0.8", ""},
    {RL, "min-p", REFUSED, "", "--min-p 1", "all completions of a prompt are equal"},
    {RL, "on-mismatch", NEVER, "", "--on-mismatch report", ""},
    {RL, "sample-all-ids", CHANGES, TEXT "--reward numeric", "--sample-all-ids", ""},
    {RL, "rollout-numerics", CHANGES, REPORT "--correction truncate", "--rollout-numerics vanilla",
     "--rollout-numerics bio"},
    {RL, "rollout-numerics", REFUSED, "", "--rollout-numerics vanilla", "the sampler's log-probability"},
    {RL, "rollout-mantissa-bits", CHANGES, REPORT, "--rollout-mantissa-bits 2", ""},
    {RL, "rollout-sync-every", CHANGES, REPORT, "--rollout-sync-every 2", ""},
    {RL, "rollout-tp", NEVER, "", "--rollout-tp 2", ""},
    {RL, "rollout-max-num-seqs", NEVER, "", "--rollout-max-num-seqs 3", ""},
    {RL, "rollout-max-num-batched-tokens", NEVER, "", "--rollout-max-num-batched-tokens 16", ""},
    {RL, "speculative", NEVER, "", "--speculative ngram", ""},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- running -------------------------------------------------------------------------------------------- */

static void write_program(const char *name, const char *expression) {
    char text[400];
    int n = snprintf(text, sizeof text,
                     "#!/bin/sh\nwhile IFS= read -r line; do\n    id=${line#*'\"id\":'}\n    id=${id%%%%,*}\n"
                     "    echo '{\"id\":'$id',\"reward\":'$((%s))'}'\ndone\n",
                     expression);
    write_file(name, text, (size_t)n);
    assert_int_equal(chmod(in_folder(name), 0755), 0);
}

static void write_inputs(void) {
    char text[32768];
    size_t n = 0;
    for (unsigned file = 0; file < 2; file++) {
        n = 0;
        for (unsigned e = 0; e < 7; e++) {
            n += (size_t)snprintf(text + n, sizeof text - n, "{\"ids\": [");
            for (unsigned i = 0; i < 3 + 2 * e; i++)
                n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", i ? ", " : "",
                                      (file * 11 + e * 97 + i * i * 31 + 5) % 512);
            n += (size_t)snprintf(text + n, sizeof text - n, "]}\n");
        }
        write_file(file ? "other.jsonl" : "data.jsonl", text, n);
    }
    n = (size_t)snprintf(text, sizeof text, "{\"ids\": [1, 2]}\n{\"ids\": [1");
    for (unsigned i = 0; i < 4096; i++) n += (size_t)snprintf(text + n, sizeof text - n, ", 2");
    n += (size_t)snprintf(text + n, sizeof text - n, "]}\n");
    write_file("long.jsonl", text, n);
    static const char sums[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 3 + 4?\"}], \"answer\": \"7\"}\n{\"messages\": "
        "[{\"role\": \"user\", \"content\": \"What is 8 + 1?\"}], \"answer\": \"9\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 2 + 2?\"}], \"answer\": \"4\"}\n";
    write_file("sums.jsonl", sums, sizeof sums - 1);
    write_program("reward.sh", "id % 16 * 7 % 5");
    write_program("half.sh", "id < 4 ? 0 : id % 2");
}

/* Appends words of text; "@name" is a path in the folder. A flag given again replaces the first. */
static size_t add_words(const char **words, size_t n, char *text) {
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " ")) {
        size_t i = 0;
        if (strcmp(at, "MODEL") == 0) {
            words[2] = source_path("models/tiny-math");
            continue;
        }
        while (i < n && !(at[0] == '-' && strcmp(words[i], at) == 0)) i++;
        if (i < n && strncmp(at, "--on-mismatch", 13) != 0) {
            words[i + 1] = strtok(NULL, " ");
            if (words[i + 1][0] == '@') words[i + 1] = in_folder(words[i + 1] + 1);
            continue;
        }
        assert_true(n < WORDS_MAX);
        words[n++] = at[0] == '@' ? in_folder(at + 1) : at;
    }
    return n;
}

static void run_words(int command, const char *with, const char *more) {
    static unsigned runs;
    static const char *const base[] = {
        "--data @data.jsonl --batch-size 4 --lr 0.01 --steps 3 --threads 1 --device cpu --output @",
        "--data @data.jsonl --batch-size 2 --lr 0.01 --steps 3 --threads 1 --device cpu --group-size 4 "
        "--max-new-tokens 4 --reward @reward.sh --output @"};
    char first[400], text[400], *steps;
    const char *words[WORDS_MAX + 2] = {"train", command == SFT ? "sft" : "rl", source_path("tests/data/hf/qwen3")};
    snprintf(first, sizeof first, "%srun%u", base[command == RL], runs++);
    snprintf(text, sizeof text, "%s %s", with, more);
    if (strstr(text, "--epochs") && (steps = strstr(first, "--steps 3"))) memset(steps, ' ', 9);
    size_t n = add_words(words, 3, first);
    n = add_words(words, n, text);
    words[n] = NULL;
    finish(start(NULL, -1, words));
}

/* The hash of the weights in a summary, in either form. */
static const char *hash_of(int command, const char *with, const char *more) {
    static struct { char key[300], hash[65]; } known[RUNS_MAX];
    static size_t count;
    char key[300];
    snprintf(key, sizeof key, "%d %s %s", command, with, more);
    for (size_t i = 0; i < count; i++)
        if (strcmp(known[i].key, key) == 0) return known[i].hash;
    run_words(command, with, more);
    if (came.code != 0) fail_msg("%s: code %d: %s", key, came.code, came.err);
    const char *at = strstr(came.out, "weights");
    while (at && *at && !(isxdigit((unsigned char)at[0]) && strspn(at, "0123456789abcdef") == 64)) at++;
    if (!at || !*at) fail_msg("%s: no hash in: %s", key, came.out);
    assert_true(count < RUNS_MAX);
    snprintf(known[count].key, sizeof known[count].key, "%s", key);
    snprintf(known[count].hash, sizeof known[count].hash, "%.64s", at);
    return known[count++].hash;
}

/* ---- cases ---------------------------------------------------------------------------------------------- */

static void try_row(const row *r, int command) {
    if (r->effect == REFUSED) {
        run_words(command, r->with, r->one);
        if (came.code == 0 || !strstr(came.err, r->other))
            fail_msg("%s %s: wanted '%s', found code %d: %s", r->with, r->one, r->other, came.code, came.err);
        return;
    }
    char one[65];
    snprintf(one, sizeof one, "%s", hash_of(command, r->with, r->one));
    bool same = strcmp(one, hash_of(command, r->with, r->other)) == 0;
    if (same != (r->effect == NEVER))
        fail_msg("%s --%s: '%s' with '%s' and with '%s': wanted %s, found %.12s%s", command == SFT ? "sft" : "rl",
                 r->flag, r->with, r->one, r->other, r->effect == NEVER ? "one hash" : "two hashes", one,
                 same ? " twice" : " and another");
}

static void try_rows(int command) {
    write_inputs();
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].commands & command) try_row(&rows[i], command);
}

static void sft_flags_do_what_their_rows_say(void **state) {
    (void)state;
    try_rows(SFT);
}

static void rl_flags_do_what_their_rows_say(void **state) {
    (void)state;
    try_rows(RL);
}

/* Names of help's table: the first of each line that begins with flags. */
static void every_flag_has_a_row(void **state) {
    (void)state;
    for (int command = SFT; command <= RL; command++) {
        size_t flags = 0;
        const char *words[] = {"train", command == SFT ? "sft" : "rl", "--help", NULL};
        finish(start(NULL, -1, words));
        expect_ok();
        for (char *line = strtok(came.out, "\n"); line; line = strtok(NULL, "\n")) {
            char name[80];
            const char *at = strstr(line, "--");
            if (!at || (strncmp(line, "      --", 8) != 0 && strncmp(line, "  -", 3) != 0)) continue;
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 2, " ,"), at + 2);
            if (strcmp(name, "help") == 0) continue;
            bool found = false;
            for (size_t i = 0; i < ROWS; i++) found |= rows[i].commands & command && strcmp(rows[i].flag, name) == 0;
            if (!found) fail_msg("train %s --%s: wanted a row in this test, found none", words[1], name);
            flags++;
        }
        assert_true(flags > 30);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_flag_has_a_row),
                                       cmocka_unit_test(sft_flags_do_what_their_rows_say),
                                       cmocka_unit_test(rl_flags_do_what_their_rows_say)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
