/* linear_cost.c: the model. CTAs come in rounds of as many as fit on all SMs. In a round a block of 64 k takes what its
 * latency takes, or what the CTAs of an SM need of its tensor cores and shared memory, or what its weights take from
 * memory. Beside that stand a launch, a round's beginning, its outputs, and the meeting of CTAs that share a tile; but
 * what rings hold of weights comes while the layer before ends. */
#include "kernels/cuda/linear_cost.h"

#include <math.h>
#include <stdint.h>

static const double LEAST_US = 0.5; /* below all that was measured */

/* Microseconds of a block: alone, and of an SM's time where several CTAs are on it. */
typedef struct tile_cost {
    int tile_n, tile_m, variant;
    double alone, shared;
} tile_cost;

/* Microseconds: of a launch and of a round; of a thousand outputs of a thread (with SwiGLU in wide tiles more), and
 * where CTAs share a tile; for each doubling of these, and for a further round of them. What the stage that is missing
 * in a ring costs, of latency and of memory. The share of weights that a second tile of tokens reads again. 10^12 bytes
 * a second, and the launch beside them. The share of a ring's first weights that costs nothing. SMs that clusters of
 * four and eight find. */
typedef struct cost_model {
    double launch, a_round, output, swiglu, join_output, join, split_round, ring, ring_memory, again, bytes,
        bytes_launch, early, clusters4, clusters8;
    tile_cost tile[11];
} cost_model;

/* Fitted to times of layers in turn with the others of their decoder's layer. */
static const cost_model to_32 = {
    .launch = 2.24,
    .a_round = 0,
    .output = 24.5,
    .swiglu = 39.3,
    .join_output = 46.4,
    .join = 0,
    .split_round = 1.72,
    .ring = 4,
    .ring_memory = 1.21,
    .again = 0.812,
    .bytes = 4.6,
    .bytes_launch = 2.33,
    .early = 1.3,
    .clusters4 = 114,
    .clusters8 = 99.7,
    .tile = {{64, 16, IV_WGMMA_SWAPPED, 0.227, 0.22},
             {64, 32, IV_WGMMA_SWAPPED, 0.27, 0.264},
             {64, 64, IV_WGMMA_SWAPPED, 0.0843, 0.314},
             {128, 64, IV_WGMMA_SWAPPED, 0.195, 0.519},
             {128, 80, IV_WGMMA_SWAPPED, 0.335, 0.426},
             {128, 96, IV_WGMMA_SWAPPED, 0.115, 0.532},
             {128, 112, IV_WGMMA_SWAPPED, 0.279, 0.161},
             {128, 128, IV_WGMMA_SWAPPED, 0.294, 0.496},
             {96, 128, IV_WGMMA_WIDE, 0.276, 0.113},
             {128, 128, IV_WGMMA_WIDE, 0.279, 0.249},
             {128, 128, IV_WGMMA_PAIR, 0.272, 0.561}},
};

/* Fitted to times of launches that follow one another; by those in turn nothing was found that does better in a model's
 * steps. */
static const cost_model to_64 = {
    .launch = 0.735,
    .a_round = 0.0531,
    .output = 2.18,
    .swiglu = 32.8,
    .join_output = 9.74,
    .join = 0.998,
    .split_round = 3.75,
    .ring = 0.558,
    .ring_memory = 0.15,
    .again = 0.469,
    .bytes = 4.52,
    .bytes_launch = 1.54,
    .early = 0,
    .clusters4 = 115,
    .clusters8 = 114,
    .tile = {{64, 16, IV_WGMMA_SWAPPED, 0.21, 0.16},
             {64, 32, IV_WGMMA_SWAPPED, 0.208, 0.159},
             {64, 64, IV_WGMMA_SWAPPED, 0.196, 0.196},
             {128, 64, IV_WGMMA_SWAPPED, 0.261, 0.324},
             {128, 96, IV_WGMMA_SWAPPED, 0.434, 0.215},
             {128, 128, IV_WGMMA_SWAPPED, 0.132, 0.579},
             {96, 128, IV_WGMMA_WIDE, 0.318, 0.405},
             {128, 128, IV_WGMMA_WIDE, 0.158, 0.522}},
};

/* In turn; to 128 rows, and from 601 on. */
static const cost_model many_rows = {
    .launch = 0.571,
    .a_round = 0.274,
    .output = 39.9,
    .swiglu = 27.5,
    .join_output = 60,
    .join = 0.893,
    .split_round = 3.47,
    .ring = 0,
    .ring_memory = 1.14,
    .again = 0.308,
    .bytes = 4.5,
    .bytes_launch = 4.94,
    .early = 0.956,
    .clusters4 = 115,
    .clusters8 = 96.2,
    .tile = {{64, 16, IV_WGMMA_SWAPPED, 0.269, 0.0499},
             {64, 32, IV_WGMMA_SWAPPED, 0.265, 0.149},
             {64, 64, IV_WGMMA_SWAPPED, 0.045, 0.187},
             {128, 64, IV_WGMMA_SWAPPED, 0.066, 0.273},
             {128, 80, IV_WGMMA_SWAPPED, 0.32, 0.264},
             {128, 96, IV_WGMMA_SWAPPED, 0.113, 0.378},
             {128, 112, IV_WGMMA_SWAPPED, 0.38, 0.174},
             {128, 128, IV_WGMMA_SWAPPED, 0.443, 0.357},
             {96, 128, IV_WGMMA_WIDE, 0.309, 0.232},
             {128, 128, IV_WGMMA_WIDE, 0.225, 0.383},
             {128, 128, IV_WGMMA_PAIR, 0.429, 0.35}},
};

/* Fitted to times after another kernel: steps of 160 to 300 rows of a model of 8B were 1 to 5 % slower by those in
 * turn. `swiglu` alone is of those, as wide tiles' activations cost less than half of what they did then. */
static const cost_model to_600 = {
    .launch = 0.615,
    .a_round = 0.00665,
    .output = 5.69,
    .swiglu = 20,
    .join_output = 24.8,
    .join = 1.26,
    .split_round = 4.62,
    .ring = 0.153,
    .ring_memory = 0.393,
    .again = 0.574,
    .bytes = 4.33,
    .bytes_launch = 3.32,
    .early = 0,
    .clusters4 = 122,
    .clusters8 = 89,
    .tile = {{64, 16, IV_WGMMA_SWAPPED, 0.25, 0.13},
             {64, 32, IV_WGMMA_SWAPPED, 0.297, 0.0875},
             {64, 64, IV_WGMMA_SWAPPED, 0.183, 0.265},
             {128, 64, IV_WGMMA_SWAPPED, 0.254, 0.228},
             {128, 80, IV_WGMMA_SWAPPED, 0.182, 0.263},
             {128, 96, IV_WGMMA_SWAPPED, 0.354, 0.218},
             {128, 112, IV_WGMMA_SWAPPED, 0.42, 0.223},
             {128, 128, IV_WGMMA_SWAPPED, 0.303, 0.462},
             {96, 128, IV_WGMMA_WIDE, 0.342, 0.356},
             {128, 128, IV_WGMMA_WIDE, 0.353, 0.449}},
};

static const struct {
    size_t rows; /* at most */
    const cost_model *model;
} models[] = {{32, &to_32}, {64, &to_64}, {128, &many_rows}, {600, &to_600}, {SIZE_MAX, &many_rows}};

static const cost_model *model_for(size_t rows) {
    size_t i = 0;
    while (rows > models[i].rows) i++;
    return models[i].model;
}

static const tile_cost *tile_of(const cost_model *c, const iv_linear_cost_args *a) {
    for (size_t i = 0; i < sizeof c->tile / sizeof *c->tile; i++)
        if (c->tile[i].tile_n == a->tile_n && c->tile[i].tile_m == a->tile_m && c->tile[i].variant == a->variant)
            return &c->tile[i];
    return NULL;
}

static double up(double a, double b) { return ceil(a / b); }

/* Of one round: CTAs on the fullest SM, and on all. */
static double block_cost(const cost_model *c, const iv_linear_cost_args *a, const tile_cost *t, double tiles_m,
                         double beside, double active) {
    double us = fmax(t->alone * (1 + c->ring / (a->stages - 1)), beside * t->shared);
    double same = fmin(tiles_m, active); /* token tiles that read the same weights, some of them again */
    double memory = active / same * (1 + c->again * (same - 1)) * a->tile_n * 128 / (c->bytes * 1e6);
    double asked = a->split_k == 1 ? a->stages * beside : a->stages; /* of an SM; many CTAs in clusters win nothing */
    return fmax(us, memory * (1 + c->ring_memory / (asked - 1)));
}

double iv_linear_cost(const iv_linear_cost_args *a) {
    const cost_model *c = model_for(a->rows);
    const tile_cost *t = tile_of(c, a);
    bool wide = a->variant != IV_WGMMA_SWAPPED;
    if (!t) return HUGE_VAL;
    double tiles_m = up((double)a->rows, a->tile_m);
    double ctas = up((double)a->n, a->tile_n) * tiles_m * a->split_k;
    double blocks = up((double)(a->k / (size_t)a->leaves), 64) * a->leaves / a->split_k;
    double sms = a->sms;
    if (a->split_k > 2) sms *= (a->split_k <= 4 ? c->clusters4 : c->clusters8) / IV_H200_SMS;
    double slots = sms * a->resident, full = floor(ctas / slots), rest = ctas - full * slots;
    double beside = fmax(1, ceil(rest / sms)), rounds = full + (rest > 0);
    double us = full * blocks * block_cost(c, a, t, tiles_m, a->resident, slots);
    if (rest > 0) us += blocks * block_cost(c, a, t, tiles_m, beside, fmax(rest, 1));
    double an_output = c->output + (wide && a->swiglu ? c->swiglu : 0);
    double of_a_thread = a->tile_n * a->tile_m / ((wide ? a->tile_m : a->tile_n) * 2.0) / 1e3;
    us += c->launch + rounds * c->a_round + of_a_thread / a->split_k * an_output * (full > 0 ? a->resident : beside);
    if (a->split_k > 1) us += c->join * log2(a->split_k) + of_a_thread * c->join_output + c->split_round * (rounds - 1);
    double share = (c->bytes_launch + (double)a->n * (double)a->k * 2 / (c->bytes * 1e6)) / us;
    us *= sqrt(sqrt(1 + share * share * share * share)); /* no two are equal because both wait for memory */
    double active = fmin(ctas, slots), held = active / fmin(tiles_m, active) * fmin(a->stages, blocks);
    held = fmin(held * a->tile_n * 128, (double)a->n * (double)a->k * 2);
    return fmax(us - c->early * held / (c->bytes * 1e6), LEAST_US);
}
