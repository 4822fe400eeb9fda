/* quantized_layers.c */
#include "format/quantized_layers.h"

#include <string.h>

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* By the last part of its name, as a decoder has it. */
bool iv_quantize_is_layer(const iv_tensor_info *t) {
    static const char *const names[] = {".q_proj.weight",   ".k_proj.weight",    ".v_proj.weight",
                                        ".o_proj.weight",   ".qkv_proj.weight",  ".gate_proj.weight",
                                        ".up_proj.weight",  ".down_proj.weight", ".gate_up_proj.weight",
                                        ".w1.weight",       ".w2.weight",        ".w3.weight",
                                        ".q_a_proj.weight", ".q_b_proj.weight",  ".kv_a_proj_with_mqa.weight",
                                        ".kv_b_proj.weight"};
    static const char *const towers[] = {"visual.", "vision", "audio", "mtp."};
    if (t->ndim != 2 || (t->dtype != IV_BF16 && t->dtype != IV_F16 && t->dtype != IV_F32)) return false;
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (strstr(t->name, towers[i])) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ends_with(t->name, names[i])) return true;
    return false;
}
