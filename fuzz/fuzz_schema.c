/* fuzz_schema.c: any bytes as a schema, choices or tools are refused with a reason, or answers can be generated from
 * them, valid JSON if required. A small state limit, chosen by the input, is reached somewhere in the automaton.
 * Input: one byte for kind and reasoning, then the text. */
#include "format/json.h"
#include "grammar/kinds.h"
#include "grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_few_states(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, size_t states) {
    iv_automaton a = {.states_max = states};
    iv_arena arena;
    iv_error err = {0};
    iv_arena_init(&arena, 64 << 20);
    IV_ASSERT(iv_kind_compile(kind, text, reasoning, NULL, &arena, &a, &err) == IV_OK || err.message[0]);
    iv_automaton_free(&a), iv_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const iv_constraint_kind kinds[] = {IV_CONSTRAINT_JSON_SCHEMA, IV_CONSTRAINT_JSON_SCHEMA,
                                               IV_CONSTRAINT_CHOICE, IV_CONSTRAINT_TOOL_CALLS};
    char answer[WALK_BYTES];
    iv_grammar *g;
    iv_error err = {0};
    size_t n;
    if (size == 0) return 0;
    iv_constraint_kind kind = kinds[data[0] & 3];
    if (kind == IV_CONSTRAINT_TOOL_CALLS && data[0] & 16) kind = IV_CONSTRAINT_TOOL_CALLS_OR_JSON;
    iv_reasoning reasoning = (iv_reasoning)(data[0] >> 2 & 3) % 3;
    char *text = malloc(size);
    IV_ASSERT(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    uint32_t hash = 0;
    for (size_t i = 0; i < size; i++) hash = hash * 31 + data[i];
    try_few_states(kind, text, reasoning, 1 + hash % 1024);
    if (iv_grammar_open(kind, text, reasoning, walk_vocabulary(), &g, &err) != IV_OK) {
        IV_ASSERT(err.message[0]);
        free(text);
        return 0;
    }
    for (uint32_t walk = 0; walk < 3; walk++) {
        bool ended = walk_grammar(g, (uint32_t)size * 7 + walk, answer, &n);
        json_t *v = NULL;
        if (!ended || kind != IV_CONSTRAINT_JSON_SCHEMA || reasoning != IV_REASONING_NONE) continue;
        /* Unlisted keys may repeat, which the strict reader refuses. */
        if (iv_json_parse("answer", answer, n, &v, &err) != IV_OK) IV_ASSERT(strstr(err.message, "duplicate"));
        json_decref(v);
    }
    iv_grammar_close(g);
    free(text);
    return 0;
}
