/* file.h: reading files so that bad ones give one clear error. */
#ifndef IV_BASE_FILE_H
#define IV_BASE_FILE_H

#include "base/buf.h"
#include "base/status.h"

/* Reads a whole regular file of at most max_bytes into out (replacing its content). Errors name the path:
 * missing, a directory, too large, a short read. */
iv_status iv_file_read(const char *path, size_t max_bytes, iv_buf *out, iv_error *err);

/* Opens a regular file for reading; *fd is the caller's to close, *size its length in bytes. A pointer of Git LFS is
 * refused. */
iv_status iv_file_open(const char *path, int *fd, size_t *size, iv_error *err);

/* Reads exactly n bytes at offset; IV_IO if the file has become shorter. Safe from several threads. */
iv_status iv_file_read_at(int fd, const char *path, void *dst, size_t n, size_t offset, iv_error *err);

/* A file that is written under a temporary name and renamed when it is whole, so that a reader never sees half of it
 * and a failure leaves what was there. What is no regular file (a device, a pipe) is written to as it stands. */
typedef struct iv_file_writer {
    const char *path; /* the caller's, for errors */
    char *place;      /* what is to be replaced; NULL: nothing is */
    iv_buf temporary;
    int fd;
} iv_file_writer;
iv_status iv_file_writer_open(const char *path, iv_file_writer *w, iv_error *err);
iv_status iv_file_writer_put(iv_file_writer *w, const void *bytes, size_t n, iv_error *err);
/* status: what writing came to; anything but IV_OK throws the file away. Returns it, or what closing came to. */
iv_status iv_file_writer_close(iv_file_writer *w, iv_status status, iv_error *err);

/* Is there anything of this name? A symbolic link to nothing counts: who opens it gets IV_IO, so that a download that
 * was cut short does not pass for a directory without an optional file. */
bool iv_file_exists(const char *path);

/* dir + "/" + name, into out (replacing its content). */
iv_status iv_path_join(const char *dir, const char *name, iv_buf *out, iv_error *err);

#endif
