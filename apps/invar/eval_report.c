/* eval_report.c: metrics from records, and the report as Markdown, JSON and one picture. The metrics are those of
 * "Deterministic Inference across Tensor Parallel Sizes That Eliminates Training-Inference Mismatch" (arXiv 2511.17826,
 * section 5.1). */
#include "eval.h"
#include "base/json_out.h"
#include "base/svg.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- metrics of one problem ---------------------------------------------------------------------------- */

static bool same_output(const cli_record *a, const cli_record *b) {
    return a->count == b->count && (a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

static bool same_digest(const cli_record *a, const cli_record *b) { return strcmp(a->digest, b->digest) == 0; }

static size_t count_unique(const cli_record *const *records, size_t n,
                           bool (*same)(const cli_record *, const cli_record *)) {
    size_t unique = 0;
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++) seen = same(records[i], records[k]);
        unique += !seen;
    }
    return unique;
}

size_t cli_unique_outputs(const cli_record *const *records, size_t n) { return count_unique(records, n, same_output); }

size_t cli_unique_digests(const cli_record *const *records, size_t n) { return count_unique(records, n, same_digest); }

/* A record's probability of a token at a position, or that of its least likely listed token. */
static double probability(const cli_record *r, size_t position, int32_t id) {
    const iv_logprob *top = r->top + position * r->top_count;
    for (size_t i = 0; i < r->top_count; i++)
        if (top[i].id == id) return exp((double)top[i].logprob);
    return exp((double)top[r->top_count - 1].logprob);
}

static double divergence_at(const cli_record *const *records, size_t n, size_t position) {
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < records[i]->top_count; k++) {
            int32_t id = records[i]->top[position * records[i]->top_count + k].id;
            double low = 1, high = 0;
            for (size_t j = 0; j < n; j++) {
                double p = probability(records[j], position, id);
                low = fmin(low, p), high = fmax(high, p);
            }
            worst = fmax(worst, high - low);
        }
    return worst;
}

double cli_output_divergence(const cli_record *const *records, size_t n) {
    size_t positions = n ? records[0]->count : 0;
    for (size_t i = 0; i < n; i++) {
        if (records[i]->count < positions) positions = records[i]->count;
        if (records[i]->top_count == 0) return 0;
    }
    size_t compared = 0;
    double sum = 0;
    for (bool together = true; compared < positions && together; compared++) {
        sum += divergence_at(records, n, compared);
        for (size_t i = 1; i < n; i++) together &= records[i]->ids[compared] == records[0]->ids[compared];
    }
    return compared ? sum / (double)compared : 0;
}

/* ---- over everything ----------------------------------------------------------------------------------- */

/* Methods in order of their first configuration. */
static void find_methods(const cli_configs *configs, cli_metrics *m) {
    for (size_t c = 0; c < configs->count; c++) {
        size_t i = 0;
        while (i < m->method_count && strcmp(m->methods[i].name, configs->items[c].method) != 0) i++;
        if (i == m->method_count) m->methods[m->method_count++] = (cli_method){.name = configs->items[c].method};
        m->methods[i].configs++;
        m->config_method[c] = i;
    }
}

static void measure_accuracy(const cli_records *records, cli_metrics *m) {
    for (size_t c = 0; c < records->configs; c++) {
        size_t right = 0, scored = 0;
        for (size_t p = 0; p < records->problems; p++) {
            int correct = cli_record_at(records, c, p)->correct;
            right += correct == 1, scored += correct >= 0;
        }
        m->accuracy[c] = scored ? (double)right / (double)scored : 0;
        m->methods[m->config_method[c]].accuracy_mean += m->accuracy[c];
    }
    for (size_t i = 0; i < m->method_count; i++) {
        cli_method *method = &m->methods[i];
        double squares = 0;
        method->accuracy_mean /= (double)method->configs;
        for (size_t c = 0; c < records->configs; c++)
            if (m->config_method[c] == i) squares += pow(m->accuracy[c] - method->accuracy_mean, 2);
        method->accuracy_deviation = method->configs > 1 ? sqrt(squares / (double)(method->configs - 1)) : 0;
    }
}

/* One method: group has room for all configurations. */
static void compare(const cli_records *records, size_t index, const cli_record **group, cli_metrics *m) {
    cli_method *method = &m->methods[index];
    size_t outputs = 0, digests = 0; /* sums of integers, so that a mean of ones is 1 */
    for (size_t p = 0; p < records->problems; p++) {
        size_t n = 0;
        for (size_t c = 0; c < records->configs; c++)
            if (m->config_method[c] == index) group[n++] = cli_record_at(records, c, p);
        size_t unique = cli_unique_outputs(group, n);
        double divergence = cli_output_divergence(group, n);
        m->unique[index * records->problems + p] = unique;
        m->divergence[index * records->problems + p] = divergence;
        outputs += unique;
        digests += cli_unique_digests(group, n);
        method->divergence_mean += divergence;
        if (unique > method->unique_max) method->unique_max = unique;
        method->divergence_max = fmax(method->divergence_max, divergence);
        method->steady += unique == 1;
    }
    method->unique_mean = (double)outputs / (double)records->problems;
    method->bits_mean = (double)digests / (double)records->problems;
    method->divergence_mean /= (double)records->problems;
}

int cli_metrics_make(const cli_configs *configs, const cli_dataset *dataset, const cli_records *records,
                     cli_metrics *out, iv_error *err) {
    size_t n = configs->count;
    *out = (cli_metrics){.methods = calloc(n, sizeof *out->methods),
                         .unique = calloc(n * dataset->count, sizeof *out->unique),
                         .divergence = calloc(n * dataset->count, sizeof *out->divergence),
                         .accuracy = calloc(n, sizeof *out->accuracy),
                         .config_method = calloc(n, sizeof *out->config_method)};
    const cli_record **group = calloc(n, sizeof *group);
    bool ok = out->methods && out->unique && out->divergence && out->accuracy && out->config_method && group;
    if (ok) {
        find_methods(configs, out);
        measure_accuracy(records, out);
        for (size_t i = 0; i < out->method_count; i++) compare(records, i, group, out);
    } else
        cli_metrics_free(out);
    free(group);
    return ok ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
}

void cli_metrics_free(cli_metrics *m) {
    free(m->methods), free(m->unique), free(m->divergence), free(m->accuracy), free(m->config_method);
    *m = (cli_metrics){0};
}

enum { SHOWN_PROBLEMS = 10 };

static const char *method_name(const cli_method *m) { return m->name[0] ? m->name : "as given"; }

/* ---- Markdown ------------------------------------------------------------------------------------------ */

/* Inside a table a bar would end the cell. */
static void cell(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
    }
}

static void write_methods(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    fputs("\n| method | configurations | unique outputs | most | problems with one output | unique bits | "
          "probability divergence (x 10^-3) | most | accuracy |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
          out);
    for (size_t i = 0; i < m->method_count; i++) {
        const cli_method *method = &m->methods[i];
        fputs("| ", out);
        cell(out, method_name(method));
        fprintf(out, " | %zu | %.2f | %zu | %zu of %zu | %.2f | %.4g | %.4g | ", method->configs, method->unique_mean,
                method->unique_max, method->steady, s->dataset->count, method->bits_mean, 1e3 * method->divergence_mean,
                1e3 * method->divergence_max);
        if (s->dataset->scored)
            fprintf(out, "%.2f %% (deviation %.2f) |\n", 100 * method->accuracy_mean, 100 * method->accuracy_deviation);
        else
            fputs("not scored |\n", out);
    }
}

static size_t tokens_of(const cli_study *s, size_t config) {
    size_t tokens = 0;
    for (size_t p = 0; p < s->dataset->count; p++) tokens += cli_record_at(s->records, config, p)->count;
    return tokens;
}

/* One number for all outputs of a configuration: a hash of its digests in order. */
static uint64_t digest_of(const cli_study *s, size_t config) {
    uint64_t hash = CLI_HASH_START;
    for (size_t p = 0; p < s->dataset->count; p++) {
        const char *digest = cli_record_at(s->records, config, p)->digest;
        hash = cli_hash(hash, digest, strlen(digest));
    }
    return hash;
}

static void write_configs(const cli_study *s, FILE *out) {
    fputs("\n| configuration | tokens | right | accuracy | all digests |\n|---|---:|---:|---:|---|\n", out);
    for (size_t c = 0; c < s->configs->count; c++) {
        fputs("| ", out);
        cell(out, s->configs->items[c].label);
        fprintf(out, " | %zu | ", tokens_of(s, c));
        if (s->dataset->scored) {
            double accuracy = s->metrics->accuracy[c];
            fprintf(out, "%.0f of %zu | %.2f %% |", accuracy * (double)s->dataset->scored, s->dataset->scored,
                    100 * accuracy);
        } else
            fputs(" | not scored |", out);
        fprintf(out, " %016llx |\n", (unsigned long long)digest_of(s, c));
    }
}

/* The first problems with more than one output. */
static void write_unsteady(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    size_t shown = 0, all = 0;
    for (size_t p = 0; p < s->dataset->count; p++) {
        bool unsteady = false;
        for (size_t i = 0; i < m->method_count; i++) unsteady |= m->unique[i * s->dataset->count + p] > 1;
        all += unsteady;
        if (!unsteady || shown == SHOWN_PROBLEMS) continue;
        if (shown++ == 0) fputs("\n| problem | unique outputs by method |\n|---|---|\n", out);
        fputs("| ", out);
        cell(out, s->dataset->items[p].id);
        fputs(" |", out);
        for (size_t i = 0; i < m->method_count; i++) {
            fputs(i ? ", " : " ", out);
            cell(out, method_name(&m->methods[i]));
            fprintf(out, ": %zu", m->unique[i * s->dataset->count + p]);
        }
        fputs(" |\n", out);
    }
    if (all > shown) fprintf(out, "\nand %zu more problems.\n", all - shown);
}

void cli_study_markdown(const cli_study *s, FILE *out) {
    fputs("# ", out);
    cell(out, s->title);
    fputs("\n\nModel ", out);
    cell(out, s->model);
    fputs(", dataset ", out);
    cell(out, s->dataset_path);
    fprintf(out, ", %zu problems", s->dataset->count);
    if (s->dataset->scored && s->dataset->scored < s->dataset->count)
        fprintf(out, ", of which %zu have no answer and are not scored", s->dataset->count - s->dataset->scored);
    fputs(".\n", out);
    write_methods(s, out);
    fputs(
        "\nUnique outputs: different token sequences of a problem over the configurations, averaged over problems; 1 "
        "is\n"
        "best. Probability divergence: the largest difference of a top-5 token's probability between configurations,\n"
        "averaged over the positions that they reach with the same tokens, then over problems. Deviation: sample\n"
        "standard deviation of the accuracy over configurations.\n",
        out);
    write_configs(s, out);
    write_unsteady(s, out);
    fprintf(out, "\nSettings: `%s`\n", s->settings);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_methods(const cli_study *s, iv_json_out *json) {
    iv_out_kv_open(json, "methods", '[');
    for (size_t i = 0; i < s->metrics->method_count; i++) {
        const cli_method *m = &s->metrics->methods[i];
        iv_out_kv_open(json, NULL, '{');
        iv_out_kv_text(json, "method", method_name(m));
        iv_out_kv_uint(json, "configurations", m->configs);
        iv_out_kv_double(json, "unique_outputs", m->unique_mean);
        iv_out_kv_uint(json, "unique_outputs_max", m->unique_max);
        iv_out_kv_uint(json, "problems_with_one_output", m->steady);
        iv_out_kv_double(json, "unique_bits", m->bits_mean);
        iv_out_kv_double(json, "probability_divergence", m->divergence_mean);
        iv_out_kv_double(json, "probability_divergence_max", m->divergence_max);
        if (s->dataset->scored) {
            iv_out_kv_double(json, "accuracy", m->accuracy_mean);
            iv_out_kv_double(json, "accuracy_deviation", m->accuracy_deviation);
        }
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
}

static void json_configs(const cli_study *s, iv_json_out *json) {
    iv_out_kv_open(json, "configurations", '[');
    for (size_t c = 0; c < s->configs->count; c++) {
        char digest[20];
        snprintf(digest, sizeof digest, "%016llx", (unsigned long long)digest_of(s, c));
        iv_out_kv_open(json, NULL, '{');
        iv_out_kv_text(json, "configuration", s->configs->items[c].label);
        iv_out_kv_text(json, "method", method_name(&s->metrics->methods[s->metrics->config_method[c]]));
        iv_out_kv_uint(json, "tokens", tokens_of(s, c));
        if (s->dataset->scored) iv_out_kv_double(json, "accuracy", s->metrics->accuracy[c]);
        iv_out_kv_text(json, "all_digests", digest);
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
}

static void json_problems(const cli_study *s, iv_json_out *json) {
    size_t n = s->dataset->count;
    iv_out_kv_open(json, "problems", '[');
    for (size_t p = 0; p < n; p++) {
        iv_out_kv_open(json, NULL, '{');
        iv_out_kv_text(json, "id", s->dataset->items[p].id);
        iv_out_kv_open(json, "unique_outputs", '[');
        for (size_t i = 0; i < s->metrics->method_count; i++) iv_out_kv_uint(json, NULL, s->metrics->unique[i * n + p]);
        iv_out_close(json, ']');
        iv_out_kv_open(json, "probability_divergence", '[');
        for (size_t i = 0; i < s->metrics->method_count; i++)
            iv_out_kv_double(json, NULL, s->metrics->divergence[i * n + p]);
        iv_out_close(json, ']');
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
}

void cli_study_json(const cli_study *s, FILE *out) {
    iv_json_out json = {.spaced = true, .file = out};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "title", s->title);
    iv_out_kv_text(&json, "model", s->model);
    iv_out_kv_text(&json, "dataset", s->dataset_path);
    fprintf(out, ", \"settings\": %s", s->settings);
    iv_out_kv_uint(&json, "scored", s->dataset->scored);
    json_methods(s, &json);
    json_configs(s, &json);
    json_problems(s, &json);
    iv_out_close(&json, '}');
    fputc('\n', out);
}

/* ---- picture ------------------------------------------------------------------------------------------- */

enum { PANEL_WIDTH = 250, PANEL_GAP = 70, PANEL_HEIGHT = 200, LEFT = 60, TOP = 92, BAR_MAX = 46 };

typedef struct panel {
    FILE *out;
    double x;
    iv_svg_scale scale;
    size_t slots;
} panel;

static const char *paint(size_t i) {
    static const char *const classes[] = {"fill series0", "fill series1", "fill series2", "fill series3",
                                          "fill series4", "fill series5", "fill series6", "fill series7"};
    return classes[i % (sizeof classes / sizeof *classes)];
}

static panel panel_begin(FILE *out, size_t index, const char *title, double low, double high, size_t slots) {
    panel p = {.out = out, .x = LEFT + (double)index * (PANEL_WIDTH + PANEL_GAP), .slots = slots};
    p.scale = (iv_svg_scale){.low = low, .high = high, .from = TOP + PANEL_HEIGHT, .to = TOP};
    iv_svg_text(out, "ink strong", p.x, TOP - 18, title);
    iv_svg_axis_y(out, &p.scale, 5, p.x, p.x + PANEL_WIDTH, NULL);
    return p;
}

static double center(const panel *p, size_t slot) {
    return p->x + PANEL_WIDTH * ((double)slot + 0.5) / (double)p->slots;
}

static void bar(const panel *p, size_t slot, double value, const char *format, const char *tip) {
    double width = fmin(BAR_MAX, 0.7 * PANEL_WIDTH / (double)p->slots), x = center(p, slot);
    double y = iv_svg_position(&p->scale, value), floor = TOP + PANEL_HEIGHT;
    char label[32];
    iv_svg_rect(p->out, paint(slot), x - width / 2, y, width, fmax(floor - y, 1), 2, tip);
    snprintf(label, sizeof label, format, value);
    iv_svg_text(p->out, "ink small middle", x, y - 5, label);
}

static void draw_unique(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    size_t most = 1;
    for (size_t i = 0; i < m->method_count; i++)
        if (m->methods[i].configs > most) most = m->methods[i].configs;
    panel p = panel_begin(out, 0, "Unique outputs of a problem", 0, (double)most, m->method_count);
    for (size_t i = 0; i < m->method_count; i++) bar(&p, i, m->methods[i].unique_mean, "%.2f", m->methods[i].name);
}

static void draw_divergence(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    double most = 0;
    for (size_t i = 0; i < m->method_count; i++) most = fmax(most, 1e3 * m->methods[i].divergence_mean);
    panel p = panel_begin(out, 1, "Probability divergence, x 10\xe2\x81\xbb\xc2\xb3", 0, most > 0 ? 1.1 * most : 1,
                          m->method_count);
    for (size_t i = 0; i < m->method_count; i++)
        bar(&p, i, 1e3 * m->methods[i].divergence_mean, "%.3g", m->methods[i].name);
}

/* One dot per configuration around a line at the mean. */
static void draw_accuracy(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    double low = 100, high = 0;
    size_t drawn[CLI_CONFIGS_MAX] = {0};
    for (size_t c = 0; c < s->configs->count; c++)
        low = fmin(low, 100 * m->accuracy[c]), high = fmax(high, 100 * m->accuracy[c]);
    low = fmax(0, low - fmax(1, 0.3 * (high - low))), high = fmin(100, high + fmax(1, 0.3 * (high - low)));
    panel p = panel_begin(out, 2, "Accuracy, %: a dot for each configuration", low, high, m->method_count);
    double reach = 0.35 * PANEL_WIDTH / (double)p.slots;
    for (size_t c = 0; c < s->configs->count; c++) {
        size_t i = m->config_method[c], n = m->methods[i].configs, k = drawn[i]++;
        double offset = n > 1 ? reach * (2.0 * (double)k / (double)(n - 1) - 1) : 0;
        iv_svg_circle(out, paint(i), center(&p, i) + offset, iv_svg_position(&p.scale, 100 * m->accuracy[c]), 3,
                      s->configs->items[c].label);
    }
    for (size_t i = 0; i < m->method_count; i++) {
        double y = iv_svg_position(&p.scale, 100 * m->methods[i].accuracy_mean);
        char label[48];
        iv_svg_line(out, "stroke ink", center(&p, i) - reach, y, center(&p, i) + reach, y);
        snprintf(label, sizeof label, "deviation %.2f", 100 * m->methods[i].accuracy_deviation);
        iv_svg_text(out, "soft small middle", center(&p, i), TOP + PANEL_HEIGHT + 16, label);
    }
}

void cli_study_svg(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    char line[512];
    size_t panels = s->dataset->scored ? 3 : 2,
           keys = m->method_count < IV_SVG_SERIES ? m->method_count : IV_SVG_SERIES;
    double width = LEFT + (double)panels * (PANEL_WIDTH + PANEL_GAP);
    snprintf(line, sizeof line, "%.150s, %.150s: %zu problems, %zu configurations", s->model, s->dataset_path,
             s->dataset->count, s->configs->count);
    iv_svg_begin(out, width, TOP + PANEL_HEIGHT + 70, s->title, line);
    iv_svg_text(out, "ink large strong", LEFT - 40, 30, s->title);
    iv_svg_text(out, "soft", LEFT - 40, 50, line);
    draw_unique(s, out);
    draw_divergence(s, out);
    if (s->dataset->scored) draw_accuracy(s, out);
    iv_svg_key legend[IV_SVG_SERIES];
    for (size_t i = 0; i < keys; i++)
        legend[i] = (iv_svg_key){paint(i), m->methods[i].name[0] ? m->methods[i].name : "as given"};
    iv_svg_legend(out, LEFT, TOP + PANEL_HEIGHT + 44, legend, keys);
    iv_svg_end(out);
}
