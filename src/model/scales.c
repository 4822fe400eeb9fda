/* scales.c: from doubles of the configuration to floats. */
#include "model/scales.h"
#include "model/model.h"
#include "numerics/attention.h"
#include "numerics/floats.h"

#define LOG2E 1.4426950408889634

static float rounded(iv_dtype type, double x) {
    float y = (float)x;
    if (type == IV_BF16) return iv_bf16_to_f32(iv_bf16_from_f32(y));
    return type == IV_F16 ? iv_f16_to_f32(iv_f16_from_f32(y)) : y;
}

iv_activation iv_layer_activation(const iv_layer *l, const iv_mlp *w) {
    return w->alpha_p ? iv_ref_xielu(*w->alpha_p, *w->alpha_n, *w->beta, *w->eps) : l->config->activation;
}

iv_scales iv_scales_of(const iv_model_config *c, iv_dtype gemm_type) {
    iv_scales s = {.score = iv_attention_scale((size_t)c->head_dim),
                   .score_log2e = iv_attention_scale_log2e((size_t)c->head_dim),
                   .embedding = rounded(c->embedding_scale_typed ? gemm_type : IV_F32, c->embedding_scale),
                   .residual = (float)c->residual_scale,
                   .attention_out = (float)(c->residual_scale * c->attention_out_scale),
                   .scan_out = (float)(c->residual_scale * c->scan_out_scale),
                   .mlp_out = (float)(c->residual_scale * c->mlp_out_scale),
                   .gate = (float)c->gate_scale,
                   .logits = {(float)c->logits_divisor, (float)c->logits_cap}};
    if (c->attention_scale != 0)
        s.score = (float)c->attention_scale, s.score_log2e = (float)(c->attention_scale * LOG2E);
    if (c->attention_cap != 0) {
        double scale = c->attention_scale != 0 ? c->attention_scale : s.score;
        s.score_inner = (float)(scale / c->attention_cap), s.score_log2e = (float)(c->attention_cap * LOG2E);
    }
    return s;
}
