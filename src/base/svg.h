/* svg.h: pictures as SVG text: shapes, labels, axes, legends. Colours are classes of one style sheet, which follows the
 * reader's light or dark preference; drawing code never names a colour. Lengths are pixels of the picture's own
 * coordinate system, y downwards. Text and tips are escaped: bytes that are not UTF-8 or not allowed in XML appear as
 * U+FFFD. A failed write shows in ferror(file). */
#ifndef IV_BASE_SVG_H
#define IV_BASE_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Classes, several with spaces between them:
 *   text    ink, soft, strong, small, large, mono, middle, end (anchors; start without), turned (a quarter left)
 *   shapes  fill or stroke or both, with one of the paints
 *   paints  paper, ink, soft, faint, same (equal: green), near (bits differ, outcome equal: yellow),
 *           hot0 ... hot5 (from mild to severe), series0 ... series7 (distinguishable by the colour-blind) */
enum { IV_SVG_HOT = 6, IV_SVG_SERIES = 8, IV_SVG_TICKS_MAX = 16 };

/* begin writes the style sheet and the background; every other call writes one element. title and description are for
 * screen readers. */
void iv_svg_begin(FILE *file, double width, double height, const char *title, const char *description);
void iv_svg_end(FILE *file);
void iv_svg_text(FILE *file, const char *classes, double x, double y, const char *text);
/* radius: of the corners. tip: the tooltip, or NULL. */
void iv_svg_rect(FILE *file, const char *classes, double x, double y, double width, double height, double radius,
                 const char *tip);
void iv_svg_circle(FILE *file, const char *classes, double x, double y, double radius, const char *tip);
void iv_svg_line(FILE *file, const char *classes, double x1, double y1, double x2, double y2);
/* Lines from point to point, which are x, y pairs. */
void iv_svg_polyline(FILE *file, const char *classes, const double *points, size_t count);
/* Text with what XML and HTML escape, as the elements above write it. */
void iv_svg_escaped(FILE *file, const char *text);

/* Maps [low, high] to [from, to], linearly or, with positive low, logarithmically. */
typedef struct iv_svg_scale {
    double low, high, from, to;
    bool logarithmic;
} iv_svg_scale;
/* The position of a value, clamped to the scale. */
double iv_svg_position(const iv_svg_scale *scale, double value);
/* Round values (1, 2 or 5 times a power of ten; powers of ten if logarithmic) in the scale, about `wanted` and at most
 * IV_SVG_TICKS_MAX of them. Returns their number. */
size_t iv_svg_ticks(const iv_svg_scale *scale, size_t wanted, double out[IV_SVG_TICKS_MAX]);
/* Ticks with numbers and grid lines: horizontal axis along y with a grid up to y_far, vertical axis along x with a grid
 * to x_far. label: next to the axis; NULL: none. */
void iv_svg_axis_x(FILE *file, const iv_svg_scale *scale, size_t wanted, double y, double y_far, const char *label);
void iv_svg_axis_y(FILE *file, const iv_svg_scale *scale, size_t wanted, double x, double x_far, const char *label);

typedef struct iv_svg_key {
    const char *classes, *label;
} iv_svg_key;
/* Squares with labels in one line from (x, y), where y is the middle. Returns the x after the last. */
double iv_svg_legend(FILE *file, double x, double y, const iv_svg_key *keys, size_t count);

/* Approximate width of a text at the default size of 12 pixels. */
double iv_svg_text_width(const char *text);

#endif
