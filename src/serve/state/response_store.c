/* response_store.c: an index in memory, oldest first; files named by the SHA-256 of their ids, so that any id is a good
 * file name; and the thread that writes and removes them.
 *
 * An entry with a text is pending: its file is not there yet. The thread writes one text at a time without the mutex;
 * if its entry is removed meanwhile, the thread frees the text and removes the file. */
#include "serve/state/response_store.h"
#include "base/digest.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 32, HEX_BYTES = 2 * NAME_BYTES + 1, PATH_BYTES = 4096 };

typedef struct entry {
    uint8_t name[NAME_BYTES];
    uint64_t bytes;
    char *text; /* NULL: in its file */
} entry;

typedef struct name_list {
    uint8_t (*names)[NAME_BYTES];
    size_t count, capacity;
} name_list;

struct iv_response_store {
    char *directory;
    size_t count_max;
    uint64_t bytes_max;
    int lock; /* file descriptor of DIRECTORY/.lock */
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    entry *list;
    size_t count, capacity;
    uint64_t bytes, pending_bytes;
    name_list doomed; /* files to remove */
    const char *writing;
    bool stop;
    uint64_t lost;
    char why[256];
};

/* ---- names and files ---------------------------------------------------------------------------------- */

static void name_of(const char *id, uint8_t out[NAME_BYTES]) { iv_digest_of(id, strlen(id), out); }

static void path_of(const iv_response_store *s, const uint8_t name[NAME_BYTES], char out[PATH_BYTES]) {
    char hex[HEX_BYTES];
    iv_digest_hex(name, hex);
    snprintf(out, PATH_BYTES, "%s/%s.json", s->directory, hex);
}

static bool read_name(const char *file, uint8_t out[NAME_BYTES]) {
    if (strlen(file) != 2 * NAME_BYTES + 5 || strcmp(file + 2 * NAME_BYTES, ".json") != 0) return false;
    for (size_t i = 0; i < NAME_BYTES; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *high = strchr(digits, file[2 * i]), *low = strchr(digits, file[2 * i + 1]);
        if (!high || !low) return false;
        out[i] = (uint8_t)((high - digits) << 4 | (low - digits));
    }
    return true;
}

/* ---- the index, with the mutex held, or before the thread runs ---------------------------------------- */

static bool doom(iv_response_store *s, const uint8_t name[NAME_BYTES]) {
    name_list *d = &s->doomed;
    if (d->count == d->capacity) {
        size_t more = d->capacity ? 2 * d->capacity : 64;
        void *grown = realloc(d->names, more * sizeof *d->names);
        if (!grown) return false; /* the file stays until the next start */
        d->names = grown, d->capacity = more;
    }
    memcpy(d->names[d->count++], name, NAME_BYTES);
    return true;
}

static entry *find(const iv_response_store *s, const uint8_t name[NAME_BYTES]) {
    for (size_t i = s->count; i-- > 0;) /* mostly a recent one */
        if (memcmp(s->list[i].name, name, NAME_BYTES) == 0) return &s->list[i];
    return NULL;
}

static bool append(iv_response_store *s, const entry *e) {
    if (s->count == s->capacity) {
        size_t more = s->capacity ? 2 * s->capacity : 256;
        entry *grown = realloc(s->list, more * sizeof *grown);
        if (!grown) return false;
        s->list = grown, s->capacity = more;
    }
    s->list[s->count++] = *e;
    s->bytes += e->bytes;
    return true;
}

/* Drops an entry; its file, too, or its text. */
static void drop(iv_response_store *s, entry *e) {
    s->bytes -= e->bytes;
    if (!e->text)
        doom(s, e->name);
    else if (e->text != s->writing) { /* else the thread finds it gone */
        s->pending_bytes -= e->bytes;
        free(e->text);
    }
    size_t at = (size_t)(e - s->list);
    memmove(e, e + 1, (s->count - at - 1) * sizeof *e);
    s->count--;
}

static void limit(iv_response_store *s) {
    while (s->count > s->count_max || (s->bytes > s->bytes_max && s->count > 0)) drop(s, &s->list[0]);
}

static void lose(iv_response_store *s, const char *why) {
    s->lost++;
    snprintf(s->why, sizeof s->why, "%.250s", why);
}

/* ---- the thread --------------------------------------------------------------------------------------- */

static entry *next_pending(const iv_response_store *s) {
    for (size_t i = 0; s->pending_bytes && i < s->count; i++)
        if (s->list[i].text) return &s->list[i];
    return NULL;
}

/* Writes one text. With the mutex held, except meanwhile. */
static void write_one(iv_response_store *s, const entry *pending) {
    entry e = *pending;
    char path[PATH_BYTES];
    iv_error err;
    s->writing = e.text;
    pthread_mutex_unlock(&s->mutex);
    path_of(s, e.name, path);
    iv_status status = iv_file_write(path, e.text, e.bytes, &err);
    pthread_mutex_lock(&s->mutex);
    s->writing = NULL;
    s->pending_bytes -= e.bytes;
    entry *now = find(s, e.name);
    bool there = now && now->text == e.text;
    if (there) now->text = NULL;
    if (!there && status == IV_OK) doom(s, e.name);
    if (there && status != IV_OK) {
        lose(s, err.message);
        drop(s, now);
    }
    free(e.text);
}

static void remove_one(iv_response_store *s) {
    uint8_t name[NAME_BYTES];
    char path[PATH_BYTES];
    memcpy(name, s->doomed.names[--s->doomed.count], NAME_BYTES);
    pthread_mutex_unlock(&s->mutex);
    path_of(s, name, path);
    unlink(path);
    pthread_mutex_lock(&s->mutex);
}

static void *run(void *arg) {
    iv_response_store *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        const entry *e = next_pending(s);
        if (s->doomed.count)
            remove_one(s);
        else if (e)
            write_one(s, e);
        else if (s->stop)
            break;
        else
            pthread_cond_wait(&s->changed, &s->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------ */

typedef struct found {
    entry e;
    struct timespec at;
} found;

static int older_first(const void *a, const void *b) {
    const struct timespec *x = &((const found *)a)->at, *y = &((const found *)b)->at;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static iv_status scan(iv_response_store *s, DIR *d, iv_error *err) {
    found *all = NULL;
    size_t n = 0, capacity = 0;
    bool good = true;
    for (const struct dirent *f; good && (f = readdir(d));) {
        found one = {.e.text = NULL};
        struct stat st;
        if (!read_name(f->d_name, one.e.name) || fstatat(dirfd(d), f->d_name, &st, 0) != 0) continue;
        one.e.bytes = (uint64_t)st.st_size, one.at = st.st_mtim;
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            found *grown = realloc(all, capacity * sizeof *all);
            if (!(good = grown != NULL)) break;
            all = grown;
        }
        all[n++] = one;
    }
    if (n) qsort(all, n, sizeof *all, older_first);
    for (size_t i = 0; good && i < n; i++) good = append(s, &all[i].e);
    free(all);
    limit(s);
    return good ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", s->directory);
}

static iv_status lock_directory(iv_response_store *s, iv_error *err) {
    char path[PATH_BYTES];
    if (mkdir(s->directory, 0700) != 0 && errno != EEXIST)
        return iv_fail(err, IV_IO, "%s: cannot create it: %s", s->directory, strerror(errno));
    snprintf(path, sizeof path, "%s/.lock", s->directory);
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock < 0) return iv_fail(err, IV_IO, "%s: cannot write: %s", s->directory, strerror(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB) == 0) return IV_OK;
    return iv_fail(err, IV_BUSY, "%s: another process keeps its responses there", s->directory);
}

static iv_status open_parts(iv_response_store *s, iv_error *err) {
    IV_TRY(lock_directory(s, err));
    DIR *d = opendir(s->directory);
    if (!d) return iv_fail(err, IV_IO, "%s: cannot read: %s", s->directory, strerror(errno));
    iv_status status = scan(s, d, err);
    closedir(d);
    if (status != IV_OK) return status;
    int why = pthread_create(&s->thread, NULL, run, s);
    if (why) return iv_fail(err, IV_NO_MEMORY, "stored responses: no thread: %s", strerror(why));
    s->started = true;
    return IV_OK;
}

iv_status iv_response_store_open(const iv_response_store_options *o, iv_response_store **out, iv_error *err) {
    *out = NULL;
    if (strlen(o->directory) > PATH_BYTES - HEX_BYTES - 16)
        return iv_fail(err, IV_LIMIT, "stored responses: the directory's name is too long");
    iv_response_store *s = calloc(1, sizeof *s);
    char *directory = strdup(o->directory);
    if (!s || !directory) {
        free(s), free(directory);
        return iv_fail(err, IV_NO_MEMORY, "stored responses: no memory");
    }
    s->directory = directory, s->count_max = o->count_max, s->bytes_max = o->bytes_max, s->lock = -1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    iv_status status = open_parts(s, err);
    if (status == IV_OK)
        *out = s;
    else
        iv_response_store_close(s);
    return status;
}

void iv_response_store_close(iv_response_store *s) {
    if (!s) return;
    if (s->started) {
        pthread_mutex_lock(&s->mutex);
        s->stop = true;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed), pthread_mutex_destroy(&s->mutex);
    if (s->lock >= 0) close(s->lock);
    free(s->doomed.names), free(s->list), free(s->directory);
    free(s);
}

/* ---- responses ---------------------------------------------------------------------------------------- */

void iv_response_store_put(iv_response_store *s, const char *id, iv_buf *text) {
    entry e = {.bytes = text->len, .text = text->data};
    name_of(id, e.name);
    pthread_mutex_lock(&s->mutex);
    entry *before = find(s, e.name);
    if (before) drop(s, before);
    bool good = e.bytes > 0 && e.bytes <= IV_STORED_BYTES_MAX && e.bytes <= s->bytes_max &&
                s->pending_bytes + e.bytes <= IV_STORED_PENDING_MAX;
    if (!good) lose(s, e.bytes > IV_STORED_BYTES_MAX ? "a response is too large" : "too many wait to be written");
    if (good && !(good = append(s, &e))) lose(s, "no memory");
    if (good) {
        s->pending_bytes += e.bytes;
        *text = (iv_buf){0};
        limit(s);
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    iv_buf_free(text);
}

iv_status iv_response_store_get(iv_response_store *s, const char *id, iv_buf *out, iv_error *err) {
    uint8_t name[NAME_BYTES];
    char path[PATH_BYTES];
    name_of(id, name);
    pthread_mutex_lock(&s->mutex);
    const entry *e = find(s, name);
    bool there = e != NULL, pending = e && e->text, good = !pending || iv_buf_append(out, e->text, e->bytes);
    pthread_mutex_unlock(&s->mutex);
    if (!good) return iv_fail(err, IV_NO_MEMORY, "stored responses: no memory");
    if (pending) return IV_OK;
    if (!there) return iv_fail(err, IV_NOT_FOUND, "no stored response has the id \"%.100s\"", id);
    path_of(s, name, path);
    return iv_file_read(path, IV_STORED_BYTES_MAX, out, err);
}

iv_status iv_response_store_remove(iv_response_store *s, const char *id, iv_error *err) {
    uint8_t name[NAME_BYTES];
    name_of(id, name);
    pthread_mutex_lock(&s->mutex);
    entry *e = find(s, name);
    if (e) {
        drop(s, e);
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return e ? IV_OK : iv_fail(err, IV_NOT_FOUND, "no stored response has the id \"%.100s\"", id);
}

void iv_response_store_get_stats(iv_response_store *s, iv_response_store_stats *out) {
    pthread_mutex_lock(&s->mutex);
    *out = (iv_response_store_stats){.count = s->count, .bytes = s->bytes, .lost = s->lost};
    snprintf(out->why, sizeof out->why, "%s", s->why);
    pthread_mutex_unlock(&s->mutex);
}
