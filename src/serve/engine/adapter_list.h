/* adapter_list.h: the adapters that a bridge's engine has loaded, as the server knows them: what requests may name, and
 * what a restarted engine process loads again. One thread changes a list; any thread may take copies out of it. */
#ifndef IV_SERVE_ENGINE_ADAPTER_LIST_H
#define IV_SERVE_ENGINE_ADAPTER_LIST_H

#include "base/buf.h"
#include "base/status.h"

#include <pthread.h>

enum { IV_ADAPTER_NAME_BYTES = 256, IV_ADAPTER_PATH_BYTES = 3072, IV_ADAPTER_DIGEST_BYTES = 65 };

/* One that a command line asks for. */
typedef struct iv_lora_module {
    const char *name, *path;
    const char *base; /* the base's name there, which must be right; NULL: none was said */
} iv_lora_module;

/* A copy of an entry. */
typedef struct iv_served_adapter {
    char name[IV_ADAPTER_NAME_BYTES], path[IV_ADAPTER_PATH_BYTES];
    char digest[IV_ADAPTER_DIGEST_BYTES];
    size_t rank, modules, bytes; /* as iv_adapter_info has them */
} iv_served_adapter;

typedef struct iv_adapter_entry {
    struct iv_adapter_entry *next; /* in the order of loading */
    iv_served_adapter adapter;
    size_t users;      /* requests of the journal that began with it */
    bool retired;      /* unloaded or replaced: it stays while it has users */
    uint64_t reloaded; /* id of the command by which this life of the engine process loads it again; 0: none */
} iv_adapter_entry;

typedef struct iv_adapter_list {
    pthread_mutex_t mutex;
    iv_adapter_entry *first;
} iv_adapter_list;

void iv_adapter_list_open(iv_adapter_list *l);
void iv_adapter_list_close(iv_adapter_list *l);

/* Any thread. The adapter of a name, and the index-th in the order of loading; false: there is none. out may be NULL.
 */
bool iv_adapter_list_find(iv_adapter_list *l, const char *name, iv_served_adapter *out);
bool iv_adapter_list_at(iv_adapter_list *l, size_t index, iv_served_adapter *out);

/* The thread that changes it. */
iv_adapter_entry *iv_adapter_list_entry(const iv_adapter_list *l, const char *name); /* NULL: none is loaded */
/* The engine has loaded it; one of the same name is retired. NULL: no memory. */
iv_adapter_entry *iv_adapter_list_add(iv_adapter_list *l, const iv_served_adapter *a);
void iv_adapter_list_retire(iv_adapter_list *l, iv_adapter_entry *e); /* frees it without users */
void iv_adapter_list_use(iv_adapter_entry *e);                        /* NULL is fine, here and below */
void iv_adapter_list_leave(iv_adapter_list *l, iv_adapter_entry *e);

/* ---- the texts of IV_COMMAND_LOAD_ADAPTER --------------------------------------------------------------- */

typedef struct iv_adapter_command {
    const char *name, *path;
    const char *digest; /* that it must have; NULL or "": any */
    bool in_place;      /* the name may be taken */
} iv_adapter_command;

/* Checks the name and the lengths. */
iv_status iv_adapter_command_write(const iv_adapter_command *c, iv_buf *out, iv_error *err);
/* Splits the text, which *c then points into. False: it is none. */
bool iv_adapter_command_read(char *text, iv_adapter_command *c);

/* The result: "DIGEST RANK MODULES BYTES". */
bool iv_adapter_result_write(const iv_served_adapter *a, iv_buf *out);
bool iv_adapter_result_read(const char *text, iv_served_adapter *out);

#endif
