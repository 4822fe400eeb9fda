/* score.h: is an answer right? Pure functions of texts. */
#ifndef INVAR_CLI_SCORE_H
#define INVAR_CLI_SCORE_H

#include <stdbool.h>
#include <stddef.h>

enum { CLI_SCORE_BYTES = 256 };

/* The final answer of a text, in this order: what stands in its last \boxed{...}; what follows its last "####" on that
 * line; its last number; else nothing (""). A text that thinks (</think>) is looked at behind its thoughts first, and
 * as a whole only when nothing is found there. Cut to the buffer. Returns out. */
const char *cli_score_extract(const char *text, char out[CLI_SCORE_BYTES]);

/* The same for the answer that a dataset gives: boxed or ####, else the whole text without blanks around it. */
const char *cli_score_reference(const char *text, char out[CLI_SCORE_BYTES]);

/* Whether two final answers are the same: as exact rational numbers when both are numbers (1,234 and 1234.0; 1/2, 0.5
 * and \frac{1}{2}; $18 and 18 dollars; 50% and 50), else as texts without blanks, dollar signs and a full stop at the
 * end. */
bool cli_score_equal(const char *found, const char *wanted);

#endif
