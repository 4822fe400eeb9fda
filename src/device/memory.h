/* memory.h: large allocations on the CPU: zeroed, page-aligned, on huge pages if the system has them. */
#ifndef IV_DEVICE_MEMORY_H
#define IV_DEVICE_MEMORY_H

#include <stddef.h>

/* Zeroed memory; NULL if there is none or bytes is 0. */
void *iv_memory_alloc(size_t bytes);
void iv_memory_free(void *p, size_t bytes); /* NULL is fine */

/* Bytes of memory that could be allocated now without swapping; 0 when unknown. */
size_t iv_memory_available(void);

#endif
