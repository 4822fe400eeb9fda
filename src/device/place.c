/* place.c: memory of this process as a place. A block remembers its size in front of itself. */
#include "device/place.h"
#include "base/size.h"
#include "device/memory.h"

#include <stdlib.h>
#include <string.h>

enum { FRONT = 256 };

static void *waiting_alloc(iv_place *p, size_t bytes) {
    (void)p;
    size_t whole;
    unsigned char *block = iv_size_add(bytes, FRONT, &whole) ? iv_memory_alloc(whole) : NULL;
    if (!block) return NULL;
    memcpy(block, &whole, sizeof whole);
    return block + FRONT;
}

static void waiting_free(iv_place *p, void *memory) {
    (void)p;
    if (!memory) return;
    unsigned char *block = (unsigned char *)memory - FRONT;
    size_t whole;
    memcpy(&whole, block, sizeof whole);
    iv_memory_free(block, whole);
}

static iv_status waiting_write(iv_place *p, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                               size_t width, size_t rows, iv_error *err) {
    (void)p, (void)err;
    for (size_t i = 0; i < rows; i++)
        memcpy((unsigned char *)to + i * to_pitch, (const unsigned char *)from + i * from_pitch, width);
    return IV_OK;
}

static void *waiting_stage(iv_place *p, size_t bytes) {
    (void)p;
    return malloc(bytes ? bytes : 1);
}

static void waiting_unstage(iv_place *p, void *memory) {
    (void)p;
    free(memory);
}

iv_place *iv_place_waiting(void) {
    static iv_place place = {waiting_alloc, waiting_free, waiting_write, waiting_stage, waiting_unstage};
    return &place;
}
