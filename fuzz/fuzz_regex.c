/* fuzz_regex.c: any bytes as a regular expression, of a whole answer and as the pattern of a JSON string: refused with
 * a reason, or answers can be generated from it. */
#include "format/json.h"
#include "grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_one(iv_constraint_kind kind, const char *text, uint32_t seed) {
    char answer[WALK_BYTES];
    iv_grammar *g;
    iv_error err = {0};
    size_t n;
    if (iv_grammar_open(kind, text, IV_REASONING_NONE, walk_vocabulary(), &g, &err) != IV_OK) {
        IV_ASSERT(err.message[0]);
        return;
    }
    for (uint32_t walk = 0; walk < 2; walk++) {
        json_t *v = NULL;
        if (!walk_grammar(g, seed + walk, answer, &n) || kind != IV_CONSTRAINT_JSON_SCHEMA) continue;
        IV_ASSERT(iv_json_parse("answer", answer, n, &v, &err) == IV_OK && json_is_string(v));
        json_decref(v);
    }
    iv_grammar_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    IV_ASSERT(text);
    memcpy(text, data, size);
    text[size] = 0;
    try_one(IV_CONSTRAINT_REGEX, text, (uint32_t)size);
    json_t *schema = json_pack("{s:s, s:s, s:i}", "type", "string", "pattern", text, "maxLength", (int)(size % 9));
    char *dumped = schema ? json_dumps(schema, JSON_COMPACT) : NULL; /* NULL: not UTF-8 */
    if (dumped) try_one(IV_CONSTRAINT_JSON_SCHEMA, dumped, (uint32_t)size);
    free(dumped), json_decref(schema), free(text);
    return 0;
}
