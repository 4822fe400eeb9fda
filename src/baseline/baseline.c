/* baseline.c: names, and the heuristic of the vanilla baselines: a large machine with a fixed number of workers and one
 * tile for each. */
#include "baseline/baseline.h"
#include "base/size.h"
#include "numerics/attention.h"

#include <string.h>

/* About as many workers as a large GPU has multiprocessors; tiles of a few rows by one panel. */
enum { WORKERS = 128, TILE_ROWS = 4, TILE_COLUMNS = 32 };

static const char *const names[IV_NUMERICS_COUNT] = {"invar", "bio", "vanilla", "vanilla-blas"};

const char *iv_numerics_name(iv_numerics numerics) { return names[numerics]; }

iv_status iv_numerics_parse(const char *text, iv_numerics *out, iv_error *err) {
    for (int i = 0; i < IV_NUMERICS_COUNT; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (iv_numerics)i;
            return IV_OK;
        }
    return iv_fail(err, IV_INVALID, "numerics: wanted invar, bio, vanilla or vanilla-blas, found '%s'", text);
}

static size_t tiles_of(size_t n, size_t tile) { return n / tile + (n % tile != 0); }

/* One row goes to a matrix-vector kernel, which cuts K as far as it can. More rows go to tiles, and K is cut while
 * there are more workers than tiles. */
static int fill_workers(size_t rows, size_t outputs, int most) {
    if (rows <= 1) return most;
    size_t tiles = tiles_of(rows, TILE_ROWS) * tiles_of(outputs, TILE_COLUMNS);
    int splits = 1;
    while (splits < most && tiles * (size_t)splits * 2 <= WORKERS) splits *= 2;
    return splits;
}

int iv_baseline_split_k(iv_numerics numerics, size_t rows, size_t outputs, int leaves) {
    switch (numerics) {
    case IV_BIO: return 1;
    case IV_VANILLA:
    case IV_VANILLA_BLAS: return fill_workers(rows, outputs, leaves);
    default: return leaves;
    }
}

size_t iv_baseline_kv_split_blocks(iv_numerics numerics, size_t tiles, size_t blocks) {
    if (numerics != IV_VANILLA && numerics != IV_VANILLA_BLAS) return IV_KV_SPLIT / IV_ATTENTION_BLOCK;
    size_t splits = iv_size_min(iv_size_max(1, WORKERS / iv_size_max(1, tiles)), iv_size_max(1, blocks));
    return iv_size_max(1, tiles_of(blocks, splits));
}
