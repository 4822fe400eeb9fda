/* bench.c: invar bench (throughput) and invar bench latency. Prompts are pseudo-random token ids from the run's number
 * alone, so that figures and digests can be compared across machines; each run and each request has its own prompt, so
 * that no prefix cache can help. bench latency repeats one batch and checks that its answers stay the same. */
#include "commands.h"
#include "answer.h"
#include "base/clock.h"
#include "base/json_out.h"
#include "lora.h"
#include "model.h"
#include "output.h"
#include "stats.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

typedef struct figures {
    double *prefill, *decode, *total; /* tokens per second, one per run */
    char digest[96];                  /* of the first run's first request */
} figures;

static double median(double *values, size_t n) {
    cli_sample s = {.values = values, .count = n, .room = n};
    cli_sample_sort(&s);
    return cli_sample_percentile(&s, 50);
}

typedef struct load { /* one run: `requests` concurrent requests that differ only in their prompts */
    size_t requests, prompt, decode;
    int32_t *ids;          /* [prompt] */
    uint64_t *request_ids; /* [requests] */
    const char *adapter;   /* or NULL */
} load;

static int submit_all(iv_engine *engine, size_t run, load *l, iv_error *err) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    for (size_t i = 0; i < l->requests; i++) {
        uint64_t state = run + (uint64_t)i * 1000003u;
        for (size_t t = 0; t < l->prompt; t++) l->ids[t] = (int32_t)(cli_random(&state) % info.vocab_size);
        iv_request r;
        iv_request_init(engine, &r);
        r.adapter = l->adapter;
        r.ids = l->ids;
        r.id_count = l->prompt;
        r.max_tokens = l->decode;
        r.temperature = 0;
        r.repetition_penalty = 1;
        r.ignore_eos = true;
        if (iv_engine_submit(engine, &r, &l->request_ids[i], err) != IV_OK) return CLI_FAILED;
    }
    return CLI_OK;
}

typedef struct progress {      /* of one run */
    size_t generated, started; /* tokens; requests that have their first token */
    uint64_t *begun;           /* [requests]: 1 after its first token */
} progress;

static int note_event(const iv_event *event, size_t run, const load *l, progress *p, figures *f, iv_error *err) {
    size_t i = 0;
    while (i < l->requests && l->request_ids[i] != event->request) i++;
    if (i == l->requests) return CLI_OK;
    if (event->kind == IV_EVENT_TOKEN) {
        p->generated++;
        p->started += !p->begun[i];
        p->begun[i] = 1;
        return CLI_OK;
    }
    if (event->finish == IV_FINISH_ERROR) return cli_fail(err, CLI_FAILED, "%s", event->error);
    if (event->id_count != l->decode)
        return cli_fail(err, CLI_FAILED,
                        "wanted %zu generated tokens, found %zu: raise --max-model-len or ask for fewer", l->decode,
                        event->id_count);
    if (run == 0 && i == 0) snprintf(f->digest, sizeof f->digest, "%s", event->digest);
    return CLI_OK;
}

/* Prefill lasts until every request has its first token; tokens that earlier requests generate meanwhile count as
 * prefill. */
static int run_once(iv_engine *engine, size_t run, load *l, figures *f, iv_error *err) {
    progress p = {.begun = calloc(l->requests, sizeof *p.begun)};
    if (!p.begun) return cli_fail(err, CLI_FAILED, "out of memory");
    double begin = iv_now(), middle = 0, end;
    size_t read = 0;
    int code = submit_all(engine, run, l, err);
    for (bool busy = true; code == CLI_OK && busy;) {
        if (iv_engine_step(engine, &busy, err) != IV_OK) code = CLI_FAILED;
        for (iv_event event; code == CLI_OK && iv_engine_next_event(engine, &event);)
            code = note_event(&event, run, l, &p, f, err);
        if (middle == 0 && p.started == l->requests)
            middle = iv_now(), read = l->requests * l->prompt + p.generated - l->requests;
    }
    end = iv_now();
    free(p.begun);
    if (code != CLI_OK) return code;
    size_t all = l->requests * (l->prompt + l->decode - 1);
    f->prefill[run] = (double)read / (middle - begin);
    f->decode[run] = all > read ? (double)(all - read) / (end - middle) : 0;
    f->total[run] = (double)all / (end - begin);
    return CLI_OK;
}

/* Medians over the runs, in tokens per second. */
typedef struct rates {
    double prefill, decode, total;
    size_t runs;
    const char *digest;
} rates;

static void write_json(const cli_args *args, const iv_engine *engine, const load *l, const rates *r, FILE *out) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    cli_lora_fingerprint(engine, cli_lora_name(args), &info);
    iv_json_out json = {.spaced = true, .file = out};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", args->operands[0]);
    iv_out_kv_uint(&json, "threads", info.threads);
    iv_out_kv_text(&json, "isa", info.isa);
    iv_out_kv_text(&json, "device", info.device);
    iv_out_kv_text(&json, "gpu", info.gpu);
    iv_out_kv_text(&json, "rank_transport", info.rank_transport);
    iv_out_kv_uint(&json, "tensor_parallel_size", info.tensor_parallel_size);
    iv_out_kv_text(&json, "arithmetic", info.arithmetic);
    iv_out_kv_text(&json, "numerics", info.numerics);
    iv_out_kv_uint(&json, "concurrency", l->requests);
    iv_out_kv_uint(&json, "prompt_tokens", l->prompt);
    iv_out_kv_uint(&json, "decode_tokens", l->decode);
    iv_out_kv_double(&json, "prefill_tokens_per_s", r->prefill);
    iv_out_kv_double(&json, "decode_tokens_per_s", r->decode);
    iv_out_kv_double(&json, "total_tokens_per_s", r->total);
    iv_out_kv_double(&json, "load_s", info.load_seconds);
    iv_engine_stats stats;
    iv_engine_get_stats(engine, &stats);
    iv_out_kv_uint(&json, "steps", stats.steps);
    iv_out_kv_double(&json, "step_s", stats.step_seconds);
    iv_out_kv_double(&json, "forward_s", stats.forward_seconds);
    iv_out_kv_double(&json, "sample_s", stats.sample_seconds);
    iv_out_kv_uint(&json, "preemptions", stats.preemptions);
    iv_out_kv_text(&json, "digest", r->digest);
    iv_out_close(&json, '}');
    fputc('\n', out);
}

static void write_text(const cli_args *args, const iv_engine *engine, const load *l, const rates *r, FILE *out) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    cli_lora_fingerprint(engine, cli_lora_name(args), &info);
    char weights[24];
    fprintf(out, "%s: %s of %s weights, %s, ", args->operands[0], cli_human_bytes((double)info.weight_bytes, weights),
            info.dtype, info.arithmetic);
    if (*info.gpu)
        fprintf(out, "%zu x %s%s%s, ", info.tensor_parallel_size, info.gpu, *info.rank_transport ? " by " : "",
                info.rank_transport);
    else
        fprintf(out, "%s, %zu thread%s, ", info.isa, info.threads, info.threads == 1 ? "" : "s");
    fprintf(out, "loaded in %.2f s\n", info.load_seconds);
    if (l->requests > 1) fprintf(out, "%zu concurrent requests, each of:\n", l->requests);
    fprintf(out, "prefill %10.1f tokens/s (%zu tokens)\n", r->prefill, l->prompt);
    fprintf(out, "decode  %10.1f tokens/s (%zu tokens)\n", r->decode, l->decode);
    if (l->requests > 1) fprintf(out, "total   %10.1f tokens/s\n", r->total);
    fprintf(out, "medians of %zu run%s\ndigest %s\n", r->runs, r->runs == 1 ? "" : "s", r->digest);
}

static int report(const cli_args *args, const iv_engine *engine, const load *l, size_t repeat, figures *f,
                  iv_error *err) {
    rates r = {.prefill = median(f->prefill, repeat),
               .decode = median(f->decode, repeat),
               .total = median(f->total, repeat),
               .runs = repeat,
               .digest = f->digest};
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    (cli_has(args, "json") ? write_json : write_text)(args, engine, l, &r, buffer.file);
    return cli_buffer_out(&buffer, err);
}

int cli_bench(const cli_args *args, iv_error *err) {
    load l = {.requests = cli_count(args, "concurrency", 1),
              .prompt = cli_count(args, "prompt-tokens", 512),
              .decode = cli_count(args, "decode-tokens", 64),
              .adapter = cli_lora_name(args)};
    size_t repeat = cli_count(args, "repeat", 3);
    iv_engine *engine = NULL;
    int code = cli_engine_open_for(args, l.requests, l.prompt + l.decode, &engine, err);
    if (code != CLI_OK) return code;
    figures f = {.prefill = calloc(repeat, sizeof(double)),
                 .decode = calloc(repeat, sizeof(double)),
                 .total = calloc(repeat, sizeof(double))};
    l.ids = calloc(l.prompt, sizeof *l.ids), l.request_ids = calloc(l.requests, sizeof *l.request_ids);
    if (!l.ids || !l.request_ids || !f.prefill || !f.decode || !f.total)
        code = cli_fail(err, CLI_FAILED, "out of memory");
    for (size_t run = 0; code == CLI_OK && run < repeat; run++) code = run_once(engine, run, &l, &f, err);
    if (code == CLI_OK) code = report(args, engine, &l, repeat, &f, err);
    free(l.ids), free(l.request_ids);
    free(f.prefill), free(f.decode), free(f.total);
    iv_engine_close(engine);
    return code;
}

/* ---- latency ------------------------------------------------------------------------------------------- */

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
        return cli_fail(err, CLI_FAILED,
                        "request %zu of the batch: the digest was %s in the first round and is %s in round %zu",
                        job + 1, b->digests[job], e->digest, b->iteration + 1);
    }
    return CLI_OK;
}

static int run_rounds(batch *b, iv_error *err) {
    cli_workload workload = {.engine = b->engine,
                             .jobs = b->size,
                             .concurrency = b->size,
                             .user = b,
                             .request = fill_request,
                             .event = take_event};
    for (b->iteration = 0; b->iteration < b->warmup + b->timed; b->iteration++) {
        double begin = iv_now();
        int code = cli_workload_run(&workload, err);
        if (code != CLI_OK) return code;
        if (b->iteration >= b->warmup && !cli_sample_add(&b->seconds, iv_now() - begin))
            return cli_fail(err, CLI_FAILED, "out of memory");
    }
    cli_sample_sort(&b->seconds);
    return CLI_OK;
}

static const double percents[] = {10, 25, 50, 75, 90, 99};

static void write_latency_json(const cli_args *args, const batch *b, FILE *out) {
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

static void write_latency_text(const cli_args *args, const batch *b, FILE *out) {
    fprintf(out, "%s: %zu concurrent requests, each %zu tokens in and %zu out; %zu rounds after %zu to warm up\n",
            args->operands[0], b->size, b->input, b->output, b->timed, b->warmup);
    fprintf(out, "mean %.6g s\n", cli_sample_mean(&b->seconds));
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++)
        fprintf(out, "p%-3g %.6g s\n", percents[i], cli_sample_percentile(&b->seconds, percents[i]));
    fprintf(out, "digests equal in all %zu rounds\ndigest %s\n", b->warmup + b->timed, b->digests[0]);
}

static int open_engine(const cli_args *args, const batch *b, iv_engine **out, iv_error *err) {
    char path[CLI_PATH_BYTES];
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = path;
    o.prefix_caching = false; /* otherwise only the first round would compute its prompts */
    cli_engine_options(args, &o);
    if (!cli_has(args, "max-num-seqs") && b->size > 1) o.max_num_seqs = b->size;
    return cli_engine_open_with(&o, args->operands[0], out, err);
}

static int report_latency(const cli_args *args, const batch *b, iv_error *err) {
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json"))
        write_latency_json(args, b, buffer.file);
    else
        write_latency_text(args, b, buffer.file);
    return cli_buffer_out(&buffer, err);
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
    if (code == CLI_OK) code = report_latency(args, &b, err);
    free(b.ids), free(b.digests);
    cli_sample_free(&b.seconds);
    iv_engine_close(b.engine);
    return code;
}
