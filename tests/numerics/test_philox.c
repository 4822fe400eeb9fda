/* Philox4x32-10 against the known answers that Random123 publishes (kat_vectors), and its use as noise. */
#include "support.h"
#include "numerics/philox.h"

typedef struct answer {
    uint32_t counter[4], key[2], out[4];
} answer;

static const answer answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void known_answers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        uint32_t out[4];
        iv_philox4x32(answers[i].counter, answers[i].key, out);
        for (int j = 0; j < 4; j++) assert_int_equal(out[j], answers[i].out[j]);
    }
}

/* One bit of the counter or the key changes about half of the 128 output bits: every input bit is used. */
static void every_input_bit_reaches_the_output(void **state) {
    (void)state;
    int least = 128, most = 0;
    for (int bit = 0; bit < 192; bit++) {
        uint32_t in[6] = {1, 2, 3, 4, 5, 6}, a[4], b[4];
        iv_philox4x32(in, in + 4, a);
        in[bit / 32] ^= UINT32_C(1) << bit % 32;
        iv_philox4x32(in, in + 4, b);
        int changed = 0;
        for (int j = 0; j < 4; j++) changed += __builtin_popcount(a[j] ^ b[j]);
        least = changed < least ? changed : least, most = changed > most ? changed : most;
    }
    printf("philox: a flipped input bit changes %d to %d of 128 output bits\n", least, most);
    assert_true(least >= 40 && most <= 88);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers),
                                       cmocka_unit_test(every_input_bit_reaches_the_output)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
