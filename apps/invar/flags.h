/* flags.h: command lines, by table. What a command accepts is data (cli_syntax); help, the parser and the
 * shell completions all read the same tables, so they cannot disagree. */
#ifndef INVAR_CLI_FLAGS_H
#define INVAR_CLI_FLAGS_H

#include "invar.h"

/* Exit codes; documented in docs/CLI.md. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_SERVED = -1 /* internal: served rank 0 to the end (model.h); exits with 0 */
};

enum {
    CLI_VALUES_MAX = 1024, /* flags in one command line, repeats included */
    CLI_OPERANDS_MAX = 2,
    CLI_SECTIONS_MAX = 9,       /* per command, including the NULL */
    CLI_TOKENS_MAX = INT32_MAX, /* the range of a token index */
    CLI_IDS_MAX = 1 << 20       /* token ids in one flag */
};

typedef enum cli_kind {
    CLI_SWITCH, /* takes no value */
    CLI_TEXT,   /* UTF-8 */
    CLI_FILE,   /* a path: any bytes */
    CLI_COUNT,  /* a whole number in [least, greatest] */
    CLI_REAL,   /* a finite number in [low, high], or (low, high] with above_low */
    CLI_CHOICE, /* one of `choices` */
    CLI_IDS,    /* token ids: 1,2,3 */
    CLI_MEMORY, /* bytes, with K, M, G or T (powers of 1024), into count; or a fraction in (0, 1) into real */
    CLI_BYTES,  /* such bytes in [least, greatest], no fraction */
    CLI_BIAS    /* ID=F: a token id and a number in [low, high] */
} cli_kind;

typedef struct cli_flag {
    const char *name;  /* without the dashes; NULL ends a table */
    const char *alias; /* other names, separated by spaces, or NULL */
    cli_kind kind;
    char letter;         /* short form, or 0 */
    const char *metavar; /* NULL for a switch */
    const char *choices; /* separated by spaces */
    const char *unset;   /* the default, for help; NULL for a switch */
    const char *help;    /* one line */
    bool words;          /* TEXT: more words with a = in them may follow its value, each of them a further value */
    size_t most;         /* how often it may be given; 0 means once */
    uint64_t least, greatest;
    double low, high;
    bool above_low;
} cli_flag;

typedef struct cli_section {
    const char *title;
    const cli_flag *flags;
} cli_section;

/* A command's own default for a shared flag. */
typedef struct cli_unset {
    const char *flag, *unset; /* flag NULL ends the list */
} cli_unset;

typedef struct cli_example {
    const char *line, *what; /* line NULL ends the list */
} cli_example;

typedef struct cli_syntax {
    const char *name, *group, *summary;
    const char *operand;         /* its metavar, NULL if the command takes none */
    const char *operand_choices; /* for completion, NULL: a path */
    bool operand_command;        /* for completion: the name of a command */
    bool operand_optional;
    bool has_config;    /* its flag --config names a file with more flags, and perhaps the operand (config.h) */
    const char *second; /* metavar of an optional second operand, NULL: there is none */
    const char *usage;  /* the usage line after "invar NAME" */
    const char *text;   /* a paragraph for help */
    const cli_section *sections[CLI_SECTIONS_MAX]; /* ends with NULL */
    const cli_unset *unset;                        /* NULL: the defaults of the sections */
    const cli_example *examples;
} cli_syntax;

typedef struct cli_value {
    const cli_flag *flag;
    const char *text; /* as given; NULL for a switch */
    uint64_t count;   /* COUNT, bytes of MEMORY, and the id of BIAS */
    float real;       /* REAL, BIAS, and the fraction of MEMORY */
} cli_value;

/* A parsed command line. Texts point into argv. */
typedef struct cli_args {
    const cli_syntax *syntax;
    cli_value values[CLI_VALUES_MAX];
    size_t value_count;
    const char *operands[CLI_OPERANDS_MAX];
    size_t operand_count;
    bool help; /* --help or -h was found; the rest was not parsed */
} cli_args;

/* Parses the words after the command's name: --flag VALUE, --flag=VALUE, -p VALUE, and -- before operands. On CLI_OK
 * every value is within the range of its row. CLI_USAGE fills err: the flag, what was wanted, what was found, and for
 * an unknown flag the nearest known one. */
int cli_parse(const cli_syntax *syntax, int count, char *const *words, cli_args *args, iv_error *err);

/* Adds a checked value. CLI_USAGE: the flag has been given as often as its row allows. */
int cli_add_value(cli_args *args, const cli_value *value, iv_error *err);
/* The error of a word that is no flag: CLI_USAGE, with the nearest known one. */
int cli_unknown_flag(const cli_syntax *syntax, const char *word, iv_error *err);

/* The last value of a flag, NULL if it was not given. The name must be in the command's table. */
const cli_value *cli_find(const cli_args *args, const char *name);
bool cli_has(const cli_args *args, const char *name);
const char *cli_text(const cli_args *args, const char *name, const char *otherwise);
uint64_t cli_count(const cli_args *args, const char *name, uint64_t otherwise);

/* The n-th value of a repeatable flag, NULL after the last. */
const cli_value *cli_nth(const cli_args *args, const char *name, size_t n);

/* Reads "1,2,3" (spaces around numbers are fine) into out, which may be NULL to count only. CLI_USAGE if it
 * is anything else, an id is above INT32_MAX, or there are more than CLI_IDS_MAX. */
int cli_parse_ids(const char *text, int32_t *out, size_t *count, iv_error *err);

/* The row of a flag, NULL if the command has no flag of this name. */
const cli_flag *cli_flag_find(const cli_syntax *syntax, const char *name);

/* Parses the whole text as a value of the flag. CLI_USAGE names the flag. */
int cli_parse_value(const cli_flag *flag, const char *text, cli_value *out, iv_error *err);

#endif
