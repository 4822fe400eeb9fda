/* weight_names.h: what clients call the weights that they have loaded (weight_version of an update, as SGLang has it);
 * without a name weights are called by their number. */
#ifndef IV_SERVE_WEIGHT_NAMES_H
#define IV_SERVE_WEIGHT_NAMES_H

#include <stddef.h>
#include <stdint.h>

/* Answers may still be under way from weights before the last ones: so many are remembered. */
enum { IV_WEIGHT_NAMES = 8, IV_WEIGHT_NUMBER_BYTES = 24 };

/* Zero-initialise. */
typedef struct iv_weight_names {
    struct {
        uint64_t number; /* iv_bridge_stats.weight_version */
        char *name;
    } kept[IV_WEIGHT_NAMES];
    size_t next;
} iv_weight_names;

/* Takes the name, which was allocated. */
void iv_weight_names_add(iv_weight_names *w, uint64_t number, char *name);
/* The name, or the number, written into `out`. */
const char *iv_weight_name(const iv_weight_names *w, uint64_t number, char out[IV_WEIGHT_NUMBER_BYTES]);
void iv_weight_names_free(iv_weight_names *w);

#endif
