/* pulse.c: the thread of pulse.h, and its mutex around the writer. */
#include "serve/engine/pulse.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { FAULTS_MIN = 16 /* new pages that are a sign: a few come without a load */ };

struct iv_pulse {
    iv_frame_writer *w;
    int fd;
    uint64_t beat_ms;
    pthread_t thread;
    pthread_mutex_t mutex; /* of the writer and what follows */
    pthread_cond_t wake;
    bool stop;
    size_t done; /* bytes, as last reported */
    double moved_at;
    iv_pulse_signs signs;
};

bool iv_pulse_moved(iv_pulse_signs *s) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    iv_pulse_signs now = {.reads = (uint64_t)u.ru_inblock, .faults = (uint64_t)u.ru_majflt + (uint64_t)u.ru_minflt};
    if (now.reads == s->reads && now.faults < s->faults + FAULTS_MIN) return false;
    *s = now;
    return true;
}

/* With the mutex held. */
static void send(iv_pulse *p, const iv_frame *f) {
    if (!iv_frame_encode(f, &p->w->buf) || !iv_frame_send(p->w, p->fd)) _exit(0); /* the server is gone */
}

static void beat(iv_pulse *p) {
    double now = iv_now();
    if (iv_pulse_moved(&p->signs)) p->moved_at = now;
    send(p, &(iv_frame){.kind = IV_FRAME_ALIVE, .done = (uint64_t)((now - p->moved_at) * 1000)});
}

static struct timespec in_ms(uint64_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000), t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

static void *run(void *arg) {
    iv_pulse *p = arg;
    pthread_mutex_lock(&p->mutex);
    while (!p->stop) {
        beat(p);
        struct timespec until = in_ms(p->beat_ms);
        while (!p->stop && pthread_cond_timedwait(&p->wake, &p->mutex, &until) == 0) continue;
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

iv_status iv_pulse_start(iv_frame_writer *w, int fd, uint64_t beat_ms, iv_pulse **out, iv_error *err) {
    iv_pulse *p = calloc(1, sizeof *p);
    pthread_condattr_t monotonic;
    *out = NULL;
    if (!p) return iv_fail(err, IV_NO_MEMORY, "engine process: no memory");
    p->w = w, p->fd = fd, p->beat_ms = beat_ms, p->moved_at = iv_now();
    pthread_mutex_init(&p->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int why = pthread_create(&p->thread, NULL, run, p);
    if (why) {
        pthread_cond_destroy(&p->wake), pthread_mutex_destroy(&p->mutex);
        free(p);
        return iv_fail(err, IV_NO_MEMORY, "engine process: no thread: %s", strerror(why));
    }
    *out = p;
    return IV_OK;
}

void iv_pulse_progress(iv_pulse *p, size_t done_bytes, size_t total_bytes) {
    pthread_mutex_lock(&p->mutex);
    if (done_bytes != p->done) p->moved_at = iv_now();
    p->done = done_bytes;
    send(p, &(iv_frame){.kind = IV_FRAME_PROGRESS, .done = done_bytes, .total = total_bytes});
    pthread_mutex_unlock(&p->mutex);
}

void iv_pulse_stop(iv_pulse *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake), pthread_mutex_destroy(&p->mutex);
    free(p);
}
