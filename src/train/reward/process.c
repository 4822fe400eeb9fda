/* process.c: a program behind three pipes that do not block, and a clock. */
#include "train/reward/process.h"
#include "base/clock.h"
#include "base/json_out.h"
#include "base/size.h"
#include "format/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { ERROR_LINE = 240, CLOSE_MS = 2000, EXIT_MS = 1000, STEP_MS = 5 };

struct iv_reward_process {
    char *command;
    double seconds;
    pid_t pid;   /* of the process group too; 0: reaped */
    int fd[3];   /* its input, output and errors; -1: closed */
    int status;  /* of waitpid, when reaped */
    bool known;  /* status is one */
    bool failed; /* by an earlier error */
    uint64_t next_id;
    iv_buf in, out;              /* bytes not yet written; an unfinished line read */
    size_t written;              /* of in */
    size_t scanned;              /* of out: without a line's end */
    char error_line[ERROR_LINE]; /* the last line of its stderr that is not empty */
    char partial[ERROR_LINE];    /* the unfinished line after it */
    size_t partial_length;
};

/* The batch that is being scored. */
typedef struct batch {
    iv_reward_process *p;
    uint64_t first_id;
    size_t n, done;
    double *reward;
    bool *seen;
} batch;

/* ---- the process ---- */

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* Ends what is left of the group and reaps its first process, after it has exited or at once if `kill_now`. */
static bool reap(iv_reward_process *p, bool kill_now) {
    siginfo_t info = {0};
    if (p->pid == 0) return true;
    int waited = waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOWAIT | WNOHANG);
    bool exited = waited == 0 && info.si_pid == p->pid, gone = waited != 0 && errno == ECHILD;
    if (!exited && !gone && !kill_now) return false;
    if (!gone) { /* a process that is not reaped keeps its id from others */
        kill(-p->pid, SIGKILL);
        kill(p->pid, SIGKILL); /* it may have joined another group */
        pid_t got;
        do got = waitpid(p->pid, &p->status, 0);
        while (got < 0 && errno == EINTR);
        p->known = got == p->pid && exited;
    }
    p->pid = 0;
    return true;
}

static void reap_within(iv_reward_process *p, int ms) {
    for (; ms > 0 && !reap(p, false); ms -= STEP_MS) sleep_ms(STEP_MS);
    reap(p, true);
}

/* How it ended, for errors. */
static const char *ending(const iv_reward_process *p, char out[64]) {
    if (!p->known)
        snprintf(out, 64, "and was ended");
    else if (WIFSIGNALED(p->status))
        snprintf(out, 64, "and ended by signal %d", WTERMSIG(p->status));
    else
        snprintf(out, 64, "and exited with status %d", WEXITSTATUS(p->status));
    return out;
}

/* Room for another descriptor of the process than 0 to 2, which the child replaces. */
static bool pipe_above_2(int fds[2]) {
    int low[2];
    if (pipe2(low, O_CLOEXEC) != 0) return false;
    for (int i = 0; i < 2; i++) fds[i] = low[i] > 2 ? low[i] : fcntl(low[i], F_DUPFD_CLOEXEC, 3);
    for (int i = 0; i < 2; i++)
        if (low[i] <= 2) close(low[i]);
    return fds[0] >= 0 && fds[1] >= 0;
}

static int spawn(iv_reward_process *p, int child[3]) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    static char shell[] = "sh", flag[] = "-c";
    char *arguments[] = {shell, flag, p->command, NULL};
    sigemptyset(&none), sigemptyset(&defaults), sigaddset(&defaults, SIGPIPE);
    if (posix_spawn_file_actions_init(&actions) != 0) return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) return posix_spawn_file_actions_destroy(&actions), ENOMEM;
    int failed = 0;
    for (int i = 0; i < 3; i++) failed |= posix_spawn_file_actions_adddup2(&actions, child[i], i);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    failed |= posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
    failed |= posix_spawnattr_setsigmask(&attributes, &none) | posix_spawnattr_setsigdefault(&attributes, &defaults);
    failed |= posix_spawnattr_setpgroup(&attributes, 0);
    failed |=
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int error = failed ? ENOMEM : posix_spawn(&p->pid, "/bin/sh", &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error) p->pid = 0;
    return error;
}

static iv_status start(iv_reward_process *p, iv_error *err) {
    int child[3] = {-1, -1, -1}, error = 0;
    for (int i = 0; i < 3 && !error; i++) {
        int ends[2] = {-1, -1};
        if (!pipe_above_2(ends)) error = errno;
        child[i] = ends[i == 0 ? 0 : 1], p->fd[i] = ends[i == 0 ? 1 : 0];
        if (!error && fcntl(p->fd[i], F_SETFL, O_NONBLOCK) != 0) error = errno;
    }
    if (!error) error = spawn(p, child);
    for (int i = 0; i < 3; i++) close_fd(&child[i]);
    if (!error) return IV_OK;
    return iv_fail(err, IV_IO, "reward command '%s': cannot start it: %s", p->command, strerror(error));
}

iv_status iv_reward_process_open(const char *command, double seconds, iv_reward_process **out, iv_error *err) {
    *out = NULL;
    if (!(seconds > 0.0 && seconds <= 1e6))
        return iv_fail(err, IV_INVALID, "reward command '%s': wanted a time limit above 0 seconds, found %g", command,
                       seconds);
    iv_reward_process *p = calloc(1, sizeof *p);
    if (!p || !(p->command = strdup(command))) {
        free(p);
        return iv_fail(err, IV_NO_MEMORY, "reward command '%s': no memory", command);
    }
    p->seconds = seconds;
    p->fd[0] = p->fd[1] = p->fd[2] = -1;
    iv_status status = start(p, err);
    if (status == IV_OK) return *out = p, IV_OK;
    iv_reward_process_close(p);
    return status;
}

void iv_reward_process_close(iv_reward_process *p) {
    if (!p) return;
    for (int i = 0; i < 3; i++) close_fd(&p->fd[i]);
    reap_within(p, CLOSE_MS);
    iv_buf_free(&p->in), iv_buf_free(&p->out);
    free(p->command), free(p);
}

/* ---- its stderr ---- */

static void keep_errors(iv_reward_process *p, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool end = bytes[i] == '\n' || bytes[i] == '\r';
        if (!end && p->partial_length + 1 < ERROR_LINE) p->partial[p->partial_length++] = bytes[i];
        if (!end || p->partial_length == 0) continue;
        memcpy(p->error_line, p->partial, p->partial_length), p->error_line[p->partial_length] = 0;
        p->partial_length = 0;
    }
}

static void read_errors(iv_reward_process *p) {
    char bytes[4096];
    for (ssize_t n; p->fd[2] >= 0;) {
        n = read(p->fd[2], bytes, sizeof bytes);
        if (n > 0)
            keep_errors(p, bytes, (size_t)n);
        else if (n < 0 && errno == EINTR)
            continue;
        else {
            if (n == 0 || errno != EAGAIN) close_fd(&p->fd[2]);
            return;
        }
    }
}

/* Adds the last line of stderr to an error, and ends the process. */
static iv_status fail(iv_reward_process *p, iv_error *err) {
    char message[sizeof err->message];
    p->failed = true;
    reap(p, true);
    read_errors(p);
    keep_errors(p, "\n", 1);
    for (int i = 0; i < 3; i++) close_fd(&p->fd[i]);
    memcpy(message, err->message, sizeof message);
    if (p->error_line[0]) return iv_fail(err, err->status, "%s; its last line of errors: %s", message, p->error_line);
    return iv_fail(err, err->status, "%s; it printed no errors", message);
}

/* ---- answers ---- */

static iv_status wrong(batch *b, const char *wanted, const json_t *found, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    return iv_fail(err, IV_FORMAT, "reward command '%s': wanted %s, found %s", b->p->command, wanted,
                   iv_json_shown(found, shown));
}

static iv_status take_answer(batch *b, json_t *line, iv_error *err) {
    if (!json_is_object(line)) return wrong(b, "lines like {\"id\": 17, \"reward\": 0.5}", line, err);
    const json_t *id = json_object_get(line, "id"), *reward = json_object_get(line, "reward");
    char wanted[96];
    snprintf(wanted, sizeof wanted, "an id from %llu to %llu", (unsigned long long)b->first_id,
             (unsigned long long)(b->first_id + b->n - 1));
    uint64_t value = json_is_integer(id) ? (uint64_t)json_integer_value(id) : 0;
    if (!json_is_integer(id) || json_integer_value(id) < 0 || value < b->first_id || value - b->first_id >= b->n)
        return wrong(b, wanted, id, err);
    size_t i = (size_t)(value - b->first_id);
    if (b->seen[i]) return wrong(b, "each id once", id, err);
    double r = json_is_number(reward) ? json_number_value(reward) : (double)NAN;
    if (!isfinite(r)) return wrong(b, "a finite number as reward", reward, err);
    b->reward[i] = r, b->seen[i] = true, b->done++;
    return IV_OK;
}

static iv_status take_line(batch *b, const char *line, size_t n, iv_error *err) {
    iv_text_view text = iv_text_trim((iv_text_view){line, n});
    json_t *json;
    iv_error why;
    if (text.n == 0) return IV_OK;
    if (iv_json_parse_python("line", text.bytes, text.n, &json, &why) != IV_OK)
        return iv_fail(err, IV_FORMAT,
                       "reward command '%s': wanted lines like {\"id\": 17, \"reward\": 0.5}, found '%.*s'",
                       b->p->command, (int)iv_size_min(text.n, 80), text.bytes);
    iv_status status = take_answer(b, json, err);
    json_decref(json);
    return status;
}

static iv_status take_lines(batch *b, iv_error *err) {
    iv_reward_process *p = b->p;
    size_t first = 0;
    for (char *end;
         p->out.len > p->scanned && (end = memchr(p->out.data + p->scanned, '\n', p->out.len - p->scanned));) {
        size_t next = (size_t)(end - p->out.data) + 1;
        IV_TRY(take_line(b, p->out.data + first, next - 1 - first, err));
        first = p->scanned = next;
    }
    if (first > 0) memmove(p->out.data, p->out.data + first, p->out.len - first), p->out.len -= first;
    p->scanned = p->out.len;
    if (p->out.len > IV_REWARD_LINE_MAX)
        return iv_fail(err, IV_LIMIT, "reward command '%s': wanted lines of at most %d bytes, found a longer one",
                       p->command, IV_REWARD_LINE_MAX);
    return IV_OK;
}

/* ---- one batch ---- */

static iv_status append_items(iv_reward_process *p, const iv_reward_item *items, size_t n, iv_error *err) {
    iv_json_out o = {.buf = &p->in};
    iv_buf_clear(&p->in);
    p->written = 0;
    for (size_t i = 0; i < n; i++) {
        const iv_reward_item *it = &items[i];
        o.comma = false;
        iv_out_open(&o, '{');
        iv_out_kv_uint(&o, "id", p->next_id + i);
        iv_out_kv_string(&o, "prompt", it->prompt.n ? it->prompt.bytes : "", it->prompt.n);
        iv_out_kv_string(&o, "completion", it->completion.n ? it->completion.bytes : "", it->completion.n);
        if (it->answer.bytes)
            iv_out_kv_string(&o, "answer", it->answer.bytes, it->answer.n);
        else
            iv_out_kv_null(&o, "answer");
        iv_out_key(&o, "line");
        iv_text_view line = it->line.bytes ? iv_text_trim(it->line) : (iv_text_view){"null", 4};
        iv_out_raw(&o, line.bytes, line.n);
        iv_out_close(&o, '}');
        o.failed |= !iv_buf_putc(&p->in, '\n');
    }
    if (o.failed)
        return iv_fail(err, IV_NO_MEMORY, "reward command '%s': no memory for %zu completions", p->command, n);
    return IV_OK;
}

/* A write to a pipe without reader raises SIGPIPE in this thread: it is held back and taken away. */
static ssize_t write_quietly(int fd, const void *bytes, size_t n) {
    sigset_t set, old, pending;
    sigemptyset(&set), sigaddset(&set, SIGPIPE);
    sigpending(&pending);
    bool before = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &set, &old);
    ssize_t done = write(fd, bytes, n);
    int error = errno;
    if (done < 0 && error == EPIPE && !before) sigtimedwait(&set, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = error;
    return done;
}

/* Input that is not read is no error yet: the program may answer without reading all of it. */
static void write_some(iv_reward_process *p) {
    ssize_t n = write_quietly(p->fd[0], p->in.data + p->written, p->in.len - p->written);
    if (n > 0)
        p->written += (size_t)n;
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        close_fd(&p->fd[0]);
}

static iv_status output_ended(batch *b, iv_error *err) {
    iv_reward_process *p = b->p;
    char text[64];
    reap_within(p, EXIT_MS);
    return iv_fail(err, IV_IO, "reward command '%s': wanted %zu rewards, found %zu: it closed its output %s",
                   p->command, b->n, b->done, ending(p, text));
}

static iv_status read_some(batch *b, iv_error *err) {
    iv_reward_process *p = b->p;
    enum { CHUNK = 65536 };
    if (!iv_buf_reserve(&p->out, CHUNK))
        return iv_fail(err, IV_NO_MEMORY, "reward command '%s': no memory", p->command);
    ssize_t n = read(p->fd[1], p->out.data + p->out.len, CHUNK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return IV_OK;
    if (n <= 0) return output_ended(b, err);
    p->out.len += (size_t)n;
    return take_lines(b, err);
}

static iv_status exchange(batch *b, iv_error *err) {
    iv_reward_process *p = b->p;
    double end = iv_now() + p->seconds;
    IV_TRY(take_lines(b, err)); /* lines left from the previous batch have its ids: an error */
    while (b->done < b->n) {
        double left = end - iv_now();
        if (left <= 0.0)
            return iv_fail(err, IV_IO, "reward command '%s': wanted %zu rewards within %g seconds, found %zu",
                           p->command, b->n, p->seconds, b->done);
        bool writing = p->fd[0] >= 0 && p->written < p->in.len;
        struct pollfd polls[3] = {{writing ? p->fd[0] : -1, POLLOUT, 0}, {p->fd[1], POLLIN, 0}, {p->fd[2], POLLIN, 0}};
        if (poll(polls, 3, (int)(left < 1.0 ? left * 1000.0 + 1.0 : 1000.0)) <= 0) continue;
        if (polls[2].revents) read_errors(p);
        if (polls[0].revents) write_some(p);
        if (polls[1].revents) IV_TRY(read_some(b, err));
    }
    return IV_OK;
}

iv_status iv_reward_process_score(iv_reward_process *p, const iv_reward_item *items, size_t n, double *reward,
                                  iv_error *err) {
    if (p->failed)
        return iv_fail(err, IV_IO,
                       "reward command '%s': wanted a running program, found one stopped by an earlier error",
                       p->command);
    if (n == 0) return IV_OK;
    batch b = {.p = p, .first_id = p->next_id, .n = n, .reward = reward, .seen = calloc(n, sizeof *b.seen)};
    if (!b.seen) return iv_fail(err, IV_NO_MEMORY, "reward command '%s': no memory for %zu completions", p->command, n);
    iv_status status = append_items(p, items, n, err);
    if (status == IV_OK) {
        status = exchange(&b, err);
        p->next_id += n;
        if (status != IV_OK) status = fail(p, err);
    }
    free(b.seen);
    return status;
}
