/* http_files.c: each connection is an open file, of which a process may have only so many: as many connections as that
 * leaves, so that files which handlers read can still be opened and clients be told that there are too many. */
#include "base/size.h"
#include "serve/http_internal.h"

#include <fcntl.h>
#include <sys/resource.h>

enum {
    FILES_BESIDES = 128, /* asked for, beside connections */
    LOOP_FILES = 6,      /* a listener, the loop's poll, pipe and waker, a look at a host's name */
    SPARE_FILES = 4,     /* for what is read while the server runs */
    CONNECTIONS_MIN = 4,
    REFUSALS_SHARE = 16, /* of what there is room for: one in so many for refusals, ... */
    REFUSALS_FEW = 64,   /* ... but so many if they are no more than ... */
    FEW_SHARE = 4        /* ... one in four */
};

/* The usual limit of 1,024 is for programs that have few. */
static size_t raise_limit(size_t connections) {
    struct rlimit r, more;
    rlim_t want = (rlim_t)connections + IV_HTTP_REFUSALS_MAX + FILES_BESIDES;
    if (getrlimit(RLIMIT_NOFILE, &r)) return SIZE_MAX;
    more = r, more.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    if (r.rlim_cur < more.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) == 0) r = more;
    return r.rlim_cur < INT32_MAX ? (size_t)r.rlim_cur : INT32_MAX;
}

/* How many more files can be opened, but no more than `most` are counted. */
static size_t count_free(size_t limit, size_t most) {
    size_t n = 0;
    for (size_t fd = 0; fd < limit && n < most; fd++) n += fcntl((int)fd, F_GETFD) < 0;
    return n;
}

static iv_status need(size_t limit, size_t wanted, iv_error *err) {
    size_t enough = limit;
    if (count_free(limit, wanted) >= wanted) return IV_OK;
    while (count_free(enough, wanted) < wanted) enough++; /* files may be open above the limit, too */
    return iv_fail(err, IV_LIMIT, "open files: wanted a limit of at least %zu (ulimit -n), found %zu", enough, limit);
}

iv_status iv_http_check_files(size_t connections, size_t callers, iv_error *err) {
    size_t limit = raise_limit(connections), wanted = callers + LOOP_FILES + SPARE_FILES + CONNECTIONS_MIN + 1;
    return need(limit, wanted, err);
}

iv_status iv_http_settle_files(iv_http *h, iv_error *err) {
    size_t limit = raise_limit(h->o.connections_max), wanted = SPARE_FILES + CONNECTIONS_MIN + 1;
    size_t most = h->o.connections_max + IV_HTTP_REFUSALS_MAX + SPARE_FILES, found = count_free(limit, most);
    h->refusals_max = IV_HTTP_REFUSALS_MAX;
    if (found == most) return IV_OK;
    IV_TRY(need(limit, wanted, err));
    size_t room = found - SPARE_FILES;
    size_t few = iv_size_min(REFUSALS_FEW, room / FEW_SHARE);
    h->refusals_max = iv_size_min(IV_HTTP_REFUSALS_MAX, iv_size_max(few, room / REFUSALS_SHARE));
    h->o.connections_max = iv_size_min(h->o.connections_max, room - h->refusals_max);
    return IV_OK;
}
