/* stored.c: the table of a checkpoint's tensors, and rows between its form and the decoder's. */
#include "model/stored.h"
#include "base/digest.h"
#include "base/size.h"
#include "model/tensor_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1024 * 1024 };

/* ---- the table ------------------------------------------------------------------------------------------ */

typedef struct making {
    iv_model *first;
    const iv_checkpoint *c;
    const char *prefix; /* of the checkpoint */
    iv_error *err;
} making;

static int by_name(const void *name, const void *s) { return strcmp(name, ((const iv_stored *)s)->info.name); }

iv_stored *iv_model_stored(const iv_model *first, const char *name) {
    if (!first->stored_count) return NULL;
    return bsearch(name, first->stored, first->stored_count, sizeof *first->stored, by_name);
}

static const iv_tensor_info *embedding_behind(const iv_checkpoint *c, const char *prefix) {
    static const char *const names[] = {"embed_tokens", "embeddings"};
    const iv_tensor_info *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        char name[IV_PLACE_NAME_BYTES];
        snprintf(name, sizeof name, "%s%s.weight", prefix, names[i]);
        found = iv_checkpoint_find(c, name);
    }
    return found;
}

/* The first one whose embedding is there. */
static const char *find_prefix(const iv_checkpoint *c) {
    const char *const *p = iv_tensor_prefixes;
    while (*p && !embedding_behind(c, *p)) p++;
    return *p;
}

const iv_tensor_info *iv_stored_embedding(const iv_checkpoint *c) {
    const char *prefix = find_prefix(c);
    return prefix ? embedding_behind(c, prefix) : NULL;
}

static iv_status copy_infos(making *k) {
    iv_model *m = k->first;
    size_t count = iv_checkpoint_count(k->c);
    m->stored = IV_ARENA_NEW(&m->arena, count + 1, iv_stored);
    bool memory = m->stored != NULL;
    for (; memory && m->stored_count < count; m->stored_count++) {
        iv_stored *s = &m->stored[m->stored_count];
        s->info = *iv_checkpoint_at(k->c, m->stored_count);
        s->info.name = iv_arena_strndup(&m->arena, s->info.name, strlen(s->info.name));
        memory = s->info.name != NULL;
        size_t last = s->info.ndim >= 2 ? (size_t)s->info.shape[s->info.ndim - 1] : 1;
        s->columns = last ? last : 1, s->rows = s->info.elements / s->columns, s->group = 1;
    }
    return memory ? IV_OK : iv_fail(k->err, IV_NO_MEMORY, "model: no memory for %zu tensors", count);
}

static bool has_shape(const iv_tensor_info *t, const iv_tensor_place *at) {
    if (t->ndim != at->ndim) return false;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != at->shape[i]) return false;
    return true;
}

static const char *shape_text(const int64_t *shape, int ndim, char out[160]) {
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < ndim && n < 160; i++)
        n += (size_t)snprintf(out + n, 160 - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    return out;
}

/* Where a square matrix of experts has two forms, it has that of gate and up, whose sizes differ. */
static bool is_other_form(const making *k, const char *name, const iv_tensor_place *at) {
    static const char down[] = "down_proj";
    char sibling[IV_PLACE_NAME_BYTES + sizeof "gate_up_proj"];
    size_t n = strlen(name), head = n - (sizeof down - 1);
    if (at->ndim != 3 || at->shape[1] != at->shape[2] || n < sizeof down || strcmp(name + head, down) != 0)
        return false;
    snprintf(sibling, sizeof sibling, "%.*sgate_up_proj", (int)head, name);
    const iv_stored *s = iv_model_stored(k->first, sibling);
    if (!s || s->info.ndim != 3) return false;
    return s->info.shape[at->transposed ? 1 : 2] == 2 * at->shape[1];
}

/* The stored tensor that holds `wanted`, and where. */
static iv_status locate(making *k, const iv_tensor_info *wanted, iv_stored **out, iv_tensor_place *at) {
    iv_tensor_place places[IV_PLACES_MAX];
    char names[IV_PLACES_MAX][IV_PLACE_NAME_BYTES], want[160], found[160];
    const iv_model_config *c = &k->first->config;
    size_t columns = wanted->ndim == 2 ? (size_t)wanted->shape[1] : 0, n, named = IV_PLACES_MAX;
    n = iv_tensor_places(c, k->prefix, wanted->name, wanted->ndim, (size_t)wanted->shape[0], columns, places, names);
    for (size_t i = 0; i < n; i++) {
        iv_stored *s = iv_model_stored(k->first, names[i]);
        if (s && named == IV_PLACES_MAX) named = i;
        if (!s || !has_shape(&s->info, &places[i]) || is_other_form(k, names[i], &places[i])) continue;
        if (s->info.dtype != IV_BF16 && s->info.dtype != IV_F16 && s->info.dtype != IV_F32)
            return iv_fail(k->err, IV_UNSUPPORTED, "%s: wanted BF16, F16 or F32, found %s", names[i],
                           iv_dtype_name(s->info.dtype));
        *out = s, *at = places[i];
        return IV_OK;
    }
    if (named == IV_PLACES_MAX)
        return iv_fail(k->err, IV_FORMAT, "%s: wanted by %s, not in the checkpoint", names[0], c->model_type);
    const iv_tensor_info *t = &iv_model_stored(k->first, names[named])->info;
    return iv_fail(k->err, IV_FORMAT, "%s: wanted shape [%s], found [%s]", names[named],
                   shape_text(places[named].shape, places[named].ndim, want), shape_text(t->shape, t->ndim, found));
}

static bool is_head(const making *k, const iv_stored *s) {
    char names[IV_PLACES_MAX][IV_PLACE_NAME_BYTES];
    iv_tensor_place places[IV_PLACES_MAX];
    iv_tensor_places(&k->first->config, k->prefix, "lm_head.weight", 2, 1, 1, places, names);
    return strcmp(s->info.name, names[0]) == 0;
}

/* Old exports hold buffers, wrappers other parts: as transformers does, they are passed over. */
static iv_status check_surplus(const making *k, const iv_stored *s) {
    const iv_model_config *c = &k->first->config;
    if (iv_tensor_is_buffer(s->info.name) || iv_tensor_is_ignored(c, s->info.name)) return IV_OK;
    if (c->tie_embeddings && is_head(k, s)) return IV_OK;
    return iv_fail(k->err, IV_FORMAT, "%s: surplus tensor: %s has none of this name", s->info.name, c->model_type);
}

typedef struct located {
    size_t stored; /* index */
    iv_tensor_place at;
} located;

/* Rows of one of the matrices of which some are transposed. */
static size_t block_rows(const iv_tensor_place *at, const iv_stored *s) {
    return at->height ? at->height : (size_t)s->info.shape[s->info.ndim - 2];
}

static iv_status add_pieces(making *k, const iv_tensor_info *wanted, size_t count, located *of) {
    iv_model *m = k->first;
    for (size_t i = 0; i < count; i++) {
        iv_stored *s = NULL;
        IV_TRY(locate(k, &wanted[i], &s, &of[i].at));
        of[i].stored = (size_t)(s - m->stored);
        s->count++;
        if (wanted[i].ndim == 1) s->columns = 1, s->rows = s->info.elements; /* biases of all experts, too */
        if (of[i].at.order.head) s->group = of[i].at.order.head;
        if (of[i].at.run) s->group = of[i].at.stride;
        if (of[i].at.transposed) s->group = block_rows(&of[i].at, s);
    }
    for (size_t i = 0; i < m->stored_count; i++) {
        iv_stored *s = &m->stored[i];
        if (!s->count) IV_TRY(check_surplus(k, s));
        s->pieces = IV_ARENA_NEW(&m->arena, s->count ? s->count : 1, iv_stored_piece);
        if (!s->pieces) return iv_fail(k->err, IV_NO_MEMORY, "%s: no memory", s->info.name);
    }
    return IV_OK;
}

static int by_tensor_name(const void *a, const void *b) {
    return strcmp(((const iv_tensor *)a)->info.name, ((const iv_tensor *)b)->info.name);
}

/* The model's tensors: those wanted, and one for each that is not read. */
static iv_status add_tensors(making *k, const iv_tensor_info *wanted, size_t count, const located *of) {
    iv_model *m = k->first;
    size_t surplus = 0;
    for (size_t i = 0; i < m->stored_count; i++) surplus += !m->stored[i].count;
    m->tensors = IV_ARENA_NEW(&m->arena, count + surplus + 1, iv_tensor);
    if (!m->tensors) return iv_fail(k->err, IV_NO_MEMORY, "model: no memory for %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        iv_tensor *t = &m->tensors[m->tensor_count++];
        t->info = wanted[i];
        t->info.name = iv_arena_strndup(&m->arena, wanted[i].name, strlen(wanted[i].name));
        if (!t->info.name) return iv_fail(k->err, IV_NO_MEMORY, "model: no memory for names");
        t->info.dtype = m->stored[of[i].stored].info.dtype;
        t->rows = (size_t)t->info.shape[0], t->columns = t->info.ndim == 2 ? (size_t)t->info.shape[1] : 1;
        t->info.elements = t->rows * t->columns, t->info.bytes = t->info.elements * iv_dtype_bytes(t->info.dtype);
    }
    for (size_t i = 0; i < m->stored_count; i++) {
        const iv_stored *s = &m->stored[i];
        if (s->count) continue;
        iv_tensor *t = &m->tensors[m->tensor_count++];
        *t = (iv_tensor){.info = s->info, .rows = s->rows, .columns = s->columns, .unused = true};
        if (is_head(k, s)) t->info.name = "lm_head.weight";
    }
    qsort(m->tensors, m->tensor_count, sizeof *m->tensors, by_tensor_name);
    return IV_OK;
}

static iv_status join(making *k, const iv_tensor_info *wanted, size_t count, const located *of) {
    iv_model *m = k->first;
    for (size_t i = 0; i < m->stored_count; i++) m->stored[i].count = 0;
    for (size_t i = 0; i < count; i++) {
        iv_stored *s = &m->stored[of[i].stored];
        iv_tensor *t = iv_model_tensor(m, wanted[i].name);
        size_t bytes;
        t->stored_as = iv_checkpoint_format(k->c, of[i].stored, &bytes);
        t->has_codes =
            (m->packed || m->terms) && !of[i].at.transposed && iv_checkpoint_form(k->c, of[i].stored, &t->codes);
        s->pieces[s->count++] = (iv_stored_piece){t, of[i].at};
    }
    for (size_t i = 0; i < m->stored_count; i++) {
        iv_stored *s = &m->stored[i];
        size_t held = 0;
        for (size_t p = 0; p < s->count; p++) held += s->pieces[p].tensor->rows * s->pieces[p].tensor->columns;
        if (s->count && held != s->info.elements)
            return iv_fail(k->err, IV_FORMAT, "%s: %zu of %zu elements have a meaning", s->info.name, held,
                           s->info.elements);
    }
    return IV_OK;
}

iv_status iv_stored_make(iv_model *first, const iv_checkpoint *c, const iv_tensor_info *wanted, size_t count,
                         iv_error *err) {
    making k = {first, c, find_prefix(c), err};
    IV_TRY(copy_infos(&k));
    located *of = calloc(count + 1, sizeof *of);
    if (!of) return iv_fail(err, IV_NO_MEMORY, "model: no memory for %zu tensors", count);
    iv_status status = add_pieces(&k, wanted, count, of);
    if (status == IV_OK) status = add_tensors(&k, wanted, count, of);
    if (status == IV_OK) status = join(&k, wanted, count, of);
    free(of);
    return status;
}

void iv_stored_add_head(iv_model *first, iv_tensor *head) {
    for (size_t i = 0; i < first->stored_count; i++) {
        iv_stored *s = &first->stored[i];
        size_t n = strlen(s->info.name), tail = strlen(head->info.name);
        if (s->count || n < tail || strcmp(s->info.name + n - tail, head->info.name) != 0) continue;
        s->pieces[s->count++] = (iv_stored_piece){head, {.ndim = 2, .step = 1}};
        return;
    }
}

iv_status iv_stored_of_family(const iv_model_config *config, iv_arena *arena, iv_tensor_info *tensors, size_t *count,
                              iv_error *err) {
    size_t n = 0;
    for (size_t i = 0; i < *count; i++) {
        iv_tensor_place places[IV_PLACES_MAX];
        char names[IV_PLACES_MAX][IV_PLACE_NAME_BYTES];
        const iv_tensor_info *t = &tensors[i];
        size_t columns = t->ndim == 2 ? (size_t)t->shape[1] : 0;
        iv_tensor_places(config, NULL, t->name, t->ndim, (size_t)t->shape[0], columns, places, names);
        if (places[0].begin || places[0].block) continue; /* its first part brings it */
        iv_tensor_info info = {.dtype = t->dtype, .ndim = places[0].ndim};
        memcpy(info.shape, places[0].shape, sizeof places[0].shape);
        info.name = iv_arena_strndup(arena, names[0], strlen(names[0]));
        if (!info.name) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory for names");
        tensors[n++] = info;
    }
    *count = n;
    return IV_OK;
}

iv_tensor_info iv_stored_info(const iv_stored *s) {
    iv_tensor_info info = s->info;
    if (s->count) info.dtype = s->pieces[0].tensor->info.dtype;
    return info;
}

bool iv_stored_is_held(const iv_stored *s) { return s->count && !s->pieces[0].tensor->same_as; }

/* ---- rows ----------------------------------------------------------------------------------------------- */

/* Rows as in the checkpoint, and the part of a piece in them. */
typedef struct window {
    const iv_stored *s;
    size_t first, rows, width; /* of an element in bytes */
    size_t from, to;           /* rows of the piece's tensor */
} window;

/* Which rows of a piece are there; false: none. */
static bool cut(const iv_stored_piece *p, window *w) {
    size_t all = p->tensor->rows;
    if (p->at.transposed) {
        size_t begin = p->at.block * w->s->group;
        w->from = 0, w->to = all;
        return begin >= w->first && begin < w->first + w->rows;
    }
    size_t begin = p->at.begin, step = p->at.step, end = w->first + w->rows;
    if (p->at.run) { /* whole groups */
        w->from = iv_size_min(w->first / p->at.stride * p->at.run, all);
        w->to = iv_size_min((end + p->at.stride - 1) / p->at.stride * p->at.run, all);
        return w->from < w->to;
    }
    w->from = w->first > begin ? (w->first - begin + step - 1) / step : 0;
    w->to = end > begin ? (end - begin + step - 1) / step : 0;
    w->to = iv_size_min(w->to, all);
    return w->from < w->to;
}

/* The stored row, from w->first on, of row r of the tensor. */
static size_t stored_row(const iv_stored_piece *p, const window *w, size_t r) {
    const iv_row_order *o = &p->at.order;
    if (o->head) r = r / o->head * o->head + iv_row_order_source(o, r % o->head);
    return iv_place_row(&p->at, r) - w->first;
}

/* The same for rows of `row` bytes, of no transposed piece. */
static void move_rows(const iv_stored_piece *p, const window *w, size_t row, bool to_stored, char *stored, char *own) {
    for (size_t r = w->from; r < w->to; r++) {
        char *there = stored + stored_row(p, w, r) * row, *here = own + (r - w->from) * row;
        memcpy(to_stored ? there : here, to_stored ? here : there, row);
    }
}

/* Between the stored rows and rows [from, to) of the tensor, one behind another. */
static void move(const iv_stored_piece *p, const window *w, bool to_stored, char *stored, char *own) {
    size_t columns = p->tensor->columns, row = columns * w->width;
    if (!p->at.transposed) {
        move_rows(p, w, row, to_stored, stored, own);
        return;
    }
    stored += (p->at.block * w->s->group - w->first) * w->s->columns * w->width;
    for (size_t k = 0; k < columns; k++)
        for (size_t r = 0; r < w->to; r++) {
            char *there = stored + (k * w->s->columns + p->at.begin + r * p->at.step) * w->width;
            char *here = own + r * row + k * w->width;
            memcpy(to_stored ? there : here, to_stored ? here : there, w->width);
        }
}

static bool is_straight(const iv_stored_piece *p) {
    return !p->at.transposed && !p->at.order.head && !p->at.run && p->at.step == 1;
}

static iv_status temporary(const iv_stored_piece *p, const window *w, char **out, iv_error *err) {
    *out = malloc((w->to - w->from) * p->tensor->columns * w->width);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to copy it", w->s->info.name);
}

static iv_status read_piece(const iv_stored_piece *p, const window *w, iv_dtype dtype, iv_stored_source *source,
                            void *user, char *out, iv_error *err) {
    size_t n = w->to - w->from;
    char *own;
    if (is_straight(p))
        return source(user, p->tensor, w->from, n, dtype,
                      out + (p->at.begin + w->from - w->first) * w->s->columns * w->width, err);
    IV_TRY(temporary(p, w, &own, err));
    iv_status status = source(user, p->tensor, w->from, n, dtype, own, err);
    if (status == IV_OK) move(p, w, true, out, own);
    free(own);
    return status;
}

/* Whole groups. */
static iv_status read_groups(const iv_stored *s, size_t first, size_t rows, iv_dtype dtype, iv_stored_source *source,
                             void *user, char *out, iv_error *err) {
    window w = {.s = s, .first = first, .rows = rows, .width = iv_dtype_bytes(dtype)};
    for (size_t i = 0; i < s->count; i++)
        if (cut(&s->pieces[i], &w)) IV_TRY(read_piece(&s->pieces[i], &w, dtype, source, user, out, err));
    return IV_OK;
}

iv_status iv_stored_read_from(const iv_stored *s, size_t first, size_t rows, iv_dtype dtype, iv_stored_source *source,
                              void *user, void *out, iv_error *err) {
    IV_ASSERT(first <= s->rows && rows <= s->rows - first);
    if (!s->count) return iv_fail(err, IV_UNSUPPORTED, "%s: this process does not hold it", s->info.name);
    size_t row = s->columns * iv_dtype_bytes(dtype), begin = first / s->group * s->group;
    size_t end = iv_size_min((first + rows + s->group - 1) / s->group * s->group, s->rows);
    if (begin == first && end == first + rows) return read_groups(s, first, rows, dtype, source, user, out, err);
    char *whole = malloc((end - begin) * row);
    if (!whole) return iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", s->info.name);
    iv_status status = read_groups(s, begin, end - begin, dtype, source, user, whole, err);
    if (status == IV_OK) memcpy(out, whole + (first - begin) * row, rows * row);
    free(whole);
    return status;
}

static iv_status of_model(void *user, const iv_tensor *t, size_t first, size_t rows, iv_dtype dtype, void *out,
                          iv_error *err) {
    (void)user;
    return iv_tensor_read_rows(t, first, rows, dtype, out, err);
}

iv_status iv_stored_read_rows(const iv_stored *s, size_t first, size_t rows, iv_dtype dtype, void *out, iv_error *err) {
    return iv_stored_read_from(s, first, rows, dtype, of_model, NULL, out, err);
}

static iv_status write_piece(const iv_stored_piece *p, const window *w, iv_dtype from, char *data, iv_error *err) {
    size_t n = w->to - w->from;
    char *own;
    if (is_straight(p))
        return iv_tensor_write_rows(p->tensor, w->from, n, from,
                                    data + (p->at.begin + w->from - w->first) * w->s->columns * w->width, err);
    IV_TRY(temporary(p, w, &own, err));
    move(p, w, false, data, own);
    iv_status status = iv_tensor_write_rows(p->tensor, w->from, n, from, own, err);
    free(own);
    return status;
}

iv_status iv_stored_write_rows(const iv_stored *s, size_t first, size_t rows, iv_dtype from, const void *data,
                               iv_error *err) {
    IV_ASSERT(first <= s->rows && rows <= s->rows - first && first % s->group == 0 && rows % s->group == 0);
    window w = {.s = s, .first = first, .rows = rows, .width = iv_dtype_bytes(from)};
    for (size_t i = 0; i < s->count; i++) {
        const iv_stored_piece *p = &s->pieces[i];
        if (!cut(p, &w)) continue;
        if (write_piece(p, &w, from, (char *)(uintptr_t)data, err) == IV_OK) continue;
        return strcmp(p->tensor->info.name, s->info.name) == 0 ? err->status : iv_error_prefix(err, "%s", s->info.name);
    }
    return IV_OK;
}

const iv_code_form *iv_stored_form(const iv_stored *s) {
    for (size_t i = 0; iv_stored_is_held(s) && i < s->count; i++)
        if (s->pieces[i].tensor->packed) return &s->pieces[i].tensor->codes;
    return NULL;
}

static void move_numbers(const iv_stored_piece *p, const window *w, size_t n, float *stored, float *own) {
    move_rows(p, w, n * sizeof *stored, false, (char *)stored, (char *)own);
}

static iv_status write_codes(const iv_stored_piece *p, const window *w, const iv_row_codes *in, iv_error *err) {
    const iv_code_form *f = &p->tensor->codes;
    size_t n = w->to - w->from, columns = w->s->columns, skip = p->at.begin + w->from - w->first;
    size_t groups = iv_code_groups(f, columns), outers = iv_code_outers(f, columns);
    if (is_straight(p)) {
        const iv_row_codes part = {in->codes + skip * columns, in->scales + skip * groups, in->seconds + skip * groups,
                                   in->outer_scales + skip * outers, in->outer_seconds + skip * outers};
        return iv_tensor_write_codes(p->tensor, w->from, n, &part, err);
    }
    iv_row_codes own;
    iv_status status = iv_row_codes_alloc(f, n, columns, &own)
                           ? IV_OK
                           : iv_fail(err, IV_NO_MEMORY, "%s: no memory to copy it", w->s->info.name);
    if (status == IV_OK) {
        move_rows(p, w, columns, false, (char *)in->codes, (char *)own.codes);
        move_numbers(p, w, groups, in->scales, own.scales), move_numbers(p, w, groups, in->seconds, own.seconds);
        move_numbers(p, w, outers, in->outer_scales, own.outer_scales);
        move_numbers(p, w, outers, in->outer_seconds, own.outer_seconds);
        status = iv_tensor_write_codes(p->tensor, w->from, n, &own, err);
    }
    iv_row_codes_free(&own);
    return status;
}

iv_status iv_stored_write_codes(const iv_stored *s, size_t first, size_t rows, const iv_row_codes *in, iv_error *err) {
    IV_ASSERT(first <= s->rows && rows <= s->rows - first && first % s->group == 0 && rows % s->group == 0);
    window w = {.s = s, .first = first, .rows = rows, .width = 1};
    for (size_t i = 0; i < s->count; i++)
        if (s->pieces[i].tensor->packed && cut(&s->pieces[i], &w)) IV_TRY(write_codes(&s->pieces[i], &w, in, err));
    return IV_OK;
}

size_t iv_stored_rows_within(const iv_stored *s, iv_dtype dtype, size_t bytes) {
    size_t rows = iv_size_max(1, bytes / (s->columns * iv_dtype_bytes(dtype)));
    return iv_size_max(1, rows / s->group) * s->group;
}

void iv_stored_rows_of(const iv_stored *s, const iv_stored_piece *p, size_t *first, size_t *rows) {
    *first = p->at.transposed ? p->at.block * s->group : p->at.begin;
    *rows = p->at.transposed ? s->group : iv_place_row(&p->at, p->tensor->rows - 1) + 1 - p->at.begin;
}

static window whole_piece(const iv_stored *s, const iv_stored_piece *p, size_t width) {
    window w = {.s = s, .width = width, .to = p->tensor->rows};
    iv_stored_rows_of(s, p, &w.first, &w.rows);
    return w;
}

void iv_stored_take(const iv_stored *s, const iv_stored_piece *p, size_t width, const void *stored, void *own) {
    window w = whole_piece(s, p, width);
    move(p, &w, false, (char *)(uintptr_t)stored, own);
}

void iv_stored_give(const iv_stored *s, const iv_stored_piece *p, size_t width, const void *own, void *stored) {
    window w = whole_piece(s, p, width);
    move(p, &w, true, stored, (char *)(uintptr_t)own);
}

/* ---- other forms ---------------------------------------------------------------------------------------- */

/* Tensors [*from, *to) that a name may be of: those of its layer, or all that are of none. */
static void candidates(const iv_model *m, const char *name, size_t *from, size_t *to) {
    const char *at = strstr(name, "layers.");
    char prefix[48];
    *from = 0, *to = m->tensor_count;
    if (!at || m->config.layers_of_one) return;
    int n = snprintf(prefix, sizeof prefix, "model.layers.%ld.", strtol(at + 7, NULL, 10));
    for (size_t low = 0, high = m->tensor_count; low < high;) {
        size_t middle = (low + high) / 2;
        if (strcmp(m->tensors[middle].info.name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
        *from = low;
    }
    for (*to = *from; *to < m->tensor_count && strncmp(m->tensors[*to].info.name, prefix, (size_t)n) == 0;) ++*to;
}

/* Where a tensor of the model is, if it is in the one described. */
static bool find_place(const iv_model_config *c, const iv_tensor *t, const iv_tensor_info *in, iv_tensor_place *out) {
    iv_tensor_place places[IV_PLACES_MAX];
    char names[IV_PLACES_MAX][IV_PLACE_NAME_BYTES];
    size_t columns = t->info.ndim == 2 ? t->columns : 0;
    for (const char *const *p = iv_tensor_prefixes; *p; p++) {
        if (strncmp(in->name, *p, strlen(*p)) != 0 && strncmp(t->info.name, "model.", 6) == 0) continue;
        size_t n = iv_tensor_places(c, *p, t->info.name, t->info.ndim, t->rows, columns, places, names);
        for (size_t i = 0; i < n; i++) {
            if (strcmp(names[i], in->name) != 0 || !has_shape(in, &places[i])) continue;
            *out = places[i];
            return true;
        }
    }
    return false;
}

iv_status iv_stored_recognize(const iv_model *first, const char *name, int ndim, const int64_t *shape, iv_arena *arena,
                              iv_stored *out, iv_error *err) {
    size_t from, to, held = 0;
    *out = (iv_stored){.info = {.name = name, .ndim = ndim, .elements = 1}, .columns = 1, .group = 1};
    for (int i = 0; i < ndim; i++) {
        out->info.shape[i] = shape[i];
        if (shape[i] <= 0 || !iv_size_mul(out->info.elements, (size_t)shape[i], &out->info.elements)) return IV_OK;
    }
    if (ndim >= 2) out->columns = (size_t)shape[ndim - 1];
    out->rows = out->columns ? out->info.elements / out->columns : 0;
    candidates(first, name, &from, &to);
    out->pieces = IV_ARENA_NEW(arena, to - from + 1, iv_stored_piece);
    if (!out->pieces) return iv_fail(err, IV_NO_MEMORY, "%.200s: no memory", name);
    for (size_t i = from; i < to; i++) {
        iv_tensor *t = &first->tensors[i];
        iv_tensor_place at;
        if (t->unused || t->same_as || !find_place(&first->config, t, &out->info, &at)) continue;
        out->pieces[out->count++] = (iv_stored_piece){t, at};
        if (t->info.ndim == 1) out->columns = 1, out->rows = out->info.elements;
        if (at.transposed) out->group = block_rows(&at, out);
        held += t->rows * t->columns;
    }
    if (held != out->info.elements) out->count = 0;
    return IV_OK;
}

/* ---- digests -------------------------------------------------------------------------------------------- */

iv_status iv_stored_digest(iv_stored *s, iv_error *err) {
    iv_dtype type = iv_stored_info(s).dtype;
    size_t row = s->columns * iv_dtype_bytes(type), step = iv_stored_rows_within(s, type, CHUNK_BYTES);
    void *chunk = malloc(iv_size_min(step, s->rows) * row);
    iv_digest *d = chunk ? iv_digest_new() : NULL;
    iv_status status = d ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory for its digest", s->info.name);
    for (size_t at = 0, n; status == IV_OK && at < s->rows; at += n) {
        n = iv_size_min(step, s->rows - at);
        status = iv_stored_read_rows(s, at, n, type, chunk, err);
        if (status == IV_OK) iv_digest_add(d, chunk, n * row);
    }
    uint8_t digest[32];
    if (d) iv_digest_finish(d, digest);
    if (status == IV_OK) memcpy(s->digest, digest, sizeof digest);
    free(chunk);
    return status;
}

static bool has_changed(const iv_stored *s) {
    for (size_t i = 0; i < s->count; i++)
        if (s->pieces[i].tensor->changed) return true;
    return false;
}

typedef struct hashing {
    iv_stored *stored;
    iv_error *errors; /* [workers]: of the last tensor that failed */
} hashing;

static void hash_one(void *context, size_t index, size_t worker) {
    hashing *h = context;
    if (has_changed(&h->stored[index])) iv_stored_digest(&h->stored[index], &h->errors[worker]);
}

static iv_status hash_changed(iv_model *first, iv_pool *pool, iv_error *err) {
    size_t workers = pool ? iv_pool_threads(pool) : 1;
    hashing h = {first->stored, calloc(workers, sizeof *h.errors)};
    if (!h.errors) return iv_fail(err, IV_NO_MEMORY, "no memory for the weights digest");
    iv_status status = IV_OK;
    if (pool)
        iv_pool_run(pool, first->stored_count, hash_one, &h);
    else
        for (size_t i = 0; i < first->stored_count; i++) hash_one(&h, i, 0);
    for (size_t w = 0; w < workers && status == IV_OK; w++)
        if (h.errors[w].status != IV_OK) *err = h.errors[w], status = err->status;
    free(h.errors);
    return status;
}

iv_status iv_model_digest(iv_model *first, iv_pool *pool, iv_error *err) {
    IV_TRY(hash_changed(first, pool, err));
    for (size_t i = 0; i < first->tensor_count; i++) first->tensors[i].changed = false;
    iv_digest *d = iv_weights_digest_new(first->stored_count);
    if (!d) return iv_fail(err, IV_NO_MEMORY, "no memory for the weights digest");
    for (size_t i = 0; i < first->stored_count; i++) {
        iv_tensor_info info = iv_stored_info(&first->stored[i]);
        iv_weights_digest_add(d, &info, first->stored[i].digest);
    }
    iv_digest_finish(d, first->weights_digest);
    for (iv_model *m = first->next; m; m = m->next)
        memcpy(m->weights_digest, first->weights_digest, sizeof m->weights_digest);
    return IV_OK;
}
