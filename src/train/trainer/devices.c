/* devices.c: the devices of a trainer, their threads, and reads and writes of flat buffers wherever they are.
 */
#include "comm/mpi.h"
#include "numerics/tree.h"
#include "train/trainer/state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

size_t iv_train_round_elements(void) { return (size_t)1 << 22; }

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* The first GPU of this process: the processes of a machine take its GPUs in order, unless the launcher shows each its
 * own. */
static size_t first_gpu(const iv_trainer *t, size_t count) {
    size_t n = t->device_count, place = iv_mpi_processes() > 1 ? iv_mpi_local_rank() : t->process;
    bool own = count == n && getenv("CUDA_VISIBLE_DEVICES");
    return t->o.ordinal + (t->process_count > 1 && !own ? place * n : 0);
}

static iv_status open_gpus(iv_trainer *t, iv_error *err) {
    iv_gpu *gpus[IV_VIRTUAL_RANKS_MAX];
    size_t n = t->device_count, count;
    IV_TRY(iv_gpu_count(&count, err));
    size_t first = first_gpu(t, count);
    if (first + n > count)
        return iv_fail(err, IV_INVALID,
                       "device cuda: wanted GPUs %zu to %zu for %zu data-parallel and %zu tensor-parallel ranks, the "
                       "driver shows %zu",
                       first, first + n - 1, t->local, t->o.tp, count);
    for (size_t i = 0; i < n; i++) {
        train_device *d = &t->devices[i];
        d->gpu = i == 0 ? t->o.gpu : NULL;
        if (!d->gpu) IV_TRY(iv_gpu_open(first + i, t->o.arithmetic == IV_TC16, &d->gpu, err));
        gpus[i] = d->gpu;
    }
    return iv_gpu_peer(gpus, n, err);
}

/* Processes with one GPU each exchange between GPUs; with more, through their memory. */
static iv_status link_processes(iv_trainer *t, iv_error *err) {
    const char *how = t->o.rank_transport;
    if (t->process_count == 1 || t->o.no_optimizer || (how && strcmp(how, "host") == 0)) return IV_OK;
    if (t->device_count == 1) return iv_flat_link_gpu(t->devices[0].flat, t->o.processes, how, err);
    if (!how || strcmp(how, "nccl") != 0) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "rank_transport nccl: wanted one GPU for each process, found %zu",
                   t->device_count);
}

iv_status iv_train_open_devices(iv_trainer *t, iv_error *err) {
    iv_flat *flats[IV_VIRTUAL_RANKS_MAX];
    size_t n = t->o.cuda ? t->local * t->o.tp : 1;
    if (n > IV_VIRTUAL_RANKS_MAX || (t->o.cuda && t->local > IV_RANKS_MAX))
        return iv_fail(err, IV_UNSUPPORTED, "device cuda: wanted at most %d data-parallel ranks, found %zu",
                       IV_RANKS_MAX, t->local);
    t->devices = calloc(n, sizeof *t->devices);
    if (!t->devices) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    t->device_count = n, t->transport = t->process_count > 1 ? IV_TRAIN_BY_COMM : IV_TRAIN_BY_MEMORY;
    if (!t->o.cuda) return iv_flat_open_host(t->o.kernels, t->pool, &t->devices[0].flat, err);
    IV_TRY(open_gpus(t, err));
    for (size_t i = 0; i < n; i++) {
        train_device *d = &t->devices[i];
        IV_TRY(iv_flat_open_gpu(d->gpu, t->pool, &d->flat, err));
        flats[i] = d->flat;
    }
    iv_flat_join_gpus(flats, n);
    IV_TRY(link_processes(t, err));
    if (t->devices[0].flat->linked) t->transport = IV_TRAIN_BY_NCCL;
    return IV_OK;
}

static void drop(const train_device *d, float *flat) {
    if (d->flat) d->flat->ops->free(d->flat, flat);
}

static void drop_moments(const iv_trainer *t, const train_device *d) {
    for (int i = 0; d->flat && i < 2; i++)
        (t->o.offload_optimizer ? d->flat->ops->free_host : d->flat->ops->free)(d->flat, d->moments[i]);
}

void iv_train_close_devices(iv_trainer *t) {
    for (size_t i = 0; i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        drop(d, d->master), drop_moments(t, d);
        drop(d, d->gradient), drop(d, d->received);
        iv_flat_close(d->flat);
    }
    for (size_t i = 0; i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        if (d->model != t->o.model && (t->o.cuda ? i % t->o.tp == 0 : i == 0)) iv_model_close(d->model);
        if (d->gpu != t->o.gpu) iv_gpu_close(d->gpu);
    }
    free(t->devices);
}

/* ---- all devices at once
 * ---------------------------------------------------------------------------------------------- */

typedef struct device_run {
    iv_trainer *t;
    train_device *d;
    iv_train_device_run run;
    void *context;
    iv_status status;
    iv_error err;
    pthread_t thread;
    bool started;
} device_run;

static void *run_device(void *context) {
    device_run *r = context;
    r->status = r->run(r->t, r->d, r->context, &r->err);
    return NULL;
}

iv_status iv_train_on_devices(iv_trainer *t, iv_train_device_run run, void *context, iv_error *err) {
    if (t->device_count == 1) return run(t, t->devices, context, err);
    device_run *runs = calloc(t->device_count, sizeof *runs);
    iv_status status = runs ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    for (size_t i = 0; runs && i < t->device_count; i++) {
        runs[i] = (device_run){.t = t, .d = &t->devices[i], .run = run, .context = context};
        runs[i].started = i > 0 && pthread_create(&runs[i].thread, NULL, run_device, &runs[i]) == 0;
        if (i > 0 && !runs[i].started) run_device(&runs[i]);
    }
    if (runs) run_device(&runs[0]);
    for (size_t i = 0; runs && i < t->device_count; i++)
        if (runs[i].started) pthread_join(runs[i].thread, NULL);
    for (size_t i = t->device_count; runs && i-- > 0;)
        if (runs[i].status != IV_OK) {
            status = runs[i].status;
            if (err) *err = runs[i].err;
        }
    free(runs);
    return status;
}

/* ---- flat buffers
 * ------------------------------------------------------------------------------------------------------- */

/* What a device has of a flat buffer: elements [begin, begin + n), at the address that returns. */
static float *held(const train_device *d, iv_flat_kind kind, size_t *begin, size_t *n) {
    *begin = d->first, *n = d->count;
    switch (kind) {
    case IV_FLAT_MASTER: *begin = d->master_first, *n = d->master_count; return d->master;
    case IV_FLAT_GRADIENT: *begin = d->reduced_first, *n = d->reduced_count; return d->reduced;
    default: return d->moments[kind == IV_FLAT_SECOND_MOMENT];
    }
}

/* Reads or writes elements [first, first + count) wherever they are: every replica is written, one is read. */
static iv_status move(iv_trainer *t, iv_flat_kind kind, size_t first, size_t count, float *out, const float *in,
                      iv_error *err) {
    size_t moved = 0, copies = kind == IV_FLAT_MASTER && in && !t->o.shard_parameters ? t->device_count : 1;
    for (size_t i = 0; i < t->device_count && moved < copies * count; i++) {
        const train_device *d = &t->devices[i];
        size_t begin, n;
        float *at = held(d, kind, &begin, &n);
        size_t from = iv_size_max(first, begin), end = iv_size_min(first + count, begin + n);
        if (!at || from >= end) continue;
        IV_TRY(in ? d->flat->ops->write(d->flat, at + (from - begin), end - from, in + (from - first), err)
                  : d->flat->ops->read(d->flat, at + (from - begin), end - from, out + (from - first), err));
        moved += end - from;
    }
    IV_ASSERT(moved == copies * count);
    return IV_OK;
}

iv_status iv_train_read(iv_trainer *t, iv_flat_kind kind, size_t first, size_t count, float *out, iv_error *err) {
    return move(t, kind, first, count, out, NULL, err);
}

iv_status iv_train_write(iv_trainer *t, iv_flat_kind kind, size_t first, size_t count, const float *in, iv_error *err) {
    return move(t, kind, first, count, NULL, in, err);
}
