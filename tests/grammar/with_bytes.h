/* with_bytes.h: one vocabulary of single bytes for all tests of a program: open_all and close_all around the group. */
#ifndef IV_TESTS_GRAMMAR_WITH_BYTES_H
#define IV_TESTS_GRAMMAR_WITH_BYTES_H

#include "with_vocabulary.h"

static iv_vocabulary bytes;

static int open_all(void **state) {
    (void)state;
    open_bytes(&bytes);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    iv_vocabulary_close(&bytes);
    return 0;
}

#endif
