/* bench.c: invar bench. Prompts are pseudo-random token ids from the run's number alone, so that figures and
 * digests can be compared across machines; each run and each request has its own, so that no cache of prefixes can
 * help. */
#include "bench_stats.h"
#include "commands.h"
#include "base/json_out.h"
#include "model.h"
#include "output.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct figures {
    double *prefill, *decode, *total; /* tokens a second, one for each run */
    char digest[96];                  /* of the first run's first request */
} figures;

static double median(double *values, size_t n) {
    cli_sample s = {.values = values, .count = n, .room = n};
    cli_sample_sort(&s);
    return cli_sample_percentile(&s, 50);
}

typedef struct load { /* of one run: `requests` at once, all alike but for their prompts */
    size_t requests, prompt, decode;
    int32_t *ids;          /* [prompt] */
    uint64_t *request_ids; /* [requests] */
} load;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int submit_all(iv_engine *engine, size_t run, load *l, iv_error *err) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    for (size_t i = 0; i < l->requests; i++) {
        uint64_t state = run + (uint64_t)i * 1000003u;
        for (size_t t = 0; t < l->prompt; t++) l->ids[t] = (int32_t)(cli_random(&state) % info.vocab_size);
        iv_request r;
        iv_request_init(engine, &r);
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
    size_t generated, started; /* tokens; requests that have their first */
    uint64_t *begun;           /* [requests]: 1 once its first token has come */
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

/* Reading lasts until every request has its first token; tokens that the earlier ones make meanwhile count with it. */
static int run_once(iv_engine *engine, size_t run, load *l, figures *f, iv_error *err) {
    progress p = {.begun = calloc(l->requests, sizeof *p.begun)};
    if (!p.begun) return cli_fail(err, CLI_FAILED, "out of memory");
    double begin = seconds(), middle = 0, end;
    size_t read = 0;
    int code = submit_all(engine, run, l, err);
    for (bool busy = true; code == CLI_OK && busy;) {
        if (iv_engine_step(engine, &busy, err) != IV_OK) code = CLI_FAILED;
        for (iv_event event; code == CLI_OK && iv_engine_next_event(engine, &event);)
            code = note_event(&event, run, l, &p, f, err);
        if (middle == 0 && p.started == l->requests)
            middle = seconds(), read = l->requests * l->prompt + p.generated - l->requests;
    }
    end = seconds();
    free(p.begun);
    if (code != CLI_OK) return code;
    size_t all = l->requests * (l->prompt + l->decode - 1);
    f->prefill[run] = (double)read / (middle - begin);
    f->decode[run] = all > read ? (double)(all - read) / (end - middle) : 0;
    f->total[run] = (double)all / (end - begin);
    return CLI_OK;
}

static int report(const cli_args *args, const iv_engine *engine, const load *l, size_t repeat, figures *f,
                  iv_error *err) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    double prefill_rate = median(f->prefill, repeat), decode_rate = median(f->decode, repeat),
           total_rate = median(f->total, repeat);
    cli_page page;
    if (cli_page_open(&page, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json")) {
        iv_json_out json = {.spaced = true, .file = page.file};
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
        iv_out_kv_double(&json, "prefill_tokens_per_s", prefill_rate);
        iv_out_kv_double(&json, "decode_tokens_per_s", decode_rate);
        iv_out_kv_double(&json, "total_tokens_per_s", total_rate);
        iv_out_kv_double(&json, "load_s", info.load_seconds);
        iv_engine_stats stats;
        iv_engine_get_stats(engine, &stats);
        iv_out_kv_uint(&json, "steps", stats.steps);
        iv_out_kv_double(&json, "step_s", stats.step_seconds);
        iv_out_kv_double(&json, "forward_s", stats.forward_seconds);
        iv_out_kv_double(&json, "sample_s", stats.sample_seconds);
        iv_out_kv_uint(&json, "preemptions", stats.preemptions);
        iv_out_kv_text(&json, "digest", f->digest);
        iv_out_close(&json, '}');
        fputc('\n', page.file);
    } else {
        char weights[24];
        fprintf(page.file, "%s: %s of %s weights, %s, ", args->operands[0],
                cli_human_bytes((double)info.weight_bytes, weights), info.dtype, info.arithmetic);
        if (*info.gpu)
            fprintf(page.file, "%zu x %s%s%s, ", info.tensor_parallel_size, info.gpu,
                    *info.rank_transport ? " by " : "", info.rank_transport);
        else
            fprintf(page.file, "%s, %zu thread%s, ", info.isa, info.threads, info.threads == 1 ? "" : "s");
        fprintf(page.file, "loaded in %.2f s\n", info.load_seconds);
        if (l->requests > 1) fprintf(page.file, "%zu requests at once, each of:\n", l->requests);
        fprintf(page.file, "prefill %10.1f tokens/s (%zu tokens)\n", prefill_rate, l->prompt);
        fprintf(page.file, "decode  %10.1f tokens/s (%zu tokens)\n", decode_rate, l->decode);
        if (l->requests > 1) fprintf(page.file, "total   %10.1f tokens/s\n", total_rate);
        fprintf(page.file, "medians of %zu run%s\ndigest %s\n", repeat, repeat == 1 ? "" : "s", f->digest);
    }
    return cli_page_out(&page, err);
}

int cli_bench(const cli_args *args, iv_error *err) {
    load l = {.requests = cli_count(args, "concurrency", 1),
              .prompt = cli_count(args, "prompt-tokens", 512),
              .decode = cli_count(args, "decode-tokens", 64)};
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
