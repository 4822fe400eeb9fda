/* engine_flags.h: the flags of every command that opens an engine, and what they become. */
#ifndef INVAR_CLI_ENGINE_FLAGS_H
#define INVAR_CLI_ENGINE_FLAGS_H

#include "flags.h"

#define CLI_DTYPE_FLAG                                                                                      \
    {                                                                                                       \
        .name = "dtype", .kind = CLI_CHOICE, .metavar = "TYPE", .choices = "auto bfloat16 float16 float32", \
        .unset = "auto: the checkpoint's", .help = "type the weights are held in"                           \
    }

/* Section "Engine". */
extern const cli_section cli_engine_section;

/* Overwrites the options that were given. Strings point into args. */
void cli_engine_options(const cli_args *args, iv_engine_options *options);

#endif
