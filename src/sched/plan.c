/* plan.c: decode first, so that nobody's next token waits for somebody's long prompt. */
#include "sched/plan.h"

size_t iv_plan_step(const iv_plan_sequence *s, size_t count, size_t budget, iv_plan_item *items) {
    size_t n = 0;
    for (int decode = 1; decode >= 0; decode--)
        for (size_t i = 0; i < count && budget > 0; i++) {
            size_t left = s[i].known - s[i].computed;
            if (left == 0 || (left == 1) != decode) continue;
            size_t take = left < budget ? left : budget;
            items[n++] = (iv_plan_item){.sequence = i, .tokens = take, .samples = take == left};
            budget -= take;
        }
    return n;
}
