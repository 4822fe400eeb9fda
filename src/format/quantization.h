/* quantization.h: how a Hugging Face checkpoint's weights are stored: `quantization_config` of config.json (or
 * `compression_config`), else hf_quant_config.json of ModelOpt. For the name of a packed tensor it says the format, the
 * blocks and the tensors that belong to it. docs/formats/quantization.md lists what is read. */
#ifndef IV_FORMAT_QUANTIZATION_H
#define IV_FORMAT_QUANTIZATION_H

#include "format/packed.h"

#include <jansson.h>

typedef enum iv_quant_method {
    IV_QUANT_NONE,
    IV_QUANT_FP8,
    IV_QUANT_COMPRESSED, /* compressed-tensors */
    IV_QUANT_MXFP4,
    IV_QUANT_AWQ,
    IV_QUANT_GPTQ,
    IV_QUANT_MODELOPT
} iv_quant_method;

enum { IV_QUANT_GROUPS_MAX = 64 };

/* Layers that are stored alike. */
typedef struct iv_quant_group {
    json_t *targets; /* borrowed from the JSON value; NULL: all */
    iv_weight_format format;
    size_t block_rows, group; /* rows and columns that share a scale; 0: all of them */
    bool zero_points;
} iv_quant_group;

typedef struct iv_quantization {
    iv_quant_method method;
    json_t *json;   /* owns what is borrowed */
    json_t *ignore; /* names of modules that are not packed, or NULL */
    iv_quant_group groups[IV_QUANT_GROUPS_MAX];
    size_t group_count;
    bool zero_from_one; /* GPTQ */
    bool activations;   /* the file asks for activations of 8 bits, which are not quantized here */
    const char *name;   /* of the method, for people */
} iv_quantization;

/* Parses the member of config.json; file heads the errors. IV_UNSUPPORTED: a method or scheme that is not read, by
 * name. config may be NULL: then method is IV_QUANT_NONE. */
iv_status iv_quantization_parse(const char *file, const json_t *config, iv_quantization *out, iv_error *err);

/* From a directory. */
iv_status iv_quantization_read(const char *dir, iv_quantization *out, iv_error *err);
void iv_quantization_free(iv_quantization *q);

/* A tensor of the file by name; NULL: there is none. */
typedef const iv_tensor_info *iv_quant_find(const void *user, const char *name);

/* The group of a module, whose name has n bytes; NULL: it is left out. */
iv_status iv_quantization_group_of(const iv_quantization *q, const char *module, size_t n, const iv_quant_group **out,
                                   iv_error *err);

/* What a tensor of the file is. */
typedef enum iv_quant_role {
    IV_ROLE_PLAIN,    /* as without quantization */
    IV_ROLE_PACKED,   /* out and name are filled */
    IV_ROLE_COMPANION /* belongs to a packed tensor, or to quantized activations */
} iv_quant_role;

/* name: of the expansion, a buffer of IV_TENSOR_NAME_BYTES_MAX + 1. out is checked (iv_packed_check). */
iv_status iv_quantization_role(const iv_quantization *q, const iv_tensor_info *t, iv_quant_find *find, const void *user,
                               iv_quant_role *role, iv_packed *out, char *name, iv_error *err);

#endif
