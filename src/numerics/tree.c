/* tree.c: covers of leaves, and the remaining additions between them. */
#include "numerics/tree.h"
#include "base/status.h"

size_t iv_tree_cover(size_t first, size_t last, iv_tree_node nodes[IV_COVER_MAX]) {
    size_t count = 0;
    IV_ASSERT(last <= (size_t)1 << 16);
    while (first < last) {
        int level = 0;
        while ((first >> level) % 2 == 0 && first + ((size_t)2 << level) <= last) level++;
        nodes[count++] = (iv_tree_node){level, first >> level};
        first += (size_t)1 << level;
    }
    return count;
}

/* A stack of finished nodes: two siblings at its top become their parent. */
void iv_tree_order_make(const iv_tree_node *nodes, size_t count, iv_tree_order *order) {
    iv_tree_node stack[IV_LEAVES_MAX];
    uint8_t value[IV_LEAVES_MAX];
    size_t top = 0;
    IV_ASSERT(count >= 1 && count <= IV_LEAVES_MAX);
    order->count = 0;
    for (size_t i = 0; i < count; i++) {
        stack[top] = nodes[i], value[top++] = (uint8_t)i;
        while (top > 1 && stack[top - 1].level == stack[top - 2].level &&
               stack[top - 1].index == stack[top - 2].index + 1 && stack[top - 2].index % 2 == 0) {
            order->to[order->count] = value[top - 2], order->from[order->count] = value[top - 1];
            order->count++;
            top--;
            stack[top - 1] = (iv_tree_node){stack[top - 1].level + 1, stack[top - 1].index / 2};
        }
    }
    IV_ASSERT(top == 1 && stack[0].index == 0);
}
