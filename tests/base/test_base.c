/* base: errors stay one printable line, sizes do not wrap, UTF-8 is strict. */
#include "support.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"
#include "base/utf8.h"

#include <sys/wait.h>
#include <unistd.h>

static void error_lines_are_printable(void **state) {
    (void)state;
    iv_error err;
    assert_int_equal(iv_fail(&err, IV_FORMAT, "a\nb\x1b[31m\xff é %s", "x"), IV_FORMAT);
    assert_string_equal(err.message, "a\\x0ab\\x1b[31m\\xff é x");
    iv_error_prefix(&err, "file");
    assert_non_null(strstr(err.message, "file: a"));
}

static void sizes_do_not_wrap(void **state) {
    (void)state;
    size_t out;
    assert_false(iv_size_mul(SIZE_MAX, 2, &out));
    assert_false(iv_size_add(SIZE_MAX, 1, &out));
    assert_false(iv_size_round_up(SIZE_MAX - 1, 64, &out));
    iv_arena arena = {0};
    assert_null(iv_arena_alloc(&arena, SIZE_MAX / 2, 3));
    assert_null(iv_arena_alloc(&arena, SIZE_MAX - 8, 1));
    void *p = iv_arena_alloc(&arena, 3, 5);
    assert_int_equal((uintptr_t)p % 64, 0);
    iv_arena_free(&arena);
    iv_arena_init(&arena, 128);
    assert_non_null(iv_arena_alloc(&arena, 1, 128));
    assert_false(arena.full);
    assert_null(iv_arena_alloc(&arena, 1, 1));
    assert_true(arena.full);
    iv_arena_free(&arena);
    assert_false(arena.full);
    iv_buf buf = {.limit = 3};
    assert_true(iv_buf_puts(&buf, "abc"));
    assert_false(iv_buf_putc(&buf, 'd'));
    assert_string_equal(buf.data, "abc");
    iv_buf_free(&buf);
    buf = (iv_buf){.limit = 100}; /* nor does it allocate more than the limit */
    for (size_t i = 0; i < 100; i++) assert_true(iv_buf_putc(&buf, 'a') && buf.cap <= 101);
    assert_false(iv_buf_putc(&buf, 'a'));
    iv_buf_free(&buf);
}

static void utf8_is_strict(void **state) {
    (void)state;
    static const char *const bad[] = {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80", "\x80", "\xc3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(iv_utf8_valid((const uint8_t *)bad[i], strlen(bad[i]), NULL));
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        uint8_t s[4];
        uint32_t back = 0;
        size_t n = iv_utf8_encode(cp, s);
        assert_int_equal(iv_utf8_decode(s, n, &back), n);
        assert_int_equal(back, cp);
        for (size_t k = 1; k < n; k++) assert_true(iv_utf8_is_partial(s, k));
    }
}

static void files_name_what_is_wrong(void **state) {
    (void)state;
    iv_error err;
    iv_buf buf = {0};
    assert_int_equal(iv_file_read("/nonexistent/x", 10, &buf, &err), IV_NOT_FOUND);
    assert_int_equal(iv_file_read("/", 10, &buf, &err), IV_IO);
    assert_non_null(strstr(err.message, "a directory"));
    assert_int_equal(iv_file_read(source_path("CMakeLists.txt"), 10, &buf, &err), IV_LIMIT);
    ASSERT_OK(iv_file_read(source_path("CMakeLists.txt"), 1 << 20, &buf, &err), &err);
    assert_true(buf.len > 100);
    char path[] = "/tmp/invar-test-XXXXXX";
    int fd = mkstemp(path);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    assert_int_equal(write(fd, pointer, sizeof pointer - 1), sizeof pointer - 1);
    assert_int_equal(iv_file_read(path, 1 << 20, &buf, &err), IV_FORMAT);
    assert_non_null(strstr(err.message, "found Git LFS's pointer to it"));
    assert_int_equal(ftruncate(fd, 30), 0); /* shorter than its first line */
    ASSERT_OK(iv_file_read(path, 1 << 20, &buf, &err), &err);
    close(fd), unlink(path);
    iv_buf_free(&buf);
}

/* As <(...) of a shell; a FIFO in a model directory is refused instead of waited for. */
static void pipes_that_the_user_names_are_read(void **state) {
    (void)state;
    enum { BYTES = 200000 };
    iv_error err;
    iv_buf buf = {0};
    char path[40];
    for (size_t limit = BYTES; limit >= BYTES - 1; limit--) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            for (int i = 0; i < BYTES; i++)
                if (write(ends[1], &"0123456789"[i % 10], 1) != 1) _exit(1);
            _exit(0);
        }
        close(ends[1]);
        snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
        assert_int_equal(iv_file_read(path, BYTES, &buf, &err), IV_IO);
        assert_non_null(strstr(err.message, "wanted a file, found a pipe (copy what it gives to a file)"));
        iv_status status = iv_file_read_any(path, limit, &buf, &err);
        assert_int_equal(status, limit == BYTES ? IV_OK : IV_LIMIT);
        if (status == IV_OK) assert_true(buf.len == BYTES && strncmp(buf.data + BYTES - 10, "0123456789", 11) == 0);
        close(ends[0]);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    assert_int_equal(iv_file_read_any("/", 10, &buf, &err), IV_IO);
    assert_int_equal(iv_file_read_any("/nonexistent/x", 10, &buf, &err), IV_NOT_FOUND);
    ASSERT_OK(iv_file_read_any(source_path("CMakeLists.txt"), 1 << 20, &buf, &err), &err);
    ASSERT_OK(iv_file_read_any("/dev/null", 10, &buf, &err), &err);
    assert_int_equal(buf.len, 0);
    iv_buf_free(&buf);
}

static void sha256_of_abc(void **state) {
    (void)state;
    uint8_t d[32];
    char hex[65];
    iv_digest_of("abc", 3, d);
    iv_digest_hex(d, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(error_lines_are_printable),
                                       cmocka_unit_test(sizes_do_not_wrap),
                                       cmocka_unit_test(utf8_is_strict),
                                       cmocka_unit_test(files_name_what_is_wrong),
                                       cmocka_unit_test(pipes_that_the_user_names_are_read),
                                       cmocka_unit_test(sha256_of_abc)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
