/* schema_names.c: the patterns' machines run together, a set of their states at a time. */
#include "grammar/schema_names.h"
#include "base/size.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAST_CHARACTER = 0x10ffff };

typedef struct builder {
    iv_schema_set *s;
    const char *where;
    iv_schema_names *out;
    iv_regular machines[IV_SCHEMA_PATTERNS_MAX];
    size_t machine_count;
    uint32_t firsts[IV_SCHEMA_PATTERNS_MAX + 1]; /* of the machines' states among all */
    uint8_t *marks;                              /* [all states]: in the current set */
    uint32_t *current;                           /* [all states] */
    size_t current_count;
    iv_error *err;
} builder;

bool iv_schema_has_names(const json_t *schema) {
    return json_object_get(schema, "patternProperties") || json_object_get(schema, "propertyNames");
}

/* ---- patterns ------------------------------------------------------------------------------------------ */

static iv_status add_pattern(builder *b, const char *key, const char *pattern, bool whole, uint32_t *bit) {
    char where[480];
    iv_regular *m = &b->machines[b->machine_count];
    if (b->machine_count == IV_SCHEMA_PATTERNS_MAX)
        return iv_fail(b->err, IV_LIMIT, "%s: %.300s: more than %d patterns of names", b->s->name, b->where,
                       IV_SCHEMA_PATTERNS_MAX - 1);
    snprintf(where, sizeof where, "%.100s: %.300s/%s", b->s->name, b->where, key);
    IV_TRY(iv_regular_parse(where, pattern, strlen(pattern), whole, b->s->arena, m, b->err));
    IV_TRY(iv_schema_charge(b->s, m->bytes_read, IV_EFFORT_COMPARE, b->where, b->err));
    b->firsts[b->machine_count + 1] = b->firsts[b->machine_count] + (uint32_t)m->state_count;
    *bit = (uint32_t)1 << b->machine_count++;
    return IV_OK;
}

/* An expression for exactly these names. */
static iv_status add_list(builder *b, const char *key, const char *const *names, size_t count, uint32_t *bit) {
    size_t bytes = 8, n = 0;
    for (size_t i = 0; i < count; i++) bytes += 4 * strlen(names[i]) + 1;
    IV_TRY(iv_schema_charge(b->s, bytes, IV_EFFORT_LOOK, b->where, b->err));
    char *text = iv_arena_alloc(b->s->arena, bytes, 1);
    if (!text) return iv_schema_no_memory(b->s, b->err);
    for (size_t i = 0; i < count; i++) {
        if (i) text[n++] = '|';
        for (const char *p = names[i]; *p; p++) {
            unsigned char c = (unsigned char)*p;
            if (c >= 0x80)
                text[n++] = *p;
            else
                n += (size_t)snprintf(text + n, 5, "\\x%02x", c);
        }
    }
    text[n] = 0;
    return add_pattern(b, key, text, true, bit);
}

static iv_status add_enum(builder *b, const json_t *list) {
    size_t count = json_array_size(list), known = 0;
    const char **names = IV_ARENA_NEW(b->s->arena, count + 1, const char *);
    uint32_t bit;
    if (!names) return iv_schema_no_memory(b->s, b->err);
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text) names[known++] = text;
    }
    if (known == 0) return add_pattern(b, "propertyNames", "[^\\s\\S]", true, &bit);
    return add_list(b, "propertyNames", names, known, &bit);
}

static iv_status add_lengths(builder *b, const json_t *schema) {
    size_t min = 0, max = SIZE_MAX;
    char text[64];
    uint32_t bit;
    if (!json_object_get(schema, "minLength") && !json_object_get(schema, "maxLength")) return IV_OK;
    IV_TRY(iv_schema_count(b->s, schema, "minLength", b->where, &min, b->err));
    IV_TRY(iv_schema_count(b->s, schema, "maxLength", b->where, &max, b->err));
    if (max == SIZE_MAX)
        snprintf(text, sizeof text, "[\\s\\S]{%zu,}", min);
    else if (min > max)
        snprintf(text, sizeof text, "[^\\s\\S]");
    else
        snprintf(text, sizeof text, "[\\s\\S]{%zu,%zu}", min, max);
    return add_pattern(b, "propertyNames", text, true, &bit);
}

/* Every pattern added here is one that a name must match. */
static iv_status add_property_names(builder *b, const json_t *schema) {
    static const char *const known[] = {"pattern", "enum", "minLength", "maxLength"};
    const char *key, *type, *pattern = json_string_value(json_object_get(schema, "pattern"));
    uint32_t bit, before = ((uint32_t)1 << b->machine_count) - 1;
    json_t *value;
    if (!schema || json_is_true(schema)) return IV_OK;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        bool fine = iv_schema_is_label(key);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) fine |= strcmp(key, known[i]) == 0;
        type = strcmp(key, "type") == 0 ? json_string_value(value) : NULL;
        if (!fine && !(type && strcmp(type, "string") == 0))
            return iv_fail(b->err, IV_UNSUPPORTED, "%s: %.300s/propertyNames/%.100s: this keyword is not supported",
                           b->s->name, b->where, key);
    }
    if (pattern) IV_TRY(add_pattern(b, "propertyNames", pattern, false, &bit));
    if (json_is_false(schema)) IV_TRY(add_enum(b, NULL));
    if (json_is_array(json_object_get(schema, "enum"))) IV_TRY(add_enum(b, json_object_get(schema, "enum")));
    IV_TRY(add_lengths(b, schema));
    b->out->must = (((uint32_t)1 << b->machine_count) - 1) & ~before;
    return IV_OK;
}

static iv_status add_patterns(builder *b, json_t *schema, const char *const *listed, size_t count) {
    json_t *patterns = json_object_get(schema, "patternProperties"), *value;
    const char *key;
    uint32_t bit;
    if (patterns && !json_is_object(patterns))
        return iv_schema_fail(b->s, IV_INVALID, b->where, "patternProperties: wanted an object", b->err);
    json_object_foreach(patterns, key, value) {
        IV_TRY(add_pattern(b, "patternProperties", key, false, &bit));
        b->out->schemas[b->out->schema_count++] = value;
    }
    IV_TRY(add_property_names(b, json_object_get(schema, "propertyNames")));
    return count ? add_list(b, "properties", listed, count, &b->out->listed) : IV_OK;
}

/* ---- sets of states ------------------------------------------------------------------------------------ */

static const iv_regular_edge *edges_of(const builder *b, uint32_t state, size_t *count, uint32_t *first) {
    size_t k = 0;
    while (state >= b->firsts[k + 1]) k++;
    const iv_regular *m = &b->machines[k];
    *first = b->firsts[k];
    uint32_t own = state - *first;
    *count = m->firsts[own + 1] - m->firsts[own];
    return m->edges + m->firsts[own];
}

/* Adds a state and all that follow without a character. */
static void enter(builder *b, uint32_t state) {
    size_t done = b->current_count;
    if (b->marks[state]) return;
    b->marks[state] = 1, b->current[b->current_count++] = state;
    for (; done < b->current_count; done++) {
        size_t count;
        uint32_t first;
        const iv_regular_edge *edges = edges_of(b, b->current[done], &count, &first);
        for (size_t i = 0; i < count; i++) {
            uint32_t to = first + edges[i].to;
            if (edges[i].set || b->marks[to]) continue;
            b->marks[to] = 1, b->current[b->current_count++] = to;
        }
    }
}

static int by_value(const void *x, const void *y) {
    uint32_t a, b;
    memcpy(&a, x, sizeof a), memcpy(&b, y, sizeof b);
    return (a > b) - (a < b);
}

static iv_status grow_states(builder *b) {
    iv_schema_names *n = b->out;
    if (n->state_count == IV_SCHEMA_NAME_STATES_MAX)
        return iv_fail(b->err, IV_LIMIT, "%s: %.300s: the patterns of names need more than %d states", b->s->name,
                       b->where, IV_SCHEMA_NAME_STATES_MAX);
    if (n->state_count & (n->state_count - 1)) return IV_OK; /* the capacity is the next power of two */
    iv_name_state *more = IV_ARENA_NEW(b->s->arena, n->state_count ? 2 * n->state_count : 1, iv_name_state);
    if (!more) return iv_schema_no_memory(b->s, b->err);
    if (n->state_count) memcpy(more, n->states, n->state_count * sizeof *more);
    n->states = more;
    return IV_OK;
}

/* The state of the current set, which is emptied. */
static iv_status close_set(builder *b, uint32_t *out) {
    iv_schema_names *n = b->out;
    size_t bytes = b->current_count * sizeof *b->current;
    IV_TRY(iv_schema_charge(b->s, n->state_count + b->current_count, 2 * IV_EFFORT_COMPARE, b->where, b->err));
    for (size_t i = 0; i < b->current_count; i++) b->marks[b->current[i]] = 0;
    if (b->current_count) qsort(b->current, b->current_count, sizeof *b->current, by_value);
    for (*out = 0; *out < n->state_count; ++*out) {
        const iv_name_state *known = &n->states[*out];
        if (known->set_count == b->current_count && (!bytes || memcmp(known->set, b->current, bytes) == 0)) break;
    }
    if (*out < n->state_count) {
        b->current_count = 0;
        return IV_OK;
    }
    IV_TRY(grow_states(b));
    iv_name_state *made = &n->states[n->state_count++];
    *made = (iv_name_state){.set = IV_ARENA_NEW(b->s->arena, b->current_count + 1, uint32_t)};
    if (!made->set) return iv_schema_no_memory(b->s, b->err);
    if (bytes) memcpy(made->set, b->current, bytes);
    made->set_count = b->current_count;
    for (size_t k = 0; k < b->machine_count; k++)
        for (size_t i = 0; i < made->set_count; i++)
            if (made->set[i] == b->firsts[k] + b->machines[k].end) made->bits |= (uint32_t)1 << k;
    b->current_count = 0;
    return IV_OK;
}

static bool contains(const iv_codepoints *set, uint32_t c) {
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->ranges[middle].high < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->count && set->ranges[low].low <= c;
}

/* Where the characters' treatment changes in a state. *cuts is the caller's to free. */
static iv_status cuts_of(builder *b, const iv_name_state *at, uint32_t **cuts, size_t *cut_count, size_t *edge_total) {
    size_t most = 2;
    *cuts = NULL, *cut_count = 0, *edge_total = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < at->set_count; i++) {
            size_t count;
            uint32_t first;
            const iv_regular_edge *edges = edges_of(b, at->set[i], &count, &first);
            for (size_t e = 0; e < count; e++) {
                const iv_codepoints *set = edges[e].set;
                if (pass == 0) most += set ? 2 * set->count : 0, *edge_total += set != NULL;
                for (size_t r = 0; pass && set && r < set->count; r++)
                    (*cuts)[(*cut_count)++] = set->ranges[r].low, (*cuts)[(*cut_count)++] = set->ranges[r].high + 1;
            }
        }
        if (pass == 0) IV_TRY(iv_schema_charge(b->s, most, IV_EFFORT_COMPARE, b->where, b->err));
        if (pass == 0 && !(*cuts = malloc(most * sizeof **cuts))) return iv_schema_no_memory(b->s, b->err);
    }
    (*cuts)[(*cut_count)++] = 0, (*cuts)[(*cut_count)++] = LAST_CHARACTER + 1;
    qsort(*cuts, *cut_count, sizeof **cuts, by_value);
    return IV_OK;
}

static iv_status follow(builder *b, size_t index) {
    uint32_t *cuts;
    size_t cut_count, edge_total;
    iv_status status = cuts_of(b, &b->out->states[index], &cuts, &cut_count, &edge_total);
    if (status == IV_OK) status = iv_schema_charge(b->s, cut_count, IV_EFFORT_LOOK + 4 * edge_total, b->where, b->err);
    iv_name_edge *edges = status == IV_OK ? IV_ARENA_NEW(b->s->arena, cut_count, iv_name_edge) : NULL;
    if (status == IV_OK && !edges) status = iv_schema_no_memory(b->s, b->err);
    size_t edge_count = 0;
    for (size_t c = 0; status == IV_OK && c + 1 < cut_count; c++) {
        if (cuts[c] == cuts[c + 1] || cuts[c] > LAST_CHARACTER) continue;
        const iv_name_state *at = &b->out->states[index];
        for (size_t i = 0; i < at->set_count; i++) {
            size_t count;
            uint32_t first, to;
            const iv_regular_edge *own = edges_of(b, at->set[i], &count, &first);
            for (size_t e = 0; e < count; e++)
                if (own[e].set && contains(own[e].set, cuts[c])) to = first + own[e].to, enter(b, to);
        }
        iv_name_edge made = {.range = {cuts[c], cuts[c + 1] - 1}};
        status = close_set(b, &made.to);
        bool joins =
            edge_count && edges[edge_count - 1].to == made.to && edges[edge_count - 1].range.high + 1 == made.range.low;
        if (joins)
            edges[edge_count - 1].range.high = made.range.high;
        else
            edges[edge_count++] = made;
    }
    b->out->states[index].edges = edges, b->out->states[index].edge_count = edge_count;
    free(cuts);
    return status;
}

iv_status iv_schema_names_open(iv_schema_set *s, json_t *schema, const char *where, const char *const *listed,
                               size_t count, iv_schema_names *out, iv_error *err) {
    builder b = {.s = s, .where = where, .out = out, .err = err};
    uint32_t start;
    *out = (iv_schema_names){0};
    IV_TRY(add_patterns(&b, schema, listed, count));
    size_t all = b.firsts[b.machine_count];
    b.marks = IV_ARENA_NEW(s->arena, all + 1, uint8_t), b.current = IV_ARENA_NEW(s->arena, all + 1, uint32_t);
    if (!b.marks || !b.current) return iv_schema_no_memory(s, err);
    memset(b.marks, 0, all + 1);
    for (size_t k = 0; k < b.machine_count; k++) enter(&b, b.firsts[k] + b.machines[k].start);
    IV_TRY(close_set(&b, &start));
    for (size_t i = 0; i < out->state_count; i++) IV_TRY(follow(&b, i));
    return IV_OK;
}

/* ---- members ------------------------------------------------------------------------------------------- */

/* The schema of members whose names match `bits`. */
static iv_status schema_of(iv_schema_set *s, const iv_schema_names *n, uint32_t bits, json_t *own, json_t **out,
                           iv_error *err) {
    json_t *list = json_array();
    bool ok = list && json_array_append_new(s->made, list) == 0 && (!own || json_array_append(list, own) == 0);
    *out = NULL;
    if ((bits & n->must) != n->must) {
        *out = json_false();
        return ok ? IV_OK : iv_schema_no_memory(s, err);
    }
    for (size_t k = 0; k < n->schema_count; k++)
        if (bits >> k & 1) ok = ok && json_array_append(list, n->schemas[k]) == 0;
    if (!ok) return iv_schema_no_memory(s, err);
    if (json_array_size(list) < 2) {
        *out = json_array_get(list, 0);
        return IV_OK;
    }
    *out = json_pack("{s:O}", "allOf", list);
    return *out && json_array_append_new(s->made, *out) == 0 ? IV_OK : iv_schema_no_memory(s, err);
}

static uint32_t step(const iv_schema_names *n, uint32_t state, uint32_t c) {
    const iv_name_state *at = &n->states[state];
    for (size_t i = 0; i < at->edge_count; i++)
        if (c >= at->edges[i].range.low && c <= at->edges[i].range.high) return at->edges[i].to;
    return state; /* the ranges cover all characters */
}

iv_status iv_schema_names_member(iv_schema_set *s, const iv_schema_names *n, const char *name, json_t *own,
                                 json_t **out, iv_error *err) {
    uint32_t state = 0, c;
    size_t bytes = strlen(name);
    for (size_t i = 0; i < bytes;) {
        i += iv_utf8_decode((const uint8_t *)name + i, bytes - i, &c);
        state = step(n, state, c);
    }
    return schema_of(s, n, n->states[state].bits, own, out, err);
}

/* The state after names of the class `bits`, before the mark; 0: such names are not written. */
static iv_status class_state(iv_schema_set *s, const iv_schema_names *n, const char *where, uint32_t bits, int32_t rest,
                             uint32_t to, uint32_t *out, iv_error *err) {
    json_t *schema;
    int32_t rule = rest;
    *out = 0;
    if (bits & n->listed) return IV_OK;
    IV_TRY(schema_of(s, n, bits, NULL, &schema, err));
    if (json_is_false(schema)) return IV_OK;
    if (schema) IV_TRY(iv_schema_rule(s, schema, iv_schema_at(s, where, "patternProperties"), &rule, err));
    if (rule < 0) return IV_OK;
    *out = iv_automaton_state(s->a);
    iv_automaton_call(s->a, iv_json_mark(s->a, *out, ':'), rule, to);
    return IV_OK;
}

iv_status iv_schema_names_write(iv_schema_set *s, const iv_schema_names *n, const char *where, int32_t rest,
                                uint32_t from, uint32_t to, iv_error *err) {
    uint32_t classes[IV_SCHEMA_NAME_CLASSES_MAX], ends[IV_SCHEMA_NAME_CLASSES_MAX];
    size_t class_count = 0, k;
    iv_automaton *a = s->a;
    iv_spell_tails *tails = IV_ARENA_NEW(s->arena, n->state_count, iv_spell_tails);
    uint32_t *states = IV_ARENA_NEW(s->arena, n->state_count, uint32_t);
    if (!tails || !states) return iv_schema_no_memory(s, err);
    memset(tails, 0, n->state_count * sizeof *tails);
    for (size_t i = 0; i < n->state_count; i++) states[i] = iv_automaton_state(a);
    iv_automaton_bytes(a, from, '"', '"', states[0]);
    for (size_t i = 0; i < n->state_count && a->failed == IV_OK; i++) {
        const iv_name_state *at = &n->states[i];
        for (k = 0; k < class_count && classes[k] != at->bits; k++) {}
        if (k == IV_SCHEMA_NAME_CLASSES_MAX)
            return iv_schema_fail(s, IV_LIMIT, where, "the patterns of names overlap in too many ways", err);
        if (k == class_count) {
            classes[class_count++] = at->bits;
            IV_TRY(class_state(s, n, where, at->bits, rest, to, &ends[k], err));
        }
        if (ends[k]) iv_automaton_bytes(a, states[i], '"', '"', ends[k]);
        for (size_t e = 0; e < at->edge_count; e++) {
            iv_codepoints one = {0};
            uint32_t next = at->edges[e].to;
            if (!iv_codepoints_add(&one, s->arena, at->edges[e].range.low, at->edges[e].range.high) ||
                !iv_codepoints_normalize(&one, s->arena)) /* removes surrogates */
                return iv_schema_no_memory(s, err);
            iv_codepoints_spell(&one, a, IV_SPELL_JSON, states[i], states[next], &tails[next]);
        }
    }
    return IV_OK;
}
