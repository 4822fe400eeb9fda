/* free_text.c: the search for several marks as a deterministic automaton: a state is the longest end of the text so far
 * that begins a mark. */
#include "grammar/free_text.h"

#include <string.h>

enum { STATES_MAX = 1 + IV_FREE_TEXT_MARKS_MAX * (IV_FREE_TEXT_MARK_BYTES_MAX - 1) };

/* A beginning of a mark, as long as `bytes`. */
typedef struct beginning {
    const char *text;
    size_t bytes;
    uint32_t state;
} beginning;

static size_t find(const beginning *all, size_t count, const char *text, size_t bytes) {
    size_t i = 0;
    while (i < count && (all[i].bytes != bytes || memcmp(all[i].text, text, bytes) != 0)) i++;
    return i;
}

/* all[0]: the empty one, at `from`. */
static size_t list_beginnings(iv_automaton *a, const iv_free_text *t, uint32_t from, beginning all[STATES_MAX]) {
    size_t count = 1;
    all[0] = (beginning){.text = "", .state = from};
    for (size_t m = 0; m < t->mark_count; m++)
        for (size_t n = 1; n < strlen(t->marks[m].text); n++)
            if (find(all, count, t->marks[m].text, n) == count)
                all[count++] = (beginning){t->marks[m].text, n, iv_automaton_state(a)};
    return count;
}

/* After a beginning and one more byte: a mark's, or that of another beginning. */
static uint32_t next(const iv_free_text *t, const beginning *all, size_t count, const beginning *at, uint8_t byte) {
    char text[IV_FREE_TEXT_MARK_BYTES_MAX + 1];
    size_t n = at->bytes + 1;
    memcpy(text, at->text, at->bytes);
    text[at->bytes] = (char)byte;
    for (size_t from = 0; from < n; from++) {
        for (size_t m = 0; m < t->mark_count; m++)
            if (strlen(t->marks[m].text) == n - from && memcmp(t->marks[m].text, text + from, n - from) == 0)
                return t->marks[m].special >= 0 ? IV_TEXT_FORBIDDEN : t->marks[m].to;
        size_t i = find(all, count, text + from, n - from);
        if (i < count) return all[i].state;
    }
    return all[0].state;
}

void iv_free_text_write(iv_automaton *a, const iv_free_text *t, uint32_t from) {
    beginning all[STATES_MAX];
    uint32_t inside = *t->not_first ? iv_automaton_state(a) : from; /* after the first byte, no byte is special */
    size_t count = list_beginnings(a, t, inside, all);
    for (size_t i = 0; i <= count && a->failed == IV_OK; i++) {
        bool first = i == count;
        if (first && inside == from) break;
        beginning at = first ? (beginning){.text = "", .state = from} : all[i];
        for (int low = 0, high; low < 256; low = high + 1) {
            bool out = first && low && strchr(t->not_first, low);
            uint32_t to = out ? IV_TEXT_FORBIDDEN : next(t, all, count, &at, (uint8_t)low);
            for (high = low; high < 255 && !first && next(t, all, count, &at, (uint8_t)(high + 1)) == to;) high++;
            if (to != IV_TEXT_FORBIDDEN) iv_automaton_bytes(a, at.state, (uint8_t)low, (uint8_t)high, to);
        }
        if (t->end != IV_TEXT_FORBIDDEN) iv_automaton_skip(a, at.state, t->end);
        for (size_t m = 0; m < t->mark_count; m++)
            if (t->marks[m].special >= 0 && t->marks[m].to != IV_TEXT_FORBIDDEN)
                iv_automaton_special(a, at.state, (iv_special)t->marks[m].special, t->marks[m].to);
    }
}

void iv_free_text_mark(iv_free_text *t, const iv_vocabulary *v, const char *text, uint32_t to) {
    int special = text ? iv_special_find(text) : -1;
    if (!text) return;
    if (special >= 0 && (!v || v->specials[special] < 0)) special = -1;
    t->marks[t->mark_count++] = (iv_text_mark){text, to, special};
}
