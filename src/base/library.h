/* library.h: shared libraries that are loaded on demand and are no dependency. */
#ifndef IV_BASE_LIBRARY_H
#define IV_BASE_LIBRARY_H

#include "base/status.h"

typedef struct iv_library_call {
    const char *name;
    void **to;
} iv_library_call;

/* Finds NCCL and calls of it. It has threads and therefore stays loaded. IV_NOT_FOUND; `what_for` begins the
 * message. */
iv_status iv_library_nccl_calls(const char *what_for, const iv_library_call *calls, size_t count, iv_error *err);

#endif
