/* file.c: POSIX file reads with named errors. */
#include "base/file.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first line of a Git LFS pointer, which a clone without git-lfs has instead of a large file. */
static bool is_lfs_pointer(int fd, size_t size) {
    static const char begin[] = "version https://git-lfs.github.com/spec/";
    enum { POINTER_BYTES_MAX = 1024, BEGIN = sizeof begin - 1 };
    char text[BEGIN];
    return size >= BEGIN && size < POINTER_BYTES_MAX && pread(fd, text, BEGIN, 0) == BEGIN &&
           memcmp(text, begin, BEGIN) == 0;
}

iv_status iv_file_open(const char *path, int *fd, size_t *size, iv_error *err) {
    /* O_NONBLOCK: a FIFO must not block the open. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) {
        int why = errno;
        if (why == ENOENT && iv_file_exists(path))
            return iv_fail(err, IV_IO, "%s: cannot open: a symbolic link that leads to no file", path);
        iv_status status = why == ENOENT || why == ENOTDIR ? IV_NOT_FOUND : IV_IO;
        return iv_fail(err, status, "%s: cannot open: %s", path, strerror(why));
    }
    struct stat st;
    if (fstat(f, &st) != 0 || !S_ISREG(st.st_mode)) {
        const char *found = S_ISDIR(st.st_mode)                            ? "a directory"
                            : S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) ? "a pipe (copy what it gives to a file)"
                                                                           : "not a regular file";
        close(f);
        return iv_fail(err, IV_IO, "%s: wanted a file, found %s", path, found);
    }
    if (is_lfs_pointer(f, (size_t)st.st_size)) {
        close(f);
        return iv_fail(err, IV_FORMAT, "%s: wanted a file, found Git LFS's pointer to it (git lfs pull fetches it)",
                       path);
    }
    *fd = f;
    *size = (size_t)st.st_size;
    return IV_OK;
}

iv_status iv_file_read_at(int fd, const char *path, void *dst, size_t n, size_t offset, iv_error *err) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)dst + done, iv_size_min(n - done, (size_t)1 << 30), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return iv_fail(err, IV_IO, "%s: read failed: %s", path, strerror(errno));
        if (got == 0)
            return iv_fail(err, IV_IO, "%s: ends at byte %zu, wanted %zu bytes at %zu (shortened while being read?)",
                           path, offset + done, n, offset);
        done += (size_t)got;
    }
    return IV_OK;
}

iv_status iv_file_read(const char *path, size_t max_bytes, iv_buf *out, iv_error *err) {
    int fd;
    size_t size;
    IV_TRY(iv_file_open(path, &fd, &size, err));
    iv_status status = IV_OK;
    iv_buf_clear(out);
    if (size > max_bytes)
        status = iv_fail(err, IV_LIMIT, "%s: %zu bytes, at most %zu are read", path, size, max_bytes);
    else if (!iv_buf_reserve(out, size))
        status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu bytes", path, size);
    else
        status = iv_file_read_at(fd, path, out->data, size, 0, err);
    close(fd);
    if (status == IV_OK) {
        out->len = size;
        out->data[size] = 0;
    }
    return status;
}

/* From something without a size, until it ends. */
static iv_status read_stream(int fd, const char *path, size_t max_bytes, iv_buf *out, iv_error *err) {
    enum { PIECE = 1 << 16 };
    iv_buf_clear(out);
    for (;;) {
        if (!iv_buf_reserve(out, out->len + PIECE))
            return iv_fail(err, IV_NO_MEMORY, "%s: no memory for more than %zu bytes", path, out->len);
        ssize_t got = read(fd, out->data + out->len, PIECE);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return iv_fail(err, IV_IO, "%s: read failed: %s", path, strerror(errno));
        if (got == 0) break;
        out->len += (size_t)got;
        if (out->len > max_bytes)
            return iv_fail(err, IV_LIMIT, "%s: more than %zu bytes, at most %zu are read", path, max_bytes, max_bytes);
    }
    out->data[out->len] = 0;
    return IV_OK;
}

iv_status iv_file_read_any(const char *path, size_t max_bytes, iv_buf *out, iv_error *err) {
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        return iv_file_read(path, max_bytes, out, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return iv_fail(err, IV_IO, "%s: cannot open: %s", path, strerror(errno));
    iv_status status = read_stream(fd, path, max_bytes, out, err);
    close(fd);
    return status;
}

/* The target of the rename: the file that a symbolic link refers to, not the link. */
static iv_status target_of(const char *path, char **out, iv_error *err) {
    *out = realpath(path, NULL);
    if (!*out && errno == ENOENT) *out = strdup(path);
    return *out ? IV_OK : iv_fail(err, IV_IO, "%s: cannot write: %s", path, strerror(errno));
}

iv_status iv_file_writer_open(const char *path, iv_file_writer *w, iv_error *err) {
    struct stat st;
    *w = (iv_file_writer){.path = path, .fd = -1};
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a device or a pipe: nothing to replace */
        w->fd = open(path, O_WRONLY | O_CLOEXEC);
        return w->fd >= 0 ? IV_OK : iv_fail(err, IV_IO, "%s: cannot write: %s", path, strerror(errno));
    }
    IV_TRY(target_of(path, &w->target, err));
    iv_status status = IV_OK;
    if (!iv_buf_printf(&w->temporary, "%s.tmp.%ld", w->target, (long)getpid()))
        status = iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    else if ((w->fd = open(w->temporary.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        status = iv_fail(err, IV_IO, "%s: cannot write: %s", path, strerror(errno));
    if (status == IV_OK) return IV_OK;
    iv_buf_free(&w->temporary), free(w->target);
    return status;
}

iv_status iv_file_writer_put(iv_file_writer *w, const void *bytes, size_t n, iv_error *err) {
    for (size_t done = 0; done < n;) {
        ssize_t put = write(w->fd, (const char *)bytes + done, iv_size_min(n - done, (size_t)1 << 30));
        if (put >= 0)
            done += (size_t)put;
        else if (errno != EINTR)
            return iv_fail(err, IV_IO, "%s: write failed: %s", w->path, strerror(errno));
    }
    return IV_OK;
}

iv_status iv_file_writer_close(iv_file_writer *w, iv_status status, iv_error *err) {
    if (close(w->fd) != 0 && status == IV_OK)
        status = iv_fail(err, IV_IO, "%s: write failed: %s", w->path, strerror(errno));
    if (status == IV_OK && w->target && rename(w->temporary.data, w->target) != 0)
        status = iv_fail(err, IV_IO, "%s: cannot rename into place: %s", w->path, strerror(errno));
    if (status != IV_OK && w->target) unlink(w->temporary.data);
    iv_buf_free(&w->temporary), free(w->target);
    return status;
}

iv_status iv_file_write(const char *path, const void *bytes, size_t n, iv_error *err) {
    iv_file_writer w;
    IV_TRY(iv_file_writer_open(path, &w, err));
    return iv_file_writer_close(&w, iv_file_writer_put(&w, bytes, n, err), err);
}

bool iv_file_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

iv_status iv_path_join(const char *dir, const char *name, iv_buf *out, iv_error *err) {
    size_t n = strlen(dir);
    iv_buf_clear(out);
    if (iv_buf_printf(out, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name)) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "%s/%s: no memory for the path", dir, name);
}
