/* sources.h: the memory that a message's tensors lie in, opened for reading. One thread. */
#ifndef IV_SERVE_WEIGHTS_SOURCES_H
#define IV_SERVE_WEIGHTS_SOURCES_H

#include "format/tensor_message.h"
#include "serve/weights/driver.h"

typedef struct iv_source {
    const iv_message_storage *storage;
    iv_driver **driver;         /* opened for the first tensor on a GPU, and kept */
    const unsigned char *bytes; /* INLINE, SHM */
    void *map;                  /* SHM */
    size_t map_bytes;
    int ordinal; /* CUDA */
    iv_driver_memory memory;
} iv_source;

/* IV_INVALID, IV_IO: there is no such memory, or it is shorter than the message says. */
iv_status iv_source_open(const iv_message_storage *storage, iv_driver **driver, iv_source *out, iv_error *err);
iv_status iv_source_read(iv_source *s, size_t offset, size_t n, void *out, iv_error *err);
void iv_source_close(iv_source *s);

/* Gives back the reference that came with the message: the sender frees the memory, or, if it has done so, this does.
 */
void iv_source_release(const iv_message_storage *storage);

#endif
