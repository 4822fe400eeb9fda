/* verify_report.c: sums over configurations, the table, JSON. */
#include "verify_report.h"
#include "divergence.h"
#include "base/json_out.h"
#include "text.h"
#include "verify_compare.h"

#include <stdlib.h>
#include <string.h>

/* ---- sums ---------------------------------------------------------------------------------------------- */

int verify_report_open(verify_report *r, iv_error *err) {
    size_t prompts = r->job->prompts->count;
    const char **digests = calloc(r->count, sizeof *digests);
    r->unique = calloc(prompts, sizeof *r->unique);
    r->worst = SIZE_MAX;
    if (!digests || !r->unique) {
        free(digests);
        return cli_fail(err, CLI_FAILED, "out of memory");
    }
    for (size_t p = 0; p < prompts; p++) {
        size_t n = 0;
        for (size_t c = 0; c < r->count; c++)
            if (!r->results[c].skipped && r->results[c].cells[p].ran) digests[n++] = r->results[c].cells[p].digest;
        r->unique[p] = cli_count_unique(digests, n);
        if (r->unique[p] > r->unique_most) r->unique_most = r->unique[p];
    }
    free(digests);
    for (size_t c = 1; c < r->count; c++) {
        const verify_result *result = &r->results[c];
        if (result->skipped) continue;
        r->compared++, r->rows += result->rows;
        if (result->most > r->most) r->most = result->most;
        if (result->top > r->top) r->top = result->top;
        if (!result->differing) continue;
        if (r->worst == SIZE_MAX) r->worst = c;
        r->differing++;
    }
    return CLI_OK;
}

void verify_report_close(verify_report *r) {
    free(r->unique);
    r->unique = NULL;
}

const char *verify_deeds(const verify_result *result, char out[128]) {
    size_t used = (size_t)snprintf(out, 128, "%zu at once", result->together);
    if (result->cached && used < 128) used += (size_t)snprintf(out + used, 128 - used, ", %zu cached", result->cached);
    if (result->preemptions && used < 128)
        used += (size_t)snprintf(out + used, 128 - used, ", %zu preempted", result->preemptions);
    if (result->drafted && used < 128)
        snprintf(out + used, 128 - used, ", %zu of %zu drafted", result->accepted, result->drafted);
    return out;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

enum { NAME_CELL = 34 };

void verify_table_head(FILE *out, const verify_job *job, const char *model, const cli_style *style) {
    const verify_prompts *p = job->prompts;
    cli_print_safe(out, model, strlen(model), false);
    fprintf(out, ": %zu requests, %zu prompt tokens, %s, %s, %s\n%s%s\n", p->count, p->prompt_tokens,
            job->options.numerics, job->options.arithmetic, job->dtype, style->dim, job->fingerprint);
    fprintf(out, "%s%s%-*s %9s %6s  %-12s %9s %9s %7s  %s%s\n", style->plain, style->bold, NAME_CELL, "configuration",
            "equal", "rows", "digest", "max div", "top-5", "s", "did", style->plain);
}

static void print_divergence(FILE *out, double value) {
    if (value == 0)
        fprintf(out, " %9s", "0");
    else
        fprintf(out, " %9.2e", value);
}

void verify_table_row(FILE *out, const verify_config *config, const verify_result *result, size_t prompts,
                      const cli_style *style) {
    char name[NAME_CELL + 1], equal[48], did[128], difference[256];
    const char *full = config->name[0] ? config->name : "quiet run";
    bool cut = strlen(full) > NAME_CELL; /* the whole name then has a line of its own */
    if (cut) fprintf(out, "%s\n", full);
    snprintf(name, sizeof name, "%.*s", NAME_CELL, cut ? "" : full);
    if (result->skipped) {
        fprintf(out, "%s%-*s not run: ", style->dim, NAME_CELL, name);
        cli_print_safe(out, result->reason, strlen(result->reason), false);
        fprintf(out, "%s\n", style->plain);
        return;
    }
    snprintf(equal, sizeof equal, "%zu/%zu", result->ran - result->differing, result->ran);
    const char *colour = result->differing ? style->red : "";
    /* A digest over fewer requests can equal no other. */
    const char *digest = result->ran < prompts ? "(fewer)" : result->digest + 7;
    fprintf(out, "%s%-*s %9s %6zu  %-12.12s", colour, NAME_CELL, name, equal, result->rows, digest);
    print_divergence(out, result->most);
    print_divergence(out, result->top);
    fprintf(out, " %7.2f  %s%s\n", result->seconds, verify_deeds(result, did), *colour ? style->plain : "");
    if (result->first != SIZE_MAX)
        fprintf(out, "  request %zu, %s%s%s\n", result->first,
                verify_difference(&result->cells[result->first], difference), result->reason[0] ? ": " : "",
                result->reason);
}

void verify_table_foot(FILE *out, const verify_report *r, const cli_style *style) {
    size_t most = 0, kept = r->job->kept;
    for (size_t p = 0; p < r->job->prompts->count; p++)
        if (r->job->prompts->items[p].request.max_tokens > most) most = r->job->prompts->items[p].request.max_tokens;
    fprintf(out, "%sunique outputs%s %zu at most, over %zu configuration%s\n", style->bold, style->plain,
            r->unique_most, r->compared + 1, r->compared ? "s" : "");
    fprintf(out, "%slargest divergence%s %.3g of probability, %.3g of the top %d on average\n", style->bold,
            style->plain, r->most, r->top, VERIFY_TOP);
    fprintf(out, "%scompared%s %zu rows of %lld logits%s\n", style->bold, style->plain, r->rows,
            (long long)r->job->model->vocab_size, kept < most ? "" : ", bit for bit");
    if (kept < most)
        fprintf(out, "  bit for bit the first %zu rows of an answer (%zu MiB), by a 64-bit hash those behind them\n",
                kept, VERIFY_KEPT_BYTES >> 20);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static const char *const kind_names[] = {"same", "logits", "logprob", "token", "end"};

static void json_first(iv_json_out *json, const verify_result *result) {
    const verify_cell *cell = &result->cells[result->first];
    char line[256];
    iv_out_kv_open(json, "first_difference", '{');
    iv_out_kv_uint(json, "request", result->first);
    iv_out_kv_text(json, "what", kind_names[cell->kind]);
    iv_out_kv_uint(json, "position", cell->position);
    iv_out_kv_int(json, "token", cell->token);
    if (cell->kind == VERIFY_LOGPROB || (cell->kind == VERIFY_LOGITS && cell->token >= 0)) {
        iv_out_kv_shortest(json, "wanted", cell->want);
        iv_out_kv_shortest(json, "found", cell->found);
        iv_out_kv_uint(json, "ulps", cli_ulp_distance(cell->want, cell->found));
    }
    iv_out_kv_text(json, "message", verify_difference(cell, line));
    iv_out_close(json, '}');
}

static void json_result(iv_json_out *json, const verify_config *config, const verify_result *result) {
    iv_out_kv_open(json, NULL, '{');
    iv_out_kv_text(json, "name", config->name[0] ? config->name : "quiet run");
    iv_out_kv_open(json, "axes", '{');
    for (size_t a = 0; a < VERIFY_AXES; a++) {
        char value[24];
        if (config->value[a])
            iv_out_kv_text(json, verify_axis_names[a], verify_value_name((verify_axis)a, config->value[a], value));
    }
    iv_out_close(json, '}');
    iv_out_kv_uint(json, "seed", config->seed);
    iv_out_kv_text(json, "status", result->skipped ? "not run" : result->differing ? "differs" : "equal");
    if (result->reason[0]) iv_out_kv_text(json, "reason", result->reason);
    if (!result->skipped) {
        iv_out_kv_text(json, "digest", result->digest);
        iv_out_kv_uint(json, "requests", result->ran);
        iv_out_kv_uint(json, "requests_equal", result->ran - result->differing);
        iv_out_kv_uint(json, "rows_compared", result->rows);
        iv_out_kv_double(json, "max_probability_divergence", result->most);
        iv_out_kv_double(json, "top5_divergence_mean", result->top);
        iv_out_kv_uint(json, "steps", result->steps);
        iv_out_kv_uint(json, "most_at_once", result->together);
        iv_out_kv_uint(json, "cached_tokens", result->cached);
        iv_out_kv_uint(json, "preemptions", result->preemptions);
        iv_out_kv_uint(json, "drafted_tokens", result->drafted);
        iv_out_kv_uint(json, "accepted_tokens", result->accepted);
        if (result->first != SIZE_MAX) json_first(json, result);
    }
    iv_out_kv_double(json, "seconds", result->seconds);
    iv_out_close(json, '}');
}

void verify_report_json(FILE *out, const verify_report *r) {
    iv_json_out json = {.spaced = true, .file = out};
    const verify_job *job = r->job;
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", r->model);
    iv_out_kv_text(&json, "fingerprint", job->fingerprint);
    iv_out_kv_text(&json, "numerics", job->options.numerics);
    iv_out_kv_text(&json, "arithmetic", job->options.arithmetic);
    iv_out_kv_text(&json, "dtype", job->dtype);
    iv_out_kv_int(&json, "vocab_size", job->model->vocab_size);
    iv_out_kv_bool(&json, "equal", r->differing == 0);
    iv_out_kv_uint(&json, "unique_outputs", r->unique_most);
    iv_out_kv_uint(&json, "configurations_compared", r->compared);
    iv_out_kv_uint(&json, "configurations_differing", r->differing);
    iv_out_kv_uint(&json, "rows_compared", r->rows);
    iv_out_kv_uint(&json, "rows_kept_whole", job->kept);
    iv_out_kv_double(&json, "max_probability_divergence", r->most);
    iv_out_kv_double(&json, "top5_divergence_mean", r->top);
    iv_out_kv_open(&json, "requests", '[');
    for (size_t p = 0; p < job->prompts->count; p++) {
        const iv_request *q = &job->prompts->items[p].request;
        iv_out_kv_open(&json, NULL, '{');
        iv_out_kv_uint(&json, "prompt_tokens", q->id_count);
        iv_out_kv_uint(&json, "max_tokens", q->max_tokens);
        iv_out_kv_shortest(&json, "temperature", q->temperature);
        iv_out_kv_uint(&json, "seed", q->seed);
        iv_out_kv_uint(&json, "completion_tokens", job->quiet[p].count);
        iv_out_kv_text(&json, "digest", job->quiet[p].digest);
        iv_out_kv_uint(&json, "unique_outputs", r->unique[p]);
        iv_out_close(&json, '}');
    }
    iv_out_close(&json, ']');
    iv_out_kv_open(&json, "configurations", '[');
    for (size_t c = 0; c < r->count; c++) json_result(&json, &r->configs[c], &r->results[c]);
    iv_out_close(&json, ']');
    iv_out_close(&json, '}');
    fputc('\n', out);
}
