/* schema_survey.c: what the compiler makes of schemas, for tests/scripts/survey_schemas.py. Reads a line of JSON a
 * schema:
 * {"schema": ..., "walks": n} or {"schema": ..., "instances": [texts]}. Writes one a schema: {"error": ...}, or
 * {"texts": [random answers, byte by byte], "accepts": [bool for each instance], "bytes": memory used}. */
#include "format/json.h"
#include "grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WALK_BYTES = 1500, CLOSING = 300 };

static uint64_t random_state = 1;

static size_t below(size_t n) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (size_t)((random_state >> 11) % n);
}

/* Late in a walk, bytes that close strings, lists and objects are taken first. */
static size_t choose(const uint64_t *mask, bool closing) {
    size_t count = 0, chosen = 256;
    for (size_t i = 0; i < 256; i++) {
        if (!(mask[i / 64] >> (i % 64) & 1)) continue;
        if (closing && (i == '"' || i == '}' || i == ']')) return i;
        bool plain = i > ' ' && i < 0x7f && i != '\\'; /* letters, mostly */
        size_t weight = plain ? 8 : 1;
        count += weight;
        if (below(count) < weight) chosen = i;
    }
    return chosen;
}

/* A complete answer, or NULL. */
static json_t *walk(iv_grammar *g) {
    char text[WALK_BYTES];
    int32_t ids[WALK_BYTES];
    uint64_t mask[4];
    iv_matcher m = {0};
    iv_error err;
    bool closing_early = below(2);
    for (size_t n = 0; n < WALK_BYTES; n++) {
        bool may_end;
        if (iv_grammar_mask(g, &m, ids, n, mask, &may_end, &err) != IV_OK) return NULL;
        size_t byte = choose(mask, n > CLOSING || (closing_early && below(4) == 0));
        if (may_end && (byte == 256 || below(2))) return json_stringn(text, n);
        if (byte == 256) return NULL;
        ids[n] = (int32_t)byte, text[n] = (char)byte;
    }
    return NULL;
}

static json_t *survey(const iv_vocabulary *v, const json_t *line) {
    iv_grammar *g;
    iv_error err;
    char *schema = json_dumps(json_object_get(line, "schema"), JSON_COMPACT | JSON_ENCODE_ANY);
    iv_status status = iv_grammar_open(IV_CONSTRAINT_JSON_SCHEMA, schema, IV_REASONING_NONE, v, &g, &err);
    free(schema);
    if (status != IV_OK) return json_pack("{s:s}", "error", err.message);
    json_t *texts = json_array(), *accepts = json_array(), *one;
    size_t i;
    for (json_int_t k = json_integer_value(json_object_get(line, "walks")); k > 0; k--) {
        json_t *text = walk(g);
        if (text) json_array_append_new(texts, text);
    }
    json_array_foreach(json_object_get(line, "instances"), i, one) {
        bool matches = false;
        if (iv_grammar_matches(g, json_string_value(one), json_string_length(one), &matches, NULL, &err) != IV_OK)
            matches = false;
        json_array_append_new(accepts, json_boolean(matches));
    }
    json_t *out =
        json_pack("{s:o, s:o, s:I}", "texts", texts, "accepts", accepts, "bytes", (json_int_t)iv_grammar_bytes(g));
    iv_grammar_close(g);
    return out;
}

int main(void) {
    iv_vocabulary v;
    iv_error err;
    char bytes[256], *text = NULL;
    size_t offsets[257], capacity = 0;
    for (size_t i = 0; i <= 256; i++) offsets[i] = i;
    for (size_t i = 0; i < 256; i++) bytes[i] = (char)i;
    if (iv_vocabulary_make(bytes, offsets, 256, &v, &err) != IV_OK) return 1;
    for (ssize_t n; (n = getline(&text, &capacity, stdin)) > 0;) {
        json_t *line = NULL;
        json_error_t where;
        line = json_loadb(text, (size_t)n, JSON_DISABLE_EOF_CHECK, &where);
        json_t *out = line ? survey(&v, line) : json_pack("{s:s}", "error", where.text);
        json_dumpf(out, stdout, JSON_COMPACT), putchar('\n'), fflush(stdout);
        json_decref(line), json_decref(out);
    }
    free(text);
    iv_vocabulary_close(&v);
    return 0;
}
