/* weight_gradient.c: the plan of a pass, and the choice among the kernels of weight gradients. All of them have the
 * same bits; the choice is a function of sizes alone. */
#include "base/size.h"
#include "kernels/cuda/weight_gradient_plan.h"

enum { CUDA_INVALID_VALUE = 1 };

static bool bounds_are_valid(const iv_gpu_weight_gradient_args *a) {
    const uint32_t *bounds = a->groups->host_bounds;
    for (size_t i = 0; i < a->groups->count * a->axis->range_count; i++)
        if (bounds[2 * i] > bounds[2 * i + 1] || bounds[2 * i + 1] > a->axis->padded || bounds[2 * i] % IV_CHAIN_STEP ||
            bounds[2 * i + 1] % IV_CHAIN_STEP)
            return false;
    return true;
}

static bool is_valid(const iv_token_axis *axis, const iv_axis_sums *sums) {
    if (axis->ranks == 0 || axis->ranks > IV_VIRTUAL_RANKS_MAX || (axis->ranks & (axis->ranks - 1)) != 0) return false;
    if (axis->range_count > axis->ranks - iv_size_min(axis->done, axis->ranks) || axis->padded > INT32_MAX)
        return false;
    for (size_t p = 0; p < axis->range_count; p++) {
        const iv_rank_range *range = &axis->ranges[p];
        if (range->begin > range->end || range->end > axis->padded || range->begin % IV_CHAIN_STEP ||
            range->end % IV_CHAIN_STEP || (!range->starts && p > 0) || (!range->ends && p + 1 < axis->range_count))
            return false;
    }
    return sums->sum != NULL;
}

/* `waiting`: bit i is set if a subtree of level i of this pass waits, of range owner[i]. */
static void end_range(iv_sum_plan *plan, const iv_token_axis *axis, size_t *done, unsigned *waiting, int *owner,
                      int p) {
    iv_sum_range *range = &plan->range[p];
    unsigned level = 0;
    for (; *done >> level & 1; level++) {
        if (!(*waiting >> level & 1)) range->from_sums |= (uint8_t)(1u << level);
        *waiting &= ~(1u << level);
    }
    range->joins = (uint8_t)level;
    if (++*done == axis->ranks) {
        range->to = IV_SUM_SUM;
        return;
    }
    range->to = IV_SUM_WAITS;
    *waiting |= 1u << level, owner[level] = p, plan->waits++;
}

bool iv_sum_plan_make(const iv_token_axis *axis, const iv_axis_sums *sums, iv_sum_plan *out) {
    int owner[IV_VIRTUAL_LEVELS_MAX];
    unsigned waiting = 0;
    size_t done = axis->done;
    *out = (iv_sum_plan){.ranges = (int)axis->range_count, .sums = *sums};
    if (!is_valid(axis, sums)) return false;
    for (int p = 0; p < out->ranges; p++) {
        const iv_rank_range *range = &axis->ranges[p];
        out->range[p] = (iv_sum_range){.begin = (uint32_t)range->begin,
                                       .end = (uint32_t)range->end,
                                       .continues = !range->starts,
                                       .to = IV_SUM_SUM};
        if (range->ends) end_range(out, axis, &done, &waiting, owner, p);
    }
    for (unsigned level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++)
        if (waiting >> level & 1) out->range[owner[level]].to = IV_SUM_LEVEL, out->waits--;
    for (int p = 0; p < out->ranges; p++) {
        const iv_sum_range *range = &out->range[p];
        for (unsigned level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            bool needed = range->from_sums >> level & 1 || (range->to == IV_SUM_LEVEL && range->joins == level);
            if (needed && !sums->level[level]) return false;
        }
    }
    return true;
}

/* Cycles of a tile on Hopper, roughly: blocks of 64 tokens, `block` cycles for each input, ends of chains, and sums
 * that are written. What waits in scratch is written and read. bounds: of a group; NULL: the plan's. */
static double tile_cost(const iv_sum_plan *plan, const uint32_t *bounds, double block, double inputs, int kept) {
    double cost = 0;
    for (int p = 0; p < plan->ranges; p++) {
        const iv_sum_range *range = &plan->range[p];
        uint32_t tokens = bounds ? bounds[2 * p + 1] - bounds[2 * p] : range->end - range->begin;
        cost += (tokens + 63) / 64 * block * inputs + 300;
        if (range->continues) cost += 6 * inputs;
        if (range->to != IV_SUM_WAITS || range->joins >= kept) cost += 10 * inputs;
        for (int level = 0; level < range->joins; level++)
            if (range->from_sums >> level & 1 || level >= kept) cost += 6 * inputs;
    }
    return cost;
}

iv_weight_gradient_shape iv_gpu_weight_gradient_choose(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan) {
    static const struct {
        size_t inputs, peers;
        int kept;
        double block; /* 4 is the speed of the tensor cores; smaller tiles load more for each product (measured) */
    } shapes[IV_GRADIENT_SHAPES] = {{256, 2, 0, 4}, {128, 2, 2, 5}, {128, 1, 2, 5.3}};
    iv_weight_gradient_shape best = IV_GRADIENT_SHAPES;
    const iv_gpu_gradient_groups *groups = a->groups;
    double least = 0;
    for (int i = 0; i < IV_GRADIENT_SHAPES; i++) {
        if (!iv_gpu_weight_gradient_takes(a, plan, (iv_weight_gradient_shape)i)) continue;
        size_t outputs = 128 * shapes[i].peers, ctas = (size_t)a->sms / shapes[i].peers;
        size_t tiles = (a->n + outputs - 1) / outputs * ((a->k + shapes[i].inputs - 1) / shapes[i].inputs);
        size_t count = groups ? groups->count : 1, rounds = (tiles * count + ctas - 1) / ctas;
        double cost = 0; /* of the tiles of a round, on average */
        for (size_t g = 0; g < count; g++)
            cost += tile_cost(plan, groups ? groups->host_bounds + 2 * g * (size_t)plan->ranges : NULL, shapes[i].block,
                              (double)shapes[i].inputs, shapes[i].kept);
        cost *= (double)rounds / (double)count;
        if (best == IV_GRADIENT_SHAPES || cost < least) best = (iv_weight_gradient_shape)i, least = cost;
    }
    return best;
}

size_t iv_gpu_weight_gradient_scratch(int sms) { return (size_t)sms * IV_WEIGHT_GRADIENT_SCRATCH; }

int iv_gpu_weight_gradient(const iv_gpu_weight_gradient_args *a, iv_gpu_stream stream) {
    iv_sum_plan plan;
    bool typed = a->type <= IV_F32 && (a->arithmetic == IV_FMA32 || (a->arithmetic == IV_TC16 && a->type != IV_F32));
    if (!typed || a->n % IV_CHAIN_STEP || a->n > INT32_MAX || a->k > INT32_MAX || a->n > a->dy_stride ||
        a->k > a->x_stride || a->sms < 1 || !iv_sum_plan_make(a->axis, &a->sums, &plan))
        return CUDA_INVALID_VALUE;
    if (a->n == 0 || a->k == 0 || plan.ranges == 0 || (a->groups && a->groups->count == 0)) return 0;
    if (a->groups && !bounds_are_valid(a)) return CUDA_INVALID_VALUE;
    iv_weight_gradient_shape shape = iv_gpu_weight_gradient_choose(a, &plan);
    return shape < IV_GRADIENT_SHAPES ? iv_gpu_weight_gradient_wgmma(a, &plan, shape, stream)
                                      : iv_gpu_weight_gradient_generic(a, &plan, stream);
}
