/* library.c: dlopen and dlsym. */
#include "base/library.h"

#include <dlfcn.h>

static void *open_first(const char *const *names, size_t count) {
    void *library = NULL;
    for (size_t i = 0; i < count && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}

static iv_status find_calls(const char *what_for, void *library, const char *file, const iv_library_call *calls,
                            size_t count, iv_error *err) {
    for (size_t i = 0; i < count; i++)
        if (!(*calls[i].to = dlsym(library, calls[i].name)))
            return iv_fail(err, IV_NOT_FOUND, "%s: wanted %s in %s, found a library without it", what_for,
                           calls[i].name, file);
    return IV_OK;
}

iv_status iv_library_nccl_calls(const char *what_for, const iv_library_call *calls, size_t count, iv_error *err) {
    static const char *const names[] = {"libnccl.so.2", "libnccl.so", "/usr/local/cuda/lib64/libnccl.so.2"};
    void *library = open_first(names, sizeof names / sizeof *names);
    if (library) return find_calls(what_for, library, "NCCL (libnccl.so.2)", calls, count, err);
    return iv_fail(err, IV_NOT_FOUND,
                   "%s: wanted NCCL (libnccl.so.2) among the libraries, found none: set LD_LIBRARY_PATH to where it is",
                   what_for);
}
