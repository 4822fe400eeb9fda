/* sources.c: torch's shared memory as it lies in /dev/shm: a count of references in the first 64 bytes, then the data.
 */
#include "serve/weights/sources.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHM_HEAD_BYTES = 64 };

static iv_status map_shm(const char *name, size_t bytes, void **map, size_t *map_bytes, iv_error *err) {
    struct stat st;
    size_t wanted = 0;
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return iv_fail(err, IV_INVALID, "shared memory %s: cannot open it: %s", name, strerror(errno));
    *map = MAP_FAILED;
    bool fits = iv_size_add(bytes, SHM_HEAD_BYTES, &wanted) && fstat(fd, &st) == 0 && st.st_size >= 0 &&
                (size_t)st.st_size >= wanted;
    if (fits) *map = mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    *map_bytes = wanted;
    if (!fits) return iv_fail(err, IV_INVALID, "shared memory %s: wanted %zu bytes, found a shorter file", name, bytes);
    if (*map == MAP_FAILED) return iv_fail(err, IV_IO, "shared memory %s: cannot map it: %s", name, strerror(errno));
    return IV_OK;
}

static iv_status open_shm(iv_source *s, iv_error *err) {
    void *map;
    IV_TRY(map_shm(s->storage->shm, s->storage->bytes, &map, &s->map_bytes, err));
    s->map = map, s->bytes = (const unsigned char *)map + SHM_HEAD_BYTES;
    return IV_OK;
}

static iv_status open_cuda(iv_source *s, iv_error *err) {
    const iv_message_storage *m = s->storage;
    if (!*s->driver) IV_TRY(iv_driver_open(s->driver, err));
    IV_TRY(iv_driver_find(*s->driver, m->device, &s->ordinal, err));
    IV_TRY(iv_driver_use(*s->driver, s->ordinal, err));
    if (m->has_event) IV_TRY(iv_driver_await(*s->driver, m->event, err));
    return iv_driver_open_memory(*s->driver, m->ipc, &s->memory, err);
}

iv_status iv_source_open(const iv_message_storage *storage, iv_driver **driver, iv_source *out, iv_error *err) {
    *out = (iv_source){.storage = storage, .driver = driver};
    switch (storage->kind) {
    case IV_STORAGE_EMPTY: return IV_OK;
    case IV_STORAGE_INLINE: out->bytes = storage->data; return IV_OK;
    case IV_STORAGE_SHM: return open_shm(out, err);
    case IV_STORAGE_CUDA: return open_cuda(out, err);
    }
    return iv_fail(err, IV_INVALID, "a tensor's memory: unknown kind");
}

iv_status iv_source_read(iv_source *s, size_t offset, size_t n, void *out, iv_error *err) {
    if (offset > s->storage->bytes || n > s->storage->bytes - offset)
        return iv_fail(err, IV_INVALID, "a tensor's memory: wanted %zu bytes from %zu on, found %zu", n, offset,
                       s->storage->bytes);
    if (n == 0) return IV_OK;
    if (s->storage->kind == IV_STORAGE_CUDA) {
        IV_TRY(iv_driver_use(*s->driver, s->ordinal, err));
        return iv_driver_read(*s->driver, s->memory + s->storage->ipc_offset + offset, out, n, err);
    }
    memcpy(out, s->bytes + offset, n);
    return IV_OK;
}

void iv_source_close(iv_source *s) {
    iv_error unused;
    if (s->map) munmap(s->map, s->map_bytes);
    if (s->memory && iv_driver_use(*s->driver, s->ordinal, &unused) == IV_OK)
        iv_driver_close_memory(*s->driver, s->memory);
    *s = (iv_source){0};
}

/* ---- references --------------------------------------------------------------------------------------- */

/* The last one removes the file, as torch's allocator does. */
static void release_shm(const char *name) {
    iv_error unused;
    void *map = NULL;
    size_t bytes = 0;
    if (map_shm(name, 0, &map, &bytes, &unused) != IV_OK) return;
    if (atomic_fetch_sub((_Atomic int *)map, 1) == 1) shm_unlink(name);
    munmap(map, bytes);
}

/* The sender's file of counts for its GPU memory. */
static void release_counter(const char *name, size_t index) {
    iv_error unused;
    void *map = NULL;
    size_t bytes = 0, end = 0;
    if (!iv_size_mul(index, sizeof(int64_t), &end) || !iv_size_add(end, sizeof(int64_t), &end)) return;
    if (map_shm(name, end, &map, &bytes, &unused) != IV_OK) return;
    atomic_fetch_sub((_Atomic int64_t *)((char *)map + SHM_HEAD_BYTES) + index, 1);
    munmap(map, bytes);
}

void iv_source_release(const iv_message_storage *m) {
    if (m->kind == IV_STORAGE_SHM) release_shm(m->shm);
    if (m->kind == IV_STORAGE_CUDA && m->counter[0]) release_counter(m->counter, m->counter_index);
}
