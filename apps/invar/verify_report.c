/* verify_report.c: sums over configurations, the table, JSON. */
#include "verify_report.h"
#include "divergence.h"
#include "json_out.h"
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

static void json_first(cli_json *json, const verify_result *result) {
    const verify_cell *cell = &result->cells[result->first];
    char line[256];
    cli_json_begin(json, "first_difference", '{');
    cli_json_count(json, "request", result->first);
    cli_json_word(json, "what", kind_names[cell->kind]);
    cli_json_count(json, "position", cell->position);
    cli_json_int(json, "token", cell->token);
    if (cell->kind == VERIFY_LOGPROB || (cell->kind == VERIFY_LOGITS && cell->token >= 0)) {
        cli_json_float(json, "wanted", cell->want);
        cli_json_float(json, "found", cell->found);
        cli_json_count(json, "ulps", cli_ulp_distance(cell->want, cell->found));
    }
    cli_json_word(json, "message", verify_difference(cell, line));
    cli_json_end(json, '}');
}

static void json_result(cli_json *json, const verify_config *config, const verify_result *result) {
    cli_json_begin(json, NULL, '{');
    cli_json_word(json, "name", config->name[0] ? config->name : "quiet run");
    cli_json_begin(json, "axes", '{');
    for (size_t a = 0; a < VERIFY_AXES; a++) {
        char value[24];
        if (config->value[a])
            cli_json_word(json, verify_axis_names[a], verify_value_name((verify_axis)a, config->value[a], value));
    }
    cli_json_end(json, '}');
    cli_json_count(json, "seed", config->seed);
    cli_json_word(json, "status", result->skipped ? "not run" : result->differing ? "differs" : "equal");
    if (result->reason[0]) cli_json_word(json, "reason", result->reason);
    if (!result->skipped) {
        cli_json_word(json, "digest", result->digest);
        cli_json_count(json, "requests", result->ran);
        cli_json_count(json, "requests_equal", result->ran - result->differing);
        cli_json_count(json, "rows_compared", result->rows);
        cli_json_double(json, "max_probability_divergence", result->most);
        cli_json_double(json, "top5_divergence_mean", result->top);
        cli_json_count(json, "steps", result->steps);
        cli_json_count(json, "most_at_once", result->together);
        cli_json_count(json, "cached_tokens", result->cached);
        cli_json_count(json, "preemptions", result->preemptions);
        cli_json_count(json, "drafted_tokens", result->drafted);
        cli_json_count(json, "accepted_tokens", result->accepted);
        if (result->first != SIZE_MAX) json_first(json, result);
    }
    cli_json_double(json, "seconds", result->seconds);
    cli_json_end(json, '}');
}

void verify_report_json(FILE *out, const verify_report *r) {
    cli_json json = {.file = out};
    const verify_job *job = r->job;
    cli_json_begin(&json, NULL, '{');
    cli_json_word(&json, "model", r->model);
    cli_json_word(&json, "fingerprint", job->fingerprint);
    cli_json_word(&json, "numerics", job->options.numerics);
    cli_json_word(&json, "arithmetic", job->options.arithmetic);
    cli_json_word(&json, "dtype", job->dtype);
    cli_json_int(&json, "vocab_size", job->model->vocab_size);
    cli_json_bool(&json, "equal", r->differing == 0);
    cli_json_count(&json, "unique_outputs", r->unique_most);
    cli_json_count(&json, "configurations_compared", r->compared);
    cli_json_count(&json, "configurations_differing", r->differing);
    cli_json_count(&json, "rows_compared", r->rows);
    cli_json_count(&json, "rows_kept_whole", job->kept);
    cli_json_double(&json, "max_probability_divergence", r->most);
    cli_json_double(&json, "top5_divergence_mean", r->top);
    cli_json_begin(&json, "requests", '[');
    for (size_t p = 0; p < job->prompts->count; p++) {
        const iv_request *q = &job->prompts->items[p].request;
        cli_json_begin(&json, NULL, '{');
        cli_json_count(&json, "prompt_tokens", q->id_count);
        cli_json_count(&json, "max_tokens", q->max_tokens);
        cli_json_float(&json, "temperature", q->temperature);
        cli_json_count(&json, "seed", q->seed);
        cli_json_count(&json, "completion_tokens", job->quiet[p].count);
        cli_json_word(&json, "digest", job->quiet[p].digest);
        cli_json_count(&json, "unique_outputs", r->unique[p]);
        cli_json_end(&json, '}');
    }
    cli_json_end(&json, ']');
    cli_json_begin(&json, "configurations", '[');
    for (size_t c = 0; c < r->count; c++) json_result(&json, &r->configs[c], &r->results[c]);
    cli_json_end(&json, ']');
    cli_json_end(&json, '}');
    fputc('\n', out);
}
