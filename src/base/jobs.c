/* jobs.c: three queues under one lock: first turns, turns in the background, and finished jobs. */
#include "base/jobs.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum { THREADS_MAX = 64, BACKGROUND_NICE = 19 };

typedef struct queue {
    iv_job *first, **end;
    pthread_cond_t wake;
} queue;

struct iv_jobs {
    pthread_mutex_t mutex;
    queue first_turns, background, finished;
    bool closing;
    int fd;
    size_t count;
    pthread_t threads[THREADS_MAX + 1];
};

static void open_queue(queue *q) {
    q->end = &q->first;
    pthread_cond_init(&q->wake, NULL);
}

static void put(queue *q, iv_job *job) {
    job->next = NULL;
    *q->end = job, q->end = &job->next;
    pthread_cond_signal(&q->wake);
}

static iv_job *take_first(queue *q) {
    iv_job *job = q->first;
    if (!job) return NULL;
    q->first = job->next;
    if (!q->first) q->end = &q->first;
    return job;
}

static bool remove_from(queue *q, const iv_job *job) {
    iv_job **at = &q->first;
    while (*at && *at != job) at = &(*at)->next;
    if (!*at) return false;
    *at = job->next;
    if (!job->next) q->end = at;
    return true;
}

static void serve(iv_jobs *j, queue *q) {
    pthread_mutex_lock(&j->mutex);
    while (!j->closing) {
        iv_job *job = take_first(q);
        if (!job) {
            pthread_cond_wait(&q->wake, &j->mutex);
            continue;
        }
        pthread_mutex_unlock(&j->mutex);
        bool finished = job->run(job);
        pthread_mutex_lock(&j->mutex);
        put(finished ? &j->finished : &j->background, job);
        if (!finished) continue;
        uint64_t one = 1;
        ssize_t ignored = write(j->fd, &one, sizeof one); /* full only if it is readable */
        (void)ignored;
    }
    pthread_mutex_unlock(&j->mutex);
}

static void *run_first_turns(void *user) {
    iv_jobs *j = user;
    pthread_setname_np(pthread_self(), "invar-job");
    serve(j, &j->first_turns);
    return NULL;
}

static void *run_background(void *user) {
    iv_jobs *j = user;
    pthread_setname_np(pthread_self(), "invar-backgrd");
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), BACKGROUND_NICE); /* of this thread alone, on Linux */
    serve(j, &j->background);
    return NULL;
}

/* Signals are handled by the main thread. */
static int start_threads(iv_jobs *j, size_t threads) {
    sigset_t all, before;
    int why = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (j->count <= threads && why == 0) {
        why = pthread_create(&j->threads[j->count], NULL, j->count == 0 ? run_background : run_first_turns, j);
        j->count += why == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}

iv_status iv_jobs_open(size_t threads, iv_jobs **out, iv_error *err) {
    IV_ASSERT(threads > 0 && threads <= THREADS_MAX);
    *out = NULL;
    iv_jobs *j = calloc(1, sizeof *j);
    if (!j) return iv_fail(err, IV_NO_MEMORY, "jobs: no memory");
    open_queue(&j->first_turns), open_queue(&j->background), open_queue(&j->finished);
    pthread_mutex_init(&j->mutex, NULL);
    j->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int why = j->fd < 0 ? errno : start_threads(j, threads);
    if (why == 0) {
        *out = j;
        return IV_OK;
    }
    iv_jobs_close(j);
    return iv_fail(err, IV_IO, "jobs: %s", strerror(why));
}

static void end_queue(queue *q, bool ran) {
    for (iv_job *job; (job = take_first(q)) != NULL;) job->done(job, ran);
    pthread_cond_destroy(&q->wake);
}

void iv_jobs_close(iv_jobs *j) {
    if (!j) return;
    pthread_mutex_lock(&j->mutex);
    j->closing = true;
    pthread_cond_broadcast(&j->first_turns.wake);
    pthread_cond_broadcast(&j->background.wake);
    pthread_mutex_unlock(&j->mutex);
    for (size_t i = 0; i < j->count; i++) pthread_join(j->threads[i], NULL);
    end_queue(&j->finished, true);
    end_queue(&j->first_turns, false);
    end_queue(&j->background, false);
    if (j->fd >= 0) close(j->fd);
    pthread_mutex_destroy(&j->mutex);
    free(j);
}

int iv_jobs_fd(const iv_jobs *j) { return j->fd; }

static void give(iv_jobs *j, queue *q, iv_job *job) {
    pthread_mutex_lock(&j->mutex);
    put(q, job);
    pthread_mutex_unlock(&j->mutex);
}

void iv_jobs_submit(iv_jobs *j, iv_job *job) {
    if (j) {
        give(j, &j->first_turns, job);
        return;
    }
    while (!job->run(job)) continue;
    job->done(job, true);
}

void iv_jobs_submit_background(iv_jobs *j, iv_job *job) { give(j, &j->background, job); }

bool iv_jobs_withdraw(iv_jobs *j, iv_job *job) {
    pthread_mutex_lock(&j->mutex);
    bool found = remove_from(&j->first_turns, job) || remove_from(&j->background, job);
    pthread_mutex_unlock(&j->mutex);
    return found;
}

/* A job may submit others from `done`. */
void iv_jobs_collect(iv_jobs *j) {
    uint64_t count;
    pthread_mutex_lock(&j->mutex);
    ssize_t ignored = read(j->fd, &count, sizeof count); /* under the lock, so that no wakeup is lost */
    (void)ignored;
    iv_job *job = j->finished.first;
    j->finished.first = NULL, j->finished.end = &j->finished.first;
    pthread_mutex_unlock(&j->mutex);
    for (iv_job *next; job; job = next) {
        next = job->next;
        job->done(job, true);
    }
}

void iv_jobs_wait(iv_jobs *j, uint32_t ms) {
    struct pollfd p = {.fd = j->fd, .events = POLLIN};
    (void)poll(&p, 1, (int)ms); /* a signal may end the wait early */
}
