/* Faults of an engine process: it is lost, crashes, exits or hangs in a chosen step, or cannot start. Every request
 * continues with the bits of an idle engine, or ends with an error; never with another token. The process is this
 * program again: an environment variable tells it which fault to have in which of its lives. */
#include "bridge_client.h"
#include "model/batch.h"
#include "model/cpu/cpu_model.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { POISON = 321, TIMEOUT_MS = 300, LOAD_TIMEOUT_MS = SANITIZED ? 200 : 150, NOTES_BYTES = 8192 };

/* ---- the faulty process -------------------------------------------------------------------------------- */

static const char plan_variable[] = "INVAR_TEST_FAULT", lives_variable[] = "INVAR_TEST_LIVES";

/* "KIND STEP FROM LIVES;...": in this step of so many lives, beginning with the life FROM. */
static struct plan {
    char kind[16];
    unsigned long step, from, lives;
} plans[3];
static size_t plan_count;
static unsigned long life, steps;
static bool began;

/* One byte in a file for each life. */
static void begin_life(void) {
    const char *text = getenv(plan_variable), *path = getenv(lives_variable);
    struct stat st;
    began = true;
    for (; text && *text && plan_count < 3; plan_count++) {
        struct plan *p = &plans[plan_count];
        if (sscanf(text, "%15s %lu %lu %lu", p->kind, &p->step, &p->from, &p->lives) != 4) _exit(97);
        text += strcspn(text, ";");
        text += *text == ';';
    }
    if (!path) _exit(96);
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0 || write(fd, "x", 1) != 1 || fstat(fd, &st) != 0) _exit(98);
    close(fd);
    life = (unsigned long)st.st_size - 1; /* 0: the first */
}

static bool has_fault(const char *kind, bool in_step) {
    if (!is_engine) return false;
    if (!began) begin_life();
    for (size_t i = 0; i < plan_count && i < 3; i++)
        if (strcmp(plans[i].kind, kind) == 0 && life >= plans[i].from && life < plans[i].from + plans[i].lives &&
            (!in_step || steps == plans[i].step))
            return true;
    return false;
}

/* The engine's thread blocks signals. */
static void end_by(int number) {
    if (number != SIGKILL && number != SIGSTOP) signal(number, SIG_DFL); /* a sanitizer's handler */
    kill(getpid(), number);
    usleep(10000000);
}

/* Longer than a load without progress may take. */
static void load_slowly(void) {
    enum { PIECE = 1 << 20, PIECE_MS = 20 };
    for (unsigned ms = 0; ms < LOAD_TIMEOUT_MS * (IV_ENGINE_STEP_TIMEOUTS + 20u); ms += PIECE_MS) {
        char *fresh = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) _exit(95);
        memset(fresh, 1, PIECE);
        munmap(fresh, PIECE);
        usleep(PIECE_MS * 1000);
    }
}

iv_status __real_iv_engine_open(const iv_engine_options *o, iv_engine **out, iv_error *err);
iv_status __wrap_iv_engine_open(const iv_engine_options *o, iv_engine **out, iv_error *err);

iv_status __wrap_iv_engine_open(const iv_engine_options *o, iv_engine **out, iv_error *err) {
    if (has_fault("gone", false)) return iv_fail(err, IV_NOT_FOUND, "the model has moved");
    if (has_fault("early", false)) end_by(SIGKILL);
    if (has_fault("frozen", false)) end_by(SIGSTOP);
    if (has_fault("stuck", false)) pause();
    if (has_fault("long", false)) load_slowly();
    return __real_iv_engine_open(o, out, err);
}

iv_status __real_iv_engine_update_weights_checked(iv_engine *e, const char *dir, const char *digest, iv_error *err);
iv_status __wrap_iv_engine_update_weights_checked(iv_engine *e, const char *dir, const char *digest, iv_error *err);

iv_status __wrap_iv_engine_update_weights_checked(iv_engine *e, const char *dir, const char *digest, iv_error *err) {
    if (has_fault("update", false)) end_by(SIGKILL);
    return __real_iv_engine_update_weights_checked(e, dir, digest, err);
}

static bool has_poison(const iv_batch *b) {
    for (size_t i = 0; i + 1 < b->tokens; i++)
        if (b->ids[i] == POISON && b->ids[i + 1] == POISON) return true;
    return false;
}

iv_status __real_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);
iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);

iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err) {
    steps++;
    if (has_fault("slow", false)) usleep(3000);
    if (has_fault("crawl", false)) usleep(100000); /* an answer that does not end before the test kills its engine */
    if (has_fault("lost", true)) return iv_fail(err, IV_IO, "rank 1 is gone");
    if (has_fault("segv", true)) end_by(SIGSEGV);
    if (has_fault("abort", true)) end_by(SIGABRT);
    if (has_fault("exit", true)) _exit(3);
    if (has_fault("stop", true)) end_by(SIGSTOP);
    if (has_fault("hang", true)) pause();
    if (has_fault("poison", false) && has_poison(b)) end_by(SIGSEGV);
    iv_status status = __real_iv_ranks_forward(e, b, err);
    if (has_fault("bits", false)) /* a machine that computes other bits in each life */
        for (size_t i = 0; i < 689; i++) b->logits[i] *= 1 + 0.001f * (float)life;
    return status;
}

/* ---- the server's side --------------------------------------------------------------------------------- */

static char lives_file[] = "/tmp/invar_lives_XXXXXX", notes[NOTES_BYTES];

static void take_note(void *user, const char *level, const char *message) {
    (void)user;
    size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s: %s\n", level, message);
}

static int make_lives(void **state) {
    (void)state;
    int fd = mkstemp(lives_file);
    if (fd < 0) return -1;
    close(fd);
    setenv(lives_variable, lives_file, 1);
    process = true;
    return 0;
}

static int remove_lives(void **state) {
    (void)state;
    return unlink(lives_file);
}

/* The bridge of the case; close_left closes one that a failed case left, so that its process is not in the way of
 * others. */
static iv_bridge *left;

static iv_bridge *keep(iv_bridge *b) { return left = b; }

static void close_bridge(iv_bridge *b) {
    left = NULL;
    iv_bridge_close(b);
}

static int close_left(void **state) {
    (void)state;
    if (left) close_bridge(left);
    return 0;
}

static void set_faults(const char *text) {
    setenv(plan_variable, text, 1);
    assert_int_equal(truncate(lives_file, 0), 0);
    notes[0] = 0;
}

static iv_bridge *open_faulty(const iv_engine_options *engine, size_t restarts) {
    iv_bridge_options o = {.engine = *engine,
                           .process = true,
                           .engine_restarts = restarts,
                           .engine_timeout_ms = SANITIZED ? 10 * TIMEOUT_MS : TIMEOUT_MS,
                           .note = take_note};
    iv_bridge *b = NULL;
    iv_error err;
    ASSERT_OK(iv_bridge_open(&o, &b, &err), &err);
    return keep(b);
}

static iv_bridge *open_small_faulty(size_t restarts) {
    iv_engine_options o = small_options();
    o.max_num_seqs = 4;
    return open_faulty(&o, restarts);
}

/* The engine's process of a bridge, by /proc; 0: none now. */
static pid_t engine_pid(void) {
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    for (int next; f && fscanf(f, "%d", &next) == 1;) pid = next; /* the latest: a failed case may leave one */
    if (f) fclose(f);
    return pid;
}

static void kill_engine(int number) {
    pid_t pid = engine_pid();
    assert_true(pid > 0);
    assert_int_equal(kill(pid, number), 0);
}

static void await_restarts(iv_bridge *b, uint64_t count) {
    while (stats_of(b).restarts < count || stats_of(b).away) pump(b);
}

/* Requests with every kind of state between tokens. */
enum { KINDS = 7 };

static iv_request kind(const iv_request *defaults, size_t i) {
    static const char *const stops[] = {"zzz", "= 10"};
    static const char question[] = "<|im_start|>user\nWhat is 17 * 6?<|im_end|>\n<|im_start|>assistant\n";
    iv_request r = *defaults;
    r.text = question, r.text_bytes = strlen(question), r.max_tokens = 40;
    r.has_seed = true, r.seed = 50 + i, r.temperature = i % 2 ? 0.9f : 0, r.ignore_eos = true, r.logprobs = 3;
    if (i == 1) r.repetition_penalty = 1.2f, r.frequency_penalty = 0.4f;
    if (i == 2) r.constraint = IV_CONSTRAINT_JSON_OBJECT, r.ignore_eos = false;
    if (i == 3) r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = "([0-9]{1,3} ){3,60}end";
    if (i == 4) r.stop = stops, r.stop_count = 2;
    if (i == 5) r.prompt_logprobs = 2;
    if (i == 6) r.min_tokens = 20, r.ignore_eos = false, r.keep_receipt = true, r.sampling_logprobs = true;
    return r;
}

static void ask_kinds(iv_bridge *b, listener *l) {
    iv_request defaults;
    iv_error err;
    iv_bridge_request_init(b, &defaults);
    for (size_t i = 0; i < KINDS; i++) {
        iv_request r = kind(&defaults, i);
        ASSERT_OK(iv_bridge_submit(b, &r, &l[i], &l[i].id, &err), &err);
    }
}

static void check_kinds(const listener *l, const char *what) {
    static answer *want;
    iv_engine *e = want ? NULL : open_small();
    if (!want) {
        iv_request defaults;
        iv_request_init(e, &defaults);
        want = answers_new(KINDS);
        for (size_t i = 0; i < KINDS; i++) {
            iv_request r = kind(&defaults, i);
            submit(e, &r, &want[i]);
        }
        run_all(e, want, KINDS);
        iv_engine_close(e);
    }
    for (size_t i = 0; i < KINDS; i++) {
        if (l[i].refusals) fail_msg("%s, request %zu: %s", what, i, l[i].message);
        assert_same_answer(what, &want[i], &l[i].answer);
        assert_string_equal(want[i].stop, l[i].answer.stop);
        assert_memory_equal(want[i].sampling_logprobs, l[i].answer.sampling_logprobs, want[i].count * sizeof(float));
        assert_true(want[i].reported == l[i].answer.reported && want[i].reported_hash == l[i].answer.reported_hash);
    }
}

/* ---- deaths -------------------------------------------------------------------------------------------- */

/* Faults, and how many lives they end by silence. */
typedef struct trial {
    const char *faults;
    uint32_t timeout_ms;
    size_t silences, restarts;
    const char *words; /* of a note */
} trial;

static size_t count_notes(const char *words) {
    size_t n = 0;
    for (const char *at = notes; (at = strstr(at, words)); at++) n++;
    return n;
}

/* All kinds of requests, with the right answers in any case. NULL: a busy machine has kept a process from responding
 * for the timeout, so that its lives are not those of the trial. */
static iv_bridge *attempt(const trial *t) {
    static const char silence[] = "it did not respond";
    iv_bridge_options o = {.engine = small_options(),
                           .process = true,
                           .engine_restarts = 100,
                           .engine_timeout_ms = t->timeout_ms,
                           .note = take_note};
    iv_bridge *b = NULL;
    iv_error err;
    o.engine.max_num_seqs = 4;
    set_faults(t->faults);
    iv_status status = iv_bridge_open(&o, &b, &err);
    if (status == IV_IO && strstr(err.message, silence)) return NULL;
    ASSERT_OK(status, &err);
    keep(b);
    listener *l = listeners(KINDS);
    ask_kinds(b, l);
    finish(b, l, KINDS);
    check_kinds(l, t->faults);
    forget(l, KINDS);
    if (count_notes(silence) <= t->silences) return b;
    close_bridge(b);
    return NULL;
}

static iv_bridge *run_trial(const trial *t) {
    enum { ATTEMPTS = 8 };
    iv_bridge *b = NULL;
    for (int i = 0; i < ATTEMPTS && !b; i++) b = attempt(t);
    if (!b) fail_msg("%s: the machine was too busy for %d attempts: %s", t->faults, ATTEMPTS, notes);
    iv_bridge_stats s = stats_of(b);
    if (s.restarts != t->restarts || s.failed || s.away || !strstr(notes, t->words))
        fail_msg("%s: wanted %zu restarts and \"%s\", found %d: %s", t->faults, t->restarts, t->words, (int)s.restarts,
                 notes);
    return b;
}

static void every_death_continues(void **state) {
    (void)state;
    static const char *const ways[] = {"lost", "segv", "abort", "exit", "stop"};
    static const char *const words[] = {"rank 1 is gone", "signal 11", "signal 6", "exit code 3", "did not respond"};
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        for (unsigned step = 1; step < 40; step += 13) {
            char faults[64];
            snprintf(faults, sizeof faults, "%s %u 0 2", ways[way], step);
            trial t = {faults, SANITIZED ? 10 * TIMEOUT_MS : TIMEOUT_MS, way == 4 ? 2 : 0, 2, words[way]};
            iv_bridge *b = run_trial(&t);
            assert_true(stats_of(b).continued >= 2);
            assert_nothing_held(b);
            close_bridge(b);
            assert_int_equal(engine_pid(), 0);
        }
    }
}

/* A step that never ends, while the process itself responds. */
static void a_step_that_hangs(void **state) {
    (void)state;
    close_bridge(run_trial(&(trial){"hang 5 0 1", SANITIZED ? TIMEOUT_MS : 50, 0, 1, "its engine made no step for"}));
}

/* Lives that end before the engine is open count, and are followed by a backoff. */
static void starts_that_fail(void **state) {
    (void)state;
    close_bridge(run_trial(
        &(trial){"segv 5 0 1;early 0 1 2", SANITIZED ? 10 * TIMEOUT_MS : TIMEOUT_MS, 0, 3, "restart 3 in 0.2 s"}));
}

/* A slow load continues however long it takes; one that waits for nothing, or a stopped process, does not. */
static void loads_that_are_slow_or_hang(void **state) {
    (void)state;
    static const trial trials[] = {
        {"segv 5 0 1;long 0 1 1", LOAD_TIMEOUT_MS, 0, 1, "the engine process is back"},
        {"segv 5 0 1;stuck 0 1 1", LOAD_TIMEOUT_MS, 0, 2, "it made no progress for"},
        {"segv 5 0 1;frozen 0 1 1", LOAD_TIMEOUT_MS, 1, 2, "it did not respond for"},
    };
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) close_bridge(run_trial(&trials[i]));
}

/* At the first start it is the caller's error. */
static void a_first_load_that_hangs(void **state) {
    (void)state;
    static const char *const faults[] = {"stuck 0 0 1", "frozen 0 0 1"};
    static const char *const words[] = {"engine process: it made no progress for",
                                        "engine process: it did not respond"};
    for (size_t i = 0; i < 2; i++) {
        set_faults(faults[i]);
        iv_bridge_options o = {.engine = small_options(), .process = true, .engine_timeout_ms = LOAD_TIMEOUT_MS};
        iv_bridge *b;
        iv_error err;
        assert_int_equal(iv_bridge_open(&o, &b, &err), IV_IO);
        if (!strstr(err.message, words[i])) fail_msg("%s", err.message);
        assert_null(b);
        assert_int_equal(engine_pid(), 0);
    }
}

/* ---- what cannot continue ------------------------------------------------------------------------------ */

static void too_many_deaths(void **state) {
    (void)state;
    enum { RESTARTS = 2 };
    listener *l = listeners(KINDS + 2);
    iv_error err;
    set_faults("segv 3 0 100");
    iv_bridge *b = open_small_faulty(RESTARTS);
    ask_kinds(b, l);
    ASSERT_OK(iv_bridge_command(b, IV_COMMAND_UPDATE_WEIGHTS, "/nowhere", &l[KINDS], &err), &err);
    finish(b, l, KINDS + 1);
    for (size_t i = 0; i <= KINDS; i++) {
        if (l[i].answer.done_events) continue; /* a short one */
        assert_true(l[i].refusals + l[i].commands == 1 && l[i].status == IV_IO);
        assert_non_null(strstr(l[i].message, "the engine process ended again (signal 11"));
    }
    iv_bridge_stats s = stats_of(b);
    assert_true(s.failed && !s.away && s.restarts == RESTARTS);
    assert_non_null(strstr(s.why, "after 2 restarts"));
    char text[64];
    iv_request r = nth(b, 0, text);
    assert_int_equal(iv_bridge_submit(b, &r, l, &l[0].id, &err), IV_IO);
    assert_non_null(strstr(err.message, "the engine is lost: "));
    assert_int_equal(iv_bridge_command(b, IV_COMMAND_FLUSH, NULL, l, &err), IV_IO);
    iv_bridge_cancel(b, l[1].id);
    forget(l, KINDS + 2);
    close_bridge(b);
}

static void a_model_that_is_gone(void **state) {
    (void)state;
    listener *l = listeners(KINDS);
    set_faults("segv 5 0 1;gone 0 1 100");
    iv_bridge *b = open_small_faulty(3);
    ask_kinds(b, l);
    finish(b, l, KINDS);
    for (size_t i = 0; i < KINDS; i++)
        if (!l[i].answer.done_events) assert_non_null(strstr(l[i].message, "the model has moved"));
    assert_true(stats_of(b).failed);
    forget(l, KINDS);
    close_bridge(b);
    set_faults("segv 5 0 1;gone 0 1 100"); /* however many restarts are left */
    l = listeners(KINDS);
    b = open_small_faulty(1000000);
    ask_kinds(b, l);
    finish(b, l, KINDS);
    for (size_t i = 0; i < KINDS; i++)
        if (!l[i].answer.done_events) assert_non_null(strstr(l[i].message, "the model no longer opens: the model has"));
    assert_true(stats_of(b).failed && stats_of(b).restarts == 5);
    forget(l, KINDS);
    close_bridge(b);
    set_faults("gone 0 0 1"); /* at the first start it is the caller's error */
    iv_engine_options engine = small_options();
    iv_bridge_options o = {.engine = engine, .process = true, .engine_restarts = 3};
    iv_error err;
    assert_int_equal(iv_bridge_open(&o, &b, &err), IV_NOT_FOUND);
    assert_string_equal(err.message, "the model has moved");
    assert_null(b);
    set_faults("early 0 0 1");
    assert_int_equal(iv_bridge_open(&o, &b, &err), IV_IO);
    assert_non_null(strstr(err.message, "ended while it opened the model: signal 9"));
}

/* The control: an engine with other bits is found, and no other token leaves. */
static void other_bits_are_errors(void **state) {
    (void)state;
    listener *l = listeners(1);
    set_faults("crawl 0 0 1;bits 0 1 100");
    iv_bridge *b = open_small_faulty(5);
    ask_long(b, &l[0]);
    while (l[0].answer.count < 3) pump(b); /* without a token a restart has nothing to contradict */
    kill_engine(SIGKILL);
    finish(b, l, 1);
    if (l[0].refusals != 1 || l[0].status != IV_IO || l[0].answer.done_events)
        fail_msg("wanted 1 refusal with status %d and no end, found %zu with %d and %zu ends after %zu tokens", IV_IO,
                 (size_t)l[0].refusals, (int)l[0].status, (size_t)l[0].answer.done_events, l[0].answer.count);
    if (!strstr(l[0].message, "does not repeat the answer: token")) fail_msg("%s", l[0].message);
    assert_false(stats_of(b).failed);
    forget(l, 1);
    close_bridge(b);
}

/* A request that always ends the engine is left out of the last restart; the others continue. */
static void a_poisonous_request(void **state) {
    (void)state;
    static const int32_t ids[] = {5, POISON, POISON, 7};
    listener *l = listeners(KINDS + 1), *poison = &l[KINDS];
    iv_error err;
    iv_request r;
    set_faults("poison 0 0 100;slow 0 0 1");
    iv_bridge *b = open_small_faulty(3);
    iv_bridge_request_init(b, &r);
    r.ids = ids, r.id_count = 4, r.max_tokens = 5, r.priority = -1;
    ask_kinds(b, l);
    while (l[0].answer.count < 3) pump(b);
    ASSERT_OK(iv_bridge_submit(b, &r, poison, &poison->id, &err), &err);
    finish(b, l, KINDS + 1);
    assert_true(poison->refusals == 1 && poison->status == IV_IO);
    assert_non_null(strstr(poison->message, "each time that it computed this request"));
    check_kinds(l, "next to a poisonous request");
    assert_int_equal(stats_of(b).restarts, 3);
    forget(l, KINDS + 1);
    close_bridge(b);
}

/* ---- state besides requests ---------------------------------------------------------------------------- */

static void pauses_holds_and_cancels(void **state) {
    (void)state;
    listener *l = listeners(KINDS + 3), *gone = &l[KINDS], *held = gone + 1, *late = gone + 2;
    set_faults("slow 0 0 100");
    iv_bridge *b = open_small_faulty(100);
    ask_kinds(b, l);
    ask_long(b, gone);
    ask_long(b, held);
    iv_bridge_hold(b, held->id, true);
    while (l[0].answer.count < 3) pump(b);
    command(b, IV_COMMAND_PAUSE, IV_OK, "");
    kill_engine(SIGKILL);
    while (!stats_of(b).away) pump(b);
    iv_bridge_cancel(b, gone->id); /* while there is no engine */
    gone->silent = true;
    ask_nth(b, 1, late);
    await_restarts(b, 1);
    assert_int_equal(stats_of(b).restarts, 1); /* the cancellation is not for the next process */
    assert_true(stats_of(b).paused);
    size_t count = l[0].answer.count;
    usleep(100000);
    for (iv_bridge_event r; iv_bridge_next(b, &r);) hear(&r);
    assert_int_equal(l[0].answer.count, count);
    command(b, IV_COMMAND_CONTINUE, IV_OK, "");
    finish(b, l, KINDS);
    finish(b, late, 1);
    check_kinds(l, "paused and restarted");
    assert_int_equal(held->events, 0);
    kill_engine(SIGKILL); /* still held afterwards */
    await_restarts(b, 2);
    iv_bridge_hold(b, held->id, false);
    finish(b, held, 1);
    assert_int_equal(held->answer.finish, IV_FINISH_LENGTH);
    assert_int_equal(stats_of(b).cancelled, 1);
    assert_nothing_held(b);
    forget(l, KINDS + 3);
    close_bridge(b);
}

/* A model that differs in some weights. */
static void make_two(made_model *old, made_model *new) {
    made_open(old, "llama31"), made_open(new, "llama31");
    size_t down = made_find(new, "model.layers.0.mlp.down_proj.weight"), n = made_elements(new, down);
    for (size_t i = 0; i < n; i += 7)
        put_type(new->tensors[down].dtype, new->data[down], i, (float)(i % 64) / 256.0f - 0.1f);
    made_write(old), made_write(new);
}

static void update_to(iv_bridge *b, const char *dir, iv_status wanted, const char *words) {
    listener *l = listeners(1);
    iv_error err;
    ASSERT_OK(iv_bridge_command(b, IV_COMMAND_UPDATE_WEIGHTS, dir, l, &err), &err);
    finish(b, l, 1);
    assert_int_equal(l->status, wanted);
    if (!strstr(l->message, words)) fail_msg("wanted \"%s\", found \"%s\"", words, l->message);
    forget(l, 1);
}

/* A restart loads the weights of the last update. If its directory has others by then, what had begun ends. */
static void updated_weights(void **state) {
    (void)state;
    made_model old, new;
    make_two(&old, &new);
    iv_engine_options engine = made_options(old.s.dir);
    set_faults("slow 0 0 100");
    iv_bridge *b = open_faulty(&engine, 100);
    listener *l = listeners(5);
    ask_long(b, &l[0]);
    finish(b, &l[0], 1);
    update_to(b, new.s.dir, IV_OK, "");
    ask_long(b, &l[1]);
    while (l[1].answer.count < 5) pump(b);
    kill_engine(SIGKILL);
    finish(b, &l[1], 1);
    ask_long(b, &l[2]);
    finish(b, &l[2], 1);
    assert_same_answer("new weights after a restart", &l[2].answer, &l[1].answer);
    assert_string_not_equal(l[0].answer.digest, l[1].answer.digest);
    assert_true(l[1].weight_version == 1 && l[2].weight_version == 1 && stats_of(b).weight_version == 1);
    assert_string_equal(l[1].fingerprint, l[2].fingerprint);
    /* Another program overwrites the directory, and the engine is restarted in the middle of an answer. */
    ask_long(b, &l[3]);
    while (l[3].answer.count < 5) pump(b);
    size_t down = made_find(&new, "model.layers.0.mlp.down_proj.weight");
    put_type(new.tensors[down].dtype, new.data[down], 3, 0.25f);
    made_write(&new);
    kill_engine(SIGKILL);
    finish(b, &l[3], 1);
    assert_true(l[3].refusals == 1 && l[3].status == IV_IO);
    assert_non_null(strstr(l[3].message, "the weights that began this answer are no longer there"));
    ask_long(b, &l[4]);
    finish(b, &l[4], 1);
    assert_true(l[4].answer.done_events == 1 && l[4].weight_version == 2 && stats_of(b).weight_version == 2);
    assert_string_not_equal(l[4].fingerprint, l[2].fingerprint);
    forget(l, 5);
    close_bridge(b);
    made_close(&old), made_close(&new);
}

/* An update that ends the process is not tried again; requests behind it run on the old weights. */
static void an_update_that_kills(void **state) {
    (void)state;
    made_model old, new;
    make_two(&old, &new);
    iv_engine_options engine = made_options(old.s.dir);
    set_faults("update 0 0 1");
    iv_bridge *b = open_faulty(&engine, 100);
    listener *l = listeners(2);
    ask_long(b, &l[0]);
    finish(b, &l[0], 1);
    update_to(b, new.s.dir, IV_IO, "the earlier ones are in use");
    ask_long(b, &l[1]);
    finish(b, &l[1], 1);
    assert_same_answer("old weights", &l[0].answer, &l[1].answer);
    assert_int_equal(stats_of(b).weight_version, 0);
    update_to(b, new.s.dir, IV_OK, "");
    assert_int_equal(stats_of(b).weight_version, 1);
    forget(l, 2);
    close_bridge(b);
    made_close(&old), made_close(&new);
}

static void text_command(iv_bridge *b, iv_command what, const char *text, iv_status wanted, const char *words) {
    listener *l = listeners(1);
    iv_error err;
    ASSERT_OK(iv_bridge_command(b, what, text, l, &err), &err);
    finish(b, l, 1);
    if (l->status != wanted || !strstr(l->message, words))
        fail_msg("wanted %d and \"%s\", found %d and \"%s\"", wanted, words, l->status, l->message);
    forget(l, 1);
}

/* Released memory: no process, no requests; updates are taken, and carried out when it is resumed. */
static void memory_is_released(void **state) {
    (void)state;
    made_model old, new;
    listener *l = listeners(4);
    iv_error err;
    make_two(&old, &new);
    set_faults("slow 0 0 100");
    iv_engine_options engine = made_options(old.s.dir);
    iv_bridge *b = open_faulty(&engine, 3);
    ask_long(b, &l[0]);
    assert_int_equal(iv_bridge_command(b, IV_COMMAND_RELEASE, "", NULL, &err), IV_BUSY);
    finish(b, l, 1);
    assert_int_equal(iv_bridge_command(b, IV_COMMAND_RELEASE, "kv", NULL, &err), IV_INVALID);
    text_command(b, IV_COMMAND_RELEASE, "kv_cache", IV_OK, "");
    assert_int_equal(engine_pid(), 0);
    text_command(b, IV_COMMAND_RELEASE, "weights", IV_OK, "");
    const int32_t id = 5;
    iv_request r;
    iv_bridge_request_init(b, &r);
    r.ids = &id, r.id_count = 1;
    assert_int_equal(iv_bridge_submit(b, &r, &l[1], &l[1].id, &err), IV_NO_MEMORY);
    assert_true(stats_of(b).released && stats_of(b).restarts == 0);
    text_command(b, IV_COMMAND_CHECK_WEIGHTS, "", IV_BUSY, "released");
    text_command(b, IV_COMMAND_UPDATE_WEIGHTS, "/nowhere", IV_OK, "");
    text_command(b, IV_COMMAND_RESUME, "weights", IV_OK, "");
    assert_int_equal(engine_pid(), 0);
    text_command(b, IV_COMMAND_RESUME, "kv_cache", IV_INVALID, "/nowhere");
    while (stats_of(b).away) pump(b); /* with the weights before */
    ask_long(b, &l[1]);
    finish(b, &l[1], 1);
    assert_same_answer("the weights before", &l[0].answer, &l[1].answer);
    assert_string_equal(l[0].fingerprint, l[1].fingerprint);
    assert_int_equal(l[1].weight_version, 0);
    text_command(b, IV_COMMAND_RELEASE, "", IV_OK, "");
    text_command(b, IV_COMMAND_UPDATE_WEIGHTS, new.s.dir, IV_OK, "");
    assert_int_equal(stats_of(b).weight_version, 1);
    text_command(b, IV_COMMAND_RESUME, "", IV_OK, "");
    ask_long(b, &l[2]);
    finish(b, &l[2], 1);
    assert_string_not_equal(l[2].fingerprint, l[0].fingerprint);
    assert_int_equal(l[2].weight_version, 1);
    kill_engine(SIGKILL);
    await_restarts(b, 2);
    ask_long(b, &l[3]);
    finish(b, &l[3], 1);
    assert_same_answer("restarted", &l[2].answer, &l[3].answer);
    assert_int_equal(l[3].weight_version, 1);
    assert_null(strstr(notes, "error"));
    close_bridge(b);
    assert_int_equal(engine_pid(), 0);
    forget(l, 4);
    made_close(&old), made_close(&new);
}

/* Closing in every state of a process leaves none behind. */
static void closing_in_any_state(void **state) {
    (void)state;
    for (int round = 0; round < 6; round++) {
        listener *l = listeners(KINDS);
        set_faults(round == 5 ? "slow 0 0 1;early 0 1 100" : "slow 0 0 100");
        iv_bridge *b = open_small_faulty(100);
        ask_kinds(b, l);
        if (round > 0) pump(b);
        if (round > 1) kill_engine(round == 3 ? SIGSTOP : SIGKILL);
        if (round > 3)
            while (!stats_of(b).away) pump(b);
        if (round == 5)
            for (int i = 0; i < 20; i++) pump(b);
        close_bridge(b);
        assert_int_equal(engine_pid(), 0);
        forget(l, KINDS);
    }
}

#define CASE(name) cmocka_unit_test_teardown(name, close_left)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(every_death_continues),       CASE(a_step_that_hangs),       CASE(starts_that_fail),
        CASE(loads_that_are_slow_or_hang), CASE(a_first_load_that_hangs), CASE(too_many_deaths),
        CASE(a_model_that_is_gone),        CASE(other_bits_are_errors),   CASE(a_poisonous_request),
        CASE(pauses_holds_and_cancels),    CASE(updated_weights),         CASE(an_update_that_kills),
        CASE(memory_is_released),          CASE(closing_in_any_state)};
    return cmocka_run_group_tests(tests, make_lives, remove_lives);
}
