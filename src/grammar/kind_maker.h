/* kind_maker.h: what the files that make a kind's automaton share. */
#ifndef IV_GRAMMAR_KIND_MAKER_H
#define IV_GRAMMAR_KIND_MAKER_H

#include "base/arena.h"
#include "grammar/schema.h"
#include "grammar/vocabulary.h"

/* Where a tool's arguments begin, and what they are called. */
typedef struct iv_tool_place {
    uint32_t state;
    const char *name;
} iv_tool_place;

typedef struct iv_kind_maker {
    iv_arena *arena;
    iv_automaton *a;
    const iv_vocabulary *vocabulary; /* NULL: without special tokens */
    iv_schema_common common;
    iv_tool_place *tools; /* [tool_count] */
    size_t tool_count;
    uint32_t format; /* where JSON begins that may stand instead of calls; 0: none may */
} iv_kind_maker;

/* kinds.c. root: what references of the schema are looked up in. */
iv_status iv_kind_write_schema(iv_kind_maker *m, const char *name, json_t *root, json_t *schema, uint32_t from,
                               uint32_t to, iv_error *err);
iv_status iv_kind_write_object(iv_kind_maker *m, uint32_t from, uint32_t to, iv_error *err);

#endif
