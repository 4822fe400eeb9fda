/* verify_plot.c: the picture of invar verify: a field of configurations and requests, a bar of divergence beside each
 * row. */
#include "svg.h"
#include "verify_report.h"

#include <string.h>

enum { ROW = 18, TOP = 112, BARS = 190, MARGIN = 24, NOTE = 15, NAMED_AXES = 2, LABEL_BYTES = 48 };

typedef struct layout {
    double names, field, bars; /* x where names end, cells and bars begin */
    double cell, width, height;
    double notes; /* y of the first */
} layout;

/* Configurations of many axes are numbered in the field and spelt out below it. */
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
        double w = cli_svg_text_width(label_of(r, c, label));
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

/* Where tokens part, early is grave: hot5 at the first token, hot0 at the last. */
static const char *cell_class(const verify_cell *cell, size_t tokens) {
    static const char *const hot[CLI_SVG_HOT] = {"fill hot0", "fill hot1", "fill hot2",
                                                 "fill hot3", "fill hot4", "fill hot5"};
    if (!cell->ran) return "fill faint";
    if (cell->kind == VERIFY_SAME) return "fill same";
    if (cell->token_from == SIZE_MAX) return "fill near";
    size_t step = tokens ? cell->token_from * CLI_SVG_HOT / (tokens + 1) : 0;
    return hot[step < CLI_SVG_HOT ? CLI_SVG_HOT - 1 - step : 0];
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

static void draw_row(FILE *out, const verify_report *r, const layout *l, const cli_svg_scale *scale, size_t c) {
    const verify_result *result = &r->results[c];
    char name[LABEL_BYTES];
    label_of(r, c, name);
    double y = TOP + ROW * (double)c, middle = y + ROW / 2.0 + 4;
    cli_svg_text(out, result->skipped ? "soft end" : "ink end", l->names, middle, name);
    if (result->skipped) {
        double width = (double)r->job->prompts->count * l->cell - 2;
        cli_svg_rect(out, "fill faint", l->field, y + 1, width, ROW - 2, 3, result->reason);
        cli_svg_text(out, "soft small middle", l->field + width / 2, middle, "not run");
        return;
    }
    for (size_t p = 0; p < r->job->prompts->count; p++) {
        const verify_cell *cell = &result->cells[p];
        char tip[VERIFY_NAME_BYTES + 96];
        cell_tip(name, p, cell, tip);
        cli_svg_rect(out, cell_class(cell, r->job->quiet[p].count), l->field + l->cell * (double)p, y + 1,
                     l->cell - (l->cell > 6 ? 2 : 0.5), ROW - 2, l->cell > 6 ? 3 : 0, tip);
    }
    if (c == 0) return;
    if (result->most <= 0) {
        cli_svg_text(out, "soft small", l->bars + 2, middle - 0.5, "0");
        return;
    }
    double end = cli_svg_place(scale, result->most);
    cli_svg_rect(out, "fill hot3", l->bars, y + 4, end - l->bars + 1, ROW - 8, 2,
                 "largest difference of a probability");
    cli_svg_circle(out, "fill ink", cli_svg_place(scale, result->top), y + ROW / 2.0, 2.4,
                   "mean over positions of the largest difference among the top 5");
}

static void draw_columns(FILE *out, const verify_report *r, const layout *l) {
    double every = l->cell >= 12 ? 1 : l->cell > 4 ? 4 : 20;
    for (size_t p = 0; p < r->job->prompts->count; p += (size_t)every) {
        char tokens[24];
        snprintf(tokens, sizeof tokens, "%zu", r->job->prompts->items[p].request.id_count);
        cli_svg_text(out, "soft small turned", l->field + l->cell * ((double)p + 0.5) + 2.5, TOP - 6, tokens);
    }
    cli_svg_text(out, "soft small end", l->names, TOP - 8, "tokens of the prompt");
}

static void draw_legend(FILE *out, const layout *l) {
    static const cli_svg_key keys[] = {{"fill same", "every bit equal"}, {"fill near", "bits differ, tokens equal"}};
    double y = l->notes - 26, x = cli_svg_legend(out, MARGIN, y, keys, 2);
    cli_svg_text(out, "ink", x, y + 4, "another token, early");
    x += cli_svg_text_width("another token, early") - 4;
    static const char *const hot[CLI_SVG_HOT] = {"fill hot5", "fill hot4", "fill hot3",
                                                 "fill hot2", "fill hot1", "fill hot0"};
    for (size_t i = 0; i < CLI_SVG_HOT; i++) cli_svg_rect(out, hot[i], x + 13 * (double)i, y - 6, 12, 12, 2.5, NULL);
    x += 13 * CLI_SVG_HOT + 6;
    cli_svg_text(out, "ink", x, y + 4, "late");
    cli_svg_circle(out, "fill ink", x + 44, y, 2.4, NULL);
    cli_svg_text(out, "ink", x + 54, y + 4, "mean of the top 5");
}

static void draw_notes(FILE *out, const verify_report *r, const layout *l) {
    double y = l->notes;
    for (size_t c = 0; c < r->count; c++) {
        char line[VERIFY_NAME_BYTES + 32];
        if (!has_note(&r->configs[c])) continue;
        snprintf(line, sizeof line, "%zu: %s", c, r->configs[c].name);
        cli_svg_text(out, "soft small", MARGIN, y, line);
        y += NOTE;
    }
}

void verify_report_plot(FILE *out, const verify_report *r) {
    layout l = lay_out(r);
    const cli_svg_scale scale = {.low = 1e-9, .high = 1, .from = l.bars, .to = l.bars + BARS, .logarithmic = true};
    char title[320], what[320];
    snprintf(title, sizeof title, "%.200s: %zu configurations, %s%zu unique output%s", r->model, r->compared + 1,
             r->unique_most == 1 ? "" : "up to ", r->unique_most, r->unique_most == 1 ? "" : "s");
    snprintf(what, sizeof what, "%s, %s, %s: %zu requests, %zu rows of %lld logits compared, largest divergence %.3g",
             r->job->options.numerics, r->job->options.arithmetic, r->job->dtype, r->job->prompts->count, r->rows,
             (long long)r->job->model->vocab_size, r->most);
    cli_svg_begin(out, l.width, l.height, title, what);
    cli_svg_text(out, "ink strong large", MARGIN, 36, title);
    cli_svg_text(out, "soft", MARGIN, 56, what);
    draw_columns(out, r, &l);
    cli_svg_axis_x(out, &scale, 4, TOP - 2, TOP + ROW * (double)r->count, "largest difference of a probability");
    for (size_t c = 0; c < r->count; c++) draw_row(out, r, &l, &scale, c);
    draw_legend(out, &l);
    draw_notes(out, r, &l);
    cli_svg_text(out, "soft small", MARGIN, l.height - 18, r->job->fingerprint);
    cli_svg_end(out);
}
