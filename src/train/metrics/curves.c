/* curves.c: columns -> charts in a grid -> an SVG document; a page of the same charts, as many next to each other as
 * fit. Metrics that never change are listed, not drawn. */
#include "train/metrics/curves.h"
#include "base/file.h"
#include "base/size.h"
#include "base/svg.h"
#include "train/metrics/curves_log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pixels. */
enum { COLUMNS = 2, WIDTH = 470, PAGE_WIDTH = 360 /* a phone's: text keeps its size there */, HEIGHT = 250 };
enum { LEFT = 62, RIGHT = 18, TOP = 34, BOTTOM = 44, HEAD = 58, LINE = 20 };

/* ---- one chart ---- */

/* Consecutive points of a column as one: the mean of those that are finite. */
typedef struct bucket {
    double from, to; /* steps */
    double low, high, mean;
    size_t count; /* finite values; 0: a gap */
} bucket;

static bucket bucket_of(const iv_train_point *p, size_t n) {
    bucket b = {.from = p[0].step, .to = p[n - 1].step, .low = HUGE_VAL, .high = -HUGE_VAL};
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(p[i].value)) continue;
        b.count++;
        b.low = fmin(b.low, p[i].value), b.high = fmax(b.high, p[i].value);
        b.mean += (p[i].value - b.mean) / (double)b.count;
    }
    b.mean = fmin(fmax(b.mean, b.low), b.high);
    return b;
}

typedef struct chart {
    FILE *out;
    const iv_train_column *column;
    double left, top, width; /* of the panel */
    iv_svg_scale x, y;
    bucket buckets[IV_TRAIN_CURVES_POINTS];
    size_t count, missing; /* missing: values that are not finite */
} chart;

static void fill_buckets(chart *c) {
    size_t n = iv_train_column_count(c->column), finite = 0;
    const iv_train_point *p = iv_train_column_points(c->column);
    c->count = iv_size_min(n, IV_TRAIN_CURVES_POINTS);
    for (size_t i = 0; i < c->count; i++) {
        size_t from = i * n / c->count, to = (i + 1) * n / c->count;
        c->buckets[i] = bucket_of(p + from, to - from);
        finite += c->buckets[i].count;
    }
    c->missing = n - finite;
}

/* The axis of values: a constant gets a margin around it. */
static void set_scale(chart *c, const iv_train_columns *all) {
    double low = HUGE_VAL, high = -HUGE_VAL;
    for (size_t i = 0; i < c->count; i++)
        if (c->buckets[i].count) low = fmin(low, c->buckets[i].low), high = fmax(high, c->buckets[i].high);
    if (low > high) low = 0, high = 1;
    bool logarithmic = low > 0 && high / low > 100;
    if (logarithmic) {
        low /= 1.1, high *= 1.1;
    } else {
        double margin = high > low ? 0.06 * (high - low) : low != 0 ? 0.1 * fabs(low) : 0.5;
        if (!(low >= 0 && low < margin)) low -= margin; /* a value near zero begins there */
        high += margin;
    }
    double first = (double)all->first, last = (double)all->last;
    c->x = (iv_svg_scale){first, last > first ? last : first + 1, c->left + LEFT, c->left + c->width - RIGHT, false};
    c->y = (iv_svg_scale){low, high, c->top + HEIGHT - BOTTOM, c->top + TOP, logarithmic};
}

static void draw_head(const chart *c) {
    char text[160] = "", *end = text;
    size_t n = iv_train_column_count(c->column);
    double last = iv_train_column_points(c->column)[n - 1].value;
    iv_svg_text(c->out, "ink strong", c->left + LEFT, c->top + 18, c->column->name);
    end += isfinite(last) ? sprintf(end, "last %.5g", last) : sprintf(end, "last not finite");
    if (c->missing) sprintf(end, ", %zu not finite", c->missing);
    iv_svg_text(c->out, "soft end", c->left + c->width - RIGHT, c->top + 18, text);
}

static double middle_x(const chart *c, const bucket *b) { return iv_svg_position(&c->x, (b->from + b->to) / 2); }

/* Lines between neighbours; a gap ends a line. */
static void draw_lines(const chart *c) {
    double points[2 * IV_TRAIN_CURVES_POINTS];
    size_t n = 0;
    for (size_t i = 0; i <= c->count; i++) {
        const bucket *b = &c->buckets[i];
        if (i < c->count && b->count) {
            points[2 * n] = middle_x(c, b), points[2 * n + 1] = iv_svg_position(&c->y, b->mean), n++;
            continue;
        }
        if (n > 1) iv_svg_polyline(c->out, "stroke series0", points, n);
        n = 0;
    }
}

static void draw_points(const chart *c) {
    for (size_t i = 0; i < c->count; i++) {
        const bucket *b = &c->buckets[i];
        char tip[200];
        if (!b->count) continue;
        if (b->from == b->to)
            snprintf(tip, sizeof tip, "step %.0f: %.8g", b->from, b->mean);
        else
            snprintf(tip, sizeof tip, "steps %.0f to %.0f: mean %.6g, from %.6g to %.6g", b->from, b->to, b->mean,
                     b->low, b->high);
        iv_svg_circle(c->out, "fill series0", middle_x(c, b), iv_svg_position(&c->y, b->mean), 2.2, tip);
    }
}

static void draw_chart(chart *c, const iv_train_columns *all) {
    fill_buckets(c);
    set_scale(c, all);
    draw_head(c);
    iv_svg_axis_x(c->out, &c->x, c->width < WIDTH ? 4 : 6, c->y.from, c->y.to, "step");
    iv_svg_axis_y(c->out, &c->y, 5, c->x.from, c->x.to, NULL);
    for (size_t i = 0; i < c->count; i++) {
        const bucket *b = &c->buckets[i];
        if (b->count > 1)
            iv_svg_line(c->out, "stroke faint", middle_x(c, b), iv_svg_position(&c->y, b->low), middle_x(c, b),
                        iv_svg_position(&c->y, b->high));
    }
    draw_lines(c);
    draw_points(c);
}

/* ---- all charts ---- */

/* A line without a change, such as the divergence of a run that has none. */
static bool is_constant(const iv_train_column *c) {
    size_t n = iv_train_column_count(c);
    const iv_train_point *p = iv_train_column_points(c);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(p[i].value) || p[i].value != p[0].value) return false;
    return n > 1;
}

static bool is_drawn(const iv_train_column *c) { return iv_train_column_count(c) > 0 && !is_constant(c); }

static size_t count_of(const iv_train_columns *all, bool (*kind)(const iv_train_column *c)) {
    size_t n = 0;
    for (size_t i = 0; i < all->count; i++) n += kind(&all->at[i]);
    return n;
}

static void describe(const iv_train_columns *all, char *out, size_t n) {
    size_t drawn = count_of(all, is_drawn), constant = count_of(all, is_constant);
    int k = snprintf(out, n, "steps %llu to %llu, %zu metrics", (unsigned long long)all->first,
                     (unsigned long long)all->last, drawn + constant);
    if (constant) snprintf(out + k, n - (size_t)k, ", %zu of them constant", constant);
}

static void constant_words(const iv_train_column *c, char *out, size_t n) {
    snprintf(out, n, "%.8g in every step", iv_train_column_points(c)[0].value);
}

static void draw(FILE *out, const char *title, const iv_train_columns *all) {
    size_t n = count_of(all, is_drawn), rows = (n + COLUMNS - 1) / COLUMNS, k = 0;
    double y = HEAD + (double)rows * HEIGHT;
    char description[120], words[60];
    describe(all, description, sizeof description);
    iv_svg_begin(out, COLUMNS * WIDTH, y + (double)count_of(all, is_constant) * LINE, title, description);
    iv_svg_text(out, "ink large strong", 16, 28, title);
    iv_svg_text(out, "soft", 16, 47, description);
    for (size_t i = 0; i < all->count; i++) {
        chart c = {.out = out, .column = &all->at[i], .width = WIDTH};
        if (!is_drawn(c.column)) continue;
        c.left = (double)(k % COLUMNS * WIDTH), c.top = (double)(HEAD + k / COLUMNS * HEIGHT);
        k++;
        draw_chart(&c, all);
    }
    for (size_t i = 0; i < all->count; i++, words[0] = 0) {
        if (!is_constant(&all->at[i])) continue;
        constant_words(&all->at[i], words, sizeof words);
        iv_svg_text(out, "ink strong", 16, y + 6, all->at[i].name);
        iv_svg_text(out, "soft", WIDTH, y + 6, words);
        y += LINE;
    }
    iv_svg_end(out);
}

/* Each chart as a picture of its own. */
static void draw_page(FILE *out, const iv_train_columns *all) {
    char description[120];
    describe(all, description, sizeof description);
    fprintf(out, "<p>%s</p>\n<div class=\"charts\">\n", description);
    for (size_t i = 0; i < all->count; i++) {
        chart c = {.out = out, .column = &all->at[i], .width = PAGE_WIDTH};
        if (!is_drawn(c.column)) continue;
        iv_svg_begin(out, PAGE_WIDTH, HEIGHT, c.column->name, description);
        draw_chart(&c, all);
        iv_svg_end(out);
    }
    fputs("</div>\n", out);
}

static void write_row(FILE *out, const char *name, const char *text) {
    fputs("<dt>", out);
    iv_svg_escaped(out, name);
    fputs("</dt><dd>", out);
    iv_svg_escaped(out, text);
    fputs("</dd>\n", out);
}

static const char page_style[] =
    "<style>:root{color-scheme:light dark}body{margin:0 "
    "auto;max-width:1100px;padding:12px;background:#fff;color:#1f2937;"
    "font:14px ui-sans-serif,system-ui,'Segoe "
    "UI',Helvetica,Arial,sans-serif}svg{width:100%;height:auto}h1{font-size:17px}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:8px}"
    "dl{display:grid;grid-template-columns:max-content auto;gap:4px "
    "16px}dt{color:#6b7280}dd{margin:0;overflow-wrap:anywhere}"
    "@media (prefers-color-scheme:dark){body{background:#12161d;color:#e5e7eb}dt{color:#9ca3af}}</style>\n";

/* Constants, and texts with their last value, such as the hash of the weights, are listed below the charts. */
static void write_page(FILE *out, const char *title, const iv_train_columns *all) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          out);
    iv_svg_escaped(out, title);
    fprintf(out, "</title>\n%s</head>\n<body>\n<h1>", page_style);
    iv_svg_escaped(out, title);
    fputs("</h1>\n", out);
    draw_page(out, all);
    fprintf(out, "<dl>\n<dt>last step</dt><dd>%llu</dd>\n", (unsigned long long)all->last);
    for (size_t i = 0; i < all->count; i++) {
        char words[60];
        if (is_constant(&all->at[i])) {
            constant_words(&all->at[i], words, sizeof words);
            write_row(out, all->at[i].name, words);
        } else if (all->at[i].text[0]) {
            write_row(out, all->at[i].name, all->at[i].text);
        }
    }
    fputs("</dl>\n</body>\n</html>\n", out);
}

/* ---- files ---- */

static iv_status write_file(const char *path, void (*write)(FILE *out, const char *title, const iv_train_columns *all),
                            const char *title, const iv_train_columns *all, iv_error *err) {
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    bool ok = out != NULL;
    if (ok) {
        write(out, title, all);
        ok = !ferror(out);
        ok = fclose(out) == 0 && ok;
    }
    iv_status status = ok ? iv_file_write(path, text, n, err) : iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    free(text);
    return status;
}

iv_status iv_train_curves_write(const char *log, const char *title, const char *html, const char *svg, iv_error *err) {
    iv_train_columns *all = calloc(1, sizeof *all);
    if (!all) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for curves", log);
    iv_status status = iv_train_columns_read(log, all, err);
    if (status == IV_OK && html) status = write_file(html, write_page, title, all, err);
    if (status == IV_OK && svg) status = write_file(svg, draw, title, all, err);
    iv_train_columns_free(all);
    free(all);
    return status;
}
