/* eval_plot.c: an evaluation as one picture: unique outputs, probability divergence and accuracy by method. */
#include "eval.h"
#include "svg.h"

#include <math.h>
#include <string.h>

enum { PANEL_WIDTH = 250, PANEL_GAP = 70, PANEL_HEIGHT = 200, LEFT = 60, TOP = 92, BAR_MAX = 46 };

typedef struct panel {
    FILE *out;
    double x;
    cli_svg_scale scale;
    size_t places;
} panel;

static const char *paint(size_t i) {
    static const char *const classes[] = {"fill series0", "fill series1", "fill series2", "fill series3",
                                          "fill series4", "fill series5", "fill series6", "fill series7"};
    return classes[i % (sizeof classes / sizeof *classes)];
}

static panel panel_begin(FILE *out, size_t index, const char *title, double low, double high, size_t places) {
    panel p = {.out = out, .x = LEFT + (double)index * (PANEL_WIDTH + PANEL_GAP), .places = places};
    p.scale = (cli_svg_scale){.low = low, .high = high, .from = TOP + PANEL_HEIGHT, .to = TOP};
    cli_svg_text(out, "ink strong", p.x, TOP - 18, title);
    cli_svg_axis_y(out, &p.scale, 5, p.x, p.x + PANEL_WIDTH, NULL);
    return p;
}

static double center(const panel *p, size_t place) {
    return p->x + PANEL_WIDTH * ((double)place + 0.5) / (double)p->places;
}

static void bar(const panel *p, size_t place, double value, const char *format, const char *tip) {
    double width = fmin(BAR_MAX, 0.7 * PANEL_WIDTH / (double)p->places), x = center(p, place);
    double y = cli_svg_place(&p->scale, value), floor = TOP + PANEL_HEIGHT;
    char label[32];
    cli_svg_rect(p->out, paint(place), x - width / 2, y, width, fmax(floor - y, 1), 2, tip);
    snprintf(label, sizeof label, format, value);
    cli_svg_text(p->out, "ink small middle", x, y - 5, label);
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

/* A dot for each configuration around a line at the mean. */
static void draw_accuracy(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    double low = 100, high = 0;
    size_t drawn[CLI_CONFIGS_MAX] = {0};
    for (size_t c = 0; c < s->configs->count; c++)
        low = fmin(low, 100 * m->accuracy[c]), high = fmax(high, 100 * m->accuracy[c]);
    low = fmax(0, low - fmax(1, 0.3 * (high - low))), high = fmin(100, high + fmax(1, 0.3 * (high - low)));
    panel p = panel_begin(out, 2, "Accuracy, %: a dot for each configuration", low, high, m->method_count);
    double reach = 0.35 * PANEL_WIDTH / (double)p.places;
    for (size_t c = 0; c < s->configs->count; c++) {
        size_t i = m->config_method[c], n = m->methods[i].configs, k = drawn[i]++;
        double offset = n > 1 ? reach * (2.0 * (double)k / (double)(n - 1) - 1) : 0;
        cli_svg_circle(out, paint(i), center(&p, i) + offset, cli_svg_place(&p.scale, 100 * m->accuracy[c]), 3,
                       s->configs->items[c].label);
    }
    for (size_t i = 0; i < m->method_count; i++) {
        double y = cli_svg_place(&p.scale, 100 * m->methods[i].accuracy_mean);
        char label[48];
        cli_svg_line(out, "stroke ink", center(&p, i) - reach, y, center(&p, i) + reach, y);
        snprintf(label, sizeof label, "deviation %.2f", 100 * m->methods[i].accuracy_deviation);
        cli_svg_text(out, "soft small middle", center(&p, i), TOP + PANEL_HEIGHT + 16, label);
    }
}

void cli_study_svg(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    char line[512];
    size_t panels = s->dataset->scored ? 3 : 2,
           keys = m->method_count < CLI_SVG_SERIES ? m->method_count : CLI_SVG_SERIES;
    double width = LEFT + (double)panels * (PANEL_WIDTH + PANEL_GAP);
    snprintf(line, sizeof line, "%.150s, %.150s: %zu problems, %zu configurations", s->model, s->dataset_path,
             s->dataset->count, s->configs->count);
    cli_svg_begin(out, width, TOP + PANEL_HEIGHT + 70, s->title, line);
    cli_svg_text(out, "ink large strong", LEFT - 40, 30, s->title);
    cli_svg_text(out, "soft", LEFT - 40, 50, line);
    draw_unique(s, out);
    draw_divergence(s, out);
    if (s->dataset->scored) draw_accuracy(s, out);
    cli_svg_key legend[CLI_SVG_SERIES];
    for (size_t i = 0; i < keys; i++)
        legend[i] = (cli_svg_key){paint(i), m->methods[i].name[0] ? m->methods[i].name : "as given"};
    cli_svg_legend(out, LEFT, TOP + PANEL_HEIGHT + 44, legend, keys);
    cli_svg_end(out);
}
