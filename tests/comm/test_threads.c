/* Ranks as threads: with random pauses, every rank receives all ranks' bytes of the same round, through two alternating
 * buffers; rank 0's broadcast reaches all; of blocks for each rank everyone receives their own. So also in groups
 * of neighbours. */
#include "random.h"
#include "comm/comm.h"

#include <pthread.h>

enum { FLOATS_MAX = 500 };

typedef struct part {
    iv_comm *comm;
    uint64_t seed;
    size_t rounds, wrong;
} part;

/* The bytes that rank r contributes in a round: a function that every rank can compute. */
static uint64_t value(uint64_t seed, size_t round, size_t r, size_t i) {
    rng g = {seed ^ (round * 1000003u + r * 10007u + i)};
    return rng_next(&g);
}
static size_t count(uint64_t seed, size_t round, size_t r) { return value(seed, round, r, 1u << 20) % FLOATS_MAX; }

static void pause_a_little(uint64_t u) {
    if (u % 7 == 0) usleep((useconds_t)(u % 200));
}

static uint64_t between(const part *p, size_t round, size_t from, size_t to) {
    return value(p->seed, round, IV_RANKS_MAX * from + to, 1u << 22);
}

static void all_to_all(part *p, size_t round) {
    uint64_t mine[IV_RANKS_MAX];
    const void *out[IV_RANKS_MAX], *blocks[IV_RANKS_MAX];
    size_t bytes[IV_RANKS_MAX], theirs[IV_RANKS_MAX], nothing[IV_RANKS_MAX] = {0};
    iv_error err;
    for (size_t r = 0; r < p->comm->size; r++) {
        mine[r] = between(p, round, p->comm->rank, r), out[r] = &mine[r];
        bytes[r] = theirs[r] = sizeof *mine;
    }
    p->wrong += iv_comm_all_to_all(p->comm, out, bytes, theirs, blocks, &err) != IV_OK;
    for (size_t r = 0; r < p->comm->size; r++)
        p->wrong += *(const uint64_t *)blocks[r] != between(p, round, r, p->comm->rank);
    p->wrong += iv_comm_all_gather(p->comm, NULL, nothing, blocks, &err) != IV_OK;
}

static void *take_part(void *argument) {
    part *p = argument;
    uint64_t(*buffer)[FLOATS_MAX] = calloc(2, sizeof *buffer);
    iv_error err;
    for (size_t round = 0; round < p->rounds; round++) {
        size_t bytes[IV_RANKS_MAX], n = count(p->seed, round, p->comm->rank);
        const void *blocks[IV_RANKS_MAX], *plan;
        uint64_t *mine = buffer[round % 2];
        for (size_t i = 0; i < n; i++) mine[i] = value(p->seed, round, p->comm->rank, i);
        for (size_t r = 0; r < p->comm->size; r++) bytes[r] = count(p->seed, round, r) * sizeof *mine;
        pause_a_little(value(p->seed, round, p->comm->rank, 1u << 21));
        bool all = round % 3 != 0;
        p->wrong += (all ? iv_comm_all_gather(p->comm, mine, bytes, blocks, &err)
                         : iv_comm_gather(p->comm, mine, bytes, blocks, &err)) != IV_OK;
        for (size_t r = 0; (all || p->comm->rank == 0) && r < p->comm->size; r++)
            for (size_t i = 0; i < bytes[r] / sizeof *mine; i++)
                p->wrong += ((const uint64_t *)blocks[r])[i] != value(p->seed, round, r, i);
        if (round % 4 == 1) all_to_all(p, round);
        if (round % 5) continue;
        uint64_t said = round + 1; /* on rank 0's stack: valid until the next call, when all have read it */
        size_t plan_bytes;
        p->wrong += iv_comm_broadcast(p->comm, &said, sizeof said, &plan, &plan_bytes, &err) != IV_OK;
        p->wrong += plan_bytes != sizeof said || *(const uint64_t *)plan != round + 1;
        size_t nothing[IV_RANKS_MAX] = {0};
        p->wrong += iv_comm_all_gather(p->comm, NULL, nothing, blocks, &err) != IV_OK;
    }
    const void *blocks[IV_RANKS_MAX]; /* all ranks have read the last block */
    static const size_t nothing[IV_RANKS_MAX];
    p->wrong += iv_comm_all_gather(p->comm, NULL, nothing, blocks, &err) != IV_OK;
    free(buffer);
    return NULL;
}

static void everybody_gets_everything(void **state) {
    (void)state;
    rng r = rng_start("threads");
    for (size_t size = 1; size <= IV_RANKS_MAX; size++) {
        iv_comm *comm[IV_RANKS_MAX];
        part p[IV_RANKS_MAX];
        pthread_t thread[IV_RANKS_MAX];
        iv_error err;
        uint64_t seed = rng_next(&r);
        ASSERT_OK(iv_comm_threads_open(size, comm, &err), &err);
        for (size_t i = 0; i < size; i++) {
            p[i] = (part){.comm = comm[i], .seed = seed, .rounds = trials(300, 5000)};
            assert_int_equal(pthread_create(&thread[i], NULL, take_part, &p[i]), 0);
        }
        for (size_t i = 0; i < size; i++) {
            pthread_join(thread[i], NULL);
            if (p[i].wrong) fail_msg("rank %zu of %zu: %zu values are wrong", i, size, p[i].wrong);
        }
        for (size_t i = 0; i < size; i++) iv_comm_close(comm[i]);
    }
}

/* As take_part, in a group of neighbours, before and after a round of all. */
typedef struct group_part {
    part all, mine;
    size_t count;
} group_part;

static void *take_part_in_group(void *argument) {
    group_part *g = argument;
    iv_error err;
    g->mine = g->all;
    take_part(&g->all);
    if (iv_comm_split(g->all.comm, g->count, &g->mine.comm, &err) != IV_OK) return NULL;
    g->mine.seed += g->all.comm->rank / g->count; /* groups say different things */
    g->mine.wrong = g->mine.comm->size != g->count || g->mine.comm->rank != g->all.comm->rank % g->count;
    take_part(&g->mine);
    take_part(&g->all);
    iv_comm_close(g->mine.comm);
    g->mine.comm = NULL;
    return NULL;
}

static void groups_work_at_once(void **state) {
    (void)state;
    static const size_t sizes[][2] = {{8, 4}, {8, 2}, {6, 3}, {4, 4}, {3, 1}};
    rng r = rng_start("threads");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        iv_comm *comm[IV_RANKS_MAX];
        group_part p[IV_RANKS_MAX];
        pthread_t thread[IV_RANKS_MAX];
        iv_error err;
        uint64_t seed = rng_next(&r);
        ASSERT_OK(iv_comm_threads_open(sizes[k][0], comm, &err), &err);
        for (size_t i = 0; i < sizes[k][0]; i++) {
            p[i] =
                (group_part){.all = {.comm = comm[i], .seed = seed, .rounds = trials(60, 1000)}, .count = sizes[k][1]};
            assert_int_equal(pthread_create(&thread[i], NULL, take_part_in_group, &p[i]), 0);
        }
        for (size_t i = 0; i < sizes[k][0]; i++) {
            pthread_join(thread[i], NULL);
            if (p[i].mine.comm || p[i].mine.wrong || p[i].all.wrong)
                fail_msg("rank %zu of %zu in groups of %zu: %zu values are wrong", i, sizes[k][0], sizes[k][1],
                         p[i].mine.wrong + p[i].all.wrong);
        }
        for (size_t i = 0; i < sizes[k][0]; i++) iv_comm_close(comm[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(everybody_gets_everything),
                                       cmocka_unit_test(groups_work_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
