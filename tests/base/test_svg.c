/* Pictures are well-formed for any text; ticks are round numbers inside their scale. */
#include "random.h"
#include "apps/xml.h"
#include "base/svg.h"

#include <math.h>

static char *picture; /* of the last draw */
static size_t picture_bytes;

static void draw(const char *text) {
    free(picture);
    FILE *file = open_memstream(&picture, &picture_bytes);
    assert_non_null(file);
    const iv_svg_scale x = {.low = 0, .high = 10, .from = 50, .to = 350};
    const iv_svg_scale y = {.low = 1e-6, .high = 1, .from = 150, .to = 20, .logarithmic = true};
    const iv_svg_key keys[] = {{"fill same", text}, {"fill hot3", "other"}};
    iv_svg_begin(file, 400, 200, text, text);
    iv_svg_axis_x(file, &x, 5, 150, 20, text);
    iv_svg_axis_y(file, &y, 5, 50, 350, text);
    iv_svg_line(file, "stroke series0", 50, 20, 100.125, 30);
    iv_svg_polyline(file, "stroke series1", (const double[]){1, 2, 3.5, 4, 5, 6}, 3);
    iv_svg_rect(file, "fill same", 1, 2, 3, 4, 1, text);
    iv_svg_circle(file, "fill series1", 1, 2, 3, text);
    iv_svg_text(file, "ink mono turned", 10, 10, text);
    iv_svg_legend(file, 20, 190, keys, 2);
    iv_svg_end(file);
    assert_int_equal(fclose(file), 0);
}

static void expect_well_formed(void) {
    const char *at = xml_broken_at(picture);
    if (at) fail_msg("not well-formed at: %.60s", at);
}

static void any_text_is_well_formed(void **state) {
    (void)state;
    draw("a < b && \"c\" > 'd' \xc3\xa9 \xff\x01\x7f \xef\xbf\xbf");
    expect_well_formed();
    assert_non_null(strstr(picture, "a &lt; b &amp;&amp; &quot;c&quot; &gt; 'd' \xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd"));
    rng r = rng_start("any_text_is_well_formed");
    for (size_t i = 0; i < 500; i++) {
        char text[24] = "";
        for (size_t c = 0; c < sizeof text - 1; c++)
            text[c] = rng_below(&r, 2) ? "<>&\"'/=;\n"[rng_below(&r, 9)] : (char)rng_next(&r);
        draw(text);
        expect_well_formed();
    }
    free(picture);
    picture = NULL;
}

static void the_check_can_fail(void **state) {
    (void)state;
    static const char *const broken[] = {"",
                                         "<a>",
                                         "<a></b>",
                                         "<a/><b/>",
                                         "x<a/>",
                                         "<a>&x;</a>",
                                         "<a b>",
                                         "<a b=c/>",
                                         "<a b=\"<\"/>",
                                         "<a>\x01</a>",
                                         "<a b=\"1\"c=\"2\"/>",
                                         "</a>",
                                         "<a></a>x",
                                         "<a><b></a></b>",
                                         "<a b=\"1\" b=\"2\"/>"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        if (!xml_broken_at(broken[i])) fail_msg("passes: %s", broken[i]);
    assert_null(xml_broken_at("<a b=\"1\" c=\"&lt;\">x &amp; y<b/><c>z</c></a>\n"));
}

static void ticks_are_round(void **state) {
    (void)state;
    double ticks[IV_SVG_TICKS_MAX];
    const iv_svg_scale tens = {.low = 0, .high = 10, .to = 1};
    assert_int_equal(iv_svg_ticks(&tens, 5, ticks), 6);
    for (size_t i = 0; i < 6; i++) assert_true(fabs(ticks[i] - 2 * (double)i) < 1e-12);
    const iv_svg_scale powers = {.low = 1e-3, .high = 1, .to = 1, .logarithmic = true};
    assert_int_equal(iv_svg_ticks(&powers, 4, ticks), 4);
    assert_true(fabs(ticks[0] - 1e-3) < 1e-15 && fabs(ticks[3] - 1) < 1e-12);
    const iv_svg_scale empty = {.low = 1, .high = 1};
    assert_int_equal(iv_svg_ticks(&empty, 4, ticks), 0);
    rng r = rng_start("ticks_are_round");
    for (size_t i = 0; i < 20000; i++) {
        double low = random_float(&r, WIDE), high = low + fabs((double)random_float(&r, WIDE));
        iv_svg_scale s = {.low = low, .high = high, .from = 0, .to = 1, .logarithmic = i % 2 && low > 0};
        size_t n = iv_svg_ticks(&s, 1 + rng_below(&r, 40), ticks);
        assert_true(n <= IV_SVG_TICKS_MAX);
        for (size_t t = 0; t < n; t++) {
            double at = iv_svg_position(&s, ticks[t]);
            assert_true(at >= 0 && at <= 1);
            if (t > 0 && high - low > 1e-6 * fabs(low)) assert_true(ticks[t] > ticks[t - 1]);
        }
    }
}

static void positions_stay_inside(void **state) {
    (void)state;
    const iv_svg_scale s = {.low = 1e-8, .high = 1, .from = 100, .to = 200, .logarithmic = true};
    assert_true(fabs(iv_svg_position(&s, 1e-4) - 150) < 1e-9);
    assert_true(iv_svg_position(&s, 0) == 100 && iv_svg_position(&s, 7) == 200 && iv_svg_position(&s, NAN) == 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_text_is_well_formed),
        cmocka_unit_test(the_check_can_fail),
        cmocka_unit_test(ticks_are_round),
        cmocka_unit_test(positions_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
