/* text.h: comparing a completion with an answer: as text, as a number, by the content of \boxed{}.
 *
 * A number is an integer, a decimal (".5", "12.50", "1.5e3"), a fraction ("3/4", "\frac{3}{4}", "\dfrac34") or a
 * percentage ("12%"), as an exact rational. Thousands may be separated by commas, apostrophes, no-break or thin spaces,
 * "{,}" and "\,", in groups of three; "\!" may follow them. A minus is "-", U+2212, U+2010 to U+2014, U+FE63 or U+FF0D
 * right before the number or its currency sign, unless a letter, a digit or a closing bracket stands before it ("7-3"
 * has the numbers 7 and 3). An integer and a fraction below 1 after it are one number ("1 1/2", "1\frac{1}{2}"). An
 * integer may have an integer exponent
 * ("2^{10}"), and a number "\times 10^{3}" after it. Exponents and indices of other things ("cm^2", "x_1") are no
 * numbers. Literals of more than 300 digits are not numbers. tests/data/train/rewards.json holds math-verify's
 * verdicts, and why ours differ from some. */
#ifndef IV_TRAIN_REWARD_TEXT_H
#define IV_TRAIN_REWARD_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct iv_text_view {
    const char *bytes; /* borrowed; any bytes */
    size_t n;
} iv_text_view;

/* The text without white space at its ends. */
iv_text_view iv_text_trim(iv_text_view text);

/* The texts are equal without white space at their ends. */
bool iv_reward_exact(iv_text_view completion, iv_text_view answer);

/* The last number of the completion equals the last number of the answer ("... #### 42" has 42). A percentage equals
 * its hundredth, and also the number without the sign ("60%" and "60"). False if there is no number. */
bool iv_reward_numeric(iv_text_view completion, iv_text_view answer);

/* The content of the last \boxed{...} of the text; braces nest, escaped braces do not count. False if there is none, or
 * if the last one is not closed. */
bool iv_reward_boxed_content(iv_text_view text, iv_text_view *content);

/* The content of the completion's last \boxed{} is the answer (or the content of its \boxed{}). Texts are equal in one
 * spelling: without TeX spacing, "$", "\left", "\right", "\text{}", a final point, parentheses around the whole, a
 * leading "+" and signs of multiplication before symbols, with one form of fractions ("\frac{\pi}{2}", "\pi/2"), \sqrt,
 * exponents and degrees; or as numbers; or as one word in any case. "x =" before an answer, or a unit at its end
 * (\text{...}, a common word, degrees), may be left out by one of them, but not be another. There is no algebra. */
bool iv_reward_boxed(iv_text_view completion, iv_text_view answer);

#endif
