/* bench.c: invar bench. Prompts are pseudo-random token ids from the run's number alone, so that figures and
 * digests can be compared across machines; each run has its own, so that no cache of prefixes can help. */
#include "answer.h"
#include "commands.h"
#include "json_out.h"
#include "model.h"
#include "output.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

typedef struct figures {
    double *prefill, *decode; /* tokens a second, one for each run */
    char digest[96];          /* of the first run */
} figures;

/* splitmix64 */
static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_size);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static int run_once(iv_engine *engine, size_t run, int32_t *ids, size_t id_count, size_t decode, figures *f,
                    iv_error *err) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    uint64_t state = run;
    for (size_t i = 0; i < id_count; i++) ids[i] = (int32_t)(next_random(&state) % info.vocab_size);
    iv_request r;
    iv_request_init(engine, &r);
    r.ids = ids;
    r.id_count = id_count;
    r.max_tokens = decode;
    r.temperature = 0;
    r.repetition_penalty = 1;
    r.ignore_eos = true;
    cli_answer a;
    int code = cli_answer_get(engine, &r, NULL, NULL, &a, err);
    if (code != CLI_OK) return code;
    f->prefill[run] = cli_prefill_rate(&a);
    f->decode[run] = cli_decode_rate(&a);
    if (run == 0) memcpy(f->digest, a.digest, sizeof f->digest);
    if (a.signal)
        code = 128 + a.signal;
    else if (a.id_count != decode)
        code =
            cli_fail(err, CLI_FAILED, "wanted %zu generated tokens, found %zu: raise --max-model-len or ask for fewer",
                     decode, a.id_count);
    cli_answer_free(&a);
    return code;
}

static int report(const cli_args *args, const iv_engine *engine, size_t prompt, size_t decode, size_t repeat,
                  figures *f, iv_error *err) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    double prefill_rate = median(f->prefill, repeat), decode_rate = median(f->decode, repeat);
    cli_page page;
    if (cli_page_open(&page, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json")) {
        cli_json json = {.file = page.file};
        cli_json_begin(&json, NULL, '{');
        cli_json_word(&json, "model", args->operands[0]);
        cli_json_count(&json, "threads", info.threads);
        cli_json_word(&json, "isa", info.isa);
        cli_json_word(&json, "arithmetic", info.arithmetic);
        cli_json_count(&json, "prompt_tokens", prompt);
        cli_json_count(&json, "decode_tokens", decode);
        cli_json_double(&json, "prefill_tokens_per_s", prefill_rate);
        cli_json_double(&json, "decode_tokens_per_s", decode_rate);
        cli_json_double(&json, "load_s", info.load_seconds);
        cli_json_word(&json, "digest", f->digest);
        cli_json_end(&json, '}');
        fputc('\n', page.file);
    } else {
        char weights[24];
        fprintf(page.file, "%s: %s of %s weights, %s, %s, %zu thread%s, loaded in %.2f s\n", args->operands[0],
                cli_human_bytes((double)info.weight_bytes, weights), info.dtype, info.arithmetic, info.isa,
                info.threads, info.threads == 1 ? "" : "s", info.load_seconds);
        fprintf(page.file, "prefill %10.1f tokens/s (%zu tokens)\n", prefill_rate, prompt);
        fprintf(page.file, "decode  %10.1f tokens/s (%zu tokens)\n", decode_rate, decode);
        fprintf(page.file, "medians of %zu run%s\ndigest %s\n", repeat, repeat == 1 ? "" : "s", f->digest);
    }
    return cli_page_out(&page, err);
}

int cli_bench(const cli_args *args, iv_error *err) {
    size_t prompt = cli_count(args, "prompt-tokens", 512), decode = cli_count(args, "decode-tokens", 64);
    size_t repeat = cli_count(args, "repeat", 3);
    iv_engine *engine = NULL;
    int code = cli_engine_open(args, &engine, err);
    if (code != CLI_OK) return code;
    figures f = {.prefill = calloc(repeat, sizeof(double)), .decode = calloc(repeat, sizeof(double))};
    int32_t *ids = calloc(prompt, sizeof *ids);
    if (!ids || !f.prefill || !f.decode) code = cli_fail(err, CLI_FAILED, "out of memory");
    for (size_t run = 0; code == CLI_OK && run < repeat; run++)
        code = run_once(engine, run, ids, prompt, decode, &f, err);
    if (code == CLI_OK) code = report(args, engine, prompt, decode, repeat, &f, err);
    free(ids);
    free(f.prefill);
    free(f.decode);
    iv_engine_close(engine);
    return code;
}
