/* process.h: an external program that scores completions: JSON lines to its input, JSON lines from its output.
 *
 * The program is started once, by /bin/sh, in a process group of its own, and gets a line per completion:
 *   {"id": 17, "prompt": "...", "completion": "...", "answer": "..." or null, "line": the data's line as JSON or null}
 * It answers each with {"id": 17, "reward": 0.5}, in any order; other members are ignored. Ids count up over the run.
 * When its input ends it should exit.
 *
 * Whatever the program does, a call returns within the time limit: after an error the process group has been killed and
 * reaped. Errors name the command, what was wanted and found, and the last line of the program's stderr. */
#ifndef IV_TRAIN_REWARD_PROCESS_H
#define IV_TRAIN_REWARD_PROCESS_H

#include "base/status.h"
#include "train/reward/reward.h"

typedef struct iv_reward_process iv_reward_process;

enum { IV_REWARD_LINE_MAX = 1 << 20 }; /* bytes of a line of the program's output */

/* Starts the command; IV_IO if the operating system cannot. `seconds` is the time limit of a batch. */
iv_status iv_reward_process_open(const char *command, double seconds, iv_reward_process **out, iv_error *err);

/* reward[n] of n completions. After an error every later call fails with IV_IO. */
iv_status iv_reward_process_score(iv_reward_process *p, const iv_reward_item *items, size_t n, double *reward,
                                  iv_error *err);

/* Ends the program's input, waits briefly for its exit, else kills it. NULL is allowed. */
void iv_reward_process_close(iv_reward_process *p);

#endif
