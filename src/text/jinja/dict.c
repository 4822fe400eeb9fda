/* dict.c: Python's dict: insertion order, equal numbers are one key.
 *
 * Small dicts are searched in order; larger ones have an index of open addressing. Probes are charged as
 * steps, so that colliding keys run into the step limit and not into quadratic time. */
#include "text/jinja/run.h"

#include <string.h>

enum { INDEX_FROM = 8 }; /* entries */

static uint64_t mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 33;
}

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3ULL;
    return mix(h);
}

bool ivj_hashable(ivj_value v, int depth) {
    if (v.type == IVJ_LIST || v.type == IVJ_DICT || depth > IVJ_MAX_VALUE_DEPTH) return false;
    if (v.type != IVJ_TUPLE) return true;
    for (size_t i = 0; i < v.u.list->n; i++)
        if (!ivj_hashable(v.u.list->items[i], depth + 1)) return false;
    return true;
}

/* Equal values have equal hashes, across bool, int and float. */
static uint64_t hash(ivj_value v) {
    switch ((ivj_type)v.type) {
    case IVJ_STRING: return hash_bytes(v.u.s, v.n);
    case IVJ_BOOL:
    case IVJ_INT: return mix((uint64_t)ivj_as_int(v));
    case IVJ_FLOAT: {
        if (v.u.d >= -9e18 && v.u.d <= 9e18 && v.u.d == (double)(int64_t)v.u.d) return mix((uint64_t)(int64_t)v.u.d);
        return hash_bytes((const char *)&v.u.d, sizeof v.u.d);
    }
    case IVJ_TUPLE: {
        uint64_t h = v.u.list->n;
        for (size_t i = 0; i < v.u.list->n; i++) h = mix(h ^ hash(v.u.list->items[i]));
        return h;
    }
    default: return v.type;
    }
}

iv_status ivj_dict_new(ivj_run *r, ivj_dict **out) { return ivj_alloc(r, 1, sizeof **out, out); }

static iv_status same_key(ivj_run *r, const ivj_entry *e, uint64_t h, ivj_value key, bool *same) {
    *same = false;
    return e->hash == h ? ivj_equal(r, e->key, key, same) : IV_OK;
}

/* The entry of key, or NULL; with an index, *slot is where the key is or would be. */
static iv_status find(ivj_run *r, const ivj_dict *d, uint64_t h, ivj_value key, ivj_entry **out, size_t *slot) {
    bool same;
    *out = NULL;
    if (!d->index) {
        for (size_t i = 0; i < d->n && !*out; i++) {
            IV_TRY(same_key(r, &d->entries[i], h, key, &same));
            if (same) *out = &d->entries[i];
        }
        return IV_OK;
    }
    for (size_t i = h & (d->index_cap - 1), probes = 1;; i = (i + 1) & (d->index_cap - 1), probes++) {
        *slot = i;
        if (d->index[i] == 0) return IV_OK;
        if (probes % 8 == 0) IV_TRY(ivj_charge(r, 1));
        IV_TRY(same_key(r, &d->entries[d->index[i] - 1], h, key, &same));
        if (same) {
            *out = &d->entries[d->index[i] - 1];
            return IV_OK;
        }
    }
}

static iv_status grow(ivj_run *r, ivj_dict *d) {
    size_t cap = d->cap ? d->cap * 2 : 4;
    ivj_entry *entries;
    IV_TRY(ivj_alloc(r, cap, sizeof *entries, &entries));
    if (d->n) memcpy(entries, d->entries, d->n * sizeof *entries);
    d->entries = entries;
    d->cap = cap;
    if (cap <= INDEX_FROM) return IV_OK;
    d->index_cap = cap * 2;
    IV_TRY(ivj_alloc(r, d->index_cap, sizeof *d->index, &d->index));
    for (size_t e = 0; e < d->n; e++) {
        size_t i = entries[e].hash & (d->index_cap - 1);
        while (d->index[i]) i = (i + 1) & (d->index_cap - 1);
        d->index[i] = (uint32_t)e + 1;
    }
    return ivj_charge(r, d->n);
}

iv_status ivj_dict_set(ivj_run *r, ivj_dict *d, ivj_value key, ivj_value value) {
    if (!ivj_hashable(key, 0)) return ivj_fail(r, "'%s' cannot be a key", ivj_type_name(key));
    uint64_t h = hash(key);
    ivj_entry *e;
    size_t slot = 0;
    IV_TRY(find(r, d, h, key, &e, &slot));
    if (e) {
        e->value = value;
        return IV_OK;
    }
    if (d->n == d->cap) {
        IV_TRY(grow(r, d));
        IV_TRY(find(r, d, h, key, &e, &slot));
    }
    d->entries[d->n++] = (ivj_entry){.hash = h, .key = key, .value = value};
    if (d->index) d->index[slot] = (uint32_t)d->n;
    return IV_OK;
}

iv_status ivj_dict_get(ivj_run *r, const ivj_dict *d, ivj_value key, const ivj_value **out) {
    if (!ivj_hashable(key, 0)) return ivj_fail(r, "'%s' cannot be a key", ivj_type_name(key));
    ivj_entry *e;
    size_t slot;
    IV_TRY(find(r, d, hash(key), key, &e, &slot));
    *out = e ? &e->value : NULL;
    return IV_OK;
}
