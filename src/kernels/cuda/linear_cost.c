/* linear_cost.c: the model. CTAs come in rounds of as many as fit on all SMs. In a round a block of 64 k takes what its
 * latency takes, or what the CTAs of an SM need of its tensor cores and shared memory, or what its weights take from
 * memory. Beside that stand a launch, a round's beginning, its outputs, and the meeting of CTAs that share a tile. */
#include "kernels/cuda/linear_cost.h"

#include <math.h>

/* Microseconds of a block: alone, and of an SM's time where several CTAs are on it. */
typedef struct tile_cost {
    int tile_n, tile_m, variant;
    double alone, shared;
} tile_cost;

static const tile_cost tiles[] = {
    {64, 16, IV_WGMMA_SWAPPED, 0.25, 0.13},    {64, 32, IV_WGMMA_SWAPPED, 0.297, 0.0875},
    {64, 64, IV_WGMMA_SWAPPED, 0.183, 0.265},  {128, 64, IV_WGMMA_SWAPPED, 0.254, 0.228},
    {128, 80, IV_WGMMA_SWAPPED, 0.182, 0.263}, {128, 96, IV_WGMMA_SWAPPED, 0.354, 0.218},
    {128, 112, IV_WGMMA_SWAPPED, 0.42, 0.223}, {128, 128, IV_WGMMA_SWAPPED, 0.303, 0.462},
    {96, 128, IV_WGMMA_WIDE, 0.342, 0.356},    {128, 128, IV_WGMMA_WIDE, 0.353, 0.449},
};

/* Microseconds: of a launch and of a round; of a thousand outputs of a thread (with SwiGLU in wide tiles more), and
 * where CTAs share a tile; for each doubling of these, and for a further round of them. What the stage that is missing
 * in a ring costs, of latency and of memory. The share of weights that a second tile of tokens reads again. 10^12 bytes
 * a second, and the launch beside them. SMs that clusters of four and eight find. */
static const double launch = 0.615, a_round = 0.00665, output = 5.69, swiglu = 48.2, join_output = 24.8, join = 1.26,
                    split_round = 4.62, ring = 0.153, ring_memory = 0.393, again = 0.574, bytes = 4.33,
                    bytes_launch = 3.32, clusters4 = 122, clusters8 = 89;

static const tile_cost *tile_of(const iv_linear_cost_args *a) {
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        if (tiles[i].tile_n == a->tile_n && tiles[i].tile_m == a->tile_m && tiles[i].variant == a->variant)
            return &tiles[i];
    return NULL;
}

static double up(double a, double b) { return ceil(a / b); }

/* Of one round: CTAs on the fullest SM, and on all. */
static double block_cost(const iv_linear_cost_args *a, const tile_cost *t, double tiles_m, double beside,
                         double active) {
    double us = fmax(t->alone * (1 + ring / (a->stages - 1)), beside * t->shared);
    double same = fmin(tiles_m, active); /* token tiles that read the same weights, some of them again */
    double memory = active / same * (1 + again * (same - 1)) * a->tile_n * 128 / (bytes * 1e6);
    double asked = a->split == 1 ? a->stages * beside : a->stages; /* of an SM; many CTAs in clusters win nothing */
    return fmax(us, memory * (1 + ring_memory / (asked - 1)));
}

double iv_linear_cost(const iv_linear_cost_args *a) {
    const tile_cost *t = tile_of(a);
    bool wide = a->variant == IV_WGMMA_WIDE;
    if (!t) return HUGE_VAL;
    double tiles_m = up((double)a->rows, a->tile_m);
    double ctas = up((double)a->n, a->tile_n) * tiles_m * a->split;
    double blocks = up((double)(a->k / (size_t)a->leaves), 64) * a->leaves / a->split;
    double sms = a->sms;
    if (a->split > 2) sms *= (a->split <= 4 ? clusters4 : clusters8) / IV_H200_SMS;
    double slots = sms * a->resident, full = floor(ctas / slots), rest = ctas - full * slots;
    double beside = fmax(1, ceil(rest / sms)), rounds = full + (rest > 0);
    double us = full * blocks * block_cost(a, t, tiles_m, a->resident, slots);
    if (rest > 0) us += blocks * block_cost(a, t, tiles_m, beside, fmax(rest, 1));
    double an_output = output + (wide && a->swiglu ? swiglu : 0);
    double of_a_thread = a->tile_n * a->tile_m / ((wide ? a->tile_m : a->tile_n) * 2.0) / 1e3;
    us += launch + rounds * a_round + of_a_thread / a->split * an_output * (full > 0 ? a->resident : beside);
    if (a->split > 1) us += join * log2(a->split) + of_a_thread * join_output + split_round * (rounds - 1);
    double share = (bytes_launch + (double)a->n * (double)a->k * 2 / (bytes * 1e6)) / us;
    return us * sqrt(sqrt(1 + share * share * share * share)); /* no two are equal because both wait for memory */
}
