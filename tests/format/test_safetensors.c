/* Tensor files: refusals and their reasons, damaged files, and reading the writer's files back. */
#include "scratch.h"
#include "base/file.h"
#include "format/safetensors_write.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

typedef struct parsed {
    iv_arena arena;
    iv_tensor_info *tensors;
    size_t count;
    iv_error err;
} parsed;

static iv_status parse(parsed *p, const char *header, size_t n, size_t data_bytes) {
    memset(p, 0, sizeof *p);
    return iv_safetensors_parse("t", header, n, 8 + n + data_bytes, &p->arena, &p->tensors, &p->count, &p->err);
}

static iv_status read_path(parsed *p, const char *path) {
    int fd;
    size_t size;
    memset(p, 0, sizeof *p);
    iv_status status = iv_file_open(path, &fd, &size, &p->err);
    if (status != IV_OK) return status;
    status = iv_safetensors_read(path, fd, size, &p->arena, &p->tensors, &p->count, &p->err);
    close(fd);
    return status;
}

/* What a successful parse promises. */
static void check_promises(const parsed *p, size_t data_start, size_t file_size) {
    size_t at = data_start;
    for (size_t i = 0; i < p->count; i++) {
        const iv_tensor_info *t = &p->tensors[i];
        size_t elements = 1;
        for (int d = 0; d < t->ndim; d++) elements *= (size_t)t->shape[d];
        assert_int_equal(t->offset, at);
        assert_int_equal(t->elements, elements);
        assert_int_equal(t->bytes, elements * iv_dtype_bytes(t->dtype));
        at += t->bytes;
    }
    assert_int_equal(at, file_size);
}

static const struct {
    const char *header;
    size_t data_bytes;
    iv_status status;
    const char *text;
} bad[] = {
    {"", 0, IV_FORMAT, "begin with '{'"},
    {" {}", 0, IV_FORMAT, "begin with '{'"},
    {"[]", 0, IV_FORMAT, "begin with '{'"},
    {"{", 0, IV_FORMAT, "not valid JSON"},
    {"{}x", 0, IV_FORMAT, "not valid JSON"},
    {"{\"a\":1}", 0, IV_FORMAT, "'a': wanted an object, found integer"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}",
     1, IV_FORMAT, "duplicate"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "'a': dtype is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "'a': shape is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, IV_FORMAT, "'a': data_offsets is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, IV_FORMAT, "found 4 keys"},
    {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "dtype: wanted a string"},
    {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IV_UNSUPPORTED, "'F6_E2M3'"},
    {"{\"a\":{\"dtype\":\"U8\\u0000\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IV_UNSUPPORTED, "'U8'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "shape: wanted an array"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "a negative integer"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "shape[0]: wanted an integer"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "found string"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, IV_LIMIT, "9 dimensions"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "found real"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "overflows"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "overflows"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, IV_FORMAT,
     "overflows"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0, IV_FORMAT,
     "overflows"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, IV_FORMAT, "wanted two integers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, IV_FORMAT, "wanted two integers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}}", 1, IV_FORMAT, "wanted two integers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{}}}", 1, IV_FORMAT, "wanted two integers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, IV_FORMAT, "found [1, 0]"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, IV_FORMAT, "found [-1, 0]"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, IV_FORMAT,
     "62 bytes, but its header says at least 63 (the end of tensor 'a')"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, IV_FORMAT,
     "take 2 bytes, its data_offsets span 1"},
    {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, IV_FORMAT, "take 2 bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 2, IV_FORMAT, "the tensors end at byte"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, IV_FORMAT, "leaving a hole from 0"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
     3, IV_FORMAT, "'a' and 'b' overlap at data byte 1"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1, IV_FORMAT, "overlap at data byte 0"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]}}",
     2, IV_FORMAT, "overlap at data byte 1"},
    {"{}", 1, IV_FORMAT, "the tensors end at byte 10, the file at 11"},
    {"{\"__metadata__\":[]}", 0, IV_FORMAT, "__metadata__: wanted an object"},
    {"{\"__metadata__\":{\"format\":1}}", 0, IV_FORMAT, "'format': wanted a string, found integer"},
    {"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "decode byte 0xff"},
    {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IV_FORMAT, "NUL"},
};

static void bad_headers_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        parsed p;
        iv_status got = parse(&p, bad[i].header, strlen(bad[i].header), bad[i].data_bytes);
        expect_error(bad[i].header, got, &p.err, bad[i].status, bad[i].text);
        iv_arena_free(&p.arena);
    }
}

static void names_have_a_limit(void **state) {
    (void)state;
    for (int extra = 0; extra < 2; extra++) {
        char header[IV_TENSOR_NAME_BYTES_MAX + 100];
        int n = snprintf(header, sizeof header, "{\"%0*d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                         IV_TENSOR_NAME_BYTES_MAX + extra, 0);
        parsed p;
        iv_status got = parse(&p, header, (size_t)n, 1);
        if (extra)
            expect_error("long name", got, &p.err, IV_LIMIT, "1025 bytes");
        else
            ASSERT_OK(got, &p.err);
        iv_arena_free(&p.arena);
    }
}

static void good_headers_are_sorted_by_offset(void **state) {
    (void)state;
    static const char header[] = "{\"z\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                                 "\"e2\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
                                 "\"e1\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[8,8]},"
                                 "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]},"
                                 "\"__metadata__\":{\"format\":\"pt\"}}  ";
    static const char *const names[] = {"a", "e1", "e2", "z", "s"};
    parsed p;
    ASSERT_OK(parse(&p, header, sizeof header - 1, 21), &p.err);
    assert_int_equal(p.count, 5);
    for (size_t i = 0; i < 5; i++) assert_string_equal(p.tensors[i].name, names[i]);
    check_promises(&p, 8 + sizeof header - 1, 8 + sizeof header - 1 + 21);
    assert_int_equal(p.tensors[3].dtype, IV_BF16);
    assert_int_equal(p.tensors[3].ndim, 2);
    assert_int_equal(p.tensors[3].shape[1], 3);
    assert_int_equal(p.tensors[4].ndim, 0);
    assert_int_equal(p.tensors[4].elements, 1);
    iv_arena_free(&p.arena);
}

/* Each allocation of the arena fails once. */
static void memory_running_out_is_an_error(void **state) {
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
    int failures = 0;
    for (size_t limit = 64;; limit += 64) {
        parsed p = {0};
        iv_arena_init(&p.arena, limit);
        iv_status got = iv_safetensors_parse("t", header, sizeof header - 1, 8 + sizeof header - 1 + 2, &p.arena,
                                             &p.tensors, &p.count, &p.err);
        iv_arena_free(&p.arena);
        if (got == IV_OK) break;
        assert_int_equal(got, IV_NO_MEMORY);
        failures++;
    }
    assert_true(failures >= 3);
}

/* All element types, a scalar, an empty tensor, and names that need escapes. Falling element size. */
static const double f64s[2] = {1.5, -2.25};
static const int64_t i64s[3] = {INT64_MIN, 0, INT64_MAX};
static const float f32s[6] = {0, 1, 2, 3, 4, 5};
static const int32_t i32 = -7;
static const uint16_t halves[4] = {0x3f80, 0xbf80, 0x7f80, 0xffff};
static const uint8_t bytes[5] = {0, 1, 2, 254, 255};
static const iv_tensor_data sample[] = {
    {"double", IV_F64, 1, {2}, f64s},      {"long", IV_I64, 2, {3, 1}, i64s},
    {"float", IV_F32, 3, {1, 2, 3}, f32s}, {"scalar", IV_I32, 0, {0}, &i32},
    {"brain", IV_BF16, 2, {2, 2}, halves}, {"half", IV_F16, 1, {4}, halves},
    {"short", IV_I16, 1, {4}, halves},     {"empty", IV_F32, 2, {0, 9}, NULL},
    {"q\"\\\n\x01", IV_I8, 1, {5}, bytes}, {"\xc3\xa9\xe6\x97\xa5", IV_U8, 1, {5}, bytes},
    {"bool", IV_BOOL, 1, {2}, bytes},
};
enum { SAMPLE_COUNT = sizeof sample / sizeof *sample };

static void written_files_read_back(void **state) {
    (void)state;
    scratch s;
    scratch_open(&s);
    iv_error err;
    iv_buf file = {0};
    parsed p;
    ASSERT_OK(iv_safetensors_write(scratch_path(&s, "x"), sample, SAMPLE_COUNT, &err), &err);
    assert_int_equal(scratch_count(&s), 1);
    ASSERT_OK(iv_file_read(scratch_path(&s, "x"), 1 << 20, &file, &err), &err);
    ASSERT_OK(read_path(&p, scratch_path(&s, "x")), &p.err);
    assert_int_equal(p.count, SAMPLE_COUNT);
    check_promises(&p, p.tensors[0].offset, file.len);
    assert_int_equal(p.tensors[0].offset % 8, 0);
    size_t at = p.tensors[0].offset;
    for (size_t i = 0; i < SAMPLE_COUNT; i++) {
        const iv_tensor_data *want = &sample[i];
        const iv_tensor_info *got = NULL;
        for (size_t k = 0; k < p.count && !got; k++)
            if (strcmp(p.tensors[k].name, want->name) == 0) got = &p.tensors[k];
        assert_non_null(got);
        assert_int_equal(got->dtype, want->dtype);
        assert_int_equal(got->ndim, want->ndim);
        for (int d = 0; d < want->ndim; d++) assert_int_equal(got->shape[d], want->shape[d]);
        assert_int_equal(got->offset, at);
        if (got->bytes) assert_memory_equal(file.data + got->offset, want->data, got->bytes);
        at += got->bytes;
    }
    iv_arena_free(&p.arena);
    iv_buf_free(&file);
    scratch_close(&s);
}

/* The bytes that the reference implementation writes for these two files. */
static void bytes_are_those_of_the_reference(void **state) {
    (void)state;
    static const char one[] =
        "\x40\0\0\0\0\0\0\0{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}}";
    static const char none[] = "\x08\0\0\0\0\0\0\0{}      ";
    scratch s;
    scratch_open(&s);
    iv_error err;
    iv_buf file = {0};
    const iv_tensor_data t = {"attn.0", IV_F32, 3, {1, 2, 3}, f32s};
    ASSERT_OK(iv_safetensors_write(scratch_path(&s, "x"), &t, 1, &err), &err);
    ASSERT_OK(iv_file_read(scratch_path(&s, "x"), 1 << 20, &file, &err), &err);
    assert_int_equal(file.len, sizeof one - 1 + sizeof f32s);
    assert_memory_equal(file.data, one, sizeof one - 1);
    assert_memory_equal(file.data + sizeof one - 1, f32s, sizeof f32s);
    ASSERT_OK(iv_safetensors_write(scratch_path(&s, "x"), NULL, 0, &err), &err);
    ASSERT_OK(iv_file_read(scratch_path(&s, "x"), 1 << 20, &file, &err), &err);
    assert_int_equal(file.len, sizeof none - 1);
    assert_memory_equal(file.data, none, sizeof none - 1);
    iv_buf_free(&file);
    scratch_close(&s);
}

static void the_writer_refuses_what_could_not_be_read(void **state) {
    (void)state;
    static char long_name[IV_TENSOR_NAME_BYTES_MAX + 2];
    memset(long_name, 'n', sizeof long_name - 1);
    static const int32_t data[4];
    const struct {
        iv_tensor_data t;
        const char *text;
    } cases[] = {
        {{"", IV_I32, 1, {4}, data}, "cannot name a tensor"},
        {{NULL, IV_I32, 1, {4}, data}, "cannot name a tensor"},
        {{"__metadata__", IV_I32, 1, {4}, data}, "cannot name a tensor"},
        {{"\xff", IV_I32, 1, {4}, data}, "cannot name a tensor"},
        {{long_name, IV_I32, 1, {4}, data}, "cannot name a tensor"},
        {{"a", IV_DTYPE_COUNT, 1, {4}, data}, "cannot be written"},
        {{"a", IV_I32, 9, {4}, data}, "9 dimensions"},
        {{"a", IV_I32, -1, {4}, data}, "cannot be written"},
        {{"a", IV_I32, 1, {-4}, data}, "shape[0] is -4"},
        {{"a", IV_I32, 2, {INT64_MAX, INT64_MAX}, data}, "overflows"},
        {{"a", IV_I32, 1, {INT64_MAX / 2}, data}, "overflows"},
        {{"a", IV_I32, 1, {4}, NULL}, "has no data"},
    };
    scratch s;
    scratch_open(&s);
    iv_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(cases[i].text, iv_safetensors_write(scratch_path(&s, "x"), &cases[i].t, 1, &err), &err, IV_INVALID,
                     cases[i].text);
    const iv_tensor_data twice[] = {
        {"a", IV_I32, 1, {4}, data}, {"b", IV_I32, 0, {0}, data}, {"a", IV_I32, 0, {0}, data}};
    expect_error("twice", iv_safetensors_write(scratch_path(&s, "x"), twice, 3, &err), &err, IV_INVALID,
                 "'a' is given twice");
    expect_error("no dir", iv_safetensors_write(scratch_path(&s, "no/x"), twice, 2, &err), &err, IV_IO, "cannot write");
    assert_int_equal(mkdir(scratch_path(&s, "d"), 0777), 0);
    expect_error("over a directory", iv_safetensors_write(scratch_path(&s, "d"), twice, 2, &err), &err, IV_IO,
                 "cannot write: Is a directory");
    assert_int_equal(scratch_count(&s), 1);
    scratch_close(&s);
}

/* A disk that fills up: simulated by the limit on file sizes. */
/* A device such as /dev/null, or a link, must still exist after writing. */
static void pipes_and_links_stay(void **state) {
    (void)state;
    scratch s;
    struct stat st;
    iv_error err;
    const float four[] = {1, 2, 3, 4};
    const iv_tensor_data t = {"a", IV_F32, 1, {4}, four};
    char written[4096], file[1024];
    scratch_open(&s);
    assert_int_equal(mkfifo(scratch_path(&s, "pipe"), 0600), 0);
    int reader = open(scratch_path(&s, "pipe"), O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    ASSERT_OK(iv_safetensors_write(scratch_path(&s, "pipe"), &t, 1, &err), &err);
    assert_true(read(reader, written, sizeof written) > (ssize_t)sizeof four);
    close(reader);
    assert_int_equal(lstat(scratch_path(&s, "pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    scratch_write(&s, "file", "old", 3);
    snprintf(file, sizeof file, "%s", scratch_path(&s, "file"));
    assert_int_equal(symlink(file, scratch_path(&s, "link")), 0);
    ASSERT_OK(iv_safetensors_write(scratch_path(&s, "link"), &t, 1, &err), &err);
    assert_int_equal(lstat(scratch_path(&s, "link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lstat(file, &st), 0);
    assert_true(st.st_size > (off_t)sizeof four);
    assert_int_equal(scratch_count(&s), 3);
    scratch_close(&s);
}

static void a_write_that_fails_leaves_nothing(void **state) {
    (void)state;
    static const uint8_t data[4096];
    const iv_tensor_data t = {"a", IV_U8, 1, {sizeof data}, data};
    scratch s;
    iv_error err;
    struct rlimit before, small;
    scratch_open(&s);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    iv_status got = iv_safetensors_write(scratch_path(&s, "x"), &t, 1, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    expect_error("full", got, &err, IV_IO, "write failed");
    assert_int_equal(scratch_count(&s), 0);
    scratch_close(&s);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    scratch s;
    scratch_open(&s);
    iv_error err;
    iv_buf file = {0};
    ASSERT_OK(iv_safetensors_write(scratch_path(&s, "x"), sample, SAMPLE_COUNT, &err), &err);
    ASSERT_OK(iv_file_read(scratch_path(&s, "x"), 1 << 20, &file, &err), &err);
    for (size_t n = 0; n < file.len; n++) {
        parsed p;
        scratch_write(&s, "cut", file.data, n);
        expect_error("cut", read_path(&p, scratch_path(&s, "cut")), &p.err, IV_FORMAT, "cut");
        iv_arena_free(&p.arena);
    }
    parsed p;
    assert_true(iv_buf_putc(&file, 0));
    scratch_write(&s, "longer", file.data, file.len);
    expect_error("longer", read_path(&p, scratch_path(&s, "longer")), &p.err, IV_FORMAT, "the tensors end at byte");
    iv_arena_free(&p.arena);
    iv_buf_free(&file);
    scratch_close(&s);
}

static void bit_flips_never_break_a_promise(void **state) {
    (void)state;
    scratch s;
    scratch_open(&s);
    iv_error err;
    iv_buf file = {0};
    ASSERT_OK(iv_safetensors_write(scratch_path(&s, "x"), sample, SAMPLE_COUNT, &err), &err);
    ASSERT_OK(iv_file_read(scratch_path(&s, "x"), 1 << 20, &file, &err), &err);
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    size_t header_bytes = (uint8_t)file.data[0] | (size_t)(uint8_t)file.data[1] << 8;
    char *copy = malloc(header_bytes);
    assert_non_null(copy);
    printf("bit flips: seed %llu\n", (unsigned long long)seed);
    int accepted = 0, refused = 0;
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, file.data + 8, header_bytes);
        for (uint64_t flips = 1 + scratch_random(&random) % 3; flips > 0; flips--) {
            uint64_t bit = scratch_random(&random) % (header_bytes * 8);
            copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        }
        parsed p;
        iv_status got = parse(&p, copy, header_bytes, file.len - 8 - header_bytes);
        if (got == IV_OK) {
            check_promises(&p, 8 + header_bytes, file.len);
            accepted++;
        } else {
            assert_true(got == IV_FORMAT || got == IV_UNSUPPORTED);
            refused++;
        }
        iv_arena_free(&p.arena);
    }
    assert_true(accepted > 0 && refused > 0); /* a letter of a name may change; most else may not */
    free(copy);
    iv_buf_free(&file);
    scratch_close(&s);
}

static void the_length_is_checked_before_it_is_used(void **state) {
    (void)state;
    static const struct {
        unsigned char length[8];
        iv_status status;
    } cases[] = {{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, IV_LIMIT},
                 {{0, 0, 0, 0, 0, 0, 0, 0x80}, IV_LIMIT},
                 {{0x01, 0xe1, 0xf5, 0x05}, IV_LIMIT}, /* 100,000,001 */
                 {{0x00, 0xe1, 0xf5, 0x05}, IV_FORMAT},
                 {{3}, IV_FORMAT},
                 {{0}, IV_FORMAT}};
    scratch s;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[10] = "........{}";
        memcpy(file, cases[i].length, 8);
        scratch_write(&s, "x", file, sizeof file);
        parsed p;
        expect_error("length", read_path(&p, scratch_path(&s, "x")), &p.err, cases[i].status, "header");
        iv_arena_free(&p.arena);
    }
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_headers_are_named),
                                       cmocka_unit_test(names_have_a_limit),
                                       cmocka_unit_test(good_headers_are_sorted_by_offset),
                                       cmocka_unit_test(memory_running_out_is_an_error),
                                       cmocka_unit_test(written_files_read_back),
                                       cmocka_unit_test(bytes_are_those_of_the_reference),
                                       cmocka_unit_test(the_writer_refuses_what_could_not_be_read),
                                       cmocka_unit_test(pipes_and_links_stay),
                                       cmocka_unit_test(a_write_that_fails_leaves_nothing),
                                       cmocka_unit_test(every_truncation_is_refused),
                                       cmocka_unit_test(bit_flips_never_break_a_promise),
                                       cmocka_unit_test(the_length_is_checked_before_it_is_used)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
