/* memspace.c: the memory space of this process. A header in front of each block holds its size. */
#include "device/memspace.h"
#include "base/size.h"
#include "device/memory.h"

#include <stdlib.h>
#include <string.h>

enum { FRONT = 256 };

static void *host_alloc(iv_memspace *p, size_t bytes) {
    (void)p;
    size_t whole;
    unsigned char *block = iv_size_add(bytes, FRONT, &whole) ? iv_memory_alloc(whole) : NULL;
    if (!block) return NULL;
    memcpy(block, &whole, sizeof whole);
    return block + FRONT;
}

static void host_free(iv_memspace *p, void *memory) {
    (void)p;
    if (!memory) return;
    unsigned char *block = (unsigned char *)memory - FRONT;
    size_t whole;
    memcpy(&whole, block, sizeof whole);
    iv_memory_free(block, whole);
}

static iv_status host_copy(iv_memspace *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                           size_t rows, iv_error *err) {
    (void)p, (void)err;
    for (size_t i = 0; i < rows; i++)
        memcpy((unsigned char *)to + i * to_pitch, (const unsigned char *)from + i * from_pitch, width);
    return IV_OK;
}

static void *host_stage(iv_memspace *p, size_t bytes) {
    (void)p;
    return malloc(bytes ? bytes : 1);
}

static void host_unstage(iv_memspace *p, void *memory) {
    (void)p;
    free(memory);
}

iv_memspace *iv_memspace_host(void) {
    static iv_memspace memspace = {host_alloc, host_free, host_copy, host_copy, host_stage, host_unstage};
    return &memspace;
}
