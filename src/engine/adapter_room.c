/* adapter_room.c: the memory that adapters may take, from a model's plan. */
#include "base/size.h"
#include "engine/adapters.h"
#include "format/tensor_places.h"
#include "model/tensors.h"

enum { ALIGNED = 64 };

typedef struct room {
    const iv_model *plan;
    size_t ranks, rank, bytes;
    bool good; /* no overflow so far */
} room;

/* A matrix as it is packed: rows in whole panels. */
static void add_matrix(room *r, size_t n, size_t k, size_t copies) {
    iv_matrix m;
    size_t bytes;
    r->good = r->good && iv_matrix_shape(&m, r->plan->gemm_type, n, k) &&
              iv_size_mul(iv_matrix_bytes(&m), copies, &bytes) && iv_size_add(r->bytes, bytes, &r->bytes);
}

/* Small structs, which arenas align. */
static void add_bytes(room *r, size_t count, size_t each, size_t copies) {
    size_t bytes;
    r->good = r->good && iv_size_mul(count, each + ALIGNED, &bytes) && iv_size_mul(bytes, copies, &bytes) &&
              iv_size_add(r->bytes, bytes, &r->bytes);
}

/* Every rank has A, and its part of B in panels of its own. */
static void add_module(room *r, size_t outputs, size_t inputs) {
    add_bytes(r, 1, sizeof(iv_adapted), r->ranks);
    add_bytes(r, IV_PLACES_MAX + 2, sizeof(iv_adapted_out), r->ranks);
    add_matrix(r, r->rank, inputs, r->ranks);
    add_matrix(r, outputs, r->rank, 1);
    if (r->ranks > 1) add_matrix(r, 1, r->rank, r->ranks);
}

static void add_tensor(room *r, const iv_tensor *t) {
    if (t) add_module(r, t->rows, t->columns);
}

static void add_mlp(room *r, const iv_mlp_tensors *m) {
    add_tensor(r, m->gate), add_tensor(r, m->up), add_tensor(r, m->down);
}

static void add_layer(room *r, size_t index) {
    const iv_layer_tensors *n = &r->plan->layer_tensors[index];
    const iv_tensor *const all[] = {n->q, n->k, n->v, n->gate, n->z, n->b, n->a, n->out, n->router, n->shared_gate};
    const iv_model_config *c = &r->plan->config;
    size_t experts = c->layer[index].mlp == IV_MLP_EXPERTS ? (size_t)c->experts : 1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) add_tensor(r, all[i]);
    add_mlp(r, &n->shared);
    for (size_t i = 0; n->experts && i < experts; i++) add_mlp(r, &n->experts[i]);
}

bool iv_adapters_room(const iv_model *plan, size_t ranks, size_t rank, size_t *bytes) {
    room r = {.plan = plan, .ranks = ranks, .rank = rank, .good = true};
    size_t vocab = (size_t)plan->config.vocab_size, hidden = (size_t)plan->config.hidden_size;
    for (size_t i = 0; i < (size_t)plan->config.layers; i++) add_layer(&r, i);
    add_module(&r, vocab, hidden);                                /* the head */
    add_matrix(&r, vocab, rank, 1);                               /* the embedding: rows, which are not packed, */
    for (size_t i = 0; i < ranks; i++) add_module(&r, hidden, 1); /* and what every rank adds of them */
    add_bytes(&r, iv_site_count(plan), sizeof(iv_adapted *), ranks);
    *bytes = r.bytes;
    return r.good;
}
