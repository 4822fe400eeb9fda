/* Any bytes as a schema, choices or tools: refused with a reason, or answers to it can be drawn, and are JSON where
 * they should be. Input: one byte for kind and reasoning, then the text. */
#include "format/json.h"
#include "grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const iv_constraint_kind kinds[] = {IV_CONSTRAINT_JSON_SCHEMA, IV_CONSTRAINT_JSON_SCHEMA,
                                               IV_CONSTRAINT_CHOICE, IV_CONSTRAINT_TOOL_CALLS};
    char answer[WALK_BYTES];
    iv_grammar *g;
    iv_error err = {0};
    size_t n;
    if (size == 0) return 0;
    iv_constraint_kind kind = kinds[data[0] & 3];
    iv_reasoning reasoning = (iv_reasoning)(data[0] >> 2 & 3) % 3;
    char *text = malloc(size);
    IV_ASSERT(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (iv_grammar_open(kind, text, reasoning, walk_vocabulary(), &g, &err) != IV_OK) {
        IV_ASSERT(err.message[0]);
        free(text);
        return 0;
    }
    for (uint32_t walk = 0; walk < 3; walk++) {
        bool ended = walk_grammar(g, (uint32_t)size * 7 + walk, answer, &n);
        json_t *v = NULL;
        if (!ended || kind != IV_CONSTRAINT_JSON_SCHEMA || reasoning != IV_REASONING_NONE) continue;
        /* Keys that are not listed may come twice, which the strict reader refuses. */
        if (iv_json_parse("answer", answer, n, &v, &err) != IV_OK) IV_ASSERT(strstr(err.message, "duplicate"));
        json_decref(v);
    }
    iv_grammar_close(g);
    free(text);
    return 0;
}
