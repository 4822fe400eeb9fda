/* work.c: two lists under one lock: what waits for a thread, and what waits to be taken. */
#include "serve/work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { THREADS_MAX = 64 };

typedef struct list {
    iv_work_job *first, **end;
} list;

struct iv_work {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    list waiting, ended;
    bool closing;
    int fd;
    size_t count;
    pthread_t threads[THREADS_MAX];
};

static void put(list *l, iv_work_job *job) {
    job->next = NULL;
    *l->end = job, l->end = &job->next;
}

static iv_work_job *take_first(list *l) {
    iv_work_job *job = l->first;
    if (!job) return NULL;
    l->first = job->next;
    if (!l->first) l->end = &l->first;
    return job;
}

static void *work(void *user) {
    iv_work *w = user;
    pthread_mutex_lock(&w->mutex);
    while (!w->closing) {
        iv_work_job *job = take_first(&w->waiting);
        if (!job) {
            pthread_cond_wait(&w->wake, &w->mutex);
            continue;
        }
        pthread_mutex_unlock(&w->mutex);
        job->run(job);
        pthread_mutex_lock(&w->mutex);
        put(&w->ended, job);
        uint64_t one = 1;
        ssize_t ignored = write(w->fd, &one, sizeof one); /* full only if it is readable */
        (void)ignored;
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* Signals are the loop's. */
static int start_threads(iv_work *w, size_t threads) {
    sigset_t all, before;
    int why = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (w->count < threads && why == 0) {
        why = pthread_create(&w->threads[w->count], NULL, work, w);
        w->count += why == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}

iv_status iv_work_open(size_t threads, iv_work **out, iv_error *err) {
    IV_ASSERT(threads > 0 && threads <= THREADS_MAX);
    *out = NULL;
    iv_work *w = calloc(1, sizeof *w);
    if (!w) return iv_fail(err, IV_NO_MEMORY, "work: no memory");
    w->waiting.end = &w->waiting.first, w->ended.end = &w->ended.first;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int why = w->fd < 0 ? errno : start_threads(w, threads);
    if (why == 0) {
        *out = w;
        return IV_OK;
    }
    iv_work_close(w);
    return iv_fail(err, IV_IO, "work: %s", strerror(why));
}

void iv_work_close(iv_work *w) {
    if (!w) return;
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mutex);
    for (size_t i = 0; i < w->count; i++) pthread_join(w->threads[i], NULL);
    for (iv_work_job *job; (job = take_first(&w->ended)) != NULL;) job->done(job, true);
    for (iv_work_job *job; (job = take_first(&w->waiting)) != NULL;) job->done(job, false);
    if (w->fd >= 0) close(w->fd);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->wake);
    free(w);
}

int iv_work_fd(const iv_work *w) { return w->fd; }

void iv_work_give(iv_work *w, iv_work_job *job) {
    if (!w) {
        job->run(job);
        job->done(job, true);
        return;
    }
    pthread_mutex_lock(&w->mutex);
    put(&w->waiting, job);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

bool iv_work_withdraw(iv_work *w, iv_work_job *job) {
    bool found = false;
    pthread_mutex_lock(&w->mutex);
    iv_work_job **at = &w->waiting.first;
    while (*at && *at != job) at = &(*at)->next;
    if (*at) {
        found = true;
        *at = job->next;
        if (!job->next) w->waiting.end = at;
    }
    pthread_mutex_unlock(&w->mutex);
    return found;
}

/* A job may give others while it is being done. */
void iv_work_take(iv_work *w) {
    uint64_t count;
    pthread_mutex_lock(&w->mutex);
    ssize_t ignored = read(w->fd, &count, sizeof count); /* with the lock: it stays readable for none that is taken */
    (void)ignored;
    list ended = w->ended;
    w->ended = (list){.first = NULL, .end = &w->ended.first};
    pthread_mutex_unlock(&w->mutex);
    for (iv_work_job *job = ended.first, *next; job; job = next) {
        next = job->next;
        job->done(job, true);
    }
}
