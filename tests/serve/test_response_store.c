/* Stored responses: read at once and after a restart, bounded in number and bytes, removed; what cannot be written is
 * counted; one process a directory. */
#include "support.h"
#include "serve/state/response_store.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/invar_store_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static size_t files(bool remove_them) {
    char path[512];
    size_t count = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        count += strstr(e->d_name, ".json") != NULL;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (remove_them) unlink(path);
    }
    closedir(d);
    return count;
}

static int remove_folder(void **state) {
    (void)state;
    files(true);
    return rmdir(folder);
}

static iv_response_store *open_store(size_t count, uint64_t bytes) {
    iv_response_store *s = NULL;
    iv_error err;
    ASSERT_OK(iv_response_store_open(&(iv_response_store_options){folder, count, bytes}, &s, &err), &err);
    return s;
}

static void put(iv_response_store *s, const char *id, const char *text) {
    iv_buf b = {0};
    assert_true(iv_buf_puts(&b, text));
    iv_response_store_put(s, id, &b);
    assert_null(b.data);
}

/* The text of an id; "": there is none. */
static const char *get(iv_response_store *s, const char *id) {
    static char text[1000];
    iv_buf b = {0};
    iv_error err;
    iv_status status = iv_response_store_get(s, id, &b, &err);
    assert_true(status == IV_OK || status == IV_NOT_FOUND);
    snprintf(text, sizeof text, "%.*s", (int)b.len, status == IV_OK ? b.data : "");
    iv_buf_free(&b);
    return text;
}

static iv_response_store_stats stats(iv_response_store *s) {
    iv_response_store_stats st;
    iv_response_store_get_stats(s, &st);
    return st;
}

static void kept_and_removed(void **state) {
    (void)state;
    iv_error err;
    iv_response_store *s = open_store(100, 1 << 20);
    static const char *const ids[] = {"resp_1", "../../etc/passwd", "a/b\nc", ""};
    for (size_t i = 0; i < 4; i++) put(s, ids[i], "text");
    for (size_t i = 0; i < 4; i++) assert_string_equal(get(s, ids[i]), "text");
    put(s, "resp_1", "another");
    assert_string_equal(get(s, "resp_1"), "another");
    assert_true(stats(s).count == 4 && stats(s).bytes == 3 * 4 + 7 && stats(s).lost == 0);
    assert_string_equal(get(s, "resp_2"), "");
    ASSERT_OK(iv_response_store_remove(s, "a/b\nc", &err), &err);
    assert_int_equal(iv_response_store_remove(s, "a/b\nc", &err), IV_NOT_FOUND);
    assert_string_equal(get(s, "a/b\nc"), "");
    iv_response_store_close(s);
    assert_int_equal(files(false), 3);
    s = open_store(100, 1 << 20); /* another process later */
    assert_string_equal(get(s, "resp_1"), "another");
    assert_string_equal(get(s, ""), "text");
    assert_true(stats(s).count == 3 && stats(s).bytes == 2 * 4 + 7);
    iv_response_store *other = NULL;
    assert_int_equal(iv_response_store_open(&(iv_response_store_options){folder, 1, 1}, &other, &err), IV_BUSY);
    assert_non_null(strstr(err.message, "another process"));
    assert_null(other);
    ASSERT_OK(iv_response_store_remove(s, "resp_1", &err), &err);
    iv_response_store_close(s);
    iv_response_store_close(NULL);
    assert_int_equal(files(true), 2);
}

static void oldest_first(void **state) {
    (void)state;
    char id[16];
    iv_response_store *s = open_store(5, 1 << 20);
    for (int i = 0; i < 12; i++) {
        snprintf(id, sizeof id, "%d", i);
        put(s, id, "0123456789");
    }
    assert_int_equal(stats(s).count, 5);
    for (int i = 0; i < 12; i++) {
        snprintf(id, sizeof id, "%d", i);
        assert_string_equal(get(s, id), i < 7 ? "" : "0123456789");
    }
    iv_response_store_close(s);
    assert_int_equal(files(false), 5);
    s = open_store(100, 35); /* three fit */
    assert_true(stats(s).count == 3 && stats(s).bytes == 30);
    put(s, "large", "0123456789012345678901234567890"); /* 31: alone */
    assert_true(stats(s).count == 1 && stats(s).bytes == 31);
    put(s, "too large", "012345678901234567890123456789012345");
    assert_true(stats(s).count == 1 && stats(s).lost == 1);
    put(s, "empty", "");
    assert_int_equal(stats(s).lost, 2);
    iv_response_store_close(s);
    assert_int_equal(files(true), 1);
}

/* The directory is gone while the store runs. */
static void what_cannot_be_written(void **state) {
    (void)state;
    iv_response_store *s = open_store(100, 1 << 20);
    char away[80];
    snprintf(away, sizeof away, "%s.away", folder);
    assert_int_equal(rename(folder, away), 0);
    put(s, "a", "text");
    for (int i = 0; i < 500 && stats(s).lost == 0; i++) usleep(10000);
    assert_true(stats(s).lost == 1 && stats(s).count == 0 && stats(s).bytes == 0);
    assert_non_null(strstr(stats(s).why, folder));
    assert_string_equal(get(s, "a"), "");
    assert_int_equal(rename(away, folder), 0);
    put(s, "a", "text");
    assert_string_equal(get(s, "a"), "text");
    iv_response_store_close(s);
    assert_int_equal(files(true), 1);
    iv_error err;
    assert_int_equal(iv_response_store_open(&(iv_response_store_options){"/no/such/folder", 1, 1}, &s, &err), IV_IO);
    assert_non_null(strstr(err.message, "/no/such/folder: cannot create it"));
}

/* Threads that put, read, replace and remove: every text read is one that was put under its id. */
enum { THREADS = 4, ROUNDS = 400, IDS = 12 };
static iv_response_store *shared;

static void *work(void *arg) {
    unsigned seed = (unsigned)(size_t)arg;
    char id[16], text[80];
    iv_error err;
    for (int i = 0; i < ROUNDS; i++) {
        int n = rand_r(&seed) % IDS, what = rand_r(&seed) % 4;
        snprintf(id, sizeof id, "id %d", n);
        snprintf(text, sizeof text, "text of %d, %d", n, rand_r(&seed));
        iv_buf b = {0};
        if (what < 2) {
            if (!iv_buf_puts(&b, text)) return (void *)(uintptr_t) "no memory";
            iv_response_store_put(shared, id, &b);
        } else if (what == 2) {
            iv_response_store_remove(shared, id, &err);
        } else if (iv_response_store_get(shared, id, &b, &err) == IV_OK) {
            snprintf(text, sizeof text, "text of %d, ", n);
            bool same = b.len > strlen(text) && strncmp(b.data, text, strlen(text)) == 0;
            iv_buf_free(&b);
            if (!same) return (void *)(uintptr_t) "another text";
        }
        iv_buf_free(&b);
    }
    return NULL;
}

static void many_threads(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    shared = open_store(IDS / 2, 1 << 20);
    for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
    for (size_t i = 0; i < THREADS; i++) {
        void *why;
        pthread_join(threads[i], &why);
        if (why) fail_msg("%s", (char *)why);
    }
    iv_response_store_stats s = stats(shared);
    assert_true(s.count <= IDS / 2 && s.lost == 0);
    iv_response_store_close(shared);
    assert_int_equal(files(true), s.count);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_and_removed), cmocka_unit_test(oldest_first),
                                       cmocka_unit_test(what_cannot_be_written), cmocka_unit_test(many_threads)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
