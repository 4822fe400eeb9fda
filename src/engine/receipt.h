/* receipt.h: what writer, reader and comparison of receipts share: the limits of the format and its struct. */
#ifndef IV_ENGINE_RECEIPT_H
#define IV_ENGINE_RECEIPT_H

#include "base/arena.h"
#include "engine/engine.h"
#include "format/json.h"

enum {
    IV_RECEIPT_VERSION = 1,
    IV_RECEIPT_BYTES_MAX = 64 << 20,
    IV_RECEIPT_TOKENS_MAX = 1 << 24, /* of a prompt, and of an answer */
    IV_RECEIPT_WORD_BYTES_MAX = 95   /* a name such as "fma32", a version, a fingerprint */
};

struct iv_receipt {
    json_t *json; /* strings point into it */
    iv_arena arena;
    iv_receipt_info info;
    iv_request request;
};

#endif
