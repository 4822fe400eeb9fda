/* engine_flags.h: the flags of every command that opens an engine, and what they become. */
#ifndef INVAR_CLI_ENGINE_FLAGS_H
#define INVAR_CLI_ENGINE_FLAGS_H

#include "flags.h"

/* Lines that other tables share. */
#define CLI_ARITHMETIC_FLAG                                                                                            \
    {                                                                                                                  \
        .name = "arithmetic", .kind = CLI_CHOICE, .metavar = "NAME", .choices = "auto fma32 tc16",                     \
        .unset = "auto: tc16 on a GPU, fma32 on a CPU", .help = "how dot products are summed; part of the fingerprint" \
    }
#define CLI_DEVICE_FLAG                                                                                           \
    {                                                                                                             \
        .name = "device", .kind = CLI_CHOICE, .metavar = "NAME", .choices = "auto cpu cuda",                      \
        .unset = "$INVAR_DEVICE, or auto: a GPU if there is one", .help = "where to compute; never changes a bit" \
    }
#define CLI_NUMERICS_FLAG                                                                                       \
    {                                                                                                           \
        .name = "numerics", .kind = CLI_CHOICE, .metavar = "NAME", .choices = "invar bio vanilla vanilla-blas", \
        .unset = "invar", .help = "all but invar are baselines to compare with: they do change bits"            \
    }
#define CLI_DTYPE_FLAG                                                                                      \
    {                                                                                                       \
        .name = "dtype", .kind = CLI_CHOICE, .metavar = "TYPE", .choices = "auto bfloat16 float16 float32", \
        .unset = "auto: the checkpoint's", .help = "type the weights are held in"                           \
    }

/* Section "Engine". */
extern const cli_section cli_engine_section;

/* --device, or what the environment says. */
const char *cli_device(const cli_args *args);

/* Where the environment stands for --device: is what it says a device? CLI_USAGE names the variable. */
int cli_device_check(const cli_args *args, iv_error *err);

/* Overwrites the options that were given. Strings point into args. */
void cli_engine_options(const cli_args *args, iv_engine_options *options);

#endif
