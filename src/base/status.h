/* status.h: operating errors as values.
 *
 * A fallible function returns iv_status and takes `iv_error *err` last; on failure it has filled *err
 * (err may not be NULL). Programmer errors are IV_ASSERT, on in release builds too. */
#ifndef IV_BASE_STATUS_H
#define IV_BASE_STATUS_H

#include "invar_status.h"

/* Fills *err and returns status, so that `return iv_fail(err, IV_FORMAT, "...", ...)` is one line.
 * A message longer than the buffer is cut; control bytes and invalid UTF-8 are shown as \xNN, so that a
 * hostile file cannot write to the terminal and an error stays one line. */
iv_status iv_fail(iv_error *err, iv_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the message already in *err; returns err->status. */
iv_status iv_error_prefix(iv_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define IV_TRY(expr)                                        \
    do {                                                    \
        iv_status iv_try_status_ = (expr);                  \
        if (iv_try_status_ != IV_OK) return iv_try_status_; \
    } while (0)

void iv_assert_failed(const char *file, int line, const char *what) __attribute__((noreturn));
#define IV_ASSERT(cond) ((cond) ? (void)0 : iv_assert_failed(__FILE__, __LINE__, #cond))

#endif
