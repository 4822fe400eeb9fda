/* driver.h: the CUDA driver for a trainer's tensors: memory of another process on a GPU of this machine, and buffers
 * for NCCL. Loaded on demand; the server's process has nothing else on a GPU. One thread. */
#ifndef IV_SERVE_WEIGHTS_DRIVER_H
#define IV_SERVE_WEIGHTS_DRIVER_H

#include "base/status.h"

typedef struct iv_driver iv_driver;
typedef unsigned long long iv_driver_memory; /* an address on a GPU */

/* IV_NOT_FOUND: there is no driver. */
iv_status iv_driver_open(iv_driver **out, iv_error *err);
void iv_driver_close(iv_driver *d); /* NULL is fine */

/* The GPU of a UUID ("GPU-1234...", or without "GPU-"), or of a number. */
iv_status iv_driver_find(iv_driver *d, const char *device, int *ordinal, iv_error *err);
/* The following calls are about this GPU, of the calling thread. */
iv_status iv_driver_use(iv_driver *d, int ordinal, iv_error *err);

/* handle: 64 bytes. close before another one of the same memory is opened. */
iv_status iv_driver_open_memory(iv_driver *d, const unsigned char *handle, iv_driver_memory *out, iv_error *err);
void iv_driver_close_memory(iv_driver *d, iv_driver_memory at);
/* Waits until the other process's work before the event is done. */
iv_status iv_driver_await(iv_driver *d, const unsigned char *handle, iv_error *err);
iv_status iv_driver_read(iv_driver *d, iv_driver_memory from, void *out, size_t bytes, iv_error *err);

iv_status iv_driver_alloc(iv_driver *d, size_t bytes, iv_driver_memory *out, iv_error *err);
void iv_driver_free(iv_driver *d, iv_driver_memory at);
iv_status iv_driver_stream(iv_driver *d, void **out, iv_error *err);
void iv_driver_end_stream(iv_driver *d, void *stream);
/* Whether its work is done, without waiting. */
iv_status iv_driver_is_done(iv_driver *d, void *stream, bool *done, iv_error *err);

#endif
