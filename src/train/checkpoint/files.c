/* files.c: POSIX calls with named errors. */
#include "train/checkpoint/files.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, TAG_BYTES = 16, OPEN_FOLDERS = 16 };

static const char prefix[] = "checkpoint-";
static const char *const kinds[] = {[IV_TRAINING_WRITING] = "tmp", [IV_TRAINING_REMOVING] = "old"};

/* ---- names ---------------------------------------------------------------------------------------------- */

void iv_training_name(uint64_t step, char out[IV_TRAINING_NAME_BYTES]) {
    snprintf(out, IV_TRAINING_NAME_BYTES, "%s%06" PRIu64, prefix, step);
}

bool iv_training_parse_name(const char *name, uint64_t *step) {
    char again[IV_TRAINING_NAME_BYTES];
    size_t n = strlen(prefix), length = strlen(name);
    if (strncmp(name, prefix, n) != 0 || length < n + 6 || length > n + 19) return false;
    if (strspn(name + n, "0123456789") != length - n) return false;
    *step = strtoull(name + n, NULL, 10);
    iv_training_name(*step, again);
    return strcmp(name, again) == 0; /* one spelling for each step */
}

static void tag_of(const char *identity, char out[TAG_BYTES + 1]) {
    uint8_t digest[32];
    char hex[65];
    iv_digest_of(identity, strlen(identity), digest);
    iv_digest_hex(digest, hex);
    memcpy(out, hex, TAG_BYTES), out[TAG_BYTES] = 0;
}

void iv_training_aside_name(const char *identity, uint64_t step, iv_training_aside kind,
                            char out[IV_TRAINING_NAME_BYTES]) {
    char tag[TAG_BYTES + 1];
    tag_of(identity, tag);
    snprintf(out, IV_TRAINING_NAME_BYTES, ".%s%06" PRIu64 ".%s-%s", prefix, step, kinds[kind], tag);
}

/* .checkpoint-STEP.KIND-TAG of this run? */
static bool is_leftover(const char *name, const char *identity) {
    if (name[0] != '.' || strncmp(name + 1, prefix, strlen(prefix)) != 0) return false;
    uint64_t step = strtoull(name + 1 + strlen(prefix), NULL, 10);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char want[IV_TRAINING_NAME_BYTES];
        iv_training_aside_name(identity, step, (iv_training_aside)k, want);
        if (strcmp(name, want) == 0) return true;
    }
    return false;
}

/* ---- folders -------------------------------------------------------------------------------------------- */

static iv_status open_folder(const char *dir, DIR **out, iv_error *err) {
    if ((*out = opendir(dir))) return IV_OK;
    return iv_fail(err, errno == ENOENT ? IV_NOT_FOUND : IV_IO, "%s: cannot read the directory: %s", dir,
                   strerror(errno));
}

/* The next entry, NULL at the end or after an error. */
static struct dirent *next_entry(DIR *d, const char *dir, iv_status *status, iv_error *err) {
    errno = 0;
    struct dirent *e = readdir(d);
    if (!e && errno) *status = iv_fail(err, IV_IO, "%s: cannot read the directory: %s", dir, strerror(errno));
    return e;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

iv_status iv_training_remove_tree(const char *path, iv_error *err) {
    if (!iv_file_exists(path)) return IV_OK;
    int why = nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    if (why == -1) why = errno;
    return why ? iv_fail(err, IV_IO, "%s: cannot be removed: %s", path, strerror(why)) : IV_OK;
}

iv_status iv_training_remove_leftovers(const char *dir, const char *identity, iv_error *err) {
    DIR *d;
    iv_buf path = {0};
    IV_TRY(open_folder(dir, &d, err));
    iv_status status = IV_OK;
    for (struct dirent *e; status == IV_OK && (e = next_entry(d, dir, &status, err));) {
        if (!is_leftover(e->d_name, identity)) continue;
        status = iv_path_join(dir, e->d_name, &path, err);
        if (status == IV_OK) status = iv_training_remove_tree(path.data, err);
    }
    closedir(d);
    iv_buf_free(&path);
    return status;
}

static int newest_first(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

iv_status iv_training_list(const char *dir, uint64_t **steps, size_t *count, iv_error *err) {
    DIR *d;
    iv_buf list = {0};
    IV_TRY(open_folder(dir, &d, err));
    iv_status status = IV_OK;
    for (struct dirent *e; status == IV_OK && (e = next_entry(d, dir, &status, err));) {
        uint64_t step;
        if (iv_training_parse_name(e->d_name, &step) && !iv_buf_append(&list, &step, sizeof step))
            status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for its checkpoints", dir);
    }
    closedir(d);
    if (status != IV_OK) {
        iv_buf_free(&list);
        return status;
    }
    *steps = (uint64_t *)(void *)list.data, *count = list.len / sizeof **steps;
    if (*count > 1) qsort(*steps, *count, sizeof **steps, newest_first);
    return IV_OK;
}

/* ---- the disk ------------------------------------------------------------------------------------------- */

/* Some file systems cannot flush a directory, and say so. */
iv_status iv_training_flush_dir(const char *path, iv_error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return iv_fail(err, IV_IO, "%s: cannot open the directory: %s", path, strerror(errno));
    int why = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
    close(fd);
    return why ? iv_fail(err, IV_IO, "%s: cannot be flushed to the disk: %s", path, strerror(why)) : IV_OK;
}

iv_status iv_training_hash_file(const char *path, bool flush, uint64_t *bytes, uint8_t digest[32], iv_error *err) {
    int fd;
    size_t size;
    IV_TRY(iv_file_open(path, &fd, &size, err));
    char *chunk = malloc(CHUNK_BYTES);
    iv_digest *d = chunk ? iv_digest_new() : NULL;
    iv_status status = d ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to hash it", path);
    for (size_t at = 0, n; status == IV_OK && at < size; at += n) {
        n = iv_size_min(CHUNK_BYTES, size - at);
        status = iv_file_read_at(fd, path, chunk, n, at, err);
        if (status == IV_OK) iv_digest_add(d, chunk, n);
    }
    uint8_t made[32];
    if (d) iv_digest_finish(d, made);
    if (status == IV_OK && flush && fsync(fd) != 0)
        status = iv_fail(err, IV_IO, "%s: cannot be flushed to the disk: %s", path, strerror(errno));
    if (status == IV_OK) memcpy(digest, made, sizeof made), *bytes = size;
    close(fd);
    free(chunk);
    return status;
}
