/* place.h: memory that is somewhere, as three functions: what loads a model need not know where its weights will be.
 * A NULL place is this process's own memory (memory.h). */
#ifndef IV_DEVICE_PLACE_H
#define IV_DEVICE_PLACE_H

#include "base/status.h"

typedef struct iv_place iv_place;
struct iv_place {
    /* Zeroed, at a multiple of 256 bytes; NULL when there is none. */
    void *(*alloc)(iv_place *p, size_t bytes);
    void (*free)(iv_place *p, void *memory); /* NULL is fine */
    /* Copies `rows` rows of `width` bytes, from_pitch and to_pitch apart. Any thread; returns when done. */
    iv_status (*write)(iv_place *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                       size_t rows, iv_error *err);
    /* Memory of this process from which `write` is fastest. */
    void *(*stage)(iv_place *p, size_t bytes);
    void (*unstage)(iv_place *p, void *memory);
};

/* This process's memory as a place: what lies there is laid out as on a GPU, and waits to be copied to one. */
iv_place *iv_place_waiting(void);

#endif
