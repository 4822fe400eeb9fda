/* bench_latency.c: invar bench latency: one batch, many times, and that its answers stay the same. */
#include "bench_stats.h"
#include "commands.h"
#include "crowd.h"
#include "engine_flags.h"
#include "model.h"
#include "output.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

typedef struct batch {
    iv_engine *engine;
    size_t size, input, output, iteration, warmup, timed;
    int32_t *ids;        /* [size][input] */
    char (*digests)[96]; /* [size], of the first iteration */
    cli_sample seconds;
    iv_engine_info info;
} batch;

static int fill_request(void *user, size_t job, iv_request *r, iv_error *err) {
    batch *b = user;
    (void)err;
    iv_request_init(b->engine, r);
    r->ids = b->ids + job * b->input, r->id_count = b->input;
    r->max_tokens = b->output;
    r->temperature = 0, r->repetition_penalty = 1;
    r->ignore_eos = true;
    return CLI_OK;
}

static int take_event(void *user, size_t job, const iv_event *e, iv_error *err) {
    batch *b = user;
    if (e->kind != IV_EVENT_DONE) return CLI_OK;
    if (e->finish == IV_FINISH_ERROR) return cli_fail(err, CLI_FAILED, "%s", e->error);
    if (e->id_count != b->output)
        return cli_fail(err, CLI_FAILED,
                        "wanted %zu generated tokens, found %zu: raise --max-model-len or ask for fewer", b->output,
                        e->id_count);
    if (b->iteration == 0) {
        snprintf(b->digests[job], sizeof b->digests[job], "%s", e->digest);
    } else if (strcmp(b->digests[job], e->digest) != 0) {
        return cli_fail(err, CLI_FAILED, "request %zu of the batch: the digest was %s at first, and is %s in round %zu",
                        job + 1, b->digests[job], e->digest, b->iteration + 1);
    }
    return CLI_OK;
}

static int run_rounds(batch *b, iv_error *err) {
    cli_crowd crowd = {
        .engine = b->engine, .jobs = b->size, .most = b->size, .user = b, .request = fill_request, .event = take_event};
    for (b->iteration = 0; b->iteration < b->warmup + b->timed; b->iteration++) {
        double begin = cli_seconds();
        int code = cli_crowd_run(&crowd, err);
        if (code != CLI_OK) return code;
        if (b->iteration >= b->warmup && !cli_sample_add(&b->seconds, cli_seconds() - begin))
            return cli_fail(err, CLI_FAILED, "out of memory");
    }
    cli_sample_sort(&b->seconds);
    return CLI_OK;
}

static const double percents[] = {10, 25, 50, 75, 90, 99};

static void write_json(const cli_args *args, const batch *b, FILE *out) {
    iv_json_out json = {.spaced = true, .file = out};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", args->operands[0]);
    iv_out_kv_uint(&json, "batch_size", b->size);
    iv_out_kv_uint(&json, "input_len", b->input);
    iv_out_kv_uint(&json, "output_len", b->output);
    iv_out_kv_double(&json, "avg_latency", cli_sample_mean(&b->seconds));
    iv_out_kv_open(&json, "latencies", '[');
    for (size_t i = 0; i < b->seconds.count; i++) iv_out_kv_double(&json, NULL, b->seconds.values[i]);
    iv_out_close(&json, ']');
    iv_out_kv_open(&json, "percentiles", '{');
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
        char name[16];
        snprintf(name, sizeof name, "%g", percents[i]);
        iv_out_kv_double(&json, name, cli_sample_percentile(&b->seconds, percents[i]));
    }
    iv_out_close(&json, '}');
    iv_out_kv_text(&json, "fingerprint", b->info.fingerprint);
    iv_out_kv_text(&json, "digest", b->digests[0]);
    iv_out_close(&json, '}');
    fputc('\n', out);
}

static void write_text(const cli_args *args, const batch *b, FILE *out) {
    fprintf(out, "%s: %zu requests at once, each %zu tokens in and %zu out; %zu rounds after %zu to warm up\n",
            args->operands[0], b->size, b->input, b->output, b->timed, b->warmup);
    fprintf(out, "mean %.6g s\n", cli_sample_mean(&b->seconds));
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++)
        fprintf(out, "p%-3g %.6g s\n", percents[i], cli_sample_percentile(&b->seconds, percents[i]));
    fprintf(out, "digests the same in all %zu rounds\ndigest %s\n", b->warmup + b->timed, b->digests[0]);
}

static int open_engine(const cli_args *args, const batch *b, iv_engine **out, iv_error *err) {
    char path[CLI_PATH_BYTES];
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = path;
    o.prefix_caching = false; /* or every round but the first would read nothing */
    cli_engine_options(args, &o);
    if (!cli_has(args, "max-num-seqs") && b->size > 1) o.max_num_seqs = b->size;
    return cli_engine_open_with(&o, args->operands[0], out, err);
}

static int report(const cli_args *args, const batch *b, iv_error *err) {
    cli_page page;
    if (cli_page_open(&page, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json"))
        write_json(args, b, page.file);
    else
        write_text(args, b, page.file);
    return cli_page_out(&page, err);
}

int cli_bench_latency(const cli_args *args, iv_error *err) {
    batch b = {.size = cli_count(args, "batch-size", 8),
               .input = cli_count(args, "input-len", 32),
               .output = cli_count(args, "output-len", 128),
               .warmup = cli_count(args, "num-iters-warmup", 10),
               .timed = cli_count(args, "num-iters", 30)};
    int code = open_engine(args, &b, &b.engine, err);
    if (code != CLI_OK) return code;
    iv_engine_get_info(b.engine, &b.info);
    b.ids = calloc(b.size * b.input, sizeof *b.ids), b.digests = calloc(b.size, sizeof *b.digests);
    if (!b.ids || !b.digests) code = cli_fail(err, CLI_FAILED, "out of memory");
    uint64_t state = 0;
    for (size_t i = 0; code == CLI_OK && i < b.size * b.input; i++)
        b.ids[i] = (int32_t)(cli_random(&state) % b.info.vocab_size);
    if (code == CLI_OK) code = run_rounds(&b, err);
    if (code == CLI_OK) code = report(args, &b, err);
    free(b.ids), free(b.digests);
    cli_sample_free(&b.seconds);
    iv_engine_close(b.engine);
    return code;
}
