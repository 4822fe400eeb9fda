/* sized.h: structs of invar.h that callers fill and whose first member is their size. A binary built with an older
 * invar.h passes a smaller size; it gets the defaults for the members that it lacks. */
#ifndef IV_ENGINE_SIZED_H
#define IV_ENGINE_SIZED_H

#include "base/size.h"
#include "base/status.h"

#include <string.h>

/* Writes defaults, a struct of `full` bytes, into a caller's struct of `size` bytes. */
static inline void iv_sized_init(void *out, size_t size, const void *defaults, size_t full) {
    memset(out, 0, size);
    memcpy(out, defaults, iv_size_min(size, full));
    memcpy(out, &size, iv_size_min(size, sizeof size));
}

/* Copies a caller's struct over `out`, which has the defaults and `full` bytes. least: the bytes that every caller
 * sets. */
static inline iv_status iv_sized_read(const char *name, const void *in, size_t least, void *out, size_t full,
                                      iv_error *err) {
    size_t size;
    memcpy(&size, in, sizeof size);
    if (size < least || size > 2 * full)
        return iv_fail(err, IV_INVALID, "%s: size: wanted %zu, as its init function sets it, found %zu", name, full,
                       size);
    for (size_t i = full; i < size; i++)
        if (((const unsigned char *)in)[i])
            return iv_fail(err, IV_UNSUPPORTED, "%s: a member at byte %zu is set, which this version does not have",
                           name, i);
    memcpy(out, in, iv_size_min(size, full));
    memcpy(out, &full, sizeof full);
    return IV_OK;
}

#endif
