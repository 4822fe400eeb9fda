/* verify_compare.h: events against the quiet run's answers. Pure but for the cell. */
#ifndef INVAR_CLI_VERIFY_COMPARE_H
#define INVAR_CLI_VERIFY_COMPARE_H

#include "verify_run.h"

/* Fast and not cryptographic: two rows that differ by accident have different hashes. */
uint64_t verify_row_hash(const float *row, size_t n);

/* Writes down the quiet run's token number `at`, and its end. CLI_FAILED names what is missing. */
int verify_record_token(const verify_job *job, verify_answer *answer, const iv_event *event, iv_error *err);
int verify_record_end(const verify_job *job, verify_answer *answer, const iv_event *event, iv_error *err);

/* Compares token number `at` of an answer. False once tokens differ: what follows has another past. */
bool verify_compare_token(const verify_job *job, const verify_answer *answer, size_t at, const iv_event *event,
                          verify_cell *cell);
/* Compares the end of an answer of `count` tokens. */
void verify_compare_end(const verify_answer *answer, size_t count, const iv_event *event, verify_cell *cell);

/* "position 3, token 17: wanted ..., found ..., 2 ulps apart". Returns out. */
const char *verify_difference(const verify_cell *cell, char out[256]);

#endif
