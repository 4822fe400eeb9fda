/* token_text.c: the bytes of single tokens, from the tokenizer's public functions. */
#include "serve/api/token_text.h"
#include "base/size.h"
#include "base/utf8.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The byte encoded by a character of a byte-level vocabulary: printable Latin-1 encodes itself, the other 68 bytes
 * are U+0100 and up, in order. -1: none. */
static int byte_of(uint32_t cp) {
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff)) return (int)cp;
    if (cp < 0x100 || cp >= 0x100 + 68) return -1;
    uint32_t at = cp - 0x100;
    if (at < 0x21) return (int)at;
    if (at < 0x21 + 0x22) return (int)(0x7f + at - 0x21);
    return 0xad;
}

/* "<0xE2>", the spelling of byte fallback. */
static bool byte_fallback(const char *s, size_t n, uint8_t *byte) {
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return false;
    const char *high = memchr(digits, s[3], 16), *low = memchr(digits, s[4], 16);
    if (!high || !low) return false;
    *byte = (uint8_t)((high - digits) << 4 | (low - digits));
    return true;
}

/* Decodes the vocabulary's spelling as byte-level characters. */
static bool byte_level(const char *s, size_t n, iv_buf *out) {
    iv_buf_clear(out);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t length = iv_utf8_decode((const uint8_t *)s + i, n - i, &cp);
        int byte = length ? byte_of(cp) : -1;
        if (byte < 0 || !iv_buf_putc(out, (char)byte)) return false;
        i += length;
    }
    return true;
}

static iv_status find_bytes(const iv_text_model *t, int32_t id, iv_buf *out, iv_error *err) {
    size_t n = 0;
    uint8_t byte;
    iv_buf_clear(out);
    if (!iv_buf_reserve(out, 0)) return iv_fail(err, IV_NO_MEMORY, "token text: no memory");
    const char *spelling = iv_token_string(t, id, &n);
    if (!spelling) return IV_OK;
    if (byte_fallback(spelling, n, &byte)) {
        if (!iv_buf_putc(out, (char)byte)) return iv_fail(err, IV_NO_MEMORY, "token text: no memory");
        return IV_OK;
    }
    /* Decodes it twice in a row: the second one shows the bytes inside a text (the first may lose its space). */
    int32_t twice[2] = {id, id};
    iv_text one = {0}, two = {0};
    iv_status status = iv_detokenize(t, twice, 1, true, &one, err);
    if (status == IV_OK) status = iv_detokenize(t, twice, 2, true, &two, err);
    bool ok = true, lost = status == IV_OK && memmem(two.data, two.bytes, "\xef\xbf\xbd", 3);
    if (status == IV_OK && !(lost && byte_level(spelling, n, out))) {
        size_t from = two.bytes > one.bytes ? one.bytes : 0;
        iv_buf_clear(out);
        ok = iv_buf_append(out, two.data + from, two.bytes - from);
    }
    iv_text_free(&one), iv_text_free(&two);
    return status != IV_OK || ok ? status : iv_fail(err, IV_NO_MEMORY, "token text: no memory");
}

/* ---- the cache ---------------------------------------------------------------------------------------- */

typedef struct text {
    size_t n;
    char bytes[];
} text;

struct iv_token_texts {
    size_t count;
    _Atomic(text *) texts[]; /* NULL: not computed yet; immutable afterwards */
};

iv_status iv_token_texts_open(size_t vocab, iv_token_texts **out, iv_error *err) {
    size_t bytes;
    bool fits = iv_size_mul(vocab, sizeof(text *), &bytes) && iv_size_add(bytes, sizeof **out, &bytes);
    *out = fits ? calloc(1, bytes) : NULL;
    if (!*out) return iv_fail(err, IV_NO_MEMORY, "token texts: no memory");
    (*out)->count = vocab;
    return IV_OK;
}

void iv_token_texts_close(iv_token_texts *texts) {
    for (size_t i = 0; texts && i < texts->count; i++) free(atomic_load(&texts->texts[i]));
    free(texts);
}

/* Without memory it is computed again next time. If two threads compute it, one result is dropped. */
static void keep(_Atomic(text *) *at, const iv_buf *bytes) {
    text *none = NULL, *made = malloc(sizeof *made + bytes->len);
    if (!made) return;
    made->n = bytes->len;
    memcpy(made->bytes, bytes->data, bytes->len);
    if (!atomic_compare_exchange_strong(at, &none, made)) free(made);
}

iv_status iv_token_bytes(const iv_text_model *t, iv_token_texts *texts, int32_t id, iv_buf *out, iv_error *err) {
    if (!texts || id < 0 || (size_t)id >= texts->count) return find_bytes(t, id, out, err);
    const text *kept = atomic_load(&texts->texts[id]);
    if (!kept) {
        IV_TRY(find_bytes(t, id, out, err));
        keep(&texts->texts[id], out);
        return IV_OK;
    }
    iv_buf_clear(out);
    return iv_buf_append(out, kept->bytes, kept->n) ? IV_OK : iv_fail(err, IV_NO_MEMORY, "token text: no memory");
}

bool iv_token_name(int32_t id, const iv_buf *bytes, bool as_id, iv_buf *name) {
    iv_buf_clear(name);
    if (as_id) return iv_buf_printf(name, "token_id:%d", (int)id);
    if (iv_utf8_valid((const uint8_t *)bytes->data, bytes->len, NULL))
        return iv_buf_append(name, bytes->data ? bytes->data : "", bytes->len);
    bool ok = iv_buf_puts(name, "bytes:");
    for (size_t i = 0; ok && i < bytes->len; i++)
        ok = iv_buf_printf(name, "\\x%02x", (unsigned)(unsigned char)bytes->data[i]);
    return ok;
}
