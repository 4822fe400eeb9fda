/* adapter_case.h: golden adapters, and files of their tensors. */
#ifndef IV_TESTS_TRAIN_ADAPTER_CASE_H
#define IV_TESTS_TRAIN_ADAPTER_CASE_H

#include "engine/client.h"
#include "format/safetensors.h"
#include "numerics/floats.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static inline const char *case_path(const char *below) {
    static char path[64][400];
    static size_t next;
    char *out = path[next++ % 64];
    snprintf(out, sizeof path[0], "%s/tests/data/%s", INVAR_SOURCE_DIR, below);
    return out;
}

static inline const char *adapter_path(const char *name) {
    char below[200];
    snprintf(below, sizeof below, "adapters/%s", name);
    return case_path(below);
}

/* All tensors of a file as floats, in its order. */
typedef struct tensor_file {
    iv_arena arena;
    iv_tensor_info *tensor;
    size_t count, elements;
    float *values;
} tensor_file;

static inline tensor_file tensor_file_open(const char *path) {
    tensor_file f = {0};
    iv_error err;
    struct stat st;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) fail_msg("%s: cannot be read", path);
    ASSERT_OK(iv_safetensors_read(path, fd, (size_t)st.st_size, &f.arena, &f.tensor, &f.count, &err), &err);
    for (size_t i = 0; i < f.count; i++) f.elements += f.tensor[i].elements;
    f.values = calloc(f.elements, sizeof *f.values);
    unsigned char *raw = calloc(f.elements, sizeof *f.values);
    assert_true(f.values && raw);
    for (size_t i = 0, at = 0; i < f.count; at += f.tensor[i++].elements) {
        assert_int_equal(pread(fd, raw, f.tensor[i].bytes, (off_t)f.tensor[i].offset), f.tensor[i].bytes);
        for (size_t k = 0; k < f.tensor[i].elements; k++) f.values[at + k] = iv_element(f.tensor[i].dtype, raw, k);
    }
    free(raw);
    close(fd);
    return f;
}

static inline void tensor_file_close(tensor_file *f) {
    free(f->values);
    iv_arena_free(&f->arena);
}

#endif
