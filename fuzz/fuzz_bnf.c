/* fuzz_bnf.c: any bytes as a grammar are refused with a reason, or answers can be generated from it. */
#include "grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), answer[WALK_BYTES];
    iv_grammar *g;
    iv_error err = {0};
    size_t n;
    IV_ASSERT(text);
    memcpy(text, data, size);
    text[size] = 0;
    if (iv_grammar_open(IV_CONSTRAINT_GRAMMAR, text, IV_REASONING_NONE, walk_vocabulary(), &g, &err) == IV_OK) {
        for (uint32_t walk = 0; walk < 2; walk++) walk_grammar(g, (uint32_t)size + walk, answer, &n);
        iv_grammar_close(g);
    } else {
        IV_ASSERT(err.message[0]);
    }
    free(text);
    return 0;
}
