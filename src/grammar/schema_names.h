/* schema_names.h: the names of an object's members under patternProperties and propertyNames: a deterministic machine
 * over characters that says which of the patterns a name matches. */
#ifndef IV_GRAMMAR_SCHEMA_NAMES_H
#define IV_GRAMMAR_SCHEMA_NAMES_H

#include "grammar/schema.h"

enum { IV_SCHEMA_PATTERNS_MAX = 24, IV_SCHEMA_NAME_STATES_MAX = 2048, IV_SCHEMA_NAME_CLASSES_MAX = 64 };

/* One character range of one state. */
typedef struct iv_name_edge {
    uint32_t to;
    iv_range range;
} iv_name_edge;

/* A set of the patterns' states. bits: the patterns that match a name ending here. */
typedef struct iv_name_state {
    uint32_t *set;
    size_t set_count;
    iv_name_edge *edges;
    size_t edge_count;
    uint32_t bits;
} iv_name_state;

/* All in the arena of the schema's set. State 0 is the start. */
typedef struct iv_schema_names {
    json_t *schemas[IV_SCHEMA_PATTERNS_MAX]; /* of patternProperties, by bit */
    size_t schema_count;
    uint32_t must;   /* bits that a name needs: propertyNames */
    uint32_t listed; /* the bit of listed names; 0: there are none */
    iv_name_state *states;
    size_t state_count;
} iv_schema_names;

/* Whether the schema has patternProperties or propertyNames. */
bool iv_schema_has_names(const json_t *schema);

/* listed: names that iv_schema_names_write leaves out. IV_UNSUPPORTED, IV_LIMIT: named with its place. */
iv_status iv_schema_names_open(iv_schema_set *s, json_t *schema, const char *where, const char *const *listed,
                               size_t count, iv_schema_names *out, iv_error *err);

/* The schema of a member with this name, in s->made: own (NULL: not listed) and those of all matching patterns. *out is
 * NULL if nothing restricts it, and false if the name is not allowed. */
iv_status iv_schema_names_member(iv_schema_set *s, const iv_schema_names *n, const char *name, json_t *own,
                                 json_t **out, iv_error *err);

/* Writes every allowed name that is not listed, with its mark and its value, from a state to another. rest: the rule of
 * names that match no pattern; IV_NO_RULE: there are none. */
iv_status iv_schema_names_write(iv_schema_set *s, const iv_schema_names *n, const char *where, int32_t rest,
                                uint32_t from, uint32_t to, iv_error *err);

#endif
