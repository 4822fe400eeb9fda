/* svg.c: the style sheet and the elements. Invariant: the document is well-formed XML for any text. */
#include "base/svg.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>

/* currentColor instead of CSS variables: older converters draw it too. */
static const char style[] =
    "<style>\n"
    "text{font:12px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:currentColor}\n"
    ".strong{font-weight:600}.small{font-size:10.5px}.large{font-size:17px}\n"
    ".mono{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace}\n"
    ".middle{text-anchor:middle}.end{text-anchor:end}\n"
    ".shape{fill:none;stroke:none}.shape.fill{fill:currentColor}\n"
    ".shape.stroke{stroke:currentColor;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}\n"
    ".paper{color:#ffffff}.ink{color:#1f2937}.soft{color:#6b7280}.faint{color:#e5e7eb}\n"
    ".same{color:#34b38a}.near{color:#f4c542}\n"
    ".hot0{color:#f9b26b}.hot1{color:#f58f4e}.hot2{color:#e96a3c}.hot3{color:#d4452f}.hot4{color:#b02330}"
    ".hot5{color:#7d0f33}\n"
    ".series0{color:#0072b2}.series1{color:#d55e00}.series2{color:#009e73}.series3{color:#cc79a7}"
    ".series4{color:#b58900}.series5{color:#56b4e9}.series6{color:#7a5195}.series7{color:#555555}\n"
    "@media (prefers-color-scheme: dark){\n"
    ".paper{color:#12161d}.ink{color:#e5e7eb}.soft{color:#9ca3af}.faint{color:#2c333f}\n"
    ".same{color:#2a9d78}.near{color:#d9ab2e}\n"
    ".series0{color:#4aa3df}.series1{color:#f08a3c}.series2{color:#2ec495}.series4{color:#e0bd3a}"
    ".series6{color:#b08bd0}.series7{color:#b5b5b5}\n"
    "}\n</style>\n";

/* XML 1.0 allows no control characters but tab and newline, and neither U+FFFE nor U+FFFF. */
static bool allowed(const char *s, size_t length) {
    unsigned char c = (unsigned char)s[0];
    if (length == 1) return c >= 0x20 ? c != 0x7f : c == '\t' || c == '\n';
    return !(length == 3 && c == 0xef && (unsigned char)s[1] == 0xbf && (unsigned char)s[2] >= 0xbe);
}

void iv_svg_escaped(FILE *file, const char *s) {
    for (size_t n = strlen(s), i = 0; i < n;) {
        size_t length = iv_utf8_length((const uint8_t *)s + i, n - i);
        if (length == 0 || !allowed(s + i, length))
            fputs("\xef\xbf\xbd", file);
        else if (s[i] == '<')
            fputs("&lt;", file);
        else if (s[i] == '>')
            fputs("&gt;", file);
        else if (s[i] == '&')
            fputs("&amp;", file);
        else if (s[i] == '"')
            fputs("&quot;", file);
        else
            fwrite(s + i, 1, length, file);
        i += length ? length : 1;
    }
}

/* ---- elements ------------------------------------------------------------------------------------------ */

void iv_svg_begin(FILE *file, double width, double height, const char *title, const char *description) {
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.6g %.6g\" width=\"%.6g\" height=\"%.6g\" "
            "role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">",
            width, height, width, height);
    iv_svg_escaped(file, title);
    fputs("</title>\n<desc id=\"desc\">", file);
    iv_svg_escaped(file, description);
    fprintf(file, "</desc>\n%s", style);
    iv_svg_rect(file, "fill paper", 0, 0, width, height, 0, NULL);
}

void iv_svg_end(FILE *file) { fputs("</svg>\n", file); }

/* A tip is a child element of its shape. */
static void end_shape(FILE *file, const char *element, const char *tip) {
    if (!tip) {
        fputs("/>\n", file);
        return;
    }
    fputs("><title>", file);
    iv_svg_escaped(file, tip);
    fprintf(file, "</title></%s>\n", element);
}

void iv_svg_text(FILE *file, const char *classes, double x, double y, const char *text) {
    fprintf(file, "<text class=\"%s\" x=\"%.6g\" y=\"%.6g\"", classes, x, y);
    if (strstr(classes, "turned")) fprintf(file, " transform=\"rotate(-90 %.6g %.6g)\"", x, y);
    fputc('>', file);
    iv_svg_escaped(file, text);
    fputs("</text>\n", file);
}

void iv_svg_rect(FILE *file, const char *classes, double x, double y, double width, double height, double radius,
                 const char *tip) {
    fprintf(file, "<rect class=\"shape %s\" x=\"%.6g\" y=\"%.6g\" width=\"%.6g\" height=\"%.6g\"", classes, x, y, width,
            height);
    if (radius > 0) fprintf(file, " rx=\"%.6g\"", radius);
    end_shape(file, "rect", tip);
}

void iv_svg_circle(FILE *file, const char *classes, double x, double y, double radius, const char *tip) {
    fprintf(file, "<circle class=\"shape %s\" cx=\"%.6g\" cy=\"%.6g\" r=\"%.6g\"", classes, x, y, radius);
    end_shape(file, "circle", tip);
}

void iv_svg_line(FILE *file, const char *classes, double x1, double y1, double x2, double y2) {
    fprintf(file, "<line class=\"shape %s\" x1=\"%.6g\" y1=\"%.6g\" x2=\"%.6g\" y2=\"%.6g\"/>\n", classes, x1, y1, x2,
            y2);
}

void iv_svg_polyline(FILE *file, const char *classes, const double *points, size_t count) {
    fprintf(file, "<polyline class=\"shape %s\" points=\"", classes);
    for (size_t i = 0; i < count; i++) fprintf(file, "%s%.6g,%.6g", i ? " " : "", points[2 * i], points[2 * i + 1]);
    fputs("\"/>\n", file);
}

/* ---- scales -------------------------------------------------------------------------------------------- */

double iv_svg_position(const iv_svg_scale *s, double value) {
    double v = value, low = s->low, high = s->high;
    if (s->logarithmic) v = v > 0 ? log10(v) : -HUGE_VAL, low = log10(low), high = log10(high);
    double t = high > low ? (v - low) / (high - low) : 0;
    t = t > 0 ? t < 1 ? t : 1 : 0; /* NaN goes to 0 */
    return s->from + t * (s->to - s->from);
}

size_t iv_svg_ticks(const iv_svg_scale *s, size_t wanted, double out[IV_SVG_TICKS_MAX]) {
    size_t n = 0;
    double low = s->logarithmic ? log10(s->low) : s->low, high = s->logarithmic ? log10(s->high) : s->high;
    if (!(high > low) || !isfinite(high - low) || wanted == 0) return 0;
    if (wanted > IV_SVG_TICKS_MAX / 2) wanted = IV_SVG_TICKS_MAX / 2; /* a rounded step may double their number */
    double rough = (high - low) / (double)wanted, power = pow(10, floor(log10(rough)));
    double step = rough / power < 1.5   ? power
                  : rough / power < 3.5 ? 2 * power
                  : rough / power < 7.5 ? 5 * power
                                        : 10 * power;
    if (s->logarithmic && step < 1) step = 1;
    double slack = 1e-9 * (high - low);
    for (double i = ceil((low - slack) / step); n < IV_SVG_TICKS_MAX && i * step <= high + slack; i++)
        out[n++] = s->logarithmic ? pow(10, i * step) : i * step;
    return n;
}

/* 1e-8 and not 1e-08. */
static const char *tick_label(double value, char out[32]) {
    snprintf(out, 32, "%.4g", fabs(value) < 1e-300 ? 0.0 : value);
    char *e = strchr(out, 'e');
    if (e && e[2] == '0') memmove(e + 2, e + 3, strlen(e + 3) + 1);
    return out;
}

void iv_svg_axis_x(FILE *file, const iv_svg_scale *scale, size_t wanted, double y, double y_far, const char *label) {
    double ticks[IV_SVG_TICKS_MAX];
    char digits[32];
    size_t n = iv_svg_ticks(scale, wanted, ticks);
    for (size_t i = 0; i < n; i++) {
        double x = iv_svg_position(scale, ticks[i]);
        iv_svg_line(file, "stroke faint", x, y, x, y_far);
        iv_svg_text(file, "soft small middle", x, y > y_far ? y + 14 : y - 6, tick_label(ticks[i], digits));
    }
    if (label) iv_svg_text(file, "soft middle", (scale->from + scale->to) / 2, y > y_far ? y + 31 : y - 22, label);
}

void iv_svg_axis_y(FILE *file, const iv_svg_scale *scale, size_t wanted, double x, double x_far, const char *label) {
    double ticks[IV_SVG_TICKS_MAX];
    char digits[32];
    size_t n = iv_svg_ticks(scale, wanted, ticks);
    for (size_t i = 0; i < n; i++) {
        double y = iv_svg_position(scale, ticks[i]);
        iv_svg_line(file, "stroke faint", x, y, x_far, y);
        iv_svg_text(file, x < x_far ? "soft small end" : "soft small", x < x_far ? x - 6 : x + 6, y + 3.5,
                    tick_label(ticks[i], digits));
    }
    if (label)
        iv_svg_text(file, "soft middle turned", x < x_far ? x - 44 : x + 52, (scale->from + scale->to) / 2, label);
}

/* ---- labels -------------------------------------------------------------------------------------------- */

double iv_svg_text_width(const char *text) {
    size_t characters = 0;
    for (const char *c = text; *c; c++) characters += ((unsigned char)*c & 0xc0) != 0x80;
    return 6.6 * (double)characters;
}

double iv_svg_legend(FILE *file, double x, double y, const iv_svg_key *keys, size_t count) {
    for (size_t i = 0; i < count; i++) {
        iv_svg_rect(file, keys[i].classes, x, y - 6, 12, 12, 2.5, NULL);
        iv_svg_text(file, "ink", x + 18, y + 4, keys[i].label);
        x += 18 + iv_svg_text_width(keys[i].label) + 16;
    }
    return x;
}
