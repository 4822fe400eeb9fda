/* memspace.h: memory that is somewhere, as three functions: what loads a model need not know where its weights will be.
 * A NULL place is this process's own memory (memory.h). */
#ifndef IV_DEVICE_MEMSPACE_H
#define IV_DEVICE_MEMSPACE_H

#include "base/status.h"

typedef struct iv_memspace iv_memspace;
struct iv_memspace {
    /* Zeroed, at a multiple of 256 bytes; NULL when there is none. */
    void *(*alloc)(iv_memspace *p, size_t bytes);
    void (*free)(iv_memspace *p, void *memory); /* NULL is fine */
    /* Copies `rows` rows of `width` bytes, from_pitch and to_pitch apart. Any thread; returns when done. */
    iv_status (*write)(iv_memspace *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                       size_t rows, iv_error *err);
    /* Memory of this process from which `write` is fastest. */
    void *(*stage)(iv_memspace *p, size_t bytes);
    void (*unstage)(iv_memspace *p, void *memory);
};

/* This process's memory as a place: what lies there is laid out as on a GPU, and waits to be copied to one. */
iv_memspace *iv_memspace_host(void);

#endif
