/* verify_train_report.c: the result of invar verify --train: sums over configurations, the table, JSON, the picture. */
#include "verify_train.h"
#include "base/json_out.h"
#include "base/svg.h"
#include "divergence.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

static const char *name_of(const verify_config *c) { return c->name[0] ? c->name : "quiet run"; }

int verify_train_report_fill(verify_train_report *r, iv_error *err) {
    const char **hashes = calloc(r->count, sizeof *hashes);
    if (!hashes) return cli_fail(err, CLI_FAILED, "out of memory");
    r->worst = SIZE_MAX;
    for (size_t s = 0; s < r->job->steps; s++) {
        size_t n = 0;
        for (size_t c = 0; c < r->count; c++)
            if (!r->results[c].skipped && s < r->results[c].compared) hashes[n++] = r->results[c].hashes[s];
        size_t unique = cli_count_unique(hashes, n);
        if (unique > r->unique) r->unique = unique;
    }
    free(hashes);
    for (size_t c = 1; c < r->count; c++) {
        if (r->results[c].skipped) continue;
        r->compared++, r->steps += r->results[c].compared;
        if (!r->results[c].differing) continue;
        if (r->worst == SIZE_MAX) r->worst = c;
        r->differing++;
    }
    return CLI_OK;
}

/* "loss 3.21, world 1 to step 4, 8 to 11, 2 to 20". Returns out. */
static const char *list_parts(const verify_trained *t, char out[160]) {
    size_t used = (size_t)snprintf(out, 160, "loss %.4f", t->loss);
    for (size_t i = 0; t->parts > 1 && i < t->parts && used < 160; i++)
        used += (size_t)snprintf(out + used, 160 - used, i ? ", %zu to %zu" : ", world %zu to step %zu", t->worlds[i],
                                 t->until[i]);
    return out;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

enum { NAME_CELL = 34 };

void verify_train_head(FILE *out, const verify_train_job *job, const cli_style *style) {
    cli_print_safe(out, job->model_name, strlen(job->model_name), false);
    fprintf(out, ": %zu steps of %zu sequences from ", job->steps, job->batch_size);
    const char *data = job->data_name ? job->data_name : "random ids";
    cli_print_safe(out, data, strlen(data), false);
    if (job->lora_rank) fprintf(out, ", an adapter of rank %zu", job->lora_rank);
    fprintf(out, ", seed %llu, %s, %s, %s, %s, %s\n", (unsigned long long)job->seed, job->numerics, job->arithmetic,
            job->dtype, job->device, job->isa);
    fprintf(out, "%s%-*s %9s  %-12s %6s %7s  %s%s\n", style->bold, NAME_CELL, "configuration", "equal", "weights",
            "first", "s", "did", style->plain);
}

void verify_train_row(FILE *out, const verify_train_job *job, const verify_config *config, const verify_trained *t,
                      const cli_style *style) {
    char name[NAME_CELL + 1], equal[48], first[24] = "-", did[160];
    const char *full = name_of(config);
    bool cut = strlen(full) > NAME_CELL; /* the full name is printed on its own line */
    if (cut) fprintf(out, "%s\n", full);
    snprintf(name, sizeof name, "%.*s", NAME_CELL, cut ? "" : full);
    if (t->skipped) {
        fprintf(out, "%s%-*s not run: ", style->dim, NAME_CELL, name);
        cli_print_safe(out, t->reason, strlen(t->reason), false);
        fprintf(out, "%s\n", style->plain);
        return;
    }
    snprintf(equal, sizeof equal, "%zu/%zu", t->compared - t->differing, t->compared);
    if (t->first) snprintf(first, sizeof first, "%zu", t->first);
    /* The last hash of fewer steps cannot match. */
    const char *hash = t->compared < job->steps ? "(fewer)" : t->hashes[t->compared - 1];
    fprintf(out, "%s%-*s %9s  %-12.12s %6s %7.2f  %s%s\n", t->first ? style->red : "", NAME_CELL, name, equal, hash,
            first, t->seconds, list_parts(t, did), t->first ? style->plain : "");
}

void verify_train_foot(FILE *out, const verify_train_report *r, const cli_style *style) {
    fprintf(out, "%sunique weights%s %zu at most after a step, over %zu configuration%s\n", style->bold, style->plain,
            r->unique, r->compared + 1, r->compared ? "s" : "");
    fprintf(out, "%scompared%s the weights of %zu steps, by SHA-256\n", style->bold, style->plain, r->steps);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_result(iv_json_out *json, const verify_train_report *r, size_t c) {
    const verify_config *config = &r->configs[c];
    const verify_trained *t = &r->results[c];
    iv_out_kv_open(json, NULL, '{');
    iv_out_kv_text(json, "name", name_of(config));
    iv_out_kv_open(json, "axes", '{');
    for (size_t a = 0; a < VERIFY_AXES; a++) {
        char value[24];
        if (config->value[a])
            iv_out_kv_text(json, verify_axis_names[a], verify_value_name((verify_axis)a, config->value[a], value));
    }
    iv_out_close(json, '}');
    iv_out_kv_uint(json, "seed", config->seed);
    iv_out_kv_text(json, "status", t->skipped ? "not run" : t->differing ? "differs" : "equal");
    if (t->reason[0]) iv_out_kv_text(json, "reason", t->reason);
    if (!t->skipped) {
        iv_out_kv_text(json, "weights", t->hashes[t->compared - 1]);
        iv_out_kv_uint(json, "steps", t->compared);
        iv_out_kv_uint(json, "steps_equal", t->compared - t->differing);
        iv_out_kv_double(json, "loss", t->loss);
        iv_out_kv_open(json, "parts", '[');
        for (size_t i = 0; i < t->parts; i++) {
            iv_out_kv_open(json, NULL, '{');
            iv_out_kv_uint(json, "world", t->worlds[i]);
            iv_out_kv_uint(json, "until", t->until[i]);
            iv_out_close(json, '}');
        }
        iv_out_close(json, ']');
    }
    if (t->first) {
        iv_out_kv_open(json, "first_difference", '{');
        iv_out_kv_uint(json, "step", t->first);
        iv_out_kv_text(json, "wanted", r->results[0].hashes[t->first - 1]);
        iv_out_kv_text(json, "found", t->hashes[t->first - 1]);
        iv_out_close(json, '}');
    }
    iv_out_kv_double(json, "seconds", t->seconds);
    iv_out_close(json, '}');
}

void verify_train_json(FILE *out, const verify_train_report *r) {
    iv_json_out json = {.spaced = true, .file = out};
    const verify_train_job *job = r->job;
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", job->model_name);
    iv_out_kv_text(&json, "data", job->data_name);
    iv_out_kv_text(&json, "numerics", job->numerics);
    iv_out_kv_text(&json, "arithmetic", job->arithmetic);
    iv_out_kv_text(&json, "dtype", job->dtype);
    iv_out_kv_text(&json, "device", job->device);
    iv_out_kv_text(&json, "isa", job->isa);
    iv_out_kv_uint(&json, "steps", job->steps);
    iv_out_kv_uint(&json, "batch_size", job->batch_size);
    if (job->lora_rank) iv_out_kv_uint(&json, "lora_rank", job->lora_rank);
    iv_out_kv_uint(&json, "seed", job->seed);
    iv_out_kv_bool(&json, "equal", r->differing == 0);
    iv_out_kv_uint(&json, "unique_weights", r->unique);
    iv_out_kv_uint(&json, "configurations_compared", r->compared);
    iv_out_kv_uint(&json, "configurations_differing", r->differing);
    iv_out_kv_uint(&json, "steps_compared", r->steps);
    iv_out_kv_open(&json, "weights", '[');
    for (size_t s = 0; s < r->results[0].compared; s++) iv_out_kv_text(&json, NULL, r->results[0].hashes[s]);
    iv_out_close(&json, ']');
    iv_out_kv_open(&json, "configurations", '[');
    for (size_t c = 0; c < r->count; c++) json_result(&json, r, c);
    iv_out_close(&json, ']');
    iv_out_close(&json, '}');
    fputc('\n', out);
}

/* ---- picture ------------------------------------------------------------------------------------------- */

enum { ROW = 18, TOP = 112, MARGIN = 24, NOTE = 15, NAMED_AXES = 2, LABEL_BYTES = 48, HASHES = 110, FIELD_MOST = 960 };

typedef struct layout {
    double names, field, hashes; /* x where names end, cells and hashes begin */
    double cell, width, height;
    double notes; /* y of the first */
} layout;

/* Configurations of many axes are numbered in the picture and spelled out below it. */
static bool has_note(const verify_config *config) {
    size_t axes = 0;
    for (size_t a = 0; a < VERIFY_AXES; a++) axes += config->value[a] != 0;
    return axes > NAMED_AXES;
}

static const char *label_of(const verify_train_report *r, size_t c, char out[LABEL_BYTES]) {
    if (has_note(&r->configs[c]))
        snprintf(out, LABEL_BYTES, "combination %zu", c);
    else
        snprintf(out, LABEL_BYTES, "%.47s", name_of(&r->configs[c]));
    return out;
}

static layout lay_out(const verify_train_report *r, const char *title) {
    double longest = 130, steps = (double)r->job->steps;
    size_t notes = 0;
    for (size_t c = 0; c < r->count; c++) {
        char label[LABEL_BYTES];
        double w = iv_svg_text_width(label_of(r, c, label));
        if (w > longest) longest = w;
        notes += has_note(&r->configs[c]);
    }
    layout l = {.names = MARGIN + longest};
    l.cell = steps * ROW > FIELD_MOST ? FIELD_MOST / steps : ROW;
    l.field = l.names + 12;
    l.hashes = l.field + steps * l.cell + 14;
    l.width = l.hashes + HASHES + MARGIN;
    double least = 2 * MARGIN + iv_svg_text_width(title) * 1.6; /* large and strong */
    if (l.width < least) l.width = least;
    l.notes = TOP + ROW * (double)r->count + 60;
    l.height = l.notes + NOTE * (double)notes + 10;
    return l;
}

static void draw_row(FILE *out, const verify_train_report *r, const layout *l, size_t c) {
    const verify_trained *t = &r->results[c];
    char name[LABEL_BYTES], text[VERIFY_NAME_BYTES + 96];
    double y = TOP + ROW * (double)c, middle = y + ROW / 2.0 + 4;
    iv_svg_text(out, t->skipped ? "soft end" : "ink end", l->names, middle, label_of(r, c, name));
    if (t->skipped) {
        double width = (double)r->job->steps * l->cell - 2;
        iv_svg_rect(out, "fill faint", l->field, y + 1, width, ROW - 2, 3, t->reason);
        iv_svg_text(out, "soft small middle", l->field + width / 2, middle, "not run");
        return;
    }
    for (size_t s = 0; s < r->job->steps; s++) {
        const char *what = "not run", *paint = "fill faint";
        if (s < t->compared) {
            bool same = strcmp(t->hashes[s], r->results[0].hashes[s]) == 0;
            what = same ? "every weight equal" : "weights differ", paint = same ? "fill same" : "fill hot3";
        }
        snprintf(text, sizeof text, "%s, step %zu: %s", name, s + 1, what);
        iv_svg_rect(out, paint, l->field + l->cell * (double)s, y + 1, l->cell - (l->cell > 6 ? 2 : 0.5), ROW - 2,
                    l->cell > 6 ? 3 : 0, text);
    }
    snprintf(text, sizeof text, "%.12s", t->hashes[t->compared - 1]);
    iv_svg_text(out, t->compared == r->job->steps ? "ink mono" : "soft mono", l->hashes, middle, text);
}

static void draw_columns(FILE *out, const verify_train_report *r, const layout *l) {
    size_t every = l->cell >= 12 ? 1 : l->cell > 4 ? 10 : 20;
    for (size_t s = 0; s < r->job->steps; s++) {
        char number[24];
        if (s && (s + 1) % every != 0) continue;
        snprintf(number, sizeof number, "%zu", s + 1);
        iv_svg_text(out, "soft small turned", l->field + l->cell * ((double)s + 0.5) + 2.5, TOP - 6, number);
    }
    iv_svg_text(out, "soft small end", l->names, TOP - 8, "step");
    iv_svg_text(out, "soft small", l->hashes, TOP - 8, "weights at the end");
}

void verify_train_plot(FILE *out, const verify_train_report *r) {
    static const iv_svg_key keys[] = {
        {"fill same", "every weight equal"}, {"fill hot3", "weights differ"}, {"fill faint", "not run"}};
    const verify_train_job *job = r->job;
    char title[320], what[320];
    snprintf(title, sizeof title, "%.200s, training: %zu configurations, %s%zu unique set%s of weights",
             job->model_name, r->compared + 1, r->unique == 1 ? "" : "up to ", r->unique, r->unique == 1 ? "" : "s");
    snprintf(what, sizeof what, "%s, %s, %s: %zu steps of %zu sequences, the weights of %zu steps compared",
             job->numerics, job->arithmetic, job->dtype, job->steps, job->batch_size, r->steps);
    layout l = lay_out(r, title);
    iv_svg_begin(out, l.width, l.height, title, what);
    iv_svg_text(out, "ink strong large", MARGIN, 36, title);
    iv_svg_text(out, "soft", MARGIN, 56, what);
    draw_columns(out, r, &l);
    for (size_t c = 0; c < r->count; c++) draw_row(out, r, &l, c);
    iv_svg_legend(out, MARGIN, l.notes - 30, keys, 3);
    double y = l.notes;
    for (size_t c = 0; c < r->count; c++) {
        char line[VERIFY_NAME_BYTES + 32];
        if (!has_note(&r->configs[c])) continue;
        snprintf(line, sizeof line, "%zu: %s", c, r->configs[c].name);
        iv_svg_text(out, "soft small", MARGIN, y, line);
        y += NOTE;
    }
    iv_svg_end(out);
}
