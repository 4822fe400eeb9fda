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
#include "format/json_schema.h"
#include "grammar/automaton.h"
#include "grammar/regular.h"

enum { IV_SCHEMA_COUNT_MAX = 50000 /* characters of a string, items of an array, that can be counted */ };

/* What all documents in one automaton share: the automaton, the arena of the compiler, and rules that belong to no
 * document. Rules are numbered plus one; 0: not made yet. */
typedef struct iv_schema_common {
    iv_automaton *a;
    iv_arena *arena;
    int32_t any, any_character, any_string, any_number, any_object, any_array;
    int32_t any_text, beyond_ascii; /* of a parameter, of a character (tool_calls.c) */
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

iv_status iv_schema_set_open(iv_schema_set *s, const char *name, json_t *root, iv_schema_common *common, iv_error *err);
void iv_schema_set_close(iv_schema_set *s);

/* The rule of a schema, which is compiled by iv_schema_set_compile. where: its JSON pointer, such as "#/$defs/node". */
iv_status iv_schema_rule(iv_schema_set *s, json_t *schema, const char *where, int32_t *rule, iv_error *err);
iv_status iv_schema_set_compile(iv_schema_set *s, iv_error *err);

/* Writes a schema, compiled as a set of its own, between two states. root: what its references mean. NULL schema: any
 * object. */
iv_status iv_schema_write(iv_schema_common *common, const char *name, json_t *root, json_t *schema, uint32_t from,
                          uint32_t to, iv_error *err);

/* The rule of any value, and of any object. IV_NO_RULE: the automaton has failed. */
int32_t iv_schema_any(iv_schema_set *s);
int32_t iv_schema_any_object(iv_schema_set *s);

/* ---- between the parts of the compiler ---------------------------------------------------------------- */

/* Keywords that change nothing, such as "title". */
bool iv_schema_is_label(const char *key);

/* "where/key" in the set's arena; "" when memory is out, which a later allocation will tell. */
const char *iv_schema_at(iv_schema_set *s, const char *where, const char *key);
/* The same for an element of an array. */
const char *iv_schema_at_index(iv_schema_set *s, const char *where, const char *key, size_t index);
iv_status iv_schema_no_memory(const iv_schema_set *s, iv_error *err);
/* "NAME: WHERE: TEXT" */
iv_status iv_schema_fail(const iv_schema_set *s, iv_status status, const char *where, const char *text, iv_error *err);

/* What things take, in the units of iv_automaton.effort. */
enum { IV_EFFORT_LOOK = 1, IV_EFFORT_COMPARE = 4, IV_EFFORT_VALUE = 16, IV_EFFORT_MEMBER = 64, IV_EFFORT_SCHEMA = 512 };
/* Called before something is done so many times, or about then. IV_LIMIT: all together is too much. */
iv_status iv_schema_spend(iv_schema_set *s, size_t times, size_t each, const char *where, iv_error *err);

/* The bits of a "type" keyword. */
iv_status iv_schema_kinds(const iv_schema_set *s, const json_t *type, const char *where, unsigned *out, iv_error *err);

/* Calls `write` for plain schemas, without references and combinations, that a value satisfies one of where it
 * satisfies the schema: each branch with all that stands beside it. They stay in s->made. */
typedef iv_status iv_schema_writer(iv_schema_set *s, json_t *plain, const char *where, void *user, iv_error *err);
iv_status iv_schema_each(iv_schema_set *s, json_t *schema, const char *where, iv_schema_writer *write, void *user,
                         iv_error *err);

/* What the keywords of strings say: characters as the machine takes them, from min to max. */
typedef struct iv_schema_text {
    iv_regular m;
    size_t min, max;
    bool any;        /* the machine takes any */
    char where[480]; /* heads errors */
} iv_schema_text;

iv_status iv_schema_text_read(iv_schema_set *s, json_t *schema, const char *where, iv_schema_text *out, iv_error *err);

/* A schema of plain keywords, without references and combinations. */
iv_status iv_schema_plain(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                          iv_error *err);
/* The values of enum or const that the other keywords allow, in s->made. */
iv_status iv_schema_values(iv_schema_set *s, const json_t *schema, const char *where, json_t **out, iv_error *err);
iv_status iv_schema_value(iv_schema_set *s, const json_t *v, const char *where, uint32_t from, uint32_t to,
                          iv_error *err);
/* A count of at least 0 and at most IV_SCHEMA_COUNT_MAX; *out stays where the keyword is absent. */
iv_status iv_schema_count(const iv_schema_set *s, const json_t *schema, const char *key, const char *where, size_t *out,
                          iv_error *err);

/* A new rule from *from to *to, where it ends; *slot is its number plus one. IV_NO_RULE, and *slot as it was: the
 * automaton has failed, and whoever goes on to a rule that needs this one would come back here for ever. */
int32_t iv_schema_fresh(iv_schema_set *s, int32_t *slot, uint32_t *from, uint32_t *to);
int32_t iv_schema_any_string(iv_schema_set *s);
int32_t iv_schema_any_array(iv_schema_set *s);
int32_t iv_schema_any_number(iv_schema_set *s);

#endif
