/* xml.h: checks that a text is well-formed XML, as far as pictures need: one root, elements closed in order, quoted
 * attributes given once, known entities, no stray < or &. Comments, CDATA and declarations are not expected. */
#ifndef IV_TESTS_XML_H
#define IV_TESTS_XML_H

#include "support.h"

enum { XML_DEPTH_MAX = 32, XML_ATTRIBUTES_MAX = 32 };

static inline size_t xml_name(const char *s) {
    size_t n = strcspn(s, " \n\t/>=<&\"'");
    return s[0] >= '0' && s[0] <= '9' ? 0 : n;
}

/* Skips characters up to the first of `end`; NULL if one is not allowed. */
static inline const char *xml_characters(const char *s, char end) {
    static const char *const entities[] = {"&lt;", "&gt;", "&amp;", "&quot;"};
    for (; *s && *s != end; s++) {
        bool known = *s != '&';
        for (size_t i = 0; i < 4; i++) known |= strncmp(s, entities[i], strlen(entities[i])) == 0;
        if (!known || *s == '<' || ((unsigned char)*s < 0x20 && *s != '\n' && *s != '\t')) return NULL;
    }
    return *s == end ? s : NULL;
}

/* Skips the attributes of a tag up to > or />; NULL if they are malformed. */
static inline const char *xml_attributes(const char *s) {
    const char *names[XML_ATTRIBUTES_MAX];
    size_t lengths[XML_ATTRIBUTES_MAX], count = 0;
    for (;;) {
        size_t blank = strspn(s, " \n\t");
        s += blank;
        if (*s == '>' || *s == '/') return s;
        size_t n = xml_name(s);
        if (!n || !blank || count == XML_ATTRIBUTES_MAX || s[n] != '=' || s[n + 1] != '"') return NULL;
        for (size_t i = 0; i < count; i++)
            if (lengths[i] == n && memcmp(names[i], s, n) == 0) return NULL;
        names[count] = s, lengths[count++] = n;
        s = xml_characters(s + n + 2, '"');
        if (!s++) return NULL;
    }
}

/* The first error, or NULL for a well-formed text. */
static inline const char *xml_broken_at(const char *s) {
    const char *open[XML_DEPTH_MAX];
    size_t depth = 0, roots = 0;
    while (*s) {
        if (*s != '<') {
            const char *next = xml_characters(s, '<');
            if (!next && depth == 0 && s[strspn(s, " \n\t")] == 0) break;
            if (!next || depth == 0) return s;
            s = next;
        }
        if (s[1] == '/') {
            size_t n = xml_name(s + 2);
            if (!n || depth == 0 || xml_name(open[depth - 1]) != n || memcmp(open[depth - 1], s + 2, n) != 0) return s;
            if (s[2 + n] != '>') return s;
            depth--, s += 3 + n;
            continue;
        }
        size_t n = xml_name(s + 1);
        const char *end = n ? xml_attributes(s + 1 + n) : NULL;
        if (!end || (*end == '/' && end[1] != '>') || depth == XML_DEPTH_MAX) return s;
        if (depth == 0 && roots++) return s;
        if (*end == '>') open[depth++] = s + 1;
        s = end + (*end == '/' ? 2 : 1);
    }
    return depth == 0 && roots == 1 ? NULL : s;
}

#endif
