/* truncate.c: how many tokens of a prompt are read, and the cut. */
#include "serve/api/truncate.h"
#include "base/size.h"

#include <string.h>

enum { ALL = -2 }; /* of iv_api_params_init */

bool iv_api_truncates(const iv_api_params *p) { return p->truncate != ALL; }

iv_status iv_api_truncate_settle(const iv_server *s, iv_api_params *p, iv_error *err) {
    const iv_request *r = &p->request;
    size_t length = iv_bridge_info(s->bridge)->max_model_len;
    size_t answer = r->score_only ? 0 : r->max_tokens ? r->max_tokens : 1;
    if (p->truncate == ALL) return IV_OK;
    if (p->truncate == 0 || p->truncate > (int64_t)length)
        return iv_fail(err, IV_INVALID,
                       "truncate_prompt_tokens: wanted -1, or 1 to %zu (the model's length), found %lld", length,
                       (long long)p->truncate);
    if (p->truncate > 0) return IV_OK;
    if (answer >= length)
        return iv_fail(err, IV_INVALID,
                       "truncate_prompt_tokens: wanted max_tokens below %zu (the model's length) beside -1, found %zu",
                       length, answer);
    p->truncate = (int64_t)(length - answer);
    return IV_OK;
}

/* How many of the ids stand around the text: those that an empty text gets. first: of them, before it: those before
 * another text, too. (The prompt's own may begin with what stands behind.) */
static iv_status find_around(const iv_task *t, const iv_api_prompt *p, size_t *around, size_t *first, iv_error *err) {
    const iv_textual *words = iv_bridge_text_model(t->server->bridge);
    iv_ids empty = {0}, other = {0};
    *around = *first = 0;
    if (!p->text.data || !p->request.add_special) return IV_OK;
    IV_TRY(iv_tokenize(words, "", 0, true, &empty, err));
    iv_status status = iv_tokenize(words, "a", 1, true, &other, err);
    *around = iv_size_min(empty.count, p->ids.count);
    while (*first < iv_size_min(*around, other.count) && empty.data[*first] == other.data[*first]) ++*first;
    iv_ids_free(&empty), iv_ids_free(&other);
    return status;
}

iv_status iv_task_truncate(iv_task *t, iv_api_prompt *p, iv_error *err) {
    size_t most = (size_t)t->params.truncate, around, first;
    if (!iv_api_truncates(&t->params)) return IV_OK;
    IV_TRY(iv_task_need_ids(t, p, err));
    if (p->ids.count <= most) return IV_OK;
    IV_TRY(find_around(t, p, &around, &first, err));
    if (around > most) around = first = 0; /* no room for them all: the last tokens, whatever they are */
    size_t cut = p->ids.count - most;
    p->ids.count = most;
    memmove(p->ids.data + first, p->ids.data + first + cut, (most - first) * sizeof *p->ids.data);
    if (!p->text.data) return IV_OK;
    iv_text left = {0};
    IV_TRY(iv_detokenize(iv_bridge_text_model(t->server->bridge), p->ids.data + first, most - around, true, &left, err));
    iv_text_free(&p->text);
    p->text = left;
    return IV_OK;
}
