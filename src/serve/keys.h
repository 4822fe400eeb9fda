/* keys.h: the keys that open a server: one that was given, or those of a file, which may be read again. Only digests
 * are kept. */
#ifndef IV_SERVE_KEYS_H
#define IV_SERVE_KEYS_H

#include "base/status.h"

enum { IV_KEYS_MAX = 64 };

typedef struct iv_keys {
    size_t count; /* 0: there is none */
    uint8_t digests[IV_KEYS_MAX][32];
} iv_keys;

/* Adds a key: visible ASCII without spaces. `where` heads errors. */
iv_status iv_keys_add(iv_keys *keys, const char *key, const char *where, iv_error *err);
/* Replaces the keys by those of a file: one a line; empty lines and lines that begin with # are passed over. A file
 * without keys is an error, for it would let everyone in. After an error the keys are as before. */
iv_status iv_keys_read(iv_keys *keys, const char *path, iv_error *err);
/* Is it one of them? The time this takes does not depend on how much of a key was right, nor on its length. */
bool iv_keys_have(const iv_keys *keys, const char *given);

#endif
