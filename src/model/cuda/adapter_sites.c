/* adapter_sites.c: the products of a rank that loaded adapters have parts of, and the tables of these parts. */
#include "base/size.h"
#include "model/cuda/adapters.h"

#include <string.h>

size_t iv_gpu_shared_site(const iv_model *m, size_t site, size_t *table) {
    size_t each = iv_sites_of_layer(m), layer = site / each, in_layer = site % each;
    *table = 0;
    if (site >= iv_site_head(m) || in_layer < IV_SITE_UP || m->layers[layer].config->mlp != IV_MLP_EXPERTS) return site;
    *table = (in_layer - IV_SITE_UP) / 2 - m->tp.shard[m->rank].expert_first;
    return layer * each + IV_SITE_UP + (in_layer - IV_SITE_UP) % 2;
}

static bool overlap(const iv_gpu_adapter_piece *a, const iv_gpu_adapter_piece *b) {
    return a->first < b->first + b->n && b->first < a->first + a->n;
}

/* The index of a piece of a site, which it gets if it is new; SIZE_MAX: another one has some of its outputs. */
static size_t place_piece(gpu_site *s, const iv_gpu_adapter_piece *piece) {
    size_t at = 0;
    for (size_t i = 0; i < s->pieces; i++) {
        if (s->piece[i].first == piece->first && s->piece[i].n == piece->n) return i;
        if (overlap(&s->piece[i], piece)) return SIZE_MAX;
        at += s->piece[i].first < piece->first;
    }
    if (s->pieces == IV_GPU_PIECES_MAX) return SIZE_MAX;
    memmove(&s->piece[at + 1], &s->piece[at], (s->pieces - at) * sizeof *s->piece);
    s->piece[at] = *piece, s->pieces++;
    return at;
}

/* Interleaved gates and ups always have both pieces, so that one launch can end with their activation. */
static void pair_up(const iv_model *m, size_t index, gpu_site *s) {
    size_t each = iv_sites_of_layer(m), kind = index % each;
    const iv_layer *l = &m->layers[index / each];
    if (index >= iv_site_head(m) || (kind != IV_SITE_UP && kind != IV_SITE_SHARED_UP)) return;
    bool experts = l->config->mlp == IV_MLP_EXPERTS;
    const iv_matrix *w = kind == IV_SITE_SHARED_UP
                             ? &l->shared.gate_up
                             : &l->experts[experts ? m->tp.shard[m->rank].expert_first : 0].gate_up;
    uint32_t half = (uint32_t)w->n / 2;
    const iv_gpu_adapter_piece gate = {0, half}, up = {half, half};
    if (w->paired) place_piece(s, &gate), place_piece(s, &up);
}

static iv_status place_parts(const iv_model *m, const gpu_adapter *a, gpu_site *site, iv_error *err) {
    for (size_t i = 0; i < a->count; i++) {
        const gpu_adapter_part *p = &a->parts[i];
        gpu_site *s = &site[p->site];
        size_t rank = iv_padded_k((size_t)p->part.rank);
        if (!s->pieces) pair_up(m, p->site, s);
        if (place_piece(s, &p->piece) == SIZE_MAX)
            return iv_fail(err, IV_UNSUPPORTED,
                           "adapter: wanted modules that do not share outputs of the model's layers, found two of "
                           "layer %zu with some in common (device cpu takes them)",
                           p->site / iv_sites_of_layer(m));
        s->rank_max = iv_size_max(s->rank_max, rank);
        s->t_width = iv_size_max(s->t_width, (size_t)p->part.first + rank);
        s->tables = iv_size_max(s->tables, p->table + 1);
    }
    return IV_OK;
}

iv_status iv_gpu_make_sites(const iv_model *m, const gpu_adapters *a, gpu_site *site, size_t *slots, size_t *parts,
                            iv_error *err) {
    size_t used = 0;
    for (size_t i = 0; i < a->capacity; i++) {
        if (!a->loaded[i].data) continue;
        used = i + 1;
        IV_TRY(place_parts(m, &a->loaded[i], site, err));
    }
    *parts = 0, *slots = 8;
    while (*slots < used + 1) *slots *= 2;
    for (size_t i = 0; i < a->site_count; i++) {
        site[i].at = *parts;
        bool routed = i < iv_site_head(m) && i % iv_sites_of_layer(m) >= IV_SITE_UP &&
                      m->layers[i / iv_sites_of_layer(m)].config->mlp == IV_MLP_EXPERTS;
        if (routed && site[i].pieces) site[i].tables = m->tp.shard[m->rank].experts;
        *parts += site[i].tables * *slots * site[i].pieces;
    }
    return IV_OK;
}

void iv_gpu_fill_parts(const gpu_adapters *a, gpu_site *site, size_t slots, iv_gpu_adapted_part *out) {
    for (size_t i = 0; i < a->capacity; i++)
        for (size_t k = 0; k < a->loaded[i].count; k++) {
            const gpu_adapter_part *p = &a->loaded[i].parts[k];
            gpu_site *s = &site[p->site];
            out[s->at + (p->table * slots + i + 1) * s->pieces + place_piece(s, &p->piece)] = p->part;
        }
}
