/* config_experts.h: the fields of a mixture of experts: router, experts, shared expert, and which layers have them. */
#ifndef IV_FORMAT_CONFIG_EXPERTS_H
#define IV_FORMAT_CONFIG_EXPERTS_H

#include "format/json.h"
#include "format/model_config.h"

/* What a family's files mean. */
typedef struct iv_expert_facts {
    iv_router_score score;
    bool biases; /* of router and experts */
    bool router_correction;
    bool scales_inputs;    /* router_scales_inputs */
    bool interleaved;      /* interleave_moe_layer_step and moe_layers say which layers have experts */
    bool dense_too;        /* a dense MLP is the shared expert, with norms: expert_norms */
    bool grouped;          /* n_group, topk_group and routed_scaling_factor are read */
    bool dense_first;      /* first_k_dense_replace layers have none; 1 when it is absent */
    bool shared_counted;   /* n_shared_experts times the size of an expert; 1 when it is absent */
    bool correction_field; /* use_expert_bias says whether there is a correction; true when it is absent */
    bool dense_layers;     /* num_dense_layers have none; 2 when it is absent */
    double least;          /* iv_model_config.router_least */
    int64_t shared_size;   /* shared_expert_intermediate_size when it is absent, with a gate; 0: not read */
} iv_expert_facts;

/* After the fields of all models, and c->layers. */
iv_status iv_config_parse_experts(const iv_json_object *o, const iv_expert_facts *f, iv_model_config *c, iv_error *err);

#endif
