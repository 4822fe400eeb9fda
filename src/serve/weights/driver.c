/* driver.c: the driver's calls that are in use. Nothing of CUDA is linked or included. */
#include "serve/weights/driver.h"
#include "base/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { GPUS_MAX = 64, LAZY_PEER_ACCESS = 1, NOT_READY = 600, HANDLE_BYTES = 64, UUID_TEXT = 37 };

typedef struct handle { /* passed by value, as cudaIpcMemHandle_t */
    unsigned char bytes[HANDLE_BYTES];
} handle;

typedef struct uuid {
    unsigned char bytes[16];
} uuid;

struct iv_driver {
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*get)(int *device, int ordinal);
    int (*get_uuid)(uuid *out, int device);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_current)(void *context);
    int (*open_memory)(iv_driver_memory *out, handle h, unsigned flags);
    int (*close_memory)(iv_driver_memory at);
    int (*open_event)(void **out, handle h);
    int (*await_event)(void *event);
    int (*destroy_event)(void *event);
    int (*copy_out)(void *to, iv_driver_memory from, size_t bytes);
    int (*alloc)(iv_driver_memory *out, size_t bytes);
    int (*free)(iv_driver_memory at);
    int (*create_stream)(void **out, unsigned flags);
    int (*destroy_stream)(void *stream);
    int (*query_stream)(void *stream);
    int (*error_name)(int code, const char **out);
    int gpus;
    void *context[GPUS_MAX]; /* NULL: not retained */
};

static iv_status check(const iv_driver *d, int code, const char *what, iv_error *err) {
    const char *name = "an unknown error";
    if (code == 0) return IV_OK;
    d->error_name(code, &name);
    return iv_fail(err, IV_IO, "CUDA: %s: %s", what, name);
}

static iv_status find_calls(iv_driver *d, iv_error *err) {
    const iv_library_call calls[] = {{"cuInit", (void **)&d->init},
                                     {"cuDeviceGetCount", (void **)&d->count},
                                     {"cuDeviceGet", (void **)&d->get},
                                     {"cuDeviceGetUuid", (void **)&d->get_uuid},
                                     {"cuDevicePrimaryCtxRetain", (void **)&d->retain},
                                     {"cuDevicePrimaryCtxRelease_v2", (void **)&d->release},
                                     {"cuCtxSetCurrent", (void **)&d->set_current},
                                     {"cuIpcOpenMemHandle_v2", (void **)&d->open_memory},
                                     {"cuIpcCloseMemHandle", (void **)&d->close_memory},
                                     {"cuIpcOpenEventHandle", (void **)&d->open_event},
                                     {"cuEventSynchronize", (void **)&d->await_event},
                                     {"cuEventDestroy_v2", (void **)&d->destroy_event},
                                     {"cuMemcpyDtoH_v2", (void **)&d->copy_out},
                                     {"cuMemAlloc_v2", (void **)&d->alloc},
                                     {"cuMemFree_v2", (void **)&d->free},
                                     {"cuStreamCreate", (void **)&d->create_stream},
                                     {"cuStreamDestroy_v2", (void **)&d->destroy_stream},
                                     {"cuStreamQuery", (void **)&d->query_stream},
                                     {"cuGetErrorName", (void **)&d->error_name}};
    IV_TRY(iv_library_cuda_calls("tensors on a GPU", calls, sizeof calls / sizeof *calls, err));
    IV_TRY(check(d, d->init(0), "cannot start", err));
    return check(d, d->count(&d->gpus), "cannot count the GPUs", err);
}

iv_status iv_driver_open(iv_driver **out, iv_error *err) {
    iv_driver *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) return iv_fail(err, IV_NO_MEMORY, "CUDA: no memory");
    iv_status status = find_calls(d, err);
    if (status == IV_OK)
        *out = d;
    else
        free(d);
    return status;
}

void iv_driver_close(iv_driver *d) {
    if (!d) return;
    for (int i = 0; i < d->gpus && i < GPUS_MAX; i++) {
        int device;
        if (d->context[i] && d->get(&device, i) == 0) d->release(device);
    }
    free(d);
}

/* ---- GPUs --------------------------------------------------------------------------------------------- */

static void write_uuid(const uuid *u, char out[UUID_TEXT]) {
    size_t at = 0;
    for (size_t i = 0; i < sizeof u->bytes; i++)
        at += (size_t)snprintf(out + at, UUID_TEXT - at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                               u->bytes[i]);
}

iv_status iv_driver_find(iv_driver *d, const char *device, int *ordinal, iv_error *err) {
    char *end, found[UUID_TEXT];
    const char *text = strncasecmp(device, "GPU-", 4) == 0 ? device + 4 : device;
    long number = strtol(device, &end, 10);
    int gpu;
    uuid u;
    for (int i = 0; i < d->gpus && i < GPUS_MAX; i++) {
        if (*device && !*end && number == i) {
            *ordinal = i;
            return IV_OK;
        }
        IV_TRY(check(d, d->get(&gpu, i), "no such GPU", err));
        IV_TRY(check(d, d->get_uuid(&u, gpu), "a GPU without a UUID", err));
        write_uuid(&u, found);
        if (strcasecmp(found, text) == 0) {
            *ordinal = i;
            return IV_OK;
        }
    }
    return iv_fail(err, IV_INVALID,
                   "CUDA: wanted GPU %.48s among the %d that this process sees, found none: the trainer must "
                   "be on this machine, and CUDA_VISIBLE_DEVICES must list its GPU",
                   device, d->gpus);
}

iv_status iv_driver_use(iv_driver *d, int ordinal, iv_error *err) {
    int device;
    if (ordinal < 0 || ordinal >= d->gpus || ordinal >= GPUS_MAX)
        return iv_fail(err, IV_INVALID, "CUDA: wanted a GPU below %d, found %d", d->gpus, ordinal);
    if (!d->context[ordinal]) {
        IV_TRY(check(d, d->get(&device, ordinal), "no such GPU", err));
        IV_TRY(check(d, d->retain(&d->context[ordinal], device), "no context", err));
    }
    return check(d, d->set_current(d->context[ordinal]), "no context", err);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

iv_status iv_driver_open_memory(iv_driver *d, const unsigned char *bytes, iv_driver_memory *out, iv_error *err) {
    handle h;
    memcpy(h.bytes, bytes, sizeof h.bytes);
    return check(d, d->open_memory(out, h, LAZY_PEER_ACCESS), "cannot open the trainer's memory", err);
}

void iv_driver_close_memory(iv_driver *d, iv_driver_memory at) { d->close_memory(at); }

iv_status iv_driver_await(iv_driver *d, const unsigned char *bytes, iv_error *err) {
    handle h;
    void *event;
    memcpy(h.bytes, bytes, sizeof h.bytes);
    IV_TRY(check(d, d->open_event(&event, h), "cannot open the trainer's event", err));
    iv_status status = check(d, d->await_event(event), "the trainer's work failed", err);
    d->destroy_event(event);
    return status;
}

iv_status iv_driver_read(iv_driver *d, iv_driver_memory from, void *out, size_t bytes, iv_error *err) {
    return check(d, d->copy_out(out, from, bytes), "cannot read a GPU's memory", err);
}

iv_status iv_driver_alloc(iv_driver *d, size_t bytes, iv_driver_memory *out, iv_error *err) {
    return check(d, d->alloc(out, bytes ? bytes : 1), "no memory for a tensor", err);
}

void iv_driver_free(iv_driver *d, iv_driver_memory at) {
    if (at) d->free(at);
}

iv_status iv_driver_stream(iv_driver *d, void **out, iv_error *err) {
    enum { NON_BLOCKING = 1 };
    return check(d, d->create_stream(out, NON_BLOCKING), "no stream", err);
}

void iv_driver_end_stream(iv_driver *d, void *stream) {
    if (stream) d->destroy_stream(stream);
}

iv_status iv_driver_is_done(iv_driver *d, void *stream, bool *done, iv_error *err) {
    int code = d->query_stream(stream);
    *done = code == 0;
    return code == NOT_READY ? IV_OK : check(d, code, "the broadcast failed", err);
}
