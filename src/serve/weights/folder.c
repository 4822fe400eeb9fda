/* folder.c: PARENT/invar-updates-XXXXXX/lock and .../1, .../2, ... */
#include "serve/weights/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { OPEN_FILES = 8, PATH_BYTES = 4096, YOUNG_S = 60 };
static const char PREFIX[] = "invar-updates-";

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    (void)remove(path);
    return 0;
}

void iv_folder_remove(const char *path) {
    if (path) nftw(path, remove_one, OPEN_FILES, FTW_DEPTH | FTW_PHYS);
}

/* Whether its server is gone: a living one holds the lock; a young one may not hold it yet. */
static bool is_left_over(const char *path) {
    char lock[PATH_BYTES];
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) return false;
    if (time(NULL) - st.st_mtime < YOUNG_S) return false;
    if ((size_t)snprintf(lock, sizeof lock, "%s/lock", path) >= sizeof lock) return false;
    int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno == ENOENT;
    bool free_lock = flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return free_lock;
}

static void remove_left_over(const char *parent) {
    char path[PATH_BYTES];
    DIR *dir = opendir(parent);
    if (!dir) return;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0) continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", parent, e->d_name) >= sizeof path) continue;
        if (is_left_over(path)) iv_folder_remove(path);
    }
    closedir(dir);
}

static const char *choose_parent(size_t bytes) {
    static const char memory[] = "/dev/shm";
    const char *tmp = getenv("TMPDIR");
    struct statvfs v;
    if (statvfs(memory, &v) == 0 && access(memory, W_OK) == 0 &&
        (double)v.f_bavail * (double)v.f_frsize > 3.0 * (double)bytes)
        return memory;
    return tmp && *tmp ? tmp : "/tmp";
}

static iv_status hold_lock(iv_folder *f, iv_error *err) {
    char lock[PATH_BYTES];
    snprintf(lock, sizeof lock, "%s/lock", f->path);
    f->lock = open(lock, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (f->lock >= 0 && flock(f->lock, LOCK_EX | LOCK_NB) == 0) return IV_OK;
    return iv_fail(err, IV_IO, "%.800s: cannot lock it: %s", lock, strerror(errno));
}

iv_status iv_folder_open(iv_folder *f, const char *parent, size_t bytes, iv_error *err) {
    if (!parent) parent = choose_parent(bytes);
    remove_left_over(parent);
    size_t n = strlen(parent) + sizeof PREFIX + 8;
    char *path = malloc(n);
    *f = (iv_folder){.lock = -1};
    if (!path || n >= PATH_BYTES) {
        free(path);
        return iv_fail(err, IV_NO_MEMORY, "update-dir: no memory, or too long a path");
    }
    snprintf(path, n, "%s/%sXXXXXX", parent, PREFIX);
    if (!mkdtemp(path)) {
        free(path);
        return iv_fail(err, IV_IO, "update-dir: cannot make a folder in %.500s: %s", parent, strerror(errno));
    }
    f->path = path;
    return hold_lock(f, err);
}

void iv_folder_close(iv_folder *f) {
    iv_folder_remove(f->path);
    if (f->lock >= 0) close(f->lock);
    free(f->path);
    *f = (iv_folder){.lock = -1};
}

iv_status iv_folder_add(iv_folder *f, char **path, iv_error *err) {
    size_t n = strlen(f->path) + 32;
    *path = malloc(n);
    if (!*path) return iv_fail(err, IV_NO_MEMORY, "update: no memory");
    snprintf(*path, n, "%s/%" PRIu64, f->path, ++f->sets);
    if (mkdir(*path, 0700) == 0) return IV_OK;
    iv_fail(err, IV_IO, "%.800s: cannot make it: %s", *path, strerror(errno));
    free(*path);
    *path = NULL;
    return err->status;
}
