/* config.h: a configuration file, in YAML: a mapping from the names of a command's flags to their values, and from the
 * operand's name in small letters. */
#ifndef INVAR_CLI_CONFIG_H
#define INVAR_CLI_CONFIG_H

#include "flags.h"

typedef struct cli_config cli_config; /* owns the texts of values that came from a file */

/* Adds the file's values to args, whose command's row `config` names the file: those of flags that args has not, nor
 * their rivals (rivals: pairs of flags of which one may be given; ends with NULL). *out must outlive args; on an error
 * it is NULL. An error names file, line and key. CLI_FAILED: the file cannot be read; CLI_USAGE: it is wrong. */
int cli_config_read(cli_args *args, const char *const (*rivals)[2], cli_config **out, iv_error *err);
void cli_config_free(cli_config *c); /* NULL is fine */

#endif
