/* linear_cost.c: the cost model of linear layers. CTAs run in waves of as many as are resident on all SMs. In a wave a
 * block of 64 k takes the largest of three times: its latency, the throughput of its SM's tensor cores and shared
 * memory, and the memory time of its weights. A launch, a wave, the epilogue and the cluster reduction of split-K add
 * their costs; so does the exchange of roots if two CTAs divide each tile of the last wave (halves). Weights that fill
 * the ring while the preceding kernel ends are subtracted. */
#include "kernels/cuda/linear_cost.h"

#include <math.h>
#include <stdint.h>

static const double LEAST_US = 0.5; /* below every measurement */
enum { HALVES_FROM = 129 };         /* rows; not measured with fewer */

/* The four sets of constants; which one applies depends on the rows of x. Each was fitted to measurements on an H200
 * (bench/gpu/fit_linear.py) of layers in sequence, as a model runs them (SEQUENCE: up to 32 rows, and MANY), or of
 * isolated layers where the fit to sequences made steps of a model slower (ISOLATED: 33 to 64, and 129 to 600 rows).
 * bench/gpu/LOG.md has the measurements. */
enum { SEQUENCE_32, ISOLATED_64, SEQUENCE_MANY, ISOLATED_600, SETS };

static const struct {
    size_t rows; /* at most */
    int set;
} sets[] = {{32, SEQUENCE_32}, {64, ISOLATED_64}, {128, SEQUENCE_MANY}, {600, ISOLATED_600}, {SIZE_MAX, SEQUENCE_MANY}};

typedef struct tile_cost {
    int tile_n, tile_m, variant;
    double latency_us[SETS];    /* of a block; 0: not used with these rows */
    double throughput_us[SETS]; /* of a block, for each CTA on its SM */
} tile_cost;

typedef struct cost_table {
    double launch_us[SETS];        /* of a launch */
    double wave_us[SETS];          /* of each wave */
    double output_us[SETS];        /* epilogue: of a thousand outputs of a thread */
    double swiglu_us[SETS];        /* the same: added for SwiGLU in wide tiles */
    double reduce_output_us[SETS]; /* cluster reduction of split-K: of a thousand outputs of a thread */
    double reduce_us[SETS];        /* cluster reduction: of each doubling of split-K */
    double reduce_wave_us[SETS];   /* cluster reduction: of each further wave */
    double halves_us[SETS];        /* the same of tiles that two CTAs divide (estimated) */
    double ring_latency[SETS];     /* a ring of s stages adds this / (s - 1) to a block's latency */
    double ring_memory[SETS];      /* and to its memory time */
    double reread[SETS];           /* fraction of the weights that each further token tile reads again */
    double terabytes[SETS];        /* memory bandwidth, 10^12 bytes a second */
    double memory_us[SETS];        /* of a launch that memory bounds */
    double prefetch[SETS];     /* share of the ring that loads while the preceding kernel ends (a fit: may exceed 1) */
    double sms_cluster4[SETS]; /* SMs that clusters of four CTAs can use */
    double sms_cluster8[SETS]; /* SMs that clusters of eight CTAs can use */
    tile_cost tile[11];
} cost_table;

/* clang-format off */
static const cost_table table = {
    /* rows:               to 32  to 64   many  to 600 */
    .launch_us        = {  2.24,  0.735,  0.571,  0.615},
    .wave_us          = {     0, 0.0531,  0.274, 0.00665},
    .output_us        = {  24.5,   2.18,   39.9,   5.69},
    .swiglu_us        = {  39.3,   32.8,   27.5,     20},
    .reduce_output_us = {  46.4,   9.74,     60,   24.8},
    .reduce_us        = {     0,  0.998,  0.893,   1.26},
    .reduce_wave_us   = {  1.72,   3.75,   3.47,   4.62},
    .halves_us        = {   1.5,    1.5,    1.5,    1.5},
    .ring_latency     = {     4,  0.558,      0,  0.153},
    .ring_memory      = {  1.21,   0.15,   1.14,  0.393},
    .reread           = { 0.812,  0.469,  0.308,  0.574},
    .terabytes        = {   4.6,   4.52,    4.5,   4.33},
    .memory_us        = {  2.33,   1.54,   4.94,   3.32},
    .prefetch         = {   1.3,      0,  0.956,      0},
    .sms_cluster4     = {   114,    115,    115,    122},
    .sms_cluster8     = {  99.7,    114,   96.2,     89},
    .tile = {
        { 64,  16, IV_WGMMA_SWAPPED,  { 0.227,   0.21,  0.269,   0.25}, {  0.22,   0.16, 0.0499,   0.13}},
        { 64,  32, IV_WGMMA_SWAPPED,  {  0.27,  0.208,  0.265,  0.297}, { 0.264,  0.159,  0.149, 0.0875}},
        { 64,  64, IV_WGMMA_SWAPPED,  {0.0843,  0.196,  0.045,  0.183}, { 0.314,  0.196,  0.187,  0.265}},
        {128,  64, IV_WGMMA_SWAPPED,  { 0.195,  0.261,  0.066,  0.254}, { 0.519,  0.324,  0.273,  0.228}},
        {128,  80, IV_WGMMA_SWAPPED,  { 0.335,      0,   0.32,  0.182}, { 0.426,      0,  0.264,  0.263}},
        {128,  96, IV_WGMMA_SWAPPED,  { 0.115,  0.434,  0.113,  0.354}, { 0.532,  0.215,  0.378,  0.218}},
        {128, 112, IV_WGMMA_SWAPPED,  { 0.279,      0,   0.38,   0.42}, { 0.161,      0,  0.174,  0.223}},
        {128, 128, IV_WGMMA_SWAPPED,  { 0.294,  0.132,  0.443,  0.303}, { 0.496,  0.579,  0.357,  0.462}},
        { 96, 128, IV_WGMMA_WIDE,     { 0.276,  0.318,  0.309,  0.342}, { 0.113,  0.405,  0.232,  0.356}},
        {128, 128, IV_WGMMA_WIDE,     { 0.279,  0.158,  0.225,  0.353}, { 0.249,  0.522,  0.383,  0.449}},
        {128, 128, IV_WGMMA_PAIR,     { 0.272,      0,  0.429,      0}, { 0.561,      0,   0.35,      0}},
    },
};
/* clang-format on */

static int set_for(size_t rows) {
    size_t i = 0;
    while (rows > sets[i].rows) i++;
    return sets[i].set;
}

static const tile_cost *tile_of(const iv_linear_cost_args *a, int set) {
    for (size_t i = 0; i < sizeof table.tile / sizeof *table.tile; i++) {
        const tile_cost *t = &table.tile[i];
        if (t->tile_n == a->tile_n && t->tile_m == a->tile_m && t->variant == a->variant)
            return t->latency_us[set] > 0 ? t : NULL;
    }
    return NULL;
}

static double up(double a, double b) { return ceil(a / b); }

/* The waves of a launch: `full` ones, and a last one of `rest` CTAs, `last_resident` of them on the busiest SM. */
typedef struct waves {
    double token_tiles, ctas, slots; /* slots: CTAs resident on all SMs */
    double full, rest, last_resident, count;
    double last_split; /* CTAs that divide a tile of the last wave, if not those of split-K */
} waves;

static waves waves_of(const iv_linear_cost_args *a, int set) {
    waves w;
    double sms = a->sms;
    if (a->split_k > 2) sms *= (a->split_k <= 4 ? table.sms_cluster4 : table.sms_cluster8)[set] / IV_H200_SMS;
    w.token_tiles = up((double)a->rows, a->tile_m);
    w.ctas = up((double)a->n, a->tile_n) * w.token_tiles * a->split_k;
    w.slots = sms * a->resident;
    w.full = floor(w.ctas / w.slots), w.rest = w.ctas - w.full * w.slots;
    w.last_split = a->halves ? 2 : 1, w.rest *= w.last_split;
    w.last_resident = fmax(1, ceil(w.rest / sms)), w.count = w.full + (w.rest > 0);
    return w;
}

/* A block in a wave of `active` CTAs, `resident` of them on its SM. */
static double block_us(const iv_linear_cost_args *a, int set, const tile_cost *t, double token_tiles, double resident,
                       double active) {
    double latency = t->latency_us[set] * (1 + table.ring_latency[set] / (a->stages - 1));
    double us = fmax(latency, resident * t->throughput_us[set]);
    double sharers = fmin(token_tiles, active); /* CTAs that read the same weights */
    double memory = active / sharers * (1 + table.reread[set] * (sharers - 1)) * a->tile_n * 64 * a->weight_bytes /
                    (table.terabytes[set] * 1e6);
    double in_flight = a->split_k == 1 ? a->stages * resident : a->stages; /* more in clusters gains nothing */
    return fmax(us, memory * (1 + table.ring_memory[set] / (in_flight - 1)));
}

/* The epilogue of the last tile of an SM's CTAs. */
static double epilogue_us(const iv_linear_cost_args *a, int set, const waves *w, double outputs) {
    bool wide = a->variant != IV_WGMMA_SWAPPED;
    double output_us = table.output_us[set] + (wide && a->swiglu ? table.swiglu_us[set] : 0);
    return outputs / a->split_k / w->last_split * output_us * (w->full > 0 ? a->resident : w->last_resident);
}

static double reduction_us(const iv_linear_cost_args *a, int set, const waves *w, double outputs) {
    return table.reduce_us[set] * log2(a->split_k) + outputs * table.reduce_output_us[set] +
           table.reduce_wave_us[set] * (w->count - 1);
}

/* Weights that the rings of the first wave hold. */
static double prefetch_us(const iv_linear_cost_args *a, int set, const waves *w, double blocks) {
    double active = fmin(w->ctas, w->slots), held = active / fmin(w->token_tiles, active) * fmin(a->stages, blocks);
    held = fmin(held * a->tile_n * 64 * a->weight_bytes, (double)a->n * (double)a->k * a->weight_bytes);
    return table.prefetch[set] * held / (table.terabytes[set] * 1e6);
}

double iv_linear_cost(const iv_linear_cost_args *a) {
    int set = set_for(a->rows);
    const tile_cost *t = tile_of(a, set);
    if (!t) return HUGE_VAL;
    waves w = waves_of(a, set);
    if (a->halves && (a->rows < HALVES_FROM || w.rest == 0 || w.rest > w.slots)) return HUGE_VAL;
    double blocks = up((double)(a->k / (size_t)a->leaves), 64) * a->leaves / a->split_k;
    double rows_of_tile = a->variant != IV_WGMMA_SWAPPED ? a->tile_m : a->tile_n; /* two threads for each */
    double outputs = a->tile_n * a->tile_m / (rows_of_tile * 2.0) / 1e3;          /* thousands, of a thread */
    double us = w.full * blocks * block_us(a, set, t, w.token_tiles, a->resident, w.slots);
    if (w.rest > 0) us += blocks / w.last_split * block_us(a, set, t, w.token_tiles, w.last_resident, fmax(w.rest, 1));
    us += table.launch_us[set] + w.count * table.wave_us[set] + epilogue_us(a, set, &w, outputs);
    if (a->split_k > 1) us += reduction_us(a, set, &w, outputs);
    if (a->halves) us += table.halves_us[set] + outputs * table.reduce_output_us[set];
    double memory = table.memory_us[set] + (double)a->n * (double)a->k * a->weight_bytes / (table.terabytes[set] * 1e6);
    double share = memory / us; /* a soft maximum with memory: configurations that all wait for it must not be equal */
    us *= sqrt(sqrt(1 + share * share * share * share));
    return fmax(us - prefetch_us(a, set, &w, blocks), LEAST_US);
}
