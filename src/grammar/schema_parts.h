/* schema_parts.h: what the files of the schema compiler share. Internal to src/grammar. */
#ifndef IV_GRAMMAR_SCHEMA_PARTS_H
#define IV_GRAMMAR_SCHEMA_PARTS_H

#include "format/json_schema.h"
#include "grammar/regular.h"
#include "grammar/schema.h"

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

/* Adds the keywords of b to a, so that a says what both say. New schemas stay in s->made. */
iv_status iv_schema_merge(iv_schema_set *s, json_t *a, json_t *b, const char *where, iv_error *err);
/* An {"allOf": [x, y]} that stays in s->made; borrowed. NULL: no memory. */
json_t *iv_schema_both(iv_schema_set *s, json_t *x, json_t *y);

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
    char place[480]; /* heads errors */
} iv_schema_text;

iv_status iv_schema_text_read(iv_schema_set *s, json_t *schema, const char *where, iv_schema_text *out, iv_error *err);

/* A schema of plain keywords, without references and combinations. */
iv_status iv_schema_plain(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                          iv_error *err);
iv_status iv_schema_string(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                           iv_error *err);
iv_status iv_schema_array(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                          iv_error *err);
iv_status iv_schema_object(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                           iv_error *err);
/* enum and const: the values that the other keywords allow. */
iv_status iv_schema_literals(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
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
