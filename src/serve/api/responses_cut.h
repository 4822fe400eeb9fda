/* responses_cut.h: "truncation": "auto" of /v1/responses: items are dropped from the beginning of a conversation that
 * is longer than the model's context, until it fits.
 *
 * A conversation that fits stays whole, so that it is answered as without the field. What the system or a developer
 * says is never dropped, nor is the last item. What is left begins with a message of the user, as templates want it,
 * and only inside of the last turn, where that alone is too long, elsewhere; results of calls go with their calls. */
#ifndef IV_SERVE_API_RESPONSES_CUT_H
#define IV_SERVE_API_RESPONSES_CUT_H

#include "serve/api/task.h"

/* For a task whose whole conversation has been rendered: renders what is left of it. */
iv_status iv_responses_cut(iv_task *t, iv_error *err);

/* ---- between the files of this folder, and for tests */
/* The items that are left (the caller's) where those before `cut` are dropped; *dropped: how many these are. NULL: no
 * memory. */
json_t *iv_responses_left(const json_t *input, size_t cut, size_t *dropped);
/* Where a conversation may be cut, in order: n indices in *out, which the caller frees. False: no memory. */
bool iv_responses_cuts(const json_t *input, size_t **out, size_t *n);

#endif
