/* gguf_config.c: metadata of an architecture as config.json. What a file leaves out has llama.cpp's default. */
#include "base/file.h"
#include "base/json_out.h"
#include "base/size.h"
#include "format/gguf_set.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct arch {
    const char *name, *model_type, *class;
    bool moe, gemma;
} arch;

static const arch archs[] = {{"llama", "llama", "LlamaForCausalLM", false, false},
                             {"qwen2", "qwen2", "Qwen2ForCausalLM", false, false},
                             {"qwen3", "qwen3", "Qwen3ForCausalLM", false, false},
                             {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", true, false},
                             {"gemma3", "gemma3_text", "Gemma3ForCausalLM", false, true}};
enum { ARCHS = sizeof archs / sizeof *archs };

/* What the architecture llama is with experts. */
static const arch mixtral = {"llama", "mixtral", "MixtralForCausalLM", true, false};

/* Settings of other arithmetic, which the architectures above do not have in these files, and their neutral values. */
static const struct setting {
    const char *key;
    double neutral;
} refused[] = {{"logit_scale", 1},           {"embedding_scale", 1},         {"residual_scale", 1},
               {"attention.scale", 0},       {"attn_logit_softcapping", 0},  {"final_logit_softcapping", 0},
               {"expert_shared_count", 0},   {"attention.clamp_kqv", 0},     {"attention.sliding_window", 0},
               {"use_parallel_residual", 0}, {"attention.max_alibi_bias", 0}};

const char *iv_gguf_arch_of(const char *model_type) {
    if (strcmp(model_type, mixtral.model_type) == 0 || strcmp(model_type, "mistral") == 0) return mixtral.name;
    for (size_t i = 0; i < ARCHS; i++)
        if (strcmp(model_type, archs[i].model_type) == 0) return archs[i].name;
    return NULL;
}

typedef struct reader {
    const iv_gguf_set *s;
    const char *path;
    const arch *arch;
    iv_error *err;
} reader;

const iv_gguf_value *iv_gguf_arch_find(const iv_gguf *g, const char *suffix) {
    char key[256];
    const iv_gguf_value *name = iv_gguf_find(g, "general.architecture");
    if (!name || name->type != IV_GGUF_STRING || name->text.len > 64) return NULL;
    snprintf(key, sizeof key, "%.*s.%.150s", (int)name->text.len, name->text.data, suffix);
    return iv_gguf_find(g, key);
}

static bool is_integer(const iv_gguf_value *v) {
    return v->type != IV_GGUF_F32 && v->type != IV_GGUF_F64 && v->type != IV_GGUF_STRING && v->type != IV_GGUF_ARRAY;
}

/* fallback < 0: the key must be there. */
static iv_status integer(const reader *r, const char *suffix, int64_t fallback, int64_t *out) {
    const iv_gguf_value *v = iv_gguf_arch_find(&r->s->g, suffix);
    *out = fallback;
    if (!v && fallback >= 0) return IV_OK;
    if (v && v->type == IV_GGUF_ARRAY && v->item <= IV_GGUF_I32 && v->item != IV_GGUF_F32 && v->count) {
        *out = iv_gguf_integer_at(v, 0); /* a number per layer: all the same */
        for (size_t i = 1; i < v->count; i++)
            if (iv_gguf_integer_at(v, i) != *out)
                return iv_fail(r->err, IV_UNSUPPORTED, "%s: %s.%s: layers of several sizes are not supported", r->path,
                               r->arch->name, suffix);
        return IV_OK;
    }
    if (!v || !is_integer(v) || v->integer < 0)
        return iv_fail(r->err, IV_FORMAT, "%s: %s.%s: wanted an integer, found %s", r->path, r->arch->name, suffix,
                       v ? "another type" : "nothing");
    *out = v->integer;
    return IV_OK;
}

static iv_status real(const reader *r, const char *suffix, double fallback, double *out) {
    const iv_gguf_value *v = iv_gguf_arch_find(&r->s->g, suffix);
    *out = fallback;
    if (!v && fallback >= 0) return IV_OK;
    if (!v || (v->type != IV_GGUF_F32 && v->type != IV_GGUF_F64))
        return iv_fail(r->err, IV_FORMAT, "%s: %s.%s: wanted a float, found %s", r->path, r->arch->name, suffix,
                       v ? "another type" : "nothing");
    *out = v->real;
    return IV_OK;
}

static iv_status find_arch(reader *r) {
    const iv_gguf_value *name = iv_gguf_find(&r->s->g, "general.architecture");
    if (!name || name->type != IV_GGUF_STRING)
        return iv_fail(r->err, IV_FORMAT, "%s: general.architecture: wanted a string, found %s", r->path,
                       name ? "another type" : "nothing");
    for (size_t i = 0; i < ARCHS; i++)
        if (strlen(archs[i].name) == name->text.len && memcmp(archs[i].name, name->text.data, name->text.len) == 0) {
            r->arch = &archs[i];
            return IV_OK;
        }
    return iv_fail(
        r->err, IV_UNSUPPORTED,
        "%s: general.architecture '%.*s' is not supported (supported: llama, qwen2, qwen3, qwen3moe, gemma3)", r->path,
        (int)iv_size_min(name->text.len, 60), name->text.data);
}

static iv_status use_mixtral(reader *r) {
    int64_t experts;
    IV_TRY(integer(r, "expert_count", 0, &experts));
    if (experts > 0 && strcmp(r->arch->name, mixtral.name) == 0) r->arch = &mixtral;
    return IV_OK;
}

static iv_status refuse_others(const reader *r) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const iv_gguf_value *v = iv_gguf_arch_find(&r->s->g, refused[i].key);
        if (!v || (r->arch->gemma && strcmp(refused[i].key, "attention.sliding_window") == 0)) continue;
        bool neutral = v->type != IV_GGUF_ARRAY && v->type != IV_GGUF_STRING &&
                       (is_integer(v) ? (double)v->integer : v->real) == refused[i].neutral;
        if (!neutral)
            return iv_fail(r->err, IV_UNSUPPORTED, "%s: %s.%s: is not supported for this architecture", r->path,
                           r->arch->name, refused[i].key);
    }
    return IV_OK;
}

iv_dtype iv_gguf_dtype(const iv_gguf_set *s) {
    const iv_gguf_tensor *t = iv_gguf_set_find(s, "blk.0.attn_q.weight");
    return t && iv_weight_is_plain(t->format) ? (iv_dtype)t->format : IV_BF16;
}

/* ---- rotary settings ------------------------------------------------------------------------------------ */

/* llama.cpp keeps Llama 3's scaling as a divisor per frequency; low and high factors are those of all releases. */
static double llama3_divisor(double theta, int64_t dim, int64_t i, double factor, double original) {
    const double pi = 3.14159265358979323846, low = 1, high = 4;
    double wave = 2 * pi * pow(theta, 2.0 * (double)i / (double)dim);
    if (wave < original / high) return 1;
    if (wave > original / low) return factor;
    double smooth = (original / wave - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
}

static bool is_llama3(const float *f, size_t n, double theta, int64_t original) {
    for (size_t i = 0; i < n; i++) {
        double want = llama3_divisor(theta, 2 * (int64_t)n, (int64_t)i, (double)f[n - 1], (double)original);
        if (!(fabs((double)f[i] - want) <= 1e-4 * want)) return false;
    }
    return true;
}

static iv_status llama3(const reader *r, const iv_gguf_tensor *t, double theta, int64_t dim, iv_json_out *o) {
    float f[256];
    size_t n = t->info.elements;
    if (t->format != IV_WEIGHT_F32 || n == 0 || n != (size_t)dim / 2 || n > sizeof f / sizeof *f)
        return iv_fail(r->err, IV_FORMAT, "%s: rope_freqs.weight: wanted %lld of float32", r->path, (long long)dim / 2);
    IV_TRY(iv_file_read_at(r->s->fds[t->info.shard], r->s->paths[t->info.shard], f, n * sizeof *f, t->info.offset,
                           r->err));
    int64_t original = 8192; /* of all releases; others are tried, as a power of two */
    for (int64_t other = 32; !is_llama3(f, n, theta, original) && other <= 1 << 20; other *= 2) original = other;
    if (!is_llama3(f, n, theta, original))
        return iv_fail(r->err, IV_UNSUPPORTED,
                       "%s: rope_freqs.weight: wanted divisors of Llama 3's scaling (low factor 1, high factor 4), "
                       "found others",
                       r->path);
    iv_out_kv_open(o, "rope_scaling", '{');
    iv_out_kv_text(o, "rope_type", "llama3"), iv_out_kv_shortest(o, "factor", f[n - 1]);
    iv_out_kv_double(o, "low_freq_factor", 1), iv_out_kv_double(o, "high_freq_factor", 4);
    iv_out_kv_int(o, "original_max_position_embeddings", original);
    iv_out_close(o, '}');
    return IV_OK;
}

static iv_status rotary(const reader *r, int64_t dim, iv_json_out *o) {
    double theta, factor;
    int64_t original, turned;
    IV_TRY(real(r, "rope.freq_base", 10000, &theta));
    IV_TRY(real(r, "rope.scaling.factor", 1, &factor));
    IV_TRY(integer(r, "rope.scaling.original_context_length", 0, &original));
    IV_TRY(integer(r, "rope.dimension_count", dim, &turned));
    if (turned != dim)
        return iv_fail(r->err, IV_UNSUPPORTED, "%s: rope.dimension_count: wanted the head's %lld, found %lld", r->path,
                       (long long)dim, (long long)turned);
    iv_out_kv_shortest(o, "rope_theta", (float)theta);
    const iv_gguf_tensor *freqs = iv_gguf_set_find(r->s, "rope_freqs.weight");
    const iv_gguf_value *type = iv_gguf_arch_find(&r->s->g, "rope.scaling.type");
    iv_str kind = type && type->type == IV_GGUF_STRING ? type->text : (iv_str){"none", 4};
    if (kind.len == 4 && memcmp(kind.data, "none", 4) == 0) return freqs ? llama3(r, freqs, theta, dim, o) : IV_OK;
    bool linear = kind.len == 6 && memcmp(kind.data, "linear", 6) == 0;
    bool yarn = kind.len == 4 && memcmp(kind.data, "yarn", 4) == 0;
    if (freqs || (!linear && !yarn) || (yarn && original == 0))
        return iv_fail(r->err, IV_UNSUPPORTED, "%s: rope.scaling.type: '%.*s'%s is not supported", r->path,
                       (int)iv_size_min(kind.len, 40), kind.data, freqs ? " with rope_freqs.weight" : "");
    iv_out_kv_open(o, "rope_scaling", '{');
    iv_out_kv_text(o, "rope_type", yarn ? "yarn" : "linear"), iv_out_kv_shortest(o, "factor", (float)factor);
    if (yarn) iv_out_kv_int(o, "original_max_position_embeddings", original);
    iv_out_close(o, '}');
    return IV_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------- */

static void out_id(iv_json_out *o, const iv_gguf *g, const char *name, const char *key) {
    const iv_gguf_value *v = iv_gguf_find(g, key);
    if (v && is_integer(v) && v->integer >= 0 && v->integer <= INT32_MAX)
        iv_out_kv_int(o, name, v->integer);
    else
        iv_out_kv_null(o, name);
}

/* eos, and eot where it is another token: each ends an answer. */
static void out_ends(iv_json_out *o, const iv_gguf *g) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t seen[3];
    size_t count = 0;
    iv_out_kv_open(o, "eos_token_id", '[');
    for (size_t i = 0; i < 3; i++) {
        const iv_gguf_value *v = iv_gguf_find(g, keys[i]);
        bool again = !v || !is_integer(v) || v->integer < 0 || v->integer > INT32_MAX;
        for (size_t k = 0; k < count; k++) again |= v && seen[k] == v->integer;
        if (again) continue;
        seen[count++] = v->integer;
        iv_out_int(o, v->integer);
    }
    iv_out_close(o, ']');
}

static iv_status sizes(const reader *r, iv_json_out *o, int64_t *head_dim) {
    int64_t hidden, heads, kv_heads, layers, intermediate, positions;
    double eps;
    IV_TRY(integer(r, "embedding_length", -1, &hidden));
    IV_TRY(integer(r, "attention.head_count", -1, &heads));
    IV_TRY(integer(r, "attention.head_count_kv", heads, &kv_heads));
    IV_TRY(integer(r, "block_count", -1, &layers));
    IV_TRY(integer(r, "feed_forward_length", r->arch->moe ? 1 : -1, &intermediate));
    IV_TRY(integer(r, "context_length", -1, &positions));
    IV_TRY(integer(r, "attention.key_length", heads ? hidden / heads : 0, head_dim));
    IV_TRY(real(r, "attention.layer_norm_rms_epsilon", -1, &eps));
    const iv_gguf_tensor *embedding = iv_gguf_set_find(r->s, "token_embd.weight");
    if (!embedding || embedding->info.ndim != 2)
        return iv_fail(r->err, IV_FORMAT, "%s: token_embd.weight: wanted a matrix, found %s", r->path,
                       embedding ? "another shape" : "nothing");
    iv_out_kv_int(o, "vocab_size", embedding->info.shape[0]), iv_out_kv_int(o, "hidden_size", hidden);
    iv_out_kv_int(o, "intermediate_size", intermediate), iv_out_kv_int(o, "num_hidden_layers", layers);
    iv_out_kv_int(o, "num_attention_heads", heads), iv_out_kv_int(o, "num_key_value_heads", kv_heads);
    iv_out_kv_int(o, "head_dim", *head_dim), iv_out_kv_int(o, "max_position_embeddings", positions);
    iv_out_kv_shortest(o, "rms_norm_eps", (float)eps);
    return IV_OK;
}

/* What Gemma 3's files do not say is as in llama.cpp: the local theta, the pattern, and the scale of scores, which is
 * another one in the model of 62 layers. */
static iv_status gemma(const reader *r, int64_t head_dim, iv_json_out *o) {
    int64_t window, hidden, heads, layers;
    IV_TRY(integer(r, "attention.sliding_window", -1, &window));
    IV_TRY(integer(r, "embedding_length", -1, &hidden));
    IV_TRY(integer(r, "attention.head_count", -1, &heads));
    IV_TRY(integer(r, "block_count", -1, &layers));
    iv_out_kv_int(o, "sliding_window", window), iv_out_kv_int(o, "sliding_window_pattern", 6);
    iv_out_kv_int(o, "query_pre_attn_scalar", layers == 62 && heads ? hidden / heads : head_dim);
    iv_out_kv_int(o, "rope_local_base_freq", 10000);
    return IV_OK;
}

static iv_status experts(const reader *r, iv_json_out *o) {
    int64_t count, used, width;
    if (!r->arch->moe) {
        IV_TRY(integer(r, "expert_count", 0, &count));
        if (count == 0) return IV_OK;
        return iv_fail(r->err, IV_UNSUPPORTED, "%s: %s.expert_count: experts are not supported for this architecture",
                       r->path, r->arch->name);
    }
    IV_TRY(integer(r, "expert_count", -1, &count));
    IV_TRY(integer(r, "expert_used_count", -1, &used));
    IV_TRY(integer(r, r->arch == &mixtral ? "feed_forward_length" : "expert_feed_forward_length", -1, &width));
    iv_out_kv_int(o, "num_experts", count), iv_out_kv_int(o, "num_experts_per_tok", used);
    iv_out_kv_int(o, "moe_intermediate_size", width), iv_out_kv_bool(o, "norm_topk_prob", true);
    iv_out_kv_int(o, "decoder_sparse_step", 1);
    return IV_OK;
}

static iv_status write_config(const reader *r, iv_json_out *o) {
    int64_t head_dim;
    IV_TRY(refuse_others(r));
    iv_out_open(o, '{');
    iv_out_kv_open(o, "architectures", '['), iv_out_text(o, r->arch->class), iv_out_close(o, ']');
    iv_out_kv_text(o, "model_type", r->arch->model_type);
    iv_out_kv_text(o, "torch_dtype", iv_dtype_name(iv_gguf_dtype(r->s)));
    iv_out_kv_text(o, r->arch->gemma ? "hidden_activation" : "hidden_act",
                   r->arch->gemma ? "gelu_pytorch_tanh" : "silu");
    IV_TRY(sizes(r, o, &head_dim));
    if (r->arch->gemma) IV_TRY(gemma(r, head_dim, o));
    IV_TRY(rotary(r, head_dim, o));
    IV_TRY(experts(r, o));
    iv_out_kv_bool(o, "attention_bias", iv_gguf_set_find(r->s, "blk.0.attn_q.bias") != NULL);
    iv_out_kv_bool(o, "tie_word_embeddings", iv_gguf_set_find(r->s, "output.weight") == NULL);
    out_id(o, &r->s->g, "bos_token_id", "tokenizer.ggml.bos_token_id");
    out_id(o, &r->s->g, "pad_token_id", "tokenizer.ggml.padding_token_id");
    out_ends(o, &r->s->g);
    iv_out_close(o, '}');
    return IV_OK;
}

iv_status iv_gguf_config_json(const iv_gguf_set *s, iv_buf *out, iv_error *err) {
    reader r = {.s = s, .path = s->paths[0], .err = err};
    iv_json_out o = {.buf = out, .spaced = true};
    IV_TRY(find_arch(&r));
    IV_TRY(use_mixtral(&r));
    iv_buf_clear(out);
    IV_TRY(write_config(&r, &o));
    return o.failed ? iv_fail(err, IV_NO_MEMORY, "%s: no memory for its configuration", r.path) : IV_OK;
}
