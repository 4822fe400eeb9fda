/* weight_names.c: a few names, the oldest forgotten first. */
#include "serve/weight_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void iv_weight_names_add(iv_weight_names *w, uint64_t number, char *name) {
    free(w->kept[w->next].name);
    w->kept[w->next].number = number, w->kept[w->next].name = name;
    w->next = (w->next + 1) % IV_WEIGHT_NAMES;
}

const char *iv_weight_name(const iv_weight_names *w, uint64_t number, char out[IV_WEIGHT_NUMBER_BYTES]) {
    for (size_t i = 0; i < IV_WEIGHT_NAMES; i++)
        if (w->kept[i].name && w->kept[i].number == number) return w->kept[i].name;
    snprintf(out, IV_WEIGHT_NUMBER_BYTES, "%" PRIu64, number);
    return out;
}

void iv_weight_names_free(iv_weight_names *w) {
    for (size_t i = 0; i < IV_WEIGHT_NAMES; i++) free(w->kept[i].name);
    *w = (iv_weight_names){0};
}
