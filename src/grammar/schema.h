/* schema.h: JSON Schema as rules of an automaton that writes JSON. docs/STRUCTURED.md lists the supported keywords;
 * everything else is refused. The output is compact JSON: at most one space after ':' and ',', no other white space;
 * properties in the schema's order. Every match satisfies the schema; the converse does not hold (numbers and escapes
 * are limited, absent additionalProperties counts as false next to properties). */
#ifndef IV_GRAMMAR_SCHEMA_H
#define IV_GRAMMAR_SCHEMA_H

#include "base/arena.h"
#include "format/json.h"
#include "format/json_schema.h"
#include "format/schema_words.h"
#include "grammar/automaton.h"
#include "grammar/regular.h"

enum { IV_SCHEMA_COUNT_MAX = 50000 /* most characters of a string or items of an array that are counted */ };

/* What all documents in one automaton share: the automaton, the arena of the compiler, and rules that belong to no
 * document. Rules are numbered plus one; 0: not made yet. */
typedef struct iv_schema_common {
    iv_automaton *a;
    iv_arena *arena;
    int32_t any, any_character, any_string, any_number, any_object, any_array;
    int32_t any_text, beyond_ascii; /* for tool_calls.c: a parameter, a character */
} iv_schema_common;

/* A document and its rules, one per schema in it. */
typedef struct iv_schema_set {
    iv_automaton *a;
    iv_arena *arena;
    const char *name; /* prefix of errors; borrowed */
    json_t *root;     /* the target of "#"; borrowed */
    int inner_base;   /* iv_json_has_inner_base(root): 1 true, -1 false, 0 not known yet */
    json_t *made;     /* schemas built from several others */
    json_t *known;    /* from a schema's address or text to its rule */
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

/* Compiles a schema as its own set and adds its paths between two states. root: the target of references. NULL schema:
 * any object. */
iv_status iv_schema_write(iv_schema_common *common, const char *name, json_t *root, json_t *schema, uint32_t from,
                          uint32_t to, iv_error *err);

/* The rule of any value, and of any object. IV_NO_RULE: the automaton has failed. */
int32_t iv_schema_any(iv_schema_set *s);
int32_t iv_schema_any_object(iv_schema_set *s);

/* ---- between the parts of the compiler ----------------------------------------------------------------- */

/* "where/key" in the set's arena; "" without memory, which a later allocation will report. */
const char *iv_schema_at(iv_schema_set *s, const char *where, const char *key);
/* The same for an element of an array. */
const char *iv_schema_at_index(iv_schema_set *s, const char *where, const char *key, size_t index);
iv_status iv_schema_no_memory(const iv_schema_set *s, iv_error *err);
/* "NAME: WHERE: TEXT" */
iv_status iv_schema_fail(const iv_schema_set *s, iv_status status, const char *where, const char *text, iv_error *err);

/* Costs in units of iv_automaton.effort. */
enum { IV_EFFORT_LOOK = 1, IV_EFFORT_COMPARE = 4, IV_EFFORT_VALUE = 16, IV_EFFORT_MEMBER = 64, IV_EFFORT_SCHEMA = 512 };
/* Charges the cost of `times` operations before they are done. IV_LIMIT: the total is too much. */
iv_status iv_schema_charge(iv_schema_set *s, size_t times, size_t each, const char *where, iv_error *err);

/* The bits of a "type" keyword. */
iv_status iv_schema_kinds(const iv_schema_set *s, const json_t *type, const char *where, unsigned *out, iv_error *err);

/* Calls `write` for the plain schemas (without references and combinations) whose union is the schema: one per branch,
 * merged with the keywords next to it. They stay in s->made. */
typedef iv_status iv_schema_writer(iv_schema_set *s, json_t *plain, const char *where, void *user, iv_error *err);
iv_status iv_schema_each(iv_schema_set *s, json_t *schema, const char *where, iv_schema_writer *write, void *user,
                         iv_error *err);

enum { IV_SCHEMA_REFERENCES_MAX = 64 /* in a row, with nothing in between */ };

/* The target of a "$ref" and its place. */
iv_status iv_schema_resolve(iv_schema_set *s, const json_t *ref, const char *where, json_t **out,
                            const char **out_where, iv_error *err);
/* IV_UNSUPPORTED: a keyword that restricts values, by name. */
iv_status iv_schema_check_keywords(const iv_schema_set *s, json_t *schema, const char *where, iv_error *err);

/* A schema taken apart. */
typedef struct iv_schema_parts {
    json_t *plain;   /* all plain keywords, merged */
    json_t *choices; /* anyOf and oneOf: {"list", "at", "key"} */
    bool nothing;    /* one of the schemas is false */
} iv_schema_parts;

/* Follows references and merges allOf. Close it also after a failure. s->made keeps `plain`, because rules are found by
 * addresses in it. */
iv_status iv_schema_parts_open(iv_schema_set *s, json_t *schema, const char *where, iv_schema_parts *out,
                               iv_error *err);
void iv_schema_parts_close(iv_schema_parts *p);

/* The branches of a oneOf, each without what other branches allow, too; those of which nothing is left are absent.
 * plain: the keywords next to it; alone: it has no other choices next to it. In s->made. IV_UNSUPPORTED: two branches
 * may hold at once. */
iv_status iv_schema_exclusive(iv_schema_set *s, json_t *plain, bool alone, json_t *list, const char *where,
                              json_t **out, iv_error *err);

/* The keywords of strings: texts of the machine with min to max characters. */
typedef struct iv_schema_text {
    iv_regular m;
    size_t min, max;
    bool any;        /* the machine takes any text */
    char where[480]; /* prefix of errors */
} iv_schema_text;

iv_status iv_schema_text_read(iv_schema_set *s, json_t *schema, const char *where, iv_schema_text *out, iv_error *err);

iv_status iv_schema_string(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                           iv_error *err);

/* A schema of plain keywords, without references and combinations. */
iv_status iv_schema_plain(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                          iv_error *err);
/* The values of enum or const that the other keywords allow, in s->made. */
iv_status iv_schema_values(iv_schema_set *s, const json_t *schema, const char *where, json_t **out, iv_error *err);
iv_status iv_schema_value(iv_schema_set *s, const json_t *v, const char *where, uint32_t from, uint32_t to,
                          iv_error *err);
/* A count from 0 to IV_SCHEMA_COUNT_MAX; *out is unchanged if the keyword is absent. */
iv_status iv_schema_count(const iv_schema_set *s, const json_t *schema, const char *key, const char *where, size_t *out,
                          iv_error *err);

/* A new rule from *from to its end state *to; *slot is its number plus one. On failure IV_NO_RULE, and *slot is
 * unchanged: callers must then stop, or rules that need each other would recurse forever. */
int32_t iv_schema_new_rule(iv_schema_set *s, int32_t *slot, uint32_t *from, uint32_t *to);
int32_t iv_schema_any_string(iv_schema_set *s);
int32_t iv_schema_any_number(iv_schema_set *s);

#endif
