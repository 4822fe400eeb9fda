/* memspace.h: a memory space (a GPU's, or a staging area of this process) as a table of functions, so that loading a
 * model does not depend on where its weights are held. A NULL memory space means this process's memory (memory.h). */
#ifndef IV_DEVICE_MEMSPACE_H
#define IV_DEVICE_MEMSPACE_H

#include "base/status.h"

typedef struct iv_memspace iv_memspace;
struct iv_memspace {
    /* Zeroed when it returns, aligned to 256 bytes; NULL if there is none. */
    void *(*alloc)(iv_memspace *p, size_t bytes);
    void (*free)(iv_memspace *p, void *memory); /* NULL is fine */
    /* Copies `rows` rows of `width` bytes, from_pitch and to_pitch apart. Any thread; returns when done. */
    iv_status (*write)(iv_memspace *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                       size_t rows, iv_error *err);
    /* The same in the other direction: `to` is this process's, `from` the memspace's. */
    iv_status (*read)(iv_memspace *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t rows, iv_error *err);
    /* Memory of this process for which `write` and `read` are fastest. */
    void *(*stage)(iv_memspace *p, size_t bytes);
    void (*unstage)(iv_memspace *p, void *memory);
};

/* A staging area in this process's memory, laid out as on a GPU, to be copied to one. */
iv_memspace *iv_memspace_host(void);

#endif
