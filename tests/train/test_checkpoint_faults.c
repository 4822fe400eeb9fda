/* Every call to the disk that a save makes fails once, with each of three errors: the save returns a clear error on all
 * ranks, the earlier checkpoint still loads, and the next save succeeds. Reading errors: the last good one is used. */
#include "train/checkpoint_case.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

/* ---- the failing layer ---- */

static _Thread_local bool failing; /* this thread's calls are counted */
static _Thread_local bool lasting; /* after the first failure all further calls fail, those that clean up too */
static bool cannot_swap;           /* as on a file system without RENAME_EXCHANGE */
static _Thread_local size_t calls, fail_at;
static _Thread_local int fail_errno;
static _Thread_local const char *failed;

static bool fails(const char *call) {
    if (!failing || ++calls < fail_at || (calls > fail_at && !lasting)) return false;
    if (calls == fail_at) failed = call;
    errno = fail_errno;
    return true;
}

int __real_open(const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __real_pread(int fd, void *bytes, size_t n, off_t at);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __real_mkdir(const char *path, mode_t mode);
int __real_close(int fd);
DIR *__real_opendir(const char *path);
int __real_nftw(const char *path, void *each, int folders, int flags);
int __real_flock(int fd, int how);
int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_pread(int fd, void *bytes, size_t n, off_t at);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_close(int fd);
DIR *__wrap_opendir(const char *path);
int __wrap_nftw(const char *path, void *each, int folders, int flags);
int __wrap_flock(int fd, int how);

int __wrap_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return fails("open") ? -1 : __real_open(path, flags, mode);
}
ssize_t __wrap_write(int fd, const void *bytes, size_t n) {
    if (!fails("write")) return __real_write(fd, bytes, n);
    return -1;
}
ssize_t __wrap_pread(int fd, void *bytes, size_t n, off_t at) {
    return fails("pread") ? -1 : __real_pread(fd, bytes, n, at);
}
int __wrap_fsync(int fd) { return fails("fsync") ? -1 : __real_fsync(fd); }
int __wrap_rename(const char *from, const char *to) { return fails("rename") ? -1 : __real_rename(from, to); }
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    if (cannot_swap) return errno = EINVAL, -1;
    return fails("renameat2") ? -1 : __real_renameat2(from_dir, from, to_dir, to, flags);
}
int __wrap_mkdir(const char *path, mode_t mode) { return fails("mkdir") ? -1 : __real_mkdir(path, mode); }
/* A failed close has closed the file all the same. */
int __wrap_close(int fd) {
    if (!fails("close")) return __real_close(fd);
    int why = errno;
    __real_close(fd);
    errno = why;
    return -1;
}
DIR *__wrap_opendir(const char *path) { return fails("opendir") ? NULL : __real_opendir(path); }
int __wrap_nftw(const char *path, void *each, int folders, int flags) {
    return fails("nftw") ? -1 : __real_nftw(path, each, folders, flags);
}
int __wrap_flock(int fd, int how) { return fails("flock") ? -1 : __real_flock(fd, how); }

static void arm(size_t at, int why) { failing = true, calls = 0, fail_at = at, fail_errno = why, failed = NULL; }
static bool disarm(void) { return failing = lasting = false, failed != NULL; }

/* A save may ignore that a file could not be closed, or, once the checkpoint is complete, that an older one could not
 * be read: it is left alone. */
static bool may_be_ignored(void) {
    static const char *const calls_of[] = {"close", "pread", "open"};
    for (size_t i = 0; i < 3; i++)
        if (strcmp(failed, calls_of[i]) == 0) return true;
    return false;
}

/* ---- one rank ---- */

static const struct {
    int number;
    const char *text;
} errors[] = {{ENOSPC, "No space left on device"}, {EIO, "Input/output error"}, {EDQUOT, "Disk quota exceeded"}};

/* A checkpoint is complete before old ones are removed: `again` saves the same step a second time. */
static void fail_each(int why, const char *text, bool again, bool lasts, size_t *total, size_t *complete) {
    checkpoint_case c;
    iv_error err;
    case_open(&c);
    c.keep = 1;
    uint64_t last = 1;
    ASSERT_OK(case_save(&c, last, &err), &err);
    for (size_t at = 1;; at++) {
        uint64_t step = again ? last : last + 1;
        arm(at, why);
        lasting = lasts;
        iv_status status = case_save(&c, step, &err);
        const char *call = failed;
        if (!disarm()) {
            ASSERT_OK(status, &err);
            break;
        }
        ++*total;
        if (status == IV_OK) {
            if (!may_be_ignored()) fail_msg("call %zu: %s: was not reported", at, call);
            case_expect_latest(&c, step, NULL);
            last = step;
            continue;
        }
        if (status != IV_IO || !strstr(err.message, text) || !strstr(err.message, c.dir))
            fail_msg("call %zu: %s: %s: %s", at, call, iv_status_name(status), err.message);
        iv_training_checkpoint *found;
        iv_buf notes = {0};
        iv_error unused;
        ASSERT_OK(iv_training_resume(&c.run, NULL, &found, &notes, &unused), &unused);
        uint64_t newest = iv_training_get(found)->progress.step;
        if (newest != last && newest != step) fail_msg("call %zu: %s: found step %d", at, call, (int)newest);
        case_check(found, newest);
        assert_int_equal(notes.len, 0);
        if (strstr(err.message, "is complete")) {
            assert_int_equal(newest, step);
            ++*complete;
        }
        iv_training_close(found);
        iv_buf_free(&notes);
        last = newest;
    }
    case_expect_latest(&c, again ? last : last + 1, NULL);
    case_close(&c);
}

static void test_each_call(void **state) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        for (int again = 0; again < 2; again++) {
            size_t total[2] = {0}, complete[2] = {0};
            fail_each(errors[i].number, errors[i].text, again, false, &total[0], &complete[0]);
            fail_each(errors[i].number, errors[i].text, again, true, &total[1], &complete[1]);
            printf("%s%s: %zu calls failed one by one, %zu with all after them; the new checkpoint was complete in "
                   "%zu and %zu of these errors\n",
                   errors[i].text, again ? ", over an older one of the step" : "", total[0], total[1], complete[0],
                   complete[1]);
            assert_true(total[0] > 40 && total[1] > 40 && complete[0] > 0 && complete[1] > 0);
        }
    (void)state;
}

static void test_without_swap(void **state) {
    size_t total = 0, complete = 0;
    cannot_swap = true;
    fail_each(EIO, "Input/output error", true, false, &total, &complete);
    cannot_swap = false;
    printf("no swap: %zu calls failed in turn\n", total);
    assert_true(total > 40);
    (void)state;
}

/* A first save, whose directory is not there yet. */
static void test_first_save(void **state) {
    iv_error err;
    for (size_t at = 1;; at++) {
        checkpoint_case c;
        case_open(&c);
        arm(at, ENOSPC);
        iv_status status = case_save(&c, 1, &err);
        bool hit = disarm();
        if (hit ? status != IV_IO && !(status == IV_OK && may_be_ignored()) : status != IV_OK)
            fail_msg("call %zu: %s: %s: %s", at, failed, iv_status_name(status), status == IV_OK ? "" : err.message);
        ASSERT_OK(case_save(&c, 2, &err), &err);
        case_expect_latest(&c, 2, NULL);
        case_close(&c);
        if (!hit) break;
    }
    (void)state;
}

/* ---- several ranks ---- */

static size_t victim, victim_at;
static int victim_errno;

static void arm_victim(size_t rank) {
    failing = false;
    if (rank == victim) arm(victim_at, victim_errno);
}

/* One rank's failure is the error of all ranks, and names the rank. */
static void test_ranks(void **state) {
    checkpoint_case c;
    case_rank ranks[IV_RANKS_MAX];
    iv_error err;
    enum { RANKS = 4 };
    size_t seen[RANKS] = {0};
    case_open(&c);
    c.keep = 2;
    case_save_ranks(&c, 1, RANKS, NULL, ranks);
    uint64_t step = 1;
    for (victim = 0; victim < RANKS; victim++)
        for (size_t i = 0; i < 2; i++)
            for (victim_at = 1; victim_at < 1000; victim_at++) {
                victim_errno = errors[i].number;
                case_save_ranks(&c, step + 1, RANKS, arm_victim, ranks);
                for (size_t r = 1; r < RANKS; r++) {
                    assert_int_equal(ranks[r].status, ranks[0].status);
                    if (ranks[r].status != IV_OK) assert_string_equal(ranks[r].err.message, ranks[0].err.message);
                }
                if (ranks[0].status != IV_OK) {
                    char who[32];
                    snprintf(who, sizeof who, "rank %zu: ", victim);
                    assert_int_equal(ranks[0].status, IV_IO);
                    if (!strstr(ranks[0].err.message, who) || !strstr(ranks[0].err.message, errors[i].text))
                        fail_msg("'%s'", ranks[0].err.message);
                    seen[victim]++;
                }
                iv_training_checkpoint *found;
                iv_buf notes = {0};
                ASSERT_OK(iv_training_resume(&c.run, NULL, &found, &notes, &err), &err);
                uint64_t newest = iv_training_get(found)->progress.step;
                assert_true(newest == step || newest == step + 1);
                assert_true(ranks[0].status != IV_OK || newest == step + 1);
                case_check(found, newest);
                iv_training_close(found);
                iv_buf_free(&notes);
                bool past = ranks[0].status == IV_OK && newest == step + 1 && victim_at > 60;
                step = newest;
                if (past || (victim > 0 && ranks[0].status == IV_OK && victim_at > 20)) break;
            }
    for (size_t r = 0; r < RANKS; r++) printf("rank %zu: %zu failures reported by all\n", r, seen[r]);
    for (size_t r = 0; r < RANKS; r++) assert_true(seen[r] >= 8);
    case_close(&c);
    (void)state;
}

/* ---- reading ---- */

/* Each read of the newest checkpoint fails once: the older one is used, or, where a directory or everything cannot be
 * read, the error is returned. Nothing wrong is ever loaded. */
static void test_reading(void **state) {
    checkpoint_case c;
    iv_error err;
    size_t older = 0, refused = 0;
    case_open(&c);
    ASSERT_OK(case_save(&c, 1, &err), &err);
    ASSERT_OK(case_save(&c, 2, &err), &err);
    for (size_t at = 1;; at++) {
        iv_training_checkpoint *found = NULL;
        iv_buf notes = {0};
        arm(at, EIO);
        iv_status status = iv_training_resume(&c.run, NULL, &found, &notes, &err);
        const char *call = failed;
        bool hit = disarm();
        if (status == IV_OK) {
            assert_non_null(found);
            uint64_t step = iv_training_get(found)->progress.step;
            case_check(found, step);
            if (step == 1) {
                older++;
                if (!strstr(notes.data, "Input/output error") || !strstr(notes.data, "000001 is the last good"))
                    fail_msg("call %zu: %s: '%s'", at, call, notes.data);
            }
        } else {
            assert_null(found);
            assert_true(strstr(err.message, "Input/output error") != NULL);
            refused++;
        }
        iv_training_close(found);
        iv_buf_free(&notes);
        if (!hit) break;
    }
    printf("reading errors: %zu times the older checkpoint, %zu errors\n", older, refused);
    assert_true(older > 5 && refused > 0);
    case_close(&c);
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_call), cmocka_unit_test(test_without_swap),
                                       cmocka_unit_test(test_first_save), cmocka_unit_test(test_ranks),
                                       cmocka_unit_test(test_reading)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
