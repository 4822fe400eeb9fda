/* config.c: a configuration as the engine reads it. */
#include "format/config_fields.h"
#include "model/rope_tables.h"
#include "ops/gpu.h"

#include <stdlib.h>
#include <string.h>

iv_status iv_ops_config_json(const char *json, size_t bytes, iv_text *out, iv_error *err) {
    iv_model_config c;
    *out = (iv_text){0};
    IV_TRY(iv_model_config_parse("config", json, bytes, &c, err));
    return iv_config_to_json(&c, out, err);
}

/* Through this process's memory. */
static iv_status write_tables(iv_ops *ops, const iv_model_config *c, size_t positions, float *cosine, float *sine,
                              iv_error *err) {
    size_t n = positions * (size_t)c->head_dim / 2;
    float *tables = malloc((2 * n + 1) * sizeof *tables);
    if (!tables) return iv_fail(err, IV_NO_MEMORY, "rope tables: no memory for %zu positions", positions);
    iv_rope_tables(c, 0, ops->pool, positions, tables, tables + n);
    iv_status status = ops->gpu->write(ops, tables, n, cosine, err);
    if (status == IV_OK) status = ops->gpu->write(ops, tables + n, n, sine, err);
    free(tables);
    return status;
}

iv_status iv_ops_rope_tables(iv_ops *ops, const char *json, size_t bytes, size_t positions, float *cosine, float *sine,
                             iv_error *err) {
    iv_model_config c;
    IV_TRY(iv_model_config_parse("config", json, bytes, &c, err));
    if (positions > IV_POSITIONS_MAX)
        return iv_fail(err, IV_LIMIT, "rope tables: wanted at most %d positions, found %zu", IV_POSITIONS_MAX,
                       positions);
    iv_config_use_positions(&c, (int64_t)positions);
    IV_TRY(iv_ops_enter(ops, "rope tables", err));
    if (ops->gpu) return iv_ops_leave(ops, write_tables(ops, &c, positions, cosine, sine, err));
    iv_rope_tables(&c, 0, ops->pool, positions, cosine, sine);
    return iv_ops_leave(ops, IV_OK);
}
