/* verify_report.c: the result of invar verify: sums over configurations, the table, JSON, the picture. */
#include "verify.h"
#include "divergence.h"
#include "base/json_out.h"
#include "base/svg.h"
#include "text.h"

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

/* The engine's actions on the requests: "12 at once, 340 cached". Returns out. */
static const char *list_actions(const verify_result *result, char out[128]) {
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
    bool cut = strlen(full) > NAME_CELL; /* the full name is printed on its own line */
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
    /* A digest over fewer requests cannot match. */
    const char *digest = result->ran < prompts ? "(fewer)" : result->digest + 7;
    fprintf(out, "%s%-*s %9s %6zu  %-12.12s", colour, NAME_CELL, name, equal, result->rows, digest);
    print_divergence(out, result->most);
    print_divergence(out, result->top);
    fprintf(out, " %7.2f  %s%s\n", result->seconds, list_actions(result, did), *colour ? style->plain : "");
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
        fprintf(out, "  bit for bit the first %zu rows of an answer (%zu MiB), the later ones by a 64-bit hash\n", kept,
                VERIFY_KEPT_BYTES >> 20);
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

/* ---- picture ------------------------------------------------------------------------------------------- */

enum { ROW = 18, TOP = 112, BARS = 190, MARGIN = 24, NOTE = 15, NAMED_AXES = 2, LABEL_BYTES = 48 };

typedef struct layout {
    double names, field, bars; /* x where names end, cells and bars begin */
    double cell, width, height;
    double notes; /* y of the first */
} layout;

/* Configurations of many axes are numbered in the picture and spelled out below it. */
static bool has_note(const verify_config *config) {
    size_t axes = 0;
    for (size_t a = 0; a < VERIFY_AXES; a++) axes += config->value[a] != 0;
    return axes > NAMED_AXES;
}

static const char *label_of(const verify_report *r, size_t c, char out[LABEL_BYTES]) {
    if (c == 0)
        snprintf(out, LABEL_BYTES, "quiet run");
    else if (has_note(&r->configs[c]))
        snprintf(out, LABEL_BYTES, "combination %zu", c);
    else
        snprintf(out, LABEL_BYTES, "%.47s", r->configs[c].name);
    return out;
}

static layout lay_out(const verify_report *r) {
    double longest = 130; /* the label of the columns */
    size_t notes = 0;
    for (size_t c = 0; c < r->count; c++) {
        char label[LABEL_BYTES];
        double w = iv_svg_text_width(label_of(r, c, label));
        if (w > longest) longest = w;
        notes += has_note(&r->configs[c]);
    }
    layout l = {.names = MARGIN + longest};
    double columns = (double)r->job->prompts->count;
    l.cell = columns * ROW > 960 ? 960 / columns : ROW;
    l.field = l.names + 12;
    l.bars = l.field + columns * l.cell + 22;
    l.width = l.bars + BARS + MARGIN + 8;
    if (l.width < 640) l.width = 640;
    l.notes = TOP + ROW * (double)r->count + 76;
    l.height = l.notes + NOTE * (double)notes + 26;
    return l;
}

/* An early token difference is severe: hot5 at the first token, hot0 at the last. */
static const char *cell_class(const verify_cell *cell, size_t tokens) {
    static const char *const hot[IV_SVG_HOT] = {"fill hot0", "fill hot1", "fill hot2",
                                                "fill hot3", "fill hot4", "fill hot5"};
    if (!cell->ran) return "fill faint";
    if (cell->kind == VERIFY_SAME) return "fill same";
    if (cell->token_from == SIZE_MAX) return "fill near";
    size_t step = tokens ? cell->token_from * IV_SVG_HOT / (tokens + 1) : 0;
    return hot[step < IV_SVG_HOT ? IV_SVG_HOT - 1 - step : 0];
}

/* Returns out. */
static const char *cell_tip(const char *config, size_t prompt, const verify_cell *cell,
                            char out[VERIFY_NAME_BYTES + 96]) {
    int used = snprintf(out, VERIFY_NAME_BYTES + 96, "%s, request %zu: ", config, prompt);
    char *at = out + used;
    size_t room = VERIFY_NAME_BYTES + 96 - (size_t)used;
    if (!cell->ran)
        snprintf(at, room, "not run");
    else if (cell->kind == VERIFY_SAME)
        snprintf(at, room, "every bit equal");
    else if (cell->token_from == SIZE_MAX)
        snprintf(at, room, "bits differ from position %zu, tokens equal", cell->position);
    else
        snprintf(at, room, "another token at position %zu", cell->token_from);
    return out;
}

static void draw_row(FILE *out, const verify_report *r, const layout *l, const iv_svg_scale *scale, size_t c) {
    const verify_result *result = &r->results[c];
    char name[LABEL_BYTES];
    label_of(r, c, name);
    double y = TOP + ROW * (double)c, middle = y + ROW / 2.0 + 4;
    iv_svg_text(out, result->skipped ? "soft end" : "ink end", l->names, middle, name);
    if (result->skipped) {
        double width = (double)r->job->prompts->count * l->cell - 2;
        iv_svg_rect(out, "fill faint", l->field, y + 1, width, ROW - 2, 3, result->reason);
        iv_svg_text(out, "soft small middle", l->field + width / 2, middle, "not run");
        return;
    }
    for (size_t p = 0; p < r->job->prompts->count; p++) {
        const verify_cell *cell = &result->cells[p];
        char tip[VERIFY_NAME_BYTES + 96];
        cell_tip(name, p, cell, tip);
        iv_svg_rect(out, cell_class(cell, r->job->quiet[p].count), l->field + l->cell * (double)p, y + 1,
                    l->cell - (l->cell > 6 ? 2 : 0.5), ROW - 2, l->cell > 6 ? 3 : 0, tip);
    }
    if (c == 0) return;
    if (result->most <= 0) {
        iv_svg_text(out, "soft small", l->bars + 2, middle - 0.5, "0");
        return;
    }
    double end = iv_svg_position(scale, result->most);
    iv_svg_rect(out, "fill hot3", l->bars, y + 4, end - l->bars + 1, ROW - 8, 2, "largest difference of a probability");
    iv_svg_circle(out, "fill ink", iv_svg_position(scale, result->top), y + ROW / 2.0, 2.4,
                  "mean over positions of the largest difference among the top 5");
}

static void draw_columns(FILE *out, const verify_report *r, const layout *l) {
    double every = l->cell >= 12 ? 1 : l->cell > 4 ? 4 : 20;
    for (size_t p = 0; p < r->job->prompts->count; p += (size_t)every) {
        char tokens[24];
        snprintf(tokens, sizeof tokens, "%zu", r->job->prompts->items[p].request.id_count);
        iv_svg_text(out, "soft small turned", l->field + l->cell * ((double)p + 0.5) + 2.5, TOP - 6, tokens);
    }
    iv_svg_text(out, "soft small end", l->names, TOP - 8, "tokens of the prompt");
}

static void draw_legend(FILE *out, const layout *l) {
    static const iv_svg_key keys[] = {{"fill same", "every bit equal"}, {"fill near", "bits differ, tokens equal"}};
    double y = l->notes - 26, x = iv_svg_legend(out, MARGIN, y, keys, 2);
    iv_svg_text(out, "ink", x, y + 4, "another token, early");
    x += iv_svg_text_width("another token, early") - 4;
    static const char *const hot[IV_SVG_HOT] = {"fill hot5", "fill hot4", "fill hot3",
                                                "fill hot2", "fill hot1", "fill hot0"};
    for (size_t i = 0; i < IV_SVG_HOT; i++) iv_svg_rect(out, hot[i], x + 13 * (double)i, y - 6, 12, 12, 2.5, NULL);
    x += 13 * IV_SVG_HOT + 6;
    iv_svg_text(out, "ink", x, y + 4, "late");
    iv_svg_circle(out, "fill ink", x + 44, y, 2.4, NULL);
    iv_svg_text(out, "ink", x + 54, y + 4, "mean of the top 5");
}

static void draw_notes(FILE *out, const verify_report *r, const layout *l) {
    double y = l->notes;
    for (size_t c = 0; c < r->count; c++) {
        char line[VERIFY_NAME_BYTES + 32];
        if (!has_note(&r->configs[c])) continue;
        snprintf(line, sizeof line, "%zu: %s", c, r->configs[c].name);
        iv_svg_text(out, "soft small", MARGIN, y, line);
        y += NOTE;
    }
}

void verify_report_plot(FILE *out, const verify_report *r) {
    layout l = lay_out(r);
    const iv_svg_scale scale = {.low = 1e-9, .high = 1, .from = l.bars, .to = l.bars + BARS, .logarithmic = true};
    char title[320], what[320];
    snprintf(title, sizeof title, "%.200s: %zu configurations, %s%zu unique output%s", r->model, r->compared + 1,
             r->unique_most == 1 ? "" : "up to ", r->unique_most, r->unique_most == 1 ? "" : "s");
    snprintf(what, sizeof what, "%s, %s, %s: %zu requests, %zu rows of %lld logits compared, largest divergence %.3g",
             r->job->options.numerics, r->job->options.arithmetic, r->job->dtype, r->job->prompts->count, r->rows,
             (long long)r->job->model->vocab_size, r->most);
    iv_svg_begin(out, l.width, l.height, title, what);
    iv_svg_text(out, "ink strong large", MARGIN, 36, title);
    iv_svg_text(out, "soft", MARGIN, 56, what);
    draw_columns(out, r, &l);
    iv_svg_axis_x(out, &scale, 4, TOP - 2, TOP + ROW * (double)r->count, "largest difference of a probability");
    for (size_t c = 0; c < r->count; c++) draw_row(out, r, &l, &scale, c);
    draw_legend(out, &l);
    draw_notes(out, r, &l);
    iv_svg_text(out, "soft small", MARGIN, l.height - 18, r->job->fingerprint);
    iv_svg_end(out);
}
