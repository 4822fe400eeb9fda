/* file.h: reading and writing files; every failure gives one clear error. */
#ifndef IV_BASE_FILE_H
#define IV_BASE_FILE_H

#include "base/buf.h"
#include "base/status.h"

/* Reads a whole regular file of at most max_bytes into out (replacing its content). Errors name the path:
 * missing, a directory, too large, a short read. */
iv_status iv_file_read(const char *path, size_t max_bytes, iv_buf *out, iv_error *err);

/* The same for a file that the user names: pipes, FIFOs and devices too, such as <(...) of a shell, until they end.
 * Waits for a FIFO's writer, so that files of a directory are read by iv_file_read. */
iv_status iv_file_read_any(const char *path, size_t max_bytes, iv_buf *out, iv_error *err);

/* Opens a regular file for reading; the caller closes *fd; *size is its length in bytes. A Git LFS pointer is
 * refused. */
iv_status iv_file_open(const char *path, int *fd, size_t *size, iv_error *err);

/* Reads exactly n bytes at offset; IV_IO if the file has become shorter. Safe from several threads. */
iv_status iv_file_read_at(int fd, const char *path, void *dst, size_t n, size_t offset, iv_error *err);

/* A file written under a temporary name and renamed once complete: readers never see part of it, and a failure keeps
 * the old file. A device or a pipe is written to directly. */
typedef struct iv_file_writer {
    const char *path; /* the caller's, for errors */
    char *target;     /* the file to replace; NULL: a device or a pipe */
    iv_buf temporary;
    int fd;
} iv_file_writer;
iv_status iv_file_writer_open(const char *path, iv_file_writer *w, iv_error *err);
iv_status iv_file_writer_put(iv_file_writer *w, const void *bytes, size_t n, iv_error *err);
/* status: the result of writing; anything but IV_OK discards the file. Returns it, or the error of closing. */
iv_status iv_file_writer_close(iv_file_writer *w, iv_status status, iv_error *err);

/* The same for a whole file. */
iv_status iv_file_write(const char *path, const void *bytes, size_t n, iv_error *err);

/* Whether the name exists. A dangling symbolic link counts: opening it gives IV_IO, so an interrupted download is not
 * taken for a directory without an optional file. */
bool iv_file_exists(const char *path);

/* dir + "/" + name, into out (replacing its content). */
iv_status iv_path_join(const char *dir, const char *name, iv_buf *out, iv_error *err);

#endif
