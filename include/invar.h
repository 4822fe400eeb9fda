/* invar.h: the only public header of libinvar.
 *
 * Engine, request, event, status. C ABI, opaque types, no global state. */
#ifndef INVAR_H
#define INVAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IV_API __attribute__((visibility("default")))

/* What a call came to. Everything but IV_OK fills the caller's iv_error. */
typedef enum iv_status {
    IV_OK = 0,
    IV_INVALID,     /* an argument or a request field is wrong */
    IV_NOT_FOUND,   /* a file or a named thing does not exist */
    IV_IO,          /* the operating system failed a read or write */
    IV_FORMAT,      /* a file's content breaks its format */
    IV_UNSUPPORTED, /* well formed, but not something invar does */
    IV_LIMIT,       /* a named maximum would be exceeded */
    IV_NO_MEMORY,
    IV_BUSY,        /* full for now: try again later */
    IV_TEMPLATE     /* a chat template raised an error */
} iv_status;

/* One line for a person: names the file, tensor or field, what was wanted and what was found.
 * Owned by the caller; never allocated. */
typedef struct iv_error {
    iv_status status;
    char message[1000];
} iv_error;

/* The name of a status, for logs ("invalid", "format", ...). Static string. */
IV_API const char *iv_status_name(iv_status status);

#ifdef __cplusplus
}
#endif
#endif
