/* charset.c: the characters that Unicode 15, 15.1 and 16 added, by general category and script.
 *
 * Debian's PCRE2 10.42 knows Unicode 14; the union with these ranges is Unicode 16. They were found by querying both
 * engines for every code point; the one change that is not an addition is U+1171E (Mn before, Mc since). With a newer
 * PCRE2 the union has no effect. */
#include "text/charset.h"

#include <stdbool.h>
#include <string.h>

typedef struct range {
    uint32_t first, last;
    char category[3];
} range;

/* clang-format off */
static const range added_since_14[] = {
    {0x00897, 0x00897, "Mn"},
    {0x00cf3, 0x00cf3, "Mc"},
    {0x00ece, 0x00ece, "Mn"},
    {0x01b4e, 0x01b4f, "Po"},
    {0x01b7f, 0x01b7f, "Po"},
    {0x01c89, 0x01c89, "Lu"},
    {0x01c8a, 0x01c8a, "Ll"},
    {0x02427, 0x02429, "So"},
    {0x02ffc, 0x02fff, "So"},
    {0x031e4, 0x031e5, "So"},
    {0x031ef, 0x031ef, "So"},
    {0x0a7cb, 0x0a7cc, "Lu"},
    {0x0a7cd, 0x0a7cd, "Ll"},
    {0x0a7da, 0x0a7da, "Lu"},
    {0x0a7db, 0x0a7db, "Ll"},
    {0x0a7dc, 0x0a7dc, "Lu"},
    {0x105c0, 0x105f3, "Lo"},
    {0x10d40, 0x10d49, "Nd"},
    {0x10d4a, 0x10d4d, "Lo"},
    {0x10d4e, 0x10d4e, "Lm"},
    {0x10d4f, 0x10d4f, "Lo"},
    {0x10d50, 0x10d65, "Lu"},
    {0x10d69, 0x10d6d, "Mn"},
    {0x10d6e, 0x10d6e, "Pd"},
    {0x10d6f, 0x10d6f, "Lm"},
    {0x10d70, 0x10d85, "Ll"},
    {0x10d8e, 0x10d8f, "Sm"},
    {0x10ec2, 0x10ec4, "Lo"},
    {0x10efc, 0x10eff, "Mn"},
    {0x1123f, 0x11240, "Lo"},
    {0x11241, 0x11241, "Mn"},
    {0x11380, 0x11389, "Lo"},
    {0x1138b, 0x1138b, "Lo"},
    {0x1138e, 0x1138e, "Lo"},
    {0x11390, 0x113b5, "Lo"},
    {0x113b7, 0x113b7, "Lo"},
    {0x113b8, 0x113ba, "Mc"},
    {0x113bb, 0x113c0, "Mn"},
    {0x113c2, 0x113c2, "Mc"},
    {0x113c5, 0x113c5, "Mc"},
    {0x113c7, 0x113ca, "Mc"},
    {0x113cc, 0x113cd, "Mc"},
    {0x113ce, 0x113ce, "Mn"},
    {0x113cf, 0x113cf, "Mc"},
    {0x113d0, 0x113d0, "Mn"},
    {0x113d1, 0x113d1, "Lo"},
    {0x113d2, 0x113d2, "Mn"},
    {0x113d3, 0x113d3, "Lo"},
    {0x113d4, 0x113d5, "Po"},
    {0x113d7, 0x113d8, "Po"},
    {0x113e1, 0x113e2, "Mn"},
    {0x116d0, 0x116e3, "Nd"},
    {0x1171e, 0x1171e, "Mc"},
    {0x11b00, 0x11b09, "Po"},
    {0x11bc0, 0x11be0, "Lo"},
    {0x11be1, 0x11be1, "Po"},
    {0x11bf0, 0x11bf9, "Nd"},
    {0x11f00, 0x11f01, "Mn"},
    {0x11f02, 0x11f02, "Lo"},
    {0x11f03, 0x11f03, "Mc"},
    {0x11f04, 0x11f10, "Lo"},
    {0x11f12, 0x11f33, "Lo"},
    {0x11f34, 0x11f35, "Mc"},
    {0x11f36, 0x11f3a, "Mn"},
    {0x11f3e, 0x11f3f, "Mc"},
    {0x11f40, 0x11f40, "Mn"},
    {0x11f41, 0x11f41, "Mc"},
    {0x11f42, 0x11f42, "Mn"},
    {0x11f43, 0x11f4f, "Po"},
    {0x11f50, 0x11f59, "Nd"},
    {0x11f5a, 0x11f5a, "Mn"},
    {0x1342f, 0x1342f, "Lo"},
    {0x13439, 0x1343f, "Cf"},
    {0x13440, 0x13440, "Mn"},
    {0x13441, 0x13446, "Lo"},
    {0x13447, 0x13455, "Mn"},
    {0x13460, 0x143fa, "Lo"},
    {0x16100, 0x1611d, "Lo"},
    {0x1611e, 0x16129, "Mn"},
    {0x1612a, 0x1612c, "Mc"},
    {0x1612d, 0x1612f, "Mn"},
    {0x16130, 0x16139, "Nd"},
    {0x16d40, 0x16d42, "Lm"},
    {0x16d43, 0x16d6a, "Lo"},
    {0x16d6b, 0x16d6c, "Lm"},
    {0x16d6d, 0x16d6f, "Po"},
    {0x16d70, 0x16d79, "Nd"},
    {0x18cff, 0x18cff, "Lo"},
    {0x1b132, 0x1b132, "Lo"},
    {0x1b155, 0x1b155, "Lo"},
    {0x1cc00, 0x1ccef, "So"},
    {0x1ccf0, 0x1ccf9, "Nd"},
    {0x1cd00, 0x1ceb3, "So"},
    {0x1d2c0, 0x1d2d3, "No"},
    {0x1df25, 0x1df2a, "Ll"},
    {0x1e030, 0x1e06d, "Lm"},
    {0x1e08f, 0x1e08f, "Mn"},
    {0x1e4d0, 0x1e4ea, "Lo"},
    {0x1e4eb, 0x1e4eb, "Lm"},
    {0x1e4ec, 0x1e4ef, "Mn"},
    {0x1e4f0, 0x1e4f9, "Nd"},
    {0x1e5d0, 0x1e5ed, "Lo"},
    {0x1e5ee, 0x1e5ef, "Mn"},
    {0x1e5f0, 0x1e5f0, "Lo"},
    {0x1e5f1, 0x1e5fa, "Nd"},
    {0x1e5ff, 0x1e5ff, "Po"},
    {0x1f6dc, 0x1f6dc, "So"},
    {0x1f774, 0x1f776, "So"},
    {0x1f77b, 0x1f77f, "So"},
    {0x1f7d9, 0x1f7d9, "So"},
    {0x1f8b2, 0x1f8bb, "So"},
    {0x1f8c0, 0x1f8c1, "So"},
    {0x1fa75, 0x1fa77, "So"},
    {0x1fa87, 0x1fa89, "So"},
    {0x1fa8f, 0x1fa8f, "So"},
    {0x1faad, 0x1faaf, "So"},
    {0x1fabb, 0x1fabf, "So"},
    {0x1fac6, 0x1fac6, "So"},
    {0x1face, 0x1facf, "So"},
    {0x1fada, 0x1fadc, "So"},
    {0x1fadf, 0x1fadf, "So"},
    {0x1fae8, 0x1fae9, "So"},
    {0x1faf7, 0x1faf8, "So"},
    {0x1fbcb, 0x1fbef, "So"},
    {0x2b739, 0x2b739, "Lo"},
    {0x2ebf0, 0x2ee5d, "Lo"},
    {0x31350, 0x323af, "Lo"},};
/* clang-format on */

typedef struct script {
    const char *name, *added; /* for the inside of a class */
} script;

static const script scripts[] = {
    {"Han", "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"Hiragana", "\\x{1b132}"},
    {"Katakana", "\\x{1b155}"},
    {"Hangul", ""},
    {"Thai", ""},
    {"Greek", ""},
    {"Latin", "\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{1df25}-\\x{1df2a}"},
    {"Cyrillic", "\\x{1c89}-\\x{1c8a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"},
    {"Arabic", "\\x{897}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}"},
};

static bool append_range(iv_buf *out, uint32_t first, uint32_t last) {
    if (first == last) return iv_buf_printf(out, "\\x{%x}", first);
    return iv_buf_printf(out, "\\x{%x}-\\x{%x}", first, last);
}

/* Adjacent ranges of one major category (say Lu and Ll) are merged: classes are searched from left to right. */
static bool append_added(iv_buf *out, const char *name, size_t n) {
    uint32_t first = 1, last = 0;
    for (size_t i = 0; i < sizeof added_since_14 / sizeof *added_since_14; i++) {
        const range *r = &added_since_14[i];
        if (strncmp(r->category, name, n) != 0) continue;
        if (first <= last && r->first == last + 1) {
            last = r->last;
            continue;
        }
        if (first <= last && !append_range(out, first, last)) return false;
        first = r->first, last = r->last;
    }
    return first > last || append_range(out, first, last);
}

static bool is_category(const char *name, size_t n) {
    static const char *const known[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
                                        "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
                                        "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == n && memcmp(known[i], name, n) == 0) return true;
    return false;
}

bool iv_charset_property(iv_buf *out, const char *name, size_t n, bool *memory) {
    *memory = false;
    if (is_category(name, n)) {
        *memory = !iv_buf_printf(out, "\\p{%.*s}", (int)n, name) || !append_added(out, name, n);
        return !*memory;
    }
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        if (strlen(scripts[i].name) != n || memcmp(scripts[i].name, name, n) != 0) continue;
        /* sc: selects the script itself; a bare name would include script extensions. */
        *memory = !iv_buf_printf(out, "\\p{sc:%s}%s", scripts[i].name, scripts[i].added);
        return !*memory;
    }
    return false;
}

bool iv_charset_word(iv_buf *out) {
    static const char *const parts[] = {"L", "M", "Nd", "Nl", "Pc"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool memory;
        if (!iv_charset_property(out, parts[i], strlen(parts[i]), &memory)) return false;
    }
    return iv_buf_puts(out, IV_CHARSET_CIRCLED);
}

bool iv_charset_is_space(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

/* ---- the byte-level alphabet ---- */

/* The bytes that are not mapped to the same code point: 0..20, 7f..a0, ad (hex). */
static bool is_moved(unsigned byte) { return byte <= 0x20 || (byte >= 0x7f && byte <= 0xa0) || byte == 0xad; }

size_t iv_byte_level_encode(uint8_t byte, char out[2]) {
    unsigned b = byte;
    unsigned cp = b <= 0x20 ? 0x100 + b : b == 0xad ? 0x143 : is_moved(b) ? 0x121 + (b - 0x7f) : b;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xc0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3f));
    return 2;
}

int iv_byte_level_decode(uint32_t cp) {
    if (cp <= 0xff) return is_moved(cp) ? -1 : (int)cp;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}
