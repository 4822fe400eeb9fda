/* verify_axes.h: what invar verify varies. An axis is a list of values beside the quiet run's, which is always 0; a
 * configuration picks one value of each axis. */
#ifndef INVAR_CLI_VERIFY_AXES_H
#define INVAR_CLI_VERIFY_AXES_H

#include "flags.h"

typedef enum verify_axis {
    VERIFY_BATCH, /* a number: requests at once */
    VERIFY_ORDER,
    VERIFY_CHUNK, /* a number: most tokens of a step */
    VERIFY_PREFIX,
    VERIFY_PREEMPT,
    VERIFY_THREADS, /* a number */
    VERIFY_ISA,
    VERIFY_TP, /* a number */
    VERIFY_RESTART,
    VERIFY_SAMPLING,
    VERIFY_LOGPROBS,
    VERIFY_SPECULATIVE,
    VERIFY_DEVICE,
    VERIFY_AXES
} verify_axis;

/* Values of the axes that are not numbers, in the order of their words. */
enum { VERIFY_REVERSED = 1, VERIFY_SHUFFLED, VERIFY_SPREAD };
enum { VERIFY_WARM = 1, VERIFY_SHARED };
enum { VERIFY_PREEMPT_RANDOM = 1, VERIFY_PREEMPT_MEMORY };
enum { VERIFY_SCALAR = 1, VERIFY_AVX2, VERIFY_AVX512 };
enum { VERIFY_STRANGERS = 1, VERIFY_LEAVING };
enum { VERIFY_DEVICE_CPU = 1, VERIFY_DEVICE_CUDA, VERIFY_DEVICE_EAGER };

enum {
    VERIFY_VALUES_MAX = 16,    /* of an axis */
    VERIFY_CONFIGS_MAX = 4096, /* of a run */
    VERIFY_COMPANY = 4,        /* requests at once where an axis needs company and batch does not say */
    VERIFY_NAME_BYTES = 192
};

typedef struct verify_axes {
    size_t values[VERIFY_AXES][VERIFY_VALUES_MAX]; /* none is 0 */
    size_t counts[VERIFY_AXES];                    /* 0: not varied */
} verify_axes;

typedef struct verify_config {
    size_t value[VERIFY_AXES]; /* all 0: the quiet run */
    uint64_t seed;             /* of the run's own choices: order, arrivals, who is preempted */
    char name[VERIFY_NAME_BYTES];
} verify_config;

extern const char *const verify_axis_names[VERIFY_AXES];

/* A value as a word: "5", "shuffled". Returns out. */
const char *verify_value_name(verify_axis axis, size_t value, char out[24]);

/* From --axes and the --...-sizes flags. CLI_USAGE names the flag. */
int verify_axes_read(const cli_args *args, verify_axes *out, iv_error *err);

/* Takes a value out (the machine lacks it, or it is the quiet run's own). */
void verify_axes_drop(verify_axes *axes, verify_axis axis, size_t value);

/* The value of an instruction set's name, 0 if it has none. */
size_t verify_isa_value(const char *name);

typedef struct verify_configs {
    verify_config *items; /* owned */
    size_t count;
} verify_configs;

/* Each value of each axis alone. CLI_FAILED without memory. */
int verify_configs_single(const verify_axes *axes, uint64_t seed, verify_configs *out, iv_error *err);
/* Appends `count` random configurations of at least two axes each, if there are two. The slow scalar instructions are
 * not among them. */
int verify_configs_random(const verify_axes *axes, size_t count, uint64_t seed, verify_configs *out, iv_error *err);
/* Appends all others of the product. CLI_USAGE if there are more than VERIFY_CONFIGS_MAX in all. */
int verify_configs_product(const verify_axes *axes, uint64_t seed, verify_configs *out, iv_error *err);
/* Appends one; its seed is `seed` plus its number. */
int verify_configs_add(verify_configs *configs, const size_t value[VERIFY_AXES], uint64_t seed, iv_error *err);
void verify_configs_free(verify_configs *configs);

/* How many of the compared requests run at once. */
size_t verify_config_width(const verify_config *config);

#endif
