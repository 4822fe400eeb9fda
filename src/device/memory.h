/* memory.h: large allocations on the CPU: zeroed, page-aligned, on huge pages where the system gives them. */
#ifndef IV_DEVICE_MEMORY_H
#define IV_DEVICE_MEMORY_H

#include <stddef.h>

/* Zeroed memory, NULL when there is none. bytes 0 gives NULL. */
void *iv_memory_alloc(size_t bytes);
void iv_memory_free(void *p, size_t bytes); /* NULL is fine */

/* Bytes of memory that could be allocated now without swapping; 0 when unknown. */
size_t iv_memory_available(void);

#endif
