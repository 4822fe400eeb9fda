/* schema.h: JSON Schema -> rules of an automaton that writes JSON. docs/STRUCTURED.md says which keywords, and that
 * nothing else is accepted.
 *
 * What is written is compact JSON: one space may stand after ':' and ',', no other white space; properties in the
 * schema's order. Everything that the automaton matches satisfies the schema; not everything that satisfies it is
 * matched (numbers and escapes have limits, absent additionalProperties count as false beside properties). */
#ifndef IV_GRAMMAR_SCHEMA_H
#define IV_GRAMMAR_SCHEMA_H

#include "base/arena.h"
#include "format/json.h"
#include "grammar/automaton.h"

enum { IV_SCHEMA_COUNT_MAX = 50000 /* characters of a string, items of an array, that can be counted */ };

/* Rules of no document in particular, which several in one automaton share. Plus one; 0: not made yet. */
typedef struct iv_schema_common {
    int32_t any, any_character, any_string, any_number, any_object, any_array;
    int32_t any_text, beyond_ascii; /* of a parameter, of a character (tool_parameters.c) */
} iv_schema_common;

/* A document that rules are made of, one for each schema in it. */
typedef struct iv_schema_set {
    iv_automaton *a;
    iv_arena *arena;
    const char *name; /* heads errors; borrowed */
    json_t *root;     /* what "#" means; borrowed */
    json_t *made;     /* an array of schemas made from several others */
    json_t *known;    /* a schema's address, or what it says -> its rule */
    struct iv_schema_job {
        json_t *schema;
        const char *where;
        int32_t rule;
    } * jobs;
    size_t job_count, job_capacity, jobs_done;
    iv_schema_common *common; /* the automaton's; borrowed */
} iv_schema_set;

iv_status iv_schema_set_open(iv_schema_set *s, const char *name, json_t *root, iv_schema_common *common,
                             iv_automaton *a, iv_arena *arena, iv_error *err);
void iv_schema_set_close(iv_schema_set *s);

/* The rule of a schema, which is compiled by iv_schema_set_compile. where: its place, such as "#/$defs/node". */
iv_status iv_schema_rule(iv_schema_set *s, json_t *schema, const char *where, int32_t *rule, iv_error *err);
iv_status iv_schema_set_compile(iv_schema_set *s, iv_error *err);

/* The rule of any value, and of any object. IV_NO_RULE: the automaton has failed. */
int32_t iv_schema_any(iv_schema_set *s);
int32_t iv_schema_any_object(iv_schema_set *s);

/* A string as it is written in JSON, with its quotes. */
void iv_json_string_spell(iv_automaton *a, const char *text, size_t bytes, uint32_t from, uint32_t to);
/* ':' or ',' and perhaps a space. */
uint32_t iv_json_mark(iv_automaton *a, uint32_t from, char mark);
uint32_t iv_json_space(iv_automaton *a, uint32_t from); /* perhaps a space */

#endif
