/* config_fields.h: the fields of a model's configuration as a table.
 *
 * One row a field. Parsing (model_config.c), the fingerprint's text, the comparison of two configurations (weight
 * updates) and the listing in JSON (inspect, invar_ops.h) are made from it. */
#ifndef IV_FORMAT_CONFIG_FIELDS_H
#define IV_FORMAT_CONFIG_FIELDS_H

#include "base/digest.h"
#include "base/json_out.h"
#include "format/json.h"
#include "format/model_config.h"

typedef enum iv_field_kind {
    IV_FIELD_INT,    /* int64_t */
    IV_FIELD_REAL,   /* double */
    IV_FIELD_FLAG,   /* bool */
    IV_FIELD_CHOICE, /* an enum: an index into `choices`; or an int, without them */
    IV_FIELD_ROPES,  /* the rotary settings: rows of iv_rope_fields each */
    IV_FIELD_LAYERS  /* the layers: rows of iv_layer_fields each */
} iv_field_kind;

enum {
    IV_FIELD_REQUIRED = 1,   /* read from the member of this name, which must be there unless a value is preset */
    IV_FIELD_OPTIONAL = 2,   /* read from the member of this name if it is there; else the value that is preset */
    IV_FIELD_EXPERTS = 4,    /* read in families with experts alone */
    IV_FIELD_ARITHMETIC = 8, /* another value is another function of the weights: part of the fingerprint */
    IV_FIELD_MEMORY = 16,    /* sizes memory or decides which tensors exist: new weights must have the same value */
    IV_FIELD_OWN_LINE = 32   /* of the fingerprint's text, see `label` */
};

/* The fingerprint's text has a first line of " LABEL VALUE" (" VALUE" if the label is ""), in the order of the rows.
 * Neighbours of OWN_LINE with one label are a line "LABEL VALUE ...", left out if each has its neutral value: a new row
 * of this kind keeps the fingerprints of all models without the new thing. */
typedef struct iv_config_field {
    const char *name; /* of config.json, or of what follows from several members */
    size_t offset;
    iv_field_kind kind;
    unsigned uses;
    const char *label;
    double neutral;
    double min, max; /* of an INT or REAL that is read */
    const char *const *choices;
} iv_config_field;

typedef struct iv_config_table {
    const iv_config_field *fields;
    size_t count;
} iv_config_table;
/* Rows of iv_model_config, iv_rope_config and iv_layer_config. */
extern const iv_config_table iv_model_fields, iv_rope_fields, iv_layer_fields;

enum { IV_ROPE_KINDS = IV_ROPE_PROPORTIONAL + 1 };
extern const char *const iv_rope_kind_names[IV_ROPE_KINDS];

/* An INT, REAL, FLAG or CHOICE of a struct as a number, which is exact: integers are below 2^53. */
double iv_config_value(const void *of, const iv_config_field *f);
void iv_config_set_value(void *of, const iv_config_field *f, double value);

/* Reads the rows that are REQUIRED or OPTIONAL: those of EXPERTS, or the others. */
iv_status iv_config_read(const iv_json_object *o, bool experts, iv_model_config *c, iv_error *err);

/* Adds the text of all rows of ARITHMETIC: integers, and doubles in hexadecimal. */
void iv_config_describe(const iv_model_config *c, iv_digest *d);

/* IV_INVALID, headed by `name`, for the first row of MEMORY in which two configurations differ. */
iv_status iv_config_check_same(const char *name, const iv_model_config *want, const iv_model_config *found,
                               iv_error *err);

/* An object of all rows: {"model_type": ..., "vocab_size": ..., "ropes": [{...}], "layers": [{"count": 28, ...}]},
 * where equal neighbours are one entry of layers. */
void iv_config_write_json(const iv_model_config *c, iv_json_out *out);
/* The same as text, which the caller frees. */
iv_status iv_config_to_json(const iv_model_config *c, iv_text *out, iv_error *err);

#endif
