/* fuzz_replay_main.c: replays the saved corpus of a fuzz target without a fuzzer, in every build.
 *
 * Usage: replay NOUN CORPUS_FOLDER. Each saved file is played unchanged; then truncated and damaged copies are
 * played in a fixed order until the time limit (longer with INVAR_TEST_LONG). The machine's speed decides only
 * how far a run gets. An input that kills the program is named last. The targets' entry points are compiled as
 * fuzz_NOUN. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TARGET(noun) int fuzz_##noun(const uint8_t *data, size_t n);
#include FUZZ_TARGETS
#undef TARGET
#define TARGET(noun) {#noun, fuzz_##noun},
static const struct target {
    const char *name;
    int (*test_one)(const uint8_t *data, size_t n);
} targets[] = {
#include FUZZ_TARGETS
};
static const struct target *target;

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

enum { FILES_MAX = 4096, FILE_BYTES_MAX = 16 << 20, FLIPS_MAX = 8 };

typedef struct seed {
    char *name;
    uint8_t *bytes;
    size_t n;
} seed;

static char playing[512] = "nothing yet";

static void name_input(void) {
    static const char head[] = "\nreplay: died on ";
    ssize_t wrote = write(STDERR_FILENO, head, sizeof head - 1);
    wrote = write(STDERR_FILENO, playing, strlen(playing));
    wrote = write(STDERR_FILENO, "\n", 1);
    (void)wrote;
}

static void on_signal(int number) {
    name_input();
    signal(number, SIG_DFL);
    raise(number);
}

static void watch_for_death(void) {
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(name_input);
        signal(SIGABRT, on_signal);
        return;
    }
    static const int deadly[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++) signal(deadly[i], on_signal);
}

static _Noreturn void fail(const char *what, const char *name) {
    fprintf(stderr, "replay: %s: %s\n", name, what);
    exit(1);
}

/* The target gets a block of exactly n bytes, so that a sanitizer sees the first byte read past it. */
static void play(const uint8_t *bytes, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) fail("out of memory", playing);
    if (n) memcpy(copy, bytes, n);
    target->test_one(copy, n);
    free(copy);
}

static seed read_seed(const char *folder, const char *name) {
    seed s = {.name = strdup(name), .bytes = malloc(FILE_BYTES_MAX)};
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!s.name || !s.bytes || !file) fail("cannot be read", path);
    s.n = fread(s.bytes, 1, FILE_BYTES_MAX, file);
    if (ferror(file) || fgetc(file) != EOF) fail("is longer than a corpus file may be", path);
    fclose(file);
    uint8_t *fit = realloc(s.bytes, s.n ? s.n : 1);
    if (fit) s.bytes = fit;
    return s;
}

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* One damaged copy: cut short on even rounds, one to FLIPS_MAX bits turned over on odd ones. */
static void play_damaged(const seed *s, uint64_t round) {
    uint64_t state = round;
    if (s->n == 0) return;
    if (round % 2 == 0) {
        size_t keep = next_random(&state) % s->n;
        snprintf(playing, sizeof playing, "%s cut to %zu bytes", s->name, keep);
        play(s->bytes, keep);
        return;
    }
    uint8_t *copy = malloc(s->n);
    if (!copy) fail("out of memory", s->name);
    memcpy(copy, s->bytes, s->n);
    int flips = 1 + (int)(next_random(&state) % FLIPS_MAX);
    for (int i = 0; i < flips; i++) {
        size_t bit = next_random(&state) % (8 * s->n);
        copy[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    snprintf(playing, sizeof playing, "%s with %d bits flipped, round %llu", s->name, flips, (unsigned long long)round);
    play(copy, s->n);
    free(copy);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 3) fail("wanted two arguments, a target and a corpus folder", argv[0]);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (strcmp(targets[i].name, argv[1]) == 0) target = &targets[i];
    if (!target) fail("no such target", argv[1]);
    const char *folder = argv[2];
    watch_for_death();
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, is_visible, alphasort);
    if (n <= 0) fail("no saved corpus here", folder);
    if (n > FILES_MAX) fail("more files than a corpus may have", folder);
    seed *seeds = calloc((size_t)n, sizeof *seeds);
    if (!seeds) fail("out of memory", folder);
    for (int i = 0; i < n; i++) {
        seeds[i] = read_seed(folder, entries[i]->d_name);
        free(entries[i]);
        snprintf(playing, sizeof playing, "%s", seeds[i].name);
        play(seeds[i].bytes, seeds[i].n);
    }
    free(entries);

    double end = seconds() + (getenv("INVAR_TEST_LONG") ? 30.0 : 1.0);
    unsigned long long damaged = 0;
    for (uint64_t round = 0; seconds() < end; round++)
        for (int i = 0; i < n && seconds() < end; i++, damaged++) play_damaged(&seeds[i], round);

    for (int i = 0; i < n; i++) {
        free(seeds[i].name);
        free(seeds[i].bytes);
    }
    free(seeds);
    printf("replay: %d saved files, %llu damaged copies\n", n, damaged);
    return 0;
}
