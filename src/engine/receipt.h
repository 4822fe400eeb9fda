/* receipt.h: the limits of the receipt's format, which the writer and the reader share. */
#ifndef IV_ENGINE_RECEIPT_H
#define IV_ENGINE_RECEIPT_H

#include "engine/engine.h"

enum {
    IV_RECEIPT_VERSION = 1,
    IV_RECEIPT_BYTES_MAX = 64 << 20,
    IV_RECEIPT_TOKENS_MAX = 1 << 24, /* of a prompt, and of an answer */
    IV_RECEIPT_WORD_BYTES_MAX = 95   /* a name such as "fma32", a version, a fingerprint */
};

#endif
