/* chat_parts.c: the pending text and the parts that were decided. */
#include "chat/chat_parts.h"

#include <string.h>

bool iv_chat_looks_for_calls(const iv_chat_text *c) { return c->tools && !c->no_calls && c->form != IV_TOOL_FORM_NONE; }

iv_chat_rest iv_chat_pending(const iv_chat_text *c) {
    return c->pending.len ? (iv_chat_rest){c->pending.data + c->taken, c->pending.len - c->taken}
                          : (iv_chat_rest){"", 0};
}

void iv_chat_drop(iv_chat_text *c, size_t n) {
    c->taken += n;
    if (c->taken == c->pending.len) iv_buf_clear(&c->pending), c->taken = 0;
}

/* ---- decided parts ------------------------------------------------------------------------------------ */

static void add(iv_chat_text *c, iv_buf *to, const char *s, size_t n) {
    if (n && !iv_buf_append(to, s, n)) c->failed = true;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

void iv_chat_add_reasoning(iv_chat_text *c, const char *s, size_t n) { add(c, &c->reasoning, s, n); }

/* With tools, white space around calls is dropped: it is content only if content follows. So is the end of a wrapper.
 */
void iv_chat_add_content(iv_chat_text *c, const char *s, size_t n) {
    while (c->trimming && n && *s == '\n') s++, n--, c->reasoning_bytes++;
    if (n == 0) return;
    size_t solid = n;
    c->trimming = false;
    while ((iv_chat_looks_for_calls(c) || c->wrapped) && solid && is_space(s[solid - 1])) solid--;
    if (solid) {
        c->after_calls = c->closed = false;
        add(c, &c->content, c->space.data, c->space.len);
        iv_buf_clear(&c->space);
        add(c, &c->content, s, solid);
    }
    add(c, &c->space, s + solid, n - solid);
}

void iv_chat_place_calls(iv_chat_text *c, size_t from) {
    if (from < c->call_count) c->after_calls = true;
    for (; from < c->call_count; from++) {
        c->calls[from].content = c->content.len;
        c->calls[from].begin = c->call_begin, c->calls[from].end = c->pushed - iv_chat_pending(c).n;
    }
}

bool iv_chat_take_call(iv_chat_text *c, iv_chat_call call) {
    if (c->call_count == IV_CHAT_CALLS_MAX) return false;
    if (c->one_call && c->call_count)
        iv_chat_call_free(&call);
    else
        c->calls[c->call_count++] = call;
    return true;
}

/* ---- tags --------------------------------------------------------------------------------------------- */

/* How many trailing bytes may begin the tag. */
static size_t held(iv_chat_rest p, const char *tag) {
    size_t n = strlen(tag) - 1;
    if (n > p.n) n = p.n;
    while (n && memcmp(p.s + p.n - n, tag, n) != 0) n--;
    return n;
}

size_t iv_chat_find_tag(iv_chat_rest p, const iv_chat_tags *list, bool last, const char **found) {
    size_t first = p.n, open = p.n;
    *found = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const char *tag = list->tags[i], *at = p.n ? memmem(p.s, p.n, tag, strlen(tag)) : NULL;
        if (at && (size_t)(at - p.s) < first) first = (size_t)(at - p.s), *found = tag;
        if (!last && p.n - held(p, tag) < open) open = p.n - held(p, tag);
    }
    return *found ? first : open;
}
