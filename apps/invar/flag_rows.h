/* flag_rows.h: the beginnings of flags' rows, and rows that several tables share. */
#ifndef INVAR_CLI_FLAG_ROWS_H
#define INVAR_CLI_FLAG_ROWS_H

/* The beginning of a flag's row, by the kind of its value. */
#define TEXT(n, m) .name = n, .kind = CLI_TEXT, .metavar = m
#define PATH(n, m) .name = n, .kind = CLI_FILE, .metavar = m
#define IDS(n, m) .name = n, .kind = CLI_IDS, .metavar = m
#define MEMORY(n, m) .name = n, .kind = CLI_MEMORY, .metavar = m
#define CHOICE(n, m, c) .name = n, .kind = CLI_CHOICE, .metavar = m, .choices = c
#define COUNT(n, m, l, g) .name = n, .kind = CLI_COUNT, .metavar = m, .least = l, .greatest = g
#define BYTES(n, m, l, g) .name = n, .kind = CLI_BYTES, .metavar = m, .least = l, .greatest = g
#define REAL(n, m, l, h) .name = n, .kind = CLI_REAL, .metavar = m, .low = l, .high = h
#define BIAS(n, m, l, h) .name = n, .kind = CLI_BIAS, .metavar = m, .low = l, .high = h

/* Rows that several sections share. */
#define DEVICE_ROW                                                                                       \
    CHOICE("device", "NAME", "auto cpu cuda"), .unset = "$INVAR_DEVICE, or auto: a GPU if there is one", \
                                               .help = "where to compute; never changes a bit"
#define ARITHMETIC_ROW                                                                             \
    CHOICE("arithmetic", "NAME", "auto fma32 tc16 i8 i8x2 i8+fma32 i8+tc16 i8x2+fma32 i8x2+tc16"), \
        .unset = "auto: tc16 on a GPU, fma32 on a CPU",                                            \
        .help = "how dot products are summed; part of the fingerprint. i8: int8 weights and inputs in linear layers"
#define DTYPE_ROW                                                                                \
    CHOICE("dtype", "TYPE", "auto bfloat16 float16 float32"), .unset = "auto: the checkpoint's", \
                                                              .help = "data type of the weights in memory"
#define NUMERICS_ROW                                              \
    CHOICE("numerics", "NAME", "invar bio vanilla vanilla-blas"), \
        .unset = "invar", .help = "bio and vanilla are baselines for comparison; they do change bits"
#define MAX_LORA_RANK_ROW \
    COUNT("max-lora-rank", "N", 1, 4096), .unset = "64", .help = "largest rank of a module of an adapter"

#endif
