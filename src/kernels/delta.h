/* delta.h: gated delta-rule layers for a batch of rows. Law: NUMERICS.md section 17.
 *
 * A sequence has, per layer, a state at the last border of its blocks of 64 positions (a slot: never written again) and
 * a tail: what the rows of its open block leave for later ones. A tail has two buffers, used in turn: the rows of the
 * block that a step begins in go to one, those of the block that it ends in, if that is another, to the other one. So
 * a step that failed, or whose drafts are rejected, runs again from what it found. Blocks in between leave nothing.
 *
 * The ops run in this order, each over threads: inputs of all rows; open of all spans; mix of all rows; heads of all
 * spans and key heads; norm of all rows. A scan has its own mix and norm (scan.h). */
#ifndef IV_KERNELS_DELTA_H
#define IV_KERNELS_DELTA_H

#include "kernels/compute.h"
#include "kernels/matrix.h"

/* Sizes of a rank's part of a layer, and where things lie in a slot and in a buffer of a tail. */
typedef struct iv_delta_layout {
    iv_dtype type;
    size_t key_heads, value_heads; /* of the rank; none: it takes no part */
    size_t group;                  /* value heads of a key head */
    size_t group_first;            /* index of value head 0 in the group of key head 0 */
    bool scan;                     /* Mamba-2 (scan.h): no substitution; q, k, v are C, B, x, and a row ends z, dt */
    size_t key_dim, value_dim, taps;
    size_t keys, channels;          /* key_heads * key_dim; channels of the convolution: q, k, v */
    size_t width;                   /* of a row of the projection: channels, z, b, a */
    iv_matrix key, update, rounded; /* shapes only, of one head: [64][key_dim]; [value_dim][64]; [value_dim][key_dim] */
    size_t state_bytes;             /* of a head: float32, [value panel][padded key_dim][32] */
    size_t slot_inputs, slot_bytes; /* a slot: states, then the last taps - 1 rows of inputs */
    size_t tail_updates, tail_rounded, tail_totals, tail_inputs, tail_bytes; /* a buffer: keys first */
} iv_delta_layout;

typedef struct iv_delta_sizes {
    size_t key_heads, value_heads, group, group_first, key_dim, value_dim, taps;
    bool scan;
} iv_delta_sizes;

/* False when a size overflows. Bytes are multiples of 64. */
bool iv_delta_layout_make(iv_delta_layout *l, iv_dtype type, const iv_delta_sizes *sizes);

/* The same for a short convolution between two gates, of which a slot and a buffer hold nothing but inputs: no heads,
 * and rows of a projection b, c, x of `channels` each. */
bool iv_conv_layout_make(iv_delta_layout *l, iv_dtype type, size_t channels, size_t taps);

enum { IV_DELTA_WRITES_MAX = 8 };

/* Consecutive rows of one sequence. Slots and buffers are of this layer, 64-byte aligned; buffers hold finite values
 * throughout. */
typedef struct iv_delta_span {
    size_t first_row, rows, position;
    const unsigned char *from; /* the slot of the border at or before `position`; NULL: that is position 0 */
    unsigned char *now, *next; /* buffers of the blocks in which the rows begin and end; NULL: the rows are a whole
                                * sequence, of which nothing is left */
    size_t border;             /* in `kept`: where the border behind the sequence's first block is */
    size_t write_count;
    struct {
        size_t block; /* the state after so many blocks, ascending: behind `position`, at the end at most */
        unsigned char *slot;
    } writes[IV_DELTA_WRITES_MAX];
} iv_delta_span;

/* What the backward pass needs besides inputs and qk; all but the gates is typed. A short convolution keeps b, c and x
 * alone.
 */
typedef struct iv_delta_kept {
    void *updates;  /* [rows][value_heads * value_dim]: R(u) */
    void *o, *z;    /* the same, before the gated norm; of a short convolution z is [rows][width]: b, c, x */
    void *borders;  /* [border][value_heads][key_dim][value_dim]: the rounded states where blocks begin, but for a
                     * sequence's first, (rows - 1) / 64 of them */
    float *gates;   /* [rows][3][value_heads]: beta, decay, a; of a scan the step, the decay and dt */
    float *factors; /* [rows][value_heads]: of a scan's norm; else unused */
} iv_delta_kept;

typedef struct iv_delta_args {
    const iv_delta_layout *layout;
    const float *conv;            /* [channels][taps] */
    const float *a_log, *dt_bias; /* [value_heads] */
    const float *norm;            /* [value_dim]; of a scan [value_heads * value_dim], or NULL */
    float eps;
    float *x;     /* [rows][width]: the projection; mix and heads replace it in place, o stands where v was */
    void *inputs; /* [rows][channels] in the type */
    void *qk;     /* [rows][2 * keys] in the type: q, k */
    void *out;    /* [rows][value_heads * value_dim] in the type */
    const iv_delta_kept *kept;       /* NULL: there is no backward pass */
    const struct iv_scan_args *scan; /* NULL: a delta rule */
} iv_delta_args;

/* Rounds a row's inputs of the convolution. */
void iv_delta_inputs(const iv_compute *c, const iv_delta_args *a, size_t row);

/* The span's inputs into tails and slots; not for a span without buffers. */
void iv_delta_open(const iv_delta_args *a, const iv_delta_span *s);

/* Row i of the span: convolution, q and k, decays and betas. False: a key is not finite. */
bool iv_delta_mix(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i);

/* Scratch for one thread, in bytes; the compute's has threads times as much. */
bool iv_delta_scratch(const iv_delta_layout *l, size_t *bytes);

/* The value heads of one key head for all rows of a span. False: an update is not finite. */
bool iv_delta_heads(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t key_head,
                    void *scratch);

/* The gated norm of a row. */
void iv_delta_norm(const iv_compute *c, const iv_delta_args *a, size_t row);

/* A short convolution's ops, with iv_delta_open between them: inputs R(b x) of a row, false if one is not finite; then
 * of row i of the span R(c y), y their convolution, into `out`. */
bool iv_conv_inputs(const iv_compute *c, const iv_delta_args *a, size_t row);
void iv_conv_mix(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i);

/* The convolution of a position and its activation: all channels, f32. */
void iv_delta_convolve_row(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t position,
                           float *x);

/* The sums of the convolution of channels [from, from + n) at a position of the span, n at most IV_DELTA_CHUNK. */
enum { IV_DELTA_CHUNK = 64 };
void iv_delta_convolve(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t position,
                       size_t from, size_t n, float *y);

/* Elements [from, from + n) as floats. */
void iv_delta_widen(iv_dtype type, const void *x, size_t from, size_t n, float *out);

/* Are n elements finite? */
bool iv_delta_finite(iv_dtype type, const void *p, size_t n);

#endif
