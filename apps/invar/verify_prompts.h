/* verify_prompts.h: the requests of invar verify, all as token ids with every parameter explicit, so that neither a
 * generation_config.json nor a drawn seed has a say. */
#ifndef INVAR_CLI_VERIFY_PROMPTS_H
#define INVAR_CLI_VERIFY_PROMPTS_H

#include "flags.h"

enum { VERIFY_PROMPTS_MAX = 1024, VERIFY_ANSWER_MAX = 4096 /* tokens */ };

typedef struct verify_prompt {
    int32_t *ids;       /* owned */
    iv_request request; /* ids and max_tokens are set; keeps logits */
    size_t line;        /* of the file, from 1; 0: built in */
} verify_prompt;

typedef struct verify_prompts {
    verify_prompt *items;
    size_t count;
    size_t longest;       /* tokens of the longest prompt and its answer */
    size_t prompt_tokens; /* of all */
    size_t answer_tokens; /* at most, of all */
} verify_prompts;

/* Two dozen prompts for any vocabulary: lengths around the attention blocks (64) and splits (256), several that begin
 * alike, greedy and sampled. Those that the model cannot hold are left out; none left is CLI_FAILED. */
int verify_prompts_make(const iv_model_info *model, size_t max_tokens, verify_prompts *out, iv_error *err);

/* JSONL: one object a line with "prompt", "messages" (the chat template) or "ids", and max_tokens, temperature, top_p,
 * top_k, min_p, the three penalties, seed, ignore_eos as wanted: unset ones are max_tokens, greedy, all else off, the
 * line's number. CLI_FAILED names file, line and field. */
int verify_prompts_read(const char *path, const char *model_path, const iv_model_info *model, size_t max_tokens,
                        verify_prompts *out, iv_error *err);

void verify_prompts_free(verify_prompts *prompts);

/* splitmix64 (Steele, Lea, Flood 2014): all choices that verify makes. */
uint64_t verify_random(uint64_t *state);

#endif
