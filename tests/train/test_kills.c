/* A training run killed at random moments and resumed, until it is done: the weights and losses of every step are those
 * of the run that nothing interrupted. INVAR_KILLS=200 is the long form. */
#include "train/run_case.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

enum { STEPS = 12, KILLS = SANITIZED ? 3 : 30 };

static void child(const iv_run_options *o) {
    iv_error err;
    iv_run_summary summary;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    iv_status status = iv_run_train(o, &summary, &err);
    if (status != IV_OK) fprintf(stderr, "killed run: %s\n", err.message);
    _exit(status == IV_OK ? 0 : 1);
}

/* Starts or resumes the run in a child process, which is killed after `seconds`. True: it had ended by itself. */
static bool run_until(const iv_run_options *o, double seconds) {
    const struct timespec moment = {.tv_nsec = 200000};
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) child(o);
    pid_t ended = 0;
    for (double end = iv_now() + seconds; ended == 0 && iv_now() < end;) {
        nanosleep(&moment, NULL);
        ended = waitpid(pid, &status, WNOHANG);
    }
    if (ended == 0) {
        assert_int_equal(kill(pid, SIGKILL), 0); /* not waited for yet: the number is still its own */
        ended = waitpid(pid, &status, 0);
    }
    assert_int_equal(ended, pid);
    if (WIFSIGNALED(status)) return assert_int_equal(WTERMSIG(status), SIGKILL), false;
    if (WEXITSTATUS(status) != 0) fail_msg("a resumed run failed with exit code %d", WEXITSTATUS(status));
    return true;
}

static size_t kills_wanted(void) {
    const char *text = getenv("INVAR_KILLS");
    return text ? (size_t)strtoull(text, NULL, 0) : KILLS;
}

/* A complete checkpoint of the last step, all hashes checked. */
static void expect_checkpoint(const char *output) {
    iv_error err;
    char path[512], *text;
    snprintf(path, sizeof path, "%s/checkpoint-%06d", output, STEPS);
    ASSERT_OK(iv_run_inspect(path, true, &text, &err), &err);
    iv_run_text_free(text);
}

static void killed_runs_end_alike(void **state) {
    (void)state;
    static const uint64_t worlds[] = {1, 2, 4, 8};
    rng r = rng_start("killed_runs_end_alike");
    iv_error err;
    iv_run_summary summary;
    case_log want;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("whole", STEPS);
    o.save_every = 1, o.keep = 2;
    double began = iv_now();
    ASSERT_OK(iv_run_train(&o, &summary, &err), &err);
    double whole = iv_now() - began;
    case_read_log(o.output, &want);
    assert_int_equal(want.lines, STEPS);
    o.output = case_path("killed");
    o.resume = true;
    size_t kills = 0, runs = 0, most = 0;
    for (; kills < kills_wanted(); runs++) {
        size_t times = 0;
        for (;; times++) {
            o.trainer.data_parallel = worlds[rng_below(&r, 4)], o.trainer.micro_batch = rng_below(&r, 4);
            o.save_every = 1 + rng_below(&r, 2);
            /* Of the time of a whole run; later ones longer, should the machine have become slower. */
            double part = (0.4 + (double)times / 50) * (double)rng_below(&r, 1000) / 1000;
            if (run_until(&o, part * whole)) break;
        }
        case_same_log(o.output, &want);
        expect_checkpoint(o.output);
        case_remove(o.output);
        kills += times;
        if (times > most) most = times;
    }
    printf("%zu runs, %zu kills, at most %zu of one run; a whole run takes %.2f s, all %.1f s\n", runs, kills, most,
           whole, iv_now() - began);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_runs_end_alike)};
    return cmocka_run_group_tests(tests, case_open, case_close);
}
