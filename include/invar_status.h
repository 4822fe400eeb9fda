/* invar_status.h: what calls of every public header return: a status, an error, texts and ids. */
#ifndef INVAR_STATUS_H
#define INVAR_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IV_API __attribute__((visibility("default")))

/* The result of a call. Every status except IV_OK fills the caller's iv_error. */
typedef enum iv_status {
    IV_OK = 0,
    IV_INVALID,     /* an argument or a request field is wrong */
    IV_NOT_FOUND,   /* a file or a named thing does not exist */
    IV_IO,          /* the operating system failed a read or write */
    IV_FORMAT,      /* a file's content breaks its format */
    IV_UNSUPPORTED, /* well formed, but not something invar does */
    IV_LIMIT,       /* a named maximum would be exceeded */
    IV_NO_MEMORY,
    IV_BUSY,           /* full for now: try again later */
    IV_TEMPLATE,       /* a chat template raised an error */
    IV_CONTEXT_LENGTH, /* a prompt leaves no room for an answer in max_model_len */
    IV_NOT_FINITE      /* the model computed a key, value or logit that is NaN or infinite */
} iv_status;

/* One line for a person: names the file, tensor or field, what was wanted and what was found.
 * Owned by the caller; never allocated. */
typedef struct iv_error {
    iv_status status;
    char message[1000];
} iv_error;

/* The name of a status, for logs ("invalid", "format", ...; "format" also of IV_NOT_FINITE). Static string. */
IV_API const char *iv_status_name(iv_status status);

/* "0.2.0". Static string. */
IV_API const char *iv_version(void);

/* Text or ids that the library allocated; free with iv_text_free or iv_ids_free (zeroed ones too). */
typedef struct iv_text {
    char *data; /* NUL-terminated; may hold NUL inside */
    size_t bytes;
} iv_text;
typedef struct iv_ids {
    int32_t *data;
    size_t count, capacity;
} iv_ids;
IV_API void iv_text_free(iv_text *text);
IV_API void iv_ids_free(iv_ids *ids);

#ifdef __cplusplus
}
#endif
#endif
