/* added.c: added tokens in a sorted array: each byte of the text narrows the range of matching entries. */
#include "text/added.h"
#include "base/utf8.h"
#include "text/charset.h"
#include "text/normalize.h"

#include <stdlib.h>
#include <string.h>

static int compare_text(iv_str a, iv_str b) {
    int c = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int compare_entries(const void *a, const void *b) {
    return compare_text(((const iv_added_entry *)a)->text, ((const iv_added_entry *)b)->text);
}

/* \w of the reference's other regex engine: joiners are word characters, fractions are not. */
static iv_status open_word(iv_regex **out, iv_error *err) {
    iv_buf p = {0};
    bool ok = iv_buf_puts(&p, "\\A[") && iv_charset_word(&p) && iv_buf_puts(&p, "\\x{200c}\\x{200d}]");
    iv_status status = ok ? iv_regex_open_raw("added_tokens", p.data, out, err) : iv_text_full(&p, 0, err);
    iv_buf_free(&p);
    return status;
}

iv_status iv_added_set_open(const char *name, iv_added_entry *entries, size_t count, iv_added_set *out, iv_error *err) {
    *out = (iv_added_set){.entries = entries, .count = count};
    bool single = false;
    iv_status status = IV_OK;
    if (count) qsort(entries, count, sizeof *entries, compare_entries);
    for (size_t i = 0; i < count && status == IV_OK; i++) {
        iv_str text = entries[i].text;
        single |= entries[i].token->single_word;
        if (text.len == 0)
            status = iv_fail(err, IV_UNSUPPORTED, "%s: added token \"%.100s\": it is empty after normalization", name,
                             entries[i].token->content.data);
        else if (i && compare_text(entries[i - 1].text, text) == 0)
            status = iv_fail(err, IV_FORMAT, "%s: added tokens \"%.100s\" and \"%.100s\" have the same text", name,
                             entries[i - 1].token->content.data, entries[i].token->content.data);
        else
            out->first_byte[(uint8_t)text.data[0] + 1]++;
    }
    for (size_t b = 0; b < 256; b++) out->first_byte[b + 1] += out->first_byte[b];
    if (status == IV_OK && single) status = open_word(&out->word, err);
    if (status != IV_OK) iv_added_set_close(out);
    return status;
}

void iv_added_set_close(iv_added_set *set) {
    free(set->entries);
    iv_regex_close(set->word);
    *set = (iv_added_set){0};
}

/* The longest entry that starts at s; NULL if none does. */
static const iv_added_entry *longest_at(const iv_added_set *set, const char *s, size_t n) {
    size_t low = set->first_byte[(uint8_t)*s], high = set->first_byte[(uint8_t)*s + 1];
    const iv_added_entry *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        /* The shortest entry of the range comes first; all entries agree with s on depth bytes. */
        if (set->entries[low].text.len == depth) best = &set->entries[low++];
        if (depth == n) break;
        uint8_t want = (uint8_t)s[depth];
        size_t a = low, b = high;
        while (a < b) {
            size_t mid = (a + b) / 2;
            if ((uint8_t)set->entries[mid].text.data[depth] < want)
                a = mid + 1;
            else
                b = mid;
        }
        low = a, b = high;
        while (a < b) {
            size_t mid = (a + b) / 2;
            if ((uint8_t)set->entries[mid].text.data[depth] <= want)
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
    }
    return best;
}

static size_t previous_character(const char *text, size_t i) {
    do i--;
    while (i > 0 && ((uint8_t)text[i] & 0xc0) == 0x80);
    return i;
}

static iv_status is_word(const iv_added_set *set, iv_regex_work *work, const char *s, size_t n, bool *yes,
                         iv_error *err) {
    iv_regex_scan scan = {0};
    return iv_regex_next(set->word, work, s, iv_utf8_length((const uint8_t *)s, n), &scan, yes, err);
}

/* A single_word token matches only between characters that are not word characters. */
static iv_status stands_alone(const iv_added_set *set, iv_regex_work *work, const char *text, size_t n, size_t start,
                              size_t end, bool *yes, iv_error *err) {
    bool word = false;
    if (start > 0) {
        size_t before = previous_character(text, start);
        IV_TRY(is_word(set, work, text + before, start - before, &word, err));
    }
    if (!word && end < n) IV_TRY(is_word(set, work, text + end, n - end, &word, err));
    *yes = !word;
    return IV_OK;
}

/* The begin of the white space that ends at start, not before least. */
static size_t space_before(const char *text, size_t least, size_t start) {
    while (start > least) {
        uint32_t cp;
        size_t before = previous_character(text, start);
        iv_utf8_decode((const uint8_t *)text + before, start - before, &cp);
        if (!iv_charset_is_space(cp)) break;
        start = before;
    }
    return start;
}

static size_t space_after(const char *text, size_t end, size_t n) {
    while (end < n) {
        uint32_t cp;
        size_t len = iv_utf8_decode((const uint8_t *)text + end, n - end, &cp);
        if (!iv_charset_is_space(cp)) break;
        end += len;
    }
    return end;
}

/* Finds the next token from walk->from on and stores it in walk->held; NULL if none is left. */
static iv_status find_token(const iv_added_set *set, iv_regex_work *work, const char *text, size_t n, bool special,
                            iv_added_walk *walk, iv_error *err) {
    walk->held = NULL;
    while (set->count && walk->from < n) {
        const iv_added_entry *entry = longest_at(set, text + walk->from, n - walk->from);
        if (!entry) {
            walk->from++;
            continue;
        }
        const iv_added_token *token = entry->token;
        size_t start = walk->from, end = start + entry->text.len;
        bool alone = true;
        walk->from = end;
        if (!special && token->special) continue;
        if (token->single_word) IV_TRY(stands_alone(set, work, text, n, start, end, &alone, err));
        if (!alone) continue;
        /* White space consumed by an earlier rstrip token is not consumed again. */
        if (token->lstrip) start = walk->done < start ? space_before(text, walk->done, start) : walk->done;
        if (token->rstrip) {
            /* The end of the current run of space is cached: tokens made of space are not quadratic. */
            if (end >= walk->space_end) walk->space_end = space_after(text, end, n);
            end = walk->space_end;
        }
        /* Only white space that an earlier token consumed: not a token, but the next part starts after it. */
        if (start >= end) continue;
        walk->held = token, walk->held_start = start, walk->held_end = end;
        return IV_OK;
    }
    return IV_OK;
}

static void give_held(iv_added_walk *walk) {
    walk->start = walk->held_start, walk->end = walk->held_end, walk->token = walk->held;
    walk->done = walk->held_end;
    walk->held = NULL;
}

iv_status iv_added_next(const iv_added_set *set, iv_regex_work *work, const char *text, size_t n, bool special,
                        iv_added_walk *walk, bool *more, iv_error *err) {
    *more = true;
    if (walk->held) {
        give_held(walk);
        return IV_OK;
    }
    IV_TRY(find_token(set, work, text, n, special, walk, err));
    size_t upto = walk->held ? walk->held_start : n;
    if (walk->done < upto) {
        walk->start = walk->done, walk->end = upto, walk->token = NULL;
        walk->done = upto;
    } else if (walk->held) {
        give_held(walk);
    } else {
        *more = false;
    }
    return IV_OK;
}
