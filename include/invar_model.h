/* invar_model.h: a model's files: what they need in memory, copies of them, with fewer bits or tensor by tensor. No
 * call needs an engine:
 *
 *     iv_quantize_options o;
 *     iv_quantize_options_init(&o);
 *     o.format = "fp8";
 *     iv_quantize_info info;
 *     iv_error err;
 *     if (iv_quantize("models/tiny-math", "tiny-fp8", &o, &info, &err) != IV_OK) return complain(err.message);
 *
 * Structs that the caller fills begin with their size, as in invar.h. */
#ifndef INVAR_MODEL_H
#define INVAR_MODEL_H

#include "invar_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory requirements of a model -------------------------------------------------------------------- */

/* From headers alone: no weights are read. Sizes in bytes. For a directory that has a config.json and no weights, the
 * requirements of its weights; file_bytes, tensors and shards are then 0 and stored_dtype is "". */
typedef struct iv_model_info {
    char model_type[32], dtype[16], stored_dtype[16]; /* stored_dtype: of most of the weights on disk; of packed ones
                                                       * their format ("fp8", "Q4_K") */
    uint64_t parameters, file_bytes, weight_bytes, kv_bytes_per_token, memory_available;
    int64_t layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, vocab_size, max_positions;
    int64_t experts, experts_per_token, sliding_window; /* 0: none */
    bool tied_embeddings;
    bool index_unread;               /* as iv_engine_info */
    char generation_unapplied[1024]; /* as iv_engine_info */
    bool activations_unquantized; /* the files ask for quantized activations (W8A8): they are read as weights alone */
    size_t tensors, shards;
    uint64_t tokens_that_fit; /* KV cache tokens that fit the available memory next to the weights */
    uint64_t expanded_bytes;  /* weight_bytes if no matrix were held packed */
    /* Layers of linear attention: their states at one border of blocks, which is also what a snapshot for cached
     * prefixes takes, and the rows of open blocks of one running sequence. 0: there are none */
    uint64_t linear_layers, state_bytes, open_block_bytes;
    uint64_t adapter_bytes; /* of an adapter of rank 64 on every layer, the head and the embedding: what max_loras sets
                             * aside for each, at this max_lora_rank */
    uint64_t int8_bytes; /* weight_bytes of arithmetic i8 or i8x2; 0: the files have packed weights of another form */
} iv_model_info;
IV_API iv_status iv_inspect(const char *model, const char *dtype, iv_model_info *info, iv_error *err);

/* The KV cache of one sequence: layers with the same window, and the same widths of a head's key and value. */
typedef struct iv_kv_need {
    int64_t window; /* 0: every position is kept; below 0: those of a chunk of -window */
    size_t layers, key_dim, value_dim;
    size_t tables;         /* page tables: these layers are divided into so many groups, which take pages apart */
    uint64_t pages, bytes; /* at once, as pages behind the window are freed */
    uint64_t pages_kept, bytes_kept; /* if none were */
} iv_kv_need;
enum { IV_KV_NEEDS_MAX = 32 };

typedef struct iv_context_info {
    size_t tokens;
    uint64_t page_bytes; /* 64 positions of a group's layers, on one rank */
    size_t count;
    iv_kv_need need[IV_KV_NEEDS_MAX];
    uint64_t bytes, bytes_kept; /* their sums */
    uint64_t longest;           /* the longest context whose pages fit the available memory next to the weights, at most
                                 * max_positions; 0: none */
} iv_context_info;
/* What a context of `tokens` tokens takes, at least, while its last block of 64 is computed; 0: of max_positions. A
 * step that computes more tokens of a prompt at once needs their pages too. */
IV_API iv_status iv_inspect_context(const char *model, const char *dtype, size_t tokens, iv_context_info *info,
                                    iv_error *err);
/* What each of `ranks` tensor-parallel ranks has, 1 to 8. Bytes of weights are those of a rank by itself, a GPU or a
 * process: ranks that are threads of one process share the embedding and the routers of the first. */
typedef struct iv_ranks_info {
    size_t ranks;
    struct {
        uint64_t weight_bytes, kv_bytes_per_token;
        size_t heads, kv_heads, experts; /* experts: whole ones of each mixture */
    } rank[8];
} iv_ranks_info;
/* IV_INVALID, IV_UNSUPPORTED: the model cannot be divided so. */
IV_API iv_status iv_inspect_ranks(const char *model, const char *dtype, size_t ranks, iv_ranks_info *info,
                                  iv_error *err);
/* What the engine makes of a model's config.json, as iv_ops_config_json of invar_ops.h. */
IV_API iv_status iv_inspect_config(const char *model, iv_text *json, iv_error *err);

/* ---- a copy of a model --------------------------------------------------------------------------------- */

typedef struct iv_export_options {
    size_t size;       /* sizeof(iv_export_options), set by iv_export_options_init */
    const char *dtype; /* "auto": each tensor in the checkpoint's; "bfloat16", "float16", "float32": all in that */
    uint64_t max_shard_bytes; /* data of one file */
    bool overwrite;           /* the directory may hold a model, which is replaced */
    size_t threads;           /* 0: one for each CPU */
    void (*progress)(void *user, size_t done_bytes, size_t total_bytes); /* NULL is fine */
    void *user;
    const char *lora; /* of iv_export: a PEFT directory, whose adapter is added to the weights, W + scale B A in f64,
                       * rounded once: a model of its own, with other bits than the model next to the adapter. NULL:
                       * none; others than iv_export refuse it */
} iv_export_options;
/* Defaults: "auto", 5,000,000,000 bytes, no overwriting, no adapter. */
IV_API void iv_export_options_init_sized(iv_export_options *options, size_t size);
static inline void iv_export_options_init(iv_export_options *options) {
    iv_export_options_init_sized(options, sizeof *options);
}

typedef struct iv_export_info {
    size_t tensors, files;   /* files: of weights */
    uint64_t bytes;          /* of weights */
    char weights_digest[72]; /* "sha256:...": of the copy, as in iv_engine_info. The model's own where types stay */
} iv_export_info;

/* Loads a model and writes it as a new Hugging Face directory: its weights read back from the loaded form, a copy of
 * config.json (with another torch_dtype where dtype changes it), generation_config.json, tokenizer and chat template.
 * config.json comes last: without it the directory is no model. After an error a new directory is gone. IV_INVALID: the
 * directory is not empty, or is the model's. IV_LIMIT: a value is too large for dtype. A dir that ends with .gguf is a
 * file: one GGUF of all of it, which has no weights_digest (""); IV_UNSUPPORTED, by name: what it would not give back
 * (docs/formats/gguf.md). */
IV_API iv_status iv_export(const char *model, const char *dir, const iv_export_options *options, iv_export_info *info,
                           iv_error *err);

/* ---- a model with fewer bits --------------------------------------------------------------------------- */

typedef struct iv_quantize_options {
    size_t size;              /* sizeof(iv_quantize_options), set by iv_quantize_options_init */
    const char *format;       /* "fp8", "int8", "w8a8" (int8 weights, and activations that are quantized token by token:
                               * arithmetic       "i8"), "int4", "mxfp4", "nvfp4"; of a GGUF "q8_0", "q4_0", "q4_1", "q5_0",
                               * "q5_1",       "f16", "bf16", "f32" */
    uint64_t group_size;      /* of int4: columns that share a scale, a multiple of 16; 0: 128 */
    uint64_t max_shard_bytes; /* data of one file */
    bool overwrite;           /* the directory may hold a model, which is replaced */
    void (*progress)(void *user, size_t done_bytes, size_t total_bytes); /* NULL is fine */
    void *user;
    const char *method; /* "nearest", or "gptq": what each layer's rounding leaves is made up for by columns that are
                         * rounded later, with the inputs that these texts give it. The model is in memory. The same
                         * file on every machine */
    const iv_ids *calibration; /* of gptq and smooth: the tokens of each text, 1 to the model's longest */
    size_t calibration_count;
    double damping; /* of gptq: share of the mean square of a layer's inputs that is added to each; above 0 */
    bool act_order; /* of gptq: columns by falling size of their inputs, with the scales of rounding to nearest */
    size_t threads; /* of gptq and smooth; 0: one for each CPU */
    double smooth;  /* 0 to 1, of "nearest": columns of layers behind a norm are multiplied by powers of two, by which
                     * the norm's weights are divided, as SmoothQuant has it: 1 moves all of the inputs' spread to the
                     * weights. Below 0: none are. The model is in memory */
} iv_quantize_options;
/* Defaults: "fp8", 0, 5,000,000,000 bytes, no overwriting, "nearest", damping 0.01, no smoothing. */
IV_API void iv_quantize_options_init_sized(iv_quantize_options *options, size_t size);
static inline void iv_quantize_options_init(iv_quantize_options *options) {
    iv_quantize_options_init_sized(options, sizeof *options);
}

typedef struct iv_quantize_info {
    size_t tensors, files, quantized; /* of the copy; quantized: linear layers */
    uint64_t bytes, model_bytes;      /* of the copy's weights, and of the model's */
    uint64_t calibration_tokens;      /* of gptq and smooth */
    size_t unseen;   /* of gptq: layers that no token reached (experts), which are rounded to nearest */
    size_t smoothed; /* norms that were divided */
} iv_quantize_info;

/* Writes a model with rounded linear layers: a Hugging Face directory in compressed-tensors' form (other files as
 * iv_export does), or one GGUF, for which dir ends with .gguf. "nearest" into a directory has a few rows in memory.
 * IV_INVALID: the model is quantized already; rows do not divide into groups; the directory as in iv_export.
 * IV_UNSUPPORTED: a format that is not written; what a GGUF would not give back; with "gptq" formats of a GGUF, and a
 * layer whose inputs no product has (latent attention's kv_b_proj). */
IV_API iv_status iv_quantize(const char *model, const char *dir, const iv_quantize_options *options,
                             iv_quantize_info *info, iv_error *err);

/* ---- weights tensor by tensor -------------------------------------------------------------------------- */

/* A checkpoint that is filled tensor by tensor, in any order, for iv_engine_update_weights: a directory with
 * config.json and model.safetensors. Names, types and shapes are those of a model. One thread at a time. */
typedef struct iv_weights_stage iv_weights_stage;

/* model, load_format, dummy_seed: as in iv_engine_options. dir: is there, without these files; room for all tensors is
 * taken at once. IV_IO: no space left. */
IV_API iv_status iv_weights_stage_open(const char *model, const char *load_format, uint64_t dummy_seed, const char *dir,
                                       iv_weights_stage **out, iv_error *err);
/* NULL is fine. The files stay. */
IV_API void iv_weights_stage_close(iv_weights_stage *stage);

/* Gives bytes [offset, offset + n) of a tensor's data, in order. */
typedef iv_status iv_weights_read(void *user, size_t offset, size_t n, void *out, iv_error *err);

/* Writes one tensor: its name, its dtype ("bfloat16", ...), its shape. A second time replaces the first. A head next to
 * tied embeddings is compared with them at the end; rotary buffers of old exports are ignored, and towers that the
 * model has not under this name. Other forms than the files' (docs/formats/tensors.md: prefixes, experts in one tensor)
 * are read, too. IV_INVALID names what differs from the model. After an error this tensor counts as missing. */
IV_API iv_status iv_weights_stage_put(iv_weights_stage *stage, const char *name, const char *dtype,
                                      const int64_t *shape, size_t dims, iv_weights_read *read, void *user,
                                      iv_error *err);
/* The number of tensors that were not put, and the name of the first (NULL: none; lives as long as the stage). */
IV_API size_t iv_weights_stage_missing(const iv_weights_stage *stage, const char **first);
/* Copies those from the model. */
IV_API iv_status iv_weights_stage_fill(iv_weights_stage *stage, iv_error *err);
/* Writes random values to all tensors: weights that no model has. */
IV_API iv_status iv_weights_stage_randomize(iv_weights_stage *stage, uint64_t seed, iv_error *err);
/* IV_INVALID: tensors are missing, or a head differs from its tied embeddings. *digest: of all weights, as
 * iv_engine_info.weights_digest. */
IV_API iv_status iv_weights_stage_finish(iv_weights_stage *stage, char digest[65], iv_error *err);

#ifdef __cplusplus
}
#endif
#endif
