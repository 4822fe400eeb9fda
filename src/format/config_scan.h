/* config_scan.h: hybrids of selective scans (Mamba-2), attention and MLPs in config.json: sizes, kinds of layers,
 * multipliers.
 *
 * A layer of nemotron_h has one block, and none of the other kind. A layer of falcon_h1 has attention and a scan side
 * by side, then an MLP; it is two layers here: attention alone, and behind it the scan, which reads the same norm, with
 * the MLP. */
#ifndef IV_FORMAT_CONFIG_SCAN_H
#define IV_FORMAT_CONFIG_SCAN_H

#include "format/json.h"
#include "format/model_config.h"

typedef enum iv_scan_family { IV_SCAN_FAMILY_NONE, IV_SCAN_GRANITE, IV_SCAN_NEMOTRON, IV_SCAN_FALCON } iv_scan_family;

/* Scales of all families begin at 1. */
void iv_config_neutral_scales(iv_model_config *c);

/* Before the fields of all models: the number of layers, as the list or the pattern of nemotron_h has it. */
iv_status iv_config_use_scan_names(const iv_json_object *o, iv_scan_family family, iv_error *err);

/* After them: the number of layers here, their kinds and sizes, and scales. */
iv_status iv_config_use_scan_layers(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err);

/* Among what differs by layer: which have no rotation, and who shares a norm. */
iv_status iv_config_parse_scan(const iv_json_object *o, iv_scan_family family, iv_model_config *c, bool *nope,
                               iv_error *err);

/* After the experts: kinds of MLPs, and the sizes that follow from them. */
iv_status iv_config_use_scan_mlps(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err);

#endif
